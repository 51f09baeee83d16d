"""Launches requested over HTTP: once per key, as an account, and stored across restarts.

Callers pass the accounts that they may see; launches of other accounts do not exist for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.backends.base import Capability
from hpcdash.config.request import request_text
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.job_ids import parse_job_key, with_tasks
from hpcdash.domain.request import SITE_SAID, Request
from hpcdash.domain.schema import JOBS
from hpcdash.domain.states import ENDED
from hpcdash.domain.tables import Kind
from hpcdash.errors import HpcdashError, SchedulerRefused, UnreachableError, UsageError
from hpcdash.services.jobs.actions import NEVER_ARRIVED, Plan, Report
from hpcdash.services.jobs.launch_status import LaunchStatus, launch_status
from hpcdash.services.jobs.lookup import representative_task
from hpcdash.services.jobs.rows import select_rows
from hpcdash.services.logs.file import LogFile
from hpcdash.services.logs.locate import locate_logs
from hpcdash.services.session import ClusterSession
from hpcdash.services.shared_answers import SharedAnswers
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.state.journal import JournalEntry
from hpcdash.services.submit.launch_folders import fetch_ended, remove_folder
from hpcdash.services.submit.recovery import build_searches, reconcile, reconcile_noted
from hpcdash.services.submit.served_launches import ServedLaunch, ServedLaunches, Stage
from hpcdash.services.submit.submission import CLOCKS_APART, Search, SubmissionPlan

Row = Mapping[str, Any]
MAX_LISTED = 1000
# Each takes several commands on the login node.
_MAX_AT_ONCE = 4
_JOURNAL_ENTRIES = 20_000
# A job without a trace in the queue and the history is given up this long after its submission.
_FORGOTTEN_SECONDS = 86_400.0
_SETTLE_EVERY_SECONDS = 60.0
# A submission normally gets into the journal within seconds.
_UNNOTED_SECONDS = 180.0


class NoSuchLaunch(HpcdashError):
    """There is no such launch, or it is another account's."""

    def __init__(self) -> None:
        super().__init__("no such launch", "GET /launches lists your accounts' launches.")


class NoLog(HpcdashError):
    """A log does not exist, or is unreadable."""


class NoResult(HpcdashError):
    """A function left no readable result."""


class ResultTooLarge(HpcdashError):
    """A result exceeds the size limit of HTTP responses."""


class NotAllowed(HpcdashError):
    """A caller's token does not allow the request."""


class KeyReused(UsageError):
    """A caller used the key of one launch for another."""


class NotEnded(HpcdashError):
    """A launch cannot be deleted, as its jobs have not ended."""


class LaunchState(Struct, frozen=True):
    """A launch, its known rows of domain.schema.JOBS, and the number of jobs in each state."""

    launch: ServedLaunch
    rows: tuple[Row, ...] = ()
    tasks: Mapping[str, int] | None = None

    @property
    def status(self) -> LaunchStatus:
        """The most significant status of its tasks: running if any runs, failed if any failed."""
        if self.tasks is None:
            is_submitted = self.launch.stage is Stage.SUBMITTED
            return LaunchStatus.PENDING if is_submitted else LaunchStatus.UNKNOWN
        if not self.tasks:
            return LaunchStatus.MISSING
        found = {launch_status(state) for state in self.tasks}
        return next(status for status in _SIGNIFICANCE if status in found)

    @property
    def has_ended(self) -> bool:
        return self.launch.stage is Stage.ENDED


class CallFiles(Struct, frozen=True):
    """Files for the result and the failure of a function that the job `job_id` calls."""

    launch_id: str
    job_id: str
    is_pickle: bool
    result: LogFile
    failure: LogFile


# The most significant first.
_SIGNIFICANCE = (
    LaunchStatus.RUNNING,
    LaunchStatus.TERMINATING,
    LaunchStatus.PENDING,
    LaunchStatus.UNKNOWN,
    LaunchStatus.FAILED,
    LaunchStatus.TERMINATED,
    LaunchStatus.MISSING,
    LaunchStatus.COMPLETED,
)


