"""Jobs that Python submitted or attached to: their states, logs and results."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from msgspec import Struct

from hpcdash.client.early_results import AwaitedResults, EarlyResults
from hpcdash.client.loop import arun_in_loop, finish_in_loop, run_in_loop
from hpcdash.client.packaging import note_waiting
from hpcdash.client.results import (
    CallOutcome,
    JobFailed,
    call_value,
    fetch_outcomes,
    find_forms,
    result_names,
)
from hpcdash.client.tracking import JobStates, TrackedJob
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.job_ids import with_tasks
from hpcdash.domain.request import Request
from hpcdash.domain.states import ENDED, JobState
from hpcdash.errors import (
    CommandTimedOut,
    HpcdashError,
    LoginRequired,
    UnreachableError,
    UsageError,
)
from hpcdash.job.results import JSON, PICKLE, load_result, load_results
from hpcdash.services.session import ClusterSession

if TYPE_CHECKING:
    import pandas as pd

    from hpcdash.services.logs.file import LogFile

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
# Results of finished tasks are fetched with a requested one, up to this number.
_MAX_RESULTS_PER_FETCH = 500
# Pauses before retries: a network file system shows new files late.
_RETRY_PAUSES = (1.0, 2.0, 4.0, 8.0)
# States of jobs that may have left a result, and those that may also have left a failure.
_MAY_HAVE_RETURNED = frozenset({JobState.COMPLETED, JobState.GONE})
_MAY_HAVE_OUTCOME = _MAY_HAVE_RETURNED | {JobState.FAILED}
# A missing result is not searched again for this time.
_MISSING_SECONDS = 60.0
_LOG_BYTES = 1 << 20
_LOGGED_RESULT_BYTES = 8 << 20
_QUIET_SECONDS = 3.0


class Launched(Struct, frozen=True):
    """A launch on the cluster: its folder ('' if unknown), result format ('' for none), function.

    `may_rerun`: the scheduler may restart it after a failure. `is_logged`: its result is only in
    its log.
    """

    folder: str = ""
    form: str = "pickle"
    function: str = ""
    may_rerun: bool = True
    is_logged: bool = False

    @staticmethod
    def from_request(request: Request, folder: str) -> Launched:
        """Return the launch of a request."""
        may_rerun = request.requeue or request.is_task
        call = request.call
        if call is None:
            return Launched(folder, form="", may_rerun=may_rerun)
        return Launched(folder, call.result_format, call.name, may_rerun)


class JobCluster(Protocol):
    """A job's cluster: hpcdash.client.cluster.Cluster."""

    @property
    def name(self) -> str: ...
    @property
    def session(self) -> ClusterSession: ...
    @property
    def states(self) -> JobStates: ...
    @property
    def early_results(self) -> EarlyResults: ...
    async def refresh(self) -> None: ...
    async def patiently(self, fetch: Callable[[], Awaitable[T]]) -> T: ...
    async def cancel_jobs(self, job_ids: tuple[str, ...]) -> None: ...
    async def set_kill_switch(self, job_id: str) -> None: ...


