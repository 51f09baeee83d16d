"""The watchdogs of one cluster at work: what they ask through its store, and what they remember of
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from hpcdash.backends.queries import Query
from hpcdash.config.watch_settings import HangingRule, LossesRule
from hpcdash.domain.alerts import Finding, Severity, finding_key
from hpcdash.domain.states import JobState
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import HOUR, parse_duration
from hpcdash.errors import HpcdashError, NoSuchJob, RateLimited
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.page import PREEMPTED_BY
from hpcdash.services.logs.locate import locate_logs
from hpcdash.services.share.state import PoolReader
from hpcdash.services.watch.endings import Endings
from hpcdash.services.watch.facts import (
    MOST_FILES,
    MOST_TAILS,
    DiskQuery,
    Facts,
    FactsRequest,
    TailQuery,
    facts_query,
)
from hpcdash.services.watch.judge import ALL_RULES, UNREACHABLE, Judgement
from hpcdash.services.watch.rules import unseen
from hpcdash.services.watch.rules.deadlines import first_queue
from hpcdash.services.watch.rules.hanging import LogGrowth
from hpcdash.services.watch.rules.unseen import lies_in
from hpcdash.services.watch.state import (
    DiskState,
    LogState,
    LogTail,
    QosState,
    WatchState,
    add_sample,
)
from hpcdash.transport.node import ThroughNode

# Each costs two commands or three; the others' turn comes the next round.
MOST_LOCATED = 6
# Nodes whose own disks are checked in one round.
MOST_NODES = 4
HISTORY_EVERY_SECONDS = 1.0 * HOUR
DU_EVERY_SECONDS = 1.0 * HOUR
EVERY_SECONDS = 6.0 * HOUR


class Watching(Endings):
    """`state` changes with each look."""

    _request = FactsRequest()

    async def look(self) -> Judgement:
        """Ask for all that the rules need, and judge it; raises nothing for a cluster that does not
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
        states = (JobState.RUNNING, JobState.PENDING, JobState.HELD)
        rows = [
            row
            for rule in self._here(self.settings.saves)
            for row in self._rows(jobs, rule.meant, *states)
        ]
        check.problems += await query_grace(self.store, self.state, rows)
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

    # -- where jobs write, how full disks are, what a QoS does

    async def _locate(self, jobs: pa.Table, check: Judgement) -> None:
        """Find where jobs write that were not met before, and whose rule names no file."""
        rules: dict[str, HangingRule | LossesRule] = dict(self._hung(jobs))
        rules |= {
            job_id: rule for job_id, (rule, _) in self._trainings(jobs).items() if not rule.log
        }
        requested = [job_id for job_id, rule in rules.items() if not rule.log]
        state = self.state
        for known in (state.logs_of, state.hosts, state.unseen, state.located_at):
            for job_id in known.keys() - set(requested):
                del known[job_id]
        missing = [job_id for job_id in requested if job_id not in state.logs_of]
        missing.sort(key=lambda job_id: state.located_at.get(job_id, 0.0))
        for job_id in missing[:MOST_LOCATED]:
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

    def _build_facts_request(self, jobs: pa.Table, now: float, check: Judgement) -> FactsRequest:
        newest: set[str] = set()
        checkpoints: set[str] = set()
        for rule, place in self._saved_places(jobs).values():
            if place:
                (newest if rule.saved else checkpoints).add(place)
        disks = []
        for one in self._here(self.settings.storage):
            known = self.state.disks.get(one.watch.path)
            is_due = known is None or now - known.counted_at >= DU_EVERY_SECONDS
            by_du = is_due and one.counts_by_du
            counts_inodes = by_du and one.watch.limit_inodes is not None
            disks.append(DiskQuery(one.watch.path, one.quota, one.quota_of, by_du, counts_inodes))
        hosts = self.state.hosts
        files = self._choose_files(jobs, lambda job_id: job_id not in hosts, now, check)
        tails = self._choose_tails(
            jobs, lambda job_id: job_id not in hosts, now, check, is_own_output=False
        )
        return FactsRequest(
            files, tuple(sorted(newest)), tuple(sorted(checkpoints)), tuple(disks), tails
        )

    def _choose_files(
        self, jobs: pa.Table, is_selected: Callable[[str], bool], now: float, check: Judgement
    ) -> tuple[str, ...]:
        """The logs whose growth is looked at, those first that were not for longest; of a job all
        or none.
        """
        checks = self.state.log_looks
        by_job: dict[str, set[str]] = {}
        for job_id, path in self._followed(jobs):
            if is_selected(job_id):
                by_job.setdefault(job_id, set()).add(path)
        turn = sorted(
            by_job, key=lambda job_id: min(checks.get(path, 0.0) for path in by_job[job_id])
        )
        requested: set[str] = set()
        waiting = 0
        for job_id in turn:
            if waiting or len(requested | by_job[job_id]) > MOST_FILES:
                waiting += 1
            else:
                requested |= by_job[job_id]
        checks.update(dict.fromkeys(requested, now))
        if waiting:
            logs = f"the logs of {counted(waiting, 'more job')} were not checked"
            check.problems.append(
                f"{logs}: a round checks at most {MOST_FILES} logs, and the next one continues"
            )
        return tuple(sorted(requested))

    def _followed(self, jobs: pa.Table) -> list[tuple[str, str]]:
        """(job, path) of the logs whose growth is looked at."""
        return [
            (job_id, path)
            for job_id, rule in self._hung(jobs).items()
            for path in self._paths(job_id, rule)
        ]

    def _choose_tails(
        self,
        jobs: pa.Table,
        is_selected: Callable[[str], bool],
        now: float,
        check: Judgement,
        *,
        is_own_output: bool,
    ) -> tuple[TailQuery, ...]:
        """The logs of trainings that are read on, those first that were not tried for longest; a
        file that a rule names is none of a job's own.
        """
        known, checks = self.state.tails, self.state.tail_looks
        paths = {
            path
            for job_id, (rule, _) in self._trainings(jobs).items()
            if (not is_own_output if rule.log else is_selected(job_id))
            for path in self._paths(job_id, rule)
        }
        turn = sorted(paths, key=lambda path: (checks.get(path, 0.0), path))
        checks.update(dict.fromkeys(turn[:MOST_TAILS], now))
        if waiting := len(turn[MOST_TAILS:]):
            logs = (
                f"{counted(waiting, 'more training log')} {'was' if waiting == 1 else 'were'} "
                f"not read"
            )
            check.problems.append(
                f"{logs}: a round reads at most {MOST_TAILS}, and the next one continues"
            )
        return tuple(_tail_query(path, known.get(path)) for path in turn[:MOST_TAILS])

    async def _fetch_facts(self, jobs: pa.Table, check: Judgement) -> None:
        now = self.store.clock.now()
        self._forget(jobs)
        self._request = self._build_facts_request(jobs, now, check)
        self._facts, self._facts_at = Facts(), now
        failure: HpcdashError | None = None
        if self._request:
            streamed, rest = self._request.parted(
                lambda path: bool(self.store.backend.logs.request(path))
            )
            try:
                # What the scheduler streams is no file of the login node's.
                for some in filter(None, (streamed, rest)):
                    self._facts = self._facts.with_others(
                        await self.store.ask(facts_query(some, self.store.user))
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
        found = {}
        for pool in self.shared if self._here(self.settings.pools) else ():
            try:
                found[pool.name] = await PoolReader(self.store, pool).read()
            except HpcdashError as error:
                check.problems.append(error.message)
        assert self._facts is not None
        self._facts = replace(self._facts, pools=found)

    def _forget(self, jobs: pa.Table) -> None:
        """Remove the state of logs that are no longer watched."""
        state = self.state
        followed = {path for _, path in self._followed(jobs)}
        state.logs = {path: log for path, log in state.logs.items() if path in followed}
        state.log_looks = {path: at for path, at in state.log_looks.items() if path in followed}
        read = {
            path
            for job_id, (rule, _) in self._trainings(jobs).items()
            for path in self._paths(job_id, rule)
        }
        state.tails = {path: tail for path, tail in state.tails.items() if path in read}
        state.tail_looks = {path: at for path, at in state.tail_looks.items() if path in read}

    async def _query_nodes(self, jobs: pa.Table, now: float, check: Judgement) -> None:
        """Look at logs on nodes' own disks through ssh from the login node: a few nodes a round,
        each in its turn.
        """
        state = self.state
        checks = state.host_looks
        hosts = sorted(set(state.hosts.values()), key=lambda host: (checks.get(host, 0.0), host))
        state.host_looks = {
            host: now if host in hosts[:MOST_NODES] else checks.get(host, 0.0) for host in hosts
        }
        requested = await asyncio.gather(
            *(self._query_node(host, jobs, now, check) for host in hosts[:MOST_NODES])
        )
        for facts in requested:
            assert self._facts is not None
            before = self._facts
            self._facts = replace(
                before,
                files={**before.files, **facts.files},
                tails={**before.tails, **facts.tails},
                heads={**before.heads, **facts.heads},
            )

    async def _query_node(self, host: str, jobs: pa.Table, now: float, check: Judgement) -> Facts:
        """Query a node for facts on the logs on its disk; a failure is noted for its jobs."""
        state = self.state
        host_ids = {job_id for job_id, name in state.hosts.items() if name == host}
        files = self._choose_files(jobs, host_ids.__contains__, now, check)
        tails = self._choose_tails(jobs, host_ids.__contains__, now, check, is_own_output=True)
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
        requested = {
            path
            for path in (*files, *(tail.path for tail in tails))
            if not lies_in(path, facts.silent)
        }
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
        return facts

    def _note_blind(self, jobs: pa.Table, facts: Facts, failure: HpcdashError | None) -> None:
        """Count the rounds in which a place could not be looked at; those of another turn, or of
        none, stay as is.
        """
        state, requested = self.state, self._request
        if failure is not None:
            found = {} if isinstance(failure, RateLimited) else {"": unseen.FAILED}
            state.blind = unseen.unseen_after(state.blind, found, state.blind)
            return
        found = dict.fromkeys(facts.silent, unseen.SILENT)
        for rule in self._here(self.settings.storage):
            path = rule.watch.path
            if self._usage(rule, facts.disks.get(path), state.disks.get(path)) is None:
                found.setdefault(path, unseen.UNTOLD)
        for path in (tail.path for tail in requested.tails if tail.path not in facts.tails):
            found.setdefault(path, unseen.ABSENT)
        # What lies in a place that does not answer is not told apart from it.
        found = {
            path: why
            for path, why in found.items()
            if path in facts.silent or not lies_in(path, facts.silent)
        }
        looked_at = {
            *requested.files,
            *requested.newest,
            *requested.checkpoints,
            *(tail.path for tail in requested.tails),
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
        from hpcdash.services.watch.training import read_on

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
            log = state.logs.get(path)
            before = LogGrowth("", path, None, now)
            if log is not None:
                seen_at = log.same_since if log.seen_at is None else log.seen_at
                before = LogGrowth(
                    "", path, log.size_bytes, log.same_since, log.written_at, seen_at
                )
            size, written_at = (
                (file.size, file.modified_at or None) if file.is_there else (None, None)
            )
            after = before.looked_at(size, now, file.age_seconds or 0.0, written_at)
            state.logs[path] = LogState(
                after.size_bytes, after.same_since, after.written_at, after.seen_at
            )
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
        f"was checked"
    )


def _tail_query(path: str, tail: LogTail | None) -> TailQuery:
    from hpcdash.services.watch.training import read_from

    if tail is None:
        return TailQuery(path)
    return TailQuery(path, tail.identity, tail.read_to, read_from(tail), tail.is_done)


async def query_grace(
    store: ClusterStore, state: WatchState, rows: Iterable[Mapping[str, Any]]
) -> list[str]:
    """Learn into `state` what becomes of jobs (rows of domain.schema.JOBS) when others need their
    place.

    Gives what could not be asked, in words.
    """
    every, backend = list(rows), store.backend
    names = {str(row["qos"] or "") for row in every} - {""}
    problems = await _query_each(store, "QoS", names, backend.policy.qos, state.qos)
    queues = {first_queue(row) for row in every} - {""}
    return problems + await _query_each(
        store, "queue", queues, backend.policy.preemption, state.queues
    )


async def _query_each(
    store: ClusterStore,
    what: str,
    names: Iterable[str],
    build_query: Callable[[str], Query[Mapping[str, str]] | None],
    stored: dict[str, QosState],
) -> list[str]:
    now = store.clock.now()
    problems = []
    for name in sorted(names):
        known = stored.get(name)
        query = build_query(name)
        if query is None or (known is not None and now - known.asked_at < EVERY_SECONDS):
            continue
        try:
            stored[name] = qos_state(await store.ask(query), now)
        except HpcdashError as error:
            problems.append(f"{what} {name} could not be queried: {error.message}")
    return problems


def qos_state(texts: Mapping[str, str], now: float) -> QosState:
    """Parse the texts of PolicyPart.qos (PolicyPart.preemption: of a queue) into values.

    They are the effect of preemption on a job, the grace time, and whether other jobs can preempt
    it.
    """
    making_way = texts.get("a job that makes way", "")
    grace = texts.get("time to save first", "")
    mode = ",".join(
        mode
        for mode, message in (
            ("cancel", "cancelled"),
            ("requeue", "put back"),
            ("suspend", "suspended"),
        )
        if message in making_way
    )
    return QosState(now, mode, _grace_seconds(grace), PREEMPTED_BY in texts)


def _grace_seconds(text: str) -> float | None:
    if text in ("", "none"):
        return 0.0 if text else None
    try:
        found = parse_duration(text)
    except ValueError:
        return None
    return None if found is None else float(found)
