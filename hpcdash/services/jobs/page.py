"""Groups of labelled entries for a job's page, most important first.

Text from the cluster is unchanged: whatever shows it must make it safe.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from msgspec import Struct

from hpcdash.backends.job_detail import Activity
from hpcdash.domain.dependencies import (
    Branch,
    format_never,
    parse_dependency,
    waited_for_by,
    waits_for,
)
from hpcdash.domain.efficiency import NOT_ACCOUNTED, advice, meters
from hpcdash.domain.job_ids import holds_many, parse_task_part
from hpcdash.domain.job_text import Pair, field_groups, state_word
from hpcdash.domain.states import ENDED, WAITING
from hpcdash.domain.text import clip, counted
from hpcdash.domain.units import format_duration, format_memory
from hpcdash.errors import NotRecorded
from hpcdash.services.jobs.launch_status import format_status, is_pulling
from hpcdash.services.jobs.overview import JobFacts, Part

_CANCELLED_BY = re.compile(r"CANCELLED by ([0-9]+)")
# The share of a priority factor's maximum: `1667 (17% of max)`.
_PERCENT = re.compile(r"\((?:< )?([0-9]{1,3})%")
# A backend's names for the sum of a priority's factors, and for jobs that may preempt a job.
TOTAL = "priority"
PREEMPTED_BY = "may be preempted by"
_MAX_RUNS_SHOWN = 20
# Consecutive tasks in the same state are a run; an array of more runs is shown by state.
_MAX_TASK_RUNS = 12
_MAX_EVENTS = 30
_MAX_STEPS = 12
_MAX_ACTIVITIES = 12
# Entries of the group "job" on a job's state and end.
_STATE_LABELS = frozenset({"state", "reason", "explanation", "ended with", "cancelled by", "cause"})
_MAX_LOG_CELLS = 400


class Entry(Struct, frozen=True):
    """Labelled value; a note (`is_dim`) has no label.

    `fraction`, from 0 to 1, adds a bar. The text has the colour of the job state `state`; `pieces`
    of (text, state) replace `value`.
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
    """Entries under a title.

    On a wide terminal `is_aside` is in the right column, and `is_broad`, with paths that must not
    wrap, below both columns.
    """

    title: str
    entries: tuple[Entry, ...]
    is_aside: bool = False
    is_broad: bool = False


def job_groups(
    facts: JobFacts,
    now: datetime,
    *,
    signs: Mapping[str, str],
    zone: tzinfo | None = None,
    sign_cells: int = 0,
) -> list[Group]:
    """Group everything known of a job, and the reason that a part is missing.

    `signs` are the signs of job states; an array of at most `sign_cells` tasks is shown as one sign
    per task.
    """
    row = facts.row
    if row is None:
        return []
    state = str(row["state"])
    reasons = facts.store.backend.reasons
    pairs = field_groups(
        row,
        now,
        reasons.explain(row),
        estimator=facts.store.backend.title,
        sign=signs.get(state, ""),
        zone=zone,
    )
    own = {title: [Entry(*pair) for pair in members] for title, members in pairs}
    time = own.get("time", [])
    native = facts.detail.native if facts.detail is not None else {}
    restarts = native.get("Restarts", "")
    if restarts.isascii() and restarts.isdigit() and int(restarts):
        time.append(Entry("requeued", "once" if restarts == "1" else f"{int(restarts)} times"))
    # The waits of similar jobs say nothing about a job that never starts.
    if facts.waits is not None and not reasons.never_starts(state, row["reason"]):
        time.append(Entry("similar jobs", str(facts.waits)))
    files = own.get("files", [])
    if facts.is_whole_array:
        # The paths of one task do not determine the others'.
        files = [entry for entry in files if entry.label == "directory"]
    rules_title = f"QoS {row['qos']}" if row["qos"] else f"Queue {row['queue'] or ''}".strip()
    waited = waited_for_by(facts.job_id, facts.array_id, facts.dependents)
    launched = facts.launched.text() if facts.launched is not None else ()
    groups = [
        Group("Job", _job_entries(facts, row, own.get("job", []))),
        *_dependencies(facts, row, signs),
        Group("Time", tuple(time)),
        Group("Resources", (*own.get("resources", ()), *_usage(facts, row)), is_aside=True),
        Group("Steps", _steps(facts), is_broad=True),
        Group("Tasks and actors", _activity(facts)),
        Group("Priority", _priority(facts, row), is_aside=True),
        Group(rules_title, _rules(facts, row), is_aside=True),
        Group("Dependent jobs", tuple(_branch(one, signs) for one in waited), is_aside=True),
        Group(f"Array {facts.array_id}", _array(facts, signs, sign_cells), is_aside=True),
        Group("Files", tuple(files), is_broad=True),
        *_native_facts(facts),
        Group("Launched from here", tuple(Entry(*pair) for pair in launched), is_broad=True),
        Group("Runs", _runs(facts), is_broad=True),
        Group("Events", _events(facts, now, zone)),
    ]
    return [group for group in groups if group.entries]


