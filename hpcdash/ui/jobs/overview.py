"""The pane beside or under a table of jobs: why the job under the cursor waits, its use, its loss,
its log's end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static
from textual.worker import Worker

from hpcdash.domain.job_text import format_end, format_exit, state_word
from hpcdash.domain.states import ACTIVE, ENDED, WAITING, JobState
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, clip_path, visible
from hpcdash.domain.units import format_duration, format_memory, format_span
from hpcdash.errors import HpcdashError
from hpcdash.services.jobs.lookup import known_row, task_with_log
from hpcdash.services.session import ClusterSession
from hpcdash.services.usage.limits import policy_hint
from hpcdash.ui.screen import DashboardScreen, unexpected
from hpcdash.ui.themes import style_name
from hpcdash.ui.view import View
from hpcdash.ui.widgets.cells import (
    ASCII_SIGNS,
    MUTED,
    short_deadline,
    short_instant,
    signs,
    usage_bar,
)
from hpcdash.ui.workers import call_after, start_worker

# The log readers are imported when a log is read.
if TYPE_CHECKING:
    from hpcdash.backends.job_detail import Usage
    from hpcdash.domain.root_cause import RootCause
    from hpcdash.domain.triage import TaskGroup
    from hpcdash.services.metrics.loss_tails import LossTail, LossTails
    from hpcdash.services.usage.waits import WaitTimes

Row = Mapping[str, Any]
# Time for which a row is selected before its data is fetched, and interval at which a growing log
# is read again.
REST_SECONDS = 0.4
READ_EVERY_SECONDS = 5.0
# A log that had to be located is read so much later.
LOCATED_SECONDS = 1.0
# sstat queries a daemon on each of a job's nodes. It is queried in place of a log.
_USAGE_EVERY_SECONDS = 60.0
_CURVE_CELLS = 60
_BAR_CELLS = 10
# A pane of so many lines has a chart in the place of a line of blocks.
_LINES_FOR_CHART = 22
_CHART_LINES = 5
# A pane of so many lines shows the log's path and the submitted command.
_LINES_FOR_FILES = 14
# Logs of at most this many failed tasks, whose paths the list has, are read with the same command;
# at most this many groups are shown.
_MAX_FAILED_LOGS = 8
_MAX_GROUPS = 4

_FIRST_STEPS = (
    ("new", "submit a job: a command or an existing batch script"),
    ("mine", "jobs of all users"),
    ("show_queues", "queues: limits and free resources"),
    ("show_nodes", "nodes and their jobs"),
    ("show_history", "finished jobs: exit status and usage"),
    ("shares", "fair share of your accounts"),
    ("limits", "your limits and usage"),
    ("help", "all keys and commands"),
)


class LogHeading(Static):
    """Heading of the log below: its job and path; a click shows the other of two streams."""

    class Chosen(Message):
        """A stream was clicked on: the path of its file."""

        def __init__(self, path: str) -> None:
            super().__init__()
            self.path = path

    def __init__(self) -> None:
        super().__init__("", id="heading", markup=False)
        self._places: list[tuple[int, int, str]] = []

    def show(self, head: str, files: Sequence[str], shown: str, room: int) -> None:
        """`files` are stdout's and stderr's, or one that has both; `shown` is the one below, whose
        path takes what is left of so many cells.
        """
        line = Content.styled(head, "bold")
        self._places = []
        for name, path in zip(("stdout", "stderr"), files, strict=False) if len(files) > 1 else ():
            line += Content("  ")
            self._places.append((line.cell_length, line.cell_length + len(name), path))
            line += Content.styled(name, "bold underline" if path == shown else "$text-muted")
        gap = "  " if self._places else " "
        if shown and room > line.cell_length + len(gap):
            line += Content(gap + clip_path(visible(shown), room - line.cell_length - len(gap)))
        self.display = bool(line)
        self.update(line)

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        for start, end, path in self._places:
            if at is not None and start <= at.x < end:
                self.post_message(self.Chosen(path))


class JobOverview(Vertical):
    """Overview of one job.

    Nothing is fetched while the cursor moves, and nothing at all for a pending job.
    """

    DEFAULT_CSS = """
    JobOverview { display: none; padding: 0 1; }
    JobOverview > #facts { height: auto; }
    JobOverview > #heading { height: 1; display: none; }
    JobOverview > #log { height: 1fr; scrollbar-size-vertical: 1; }
    JobOverview > #log > Static { height: auto; }
    """

    def __init__(
        self,
        session: ClusterSession,
        now: Callable[[], datetime],
        patterns: Sequence[str] = (),
        *,
        has_facts: bool = True,
    ) -> None:
        """Show the loss, larger, and the log alone unless it `has_facts`."""
        super().__init__(classes="panel")
        self._has_facts = has_facts
        # Held, as a view that is left loses its widgets one by one while requests are answered.
        self._facts, self._log_end = Static("", id="facts", markup=False), Static("", markup=False)
        self._log_heading = LogHeading()
        self._scroll = VerticalScroll(self._log_end, id="log")
        self._session = session
        self._now = now
        self._patterns = patterns
        self._row: Row | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._read_at = float("-inf")
        self._fetching: Worker[Any] | None = None
        # Use by job, None where it was not available, and the time of the query.
        self._usages: dict[str, tuple[Usage | None, float]] = {}
        # Jobs whose log was looked for.
        self._queried: set[str] = set()
        # Of those, whose log was last read while they ran: its last words may be missing.
        self._read_early: set[str] = set()
        # Jobs of these whose log could not be read, which is reported once.
        self._failed: set[str] = set()
        self._shown = ("", "")
        self._showed_training = False
        # Whether the log is another job's than before, which is shown at its end, and how many
        # scrolls to the end are still to come.
        self._is_new_log = True
        self._scrolls_due = 0
        # The file selected in place of the one that shows most.
        self._chosen_file = ""
        # The task of an array whose log is shown, as the lists of these times have it.
        self._known_task: tuple[tuple[object, ...], Row | None] = (), None
        self._failures_known: tuple[tuple[object, ...], tuple[TaskGroup, ...]] = (), ()
        # Waits of jobs like a pending one, and its ID.
        self._waits_known: tuple[str, WaitTimes | None] = "", None

    @cached_property
    def _tails(self) -> LossTails:
        from hpcdash.services.metrics.loss_tails import LossTails
        from hpcdash.ui.jobs.losses import loss_among

        return LossTails(self._session.store, loss_among, self._patterns)

    def compose(self) -> ComposeResult:
        yield self._facts
        yield self._log_heading
        yield self._scroll

    def on_resize(self) -> None:
        self._draw()

    async def on_click(self, event: events.Click) -> None:
        """A double click opens what is clicked on: the log, or the job's page."""
        if event.chain == 2:
            is_log = self._scroll.region.contains(int(event.screen_x), int(event.screen_y))
            await cast("DashboardScreen", self.screen).act("log" if is_log else "open")

    def take_focus(self) -> None:
        """Keys scroll the log."""
        self.screen.set_focus(self._scroll)

    def scroll_log(self, lines: int) -> None:
        self._scroll.scroll_relative(y=lines, animate=False, immediate=True)

    def point_at(self, row: Row | None) -> None:
        """The cursor is on a row (None: on none) now; drawn once it has rested there."""
        if (
            self._row is not None
            and row is not None
            and self._row["id"] == row["id"]
            and self._resting is None
        ):
            self._row = row
            self._draw()
            return
        if row is None or self._row is None or self._row["id"] != row["id"]:
            self._is_new_log = True
        self._row = row
        if self._resting is not None:
            self._resting.cancel()
        self._resting = call_after(self, REST_SECONDS, self._rested)

    @property
    def is_settled(self) -> bool:
        """Whether it shows the row that the cursor is on."""
        return not self.display or self._resting is None

    def tick(self) -> None:
        """A second went by."""
        if self._row is None or self._resting is not None:
            return
        self._draw()
        self._read_failures()
        # The log of a job that has ended is read once, as soon as the pane is seen and commands
        # have room.
        logged = self._logged
        if logged is None:
            return
        is_due = logged["state"] in ACTIVE or self._is_unread(logged)
        # A slow read is not begun again before its end.
        is_reading = self._fetching is not None and not self._fetching.is_finished
        if is_due and not is_reading and time.monotonic() - self._read_at >= READ_EVERY_SECONDS:
            self._start_fetch()

    def _is_unread(self, row: Row) -> bool:
        if row["state"] in WAITING:
            return False
        return row["id"] in self._read_early or (
            self._tail is None and row["id"] not in self._queried
        )

    @property
    def _logged(self) -> Row | None:
        """The job whose log is shown: of an array the first task that failed or that runs, else the
        last that ended.
        """
        row = self._row
        if row is None or not _is_whole_array(row):
            return row
        store = self._session.store
        lists = (*self._list_key(row), self._failures_known)
        if self._known_task[0] != lists:
            failed = [
                member for group in self._failures for member in group.members if member.nodes
            ]
            first = min(failed, key=lambda one: one.tasks.first or 0, default=None)
            job_id = task_with_log(store, str(row["array_id"])) if first is None else first.job_id
            self._known_task = lists, None if job_id is None else known_row(store, job_id)
        return self._known_task[1]

    def _list_key(self, row: Row) -> tuple[object, ...]:
        """An array, and the times of the lists that know its tasks."""
        return (
            str(row["array_id"]),
            *(snapshot.taken_at for snapshot in self._session.store.snapshots.values()),
        )

    @property
    def _failures(self) -> tuple[TaskGroup, ...]:
        """Failed tasks of the array, grouped by cause as far as their logs were read."""
        row = self._row
        is_shown_row = (
            row is not None
            and _is_whole_array(row)
            and self._failures_known[0][:1] == (str(row["array_id"]),)
        )
        return self._failures_known[1] if is_shown_row else ()

    def _read_failures(self) -> None:
        if self._row is not None and _is_whole_array(self._row):
            start_worker(self, self._group_failures, self._row, group="failures", exclusive=True)

    async def _group_failures(self, row: Row) -> None:
        """Regroup the failures where more is known of them than before. Queries nothing."""
        if not _is_whole_array(row):
            return
        from hpcdash.services.jobs.triage import known_failures, lines_read

        store = self._session.store
        array_id = str(row["array_id"])
        known = (*self._list_key(row), len(self._queried), lines_read(store))
        if self._failures_known[0] != known:
            groups = await asyncio.to_thread(known_failures, store, array_id, self._last_lines())
            is_new = groups != self._failures_known[1]
            self._failures_known = known, groups
            if is_new and self.is_attached:
                self._draw()

    def _last_lines(self) -> dict[str, str]:
        from hpcdash.domain.triage import last_meaningful

        texts: dict[str, str] = {}
        for job_id in self._queried:
            tails = self._tails.by_file(job_id).values()
            messages = [
                last_meaningful(tail.lines) for tail in tails if any(map(str.strip, tail.lines))
            ]
            if messages:
                texts[job_id] = messages[-1]
        return texts

    def _unread_failures(self) -> list[Row]:
        """Return failed tasks whose log paths are in the list, which costs no command."""
        store = self._session.store
        ids = [
            member.job_id
            for group in self._failures
            for member in group.members
            if member.line is None
        ]
        rows = (
            known_row(store, job_id)
            for job_id in ids[:_MAX_FAILED_LOGS]
            if job_id not in self._queried
        )
        return [row for row in rows if row is not None and row["stdout_path"]]

    @property
    def _is_seen(self) -> bool:
        return self.display and self.app.app_focus and cast("Widget", self.parent).display

    def _rested(self) -> None:
        self._resting = None
        if self._row is not None and _is_whole_array(self._row):
            # A tick that regroups the failures must not end it.
            start_worker(self, self._rested_on_array, self._row, group="rested", exclusive=True)
        else:
            self._start_reads()

    async def _rested_on_array(self, row: Row) -> None:
        await self._group_failures(row)
        # A poll may have brought the same job as another row.
        is_same = self._row is not None and self._row["id"] == row["id"]
        if is_same and self._resting is None and self.is_attached:
            self._start_reads()

    def _start_reads(self) -> None:
        self._draw()
        logged = self._logged
        if logged is not None and logged["state"] not in WAITING and self._tail is None:
            self._start_fetch()
        if (
            self._row is not None
            and self._row["state"] in WAITING
            and self._waits_known[0] != self._row["id"]
        ):
            start_worker(self, self._recall_waits, self._row, group="waits", exclusive=True)

    async def _recall_waits(self, row: Row) -> None:
        """Uses only what is stored on this machine."""
        from hpcdash.services.jobs.overview import compute_similar_waits

        self._waits_known = str(row["id"]), await compute_similar_waits(self._session.store, row)
        if self._row is not None and self._row["id"] == row["id"] and self.is_attached:
            self._draw()

    def _start_fetch(self) -> None:
        """One command: where the log is, its end, or from time to time what a running job uses."""
        row = self._logged
        if row is None or not self._is_seen:
            return
        self._read_at = time.monotonic()
        _, queried_at = self._usages.get(str(row["id"]), (None, float("-inf")))
        is_read = self._tail is not None and row["state"] == JobState.RUNNING and row is self._row
        is_usage_due = is_read and self._read_at - queried_at >= _USAGE_EVERY_SECONDS
        fetch = self._fetch_usage if is_usage_due else self._read_log
        self._fetching = start_worker(self, fetch, row, group="overview", exclusive=True)

    async def _read_log(self, row: Row) -> None:
        if not (row["stdout_path"] or self._tails.is_located(str(row["id"]))):
            await self._tails.locate(row)
            if (
                self._tails.is_located(str(row["id"]))
                and self._row is not None
                and self.is_attached
            ):
                # Its end is read a second later, if the cursor still rests there.
                self._resting = call_after(self, LOCATED_SECONDS, self._rested)
            return
        try:
            if self._row is not None:
                await self._group_failures(self._row)
            await self._tails.refresh([row, *self._unread_failures()])
        except Exception as error:  # a log may hold anything; it ends nothing
            self._tails.failures[str(row["id"])] = error
        for job_id, failure in self._tails.failures.items():
            if job_id not in self._failed and self.is_attached:
                self._failed.add(job_id)
                self.notify(
                    f"{job_id}: {unexpected(self.app, 'read this', failure).message}", markup=False
                )
        read = self._tails.looked_at | self._tails.failures.keys()
        self._queried |= read
        self._read_early -= read
        if row["state"] in ACTIVE:
            self._read_early.add(str(row["id"]))
        self._draw_again(row)
        self._read_failures()

    async def _fetch_usage(self, row: Row) -> None:
        job_id = str(row["id"])
        store = self._session.store
        before, _ = self._usages.pop(job_id, (None, 0.0))
        self._usages[job_id] = before, time.monotonic()
        query = store.backend.detail.usage(row)
        if query is None:
            return
        if store.budget.wait_seconds() > 0:
            return
        try:
            self._usages[job_id] = await store.run_query(query), time.monotonic()
        except HpcdashError:
            return
        self._draw_again(row)

    def _draw_again(self, row: Row) -> None:
        if (logged := self._logged) is not None and logged["id"] == row["id"] and self.is_attached:
            self._draw()

    @property
    def shows_training(self) -> bool:
        """Whether the log of the job it shows has a loss."""
        tail = self._tail
        return tail is not None and bool(tail.values)

    @property
    def _tail(self) -> LossTail | None:
        """Tail of stdout or stderr, whichever shows more: a failure's cause, else a loss.

        None: not read yet.
        """
        return self._file_shown[1]

    @property
    def _file_shown(self) -> tuple[str, LossTail | None]:
        """The path of that file, and its end; '' and None."""
        row = self._logged
        if row is None or row["id"] not in self._queried:
            return "", None
        state = row["state"]
        tails = self._tails.by_file(str(row["id"]))
        if self._chosen_file in tails:
            return self._chosen_file, tails[self._chosen_file]
        return max(
            tails.items(),
            key=lambda one: (
                _strength(state, one[1]),
                len(one[1].values),
                any(map(str.strip, one[1].lines)),
            ),
            default=("", None),
        )

    def _draw(self) -> None:
        row = self._row
        width = self.size.width
        if not width or not self.is_attached:
            return
        if row is None:
            mine = self._session.store.table(Kind.MINE)
            if mine is not None and not mine.num_rows:
                self._show("First steps", self._first_steps(), Content())
            else:
                self._show("", Content.styled("No job under the cursor", "$text-muted"), Content())
            return
        tail = self._tail
        usage, _ = self._usages.get(str(row["id"]), (None, 0.0))
        has_room = self.size.height >= _LINES_FOR_CHART
        if self._has_facts:
            facts = job_facts(
                self._session, row, self._now(), tail, usage, width=width, has_room=has_room
            )
        else:
            chart_lines = self.size.height // 4 if has_room else 0
            facts = Content() if tail is None else _loss(tail, width, chart_lines=chart_lines)
        shown_id = row["array_id"] if _is_whole_array(row) else row["id"]
        title = f"{shown_id} {clip(visible(str(row['name'] or '')), max(10, width - 30))}"
        log = self._log_content(self._logged or row, tail, width)
        parts = [facts] if facts else []
        if self._has_facts:
            parts += self._waits_line(row, width)
            parts += self._array_lines(width) if _is_whole_array(row) else []
            parts += self._command_line(width)
        self._show(title, Content("\n").join(parts), log)
        self._show_heading(row)
        if self.shows_training != self._showed_training:
            self._showed_training = self.shows_training
            # The key line offers switches to a training.
            self.post_message(View.CrumbsChanged())

    def _first_steps(self) -> Content:
        """Return the keys for somebody who has no jobs."""
        key_label = cast("DashboardScreen", self.screen).key_label
        known = [(key_label(name), text) for name, text in _FIRST_STEPS]
        width = max(len(key) for key, _ in known)
        return Content("\n").join(
            Content.assemble((f"{key:>{width}}", "bold"), f"  {text}") for key, text in known if key
        )

    def _array_lines(self, width: int) -> list[Content]:
        """Return the lines on an array: its failed tasks by cause, and the keys that show more."""
        groups = self._failures
        lines = [_group_line(group, width) for group in groups[:_MAX_GROUPS]]
        if len(groups) > _MAX_GROUPS:
            lines.append(
                Content.styled(f"and {len(groups) - _MAX_GROUPS} more causes", "$text-muted")
            )
        return [*lines, self._array_keys()]

    def _waits_line(self, row: Row, width: int) -> list[Content]:
        """Return how long jobs like a pending one waited, where enough of them are known."""
        job_id, waits = self._waits_known
        if waits is None or job_id != row["id"] or row["state"] not in WAITING:
            return []
        if self._session.store.backend.reasons.never_starts(row["state"], row["reason"]):
            return []
        return [
            Content.assemble(
                ("jobs like it ", "$text-muted"), clip(visible(str(waits)), max(20, width - 15))
            )
        ]

    def _command_line(self, width: int) -> list[Content]:
        """Return the submitted command, where it is known and the pane is high enough for it."""
        task = self._logged
        command = (
            self._command_text(task)
            if task is not None and self.size.height >= _LINES_FOR_FILES
            else ""
        )
        text = clip(visible(command), max(20, width - 10))
        return [Content.assemble(("command ", "$text-muted"), text)] if text else []

    def _show_heading(self, row: Row) -> None:
        """Above the end of the log whose it is and where: in a low pane only of an array, or of two
        streams.
        """
        task, (path, _), is_whole = self._logged, self._file_shown, _is_whole_array(row)
        has_room = self.size.height >= _LINES_FOR_FILES
        files = () if task is None else self._tails.files(str(task["id"]))
        if task is None or not (is_whole or (path and (has_room or len(files) > 1))):
            head = ""
            path = ""
            files = ()
        else:
            head = f"Log of {visible(str(task['id']))}" if is_whole else "Log"
        self._log_heading.show(
            head, files if path else (), path, self.size.width if has_room else 0
        )

    def on_log_heading_chosen(self, event: LogHeading.Chosen) -> None:
        event.stop()
        self._chosen_file = event.path
        self._draw()

    def _command_text(self, row: Row) -> str:
        """Return the command that submitted a job, else its script's file; '' where unknown."""
        detail = self._tails.details.get(str(row["id"]))
        backend = self._session.store.backend
        if detail is None:
            return ""
        return (
            backend.detail.submit_line(detail.native)
            or backend.scripts.submitted_file(detail)
            or ""
        )

    def _array_keys(self) -> Content:
        """Return the keys that show an array's tasks and their failures."""
        key_label = cast("DashboardScreen", self.screen).key_label
        known = (
            ("fold", "fold or unfold arrays"),
            ("triage", "group failures by cause"),
            ("detail", "full details"),
        )
        keys = [
            Content.assemble((key_label(name), "bold"), f" {text}")
            for name, text in known
            if key_label(name)
        ]
        return Content.styled(" · ", "$text-muted").join(keys)

    def _log_content(self, row: Row, tail: LossTail | None, width: int) -> Content:
        if row["state"] in WAITING:
            return Content()
        if tail is None:
            is_querying = row["id"] not in self._queried
            text = "Reading its log …" if self._is_seen else ""
            if is_querying:
                return Content.styled(text, "$text-muted")
            is_discarded = self._tails.is_discarded(str(row["id"]))
            message = (
                "Its output goes to /dev/null" if is_discarded else "Its log could not be read"
            )
            return Content.styled(message, "$text-muted")
        lines = [line for line in tail.lines if line.strip()]
        if not lines:
            return Content.styled("Its log is empty", "$text-muted")
        return Content("\n").join(Content(clip(line, max(20, width - 2))) for line in lines)

    def _show(self, title: str, facts: Content, log: Content) -> None:
        if (facts.markup, log.markup) == self._shown and self.border_title == title:
            return
        self._shown = facts.markup, log.markup
        self.border_title = Content(title)
        self._facts.update(facts)
        # A scroll to the end comes after the next layout; until then the end is further down.
        is_at_end = self._scroll.scroll_offset.y >= self._scroll.max_scroll_y
        self._log_end.update(log)
        if self._is_new_log or self._scrolls_due or is_at_end:
            self._is_new_log = False
            self._scrolls_due += 1
            self._scroll.scroll_end(animate=False, on_complete=self._scrolled)

    def _scrolled(self) -> None:
        self._scrolls_due -= 1


