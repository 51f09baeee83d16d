"""Tasks and actors of a job, or on a node: states by name, restarts, and why some failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from hpcdash.backends.job_detail import Activity, ActivityCount
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.backends.ray.responses import (
    MAX_ROWS,
    decode,
    number,
    read_responses,
    refusal,
    require_success,
    state_rows,
    state_summary,
    table,
    text,
    truncation_note,
)
from hpcdash.domain.states import JobState

_MAX_FAILURES = 5
_STATE_FILTER = "filter_keys=state&filter_predicates="
# Actors whose restarts are counted: a program may have very many.
_MAX_ACTORS = 1000
_ADDRESS = re.compile(r"Node IP: ([0-9A-Fa-f.:]{2,64})\b")
# Source: TaskStatus and ActorTableData of ray/src/ray/protobuf.
_WORDS = {
    "PENDING_ARGS_AVAIL": "waiting for arguments",
    "PENDING_ARGS_FETCH": "fetching arguments",
    "PENDING_NODE_ASSIGNMENT": "waiting for a node",
    "PENDING_OBJ_STORE_MEM_AVAIL": "waiting for object store memory",
    "SUBMITTED_TO_WORKER": "sent to a worker",
    "RUNNING_IN_RAY_GET": "in ray.get",
    "RUNNING_IN_RAY_WAIT": "in ray.wait",
    "DEPENDENCIES_UNREADY": "waiting for arguments",
    "PENDING_CREATION": "waiting for a node",
    "NIL": "in an unknown state",
}
_STATES = {
    "FINISHED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "ALIVE": JobState.RUNNING,
    "RESTARTING": JobState.PENDING,
    "DEPENDENCIES_UNREADY": JobState.PENDING,
    "SUBMITTED_TO_WORKER": JobState.PENDING,
    # For a dead actor it is unknown whether it had done its work.
    "DEAD": JobState.UNKNOWN,
}


def job_tasks_query(ray_job: str) -> str:
    """The filter of the State API for what belongs to a job, by Ray's own number of it."""
    return f"filter_keys=job_id&filter_predicates=%3D&filter_values={quote(ray_job, safe='')}"


def activity_query(row: Mapping[str, Any], native: Mapping[str, str]) -> Query[Activity] | None:
    """Return the query for the Ray activity of a job's program.

    None if it has not connected to Ray.
    """
    ray_job = native.get("job_id")
    if not ray_job:
        return None
    job = job_tasks_query(ray_job)
    failed = f"/api/v0/tasks?detail=1&limit={_MAX_FAILURES}&{job}&filter_keys=state&filter_predicates=%3D"
    argv = (
        "GET",
        f"/api/v0/tasks/summarize?{job}",
        f"/api/v0/actors/summarize?{job}",
        f"{failed}&filter_values=FAILED",
        f"/api/v0/actors?detail=1&limit={_MAX_ACTORS}&{job}",
    )
    return Query(argv, parse_activity, cap_bytes=TEXT_BYTES)


def parse_activity(answer: Answer) -> Activity:
    """Parse the activity of a job; actors that the dashboard does not report are left out.

    Raises the error that keeps the dashboard from reporting tasks.
    """
    responses = read_responses(answer)
    if not responses[0].is_success:
        require_success(answer)
    counts = []
    notes = []
    for kind, name, response in zip(
        ("task", "actor"), ("func_or_class_name", "class_name"), responses, strict=False
    ):
        if not response.is_success:
            notes.append(f"{kind}s: {refusal(response.body)}")
            continue
        listed, reported = state_summary(decode(answer, response))
        counts += [found for one in listed if (found := _count(kind, one, name)) is not None]
        notes += [f"{kind}s: {reported}"] if reported else []
    failed = state_rows(answer, responses[2]) if len(responses) > 2 else []
    for response in responses[3:]:
        restarts = _restarts(state_rows(answer, response))
        counts = [
            replace(one, restarts=restarts.get(one.name, 0)) if one.kind == "actor" else one
            for one in counts
        ]
        notes += filter(None, [truncation_note(answer, response, "restarts of actors")])
    return Activity(tuple(counts), tuple(filter(None, map(_failure, failed))), tuple(notes))


