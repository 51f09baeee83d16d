"""`hpcdash log`: the last lines of a job's log to stdout, and what comes after them for as long as
the job runs.
"""

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

from msgspec.structs import replace
from rich.color import ColorSystem
from rich.style import Style

from hpcdash.backends.job_detail import LogFiles, OtherLog
from hpcdash.backends.queries import JobScope
from hpcdash.cli.ending import ends_silently
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_text
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

# Back to the line's start, and what stood there erased (ECMA-48: CR, EL).
_REWRITE = "\r\x1b[K"
# The first read of a file and each that may find little; one that finds as much is followed by
# large ones at once.
SMALL_BYTES = 64 * 1024
LARGE_BYTES = 4 << 20
# Lines may be as long as the file: their starts are searched at least this far back.
_LOOK_BACK_BYTES = 64 << 20
_QUIET_SECONDS = 2.0
_NEEDS_A_PERSON = (AuthenticationFailed, HostKeyChanged, HostKeyRefused)
# A quiet file may mean that the job has ended; the scheduler is queried at this interval.
_FIRST_STATE_SECONDS = 3.0
_LONGEST_STATE_SECONDS = 30.0
# A file that was copied from its node may be seen here so much later.
_ARRIVES_SECONDS = 15.0


class LogOutput(Protocol):
    """Target of a log's bytes; raises BrokenPipeError once nobody reads."""

    def write(self, content: bytes, offset: int) -> None:
        """Write what comes next; `offset` is its place in the file, which goes on where it ended or
        is a new start.
        """
        ...

    def pause(self) -> None:
        """Show text that has no newline yet, as nothing more comes for now."""
        ...

    def end_line(self) -> None:
        """End an open line, so that a message can follow."""
        ...


def log_output() -> LogOutput:
    """The way to write to this stdout."""
    stdout = sys.stdout
    if not stdout.isatty():
        return RawOutput(stdout.buffer)
    return TerminalOutput(stdout.buffer, color_system(os.environ), stdout.encoding or "utf-8")


def color_system(variables: Mapping[str, str]) -> ColorSystem | None:
    """Return how many colours to write; None where NO_COLOR or the terminal excludes them."""
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
        """Bytes of the file are never added to."""


class TerminalOutput:
    """Lines made safe, with their colours; a line without newline yet is rewritten in place as it
    grows.
    """

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
        lines = [
            self._coloured(shown_line(content[first - begin : last - begin]))
            for first, last in cut.rows()
        ]
        self._rest = content[cut.end - begin :]
        if lines:
            self._put("".join(f"{line}\n" for line in lines))
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
        parts: list[str] = []
        here = 0
        for start, end, style in line.spans:
            parts.append(line.text[here:start])
            parts.append(
                Style.parse(style).render(line.text[start:end], color_system=self._colours)
            )
            here = end
        return "".join(parts) + line.text[here:]

    def _put(self, text: str) -> None:
        text = text if self._open is None else _REWRITE + text
        self._stream.write(text.encode(self._encoding, "replace"))
        self._stream.flush()


def report(text: str) -> None:
    """Tell the person something, on stderr."""
    print(f"hpcdash: {visible(text)}", file=sys.stderr, flush=True)


