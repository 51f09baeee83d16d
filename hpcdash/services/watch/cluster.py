"""The watchdogs of one cluster: they query it through its store, and keep their state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from hpcdash.domain.alerts import Finding, Severity
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import HOUR, parse_duration
from hpcdash.errors import HpcdashError, NoSuchJob, RateLimited
from hpcdash.services.jobs.page import PREEMPTED_BY
from hpcdash.services.logs.locate import locate_logs
from hpcdash.services.share.state import PoolReader
from hpcdash.services.watch.facts import (
    MAX_FILES,
    MAX_TAILS,
    DiskQuery,
    Facts,
    FactsRequest,
    facts_query,
)
from hpcdash.services.watch.judge import ALL_RULES, UNREACHABLE, Judgement, judge
from hpcdash.services.watch.rules.places import (
    ABSENT,
    FAILED,
    SILENT,
    UNREPORTED,
    count_unseen,
    lies_in,
)
from hpcdash.services.watch.rules.rows import Row
from hpcdash.services.watch.rules.saves import first_queue
from hpcdash.services.watch.state import DiskState, LogState, LogTail, QosState, add_sample
from hpcdash.services.watch.training import read_on
from hpcdash.services.watch.watched import LogRule, Watched, WatchedJobs
from hpcdash.transport.node import ThroughNode

# Each costs two commands or three; the others' turn comes the next round.
MAX_LOCATED = 6
# Nodes whose own disks are checked in one round.
MAX_NODES = 4
# Part of the interval for which another window's answer is as good as one's own.
_SHARED_PART = 0.25
HISTORY_EVERY_SECONDS = 1.0 * HOUR
DU_EVERY_SECONDS = 1.0 * HOUR
QOS_EVERY_SECONDS = 6.0 * HOUR
# By words of the text on preemption; see read_qos.
_PREEMPT_MODES = {"cancelled": "cancel", "put back": "requeue", "suspended": "suspend"}


class Watching(Watched):
    """Watchdogs at work; `state` changes with each check."""

    _problems: list[str]

    async def check(self) -> Judgement:
        """Query all that the rules need, and judge it; raises nothing if the cluster does not
        answer.
        """
        try:
            await self.store.open()
            await self.store.fetch(self.job_kind, self._max_age_seconds)
        except HpcdashError as error:
            return self._not_reached(error)
        self.state.unreachable_rounds = 0
        self._problems = []
        jobs = self.jobs
        assert jobs is not None
        now = self.store.clock.now()
        if self.settings.nodes:
            await self._fetch(Kind.NODES)
        if self.settings.failures and now - self.state.history_at >= HISTORY_EVERY_SECONDS:
            await self._fetch(Kind.HISTORY)
            self.state.history_at = self.store.clock.now()
        await self._locate(jobs)
        await self._query_grace(jobs)
        # The last: what it learns is fresh for a short while.
        await self._fetch_facts(jobs)
        for pool in self.shared if self.settings.pools else ():
            try:
                self.checked.pools[pool.name] = await PoolReader(self.store, pool).read()
            except HpcdashError as error:
                self._problems.append(error.message)
        judged = await asyncio.to_thread(judge, self)
        judged.problems[:0] = self._problems
        return judged

    def _not_reached(self, error: HpcdashError) -> Judgement:
        check = Judgement(unknown=set(ALL_RULES), problems=[error.message], is_reached=False)
        if isinstance(error, RateLimited):
            check.note_unknown(UNREACHABLE)
            return check
        store = self.store
        self.state.unreachable_rounds += 1
        rounds = self.state.unreachable_rounds
        if rounds >= self.settings.unreachable_rounds:
            text = (
                f"{store.title} did not respond {rounds} times in a row: {visible(error.message)}"
            )
            step = "hpcdash doctor checks the connection."
            if error.next_step:
                step = error.next_step.splitlines()[0]
            check.findings.append(Finding(UNREACHABLE, store.name, Severity.CRITICAL, text, step))
        check.pulses = [
            f"{rule.selector.name}: the cluster is not responding: {error.message}"
            for rule in self.settings.running
        ]
        return check

    @property
    def _max_age_seconds(self) -> float:
        return _SHARED_PART * self.settings.every_seconds

    async def _fetch(self, kind: Kind) -> None:
        try:
            await self.store.fetch(kind, self._max_age_seconds)
        except HpcdashError as error:
            self._problems.append(f"{kind} could not be queried: {error.message}")

    async def _locate(self, jobs: WatchedJobs) -> None:
        """Find the logs of jobs that are new, unless their rule names a file."""
        requested = dict.fromkeys(job_id for job_id, rule in jobs.logged if not rule.log)
        state = self.state
        for known in (state.log_files, state.hosts, state.unseen, state.located_at):
            for job_id in known.keys() - requested.keys():
                del known[job_id]
        missing = [job_id for job_id in requested if job_id not in state.log_files]
        missing.sort(key=lambda job_id: state.located_at.get(job_id, 0.0))
        for job_id in missing[:MAX_LOCATED]:
            state.located_at[job_id] = self.store.clock.now()
            try:
                files = (await locate_logs(self.store, job_id)).files
            except NoSuchJob:
                continue
            except HpcdashError as error:
                self._problems.append(
                    f"could not determine the output path of job {job_id}: {error.message}"
                )
                continue
            paths = [path for path in (files.stdout, files.stderr) if path is not None]
            state.log_files[job_id] = list(dict.fromkeys(paths))
            state.unseen.pop(job_id, None)
            if files.host:
                state.hosts[job_id] = files.host
            if not paths:
                state.unseen[job_id] = files.note or "the scheduler does not report the output path"

    async def _query_grace(self, jobs: WatchedJobs) -> None:
        """Learn what becomes of jobs that save when others need their place."""
        rows = [row for _, row in jobs.saving.values()]
        now = self.store.clock.now()
        policy = self.store.backend.policy
        for what, names, build_query, stored in (
            ("QoS", {str(row["qos"] or "") for row in rows}, policy.qos, self.state.qos),
            ("queue", set(map(first_queue, rows)), policy.preemption, self.state.queues),
        ):
            for name in sorted(names - {""}):
                query = build_query(name)
                is_known = name in stored and now - stored[name].queried_at < QOS_EVERY_SECONDS
                if query is None or is_known:
                    continue
                try:
                    stored[name] = read_qos(await self.store.run_query(query), now)
                except HpcdashError as error:
                    self._problems.append(f"{what} {name} could not be queried: {error.message}")

    # -- log files, saves and disks

    async def _fetch_facts(self, jobs: WatchedJobs) -> None:
        now = self.store.clock.now()
        self._forget(jobs)
        request = self._build_request(jobs, now)
        self.checked = facts = Facts()
        self.checked_at = now
        failure: HpcdashError | None = None
        try:
            # What the scheduler streams is no file of the login node's.
            for part in request.parted(lambda path: bool(self.store.backend.logs.request(path))):
                if part:
                    query = facts_query(part, self.store.user)
                    facts.update(await self.store.run_query(query))
        except HpcdashError as error:
            failure = error
            self._problems.append(f"logs and disks could not be checked: {error.message}")
        self._problems += map(_format_silent, facts.silent)
        await self._query_nodes(jobs, now)
        self.answered_at = self.store.clock.now()
        if facts.tails:
            await asyncio.to_thread(self._read_on, facts, now)
            if patterns := self.settings.metric_patterns:
                from hpcdash.config.metric_patterns import pattern_problems

                self._problems += pattern_problems(patterns)
        self._remember(request, facts, now)
        if failure is None:
            self._note_unseen(jobs, request, facts)
        else:
            failed = {} if isinstance(failure, RateLimited) else {"": FAILED}
            self.state.blind = count_unseen(self.state.blind, failed, self.state.blind)

    def _forget(self, jobs: WatchedJobs) -> None:
        state = self.state
        growing = set().union(*self._paths_by_job(jobs.growing))
        read = set().union(*self._paths_by_job(jobs.trainings))
        for by_path, watched in (
            (state.logs, growing),
            (state.logs_checked_at, growing),
            (state.tails, read),
            (state.tails_checked_at, read),
        ):
            for path in by_path.keys() - watched:
                del by_path[path]

    def _paths_by_job(
        self, selected: Mapping[str, tuple[LogRule, Row]], host: str | None = None
    ) -> list[set[str]]:
        """Return each job's log paths; of jobs with logs on `host` ('': the login node), or all."""
        return [
            set(self.log_paths(job_id, rule))
            for job_id, (rule, _) in selected.items()
            if host is None or self.log_host(job_id, rule) == host
        ]

    def _build_request(self, jobs: WatchedJobs, now: float) -> FactsRequest:
        newest: set[str] = set()
        checkpoints: set[str] = set()
        for saves, row in jobs.saving.values():
            if place := self.save_place(saves, row):
                (newest if saves.saved else checkpoints).add(place)
        disks = []
        for rule in self.settings.storage:
            known = self.state.disks.get(rule.path)
            is_due = known is None or now - known.counted_at >= DU_EVERY_SECONDS
            by_du = is_due and rule.counts_by_du
            disks.append(
                DiskQuery(
                    rule.path,
                    rule.quota,
                    rule.quota_of,
                    by_du=by_du,
                    inodes_by_du=by_du and rule.limit_inodes is not None,
                )
            )
        return FactsRequest(
            files=self._choose_files(jobs, "", now),
            newest=tuple(sorted(newest)),
            checkpoints=tuple(sorted(checkpoints)),
            disks=tuple(disks),
            tails=self._choose_tails(jobs, "", now),
        )

    def _choose_files(self, jobs: WatchedJobs, host: str, now: float) -> tuple[str, ...]:
        """Choose the logs of a node ('': the login node) whose growth is checked, those first that
        were not for longest; of a job all or none.
        """
        checks = self.state.logs_checked_at
        logs = [paths for paths in self._paths_by_job(jobs.growing, host) if paths]
        logs.sort(key=lambda paths: min(checks.get(path, 0.0) for path in paths))
        requested: set[str] = set()
        waiting = 0
        for paths in logs:
            if waiting or len(requested | paths) > MAX_FILES:
                waiting += 1
            else:
                requested |= paths
        checks.update(dict.fromkeys(requested, now))
        if waiting:
            self._problems.append(
                f"the logs of {counted(waiting, 'more job')} were not checked: a round checks at "
                f"most {MAX_FILES} logs; the next round continues"
            )
        return tuple(sorted(requested))

    def _choose_tails(self, jobs: WatchedJobs, host: str, now: float) -> dict[str, LogTail]:
        """Choose the logs of a node ('': the login node) that are read on, those first that were
        not tried for longest.
        """
        checks = self.state.tails_checked_at
        paths = set().union(*self._paths_by_job(jobs.trainings, host))
        turn = sorted(paths, key=lambda path: (checks.get(path, 0.0), path))
        checks.update(dict.fromkeys(turn[:MAX_TAILS], now))
        waiting = len(turn) - MAX_TAILS
        if waiting > 0:
            self._problems.append(
                f"{counted(waiting, 'more training log')} {'was' if waiting == 1 else 'were'} "
                f"not read: a round reads at most {MAX_TAILS}; the next round continues"
            )
        return {path: self.state.tails.get(path, LogTail()) for path in turn[:MAX_TAILS]}

    async def _query_nodes(self, jobs: WatchedJobs, now: float) -> None:
        """Check logs on nodes' own disks through ssh from the login node: a few nodes a round, in
        turn.
        """
        state = self.state
        checks = state.hosts_checked_at
        hosts = sorted(set(state.hosts.values()), key=lambda host: (checks.get(host, 0.0), host))
        state.hosts_checked_at = {host: checks.get(host, 0.0) for host in hosts}
        state.hosts_checked_at.update(dict.fromkeys(hosts[:MAX_NODES], now))
        queries = (self._query_node(host, jobs, now) for host in hosts[:MAX_NODES])
        for facts in await asyncio.gather(*queries):
            self.checked.update(facts)

    async def _query_node(self, host: str, jobs: WatchedJobs, now: float) -> Facts:
        """Query a node for facts on the logs on its disk; a failure is noted for its jobs."""
        state = self.state
        host_ids = [job_id for job_id, name in state.hosts.items() if name == host]
        files = self._choose_files(jobs, host, now)
        tails = self._choose_tails(jobs, host, now)
        query = facts_query(FactsRequest(files=files, tails=tails), self.store.user)
        self.store.budget.spend()
        try:
            node = ThroughNode(self.store.transport, host)
            facts = query.parse(await node.run(query.argv, limit_seconds=query.limit_seconds))
        except HpcdashError as error:
            why = f"the log stays on {host} until the job ends, and {visible(error.message)}"
            state.unseen.update(dict.fromkeys(host_ids, why))
            return Facts()
        self._problems += [f"{host}: {_format_silent(place)}" for place in facts.silent]
        requested = {path for path in (*files, *tails) if not lies_in(path, facts.silent)}
        seen = facts.tails.keys() | {path for path, file in facts.files.items() if file.is_there}
        for job_id in host_ids:
            state.unseen.pop(job_id, None)
            own = requested & set(state.log_files.get(job_id, ()))
            if own and not own & seen:
                # It may have been restarted elsewhere, so query its log paths again.
                del state.hosts[job_id]
                state.log_files.pop(job_id, None)
                state.unseen[job_id] = (
                    f"the log is missing on {host}, where it should stay until the job ends"
                )
        facts.silent.clear()
        return facts

    def _read_on(self, facts: Facts, now: float) -> None:
        tails = self.state.tails
        patterns = self.settings.metric_patterns
        for path, chunk in facts.tails.items():
            head = facts.heads.get(path, b"")
            tails[path] = read_on(tails.get(path), chunk, now, patterns, head)

    def _remember(self, request: FactsRequest, facts: Facts, now: float) -> None:
        state = self.state
        for path, file in facts.files.items():
            log = state.logs.get(path)
            if log is None:
                log = state.logs[path] = LogState(None, now)
            elif log.seen_at is None:
                log.seen_at = log.same_since
            size = file.size if file.is_there else None
            log.note(size, now, file.age_seconds or 0.0, file.modified_at or None)
        for disk in request.disks:
            check = facts.disks.get(disk.path)
            if check is None:
                continue
            stored = state.disks.setdefault(disk.path, DiskState())
            if disk.by_du:
                # Tried is enough: what takes too long is not begun again at once.
                stored.counted_at = now
                stored.counted_bytes = check.counted.bytes_used if check.counted else None
                stored.counted_inodes = check.counted.inodes_used if check.counted else None
        for rule in self.settings.storage:
            usage = self.disk_usage(rule, facts)
            if usage is not None and usage.bytes_used is not None:
                add_sample(state.disks[rule.path].byte_samples, now, usage.bytes_used)
            if usage is not None and usage.inodes_used is not None:
                add_sample(state.disks[rule.path].inode_samples, now, usage.inodes_used)

    def _note_unseen(self, jobs: WatchedJobs, request: FactsRequest, facts: Facts) -> None:
        """Count the rounds in which a place could not be checked; places that had no turn in this
        round stay as they are.
        """
        known = self.state.blind
        unseen = {
            rule.path: UNREPORTED
            for rule in self.settings.storage
            if self.disk_usage(rule, facts) is None
        }
        for path in request.tails.keys() - facts.tails.keys():
            unseen.setdefault(path, ABSENT)
        # A place that does not answer stands for all that lies in it.
        unseen = {path: why for path, why in unseen.items() if not lies_in(path, facts.silent)}
        unseen.update(dict.fromkeys(facts.silent, SILENT))
        checked = request.paths
        others = self.places(jobs) - checked
        waiting = [
            place
            for place in known
            if place
            and any(lies_in(path, (place,)) for path in others)
            and not any(lies_in(path, (place,)) for path in checked)
        ]
        self.state.blind = count_unseen(known, unseen, waiting)


def _format_silent(place: str) -> str:
    return (
        f"{visible(place)} did not respond in time: is its file system mounted? Nothing there "
        "was checked"
    )


def read_qos(texts: Mapping[str, str], now: float) -> QosState:
    """Read the texts of PolicyPart.qos, or of a queue's PolicyPart.preemption, as values."""
    making_way = texts.get("a preempted job", "")
    reported = texts.get("grace time", "")
    grace: float | None = None
    if reported == "none":
        grace = 0.0
    elif reported:
        with contextlib.suppress(ValueError):
            grace = parse_duration(reported)
    modes = (mode for text, mode in _PREEMPT_MODES.items() if text in making_way)
    return QosState(now, ",".join(modes), grace, PREEMPTED_BY in texts)