def _is_whole_array(row: Row) -> bool:
    return bool(row.get("_states"))


def _group_line(group: TaskGroup, width: int) -> Content:
    """`✗ 3 failed, exit 1 · tasks 3,7-8 · most on n03 · ValueError: batch of 7`."""
    ending = format_exit(group.state, group.exit_code, group.exit_signal).partition(":")[0]
    reported = f", {ending}" if group.state == JobState.FAILED and ending else ""
    sign = signs().states.get(group.state, "?")
    parts = [f"{'tasks' if group.count > 1 else 'task'} {clip(str(group.tasks), 24)}"]
    if group.node:
        parts.append(f"{group.on_node} on {visible(group.node)}")
    head = f"{sign} {group.count} {state_word(group.state)}{reported}"
    rest = " · ".join(["", *parts, *([visible(group.line)] if group.line else [])])
    return Content.assemble(
        (head, f"$state-{style_name(group.state)}"), clip(rest, max(10, width - len(head) - 2))
    )


def job_facts(
    session: ClusterSession,
    row: Row,
    now: datetime,
    tail: LossTail | None,
    usage: Usage | None,
    *,
    width: int,
    has_room: bool,
) -> Content:
    """State and time, what it has and uses, why it waits or how it ended, its loss.

    `width` is in cells.
    """
    lines = [_state_line(session, row, now, width), _resources(row), _reason(session, row)]
    if row.get("note"):
        lines.append(Content.assemble(("note: ", "$text-muted"), visible(str(row["note"]))))
    if usage is not None and row["state"] == JobState.RUNNING:
        lines.append(_usage(usage, row))
    if tail is not None:
        # For an array the groups of its failures show the reason.
        lines += [
            _loss(tail, width, chart_lines=_CHART_LINES if has_room else 0),
            Content() if _is_whole_array(row) else _cause(row, tail),
        ]
    return Content("\n").join(line for line in lines if line)