class SubmittedJob:
    """A submission, a job or an array with the tasks `indices`, which its Job objects share."""

    def __init__(
        self,
        cluster: JobCluster,
        job_id: str,
        launched: Launched,
        indices: Sequence[int] | None = None,
    ) -> None:
        self.cluster = cluster
        self.launched = launched
        self.tracked = TrackedJob(job_id, indices)
        self.outcomes: dict[int | None, CallOutcome] = {}
        # When a result was found missing.
        self._missing_at: dict[int | None, float] = {}
        self._fetching = asyncio.Lock()
        self._awaited = AwaitedResults(
            self.tracked, launched.folder, launched.form, launched.may_rerun
        )
        cluster.states.track(self.tracked)

    def job_id(self, index: int | None) -> str:
        if index is None:
            return self.tracked.job_id
        return with_tasks(self.tracked.job_id, ArrayTasks((range(index, index + 1),)))

    def result_path(self, index: int | None) -> str:
        """Return the file of a task's result, '' if it does not call a function."""
        folder = self.launched.folder
        form = self.launched.form
        return f"{folder}/{result_names(form, index)[0]}" if folder and form else ""

    async def wait(self, indices: Sequence[int | None], seconds: float | None) -> None:
        """Wait until tasks have ended; raises TimeoutError, or JobFailed if one cannot start."""
        requested = frozenset(indices)
        async with asyncio.timeout(seconds):
            await self._wait(requested, lambda: requested <= self.tracked.ended)

    async def wait_for_results(self, indices: Iterable[int | None], seconds: float | None) -> None:
        """Wait until each task has left a result or a failure, or has ended.

        Raises as `wait`, and UsageError if the job has no result.
        """
        if not (self.launched.is_logged or self.result_path(None)):
            raise UsageError(
                f"job {self.tracked.job_id} has no result: it was not submitted from here as a "
                "function call"
            )
        requested = frozenset(indices)
        tracked = self.tracked
        async with asyncio.timeout(seconds):
            await self._wait_early(requested, lambda: requested <= tracked.ended | tracked.written)

    async def wait_for_any_result(self, indices: Iterable[int]) -> list[int]:
        """Wait until a task has left a result or a failure, or has ended; return such tasks."""
        requested = frozenset(indices)
        tracked = self.tracked

        def finished() -> frozenset[int]:
            return requested & (tracked.ended | tracked.written)

        await self._wait_early(requested, lambda: bool(finished()))
        return sorted(finished())

    async def _wait_early(self, requested: frozenset[Any], is_done: Callable[[], bool]) -> None:
        if not is_done():
            async with self.cluster.early_results.searching(self._awaited, requested):
                await self._wait(requested, is_done)

    async def _wait(self, requested: frozenset[Any], is_done: Callable[[], bool]) -> None:
        if is_done():
            return
        tracked = self.tracked
        await self.cluster.states.wait(lambda: is_done() or self.never_starts(requested) != "")
        if is_done():
            return
        if reason := self.never_starts(requested):
            raise JobFailed(
                f"job {tracked.job_id} will not start: {reason}",
                f"hpcdash cancel {tracked.job_id} removes it.",
                job_id=tracked.job_id,
                state=str(JobState.PENDING),
            )

    def never_starts(self, requested: frozenset[int | None]) -> str:
        """Return the reason why a task can never start; '' for none."""
        never_starts = self.cluster.session.store.backend.reasons.never_starts
        for index in requested - self.tracked.ended:
            row = self.tracked.rows.get(index)
            reason = "" if row is None else str(row["reason"] or "")
            is_dependency = row is not None and "dependency" in reason.lower()
            if row is not None and is_dependency and never_starts(str(row["state"]), reason):
                return reason
        return ""

    def has_succeeded(self, index: int | None) -> bool:
        """Whether the scheduler reported success, or the result was read."""
        if self.tracked.state(index) == JobState.COMPLETED:
            return True
        outcome = self.outcomes.get(index)
        return outcome is not None and outcome.content is not None

    async def cancel(self, index: int | None) -> None:
        """Cancel a task, or with None all tasks.

        Raises HpcdashError if that was refused, or its answer was lost.
        """
        await self.cluster.cancel_jobs((self.job_id(index),))
        self.tracked.forget(self.tracked.indices if index is None else (index,))

    async def _fetch_logged(self, index: int | None) -> CallOutcome:
        """Fetch a result from the end of the job's log."""
        parse = self.cluster.session.store.backend.logs.result
        for pause in (0.0, *_RETRY_PAUSES):
            await asyncio.sleep(pause)
            file = await _log_file(Job[Any](self, index), stderr=False)
            if file is not None:
                content, failure = parse((await file.read_end(_LOGGED_RESULT_BYTES)).content)
                outcome = CallOutcome(JSON, content, failure)
                if outcome.is_whole:
                    self.outcomes[index] = outcome
                    return outcome
            if self.tracked.state(index) not in _MAY_HAVE_OUTCOME:
                break
        return CallOutcome(JSON)

    async def fetch(self, index: int | None) -> CallOutcome:
        """Fetch the outcome of a task that ended or left files, and those of other such tasks."""
        if index not in self.outcomes and self.launched.is_logged:
            return await self._fetch_logged(index)
        async with self._fetching:
            if index not in self.outcomes:
                await self._fetch_files(index)
        return self.outcomes.get(index) or CallOutcome(self.launched.form)

    async def _fetch_files(self, index: int | None) -> None:
        tracked = self.tracked
        ended = set(tracked.ended)
        now = asyncio.get_running_loop().time
        due = (ended | tracked.written) - self.outcomes.keys() - {index}
        for task, missing_at in self._missing_at.items():
            if now() - missing_at < _MISSING_SECONDS:
                due.discard(task)
                if task == index:
                    return
        others = [task for task in tracked.indices if task in due]
        remaining = [index, *others][:_MAX_RESULTS_PER_FETCH]
        fetch = partial(
            fetch_outcomes,
            self.cluster.session.store,
            self.launched.folder,
            self.launched.form,
        )
        for pause in (0.0, *_RETRY_PAUSES):
            await asyncio.sleep(pause)
            found = await self.cluster.patiently(partial(fetch, remaining))
            for task, outcome in found.items():
                if outcome.is_whole:
                    self.outcomes[task] = outcome
            remaining = [task for task in remaining if task not in self.outcomes]
            ended_remaining = [task for task in remaining if task in ended]
            for task in ended_remaining:
                if tracked.state(task) not in _MAY_HAVE_OUTCOME:
                    self._missing_at[task] = now()
            is_missing = tracked.state(index) not in _MAY_HAVE_OUTCOME
            if index not in ended_remaining or is_missing:
                return
        self._missing_at |= dict.fromkeys(ended_remaining, now())

    async def value(self, index: int | None, seconds: float | None) -> Any:
        outcome = await self._outcome(index, seconds)
        job_id = self.job_id(index)
        state = self.tracked.state(index)
        if not outcome.is_whole and state in _MAY_HAVE_RETURNED:
            await self._refuse_other_form(index)
        return await asyncio.to_thread(call_value, outcome, job_id=job_id, state=state)

    async def _refuse_other_form(self, index: int | None) -> None:
        """Raise UsageError if a result exists in another format than the requested one."""
        folder = self.launched.folder
        form = self.launched.form
        if not folder.startswith("/") or self.launched.is_logged:
            return
        store = self.cluster.session.store
        forms = await self.cluster.patiently(partial(find_forms, store, folder, index))
        for other in forms:
            if other == form:
                continue
            warning = ": reading a pickle runs the code in it" if other == PICKLE else ""
            raise UsageError(
                f"job {self.job_id(index)} stored its result as {other}, but {form} was requested",
                f'Use hpcdash.connect(…, result_format="{other}") to read it{warning}.',
            )

    async def _outcome(self, index: int | None, seconds: float | None) -> CallOutcome:
        while True:
            await self.wait_for_results([index], seconds)
            outcome = await self.fetch(index)
            if outcome.is_whole or index in self.tracked.ended:
                return outcome
            # The job was restarted after its result was seen.
            self.tracked.written.discard(index)


