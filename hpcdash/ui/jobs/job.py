"""Page of a job or a whole array: request, usage, reason, dependencies, events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize

from hpcdash.backends.job_detail import JobDetail
from hpcdash.domain.job_text import state_word
from hpcdash.domain.states import ENDED, WAITING
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, visible
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.forward.records import ForwardRecord, ForwardRecords
from hpcdash.services.jobs.action_text import format_error
from hpcdash.services.jobs.overview import JobFacts, Part
from hpcdash.services.jobs.page import Entry, Group, job_groups
from hpcdash.services.jobs.rows import array_rows
from hpcdash.services.session import ClusterSession
from hpcdash.ui.dialogs import TextDialog
from hpcdash.ui.jobs.overview import JobOverview
from hpcdash.ui.jobs.table import BESIDE_COLUMNS, job_hint
from hpcdash.ui.notes import session_notes
from hpcdash.ui.themes import style_name
from hpcdash.ui.view import Targets, View, row_ranks
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.workers import start_worker

# Minimum height of the loss and the log below the page.
_MIN_LOG_LINES = 12
# Width of the page on a terminal of 130 columns.
_TWO_COLUMNS = 126
_JOB_KINDS = frozenset({None, Kind.MINE, Kind.EVERYONE, Kind.HISTORY, Kind.HISTORY_EVERYONE})
# Maximum height of an array that is shown as one sign per task.
_SIGN_LINES = 3
StyleOf = Callable[[str], Style]
_LABEL_CELLS = 16
_MAX_LABEL_CELLS = 26
_INDENT = 2
_BAR_CELLS = 10


class JobView(View):
    """Facts of a job, shown as they arrive and fetched again when the job's state changes."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "job--label",
        "job--bar",
        "job--advice",
        "job--rule",
    }
    DEFAULT_CSS = """
    JobView > #page { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    JobView > #page > PlainStatic { width: 1fr; height: auto; }
    JobView.-beside > JobOverview { dock: right; width: 45%; }
    JobView {
        & > .job--label { color: $table-dim; }
        & > .job--bar { color: $primary; }
        & > .job--advice { color: $warning; }
        & > .job--rule { color: $scrollbar; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "scroll(1)", "down", show=False, priority=True),
        Binding("up,k", "scroll(-1)", "up", show=False, priority=True),
    ]

    def __init__(
        self,
        session: ClusterSession,
        *,
        job_id: str,
        shows_record: bool = False,
        patterns: Sequence[str] = (),
    ) -> None:
        """With `shows_record` the scheduler's own record is shown at the end."""
        super().__init__(session)
        self.job_id = job_id
        self._shows_record = shows_record
        self._shows_overview = True
        self._forwards: list[ForwardRecord] = []
        self._overview = JobOverview(session, self.now, patterns, has_facts=False)
        self.facts = JobFacts(
            session.store, job_id, self._paint, state_folder=session.actions.journal.path.parent
        )
        self._detail_line = 0
        self._painted: Text | None = None

    @property
    def detail(self) -> JobDetail | None:
        return self.facts.detail

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="page"):
            yield PlainStatic("loading …")
        yield self._overview

    @property
    def _page(self) -> VerticalScroll:
        return self.query_one("#page", VerticalScroll)

    def action_scroll(self, lines: int) -> None:
        if self._overview.has_focus_within:
            self._overview.scroll_log(lines)
        else:
            self._page.scroll_relative(y=lines, animate=False, immediate=True)

    def do_switch_focus(self) -> None:
        """Move the focus between the page and the log."""
        if self._overview.has_focus_within or not self._overview.display:
            self.take_focus()
        else:
            self._overview.take_focus()

    def tick(self) -> None:
        if self.is_live and self._overview.display:
            self._overview.tick()

    def on_mount(self) -> None:
        self.facts.read_row()
        self._paint()
        self.shown()

    def on_resize(self, event: Resize) -> None:
        self._paint()

    def _arrange(self, page_lines: int) -> None:
        """Place the loss and the log beside a wide page, else below a short one."""
        row = self.facts.row
        lines = self.size.height - page_lines - 1
        is_beside = self.app.size.width >= BESIDE_COLUMNS
        has_begun = row is not None and row["state"] not in WAITING
        has_room = is_beside or lines >= _MIN_LOG_LINES
        self.set_class(is_beside, "-beside")
        self._overview.display = has_room and has_begun and self._shows_overview
        self._overview.styles.height = "100%" if is_beside else max(lines, _MIN_LOG_LINES)

    def do_overview(self) -> None:
        """Show or hide the loss and the log."""
        self._shows_overview = not self._shows_overview
        self.take_focus()
        self._paint()

    def take_focus(self) -> None:
        self.screen.set_focus(self._page)

    def shown(self) -> None:
        self.take_focus()
        self._fetch()
        self.notes_changed()

    def do_refresh(self) -> None:
        self._fetch()

    def _fetch(self) -> None:
        start_worker(self, self.facts.fetch, exclusive=True, group="facts")

    def store_changed(self, changed: Changed) -> None:
        """Show new data; fetch the details, which cost queries, only in a new state of the job."""
        if changed.kind in _JOB_KINDS:
            start_worker(self, self._update, exclusive=True, group="look")

    async def _update(self) -> None:
        await self._read_forwards()
        if await self.facts.refresh():
            self._fetch()
        else:
            start_worker(self, self.facts.keep_usage_fresh, group="usage")
            start_worker(self, self.facts.keep_containers_fresh, group="containers")
            start_worker(self, self.facts.keep_activity_fresh, group="activity")

    def do_detail(self) -> None:
        """Show the scheduler's own record, or hide it."""
        self._shows_record = not self._shows_record
        self._paint()
        line = self._detail_line if self._shows_record else 0
        self.call_after_refresh(self._page.scroll_to, y=line, animate=False)

    def do_sooner(self) -> None:
        self.notify("estimating the start …", timeout=3)
        start_worker(self, self._show_sooner, group="sooner", exclusive=True)

    async def _show_sooner(self) -> None:
        from hpcdash.services.usage.sooner import fetch_start_options

        store = self.session.store
        try:
            options = await fetch_start_options(store, self.job_id)
        except HpcdashError as error:
            self.notify(format_error(error), severity="warning", timeout=8)
            return
        now = store.clock.now()
        starts = tuple(Entry(option.change, option.format(now)) for option in options)
        commands = tuple(Entry(value=option.command, is_dim=True) for option in options)
        groups = (Group("Would start", starts), Group("Commands (nothing was submitted)", commands))
        text = Text("\n").join(self._all_lines(groups, 80))
        self.app.push_screen(TextDialog(f"Job {self.job_id}", text))

    @property
    def own_error(self) -> HpcdashError | None:
        return self.facts.errors.get(Part.DETAIL)

    @property
    def main_kind(self) -> Kind | None:
        return None

    def taken_at(self) -> float | None:
        return self.facts.taken_at

    def crumbs(self) -> Sequence[str]:
        return ("array" if self.facts.is_whole_array else "job", self.job_id)

    def way_crumb(self) -> str:
        return " ".join(self.crumbs())

    def hint(self) -> str:
        if self.detail is None:
            return ""
        return f"d {'hides' if self._shows_record else 'shows'} the raw scheduler output"

    def pointed_job(self) -> str | None:
        return self.job_id

    def targets(self) -> Targets:
        """Return this job; for a whole array, its rows in the lists."""
        row = self.facts.row
        if row is None:
            return Targets(missing=(self.job_id,))
        if not self.facts.is_whole_array:
            return Targets((self.job_id,), (row,))
        store = self.session.store
        rows: dict[str, dict[str, object]] = {}
        for kind in (Kind.MINE, Kind.EVERYONE, Kind.HISTORY):
            table = store.table(kind) if kind in store.snapshots else None
            if table is not None:
                for known in array_rows(table, self.job_id).to_pylist():
                    rows.setdefault(known["id"], known)
        return Targets((self.job_id,), tuple(rows.values()) or (row,))

    def key_ranks(self) -> Mapping[str, int]:
        is_training = self._overview.display and self._overview.shows_training
        return row_ranks(self.facts.row, is_training=is_training)

    # -- page

    def _paint(self) -> None:
        """Redraw the page, and keep the scroll position."""
        if not self.is_live:
            return
        text = self._format_page()
        self._arrange(text.plain.count("\n") + 1)
        if self._painted is None or text != self._painted or text.spans != self._painted.spans:
            self._painted = text
            self._page.query_one(PlainStatic).update(text)
        if self._overview.display:
            self._overview.point_at(self.facts.row)
        self.post_message(self.CrumbsChanged())

    def _format_page(self) -> Text:
        facts = self.facts
        if facts.row is None:
            has_failed = self.own_error is not None and Part.DETAIL not in facts.fetching
            return Text("no data for this job" if has_failed else "loading …")
        width = self._page.scrollable_content_region.width or self.app.size.width - 3
        is_wide = width >= _TWO_COLUMNS
        column = (width - 3) // 2 if is_wide else width
        states = cells.signs().states
        groups = job_groups(
            facts,
            self.now(),
            signs=states,
            zone=self.session.zone,
            sign_cells=_SIGN_LINES * (column - label_cells(())),
        )
        head = [Text(visible(self._headline()), "bold"), *self._note_lines(), Text()]
        lines = self._wrapped(head, width)
        if life := life_line(facts.row, self.now(), self.session.zone, width, self._style):
            lines += [*life, Text()]
        if is_wide:
            left = [group for group in groups if not (group.is_aside or group.is_broad)]
            aside = [group for group in groups if group.is_aside]
            lines += in_columns(
                self._all_lines(left, column), self._all_lines(aside, column), column
            )
            groups = [group for group in groups if group.is_broad]
        lines += self._all_lines(groups, width)
        self._detail_line = len(lines)
        if self._shows_record or self.detail is None:
            lines += self._native_lines(width)
        return Text("\n").join(lines)

    def _headline(self) -> str:
        row = self.facts.row
        assert row is not None
        if not self.facts.is_whole_array:
            # The page has its dependencies.
            shown = {**row, "dependency": None}
            return job_hint(self.session, shown, self.now(), names_policy=False)
        counts = self.facts.tasks.counts() if self.facts.tasks is not None else {}
        states = " · ".join(f"{count} {state_word(state)}" for state, count in counts.items())
        return f"array {self.job_id} {row['name'] or ''}  ·  {states}"

    def _note_lines(self) -> list[Text]:
        """Return the person's notes on the job or its array, whether it is pinned, its forwards."""
        stored = session_notes(self.session).load()
        row = self.facts.row or {}
        ids = list(dict.fromkeys(filter(None, (self.job_id, row.get("id"), row.get("array_id")))))
        parts = ["pinned"] if stored.pinned.intersection(ids) else []
        parts += [f"note: {stored.notes[job_id]}" for job_id in ids if job_id in stored.notes]
        parts += [
            f"port {record.port} → {record.local} ({record.status})"
            for record in self._forwards
            if record.cluster == self.session.name and record.job in ids
        ]
        return [Text(visible("  ·  ".join(parts)), self._style("label"))] if parts else []

    def notes_changed(self) -> None:
        self._paint()
        start_worker(self, self._read_forwards, exclusive=True, group="forwards")

    async def _read_forwards(self) -> None:
        """Read the forwards of this machine, whose records may be on a slow home."""
        records = ForwardRecords(self.session.actions.journal.path.parent)
        forwards = await asyncio.to_thread(records.read)
        if forwards != self._forwards:
            self._forwards = forwards
            self._paint()

    def _wrapped(self, lines: Sequence[Text], width: int) -> list[Text]:
        wrapped: list[Text] = []
        for line in lines:
            wrapped += line.wrap(self.app.console, width, overflow="fold") or [line]
        return wrapped

    def _all_lines(self, groups: Sequence[Group], width: int) -> list[Text]:
        lines = []
        for group in groups:
            lines += entry_lines(group, width, self._style, self.app.console)
        return lines

    def _native_lines(self, width: int) -> list[Text]:
        if self.detail is None:
            text = "loading …" if Part.DETAIL in self.facts.fetching else ""
            return [Text(text, self._style("label"))]
        entries = tuple(Entry(*pair) for pair in self.detail.native.items())
        return self._all_lines([Group("Raw scheduler output", entries)], width)

    def _style(self, name: str) -> Style:
        """Return the style of a label, a bar, advice or a state; a null style for ''."""
        if not name:
            return Style.null()
        if name == "title":
            return Style(bold=True)
        if cell_style := cells.CELL_STYLES.get(style_name(name)):
            return self.app.stylesheet.parse_style(cell_style).rich_style
        return self.get_component_rich_style(f"job--{name}", partial=True)


