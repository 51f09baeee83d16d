"""A cluster of the configuration for Python programs: connects, submits, lists, attaches."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import logging
import posixpath
import sys
import tomllib
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from hpcdash.assembly import (
    EMBEDDED,
    broker_use,
    build_session,
    chosen_clusters,
    connection_pool,
)
from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.registry import OVER_HTTP
from hpcdash.backends.script.folder import SCRIPT_NAME
from hpcdash.client.early_results import EarlyResults
from hpcdash.client.job import Job, JobArray, Launched, SubmittedJob
from hpcdash.client.loop import arun_in_loop, run_in_loop
from hpcdash.client.packaging import refuse_import_time
from hpcdash.client.results import find_forms
from hpcdash.client.task import Prepared, merged, prepare
from hpcdash.client.tracking import JobStates
from hpcdash.config.destination import ClusterChoice
from hpcdash.config.read import load_settings
from hpcdash.config.request import request_text
from hpcdash.config.settings import ClusterSettings
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.demand import format_finding
from hpcdash.domain.job_ids import parse_array_id, parse_task_part
from hpcdash.domain.request import Request, Site
from hpcdash.domain.states import ENDED, JobState
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, RateLimited, UsageError
from hpcdash.job.callbacks import Callback, ClientCallbacks
from hpcdash.job.results import JSON, PICKLE
from hpcdash.job.states import JobStatus, Launch
from hpcdash.job.task import Task
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.recovery import reconcile_noted
from hpcdash.services.submit.staging import staged_folder
from hpcdash.transport.prompter import TerminalPrompter

if TYPE_CHECKING:
    import pandas as pd


T = TypeVar("T")
# Limit of callbacks when a program exits.
_LAST_CALLBACKS_SECONDS = 10.0
_open: list[Cluster] = []


def connect(
    name: str = "",
    *,
    file: str | Path | None = None,
    callbacks: Iterable[Callback] = (),
    config: str | Path | None = None,
    **options: Any,
) -> Cluster:
    """Connect to a cluster of the configuration; '' is the first, or this machine's scheduler.

    `USER@HOST` is a login node, `http://…` a dashboard, and "local" this machine's embedded queue
    unless a cluster has that name. `file` (a request's TOML without its command) and `options` are
    the defaults of tasks. The cluster is the current one until it is closed or another is
    connected. Raises ConfigError, UsageError, and the errors of the connection.
    """
    return run_in_loop(_connect(name, file, tuple(callbacks), config, options))


def connect_aside(name: str) -> Cluster:
    """Connect to a cluster, but use it only for tasks that name it while others are connected."""
    cluster = connect(name)
    _open.remove(cluster)
    _open.insert(0, cluster)
    return cluster


async def aconnect(
    name: str = "",
    *,
    file: str | Path | None = None,
    callbacks: Iterable[Callback] = (),
    config: str | Path | None = None,
    **options: Any,
) -> Cluster:
    """Connect in an event loop, like `connect`."""
    return await arun_in_loop(_connect(name, file, tuple(callbacks), config, options))


async def _connect(
    name: str,
    file: str | Path | None,
    callbacks: tuple[Callback, ...],
    config: str | Path | None,
    options: Mapping[str, Any],
) -> Cluster:
    settings = load_settings(None if config is None else Path(config))
    common = ClusterChoice(config=None if config is None else Path(config))
    if "://" in name:
        common = replace(common, url=name, backend=OVER_HTTP[0])
    elif name in settings.clusters or not name:
        common = replace(common, cluster=name or None)
    elif name == EMBEDDED:
        common = replace(common, local=True, backend=EMBEDDED)
    elif "@" in name:
        common = replace(common, ssh=name)
    else:
        common = replace(common, cluster=name)
    chosen = chosen_clusters(common, settings)[0]
    defaults = merged(_read_defaults(file), options)
    pool = connection_pool(TerminalPrompter(), broker_use(common, settings))
    session = build_session(chosen, pool, share=settings.share)
    try:
        await session.store.open(force=True)
    except BaseException:
        await session.store.close()
        raise
    cluster = Cluster(session, chosen, defaults, callbacks, is_read_only=settings.read_only)
    _open.append(cluster)
    return cluster


def _read_defaults(file: str | Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file}: {error}") from error


def task_cluster(task: Task[Any, Any]) -> Cluster:
    """Return the cluster of a task's options, or the current one; raises UsageError for none."""
    chosen = task.options.get("cluster")
    if isinstance(chosen, Cluster):
        return chosen
    if isinstance(chosen, str):
        for cluster in reversed(_open):
            if cluster.name == chosen:
                return cluster
        raise UsageError(
            f"no cluster {chosen!r} is connected", f'Call hpcdash.connect("{chosen}") first.'
        )
    if not _open:
        raise UsageError("no cluster is connected", 'Call hpcdash.connect("NAME") first.')
    return _open[-1]


def submit_task(task: Task[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Job[Any]:
    refuse_import_time(task.function)
    return run_in_loop(_submit(task, args, kwargs))


async def asubmit_task(
    task: Task[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Job[Any]:
    refuse_import_time(task.function)
    return await arun_in_loop(_submit(task, args, kwargs))


def map_task(
    task: Task[Any, Any], items: Iterable[Any], kwargs: Mapping[str, Any], at_most: int | None
) -> JobArray[Any]:
    refuse_import_time(task.function)
    return run_in_loop(_map(task, list(items), kwargs, at_most))


async def amap_task(
    task: Task[Any, Any], items: Iterable[Any], kwargs: Mapping[str, Any], at_most: int | None
) -> JobArray[Any]:
    refuse_import_time(task.function)
    return await arun_in_loop(_map(task, list(items), kwargs, at_most))


async def _submit(
    task: Task[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Job[Any]:
    return await task_cluster(task).submit_call(task, args, kwargs)


async def _map(
    task: Task[Any, Any], items: list[Any], kwargs: Mapping[str, Any], at_most: int | None
) -> JobArray[Any]:
    return await task_cluster(task).submit_map(task, items, kwargs, at_most)


class Cluster(AbstractContextManager["Cluster"], AbstractAsyncContextManager["Cluster"]):
    """A connection to a cluster, whose poll serves all jobs of the program."""

    def __init__(
        self,
        session: ClusterSession,
        settings: ClusterSettings,
        defaults: Mapping[str, Any],
        callbacks: tuple[Callback, ...] = (),
        *,
        is_read_only: bool = False,
    ) -> None:
        self._is_read_only = is_read_only
        self.session = session
        self.defaults = defaults
        self.callbacks = callbacks
        self.is_here = settings.transport == "local"
        self.states = JobStates(session)
        self.early_results = EarlyResults(session, self.states)
        self._warned: set[str] = set()
        self._watching: dict[asyncio.Task[None], SubmittedJob] = {}

    @property
    def name(self) -> str:
        return self.session.name

    @property
    def python(self) -> str:
        """The default interpreter of jobs."""
        return sys.executable if self.is_here else "python3"

    @property
    def title(self) -> str:
        return self.session.store.backend.title

    @property
    def logs_results(self) -> bool:
        """Whether results are read from logs, as jobs have no folders to fetch them from."""
        return self.session.store.backend.logs.has_results

    @property
    def site(self) -> Site:
        return self.session.launches.settings.site

    @property
    def _result_format(self) -> str:
        """The format of results in the options of `connect`."""
        return str(self.defaults.get("result_format", PICKLE))

    def __repr__(self) -> str:
        return f"<Cluster {self.name}: {self.session.origin}>"

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the connection. Jobs continue; `attach` finds them again."""
        run_in_loop(self._close())

    async def aclose(self) -> None:
        await arun_in_loop(self._close())

    async def _close(self) -> None:
        if self in _open:
            _open.remove(self)
        # Callbacks still receive observed ends.
        if finished := [task for task, unit in self._watching.items() if unit.tracked.is_over]:
            await asyncio.wait(finished, timeout=_LAST_CALLBACKS_SECONDS)
        for task in self._watching:
            task.cancel()
        self.states.stop()
        await self.session.poller.stop()
        await self.session.store.close()

    # -- jobs and tables

    def jobs(self, filter: str = "", *, everyone: bool = False) -> pd.DataFrame:
        """Return the jobs of `hpcdash jobs --filter`: your own, or with `everyone` all."""
        return run_in_loop(self._listed(Kind.EVERYONE if everyone else Kind.MINE, filter))

    async def ajobs(self, filter: str = "", *, everyone: bool = False) -> pd.DataFrame:
        return await arun_in_loop(self._listed(Kind.EVERYONE if everyone else Kind.MINE, filter))

    def nodes(self, filter: str = "") -> pd.DataFrame:
        """Return the nodes of `hpcdash nodes --filter`."""
        return run_in_loop(self._listed(Kind.NODES, filter))

    async def anodes(self, filter: str = "") -> pd.DataFrame:
        return await arun_in_loop(self._listed(Kind.NODES, filter))

    async def _listed(self, kind: Kind, filter: str) -> pd.DataFrame:
        from hpcdash import frames

        rows = await frames.fetch_listed(self.session, kind, filter)
        return await asyncio.to_thread(frames.listed_frame, kind, rows)

    def history(self, since: str = "7d", until: str = "", **selection: Any) -> pd.DataFrame:
        """Return a row per run that ended in an interval; see hpcdash.frames.history."""
        return run_in_loop(self._history(since, until, selection))

    async def ahistory(self, since: str = "7d", until: str = "", **selection: Any) -> pd.DataFrame:
        return await arun_in_loop(self._history(since, until, selection))

    async def _history(self, since: str, until: str, selection: Mapping[str, Any]) -> pd.DataFrame:
        from hpcdash import frames

        runs = await frames.fetch_history(self.session, since, until, **selection)
        return await asyncio.to_thread(frames.history_frame, runs)

    def attach(self, job_id: str) -> Job[Any] | JobArray[Any]:
        """Return a job that any program submitted before: `12`, `12_3`, or an array's number.

        If it calls a function, its result is read in the format of its launch record, or that of
        `connect`; after `connect(…, result_format="json")` pickles are not read. Raises NoSuchJob.
        """
        return run_in_loop(self._attach(job_id))

    async def aattach(self, job_id: str) -> Job[Any] | JobArray[Any]:
        return await arun_in_loop(self._attach(job_id))

    async def _attach(self, job_id: str) -> Job[Any] | JobArray[Any]:
        from hpcdash.services.submit.launched_job import find_launch_record, launch_request

        store = self.session.store
        await store.open()
        row = (await self.patiently(lambda: store.fetch_detail(job_id))).job.to_pylist()[0]
        number = str(row["array_id"] or row["id"])
        record = await asyncio.to_thread(
            find_launch_record, self.session.launches.state_folder, self.name, row
        )
        array = None
        if record is None:
            launched = await self._find_launch(row)
        else:
            request = await asyncio.to_thread(launch_request, record)
            launched = Launched(record.folder)
            if request is not None:
                launched = Launched.from_request(request, record.folder)
                array = request.array
            if launched.form and self._result_format == JSON:
                launched = replace(launched, form=JSON)
        rows: Sequence[Mapping[str, Any]] = (row,)
        index: int | None = None
        indices: tuple[int, ...] | None = None
        task = parse_task_part(job_id)
        is_task = row["array_id"] is not None or row["array_task"] is not None
        if is_task and task.isdigit():
            index = int(task)
            indices = (int(task),)
            number = parse_array_id(str(row["id"]))
        elif is_task:
            rows = (row, *await self.session.actions.fetch_rows((number,)))
            if array is not None:
                indices = tuple(array)
            else:
                indices = _task_numbers(rows, is_map=bool(launched.folder))
        unit = SubmittedJob(self, number, launched, indices)
        # The job may have finished already.
        unit.tracked.update(rows)
        return JobArray(unit) if indices is not None and index is None else Job(unit, index)

    async def _find_launch(self, row: Mapping[str, Any]) -> Launched:
        """Find the launch of an unrecorded job by its log, which is in the launch folder."""
        if self.logs_results:
            return Launched(form=JSON, is_logged=True)
        path = str(row["stdout_path"] or "")
        if not path.startswith("/"):
            return Launched()
        folder = posixpath.dirname(path)
        is_launch = await self.patiently(lambda: find_forms(self.session.store, folder)) != ()
        # This program chooses the format, as reading a planted pickle would run its code.
        return Launched(folder, self._result_format) if is_launch else Launched()

    # -- submitting

    def submit(self, request: Request) -> Job[Any] | JobArray[Any]:
        """Submit a request, as `hpcdash submit REQUEST.toml` does; raises HpcdashError."""
        return run_in_loop(self._submit_request(request))

    async def asubmit(self, request: Request) -> Job[Any] | JobArray[Any]:
        return await arun_in_loop(self._submit_request(request))

    async def _submit_request(self, request: Request) -> Job[Any] | JobArray[Any]:
        text = request_text(request, site=self.site)
        submitted, folder = await self._submit(request, text, None)
        launched = Launched.from_request(request, folder)
        if request.array is None:
            return Job(SubmittedJob(self, submitted, launched))
        return JobArray(SubmittedJob(self, submitted, launched, tuple(request.array)))

    async def submit_call(
        self, task: Task[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Job[Any]:
        """Submit a call; see Task.submit."""
        prepared = await asyncio.to_thread(prepare, self, task, args, kwargs)
        return Job(await self._submit_prepared(prepared))

    async def submit_map(
        self, task: Task[Any, Any], items: list[Any], kwargs: Mapping[str, Any], at_most: int | None
    ) -> JobArray[Any]:
        """Submit an array with a call for each item; see Task.map."""
        prepared = await asyncio.to_thread(
            prepare, self, task, kwargs=kwargs, items=items, at_most=at_most
        )
        return JobArray(await self._submit_prepared(prepared, range(len(items))))

    async def submit_packed(
        self, task: Task[Any, Any], calls: list[bytes], at_most: int | None
    ) -> SubmittedJob:
        """Submit an array of calls that contain their functions; `task` has code and settings."""
        prepared = await asyncio.to_thread(prepare, self, task, calls=calls, at_most=at_most)
        return await self._submit_prepared(prepared, range(len(calls)))

    async def _submit_prepared(
        self, prepared: Prepared, indices: Sequence[int] | None = None
    ) -> SubmittedJob:
        known = await self._cached(prepared.cache_key) if prepared.cache_key else None
        job_id, folder = known or await self._submit(
            prepared.request, prepared.text, prepared.folder
        )
        launched = Launched.from_request(prepared.request, folder)
        if self.logs_results:
            launched = replace(launched, is_logged=True)
        unit = SubmittedJob(self, job_id, launched, indices)
        if prepared.callbacks and known is None:
            self._call_back(unit, prepared.callbacks)
        return unit

    async def _submit(self, request: Request, text: str, folder: Path | None) -> tuple[str, str]:
        """Submit a request and return its (ID, folder).

        Raises HpcdashError if it was not submitted, or the outcome is unknown.
        """
        self._refuse_changes()
        session = self.session
        await session.store.open(force=True)
        launches = session.launches
        planned = await self.patiently(lambda: launches.plan(request, text, base=folder))
        self._warn(map(format_finding, await launches.findings(planned)))
        result = await launches.submit(planned, session.actions)
        outcome = result.outcome
        if outcome.done is not True:
            ending = "was not submitted"
            next_step = ""
            if outcome.done is None:
                ending = "may have been submitted; the answer was lost"
                next_step = "hpcdash journal --settle searches for it."
            reason = "; ".join(filter(None, (outcome.text, result.message)))
            raise HpcdashError(f"{request.name or 'the job'} {ending}: {reason}", next_step)
        self.states.submitted()
        self.early_results.submitted()
        return outcome.new_job, planned.folder

    def _warn(self, warnings: Iterable[str]) -> None:
        """Log each warning once; Python's default is stderr."""
        for text in warnings:
            if text not in self._warned:
                self._warned.add(text)
                logging.getLogger("hpcdash").warning("hpcdash: %s", visible(text))

    async def _cached(self, key: str) -> tuple[str, str] | None:
        """Return (ID, folder) of the newest launch of the same call that did not fail, or None.

        This includes launches whose program was killed during the submission. Raises HpcdashError
        if the outcome of one is unknown.
        """
        records = await asyncio.to_thread(self.session.launches.records.all)
        launches = [
            (record.job_id, record.folder)
            for record in reversed(records)
            if record.job_id and f'cache_key = "{key}"' in record.request
        ]
        launches += await self._journal_launches(key, {folder for _, folder in launches})
        failed_states = ENDED - {JobState.COMPLETED}
        for job_id, folder in launches:
            try:
                rows = await self.session.actions.fetch_rows((job_id,))
            except HpcdashError:
                continue
            if failed_states.isdisjoint(str(row["state"]) for row in rows):
                return job_id, folder
        return None

    async def _journal_launches(self, key: str, known: Container[str]) -> list[tuple[str, str]]:
        """Return the launches of a call that only the journal has, as their program was killed."""
        journal = self.session.actions.journal
        found = []
        for entry in (await asyncio.to_thread(journal.read))[0]:
            folder = ""
            for word in itertools.chain.from_iterable(entry.commands):
                if not folder and word.endswith(SCRIPT_NAME):
                    folder = posixpath.dirname(word)
            # If the scheduler received the script itself, the staging command has the folder.
            for command in entry.commands:
                folder = folder or staged_folder(command)
            if entry.cluster != self.name or not folder.endswith(f"_{key[:8]}") or folder in known:
                continue
            outcomes = entry.outcomes
            if entry.state == "unknown":
                outcomes = await reconcile_noted(self.session.store, journal, entry)
                if any(outcome.done is None for outcome in outcomes):
                    raise HpcdashError(
                        f"the same call may have been submitted before, in {folder}: "
                        f"{outcomes[-1].text}",
                        "hpcdash journal --settle searches for it.",
                    )
            for outcome in outcomes:
                if outcome.done and outcome.new_job:
                    found.append((outcome.new_job, folder))
        return found

    def conditions(self, after: Iterable[tuple[Any, str]]) -> list[str]:
        """Return `afterok:12` for each dependency, without jobs that have succeeded already."""
        found = []
        for job, kind in after:
            if not isinstance(job, Job | JobArray):
                found.append(f"{kind}:{job}")
                continue
            if job._unit.cluster is not self:
                raise UsageError(
                    f"job {job.id} is on {job._unit.cluster.name}, not on {self.name}",
                    "Pass job.result() instead.",
                )
            is_met = isinstance(job, Job) and job._unit.has_succeeded(job._index)
            if not is_met or kind == "afternotok":
                found.append(f"{kind}:{job.id}")
        return found

    def _refuse_changes(self) -> None:
        if self._is_read_only:
            raise UsageError("refused: hpcdash is read-only (configuration)")

    # -- requests of jobs

    async def refresh(self) -> None:
        """Poll unless the last poll is more recent than the interval."""
        store = self.session.store
        poller = self.session.poller
        snapshot = store.snapshots.get(Kind.MINE)
        interval = poller.interval_seconds(Kind.MINE)
        if snapshot is None or snapshot.cached or store.clock.now() - snapshot.taken_at >= interval:
            await self.patiently(self.states.poll_now)
        else:
            await self.states.read()

    async def patiently(self, fetch: Callable[[], Awaitable[T]]) -> T:
        """Return a query's result; retries while our own limit on commands is reached."""
        while True:
            try:
                return await fetch()
            except RateLimited:
                await asyncio.sleep(self.session.store.budget.wait_seconds(times=2) + 0.1)

    async def cancel_jobs(self, job_ids: tuple[str, ...]) -> None:
        """Cancel jobs; raises HpcdashError for the first that was not cancelled."""
        self._refuse_changes()
        actions = self.session.actions
        await self.session.store.open()
        rows = await actions.fetch_rows(job_ids)
        report = await actions.run(actions.plan(ActionRequest(Verb.CANCEL, job_ids), rows))
        for outcome in report.outcomes:
            if outcome.done is not True:
                raise HpcdashError(f"job {outcome.job_id} was not cancelled: {outcome.text}")
        self.session.poller.poll_now()
        self.states.hurry()

    async def set_kill_switch(self, job_id: str) -> None:
        """Set a job's kill switch; raises UsageError if it has none, or SwitchRefused."""
        self._refuse_changes()
        from hpcdash.domain.switches import SwitchKind
        from hpcdash.services.switches.switches import JobSwitches
        from hpcdash.services.switches.tracker import SwitchTracker

        switches = JobSwitches(self.session.actions, self.session.actions.journal.path.parent)
        switch = await switches.find(job_id, SwitchKind.KILL)
        if switch.problem:
            raise UsageError(switch.problem, 'Set kill_switch="PATH" for the task.')
        tracker = SwitchTracker(switches, switch)
        await tracker.check_file()
        outcomes, _ = await tracker.run(tracker.plan_drop())
        for outcome in outcomes:
            if outcome.done is not True:
                raise HpcdashError(f"the kill switch of job {job_id} was not set: {outcome.text}")

    def _call_back(self, unit: SubmittedJob, callbacks: tuple[Callback, ...]) -> None:
        """Call the callbacks as the scheduler reports the job's states, until it ends."""
        module, _, function = unit.launched.function.partition(":")
        reported = {}
        for index in unit.tracked.indices:
            launch = Launch(module, function, unit.launched.folder, array_index=index)
            reported[index] = ClientCallbacks(callbacks, launch)
        done: set[int | None] = set()

        def notify() -> None:
            now = self.session.store.clock.now()
            for index, row in list(unit.tracked.rows.items()):
                if index in done:
                    continue
                is_ended = index in unit.tracked.ended
                is_success = None
                if row["state"] not in (JobState.GONE, JobState.UNKNOWN):
                    is_success = row["state"] == JobState.COMPLETED
                status = JobStatus(
                    unit.job_id(index),
                    str(row["native_state"] or row["state"]),
                    now,
                    is_ended=is_ended,
                    is_success=is_success if is_ended else None,
                    exit_status=row["exit_code"],
                    reason=row["reason"],
                )
                reported[index].see(status, unit.result_path(index) if is_success else None)
                if is_ended:
                    done.add(index)

        async def follow() -> None:
            async with self.states.polling():
                while len(done) < len(unit.tracked.indices):
                    news = self.states.news
                    # Callbacks may take long, and may request the job.
                    await asyncio.to_thread(notify)
                    if len(done) < len(unit.tracked.indices):
                        await news.wait()

        task = asyncio.create_task(follow(), name=f"callbacks of {unit.tracked.job_id}")
        self._watching[task] = unit
        task.add_done_callback(lambda _: self._watching.pop(task))


def _task_numbers(rows: Iterable[Mapping[str, Any]], *, is_map: bool) -> tuple[int, ...]:
    """Return the tasks of an array that only the scheduler knows."""
    known: set[int] = set()
    last = 0
    for row in rows:
        if row["array_task"]:
            known.update(parse_tasks(str(row["array_task"])))
        last = max(last, int(row["_task"] or 0) + int(row["_tasks"] or 1) - 1)
    if is_map:
        # A map starts at 0; a scheduler forgets the first tasks and shortens long lists.
        known.update(range(max({last, *known}) + 1))
    return tuple(sorted(known))


@atexit.register
def _close_all() -> None:
    for cluster in list(_open):
        with contextlib.suppress(Exception):
            cluster.close()