class Job(Generic[R_co]):
    """A job, or a task of an array; `R_co` is the type of its result.

    As an argument of another task it is replaced by its result, and that task's job depends on it.
    """

    def __init__(self, unit: SubmittedJob, index: int | None = None) -> None:
        self._unit = unit
        self._index = index

    @property
    def id(self) -> str:
        """ID of the job in the scheduler's form: `12`, `12_3`, `12[3].server`."""
        return self._unit.job_id(self._index)

    @property
    def cluster(self) -> JobCluster:
        return self._unit.cluster

    @property
    def folder(self) -> str:
        """The launch folder on the cluster, '' if unknown."""
        return self._unit.launched.folder

    def __repr__(self) -> str:
        return f"<Job {self.id} on {self.cluster.name}: {self._unit.tracked.state(self._index)}>"

    def __reduce__(self) -> Any:
        if not note_waiting(self):
            raise TypeError(
                "a job cannot be pickled: pass job.id, and call cluster.attach(id) there"
            )
        return load_result, (self.result_path, self._unit.launched.form)

    @property
    def result_path(self) -> str:
        """The file of the result on the cluster; raises UsageError if there will be none."""
        if path := self._unit.result_path(self._index):
            return path
        raise UsageError(f"job {self.id} has no result to pass on: it is not a function call")

    @property
    def status(self) -> str:
        """State of hpcdash.domain.states; polls if the last poll is older than the interval."""
        return run_in_loop(self._status())

    async def astatus(self) -> str:
        return await arun_in_loop(self._status())

    async def _status(self) -> str:
        if self._index not in self._unit.tracked.ended:
            await self.cluster.refresh()
        return self._unit.tracked.state(self._index)

    def done(self) -> bool:
        """Whether the job has ended, as of the last poll."""
        return self.status in ENDED

    def wait(self, timeout: float | None = None) -> str:
        """Wait for the end and return the state. Raises TimeoutError after `timeout` seconds."""
        return run_in_loop(self._wait(timeout))

    async def await_end(self, timeout: float | None = None) -> str:  # noqa: ASYNC109 - as in `result`
        return await arun_in_loop(self._wait(timeout))

    async def _wait(self, seconds: float | None) -> str:
        await self._unit.wait([self._index], seconds)
        return self._unit.tracked.state(self._index)

    def result(self, timeout: float | None = None) -> R_co:
        """Return the function's result as soon as it exists, which may be before the job's end.

        Raises the function's own exception, with the job's traceback as the cause; JobFailed if the
        job was cancelled or timed out, or its result cannot be read; TimeoutError after `timeout`
        seconds. See hpcdash.client.results on pickles.
        """
        return run_in_loop(self._unit.value(self._index, timeout))  # type: ignore[no-any-return]

    async def aresult(self, timeout: float | None = None) -> R_co:  # noqa: ASYNC109 - as in `result`
        return await arun_in_loop(self._unit.value(self._index, timeout))

    def __await__(self) -> Generator[Any, None, R_co]:
        return self.aresult().__await__()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception that `result` would raise, None for none. Raises TimeoutError."""
        run_in_loop(self._unit.wait_for_results([self._index], timeout))
        try:
            self.result()
        except Exception as error:
            return error
        return None

    async def aexception(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `exception`
    ) -> BaseException | None:
        await arun_in_loop(self._unit.wait_for_results([self._index], timeout))
        try:
            await self.aresult()
        except Exception as error:
            return error
        return None

    def cancel(self) -> None:
        """Cancel the job. Raises HpcdashError if that was refused, or its answer was lost."""
        run_in_loop(self._unit.cancel(self._index))

    async def acancel(self) -> None:
        await arun_in_loop(self._unit.cancel(self._index))

    @overload
    def logs(self, *, stderr: bool = False) -> str: ...
    @overload
    def logs(self, *, stderr: bool = False, follow: bool) -> Iterator[str] | str: ...
    def logs(self, *, stderr: bool = False, follow: bool = False) -> Iterator[str] | str:
        """Return the last MiB of the job's output; with `follow`, yield its lines until the end.

        Raises HpcdashError if the log cannot be read.
        """
        if not follow:
            return run_in_loop(_read_log(self, stderr))
        return self._follow(stderr)

    def _follow(self, stderr: bool) -> Iterator[str]:
        lines = _follow_log(self, stderr)
        try:
            while (line := run_in_loop(_next(lines))) is not None:
                yield line
        finally:
            finish_in_loop(lines.aclose())

    async def alogs(self, *, stderr: bool = False) -> AsyncIterator[str]:
        """Yield the job's lines until the end."""
        lines = _follow_log(self, stderr)
        try:
            while (line := await arun_in_loop(_next(lines))) is not None:
                yield line
        finally:
            await arun_in_loop(lines.aclose())

    def metrics(self, *names: str) -> pd.DataFrame:
        """Return the metrics in the log: a row per step, a column per metric, or only `names`."""
        return run_in_loop(self._metrics(names))

    async def ametrics(self, *names: str) -> pd.DataFrame:
        return await arun_in_loop(self._metrics(names))

    async def _metrics(self, names: Sequence[str]) -> pd.DataFrame:
        from hpcdash.frames import fetch_metrics, metrics_frame

        return await asyncio.to_thread(
            metrics_frame, await fetch_metrics(self.cluster.session, self.id, names)
        )

    def kill_switch(self) -> None:
        """Set the kill switch: the training saves and exits. Raises UsageError if it has none."""
        run_in_loop(self.cluster.set_kill_switch(self.id))

    async def akill_switch(self) -> None:
        await arun_in_loop(self.cluster.set_kill_switch(self.id))


