"""TPU slices: the workers of a type, and the status of a run.

Source: Google's tables of TPU versions. v2 to v5p and v7x count TensorCores, two a chip and eight a
worker; v5litepod and v6e count chips, up to eight on one worker and four on each of several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.ray.responses import json_table, list_items
from hpcdash.domain import schema
from hpcdash.domain.states import ENDED, JobState

_VERSIONS = ("v2", "v3", "v4", "v5p", "v5litepod", "v6e", "v7x")
_TYPE = re.compile(rf"({'|'.join(_VERSIONS)})-([1-9][0-9]{{0,4}})")
# Common names of versions that Ray's resources name as the Cloud's API does.
_OTHER_NAMES = {"v5e": "v5litepod", "7x": "v7x"}
_PARTS = re.compile("(?:tpu)?[^a-z0-9]*([a-z0-9]{2,}?)[^a-z0-9]*([0-9]+)")
_SIZED_BY_CHIPS = ("v5litepod", "v6e")
_CORES_PER_WORKER = 8
_CHIPS_PER_WORKER = 4
_MAX_CHIPS_ALONE = 8
_HEAD = re.compile(r"TPU-(.+)-head")


class SliceType(Struct, frozen=True):
    """Size of a slice type: `workers`, each a machine with `chips`."""

    name: str
    workers: int
    chips: int

    @property
    def head_resource(self) -> str:
        """Resource of its first worker alone, which is the lock of a slice."""
        return f"TPU-{self.name}-head"


def slice_type(name: str) -> SliceType:
    """Parse the name of a slice type such as v4-256.

    Raises ValueError, which suggests a similar type.
    """
    match = _TYPE.fullmatch(name)
    if match is None:
        similar = _similar_type(name)
        suggestion = f"; did you mean {similar}?" if similar else ""
        raise ValueError(f"{name!r} is not a slice type such as v4-256{suggestion}")
    version = match[1]
    size = int(match[2])
    if version not in _SIZED_BY_CHIPS:
        if size % _CORES_PER_WORKER:
            raise ValueError(
                f"{name}: {version} slices have a multiple of {_CORES_PER_WORKER} cores"
            )
        return SliceType(name, size // _CORES_PER_WORKER, _CHIPS_PER_WORKER)
    if size <= _MAX_CHIPS_ALONE:
        return SliceType(name, 1, size)
    if size % _CHIPS_PER_WORKER:
        raise ValueError(
            f"{name}: {version} slices have up to {_MAX_CHIPS_ALONE} chips or a multiple of 4"
        )
    return SliceType(name, size // _CHIPS_PER_WORKER, _CHIPS_PER_WORKER)


def _similar_type(name: str) -> str:
    """Return the type with the most similar version, and the size of the name; '' for none."""
    parts = _PARTS.fullmatch(name.lower()[:100])
    if parts is None:
        return ""
    versions = get_close_matches(_OTHER_NAMES.get(parts[1], parts[1]), _VERSIONS, 1)
    similar = f"{versions[0]}-{parts[2]}" if versions else ""
    return similar if _TYPE.fullmatch(similar) else ""


def types_among(resources: Iterable[str]) -> list[str]:
    """Return the slice types whose heads are among a cluster's resources."""
    return sorted({match[1] for name in resources if (match := _HEAD.fullmatch(name))})


# Key of a run's record in its job's metadata, which the driver writes.
METADATA_KEY = "hpcdash_run"
_MAX_WORKERS = 100_000
_MAX_TEXT_LENGTH = 400
# Separator of the path of a driver's log and the requested part.
PART = "#"
_PART = re.compile(
    r"(?=.)(?:attempt(?P<attempt>[0-9]{1,9}))?(?:(?:(?<=\d)\.)?worker(?P<worker>[0-9]{1,9}))?",
    re.ASCII,
)
# The last attempts that have a log of their own, and logs of their workers.
_MAX_ATTEMPT_LOGS = 50
_MAX_ATTEMPTS_WITH_WORKERS = 3
_RANGES = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?(?:,|$)", re.ASCII)
_STATES = {
    "succeeded": JobState.COMPLETED,
    "cancelled": JobState.CANCELLED,
    "preempted": JobState.PREEMPTED,
    "failed": JobState.FAILED,
}


