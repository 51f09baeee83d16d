"""`hpcdash log`: prints the last lines of a job's log, and follows it until the job ends."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import BinaryIO, Protocol

from msgspec.structs import asdict, replace
from rich.color import ColorSystem
from rich.style import Style

from hpcdash.backends.job_detail import LogFiles, OtherLog
from hpcdash.backends.queries import JobScope
from hpcdash.cli.ending import ends_silently
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_json, print_notes, print_text
from hpcdash.domain.job_text import format_exit
from hpcdash.domain.states import ENDED, WAITING, JobState
from hpcdash.domain.text import clip, visible
from hpcdash.errors import (
    AuthenticationFailed,
    CommandTimedOut,
    HostKeyChanged,
    HostKeyRefused,
    HpcdashError,
    NoSuchJob,
    UnreachableError,
    UsageError,
)
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import Chunk, FileStat
from hpcdash.services.jobs.lookup import representative_task
from hpcdash.services.logs.file import (
    LONGEST_PAUSE_SECONDS,
    FileChange,
    FollowedFile,
    LogFile,
)
from hpcdash.services.logs.lines import ShownLine, shown_line
from hpcdash.services.logs.locate import LogPlace, fetch_other_logs, find_other_log, locate_logs
from hpcdash.services.logs.pieces import LONGEST_PIECE, pieces
from hpcdash.services.session import ClusterSession

# Go back to the start of the line, and erase it (ECMA-48: CR, EL).
_REWRITE = "\r\x1b[K"
# Size of a first read; large reads follow if it returns as much.
SMALL_BYTES = 64 * 1024
LARGE_BYTES = 4 << 20
# Lines may be as long as the file: their starts are searched at least this far back.
_SEARCHED_BYTES = 64 << 20
_QUIET_SECONDS = 2.0
_NEEDS_A_PERSON = (AuthenticationFailed, HostKeyChanged, HostKeyRefused)
# Interval of queries of the job's state while its file is quiet: at first, and at most.
_FIRST_STATE_SECONDS = 3.0
_LONGEST_STATE_SECONDS = 30.0
# A file that was copied from its node may appear this much later.
_ARRIVES_SECONDS = 15.0


class LogOutput(Protocol):
    """Target of a log's bytes; raises BrokenPipeError if its reader exits."""

    def write(self, content: bytes, offset: int) -> None:
        """Write bytes from an offset of the file: the end of the previous ones, or a new start."""
        ...

    def pause(self) -> None:
        """Show the last line even without a newline, as nothing follows for now."""
        ...

    def end_line(self) -> None:
        """End an open line before a message."""
        ...


def log_output() -> LogOutput:
    """Return the output for this stdout."""
    stdout = sys.stdout
    if not stdout.isatty():
        return RawOutput(stdout.buffer)
    return TerminalOutput(stdout.buffer, color_system(os.environ), stdout.encoding or "utf-8")


def color_system(variables: Mapping[str, str]) -> ColorSystem | None:
    """Return the colours of the terminal; None with NO_COLOR or without colours."""
    terminal = variables.get("TERM", "")
    if variables.get("NO_COLOR") or terminal in ("", "dumb", "unknown"):
        return None
    if variables.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return ColorSystem.TRUECOLOR
    return ColorSystem.EIGHT_BIT if terminal.endswith("256color") else ColorSystem.STANDARD


class RawOutput:
    """The file's bytes, unchanged."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, content: bytes, offset: int) -> None:
        self._stream.write(content)
        self._stream.flush()

    def pause(self) -> None:
        """Check that stdout still has a reader, as a log that does not grow would never notice."""
        poll = select.poll()
        poll.register(self._stream.fileno(), 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            raise BrokenPipeError

    def end_line(self) -> None:
        """Add nothing to the file's bytes."""


