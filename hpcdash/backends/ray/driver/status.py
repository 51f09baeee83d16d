"""Status record of the driver's run for lists of jobs, and labels of its workers' output.

Queries nothing. The record is in the job's metadata, which the Jobs API returns with each job: it
costs no request of its own, and remains after the driver, its node or its log is gone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TextIO

# The key of the record among the job's metadata.
METADATA_KEY = "hpcdash_run"
_MAX_ENDED, _MAX_NODES, _MAX_PAST, _LONGEST_WORDS = 64, 256, 5, 300
# Ray's `(attempt 2 worker 3 pid=77, ip=10.0.0.9) `, coloured or not; of equal lines older versions
# of Ray print one.
_FROM_RAY = re.compile(
    r"(?:\x1b\[\d+m)?\(attempt (\d+) worker (\d+) pid=\d+(?:, ip=[^()\s]{1,64})?\)(?:\x1b\[0m)? ?",
    re.ASCII,
)


def task_name(attempt: int, worker: int) -> str:
    """The name of a worker's task, which Ray prints before each line of it."""
    return f"attempt {attempt} worker {worker}"


def labelled(line: str) -> str:
    """A line of a worker's, labelled as launchers label those of ranks: `[attempt2.worker3]: `; any
    other as it is.
    """
    return _FROM_RAY.sub(r"[attempt\1.worker\2]: ", line, count=1)


class LabelledStream:
    """A stream of the driver's, to which Ray writes what the workers wrote."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(labelled(text) if _FROM_RAY.match(text) else text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass
class SliceRunStatus:
    """Status of a run: its attempt with the slices it has, and the state of each worker.

    Workers are counted over all slices, from 0. `waiting` is what the run waits for, '' while an
    attempt runs.
    """

    workers_per_slice: int
    tpus: int
    attempt: int = 1
    preempted: int = 0
    failed: int = 0
    slices: Sequence[str] = ()
    # Their addresses, slice by slice.
    nodes: Sequence[str] = ()
    waiting: str = ""
    began: float | None = None
    # Worker → (how it ended, why, its exit status, its node), of this attempt.
    ended: dict[int, tuple[str, str, int | None, str]] = field(default_factory=dict)
    # Outcomes of the attempts before this one, the last one last.
    past: list[str] = field(default_factory=list)

    def record(self) -> str:
        """The record as JSON, bounded: of many workers that ended alike the numbers alone."""
        reported = [
            [worker, kind, message[:_LONGEST_WORDS], code, node]
            for worker, (kind, message, code, node) in sorted(self.ended.items())
            if kind not in ("succeeded", "cancelled")
        ]
        alike = {
            kind: ranges(
                worker for worker, (ended_as, *_) in self.ended.items() if ended_as == kind
            )
            for kind in ("succeeded", "cancelled")
        }
        return json.dumps(
            {
                "attempt": self.attempt,
                "preempted": self.preempted,
                "failed": self.failed,
                "slices": list(self.slices),
                "nodes": list(self.nodes) if len(self.nodes) <= _MAX_NODES else [],
                "workers_per_slice": self.workers_per_slice,
                "tpus": self.tpus,
                "waiting": self.waiting[:_LONGEST_WORDS],
                "began": self.began,
                "ended": reported[:_MAX_ENDED],
                **{kind: text for kind, text in alike.items() if text},
                "past": [message[:_LONGEST_WORDS] for message in self.past[-_MAX_PAST:]],
            },
            separators=(",", ":"),
        )


def ranges(numbers: Iterable[int]) -> str:
    """`0-2,5` of 0, 1, 2 and 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def format_not_started(workers: Sequence[int]) -> str:
    """Return which tasks of an attempt have not started, with possible causes; '' for none."""
    if not workers:
        return ""
    have = f"worker {workers[0]} has" if len(workers) == 1 else f"workers {ranges(workers)} have"
    return (
        f"{have} not started: another job uses its TPUs or its slice, or Ray is still setting up "
        "its "
        "environment"
    )


def near(kind: str, kinds: Sequence[str]) -> list[str]:
    """The slice types that a cluster has, the most like `kind` first; no more than a line has room
    for.
    """
    return get_close_matches(kind, kinds, len(kinds), 0.0)[:5] if kinds else []


def with_record(job: bytes, record: str) -> bytes | None:
    """Ray's own record of a job with ours in its metadata; None where it is of no job that runs.

    Ray writes its record before it starts a driver and after the driver has ended: nothing of it is
    lost here.
    """
    try:
        found = json.loads(job)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("status") != "RUNNING":
        return None
    metadata = found.get("metadata")
    found["metadata"] = {**(metadata if isinstance(metadata, dict) else {}), METADATA_KEY: record}
    return json.dumps(found).encode()


def format_waiting(
    requested: int,
    kind: str,
    head_resource: str,
    found: int,
    free: int,
    cluster: dict[str, float],
    near: Sequence[str],
) -> str:
    """Return what a run waits for, and whether the cluster has as much.

    `cluster` are its resources, `near` its slice types. `waiting for 8 slices of v4-16: 1 found so
    far; the cluster has 2`.
    """
    text = f"waiting for {requested} slice{'' if requested == 1 else 's'} of {kind}: {found} found so far"
    total = int(cluster.get(head_resource, 0))
    if total >= requested:
        return f"{text}; {free} of {total} free"
    if total:
        return f"{text}; the cluster has {total}"
    return f"{text}; the cluster has none" + (
        f", only {', '.join(near)}" if near else ", nor any other slice"
    )
