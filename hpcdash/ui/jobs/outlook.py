"""Outlook below a table of jobs: what ends and starts in the next hours, and what just happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from textual.content import Content

from hpcdash.domain.columns import has_state
from hpcdash.domain.job_text import format_end, state_word
from hpcdash.domain.states import ACTIVE, ENDED_BADLY, WAITING, JobState, NodeState
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, counted, visible
from hpcdash.services.cluster.store import ClusterStore, NodeEvent
from hpcdash.services.jobs.lookup import known_row
from hpcdash.services.jobs.tracker import JobEvent
from hpcdash.services.session import ClusterSession
from hpcdash.ui.cluster.wall import job_letters, letter_style
from hpcdash.ui.themes import style_name
from hpcdash.ui.widgets.cells import short_deadline, short_instant, signs
from hpcdash.ui.widgets.lines import PlainStatic

Row = Mapping[str, Any]
# The shortest of these spans that has enough of the user's jobs, in hours.
_SPAN_HOURS = (12, 24, 48, 96, 168)
_ENOUGH_JOBS = 6
_MARK_HOURS = (1, 2, 3, 6, 12, 24, 48, 96, 192, 1000)
_MAX_JOBS = 10
_MAX_EVENTS = 8
_MAX_NODE_LINES = 3
_RECENT_SECONDS = 24 * 3600
# States with a meaningful estimate of the start: Slurm has estimates for held jobs, too.
STARTABLE = WAITING - {JobState.HELD}
_FAILED = ENDED_BADLY - {JobState.CANCELLED, JobState.GONE}
_LABEL_CELLS = 24
_MIN_LINES = 3
MIN_ROWS = 12
_COLUMNS = ["id", "name", "state", "ends_at", "limit_seconds", "_expected_start_at"]


class Span(Struct, frozen=True):
    """Time of a job, node or reservation in the next hours.

    `starts_at` is None if it has begun, `ends_at` if its end is unknown. `note` describes the next
    of them.
    """

    id: str
    name: str
    starts_at: datetime | None
    ends_at: datetime | None
    note: str

    @property
    def next_at(self) -> datetime:
        """Instant of its start, else of its end."""
        return cast("datetime", self.starts_at or self.ends_at)


class JobsOutlook(PlainStatic):
    """Bars of the user's jobs in the next hours, and recent events."""

    DEFAULT_CSS = """
    JobsOutlook { height: auto; padding: 0 1; display: none; }
    """

    def __init__(self, session: ClusterSession, now: Callable[[], datetime]) -> None:
        super().__init__()
        self._session = session
        self._now = now
        self._shown = ""

    def show(self, mine: pa.Table | None, lines: int, room: int) -> None:
        """Draw at most `lines` lines of `room` cells; nothing if there are too few."""
        content: list[Content] = []
        if mine is not None and lines >= _MIN_LINES:
            content = self._draw_hours(mine, lines, room)
            left = lines - len(content)
            if left >= _MIN_LINES:
                count = min(left - 1, _MAX_EVENTS)
                content += draw_events(self._session.store, self._session.zone, room, count)
        drawn = Content("\n").join(content)
        self.display = bool(content)
        if drawn.markup != self._shown:
            self._shown = drawn.markup
            self.update(drawn)

    def _draw_hours(self, mine: pa.Table, lines: int, room: int) -> list[Content]:
        """Draw a heading and the bars; [] without jobs that end or may start."""
        store = self._session.store
        zone = self._session.zone
        now = self._now()
        reservations = store.snapshots.get(Kind.RESERVATIONS)
        reserved = None if reservations is None else reservations.table
        most = min(lines - 2, _MAX_JOBS)
        spans = next_spans(mine, reserved, now, _SPAN_HOURS[-1], most)
        if not spans:
            return []
        hours = _enough_hours(spans, now)
        planned = [span for span in spans if span.next_at < now + timedelta(hours=hours)]
        title = f"Next {hours} h" if hours <= 24 else f"Next {hours // 24} d"
        head = heading(title, room, f"now {short_instant(now, now, zone)}")
        letters = job_letters(store)
        bars = draw_hours(planned, now, zone, room=room, hours=hours, letter=letters.letter)
        return [head, *bars]


def _enough_hours(spans: Sequence[Span], now: datetime) -> int:
    """Return the shortest span with enough of the jobs, or with all of them."""
    enough = spans[min(len(spans), _ENOUGH_JOBS) - 1].next_at
    return next(hours for hours in _SPAN_HOURS if enough < now + timedelta(hours=hours))


