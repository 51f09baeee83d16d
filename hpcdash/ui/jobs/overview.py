"""Overview of the job under the cursor: its reason to wait, usage, loss and last log lines."""

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
from textual.worker import Worker

from hpcdash.domain.job_text import format_end, format_exit, state_word
from hpcdash.domain.states import ACTIVE, ENDED, WAITING, JobState
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, clip_path, counted, visible
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
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.workers import call_after, start_worker

# The log readers are imported when a log is read.
if TYPE_CHECKING:
    from hpcdash.backends.job_detail import Usage
    from hpcdash.domain.root_cause import RootCause
    from hpcdash.domain.triage import TaskGroup
    from hpcdash.services.metrics.loss_tails import LossTail, LossTails
    from hpcdash.services.usage.waits import WaitTimes

Row = Mapping[str, Any]
# Data is fetched once the cursor has rested on a row this long.
REST_SECONDS = 0.4
# Interval at which a growing log is read.
READ_EVERY_SECONDS = 5.0
# Pause between locating a log and reading it.
LOCATED_SECONDS = 1.0
# sstat queries a daemon on each of a job's nodes. It replaces a read of the log.
_USAGE_EVERY_SECONDS = 60.0
_CURVE_CELLS = 60
_BAR_CELLS = 10
# Minimum height for a chart in place of a line of blocks.
_LINES_FOR_CHART = 22
_CHART_LINES = 5
# Minimum height for the log's path and the submitted command.
_LINES_FOR_FILES = 14
# Logs of failed tasks with known paths that are read with the same command.
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


class LogHeading(PlainStatic):
    """Heading of the log below: its job, streams and path; a click on a stream shows it."""

    class Chosen(Message):
        """Posted for a click on a stream, with the path of its file."""

        def __init__(self, path: str) -> None:
            super().__init__()
            self.path = path

    def __init__(self) -> None:
        super().__init__(id="heading")
        self._places: list[tuple[int, int, str]] = []

    def show(self, head: str, files: Sequence[str], shown: str, room: int) -> None:
        """Show the heading in `room` cells.

        `files` are the paths of stdout and stderr, or one for both; `shown` is that of the log
        below.
        """
        line = Content.styled(head, "bold")
        self._places = []
        if len(files) > 1:
            for name, path in zip(("stdout", "stderr"), files, strict=False):
                line += Content("  ")
                self._places.append((line.cell_length, line.cell_length + len(name), path))
                line += Content.styled(name, "bold underline" if path == shown else "$text-muted")
        gap = "  " if self._places else " "
        left = room - line.cell_length - len(gap)
        if shown and left > 0:
            line += Content(gap + clip_path(visible(shown), left))
        self.display = bool(line)
        self.update(line)

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        for start, end, path in self._places:
            if at is not None and start <= at.x < end:
                self.post_message(self.Chosen(path))


class LogScroll(VerticalScroll):
    """End of a log; it stays at the end until the user scrolls up."""

    def on_mount(self) -> None:
        self.anchor()

    def on_resize(self) -> None:
        # An anchor is placed by the size before.
        if not self._anchor_released:
            self.scroll_end(animate=False, immediate=True)


