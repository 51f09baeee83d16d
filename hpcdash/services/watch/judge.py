"""Rules of the watchdogs of one cluster, applied to the store's current data; queries nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

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
from hpcdash.services.watch.state import DiskState, LogState, WatchState

Row = Mapping[str, Any]
R = TypeVar("R")
UNREACHABLE = "unreachable"
# Older observations of logs, saves and disks do not describe the present.
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
    """Result of a check.

    `unknown` are keys, or rules, that could not be checked; `problems` are the reasons, as text.
    `pulses` are the texts of PULSE lines; `is_reached`: whether the scheduler reported its jobs.
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
        # Facts of the last check beside the snapshots; None: no check yet.
        self._facts: Facts | None = None
        # Ages count from the query; freshness from the answer: du alone may take minutes.
        self._facts_at = 0.0
        self._answered_at = 0.0
        launches = None if store.scripts is None else store.scripts.folder.parent
        self._launched = LaunchedCheckpoints(launches, store.name)

    def take_settings(self, settings: WatchSettings) -> None:
        """Judge by other settings from now on; the next check queries what they need besides."""
        self.settings = settings
        self._facts = None

    # -- rules of this cluster

    def _here(self, rules: Iterable[Any]) -> list[Any]:
        return [rule for rule in rules if rule.meant.is_on(self.store.name)]

    def _users(self, selected: JobSelector) -> tuple[str, ...]:
        """() is anyone."""
        if ANYONE in selected.users:
            return ()
        return selected.users or ((self.store.user,) if self.store.user else ())

    @property
    def job_kind(self) -> Kind:
        """Scope of the jobs to know: one's own, or everyone's if a rule is about another user."""
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
        """Return the table that this run received, unless an error followed."""
        snapshot = self.store.snapshots.get(kind)
        return (
            None
            if snapshot is None or snapshot.cached or kind in self.store.errors
            else snapshot.table
        )

    def _rows(self, jobs: pa.Table, selected: JobSelector, *states: JobState) -> list[Row]:
        requested: dict[str, Any] = {"state": tuple(map(str, states))}
        if selected.name:
            requested["name"] = (selected.name,)
        if users := self._users(selected):
            requested["user"] = users
        return list(rows_where(jobs, **requested))

    def _selected(
        self, jobs: pa.Table, rules: Iterable[R], *states: JobState
    ) -> dict[str, tuple[R, Row]]:
        """Return by its id each job that a rule selects: the first such rule, and the job's row."""
        found: dict[str, tuple[R, Row]] = {}
        for rule in self._here(rules):
            for row in self._rows(jobs, rule.meant, *states):
                found.setdefault(str(row["id"]), (rule, row))
        return found

    def _hung(self, jobs: pa.Table) -> dict[str, tuple[HangingRule, Row]]:
        """The running jobs whose logs must grow."""
        return self._selected(jobs, self.settings.hanging, JobState.RUNNING)

    def _trainings(self, jobs: pa.Table) -> dict[str, tuple[LossesRule, Row]]:
        """The running jobs whose metrics are watched."""
        return self._selected(jobs, self.settings.losses, JobState.RUNNING)

    def _logged(self, jobs: pa.Table) -> list[tuple[str, HangingRule | LossesRule]]:
        """The jobs whose logs are watched, with their rules; those whose logs must grow come
        first.
        """
        growing = [(job_id, rule) for job_id, (rule, _) in self._hung(jobs).items()]
        return [*growing, *((job_id, rule) for job_id, (rule, _) in self._trainings(jobs).items())]

    def _paths(self, job_id: str, rule: HangingRule | LossesRule) -> list[str]:
        """Return a job's log paths: the file that its rule names, else its own output if known."""
        return (
            [rule.log.replace("{id}", job_id)] if rule.log else self.state.logs_of.get(job_id, [])
        )

    def _log_host(self, job_id: str, rule: HangingRule | LossesRule) -> str:
        """Return the node whose own disk a job's log is on, '' for one that the login node has."""
        return "" if rule.log else self.state.hosts.get(job_id, "")

    def _saving(self, jobs: pa.Table) -> dict[str, tuple[SavesRule, Row]]:
        """The jobs whose saves are watched."""
        states = (JobState.RUNNING, JobState.PENDING, JobState.HELD)
        return self._selected(jobs, self.settings.saves, *states)

    def _save_place(self, rule: SavesRule, row: Row) -> str:
        """Return where a job's saves are searched: as its rule says, else as its launch from here
        does; '' if neither does.
        """
        place = (rule.saved or rule.checkpoints).replace("{id}", str(row["id"]))
        if not place and row["state"] == JobState.RUNNING:
            place = self._launched.folder(row)
        return place

    def _watched_places(self, jobs: pa.Table) -> set[str]:
        """The paths and patterns that rules check on the login node; none of a node's own disk."""
        logs = {
            path
            for job_id, rule in self._logged(jobs)
            if not self._log_host(job_id, rule)
            for path in self._paths(job_id, rule)
        }
        saves = {self._save_place(*saving) for saving in self._saving(jobs).values()} - {""}
        return logs | saves | {rule.watch.path for rule in self._here(self.settings.storage)}

    # -- findings

    @property
    def _seen(self) -> Facts | None:
        """Facts of the last check beside the snapshots, while they are fresh."""
        return self._facts if self.store.clock.now() - self._answered_at <= FRESH_SECONDS else None

    def judge(self) -> Judgement:
        """Apply the rules to the data known now; queries nothing."""
        check = Judgement()
        now = self.store.clock.now()
        jobs = self._table(self.job_kind)
        # An alert about the connection is settled by a check.
        if self.state.unreachable_rounds:
            check.unknown.add(finding_key(UNREACHABLE))
        if jobs is None:
            check.unknown.update(ALL_RULES)
            return check
        check.job_count = jobs.num_rows
        self._judge_jobs(jobs, now, check)
        self._judge_logs(jobs, check)
        self._judge_losses(jobs, now, check)
        self._judge_saves(jobs, now, check)
        self._judge_disks(check)
        self._judge_tables(check)
        self._judge_pools(now, check)
        check.findings += [
            unseen.unreachable_place(place or self.store.title, why, rounds)
            for place, (why, rounds) in self.state.blind.items()
            if rounds >= self.settings.unreachable_rounds
        ]
        return check

    def _judge_jobs(self, jobs: pa.Table, now: float, check: Judgement) -> None:
        settings = self.settings
        reasons = self.store.backend.reasons
        zoned = datetime.fromtimestamp(now, UTC).astimezone()
        for rule in self._here(settings.running):
            watch = RunningWatch(rule.meant.name, self._users(rule.meant), rule.severity)
            check.findings += running.is_running(jobs, watch)
            check.pulses.append(
                format_pulse(rule.meant.name, running.living_rows(jobs, watch), zoned, reasons)
            )
        if settings.never_starts:
            check.findings += waiting.waits_for_ever(self._own(jobs), reasons)
        own = self._own(jobs)
        check.findings += allocations.ends_soon(own, self._launched.allocations(own), now)
        for rule in self._here(settings.chains):
            seen: set[str] = set()
            for row in self._rows(
                jobs, rule.meant, JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED
            ):
                chain = find_chain(str(row["id"]), self._owned_rows(jobs, row["user"]))
                if chain.units and chain.units[0].job_id not in seen:
                    seen.add(chain.units[0].job_id)
                    check.findings += successors.no_successor([chain], reasons, rule.watch)

    def _own(self, jobs: pa.Table) -> pa.Table:
        if self.job_kind is Kind.MINE or not self.store.user:
            return jobs
        return self._user_table(jobs, self.store.user)

    def _user_table(self, jobs: pa.Table, user: str) -> pa.Table:
        return jobs.filter(pc.equal(as_array(jobs["user"]).cast(pa.string()), user))

    def _owned_rows(self, jobs: pa.Table, user: str | None) -> list[Row]:
        rows: list[Row] = (self._user_table(jobs, user) if user else jobs).to_pylist()
        return rows

    def _judge_logs(self, jobs: pa.Table, check: Judgement) -> None:
        facts = self._seen
        by_rule: dict[HangingWatch, dict[str, tuple[str, LogState]]] = {}
        for job_id, (rule, row) in self._hung(jobs).items():
            paths = self._paths(job_id, rule)
            unseen = "" if rule.log else self.state.unseen.get(job_id, "")
            if unseen:
                check.unknown.add(finding_key(hanging.RULE, job_id))
                check.findings.append(hanging.cannot_be_seen(job_id, unseen, row["name"] or ""))
                check.problems.append(check.findings[-1].text)
                continue
            if facts is None or not paths or not facts.files.keys() >= set(paths):
                check.unknown.add(finding_key(hanging.RULE, job_id))
                continue
            # What is written to either stream is a sign of life.
            logs = {path: self.state.logs[path] for path in paths}
            path = max(
                paths, key=lambda path: (logs[path].size_bytes is not None, logs[path].same_since)
            )
            by_rule.setdefault(rule.watch, {})[job_id] = path, logs[path]
        for watch, watched in by_rule.items():
            check.findings += hanging.is_hanging(jobs, watched, watch, self._facts_at)

    def _judge_losses(self, jobs: pa.Table, now: float, check: Judgement) -> None:
        hangs = {
            one.subject for one in check.findings if one.rule == hanging.RULE and not one.aspect
        }
        for job_id, (rule, row) in self._trainings(jobs).items():
            unseen = "" if rule.log else self.state.unseen.get(job_id, "")
            if unseen:
                check.findings.append(losses.cannot_be_seen(job_id, unseen, row["name"] or ""))
            tails = [
                self.state.tails[path]
                for path in self._paths(job_id, rule)
                if path in self.state.tails
            ]
            if not tails:
                check.unknown.add(finding_key(losses.RULE, job_id, ANY_ASPECT))
            known: set[str] = set()
            for tail in tails:
                is_fresh = now - tail.looked_at <= FRESH_SECONDS or (
                    self._seen is not None and tail.looked_at >= self._facts_at
                )
                for one in losses.losses(
                    job_id, tail, tail.looked_at, rule.watch, row["name"] or "", known
                ):
                    is_stall = one.aspect.startswith(f"{losses.STALL} ")
                    if is_stall and (job_id in hangs or not is_fresh):
                        # The hang is reported already, and is not its end.
                        check.unknown.add(one.key)
                    else:
                        check.findings.append(one)
                known |= tail.metrics.keys()
            if losses.LIMIT in rule.watch.kinds:
                courses = [course for tail in tails if (course := losses.course(tail)) is not None]
                if not courses or courses[0].seconds_per_step is None:
                    check.unknown.add(finding_key(losses.LATE, job_id))
                    continue
                chain = find_chain(job_id, self._owned_rows(jobs, row["user"]))
                waiting = successors.ready_behind(chain, self.store.backend.reasons)
                check.findings += losses.ends_late(row, courses[0], now, waiting)

    def _judge_saves(self, jobs: pa.Table, now: float, check: Judgement) -> None:
        saves = []
        seen = self._seen or Facts()
        for job_id, (rule, row) in self._saving(jobs).items():
            place = self._save_place(rule, row)
            if place and place not in seen.newest:
                check.unknown.update(
                    finding_key(name, job_id) for name in (deadlines.END, deadlines.NO_SAVE)
                )
                saves.append(deadlines.Saves(row, rule.watch))
                continue
            age = seen.newest.get(place)
            saved_at = None if age is None else self._facts_at - age
            name = seen.names.get(place, "")
            is_folder = not rule.saved
            saves.append(deadlines.Saves(row, rule.watch, saved_at, place, name, is_folder))
        ends = deadlines.end_before_save(saves, now)
        check.findings += [one for one in ends if one.key not in check.unknown]
        # As of their check: it may have saved since.
        check.findings += deadlines.no_save(saves, self._facts_at)
        qos = self.state.qos
        queues = self.state.queues
        if self._here(self.settings.saves) and not qos and not queues and self._seen is None:
            check.unknown.add(finding_key(deadlines.GRACE))
        check.findings += deadlines.grace_too_short(saves, qos, queues)

    def _judge_disks(self, check: Judgement) -> None:
        facts = self._seen
        for rule in self._here(self.settings.storage):
            path = rule.watch.path
            stored = self.state.disks.get(path)
            usage = self._usage(rule, facts.disks.get(path) if facts is not None else None, stored)
            if usage is None or stored is None:
                check.unknown.update(
                    finding_key(storage.RULE, path, part)
                    for part in (storage.BYTES, storage.INODES)
                )
                if facts is not None:
                    check.problems.append(f"cannot read the disk usage of {path}: does it exist?")
                continue
            check.findings += storage.storage(
                usage, rule.watch, stored.byte_samples, stored.inode_samples
            )

    @staticmethod
    def _usage(
        rule: StorageRule, seen: DiskCheck | None, stored: DiskState | None
    ) -> DiskUsage | None:
        """The quota tool's figures and df's, or, of a folder with limits of its own, what du
        counted last.
        """
        if not rule.counts_by_du:
            return seen.usage if seen is not None else None
        if stored is None:
            return None
        if stored.counted_bytes is None and stored.counted_inodes is None:
            return None
        name = rule.watch.path
        return DiskUsage(
            "du", name, bytes_used=stored.counted_bytes, inodes_used=stored.counted_inodes
        )

    def _judge_tables(self, check: Judgement) -> None:
        """Apply the rules on nodes and on the history."""
        for rules, kind, keys, finders in (
            (
                self._here(self.settings.nodes),
                Kind.NODES,
                (nodes.DRAINED, nodes.SPARES),
                (nodes.drained_nodes, nodes.spare_nodes),
            ),
            (
                self._here(self.settings.failures),
                Kind.HISTORY,
                (failures.RULE,),
                (failures.fails_on_a_node,),
            ),
        ):
            table = self._table(kind) if rules else None
            if rules and table is None:
                check.unknown.update(map(finding_key, keys))
                continue
            for rule in rules:
                for find in finders:
                    check.findings += find(table, rule.watch)

    def _judge_pools(self, now: float, check: Judgement) -> None:
        rules = self._here(self.settings.pools)
        seen = self._seen or Facts()
        if rules and any(pool.name not in seen.pools for pool in self.shared):
            check.unknown.update(map(finding_key, (pools.SILENT, *pools.OF_TASKS)))
        moment = datetime.fromtimestamp(now, UTC)
        for pool in seen.pools.values() if rules else ():
            check.findings += pools.silent_pool(pool, moment)
            for rule in rules:
                users = self._users(rule.meant)
                check.findings += pools.stuck_tasks(
                    pool, rule.watch, users, moment, rule.meant.name
                )


def pulse_line(now: datetime, text: str) -> str:
    """`[2026-11-21 16:00:00] PULSE: …`, in the zone of `now`, one line whatever the words are,
    without its end.
    """
    return f"[{now:%Y-%m-%d %H:%M:%S}] PULSE: {visible(text)}"


def format_pulse(name: str, rows: Iterable[Row], now: datetime, reasons: ReasonsPart) -> str:
    """Format the state of a job from the unfinished rows (domain.schema.JOBS) of its name.

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