def life_line(
    row: Mapping[str, Any], now: datetime, zone: tzinfo | None, width: int, find_style: StyleOf
) -> list[Text]:
    """Draw a bar from a job's submission to its limit or end, and the instants below.

    [] if the job has not begun or an instant is unknown.
    """
    submitted = row["submitted_at"]
    started = row["started_at"]
    ends = row["ends_at"]
    if submitted is None or started is None or ends is None or ends <= submitted:
        return []
    has_ended = row["state"] in ENDED
    whole_seconds = (ends - submitted).total_seconds()

    def place(at: datetime) -> int:
        return int((at - submitted).total_seconds() / whole_seconds * width + 0.5)

    signs = cells.signs()
    begin = min(max(0, place(started)), width - 1)
    end = place(ends if has_ended else min(now, ends))
    end = min(max(begin + 1, end), width)
    bar = Text.assemble(
        (signs.bar_free * begin, find_style("label")),
        (signs.bar_used * (end - begin), find_style("bar")),
        (signs.bar_free * (width - end), find_style("label")),
    )
    last = f"{'ended' if has_ended else 'limit'} {cells.short_deadline(ends, now, zone)}"
    marks = Text(f"submitted {cells.short_instant(submitted, now, zone)}", find_style("label"))
    start = f"started {cells.short_instant(started, now, zone)}"
    for at, text in ((begin, start), (width - len(last), last)):
        # Instants at nearly the same place follow each other.
        gap = max(at - marks.cell_len, 3)
        marks.append(" " * gap + text, find_style("label"))
    return [bar, marks] if marks.cell_len <= width else [bar]