class LogFollower(FollowedFile):
    """One file on its way to stdout."""

    def __init__(self, file: LogFile, output: LogOutput) -> None:
        super().__init__(file)
        self.output = output
        # Whether `file` is another now, of which nothing was seen yet; and whether it begins with
        # what was read.
        self.has_moved = False
        self._is_copy = False

    def aside(self, text: str) -> None:
        """Print a message between two lines of the log."""
        self.output.end_line()
        report(text)

    def move_to(self, file: LogFile, *, is_copy: bool = False) -> None:
        """Continue in another file: where it left off in one that is a copy, else from its start."""
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
        """Find backwards the offset of the last `lines` lines of a file that ends with `content`.

        `content` begins at `offset` in the file.
        """
        reach = max(0, offset + len(content) - _LOOK_BACK_BYTES - lines * LONGEST_PIECE)
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
                report(
                    f"showing only the last {_LOOK_BACK_BYTES >> 20} MiB: {lines} lines would be "
                    "more"
                )
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
        # The reader of stdout may be slow, and the connection must be kept alive meanwhile.
        await asyncio.to_thread(self.output.write, content, offset)

    # -- following

    async def follow(self, is_over: Callable[[], Awaitable[bool]]) -> None:
        """Write what is appended, until `is_over` confirms a quiet file; reports what happens to
        the file.
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
                    self.aside(f"{error.message} Trying again.")
                is_lost = True
                await asyncio.sleep(LONGEST_PAUSE_SECONDS)
                continue
            if is_lost:
                self.aside("the cluster is responding again")
                is_lost = False
            if self._is_other(chunk.stat):
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

    def _is_other(self, check: FileStat) -> bool:
        """Report a change of the file; whether it is to be read from its start."""
        before = self.stat
        seen_bytes = self.seen_bytes
        change = self.note(check)
        # A node lets go of its file when the job ends, and the last place may show it a little
        # later.
        is_on_its_way = check.is_missing and (bool(self.file.host) or self.has_moved)
        if not check.is_there:
            if is_on_its_way:
                return False
            if change is FileChange.DELETED or change is FileChange.CLOSED:
                self.aside(f"{self.file.place} is gone: {check.problem}")
            elif check.problem != before.problem:
                self.aside(f"{self.file.place}: {check.problem}")
            return False
        if check.problem and check.problem != before.problem:
            self.aside(f"{self.file.place}: {check.problem}")
        if self.has_moved:
            self.has_moved = False
            if self.offset == 0 or (self._is_copy and check.size >= self.offset):
                return False
            self.aside(f"{self.file.place}, from its start:")
        elif change is FileChange.REPLACED:
            self.aside(f"{self.file.place} was replaced by another file; from its start:")
        elif change is FileChange.TRUNCATED:
            self.aside(
                f"{self.file.place} was truncated from {seen_bytes} to {check.size} bytes; from "
                "its start:"
            )
        else:
            if change is FileChange.APPEARED:
                self.aside(f"{self.file.place} is back")
            return False
        return True


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
) -> None:
    """Print the last `lines` lines of a job's stdout (`err`: stderr), and with `follow` what is
    added to them.

    `run` is that of an allocation, `of` names the log of a part of the job, `lists_logs` lists
    these. stdout gets the file's bytes; where it is a terminal, text that cannot harm it.
    """

    async def work(session: ClusterSession) -> None:
        store = session.store
        if run is not None:
            run_log = _RunLog(store, job, run)
            await run_log.query()
            await run_log.show(lines, follow, err=err, path_only=path_only)
            return
        place = await _task_place(store, await locate_logs(store, job))
        if place.row["array_id"] == job and place.row["_tasks"] == 1:
            report(f"showing {place.row['id']}, the only task of array {job}")
        other = None
        if lists_logs or of is not None:
            others = await fetch_other_logs(store, place)
            if lists_logs:
                print_text(
                    "".join(f"{visible(log.name)}  {visible(log.title)}\n" for log in others)
                )
                if not others:
                    report(f"job {job} has no logs besides its stdout and stderr")
                return
            other = find_other_log(others, of or "")
            place = replace(place, files=other.files)
        file = _file(store, place, err)
        if path_only:
            print_text(f"{file.place}\n")
            return
        await _JobLog(store, place, file, err, other).show(lines, follow)

    with ends_silently() if follow else nullcontext():
        with_session(common, work)


class _RunLog:
    """Log of one run of an allocation, whose state is queried now and then."""

    def __init__(self, store: ClusterStore, job: str, number: int) -> None:
        self._store = store
        self._job = job
        self._number = number
        self._pause_seconds = _FIRST_STATE_SECONDS

    async def query(self) -> None:
        """Query the allocation and its runs.

        Raises UsageError for a run that does not exist.
        """
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
        if self._run.started_at is None and not (follows and await self._starts()):
            state = (
                "has not started"
                if self._is_open
                else "was never started: the allocation has ended"
            )
            report(f"run {self._number} of job {self._job} {state}")
            return
        chunk = await file.read_end(SMALL_BYTES)
        if chunk.stat.problem:
            raise HpcdashError(f"{file.place}: {visible(chunk.stat.problem)}.")
        tail = LogFollower(file, log_output())
        try:
            await tail.show_last(chunk, lines)
            if follows:
                await tail.follow(self._is_over)
                ended = self._run.status is not None
                tail.aside(
                    f"run {self._number} "
                    f"{self._run.state if ended else 'ended with the allocation'}"
                )
        finally:
            tail.output.end_line()

    async def _starts(self) -> bool:
        """Wait until it does; False where the allocation ends before."""
        message = ""
        while self._run.started_at is None and self._is_open:
            if self._place != message:
                message = self._place
                report(f"run {self._number} {message}")
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
    """Locate the log of a started task where the row is that of an array's pending tasks.

    A task that runs or ended is taken if the queue has one; else `place` is returned.
    """
    array_id = place.job_id
    if place.row["array_id"] != array_id or place.row["_tasks"] == 1:
        return place
    queued = await store.run_query(store.backend.queue.jobs(JobScope(job_ids=(array_id,))))
    task = representative_task([queued.table], array_id)
    return place if task is None else await locate_logs(store, task)


def _file(store: ClusterStore, place: LogPlace, err: bool) -> LogFile:
    """Return the log file to read, and print what is uncertain about it."""
    files = place.files
    if err and files.stderr is None and files.stdout is not None:
        report(f"job {place.job_id} writes stderr to its stdout file")
    path = _path(files, err)
    if path is None:
        raise HpcdashError(
            f"The log path of job {place.job_id} is unknown: "
            f"{visible(files.note) or 'it is not reported'}."
        )
    if files.note:
        report(files.note)
    return store.log_file(path, files.host)


def _path(files: LogFiles, err: bool) -> str | None:
    return files.stderr if err and files.stderr is not None else files.stdout


class _JobLog:
    """Log of one job, whose state is queried now and then."""

    def __init__(
        self,
        store: ClusterStore,
        place: LogPlace,
        file: LogFile,
        err: bool,
        other: OtherLog | None = None,
    ) -> None:
        self._store = store
        # The part of the job whose log it is; None: the job's own.
        self._other = other
        self._place = place
        self._is_err = err
        self._stream = "stderr" if err else "stdout"
        self._tail = LogFollower(file, log_output())
        self._queried_at = self._moved_at = 0.0
        self._state_pause_seconds = _FIRST_STATE_SECONDS

    @property
    def _file(self) -> LogFile:
        """Present log file: a node's file moves to its final folder when the job ends."""
        return self._tail.file

    @property
    def _state(self) -> str:
        return str(self._place.row["state"])

    async def show(self, lines: int, follows: bool) -> None:
        """Print the last lines and, following, what comes; raises HpcdashError where there is no
        file to read.
        """
        chunk = await self._file.read_end(SMALL_BYTES)
        try:
            if not chunk.stat.problem:
                if self._state in WAITING:
                    report(
                        f"job {self._place.job_id} is {self._state}: this log is from an "
                        "earlier run"
                    )
                if self._file.host:
                    report(f"read from {self._file.place}")
                await self._tail.show_last(chunk, lines)
            elif follows and chunk.stat.is_unreached and self._state not in ENDED:
                report(f"{self._stream}: {chunk.stat.problem}; waiting for it")
                await self._wait_for_it()
            elif follows and chunk.stat.is_missing and self._state not in ENDED:
                where = (
                    f"the job is {self._state}" if self._state in WAITING else chunk.stat.problem
                )
                report(f"{self._stream} will be in {self._file.place}: {where}; waiting for it")
                await self._wait_for_it()
            else:
                raise self._unreadable(chunk.stat)
            if follows:
                await self._tail.follow(self._is_over)
        finally:
            self._tail.output.end_line()

    async def _wait_for_it(self) -> None:
        while True:
            # Before the check: in between the file may appear, and the job end.
            has_ended = self._state in ENDED
            check = await self._file.stat()
            if check.is_there:
                self._tail.note(check)
                self._tail.has_moved = False
                return
            if (has_ended and not self._is_arriving) or not (
                check.is_missing or check.is_unreached
            ):
                raise self._unreadable(check)
            await self._query_state()
            self._tail.output.pause()
            await asyncio.sleep(self._tail.pause_seconds)

    @property
    def _is_arriving(self) -> bool:
        """Whether its file came to another place a moment ago, and was not seen there yet."""
        return self._tail.has_moved and time.monotonic() - self._moved_at < _ARRIVES_SECONDS

    def _unreadable(self, check: FileStat) -> HpcdashError:
        step = ""
        if self._state in WAITING and check.is_missing:
            step = (
                f"Job {self._place.job_id} is {self._state}: the log appears once it runs. -f "
                "waits for it."
            )
        where = (
            f"{self._stream} of job {self._place.job_id}"
            if check.is_unreached
            else self._file.place
        )
        return HpcdashError(f"{visible(where)}: {visible(check.problem)}.", step)

    async def _is_over(self) -> bool:
        """Whether the job was known to have ended before the last check; prints so."""
        if self._state not in ENDED:
            # After a reported end, the next check may bring the last lines.
            await self._query_state()
            return False
        if self._is_arriving:
            return False
        row = self._place.row
        text = format_exit(self._state, row["exit_code"], row["exit_signal"])
        self._tail.aside(
            f"job {self._place.job_id} {self._state.replace('_', ' ')}"
            + (f": {text}" if text else "")
        )
        return True

    async def _query_state(self) -> None:
        """Query the job's state from the scheduler, at growing intervals."""
        # A node lets go of its file when the job ends.
        is_let_go = bool(self._file.host) and self._tail.stat.is_missing
        if time.monotonic() - self._queried_at < (
            _FIRST_STATE_SECONDS if is_let_go else self._state_pause_seconds
        ):
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
        self._go_where_it_is()

    def _go_where_it_is(self) -> None:
        """Continue in the file that the job is now reported to write to."""
        files = self._place.files
        path = _path(files, self._is_err)
        if path is None or (path, files.host) == (self._file.path, self._file.host):
            return
        has_ended = self._state in ENDED
        if not self._file.host and (has_ended or self._tail.stat.is_there):
            # If the job comes from the history, its paths may be guesses.
            return
        self._tail.move_to(self._store.log_file(path, files.host), is_copy=has_ended)
        self._moved_at = time.monotonic()
        self._tail.aside(f"{self._stream} is now in {self._file.place}")
