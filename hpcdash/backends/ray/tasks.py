"""Tasks and actors of a job, or on a node: states by name, restarts, and failures."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from hpcdash.backends.job_detail import Activity, ActivityCount
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.backends.ray.responses import (
    IS_NOT,
    MAX_ROWS,
    decode,
    nested_table,
    number,
    refusal,
    require_first,
    require_success,
    state_filter,
    state_rows,
    table,
    text,
    truncation_note,
)
from hpcdash.domain.states import JobState

_MAX_FAILURES = 5
# Actors whose restarts are counted: a program may have very many.
_MAX_ACTORS = 1000
_ADDRESS = re.compile(r"Node IP: ([0-9A-Fa-f.:]{2,64})\b")
# Source: TaskStatus and ActorTableData of ray/src/ray/protobuf.
_STATE_TITLES = {
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


def activity_query(row: Mapping[str, Any], native: Mapping[str, str]) -> Query[Activity] | None:
    """Return the query for the Ray activity of a job's program.

    None if it has not connected to Ray.
    """
    ray_job = native.get("job_id")
    if not ray_job:
        return None
    job = state_filter("job_id", ray_job)
    failed = state_filter("state", "FAILED")
    argv = (
        "GET",
        f"/api/v0/tasks/summarize?{job}",
        f"/api/v0/actors/summarize?{job}",
        f"/api/v0/tasks?detail=1&limit={_MAX_FAILURES}&{job}&{failed}",
        f"/api/v0/actors?detail=1&limit={_MAX_ACTORS}&{job}",
    )
    return Query(argv, parse_activity, cap_bytes=TEXT_BYTES)


def parse_activity(answer: Answer) -> Activity:
    """Parse the activity of a job; actors that the dashboard does not report are left out.

    Raises the error that keeps the dashboard from reporting tasks.
    """
    responses = require_first(answer)
    counts: list[ActivityCount] = []
    notes = []
    summaries = zip(
        ("task", "actor"), ("func_or_class_name", "class_name"), responses, strict=False
    )
    for kind, key, response in summaries:
        if not response.is_success:
            notes.append(f"{kind}s: {refusal(response.body)}")
            continue
        result = nested_table(decode(answer, response), "data", "result")
        keys = ("result", "node_id_to_summary", "cluster", "summary")
        for summary in map(table, nested_table(result, *keys).values()):
            states = {
                native: count
                for native, value in table(summary.get("state_counts")).items()
                if (count := number(value)) is not None
            }
            if states and (name := text(summary.get(key))):
                counts.append(ActivityCount(kind, name, _count_states(states)))
        if note := text(result.get("partial_failure_warning")):
            notes.append(f"{kind}s: {note}")
    failed = state_rows(answer, responses[2]) if len(responses) > 2 else []
    for response in responses[3:]:
        restarts = _count_restarts(state_rows(answer, response))
        counts = [
            replace(count, restarts=restarts[count.name]) if count.kind == "actor" else count
            for count in counts
        ]
        if note := truncation_note(answer, response, "restarts of actors"):
            notes.append(note)
    return Activity(tuple(counts), tuple(filter(None, map(_failure, failed))), tuple(notes))


def node_activity_query(node: str) -> Query[Activity]:
    """Return the query for the running tasks and living actors of a listed node."""
    running = state_filter("state", "RUNNING")
    living = state_filter("state", "DEAD", IS_NOT)
    argv = (
        "GET",
        f"/api/v0/nodes?limit={MAX_ROWS}",
        f"/api/v0/tasks?limit={MAX_ROWS}&{running}",
        f"/api/v0/actors?detail=1&limit={MAX_ROWS}&{living}",
    )
    return Query(argv, partial(_parse_node_activity, node=node))


def _parse_node_activity(answer: Answer, *, node: str) -> Activity:
    nodes, *lists = require_success(answer)
    node_ids = {
        text(row.get("node_id"))
        for row in state_rows(answer, nodes)
        if node in (row.get("node_ip"), row.get("node_name"))
    } - {None}
    counts: list[ActivityCount] = []
    notes = []
    for kind, key, response in zip(("task", "actor"), ("name", "class_name"), lists, strict=True):
        rows = [row for row in state_rows(answer, response) if text(row.get("node_id")) in node_ids]
        restarts = _count_restarts(rows)
        states: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in rows:
            states[text(row.get(key)) or kind][str(row.get("state"))] += 1
        counts += [
            ActivityCount(kind, name, _count_states(native), restarts[name])
            for name, native in states.items()
        ]
        if note := truncation_note(answer, response, f"{kind}s of all nodes"):
            notes.append(note)
    return Activity(tuple(counts), notes=tuple(notes))


def _count_restarts(actors: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Count the restarts of each class of actors."""
    restarts: Counter[str] = Counter()
    for actor in actors:
        restarts[text(actor.get("class_name")) or ""] += number(actor.get("num_restarts")) or 0
    return restarts


def _count_states(counts: Mapping[str, int]) -> tuple[tuple[str, str, int], ...]:
    """Return state counts in the form of ActivityCount, finished states last."""
    order = sorted(counts, key=lambda native: (native in ("FINISHED", "DEAD"), native))
    return tuple((format_state(native), _state(native).value, counts[native]) for native in order)


def format_state(native: str) -> str:
    """Format a state of a task or an actor as plain text."""
    return _STATE_TITLES.get(native, native.lower().replace("_", " "))


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
        return name, f"node {address[1]} died"
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [message]
    # A task's own exception is below its traceback; Ray's own messages begin with the event.
    return name, lines[-1 if task.get("error_type") == "TASK_EXECUTION_EXCEPTION" else 0]
