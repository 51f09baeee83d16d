"""Impact of an action on jobs: its rows, their owners, and what is lost, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpcdash.domain.columns import state_place
from hpcdash.domain.dependencies import parse_dependency
from hpcdash.domain.states import ACTIVE, ENDED, WAITING, JobState
from hpcdash.domain.units import format_span

Row = Mapping[str, Any]
_NO_FOLDERS: Mapping[str, str] = {}
_NOT_HELD = WAITING - {JobState.HELD}
_UNKNOWN = frozenset({JobState.UNKNOWN})
# The states a verb makes sense for; an unknown state is left to the scheduler's judgement.
_FOR_STATES: dict[str, frozenset[JobState]] = {
    "cancel": WAITING | ACTIVE | _UNKNOWN,
    "hold": _NOT_HELD | _UNKNOWN,
    "release": frozenset({JobState.HELD}) | _UNKNOWN,
    "requeue": ACTIVE | (ENDED - {JobState.GONE}) | _UNKNOWN,
    "suspend": frozenset({JobState.RUNNING}) | _UNKNOWN,
    "resume": frozenset({JobState.SUSPENDED}) | _UNKNOWN,
    "signal": frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING}) | _UNKNOWN,
    "alter": WAITING | ACTIVE | _UNKNOWN,
    "delete": (ENDED - {JobState.GONE}) | _UNKNOWN,
}
_NEEDS_A_GOOD_END = frozenset({"afterok", "aftercorr"})
_OPPOSITES = {"hold": ("release", JobState.HELD), "suspend": ("resume", JobState.SUSPENDED)}


class ActionChoice(Struct, frozen=True):
    """Jobs that an action really affects.

    `verb` may be the opposite of the requested one (release for hold). `job_ids` are for the
    scheduler, `rows` are the jobs they name; `left_out` describes what is not affected, and why.
    """

    verb: str
    job_ids: tuple[str, ...]
    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()


def choose(
    verb: str, job_ids: Sequence[str], rows: Sequence[Row], missing: Sequence[str] = ()
) -> ActionChoice:
    """The rows a verb makes sense for, with their ids.

    `hold` releases, and `suspend` resumes, where there is none to hold or suspend but some that
    are; else it is for those that are not. A hold of jobs that all run is for these.
    """
    living = [row for row in rows if row["state"] not in ENDED]
    if verb in _OPPOSITES and living:
        opposite, state = _OPPOSITES[verb]
        states = {row["state"] for row in living}
        if state in states and states.isdisjoint(_FOR_STATES[verb]):
            verb = opposite
    requested = _FOR_STATES[verb]
    if verb == "hold" and living and all(row["state"] in ACTIVE for row in living):
        requested = ACTIVE
    remaining = tuple(row for row in rows if row["state"] in requested)
    return ActionChoice(
        verb,
        _ids(verb, job_ids, rows, remaining),
        remaining,
        _left_out(verb, rows, requested, missing),
    )


def with_whole_arrays(choice: ActionChoice, known: Iterable[Row], scheduler: str) -> ActionChoice:
    """The choice for whole arrays in place of tasks, where the scheduler does the verb to no less.

    The rows are then those of the array's tasks that wait, among those `known`: what runs stays as
    it is. Where these are not the rows of the choice, `left_out` says so.
    """
    array_ids = {str(row["id"]): str(row["array_id"]) for row in choice.rows if row["array_id"]}
    arrays = dict.fromkeys(array_ids[job_id] for job_id in choice.job_ids if job_id in array_ids)
    if not arrays:
        return choice
    waiting = {
        str(row["id"]): row
        for row in known
        if row["array_id"] in arrays and row["state"] in WAITING
    }
    theirs = [row for row in choice.rows if row["array_id"] in arrays]
    rows = [row for row in choice.rows if row["array_id"] not in arrays] + list(
        waiting.values() or theirs
    )
    ids = dict.fromkeys(array_ids.get(job_id, job_id) for job_id in choice.job_ids)
    others = (
        ""
        if {str(row["id"]) for row in theirs} == set(waiting)
        else f"{scheduler} can {choice.verb} whole arrays"
    )
    reported = (f"{others} only: all pending tasks of {', '.join(arrays)}",) if others else ()
    return ActionChoice(choice.verb, tuple(ids), tuple(rows), (*reported, *choice.left_out))


def _ids(
    verb: str, job_ids: Sequence[str], rows: Sequence[Row], remaining: Sequence[Row]
) -> tuple[str, ...]:
    """The ids that mean the kept rows and no other: an array's number where all of it is meant,
    else its rows'.
    """
    known = {str(row["id"]): str(row["array_id"] or "") for row in rows}
    remaining_ids = {str(row["id"]) for row in remaining}
    rows_by_array: dict[str, list[Row]] = {}
    for row in rows:
        if row["array_id"]:
            rows_by_array.setdefault(str(row["array_id"]), []).append(row)
    ids: dict[str, None] = {}
    for job_id in job_ids:
        if job_id in known:
            if job_id in remaining_ids:
                ids[job_id] = None
            continue
        members = rows_by_array.get(job_id, [])
        theirs = [str(row["id"]) for row in members if row["id"] in remaining_ids]
        # Cancelling an array with ended tasks cancels the rest of it.
        touched = [row for row in members if not (verb == "cancel" and row["state"] in ENDED)]
        # To requeue one by its number would run again tasks that succeeded and are in no list any
        # more.
        is_whole = verb != "requeue" and bool(theirs) and len(theirs) == len(touched)
        ids.update(dict.fromkeys([job_id] if is_whole else theirs))
    # PBS gives an array's row the array's own id.
    return tuple(
        job_id for job_id in ids if known.get(job_id) == job_id or known.get(job_id) not in ids
    )


def _left_out(
    verb: str, rows: Sequence[Row], requested: frozenset[JobState], missing: Sequence[str]
) -> tuple[str, ...]:
    others = [row for row in rows if row["state"] not in requested]
    texts = {
        JobState.HELD: "already held",
        JobState.SUSPENDED: "already suspended",
        JobState.GONE: "gone",
    }
    reasons: dict[str, int] = {}
    for row in others:
        state = row["state"]
        if state in ENDED and state != JobState.GONE:
            reason = "already finished"
        elif verb in ("suspend", "resume", "signal") and state in WAITING:
            reason = "not started yet"
        elif verb == "requeue":
            reason = "already pending"
        elif verb == "delete" and state != JobState.GONE:
            reason = "not ended yet"
        elif verb == "hold" and state in ACTIVE:
            reason = "running, which a hold does not stop"
        else:
            reason = texts.get(state, str(state).replace("_", " "))
        reasons[reason] = reasons.get(reason, 0) + _tasks(row)
    if missing:
        reasons["no longer listed"] = len(missing)
    return tuple(f"{count} {reason} (skipped)" for reason, count in reasons.items())


def count_jobs(rows: Iterable[Row]) -> int:
    """Count the jobs that rows stand for: a record of several array tasks counts each."""
    return sum(map(_tasks, rows))


def state_counts(rows: Iterable[Row]) -> dict[str, int]:
    """Count the jobs in each state, the most alive first."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[str(row["state"])] = counts.get(str(row["state"]), 0) + _tasks(row)
    return dict(sorted(counts.items(), key=lambda pair: state_place(pair[0])))


