"""A job's picture in groups of short entries, in the order a person needs them.

The words are hostile still: whoever shows them makes them visible.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from msgspec import Struct

from hpcdash.backends.job_detail import Activity
from hpcdash.domain.arrays import TaskStates
from hpcdash.domain.dependencies import (
    Branch,
    format_never,
    parse_dependency,
    waited_for_by,
    waits_for,
)
from hpcdash.domain.efficiency import advice, meters
from hpcdash.domain.job_ids import holds_many, parse_task_part
from hpcdash.domain.job_text import Pair, grouped, state_word
from hpcdash.domain.states import ENDED, WAITING
from hpcdash.domain.text import clip, counted
from hpcdash.domain.units import format_duration, format_memory
from hpcdash.errors import NotRecorded
from hpcdash.services.jobs.launch_status import format_status, is_pulling
from hpcdash.services.jobs.overview import JobPicture, Part
from hpcdash.services.jobs.tracker import JobEvent

_CANCELLED_BY = re.compile(r"CANCELLED by ([0-9]+)")
# What a factor gives of the most it can: `1667 (17% of max)`.
_PERCENT = re.compile(r"\((?:< )?([0-9]{1,3})%")
# A backend's names for the sum of a priority's factors, and for jobs that may preempt a job.
TOTAL = "priority"
PREEMPTED_BY = "may be preempted by"
# As many runs of tasks as one still takes in at a glance.
_MAX_RUNS_SHOWN = 20
_MAX_RUNS = 12
_MAX_EVENTS = 30
_MAX_STEPS = 12
_MAX_ACTIVITIES = 12
# Entries of the group "job" on a job's state and end.
_HOW_IT_IS = frozenset({"state", "reason", "explanation", "ended with", "cancelled by", "cause"})
_MAX_LOG_CELLS = 400


class Entry(Struct, frozen=True):
    """A line: `label` and `value`; `fraction` of a whole, for a bar; `state` is that of the job it
    speaks of.

    `pieces` are (words, state) pairs that stand in the place of `value`. `is_dim`: a remark.
    """

    label: str = ""
    value: str = ""
    fraction: float | None = None
    is_dim: bool = False
    state: str = ""
    pieces: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces) if self.pieces else self.value


class Group(Struct, frozen=True):
    """Entries under a title; `is_aside`: it may stand beside the others where there is room,
    `is_broad`: below them.

    Paths are broad: one that is torn cannot be copied.
    """

    title: str
    entries: tuple[Entry, ...]
    is_aside: bool = False
    is_broad: bool = False


def job_groups(
    picture: JobPicture,
    now: datetime,
    *,
    signs: Mapping[str, str],
    zone: tzinfo | None = None,
    sign_cells: int = 0,
) -> list[Group]:
    """Everything known of a job; what is on its way says so, what could not be had says why.

    `signs` are those of the states; an array of no more tasks than `sign_cells` is shown as one
    sign a task.
    """
    row = picture.row
    if row is None:
        return []
    state = str(row["state"])
    hint = picture.store.backend.reasons.explain(row)
    own = {
        title: [
            Entry(label, value, state=state if label == "state" else "") for label, value in pairs
        ]
        for title, pairs in grouped(
            row,
            now,
            hint,
            estimator=picture.store.backend.title,
            sign=signs.get(state, ""),
            zone=zone,
        )
    }
    job = own.get("job", [])
    time = own.get("time", [])
    native = picture.detail.native if picture.detail is not None else {}
    job += _cancelled_by(row, native)
    if picture.is_whole_array:
        job = [entry for entry in job if entry.label != "array"]
        # The paths of one task do not determine the others'.
        own["files"] = [entry for entry in own.get("files", []) if entry.label == "directory"]
    if cause := picture.store.backend.reasons.cause(native):
        job.insert(
            1 + max(at for at, entry in enumerate(job) if entry.label in _HOW_IT_IS),
            Entry("cause", cause),
        )
    # A line of the log that explains the end precedes the scheduler's explanation.
    explains = (
        picture.failure is not None
        and picture.failure.excerpt is not None
        and picture.failure.excerpt.explains
    )
    before = frozenset({"state"}) if explains else _HOW_IT_IS
    place = 1 + max((at for at, entry in enumerate(job) if entry.label in before), default=-1)
    job[place:place] = [*_policy(picture), *_pulling(picture), *_log_entries(picture)]
    time += _requeues(native)
    # For a job that never starts the waits of others mean nothing.
    if picture.waits is not None and not picture.store.backend.reasons.never_starts(
        state, row["reason"]
    ):
        time.append(Entry("jobs like it", str(picture.waits)))
    groups = [
        Group("Job", tuple(job)),
        *_waits_for(picture, signs),
        Group("Time", tuple(time)),
        Group("Resources", (*own.get("resources", ()), *_usage(picture)), is_aside=True),
        Group("Steps", _steps(picture), is_broad=True),
        Group("Tasks and actors", _activity(picture)),
        Group("Priority", _priority(picture), is_aside=True),
        Group(_rules_title(row), _rules(picture), is_aside=True),
        Group("Dependent jobs", _dependents(picture, signs), is_aside=True),
        Group(f"Array {picture.array_id}", _array(picture, signs, sign_cells), is_aside=True),
        Group("Files", tuple(own.get("files", ())), is_broad=True),
        *_facts(picture),
        Group("Launched from here", _launched(picture), is_broad=True),
        Group("Runs", _runs(picture), is_broad=True),
        Group("What happened", _events(picture, now, zone)),
    ]
    return [group for group in groups if group.entries]


def _launched(picture: JobPicture) -> tuple[Entry, ...]:
    reported = picture.launched
    return () if reported is None else tuple(Entry(label, text) for label, text in reported.text())


def _policy(picture: JobPicture) -> list[Entry]:
    """The limit that it waits for, and what shows more of it."""
    lines = picture.policy_lines()
    if not lines:
        return []
    return [
        *(Entry("limit", line) for line in lines[:-1]),
        Entry("→", lines[-1]),
        *_remarks(picture, Part.LIMITS),
    ]


def _runs(picture: JobPicture) -> tuple[Entry, ...]:
    """The newest of an allocation's runs, in their order."""
    entries = [Entry(str(run.number), run.text) for run in picture.runs[-_MAX_RUNS_SHOWN:]]
    if picture.runs:
        entries.append(
            Entry(
                "their logs",
                f"l, then ]; or hpcdash log {picture.job_id} --run {picture.runs[-1].number}",
            )
        )
    elif (
        picture.launched is not None
        and picture.launched.is_allocation
        and Part.RUNS not in picture.errors
    ):
        entries.append(Entry("none yet", f"hpcdash submit REQUEST.toml --in {picture.job_id}"))
    return (*entries, *_remarks(picture, Part.RUNS))


