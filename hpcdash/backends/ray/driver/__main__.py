"""`python -m slice_driver`: takes slices, runs the request's command on all of their workers, and tries again.

The request is request.json in the working directory. Lines that begin with "hpcdash:" say what becomes of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from slice_driver import command
from slice_driver.outcomes import (
    CANCELLED,
    FAILED,
    PREEMPTED,
    SUCCEEDED,
    Attempts,
    Outcome,
    may_grow,
    outcome_of_error,
    outcome_of_exit,
    pause_seconds,
    size_to_take,
    slice_variables,
    verdict,
)

# How long more slices than the least are waited for once the least are there.
_GATHER_SECONDS = 30.0
# That nothing could be had is said so often, and looked for again.
_WAIT_SECONDS = 60.0
# The workers of a new slice join one after the other.
_FIRST_LOOK_SECONDS = 5.0
_LOOK_SECONDS = 30.0
_MASTER_PORT = "29500"
_LIBRARY = "hpcdash-job.zip"
_OWN = ("CPU", "GPU", "TPU", "memory", "object_store_memory")
_NEVER_A_SLICE = re.compile("node:|accelerator_type:|TPU-.+-head")


def say(words: str) -> None:
    print(f"hpcdash: {words}", flush=True)


@ray.remote(num_cpus=0, max_restarts=0)
class SliceHead:
    """Holds the head resource of one slice: nobody else takes the slice meanwhile."""

    def describe(self) -> dict[str, Any]:
        """The resource that the workers of this slice alone have, its nodes, and how many of them have the head's."""
        here = ray.get_runtime_context().get_node_id()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        own = next(node for node in nodes if node["NodeID"] == here)
        pod = _pod_of(own["Resources"])
        members = [node for node in nodes if pod in node["Resources"]]
        heads = sum(any(re.fullmatch("TPU-.+-head", name) for name in node["Resources"]) for node in members)
        return {"pod": pod, "address": own["NodeManagerAddress"], "workers": len(members), "heads": heads}


def _pod_of(resources: Mapping[str, float]) -> str:
    """A slice's own resource on its first worker: named after the slice, on no other node but its workers."""
    with contextlib.suppress(Exception):
        from ray.util.accelerators import tpu

        if (name := tpu.get_current_pod_name()) in resources:
            return str(name)
    others = [name for name in resources if name not in _OWN and not _NEVER_A_SLICE.match(name)]
    if len(others) != 1:
        raise RuntimeError("which resource the workers of this slice share is not known: " + ", ".join(sorted(others)))
    return others[0]


@ray.remote(num_cpus=0, max_retries=0, max_calls=1)
def run_worker(argv: list[str], environment: dict[str, str], container: dict[str, Any] | None) -> tuple[int, bool]:
    """(exit status of the command on this worker, whether its machine is being preempted)."""
    # The package is unpacked on each node, in a place of that node's.
    library = [os.path.abspath(_LIBRARY)] if os.path.exists(_LIBRARY) else []
    path = os.pathsep.join(filter(None, (*library, environment.get("PYTHONPATH") or os.environ.get("PYTHONPATH"))))
    environment = {**environment, "PYTHONPATH": path}
    if container is None:
        code = command.run(argv, environment)
    else:
        command.remove_container(container["name"])
        try:
            before = command.container_argv(container["image"], container["name"], container["binds"], environment)
            code = command.run([*before, *argv], environment)
        finally:
            command.remove_container(container["name"])
    return code, code != 0 and command.is_preempted()


@dataclass
class Slice:
    """One slice that is held: its actor, and what it told."""

    head: Any
    pod: str
    address: str