class Worker(Struct, frozen=True):
    """State of one worker of an attempt.

    `reason` of its end, and `node`, its address; '' if unknown.
    """

    number: int
    slice: str
    state: JobState
    reason: str = ""
    exit_code: int | None = None
    node: str = ""


class SliceRun(Struct, frozen=True):
    """Last recorded status of a run on slices.

    `nodes`: the addresses of its workers, () if unknown. `waiting`: why it waits, '' in an attempt.
    `past`: the outcomes of earlier attempts.
    """

    attempt: int
    preempted: int
    failed: int
    slices: tuple[str, ...]
    nodes: tuple[str, ...]
    workers_per_slice: int
    tpus: int
    waiting: str
    began: int | None
    past: tuple[str, ...]
    _record: Mapping[str, Any]

    @property
    def worker_count(self) -> int:
        return len(self.slices) * self.workers_per_slice

    @property
    def counts(self) -> str:
        """Counts as `attempt 3: preempted 2×, failed 0×`."""
        return f"attempt {self.attempt}: preempted {self.preempted}×, failed {self.failed}×"

    def workers(self, state: JobState) -> list[Worker]:
        """Return the workers of the attempt; if the job is in a final `state`, all have ended."""
        default = JobState.CANCELLED if state in ENDED else JobState.RUNNING
        workers = [
            Worker(number, self.slices[number // self.workers_per_slice], default)
            for number in range(self.worker_count)
        ]
        for kind, exit_code in (("succeeded", 0), ("cancelled", None)):
            start = 0
            # The driver writes ascending ranges: any other text takes no time.
            for first, last in _RANGES.findall(str(self._record.get(kind) or "")):
                numbers = range(max(int(first), start), min(int(last or first) + 1, len(workers)))
                for number in numbers:
                    workers[number] = replace(
                        workers[number], state=_STATES[kind], exit_code=exit_code
                    )
                start = max(start, numbers.stop)
        for row in list_items(self._record.get("ended")):
            if not isinstance(row, list) or len(row) != 5:
                continue
            rank = _count(row[0])
            kind = str(row[1])
            if rank is not None and rank < len(workers) and kind in _STATES:
                workers[rank] = Worker(
                    rank,
                    workers[rank].slice,
                    _STATES[kind],
                    reason=str(row[2]),
                    exit_code=_count(row[3]),
                    node=str(row[4]),
                )
        return workers


def slice_run(metadata: Mapping[str, object]) -> SliceRun | None:
    """Return the run in a job's metadata, which anyone can write; None if there is none."""
    record = json_table(str(metadata.get(METADATA_KEY) or ""))
    attempt = _count(record.get("attempt"))
    preempted = _count(record.get("preempted"))
    failed = _count(record.get("failed"))
    workers_per_slice = _count(record.get("workers_per_slice"))
    if attempt is None or preempted is None or failed is None or not workers_per_slice:
        return None
    slices = _texts(record.get("slices"))
    if len(slices) * workers_per_slice > _MAX_WORKERS:
        return None
    began = record.get("began")
    waiting = record.get("waiting")
    return SliceRun(
        attempt=attempt,
        preempted=preempted,
        failed=failed,
        slices=slices,
        nodes=_texts(record.get("nodes")),
        workers_per_slice=workers_per_slice,
        tpus=_count(record.get("tpus")) or 0,
        waiting=waiting[:_MAX_TEXT_LENGTH] if isinstance(waiting, str) else "",
        began=int(began) if isinstance(began, int | float) and 0 < began < 1 << 40 else None,
        past=_texts(record.get("past")),
        _record=record,
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _MAX_WORKERS * 10 else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item[:_MAX_TEXT_LENGTH] for item in list_items(value) if isinstance(item, str))


def run_columns(metadata: Mapping[str, object], state: JobState) -> dict[str, Any]:
    """Return the columns of domain.schema.JOBS from a job's run on slices; {} for any other job."""
    run = slice_run(metadata)
    if run is None:
        return {}
    columns = {
        "nodes": run.worker_count or None,
        "gpus": run.worker_count * run.tpus or None,
        "node_list": ",".join(run.nodes or run.slices) or None,
        "comment": "; ".join((run.counts, *filter(None, run.past[-1:]))),
    }
    kind = metadata.get("slice")
    if isinstance(kind, str) and _TYPE.fullmatch(kind):
        # It uses each of these resources, which are queues here.
        columns["queue"] = ",".join((*run.slices, f"TPU-{kind}-head"))
    if state not in ENDED and (run.waiting or run.attempt > 1):
        columns["reason"] = run.waiting or run.counts
    return columns


def worker_rows(run: SliceRun, state: JobState, now: float | None) -> list[dict[str, Any]]:
    """Return the workers of the last attempt as rows of domain.schema.STEPS."""
    rows = []
    for worker in run.workers(state):
        name = f"attempt {run.attempt} on {worker.slice}"
        if worker.reason and worker.exit_code is None:
            name += f": {worker.reason}"
        elapsed_seconds = None
        if worker.state == JobState.RUNNING and now is not None and run.began is not None:
            elapsed_seconds = max(int(now - run.began), 0)
        row: dict[str, Any] = dict.fromkeys(schema.STEPS.names)
        row |= {
            "id": str(worker.number),
            "name": name,
            "state": worker.state.value,
            "native_state": worker.state.value,
            "nodes": 1,
            "elapsed_seconds": elapsed_seconds,
            "started_at": run.began,
            "node_list": worker.node or None,
            "exit_code": worker.exit_code,
        }
        rows.append(row)
    return rows


def task_rows(run: SliceRun, state: JobState, job_id: str, log: str | None) -> list[dict[str, Any]]:
    """Return the columns of domain.schema.JOBS in which the workers of the last attempt differ,
    like array tasks.
    """
    rows = []
    for worker in run.workers(state):
        part = f"attempt{run.attempt}.worker{worker.number}"
        row = {
            "id": f"{job_id}.worker{worker.number}",
            "array_id": job_id,
            "array_task": str(worker.number),
            "state": worker.state.value,
            "reason": worker.reason or None,
            "exit_code": worker.exit_code,
            "node_list": worker.node or worker.slice,
            "stdout_path": f"{log}{PART}{part}" if log else None,
            "_task": worker.number,
            "_tasks": 1,
        }
        rows.append(row)
    return rows


def part_pattern(part: str) -> str:
    """Return a regular expression for the start of a part's lines in a driver's log.

    '' if there is no such part. The match (the label) is cut from the line.
    """
    match = _PART.fullmatch(part)
    if match is None:
        return ""
    attempt = match["attempt"]
    worker = match["worker"]
    if worker is None:
        return rf"(?=\[attempt{attempt}\.|hpcdash: attempt {attempt}\b)"
    return rf"\[attempt{attempt or '[0-9]+'}\.worker{worker}\]: "


def log_parts(run: SliceRun, path: str) -> list[tuple[str, str, str]]:
    """Return (name, title, path) of the parts of a driver's log.

    They are each of the last attempts, each worker in all attempts, and each worker of each of the
    last few attempts. They remain when their nodes are gone.
    """
    # An attempt that waits for its slices has written nothing.
    last = run.attempt if run.slices else run.attempt - 1
    attempts = range(max(1, last - _MAX_ATTEMPT_LOGS + 1), last + 1)
    if not attempts:
        return []
    # Between two attempts no slice is held, and there may have been more.
    workers = range(run.worker_count or run.workers_per_slice)
    titles = {f"attempt{attempt}": f"all workers of attempt {attempt}" for attempt in attempts}
    titles |= {f"worker{worker}": f"worker {worker}, all attempts" for worker in workers}
    for attempt in attempts[-_MAX_ATTEMPTS_WITH_WORKERS:]:
        for worker in workers:
            titles[f"attempt{attempt}.worker{worker}"] = f"worker {worker} of attempt {attempt}"
    return [(name, title, f"{path}{PART}{name}") for name, title in titles.items()]