def _pulling(picture: JobPicture) -> list[Entry]:
    row = picture.row
    assert row is not None
    containers = picture.containers or 0
    if not is_pulling(row["state"], containers, picture.up):
        return []
    return [Entry("launch", format_status(row["state"], containers, picture.up))]


def _log_entries(picture: JobPicture) -> list[Entry]:
    """Build the entries on a failure from its log; mere last lines are labelled as such."""
    failure = picture.failure
    if failure is None or Part.LOG in picture.asking:
        return _remarks(picture, Part.LOG)
    if failure.excerpt is None:
        return [Entry(value=f"{Part.LOG}: {failure.problem}", is_dim=True)]
    text = clip(failure.text, _MAX_LOG_CELLS)
    return [Entry(f"{failure.stream} {'says' if failure.excerpt.explains else 'ends with'}", text)]


def _remarks(picture: JobPicture, *parts: Part) -> list[Entry]:
    """Build entries for the parts that are being fetched, and those that failed."""
    messages = []
    for part in parts:
        error = picture.errors.get(part)
        if part in picture.asking:
            messages.append(Entry(value=f"{part}: loading …", is_dim=True))
        elif error is not None:
            why = "not in this recording" if isinstance(error, NotRecorded) else error.message
            messages.append(Entry(value=f"{part}: {why}", is_dim=True))
    return messages