class JobOverview(Vertical):
    """Overview of one job. Fetches nothing while the cursor moves, and nothing of a pending job."""

    DEFAULT_CSS = """
    JobOverview { display: none; padding: 0 1; }
    JobOverview > #facts { height: auto; }
    JobOverview > #heading { height: 1; display: none; }
    JobOverview > #log { height: 1fr; scrollbar-size-vertical: 1; }
    JobOverview > #log > PlainStatic { height: auto; min-height: 100%; }
    """

    def __init__(
        self,
        session: ClusterSession,
        now: Callable[[], datetime],
        patterns: Sequence[str] = (),
        *,
        has_facts: bool = True,
    ) -> None:
        """Show the facts, the loss and the log; unless it `has_facts`, only a larger chart of the loss, and the log."""
        super().__init__(classes="panel")
        self._has_facts = has_facts
        # Attributes, as a closing view loses its widgets one by one while queries are answered.
        self._facts = PlainStatic(id="facts")
        self._log_end = PlainStatic()
        self._log_heading = LogHeading()
        self._scroll = LogScroll(self._log_end, id="log")
        self._session = session
        self._now = now
        self._patterns = patterns
        self._row: Row | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._read_at = float("-inf")
        self._fetching: Worker[Any] | None = None
        # Usage by job, None if it is unavailable, and the time of the query.
        self._usages: dict[str, tuple[Usage | None, float]] = {}
        # Jobs whose log was located and read, as far as possible.
        self._queried: set[str] = set()
        # Jobs that were running when their log was read: the last lines may be missing.
        self._read_early: set[str] = set()
        # Jobs with an unreadable log, which is reported once.
        self._failed: set[str] = set()
        self._shown = ("", "")
        self._showed_training = False
        # The stream selected with a click.
        self._chosen_file = ""
        # The task whose log represents the array, with the key of the lists it was found in.
        self._known_task: tuple[tuple[object, ...], Row | None] = ((), None)
        self._failures_known: tuple[tuple[object, ...], tuple[TaskGroup, ...]] = ((), ())
        # ID of a pending job, and the waits of similar jobs.
        self._waits_known: tuple[str, WaitTimes | None] = ("", None)

    @cached_property
    def _tails(self) -> LossTails:
        from hpcdash.services.metrics.loss_tails import LossTails
        from hpcdash.ui.jobs.row_logs import loss_among

        return LossTails(self._session.store, loss_among, self._patterns)

    def compose(self) -> ComposeResult:
        yield self._facts
        yield self._log_heading
        yield self._scroll

    def on_resize(self) -> None:
        self._draw()

    async def on_click(self, event: events.Click) -> None:
        """Open the log or the job's page with a double click."""
        if event.chain == 2:
            is_log = self._scroll.region.contains(int(event.screen_x), int(event.screen_y))
            await cast("DashboardScreen", self.screen).act("log" if is_log else "open")

    def take_focus(self) -> None:
        """Focus the log, so that keys scroll it."""
        self.screen.set_focus(self._scroll)

    def scroll_log(self, lines: int) -> None:
        self._scroll.scroll_relative(y=lines, animate=False, immediate=True)

    def point_at(self, row: Row | None) -> None:
        """Set the row under the cursor; a new job is drawn once the cursor has rested on it."""
        is_same = self._row is not None and row is not None and self._row["id"] == row["id"]
        self._row = row
        if is_same and self._resting is None:
            self._draw()
            return
        if not is_same:
            self._scroll.anchor()
        if self._resting is not None:
            self._resting.cancel()
        self._resting = call_after(self, REST_SECONDS, self._rested)

    @property
    def is_settled(self) -> bool:
        """Whether it shows the row under the cursor."""
        return not self.display or self._resting is None

    def tick(self) -> None:
        """Refresh once a second: draw, and read a growing or unread log if it is due."""
        if self._row is None or self._resting is not None:
            return
        self._draw()
        self._read_failures()
        logged = self._logged
        if logged is None:
            return
        is_due = logged["state"] in ACTIVE
        if logged["state"] not in WAITING and not is_due:
            # The log of a finished job is read once.
            is_unread = self._tail is None and logged["id"] not in self._queried
            is_due = is_unread or logged["id"] in self._read_early
        is_reading = self._fetching is not None and not self._fetching.is_finished
        if is_due and not is_reading and time.monotonic() - self._read_at >= READ_EVERY_SECONDS:
            self._start_fetch()

    @property
    def _logged(self) -> Row | None:
        """Row of the job whose log is shown.

        For an array that is the first failed task, else the first that runs, else the last that
        ended.
        """
        row = self._row
        if row is None or not _is_whole_array(row):
            return row
        store = self._session.store
        key = (*self._list_key(row), self._failures_known)
        if self._known_task[0] != key:
            members = [member for group in self._failures for member in group.members]
            failed = [member for member in members if member.nodes]
            if failed:
                job_id: str | None = min(failed, key=lambda one: one.tasks.first or 0).job_id
            else:
                job_id = task_with_log(store, str(row["array_id"]))
            task = None if job_id is None else known_row(store, job_id)
            self._known_task = (key, task)
        return self._known_task[1]

    def _list_key(self, row: Row) -> tuple[object, ...]:
        """Return an array's ID, and the times of the store's lists."""
        times = [snapshot.taken_at for snapshot in self._session.store.snapshots.values()]
        return (str(row["array_id"]), *times)

    @property
    def _failures(self) -> tuple[TaskGroup, ...]:
        """Failed tasks of the array, grouped by cause as far as their logs were read."""
        if self._row is None or not _is_whole_array(self._row):
            return ()
        key, groups = self._failures_known
        return groups if key[:1] == (str(self._row["array_id"]),) else ()

    def _read_failures(self) -> None:
        if self._row is not None and _is_whole_array(self._row):
            start_worker(self, self._group_failures, self._row, group="failures", exclusive=True)

    async def _group_failures(self, row: Row) -> None:
        """Group the failures again if there is new data on them. Queries nothing."""
        if not _is_whole_array(row):
            return
        from hpcdash.services.jobs.triage import known_failures, lines_read

        store = self._session.store
        array_id = str(row["array_id"])
        known = (*self._list_key(row), len(self._queried), lines_read(store))
        if self._failures_known[0] != known:
            groups = await asyncio.to_thread(known_failures, store, array_id, self._last_lines())
            is_new = groups != self._failures_known[1]
            self._failures_known = (known, groups)
            if is_new and self.is_attached:
                self._draw()

    def _last_lines(self) -> dict[str, str]:
        from hpcdash.domain.triage import last_meaningful

        texts: dict[str, str] = {}
        for job_id in self._queried:
            for tail in self._tails.by_file(job_id).values():
                if any(map(str.strip, tail.lines)):
                    texts[job_id] = last_meaningful(tail.lines)
        return texts

    def _unread_failures(self) -> list[Row]:
        """Return failed tasks with an unread log whose path is in the list."""
        members = [member for group in self._failures for member in group.members]
        unread = [member.job_id for member in members if member.line is None]
        rows: list[Row] = []
        for job_id in unread[:_MAX_FAILED_LOGS]:
            row = None if job_id in self._queried else known_row(self._session.store, job_id)
            if row is not None and row["stdout_path"]:
                rows.append(row)
        return rows

    @property
    def _is_seen(self) -> bool:
        return self.display and self.app.app_focus and cast("Widget", self.parent).display

    def _rested(self) -> None:
        self._resting = None
        if self._row is not None and _is_whole_array(self._row):
            # In a group of its own, so that a tick does not cancel it.
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
        row = self._row
        if row is not None and row["state"] in WAITING and self._waits_known[0] != row["id"]:
            start_worker(self, self._compute_waits, row, group="waits", exclusive=True)

    async def _compute_waits(self, row: Row) -> None:
        from hpcdash.services.jobs.overview import compute_similar_waits

        waits = await compute_similar_waits(self._session.store, row)
        self._waits_known = (str(row["id"]), waits)
        if self._row is not None and self._row["id"] == row["id"] and self.is_attached:
            self._draw()

    def _start_fetch(self) -> None:
        """Run one command: locate the log, read its end, or query a running job's usage."""
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
        job_id = str(row["id"])
        if not (row["stdout_path"] or self._tails.is_located(job_id)):
            await self._tails.locate(row)
            if self._tails.is_located(job_id) and self._row is not None and self.is_attached:
                # The log is read a second later, if the cursor still rests on the job.
                self._resting = call_after(self, LOCATED_SECONDS, self._rested)
            return
        try:
            if self._row is not None:
                await self._group_failures(self._row)
            await self._tails.refresh([row, *self._unread_failures()])
        except Exception as error:  # a log may contain anything
            self._tails.failures[job_id] = error
        for failed_id, failure in self._tails.failures.items():
            if failed_id not in self._failed and self.is_attached:
                self._failed.add(failed_id)
                message = unexpected(self.app, "read this", failure).message
                self.notify(f"{failed_id}: {message}")
        read = self._tails.looked_at | self._tails.failures.keys()
        self._queried |= read
        self._read_early -= read
        if row["state"] in ACTIVE:
            self._read_early.add(job_id)
        self._draw_again(row)
        self._read_failures()

    async def _fetch_usage(self, row: Row) -> None:
        job_id = str(row["id"])
        store = self._session.store
        before, _ = self._usages.pop(job_id, (None, 0.0))
        self._usages[job_id] = (before, time.monotonic())
        query = store.backend.detail.usage(row)
        if query is None or store.budget.wait_seconds() > 0:
            return
        try:
            usage = await store.run_query(query)
        except HpcdashError:
            return
        self._usages[job_id] = (usage, time.monotonic())
        self._draw_again(row)

    def _draw_again(self, row: Row) -> None:
        if (logged := self._logged) is not None and logged["id"] == row["id"] and self.is_attached:
            self._draw()

    @property
    def shows_training(self) -> bool:
        """Whether the job's log has a loss."""
        tail = self._tail
        return tail is not None and bool(tail.values)

    @property
    def _tail(self) -> LossTail | None:
        """Tail of the log that is shown; None if it was not read."""
        return self._file_shown[1]

    @property
    def _file_shown(self) -> tuple[str, LossTail | None]:
        """Path and tail of stdout or stderr; ('', None) if they were not read.

        The stream that was clicked on, else the one that shows a failure's cause, else a loss.
        """
        row = self._logged
        if row is None or row["id"] not in self._queried:
            return "", None
        tails = self._tails.by_file(str(row["id"]))
        if self._chosen_file in tails:
            return self._chosen_file, tails[self._chosen_file]

        def rank(path: str) -> tuple[int, int, bool]:
            tail = tails[path]
            cause = _root_cause(row["state"], tail)
            has_text = any(map(str.strip, tail.lines))
            return 0 if cause is None else cause.strength, len(tail.values), has_text

        path = max(tails, key=rank, default="")
        return path, tails.get(path)

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
        is_array = _is_whole_array(row)
        parts = []
        if self._has_facts:
            facts = job_facts(
                self._session, row, self._now(), tail, usage, width=width, has_room=has_room
            )
            parts += [facts, self._waits_line(row, width)]
            if is_array:
                parts += self._array_lines(width)
            parts.append(self._command_line(width))
        elif tail is not None:
            chart_lines = self.size.height // 4 if has_room else 0
            parts.append(_loss(tail, width, chart_lines=chart_lines))
        shown_id = row["array_id"] if is_array else row["id"]
        title = f"{shown_id} {clip(visible(str(row['name'] or '')), max(10, width - 30))}"
        log = self._log_content(self._logged or row, tail, width)
        self._show(title, Content("\n").join(part for part in parts if part), log)
        self._show_heading(row)
        if self.shows_training != self._showed_training:
            self._showed_training = self.shows_training
            # The key line offers switches for a training.
            self.post_message(View.CrumbsChanged())

    def _first_steps(self) -> Content:
        """Return the keys for a user without jobs."""
        key_label = cast("DashboardScreen", self.screen).key_label
        keys = [(key_label(name), text) for name, text in _FIRST_STEPS]
        width = max(len(key) for key, _ in keys)
        lines = []
        for key, text in keys:
            if key:
                lines.append(Content.assemble((f"{key:>{width}}", "bold"), f"  {text}"))
        return Content("\n").join(lines)

    def _array_lines(self, width: int) -> list[Content]:
        """Return an array's failed tasks by cause, and the keys that show more."""
        groups = self._failures
        lines = [_group_line(group, width) for group in groups[:_MAX_GROUPS]]
        if (left := len(groups) - _MAX_GROUPS) > 0:
            lines.append(Content.styled(f"and {left} more causes", "$text-muted"))
        return [*lines, self._array_keys()]

    def _waits_line(self, row: Row, width: int) -> Content:
        """Return how long jobs similar to a pending one waited; empty if unknown."""
        job_id, waits = self._waits_known
        if waits is None or job_id != row["id"] or row["state"] not in WAITING:
            return Content()
        if self._session.store.backend.reasons.never_starts(row["state"], row["reason"]):
            return Content()
        text = clip(visible(str(waits)), max(20, width - 15))
        return Content.assemble(("similar jobs ", "$text-muted"), text)

    def _command_line(self, width: int) -> Content:
        """Return the submitted command; empty if it is unknown or the pane is too low."""
        task = self._logged
        if task is None or self.size.height < _LINES_FOR_FILES:
            return Content()
        text = clip(visible(self._command_text(task)), max(20, width - 10))
        return Content.assemble(("command ", "$text-muted"), text) if text else Content()

    def _show_heading(self, row: Row) -> None:
        """Show the job and the path of the log; in a low pane only for an array or two streams."""
        task = self._logged
        is_array = _is_whole_array(row)
        has_room = self.size.height >= _LINES_FOR_FILES
        head = ""
        path = ""
        files: Sequence[str] = ()
        if task is not None:
            path, _ = self._file_shown
            if path:
                files = self._tails.files(str(task["id"]))
            if is_array:
                head = f"Log of {visible(str(task['id']))}"
            elif path and (has_room or len(files) > 1):
                head = "Log"
            else:
                path = ""
                files = ()
        self._log_heading.show(head, files, path, self.size.width if has_room else 0)

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
        texts = {
            "fold": "fold or unfold arrays",
            "triage": "group failures by cause",
            "detail": "full details",
        }
        keys = []
        for name, text in texts.items():
            if label := key_label(name):
                keys.append(Content.assemble((label, "bold"), f" {text}"))
        return Content.styled(" · ", "$text-muted").join(keys)

    def _log_content(self, row: Row, tail: LossTail | None, width: int) -> Content:
        if row["state"] in WAITING:
            return Content()
        if tail is None:
            if row["id"] not in self._queried:
                text = "Reading the log …" if self._is_seen else ""
            elif self._tails.is_discarded(str(row["id"])):
                text = "Output goes to /dev/null"
            else:
                text = "Could not read the log"
            return Content.styled(text, "$text-muted")
        lines = [line for line in tail.lines if line.strip()]
        if not lines:
            return Content.styled("The log is empty", "$text-muted")
        return Content("\n").join(Content(clip(line, max(20, width - 2))) for line in lines)

    def _show(self, title: str, facts: Content, log: Content) -> None:
        if (facts.markup, log.markup) == self._shown and self.border_title == title:
            return
        self._shown = facts.markup, log.markup
        self.border_title = Content(title)
        self._facts.update(facts)
        self._log_end.update(log)