class TerminalOutput:
    """Safe lines with colours; a line without a newline is rewritten in place as it grows."""

    def __init__(self, stream: BinaryIO, colours: ColorSystem | None, encoding: str) -> None:
        self._stream = stream
        self._colours = colours
        self._encoding = encoding
        self._rest = b""
        self._end = 0
        # Shown part of the line without newline; None: no line is open.
        self._open: str | None = None

    def write(self, content: bytes, offset: int) -> None:
        if offset != self._end:
            self.end_line()
            self._rest = b""
        begin = offset - len(self._rest)
        content = self._rest + content
        self._end = begin + len(content)
        cut = pieces(content, begin, at_start=True)
        text = ""
        for first, last in cut.rows():
            line = shown_line(content[first - begin : last - begin])
            text += f"{self._coloured(line)}\n"
        self._rest = content[cut.end - begin :]
        if text:
            self._put(text)
            self._open = None

    def pause(self) -> None:
        if self._rest:
            text = clip(shown_line(self._rest).text, shutil.get_terminal_size().columns - 1)
            if text != self._open:
                self._put(text)
                self._open = text

    def end_line(self) -> None:
        if self._rest:
            self._put(self._coloured(shown_line(self._rest)) + "\n")
        self._rest = b""
        self._open = None

    def _coloured(self, line: ShownLine) -> str:
        if self._colours is None or not line.spans:
            return line.text
        coloured = ""
        here = 0
        for start, end, style in line.spans:
            coloured += line.text[here:start]
            text = line.text[start:end]
            coloured += Style.parse(style).render(text, color_system=self._colours)
            here = end
        return coloured + line.text[here:]

    def _put(self, text: str) -> None:
        text = text if self._open is None else _REWRITE + text
        self._stream.write(text.encode(self._encoding, "replace"))
        self._stream.flush()


class LogFollower(FollowedFile):
    """Follows a file, and writes it to stdout."""

    def __init__(self, file: LogFile, output: LogOutput) -> None:
        super().__init__(file)
        self.output = output
        # Whether `file` is another file that was not checked yet, and a copy of the previous one.
        self.has_moved = False
        self._is_copy = False

    def report(self, text: str) -> None:
        """Print a message between two lines of the log."""
        self.output.end_line()
        print_notes(text)

    def move_to(self, file: LogFile, *, is_copy: bool = False) -> None:
        """Continue in another file: at the same offset of a copy, else from its start."""
        super().move_to(file)
        self.has_moved = True
        self._is_copy = is_copy

    # -- last lines

    async def show_last(self, end: Chunk, lines: int) -> None:
        """Write the last lines of a file that ends with this chunk."""
        self.note(end.stat)
        if lines > 0 and end.content:
            start = await self._start_of_lines(end.content, end.offset, lines)
            if start >= end.offset:
                await self._write(end.content[start - end.offset :], start)
            else:
                await self._copy(start, end.end)
        self.read_to(end.end)

    async def _start_of_lines(self, content: bytes, offset: int, lines: int) -> int:
        """Search backwards for the start of the last `lines` lines of a file that ends with
        `content`, which begins at `offset`.
        """
        reach = max(0, offset + len(content) - _SEARCHED_BYTES - lines * LONGEST_PIECE)
        # A newline at the very end ends the last line, and begins none.
        left = lines
        position = len(content) - 1 if content.endswith(b"\n") else len(content)
        size = SMALL_BYTES
        while True:
            while left and (position := content.rfind(b"\n", 0, position)) >= 0:
                left -= 1
            if not left:
                return offset + position + 1
            if offset == 0:
                return 0
            if offset <= reach:
                limit = f"{_SEARCHED_BYTES >> 20} MiB"
                print_notes(f"showing only the last {limit}; {lines} lines are longer")
                return offset
            size = min(2 * size, LARGE_BYTES)
            begin = max(0, offset - size)
            chunk = await self.file.read(begin, offset - begin)
            content = chunk.content
            offset = begin
            position = len(chunk.content)

    async def _copy(self, start: int, end: int) -> None:
        while start < end:
            chunk = await self.file.read(start, min(LARGE_BYTES, end - start))
            if not chunk.content:
                return
            await self._write(chunk.content, start)
            start = chunk.end

    async def _write(self, content: bytes, offset: int) -> None:
        # In a thread, as a slow reader of stdout must not block the connection.
        await asyncio.to_thread(self.output.write, content, offset)

    # -- following

    async def follow(self, is_over: Callable[[], Awaitable[bool]]) -> None:
        """Write the appended bytes, and report changes of the file, until it is quiet and
        `is_over`.
        """
        size = SMALL_BYTES
        is_lost = False
        while True:
            try:
                chunk = await self.file.read(self.offset, size)
            except _NEEDS_A_PERSON:
                raise
            except (UnreachableError, CommandTimedOut) as error:
                if not is_lost:
                    self.report(f"{error.message} Retrying.")
                is_lost = True
                await asyncio.sleep(LONGEST_PAUSE_SECONDS)
                continue
            if is_lost:
                self.report("the cluster is responding again")
                is_lost = False
            if self._must_restart(chunk.stat):
                self.read_to(0)
                continue
            if chunk.content:
                await self._write(chunk.content, self.offset)
                self.read_to(chunk.end)
                if len(chunk.content) == size:
                    size = LARGE_BYTES
                    continue
            size = SMALL_BYTES
            self.output.pause()
            if self.quiet_seconds >= _QUIET_SECONDS and await is_over():
                return
            await asyncio.sleep(self.pause_seconds)

    def _must_restart(self, check: FileStat) -> bool:
        """Report a change of the file; return whether it must be read from its start."""
        before = self.stat
        size_before = self.seen_bytes
        change = self.note(check)
        place = self.file.place
        is_new_problem = bool(check.problem) and check.problem != before.problem
        if not check.is_there:
            # A node's file moves at the end of the job, and may appear a little later.
            is_moving = check.is_missing and (bool(self.file.host) or self.has_moved)
            if is_moving:
                return False
            if change is FileChange.DELETED or change is FileChange.CLOSED:
                self.report(f"{place} is gone: {check.problem}")
            elif is_new_problem:
                self.report(f"{place}: {check.problem}")
            return False
        if is_new_problem:
            self.report(f"{place}: {check.problem}")
        if self.has_moved:
            self.has_moved = False
            if self.offset == 0 or (self._is_copy and check.size >= self.offset):
                return False
            self.report(f"{place}, from the start:")
            return True
        if change is FileChange.REPLACED:
            self.report(f"{place} was replaced by another file; from the start:")
            return True
        if change is FileChange.TRUNCATED:
            sizes = f"from {size_before} to {check.size} bytes"
            self.report(f"{place} was truncated {sizes}; from the start:")
            return True
        if change is FileChange.APPEARED:
            self.report(f"{place} is back")
        return False