def _cancelled_by(row: Mapping[str, Any], native: Mapping[str, str]) -> list[Entry]:
    found = _CANCELLED_BY.fullmatch(row["native_state"] or "")
    if found is None:
        return []
    names = {native.get("UID"): "its owner", "0": "root"}
    return [Entry("cancelled by", names.get(found[1], f"user number {found[1]}"))]


def _requeues(native: Mapping[str, str]) -> list[Entry]:
    times = native.get("Restarts", "")
    if not times.isascii() or not times.isdigit() or int(times) == 0:
        return []
    return [Entry("requeued", "once" if times == "1" else f"{int(times)} times")]


def _usage(picture: JobPicture) -> list[Entry]:
    row = picture.row
    usage = picture.usage
    assert row is not None
    if picture.is_whole_array:
        return (
            [Entry(value="each task's usage is on its own page", is_dim=True)]
            if row["started_at"]
            else []
        )
    if usage is None:
        return _remarks(picture, Part.USAGE)
    label = "used" if row["state"] in ENDED else "uses"
    entries = [
        Entry(
            f"{label} {meter.label}",
            meter.text,
            meter.fraction,
            is_dim=meter.text == "not recorded on this cluster",
        )
        for meter in meters(usage, row["nodes"])
    ]
    if text := advice(usage, str(row["state"])):
        entries.append(Entry("→", text))
    if usage.note:
        entries.append(Entry(value=usage.note, is_dim=True))
    return entries + [
        remark for remark in _remarks(picture, Part.USAGE) if Part.USAGE in picture.errors
    ]


def _steps(picture: JobPicture) -> tuple[Entry, ...]:
    """Each step: how it is or ended, for how long, and what it used."""
    steps = picture.steps
    if steps is None or not steps.num_rows:
        return ()
    shown = steps.slice(0, _MAX_STEPS).to_pylist()
    entries = [Entry(*format_step(step), state=str(step["state"])) for step in shown]
    if steps.num_rows > _MAX_STEPS:
        entries.append(
            Entry(
                value=f"and {steps.num_rows - _MAX_STEPS} more; show --steps lists all",
                is_dim=True,
            )
        )
    return tuple(entries)


def format_step(step: Mapping[str, Any]) -> Pair:
    """`0 python3` and `completed · 12:30 · 8 tasks · 3.1 of 4 cores busy · peak 12G` of a row of
    schema.STEPS.
    """
    name = step["name"] if step["name"] != step["id"] else ""
    elapsed = step["elapsed_seconds"]
    cpus = step["cpus"]
    cpu = step["cpu_seconds_used"]
    parts = [state_word(step["state"])]
    if step["exit_signal"]:
        parts.append(f"signal {step['exit_signal']}")
    elif step["exit_code"]:
        parts.append(f"exit {step['exit_code']}")
    parts += [format_duration(elapsed)] if elapsed is not None else []
    parts += [counted(step["tasks"], "task")] if step["tasks"] else []
    parts += [f"on {step['node_list']}"] if step["node_list"] else []
    if cpu is not None and elapsed and cpus:
        parts.append(f"{cpu / elapsed:.1f} of {counted(cpus, 'core')} busy")
    if step["memory_peak_bytes"] is not None:
        parts.append(f"peak {format_memory(step['memory_peak_bytes'])}")
    return f"{step['id']} {name or ''}".rstrip(), " · ".join(parts)


def _activity(picture: JobPicture) -> tuple[Entry, ...]:
    if picture.activity is None:
        return tuple(_remarks(picture, Part.ACTIVITY)) if Part.ACTIVITY in picture.errors else ()
    return (*activity_entries(picture.activity), *_remarks(picture, Part.ACTIVITY))


