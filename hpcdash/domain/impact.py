"""Impact of an action on jobs: its rows, their owners, and what is lost, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
_NEEDS_SUCCESS = frozenset({"afterok", "aftercorr"})
_OPPOSITES = {"hold": ("release", JobState.HELD), "suspend": ("resume", JobState.SUSPENDED)}


class _Effect(Struct, frozen=True):
    """A sentence on the jobs in some states, of which there are one or several."""

    states: frozenset[JobState]
    singular: str
    plural: str

    def sentence(self, rows: Iterable[Row]) -> str:
        """Return the sentence with the number of jobs; '' if there are none."""
        count = count_jobs(row for row in rows if row["state"] in self.states)
        if not count:
            return ""
        return self.singular if count == 1 else self.plural.format(count)


_RERUN = _Effect(
    ENDED,
    "1 ended job runs again under the same ID",
    "{} ended jobs run again under the same IDs",
)
_RESUMPTION = _Effect(frozenset(JobState) - ENDED, "1 resumes", "{} resume")
_EFFECTS: dict[str, tuple[_Effect, ...]] = {
    "cancel": (
        _Effect(
            WAITING,
            "1 pending job loses its place in the queue",
            "{} pending jobs lose their place in the queue",
        ),
    ),
    "requeue": (
        _Effect(
            ACTIVE,
            "1 job restarts its script from the beginning",
            "{} jobs restart their scripts from the beginning",
        ),
        _RERUN,
    ),
    "hold": (
        _Effect(
            WAITING,
            "1 pending job will not start until released",
            "{} pending jobs will not start until released",
        ),
        _Effect(
            ACTIVE,
            "1 running job continues; the hold takes effect on requeue",
            "{} running jobs continue; the hold takes effect on requeue",
        ),
    ),
    "release": (
        _Effect(
            WAITING,
            "1 held job becomes eligible to start",
            "{} held jobs become eligible to start",
        ),
    ),
    "suspend": (
        _Effect(
            ACTIVE,
            "1 running job pauses until resumed",
            "{} running jobs pause until resumed",
        ),
        _Effect(
            ACTIVE,
            "nodes and memory stay allocated; other jobs may use the CPUs",
            "nodes and memory stay allocated; other jobs may use the CPUs",
        ),
    ),
    "resume": (
        _Effect(
            ACTIVE,
            "1 suspended job resumes where it stopped",
            "{} suspended jobs resume where they stopped",
        ),
    ),
    "delete": (
        _Effect(
            ENDED,
            "deletes the record of 1 ended job from the cluster: state, exit status and script",
            "deletes the records of {} ended jobs from the cluster: states, exit statuses and "
            "scripts",
        ),
        _Effect(
            ACTIVE | WAITING,
            "1 job has not ended and can only be cancelled",
            "{} jobs have not ended and can only be cancelled",
        ),
    ),
}
# The work of running jobs is lost, unless …
_SAVED_IF = {
    "cancel": ("it saves checkpoints", "they save checkpoints"),
    "requeue": ("it resumes from a checkpoint", "they resume from a checkpoint"),
}


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
    """Choose the rows that a verb makes sense for, with their IDs.

    `hold` releases held jobs, and `suspend` resumes suspended jobs, if there are no others that it
    applies to. Jobs that are active are held if all are.
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
    """Replace tasks by their whole arrays, for a scheduler that cannot act on less.

    The rows are then the pending tasks of the arrays among the `known` rows, as running tasks stay
    as they are. If these are not the rows of the choice, `left_out` has a note.
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
    tasks = [row for row in choice.rows if row["array_id"] in arrays]
    plain_jobs = [row for row in choice.rows if row["array_id"] not in arrays]
    ids = dict.fromkeys(array_ids.get(job_id, job_id) for job_id in choice.job_ids)
    left_out = choice.left_out
    if {str(row["id"]) for row in tasks} != set(waiting):
        note = (
            f"{scheduler} can {choice.verb} only whole arrays: all pending tasks of "
            f"{', '.join(arrays)}"
        )
        left_out = (note, *left_out)
    rows = (*plain_jobs, *(waiting.values() or tasks))
    return ActionChoice(choice.verb, tuple(ids), rows, left_out)


def _ids(
    verb: str, job_ids: Sequence[str], rows: Sequence[Row], remaining: Sequence[Row]
) -> tuple[str, ...]:
    """Return the IDs of the remaining rows: an array's number if all of it remains, else its rows'
    IDs.
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
        chosen = [str(row["id"]) for row in members if row["id"] in remaining_ids]
        # Cancelling an array with ended tasks cancels the rest of it.
        touched = [row for row in members if not (verb == "cancel" and row["state"] in ENDED)]
        # A requeue by the array's number would rerun tasks that succeeded and are no longer listed.
        is_whole = verb != "requeue" and bool(chosen) and len(chosen) == len(touched)
        ids.update(dict.fromkeys([job_id] if is_whole else chosen))
    # PBS gives an array's row the array's own id.
    return tuple(
        job_id for job_id in ids if known.get(job_id) == job_id or known.get(job_id) not in ids
    )