def _job_entries(
    facts: JobFacts, row: Mapping[str, Any], reported: Sequence[Entry]
) -> tuple[Entry, ...]:
    """Add causes, limits and the log's last line to what the scheduler reports of a job."""
    state = str(row["state"])
    entries = []
    for entry in reported:
        if entry.label == "state":
            entries.append(Entry(entry.label, entry.value, state=state))
        elif entry.label != "array" or not facts.is_whole_array:
            entries.append(entry)
    native = facts.detail.native if facts.detail is not None else {}
    cancelled_by = _CANCELLED_BY.fullmatch(row["native_state"] or "")
    if cancelled_by is not None:
        names = {native.get("UID"): "its owner", "0": "root"}
        user = names.get(cancelled_by[1], f"user ID {cancelled_by[1]}")
        entries.append(Entry("cancelled by", user))
    if cause := facts.store.backend.reasons.cause(native):
        entries.insert(_end_place(entries, _STATE_LABELS), Entry("cause", cause))
    added = [Entry("limit", line) for line in facts.policy_lines()]
    if added:
        # The last line names the view that has more.
        added[-1] = Entry("→", added[-1].value)
        added += _notes(facts, Part.LIMITS)
    containers = facts.containers or 0
    if is_pulling(state, containers, facts.up):
        added.append(Entry("launch", format_status(state, containers, facts.up)))
    added += _log_entries(facts)
    # A line of the log that explains the end precedes the scheduler's explanation.
    excerpt = None if facts.failure is None else facts.failure.excerpt
    explains = excerpt is not None and excerpt.explains
    place = _end_place(entries, frozenset({"state"}) if explains else _STATE_LABELS)
    return (*entries[:place], *added, *entries[place:])


def _end_place(entries: Sequence[Entry], labels: frozenset[str]) -> int:
    """Return the place after the last entry with one of the labels."""
    places = [at for at, entry in enumerate(entries, start=1) if entry.label in labels]
    return max(places, default=0)


def _runs(facts: JobFacts) -> tuple[Entry, ...]:
    """Build the entries of an allocation's newest runs, in their order."""
    entries = [Entry(str(run.number), run.text) for run in facts.runs[-_MAX_RUNS_SHOWN:]]
    is_allocation = facts.launched is not None and facts.launched.is_allocation
    if facts.runs:
        number = facts.runs[-1].number
        text = f"l, then ]; or hpcdash log {facts.job_id} --run {number}"
        entries.append(Entry("logs", text))
    elif is_allocation and Part.RUNS not in facts.errors:
        entries.append(Entry("none yet", f"hpcdash submit REQUEST.toml --in {facts.job_id}"))
    return (*entries, *_notes(facts, Part.RUNS))