def activity_entries(activity: Activity) -> list[Entry]:
    """All of a kind by state, then each name's; then why some failed."""
    entries: list[Entry] = []
    for kind in dict.fromkeys(one.kind for one in activity.counts):
        kind_counts = [one for one in activity.counts if one.kind == kind]
        if len(kind_counts) == 1:
            entries.append(
                _counts(
                    f"{kind} {kind_counts[0].name}", kind_counts[0].states, kind_counts[0].restarts
                )
            )
            continue
        totals: dict[tuple[str, str], int] = {}
        for text, state, count in (states for one in kind_counts for states in one.states):
            totals[text, state] = totals.get((text, state), 0) + count
        states = [(text, state, count) for (text, state), count in totals.items()]
        entries.append(_counts(f"{kind}s", states, sum(one.restarts for one in kind_counts)))
        largest = sorted(kind_counts, key=lambda one: -sum(count for _, _, count in one.states))[
            :_MAX_ACTIVITIES
        ]
        entries += [_counts(f"  {one.name}", one.states, one.restarts) for one in largest]
        if len(kind_counts) > _MAX_ACTIVITIES:
            entries.append(
                Entry(value=f"and {len(kind_counts) - _MAX_ACTIVITIES} more names", is_dim=True)
            )
    entries += [
        Entry(f"{name} failed", clip(text, _MAX_LOG_CELLS)) for name, text in activity.failures
    ]
    entries += [Entry(value=note, is_dim=True) for note in activity.notes]
    return entries


def _counts(label: str, states: Sequence[tuple[str, str, int]], restarts: int) -> Entry:
    pieces: list[tuple[str, str]] = []
    for at, (text, state, count) in enumerate(states):
        pieces += [(" · ", "")] * (at > 0) + [(f"{count} {text}", state)]
    if restarts:
        pieces.append((f" · {counted(restarts, 'restart')}", ""))
    return Entry(label, pieces=tuple(pieces))


def _facts(picture: JobPicture) -> list[Group]:
    """Build the groups of facts that only this scheduler reports."""
    if picture.detail is None:
        return []
    facts = picture.store.backend.detail.facts(picture.detail.native)
    return [
        Group(
            title,
            tuple(Entry(label, clip(value, _MAX_LOG_CELLS)) for label, value in pairs.items()),
            is_broad=True,
        )
        for title, pairs in facts.items()
    ]


def _priority(picture: JobPicture) -> tuple[Entry, ...]:
    row = picture.row
    assert row is not None
    if row["state"] not in WAITING:
        return ()
    texts = dict(picture.priority)
    total = texts.pop(TOTAL, "")
    entries = [Entry("total", total)] if total else []
    for name, value in texts.items():
        percent = _PERCENT.search(value)
        entries.append(Entry(name, value, None if percent is None else int(percent[1]) / 100))
    if not entries and Part.PRIORITY not in picture.errors and Part.PRIORITY not in picture.asking:
        entries.append(
            Entry(value="no priority yet: assigned once its dependencies are met", is_dim=True)
        )
    return (*entries, *_remarks(picture, Part.PRIORITY))


def _rules_title(row: Mapping[str, Any]) -> str:
    return f"QoS {row['qos']}" if row["qos"] else f"Queue {row['queue'] or ''}".strip()


def _rules(picture: JobPicture) -> tuple[Entry, ...]:
    """Build the entries of the QoS, with the queue's rules on preemption if the QoS lacks them."""
    row = picture.row
    assert row is not None
    if row["state"] in ENDED:
        return ()
    qos = picture.qos or {}
    queue = picture.queue_rules
    if not row["qos"]:
        entries = [Entry(label, value) for label, value in queue.items()]
        return (*entries, *_remarks(picture, Part.QUEUE))
    entries = [Entry(label, value) for label, value in qos.items()]
    # If the QoS is unknown any job may be preempted; a queue alone does not report by whom.
    if PREEMPTED_BY in qos or (picture.qos is None and Part.QOS in picture.errors):
        entries += [Entry(label, value) for label, value in queue.items() if label not in qos]
    return (*entries, *_remarks(picture, Part.QOS, Part.QUEUE))


def _waits_for(picture: JobPicture, signs: Mapping[str, str]) -> list[Group]:
    row = picture.row
    assert row is not None
    if not row["dependency"] or row["state"] not in WAITING:
        return []
    dependency = parse_dependency(row["dependency"])
    branches = waits_for(dependency, picture.related)
    entries = [_branch(branch, signs) for branch in branches] or [
        Entry(value=str(row["dependency"]))
    ]
    if never := format_never(branches, dependency.is_any):
        entries.append(Entry("→", never))
    which = "Waits for"
    if len(branches) > 1:
        which += " any of" if dependency.is_any else " all of"
    return [Group(which, (*entries, *_remarks(picture, Part.RELATED)), is_aside=True)]