def next_spans(
    jobs: pa.Table,
    reservations: pa.Table | None,
    now: datetime,
    hours: int,
    most: int | None = None,
) -> list[Span]:
    """Return the jobs that end or may start within `hours`, and the reservations that begin, the
    soonest first; at most `most`.
    """
    until = now + timedelta(hours=hours)
    # Jobs may be many thousands: only the soonest become Python objects.
    runs = has_state(jobs, ACTIVE - {JobState.SUSPENDED})
    starts = has_state(jobs, STARTABLE)
    times = [jobs[name].cast(pa.int64()) for name in ("ends_at", "_expected_start_at")]
    at = pc.case_when(pc.make_struct(runs, starts), *times)
    is_near = pc.and_(pc.greater(at, int(now.timestamp())), pc.less(at, int(until.timestamp())))
    near = jobs.select(_COLUMNS).append_column("_at", at).filter(pc.fill_null(is_near, False))
    found: list[tuple[datetime, Span]] = []
    for row in near.sort_by("_at").slice(0, most).to_pylist():
        job_id = str(row["id"])
        name = str(row["name"] or "")
        if row["state"] in ACTIVE:
            found.append((row["ends_at"], Span(job_id, name, None, row["ends_at"], "limit")))
        else:
            begin = row["_expected_start_at"]
            limit = row["limit_seconds"]
            end = None if limit is None else begin + timedelta(seconds=limit)
            found.append((begin, Span(job_id, name, begin, end, "start, estimated")))
    for row in [] if reservations is None else reservations.to_pylist():
        begin = row["starts_at"]
        if begin is not None and now < begin < until:
            name = f"{row['name']} {row['node_list'] or ''}".strip()
            found.append((begin, Span("", name, begin, row["ends_at"], "reservation")))
    return [span for _, span in sorted(found, key=lambda one: one[0])][:most]


def heading(title: str, room: int, right: str = "") -> Content:
    """Draw a heading: `Next 12 h ──────── now 06:59`."""
    rule = max(0, room - len(title) - len(right) - 2)
    return Content.assemble(
        (title, "bold"), (f" {signs().rule * rule} ", "$quiet"), (right, "$table-dim")
    )


def draw_hours(
    planned: Sequence[Span],
    now: datetime,
    zone: tzinfo | None,
    *,
    room: int,
    hours: int,
    letter: Callable[[str], str],
) -> list[Content]:
    """Draw the scale of the next hours, and a bar per span from its start to its end.

    `room` is in cells; `letter` returns a job's letter on the wall of slots.
    """
    labels = [visible(f"{span.id} {span.name}".strip()) for span in planned]
    notes = [_note(span, now, zone) for span in planned]
    label_cells = min(_LABEL_CELLS, max(map(len, labels)))
    cells = max(12, room - label_cells - max(map(len, notes)) - 6)
    whole = timedelta(hours=hours)
    scale = _scale(now, zone, cells, whole)
    lines = [Content.styled(" " * (label_cells + 4) + scale, "$table-dim")]
    for span, label, note in zip(planned, labels, notes, strict=True):
        begin = 0
        end = cells
        state: JobState | NodeState = JobState.RUNNING
        if span.starts_at is not None:
            begin = _place(span.starts_at - now, cells, whole)
            state = JobState.PENDING
        if span.ends_at is not None:
            end = min(cells, _place(span.ends_at - now, cells, whole))
        if not span.id:
            state = NodeState.RESERVED
        own = letter(span.id)
        style = f"${letter_style(own)}" if own else "$table-dim"
        line = Content.assemble(
            (own or signs().states[state], f"bold {style}"),
            (f" {clip(label, label_cells):<{label_cells}}  ", ""),
            (signs().bar_free * begin, "$quiet"),
            (signs().bar_used * max(1, end - begin), style),
            (f" {note}", "$table-dim"),
        )
        lines.append(line)
    return lines


def _note(span: Span, now: datetime, zone: tzinfo | None) -> str:
    """Format the next instant: `12:09 limit`, `11:57 start, estimated`."""
    if span.starts_at is not None:
        return f"{short_instant(span.starts_at, now, zone)} {span.note}"
    return "" if span.ends_at is None else f"{short_deadline(span.ends_at, now, zone)} {span.note}"