def node_activity_query(node: str) -> Query[Activity]:
    """The running tasks and living actors of a node, by its name in the list of nodes."""
    argv = (
        "GET",
        f"/api/v0/nodes?limit={MAX_ROWS}",
        f"/api/v0/tasks?limit={MAX_ROWS}&{_STATE_FILTER}%3D&filter_values=RUNNING",
        f"/api/v0/actors?detail=1&limit={MAX_ROWS}&{_STATE_FILTER}%21%3D&filter_values=DEAD",
    )
    return Query(argv, partial(_parse_node_activity, node=node))


def _parse_node_activity(answer: Answer, *, node: str) -> Activity:
    nodes, *lists = require_success(answer)
    listed = state_rows(answer, nodes)
    own = (one for one in listed if node in (one.get("node_ip"), one.get("node_name")))
    own_ids = {node_id for one in own if (node_id := text(one.get("node_id")))}
    counts: list[ActivityCount] = []
    notes: list[str] = []
    for kind, name, response in zip(("task", "actor"), ("name", "class_name"), lists, strict=True):
        rows = [row for row in state_rows(answer, response) if text(row.get("node_id")) in own_ids]
        restarts = _restarts(rows)
        states: dict[str, Counter[str]] = {}
        for row in rows:
            states.setdefault(text(row.get(name)) or kind, Counter())[str(row.get("state"))] += 1
        counts += [
            ActivityCount(kind, title, _count_states(native), restarts.get(title, 0))
            for title, native in states.items()
        ]
        notes += filter(None, [truncation_note(answer, response, f"{kind}s of all nodes")])
    return Activity(tuple(counts), notes=tuple(notes))


def _restarts(actors: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
    """Return the number of restarts of each class of actors."""
    found: Counter[str] = Counter()
    for actor in actors:
        found[text(actor.get("class_name")) or ""] += number(actor.get("num_restarts")) or 0
    return found


def _count(kind: str, summary: Mapping[str, Any], key: str) -> ActivityCount | None:
    name = text(summary.get(key))
    states = {
        str(native): int(count)
        for native, counted in table(summary.get("state_counts")).items()
        if (count := number(counted)) is not None
    }
    return None if name is None or not states else ActivityCount(kind, name, _count_states(states))


def _count_states(counts: Mapping[str, int]) -> tuple[tuple[str, str, int], ...]:
    """Return state counts in the form of ActivityCount, finished states last."""
    order = sorted(counts, key=lambda native: (native in ("FINISHED", "DEAD"), native))
    return tuple((format_state(native), _state(native).value, counts[native]) for native in order)


def format_state(native: str) -> str:
    """Return a state of a task or an actor in plain text."""
    return _WORDS.get(native, native.lower().replace("_", " "))


def _state(native: str) -> JobState:
    if native in _STATES:
        return _STATES[native]
    if native.startswith("RUNNING"):
        return JobState.RUNNING
    return JobState.PENDING if native.startswith("PENDING") else JobState.UNKNOWN


def _failure(task: Mapping[str, Any]) -> tuple[str, str] | None:
    name = text(task.get("name")) or text(task.get("func_or_class_name"))
    message = text(task.get("error_message")) or text(task.get("error_type"))
    if name is None or message is None:
        return None
    if task.get("error_type") == "NODE_DIED" and (address := _ADDRESS.search(message)):
        return name, f"its node {address[1]} died"
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [message]
    # A task's own exception is below its traceback; Ray's own messages begin with the event.
    return name, lines[-1 if task.get("error_type") == "TASK_EXECUTION_EXCEPTION" else 0]
