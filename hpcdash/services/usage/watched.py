"""What was seen of jobs' use while a person watched: watched.json in the state folder, mode 0600."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from hpcdash.private_files import atomic_write
from hpcdash.services.usage.sample import NodeUse

_MOST_JOBS = 1000
_LARGEST_BYTES = 4 << 20
# Two looks farther apart than this had nobody watch between them.
_LONGEST_GAP_SECONDS = 60.0


class WatchedUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run's use while it was watched for `seconds`: means over that time, peaks of a node; None is unknown.

    `started_at` tells a run from a later one with its id.
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
        self.memory_peak_bytes: int | None = None
        self.gpu_memory_peak_bytes: int | None = None
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
        self.memory_peak_bytes = _larger(self.memory_peak_bytes, sample.memory_bytes)
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
    """None where nothing was kept, or the file cannot be read; one that is damaged is renamed, never overwritten."""
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


def read_watched(folder: Path, cluster: str, job: Mapping[str, Any]) -> WatchedUse | None:
    """All that was watched of this run; '' for `cluster` is any."""
    key = str(job["id"]), _started(job)
    return next(
        (
            one
            for one in reversed(_read(folder))
            if (one.job_id, one.started_at) == key and cluster in ("", one.cluster)
        ),
        None,
    )


def remember_watched(folder: Path, cluster: str, job: Mapping[str, Any], watched: Watched) -> None:
    """Add this to what is kept of the run; where it cannot be written it is not kept."""
    kept = _read(folder)
    before = next(
        (one for one in kept if (one.cluster, one.job_id, one.started_at) == (cluster, str(job["id"]), _started(job))),
        None,
    )
    gpu, cores, watts = (watched.means(name) for name in ("gpu", "cores", "watts"))
    new = WatchedUse(
        cluster,
        str(job["id"]),
        _started(job),
        watched.seconds,
        sum(cores) if cores else None,
        watched.memory_peak_bytes,
        sum(gpu) / len(gpu) if gpu else None,
        watched.gpu_memory_peak_bytes,
        sum(watts) if watts else None,
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
