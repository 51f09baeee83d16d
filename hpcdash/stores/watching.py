"""The watchdogs of one cluster at work: what they ask through its store, and what they remember of it.

Knows no one who is told and no screen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pyarrow as pa

from hpcdash.domain.states import JobState
from hpcdash.domain.text import visible
from hpcdash.domain.units import HOUR
from hpcdash.errors import AccountingUnavailable, HpcdashError, NoSuchJob, RateLimited
from hpcdash.stores.logs import locate_logs
from hpcdash.stores.snapshots import Kind
from hpcdash.stores.watch_facts import MOST_FILES, Asked, DiskAsked, Facts, facts_query
from hpcdash.stores.watch_judge import ALL_RULES, UNREACHABLE, Judge, Look
from hpcdash.stores.watch_state import DiskState, LogState, QosState, add_sample
from hpcdash.watch.findings import Finding, Severity, finding_key

# Each costs two commands or three; the others' turn comes the next round.
MOST_LOCATED = 6
HISTORY_EVERY_SECONDS = 1.0 * HOUR
DU_EVERY_SECONDS = 1.0 * HOUR
QOS_EVERY_SECONDS = 6.0 * HOUR


class Watching(Judge):
    """`state` changes with each look."""

    _asked = Asked()

    async def look(self) -> Look:
        """Ask for all that the rules need, and judge it; raises nothing for a cluster that does not answer."""
        look = Look()
        try:
            await self.store.open()
            await self.store.fetch(self.job_kind)
        except HpcdashError as error:
            return self._not_reached(error)
        self.state.unreachable_rounds = 0
        jobs = self._table(self.job_kind)
        assert jobs is not None
        if self._here(self.settings.nodes):
            await self._fetch(Kind.NODES, look)
        if self._wants_history():
            await self._fetch(Kind.HISTORY, look)
            self.state.history_at = self.store.clock.now()
        await self._locate(jobs, look)
        await self._ask_facts(jobs, look)
        await self._ask_qos(jobs, look)
        judged = await asyncio.to_thread(self.judge)
        judged.problems[:0] = look.problems
        return judged

    def _not_reached(self, error: HpcdashError) -> Look:
        look = Look(unknown=set(ALL_RULES), problems=[error.message], is_reached=False)
        if isinstance(error, RateLimited):
            look.unknown.add(finding_key(UNREACHABLE))
            return look
        self.state.unreachable_rounds += 1
        rounds = self.state.unreachable_rounds
        if rounds >= self.settings.unreachable_rounds:
            words = f"{self.store.title} could not be asked {rounds} times in a row: {visible(error.message)}"
            step = error.next_step.splitlines()[0] if error.next_step else "hpcdash doctor looks at the connection."
            look.findings.append(Finding(UNREACHABLE, self.store.name, Severity.CRITICAL, words, step))
        look.pulses = [
            f"{rule.meant.name}: the cluster does not answer: {error.message}"
            for rule in self._here(self.settings.running)
        ]
        return look

    async def _fetch(self, kind: Kind, look: Look) -> None:
        try:
            await self.store.fetch(kind)
        except AccountingUnavailable:
            return
        except HpcdashError as error:
            look.problems.append(f"{kind} could not be asked: {error.message}")

    def _wants_history(self) -> bool:
        is_old = self.store.clock.now() - self.state.history_at >= HISTORY_EVERY_SECONDS
        return bool(self._here(self.settings.failures)) and is_old

    # -- where jobs write, how full disks are, what a QoS does

    async def _locate(self, jobs: pa.Table, look: Look) -> None:
        """Find where jobs write that were not met before; {id} stands for a job where a rule names the file."""
        wanted = self._hung(jobs)
        self.state.logs_of = {job_id: paths for job_id, paths in self.state.logs_of.items() if job_id in wanted}
        left = MOST_LOCATED
        for job_id, rule in wanted.items():
            if rule.log:
                self.state.logs_of[job_id] = [rule.log.replace("{id}", job_id)]
            elif job_id not in self.state.logs_of and left > 0:
                left -= 1
                try:
                    files = (await locate_logs(self.store, job_id)).files
                except NoSuchJob:
                    continue
                except HpcdashError as error:
                    look.problems.append(f"where job {job_id} writes could not be asked: {error.message}")
                    continue
                if files.host or files.stdout is None:
                    why = f"it is on {files.host} until the job ends" if files.host else files.note
                    look.problems.append(f"the log of job {job_id} cannot be followed: {why}")
                here = [] if files.host else [files.stdout, files.stderr]
                self.state.logs_of[job_id] = [path for path in here if path is not None]

    def _to_ask(self, jobs: pa.Table, now: float) -> Asked:
        newest, checkpoints = set(), set()
        for rule, job_id in self._saving(jobs):
            if rule.saved:
                newest.add(rule.saved.replace("{id}", job_id))
            if rule.checkpoints:
                checkpoints.add(rule.checkpoints.replace("{id}", job_id))
        disks = []
        for one in self._here(self.settings.storage):
            known = self.state.disks.get(one.watch.path)
            is_due = known is None or now - known.counted_at >= DU_EVERY_SECONDS
            by_du = is_due and one.counts_by_du
            counts_inodes = by_du and one.watch.limit_inodes is not None
            disks.append(DiskAsked(one.watch.path, one.quota, one.quota_of, by_du, counts_inodes))
        files = sorted({path for paths in self.state.logs_of.values() for path in paths})
        return Asked(tuple(files[:MOST_FILES]), tuple(sorted(newest)), tuple(sorted(checkpoints)), tuple(disks))

    async def _ask_facts(self, jobs: pa.Table, look: Look) -> None:
        now = self.store.clock.now()
        self._asked = self._to_ask(jobs, now)
        self._facts, self._facts_at = Facts(), now
        if self._asked:
            try:
                self._facts = await self.store.ask(facts_query(self._asked, self.store.user))
            except HpcdashError as error:
                look.problems.append(f"logs and disks could not be looked at: {error.message}")
        self._remember(self._facts, now)

    def _remember(self, facts: Facts, now: float) -> None:
        state = self.state
        followed = {path for paths in state.logs_of.values() for path in paths}
        state.logs = {path: log for path, log in state.logs.items() if path in followed}
        for path, file in facts.files.items():
            before = state.logs.get(path)
            written = now if file.age_seconds is None else now - file.age_seconds
            if before is not None and before.size_bytes == file.size_bytes:
                # A file that is not there has no time of its own.
                since = before.same_since if file.age_seconds is None else max(before.same_since, written)
            else:
                since = written
            state.logs[path] = LogState(file.size_bytes, since)
        for disk in self._asked.disks:
            look = facts.disks.get(disk.path)
            if look is None:
                continue
            kept = state.disks.setdefault(disk.path, DiskState([], []))
            if disk.by_du:
                # Tried is enough: what takes too long is not begun again at once.
                kept.counted_at = now
                kept.counted_bytes = look.counted.bytes_used if look.counted else None
                kept.counted_inodes = look.counted.inodes_used if look.counted else None
        for rule in self._here(self.settings.storage):
            path = rule.watch.path
            usage = self._usage(rule, facts.disks.get(path), state.disks.get(path))
            if usage is not None and usage.bytes_used is not None:
                add_sample(state.disks[path].byte_samples, now, usage.bytes_used)
            if usage is not None and usage.inodes_used is not None:
                add_sample(state.disks[path].inode_samples, now, usage.inodes_used)

    async def _ask_qos(self, jobs: pa.Table, look: Look) -> None:
        now = self.store.clock.now()
        names = {
            str(row["qos"])
            for rule in self._here(self.settings.saves)
            for row in self._rows(jobs, rule.meant, JobState.RUNNING, JobState.PENDING, JobState.HELD)
            if row["qos"]
        }
        for name in sorted(names):
            known = self.state.qos.get(name)
            query = self.store.backend.qos_query(name)
            if query is None or (known is not None and now - known.asked_at < QOS_EVERY_SECONDS):
                continue
            try:
                self.state.qos[name] = qos_state(await self.store.ask(query), now)
            except HpcdashError as error:
                look.problems.append(f"QoS {name} could not be asked: {error.message}")


def qos_state(words: Mapping[str, str], now: float) -> QosState:
    """What Backend.qos_query tells of a QoS, in figures: what becomes of a job that makes way, and after how long."""
    making_way = words.get("a job that makes way", "")
    grace = words.get("time to save first", "")
    mode = ",".join(
        mode
        for mode, said in (("cancel", "cancelled"), ("requeue", "put back"), ("suspend", "suspended"))
        if said in making_way
    )
    return QosState(now, mode, _grace_seconds(grace) if making_way else None)


def _grace_seconds(words: str) -> float | None:
    if words in ("", "none"):
        return 0.0 if words else None
    from hpcdash.domain.units import parse_duration

    try:
        found = parse_duration(words)
    except ValueError:
        return None
    return None if found is None else float(found)