def label_cells(labels: Iterable[str]) -> int:
    """Return the width of the label column with its padding."""
    longest = max((cell_len(label) for label in labels), default=0)
    return _INDENT + min(max(_LABEL_CELLS, longest), _MAX_LABEL_CELLS) + 2


def entry_lines(group: Group, width: int, find_style: StyleOf, console: Console) -> list[Text]:
    """Draw a title, the entries, and an empty line."""
    value_at = label_cells(visible(entry.label) for entry in group.entries)
    title = Text.assemble((clip(visible(group.title), width), find_style("title")), " ")
    rule = "-" if cells.signs() is cells.ASCII_SIGNS else "─"
    title.append(rule * (width - title.cell_len), find_style("rule"))
    lines = [title]
    measured = [entry for entry in group.entries if entry.fraction is not None]
    bar_at: int | None = max((cell_len(visible(entry.text)) for entry in measured), default=0)
    if bar_at is not None and bar_at > width - value_at - _BAR_CELLS - _INDENT:
        # If the longest value leaves no room for a bar, no entry has one.
        bar_at = None
    for entry in group.entries:
        head = Text(" " * _INDENT)
        if entry.label:
            head.append(clip(visible(entry.label), value_at - _INDENT - 2), find_style("label"))
            head.append(" " * (value_at - head.cell_len))
            value = _value(entry, find_style, bar_at)
        else:
            value = _value(entry, find_style)
        indent = head.cell_len
        parts = value.wrap(console, max(10, width - indent), overflow="fold") or [Text()]
        for at, part in enumerate(parts):
            part.rstrip()
            lines.append(Text.assemble(head if at == 0 else " " * indent, part))
    return [*lines, Text()]


def in_columns(left: Sequence[Text], right: Sequence[Text], column: int) -> list[Text]:
    """Draw two lists of lines beside each other, the right one from cell `column` + 3."""
    lines = []
    for at in range(max(len(left), len(right))):
        # A copy, as a line's own style would also apply to appended text.
        line = Text.assemble(left[at]) if at < len(left) else Text()
        if at < len(right) and right[at].plain:
            line.append(" " * (column + 3 - line.cell_len))
            line.append_text(right[at])
        lines.append(line)
    return lines


def _value(entry: Entry, find_style: StyleOf, bar_at: int | None = None) -> Text:
    if entry.pieces:
        pieces = [(visible(text), find_style(state)) for text, state in entry.pieces]
        return Text.assemble(*pieces)
    name = entry.state
    if entry.is_dim:
        name = "label"
    elif entry.label == "→":
        name = "advice"
    text = Text(visible(entry.value), find_style(name))
    if entry.fraction is not None and bar_at is not None:
        text.append(" " * (max(0, bar_at - text.cell_len) + 2))
        for piece, name in cells.usage_bar(min(max(entry.fraction, 0.0), 1.0), _BAR_CELLS):
            text.append(piece, find_style("bar" if name == cells.ACCENT else "label"))
    return text
