"""The chain of a job: its picture in one line, a row for all of it, and its elements in order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from hpcdash.domain import chains
from hpcdash.domain.chains import JobChain, Unit, living_targets
from hpcdash.domain.columns import shared_ending, state_place
from hpcdash.domain.impact import count_jobs
from hpcdash.domain.job_ids import parse_job_number
from hpcdash.domain.job_text import format_end
from hpcdash.domain.schema import TEXT
from hpcdash.domain.states import ENDED, WAITING
from hpcdash.domain.tables import JOBS, ColumnSpec, Kind, TableSpec
from hpcdash.domain.text import clip, visible
from hpcdash.services.chains import ChainReader
from hpcdash.services.session import ClusterSession
from hpcdash.ui.jobs.table import elapsed_cell, job_hint
from hpcdash.ui.table_view import ReadTableView
from hpcdash.ui.view import FRAMED_LINES, Targets
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.cells import signs
from hpcdash.ui.widgets.command_bar import CommandBar
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.widgets.table_rows import Column
from hpcdash.ui.workers import call_after

CHAIN = TableSpec(
    "chain",
    fields={**JOBS.fields, "_row_id": "text", "_waits": "text"},
    columns=(
        ColumnSpec("id", 8, 0, title="JOB", flexible=True, longest=20),
        ColumnSpec("name", 8, 6, flexible=True, longest=30),
        *JOBS.select("state"),
        ColumnSpec("started", 10, 2, "started_at"),
        ColumnSpec("ended", 10, 2, "ends_at", "ENDS"),
        ColumnSpec("elapsed", 8, 3, "elapsed_seconds"),
        *JOBS.select("limit"),
        ColumnSpec("how", 10, 1, "exit_code", align="left"),
        ColumnSpec("waits", 12, 0, "_waits", "WAITS FOR", flexible=True, longest=60),
        *JOBS.select("submitted"),
        ColumnSpec("where", 10, 8, "node_list", "NODES"),
        ColumnSpec("reason", 16, 8),
        *JOBS.select("comment"),
    ),
    shown=("id", "name", "state", "started", "ended", "elapsed", "how", "waits"),
)
WHOLE = "whole chain"
# Prompt for the jobs to append.
APPEND = "append"
_MAX_NOTES = 4
_NAME_CELLS = 40


def how_cell(value: object, row: cells.RowContext) -> cells.Cell:
    """Return how an element ended; '' for one that has not."""
    return (format_end(row), cells.MUTED) if row["state"] in ENDED else ""


def waits_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """Return the dependency of an element, muted once it no longer waits."""
    text = visible(value or "")
    return text if row["state"] in WAITING or row["_row_id"] == WHOLE else (text, cells.MUTED)


def short_id_cell(value: str | None, row: cells.RowContext, ending: str) -> cells.Cell:
    """Return an ID without the ending that all IDs share."""
    return cells.text_cell(value.removesuffix(ending) if value else value, row)


class ChainView(ReadTableView):
    """One chain.

    It is reloaded when the lists show a change of state in it, or of jobs that depend on it.
    """

    SPEC = CHAIN
    HAS_DETAIL = False
    IDENTITY = "_row_id"
    DEFAULT_CSS = """
    ChainView > #about { height: auto; }
    ChainView > #about > PlainStatic { width: 1fr; height: auto; padding: 0 1; }
    ChainView > #about > .notes { color: $text-muted; }
    """

    reader: ChainReader

    def __init__(self, session: ClusterSession, *, job_id: str, **rest: Any) -> None:
        self.job_id = job_id
        self.reader = ChainReader(session.store, job_id, self._read_more)
        # Data missing from the history is fetched later, though no list changes by then.
        self._later: asyncio.TimerHandle | None = None
        self._made: tuple[JobChain, pa.Table] | None = None
        super().__init__(session, **rest)

    def compose(self) -> ComposeResult:
        with Vertical(id="about") as about:
            about.border_title = Content(f"Chain of {visible(self.job_id)}")
            yield PlainStatic("loading …", classes="picture")
            yield PlainStatic(classes="notes")
        yield from super().compose()

    # -- rows

    @property
    def chain(self) -> JobChain | None:
        return self.reader.chain

    def source(self) -> pa.Table | None:
        chain = self.chain
        if chain is None:
            return None
        # A table of ten thousand elements takes a noticeable time, and is requested repeatedly.
        if self._made is not None and self._made[0] is chain:
            return self._made[1]
        ending = self._ending(chain) or "\0"
        rows = []
        for unit in chain.units:
            waits = chains.format_lost(unit, chain).partition(":")[0]
            waits = (waits or chains.format_wait(unit, chain)).replace(ending, "")
            rows += [{**row, "_row_id": row["id"], "_waits": waits} for row in unit.rows]
        table = pa.Table.from_pylist(rows, self.schema)
        self._made = (chain, table)
        return table

    def _ending(self, chain: JobChain) -> str:
        """Return the ending that all IDs share, which is the PBS server."""
        return shared_ending(pa.array([str(row["id"]) for row in chain.rows], TEXT))

    def fitted(self, column: Column, table: pa.Table) -> Column:
        column = super().fitted(column, table)
        if column.key == "id" and self.chain is not None and (ending := self._ending(self.chain)):
            return replace(column, cell=partial(short_id_cell, ending=ending))
        return column

    def shaped(self, table: pa.Table, sort: tuple[str, bool] | None = None) -> pa.Table:
        """Return the rows with one for the whole chain before its elements."""
        table = super().shaped(table, sort)
        if self.chain is None or not table.num_rows:
            return table
        whole = pa.Table.from_pylist([self._whole(table)], self.schema)
        return pa.concat_tables([whole, table]).unify_dictionaries()

    def _whole(self, table: pa.Table) -> dict[str, Any]:
        rows = table.select(["state", "_tasks", "started_at", "elapsed_seconds"]).to_pylist()
        states = [str(row["state"]) for row in rows]
        starts = [row["started_at"] for row in rows if row["started_at"]]
        count = count_jobs(rows)
        return {
            "_row_id": WHOLE,
            "id": f"these {count}" if self.filter_text else f"all {count}",
            "state": min(states, key=state_place),
            "started_at": min(starts, default=None),
            "elapsed_seconds": sum(row["elapsed_seconds"] or 0 for row in rows) or None,
            "_tasks": count,
            "_waits": "",
        }

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {"elapsed": elapsed_cell, "how": how_cell, "waits": waits_cell}

    # -- reading

    def on_mount(self) -> None:
        self.reload()
        self.read()

    def on_resize(self) -> None:
        self.query_one("#about").set_class(self.app.size.height >= FRAMED_LINES, "panel")
        self._show_picture()

    def states_in_lists(self) -> object:
        chain = self.chain
        table = self.session.store.table(Kind.MINE)
        if table is None or chain is None:
            return None
        numbers = pa.array([int(unit.number) for unit in chain.units], pa.int64())
        requested = pc.or_(pc.is_in(table["_number"], numbers), pc.is_valid(table["dependency"]))
        rows = table.filter(requested).select(["id", "state", "dependency"])
        return rows.to_pylist()

    def _read_more(self) -> None:
        self._read_at = self.session.store.clock.now()
        if self._states is None:
            self._states = self.states_in_lists()
        self.show_read()

    def show_read(self) -> None:
        self.reload()
        self._show_picture()
        if self._later is not None:
            self._later.cancel()
            self._later = None
        seconds = self.reader.again_in_seconds
        if seconds is not None and self.is_live:
            self._later = call_after(self, seconds, self.read)

    def _show_picture(self) -> None:
        if not self.is_live:
            return
        chain = self.chain
        head = self.query_one(".picture", PlainStatic)
        notes = self.query_one(".notes", PlainStatic)
        if chain is None:
            if self._error is not None:
                head.update("no chain to show; ! shows the error")
            return
        width = self.size.width - 4
        head.update(chains.picture(chain.rows, signs().states, max(40, width)))
        lines = [clip(visible(line), max(20, width)) for line in self._note_lines(chain)]
        notes.update("\n".join(lines[:_MAX_NOTES]))
        notes.display = bool(lines)

    def _note_lines(self, chain: JobChain) -> list[str]:
        if chain.is_alone:
            number = chain.units[0].job_id
            alone = f"job {number} is not in a chain. + adds a follow-up"
            return [alone, *self.reader.notes]
        lines = list(chains.chain_notes(chain))
        if chain.living:
            end = chains.latest_end(chain, self.now())
            if end is None:
                text = "end unknown: not all jobs have a time limit"
            else:
                ends = cells.short_deadline(end, self.now(), self.session.zone)
                is_held = any(row["state"] == "held" for row in chain.living)
                release = " and is released now" if is_held else ""
                text = f"ends {ends} if each job runs to its time limit{release}"
            lines.insert(0, text)
            if hold := chains.format_hold(chain.rows, self.now()):
                lines.append(hold)
        return [*lines, *self.reader.notes]

    # -- text

    def _format_waiting(self) -> str:
        if self._error is None:
            return "loading …"
        return " ".join(part for part in (self._error.message, self._error.next_step) if part)

    def scope_crumbs(self) -> Sequence[str]:
        if self.chain is None or not self.chain.units:
            return ("chain", self.job_id)
        names = list(dict.fromkeys(str(row["name"] or "") for row in self.chain.rows))
        name = clip(visible(names[0]), _NAME_CELLS)
        if len(names) > 1:
            name += f" +{len(names) - 1}"
        return ("chain", f"of {parse_job_number(self.job_id)} {name}".strip())

    def way_crumb(self) -> str:
        return f"chain of {parse_job_number(self.job_id)}"

    def hint(self) -> str:
        bar = self.screen.query_one(CommandBar) if self.is_live else None
        if bar is not None and bar.is_open and bar.mode == APPEND:
            return "number of jobs, or array tasks (1-10%1), then a script (default: the same)"
        return super().hint()

    def take_focus(self) -> None:
        super().take_focus()
        self.post_message(self.CrumbsChanged())

    def row_hint(self, row: Mapping[str, Any]) -> str:
        if row["_row_id"] != WHOLE:
            return job_hint(self.session, row, self.now())
        living = count_jobs(self.chain.living) if self.chain is not None else 0
        if not living:
            return "the chain has finished; R on a row resubmits it"
        return "keys act on the whole chain; select a row to act on one job"

    # -- selection

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        if row_id != WHOLE:
            self.post_message(self.Requested("job", job_id=row_id))

    def pointed_job(self) -> str | None:
        row_id = self.rows.cursor_id if self.is_live else None
        return self.job_id if row_id in (None, WHOLE) else row_id

    def targets(self) -> Targets:
        """Return the marked elements, else the selected one; for the whole chain, its unfinished
        elements.

        The last come first, so that cancelling an element does not start the next one.
        """
        chain = self.chain
        selected = set(self.rows.marked)
        if not selected and self.rows.cursor_id is not None:
            selected = {self.rows.cursor_id}
        if chain is None or not selected:
            return Targets()
        if WHOLE in selected:
            table = self.source()
            shown = set() if table is None else set(self.matched(table)["id"].to_pylist())
            return Targets(*living_targets(chain, shown))
        rows = [row for row in reversed(chain.rows) if row["id"] in selected]
        job_ids = [str(row["id"]) for row in rows]
        missing = sorted(map(str, selected.difference(job_ids)))
        return Targets(tuple(job_ids), tuple(rows), tuple(missing))

    def end_unit(self) -> Unit | None:
        """Return the unit to append after: the selected one if it is an end, else the last."""
        chain = self.chain
        if chain is None or not chain.units:
            return None
        selected = chain.find_unit(self.pointed_job() or self.job_id)
        return selected if selected in chain.ends else chain.ends[-1]

    # -- scripts of stubs

    def next_job(self) -> str | None:
        """Return the selected element if it waits, else the first that does."""
        rows = self.chain.rows if self.chain is not None else ()
        waiting = [str(row["id"]) for row in rows if row["state"] in WAITING]
        selected = self.pointed_job()
        return selected if selected in waiting else next(iter(waiting), None)
