"""Outlook below a table of jobs: what ends and starts in the next hours, and what just happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from textual.content import Content
from textual.widgets import Static

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

Row = Mapping[str, Any]
_HOURS = 12
_MARK_HOURS = (1, 2, 3, 6, 12, 24, 48, 96, 192, 1000)
_MAX_JOBS = 10
_MAX_EVENTS = 8
_MAX_NODE_LINES = 3
_RECENT_SECONDS = 24 * 3600
_FAILED = pa.array(sorted(ENDED_BADLY - {JobState.CANCELLED, JobState.GONE}), pa.string())
_LABEL_CELLS = 24
# Under so many lines an outlook says nothing that the table does not.
_MIN_LINES = 3
MIN_ROWS = 12
_COLUMNS = ["id", "name", "state", "ends_at", "limit_seconds", "_expected_start_at"]


class Span(Struct, frozen=True):
    """Span of a job, node or reservation, named by its id and name, in the next hours.

    `starts_at` None: it has begun; `ends_at` None: no end is known. `note` is on the first of them
    that is still to come.
    """

    id: str
    name: str
    starts_at: datetime | None
    ends_at: datetime | None
    note: str


class JobsOutlook(Static):
    """The next hours of one's own jobs as bars, and their latest events."""

    DEFAULT_CSS = """
    JobsOutlook { height: auto; padding: 0 1; display: none; }
    """

    def __init__(self, session: ClusterSession, now: Callable[[], datetime]) -> None:
        super().__init__("", markup=False)
        self._session = session
        self._now = now
        self._shown = ""

    def show(self, mine: pa.Table | None, lines: int, room: int) -> None:
        """Draw in at most so many lines of `room` cells; nothing where they are few."""
        content: list[Content] = []
        if mine is not None and lines >= _MIN_LINES:
            store = self._session.store
            now = self._now()
            reservations = store.snapshots.get(Kind.RESERVATIONS)
            known = None if reservations is None else reservations.table
            planned = next_spans(mine, known, now, _HOURS)[:_MAX_JOBS]
            if planned:
                zone = self._session.zone
                letters = job_letters(store)
                content = [
                    heading(f"Next {_HOURS} h", room, f"now {short_instant(now, now, zone)}"),
                    *draw_hours(planned[: lines - 2], now, zone, room, _HOURS, letters.letter),
                ]
            left = lines - len(content)
            if left >= _MIN_LINES:
                most = min(left - 1, _MAX_EVENTS)
                content += draw_events(store, self._session.zone, room, most)
        drawn = Content("\n").join(content)
        self.display = bool(content)
        if drawn.markup != self._shown:
            self._shown = drawn.markup
            self.update(drawn)


def is_startable(state: str) -> bool:
    """Whether an estimated start holds: Slurm has one for held jobs too."""
    return state in WAITING and state != JobState.HELD


def next_spans(
    jobs: pa.Table, reservations: pa.Table | None, now: datetime, hours: int
) -> list[Span]:
    """Return the jobs that end or may start within so many hours, and the reservations that begin,
    the soonest first.
    """
    until = now + timedelta(hours=hours)
    instants = pc.min_element_wise(
        jobs["ends_at"].cast(pa.int64()), jobs["_expected_start_at"].cast(pa.int64())
    )
    near = jobs.filter(pc.fill_null(pc.less(instants, int(until.timestamp())), False))
    found: list[tuple[datetime, Span]] = []
    for row in near.select(_COLUMNS).to_pylist():
        job_id = str(row["id"])
        name = str(row["name"] or "")
        ends = row["ends_at"]
        starts = row["_expected_start_at"]
        if row["state"] in ACTIVE and ends is not None and now < ends < until:
            found.append((ends, Span(job_id, name, None, ends, "limit")))
        elif is_startable(row["state"]) and starts is not None and now < starts < until:
            limit = row["limit_seconds"]
            end = None if limit is None else starts + timedelta(seconds=limit)
            found.append((starts, Span(job_id, name, starts, end, "start, estimated")))
    for row in [] if reservations is None else reservations.to_pylist():
        starts = row["starts_at"]
        if starts is not None and now < starts < until:
            name = f"{row['name']} {row['node_list'] or ''}".strip()
            found.append((starts, Span("", name, starts, row["ends_at"], "reservation")))
    return [span for _, span in sorted(found, key=lambda one: one[0])]


def heading(title: str, room: int, right: str = "") -> Content:
    """`Next 12 h ──────── now 06:59`."""
    rule = max(0, room - len(title) - len(right) - 2)
    return Content.assemble(
        (title, "bold"), (f" {signs().rule * rule} ", "$quiet"), (right, "$table-dim")
    )


