"""Tables of runs: made of jobs' rows and turned into them, joined, numbered, and those that were
there in a span.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.columns import as_array, has_state, row_numbers, with_columns
from hpcdash.domain.schema import JOBS, RUNS
from hpcdash.domain.spans import Span
from hpcdash.domain.states import ACTIVE, ENDED

_NEWEST_FIRST = [("ends_at", "descending"), ("_number", "descending"), ("_task", "descending")]
# What one run has and no other: ids are used again, and a requeued job keeps its id.
_KEY = ("id", "submitted_at", "ends_at")
# The columns of RUNS that joined_runs and overlapping read.
JOINED_BY = (*_KEY, "name", "user", "started_at", "_number", "_task", "run")
# Two readings of a clock may differ by this much.
_CLOCK_SECONDS = 5


def split_runs(jobs: pa.Table) -> pa.Table:
    """Rows of RUNS, a run each, of rows of JOBS that ended; what they used is not known."""
    count = jobs.num_rows
    known = {name: jobs[name] for name in RUNS.names if name in jobs.column_names}
    known |= {
        "_reason": jobs["reason"],
        "_comment": jobs["comment"],
        "run": pa.repeat(pa.scalar(1, pa.int64()), count),
    }
    columns = [known.get(field.name, pa.nulls(count, field.type)) for field in RUNS]
    return pa.table(columns, schema=RUNS)


def running_runs(jobs: pa.Table, span: Span, now_epoch: float) -> pa.Table:
    """Rows of RUNS of those JOBS that run and began before a span's end: `ends_at` is null.

    `now_epoch` is when the jobs were listed: what one did not run since it began it was suspended.
    An array in one row is left out, as the row says nothing of each task.
    """
    is_single = pc.less_equal(pc.fill_null(as_array(jobs["_tasks"]), 1), 1)
    began = as_array(jobs["started_at"]).cast(pa.int64())
    is_there = pc.and_(pc.and_(has_state(jobs, ACTIVE), is_single), pc.less(began, span.until))
    runs = split_runs(jobs.filter(pc.fill_null(is_there, False)))
    began = as_array(runs["started_at"]).cast(pa.int64())
    suspended = pc.subtract(
        pc.subtract(pa.scalar(int(now_epoch)), began), as_array(runs["elapsed_seconds"])
    )
    suspended = pc.if_else(
        pc.greater(suspended, _CLOCK_SECONDS), suspended, pa.scalar(0, pa.int64())
    )
    columns = {
        "ends_at": pa.nulls(runs.num_rows, RUNS.field("ends_at").type),
        "suspended_seconds": suspended,
    }
    return with_columns(runs, columns).combine_chunks()


def without_ended(running: pa.Table, ended: pa.Table) -> pa.Table:
    """Running ones but those that are among the runs that ended: they did after they were
    listed.
    """
    same_jobs = ended.filter(pc.is_in(as_array(ended["id"]), value_set=as_array(running["id"])))
    over = set(zip(same_jobs["id"].to_pylist(), same_jobs["started_at"].to_pylist(), strict=True))
    rows = zip(running["id"].to_pylist(), running["started_at"].to_pylist(), strict=True)
    return running.filter(pa.array([row not in over for row in rows], pa.bool_()))


def merge_runs(runs: pa.Table) -> pa.Table:
    """Rows of JOBS: of each job that ended its last run, in the order of the runs; what RUNS does
    not hold is null.

    Columns of the runs that RUNS has not are kept.
    """
    runs = runs.filter(has_state(runs, ENDED))
    # A job number that is used again is another job.
    runs = runs.filter(_is_first(runs, ("id", "user", "name"))) if has_several(runs) else runs
    known = {name: runs[name] for name in JOBS.names if name in runs.column_names}
    known |= {"reason": runs["_reason"], "comment": runs["_comment"]}
    columns = [known.get(field.name, pa.nulls(runs.num_rows, field.type)) for field in JOBS]
    table = pa.table(columns, schema=JOBS).unify_dictionaries().combine_chunks()
    for name in (name for name in runs.column_names if name not in RUNS.names):
        table = table.append_column(name, runs[name])
    return table


def has_several(runs: pa.Table) -> bool:
    """Whether any id comes more than once."""
    return bool(pc.count_distinct(runs["id"]).as_py() < runs.num_rows)


def joined_runs(tables: Sequence[pa.Table]) -> pa.Table:
    """All rows of some tables, each run once (as the first of the tables has it) and numbered, the
    newest end first.

    The tables, at least one, have the same columns of RUNS, those of JOINED_BY among them.
    """
    runs = pa.concat_tables(tables).unify_dictionaries()
    repeated = _repeated(runs)
    if repeated is not None and pc.sum(
        is_first := _is_first(runs.filter(repeated), _KEY)
    ).as_py() < len(is_first):
        runs = runs.filter(pc.replace_with_mask(pa.repeat(True, runs.num_rows), repeated, is_first))
        repeated = _repeated(runs)
    if not _is_newest_first(runs):
        runs = runs.take(pc.sort_indices(runs, sort_keys=_NEWEST_FIRST))
        repeated = _repeated(runs)
    if repeated is None:
        return runs
    return with_columns(runs, {"run": _run_numbers(runs, repeated)})


def _repeated(runs: pa.Table) -> pa.Array | None:
    """Return a mask of the rows whose id occurs more than once; None if there are none."""
    if not has_several(runs):
        return None
    ids = as_array(runs["id"])
    counts = ids.value_counts()
    return pc.is_in(
        ids, value_set=counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    )


def _is_newest_first(runs: pa.Table) -> bool:
    """Whether they are sorted already, as those of months are that were sorted one by one."""
    ends = as_array(runs["ends_at"]).cast(pa.int64())
    if len(ends) < 2:
        return True
    return bool(
        pc.all(
            pc.greater_equal(ends.slice(0, len(ends) - 1), ends.slice(1)), skip_nulls=False
        ).as_py()
    )


def _is_first(runs: pa.Table, names: Sequence[str]) -> pa.Array:
    """Return a mask of the first row of each group that is equal in these columns."""
    numbers = row_numbers(runs.num_rows)
    keys = pa.table([*(_hashable(runs[name]) for name in names), numbers], names=[*names, "_at"])
    firsts = as_array(
        keys.group_by(list(names), use_threads=False).aggregate([("_at", "min")])["_at_min"]
    )
    return pc.is_in(numbers, value_set=firsts)


def _hashable(column: pa.ChunkedArray) -> pa.Array:
    array = as_array(column)
    return array.indices if pa.types.is_dictionary(array.type) else array


def _run_numbers(runs: pa.Table, repeated: pa.Array) -> pa.Array:
    """Return the run number of each row; the rows start with the newest end.

    The only row of a job keeps its own number.
    """
    seen: dict[tuple[str, ...], int] = {}
    counted = []
    # A job number that is used again is another job.
    for key in reversed(runs.select(["id", "user", "name"]).filter(repeated).to_pylist()):
        job = tuple(key.values())
        seen[job] = seen.get(job, 0) + 1
        counted.append(seen[job])
    return pc.replace_with_mask(
        as_array(runs["run"]), repeated, pa.array(counted[::-1], pa.int64())
    )


def overlapping(runs: pa.Table, span: Span) -> pa.Table:
    """The runs that were there during a span: those that never started by when they ended.

    The order stays. Of runs that are sorted as joined_runs sorts them, those that end in the span
    are not copied.
    """
    ends = as_array(runs["ends_at"]).cast(pa.int64())
    since = 0
    until = runs.num_rows
    if _is_newest_first(runs):
        counted = [
            pc.sum(pc.greater_equal(ends, at), min_count=0).as_py()
            for at in (span.until, span.since)
        ]
        since, until = counted
    begins = pc.coalesce(as_array(runs["started_at"]).cast(pa.int64()), ends)
    is_there = pc.and_(pc.greater_equal(ends, span.since), pc.less(begins, span.until))
    if pc.all(is_there.slice(0, until), min_count=0).as_py():
        return runs.slice(0, until)
    if not since:
        return runs.filter(is_there)
    # Some that end after the span begin after it too.
    return pa.concat_tables(
        [runs.slice(0, since).filter(is_there.slice(0, since)), runs.slice(since, until - since)]
    )