class JobArray(Sequence[Job[R_co]], Generic[R_co]):
    """The tasks of an array, in order: those of a request's `array = "3-5"` are at 0, 1 and 2."""

    def __init__(self, unit: SubmittedJob) -> None:
        self._unit = unit
        self._jobs = [Job[R_co](unit, index) for index in unit.tracked.indices]

    @property
    def id(self) -> str:
        return self._unit.tracked.job_id

    @property
    def folder(self) -> str:
        return self._unit.launched.folder

    @overload
    def __getitem__(self, index: int) -> Job[R_co]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Job[R_co]]: ...
    def __getitem__(self, index: int | slice) -> Job[R_co] | list[Job[R_co]]:
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self._counts().most_common())
        return f"<JobArray {self.id} on {self._unit.cluster.name}: {states}>"

    def __reduce__(self) -> Any:
        if not note_waiting(Job(self._unit)):
            raise TypeError(
                "a job cannot be pickled: pass jobs.id, and call cluster.attach(id) there"
            )
        return load_results, ([job.result_path for job in self._jobs], self._unit.launched.form)

    @property
    def status(self) -> Counter[str]:
        """Return the number of tasks in each state, as of the last poll."""
        return run_in_loop(self._status())

    async def astatus(self) -> Counter[str]:
        return await arun_in_loop(self._status())

    async def _status(self) -> Counter[str]:
        await self._unit.cluster.refresh()
        return self._counts()

    def _counts(self) -> Counter[str]:
        return Counter(self._unit.tracked.state(index) for index in self._unit.tracked.indices)

    def wait(self, timeout: float | None = None) -> Counter[str]:
        """Wait for all tasks, and return how many ended in each state.

        Raises TimeoutError after `timeout` seconds.
        """
        return run_in_loop(self._wait(timeout))

    async def await_end(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `wait`
    ) -> Counter[str]:
        return await arun_in_loop(self._wait(timeout))

    async def _wait(self, seconds: float | None) -> Counter[str]:
        await self._unit.wait(self._unit.tracked.indices, seconds)
        return self._counts()

    @overload
    def results(self, timeout: float | None = None) -> list[R_co]: ...
    @overload
    def results(
        self, timeout: float | None = None, *, return_exceptions: bool
    ) -> list[R_co | BaseException]: ...
    def results(self, timeout: float | None = None, *, return_exceptions: bool = False) -> Any:
        """Return the function's results for all items, once all exist.

        Raises as Job.result for the first failure; with `return_exceptions`, exceptions replace the
        results.
        """
        return run_in_loop(self._results(timeout, return_exceptions))

    async def aresults(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `results`
        *,
        return_exceptions: bool = False,
    ) -> Any:
        return await arun_in_loop(self._results(timeout, return_exceptions))

    async def _results(self, seconds: float | None, return_exceptions: bool) -> list[Any]:
        await self._unit.wait_for_results(self._unit.tracked.indices, seconds)
        found: list[Any] = []
        for index in self._unit.tracked.indices:
            try:
                found.append(await self._unit.value(index, None))
            except Exception as error:
                if not return_exceptions:
                    raise
                found.append(error)
        return found

    def __await__(self) -> Generator[Any, None, list[R_co]]:
        return self.aresults().__await__()

    def cancel(self) -> None:
        """Cancel all tasks. Raises HpcdashError if that was refused, or its answer was lost."""
        run_in_loop(self._unit.cancel(None))

    async def acancel(self) -> None:
        await arun_in_loop(self._unit.cancel(None))


