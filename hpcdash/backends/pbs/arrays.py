"""The rows of PBS's job arrays: of each array qstat lists the parent, and of some the subjobs that
run or ended.

What waits is one row, 12[6-10].server; what runs and was not listed is one more, 12[].server; so
that the tasks of an array's rows add up to those of it that live.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.pbs.states import ENDED_LETTERS
from hpcdash.backends.queries import Row
from hpcdash.domain.array_tasks import ArrayTasks, read_all_tasks
from hpcdash.domain.columns import MOST, as_array, null_where, where, with_columns
from hpcdash.domain.schema import NO_TEXT
from hpcdash.domain.states import JobState

# The columns that tell what becomes of an array's tasks.
COUNTS = "_counts"
SUBMITTED = "_submitted"
REMAINING = "_remaining"
THROTTLE = "_throttle"
_COUNT = re.compile(r"(?<![A-Za-z])([A-Za-z]+):([0-9]{1,9})(?![0-9])")
_RUNS = {"state": JobState.RUNNING, "native_state": "R"}
_ENDS = {"state": JobState.COMPLETING, "native_state": "E"}
_HELD = {"state": JobState.HELD, "native_state": "H"}
# A row made of the record `at`; null is the record's own.
_ROWS = pa.schema(
    {
        "at": pa.int64(),
        "id": pa.string(),
        "array_task": pa.string(),
        "_task": pa.int64(),
        "_tasks": pa.int64(),
        "state": pa.string(),
        "native_state": pa.string(),
    }
)
_NOT_KNOWN_OF_MANY = ("started_at", "ends_at", "elapsed_seconds", "node_list", "_expected_start_at")
_RESOURCES = ("nodes", "cpus", "gpus", "memory_bytes")


def spread(jobs: pa.Table, places: pa.Array) -> tuple[pa.Table, pa.Array]:
    """`jobs`, a row a record, with each parent's rows in place of its record; and where each row is
    to stand.

    Its columns are those of domain.schema.JOBS, with states as text, and COUNTS, SUBMITTED,
    REMAINING and THROTTLE, as PBS writes them. The rows of an array stand where its parent's record
    did.
    """
    is_parent = pc.match_substring(as_array(jobs["id"]), "[]")
    numbers = pc.indices_nonzero(is_parent)
    if not len(numbers):
        return jobs, places
    names = ["id", "native_state", COUNTS, SUBMITTED, REMAINING, THROTTLE]
    parents = jobs.select(names).take(numbers).to_pylist()
    listed = _listed(jobs)
    rows = []
    parent_places: dict[str, int] = {}
    for at, parent in zip(numbers.to_pylist(), parents, strict=True):
        parent_places[parent["id"]] = places[at].as_py()
        own = _task_rows(parent, listed.get(parent["id"], Counter()))
        rows += [{"at": at, "id": parent["id"], **row} for row in own]
    others = pc.invert(is_parent)
    stored = jobs.filter(others)
    arrays = stored["array_id"].to_pylist()
    other_places = [
        parent_places.get(array_id, place)
        for array_id, place in zip(arrays, places.filter(others).to_pylist(), strict=True)
    ]
    made = _made(jobs, pa.Table.from_pylist(rows, _ROWS))
    made_places = [parent_places[array_id] for array_id in made["array_id"].to_pylist()]
    return pa.concat_tables([stored, made]), pa.array([*other_places, *made_places], pa.int64())


def _listed(jobs: pa.Table) -> dict[str, Counter[str]]:
    """Count the listed subjobs of each array by PBS's states."""
    subjobs = jobs.filter(pc.is_valid(jobs["_task"])).select(["array_id", "native_state"])
    found: dict[str, Counter[str]] = {}
    for array_id, letter in zip(*(column.to_pylist() for column in subjobs.columns), strict=True):
        found.setdefault(array_id, Counter())[letter or ""] += 1
    return found


