"""Status record of the driver's run for lists of jobs, and labels of its workers' output.

The record is in the job's metadata, which the Jobs API returns with each job: it costs no request
of its own, and remains after the driver, its node or its log is gone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TextIO

# Key of the record in the job's metadata.
METADATA_KEY = "hpcdash_run"
_MAX_ENDED = 64
_MAX_NODES = 256
_MAX_PAST = 5
_MAX_TEXT_LENGTH = 300
# Ray's `(attempt 2 worker 3 pid=77, ip=10.0.0.9) `, coloured or not.
_RAY_PREFIX = re.compile(
    r"(?:\x1b\[\d+m)?\(attempt (\d+) worker (\d+) pid=\d+(?:, ip=[^()\s]{1,64})?\)(?:\x1b\[0m)? ?",
    re.ASCII,
)


def task_name(attempt: int, worker: int) -> str:
    """Return the name of a worker's task, which Ray prints before each line of it."""
    return f"attempt {attempt} worker {worker}"


def labelled(line: str) -> str:
    """Label a worker's line as launchers label those of ranks, `[attempt2.worker3]: `.

    Any other line is unchanged.
    """
    return _RAY_PREFIX.sub(r"[attempt\1.worker\2]: ", line, count=1)


class LabelledStream:
    """Output stream of the driver, to which Ray copies the workers' output."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(labelled(text) if _RAY_PREFIX.match(text) else text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass
class SliceRunStatus:
    """Status of a run: its attempt, its slices, and the ends of workers.

    Workers are counted over all slices, from 0. `nodes`: the addresses of the slices' workers.
    `waiting`: why the run waits, '' while an attempt runs. `ended`: by worker, the kind and the
    reason of its end, its exit status and its node, in this attempt. `past`: the outcomes of
    earlier attempts.
    """

    workers_per_slice: int
    tpus: int
    attempt: int = 1
    preempted: int = 0
    failed: int = 0
    slices: Sequence[str] = ()
    nodes: Sequence[str] = ()
    waiting: str = ""
    began: float | None = None
    ended: dict[int, tuple[str, str, int | None, str]] = field(default_factory=dict)
    past: list[str] = field(default_factory=list)

    def record(self) -> str:
        """Return the record as JSON of bounded size: of common ends only the workers' numbers."""
        common: dict[str, list[int]] = {"succeeded": [], "cancelled": []}
        reported = []
        for worker, (kind, reason, code, node) in sorted(self.ended.items()):
            if kind in common:
                common[kind].append(worker)
            else:
                reported.append([worker, kind, reason[:_MAX_TEXT_LENGTH], code, node])
        return json.dumps(
            {
                "attempt": self.attempt,
                "preempted": self.preempted,
                "failed": self.failed,
                "slices": list(self.slices),
                "nodes": list(self.nodes) if len(self.nodes) <= _MAX_NODES else [],
                "workers_per_slice": self.workers_per_slice,
                "tpus": self.tpus,
                "waiting": self.waiting[:_MAX_TEXT_LENGTH],
                "began": self.began,
                "ended": reported[:_MAX_ENDED],
                **{kind: ranges(workers) for kind, workers in common.items() if workers},
                "past": [text[:_MAX_TEXT_LENGTH] for text in self.past[-_MAX_PAST:]],
            },
            separators=(",", ":"),
        )


def ranges(numbers: Iterable[int]) -> str:
    """Format 0, 1, 2 and 5 as `0-2,5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def format_not_started(workers: Sequence[int]) -> str:
    """Format the workers whose tasks have not started, with possible causes; '' for none."""
    if not workers:
        return ""
    have = f"worker {workers[0]} has" if len(workers) == 1 else f"workers {ranges(workers)} have"
    return (
        f"{have} not started: another job uses its TPUs or its slice, or Ray is still setting up "
        "its environment"
    )


def similar_types(kind: str, kinds: Sequence[str]) -> list[str]:
    """Return the slice types of a cluster that fit on a line, the most similar to `kind` first."""
    return get_close_matches(kind, kinds, len(kinds), 0.0)[:5] if kinds else []


def with_record(job: bytes, record: str) -> bytes | None:
    """Return Ray's own record of a job with ours in its metadata; None unless the job runs.

    Ray writes its record before it starts a driver and after the driver has ended: nothing of it is
    lost here.
    """
    try:
        fields = json.loads(job)
    except ValueError:
        return None
    if not isinstance(fields, dict) or fields.get("status") != "RUNNING":
        return None
    metadata = fields.get("metadata")
    fields["metadata"] = {**(metadata if isinstance(metadata, dict) else {}), METADATA_KEY: record}
    return json.dumps(fields).encode()


def format_waiting(
    requested: int, kind: str, *, acquired: int, free: int, total: int, types: Sequence[str]
) -> str:
    """Format the slices that a run waits for, and whether the cluster has as many.

    `free` and `total`: slices of this kind in the cluster. `types`: other slice types there.
    `waiting for 8 slices of v4-16: 1 found so far; the cluster has 2`.
    """
    slices = "1 slice" if requested == 1 else f"{requested} slices"
    text = f"waiting for {slices} of {kind}: {acquired} found so far"
    if total >= requested:
        return f"{text}; {free} of {total} free"
    if total:
        return f"{text}; the cluster has {total}"
    others = f"only {', '.join(types)}" if types else "nor any other slice"
    return f"{text}; the cluster has none, {others}"