def _state_line(session: ClusterSession, row: Row, now: datetime, width: int) -> Content:
    state = str(row["state"])
    parts = [
        Content.styled(
            f"{signs().states.get(state, '?')} {state_word(state)}", f"$state-{style_name(state)}"
        )
    ]
    elapsed = row["elapsed_seconds"]
    limit = row["limit_seconds"]
    if _is_whole_array(row):
        parts = [Content(str(row["_states"]))]
    elif state in ACTIVE and elapsed is not None:
        if limit:
            parts.append(
                Content(f"{format_span(elapsed)} of {format_span(limit)} ") + _bar(elapsed / limit)
            )
        else:
            parts.append(Content(f"for {format_span(elapsed)}"))
        if row["ends_at"] is not None and state != JobState.SUSPENDED:
            parts.append(Content(f"ends by {short_deadline(row['ends_at'], now, session.zone)}"))
    elif state in WAITING:
        if row["submitted_at"] is not None:
            parts.append(Content(f"for {format_span((now - row['submitted_at']).total_seconds())}"))
        if row["_expected_start_at"] is not None:
            ahead = (row["_expected_start_at"] - now).total_seconds()
            when = short_instant(row["_expected_start_at"], now, session.zone)
            soon = f", in {format_duration(ahead)}" if ahead > 0 else ""
            parts.append(
                Content(f"may start {when}{soon} ({session.store.backend.title}'s estimate)")
            )
    elif state in ENDED:
        parts += [Content(visible(text)) for text in [format_end(row)] if text]
        if elapsed:
            parts.append(Content(f"after {format_span(elapsed)}"))
    line = Content(" · ").join(parts)
    if line.cell_length > width and len(parts) > 1:
        return Content("\n").join([Content(" · ").join(parts[:-1]), parts[-1]])
    return line