def owners(rows: Iterable[Row]) -> dict[str, int]:
    """Count the jobs of each owner, the most first; an unknown owner is ''.

    The names are still hostile.
    """
    counts: dict[str, int] = {}
    for row in rows:
        name = str(row["user"] or "")
        counts[name] = counts.get(name, 0) + _tasks(row)
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def format_spent(rows: Iterable[Row]) -> str:
    """`14 h 20 min of run time, 115 GPU-hours`: what rows took so far, together; '' where that is
    not known.
    """
    seconds = gpu_seconds = cpu_seconds = 0
    for row in rows:
        elapsed = row["elapsed_seconds"] or 0
        seconds += elapsed * _tasks(row)
        gpu_seconds += elapsed * (row["gpus"] or 0)
        cpu_seconds += elapsed * (row["cpus"] or 0)
    if not seconds:
        return ""
    resource, used = ("GPU", gpu_seconds) if gpu_seconds else ("CPU", cpu_seconds)
    hours = used / 3600
    if hours < 0.05:
        return f"{format_span(seconds)} of run time"
    amount = f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"
    return f"{format_span(seconds)} of run time, {amount} {resource}-hours"


def left_behind(rows: Sequence[Row], others: Iterable[Row]) -> tuple[str, ...]:
    """The ids among `others` of jobs that wait for some of these to end well, and may never start
    without that.
    """
    touched = {str(row["id"]) for row in rows}
    names = touched | {str(row["array_id"]) for row in rows if row["array_id"]}
    ids: dict[str, None] = {}
    for other in others:
        if other["id"] in touched or other["state"] not in WAITING:
            continue
        conditions = parse_dependency(other["dependency"]).conditions
        if any(one.kind in _NEEDS_A_GOOD_END and one.job_id in names for one in conditions):
            ids[str(other["id"])] = None
    return tuple(ids)


def describe_impact(
    verb: str, rows: Sequence[Row], checkpoints: Mapping[str, str] = _NO_FOLDERS
) -> tuple[str, ...]:
    """Describe the effect on the jobs and what is lost, a sentence each.

    `alter` and `signal` are described elsewhere. `checkpoints` are the folders that jobs resume
    from at each start, by a row's id.
    """
    notify = _TELLERS.get(verb)
    if verb == "requeue" and checkpoints:
        going_on = [row for row in rows if str(row["id"]) in checkpoints]
        others = [row for row in rows if str(row["id"]) not in checkpoints]
        return (*_going_on(going_on, checkpoints), *describe_impact(verb, others))
    if notify is None:
        return ()
    active = [row for row in rows if row["state"] in ACTIVE]
    waiting = [row for row in rows if row["state"] in WAITING]
    ended = [row for row in rows if row["state"] in ENDED]
    return tuple(notify(active, waiting, ended))


