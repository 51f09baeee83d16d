"""Waits of similar jobs before their start, from the known runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.domain.columns import as_array
from hpcdash.domain.units import DAY, HOUR, format_span

# The columns of domain.schema.RUNS that compute_waits reads.
WAITED = ("started_at", "submitted_at", "eligible_at", "queue", "nodes", "gpus", "limit_seconds")
# Fewer mean little: then jobs of any time limit, or of any size, count too.
FEWEST_RUNS = 10
# The latest runs are compared with the median of up to a thousand runs before each of them. A
# shorter wait counts as so many seconds.
_SCORED_RUNS = 50
_COMPARED_RUNS = 1000
_NO_WAIT_SECONDS = 60
# The upper ends of the classes; None: no end.
_LIMITS: tuple[int | None, ...] = (HOUR, 4 * HOUR, DAY, 3 * DAY, None)
_SIZES: tuple[int | None, ...] = (1, 4, 16, 64, None)


class WaitTimes(Struct, frozen=True):
    """Half of `runs` runs waited no longer than the median, four in five no longer than `most`.

    `like`: which runs. `score` says how often such a median was right: `of the last 50, 31 started
    within half to twice the median, 12 earlier, 7 later`; '' for too few runs.
    """

    runs: int
    median_seconds: int
    most_seconds: int
    like: str
    score: str = ""

    def __str__(self) -> str:
        return (
            f"half started within {format_span(self.median_seconds)}, 80% within "
            f"{format_span(self.most_seconds)} ({self.runs} {self.like})"
        )


def compute_waits(runs: pa.Table) -> pa.Table:
    """Return the wait of each started run, with its queue, nodes, GPUs and time limit.

    The runs are in the order of their submission.
    """
    start = as_array(runs["started_at"]).cast(pa.int64())
    submit = as_array(runs["submitted_at"]).cast(pa.int64())
    eligible = as_array(runs["eligible_at"]).cast(pa.int64())
    # The wait of a held or dependent job begins once it is eligible.
    wait = pc.subtract(start, pc.max_element_wise(submit, eligible))
    columns = {"queue": as_array(runs["queue"]).cast(pa.string())}
    for name in ("nodes", "gpus", "limit_seconds"):
        columns[name] = as_array(runs[name])
    columns["wait_seconds"] = pc.max_element_wise(wait, pa.scalar(0, pa.int64()), skip_nulls=False)
    table = pa.table(columns)
    table = table.append_column("submitted", submit)
    table = table.filter(pc.is_valid(table["wait_seconds"]))
    return table.sort_by("submitted").drop_columns(["submitted"])


def wait_times(waits: pa.Table, job: Mapping[str, Any]) -> WaitTimes | None:
    """Return the waits of jobs like a row of domain.schema.JOBS; None if too few are known.

    Similar jobs have its queue, about its size and about its time limit; if these are too few, only
    its queue and size count, then its queue alone. `waits` is a table of `compute_waits`.
    """
    queue = job["queue"]
    if queue is None:
        return None
    unit = "gpus" if job["gpus"] else "nodes"
    same_queue = pc.equal(waits["queue"], queue)
    has_gpus = pc.greater(pc.fill_null(waits["gpus"], 0), 0)
    same_kind = pc.and_(same_queue, has_gpus if job["gpus"] else pc.invert(has_gpus))
    size, sizes = _class(waits[unit], job[unit], _SIZES)
    limit, limits = _class(waits["limit_seconds"], job["limit_seconds"], _LIMITS)
    name = {"gpus": "GPU", "nodes": "node"}[unit]
    size_text = f"with {_range(sizes, name)}"
    limit_text = "without a time limit" if job["limit_seconds"] is None else _limit_range(limits)
    for mask, like in (
        (pc.and_(pc.and_(same_kind, size), limit), f"jobs in {queue} {size_text} and {limit_text}"),
        (pc.and_(same_kind, size), f"jobs in {queue} {size_text}"),
        (same_queue, f"jobs in {queue}"),
    ):
        found = waits["wait_seconds"].filter(pc.fill_null(mask, False))
        if len(found) >= FEWEST_RUNS:
            median, most = pc.quantile(found, q=[0.5, 0.8]).to_pylist()
            return WaitTimes(len(found), round(median), round(most), like, _score(found))
    return None


def _score(waits: pa.ChunkedArray) -> str:
    """Compare the last waits, in the order of submission, with the median of those before each."""
    first = max(FEWEST_RUNS, len(waits) - _SCORED_RUNS)
    scored = len(waits) - first
    if scored < FEWEST_RUNS:
        return ""
    earlier = later = 0
    for place in range(first, len(waits)):
        before = waits.slice(max(0, place - _COMPARED_RUNS), min(place, _COMPARED_RUNS))
        [median] = pc.quantile(before, q=0.5).to_pylist()
        expected = max(median, _NO_WAIT_SECONDS)
        waited = max(waits[place].as_py(), _NO_WAIT_SECONDS)
        earlier += waited < expected / 2
        later += waited > expected * 2
    close = scored - earlier - later
    return (
        f"of the last {scored}, {close} started within half to twice the median, "
        f"{earlier} earlier, {later} later"
    )


def _class(
    column: pa.ChunkedArray, value: int | None, ends: tuple[int | None, ...]
) -> tuple[pa.ChunkedArray, tuple[int, int | None]]:
    """Return a mask of the rows in a value's class, and the class's bounds: above, up to."""
    if value is None:
        return pc.is_null(column), (0, None)
    above = 0
    for end in ends:
        if end is None or value <= end:
            break
        above = end
    mask = pc.greater(column, above)
    if end is not None:
        mask = pc.and_(mask, pc.less_equal(column, end))
    return mask, (above, end)


def _range(ends: tuple[int, int | None], unit: str) -> str:
    above, end = ends
    if end == 1:
        return f"1 {unit}"
    return f"more than {above} {unit}s" if end is None else f"{above + 1} to {end} {unit}s"


def _limit_range(ends: tuple[int, int | None]) -> str:
    above, end = ends
    if end is None:
        return f"a time limit over {format_span(above)}"
    if not above:
        return f"a time limit up to {format_span(end)}"
    return f"a time limit of {format_span(above)} to {format_span(end)}"