def _bar(share: float) -> Content:
    pieces = usage_bar(min(max(share, 0.0), 1.0), _BAR_CELLS)
    return Content.assemble(
        *((text, "$text-muted" if style == MUTED else "$primary") for text, style in pieces)
    )


def _resources(row: Row) -> Content:
    amounts = [
        f"{row[key]} {unit if row[key] == 1 else unit + 's'}"
        for key, unit in (("nodes", "node"), ("gpus", "GPU"), ("cpus", "CPU"))
        if row[key]
    ]
    if row["memory_bytes"]:
        amounts.append(format_memory(row["memory_bytes"]))
    parts = [str(row["queue"] or ""), ", ".join(amounts), str(row["node_list"] or "")]
    return Content.styled(" · ".join(visible(part) for part in parts if part), "$text-muted")


def _reason(session: ClusterSession, row: Row) -> Content:
    """Return why a job waits, or the meaning of the scheduler's reason."""
    explained = session.store.backend.reasons.explain(row)
    if row["state"] not in WAITING:
        return Content(visible(explained)) if explained else Content()
    parts = [explained or str(row["reason"] or "")]
    if row["dependency"]:
        parts.append(f"after {row['dependency']}")
    if policy := policy_hint(session.store, row):
        parts.append(policy)
    return Content(visible(" · ".join(part for part in parts if part)))


