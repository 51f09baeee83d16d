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
from msgspec import Struct

from hpcdash.backends.pbs.states import ENDED_LETTERS
from hpcdash.domain.array_tasks import ArrayTasks, parse_tasks
from hpcdash.domain.columns import MOST, as_array, null_where, where, with_columns
from hpcdash.domain.schema import NO_TEXT
from hpcdash.domain.states import JobState

# The columns that tell what becomes of an array's tasks.
COUNTS = "_counts"
SUBMITTED = "_submitted"
REMAINING = "_remaining"
THROTTLE = "_throttle"
_COUNT = re.compile(r"(?<![A-Za-z])([A-Za-z]+):([0-9]{1,9})(?![0-9])")
_HELD = JobState.HELD, "H"
_RUNS = JobState.RUNNING, "R"
_ENDS = JobState.COMPLETING, "E"
_NOT_KNOWN_OF_MANY = ("started_at", "ends_at", "elapsed_seconds", "node_list", "_expected_start_at")
_RESOURCES = ("nodes", "cpus", "gpus", "memory_bytes")


class _Parent(Struct, frozen=True):
    """Record of an array's parent on its tasks; texts as PBS writes them."""

    at: int
    id: str
    letter: str
    counts: str
    submitted: str
    remaining: str
    max_run_subjobs: str


class _Row(Struct, frozen=True):
    """A row made of the record `at`; `state` None: the record's own."""

    at: int
    id: str
    task: str | None
    first: int | None
    tasks: int
    state: JobState | None = None
    letter: str | None = None


def spread(jobs: pa.Table, places: pa.Array) -> tuple[pa.Table, pa.Array]:
    """`jobs`, a row a record, with each parent's rows in place of its record; and where each row is
    to stand.

    Its columns are those of domain.schema.JOBS, with states as text, and COUNTS, SUBMITTED,
    REMAINING and THROTTLE, as PBS writes them. The rows of an array stand where its parent's record
    did.
    """
    parents = _parents(jobs)
    if not parents:
        return jobs, places
    listed = _listed(jobs)
    rows = [
        row for parent in parents for row in _task_rows(parent, listed.get(parent.id, Counter()))
    ]
    where = {parent.id: places[parent.at].as_py() for parent in parents}
    others = pc.invert(pc.match_substring(as_array(jobs["id"]), "[]"))
    stored = jobs.filter(others)
    other_places = places.filter(others).to_pylist()
    for at, array_id in enumerate(stored["array_id"].to_pylist()):
        if array_id in where:
            other_places[at] = where[array_id]
    made = _made(jobs, rows)
    made_places = [where[array_id] for array_id in made["array_id"].to_pylist()]
    return pa.concat_tables([stored, made]), pa.array([*other_places, *made_places], pa.int64())


def _parents(jobs: pa.Table) -> list[_Parent]:
    numbers = pc.indices_nonzero(pc.match_substring(as_array(jobs["id"]), "[]"))
    records = jobs.select(["id", "native_state", COUNTS, SUBMITTED, REMAINING, THROTTLE]).take(
        numbers
    )
    texts = zip(*(records[name].to_pylist() for name in records.column_names), strict=True)
    return [
        _Parent(at, *(text or "" for text in row))
        for at, row in zip(numbers.to_pylist(), texts, strict=True)
    ]


def _listed(jobs: pa.Table) -> dict[str, Counter[str]]:
    """Count the listed subjobs of each array by PBS's states."""
    is_subjob = pc.is_valid(jobs["_task"])
    subjobs = jobs.filter(is_subjob).select(["array_id", "native_state"])
    found: dict[str, Counter[str]] = {}
    for array_id, letter in zip(
        subjobs["array_id"].to_pylist(), subjobs["native_state"].to_pylist(), strict=True
    ):
        found.setdefault(array_id, Counter())[letter or ""] += 1
    return found


def _task_rows(parent: _Parent, listed: Counter[str]) -> Iterator[_Row]:
    if parent.letter in ENDED_LETTERS or parent.letter == "M":
        if not listed:
            tasks = _tasks(parent.submitted)
            yield _Row(
                parent.at,
                parent.id,
                parent.submitted or None,
                tasks.first if tasks else None,
                max(1, tasks.count) if tasks else 1,
            )
        return
    counts = {name: int(count) for name, count in _COUNT.findall(parent.counts)}
    waiting = _tasks(parent.remaining)
    running = counts.get("Running", 0)
    exiting = counts.get("Exiting", 0)
    queued = waiting.count if waiting else counts.get("Queued", 0)
    alive = sum(count for letter, count in listed.items() if letter in "RESU")
    many = max(0, running + exiting - alive)
    waits = (
        _HELD
        if parent.letter == "H"
        else (JobState.PENDING, parent.letter if parent.letter in "WT" else "Q")
    )
    if waiting:
        number, _, server = parent.id.partition("[]")
        with_throttle = str(ArrayTasks(waiting.ranges, _throttle(parent)))
        row_id = f"{number}[{ArrayTasks(waiting.ranges)}]{server}"
        yield _Row(parent.at, row_id, with_throttle, waiting.first, queued, *waits)
        queued = 0
    if many + queued:
        yield _Row(
            parent.at,
            parent.id,
            None,
            None,
            many + queued,
            *(_RUNS if running else _ENDS if exiting else waits),
        )
    elif not waiting and not listed:
        tasks = _tasks(parent.submitted) if not counts else None
        yield _Row(parent.at, parent.id, None, None, max(1, tasks.count) if tasks else 1)


def _throttle(parent: _Parent) -> int | None:
    text = parent.max_run_subjobs
    return int(text) or None if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _tasks(text: str) -> ArrayTasks | None:
    """None for '-', which is none, and for what cannot be read."""
    try:
        tasks = parse_tasks(text)
    except ValueError:
        return None
    return tasks if tasks.count and not tasks.is_incomplete else None


def _made(jobs: pa.Table, rows: list[_Row]) -> pa.Table:
    table = jobs.take(pa.array([row.at for row in rows], pa.int64()))
    letters = [
        row.letter or letter
        for row, letter in zip(rows, table["native_state"].to_pylist(), strict=True)
    ]
    is_alive = pa.array([letter not in ENDED_LETTERS for letter in letters], pa.bool_())
    tasks = pa.array([row.tasks for row in rows], pa.int64())
    run = pa.array([row.letter in ("R", "E") for row in rows], pa.bool_())
    changed = {
        "id": pa.array([row.id for row in rows], pa.string()),
        "array_task": pa.array([row.task for row in rows], pa.string()),
        "_task": pa.array([row.first for row in rows], pa.int64()),
        "_tasks": tasks,
        "state": pc.coalesce(
            pa.array([row.state for row in rows], pa.string()), as_array(table["state"])
        ),
        "native_state": pa.array(letters, pa.string()),
        # 0: all went well, 1: one task failed, 2: one could not be run. It is no job's exit code.
        "exit_code": pa.nulls(len(rows), pa.int64()),
        "exit_signal": pa.nulls(len(rows), pa.int64()),
    }
    for name in _NOT_KNOWN_OF_MANY:
        column = as_array(table[name])
        changed[name] = null_where(is_alive, column)
    share_of_limit = pc.divide(pa.scalar(MOST), tasks)
    for name in _RESOURCES:
        column = as_array(table[name])
        fits = pc.less_equal(column, share_of_limit)
        together = where(fits, pc.multiply(column, tasks))
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