def _log_entries(facts: JobFacts) -> list[Entry]:
    """Build the entries on a failure from its log."""
    failure = facts.failure
    if failure is None or Part.LOG in facts.fetching:
        return _notes(facts, Part.LOG)
    if failure.excerpt is None:
        return [Entry(value=f"{Part.LOG}: {failure.problem}", is_dim=True)]
    verb = "says" if failure.excerpt.explains else "ends with"
    return [Entry(f"{failure.stream} {verb}", clip(failure.text, _MAX_LOG_CELLS))]


def _notes(facts: JobFacts, *parts: Part) -> list[Entry]:
    """Build entries for the parts that are being fetched, and those that failed."""
    notes = []
    for part in parts:
        error = facts.errors.get(part)
        if part in facts.fetching:
            notes.append(Entry(value=f"{part}: loading …", is_dim=True))
        elif error is not None:
            why = "not in this recording" if isinstance(error, NotRecorded) else error.message
            notes.append(Entry(value=f"{part}: {why}", is_dim=True))
    return notes


def _usage(facts: JobFacts, row: Mapping[str, Any]) -> list[Entry]:
    usage = facts.usage
    if facts.is_whole_array:
        note = Entry(value="each task's usage is on its own page", is_dim=True)
        return [note] if row["started_at"] else []
    if usage is None:
        return _notes(facts, Part.USAGE)
    verb = "used" if row["state"] in ENDED else "uses"
    entries = []
    for meter in meters(usage, row["nodes"]):
        is_unknown = meter.text == NOT_ACCOUNTED
        label = f"{verb} {meter.label}"
        entries.append(Entry(label, meter.text, meter.fraction, is_dim=is_unknown))
    if text := advice(usage, str(row["state"])):
        entries.append(Entry("→", text))
    if usage.note:
        entries.append(Entry(value=usage.note, is_dim=True))
    if Part.USAGE in facts.errors:
        entries += _notes(facts, Part.USAGE)
    return entries


def _steps(facts: JobFacts) -> tuple[Entry, ...]:
    steps = facts.steps
    if steps is None:
        return ()
    shown = steps.slice(0, _MAX_STEPS).to_pylist()
    entries = [Entry(*format_step(step), state=str(step["state"])) for step in shown]
    if (left := steps.num_rows - _MAX_STEPS) > 0:
        entries.append(Entry(value=f"and {left} more; show --steps lists all", is_dim=True))
    return tuple(entries)


def format_step(step: Mapping[str, Any]) -> Pair:
    """Format a row of schema.STEPS as a label and a text.

    `0 python3` and `completed · 12:30 · 8 tasks · 3.1 of 4 cores busy · peak 12G`.
    """
    elapsed = step["elapsed_seconds"]
    cpus = step["cpus"]
    cpu_seconds = step["cpu_seconds_used"]
    label = str(step["id"])
    if step["name"] and step["name"] != step["id"]:
        label = f"{label} {step['name']}"
    parts = [state_word(step["state"])]
    if step["exit_signal"]:
        parts.append(f"signal {step['exit_signal']}")
    elif step["exit_code"]:
        parts.append(f"exit {step['exit_code']}")
    if elapsed is not None:
        parts.append(format_duration(elapsed))
    if step["tasks"]:
        parts.append(counted(step["tasks"], "task"))
    if step["node_list"]:
        parts.append(f"on {step['node_list']}")
    if cpu_seconds is not None and elapsed and cpus:
        parts.append(f"{cpu_seconds / elapsed:.1f} of {counted(cpus, 'core')} busy")
    if step["memory_peak_bytes"] is not None:
        parts.append(f"peak {format_memory(step['memory_peak_bytes'])}")
    return label, " · ".join(parts)


def _activity(facts: JobFacts) -> tuple[Entry, ...]:
    if facts.activity is None:
        return tuple(_notes(facts, Part.ACTIVITY)) if Part.ACTIVITY in facts.errors else ()
    return (*activity_entries(facts.activity), *_notes(facts, Part.ACTIVITY))


