"""What was seen of jobs' use while a person watched: watched.json in the state folder, mode 0600."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.columns import as_array, row_numbers
from hpcdash.domain.schema import TEXT, WORD, UsageSource
from hpcdash.private_files import atomic_write
from hpcdash.services.usage.sample import NodeUse

_MOST_JOBS = 1000
_LARGEST_BYTES = 4 << 20
# Two looks farther apart than this had nobody watch between them.
_LONGEST_GAP_SECONDS = 60.0
# What was watched for less of a run than this says nothing of the run.
_LEAST_PART = 0.1


class WatchedUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run's use while it was watched for `seconds`: means over that time and peaks, over all of its nodes.

    None is unknown, as all is where not every node was watched. `started_at` tells a run from a later one with its id.
    """

    cluster: str
    job_id: str
    started_at: float | None = None
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
        """How long the longest watched node was."""
        return max(self._seconds.values(), default=0.0)

    def add(self, use: NodeUse) -> None:
        sample = use.sample
        peak = max((gpu.memory_bytes for gpu in sample.gpus if gpu.memory_bytes is not None), default=None)
        if sample.memory_bytes is not None:
            self._memory_peaks[sample.node] = max(self._memory_peaks.get(sample.node, 0), sample.memory_bytes)
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
        """How many were watched."""
        return len(self._seconds)

    @property
    def memory_peak_bytes(self) -> int | None:
        """The sum of the nodes' peaks."""
        return sum(self._memory_peaks.values()) if self._memory_peaks else None

    def means(self, name: str) -> list[float]:
        """Of each node that told it."""
        return [total / known for (_, one), (total, known) in self._sums.items() if one == name and known > 0]


def _larger(first: int | None, second: int | None) -> int | None:
    return max((one for one in (first, second) if one is not None), default=None)


def _started(job: Mapping[str, Any]) -> float | None:
    started = job.get("started_at")
    return started.timestamp() if isinstance(started, datetime) else None


def _file(folder: Path) -> Path:
    return folder / "watched.json"


def _read(folder: Path) -> list[WatchedUse]:
    """[] where nothing was kept, or the file cannot be read; one that is damaged is renamed, never overwritten."""
    path = _file(folder)
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_LARGEST_BYTES), type=list[WatchedUse])
    except (msgspec.MsgspecError, UnicodeError):
        with contextlib.suppress(OSError):
            path.replace(path.with_name(f"{path.name}.damaged"))
    except OSError:
        pass
    return []


def with_watched(runs: pa.Table, folder: Path, cluster: str) -> pa.Table:
    """Rows of domain.schema.RUNS with what was watched of them, where nothing else tells what they used.

    The mean over the time that was watched stands for the run; it has to be a tenth of the run or more. Of a run whose
    CPU time and memory were accounted the GPUs alone are taken.
    """
    known = {(one.job_id, one.started_at): one for one in _read(folder) if one.cluster == cluster}
    if not known:
        return runs
    ids = pa.array({job_id for job_id, _ in known}, TEXT)
    is_candidate = pc.is_in(as_array(runs["id"]), value_set=ids)
    names = ("cpu_seconds_used", "memory_peak_bytes", "gpu_use", "gpu_memory_peak_bytes", "usage_source")
    rows, found = [], []
    for number in pc.indices_nonzero(is_candidate).to_pylist():
        run = runs.slice(number, 1).select(["id", "started_at", "elapsed_seconds", *names]).to_pylist()[0]
        use, elapsed = known.get((run["id"], _started(run))), run["elapsed_seconds"]
        if use is None or not elapsed or use.seconds < _LEAST_PART * elapsed:
            continue
        if (filled := _filled(run, use, elapsed)) is not None:
            rows.append(number)
            found.append(filled)
    if not rows:
        return runs
    mask = pc.is_in(row_numbers(runs.num_rows), value_set=pa.array(rows, pa.int64()))
    for name in names:
        field = runs.schema.field(name)
        column = as_array(runs[name])
        column = column.cast(TEXT) if field.type == WORD else column
        values = pa.array([filled[name] for filled in found], column.type)
        column = pc.replace_with_mask(column, mask, values)
        column = column.dictionary_encode().cast(WORD) if field.type == WORD else column
        runs = runs.set_column(runs.schema.get_field_index(name), field, column)
    return runs


def _filled(run: Mapping[str, Any], use: WatchedUse, elapsed: int) -> dict[str, Any] | None:
    """What a run used with what was watched; None where that adds nothing."""
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
        seen, source = gpus, UsageSource.ACCOUNTING_AND_WATCHED
    else:
        return None
    if all(value is None for value in seen.values()):
        return None
    accounted = {name: value for name, value in run.items() if value is not None}
    return {**run, **seen, **accounted, "usage_source": str(source)}


def remember_watched(folder: Path, cluster: str, job: Mapping[str, Any], watched: Watched) -> None:
    """Add this to what is kept of the run; where it cannot be written it is not kept."""
    kept = _read(folder)
    before = next(
        (one for one in kept if (one.cluster, one.job_id, one.started_at) == (cluster, str(job["id"]), _started(job))),
        None,
    )
    new = WatchedUse(cluster, str(job["id"]), _started(job), watched.seconds)
    if watched.nodes >= (job.get("nodes") or 1):
        gpu, cores, watts = (watched.means(name) for name in ("gpu", "cores", "watts"))
        new = msgspec.structs.replace(
            new,
            cores=sum(cores) if cores else None,
            memory_peak_bytes=watched.memory_peak_bytes,
            gpu_percent=sum(gpu) / len(gpu) if gpu else None,
            gpu_memory_peak_bytes=watched.gpu_memory_peak_bytes,
            watts=sum(watts) if watts else None,
        )
    if before is not None:
        new = _joined(before, new)
    kept = [*(one for one in kept if one is not before), new][-_MOST_JOBS:]
    with contextlib.suppress(OSError, UnicodeError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(_file(folder), msgspec.json.encode(kept))


def _joined(first: WatchedUse, second: WatchedUse) -> WatchedUse:
    """Both times together: means by their lengths."""

    def mean(one: float | None, other: float | None) -> float | None:
        if one is None or other is None:
            return other if one is None else one
        return (one * first.seconds + other * second.seconds) / (first.seconds + second.seconds)

    return WatchedUse(
        second.cluster,
        second.job_id,
        second.started_at,
        first.seconds + second.seconds,
        mean(first.cores, second.cores),
        _larger(first.memory_peak_bytes, second.memory_peak_bytes),
        mean(first.gpu_percent, second.gpu_percent),
        _larger(first.gpu_memory_peak_bytes, second.gpu_memory_peak_bytes),
        mean(first.watts, second.watts),
    )
