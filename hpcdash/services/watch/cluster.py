"""The watchdogs of one cluster: they query it through its store, and keep their state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import pyarrow as pa
from msgspec.structs import replace

from hpcdash.domain.alerts import Finding, Severity, finding_key
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import HOUR, parse_duration
from hpcdash.errors import HpcdashError, NoSuchJob, RateLimited
from hpcdash.services.jobs.page import PREEMPTED_BY
from hpcdash.services.logs.locate import locate_logs
from hpcdash.services.share.state import PoolReader
from hpcdash.services.watch.endings import Endings
from hpcdash.services.watch.facts import (
    MAX_FILES,
    MAX_TAILS,
    DiskQuery,
    Facts,
    FactsRequest,
    facts_query,
)
from hpcdash.services.watch.judge import ALL_RULES, UNREACHABLE, Judgement
from hpcdash.services.watch.rules import unseen
from hpcdash.services.watch.rules.deadlines import first_queue
from hpcdash.services.watch.rules.unseen import lies_in
from hpcdash.services.watch.state import (
    DiskState,
    LogState,
    LogTail,
    QosState,
    add_sample,
)
from hpcdash.services.watch.training import read_on
from hpcdash.transport.node import ThroughNode

# Each costs two commands or three; the others' turn comes the next round.
MAX_LOCATED = 6
# Nodes whose own disks are checked in one round.
MAX_NODES = 4
HISTORY_EVERY_SECONDS = 1.0 * HOUR
DU_EVERY_SECONDS = 1.0 * HOUR
EVERY_SECONDS = 6.0 * HOUR


class Watching(Endings):
    """`state` changes with each check."""

    _request = FactsRequest()

    async def check(self) -> Judgement:
        """Query all that the rules need, and judge it; raises nothing if the cluster does not
        answer.
        """
        check = Judgement()
        try:
            await self.store.open()
            await self.store.fetch(self.job_kind)
        except HpcdashError as error:
            return self._not_reached(error)
        self.state.unreachable_rounds = 0
        jobs = self._table(self.job_kind)
        assert jobs is not None
        if self._here(self.settings.nodes):
            await self._fetch(Kind.NODES, check)
        if self._wants_history():
            await self._fetch(Kind.HISTORY, check)
            self.state.history_at = self.store.clock.now()
        await self._locate(jobs, check)
        await self._query_grace(jobs, check)
        # The last: what it learns is fresh for a short while.
        await self._fetch_facts(jobs, check)
        await self._read_pools(check)
        judged = await asyncio.to_thread(self.judge)
        judged.problems[:0] = check.problems
        return judged

    def _not_reached(self, error: HpcdashError) -> Judgement:
        check = Judgement(unknown=set(ALL_RULES), problems=[error.message], is_reached=False)
        if isinstance(error, RateLimited):
            check.unknown.add(finding_key(UNREACHABLE))
            return check
        self.state.unreachable_rounds += 1
        rounds = self.state.unreachable_rounds
        if rounds >= self.settings.unreachable_rounds:
            text = (
                f"{self.store.title} did not respond {rounds} times in a row: "
                f"{visible(error.message)}"
            )
            step = (
                error.next_step.splitlines()[0]
                if error.next_step
                else "hpcdash doctor checks the connection."
            )
            check.findings.append(
                Finding(UNREACHABLE, self.store.name, Severity.CRITICAL, text, step)
            )
        check.pulses = [
            f"{rule.meant.name}: the cluster is not responding: {error.message}"
            for rule in self._here(self.settings.running)
        ]
        return check

    async def _fetch(self, kind: Kind, check: Judgement) -> None:
        try:
            await self.store.fetch(kind)
        except HpcdashError as error:
            check.problems.append(f"{kind} could not be queried: {error.message}")

    def _wants_history(self) -> bool:
        is_old = self.store.clock.now() - self.state.history_at >= HISTORY_EVERY_SECONDS
        return bool(self._here(self.settings.failures)) and is_old

    # -- log files, disks and QoS

    async def _locate(self, jobs: pa.Table, check: Judgement) -> None:
        """Find the logs of jobs that are new, unless their rule names a file."""
        requested = [*dict.fromkeys(job for job, rule in self._logged(jobs) if not rule.log)]
        state = self.state
        for known in (state.logs_of, state.hosts, state.unseen, state.located_at):
            for job_id in known.keys() - set(requested):
                del known[job_id]
        missing = [job_id for job_id in requested if job_id not in state.logs_of]
        missing.sort(key=lambda job_id: state.located_at.get(job_id, 0.0))
        for job_id in missing[:MAX_LOCATED]:
            state.located_at[job_id] = self.store.clock.now()
            try:
                files = (await locate_logs(self.store, job_id)).files
            except NoSuchJob:
                continue
            except HpcdashError as error:
                check.problems.append(
                    f"could not find out where job {job_id} writes: {error.message}"
                )
                continue
            paths = [path for path in (files.stdout, files.stderr) if path is not None]
            state.logs_of[job_id] = list(dict.fromkeys(paths))
            state.unseen.pop(job_id, None)
            if files.host:
                state.hosts[job_id] = files.host
            if not paths:
                state.unseen[job_id] = files.note or "the scheduler does not report where it writes"

    async def _query_grace(self, jobs: pa.Table, check: Judgement) -> None:
        """Learn what becomes of jobs that save when others need their place."""
        rows = [row for _, row in self._saving(jobs).values()]
        now = self.store.clock.now()
        policy = self.store.backend.policy
        for what, names, build_query, stored in (
            ("QoS", {str(row["qos"] or "") for row in rows}, policy.qos, self.state.qos),
            ("queue", set(map(first_queue, rows)), policy.preemption, self.state.queues),
        ):
            for name in sorted(names - {""}):
                query = build_query(name)
                is_known = name in stored and now - stored[name].asked_at < EVERY_SECONDS
                if query is None or is_known:
                    continue
                try:
                    stored[name] = qos_state(await self.store.run_query(query), now)
                except HpcdashError as error:
                    check.problems.append(f"{what} {name} could not be queried: {error.message}")

    def _build_facts_request(self, jobs: pa.Table, now: float, check: Judgement) -> FactsRequest:
        newest: set[str] = set()
        checkpoints: set[str] = set()
        for rule, row in self._saving(jobs).values():
            if place := self._save_place(rule, row):
                (newest if rule.saved else checkpoints).add(place)
        disks = []
        for one in self._here(self.settings.storage):
            known = self.state.disks.get(one.watch.path)
            is_due = known is None or now - known.counted_at >= DU_EVERY_SECONDS
            by_du = is_due and one.counts_by_du
            counts_inodes = by_du and one.watch.limit_inodes is not None
            disks.append(DiskQuery(one.watch.path, one.quota, one.quota_of, by_du, counts_inodes))
        files = self._choose_files(jobs, "", now, check)
        tails = self._choose_tails(jobs, "", now, check)
        return FactsRequest(
            files, tuple(sorted(newest)), tuple(sorted(checkpoints)), tuple(disks), tails
        )

    def _choose_files(
        self, jobs: pa.Table, host: str, now: float, check: Judgement
    ) -> tuple[str, ...]:
        """The logs of a node ('': the login node) whose growth is checked, those first that were
        not for longest; of a job all or none.
        """
        checks = self.state.log_looks
        logs = [
            set(self._paths(job_id, rule))
            for job_id, (rule, _) in self._hung(jobs).items()
            if self._log_host(job_id, rule) == host
        ]
        requested: set[str] = set()
        waiting = 0
        for paths in sorted(
            filter(None, logs), key=lambda paths: min(checks.get(path, 0.0) for path in paths)
        ):
            if waiting or len(requested | paths) > MAX_FILES:
                waiting += 1
            else:
                requested |= paths
        checks.update(dict.fromkeys(requested, now))
        if waiting:
            check.problems.append(
                f"the logs of {counted(waiting, 'more job')} were not checked: a round checks at "
                f"most {MAX_FILES} logs, and the next one continues"
            )
        return tuple(sorted(requested))

    def _choose_tails(
        self, jobs: pa.Table, host: str, now: float, check: Judgement
    ) -> dict[str, LogTail]:
        """The logs of a node ('': the login node) that are read on, those first that were not tried
        for longest.
        """
        known = self.state.tails
        checks = self.state.tail_looks
        paths = {
            path
            for job_id, (rule, _) in self._trainings(jobs).items()
            if self._log_host(job_id, rule) == host
            for path in self._paths(job_id, rule)
        }
        turn = sorted(paths, key=lambda path: (checks.get(path, 0.0), path))
        checks.update(dict.fromkeys(turn[:MAX_TAILS], now))
        if waiting := len(turn[MAX_TAILS:]):
            check.problems.append(
                f"{counted(waiting, 'more training log')} {'was' if waiting == 1 else 'were'} "
                f"not read: a round reads at most {MAX_TAILS}, and the next one continues"
            )
        return {path: known.get(path, LogTail()) for path in turn[:MAX_TAILS]}

    async def _fetch_facts(self, jobs: pa.Table, check: Judgement) -> None:
        now = self.store.clock.now()
        self._forget(jobs)
        self._request = self._build_facts_request(jobs, now, check)
        self._facts = Facts()
        self._facts_at = now
        failure: HpcdashError | None = None
        if self._request:
            streamed, rest = self._request.parted(
                lambda path: bool(self.store.backend.logs.request(path))
            )
            try:
                # What the scheduler streams is no file of the login node's.
                for some in filter(None, (streamed, rest)):
                    self._facts = self._facts.with_others(
                        await self.store.run_query(facts_query(some, self.store.user))
                    )
            except HpcdashError as error:
                failure = error
                check.problems.append(f"logs and disks could not be checked: {error.message}")
        check.problems += [_format_silent(place) for place in self._facts.silent]
        await self._query_nodes(jobs, now, check)
        self._answered_at = self.store.clock.now()
        if self._facts.tails:
            self.state.tails |= await asyncio.to_thread(self._read_on, self._facts, now)
            if patterns := self.settings.metric_patterns:
                from hpcdash.config.metric_patterns import pattern_problems

                check.problems += pattern_problems(patterns)
        self._remember(jobs, self._facts, now)
        self._note_blind(jobs, self._facts, failure)

    async def _read_pools(self, check: Judgement) -> None:
        """Read what the coordinators of shared pools have published."""
        assert self._facts is not None
        for pool in self.shared if self._here(self.settings.pools) else ():
            try:
                self._facts.pools[pool.name] = await PoolReader(self.store, pool).read()
            except HpcdashError as error:
                check.problems.append(error.message)

    def _forget(self, jobs: pa.Table) -> None:
        """Remove the state of logs that are no longer watched."""
        state = self.state
        for selected, known in (
            (self._hung(jobs), (state.logs, state.log_looks)),
            (self._trainings(jobs), (state.tails, state.tail_looks)),
        ):
            watched = {
                path for job_id, (rule, _) in selected.items() for path in self._paths(job_id, rule)
            }
            for by_path in known:
                for path in by_path.keys() - watched:
                    del by_path[path]

    async def _query_nodes(self, jobs: pa.Table, now: float, check: Judgement) -> None:
        """Check logs on nodes' own disks through ssh from the login node: a few nodes a round, in
        turn.
        """
        state = self.state
        checks = state.host_looks
        hosts = sorted(set(state.hosts.values()), key=lambda host: (checks.get(host, 0.0), host))
        state.host_looks = {
            host: now if host in hosts[:MAX_NODES] else checks.get(host, 0.0) for host in hosts
        }
        requested = await asyncio.gather(
            *(self._query_node(host, jobs, now, check) for host in hosts[:MAX_NODES])
        )
        for facts in requested:
            assert self._facts is not None
            self._facts = self._facts.with_others(facts)

    async def _query_node(self, host: str, jobs: pa.Table, now: float, check: Judgement) -> Facts:
        """Query a node for facts on the logs on its disk; a failure is noted for its jobs."""
        state = self.state
        host_ids = {job_id for job_id, name in state.hosts.items() if name == host}
        files = self._choose_files(jobs, host, now, check)
        tails = self._choose_tails(jobs, host, now, check)
        query = facts_query(FactsRequest(files=files, tails=tails), self.store.user)
        self.store.budget.spend()
        try:
            node = ThroughNode(self.store.transport, host)
            facts = query.parse(await node.run(query.argv, limit_seconds=query.limit_seconds))
        except HpcdashError as error:
            for job_id in host_ids:
                state.unseen[job_id] = (
                    f"its log stays on {host} until it ends, and {visible(error.message)}"
                )
            return Facts()
        check.problems += [f"{host}: {_format_silent(place)}" for place in facts.silent]
        requested = {path for path in (*files, *tails) if not lies_in(path, facts.silent)}
        seen = set(facts.tails) | {path for path, file in facts.files.items() if file.is_there}
        for job_id in host_ids:
            state.unseen.pop(job_id, None)
            own = requested & set(state.logs_of.get(job_id, ()))
            if own and not own & seen:
                # It may have been restarted elsewhere, so query its log paths again.
                del state.hosts[job_id]
                state.logs_of.pop(job_id, None)
                state.unseen[job_id] = (
                    f"its log is missing on {host}, where it should stay until it ends"
                )
        return replace(facts, silent=())

    def _note_blind(self, jobs: pa.Table, facts: Facts, failure: HpcdashError | None) -> None:
        """Count the rounds in which a place could not be checked; places that had no turn in this
        round stay as they are.
        """
        state = self.state
        requested = self._request
        if failure is not None:
            found = {} if isinstance(failure, RateLimited) else {"": unseen.FAILED}
            state.blind = unseen.unseen_after(state.blind, found, state.blind)
            return
        found = dict.fromkeys(facts.silent, unseen.SILENT)
        for rule in self._here(self.settings.storage):
            path = rule.watch.path
            if self._usage(rule, facts.disks.get(path), state.disks.get(path)) is None:
                found.setdefault(path, unseen.UNTOLD)
        for path in requested.tails:
            if path not in facts.tails:
                found.setdefault(path, unseen.ABSENT)
        # A place that does not answer stands for all that lies in it.
        found = {
            path: why
            for path, why in found.items()
            if path in facts.silent or not lies_in(path, facts.silent)
        }
        looked_at = {
            *requested.files,
            *requested.newest,
            *requested.checkpoints,
            *requested.tails,
        }
        looked_at |= {disk.path for disk in requested.disks}
        others = self._watched_places(jobs) - looked_at
        waiting = [
            place
            for place in state.blind
            if place
            and any(lies_in(path, (place,)) for path in others)
            and not any(lies_in(path, (place,)) for path in looked_at)
        ]
        state.blind = unseen.unseen_after(state.blind, found, waiting)

    def _read_on(self, facts: Facts, now: float) -> dict[str, LogTail]:
        patterns = self.settings.metric_patterns
        return {
            path: read_on(
                self.state.tails.get(path), chunk, now, patterns, facts.heads.get(path, b"")
            )
            for path, chunk in facts.tails.items()
        }

    def _remember(self, jobs: pa.Table, facts: Facts, now: float) -> None:
        state = self.state
        for path, file in facts.files.items():
            if path not in state.logs:
                state.logs[path] = LogState(None, now)
            elif state.logs[path].seen_at is None:
                state.logs[path].seen_at = state.logs[path].same_since
            size = file.size if file.is_there else None
            state.logs[path].note(size, now, file.age_seconds or 0.0, file.modified_at or None)
        for disk in self._request.disks:
            check = facts.disks.get(disk.path)
            if check is None:
                continue
            stored = state.disks.setdefault(disk.path, DiskState([], []))
            if disk.by_du:
                # Tried is enough: what takes too long is not begun again at once.
                stored.counted_at = now
                stored.counted_bytes = check.counted.bytes_used if check.counted else None
                stored.counted_inodes = check.counted.inodes_used if check.counted else None
        for rule in self._here(self.settings.storage):
            path = rule.watch.path
            usage = self._usage(rule, facts.disks.get(path), state.disks.get(path))
            if usage is not None and usage.bytes_used is not None:
                add_sample(state.disks[path].byte_samples, now, usage.bytes_used)
            if usage is not None and usage.inodes_used is not None:
                add_sample(state.disks[path].inode_samples, now, usage.inodes_used)


def _format_silent(place: str) -> str:
    return (
        f"{visible(place)} did not respond in time: is its file system mounted? Nothing in it "
        "was checked"
    )


def qos_state(texts: Mapping[str, str], now: float) -> QosState:
    """Parse the texts of PolicyPart.qos (PolicyPart.preemption: of a queue) into values.

    They are the effect of preemption on a job, the grace time, and whether other jobs can preempt
    it.
    """
    making_way = texts.get("a job that makes way", "")
    reported = texts.get("time to save first", "")
    grace: float | None = None
    if reported == "none":
        grace = 0.0
    elif reported:
        with contextlib.suppress(ValueError):
            grace = parse_duration(reported)
    mode = ",".join(
        mode
        for mode, message in (
            ("cancel", "cancelled"),
            ("requeue", "put back"),
            ("suspend", "suspended"),
        )
        if message in making_way
    )
    return QosState(now, mode, grace, PREEMPTED_BY in texts)