def activity_entries(activity: Activity) -> list[Entry]:
    """Build entries of the counts by state, of each kind and name, and of the failures."""
    entries: list[Entry] = []
    for kind in dict.fromkeys(one.kind for one in activity.counts):
        named = [one for one in activity.counts if one.kind == kind]
        if len(named) == 1:
            [only] = named
            entries.append(_counts(f"{kind} {only.name}", only.states, only.restarts))
            continue
        totals: Counter[tuple[str, str]] = Counter()
        sizes = {}
        for one in named:
            for text, state, count in one.states:
                totals[text, state] += count
            sizes[one.name] = sum(count for _, _, count in one.states)
        states = [(text, state, count) for (text, state), count in totals.items()]
        entries.append(_counts(f"{kind}s", states, sum(one.restarts for one in named)))
        largest = sorted(named, key=lambda one: -sizes[one.name])[:_MAX_ACTIVITIES]
        entries += [_counts(f"  {one.name}", one.states, one.restarts) for one in largest]
        if (left := len(named) - _MAX_ACTIVITIES) > 0:
            entries.append(Entry(value=f"and {left} more names", is_dim=True))
    for name, text in activity.failures:
        entries.append(Entry(f"{name} failed", clip(text, _MAX_LOG_CELLS)))
    entries += [Entry(value=note, is_dim=True) for note in activity.notes]
    return entries


def _counts(label: str, states: Sequence[tuple[str, str, int]], restarts: int) -> Entry:
    pieces = [(f"{count} {text}", state) for text, state, count in states]
    if restarts:
        pieces.append((counted(restarts, "restart"), ""))
    return Entry(label, pieces=_joined(" · ", pieces))


