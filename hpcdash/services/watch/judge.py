"""Rules of the watchdogs of one cluster, applied to what is known now; queries nothing."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct, field

from hpcdash.domain.alerts import ANY_ASPECT, Finding, finding_key
from hpcdash.domain.chains import find_chain
from hpcdash.domain.states import JobState
from hpcdash.domain.tables import Kind
from hpcdash.services.watch.rules.jobs import (
    ALLOCATION_ENDS,
    HANGING,
    NEVER_STARTS,
    NO_SUCCESSOR,
    RUNNING,
    count_successors,
    find_ending_allocations,
    find_hanging,
    find_never_starting,
    find_not_running,
    find_unfollowed,
    format_pulse,
    living_rows,
)
from hpcdash.services.watch.rules.losses import (
    LATE,
    LIMIT,
    LOSS,
    STALL,
    find_late_end,
    find_losses,
    read_course,
)
from hpcdash.services.watch.rules.nodes import (
    DRAINED,
    FAILS_ON_NODE,
    SPARES,
    find_failing_nodes,
    find_few_spares,
    find_out_of_use,
)
from hpcdash.services.watch.rules.places import (
    BYTES,
    INODES,
    STORAGE,
    UNSEEN,
    find_full,
    find_unseen_place,
    unseen_log,
)
from hpcdash.services.watch.rules.pools import (
    SILENT,
    TASK_RULES,
    find_silent_pool,
    find_stuck,
    is_selected,
)
from hpcdash.services.watch.rules.saves import (
    ENDS_UNSAVED,
    NO_SAVE,
    SHORT_GRACE,
    Saves,
    find_end_before_save,
    find_no_save,
    find_short_grace,
)
from hpcdash.services.watch.watched import FRESH_SECONDS, Watched, WatchedJobs

UNREACHABLE = "unreachable"
ALL_RULES = tuple(
    map(
        finding_key,
        (
            RUNNING,
            HANGING,
            STORAGE,
            DRAINED,
            SPARES,
            NO_SUCCESSOR,
            NEVER_STARTS,
            ALLOCATION_ENDS,
            ENDS_UNSAVED,
            NO_SAVE,
            SHORT_GRACE,
            FAILS_ON_NODE,
            LOSS,
            LATE,
            UNSEEN,
            SILENT,
            *TASK_RULES,
        ),
    )
)


class Judgement(Struct):
    """Result of a check."""

    findings: list[Finding] = field(default_factory=list)
    # Keys, or rules, that could not be checked.
    unknown: set[str] = field(default_factory=set)
    # Why they could not, as text.
    problems: list[str] = field(default_factory=list)
    # Texts of PULSE lines.
    pulses: list[str] = field(default_factory=list)
    # Whether the scheduler reported its jobs.
    is_reached: bool = True
    job_count: int = 0

    def note_unknown(self, *rules: str, subject: str = "", aspect: str = "") -> None:
        self.unknown.update(finding_key(rule, subject, aspect) for rule in rules)


def judge(watched: Watched) -> Judgement:
    """Apply the rules to the data known now."""
    check = Judgement()
    # An alert about the connection is settled by a check.
    if watched.state.unreachable_rounds:
        check.note_unknown(UNREACHABLE)
    jobs = watched.jobs
    if jobs is None:
        check.unknown.update(ALL_RULES)
        return check
    check.job_count = jobs.table.num_rows
    _judge_jobs(watched, jobs, check)
    _judge_logs(watched, jobs, check)
    _judge_losses(watched, jobs, check)
    _judge_saves(watched, jobs, check)
    _judge_disks(watched, check)
    _judge_nodes(watched, check)
    _judge_pools(watched, check)
    check.findings += [
        find_unseen_place(place or watched.store.title, why, rounds)
        for place, (why, rounds) in watched.state.blind.items()
        if rounds >= watched.settings.unreachable_rounds
    ]
    return check


def _judge_jobs(watched: Watched, jobs: WatchedJobs, check: Judgement) -> None:
    settings = watched.settings
    reasons = watched.store.backend.reasons
    now = watched.store.clock.now()
    zoned = datetime.fromtimestamp(now, UTC).astimezone()
    for rule in settings.running:
        name = rule.selector.name
        users = rule.selector.selected_users(watched.store.user)
        check.findings += find_not_running(jobs.table, name, users, rule.severity)
        rows = living_rows(jobs.table, name, users)
        check.pulses.append(format_pulse(name, rows, zoned, reasons))
    own = jobs.owned_by(watched.store.user if watched.job_kind is Kind.EVERYONE else None)
    if settings.never_starts:
        check.findings += find_never_starting(own, reasons)
    check.findings += find_ending_allocations(own, watched.launched.allocations(own), now)
    states = (JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED)
    for chain_rule in settings.chains:
        judged: set[str] = set()
        for row in jobs.rows(chain_rule.selector, *states):
            chain = find_chain(str(row["id"]), jobs.owned_by(row["user"]).to_pylist())
            if chain.units and chain.units[0].job_id not in judged:
                judged.add(chain.units[0].job_id)
                check.findings += find_unfollowed(chain, reasons, chain_rule)


def _judge_logs(watched: Watched, jobs: WatchedJobs, check: Judgement) -> None:
    for job_id, (rule, row) in jobs.growing.items():
        paths = watched.log_paths(job_id, rule)
        if why := watched.unseen_log(job_id, rule):
            check.findings.append(unseen_log(HANGING, row, why))
            check.problems.append(check.findings[-1].text)
        elif paths and watched.facts.files.keys() >= set(paths):
            # What is written to either stream is a sign of life.
            logs = watched.state.logs
            path = max(
                paths, key=lambda path: (logs[path].size_bytes is not None, logs[path].same_since)
            )
            check.findings += find_hanging(row, path, logs[path], rule, watched.checked_at)
            continue
        check.note_unknown(HANGING, subject=job_id)


def _judge_losses(watched: Watched, jobs: WatchedJobs, check: Judgement) -> None:
    now = watched.store.clock.now()
    hangs = {
        finding.subject
        for finding in check.findings
        if finding.rule == HANGING and not finding.aspect
    }
    for job_id, (rule, row) in jobs.trainings.items():
        if why := watched.unseen_log(job_id, rule):
            check.findings.append(unseen_log(LOSS, row, why))
        stored = watched.state.tails
        tails = [stored[path] for path in watched.log_paths(job_id, rule) if path in stored]
        if not tails:
            check.note_unknown(LOSS, subject=job_id, aspect=ANY_ASPECT)
        known: set[str] = set()
        for tail in tails:
            is_just_read = watched.is_fresh and tail.looked_at >= watched.checked_at
            is_fresh = is_just_read or now - tail.looked_at <= FRESH_SECONDS
            for finding in find_losses(row, tail, tail.looked_at, rule, known):
                is_stall = finding.aspect.startswith(f"{STALL} ")
                if is_stall and (job_id in hangs or not is_fresh):
                    # The hang is reported already, and is not its end.
                    check.unknown.add(finding.key)
                else:
                    check.findings.append(finding)
            known |= tail.metrics.keys()
        if LIMIT not in rule.kinds:
            continue
        course = next(filter(None, map(read_course, tails)), None)
        if course is None or course.seconds_per_step is None:
            check.note_unknown(LATE, subject=job_id)
            continue
        chain = find_chain(job_id, jobs.owned_by(row["user"]).to_pylist())
        waiting = count_successors(chain, watched.store.backend.reasons).ready
        check.findings += find_late_end(row, course, now, waiting)


def _judge_saves(watched: Watched, jobs: WatchedJobs, check: Judgement) -> None:
    now = watched.store.clock.now()
    facts = watched.facts
    qos = watched.state.qos
    queues = watched.state.queues
    for job_id, (rule, row) in jobs.saving.items():
        check.findings += find_short_grace(row, rule, qos, queues)
        place = watched.save_place(rule, row)
        if place and place not in facts.newest:
            check.note_unknown(ENDS_UNSAVED, NO_SAVE, subject=job_id)
            continue
        age = facts.newest.get(place)
        saved_at = None if age is None else watched.checked_at - age
        saves = Saves(row, rule, saved_at, place, facts.names.get(place, ""))
        check.findings += find_end_before_save(saves, now)
        # As of their check: it may have saved since.
        check.findings += find_no_save(saves, watched.checked_at)
    if watched.settings.saves and not qos and not queues and not watched.is_fresh:
        check.note_unknown(SHORT_GRACE)


def _judge_disks(watched: Watched, check: Judgement) -> None:
    for rule in watched.settings.storage:
        stored = watched.state.disks.get(rule.path)
        usage = watched.disk_usage(rule, watched.facts)
        if usage is not None and stored is not None:
            check.findings += find_full(rule, BYTES, usage, stored.byte_samples)
            check.findings += find_full(rule, INODES, usage, stored.inode_samples)
            continue
        for aspect in (BYTES, INODES):
            check.note_unknown(STORAGE, subject=rule.path, aspect=aspect)
        if watched.is_fresh:
            check.problems.append(f"cannot read the disk usage of {rule.path}: does it exist?")


def _judge_nodes(watched: Watched, check: Judgement) -> None:
    settings = watched.settings
    nodes = watched.table(Kind.NODES)
    if settings.nodes and nodes is None:
        check.note_unknown(DRAINED, SPARES)
    elif nodes is not None:
        for rule in settings.nodes:
            check.findings += find_out_of_use(nodes, rule)
            check.findings += find_few_spares(nodes, rule)
    history = watched.table(Kind.HISTORY)
    if settings.failures and history is None:
        check.note_unknown(FAILS_ON_NODE)
    elif history is not None:
        for failures_rule in settings.failures:
            check.findings += find_failing_nodes(history, failures_rule)


def _judge_pools(watched: Watched, check: Judgement) -> None:
    rules = watched.settings.pools
    if not rules:
        return
    pools = watched.facts.pools
    if any(pool.name not in pools for pool in watched.shared):
        check.note_unknown(SILENT, *TASK_RULES)
    now = datetime.fromtimestamp(watched.store.clock.now(), UTC)
    for pool in pools.values():
        check.findings += find_silent_pool(pool, now)
        for rule in rules:
            users = rule.selector.selected_users(watched.store.user)
            for task in pool.tasks:
                if task.is_unfinished and is_selected(task, users, rule.selector.name):
                    check.findings += find_stuck(pool, task, rule, now)
