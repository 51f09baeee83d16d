"""The metrics of a job's log as curves, live; other runs over it, and what stands out in them."""

from __future__ import annotations

import asyncio
import contextlib
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from hpcdash.backends.base import Capability
from hpcdash.config.metric_patterns import EXAMPLE, EXAMPLE_LINE
from hpcdash.domain.job_text import state_word
from hpcdash.domain.states import ACTIVE, WAITING
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, counted, visible
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import Changed, ClusterStore
from hpcdash.services.jobs.lookup import known_row
from hpcdash.services.metrics.charts.state import (
    FINDINGS,
    LETTERS,
    MAX_RUNS,
    SMOOTHINGS,
    ChartState,
    Mark,
    Span,
    explained,
)
from hpcdash.ui.dialogs import ChecklistDialog, TextDialog
from hpcdash.ui.metrics.following import ChartFollowing, ShownRun, is_ascii
from hpcdash.ui.metrics.plot import ChartPlot
from hpcdash.ui.view import FRAMED_LINES, Targets, View
from hpcdash.ui.widgets.lines import Line, PlainStatic
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.services.metrics.charts.curves import ChartRequest


_HISTORY_SECONDS = 4.0
_MAX_OTHERS = 60
_OTHERS = (Kind.MINE, Kind.HISTORY, Kind.EVERYONE, Kind.HISTORY_EVERYONE)
_OTHER_COLUMNS = ["id", "array_id", "name", "state", "started_at", "_number", "_task", "_tasks"]
# Before what is seldom pressed.
_SWITCH_RANK = -1
# Findings that mean broken weights: a save then replaces a good one.
_BROKEN = frozenset({"nan", "inf", "divergence"})
_SAVES_BROKEN = "new checkpoints may be broken and replace good ones"
# A view of this many lines has a blank one above its text.
_ROOMY = 8
_KEYS_WITHOUT_CHART = "l shows the log, ctrl+r reloads it, q goes back"
_LOOKED_FOR = (
    "Expected lines such as `step 10 loss 2.31` or `loss: 2.31, lr: 3e-4`; lines of Megatron, "
    "Hugging Face, Lightning, Keras, DeepSpeed, fairseq, nanoGPT and others; progress bars, "
    f"JSON lines and CSV. To read another format, such as `{EXAMPLE_LINE}`, add this to "
    "config.toml:\n\n" + textwrap.indent(EXAMPLE, "  ")
)


