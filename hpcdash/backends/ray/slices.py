"""TPU slices: how many workers a type has, and how a run on some of them stands.

Source: Google's tables of TPU versions. v2 to v5p and v7x count TensorCores, two a chip and eight a
worker; v5litepod and v6e count chips, up to eight on one worker and four on each of several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from msgspec import Struct

from hpcdash.domain import schema
from hpcdash.domain.states import ENDED, JobState

_VERSIONS = ("v2", "v3", "v4", "v5p", "v5litepod", "v6e", "v7x")
_TYPE = re.compile(rf"({'|'.join(_VERSIONS)})-([1-9][0-9]{{0,4}})")
# Ray's resources call it as the Cloud's API does, people by its other name.
_OTHER_NAMES = {"v5e": "v5litepod", "7x": "v7x"}
_PARTS = re.compile("(?:tpu)?[^a-z0-9]*([a-z0-9]{2,}?)[^a-z0-9]*([0-9]+)")
_BY_CHIPS = ("v5litepod", "v6e")
_CORES_A_WORKER = 8
_CHIPS_A_WORKER = 4
_MAX_CHIPS_ALONE = 8
_HEAD = re.compile(r"TPU-(.+)-head")


class SliceType(Struct, frozen=True):
    """Size of a slice type: `workers`, each a machine with `chips`."""

    name: str
    workers: int
    chips: int

    @property
    def head_resource(self) -> str:
        """The resource that its first worker alone has: the lock of a slice."""
        return f"TPU-{self.name}-head"


def slice_type(name: str) -> SliceType:
    """Parse the name of a slice type such as v4-256.

    Raises ValueError, which suggests the intended type where one is similar.
    """
    found = _TYPE.fullmatch(name)
    if found is None:
        near = _near(name)
        raise ValueError(
            f"{name!r} is not a slice type such as v4-256"
            + (f"; did you mean {near}?" if near else "")
        )
    version = found[1]
    size = int(found[2])
    if version not in _BY_CHIPS:
        if size % _CORES_A_WORKER:
            raise ValueError(f"{name}: {version} slices have a multiple of {_CORES_A_WORKER} cores")
        return SliceType(name, size // _CORES_A_WORKER, _CHIPS_A_WORKER)
    if size <= _MAX_CHIPS_ALONE:
        return SliceType(name, 1, size)
    if size % _CHIPS_A_WORKER:
        raise ValueError(
            f"{name}: {version} slices have up to {_MAX_CHIPS_ALONE} chips or a multiple of 4"
        )
    return SliceType(name, size // _CHIPS_A_WORKER, _CHIPS_A_WORKER)


def _near(name: str) -> str:
    """The type whose version is most like the name's, with its size; '' if nothing is similar."""
    parts = _PARTS.fullmatch(name.lower()[:100])
    if parts is None:
        return ""
    versions = get_close_matches(_OTHER_NAMES.get(parts[1], parts[1]), _VERSIONS, 1)
    near = f"{versions[0]}-{parts[2]}" if versions else ""
    return near if _TYPE.fullmatch(near) else ""


def types_among(resources: Iterable[str]) -> list[str]:
    """The slice types whose heads are among a cluster's resources."""
    return sorted({found[1] for name in resources if (found := _HEAD.fullmatch(name))})


# The record of a run among its job's metadata, which the driver keeps.
METADATA_KEY = "hpcdash_run"
_MAX_WORKERS = 100_000
_LONGEST_TEXT = 400
# Separator of the path of a driver's log and the requested part.
PART = "#"
_PART = re.compile(
    r"(?=.)(?:attempt(?P<attempt>[0-9]{1,9}))?(?:(?:(?<=\d)\.)?worker(?P<worker>[0-9]{1,9}))?",
    re.ASCII,
)
_MAX_ATTEMPTS, _WHOLE_ATTEMPTS = 50, 3
_RANGES = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?(?:,|$)", re.ASCII)
_STATES = {
    "succeeded": JobState.COMPLETED,
    "cancelled": JobState.CANCELLED,
    "preempted": JobState.PREEMPTED,
    "failed": JobState.FAILED,
}