def _place(ahead: timedelta, cells: int, span: timedelta) -> int:
    return max(0, round(ahead / span * cells))


def _scale(now: datetime, zone: tzinfo | None, cells: int, span: timedelta) -> str:
    """Format full hours or days at their cells: `   08    10    12`, `  Tue   Wed`."""
    line = [" "] * cells
    local = now.astimezone(zone)
    # At most one mark every eight cells.
    least = span / cells * 8
    steps = (timedelta(hours=hours) for hours in _MARK_HOURS)
    step = next(step for step in steps if step >= least)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    mark = midnight + step * ((local - midnight) // step + 1)
    while (at := _place(mark - local, cells, span)) < cells - 3:
        text = f"{mark:%a}" if step >= timedelta(days=1) else f"{mark:%H}"
        line[at : at + len(text)] = text
        mark += step
    return "".join(line).rstrip()


def draw_events(store: ClusterStore, zone: tzinfo | None, room: int, count: int) -> list[Content]:
    """Draw a heading and the `count` latest events of jobs and nodes, newest first; [] for none."""
    node_events: dict[float, list[NodeEvent]] = {}
    for node_event in store.node_events:
        node_events.setdefault(node_event.at, []).append(node_event)
    # An array may have failed with thousands of tasks: only those that are shown are looked up.
    failures = sorted(recent_failures(store), key=lambda event: event.at)
    events = [*failures[-count:], *list(store.events)[-count:]]
    lines = [(event.at, _job_event(store, event, room)) for event in events]
    for at, at_once in node_events.items():
        lines += [(at, line) for line in _node_lines(at_once)]
    if not lines:
        return []
    drawn = [heading("Recent events", room, "J journal")]
    for at, line in sorted(lines, key=lambda one: -one[0])[:count]:
        time = f"{datetime.fromtimestamp(at, zone):%H:%M}  "
        drawn.append(Content.styled(time, "$table-dim") + line)
    return drawn


def recent_failures(store: ClusterStore) -> list[JobEvent]:
    """Return events for the user's jobs that failed within a day and are not in the store's events.

    Only jobs in the store's lists are known.
    """
    now = store.clock.now()
    known = {event.job_id for event in store.events}
    found: dict[str, JobEvent] = {}
    for kind in (Kind.MINE, Kind.HISTORY):
        table = store.table(kind) if kind in store.snapshots else None
        if table is None:
            continue
        failed = table.filter(has_state(table, _FAILED))
        for row in failed.select(["id", "name", "state", "ends_at"]).to_pylist():
            at = 0.0 if row["ends_at"] is None else row["ends_at"].timestamp()
            if now - _RECENT_SECONDS < at <= now and row["id"] not in known:
                event = JobEvent(at, row["id"], row["name"] or "", "", row["state"])
                found.setdefault(row["id"], event)
    return list(found.values())


def _job_event(store: ClusterStore, event: JobEvent, room: int) -> Content:
    """Draw the event of a job: `✗ 52 decord-build failed, exit 139`."""
    style = f"$state-{style_name(event.after)}"
    name = clip(visible(f"{event.job_id} {event.name}"), max(20, room // 2))
    is_bad = event.after in ENDED_BADLY
    row = known_row(store, event.job_id) if is_bad else None
    ending = "" if row is None else visible(format_end(row))
    return Content.assemble(
        (f"{signs().states.get(event.after, '?')} ", style),
        name,
        (f" {state_word(event.after)}", style if is_bad else "$table-dim"),
        (f", {ending}" if ending else "", "$table-dim"),
    )


def _node_lines(events: Sequence[NodeEvent]) -> list[Content]:
    """Draw simultaneous node events: `▼ g05 drained: GPU 3 fell off the bus`; many in one line."""
    if len(events) > _MAX_NODE_LINES:
        names = ", ".join(visible(event.name) for event in events[:_MAX_NODE_LINES])
        text = f"{counted(len(events), 'node')} unavailable: {names} …"
        return [Content.styled(f"{signs().states[NodeState.DOWN]} {text}", "$state-down")]
    lines = []
    for event in events:
        style = f"$state-{style_name(event.state)}"
        line = Content.assemble(
            (f"{signs().states.get(event.state, '?')} ", style),
            visible(event.name),
            (f" {event.state}", style),
            (f": {visible(event.reason)}" if event.reason else "", "$table-dim"),
        )
        lines.append(line)
    return lines