def draw_hours(
    planned: Sequence[Span],
    now: datetime,
    zone: tzinfo | None,
    room: int,
    hours: int,
    letter: Callable[[str], str],
) -> list[Content]:
    """Draw the next hours, and a bar for each span: dim until it starts, then to its end."""
    notes = [_note(span, now, zone) for span in planned]
    label = min(_LABEL_CELLS, max(len(_label(span)) for span in planned))
    cells = max(12, room - label - max(map(len, notes)) - 6)
    whole = timedelta(hours=hours)
    lines = [Content.styled(" " * (label + 4) + _scale(now, zone, cells, whole), "$table-dim")]
    for span, note in zip(planned, notes, strict=True):
        own = letter(span.id)
        style = f"${letter_style(own)}" if own else "$table-dim"
        begins = 0 if span.starts_at is None else _place(span.starts_at - now, cells, whole)
        over = cells if span.ends_at is None else _place(span.ends_at - now, cells, whole)
        over = max(min(cells, over), begins + 1)
        state = JobState.PENDING if span.starts_at else JobState.RUNNING
        sign = signs().states[state if span.id else NodeState.RESERVED]
        lines.append(
            Content.assemble(
                (own or sign, f"bold {style}"),
                (f" {clip(_label(span), label):<{label}}  ", ""),
                (signs().bar_free * begins, "$quiet"),
                (signs().bar_used * (over - begins), style),
                (f" {note}", "$table-dim"),
            )
        )
    return lines


def _label(span: Span) -> str:
    return visible(f"{span.id} {span.name}".strip())


def _note(span: Span, now: datetime, zone: tzinfo | None) -> str:
    """`12:09 limit`, or `11:57 start, estimated`."""
    if span.starts_at is not None:
        return f"{short_instant(span.starts_at, now, zone)} {span.note}"
    return "" if span.ends_at is None else f"{short_deadline(span.ends_at, now, zone)} {span.note}"


def _place(ahead: timedelta, cells: int, span: timedelta) -> int:
    return max(0, round(ahead / span * cells))


def _scale(now: datetime, zone: tzinfo | None, cells: int, span: timedelta) -> str:
    """`   08    10    12`, or `  Tue   Wed`: full hours or days over their cells."""
    line = [" "] * cells
    local = now.astimezone(zone)
    # At most one mark every eight cells.
    least = span / cells * 8
    step = next(timedelta(hours=one) for one in _MARK_HOURS if timedelta(hours=one) >= least)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    mark = midnight + step * ((local - midnight) // step + 1)
    while (at := _place(mark - local, cells, span)) < cells - 3:
        text = f"{mark:%a}" if step >= timedelta(days=1) else f"{mark:%H}"
        line[at : at + len(text)] = text
        mark += step
    return "".join(line).rstrip()


def draw_events(store: ClusterStore, zone: tzinfo | None, room: int, most: int) -> list[Content]:
    """Draw a heading and a line for each of the latest events of jobs and nodes, and for own jobs
    that failed within a day, the newest first; [] where nothing happened.
    """
    lost: dict[float, list[NodeEvent]] = {}
    for event in store.node_events:
        lost.setdefault(event.at, []).append(event)
    # An array may have failed with thousands of tasks: only what is shown is looked up.
    failures = sorted(recent_failures(store), key=lambda event: event.at)
    events = [*failures[-most:], *list(store.events)[-most:]]
    lines = [
        *((event.at, _job_event(store, event, room)) for event in events),
        *((at, line) for at, events in lost.items() for line in _node_lines(events)),
    ]
    if not lines:
        return []
    return [
        heading("Recently", room, "J journal"),
        *(
            (Content.styled(f"{datetime.fromtimestamp(at, zone):%H:%M}  ", "$table-dim") + line)
            for at, line in sorted(lines, key=lambda one: -one[0])[:most]
        ),
    ]


def recent_failures(store: ClusterStore) -> list[JobEvent]:
    """Return own jobs that failed within a day, as far as the lists at hand have them, as events at
    their ends; not those that are among the store's events.
    """
    now = store.clock.now()
    known = {event.job_id for event in store.events}
    found: dict[str, JobEvent] = {}
    for kind in (Kind.MINE, Kind.HISTORY):
        table = store.table(kind) if kind in store.snapshots else None
        if table is None:
            continue
        failed = table.filter(pc.is_in(table["state"].cast(pa.string()), value_set=_FAILED))
        for row in failed.select(["id", "name", "state", "ends_at"]).to_pylist():
            at = 0.0 if row["ends_at"] is None else row["ends_at"].timestamp()
            if now - _RECENT_SECONDS < at <= now and row["id"] not in known:
                event = JobEvent(at, row["id"], row["name"] or "", "", row["state"])
                found.setdefault(row["id"], event)
    return list(found.values())


def _job_event(store: ClusterStore, event: JobEvent, room: int) -> Content:
    """`✗ 52 decord-build failed, exit 139`."""
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
    """`▼ g05 drained: GPU 3 fell off the bus`; many nodes at once are a line."""
    if len(events) > _MAX_NODE_LINES:
        names = ", ".join(visible(event.name) for event in events[:_MAX_NODE_LINES])
        more = f"{counted(len(events), 'node')} unavailable: {names} …"
        return [Content.styled(f"{signs().states[NodeState.DOWN]} {more}", "$state-down")]
    return [
        Content.assemble(
            (f"{signs().states.get(event.state, '?')} ", f"$state-{style_name(event.state)}"),
            visible(event.name),
            (f" {event.state}", f"$state-{style_name(event.state)}"),
            (f": {visible(event.reason)}" if event.reason else "", "$table-dim"),
        )
        for event in events
    ]