async def _next(lines: AsyncIterator[str]) -> str | None:
    return await anext(lines, None)


async def _log_file(job: Job[Any], stderr: bool) -> LogFile | None:
    """Return the job's log; None if there is none yet."""
    from hpcdash.services.logs.locate import locate_logs

    store = job.cluster.session.store
    place = await job.cluster.patiently(lambda: locate_logs(store, job.id))
    files = place.files
    path = (files.stderr or files.stdout) if stderr else files.stdout
    return store.log_file(path, files.host) if path else None


async def _read_log(job: Job[Any], stderr: bool) -> str:
    file = await _log_file(job, stderr)
    if file is None:
        raise HpcdashError(f"the log path of job {job.id} is unknown")
    chunk = await file.read_end(_LOG_BYTES)
    if chunk.stat.problem and not chunk.stat.is_missing:
        raise HpcdashError(f"{file.place}: {chunk.stat.problem}")
    return chunk.content.decode("utf-8", "replace")


async def _follow_log(job: Job[Any], stderr: bool) -> AsyncGenerator[str, None]:
    from hpcdash.services.logs.file import (
        LONGEST_PAUSE_SECONDS,
        SHORTEST_PAUSE_SECONDS,
        FileChange,
        FollowedFile,
    )

    log: FollowedFile | None = None
    rest = b""
    started_at = time.monotonic()
    budget = job.cluster.session.store.budget
    async with job.cluster.states.polling():
        while True:
            has_ended = job._index in job._unit.tracked.ended
            try:
                if log is None and (file := await _log_file(job, stderr)) is not None:
                    log = FollowedFile(file)
                chunk = None if log is None else await log.file.read(log.offset, _LOG_BYTES)
            except LoginRequired:
                raise
            except (UnreachableError, CommandTimedOut):
                await asyncio.sleep(LONGEST_PAUSE_SECONDS)
                continue
            quiet_seconds = time.monotonic() - started_at
            pause_seconds = SHORTEST_PAUSE_SECONDS
            if log is not None and chunk is not None:
                if log.note(chunk.stat) in (FileChange.REPLACED, FileChange.TRUNCATED):
                    log.read_to(0)
                    if rest:
                        yield rest.decode("utf-8", "replace")
                    rest = b""
                    continue
                if chunk.content:
                    log.read_to(chunk.end)
                    *lines, rest = (rest + chunk.content).split(b"\n")
                    for line in lines:
                        yield line.decode("utf-8", "replace")
                    continue
                quiet_seconds = log.quiet_seconds
                pause_seconds = log.pause_seconds
            if has_ended and quiet_seconds >= _QUIET_SECONDS:
                if rest:
                    yield rest.decode("utf-8", "replace")
                return
            await asyncio.sleep(max(pause_seconds, budget.reserve_read_seconds()))