def _is_whole_array(row: Row) -> bool:
    return bool(row.get("_states"))


def _group_line(group: TaskGroup, width: int) -> Content:
    """Draw a group: `✗ 3 failed, exit 1 · tasks 3,7-8 · 2 on n03 · ValueError: batch of 7`."""
    head = f"{signs().states.get(group.state, '?')} {group.count} {state_word(group.state)}"
    ending = format_exit(group.state, group.exit_code, group.exit_signal).partition(":")[0]
    if group.state == JobState.FAILED and ending:
        head = f"{head}, {ending}"
    text = f" · {'tasks' if group.count > 1 else 'task'} {clip(str(group.tasks), 24)}"
    if group.node:
        text += f" · {group.on_node} on {visible(group.node)}"
    if group.line:
        text += f" · {visible(group.line)}"
    text = clip(text, max(10, width - len(head) - 2))
    return Content.assemble((head, f"$state-{style_name(group.state)}"), text)


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
    """Draw a job's state, times, resources, reason or end, usage and loss in `width` cells."""
    lines = [_state_line(session, row, now, width), _resources(row), _reason(session, row)]
    if row.get("note"):
        lines.append(Content.assemble(("note: ", "$text-muted"), visible(str(row["note"]))))
    if usage is not None and row["state"] == JobState.RUNNING:
        lines.append(_usage(usage, row))
    if tail is not None:
        lines.append(_loss(tail, width, chart_lines=_CHART_LINES if has_room else 0))
        # The groups of an array's failures show their causes.
        if not _is_whole_array(row):
            lines.append(_cause(row, tail))
    return Content("\n").join(line for line in lines if line)