def _usage(usage: Usage, row: Row) -> Content:
    from hpcdash.domain.efficiency import NOT_ACCOUNTED, meters

    parts = [
        Content.styled(f"{meter.label} ", "$text-muted")
        + Content(visible(meter.text))
        + (Content(" ") + _bar(meter.fraction) if meter.fraction is not None else Content())
        for meter in meters(usage, row["nodes"])
        if meter.text != NOT_ACCOUNTED
    ]
    return Content(" · ").join(parts)


def _loss(tail: LossTail, width: int, *, chart_lines: int) -> Content:
    """`loss ▇▅▄▃▂▁ 2.313`, or its curve in so many lines."""
    if not tail.values:
        return Content()
    from hpcdash.ui.jobs.losses import format_value, sparkline

    is_ascii = signs() is ASCII_SIGNS
    newest = tail.values[-1]
    name = (f"{clip(visible(tail.name), 20)} ", "$text-muted")
    value = (f"{format_value(newest)}", "" if isfinite(newest) else "$text-error")
    if chart_lines and len(tail.values) > 2:
        return Content.assemble(name, value, "\n") + _curve(tail.values, width, chart_lines)
    blocks = "".join(
        sparkline(tail.values, min(_CURVE_CELLS, max(8, width - 40)), is_ascii=is_ascii)
    )
    return Content.assemble(name, (blocks, "$text-accent"), " ", value)


