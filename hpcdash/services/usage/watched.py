"""Use of jobs while a person watched, in the state database."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.domain.columns import as_array, row_numbers
from hpcdash.domain.schema import TEXT, WORD, UsageSource
from hpcdash.services.state.database import StateDatabase, StateUnusable
from hpcdash.services.usage.sample import NodeUse

_MAX_RUNS = 1000
# The columns of domain.schema.RUNS that with_watched fills.
_FILLED = (
    "cpu_seconds_used",
    "memory_peak_bytes",
    "gpu_use",
    "gpu_memory_peak_bytes",
    "usage_source",
)
# Columns of a run that with_watched reads.
WATCHED = ("id", "started_at", "elapsed_seconds", *_FILLED)
# Two checks farther apart than this were not continuous watching.
_LONGEST_GAP_SECONDS = 60.0
# Less than this fraction of a run watched does not represent the run.
_MIN_PART = 0.1


class WatchedUse(Struct, frozen=True):
    """One run's use while it was watched for `seconds`: means over that time and peaks, over all of
    its nodes.

    None is unknown, as all is where not every node was watched. `started_at` tells a run from a
    later one with its id, 0 where that is not known.
    """

    job_id: str
    started_at: float = 0.0
    seconds: float = 0.0
    cores: float | None = None
    memory_peak_bytes: int | None = None
    gpu_percent: float | None = None
    gpu_memory_peak_bytes: int | None = None
    watts: float | None = None


class Watched:
    """Adds up the uses of one job's nodes."""

    def __init__(self) -> None:
        self.gpu_memory_peak_bytes: int | None = None
        self._memory_peaks: dict[str, int] = {}
        self._last: dict[str, float] = {}
        # By node the seconds, and by what is measured its integral and the seconds it is known for.
        self._seconds: dict[str, float] = {}
        self._sums: dict[tuple[str, str], tuple[float, float]] = {}

    @property
    def seconds(self) -> float:
        """Longest time that a node was watched."""
        return max(self._seconds.values(), default=0.0)

    def add(self, use: NodeUse) -> None:
        sample = use.sample
        peak = max(
            (gpu.memory_bytes for gpu in sample.gpus if gpu.memory_bytes is not None), default=None
        )
        if sample.memory_bytes is not None:
            self._memory_peaks[sample.node] = max(
                self._memory_peaks.get(sample.node, 0), sample.memory_bytes
            )
        self.gpu_memory_peak_bytes = _larger(self.gpu_memory_peak_bytes, peak)
        before = self._last.get(sample.node)
        self._last[sample.node] = sample.up_seconds
        if before is None or not 0 < (gap := sample.up_seconds - before) <= _LONGEST_GAP_SECONDS:
            return
        self._seconds[sample.node] = self._seconds.get(sample.node, 0.0) + gap
        for name, value in (("cores", use.cores), ("gpu", use.gpu_percent), ("watts", use.watts)):
            if value is not None:
                total, known = self._sums.get((sample.node, name), (0.0, 0.0))
                self._sums[sample.node, name] = total + value * gap, known + gap

    @property
    def nodes(self) -> int:
        """Number of watched nodes."""
        return len(self._seconds)

    @property
    def memory_peak_bytes(self) -> int | None:
        """The sum of the nodes' peaks."""
        return sum(self._memory_peaks.values()) if self._memory_peaks else None

    def means(self, name: str) -> list[float]:
        """Return the mean of each node that reported it."""
        return [
            total / known
            for (_, one), (total, known) in self._sums.items()
            if one == name and known > 0
        ]


def _larger(first: int | None, second: int | None) -> int | None:
    return max((one for one in (first, second) if one is not None), default=None)


def _started(job: Mapping[str, Any]) -> float:
    started = job.get("started_at")
    return started.timestamp() if isinstance(started, datetime) else 0.0


_COLUMNS = (
    "job_id, started_at, seconds, cores, memory_peak_bytes, gpu_percent, gpu_memory_peak_bytes, "
    "watts"
)


def _mean(name: str) -> str:
    """Return SQL for the mean of both spans, weighted by their lengths."""
    both = f"({name} * seconds + excluded.{name} * excluded.seconds) / (seconds + excluded.seconds)"
    return f"{name} = coalesce({both}, {name}, excluded.{name})"


def _peak(name: str) -> str:
    return f"{name} = coalesce(max({name}, excluded.{name}), {name}, excluded.{name})"