def _state_line(session: ClusterSession, row: Row, now: datetime, width: int) -> Content:
    state = str(row["state"])
    if _is_whole_array(row):
        return Content(str(row["_states"]))
    text = f"{signs().states.get(state, '?')} {state_word(state)}"
    parts = [Content.styled(text, f"$state-{style_name(state)}")]
    elapsed = row["elapsed_seconds"]
    limit = row["limit_seconds"]
    if state in ACTIVE and elapsed is not None:
        if limit:
            bar = _bar(elapsed / limit)
            parts.append(Content(f"{format_span(elapsed)} of {format_span(limit)} ") + bar)
        else:
            parts.append(Content(f"for {format_span(elapsed)}"))
        if row["ends_at"] is not None and state != JobState.SUSPENDED:
            parts.append(Content(f"ends by {short_deadline(row['ends_at'], now, session.zone)}"))
    elif state in WAITING:
        if row["submitted_at"] is not None:
            waited = (now - row["submitted_at"]).total_seconds()
            parts.append(Content(f"for {format_span(waited)}"))
        if (expected := row["_expected_start_at"]) is not None:
            ahead = (expected - now).total_seconds()
            when = short_instant(expected, now, session.zone)
            if ahead > 0:
                when = f"{when}, in {format_duration(ahead)}"
            parts.append(Content(f"may start {when} ({session.store.backend.title}'s estimate)"))
    elif state in ENDED:
        if ending := format_end(row):
            parts.append(Content(visible(ending)))
        if elapsed:
            parts.append(Content(f"after {format_span(elapsed)}"))
    line = Content(" · ").join(parts)
    if line.cell_length > width and len(parts) > 1:
        return Content("\n").join([Content(" · ").join(parts[:-1]), parts[-1]])
    return line