def _cancelled(
    active: Sequence[Row], waiting: Sequence[Row], ended: Sequence[Row]
) -> Iterable[str]:
    if active:
        yield _lost(active, "unless {they} {save} checkpoints")
    if waiting:
        count = count_jobs(waiting)
        jobs = _one(count, "pending job loses its", "pending jobs lose their")
        yield f"{count} {jobs} place in the queue"


def _requeued(active: Sequence[Row], waiting: Sequence[Row], ended: Sequence[Row]) -> Iterable[str]:
    if active:
        yield _lost(active, "unless {they} {resume} from a checkpoint")
    count = count_jobs(active)
    if count:
        whose = _one(count, "its", "their")
        yield f"{count} {_one(count, 'starts', 'start')} {whose} script from the beginning"
    count = count_jobs(ended)
    if count:
        yield (
            f"{count} ended {_one(count, 'job runs', 'jobs run')} again under the same "
            f"{_one(count, 'ID', 'IDs')}"
        )


def _going_on(rows: Sequence[Row], checkpoints: Mapping[str, str]) -> Iterable[str]:
    for folder in dict.fromkeys(checkpoints[str(row["id"])] for row in rows):
        there = [row for row in rows if checkpoints[str(row["id"])] == folder]
        source = f"from the newest complete checkpoint in {folder}"
        if count := count_jobs(row for row in there if row["state"] in ENDED):
            ids = _one(count, "ID", "IDs")
            yield (
                f"{count} ended {_one(count, 'job runs', 'jobs run')} again under the same "
                f"{ids}, {source}"
            )
        if count := count_jobs(row for row in there if row["state"] not in ENDED):
            yield f"{count} {_one(count, 'resumes', 'resume')} {source}; work since then is lost"


def _held(active: Sequence[Row], waiting: Sequence[Row], ended: Sequence[Row]) -> Iterable[str]:
    if count := count_jobs(waiting):
        yield f"{count} waiting will not start until released"
    if count := count_jobs(active):
        yield (
            f"{count} running {_one(count, 'keeps', 'keep')} running: the hold takes effect if "
            "requeued"
        )


def _released(active: Sequence[Row], waiting: Sequence[Row], ended: Sequence[Row]) -> Iterable[str]:
    if count := count_jobs(waiting):
        yield f"{count} held can start when {_one(count, 'its', 'their')} turn comes"


def _suspended(
    active: Sequence[Row], waiting: Sequence[Row], ended: Sequence[Row]
) -> Iterable[str]:
    if count := count_jobs(active):
        yield f"{count} running {_one(count, 'stops', 'stop')} computing until resumed"
        yield (
            f"{_one(count, 'it keeps its', 'they keep their')} nodes and memory; others may get "
            "the CPUs"
        )


def _resumed(active: Sequence[Row], waiting: Sequence[Row], ended: Sequence[Row]) -> Iterable[str]:
    if count := count_jobs(active):
        yield (
            f"{count} suspended {_one(count, 'continues', 'continue')} where "
            f"{_one(count, 'it', 'they')} stopped"
        )


def _deleted(active: Sequence[Row], waiting: Sequence[Row], ended: Sequence[Row]) -> Iterable[str]:
    if count := count_jobs(ended):
        lost = _one(
            count,
            "job, its state, exit status and script",
            "jobs, their states, exit statuses and scripts",
        )
        yield f"the cluster deletes {count} ended {lost}"
    if count := count_jobs((*active, *waiting)):
        yield f"{count} {_one(count, 'has', 'have')} not ended, and can only be cancelled"


_TELLERS: dict[str, Callable[[Sequence[Row], Sequence[Row], Sequence[Row]], Iterable[str]]] = {
    "cancel": _cancelled,
    "requeue": _requeued,
    "hold": _held,
    "release": _released,
    "suspend": _suspended,
    "resume": _resumed,
    "delete": _deleted,
}


def _lost(active: Sequence[Row], unless: str) -> str:
    count = count_jobs(active)
    is_one = count == 1
    unless = unless.format(
        they="it" if is_one else "they",
        save="saves" if is_one else "save",
        resume="resumes" if is_one else "resume",
    )
    spent = format_spent(active)
    suspended = sum(_tasks(row) for row in active if row["state"] == JobState.SUSPENDED)
    word = "running or suspended"
    if suspended in (0, count):
        word = "suspended" if suspended else "running"
    return f"{count} {word}: {spent or 'all work so far'} will be lost {unless}"


def _one(count: int, singular: str, plural: str) -> str:
    return singular if count == 1 else plural


def _tasks(row: Row) -> int:
    return row.get("_tasks") or 1