def run_log(
    common: CommonOptions,
    *,
    job: str,
    err: bool,
    lines: int,
    follow: bool,
    path_only: bool,
    run: int | None = None,
    lists_logs: bool = False,
    of: str | None = None,
    form: str = "text",
) -> None:
    """Print the last `lines` lines of a job's stdout (`err`: stderr); with `follow`, also new ones.

    `run` is a run in an allocation, `of` the log of a part of the job, `lists_logs` lists these.
    Output to a pipe is the file's bytes, output to a terminal is made safe; `form` json is a page
    of at most 1 MiB.
    """
    if form == "json" and (follow or path_only or lists_logs or run is not None):
        raise UsageError("--format json prints the last lines of a job's log only")

    async def work(session: ClusterSession) -> None:
        store = session.store
        if run is not None:
            run_log = _RunLog(store, job, run)
            await run_log.query()
            await run_log.show(lines, follow, err=err, path_only=path_only)
            return
        place = await _task_place(store, await locate_logs(store, job))
        if place.row["array_id"] == job and place.row["_tasks"] == 1:
            print_notes(f"showing {place.row['id']}, the only task of array {job}")
        other = None
        if lists_logs or of is not None:
            others = await fetch_other_logs(store, place)
            if lists_logs:
                listed = [f"{visible(log.name)}  {visible(log.title)}\n" for log in others]
                print_text("".join(listed))
                if not others:
                    print_notes(f"job {job} has no logs besides its stdout and stderr")
                return
            other = find_other_log(others, of or "")
            place = replace(place, files=other.files)
        file = _open_file(store, place, err)
        if path_only:
            print_text(f"{file.place}\n")
            return
        if form == "json":
            await _print_page(session, file, "stderr" if err else "stdout", lines)
            return
        await _JobLog(store, place, file, err=err, other=other).show(lines, follow)

    with ends_silently() if follow else nullcontext():
        with_session(common, work)


async def _print_page(session: ClusterSession, file: LogFile, stream: str, lines: int) -> None:
    """Print the last lines as JSON, with the keys of the HTTP API. Raises NoLog."""
    from hpcdash.web.api.logs import LogReader

    page = await LogReader(file, stream).read_last(lines)
    print_json({**session.envelope(), **asdict(page)})


