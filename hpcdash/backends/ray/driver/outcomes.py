"""Outcome of an attempt, preempted or failed, the number of retries, and the time of growth.

Queries nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

HEAD_RESOURCE = re.compile("TPU-(.+)-head")
SUCCEEDED, PREEMPTED, FAILED, CANCELLED = "succeeded", "preempted", "failed", "cancelled"
# Ray's exceptions after the loss of a node, a worker's process or its actor, by name.
_LOST = frozenset(
    (
        "NodeDiedError",
        "WorkerCrashedError",
        "ActorDiedError",
        "RayActorError",
        "ActorUnavailableError",
        "ActorUnschedulableError",
        # The node that it was for has died meanwhile.
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
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 300.0
# An attempt that ends sooner did not get to work: a full disk, a worker that crashes at once.
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

    `names` are the exception's class and its bases. A worker that ran out of memory failed: on
    another slice it would again.
    """
    if _CANCELLED & set(names):
        return Outcome(CANCELLED, worker, text)
    if "OutOfMemoryError" in names or "RayTaskError" in names:
        return Outcome(FAILED, worker, text)
    return Outcome(PREEMPTED if _LOST & set(names) else FAILED, worker, text)


def error_text(names: Sequence[str], text: str) -> str:
    """Return Ray's exception in one line.

    `names` are the exception's class and its bases, `text` is its full text.
    """
    if "OutOfMemoryError" in names and (reported := _MEMORY.search(text)):
        return (
            f"Ray killed it: its node ran out of memory, with {reported[1]} of {reported[2]} in use"
        )
    if "NodeDiedError" in names or "node has died" in text:
        address = _ADDRESS.search(text)
        return f"its node {address[1]} died" if address else "its node died"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    # A task's own exception is below its traceback; Ray's own messages begin with the event.
    return f"{names[0]}: {lines[-1 if 'RayTaskError' in names else 0]}"


def exit_outcome(worker: str, code: int, *, is_preempted: bool) -> Outcome:
    """Build the outcome of an exited command; `is_preempted`: the cloud takes its machine away."""
    if code == 0:
        return Outcome(SUCCEEDED, worker, code=code)
    if is_preempted:
        return Outcome(PREEMPTED, worker, f"exit {code} on a machine that is being preempted", code)
    return Outcome(FAILED, worker, f"exit {code}", code)


def verdict(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of all workers: a preempted one outranks failed ones, and cancelled ones count as
    neither.
    """
    for kind in (PREEMPTED, FAILED):
        for outcome in outcomes:
            if outcome.kind == kind:
                return outcome
    if all(outcome.kind == SUCCEEDED for outcome in outcomes) and outcomes:
        return outcomes[0]
    return Outcome(FAILED, outcomes[0].worker if outcomes else "", "its workers were cancelled")


@dataclass(frozen=True)
class Attempts:
    """Counts of the attempts so far, each kind with its own limit.

    `short` of them in a row ended soon.
    """

    most_preemptions: int
    most_failures: int
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
        """With one more, which ran for so long."""
        short = self.short + 1 if seconds < _SHORT_SECONDS else 0
        if outcome.kind == PREEMPTED:
            return replace(self, preempted=self.preempted + 1, short=short)
        # A failure is never tried again at once.
        return replace(self, failed=self.failed + 1, short=max(short, 1))

    @property
    def is_over(self) -> bool:
        """Whether no further attempt is made."""
        return self.preempted > self.most_preemptions or self.failed > self.most_failures

    @property
    def may_be_preempted(self) -> bool:
        """Whether there is a further attempt after one more preemption."""
        return self.preempted < self.most_preemptions

    @property
    def pause_seconds(self) -> float:
        """Pause before the next attempt in seconds: longer after each that ended soon."""
        if not self.short:
            return 0.0
        return min(_FIRST_PAUSE_SECONDS * 2.0 ** (self.short - 1), _LONGEST_PAUSE_SECONDS)


def size_to_take(sizes: Sequence[int], available: int) -> int | None:
    """The largest size that can be had; None where not even the least can."""
    return max((size for size in sizes if size <= available), default=None)


def may_grow(
    sizes: Sequence[int],
    size: int,
    changed_at: float,
    looked_at: float,
    now: float,
    *,
    after: float,
    every: float,
) -> bool:
    """Whether to check for a larger size now: `every` seconds, and `after` the last change."""
    return size < max(sizes) and now - changed_at >= after and now - looked_at >= every


def slice_variables(slice_index: int, addresses: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the variables with which several slices find each other; () for a single slice.

    `addresses` has the first worker of each slice.
    """
    if len(addresses) < 2:
        return ()
    return (
        ("MEGASCALE_COORDINATOR_ADDRESS", f"{addresses[0]}:8081"),
        ("MEGASCALE_NUM_SLICES", str(len(addresses))),
        ("MEGASCALE_PORT", "8081"),
        ("MEGASCALE_SLICE_ID", str(slice_index)),
    )


def describe_slice(nodes: Sequence[Mapping[str, Any]], pod: str, head: str) -> dict[str, Any]:
    """A slice by the resource that its workers share: `places` are their (address, port, node ID),
    the head's first.

    `heads` counts the workers that have a head resource, `tpus` is the least that one has.
    """
    members = [node for node in nodes if pod in node["Resources"]]
    members.sort(key=lambda node: (node["NodeID"] != head, node["NodeManagerAddress"]))
    return {
        "pod": pod,
        "places": [
            (node["NodeManagerAddress"], node["NodeManagerPort"], node["NodeID"])
            for node in members
        ],
        "heads": sum(
            any(HEAD_RESOURCE.fullmatch(name) for name in node["Resources"]) for node in members
        ),
        "tpus": min((int(node["Resources"].get("TPU", 0)) for node in members), default=0),
    }


def slice_problem(found: Mapping[str, Any], workers: int, request: Mapping[str, Any]) -> str:
    """Return why a slice of slice_of cannot be used; '' where it can.

    `workers` is the number of workers that respond.
    """
    pod = found["pod"]
    heads = found["heads"]
    tpus = found["tpus"]
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
            f"workers of {pod} have {tpus} TPU, this run asks for {request['tpus']}: set "
            f"tpus_per_worker = {tpus}"
        )
    return ""
