"""`python -m slice_driver`: takes slices, runs the request's command on their workers, and retries.

The request is request.json in the working directory. Lines that begin with "hpcdash:" report its
progress.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from slice_driver import command
from slice_driver.outcomes import (
    CANCELLED,
    FAILED,
    HEAD_RESOURCE,
    PREEMPTED,
    SUCCEEDED,
    Attempts,
    Outcome,
    describe_slice,
    error_outcome,
    error_text,
    exit_outcome,
    may_grow,
    size_to_take,
    slice_problem,
    slice_variables,
    verdict,
)
from slice_driver.status import (
    LabelledStream,
    SliceRunStatus,
    format_not_started,
    format_waiting,
    near,
    task_name,
    with_record,
)

# Wait for more slices than the least once the least are acquired.
_GATHER_SECONDS = 30.0
# Interval at which a waiting run logs its state and checks again.
_WAIT_SECONDS = 60.0
# The workers of a new slice join one after the other.
_FIRST_LOOK_SECONDS = 5.0
_LOOK_SECONDS = 30.0
_MASTER_PORT = "29500"
_LIBRARY = "hpcdash-job.zip"
# Names the folder of the package, for the command.
PACKAGE = "HPCDASH_PACKAGE"
_OWN = ("CPU", "GPU", "TPU", "memory", "object_store_memory")
_NEVER_A_SLICE = re.compile("node:|accelerator_type:|TPU-.+-head")
# Key of Ray's record of a job. Source: ray/dashboard/modules/job/common.py JobInfoStorageClient.
_RECORD_KEY, _RECORD_NAMESPACE = "_ray_internal_job_info_", b"job"
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
# Successes that come one by one are published together.
_PUBLISH_SECONDS = 10.0
# A dying node stops accepting connections within this time.
_NOTICE_SECONDS = 5.0
_CONNECT_SECONDS = 2.0
# Free slices to grow into are obtained within this time.
_GROW_SECONDS = 10.0
# The last output of workers comes a little after they have ended.
_LAST_LINES_SECONDS = 1.0


def report(text: str) -> None:
    print(f"hpcdash: {text}", flush=True)


@ray.remote(num_cpus=0, max_restarts=0, max_concurrency=2)
class SliceHead:
    """Holder of the head resource of one slice, so that no other job takes the slice meanwhile."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._begun: set[int] = set()

    def describe(self) -> dict[str, Any]:
        """This slice, as outcomes.slice_of has it."""
        here = ray.get_runtime_context().get_node_id()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        own = next(node for node in nodes if node["NodeID"] == here)
        found: dict[str, Any] = describe_slice(nodes, _find_pod(own["Resources"]), here)
        return found

    def begin(self, worker: int) -> None:
        """A worker's task has started."""
        self._begun.add(worker)

    def begun(self) -> set[int]:
        return self._begun

    def hold(self) -> None:
        """Block until the slice is released, so that a waiting caller learns it."""
        self._is_over.wait()

    def let_go(self) -> None:
        """End `hold`, which is no failure then."""
        self._is_over.set()


