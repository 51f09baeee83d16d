"""`hpcdash log`: the last lines of a job's log to stdout, and what comes after them for as long as the job runs."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace

from hpcdash.backends.base import JobScope
from hpcdash.cli.log_output import log_output
from hpcdash.cli.log_tail import SMALL_BYTES, LogTail, say
from hpcdash.cli.oneshot import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.domain.exits import exit_words
from hpcdash.domain.states import ENDED, WAITING, JobState
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, NoSuchJob
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.known_jobs import telling_task
from hpcdash.stores.log_file import LogFile, Look, next_look_seconds
from hpcdash.stores.logs import LogPlace, locate_logs
from hpcdash.ui.session import ClusterSession

# A quiet file may mean that the job has ended; the scheduler is asked so many seconds after the last time.
_FIRST_STATE_SECONDS = 3.0
_LONGEST_STATE_SECONDS = 30.0


def run_log(common: CommonOptions, *, job: str, err: bool, lines: int, follow: bool, path_only: bool) -> None:
    """Print the last `lines` lines of a job's stdout (`err`: stderr), and with `follow` what is added to them.

    stdout gets the file's bytes; where it is a terminal, text that cannot harm it.
    """

    async def work(session: ClusterSession) -> None:
        store = session.store
        place = await _of_a_task(store, await locate_logs(store, job))
        if place.row["array_id"] == job and place.row["_tasks"] == 1:
            say(f"of array {job} this is task {place.row['id']}")
        path = _path(place, err)
        if path_only:
            sys.stdout.buffer.write(os.fsencode(path) + b"\n")
            return
        log = _JobLog(store, place, LogFile(store.transport, path), "stderr" if err else "stdout")
        await log.show(lines, follow)

    with_session(common, work)


async def _of_a_task(store: ClusterStore, place: LogPlace) -> LogPlace:
    """Of an array whose row is that of the tasks that wait, the log of one that runs or ended, if the queue has one."""
    array_id = place.job_id
    if place.row["array_id"] != array_id or place.row["_tasks"] == 1:
        return place
    queued = await store.ask(store.backend.jobs_query(JobScope(job_ids=(array_id,))))
    task = telling_task([queued.table], array_id)
    return place if task is None else await locate_logs(store, task)


def _path(place: LogPlace, err: bool) -> str:
    files = place.files
    path = files.stderr if err else files.stdout
    if err and path is None and files.stdout is not None:
        say(f"job {place.job_id} writes its stderr into stdout's file")
        path = files.stdout
    if path is None:
        raise HpcdashError(
            f"It is not known where job {place.job_id} writes: {visible(files.note) or 'no word of it'}."
        )
    if files.note:
        say(files.note)
    return path


class _JobLog:
    """The log of one job, whose state is asked for now and then."""

    def __init__(self, store: ClusterStore, place: LogPlace, file: LogFile, stream: str) -> None:
        self._store = store
        self._place = place
        self._file = file
        self._stream = stream
        self._tail = LogTail(file, log_output())
        self._asked_at = 0.0
        self._state_pause_seconds = _FIRST_STATE_SECONDS

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
                end = await self._tail.show_last(chunk, lines)
            elif follows and chunk.look.is_missing and self._state not in ENDED:
                where = f"the job is {self._state}" if self._state in WAITING else chunk.look.problem
                say(f"{self._stream} will be in {self._file.path}: {where}; waiting for it")
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
            if has_ended or not look.is_missing:
                raise self._unreadable(look)
            await self._ask_state()
            self._tail.output.pause()
            await asyncio.sleep(next_look_seconds(time.monotonic() - began))

    def _unreadable(self, look: Look) -> HpcdashError:
        step = ""
        if self._state in WAITING and look.is_missing:
            step = f"Job {self._place.job_id} is {self._state}: it is written once the job runs. -f waits for it."
        return HpcdashError(f"{visible(self._file.path)}: {visible(look.problem)}.", step)

    async def _is_over(self) -> bool:
        """Whether the job was known to have ended before the last look, which is then said."""
        if self._state not in ENDED:
            # Of an end that is told now, the next look may bring the last lines.
            await self._ask_state()
            return False
        row = self._place.row
        words = exit_words(self._state, row["exit_code"], row["exit_signal"])
        self._tail.aside(f"job {self._place.job_id} {self._state.replace('_', ' ')}" + (f": {words}" if words else ""))
        return True

    async def _ask_state(self) -> None:
        """Ask the scheduler for the job's state, seldom, and ever more seldom."""
        if time.monotonic() - self._asked_at < self._state_pause_seconds:
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
