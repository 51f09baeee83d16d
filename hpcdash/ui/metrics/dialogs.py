"""Asks which metrics or runs a chart shows, and writes what it shows into files."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import SelectionList, Static
from textual.widgets.selection_list import Selection

from hpcdash.domain.columns import without_formulas
from hpcdash.domain.job_text import state_word
from hpcdash.domain.states import WAITING
from hpcdash.domain.text import clip, visible
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.metrics.batch import Floats
from hpcdash.services.metrics.charts.curves import ChartRequest
from hpcdash.services.metrics.charts.svg import svg_of
from hpcdash.ui.dialogs import _Choices

MOST_OTHERS = 60
_LISTS = (Kind.MINE, Kind.HISTORY, Kind.EVERYONE, Kind.HISTORY_EVERYONE)
_COLUMNS = ["id", "array_id", "name", "state", "started_at", "_number", "_task", "_tasks"]


class ChoiceDialog(ModalScreen[tuple[str, ...] | None]):
    """Some of a list, by marks; answers the marked in the order of the list, None where it was left."""

    DEFAULT_CSS = """
    ChoiceDialog { align: center middle; background: $background 60%; }
    ChoiceDialog > .frame {
        width: 72; max-width: 95%; height: auto; max-height: 90%; padding: 1 2;
        background: $surface; border: round $primary;
    }
    ChoiceDialog .title { text-style: bold; height: auto; margin-bottom: 1; }
    ChoiceDialog .aside { color: $text-muted; height: auto; margin-top: 1; }
    ChoiceDialog SelectionList, ChoiceDialog SelectionList:focus {
        height: auto; border: none; padding: 0; background: $surface;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave as it was"),
        Binding("enter", "take", "take", priority=True),
    ]

    def __init__(self, title: str, choices: Sequence[tuple[str, str]], chosen: Sequence[str], most: int) -> None:
        """`choices` are values and their words; no more than `most` can be taken."""
        super().__init__()
        self._title = title
        self._choices = choices
        self._chosen = chosen
        self._most = most

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame"):
            yield Static(visible(self._title), classes="title", markup=False)
            yield _Choices(
                *(Selection(clip(visible(words), 60), value, value in self._chosen) for value, words in self._choices)
            )
            yield Static(self._usage(), classes="aside", markup=False)

    def _usage(self, more: str = "") -> str:
        return more or "space marks, enter takes, esc leaves as it was"

    def on_mount(self) -> None:
        self.on_resize()
        self.query_one(SelectionList).focus()

    def on_resize(self) -> None:
        self.query_one(SelectionList).styles.max_height = max(3, int(0.9 * self.size.height) - 8)

    def action_take(self) -> None:
        marked = set(self.query_one(SelectionList).selected)
        if len(marked) > self._most:
            self.query_one(".aside", Static).update(self._usage(f"no more than {self._most} at once; space unmarks"))
            return
        self.dismiss(tuple(value for value, _ in self._choices if value in marked))

    def action_leave(self) -> None:
        self.dismiss(None)


def other_runs(store: ClusterStore, row: Mapping[str, Any], marked: Collection[str]) -> list[tuple[str, str]]:
    """Ids and words of jobs that have begun: the marked first, then tasks of its array, then its namesakes, each
    the newest first."""
    found: dict[str, tuple[int, int, int, str]] = {}
    for kind in _LISTS:
        snapshot = store.snapshots.get(kind)
        if snapshot is None:
            continue
        for other in _near(snapshot.table, row, marked).select(_COLUMNS).to_pylist():
            number = str(other["id"])
            if number in found or number == row["id"] or other["_tasks"] != 1:
                continue
            if str(other["state"]) in WAITING and number not in marked:
                continue
            is_task = row["array_id"] is not None and other["array_id"] == row["array_id"]
            rank = 0 if number in marked else 1 if is_task else 2
            why = ("marked", "same array", "same name")[rank]
            words = f"{number:<12} {other['name'] or ''}  {state_word(str(other['state']))}, {why}"
            found[number] = (rank, -(other["_number"] or 0), -(other["_task"] or 0), words)
    ranked = sorted(found.items(), key=lambda one: one[1][:3])
    return [(number, ranks[3]) for number, ranks in ranked[:MOST_OTHERS]]


def _near(table: pa.Table, row: Mapping[str, Any], marked: Collection[str]) -> pa.Table:
    wanted = pc.is_in(table["id"], pa.array(list(marked), pa.string()))
    if row["name"]:
        wanted = pc.or_(wanted, pc.equal(table["name"], row["name"]))
    if row["array_id"] is not None:
        wanted = pc.or_kleene(wanted, pc.equal(table["array_id"], row["array_id"]))
    return table.filter(wanted)


def file_stem(job_id: str, metric: str, at: datetime) -> str:
    """A file's name without its ending: `hpcdash-4711-lm-loss-20261121-103000`."""
    words = re.sub(r"[^A-Za-z0-9._]+", "-", f"{job_id}-{metric}").strip("-.")[:80]
    return f"hpcdash-{words}-{at:%Y%m%d-%H%M%S}"


def write_chart(folder: Path, stem: str, request: ChartRequest, title: str) -> tuple[Path, Path]:
    """Write the points that stand in the span that is shown, and the picture; raises OSError.

    The columns are job, metric, step, the axis' name where it is another, value, lowest, highest and points: a place of
    several points has its mean; a step that is not known is empty. No text is a formula to a spreadsheet.
    """
    span = request.state.shown(request.whole())
    tables = []
    for one in request.runs:
        shift = request.shift(one)
        for name in request.names:
            series = request.series(one, name)
            places = slice(*np.searchsorted(series.x, (span[0] + shift, np.nextafter(span[1] + shift, np.inf))))
            count = series.x[places].size
            columns = {
                "job": pa.array([one.title] * count, pa.string()),
                "metric": pa.array([name] * count, pa.string()),
                "step": _steps(one.run.steps_along(name, request.axis)[places]),
                request.axis: series.x[places] - shift,
                "value": series.values[places],
                "lowest": series.low[places],
                "highest": series.high[places],
                "points": series.points[places],
            }
            tables.append(pa.table(columns))
    csv_file, svg_file = folder / f"{stem}.csv", folder / f"{stem}.svg"
    svg_file.write_text(svg_of(request, title), encoding="utf-8")
    pyarrow.csv.write_csv(without_formulas(pa.concat_tables(tables)), csv_file)
    return csv_file, svg_file


def _steps(steps: Floats) -> pa.Array:
    """Whole numbers, null where a step is not known."""
    is_unknown = ~np.isfinite(steps)
    return pa.array(np.where(is_unknown, 0, steps), mask=is_unknown, from_pandas=False)