def _find_pod(resources: Mapping[str, float]) -> str:
    """A slice's own resource on its first worker: named after the slice, on no other node but its
    workers.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from ray.util.accelerators import tpu

        if (name := tpu.get_current_pod_name()) in resources:
            return str(name)
    others = [name for name in resources if name not in _OWN and not _NEVER_A_SLICE.match(name)]
    if len(others) != 1:
        raise RuntimeError(
            "the resource that the workers of this slice share is unknown: "
            + ", ".join(sorted(others))
        )
    return others[0]


@ray.remote(num_cpus=0, max_retries=0, max_calls=1)
def run_worker(
    head: Any,
    rank: int,
    argv: list[str],
    environment: dict[str, str],
    container: dict[str, Any] | None,
) -> tuple[int, bool, str]:
    """(exit status of the command on this worker, whether its machine is being preempted, its
    address).
    """
    head.begin.remote(rank)
    # The package is unpacked on each node, in a place of that node's.
    library = [os.path.abspath(_LIBRARY)] if os.path.exists(_LIBRARY) else []
    path = os.pathsep.join(
        filter(None, (*library, environment.get("PYTHONPATH") or os.environ.get("PYTHONPATH")))
    )
    environment = {**environment, "PYTHONPATH": path, PACKAGE: os.getcwd()}
    address = ray.util.get_node_ip_address()
    name = ""
    if container:
        # One name a machine: what an earlier attempt left there is removed, whichever rank it had.
        name = f"{container['name']}-{address.replace(':', '-')}"
        here = [] if os.getcwd().startswith("/tmp/") else [f"{os.getcwd()}:{os.getcwd()}"]
        container = {**container, "name": name, "binds": [*container["binds"], *here]}
        for folder in container["made"]:
            with contextlib.suppress(OSError):
                os.makedirs(folder, exist_ok=True)
        argv = [*command.container_argv(container, environment), *argv]
    code = command.run(
        argv, environment, node=ray.get_runtime_context().get_node_id(), container=name
    )
    return code, code != 0 and command.is_preempted(), address


@dataclass
class Slice:
    """Held slice: its actor, its facts, and the reference that is ready once it is released.

    `places` are (address, port, node ID) of its workers, the head's first.
    """

    head: Any
    pod: str
    places: list[tuple[str, int, str]]
    lock: Any

    def let_go(self) -> None:
        self.head.let_go.remote()
        ray.wait([self.lock], timeout=_CONNECT_SECONDS)
        ray.kill(self.head)


class SliceRun:
    """One request from its first attempt to its last."""

    def __init__(
        self, request: Mapping[str, Any], publish: Callable[[SliceRunStatus], None]
    ) -> None:
        self.request = request
        self.sizes: Sequence[int] = request["num_slices"]
        self.workers: int = request["workers"]
        self.attempts = Attempts(request["retries_preemption"], request["retries_failure"])
        self.size = 0
        self.changed_at = self.looked_at = time.monotonic()
        self.grows_after: float = request["grow_after"]
        self.grows_every: float = request["grow_every"]
        self.status = SliceRunStatus(self.workers, request["tpus"])
        self.publish = publish
        # Slices already taken for the larger attempt that comes next.
        self.more: list[Slice] = []

    def run(self) -> int:
        """The exit status of the whole."""
        remaining: list[Slice] = []
        while True:
            slices = self.acquire(remaining)
            names = ", ".join(held.pod for held in slices)
            self.status.slices, self.status.waiting = [held.pod for held in slices], ""
            self.status.nodes = [address for held in slices for address, _, _ in held.places]
            self.status.began, self.status.ended = time.time(), {}
            began = time.monotonic()
            self.publish(self.status)
            report(f"attempt {self.attempts.number}: {self.attempts.counts}, on {names}")
            try:
                outcome = self.attempt(slices)
            finally:
                # When growing, it keeps its slices and adds the new ones.
                remaining = [*slices, *self.more] if self.more else []
                self.more = []
                for held in () if remaining else slices:
                    held.let_go()
            time.sleep(_LAST_LINES_SECONDS)
            self.status.waiting = ""
            if outcome.kind == SUCCEEDED:
                self.publish(self.status)
                report(f"attempt {self.attempts.number} succeeded; {self.attempts.counts}")
                return 0
            text = (
                f"attempt {self.attempts.number} {outcome.kind}: {outcome.worker}, {outcome.text}"
            )
            report(text)
            # One that grows goes on at once with what it holds.
            self.attempts = self.attempts.after(
                outcome, math.inf if remaining else time.monotonic() - began
            )
            self.status.past.append(text)
            self.status.preempted, self.status.failed = (
                self.attempts.preempted,
                self.attempts.failed,
            )
            if self.attempts.is_over:
                self.publish(self.status)
                report(f"no further attempt: {self.attempts.counts}")
                return outcome.code or 1
            pause = self.attempts.pause_seconds
            self.status.attempt, self.status.ended = self.attempts.number, {}
            self.status.slices = self.status.nodes = ()
            self.wait_for(
                f"attempt {self.attempts.number} begins in {pause:.0f} s"
                if pause
                else "waiting for slices"
            )
            time.sleep(pause)

    def wait_for(self, text: str) -> None:
        self.status.waiting = text
        self.publish(self.status)

    def acquire(self, remaining: Sequence[Slice]) -> list[Slice]:
        """Acquire as many slices as are available of the requested sizes, or keep `remaining`.

        Waits for the smallest size, and logs so. Slices that do not suffice are released again and
        again: a run that waits for them may hold those that this one waits for.
        """
        found = list(remaining)
        pending = {} if remaining else self._request_slices(max(self.sizes))
        # Heads of slices that are not whole: while one is held, the next that comes is another.
        unusable: list[Any] = []
        problems: dict[str, None] = {}
        began = found_at = time.monotonic()
        pause = _FIRST_LOOK_SECONDS
        # No need to wait for what can grow soon.
        gather = min(_GATHER_SECONDS, self.grows_every)
        while pending:
            limit = gather if found else pause
            ready, _ = ray.wait(list(pending), timeout=limit)
            for reference in ready:
                head = pending.pop(reference)
                try:
                    held = self._described(head, reference)
                except ray.exceptions.RayError as error:
                    held = f"a slice cannot be used: {_error_text(error)}"
                else:
                    if isinstance(held, str):
                        unusable.append(head)
                        pending |= self._request_slices(1)
                if isinstance(held, str):
                    report(held)
                    problems[held] = None
                else:
                    found.append(held)
                    found_at = time.monotonic()
            is_enough = size_to_take(self.sizes, len(found)) is not None
            if len(found) >= max(self.sizes) or (is_enough and not (ready and pending)):
                break
            if ready and pending:
                continue
            text = self._waiting(len(found), time.monotonic() - began)
            self.wait_for("; ".join((*problems, text)))
            report(text)
            pause = min(2 * pause, _WAIT_SECONDS)
            is_held_long = bool(found) and time.monotonic() - found_at >= gather
            requested = 0 if is_held_long else max(self.sizes) - len(found)
            for head in (*unusable, *map(pending.pop, list(pending)[requested:])):
                ray.kill(head)
            unusable.clear()
            problems.clear()
            if is_held_long:
                for held in found:
                    held.let_go()
                found = []
            if not pending:
                time.sleep(random.uniform(pause / 2, pause))
                pending = self._request_slices(max(self.sizes) - len(found))
        size = size_to_take(self.sizes, len(found)) or 0
        for head in (*pending.values(), *unusable):
            ray.kill(head)
        for held in found[size:]:
            held.let_go()
        if size != self.size:
            self.size, self.changed_at = size, time.monotonic()
        return found[:size]

    def _waiting(self, found: int, seconds: float) -> str:
        cluster = ray.cluster_resources()
        kinds = sorted({kind[1] for name in cluster if (kind := HEAD_RESOURCE.fullmatch(name))})
        kind = self.request["slice"]
        head = self.request["head_resource"]
        free = int(ray.available_resources().get(head, 0))
        text = format_waiting(min(self.sizes), kind, head, found, free, cluster, near(kind, kinds))
        return f"{text}, after {seconds / 60:.0f} min"

    def _request_slices(self, count: int) -> dict[Any, Any]:
        """Return the requested heads of slices, by the reference of their facts."""
        actor: Any = SliceHead
        resources = {self.request["head_resource"]: 1}
        heads = [actor.options(resources=resources).remote() for _ in range(count)]
        return {head.describe.remote(): head for head in heads}

    def _described(self, head: Any, reference: Any) -> Slice | str:
        """A slice that is whole, or what is wrong with it.

        Raises RayError where its head was lost.
        """
        reported = ray.get(reference)
        # A node that is gone is listed for a while.
        workers = sum(_takes_connections(address, port) for address, port, _ in reported["places"])
        problem: str = slice_problem(reported, workers, self.request)
        return problem or Slice(head, reported["pod"], reported["places"], head.hold.remote())

    def attempt(self, slices: Sequence[Slice]) -> Outcome:
        """Run the command on every worker; the first that does not succeed ends the others."""
        addresses = [held.places[0][0] for held in slices]
        waiting: dict[Any, int] = {}
        for index, held in enumerate(slices):
            resources = {
                held.pod: 1,
                **({"TPU": self.request["tpus"]} if self.request["tpus"] else {}),
            }
            for rank, (_, _, node) in enumerate(held.places, index * self.workers):
                variables = self.variables(rank, len(slices), addresses, index)
                # Rank 0 has to be on MASTER_ADDR.
                worker = run_worker.options(
                    resources=resources,
                    name=task_name(self.attempts.number, rank),
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                )
                started = worker.remote(
                    held.head,
                    rank,
                    self.request["argv"],
                    variables,
                    self.request["container"],
                )
                waiting[started] = rank
        locks = {held.lock: held.pod for held in slices}
        outcomes: list[Outcome] = []
        began = published = time.monotonic()
        is_begun = False

        def take(reference: Any, timeout: float | None = None) -> None:
            rank = waiting.pop(reference)
            outcome, node = _outcome(
                reference, f"worker {rank} on {slices[rank // self.workers].pod}", timeout
            )
            if timeout is not None and outcome.kind == FAILED:
                # Its command was killed first, and then its task.
                outcome = replace(outcome, kind=CANCELLED)
            self.status.ended[rank] = (outcome.kind, outcome.text, outcome.code, node)
            if outcome.kind in (FAILED, PREEMPTED):
                report(
                    f"attempt {self.attempts.number}: {outcome.worker} {outcome.kind}: "
                    f"{outcome.text}"
                )
            outcomes.append(outcome)

        while waiting:
            watched = [*waiting, *locks]
            ready, _ = ray.wait(
                watched,
                timeout=_LOOK_SECONDS if self.size == max(self.sizes) else self.check_seconds,
            )
            if ready:
                ready, _ = ray.wait(watched, num_returns=len(watched), timeout=0)
            for reference in ready:
                if reference in locks:
                    # Another job may have the slice by now.
                    outcomes.append(_outcome(reference, f"the lock of {locks.pop(reference)}")[0])
                    report(
                        f"attempt {self.attempts.number}: {outcomes[-1].worker} is lost: "
                        f"{outcomes[-1].text}"
                    )
                else:
                    take(reference)
            if not ready:
                if lost := self.lost(slices):
                    outcomes.append(Outcome(PREEMPTED, lost, "it has lost workers"))
                elif self.should_grow() and self.grow():
                    more = ", ".join(held.pod for held in self.more)
                    outcomes.append(Outcome(PREEMPTED, more, "it continues with more slices"))
                elif not is_begun and time.monotonic() - began >= _WAIT_SECONDS:
                    is_begun = not self.report_unstarted(slices, list(waiting.values()))
            if any(one.kind != SUCCEEDED for one in outcomes):
                for reference in waiting:
                    ray.cancel(reference, force=True)
                if waiting:
                    ray.wait(list(waiting), num_returns=len(waiting), timeout=_WAIT_SECONDS)
                for reference in list(waiting):
                    take(reference, timeout=1)
                break
            if time.monotonic() - published >= _PUBLISH_SECONDS:
                published = time.monotonic()
                self.publish(self.status)
        found = verdict(outcomes)
        return self.preempted_at_once(slices) or found if found.kind == FAILED else found

    def preempted_at_once(self, slices: Sequence[Slice]) -> Outcome | None:
        """The preemption behind a failed attempt: peers fail before Ray notices a dead node."""
        until = time.monotonic() + _NOTICE_SECONDS
        while not (lost := self.lost(slices, is_probed=True)):
            if time.monotonic() >= until:
                return None
            time.sleep(1)
        return Outcome(PREEMPTED, lost, "it lost workers, and their peers failed")

    @property
    def check_seconds(self) -> float:
        """Seconds between two checks for more slices."""
        return min(_LOOK_SECONDS, self.grows_every)

    def lost(self, slices: Sequence[Slice], *, is_probed: bool = False) -> str:
        """A slice that has lost a node; '' where there is none.

        `is_probed`: a node counts only where it takes connections.
        """
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for held in slices:
            for address, port, node in held.places:
                if node not in alive or (is_probed and not _takes_connections(address, port)):
                    return held.pod
        return ""

    def report_unstarted(self, slices: Sequence[Slice], waiting: Sequence[int]) -> bool:
        """Whether a worker among those that are `waiting` for their end has not even begun; the
        list shows which.
        """
        try:
            begun = ray.get([held.head.begun.remote() for held in slices], timeout=_CONNECT_SECONDS)
        except ray.exceptions.RayError:
            return True
        text = format_not_started(sorted(set(waiting).difference(*begun)))
        if text != self.status.waiting:
            report(f"attempt {self.attempts.number}: {text or 'all workers have started'}")
            self.wait_for(text)
        return bool(text)

    def should_grow(self) -> bool:
        """Whether a larger size is free.

        It takes a preemption, and what workers have done already is lost.
        """
        if not self.attempts.may_be_preempted or self.status.ended:
            return False
        now = time.monotonic()
        every = self.grows_every
        after = self.grows_after
        if not may_grow(
            self.sizes, self.size, self.changed_at, self.looked_at, now, after=after, every=every
        ):
            return False
        self.looked_at = now
        free = ray.available_resources().get(self.request["head_resource"], 0)
        return (size_to_take(self.sizes, self.size + int(free)) or 0) > self.size

    def grow(self) -> bool:
        """Take what makes the next larger size whole, into `more`; whether that could be had."""
        requested = max(self.sizes) - self.size
        pending = self._request_slices(requested)
        found: list[Slice] = []
        until = time.monotonic() + _GROW_SECONDS
        while pending and (left := until - time.monotonic()) > 0:
            ready, _ = ray.wait(list(pending), timeout=left)
            for reference in ready:
                head = pending.pop(reference)
                with contextlib.suppress(ray.exceptions.RayError):
                    held = self._described(head, reference)
                    if isinstance(held, Slice):
                        found.append(held)
                    else:
                        ray.kill(head)
        self.more = found[
            : (size_to_take(self.sizes, self.size + len(found)) or self.size) - self.size
        ]
        for head in pending.values():
            ray.kill(head)
        for held in found[len(self.more) :]:
            held.let_go()
        return bool(self.more)

    def variables(
        self, rank: int, slices: int, addresses: Sequence[str], index: int
    ) -> dict[str, str]:
        """Return the environment variables of a worker's command."""
        return {
            # Lines are seen as they are written.
            "PYTHONUNBUFFERED": "1",
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
            "HPCDASH_JOB_ID": submission_id(),
        }


