"""What the watchdogs of one cluster find in what its store knows now; asks nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from hpcdash.backends.base import ReasonsPart
from hpcdash.config.settings import PoolSettings
from hpcdash.config.watch_settings import (
    ANYONE,
    HangingRule,
    HangingWatch,
    JobSelector,
    LossesRule,
    RunningWatch,
    SavesRule,
    StorageRule,
    WatchSettings,
)
from hpcdash.domain.alerts import ANY_ASPECT, Finding, finding_key
from hpcdash.domain.chains import find_chain
from hpcdash.domain.columns import as_array
from hpcdash.domain.states import ACTIVE, JobState
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import visible
from hpcdash.domain.units import MINUTE, format_span
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.submit.launch_records import LaunchedCheckpoints
from hpcdash.services.watch.disks import DiskUsage
from hpcdash.services.watch.facts import DiskCheck, Facts
from hpcdash.services.watch.rules import (
    allocations,
    deadlines,
    failures,
    hanging,
    losses,
    nodes,
    pools,
    running,
    storage,
    successors,
    unseen,
    waiting,
)
from hpcdash.services.watch.rules.rows import rows_where
from hpcdash.services.watch.rules.waiting import format_never
from hpcdash.services.watch.state import DiskState, QosState, WatchState

Row = Mapping[str, Any]
UNREACHABLE = "unreachable"
# What was seen of logs, saves and disks longer ago tells nothing of now.
FRESH_SECONDS = 2.0 * MINUTE
ALL_RULES = tuple(
    finding_key(rule)
    for rule in (
        *(
            running.RULE,
            hanging.RULE,
            storage.RULE,
            nodes.DRAINED,
            nodes.SPARES,
            successors.RULE,
            waiting.RULE,
        ),
        allocations.RULE,
        *(
            deadlines.END,
            deadlines.NO_SAVE,
            deadlines.GRACE,
            failures.RULE,
            losses.RULE,
            losses.LATE,
            unseen.RULE,
        ),
        *(pools.SILENT, *pools.OF_TASKS),
    )
)


class Judgement(Struct):
    """What a look found.

    `unknown` are keys, or rules, that could not be looked at; `problems` say why, in words.

    `pulses` are the words of PULSE lines; `is_reached`: whether the scheduler told its jobs.
    """

    findings: list[Finding] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    pulses: list[str] = field(default_factory=list)
    is_reached: bool = True
    job_count: int = 0


class Judge:
    """Judges what a store knows; `state` is what was known before, `shared` the pools that are
    shared there.
    """

    def __init__(
        self,
        store: ClusterStore,
        settings: WatchSettings,
        state: WatchState | None = None,
        *,
        shared: Sequence[PoolSettings] = (),
    ) -> None:
        self.store = store
        self.shared = tuple(shared)
        self.settings = settings
        self.state = state or WatchState()
        # What the last look learned beside the snapshots; None: there was none yet.
        self._facts: Facts | None = None
        # Ages are by the time of asking; how fresh they are, by that of the answer: du alone may
        # take minutes.
        self._facts_at = 0.0
        self._answered_at = 0.0
        launches = None if store.scripts is None else store.scripts.folder.parent
        self._launched = LaunchedCheckpoints(launches, store.name)

    def take_settings(self, settings: WatchSettings) -> None:
        """Judge by other settings from now on; what they need besides is for the next look to
        learn.
        """
        self.settings = settings
        self._facts = None

    # -- which rules are for this cluster

    def _here(self, rules: Iterable[Any]) -> list[Any]:
        return [rule for rule in rules if rule.meant.is_on(self.store.name)]

    def _users(self, meant: JobSelector) -> tuple[str, ...]:
        """() is anyone."""
        if ANYONE in meant.users:
            return ()
        return meant.users or ((self.store.user,) if self.store.user else ())

    @property
    def job_kind(self) -> Kind:
        """Whose jobs must be known: one's own, or everyone's where a rule is about somebody
        else.
        """
        settings = self.settings
        log_rules = (*settings.hanging, *settings.losses)
        job_rules = self._here((*settings.running, *log_rules, *settings.chains, *settings.saves))
        own = {self.store.user}
        is_own = all(not rule.meant.users or set(rule.meant.users) <= own for rule in job_rules)
        return Kind.MINE if is_own else Kind.EVERYONE

    @property
    def kinds(self) -> frozenset[Kind]:
        """The tables that the rules stand on, without the history."""
        return frozenset(
            {self.job_kind, *((Kind.NODES,) if self._here(self.settings.nodes) else ())}
        )

    def _table(self, kind: Kind) -> pa.Table | None:
        """What this run was told, without an error since."""
        snapshot = self.store.snapshots.get(kind)
        return (
            None
            if snapshot is None or snapshot.cached or kind in self.store.errors
            else snapshot.table
        )

    def _rows(self, jobs: pa.Table, meant: JobSelector, *states: JobState) -> list[Row]:
        wanted: dict[str, Any] = {"state": tuple(map(str, states))}
        if meant.name:
            wanted["name"] = (meant.name,)
        if users := self._users(meant):
            wanted["user"] = users
        return list(rows_where(jobs, **wanted))

    def _hung(self, jobs: pa.Table) -> dict[str, HangingRule]:
        """The rule of each running job whose log is watched; the first that means it."""
        found: dict[str, HangingRule] = {}
        for rule in self._here(self.settings.hanging):
            for row in self._rows(jobs, rule.meant, JobState.RUNNING):
                found.setdefault(str(row["id"]), rule)
        return found

    def _trainings(self, jobs: pa.Table) -> dict[str, tuple[LossesRule, Row]]:
        """The rule and the row of each running job whose metrics are watched; the first that means
        it.
        """
        found: dict[str, tuple[LossesRule, Row]] = {}
        for rule in self._here(self.settings.losses):
            for row in self._rows(jobs, rule.meant, JobState.RUNNING):
                found.setdefault(str(row["id"]), (rule, row))
        return found

    def _paths(self, job_id: str, rule: HangingRule | LossesRule) -> list[str]:
        """Where a job writes: the file that its rule names, else its own output as far as that was
        found.
        """
        return (
            [rule.log.replace("{id}", job_id)] if rule.log else self.state.logs_of.get(job_id, [])
        )

    def _saving(self, jobs: pa.Table) -> list[tuple[SavesRule, str]]:
        states = (JobState.RUNNING, JobState.PENDING, JobState.HELD)
        found: dict[str, SavesRule] = {}
        for rule in self._here(self.settings.saves):
            for row in self._rows(jobs, rule.meant, *states):
                found.setdefault(str(row["id"]), rule)
        return [(rule, job_id) for job_id, rule in found.items()]

    def _saved_places(self, jobs: pa.Table) -> dict[str, tuple[SavesRule, str]]:
        """The rule of each job that saves and where its saves are looked for: as the rule says,
        else as its launch from here does; '' where neither tells.
        """
        found = {job_id: (rule, _save_place(rule, job_id)) for rule, job_id in self._saving(jobs)}
        unknown_ids = [job_id for job_id, (_, place) in found.items() if not place]
        for row in (
            rows_where(jobs, id=unknown_ids, state=(JobState.RUNNING,)) if unknown_ids else ()
        ):
            job_id = str(row["id"])
            found[job_id] = (found[job_id][0], self._launched.folder(row))
        return found

    def _watched_places(self, jobs: pa.Table) -> set[str]:
        """The paths and patterns of the login node that rules look at; none of a node's own
        disk.
        """
        job_rules: list[tuple[str, HangingRule | LossesRule]] = list(self._hung(jobs).items())
        job_rules += [(job_id, rule) for job_id, (rule, _) in self._trainings(jobs).items()]
        logs = {
            path
            for job_id, rule in job_rules
            if rule.log or job_id not in self.state.hosts
            for path in self._paths(job_id, rule)
        }
        saves = {place for _, place in self._saved_places(jobs).values() if place}
        return logs | saves | {rule.watch.path for rule in self._here(self.settings.storage)}

    # -- judging

    @property
    def _seen(self) -> Facts | None:
        """What the last look learned beside the snapshots, while it is fresh."""
        return self._facts if self.store.clock.now() - self._answered_at <= FRESH_SECONDS else None

    def judge(self) -> Judgement:
        """What the rules find in what is known now; asks nothing."""
        look = Judgement()
        now = self.store.clock.now()
        jobs = self._table(self.job_kind)
        # An alert about the connection is for a look to settle.
        if self.state.unreachable_rounds:
            look.unknown.add(finding_key(UNREACHABLE))
        if jobs is None:
            look.unknown.update(ALL_RULES)
            return look
        look.job_count = jobs.num_rows
        self._judge_jobs(jobs, now, look)
        self._judge_logs(jobs, look)
        self._judge_losses(jobs, now, look)
        self._judge_saves(jobs, now, look)
        self._judge_disks(look)
        self._judge_nodes(look)
        self._judge_history(look)
        self._judge_pools(now, look)
        look.findings += [
            unseen.unreachable_place(place or self.store.title, why, rounds)
            for place, (why, rounds) in self.state.blind.items()
            if rounds >= self.settings.unreachable_rounds
        ]
        return look

    def _judge_jobs(self, jobs: pa.Table, now: float, look: Judgement) -> None:
        settings = self.settings
        reasons = self.store.backend.reasons
        zoned = datetime.fromtimestamp(now, UTC).astimezone()
        for rule in self._here(settings.running):
            watch = RunningWatch(rule.meant.name, self._users(rule.meant), rule.severity)
            look.findings += running.is_running(jobs, watch)
            look.pulses.append(
                format_pulse(rule.meant.name, running.living_rows(jobs, watch), zoned, reasons)
            )
        if settings.never_starts:
            look.findings += waiting.waits_for_ever(self._own(jobs), reasons)
        own = self._own(jobs)
        look.findings += allocations.ends_soon(own, self._launched.allocations(own), now)
        for rule in self._here(settings.chains):
            seen: set[str] = set()
            for row in self._rows(
                jobs, rule.meant, JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED
            ):
                chain = find_chain(str(row["id"]), self._owned_rows(jobs, row["user"]))
                if chain.units and chain.units[0].job_id not in seen:
                    seen.add(chain.units[0].job_id)
                    look.findings += successors.no_successor([chain], reasons, rule.watch)

    def _own(self, jobs: pa.Table) -> pa.Table:
        if self.job_kind is Kind.MINE or not self.store.user:
            return jobs
        return self._user_table(jobs, self.store.user)

    def _user_table(self, jobs: pa.Table, user: str) -> pa.Table:
        return jobs.filter(pc.equal(as_array(jobs["user"]).cast(pa.string()), user))

    def _owned_rows(self, jobs: pa.Table, user: str | None) -> list[Row]:
        rows: list[Row] = (self._user_table(jobs, user) if user else jobs).to_pylist()
        return rows

    def _judge_logs(self, jobs: pa.Table, look: Judgement) -> None:
        watched = self._hung(jobs)
        facts = self._seen
        by_rule: dict[HangingWatch, list[hanging.LogGrowth]] = {}
        for job_id, rule in watched.items():
            paths = self._paths(job_id, rule)
            unseen = "" if rule.log else self.state.unseen.get(job_id, "")
            if unseen:
                look.unknown.add(finding_key(hanging.RULE, job_id))
                look.findings.append(hanging.cannot_be_seen(job_id, unseen, _name(jobs, job_id)))
                look.problems.append(look.findings[-1].words)
                continue
            is_known = (
                facts is not None and bool(paths) and all(path in facts.files for path in paths)
            )
            if not is_known:
                look.unknown.add(finding_key(hanging.RULE, job_id))
                continue
            # What is written to either stream is a sign of life.
            path = max(
                paths,
                key=lambda path: (self.state.logs[path].size_bytes is not None, self._since(path)),
            )
            log = self.state.logs[path]
            by_rule.setdefault(rule.watch, []).append(
                hanging.LogGrowth(job_id, path, log.size_bytes, log.same_since)
            )
        for watch, logs in by_rule.items():
            look.findings += hanging.is_hanging(jobs, logs, watch, self._facts_at)

    def _judge_losses(self, jobs: pa.Table, now: float, look: Judgement) -> None:
        watched = self._trainings(jobs)
        if not watched:
            return
        # What reads metrics loads numpy, which whoever watches none does without.
        from hpcdash.services.watch.training import course, noticed

        hangs = {
            one.subject for one in look.findings if one.rule == hanging.RULE and not one.aspect
        }
        for job_id, (rule, row) in watched.items():
            unseen = "" if rule.log else self.state.unseen.get(job_id, "")
            if unseen:
                look.findings.append(losses.cannot_be_seen(job_id, unseen, row["name"] or ""))
            tails = [
                self.state.tails[path]
                for path in self._paths(job_id, rule)
                if path in self.state.tails
            ]
            if not tails:
                look.unknown.add(finding_key(losses.RULE, job_id, ANY_ASPECT))
            known: set[str] = set()
            for tail in tails:
                is_fresh = now - tail.looked_at <= FRESH_SECONDS or (
                    self._seen is not None and tail.looked_at >= self._facts_at
                )
                found = [one for one in noticed(tail, tail.looked_at) if one.metric not in known]
                for stall in [one for one in found if one.kind == losses.STALL]:
                    if job_id in hangs or not is_fresh:
                        # That the job hangs says it already, and is not its end.
                        found.remove(stall)
                        look.unknown.add(losses.stall_key(job_id, stall.metric))
                known |= set(tail.metrics)
                look.findings += losses.losses(job_id, found, rule.watch, row["name"] or "")
            if losses.LIMIT in rule.watch.kinds:
                stand = next((one for tail in tails if (one := course(tail)) is not None), None)
                if stand is None or stand.seconds_per_step is None:
                    look.unknown.add(finding_key(losses.LATE, job_id))
                else:
                    look.findings += losses.ends_late(
                        row, stand, now, self._waiting_behind(jobs, row)
                    )

    def _waiting_behind(self, jobs: pa.Table, row: Row) -> int:
        """How many jobs and tasks of a job's chain wait and will start."""
        chain = find_chain(str(row["id"]), self._owned_rows(jobs, row["user"]))
        return successors.ready_behind(chain, self.store.backend.reasons)

    def _since(self, path: str) -> float:
        return self.state.logs[path].same_since

    def _judge_saves(self, jobs: pa.Table, now: float, look: Judgement) -> None:
        saves = []
        seen = self._seen or Facts()
        for job_id, (rule, place) in self._saved_places(jobs).items():
            if place and place not in seen.newest:
                look.unknown.update(
                    finding_key(name, job_id) for name in (deadlines.END, deadlines.NO_SAVE)
                )
                saves.append(deadlines.Saves(job_id, rule.watch))
                continue
            age = seen.newest.get(place)
            saved_at = None if age is None else self._facts_at - age
            name, is_folder = seen.names.get(place, ""), not rule.saved
            saves.append(deadlines.Saves(job_id, rule.watch, saved_at, place, name, is_folder))
        ends = deadlines.end_before_save(jobs, saves, now)
        look.findings += [one for one in ends if one.key not in look.unknown]
        # By when they were looked at: since then it may have saved.
        look.findings += deadlines.no_save(jobs, saves, self._facts_at)
        qos, queues = self.state.qos, self.state.queues
        if self._here(self.settings.saves) and not qos and not queues and self._seen is None:
            look.unknown.add(finding_key(deadlines.GRACE))
        look.findings += deadlines.grace_too_short(
            jobs, _grace_facts(qos), saves, _grace_facts(queues)
        )

    def _judge_disks(self, look: Judgement) -> None:
        facts = self._seen
        for rule in self._here(self.settings.storage):
            path = rule.watch.path
            kept = self.state.disks.get(path)
            usage = self._usage(rule, facts.disks.get(path) if facts is not None else None, kept)
            if usage is None or kept is None:
                look.unknown.update(
                    finding_key(storage.RULE, path, part)
                    for part in (storage.BYTES, storage.INODES)
                )
                if facts is not None:
                    look.problems.append(f"cannot read the disk usage of {path}: does it exist?")
                continue
            look.findings += storage.storage(
                usage, rule.watch, kept.byte_samples, kept.inode_samples
            )

    @staticmethod
    def _usage(
        rule: StorageRule, seen: DiskCheck | None, kept: DiskState | None
    ) -> DiskUsage | None:
        """The quota tool's figures and df's, or, of a folder with limits of its own, what du
        counted last.
        """
        if not rule.counts_by_du:
            return seen.usage if seen is not None else None
        if kept is None:
            return None
        if kept.counted_bytes is None and kept.counted_inodes is None:
            return None
        name = rule.watch.path
        return DiskUsage("du", name, bytes_used=kept.counted_bytes, inodes_used=kept.counted_inodes)

    def _judge_nodes(self, look: Judgement) -> None:
        rules = self._here(self.settings.nodes)
        table = self._table(Kind.NODES) if rules else None
        if rules and table is None:
            look.unknown.update((finding_key(nodes.DRAINED), finding_key(nodes.SPARES)))
        elif table is not None:
            for rule in rules:
                look.findings += nodes.drained_nodes(table, rule.watch)
                look.findings += nodes.spare_nodes(table, rule.watch)

    def _judge_history(self, look: Judgement) -> None:
        rules = self._here(self.settings.failures)
        table = self._table(Kind.HISTORY) if rules else None
        if rules and table is None:
            look.unknown.add(finding_key(failures.RULE))
        elif table is not None:
            for rule in rules:
                look.findings += failures.fails_on_a_node(table, rule.watch)

    def _judge_pools(self, now: float, look: Judgement) -> None:
        rules = self._here(self.settings.pools)
        seen = self._seen or Facts()
        if rules and any(pool.name not in seen.pools for pool in self.shared):
            look.unknown.update(map(finding_key, (pools.SILENT, *pools.OF_TASKS)))
        moment = datetime.fromtimestamp(now, UTC)
        for pool in seen.pools.values() if rules else ():
            look.findings += pools.silent_pool(pool, moment)
            for rule in rules:
                users = self._users(rule.meant)
                look.findings += pools.stuck_tasks(pool, rule.watch, users, moment, rule.meant.name)


