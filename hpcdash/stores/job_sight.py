"""What tables tell of one job or whole array: its row, its tasks, and whom it waits for. Asks nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.job_detail import JobDetail
from hpcdash.domain.arrays import fold
from hpcdash.domain.dependencies import parse_dependency
from hpcdash.domain.job_ids import number_of, task_of
from hpcdash.domain.states import ENDED, WAITING
from hpcdash.domain.task_states import TaskStates, task_states
from hpcdash.stores.job_tables import KnownTable
from hpcdash.stores.picked_rows import Row, are_in, first_of_each_id, of_array, row_with_id

_MOST_DEPENDENTS = 5000
# What is told of other jobs.
_OF_OTHERS = ("id", "array_id", "name", "state", "dependency", "_tasks")
# A list of jobs tells these columns of a job as freshly as its details do.
_OF_DETAIL = ("stdout_path", "stderr_path")


@dataclass(frozen=True, slots=True)
class JobSight:
    """What the tables knew when they were looked at; `row` None: nothing of this job, nor of whom it waits for.

    `related` are the jobs this one depends on, `dependents` all that wait for some other job, as far as they are known.
    `ended_tasks` are an array's tasks that were seen to have ended, which no table may have any more.
    """

    row: Row | None = None
    is_whole_array: bool = False
    tasks: TaskStates | None = None
    ended_tasks: pa.Table | None = None
    related: tuple[Row, ...] = ()
    dependents: tuple[Row, ...] = ()


def newest_row(job_id: str, tables: Sequence[KnownTable]) -> Row | None:
    """The job's row in the newest table that has it."""
    found = (row_with_id(known.table, job_id) for known in tables)
    return next((row for row in found if row is not None), None)


def look_at(job_id: str, tables: Sequence[KnownTable], detail: JobDetail | None, before: JobSight) -> JobSight:
    """What the tables, newest first, tell of a job, or of a whole array by its number; `before` is the last look.

    Takes as long as the tables are large: not for the event loop.
    """
    row = _whole_array(job_id, tables, before.ended_tasks)
    is_whole_array = row is not None
    if row is None:
        row = newest_row(job_id, tables)
    if row is None and detail is not None:
        row = detail.job.to_pylist()[0]
    tasks, ended_tasks = before.tasks, before.ended_tasks
    if row is not None and row["array_id"]:
        tasks, ended_tasks = _tasks_of(row["array_id"], tables, before.ended_tasks)
    if row is not None and detail is not None and not is_whole_array:
        told = detail.job.select(_OF_DETAIL).to_pylist()[0]
        row = {**row, **{name: value for name, value in told.items() if value is not None}}
    related, dependents = _dependencies(row, tables) if row is not None else ((), ())
    return JobSight(row, is_whole_array, tasks, ended_tasks, related, dependents)


def _whole_array(job_id: str, tables: Sequence[KnownTable], ended_tasks: pa.Table | None) -> Row | None:
    """What the rows of an array have in common; None where this is a job or a task."""
    if task_of(job_id):
        return None
    of_it = [(of_array(known.table, job_id), known.is_complete) for known in tables]
    if ended_tasks is not None:
        of_it.append((ended_tasks, False))
    some = [rows for rows, _ in of_it if rows.num_rows]
    if not some:
        return None
    # An answer on the past tells nothing of the tasks that live.
    living = next((rows for rows, is_complete in of_it if is_complete), some[0])
    rows = first_of_each_id([living, *(rows.filter(are_in(rows, ENDED)) for rows in some)])
    # One row is no array to fold; it stands for the whole all the same.
    summary: Row = fold(rows).slice(0, 1).to_pylist()[0]
    return {**summary, "id": job_id, "array_id": job_id, "array_task": None}


def _tasks_of(
    array_id: str, tables: Sequence[KnownTable], ended_tasks: pa.Table | None
) -> tuple[TaskStates | None, pa.Table | None]:
    """The states of an array's tasks, and those that have ended."""
    of_it = [(of_array(known.table, array_id), known.is_complete) for known in tables]
    ended = [rows.filter(are_in(rows, ENDED)) for rows, _ in of_it]
    if ended_tasks is not None:
        ended.append(ended_tasks)
    ended = [rows for rows in ended if rows.num_rows]
    living = next((rows for rows, is_complete in of_it if is_complete), None)
    if living is None:
        living = next((rows for rows, _ in of_it if rows.num_rows), None)
    if ended:
        ended_tasks = first_of_each_id(ended)
    shown = [rows for rows in (living, ended_tasks) if rows is not None and rows.num_rows]
    return (task_states(shown) if shown else None), ended_tasks


def _dependencies(row: Row, tables: Sequence[KnownTable]) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """The jobs that a job depends on, and those that wait for some job."""
    wanted = parse_dependency(row["dependency"]).job_ids
    related: dict[str, Row] = {}
    dependents: dict[str, Row] = {}
    for table in (known.table for known in tables):
        if wanted:
            ids = pa.array(wanted, pa.string())
            mask = pc.or_(pc.is_in(table["id"], ids), pc.fill_null(pc.is_in(table["array_id"], ids), False))
            for other in table.filter(mask).select(_OF_OTHERS).to_pylist():
                related.setdefault(other["id"], other)
        waiting = table.filter(pc.and_(pc.is_valid(table["dependency"]), are_in(table, WAITING)))
        # Those that name this job come first, should there be more than are looked through.
        number = number_of(str(row["array_id"] or row["id"]))
        names_it = waiting.filter(pc.match_substring(waiting["dependency"], number))
        for some in (names_it, waiting):
            for other in some.slice(0, _MOST_DEPENDENTS).select(_OF_OTHERS).to_pylist():
                dependents.setdefault(other["id"], other)
    return tuple(related.values()), tuple(dependents.values())