def _takes_connections(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _outcome(reference: Any, worker: str, timeout: float | None = None) -> tuple[Outcome, str]:
    """Return the outcome of a worker, and its node's address, '' where that is unknown."""
    try:
        code, is_preempted, node = ray.get(reference, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        return Outcome(CANCELLED, worker, "it did not end in time"), ""
    except ray.exceptions.RayError as error:
        return error_outcome(worker, _names(error), _error_text(error)), ""
    return exit_outcome(worker, code, is_preempted=is_preempted), node


def _names(error: Exception) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]


def _error_text(error: Exception) -> str:
    text: str = error_text(_names(error), str(error))
    return text


def submission_id() -> str:
    """The id that this driver's job was submitted with; '' where it was not."""
    try:
        return str(json.loads(os.environ.get(_JOB_CONFIG, "{}"))["metadata"]["job_submission_id"])
    except (ValueError, KeyError, TypeError):
        return ""


class Publisher:
    """Keeps the run's record in the metadata of its job, for as long as that is possible."""

    def __init__(self, job: str) -> None:
        self._key = f"{_RECORD_KEY}{job}".encode() if job else b""

    def __call__(self, status: SliceRunStatus) -> None:
        if not self._key:
            return
        try:
            from ray.experimental import internal_kv

            found = internal_kv._internal_kv_get(self._key, namespace=_RECORD_NAMESPACE)
            record = None if found is None else with_record(found, status.record())
            if record is not None:
                internal_kv._internal_kv_put(self._key, record, namespace=_RECORD_NAMESPACE)
        except (
            ray.exceptions.RayError,
            ImportError,
            AttributeError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:
            report(f"job lists cannot show the status of this run: {_error_text(error)}")
            self._key = b""


def _stop(number: int, frame: object) -> None:
    """Ray ends its workers with the driver."""
    # print raises where the signal came amid another one.
    os.write(1, b"hpcdash: stopped\n")
    os._exit(128 + number)


def main() -> int:
    with open("request.json", encoding="utf-8") as source:
        request = json.load(source)
    sys.stdout, sys.stderr = LabelledStream(sys.stdout), LabelledStream(sys.stderr)
    ray.init(logging_level="ERROR")
    # Ray's own handler writes where its threads stood.
    signal.signal(signal.SIGTERM, _stop)
    return SliceRun(request, Publisher(submission_id())).run()


if __name__ == "__main__":
    sys.exit(main())