class LaunchService:
    """The launches of one cluster that were requested over HTTP."""

    def __init__(self, session: ClusterSession) -> None:
        launches = session.launches
        if launches.state_folder is None:
            raise UsageError(
                "no cluster to launch requests on",
                "Specify one: --cluster NAME or --ssh HOST",
            )
        self._session = session
        self._store = session.store
        self._launches = launches
        self._served = ServedLaunches(launches.state_folder, session.name)
        self._submitting: dict[tuple[str, str], tuple[str, asyncio.Task[ServedLaunch]]] = {}
        self._tasks: set[asyncio.Task[ServedLaunch]] = set()
        # IDs of launches that this process is submitting.
        self._own: set[str] = set()
        self._turn = asyncio.Semaphore(_MAX_AT_ONCE)
        self._states: SharedAnswers[str, Mapping[str, tuple[Row, ...]]] = SharedAnswers(
            session.poller.pace.seconds[Kind.MINE]
        )
        self._settling: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    # -- lifecycle

    def start(self) -> None:
        """Settle interrupted submissions and remove folders periodically."""
        self._settling = asyncio.create_task(
            self._settle(), name=f"settle launches of {self._store.name}"
        )

    async def stop(self) -> None:
        """Wait for started submissions; the journal has those that are cancelled."""
        if self._settling is not None:
            self._settling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._settling
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _settle(self) -> None:
        while True:
            try:
                await self.reconcile()
            except HpcdashError:
                # The next round retries.
                pass
            await self._launches.remove_finished_folders(every_seconds=_SETTLE_EVERY_SECONDS)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_EVERY_SECONDS):
                    await self._changed.wait()

    # -- launching

    @property
    def own_account(self) -> str:
        """Account of jobs submitted without run_as; '' before the first query."""
        return self._store.probe.user if self._store.probe is not None else ""

    async def submit(
        self,
        client: str,
        accounts: Sequence[str],
        requested: Request,
        files: Mapping[str, bytes],
        key: str | None = None,
    ) -> ServedLaunch:
        """Launch a request as the account in its run_as, else the first of `accounts`.

        A `key` that the client has used before returns the launch of that time, and nothing is
        submitted. A launch whose answer was lost stays at the stage SUBMITTING. The submission
        continues if the caller is cancelled. Raises NotAllowed, KeyReused, UsageError,
        SchedulerRefused if it was certainly not submitted, and the errors of an unreachable
        cluster.
        """
        await self._store.open()
        account, request = self._as_allowed(requested, accounts)
        digest = _digest(request, files)

        def start() -> asyncio.Task[ServedLaunch]:
            task = asyncio.create_task(self._submit(client, account, request, files, digest, key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            return task

        if key is None:
            return await asyncio.shield(start())
        known = self._submitting.get((client, key))
        if known is None:
            found = await asyncio.to_thread(self._served.find_by_key, client, key)
            # Another call may have started it meanwhile.
            known = self._submitting.get((client, key))
            if found is not None and known is None:
                return _same(found, digest)
        if known is None:
            task = start()
            known = self._submitting[client, key] = (digest, task)
            task.add_done_callback(lambda _: self._submitting.pop((client, key), None))
        if known[0] != digest:
            raise _reused()
        return await asyncio.shield(known[1])

    def _as_allowed(self, requested: Request, accounts: Sequence[str]) -> tuple[str, Request]:
        """Return the account that owns a launch, and the request with its run_as.

        The request is unchanged if jobs have no owner.
        """
        is_set = f"{SITE_SAID}run_as" in requested.said
        account = requested.site.run_as if is_set else accounts[0]
        if account not in accounts:
            raise NotAllowed(
                f"this token may not run as {account}", f"It may run as {', '.join(accounts)}."
            )
        backend = self._store.backend
        is_own = account == self.own_account
        if Capability.OWNERS not in backend.capabilities:
            if is_set:
                raise UsageError(f"run_as: {backend.title} jobs have no owner", "Remove it.")
            is_own = True
        if not is_own and not backend.submit.program:
            raise NotAllowed(
                f"this server cannot run as {account}: {backend.title} runs jobs as the user who "
                "submits them",
                f"Add its own account, {self.own_account}, to the token's accounts.",
            )
        site = replace(requested.site, run_as="" if is_own else account)
        return account, replace(requested, site=site)

    async def _submit(
        self,
        client: str,
        account: str,
        request: Request,
        files: Mapping[str, bytes],
        digest: str,
        key: str | None,
    ) -> ServedLaunch:
        async with self._turn:
            text = request_text(request, site=self._launches.settings.site)
            planned = await self._launches.plan(request, text, files)
            findings = await self._launches.findings(planned)
            messages = [*planned.notes, *(finding.text for finding in findings)]
            [search] = planned.searches.values()
            assert planned.record is not None
            launch = ServedLaunch(
                launch_id=secrets.token_hex(16),
                client=client,
                key=key,
                account=account,
                at=planned.record.at,
                stage=Stage.SUBMITTING,
                digest=digest,
                mark=search.mark,
                record=planned.record,
                text="; ".join(messages),
            )
            self._own.add(launch.launch_id)
            try:
                if not await asyncio.to_thread(self._served.add, launch):
                    # Another server has the same state.
                    found = await asyncio.to_thread(self._served.find_by_key, client, key or "")
                    if found is None:
                        raise HpcdashError("another server just used this key", "Send it again.")
                    return _same(found, digest)
                result = await self._launches.submit(planned, self._session.actions)
                return await self._settled(launch, result.outcome, result.message)
            finally:
                self._own.discard(launch.launch_id)

    async def _settled(
        self, launch: ServedLaunch, outcome: Outcome, message: str = ""
    ) -> ServedLaunch:
        """Store the outcome of a submission; raise the refusal of one that was not accepted."""
        if outcome.done is False:
            await asyncio.to_thread(self._served.forget, launch)
            raise _refusal(outcome, message)
        messages = [launch.text, message]
        if outcome.done:
            record = replace(launch.record, job_id=outcome.new_job)
            launch = replace(launch, stage=Stage.SUBMITTED, record=record)
        else:
            messages.append(outcome.text)
            self._changed.set()
        launch = replace(launch, text="; ".join(filter(None, messages)))
        await asyncio.to_thread(self._served.update, launch)
        return launch

    # -- outcomes of interrupted submissions

    async def reconcile(self) -> None:
        """Find the outcome of interrupted submissions; nothing is submitted.

        Raises StateUnusable and JournalUnreadable.
        """
        submitting = await asyncio.to_thread(self._served.launches_in_stage, Stage.SUBMITTING)
        interrupted = [one for one in submitting if one.launch_id not in self._own]
        if not interrupted:
            return
        by_mark = await asyncio.to_thread(self._entries_by_mark)
        for launch in interrupted:
            entry = by_mark.get(launch.mark)
            if entry is None:
                is_running = self._store.clock.now() - launch.at < _UNNOTED_SECONDS
            else:
                is_running = entry.state == "running"
            # Another process may be submitting it.
            if not is_running:
                await self._reconcile(launch, entry)

    def _entries_by_mark(self) -> Mapping[str, JournalEntry]:
        entries, _ = self._session.actions.journal.read(_JOURNAL_ENTRIES)
        found = {}
        for entry in entries:
            if entry.cluster == self._store.name and entry.verb == Verb.SUBMIT:
                for search in build_searches(entry).values():
                    found[search.mark] = entry
        return found

    async def _reconcile(self, launch: ServedLaunch, entry: JournalEntry | None) -> None:
        if entry is not None:
            outcomes: Sequence[Outcome] = entry.outcomes
            if not outcomes or any(one.done is None for one in outcomes):
                outcomes = await reconcile_noted(self._store, self._session.actions.journal, entry)
        else:
            name = launch.record.name
            not_before = datetime.fromtimestamp(launch.at, UTC) - CLOCKS_APART
            search = Search(launch.mark, name, not_before, launch.record.run_as)
            plan = Plan(ActionRequest(Verb.SUBMIT, (name,)), (), ())
            planned = SubmissionPlan(plan, (), {name: search})
            report = Report(plan, (Outcome(name, None),))
            outcomes = await reconcile(self._store, planned, report)
        outcome = outcomes[-1]
        if outcome.done is None:
            return
        request = await asyncio.to_thread(self._served.request, launch)
        record = replace(launch.record, job_id=outcome.new_job, request=request)
        if outcome.done and record.folder:
            await asyncio.to_thread(self._launches.records.launched, record)
        elif not outcome.done:
            await self._remove_folder(launch)
        with contextlib.suppress(HpcdashError):
            # The former text says that the outcome is unknown.
            await self._settled(replace(launch, text=""), outcome)

    # -- states

    async def find(self, launch_id: str, accounts: Collection[str]) -> ServedLaunch:
        """Find a launch of these accounts. Raises NoSuchLaunch."""
        launch = await asyncio.to_thread(self._served.find, launch_id)
        if launch is None or launch.account not in accounts or launch.stage is Stage.DELETED:
            raise NoSuchLaunch
        return launch

    async def account_launches(self, accounts: Collection[str]) -> list[ServedLaunch]:
        """Return the newest MAX_LISTED launches of these accounts."""
        return await asyncio.to_thread(self._served.account_launches, accounts, MAX_LISTED)

    async def states(
        self, launches: Sequence[ServedLaunch], *, now: bool = False
    ) -> list[LaunchState]:
        """Return launches with their jobs.

        One query covers all unfinished launches, as often as one's own jobs are polled; `now`
        repeats it. Raises the errors of an unreachable cluster.
        """
        if now:
            self._states.forget("")
        alive = [one for one in launches if one.stage is Stage.SUBMITTED and one.job_id]
        by_job = await self._states.get("", self._query_jobs) if alive else {}
        if any(one.job_id not in by_job for one in alive):
            # A launch was submitted since the last query.
            self._states.forget("")
            by_job = await self._states.get("", self._query_jobs)
        return [await self._state(launch, by_job) for launch in launches]

    async def state(self, launch: ServedLaunch, *, now: bool = False) -> LaunchState:
        """Fetch the state of one launch, like `states`."""
        [found] = await self.states([launch], now=now)
        return found

    async def _query_jobs(self) -> Mapping[str, tuple[Row, ...]]:
        """Fetch the rows of all unfinished launches by job ID; () for a job without any."""
        alive = await asyncio.to_thread(self._served.launches_in_stage, Stage.SUBMITTED)
        tasks = {one.job_id: one.record.tasks for one in alive if one.job_id}
        if not tasks:
            return {}
        queued = await self._session.actions.fetch_rows(list(tasks))
        found = {job_id: _job_rows(job_id, queued) for job_id in tasks}
        # The queue forgets the ended tasks of an array one by one.
        partial = []
        for job_id, rows in found.items():
            if _has_ended(rows) and _count(rows) < tasks[job_id]:
                partial.append(job_id)
        if partial:
            table = await fetch_ended(self._store, partial)
            past = await asyncio.to_thread(select_rows, table, partial)
            for job_id in partial:
                rows = _job_rows(job_id, past)
                if _count(rows) >= _count(found[job_id]):
                    found[job_id] = rows
        return found

    async def _state(
        self, launch: ServedLaunch, by_job: Mapping[str, tuple[Row, ...]]
    ) -> LaunchState:
        if launch.stage is Stage.ENDED:
            return LaunchState(launch, by_job.get(launch.job_id, ()), launch.tasks)
        if launch.stage is not Stage.SUBMITTED or not launch.job_id:
            return LaunchState(launch)
        if launch.job_id not in by_job:
            # Another caller may have stored its end meanwhile.
            found = await asyncio.to_thread(self._served.find, launch.launch_id)
            if found is not None and found.stage is Stage.ENDED:
                return LaunchState(found, (), found.tasks)
            return LaunchState(launch)
        rows = _own(by_job[launch.job_id], launch)
        tasks = Counter[str]()
        for row in rows:
            tasks[str(row["state"])] += row["_tasks"] or 1
        is_forgotten = not rows and self._store.clock.now() - launch.at > _FORGOTTEN_SECONDS
        if is_forgotten or (rows and _has_ended(rows)):
            launch = replace(launch, stage=Stage.ENDED, tasks=dict(tasks))
            if len(rows) == 1:
                [row] = rows
                launch = replace(launch, exit_code=row["exit_code"], exit_signal=row["exit_signal"])
            await asyncio.to_thread(self._served.update, launch)
        return LaunchState(launch, rows, tasks)

    # -- actions

    async def terminate(self, launch: ServedLaunch) -> Outcome:
        """Cancel a launch's job as its account. Raises UsageError if that is not possible."""
        if not launch.job_id:
            raise HpcdashError(
                "not yet known whether the job was submitted",
                f"Search the queue for {launch.mark}, or try again later.",
            )
        rows = _own(await self._session.actions.fetch_rows([launch.job_id]), launch)
        request = ActionRequest(Verb.CANCEL, (launch.job_id,))
        plan = self._session.actions.plan(request, rows, run_as=launch.record.run_as)
        report = await self._session.actions.run(plan)
        self._states.forget("")
        return report.outcomes[0]

    async def delete(self, launch: ServedLaunch) -> None:
        """Remove a finished launch and its folder with all contents; its key stays used.

        Raises NotEnded, and HpcdashError if the folder cannot be removed.
        """
        state = await self.state(launch, now=launch.stage is not Stage.ENDED)
        if not state.has_ended:
            raise NotEnded(
                f"the launch is {state.status.lower()}",
                f"POST /launches/{launch.launch_id}/terminate ends it.",
            )
        if problem := await self._remove_folder(launch):
            raise HpcdashError(f"cannot remove the folder {launch.record.folder}: {problem}")
        with contextlib.suppress(StateUnusable):
            await asyncio.to_thread(self._launches.records.removed, launch.record)
        await asyncio.to_thread(self._served.mark_deleted, state.launch)

    async def _remove_folder(self, launch: ServedLaunch) -> str:
        record = launch.record
        if not record.folder:
            return ""
        return await remove_folder(self._store, record, self._launches.settings.launch_program)

    # -- results and logs

    async def call_files(self, launch: ServedLaunch, task: int | None = None) -> CallFiles:
        """Return the result files of a launch's function, or of a task of its array.

        Raises NoResult if it calls no function, UsageError for a missing or an invalid task.
        """
        from hpcdash.backends.script.call import result_path
        from hpcdash.config.request import read_request

        text = await asyncio.to_thread(self._served.request, launch)
        request = read_request(
            text, user=launch.record.run_as or None, site=self._launches.settings.site
        )
        if request.call is None:
            raise NoResult(
                "the launch calls no function", "GET /launches/ID/logs returns its output."
            )
        if not launch.job_id:
            raise NoResult("the launch has no known job yet", "Check its status first.")
        if not launch.record.folder:
            raise NoResult(
                "the result, if JSON, is in the log", "GET /launches/ID/logs returns it."
            )
        if request.array is None and task is not None:
            raise UsageError("task: the launch is one job, not an array", "Remove task.")
        job_id = launch.job_id
        if request.array is not None:
            if task is None:
                raise UsageError(
                    f"task: the launch is an array, {request.array}",
                    "Specify one of its tasks: task=N",
                )
            if not request.array.contains(task):
                raise NoResult(f"the array {request.array} has no task {task}")
            job_id = with_tasks(job_id, parse_tasks(str(task)))
        path = result_path(request, launch.record.folder, "" if task is None else str(task))
        if launch.record.run_as and not self._store.reader_command(path):
            raise NotAllowed(
                "this server cannot read files of the launch's account",
                "Only that account can read the result.",
            )
        return CallFiles(
            launch_id=launch.launch_id,
            job_id=job_id,
            is_pickle=request.call.result_format == "pickle",
            result=self._store.log_file(path),
            failure=self._store.log_file(f"{path}.error"),
        )

    async def log_file(
        self, launch: ServedLaunch, *, is_stderr: bool, task: int | None = None
    ) -> LogFile:
        """Return the log file of a launch's job, or of a task of its array.

        A launch of another account is read as that account, and only in its own folder: its owner
        may have named any file as the job's output. Raises HpcdashError if the file is unknown.
        """
        if not launch.job_id:
            raise NoLog("the launch has no known job yet", "Check its status first.")
        job_id = launch.job_id
        if task is not None:
            job_id = with_tasks(job_id, parse_tasks(str(task)))
        elif launch.record.tasks > 1:
            state = await self.state(launch)
            if state.rows:
                table = pa.Table.from_pylist(list(map(dict, state.rows)), JOBS)
                job_id = representative_task([table], job_id) or job_id
        place = await locate_logs(self._store, job_id)
        if not _own([place.row], launch):
            raise NoLog(
                f"job {job_id} now belongs to another account", "The scheduler reused its job ID."
            )
        files = place.files
        path = files.stderr if is_stderr and files.stderr is not None else files.stdout
        if path is None:
            raise NoLog(f"the log path of job {job_id} is unknown: {files.note or 'not reported'}")
        if not launch.record.run_as:
            return self._store.log_file(path, files.host)
        is_within = path.rpartition("/")[0] == launch.record.folder
        if files.host or not is_within or not self._store.reader_command(path):
            raise NotAllowed(
                "the job writes outside the launch's folder",
                "Only the job's account can read the log.",
            )
        return self._store.log_file(path)


def _digest(request: Request, files: Mapping[str, bytes]) -> str:
    """Return the digest that identifies a request, its files and its account."""
    digest = hashlib.sha256(request_text(request).encode("utf-8", "surrogateescape"))
    for name in sorted(files):
        encoded = name.encode("utf-8", "surrogateescape")
        digest.update(b"\0%s\0%s" % (encoded, hashlib.sha256(files[name]).digest()))
    digest.update(request.site.run_as.encode())
    return digest.hexdigest()


def _same(launch: ServedLaunch, digest: str) -> ServedLaunch:
    """Return the launch of a key. Raises KeyReused for another request or a deleted launch."""
    if launch.digest != digest:
        raise _reused()
    if launch.stage is Stage.DELETED:
        raise KeyReused(
            "the launch with this Idempotency-Key was deleted", "Use a new key to launch it again."
        )
    return launch


def _reused() -> KeyReused:
    return KeyReused(
        "this Idempotency-Key belongs to another request", "Use a new key for each launch."
    )


def _refusal(outcome: Outcome, reported: str) -> HpcdashError:
    text = "; ".join(filter(None, (outcome.text, reported)))
    message = f"not submitted: {text.removeprefix('not submitted: ')}"
    if outcome.is_unreachable or outcome.text.startswith(NEVER_ARRIVED):
        return UnreachableError(message, "Send it again; the same Idempotency-Key may be used.")
    return SchedulerRefused(message, output=outcome.text)


def _job_rows(job_id: str, rows: Sequence[Row]) -> tuple[Row, ...]:
    key = parse_job_key(job_id)
    return tuple(
        row for row in rows if job_id == row["id"] or (key and key == parse_job_key(str(row["id"])))
    )


def _own(rows: Sequence[Row], launch: ServedLaunch) -> tuple[Row, ...]:
    """Filter the rows of a launch's account: a reinstalled scheduler assigns a number twice."""
    return tuple(row for row in rows if row["user"] in (None, launch.account))


def _has_ended(rows: Sequence[Row]) -> bool:
    return all(row["state"] in ENDED for row in rows)


def _count(rows: Sequence[Row]) -> int:
    return sum(row["_tasks"] or 1 for row in rows)
