"""Endings of findings that disappeared: resolved, the job ended, or no longer watched.

By the settings and the tables of now; queries nothing. Each is a text, '' if unknown; None for what
is no longer watched, which did not recover.
"""

from __future__ import annotations

from hpcdash.domain.alerts import Finding, format_job, shown
from hpcdash.domain.chains import find_chain
from hpcdash.domain.job_text import state_word
from hpcdash.domain.states import ACTIVE, WAITING, JobState
from hpcdash.domain.tables import Kind
from hpcdash.services.watch import judge
from hpcdash.services.watch.rules import jobs as job_rules
from hpcdash.services.watch.rules import losses, nodes, places, pools, saves
from hpcdash.services.watch.rules.rows import Row, rows_where
from hpcdash.services.watch.watched import Watched, WatchedJobs

_LOSS_ENDINGS = {
    "nan": "is no longer NaN",
    "inf": "is finite again",
    "divergence": "no longer diverges",
    "plateau": "is changing again",
    "stall": "has new samples",
}


def find_ending(watched: Watched, finding: Finding) -> str | None:
    """Return the ending of a finding that is found no more, if its subject was checked."""
    settings = watched.settings
    match finding.rule:
        case judge.UNREACHABLE:
            return f"{watched.store.title} is responding again"
        case places.STORAGE:
            if all(rule.path != finding.subject for rule in settings.storage):
                return None
            what = "inodes" if finding.aspect == places.INODES else "space"
            return f"{shown(finding.subject)}: enough free {what} again"
        case nodes.SPARES:
            subjects = map(nodes.spares_subject, settings.nodes)
            return "enough spare nodes again" if finding.subject in subjects else None
        case nodes.DRAINED:
            return _node_ending(watched, finding.subject)
        case nodes.FAILS_ON_NODE:
            return "" if settings.failures else None
        case pools.SILENT:
            is_shared = any(pool.name == finding.subject for pool in watched.shared)
            if not settings.pools or not is_shared:
                return None
            return f"pool {shown(finding.subject)} is coordinated again"
        case pools.NO_TURN | pools.UNSAVED | pools.SLOW:
            return _task_ending(watched, finding)
    jobs = watched.jobs
    if jobs is None:
        return ""
    match finding.rule:
        case job_rules.RUNNING:
            return _running_ending(watched, jobs, finding.subject)
        case job_rules.NEVER_STARTS:
            return _waiting_ending(watched, jobs, finding)
        case job_rules.NO_SUCCESSOR:
            return _chain_ending(jobs, finding.subject)
        case places.UNSEEN:
            return _place_ending(watched, jobs, finding.subject)
        case (
            job_rules.ALLOCATION_ENDS
            | job_rules.HANGING
            | saves.ENDS_UNSAVED
            | saves.NO_SAVE
            | saves.SHORT_GRACE
            | losses.LOSS
            | losses.LATE
        ):
            return _job_ending(watched, jobs, finding)
    return ""


def _node_ending(watched: Watched, name: str) -> str | None:
    rules = watched.settings.nodes
    if not rules:
        return None
    table = watched.table(Kind.NODES)
    rows = rows_where(table, name=(name,)) if table is not None else []
    if not rows:
        return f"node {shown(name)} is no longer listed"
    queues = set(rows[0]["queues"] or ())
    if all(rule.queues and queues.isdisjoint(rule.queues) for rule in rules):
        return None
    return f"node {shown(name)} is back: {state_word(str(rows[0]['state']))}"


def _task_ending(watched: Watched, finding: Finding) -> str | None:
    rules = watched.settings.pools
    if not rules or not watched.shared:
        return None
    tasks = (pool.task(finding.subject) for pool in watched.facts.pools.values())
    task = next(filter(None, tasks), None)
    who = format_job(finding.subject, finding.name)
    if task is None or not task.is_unfinished:
        return f"{who} has ended"
    selectors = (rule.selector for rule in rules)
    user = watched.store.user
    if not any(
        pools.is_selected(task, selector.selected_users(user), selector.name)
        for selector in selectors
    ):
        return None
    if finding.rule != pools.NO_TURN:
        return f"{who} saved when it was interrupted"
    return f"{who}: {'suspended by the owner' if task.state == 'paused' else 'got its turn'}"