class Worker(Struct, frozen=True):
    """State of one worker of an attempt.

    `why` is the reason of its end, `node` its address, '' where unknown.
    """

    number: int
    slice: str
    state: JobState
    why: str = ""
    exit_code: int | None = None
    node: str = ""


class SliceRun(Struct, frozen=True):
    """Status of a run on slices, as its driver wrote it last.

    `nodes` are the addresses of its workers, () where they are unknown; `waiting` is what it waits
    for, '' in an attempt.
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
        """`attempt 3: preempted 2×, failed 0×`."""
        return f"attempt {self.attempt}: preempted {self.preempted}×, failed {self.failed}×"

    def workers(self, state: JobState) -> list[Worker]:
        """Each worker of the attempt; those of a job in a `state` that has ended were ended with
        it.
        """
        usual = JobState.RUNNING if state not in ENDED else JobState.CANCELLED
        ended = self._ended()
        return [
            Worker(
                number, self.slices[number // self.workers_per_slice], *ended.get(number, (usual,))
            )
            for number in range(self.worker_count)
        ]

    def _ended(self) -> dict[int, tuple[JobState, str, int | None, str]]:
        """(state, why, exit status, node) of those workers that have ended."""
        ended: dict[int, tuple[JobState, str, int | None, str]] = {}
        for kind in ("succeeded", "cancelled"):
            begin = 0
            # In the driver's output they ascend: other text there takes no time.
            for first, last in _RANGES.findall(str(self._record.get(kind) or "")):
                numbers = range(
                    max(int(first), begin), min(int(last or first) + 1, self.worker_count)
                )
                ended.update(
                    dict.fromkeys(
                        numbers, (_STATES[kind], "", 0 if kind == "succeeded" else None, "")
                    )
                )
                begin = max(begin, numbers.stop)
        reported = self._record.get("ended")
        for row in reported if isinstance(reported, list) else ():
            if isinstance(row, list) and len(row) == 5 and (number := _count(row[0])) is not None:
                kind = str(row[1])
                why = str(row[2])
                code = _count(row[3])
                node = str(row[4])
                if kind in _STATES:
                    ended[number] = (_STATES[kind], why, code, node)
        return ended


def slice_run(metadata: Mapping[str, object]) -> SliceRun | None:
    """Return the run in a job's metadata; None where they have none.

    Anyone can write such metadata.
    """
    try:
        found = json.loads(str(metadata.get(METADATA_KEY) or "null"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    attempt, preempted, failed, workers, tpus = (
        _count(found.get(name))
        for name in ("attempt", "preempted", "failed", "workers_per_slice", "tpus")
    )
    if attempt is None or preempted is None or failed is None or not workers:
        return None
    slices = _texts(found.get("slices"))
    if len(slices) * workers > _MAX_WORKERS:
        return None
    began = found.get("began")
    waiting = found.get("waiting")
    return SliceRun(
        attempt,
        preempted,
        failed,
        slices,
        _texts(found.get("nodes")),
        workers,
        tpus or 0,
        waiting[:_LONGEST_TEXT] if isinstance(waiting, str) else "",
        int(began) if isinstance(began, int | float) and 0 < began < 1 << 40 else None,
        _texts(found.get("past")),
        found,
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _MAX_WORKERS * 10 else None


def _texts(value: object) -> tuple[str, ...]:
    return (
        tuple(one[:_LONGEST_TEXT] for one in value if isinstance(one, str))
        if isinstance(value, list)
        else ()
    )


def run_columns(metadata: Mapping[str, object], state: JobState) -> dict[str, Any]:
    """The columns of domain.schema.JOBS that a job on slices has of its own; {} of any other
    job.
    """
    run = slice_run(metadata)
    kind = metadata.get("slice")
    if run is None:
        return {}
    has_ended = state in ENDED
    last = run.past[-1] if run.past else ""
    reported = {
        "nodes": run.worker_count or None,
        "gpus": run.worker_count * run.tpus or None,
        "node_list": ",".join(run.nodes or run.slices) or None,
        "comment": "; ".join(filter(None, (run.counts, last))),
    }
    if isinstance(kind, str) and _TYPE.fullmatch(kind):
        # It takes of each of these resources, which are queues here.
        reported["queue"] = ",".join((*run.slices, f"TPU-{kind}-head"))
    if not has_ended and (run.waiting or run.attempt > 1):
        reported["reason"] = run.waiting or run.counts
    return reported


def worker_rows(run: SliceRun, state: JobState, now: float | None) -> list[dict[str, Any]]:
    """Rows of domain.schema.STEPS: the workers of the last attempt."""
    rows = []
    for worker in run.workers(state):
        is_running = worker.state == JobState.RUNNING
        elapsed = (
            int(now - run.began)
            if is_running and now is not None and run.began is not None
            else None
        )
        rows.append(
            dict.fromkeys(schema.STEPS.names)
            | {
                "id": str(worker.number),
                "name": f"attempt {run.attempt} on {worker.slice}"
                + (f": {worker.why}" if worker.why and worker.exit_code is None else ""),
                "state": worker.state.value,
                "native_state": worker.state.value,
                "nodes": 1,
                "elapsed_seconds": None if elapsed is None else max(elapsed, 0),
                "started_at": run.began,
                "node_list": worker.node or None,
                "exit_code": worker.exit_code,
            }
        )
    return rows


def task_rows(run: SliceRun, state: JobState, job_id: str, log: str | None) -> list[dict[str, Any]]:
    """The columns of domain.schema.JOBS in which the workers of the last attempt differ, as an
    array's tasks do.
    """
    return [
        {
            "id": f"{job_id}.worker{worker.number}",
            "array_id": job_id,
            "array_task": str(worker.number),
            "state": worker.state.value,
            "reason": worker.why or None,
            "exit_code": worker.exit_code,
            "node_list": worker.node or worker.slice,
            "stdout_path": f"{log}{PART}attempt{run.attempt}.worker{worker.number}"
            if log
            else None,
            "_task": worker.number,
            "_tasks": 1,
        }
        for worker in run.workers(state)
    ]


def part_pattern(part: str) -> str:
    """A regular expression of how the lines of a part begin in the log of a driver; '' for what is
    no part.

    The match (the label) is cut from the line.
    """
    found = _PART.fullmatch(part)
    if found is None:
        return ""
    attempt = found["attempt"]
    worker = found["worker"]
    if worker is None:
        return rf"(?=\[attempt{attempt}\.|hpcdash: attempt {attempt}\b)"
    return rf"\[attempt{attempt or '[0-9]+'}\.worker{worker}\]: "


def log_parts(run: SliceRun, path: str) -> list[tuple[str, str, str]]:
    """(name, title, path) of the parts of a driver's log: each of the last attempts, each worker of
    all attempts, and each worker of each of the last few. A node that is gone takes none of them
    along.
    """
    # One that waits for its slices has written nothing.
    last = run.attempt if run.slices else run.attempt - 1
    attempts = range(max(1, last - _MAX_ATTEMPTS + 1), last + 1)
    if not attempts:
        return []
    # Between two attempts no slice is held, and there may have been more.
    workers = range(run.worker_count or run.workers_per_slice)
    names = [(f"attempt{attempt}", f"all workers of attempt {attempt}") for attempt in attempts]
    names += [(f"worker{worker}", f"worker {worker}, all attempts") for worker in workers]
    names += [
        (f"attempt{attempt}.worker{worker}", f"worker {worker} of attempt {attempt}")
        for attempt in attempts[-_WHOLE_ATTEMPTS:]
        for worker in workers
    ]
    return [(name, title, f"{path}{PART}{name}") for name, title in names]