def _dependents(picture: JobPicture, signs: Mapping[str, str]) -> tuple[Entry, ...]:
    waiting = waited_for_by(picture.job_id, picture.array_id, picture.dependents)
    return tuple(_branch(branch, signs) for branch in waiting)


def _branch(branch: Branch, signs: Mapping[str, str]) -> Entry:
    counted = sum(branch.states.values()) > 1
    states = [
        (f"{signs.get(state, '')} {f'{count} ' if counted else ''}{state_word(state)}", state)
        for state, count in branch.states.items()
    ]
    pieces: list[tuple[str, str]] = [(branch.name, ""), ("  ", "")] if branch.name else []
    if not states and branch.job_id:
        states = [("no longer known", "unknown")]
    for at, (text, state) in enumerate(states):
        pieces += [(", ", "")] * (at > 0) + [(text.strip(), state)]
    pieces += [("  ", "")] * bool(pieces) + [(branch.text, "")]
    label = ("  " * branch.depth + "└ " if branch.depth else "") + (branch.job_id or "others")
    return Entry(label, pieces=tuple(pieces))


def _array(picture: JobPicture, signs: Mapping[str, str], sign_cells: int) -> tuple[Entry, ...]:
    tasks = picture.tasks
    if picture.array_id is None:
        return ()
    if tasks is None or not tasks.by_task:
        return tuple(_remarks(picture, Part.TASKS))
    count = len(tasks.by_task)
    limit = f", {tasks.throttle} at once" if tasks.throttle else ""
    entries = [Entry("tasks", f"{count}{limit}"), *_tasks(tasks, signs, sign_cells)]
    return (*entries, *_remarks(picture, Part.TASKS))


def _tasks(tasks: TaskStates, signs: Mapping[str, str], sign_cells: int) -> list[Entry]:
    """A sign a task where they fit, runs of tasks where there are few, else each state with its
    tasks.
    """
    counts = tasks.counts()
    entries = []
    if len(tasks.by_task) <= sign_cells:
        entries.append(Entry("in order", pieces=tuple(tasks.as_signs(signs))))
    elif (runs := tasks.as_runs(_MAX_RUNS)) is not None and signs:
        pieces: list[tuple[str, str]] = []
        for text, state in runs:
            pieces += [(" · ", "")] * bool(pieces) + [(f"{text} {signs.get(state, '?')}", state)]
        entries.append(Entry("in order", pieces=tuple(pieces)))
    for state, count in counts.items():
        label = f"{signs.get(state, '')} {state_word(state)}".strip()
        entries.append(Entry(label, f"{count}: {tasks.state_tasks(state)}", state=state))
    return entries


def _which_tasks(job_id: str) -> str:
    tasks = parse_task_part(job_id)
    return f"tasks {tasks.strip('[]')}" if holds_many(job_id) else f"task {tasks}"


def _why(picture: JobPicture, event: JobEvent) -> str:
    hint = picture.store.backend.reasons.hint(event.after, event.reason)
    return f"{event.reason}, {hint}" if hint else event.reason


def _events(picture: JobPicture, now: datetime, zone: tzinfo | None) -> tuple[Entry, ...]:
    """Build the entries of the newest events seen from here, in the order they happened."""
    entries = []
    for event in picture.events[-_MAX_EVENTS:]:
        at = datetime.fromtimestamp(event.at, UTC)
        ago = format_duration(max(0.0, (now - at).total_seconds()))
        which = f"{_which_tasks(event.job_id)} " if picture.is_whole_array else ""
        was = (
            f"{state_word(event.before)} → " if event.before and event.before != event.after else ""
        )
        why = f": {_why(picture, event)}" if event.reason else ""
        text = f"{which}{was}{state_word(event.after)}{why}  ({ago} ago)"
        entries.append(Entry(f"{at.astimezone(zone):%H:%M:%S}", text, state=event.after))
    return tuple(entries)