def _running_ending(watched: Watched, jobs: WatchedJobs, subject: str) -> str | None:
    for rule in watched.settings.running:
        name = rule.selector.name
        users = rule.selector.selected_users(watched.store.user)
        if job_rules.running_subject(name, users) == subject:
            break
    else:
        return None
    rows = job_rules.living_rows(jobs.table, name, users)
    who = f"job {shown(name)}"
    if not rows:
        return f"{who} is no longer held: it left the queue"
    active = [row for row in rows if row["state"] in ACTIVE]
    if active:
        return f"{who} is running again as {shown(active[0]['id'])}"
    is_held = all(row["state"] == JobState.HELD for row in rows)
    where = "in the queue" if is_held else "pending"
    return f"{who} is {where} again as {shown(rows[0]['id'])}"


def _waiting_ending(watched: Watched, jobs: WatchedJobs, finding: Finding) -> str | None:
    if not watched.settings.never_starts:
        return None
    row = jobs.find(finding.subject)
    who = format_job(finding.subject, finding.name)
    if row is None:
        return f"{who} is no longer in the queue"
    state = str(row["state"])
    if state in ACTIVE:
        return f"{who} has started"
    if state not in WAITING:
        return f"{who} is {state_word(state)}"
    hint = watched.store.backend.reasons.hint(state, row["reason"]).partition(";")[0]
    hint = hint or row["reason"] or ""
    return f"{who} can start after all" + (f": {shown(hint)}" if hint else "")


def _chain_ending(jobs: WatchedJobs, subject: str) -> str | None:
    rules = jobs.settings.chains
    if not rules:
        return None
    first = jobs.find(subject)
    owned = jobs.owned_by(None if first is None else first["user"])
    active = [row for row in find_chain(subject, owned.to_pylist()).rows if row["state"] in ACTIVE]
    if not active:
        return f"the chain of job {shown(subject)} is no longer running"
    states = (JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED)
    selected = {row["id"] for rule in rules for row in jobs.rows(rule.selector, *states)}
    if selected.isdisjoint(row["id"] for row in active):
        return None
    return f"{format_job(active[-1]['id'], active[-1]['name'])}: enough successors are queued"


def _place_ending(watched: Watched, jobs: WatchedJobs, place: str) -> str | None:
    paths = watched.places(jobs)
    if place == watched.store.title:
        return "logs and disks can be checked again" if paths else None
    is_watched = any(places.lies_in(path, (place,)) for path in paths)
    return f"{shown(place)} can be checked again" if is_watched else None


def _job_ending(watched: Watched, jobs: WatchedJobs, finding: Finding) -> str | None:
    is_grace = finding.rule == saves.SHORT_GRACE
    row = jobs.find(finding.subject)
    if is_grace:
        tasks = rows_where(jobs.table, array_id=(finding.subject,), state=(*ACTIVE, *WAITING))
        row = next(iter(tasks), row)
    who = format_job(finding.subject, finding.name)
    if row is None or row["state"] not in (*ACTIVE, *WAITING):
        return f"{who} has ended"
    text = _resolved_text(watched, jobs, finding, row)
    if text is not None:
        return f"{who}: {text}"
    if is_grace or row["state"] in ACTIVE:
        return None
    return f"{who} is no longer running: {state_word(str(row['state']))}"


def _resolved_text(watched: Watched, jobs: WatchedJobs, finding: Finding, row: Row) -> str | None:
    """Return the end of a problem as text, None if no rule selects the job."""
    subject = finding.subject
    saving = jobs.saving.get(str(row["id"]))
    training = jobs.trainings.get(subject)
    kinds = () if training is None else training[0].kinds
    match finding.rule:
        case job_rules.ALLOCATION_ENDS:
            is_selected = True
            text = "the time limit was extended"
        case job_rules.HANGING:
            is_selected = subject in jobs.growing
            text = "the log can be read again" if finding.aspect else "the log is growing again"
        case saves.ENDS_UNSAVED:
            is_selected = saving is not None
            text = "the job will save before it ends"
        case saves.NO_SAVE:
            is_selected = saving is not None and bool(watched.save_place(*saving))
            text = "the job saved again, or the next save is not overdue"
        case saves.SHORT_GRACE:
            is_selected = saving is not None
            text = "there is enough time to save before preemption"
        case losses.LATE:
            is_selected = losses.LIMIT in kinds
            text = "the job will finish in time, or enough successors are queued"
        case _:
            kind, _, metric = finding.aspect.partition(" ")
            if kind in _LOSS_ENDINGS:
                is_selected = kind in kinds
                text = f"{shown(metric)} {_LOSS_ENDINGS[kind]}"
            else:
                is_selected = training is not None
                text = "the log can be read again"
    return text if is_selected else None