def _bar(share: float) -> Content:
    bar = Content()
    for text, style in usage_bar(min(max(share, 0.0), 1.0), _BAR_CELLS):
        bar += Content.styled(text, "$text-muted" if style == MUTED else "$primary")
    return bar


def _resources(row: Row) -> Content:
    units = {"nodes": "node", "gpus": "GPU", "cpus": "CPU"}
    amounts = [counted(row[key], unit) for key, unit in units.items() if row[key]]
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

    parts = []
    for meter in meters(usage, row["nodes"]):
        if meter.text != NOT_ACCOUNTED:
            part = Content.assemble((f"{meter.label} ", "$text-muted"), visible(meter.text))
            if meter.fraction is not None:
                part += Content(" ") + _bar(meter.fraction)
            parts.append(part)
    return Content(" · ").join(parts)


def _loss(tail: LossTail, width: int, *, chart_lines: int) -> Content:
    """Draw the loss: `loss ▇▅▄▃▂▁ 2.313`, or a curve of `chart_lines` lines."""
    if not tail.values:
        return Content()
    from hpcdash.ui.jobs.row_logs import format_value, sparkline

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
    from hpcdash.ui.jobs.row_logs import format_value

    finite = [value for value in values if isfinite(value)]
    label = max((len(format_value(value)) for value in finite), default=0) + 1
    is_ascii = signs() is ASCII_SIGNS
    curve = small_curve(values, max(10, width - label - 2), lines, is_ascii=is_ascii)
    ends = {0: curve.high, len(curve.lines) - 1: curve.low}
    drawn = []
    for number, line in enumerate(curve.lines):
        value = format_value(ends[number]) if number in ends else ""
        scale = (f"{value:>{label - 1}} ", "$table-dim")
        drawn.append(Content.assemble(scale, (line, "$text-accent")))
    return Content("\n").join(drawn)


def _root_cause(state: str, tail: LossTail) -> RootCause | None:
    from hpcdash.domain.root_cause import root_cause
    from hpcdash.services.jobs.failures import FAILED

    return root_cause(tail.lines) if state in FAILED else None


def _cause(row: Row, tail: LossTail) -> Content:
    """Return a job's failure according to its log; empty if only the last line is known."""
    from hpcdash.domain.root_cause import Strength

    cause = _root_cause(row["state"], tail)
    if cause is None or cause.strength <= Strength.WORDS:
        return Content()
    return Content.styled(cause.text, "$text-error")
