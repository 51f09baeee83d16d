"""`hpcdash log`: the last lines of a job's log to stdout, and what comes after them for as long as the job runs."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from dataclasses import replace

from hpcdash.backends.job_detail import LogFiles
from hpcdash.backends.queries import JobScope
from hpcdash.cli.ending import ends_silently
from hpcdash.cli.log_output import log_output
from hpcdash.cli.log_tail import SMALL_BYTES, LogTail, say
from hpcdash.cli.oneshot import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.stdout import print_text
from hpcdash.domain.exits import exit_words
from hpcdash.domain.states import ENDED, WAITING, JobState
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, NoSuchJob
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.lookup import telling_task
from hpcdash.services.logs.file import LogFile, Look, next_look_seconds
from hpcdash.services.logs.locate import LogPlace, locate_logs
from hpcdash.services.session import ClusterSession

# A quiet file may mean that the job has ended; the scheduler is asked so many seconds after the last time.
_FIRST_STATE_SECONDS = 3.0
_LONGEST_STATE_SECONDS = 30.0
# A file that was copied from its node may be seen here so much later.
_ARRIVES_SECONDS = 15.0


def run_log(common: CommonOptions, *, job: str, err: bool, lines: int, follow: bool, path_only: bool) -> None:
    """Print the last `lines` lines of a job's stdout (`err`: stderr), and with `follow` what is added to them.

    stdout gets the file's bytes; where it is a terminal, text that cannot harm it.
    """

    async def work(session: ClusterSession) -> None:
        store = session.store
        place = await _of_a_task(store, await locate_logs(store, job))
        if place.row["array_id"] == job and place.row["_tasks"] == 1:
            say(f"of array {job} this is task {place.row['id']}")
        file = _file(store, place, err)
        if path_only:
            print_text(f"{file.place}\n")
            return
        await _JobLog(store, place, file, err).show(lines, follow)

    with ends_silently() if follow else nullcontext():
        with_session(common, work)


async def _of_a_task(store: ClusterStore, place: LogPlace) -> LogPlace:
    """Of an array whose row is that of the tasks that wait, the log of one that runs or ended, if the queue has one."""
    array_id = place.job_id
    if place.row["array_id"] != array_id or place.row["_tasks"] == 1:
        return place
    queued = await store.ask(store.backend.jobs_query(JobScope(job_ids=(array_id,))))
    task = telling_task([queued.table], array_id)
    return place if task is None else await locate_logs(store, task)


def _file(store: ClusterStore, place: LogPlace, err: bool) -> LogFile:
    """Where the text comes from; what is not certain about it is said."""
    files = place.files
    if err and files.stderr is None and files.stdout is not None:
        say(f"job {place.job_id} writes its stderr into stdout's file")
    path = _path(files, err)
    if path is None:
        raise HpcdashError(
            f"It is not known where job {place.job_id} writes: {visible(files.note) or 'no word of it'}."
        )
    if files.note:
        say(files.note)
    return store.log_file(path, files.host)


def _path(files: LogFiles, err: bool) -> str | None:
    return files.stderr if err and files.stderr is not None else files.stdout


class _JobLog:
    """The log of one job, whose state is asked for now and then."""

    def __init__(self, store: ClusterStore, place: LogPlace, file: LogFile, err: bool) -> None:
        self._store = store
        self._place = place
        self._is_err = err
        self._stream = "stderr" if err else "stdout"
        self._tail = LogTail(file, log_output())
        self._asked_at = self._moved_at = 0.0
        self._state_pause_seconds = _FIRST_STATE_SECONDS

    @property
    def _file(self) -> LogFile:
        """Where it is now: what a node had comes to its last folder when the job ends."""
        return self._tail.file

    @property
    def _state(self) -> str:
        return str(self._place.row["state"])

    async def show(self, lines: int, follows: bool) -> None:
        """Print the last lines and, following, what comes; raises HpcdashError where there is no file to read."""
        chunk = await self._file.read_end(SMALL_BYTES)
        try:
            if not chunk.look.problem:
                if self._state in WAITING:
                    say(f"job {self._place.job_id} is {self._state}: this was written before")
                if self._file.host:
                    say(f"read from {self._file.place}")
                end = await self._tail.show_last(chunk, lines)
            elif follows and chunk.look.is_unreached and self._state not in ENDED:
                say(f"{self._stream}: {chunk.look.problem}; waiting for it")
                await self._wait_for_it()
                end = 0
            elif follows and chunk.look.is_missing and self._state not in ENDED:
                where = f"the job is {self._state}" if self._state in WAITING else chunk.look.problem
                say(f"{self._stream} will be in {self._file.place}: {where}; waiting for it")
                await self._wait_for_it()
                end = 0
            else:
                raise self._unreadable(chunk.look)
            if follows:
                await self._tail.follow(end, self._is_over)
        finally:
            self._tail.output.end_line()

    async def _wait_for_it(self) -> None:
        began = time.monotonic()
        while True:
            # Before the look: the file may come, and the job end, in between.
            has_ended = self._state in ENDED
            look = await self._file.look()
            if look.is_there:
                self._tail.begin(look)
                return
            if (has_ended and not self._is_arriving) or not (look.is_missing or look.is_unreached):
                raise self._unreadable(look)
            await self._ask_state()
            self._tail.output.pause()
            await asyncio.sleep(max(self._file.pause_seconds, next_look_seconds(time.monotonic() - began)))

    @property
    def _is_arriving(self) -> bool:
        """Whether its file came to another place a moment ago, and was not seen there yet."""
        return self._tail.has_moved and time.monotonic() - self._moved_at < _ARRIVES_SECONDS

    def _unreadable(self, look: Look) -> HpcdashError:
        step = ""
        if self._state in WAITING and look.is_missing:
            step = f"Job {self._place.job_id} is {self._state}: it is written once the job runs. -f waits for it."
        where = f"{self._stream} of job {self._place.job_id}" if look.is_unreached else self._file.place
        return HpcdashError(f"{visible(where)}: {visible(look.problem)}.", step)

    async def _is_over(self) -> bool:
        """Whether the job was known to have ended before the last look, which is then said."""
        if self._state not in ENDED:
            # Of an end that is told now, the next look may bring the last lines.
            await self._ask_state()
            return False
        if self._is_arriving:
            return False
        row = self._place.row
        words = exit_words(self._state, row["exit_code"], row["exit_signal"])
        self._tail.aside(f"job {self._place.job_id} {self._state.replace('_', ' ')}" + (f": {words}" if words else ""))
        return True

    async def _ask_state(self) -> None:
        """Ask the scheduler for the job's state, seldom, and ever more seldom."""
        # A node lets go of its file when the job ends.
        is_let_go = bool(self._file.host) and self._tail.known.is_missing
        if time.monotonic() - self._asked_at < (_FIRST_STATE_SECONDS if is_let_go else self._state_pause_seconds):
            return
        if self._asked_at:
            self._state_pause_seconds = min(2 * self._state_pause_seconds, _LONGEST_STATE_SECONDS)
        self._asked_at = time.monotonic()
        try:
            self._place = await locate_logs(self._store, self._place.job_id)
        except NoSuchJob:
            self._place = replace(self._place, row={**self._place.row, "state": JobState.GONE})
        except HpcdashError:
            # The file is still read, and the scheduler asked again.
            return
        self._go_where_it_is()

    def _go_where_it_is(self) -> None:
        """Go on in the file that the job is now said to write to."""
        files = self._place.files
        path = _path(files, self._is_err)
        if path is None or (path, files.host) == (self._file.path, self._file.host):
            return
        has_ended = self._state in ENDED
        if not self._file.host and (has_ended or self._tail.known.is_there):
            # Where history tells of a job, its paths may be guesses.
            return
        self._tail.move_to(self._store.log_file(path, files.host), goes_on=has_ended)
        self._moved_at = time.monotonic()
        self._tail.aside(f"{self._stream} is in {self._file.place} now")