def _curve(values: Sequence[float], width: int, lines: int) -> Content:
    """Draw values with the largest and the smallest at the left."""
    from hpcdash.services.metrics.charts.draw import small_curve
    from hpcdash.ui.jobs.losses import format_value

    finite = [value for value in values if isfinite(value)]
    label = max((len(format_value(value)) for value in finite), default=0) + 1
    is_ascii = signs() is ASCII_SIGNS
    curve = small_curve(values, max(10, width - label - 2), lines, is_ascii=is_ascii)
    ends = {0: curve.high, len(curve.lines) - 1: curve.low}
    return Content("\n").join(
        Content.assemble(
            (f"{format_value(ends[number]) if number in ends else '':>{label - 1}} ", "$table-dim"),
            (line, "$text-accent"),
        )
        for number, line in enumerate(curve.lines)
    )


def _root_cause(state: str, tail: LossTail) -> RootCause | None:
    from hpcdash.domain.root_cause import root_cause
    from hpcdash.services.jobs.failures import FAILED

    return root_cause(tail.lines) if state in FAILED else None


def _cause(row: Row, tail: LossTail) -> Content:
    """Return the cause of a job's failure in its log; empty without a clear one.

    The last line of the log is shown below anyway.
    """
    from hpcdash.domain.root_cause import Strength

    cause = _root_cause(row["state"], tail)
    explains = cause is not None and cause.strength > Strength.WORDS
    return (
        Content.styled(cause.text, "$text-error") if cause is not None and explains else Content()
    )


def _strength(state: str, tail: LossTail) -> int:
    cause = _root_cause(state, tail)
    return 0 if cause is None else cause.strength
