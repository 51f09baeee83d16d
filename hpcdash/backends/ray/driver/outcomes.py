"""Outcomes of attempts, limits of retries, and choices of slices: rules without input or output."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

HEAD_RESOURCE = re.compile("TPU-(.+)-head")
SUCCEEDED = "succeeded"
PREEMPTED = "preempted"
FAILED = "failed"
CANCELLED = "cancelled"
# Ray's exceptions after the loss of a node, a worker's process or its actor, by name.
_LOST = frozenset(
    (
        "NodeDiedError",
        "WorkerCrashedError",
        "ActorDiedError",
        "RayActorError",
        "ActorUnavailableError",
        "ActorUnschedulableError",
        # Its node has died meanwhile.
        "TaskUnschedulableError",
        "LocalRayletDiedError",
        "OwnerDiedError",
        "ObjectLostError",
        "GetTimeoutError",
    )
)
_CANCELLED = frozenset(("TaskCancelledError",))
# Message of the memory monitor on a node where it kills.
_MEMORY = re.compile(r"was (\S+) used / (\S+) limit")
_ADDRESS = re.compile(r"Node IP: ([0-9A-Fa-f.:]{2,64})\b")
_FIRST_PAUSE_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 300.0
# An attempt that ends sooner has done no work: a full disk, a worker that crashes at once.
_SHORT_SECONDS = 60.0


@dataclass(frozen=True)
class Outcome:
    """Outcome of one worker: `kind` is one of the four constants, `text` the reason.

    `code` is the command's exit status.
    """

    kind: str
    worker: str
    text: str = ""
    code: int | None = None


def error_outcome(worker: str, names: Sequence[str], text: str) -> Outcome:
    """Build the outcome of an exception that Ray raised for a worker.

    `names`: the exception's class and its bases. A worker that ran out of memory has failed, as it
    would fail on any slice.
    """
    if _CANCELLED & set(names):
        return Outcome(CANCELLED, worker, text)
    if "OutOfMemoryError" in names or "RayTaskError" in names:
        return Outcome(FAILED, worker, text)
    return Outcome(PREEMPTED if _LOST & set(names) else FAILED, worker, text)


def error_text(names: Sequence[str], text: str) -> str:
    """Format Ray's exception in one line.

    `names`: the exception's class and its bases. `text`: its full text.
    """
    if "OutOfMemoryError" in names and (memory := _MEMORY.search(text)):
        return f"killed by Ray: the node ran out of memory, with {memory[1]} of {memory[2]} in use"
    if "NodeDiedError" in names or "node has died" in text:
        address = _ADDRESS.search(text)
        return f"node {address[1]} died" if address else "the node died"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    # A task's own exception is below its traceback; Ray's own messages begin with the event.
    return f"{names[0]}: {lines[-1 if 'RayTaskError' in names else 0]}"


def exit_outcome(worker: str, code: int, *, is_preempted: bool) -> Outcome:
    """Build the outcome of an exited command; `is_preempted`: so is its machine."""
    if code == 0:
        return Outcome(SUCCEEDED, worker, code=code)
    if is_preempted:
        return Outcome(PREEMPTED, worker, f"exit {code} on a machine that is being preempted", code)
    return Outcome(FAILED, worker, f"exit {code}", code)


def verdict(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of all workers: a preemption outranks a failure, which outranks a
    cancellation.
    """
    for kind in (PREEMPTED, FAILED):
        for outcome in outcomes:
            if outcome.kind == kind:
                return outcome
    if outcomes and all(outcome.kind == SUCCEEDED for outcome in outcomes):
        return outcomes[0]
    return Outcome(FAILED, outcomes[0].worker if outcomes else "", "the workers were cancelled")