def _task_rows(parent: Row, listed: Counter[str]) -> Iterator[Row]:
    """Yield the columns of a parent's rows that differ from its record, by its listed subjobs."""
    letter = parent["native_state"] or ""
    submitted = _tasks(parent[SUBMITTED])
    count = max(1, submitted.count) if submitted else 1
    if letter in ENDED_LETTERS or letter == "M":
        if not listed:
            first = submitted.first if submitted else None
            yield {"array_task": parent[SUBMITTED] or None, "_task": first, "_tasks": count}
        return
    counts = {name: int(number) for name, number in _COUNT.findall(parent[COUNTS] or "")}
    waiting = _tasks(parent[REMAINING])
    running = counts.get("Running", 0)
    exiting = counts.get("Exiting", 0)
    queued = waiting.count if waiting else counts.get("Queued", 0)
    alive = sum(number for state, number in listed.items() if state in "RESU")
    many = max(0, running + exiting - alive)
    state: Row = {
        "state": JobState.PENDING,
        "native_state": (letter if letter in "WT" else "Q") or None,
    }
    if letter == "H":
        state = _HELD
    if waiting:
        number, _, server = parent["id"].partition("[]")
        throttle = parent[THROTTLE] or ""
        is_number = throttle.isascii() and throttle.isdigit() and len(throttle) <= 9
        most = int(throttle) or None if is_number else None
        yield {
            "id": f"{number}[{ArrayTasks(waiting.ranges)}]{server}",
            "array_task": str(ArrayTasks(waiting.ranges, most)),
            "_task": waiting.first,
            "_tasks": queued,
            **state,
        }
        queued = 0
    if many + queued:
        if running or exiting:
            state = _RUNS if running else _ENDS
        yield {"_tasks": many + queued, **state}
    elif not waiting and not listed:
        yield {"_tasks": 1 if counts else count}


def _tasks(text: str | None) -> ArrayTasks | None:
    """Parse a list of tasks; None for '-', which is none, and for a list that is cut short."""
    tasks = read_all_tasks(text)
    return tasks if tasks is not None and tasks.count else None


def _made(jobs: pa.Table, rows: pa.Table) -> pa.Table:
    table = jobs.take(rows["at"])
    letters = pc.coalesce(rows["native_state"], table["native_state"])
    is_ended = pc.is_in(letters, value_set=pa.array(sorted(ENDED_LETTERS)))
    tasks = as_array(rows["_tasks"])
    run = pc.is_in(rows["native_state"], value_set=pa.array(["R", "E"]))
    changed = {
        **{name: rows[name] for name in ("id", "array_task", "_task", "_tasks")},
        "state": pc.coalesce(rows["state"], table["state"]),
        "native_state": letters,
        # 0: all went well, 1: one task failed, 2: one could not be run. It is no job's exit code.
        "exit_code": pa.nulls(len(tasks), pa.int64()),
        "exit_signal": pa.nulls(len(tasks), pa.int64()),
    }
    for name in _NOT_KNOWN_OF_MANY:
        changed[name] = where(is_ended, as_array(table[name]))
    most_each = pc.divide(pa.scalar(MOST), tasks)
    for name in _RESOURCES:
        column = as_array(table[name])
        together = where(pc.less_equal(column, most_each), pc.multiply(column, tasks))
        changed[name] = pc.if_else(run, together, column)
    return with_columns(table, changed)


_SUBJOB = r"^([0-9]+\[)[0-9]+\]"
_COMMENT = r"^Subjob (finished|failed|terminated)$"
_TERMINATED = "91"
_FINISHED = "92"
_FAILED = "93"


def with_subjob_ends(table: pa.Table) -> tuple[pa.Table, pa.Array]:
    """(qstat's text columns, with what such subjobs are known to have come to as their substate and
    without the exit status of their array; which rows they are).
    """
    ids = as_array(table["id"])
    comments = as_array(table["comment"])
    is_subjob = pc.match_substring_regex(ids, _SUBJOB)
    has_comment = pc.fill_null(pc.match_substring_regex(comments, _COMMENT), False)
    is_copy = pc.and_(pc.and_(is_subjob, has_comment), pc.is_null(table["exec_host"]))
    is_copy = as_array(is_copy)
    if not pc.any(is_copy, min_count=0).as_py():
        return table, is_copy
    has_ended = pc.is_in(table["job_state"], value_set=pa.array(sorted(ENDED_LETTERS)))
    arrays = as_array(pc.replace_substring_regex(ids, _SUBJOB, r"\1]"))
    is_record = pc.and_(pc.and_(is_subjob, has_ended), pc.invert(is_copy))
    # Where others that ended have their records, one without was deleted before it began.
    has_records = pc.is_in(arrays, value_set=arrays.filter(as_array(is_record)))
    ended_well = pc.fill_null(pc.equal(table["Exit_status"], "0"), False)
    finished = pc.if_else(has_records, _TERMINATED, pc.if_else(ended_well, _FINISHED, NO_TEXT))
    text = pc.replace_substring_regex(comments, _COMMENT, r"\1")
    substates = pc.if_else(
        pc.equal(text, "failed"),
        _FAILED,
        pc.if_else(pc.equal(text, "terminated"), _TERMINATED, finished),
    )
    changed = {
        "substate": pc.if_else(is_copy, substates, table["substate"]),
        "Exit_status": null_where(is_copy, table["Exit_status"]),
    }
    return with_columns(table, changed), is_copy