def _save_place(rule: SavesRule, job_id: str) -> str:
    return (rule.saved or rule.checkpoints).replace("{id}", job_id)


def _name(jobs: pa.Table, job_id: str) -> str:
    return next((row["name"] or "" for row in rows_where(jobs, id=(job_id,))), "")


def _grace_facts(known: Mapping[str, QosState]) -> dict[str, deadlines.GraceFacts]:
    return {
        name: deadlines.GraceFacts(name, one.preempt_mode, one.grace_seconds, one.is_preempted)
        for name, one in known.items()
    }


def pulse_line(now: datetime, words: str) -> str:
    """`[2026-11-21 16:00:00] PULSE: …`, in the zone of `now`, one line whatever the words are,
    without its end.
    """
    return f"[{now:%Y-%m-%d %H:%M:%S}] PULSE: {visible(words)}"


def format_pulse(name: str, rows: Iterable[Row], now: datetime, reasons: ReasonsPart) -> str:
    """How a job stands, of the rows (domain.schema.JOBS) that have its name and have not ended.

    The most alive of them counts; times are in the zone of `now`; `reasons` are the scheduler's.
    """
    ordered = sorted(
        rows,
        key=lambda row: (_rank(row), row["started_at"] or now, row["_number"] or 0, str(row["id"])),
    )
    if not ordered:
        return f"{name} is neither running nor pending"
    row = ordered[0]
    who = f"{name} ({row['id']})"
    if row["state"] in ACTIVE:
        return f"{who} {_activity(row, now)}"
    reason = row["reason"] or ""
    if row["state"] == JobState.HELD:
        return f"{who} is held and will not start until it is released"
    if reason == "JobArrayTaskLimit" or "subjobs limit" in reason:
        return f"{who} waits for the task of its array that runs to end"
    if reasons.never_starts(row["state"], reason):
        return f"{who} {format_never(row['state'], reason, reasons)}"
    if reason == "Dependency" or "depend" in reason.lower():
        after = f" ({row['dependency']})" if row["dependency"] else ""
        return f"{who} waits for the job it depends on to end{after}"
    expected = row["_expected_start_at"]
    because = f" ({reason})" if reason else ""
    if expected is None:
        return f"{who} is pending, with no estimate of when it starts{because}"
    when = f"{expected.astimezone(now.tzinfo):%Y-%m-%d %H:%M:%S}"
    seconds = (expected - now).total_seconds()
    if seconds <= 0:
        return f"{who} is pending and was estimated by the scheduler to start at {when}{because}"
    return (
        f"{who} is estimated by the scheduler to start in {format_span(seconds)}, at "
        f"{when}{because}"
    )


def _rank(row: Row) -> int:
    state = row["state"]
    if state in ACTIVE:
        return (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING).index(state)
    return 4 if state == JobState.HELD else 3


def _activity(row: Row, now: datetime) -> str:
    if row["state"] != JobState.RUNNING:
        return f"is {row['state']}"
    nodes = f" on {row['node_list']}" if row["node_list"] else ""
    if row["started_at"] is None:
        return f"is running{nodes}"
    ran = format_span((now - row["started_at"]).total_seconds())
    left = (row["ends_at"] - now).total_seconds() if row["ends_at"] is not None else None
    return f"has been running for {ran}{nodes}" + (
        f", {format_span(left)} left" if left and left > 0 else ""
    )