class _RunLog:
    """Log of a run in an allocation, with queries of its state."""

    def __init__(self, store: ClusterStore, job: str, number: int) -> None:
        self._store = store
        self._job = job
        self._number = number
        self._pause_seconds = _FIRST_STATE_SECONDS

    async def query(self) -> None:
        """Query the allocation and its runs. Raises UsageError for an unknown run."""
        from hpcdash.services.submit.allocations import (
            fetch_runs,
            find_allocation,
            find_run,
            format_place,
        )

        allocation = await find_allocation(self._store, self._job)
        runs = await fetch_runs(self._store, allocation)
        self._run = find_run(runs, self._job, self._number)
        self._is_open = allocation.is_open
        self._place = format_place(allocation, runs, self._run)
        self._queried_at = time.monotonic()

    async def show(self, lines: int, follows: bool, *, err: bool, path_only: bool) -> None:
        file = self._store.log_file(self._run.stderr if err else self._run.stdout)
        if path_only:
            print_text(f"{file.place}\n")
            return
        if self._run.started_at is None and not (follows and await self._wait_for_start()):
            state = "has not started"
            if not self._is_open:
                state = "never started: the allocation has ended"
            print_notes(f"run {self._number} of job {self._job} {state}")
            return
        chunk = await file.read_end(SMALL_BYTES)
        if chunk.stat.problem:
            raise HpcdashError(f"{file.place}: {visible(chunk.stat.problem)}.")
        tail = LogFollower(file, log_output())
        try:
            await tail.show_last(chunk, lines)
            if follows:
                await tail.follow(self._is_over)
                has_status = self._run.status is not None
                state = self._run.state if has_status else "ended with the allocation"
                tail.report(f"run {self._number} {state}")
        finally:
            tail.output.end_line()

    async def _wait_for_start(self) -> bool:
        """Wait for the start of the run; return False if the allocation ends first."""
        message = ""
        while self._run.started_at is None and self._is_open:
            if self._place != message:
                message = self._place
                print_notes(f"run {self._number} {message}")
            await asyncio.sleep(_FIRST_STATE_SECONDS)
            await self._poll_slowly()
        self._pause_seconds = _FIRST_STATE_SECONDS
        return self._run.started_at is not None

    async def _is_over(self) -> bool:
        if self._run.status is not None or not self._is_open:
            return True
        await self._poll_slowly()
        return False

    async def _poll_slowly(self) -> None:
        if time.monotonic() - self._queried_at < self._pause_seconds:
            return
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_STATE_SECONDS)
        try:
            await self.query()
        except (UnreachableError, CommandTimedOut):
            # The file is still read.
            self._queried_at = time.monotonic()


async def _task_place(store: ClusterStore, place: LogPlace) -> LogPlace:
    """Locate the log of an array's running or finished task; `place` itself if there is none, and
    for any other job.
    """
    array_id = place.job_id
    if place.row["array_id"] != array_id or place.row["_tasks"] == 1:
        return place
    queued = await store.run_query(store.backend.queue.jobs(JobScope(job_ids=(array_id,))))
    task = representative_task([queued.table], array_id)
    return place if task is None else await locate_logs(store, task)


def _open_file(store: ClusterStore, place: LogPlace, err: bool) -> LogFile:
    """Return the log file, and print a note if its path is uncertain."""
    files = place.files
    if err and files.stderr is None and files.stdout is not None:
        print_notes(f"job {place.job_id} writes stderr to its stdout file")
    path = _path(files, err)
    if path is None:
        raise HpcdashError(
            f"The log path of job {place.job_id} is unknown: "
            f"{visible(files.note) or 'not reported'}."
        )
    if files.note:
        print_notes(files.note)
    return store.log_file(path, files.host)


def _path(files: LogFiles, err: bool) -> str | None:
    return files.stderr if err and files.stderr is not None else files.stdout