class ChartView(ChartFollowing, can_focus=True):
    """A job's metrics.

    Its logs are read in turns of the store's; series, pictures and findings are made in threads.
    """

    DEFAULT_CSS = """
    ChartView > #nothing { height: 1fr; padding: 1 2; display: none; }
    ChartView.-empty > #nothing { display: block; }
    ChartView.-cramped > #nothing { padding: 0 2; }
    ChartView.-empty > ChartPlot { display: none; }
    ChartView > #legend { display: none; }
    ChartView.-several > #legend { display: block; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "sideways(-1)", "left", show=False, priority=True),
        Binding("right", "sideways(1)", "right", show=False, priority=True),
        Binding("up", "upwards(1)", "up", show=False, priority=True),
        Binding("down", "upwards(-1)", "down", show=False, priority=True),
        Binding("pageup", "stretch(0.8)", "taller", show=False, priority=True),
        Binding("pagedown", "stretch(1.25)", "shorter", show=False, priority=True),
        Binding("equals_sign", "zoom(0.5)", "zoom in", show=False),
        Binding("home", "whole", "full height", show=False, priority=True),
        Binding("end", "end", "end, and follow", show=False, priority=True),
    ]

    _wants_history = False
    _has_history: asyncio.Event | None = None

    def compose(self) -> ComposeResult:
        yield Line(id="legend")
        yield ChartPlot()
        yield PlainStatic("reading the log …", id="nothing")
        yield Line(id="meaning")
        yield Line(id="found")

    @property
    def _plot(self) -> ChartPlot:
        return self.query_one(ChartPlot)

    # -- text around it

    def show_texts(self, request: ChartRequest) -> None:
        from hpcdash.services.metrics.charts.draw import legend

        self.query_one("#legend", Line).set_text(self._legend(legend(request.runs)))
        self.set_class(not self.picture.panels, "-empty")
        self.set_class(self.size.height < _ROOMY, "-cramped")
        row = self._row()
        name = visible(str(row["name"] or "")) if row is not None else ""
        title = f"Chart of {visible(self.job_id)} {clip(name, 40)}".rstrip()
        self.border_title = Content(title + self._more())
        self.set_class(len(self.runs) > 1, "-several")
        if not self.picture.panels:
            self.query_one("#nothing", PlainStatic).update(self._nothing())
        facts = self.runs[0].facts
        course = () if facts is None else facts.course
        self.query_one("#meaning", Line).set_text(
            Text(clip(visible(" · ".join(course)), max(self.size.width - 2, 1)))
        )
        self.query_one("#found", Line).set_text(self._found_line())
        self.post_message(self.CrumbsChanged())

    def on_resize(self) -> None:
        self.set_class(self.app.size.height >= FRAMED_LINES, "panel")

    def show_problem(self, text: str) -> None:
        self.query_one("#found", Line).set_text(Text(visible(text)))

    def _legend(self, pieces: Sequence[tuple[str, str]]) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        for piece, style in pieces:
            text.append(piece, self._plot.sign_style(style))
        return text

    def _nothing(self) -> Text:
        """Return why there is no chart: the job waits, its log is missing, or it has no metric."""
        run = self.runs[0]
        watched = run.watched
        if run.error is not None:
            return Text(
                f"the metrics of job {visible(run.job_id)} cannot be read: "
                f"{visible(run.error.message)}"
            )
        if self.drawing_error is not None:
            return Text(visible(self.drawing_error.message))
        if watched is None or watched.row is None:
            return Text("reading the log …")
        state = str(watched.row["state"])
        if state in WAITING:
            reason = f": {visible(watched.row['reason'])}" if watched.row["reason"] else ""
            where = f"\nthe log will be at {visible(watched.paths[0])}" if watched.paths else ""
            return Text(
                f"the job is {state_word(state)}{reason}; the chart appears with the first "
                f"output{where}"
            )
        if watched.run.names:
            return Text("not enough room for a chart")
        text = Text(visible(watched.problem) if watched.problem else "no metric yet")
        text.append(f"\n{_KEYS_WITHOUT_CHART}")
        if not watched.progress.is_whole and watched.progress.total_bytes:
            text.append(f"\n{self._format_progress()}")
        elif watched.paths and watched.progress.total_bytes:
            text.append(f"\n\n{_LOOKED_FOR}", "dim")
        return text

    def _found_line(self) -> Text:
        """Return the line on the marks: counts of repeated kinds, then the severest and newest.

        With the cursor on a mark, that mark's text is shown instead.
        """
        text = Text(no_wrap=True)
        marks = self.marks_found()
        facts = [run.facts for run in self.runs if run.facts is not None]
        if not marks and facts:
            is_unknown = all(run_facts.too_few for run_facts in facts)
            text.append("too few points" if is_unknown else "no anomalies", "dim")
        pointed = self._pointed_mark(marks)
        if pointed is not None:
            marks = [pointed]
        elif len(marks) > 1:
            for kind, count in Counter(mark.kind for _, mark in marks).items():
                if count > 1:
                    self._append_sign(text, next(mark for _, mark in marks if mark.kind == kind))
                    text.append(f" {count} {FINDINGS[kind].several}   ", "dim")
        room = self.size.width - 2
        for number, (letter, mark) in enumerate(marks):
            left = room - cell_len(text.plain) - 5
            message = f"{letter} {mark.text}" if letter else mark.text
            if number and cell_len(message) > left:
                break
            text.append("   " if number else "")
            self._append_sign(text, mark, " ")
            text.append(clip(message, max(left, 1)))
        return text

    def _append_sign(self, text: Text, mark: Mark, after: str = "") -> None:
        text.append(mark.sign(is_ascii=is_ascii()) + after, self._plot.sign_style(mark.style))

    def _pointed_mark(self, marks: Sequence[tuple[str, Mark]]) -> tuple[str, Mark] | None:
        """The finding under the cursor: where it stands, else in the same column."""
        cursor = self.state.cursor
        if cursor is None or not self._has_panels():
            return None
        place = self.picture.panels[0]
        column = place.column_at(cursor)
        near = [
            pair for pair in marks if column is not None and place.column_at(pair[1].x) == column
        ]
        return min(near, key=lambda pair: abs(pair[1].x - cursor), default=None)

    def _format_progress(self) -> str:
        runs = [run.watched for run in self.runs if run.watched is not None]
        total = sum(run.progress.total_bytes for run in runs)
        read = sum(run.progress.bytes_read for run in runs)
        if all(run.progress.is_whole for run in runs) or not total:
            return ""
        return f"loading older points {100 * read // total}%"

    def hint(self) -> str:
        if self.notice:
            return self.notice
        problems = [
            run.watched.problem
            for run in self.runs
            if run.watched is not None and run.watched.problem
        ]
        for run in self.runs:
            error = run.error or run.judging_error
            problems += [f"{run.job_id}: {error.message}"] if error is not None else []
        problems += [self.drawing_error.message] if self.drawing_error is not None else []
        if not self.picture.panels:
            return ""
        parts = []
        if self.state.span is not None:
            parts.append("following the end" if self.state.follows else "paused; end resumes")
        parts += [self._format_progress(), *self.picture.notes, *problems]
        return "   ".join(visible(part) for part in parts if part)

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset({Kind.MINE, Kind.HISTORY} if self._wants_history else {Kind.MINE})

    @property
    def own_error(self) -> HpcdashError | None:
        return self.runs[0].error or self.drawing_error or self.runs[0].judging_error

    def taken_at(self) -> float | None:
        return self._changed_at

    def store_changed(self, changed: Changed) -> None:
        if self._has_history is not None and changed.kind in (None, Kind.HISTORY):
            self._has_history.set()

    def counts(self) -> tuple[str, str]:
        points = self.picture.points
        return (counted(points, "point"), f"{points}p") if points else ("", "")

    def crumbs(self) -> Sequence[str]:
        names = ", ".join(panel.name for panel in self.picture.panels[:3])
        crumbs = ("chart", f"{self.job_id}{self._more()}")
        return (*crumbs, visible(names)) if names else crumbs

    def _more(self) -> str:
        return f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""

    def way_crumb(self) -> str:
        return f"chart {self.job_id}"

    def pointed_job(self) -> str | None:
        return self.job_id

    def targets(self) -> Targets:
        row = self._row()
        return Targets((self.job_id,), (row,) if row is not None else ())

    def switch_jobs(self) -> tuple[str, ...]:
        return (self._switch_run().job_id,)

    def _switch_run(self) -> ShownRun:
        """The run whose finding is under the cursor, else the first."""
        pointed = self._pointed_mark(self.marks_found())
        letter = pointed[0] if pointed is not None else ""
        return self.runs[LETTERS.index(letter) if letter else 0]

    def against_save(self) -> str:
        for mark in self._switch_run().marks:
            if _is_broken(mark):
                return f"{mark.text}: {_SAVES_BROKEN}"
        return ""

    def key_ranks(self) -> Mapping[str, int]:
        """Return the rank of the save switch: offered for a running job with findings.

        It is not offered where a save would have broken weights.
        """
        row = self._row()
        marks = [mark for _, mark in self.marks_found()]
        is_broken = any(map(_is_broken, marks))
        is_requested = row is not None and row["state"] in ACTIVE and marks and not is_broken
        return {"save_switch": _SWITCH_RANK} if is_requested else {}

    def _row(self) -> Mapping[str, Any] | None:
        watched = self.runs[0].watched
        return known_row(self.session.store, self.job_id) or (
            watched.row if watched is not None else None
        )

    def take_focus(self) -> None:
        self.focus(scroll_visible=False)

    # -- span, height, scale and cursor

    def help_moving(self) -> Sequence[tuple[str, str]]:
        return (
            ("← →", "move the view, or the cursor"),
            ("↑ ↓", "move up or down; pgup pgdn zoom the y axis"),
            ("home end", "full range; end, and follow"),
            ("mouse", "the wheel zooms, dragging moves, a click sets the cursor"),
        )

    def help_signs(self) -> Text:
        text = Text()
        for label in explained(is_ascii=is_ascii()):
            text.append("  ").append(label.signs, self._plot.sign_style(label.style))
            text.append(f"{' ' * (12 - len(label.signs))}{label.text}\n")
        return text

    def marks_found(self) -> list[tuple[str, Mark]]:
        """Return (letter, finding) of each run, the most severe and newest first."""
        several = len(self.runs) > 1
        return [
            (letter if several else "", mark)
            for letter, run in zip(LETTERS, self.runs, strict=False)
            for mark in run.marks
        ]

    def _see(self, state: ChartState) -> None:
        if state != self.state:
            self.state = state
            self._dirty.set()

    def _has_panels(self) -> bool:
        return bool(self.picture.panels)

    def action_sideways(self, steps: int) -> None:
        if not self._has_panels():
            return
        if self.state.cursor is not None:
            self._move_cursor(steps)
        elif self.state.span is None:
            self.show_notice("full range shown; + zooms in, c shows values")
        else:
            self._see(self.state.panned(steps * 0.25, self._whole()))

    def _move_cursor(self, cells: int) -> None:
        first, last = self.state.shown(self._whole())
        cell = (last - first) / self.picture.panels[0].width
        x = (self.state.cursor or 0.0) + cells * cell
        begin, end = self._whole()
        state = replace(self.state, cursor=min(max(x, begin), end))
        if not first <= x <= last and self.state.span is not None:
            state = replace(state.panned(cells * 0.25, self._whole()), cursor=state.cursor)
        self._see(state)

    def action_upwards(self, steps: int) -> None:
        self._move_height(steps * 0.2, 1.0)

    def action_stretch(self, factor: float) -> None:
        self._move_height(0.0, factor)

    def _move_height(self, part: float, factor: float, panel: int | None = None) -> None:
        """Give a panel another y range: shifted by a fraction of it, and scaled by `factor`."""
        if not self._has_panels():
            return
        number = self.state.panel if panel is None else panel
        place = self.picture.panels[min(number, len(self.picture.panels) - 1)]
        low, high = place.y
        middle = (low + high) / 2 + part * (high - low)
        half = factor * (high - low) / 2
        self._see(
            replace(
                self.state,
                heights={**self.state.heights, place.name: (middle - half, middle + half)},
            )
        )

    def action_whole(self) -> None:
        self._see(replace(self.state, span=None, follows=True, heights={}, cursor=None))

    def action_end(self) -> None:
        self._see(replace(self.state, follows=True))

    def _whole(self) -> Span:
        """Show all of the x axis; the picture is the previous one until it is redrawn."""
        is_drawn = self.state.axis in ("", self.picture.axis)
        return self.picture.whole if is_drawn else self.request().whole()

    def action_zoom(self, factor: float) -> None:
        if self._has_panels():
            self._see(self.state.zoomed(factor, self._whole(), self.state.cursor))

    def do_zoom_in(self) -> None:
        self.action_zoom(0.5)

    def do_zoom_out(self) -> None:
        self.action_zoom(2.0)

    def do_follow(self) -> None:
        if self.state.span is None:
            self.show_notice("following, full range")
            return
        # One that stops stays where it is.
        span = self.state.shown(self._whole())
        self._see(replace(self.state, span=span, follows=not self.state.follows))

    def do_log_scale(self) -> None:
        self._see(replace(self.state, log_y=not self.state.log_y, heights={}))

    def do_outliers(self) -> None:
        self._see(replace(self.state, leaves_out=not self.state.leaves_out, heights={}))
        self.show_notice("outliers hidden" if self.state.leaves_out else "all points shown")

    def do_smoothing(self) -> None:
        following = SMOOTHINGS.index(self.state.smoothing) + 1
        smoothing = SMOOTHINGS[following % len(SMOOTHINGS)]
        self._see(replace(self.state, smoothing=smoothing))
        notices = {"auto": "smoothing: auto", "none": "smoothing: off"}
        self.show_notice(notices.get(smoothing, smoothing))

    def do_x_axis(self) -> None:
        axes = self.picture.axes
        if len(axes) > 1:
            axis = axes[(axes.index(self.picture.axis) + 1) % len(axes)]
            self._see(replace(self.state, axis=axis, span=None, follows=True, cursor=None))

    def do_next_panel(self) -> None:
        if self._has_panels():
            self._see(replace(self.state, panel=(self.state.panel + 1) % len(self.picture.panels)))

    def do_point(self) -> None:
        """A cursor in the middle, or none."""
        if not self._has_panels():
            return
        if self.state.cursor is not None:
            self._see(replace(self.state, cursor=None))
            return
        # The picture may still show the span before the last key.
        begin, end = self.state.shown(self._whole())
        self._see(replace(self.state, cursor=(begin + end) / 2))

    def do_next_found(self) -> None:
        self._go_found(1)

    def do_previous_found(self) -> None:
        self._go_found(-1)

    def _go_found(self, way: int) -> None:
        places = sorted(
            {mark.x for _, mark in self.marks_found() if mark.x == mark.x}, reverse=way < 0
        )
        if not places:
            self.show_notice("no anomalies so far")
            return
        cursor = self.state.cursor
        further = (x for x in places if cursor is None or way * (x - cursor) > 0)
        x = next(further, places[0])
        state = replace(self.state, cursor=x)
        begin, end = state.shown(self._whole())
        if not begin <= x <= end:
            state = state.panned((x - (begin + end) / 2) / (end - begin), self._whole())
        self._see(state)

    def do_escape(self) -> bool:
        if self.state.cursor is not None:
            self._see(replace(self.state, cursor=None))
        elif self.state.span is not None or self.state.heights:
            self.action_whole()
        else:
            return False
        return True

    # -- mouse

    def on_chart_plot_zoomed(self, event: ChartPlot.Zoomed) -> None:
        event.stop()
        self._see(self.state.zoomed(event.factor, self._whole(), event.x))

    def on_chart_plot_dragged(self, event: ChartPlot.Dragged) -> None:
        event.stop()
        if self.state.span is not None and event.across:
            self._see(self.state.panned(event.across, self._whole()))
        if event.down:
            self._move_height(event.down, 1.0, event.panel)

    def on_chart_plot_pointed(self, event: ChartPlot.Pointed) -> None:
        event.stop()
        self._see(replace(self.state, cursor=event.x, panel=event.panel))

    def on_chart_plot_resized(self, event: ChartPlot.Resized) -> None:
        event.stop()
        self._dirty.set()

    # -- prompts

    def do_metrics(self) -> None:
        request = self.request()
        if not request.all_names:
            self.show_notice("no metric yet")
            return

        def take(names: list[str] | None) -> None:
            if names is not None:
                self._see(replace(self.state, names=tuple(names), panel=0))

        shown = request.names
        names = [*shown, *(name for name in request.all_names if name not in shown)]
        self.app.push_screen(
            ChecklistDialog("Metrics", [(name, name) for name in names], shown), take
        )

    def do_overlay(self) -> None:
        start_worker(self, self._overlay, exclusive=True, group="overlay")

    async def _overlay(self) -> None:
        """Prompt for other runs; ended ones are in the history, which is fetched first."""
        row = self._row()
        if row is None:
            self.show_notice("job not loaded yet")
            return
        store = self.session.store
        if Capability.HISTORY in store.backend.capabilities and Kind.HISTORY not in store.snapshots:
            self._wants_history = True
            self.show_notice("loading ended jobs …")
            self._has_history = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HISTORY_SECONDS):
                    await self._has_history.wait()
            self._wants_history = False
            self.show_notice("")
        marked = await asyncio.to_thread(self._marked)
        choices = await asyncio.to_thread(other_runs, store, row, marked)
        shown = [run.job_id for run in self.runs[1:]]
        choices = [
            *(
                (job_id, job_id)
                for job_id in shown
                if job_id not in {value for value, _ in choices}
            ),
            *choices,
        ]
        if not choices:
            self.show_notice("no other runs (same array, same name, or marked)")
            return
        dialog = ChecklistDialog(f"Overlay on job {self.job_id}", choices, shown, MAX_RUNS - 1)
        chosen = await self.app.push_screen_wait(dialog)
        if chosen is not None:
            await self.show_others(chosen)

    def _marked(self) -> tuple[str, ...]:
        tables = [
            view
            for view in self.screen.query(View)
            if view.session is self.session and view.marks()
        ]
        return tuple(job_id for view in tables for job_id in view.targets().job_ids)

    async def show_others(self, job_ids: Sequence[str]) -> None:
        """Show these runs over the first; shown ones continue, others are no longer read."""
        stored = {run.job_id: run for run in self.runs[1:]}
        self.runs = [
            self.runs[0],
            *(stored.pop(job_id) if job_id in stored else ShownRun(job_id) for job_id in job_ids),
        ]
        for run in stored.values():
            if run.watched is not None:
                await run.watched.close()
        self.start()

    def do_found(self) -> None:
        """Show the course and all findings of the runs."""
        text = Text()
        for letter, run in zip(LETTERS, self.runs, strict=False):
            if run.facts is None or run.watched is None:
                continue
            text.append(
                f"{letter + ' ' if len(self.runs) > 1 else ''}{visible(run.watched.title)}\n",
                "bold",
            )
            for message in run.facts.course:
                text.append(f"  {message}\n")
            for mark in run.marks:
                text.append(f"  {mark.sign(is_ascii=is_ascii())} {mark.text}\n")
            if not run.marks:
                reported = "too few points" if run.facts.too_few else "no anomalies so far"
                text.append(f"  {reported}\n", "dim")
        self.app.push_screen(
            TextDialog("Training status", text if text.plain else Text("no data yet"))
        )

    def do_write_chart(self) -> None:
        if self._has_panels():
            start_worker(self, self._write, exclusive=True, group="write")

    async def _write(self) -> None:
        from hpcdash.ui.metrics.export import file_stem, write_chart

        stem = file_stem(self.job_id, self.picture.panels[0].name, self.now())
        request = self.request()
        title = request.runs[0].title if len(request.runs) == 1 else f"{len(request.runs)} runs"
        try:
            files = await asyncio.to_thread(write_chart, Path.cwd(), stem, request, title)
        except OSError as error:
            self.notify(f"not saved: {error.strerror}: {error.filename}", severity="error")
            return
        self.notify(f"saved: {files[0]} and {files[1].name}", timeout=4)


def _is_broken(mark: Mark) -> bool:
    """Whether what was found lasts, and may be in the weights."""
    return mark.lasts and mark.kind in _BROKEN


def other_runs(
    store: ClusterStore, row: Mapping[str, Any], marked: Collection[str]
) -> list[tuple[str, str]]:
    """Return the IDs of jobs that have begun, and their texts: marked ones first, then tasks of its
    array, then jobs of its name, each the newest first.
    """
    reasons = ("marked", "same array", "same name")
    texts: dict[str, str] = {}
    ranks: dict[str, tuple[int, int, int]] = {}
    for kind in _OTHERS:
        snapshot = store.snapshots.get(kind)
        if snapshot is None:
            continue
        for other in _near(snapshot.table, row, marked).select(_OTHER_COLUMNS).to_pylist():
            number = str(other["id"])
            if number in texts or number == row["id"] or other["_tasks"] != 1:
                continue
            rank = 2
            if number in marked:
                rank = 0
            elif str(other["state"]) in WAITING:
                continue
            elif row["array_id"] is not None and other["array_id"] == row["array_id"]:
                rank = 1
            ranks[number] = (rank, -(other["_number"] or 0), -(other["_task"] or 0))
            state = state_word(str(other["state"]))
            texts[number] = f"{number:<12} {other['name'] or ''}  {state}, {reasons[rank]}"
    nearest = sorted(texts, key=ranks.__getitem__)[:_MAX_OTHERS]
    return [(number, texts[number]) for number in nearest]


def _near(table: pa.Table, row: Mapping[str, Any], marked: Collection[str]) -> pa.Table:
    requested = pc.is_in(table["id"], pa.array(list(marked), pa.string()))
    if row["name"]:
        requested = pc.or_(requested, pc.equal(table["name"], row["name"]))
    if row["array_id"] is not None:
        requested = pc.or_kleene(requested, pc.equal(table["array_id"], row["array_id"]))
    return table.filter(requested)