# Two windows may add to one run.
_ADD = (
    f"INSERT INTO watched (cluster, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT "
    "(cluster, job_id, started_at) DO UPDATE SET seconds = seconds + excluded.seconds, "
    f"{_mean('cores')}, {_mean('gpu_percent')}, {_mean('watts')}, {_peak('memory_peak_bytes')}, "
    f"{_peak('gpu_memory_peak_bytes')}"
)
_FORGET = f"DELETE FROM watched WHERE id <= (SELECT max(id) FROM watched) - {_MAX_RUNS}"


def _read(folder: Path, cluster: str) -> list[WatchedUse]:
    """[] where nothing was kept, or it cannot be read."""
    try:
        rows = StateDatabase(folder).read(
            f"SELECT {_COLUMNS} FROM watched WHERE cluster = ?", cluster
        )
    except StateUnusable:
        return []
    return [WatchedUse(*row) for row in rows]


def with_watched(runs: pa.Table, folder: Path, cluster: str) -> pa.Table:
    """Rows of domain.schema.RUNS with what was watched of them, where nothing else tells what they
    used.

    The mean over the time that was watched stands for the run; it has to be a tenth of the run or
    more. Of a run whose CPU time and memory were accounted the GPUs alone are taken.
    """
    known = {(one.job_id, one.started_at): one for one in _read(folder, cluster)}
    if not known:
        return runs
    ids = pa.array({job_id for job_id, _ in known}, TEXT)
    is_candidate = pc.is_in(as_array(runs["id"]), value_set=ids)
    rows = []
    found = []
    for number in pc.indices_nonzero(is_candidate).to_pylist():
        run = runs.slice(number, 1).select(WATCHED).to_pylist()[0]
        use = known.get((run["id"], _started(run)))
        elapsed = run["elapsed_seconds"]
        if use is None or not elapsed or use.seconds < _MIN_PART * elapsed:
            continue
        if (filled := _filled(run, use, elapsed)) is not None:
            rows.append(number)
            found.append(filled)
    if not rows:
        return runs
    mask = pc.is_in(row_numbers(runs.num_rows), value_set=pa.array(rows, pa.int64()))
    for name in _FILLED:
        field = runs.schema.field(name)
        column = as_array(runs[name])
        column = column.cast(TEXT) if field.type == WORD else column
        values = pa.array([filled[name] for filled in found], column.type)
        column = pc.replace_with_mask(column, mask, values)
        column = column.dictionary_encode().cast(WORD) if field.type == WORD else column
        runs = runs.set_column(runs.schema.get_field_index(name), field, column)
    return runs


def _filled(run: Mapping[str, Any], use: WatchedUse, elapsed: int) -> dict[str, Any] | None:
    """Merge the watched use into a run; None if it adds nothing."""
    gpus = {
        "gpu_use": None if use.gpu_percent is None else use.gpu_percent / 100,
        "gpu_memory_peak_bytes": use.gpu_memory_peak_bytes,
    }
    source = UsageSource.WATCHED
    if run["usage_source"] is None:
        seen = {
            "cpu_seconds_used": None if use.cores is None else use.cores * elapsed,
            "memory_peak_bytes": use.memory_peak_bytes,
            **gpus,
        }
    elif run["usage_source"] == UsageSource.ACCOUNTING and run["gpu_use"] is None:
        seen = gpus
        source = UsageSource.ACCOUNTING_AND_WATCHED
    else:
        return None
    if all(value is None for value in seen.values()):
        return None
    accounted = {name: value for name, value in run.items() if value is not None}
    return {**run, **seen, **accounted, "usage_source": str(source)}


def remember_watched(folder: Path, cluster: str, job: Mapping[str, Any], watched: Watched) -> None:
    """Add this to what is kept of the run; where it cannot be written it is not kept."""
    seen: dict[str, float | int | None] = {}
    if watched.nodes >= (job.get("nodes") or 1):
        gpu, cores, watts = (watched.means(name) for name in ("gpu", "cores", "watts"))
        seen = {
            "cores": sum(cores) if cores else None,
            "memory_peak_bytes": watched.memory_peak_bytes,
            "gpu_percent": sum(gpu) / len(gpu) if gpu else None,
            "gpu_memory_peak_bytes": watched.gpu_memory_peak_bytes,
            "watts": sum(watts) if watts else None,
        }
    named = _COLUMNS.split(", ")[3:]
    values = (
        cluster,
        str(job["id"]),
        _started(job),
        watched.seconds,
        *(seen.get(name) for name in named),
    )
    with contextlib.suppress(StateUnusable):
        StateDatabase(folder).write((_ADD, values), (_FORGET, ()))