class _JobLog:
    """Log of a job, with queries of its state."""

    def __init__(
        self,
        store: ClusterStore,
        place: LogPlace,
        file: LogFile,
        *,
        err: bool,
        other: OtherLog | None,
    ) -> None:
        self._store = store
        # Log of a part of the job; None: the job's own.
        self._other = other
        self._place = place
        self._is_err = err
        self._stream = "stderr" if err else "stdout"
        self._tail = LogFollower(file, log_output())
        self._queried_at = 0.0
        self._moved_at = 0.0
        self._state_pause_seconds = _FIRST_STATE_SECONDS

    @property
    def _file(self) -> LogFile:
        """Present log file: a node's file moves to its final folder when the job ends."""
        return self._tail.file

    @property
    def _state(self) -> str:
        return str(self._place.row["state"])

    async def show(self, lines: int, follows: bool) -> None:
        """Print the last lines, and follow the file; raises HpcdashError if it is unreadable."""
        chunk = await self._file.read_end(SMALL_BYTES)
        try:
            if chunk.stat.problem:
                if not follows or self._state in ENDED:
                    raise self._unreadable(chunk.stat)
                await self._wait_for_file(chunk.stat)
            else:
                if self._state in WAITING:
                    state = f"job {self._place.job_id} is {self._state}"
                    print_notes(f"{state}: this log is from an earlier run")
                if self._file.host:
                    print_notes(f"read from {self._file.place}")
                await self._tail.show_last(chunk, lines)
            if follows:
                await self._tail.follow(self._is_over)
        finally:
            self._tail.output.end_line()

    async def _wait_for_file(self, check: FileStat) -> None:
        """Wait until the file of an unfinished job exists and its node is reached."""
        if check.is_unreached:
            print_notes(f"{self._stream}: {check.problem}; waiting for it")
        elif check.is_missing:
            why = f"the job is {self._state}" if self._state in WAITING else check.problem
            print_notes(
                f"{self._stream} will be written to {self._file.place} ({why}); waiting for it"
            )
        else:
            raise self._unreadable(check)
        while True:
            # Before the check, as the file may appear and the job end in between.
            has_ended = self._state in ENDED
            check = await self._file.stat()
            if check.is_there:
                self._tail.note(check)
                self._tail.has_moved = False
                return
            may_appear = check.is_missing or check.is_unreached
            if not may_appear or (has_ended and not self._is_arriving):
                raise self._unreadable(check)
            await self._query_state()
            self._tail.output.pause()
            await asyncio.sleep(self._tail.pause_seconds)

    @property
    def _is_arriving(self) -> bool:
        """Whether the file moved a moment ago, and was not found there yet."""
        return self._tail.has_moved and time.monotonic() - self._moved_at < _ARRIVES_SECONDS

    def _unreadable(self, check: FileStat) -> HpcdashError:
        job = f"job {self._place.job_id}"
        step = ""
        if self._state in WAITING and check.is_missing:
            step = f"J{job[1:]} is {self._state}: the log appears once it runs. -f waits for it."
        subject = f"{self._stream} of {job}" if check.is_unreached else self._file.place
        return HpcdashError(f"{visible(subject)}: {visible(check.problem)}.", step)

    async def _is_over(self) -> bool:
        """Return whether the job had ended before the last check, and report its end."""
        if self._state not in ENDED:
            # The next check after the job's end may find the last lines.
            await self._query_state()
            return False
        if self._is_arriving:
            return False
        row = self._place.row
        text = f"job {self._place.job_id} {self._state.replace('_', ' ')}"
        if ending := format_exit(self._state, row["exit_code"], row["exit_signal"]):
            text = f"{text}: {ending}"
        self._tail.report(text)
        return True

    async def _query_state(self) -> None:
        """Query the job's state from the scheduler, at growing intervals."""
        # A file that left its node means that the job has ended.
        has_left = bool(self._file.host) and self._tail.stat.is_missing
        pause = _FIRST_STATE_SECONDS if has_left else self._state_pause_seconds
        if time.monotonic() - self._queried_at < pause:
            return
        if self._queried_at:
            self._state_pause_seconds = min(2 * self._state_pause_seconds, _LONGEST_STATE_SECONDS)
        self._queried_at = time.monotonic()
        try:
            self._place = await locate_logs(self._store, self._place.job_id)
            if self._other is not None:
                self._place = replace(self._place, files=self._other.files)
        except NoSuchJob:
            self._place = replace(self._place, row={**self._place.row, "state": JobState.GONE})
        except HpcdashError:
            # The file is still read, and the scheduler queried again.
            return
        self._follow_move()

    def _follow_move(self) -> None:
        """Continue in the file that the scheduler reports now."""
        files = self._place.files
        path = _path(files, self._is_err)
        if path is None or (path, files.host) == (self._file.path, self._file.host):
            return
        has_ended = self._state in ENDED
        if not self._file.host and (has_ended or self._tail.stat.is_there):
            # The paths of a job from the history may be guesses.
            return
        self._tail.move_to(self._store.log_file(path, files.host), is_copy=has_ended)
        self._moved_at = time.monotonic()
        self._tail.report(f"{self._stream} is now in {self._file.place}")