class SliceRun:
    """One request from its first attempt to its last."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.request = request
        self.sizes: Sequence[int] = request["num_slices"]
        self.workers: int = request["workers"]
        self.attempts = Attempts(request["retries_preemption"], request["retries_failure"])
        self.size = 0
        self.changed_at = self.looked_at = time.monotonic()

    def run(self) -> int:
        """The exit status of the whole."""
        failures_in_a_row = 0
        while True:
            slices = self.acquire()
            names = ", ".join(held.pod for held in slices)
            say(f"attempt {self.attempts.number}: {self.attempts.counts}, on {names}")
            try:
                outcome = self.attempt(slices)
            finally:
                for held in slices:
                    ray.kill(held.head)
            if outcome.kind == SUCCEEDED:
                say(f"attempt {self.attempts.number} succeeded; {self.attempts.counts}")
                return 0
            say(f"attempt {self.attempts.number} {outcome.kind}: {outcome.worker}, {outcome.words}")
            self.attempts = self.attempts.after(outcome)
            if self.attempts.is_over:
                say(f"no further attempt: {self.attempts.counts}")
                return outcome.code or 1
            failures_in_a_row = failures_in_a_row + 1 if outcome.kind == FAILED else 0
            time.sleep(pause_seconds(failures_in_a_row))

    def acquire(self) -> list[Slice]:
        """As many slices as can be had of the sizes that are wanted; waits for the least, and says so."""
        pending = self._ask_for(max(self.sizes))
        found: list[Slice] = []
        began, pause = time.monotonic(), _FIRST_LOOK_SECONDS
        while pending:
            limit = pause if size_to_take(self.sizes, len(found)) is None else _GATHER_SECONDS
            ready, _ = ray.wait(list(pending), timeout=limit)
            for reference in ready:
                held = self._described(pending.pop(reference), reference)
                if held is not None:
                    found.append(held)
            if not ready and size_to_take(self.sizes, len(found)) is not None:
                break
            if not ready or (not pending and size_to_take(self.sizes, len(found)) is None):
                waited = (time.monotonic() - began) / 60
                least = min(self.sizes)
                wanted = f"{least} slice{'' if least == 1 else 's'} of {self.request['slice']}"
                say(f"waiting for {wanted}: {len(found)} there after {waited:.0f} min")
                pause = min(2 * pause, _WAIT_SECONDS)
                if not pending:
                    time.sleep(pause)
                    pending = self._ask_for(max(self.sizes) - len(found))
        size = size_to_take(self.sizes, len(found)) or 0
        for head in [*pending.values(), *(held.head for held in found[size:])]:
            ray.kill(head)
        if size != self.size:
            self.size, self.changed_at = size, time.monotonic()
        return found[:size]

    def _ask_for(self, count: int) -> dict[Any, Any]:
        """Heads of slices that are waited for, by what they will tell."""
        actor: Any = SliceHead
        resources = {self.request["head_resource"]: 1}
        heads = [actor.options(resources=resources).remote() for _ in range(count)]
        return {head.describe.remote(): head for head in heads}

    def _described(self, head: Any, reference: Any) -> Slice | None:
        """A slice that is whole; None, with a word, for one that is not."""
        try:
            told = ray.get(reference)
        except ray.exceptions.RayError as error:
            say(f"a slice cannot be used: {_first_line(error)}")
            ray.kill(head)
            return None
        if told["heads"] > 1:
            say(f"{told['heads']} workers of {told['pod']} say that they are its first: a fault of Ray's")
        elif told["workers"] != self.workers:
            say(f"{told['pod']} has {told['workers']} workers of {self.workers}")
        else:
            return Slice(head, told["pod"], told["address"])
        ray.kill(head)
        return None

    def attempt(self, slices: Sequence[Slice]) -> Outcome:
        """Run the command on every worker; the first that does not succeed ends the others."""
        addresses = [held.address for held in slices]
        running: dict[Any, str] = {}
        for index, held in enumerate(slices):
            resources = {held.pod: 1, **({"TPU": self.request["tpus"]} if self.request["tpus"] else {})}
            for worker in range(self.workers):
                name = f"{held.pod} worker {worker}"
                rank = index * self.workers + worker
                variables = self.variables(rank, len(slices), addresses, index)
                container = self.request.get("container")
                started = run_worker.options(resources=resources, name=name).remote(
                    self.request["argv"],
                    variables,
                    container and {**container, "name": f"{container['name']}-{rank}"},
                )
                running[started] = name
        outcomes: list[Outcome] = []
        waiting = dict(running)
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=_LOOK_SECONDS)
            outcomes += [_outcome(reference, waiting.pop(reference)) for reference in ready]
            is_ending = any(one.kind != SUCCEEDED for one in outcomes)
            if not is_ending and not ready and self.should_grow():
                outcomes.append(Outcome(PREEMPTED, slices[0].pod, "more slices are there: it goes on with them"))
                is_ending = True
            if is_ending:
                for reference in waiting:
                    ray.cancel(reference, force=True)
                if waiting:
                    ray.wait(list(waiting), num_returns=len(waiting), timeout=_WAIT_SECONDS)
                outcomes += [_outcome(reference, name, timeout=1) for reference, name in waiting.items()]
                break
        return verdict(outcomes)

    def should_grow(self) -> bool:
        """Whether a larger size is free."""
        now = time.monotonic()
        if not may_grow(self.sizes, self.size, self.changed_at, self.looked_at, now):
            return False
        self.looked_at = now
        free = ray.available_resources().get(self.request["head_resource"], 0)
        return (size_to_take(self.sizes, self.size + int(free)) or 0) > self.size

    def variables(self, rank: int, slices: int, addresses: Sequence[str], index: int) -> dict[str, str]:
        """What a worker's command finds in its environment."""
        return {
            **self.request["environment"],
            **dict(slice_variables(index, addresses)),
            "RANK": str(rank),
            "WORLD_SIZE": str(slices * self.workers),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": str(rank),
            "NUM_NODES": str(slices * self.workers),
            "MASTER_ADDR": addresses[0],
            "MASTER_PORT": _MASTER_PORT,
            "HPCDASH_ATTEMPT": str(self.attempts.number),
        }


def _outcome(reference: Any, worker: str, timeout: float | None = None) -> Outcome:
    try:
        code, is_preempted = ray.get(reference, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        return Outcome(CANCELLED, worker, "it did not end in time")
    except ray.exceptions.RayError as error:
        return outcome_of_error(worker, [kind.__name__ for kind in type(error).__mro__], _first_line(error))
    return outcome_of_exit(worker, code, is_preempted=is_preempted)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def main() -> int:
    with open("request.json", encoding="utf-8") as source:
        request = json.load(source)
    ray.init(logging_level="ERROR")
    return SliceRun(request).run()


if __name__ == "__main__":
    sys.exit(main())