def _left_out(
    verb: str, rows: Sequence[Row], requested: frozenset[JobState], missing: Sequence[str]
) -> tuple[str, ...]:
    texts = {
        JobState.HELD: "already held",
        JobState.SUSPENDED: "already suspended",
        JobState.GONE: "gone",
    }
    reasons: Counter[str] = Counter()
    for row in rows:
        state = row["state"]
        if state in requested:
            continue
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
        reasons[reason] += _tasks(row)
    if missing:
        reasons["no longer listed"] = len(missing)
    return tuple(f"{count} {reason} (skipped)" for reason, count in reasons.items())


def count_jobs(rows: Iterable[Row]) -> int:
    """Count the jobs that rows stand for: a record of several array tasks counts each."""
    return sum(map(_tasks, rows))


def state_counts(rows: Iterable[Row]) -> dict[str, int]:
    """Count the jobs in each state, the most alive first."""
    counts = _column_counts(rows, "state")
    return dict(sorted(counts.items(), key=lambda pair: state_place(pair[0])))


def owners(rows: Iterable[Row]) -> dict[str, int]:
    """Count the jobs of each owner, the most first; an unknown owner is ''.

    The names are still hostile.
    """
    return dict(_column_counts(rows, "user").most_common())


def _column_counts(rows: Iterable[Row], column: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts[str(row[column] or "")] += _tasks(row)
    return counts


def format_spent(rows: Iterable[Row]) -> str:
    """Format the resources that rows used so far, as `14 h 20 min of run time, 115 GPU-hours`.

    '' if they are unknown.
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
    """Return the IDs of jobs among `others` that may never start unless some of `rows` succeed."""
    touched = {str(row["id"]) for row in rows}
    names = touched | {str(row["array_id"]) for row in rows if row["array_id"]}
    ids: dict[str, None] = {}
    for other in others:
        if other["id"] in touched or other["state"] not in WAITING:
            continue
        conditions = parse_dependency(other["dependency"]).conditions
        if any(
            condition.kind in _NEEDS_SUCCESS and condition.job_id in names
            for condition in conditions
        ):
            ids[str(other["id"])] = None
    return tuple(ids)


def describe_impact(
    verb: str, rows: Sequence[Row], checkpoints: Mapping[str, str] = _NO_FOLDERS
) -> tuple[str, ...]:
    """Describe the effect on the jobs and what is lost, a sentence each.

    `alter` and `signal` are described elsewhere. `checkpoints` are the folders that jobs resume
    from at each start, by a row's id.
    """
    if verb == "requeue" and checkpoints:
        by_folder: dict[str | None, list[Row]] = {}
        for row in rows:
            by_folder.setdefault(checkpoints.get(str(row["id"])), []).append(row)
        others = by_folder.pop(None, [])
        resumptions: list[str] = []
        for folder, members in by_folder.items():
            source = f"from the newest complete checkpoint in {folder}"
            if rerun := _RERUN.sentence(members):
                resumptions.append(f"{rerun}, {source}")
            if resumption := _RESUMPTION.sentence(members):
                resumptions.append(f"{resumption} {source}; work since then is lost")
        return (*resumptions, *describe_impact(verb, others))
    sentences = [effect.sentence(rows) for effect in _EFFECTS.get(verb, ())]
    if verb in _SAVED_IF:
        active = [row for row in rows if row["state"] in ACTIVE]
        sentences.insert(0, _format_loss(active, *_SAVED_IF[verb]))
    return tuple(filter(None, sentences))


def _format_loss(active: Sequence[Row], singular: str, plural: str) -> str:
    count = count_jobs(active)
    if not count:
        return ""
    suspended = count_jobs(row for row in active if row["state"] == JobState.SUSPENDED)
    state = "running or suspended"
    if suspended in (0, count):
        state = "suspended" if suspended else "running"
    spent = format_spent(active) or "all work so far"
    return f"{count} {state}: {spent} will be lost unless {singular if count == 1 else plural}"


def _tasks(row: Row) -> int:
    return row.get("_tasks") or 1
