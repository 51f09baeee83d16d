"""The rows of a CSV of metrics as a run writes them, each once and whole."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from hpcdash.cli.metric_output import axis_of, table_as_csv, wide_table
from hpcdash.domain.text import visible
from hpcdash.services.metrics.joined import JoinedRun


class ComingRows:
    """Gives what is new of the wide table: its columns are the metrics of its first rows.

    The newest row waits for the next one, as another metric of its step may follow; the end brings it.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._axis = ""
        self._last: float | None = None
        self._attempts = 1
        self._told: set[str] = set()

    @property
    def has_begun(self) -> bool:
        """Whether the titles were given."""
        return bool(self._names)

    def new_rows(self, run: JoinedRun, names: Sequence[str], *, is_end: bool = False) -> bytes:
        """What to write now, with the titles before the first row."""
        axis = axis_of(run)
        if self.has_begun and axis != self._axis:
            return b""
        table = wide_table(run, self._names or list(names))
        if not is_end:
            table = table.slice(0, max(0, table.num_rows - 1))
        if self._last is not None:
            table = table.filter(pc.greater(table[axis], self._last))
        if not table.num_rows:
            return b""
        is_first = not self.has_begun
        if is_first:
            self._names, self._axis = list(names), axis
        self._last = table[axis][-1].as_py()
        return table_as_csv(table, has_titles=is_first)

    def left_out(self, run: JoinedRun, names: Sequence[str]) -> list[str]:
        """In words, each once, what the rows do not have."""
        if not self.has_begun:
            self._attempts = max(1, len(run.attempts))
            return []
        said = []
        if late := [name for name in names if name not in self._names and name not in self._told]:
            self._told.update(late)
            came = ", ".join(visible(name) for name in late)
            said.append(f"{came} came later and has no column here; without -f it has")
        if len(run.attempts) > self._attempts:
            self._attempts = len(run.attempts)
            said.append(f"it was started again: what it repeats up to {self._axis} {self._last:g} is not written again")
        if axis_of(run) != self._axis and self._axis not in self._told:
            self._told.add(self._axis)
            said.append(f"the log says another x than {self._axis} now: nothing more is written; -f anew does")
        return said