@dataclass(frozen=True)
class Attempts:
    """Counts of past attempts, and their limits; the last `short` ones ended soon."""

    max_preemptions: int
    max_failures: int
    preempted: int = 0
    failed: int = 0
    short: int = 0

    @property
    def number(self) -> int:
        """Number of the running or next attempt, from 1 on."""
        return self.preempted + self.failed + 1

    @property
    def counts(self) -> str:
        return f"preempted {self.preempted}×, failed {self.failed}×"

    def after(self, outcome: Outcome, seconds: float) -> Attempts:
        """Return the counts after one more attempt of so many seconds."""
        short = self.short + 1 if seconds < _SHORT_SECONDS else 0
        if outcome.kind == PREEMPTED:
            return replace(self, preempted=self.preempted + 1, short=short)
        # A failure is never retried at once.
        return replace(self, failed=self.failed + 1, short=max(short, 1))

    @property
    def is_over(self) -> bool:
        """Whether no further attempt is made."""
        return self.preempted > self.max_preemptions or self.failed > self.max_failures

    @property
    def may_be_preempted(self) -> bool:
        """Whether there is a further attempt after one more preemption."""
        return self.preempted < self.max_preemptions

    @property
    def pause_seconds(self) -> float:
        """Pause before the next attempt in seconds: longer after each that ended soon."""
        if not self.short:
            return 0.0
        return min(_FIRST_PAUSE_SECONDS * 2.0 ** (self.short - 1), _MAX_PAUSE_SECONDS)


def largest_size(sizes: Sequence[int], available: int) -> int | None:
    """Return the largest size that is available; None if even the smallest is not."""
    return max((size for size in sizes if size <= available), default=None)


def is_growth_due(
    sizes: Sequence[int],
    size: int,
    *,
    changed_at: float,
    checked_at: float,
    now: float,
    after: float,
    every: float,
) -> bool:
    """Whether to check for a larger size: `every` seconds, and `after` the last change."""
    return size < max(sizes) and now - changed_at >= after and now - checked_at >= every


def slice_variables(slice_index: int, addresses: Sequence[str]) -> dict[str, str]:
    """Return the variables with which several slices find each other; {} for a single slice.

    `addresses`: of the first worker of each slice.
    """
    if len(addresses) < 2:
        return {}
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": f"{addresses[0]}:8081",
        "MEGASCALE_NUM_SLICES": str(len(addresses)),
        "MEGASCALE_PORT": "8081",
        "MEGASCALE_SLICE_ID": str(slice_index),
    }


def describe_slice(nodes: Sequence[Mapping[str, Any]], pod: str, head: str) -> dict[str, Any]:
    """Describe a slice by the resource that its workers share.

    `places`: (address, port, node ID) of its workers, the head's first. `heads`: the number of
    workers with a head resource. `tpus`: the fewest of a worker.
    """
    members = [node for node in nodes if pod in node["Resources"]]
    members.sort(key=lambda node: (node["NodeID"] != head, node["NodeManagerAddress"]))
    return {
        "pod": pod,
        "places": [
            (node["NodeManagerAddress"], node["NodeManagerPort"], node["NodeID"])
            for node in members
        ],
        "heads": sum(any(map(HEAD_RESOURCE.fullmatch, node["Resources"])) for node in members),
        "tpus": min((int(node["Resources"].get("TPU", 0)) for node in members), default=0),
    }


def slice_problem(described: Mapping[str, Any], workers: int, request: Mapping[str, Any]) -> str:
    """Return the reason that a slice of `describe_slice` cannot be used; '' if it can.

    `workers`: the number of workers that respond.
    """
    pod = described["pod"]
    heads = described["heads"]
    tpus = described["tpus"]
    if heads > 1:
        return (
            f"{heads} workers of {pod} have {request['head_resource']}, which only the first one "
            "should: a bug in Ray with containers that would let several jobs share one slice. "
            "Upgrade Ray"
        )
    if workers != request["workers"]:
        return f"{pod} has {workers} of its {request['workers']} workers"
    if tpus < request["tpus"]:
        return (
            f"workers of {pod} have {tpus} TPU, this run requests {request['tpus']}: set "
            f"tpus_per_worker = {tpus}"
        )
    return ""