def _joined(separator: str, pieces: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    joined: list[tuple[str, str]] = []
    for piece in pieces:
        if joined:
            joined.append((separator, ""))
        joined.append(piece)
    return tuple(joined)


def _native_facts(facts: JobFacts) -> list[Group]:
    """Build the groups of facts that only this scheduler reports."""
    if facts.detail is None:
        return []
    groups = []
    for title, pairs in facts.store.backend.detail.facts(facts.detail.native).items():
        entries = [Entry(label, clip(value, _MAX_LOG_CELLS)) for label, value in pairs.items()]
        groups.append(Group(title, tuple(entries), is_broad=True))
    return groups


def _priority(facts: JobFacts, row: Mapping[str, Any]) -> tuple[Entry, ...]:
    if row["state"] not in WAITING:
        return ()
    texts = dict(facts.priority)
    total = texts.pop(TOTAL, "")
    entries = [Entry("total", total)] if total else []
    for name, value in texts.items():
        percent = _PERCENT.search(value)
        fraction = None if percent is None else int(percent[1]) / 100
        entries.append(Entry(name, value, fraction))
    notes = _notes(facts, Part.PRIORITY)
    if not entries and not notes:
        text = "no priority yet: assigned once the dependencies are met"
        entries.append(Entry(value=text, is_dim=True))
    return (*entries, *notes)


def _rules(facts: JobFacts, row: Mapping[str, Any]) -> tuple[Entry, ...]:
    """Build the entries of the QoS, with the queue's rules on preemption if the QoS lacks them."""
    if row["state"] in ENDED:
        return ()
    if row["qos"]:
        parts = [Part.QOS, Part.QUEUE]
        rules = dict(facts.qos or {})
        # If the QoS is unknown any job may be preempted; a queue does not report by which jobs.
        is_unknown = facts.qos is None and Part.QOS in facts.errors
        if PREEMPTED_BY in rules or is_unknown:
            for label, value in facts.queue_rules.items():
                rules.setdefault(label, value)
    else:
        parts = [Part.QUEUE]
        rules = dict(facts.queue_rules)
    entries = [Entry(label, value) for label, value in rules.items()]
    return (*entries, *_notes(facts, *parts))


def _dependencies(facts: JobFacts, row: Mapping[str, Any], signs: Mapping[str, str]) -> list[Group]:
    if not row["dependency"] or row["state"] not in WAITING:
        return []
    dependency = parse_dependency(row["dependency"])
    branches = waits_for(dependency, facts.related)
    entries = [_branch(branch, signs) for branch in branches]
    if not entries:
        entries = [Entry(value=str(row["dependency"]))]
    if never := format_never(branches, dependency.is_any):
        entries.append(Entry("→", never))
    title = "Waits for"
    if len(branches) > 1:
        title += " any of" if dependency.is_any else " all of"
    return [Group(title, (*entries, *_notes(facts, Part.RELATED)), is_aside=True)]


def _branch(branch: Branch, signs: Mapping[str, str]) -> Entry:
    has_counts = sum(branch.states.values()) > 1
    states: list[tuple[str, str]] = []
    for state, count in branch.states.items():
        number = f"{count} " if has_counts else ""
        states.append((f"{signs.get(state, '')} {number}{state_word(state)}".strip(), state))
    if not states and branch.job_id:
        states = [("no longer listed", "unknown")]
    pieces: list[tuple[str, str]] = []
    if branch.name:
        pieces += [(branch.name, ""), ("  ", "")]
    if states:
        pieces += [*_joined(", ", states), ("  ", "")]
    pieces.append((branch.text, ""))
    label = branch.job_id or "others"
    if branch.depth:
        label = "  " * branch.depth + f"└ {label}"
    return Entry(label, pieces=tuple(pieces))


def _array(facts: JobFacts, signs: Mapping[str, str], sign_cells: int) -> tuple[Entry, ...]:
    tasks = facts.tasks
    if facts.array_id is None:
        return ()
    if tasks is None or not tasks.by_task:
        return tuple(_notes(facts, Part.TASKS))
    count = len(tasks.by_task)
    limit = f", {tasks.throttle} at once" if tasks.throttle else ""
    entries = [Entry("tasks", f"{count}{limit}")]
    # All tasks in order, as signs or as a few runs of tasks, if they fit.
    runs = tasks.as_runs(_MAX_TASK_RUNS)
    if count <= sign_cells:
        entries.append(Entry("in order", pieces=tuple(tasks.as_signs(signs))))
    elif runs is not None and signs:
        pieces = [(f"{text} {signs.get(state, '?')}", state) for text, state in runs]
        entries.append(Entry("in order", pieces=_joined(" · ", pieces)))
    for state, state_count in tasks.counts().items():
        label = f"{signs.get(state, '')} {state_word(state)}".strip()
        entries.append(Entry(label, f"{state_count}: {tasks.state_tasks(state)}", state=state))
    return (*entries, *_notes(facts, Part.TASKS))


def _events(facts: JobFacts, now: datetime, zone: tzinfo | None) -> tuple[Entry, ...]:
    """Build the entries of the newest events seen by hpcdash, in their order."""
    entries = []
    for event in facts.events[-_MAX_EVENTS:]:
        at = datetime.fromtimestamp(event.at, UTC)
        text = state_word(event.after)
        if event.before and event.before != event.after:
            text = f"{state_word(event.before)} → {text}"
        if facts.is_whole_array:
            tasks = parse_task_part(event.job_id)
            which = f"tasks {tasks.strip('[]')}" if holds_many(event.job_id) else f"task {tasks}"
            text = f"{which} {text}"
        if event.reason:
            hint = facts.store.backend.reasons.hint(event.after, event.reason)
            text += f": {event.reason}, {hint}" if hint else f": {event.reason}"
        ago = format_duration(max(0.0, (now - at).total_seconds()))
        label = f"{at.astimezone(zone):%H:%M:%S}"
        entries.append(Entry(label, f"{text}  ({ago} ago)", state=event.after))
    return tuple(entries)
