"""`python -m slice_driver`: acquires slices, runs the command on their workers, and retries.

The request is request.json in the working directory. Lines that begin with "hpcdash:" report the
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
    is_growth_due,
    largest_size,
    slice_problem,
    slice_variables,
    verdict,
)
from slice_driver.status import (
    LabelledStream,
    SliceRunStatus,
    format_not_started,
    format_waiting,
    similar_types,
    task_name,
    with_record,
)

# Wait for more slices once the smallest size is acquired.
_GATHER_SECONDS = 30.0
# Longest interval at which a waiting run logs its state and checks again.
_WAIT_SECONDS = 60.0
# The workers of a new slice join one after the other.
_FIRST_WAIT_SECONDS = 5.0
_CHECK_SECONDS = 30.0
_MASTER_PORT = "29500"
_LIBRARY = "hpcdash-job.zip"
# Variable with the folder of the package, for the command.
_PACKAGE = "HPCDASH_PACKAGE"
_NODE_RESOURCES = ("CPU", "GPU", "TPU", "memory", "object_store_memory")
_NEVER_A_SLICE = re.compile("node:|accelerator_type:|TPU-.+-head")
# Key of Ray's record of a job. Source: ray/dashboard/modules/job/common.py JobInfoStorageClient.
_RECORD_KEY = "_ray_internal_job_info_"
_RECORD_NAMESPACE = b"job"
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
# Successes within this time are published together.
_PUBLISH_SECONDS = 10.0
# A dying node stops accepting connections within this time.
_NOTICE_SECONDS = 5.0
_CONNECT_SECONDS = 2.0
# Free slices for growth are acquired within this time.
_GROW_SECONDS = 10.0
# The last output of workers arrives a little after they have ended.
_LAST_LINES_SECONDS = 1.0


def report(text: str) -> None:
    print(f"hpcdash: {text}", flush=True)


@ray.remote(num_cpus=0, max_restarts=0, max_concurrency=2)
class SliceHead:
    """Actor with the head resource of a slice, so that no other job acquires it."""

    def __init__(self) -> None:
        self._is_released = threading.Event()
        self._started: set[int] = set()

    def describe(self) -> dict[str, Any]:
        """Describe this slice as outcomes.describe_slice does."""
        own_id = ray.get_runtime_context().get_node_id()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        own = next(node for node in nodes if node["NodeID"] == own_id)
        described: dict[str, Any] = describe_slice(nodes, _find_pod(own["Resources"]), own_id)
        return described

    def add_started(self, worker: int) -> None:
        """Record that a worker's task has started."""
        self._started.add(worker)

    def started(self) -> set[int]:
        return self._started

    def hold(self) -> None:
        """Block until the slice is released; the call fails if this actor is lost."""
        self._is_released.wait()

    def release(self) -> None:
        """End `hold` without a failure."""
        self._is_released.set()


def _find_pod(resources: Mapping[str, float]) -> str:
    """Return a slice's own resource, by the resources of its first worker.

    It has the slice's name, and only the slice's workers have it.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from ray.util.accelerators import tpu

        if (name := tpu.get_current_pod_name()) in resources:
            return str(name)
    names = [
        name for name in resources if name not in _NODE_RESOURCES and not _NEVER_A_SLICE.match(name)
    ]
    if len(names) != 1:
        raise RuntimeError(
            "the resource that the workers of this slice share is unknown: "
            + ", ".join(sorted(names))
        )
    return names[0]


@ray.remote(num_cpus=0, max_retries=0, max_calls=1)
def run_worker(
    head: Any,
    rank: int,
    argv: list[str],
    environment: dict[str, str],
    container: dict[str, Any] | None,
) -> tuple[int, bool, str]:
    """Run the command on this worker.

    Return its exit status, whether its machine is preempted, and its address.
    """
    head.add_started.remote(rank)
    # The package is unpacked on each node, in a folder of its own.
    folder = os.getcwd()
    paths = [environment.get("PYTHONPATH") or os.environ.get("PYTHONPATH")]
    if os.path.exists(_LIBRARY):
        paths.insert(0, os.path.abspath(_LIBRARY))
    path = os.pathsep.join(filter(None, paths))
    environment = {**environment, "PYTHONPATH": path, _PACKAGE: folder}
    address = ray.util.get_node_ip_address()
    name = ""
    if container:
        # One name per machine: the container of an earlier attempt is removed, of whichever rank.
        name = f"{container['name']}-{address.replace(':', '-')}"
        # /tmp is bound already.
        own_binds = [] if folder.startswith("/tmp/") else [f"{folder}:{folder}"]
        container = {**container, "name": name, "binds": [*container["binds"], *own_binds]}
        for made in container["made"]:
            with contextlib.suppress(OSError):
                os.makedirs(made, exist_ok=True)
        argv = [*command.container_argv(container, environment), *argv]
    code = command.run(
        argv, environment, node=ray.get_runtime_context().get_node_id(), container=name
    )
    return code, code != 0 and command.is_preempted(), address


@dataclass
class Slice:
    """An acquired slice: its actor, its resource, and the reference that is ready once it is lost.

    `places`: (address, port, node ID) of its workers, the head's first.
    """

    head: Any
    pod: str
    places: list[tuple[str, int, str]]
    lock: Any

    def release(self) -> None:
        self.head.release.remote()
        ray.wait([self.lock], timeout=_CONNECT_SECONDS)
        ray.kill(self.head)


class SliceRun:
    """Run of a request, from its first attempt to its last."""

    def __init__(
        self, request: Mapping[str, Any], publish: Callable[[SliceRunStatus], None]
    ) -> None:
        self.request = request
        self.sizes: Sequence[int] = request["num_slices"]
        self.workers: int = request["workers"]
        self.attempts = Attempts(request["retries_preemption"], request["retries_failure"])
        self.size = 0
        self.changed_at = time.monotonic()
        self.checked_at = self.changed_at
        self.status = SliceRunStatus(self.workers, request["tpus"])
        self.publish = publish
        # Slices already acquired for the next, larger attempt.
        self.additional: list[Slice] = []

    def run(self) -> int:
        """Run attempts until one succeeds or none is left, and return the exit status."""
        status = self.status
        remaining: list[Slice] = []
        while True:
            slices = self.acquire(remaining)
            status.slices = [acquired.pod for acquired in slices]
            status.nodes = [address for acquired in slices for address, _, _ in acquired.places]
            status.waiting = ""
            status.began = time.time()
            status.ended = {}
            began = time.monotonic()
            self.publish(status)
            self.report(f": {self.attempts.counts}, on {', '.join(status.slices)}")
            try:
                outcome = self.attempt(slices)
            finally:
                # A growing run keeps its slices and adds the new ones.
                remaining = [*slices, *self.additional] if self.additional else []
                self.additional = []
                if not remaining:
                    for acquired in slices:
                        acquired.release()
            time.sleep(_LAST_LINES_SECONDS)
            status.waiting = ""
            if outcome.kind == SUCCEEDED:
                self.publish(status)
                self.report(f" succeeded; {self.attempts.counts}")
                return 0
            status.past.append(self.report(f" {outcome.kind}: {outcome.worker}, {outcome.text}"))
            # A growing run continues at once with the slices that it has.
            seconds = math.inf if remaining else time.monotonic() - began
            self.attempts = self.attempts.after(outcome, seconds)
            status.preempted = self.attempts.preempted
            status.failed = self.attempts.failed
            if self.attempts.is_over:
                self.publish(status)
                report(f"no further attempt: {self.attempts.counts}")
                return outcome.code or 1
            status.attempt = self.attempts.number
            status.ended = {}
            status.slices = ()
            status.nodes = ()
            pause = self.attempts.pause_seconds
            self.publish_waiting(
                f"attempt {self.attempts.number} starts in {pause:.0f} s"
                if pause
                else "waiting for slices"
            )
            time.sleep(pause)

    def report(self, text: str) -> str:
        """Report a text about the present attempt, and return it."""
        text = f"attempt {self.attempts.number}{text}"
        report(text)
        return text

    def publish_waiting(self, text: str) -> None:
        self.status.waiting = text
        self.publish(self.status)

    def acquire(self, remaining: Sequence[Slice]) -> list[Slice]:
        """Acquire as many slices as are available of the requested sizes, or keep `remaining`.

        Waits for the smallest size, and reports so. Slices that do not suffice are released again
        and again: another waiting run may hold the others.
        """
        acquired = list(remaining)
        pending = {} if remaining else self._request_slices(max(self.sizes))
        # Heads of slices with missing workers: while one is held, the next request gets another.
        unusable: list[Any] = []
        problems: dict[str, None] = {}
        began = time.monotonic()
        acquired_at = began
        pause = _FIRST_WAIT_SECONDS
        # A run that can grow soon need not wait for more.
        gather = min(_GATHER_SECONDS, self.request["grow_every"])
        while pending:
            ready, _ = ray.wait(list(pending), timeout=gather if acquired else pause)
            for reference in ready:
                head = pending.pop(reference)
                try:
                    result = self._check_slice(head, reference)
                except ray.exceptions.RayError as error:
                    result = f"a slice cannot be used: {_error_text(error)}"
                else:
                    if isinstance(result, str):
                        unusable.append(head)
                        pending |= self._request_slices(1)
                if isinstance(result, str):
                    report(result)
                    problems[result] = None
                else:
                    acquired.append(result)
                    acquired_at = time.monotonic()
            is_enough = largest_size(self.sizes, len(acquired)) is not None
            if len(acquired) >= max(self.sizes) or (is_enough and not (ready and pending)):
                break
            if ready and pending:
                continue
            text = self._format_waiting(len(acquired), time.monotonic() - began)
            self.publish_waiting("; ".join((*problems, text)))
            report(text)
            pause = min(2 * pause, _WAIT_SECONDS)
            is_held_long = bool(acquired) and time.monotonic() - acquired_at >= gather
            requested = 0 if is_held_long else max(self.sizes) - len(acquired)
            for head in (*unusable, *map(pending.pop, list(pending)[requested:])):
                ray.kill(head)
            unusable.clear()
            problems.clear()
            if is_held_long:
                for held in acquired:
                    held.release()
                acquired = []
            if not pending:
                time.sleep(random.uniform(pause / 2, pause))
                pending = self._request_slices(max(self.sizes) - len(acquired))
        size = largest_size(self.sizes, len(acquired)) or 0
        for head in (*pending.values(), *unusable):
            ray.kill(head)
        for held in acquired[size:]:
            held.release()
        if size != self.size:
            self.size = size
            self.changed_at = time.monotonic()
        return acquired[:size]

    def _format_waiting(self, acquired: int, seconds: float) -> str:
        cluster = ray.cluster_resources()
        types = sorted({match[1] for name in cluster if (match := HEAD_RESOURCE.fullmatch(name))})
        kind = self.request["slice"]
        head = self.request["head_resource"]
        text = format_waiting(
            min(self.sizes),
            kind,
            acquired=acquired,
            free=int(ray.available_resources().get(head, 0)),
            total=int(cluster.get(head, 0)),
            types=similar_types(kind, types),
        )
        return f"{text}, after {seconds / 60:.0f} min"

    def _request_slices(self, count: int) -> dict[Any, Any]:
        """Return the requested heads of slices, by the reference of their descriptions."""
        actor: Any = SliceHead
        resources = {self.request["head_resource"]: 1}
        heads = [actor.options(resources=resources).remote() for _ in range(count)]
        return {head.describe.remote(): head for head in heads}

    def _check_slice(self, head: Any, reference: Any) -> Slice | str:
        """Return a slice with all its workers, or its problem.

        Raises RayError if its head was lost.
        """
        described = ray.get(reference)
        # A lost node stays listed for a while.
        workers = sum(
            _accepts_connections(address, port) for address, port, _ in described["places"]
        )
        problem: str = slice_problem(described, workers, self.request)
        return problem or Slice(head, described["pod"], described["places"], head.hold.remote())

    def attempt(self, slices: Sequence[Slice]) -> Outcome:
        """Run the command on every worker; the first that does not succeed ends the others."""
        tasks = self._start_workers(slices)
        locks = {acquired.lock: acquired.pod for acquired in slices}
        outcomes: list[Outcome] = []
        began = time.monotonic()
        published = began
        have_started = False

        def add_outcome(reference: Any, timeout: float | None = None) -> None:
            rank = tasks.pop(reference)
            outcome, node = _outcome(
                reference, f"worker {rank} on {slices[rank // self.workers].pod}", timeout
            )
            if timeout is not None and outcome.kind == FAILED:
                # Its command was killed before its task.
                outcome = replace(outcome, kind=CANCELLED)
            self.status.ended[rank] = (outcome.kind, outcome.text, outcome.code, node)
            if outcome.kind in (FAILED, PREEMPTED):
                self.report(f": {outcome.worker} {outcome.kind}: {outcome.text}")
            outcomes.append(outcome)

        check_seconds = _CHECK_SECONDS
        if self.size != max(self.sizes):
            check_seconds = min(_CHECK_SECONDS, self.request["grow_every"])
        while tasks:
            references = [*tasks, *locks]
            ready, _ = ray.wait(references, timeout=check_seconds)
            if ready:
                ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
            for reference in ready:
                if reference in locks:
                    # Another job may have the slice by now.
                    outcome, _ = _outcome(reference, f"the lock of {locks.pop(reference)}")
                    outcomes.append(outcome)
                    self.report(f": {outcome.worker} is lost: {outcome.text}")
                else:
                    add_outcome(reference)
            if not ready:
                if lost := self.lost_slice(slices):
                    outcomes.append(Outcome(PREEMPTED, lost, "lost workers"))
                elif self.should_grow() and self.grow():
                    names = ", ".join(acquired.pod for acquired in self.additional)
                    outcomes.append(Outcome(PREEMPTED, names, "continues with more slices"))
                elif not have_started and time.monotonic() - began >= _WAIT_SECONDS:
                    have_started = self.have_started(slices, list(tasks.values()))
            if any(outcome.kind != SUCCEEDED for outcome in outcomes):
                for reference in tasks:
                    ray.cancel(reference, force=True)
                if tasks:
                    ray.wait(list(tasks), num_returns=len(tasks), timeout=_WAIT_SECONDS)
                for reference in list(tasks):
                    add_outcome(reference, timeout=1)
                break
            if time.monotonic() - published >= _PUBLISH_SECONDS:
                published = time.monotonic()
                self.publish(self.status)
        outcome = verdict(outcomes)
        if outcome.kind == FAILED:
            return self.hidden_preemption(slices) or outcome
        return outcome

    def _start_workers(self, slices: Sequence[Slice]) -> dict[Any, int]:
        """Start the workers' tasks, and return their ranks by the reference of the task."""
        addresses = [acquired.places[0][0] for acquired in slices]
        tpus = self.request["tpus"]
        tasks = {}
        for index, acquired in enumerate(slices):
            for rank, (_, _, node) in enumerate(acquired.places, index * self.workers):
                # Rank 0 has to be on MASTER_ADDR.
                worker = run_worker.options(
                    resources={acquired.pod: 1, **({"TPU": tpus} if tpus else {})},
                    name=task_name(self.attempts.number, rank),
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                )
                reference = worker.remote(
                    acquired.head,
                    rank,
                    self.request["argv"],
                    self.variables(rank, addresses, index),
                    self.request["container"],
                )
                tasks[reference] = rank
        return tasks

    def hidden_preemption(self, slices: Sequence[Slice]) -> Outcome | None:
        """Return the preemption behind a failed attempt; None if no node is lost.

        Peers fail before Ray notices a dead node.
        """
        until = time.monotonic() + _NOTICE_SECONDS
        while not (lost := self.lost_slice(slices, is_probed=True)):
            if time.monotonic() >= until:
                return None
            time.sleep(1)
        return Outcome(PREEMPTED, lost, "lost workers, and their peers failed")

    def lost_slice(self, slices: Sequence[Slice], *, is_probed: bool = False) -> str:
        """Return a slice that has lost a node; '' for none.

        `is_probed`: a node that does not accept connections is lost.
        """
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for acquired in slices:
            for address, port, node in acquired.places:
                if node not in alive or (is_probed and not _accepts_connections(address, port)):
                    return acquired.pod
        return ""

    def have_started(self, slices: Sequence[Slice], unfinished: Sequence[int]) -> bool:
        """Whether all unfinished workers have started; publish which have not."""
        references = [acquired.head.started.remote() for acquired in slices]
        try:
            started = ray.get(references, timeout=_CONNECT_SECONDS)
        except ray.exceptions.RayError:
            return False
        text = format_not_started(sorted(set(unfinished).difference(*started)))
        if text != self.status.waiting:
            self.report(f": {text or 'all workers have started'}")
            self.publish_waiting(text)
        return not text

    def should_grow(self) -> bool:
        """Whether a larger size is free, and it is time to check.

        Growth counts as a preemption, and repeats the work of workers that have ended.
        """
        if not self.attempts.may_be_preempted or self.status.ended:
            return False
        now = time.monotonic()
        if not is_growth_due(
            self.sizes,
            self.size,
            changed_at=self.changed_at,
            checked_at=self.checked_at,
            now=now,
            after=self.request["grow_after"],
            every=self.request["grow_every"],
        ):
            return False
        self.checked_at = now
        free = ray.available_resources().get(self.request["head_resource"], 0)
        return (largest_size(self.sizes, self.size + int(free)) or 0) > self.size

    def grow(self) -> bool:
        """Acquire `additional` slices for the largest available size; return whether there are
        any.
        """
        pending = self._request_slices(max(self.sizes) - self.size)
        acquired: list[Slice] = []
        until = time.monotonic() + _GROW_SECONDS
        while pending and (left := until - time.monotonic()) > 0:
            ready, _ = ray.wait(list(pending), timeout=left)
            for reference in ready:
                head = pending.pop(reference)
                with contextlib.suppress(ray.exceptions.RayError):
                    result = self._check_slice(head, reference)
                    if isinstance(result, Slice):
                        acquired.append(result)
                    else:
                        ray.kill(head)
        size = largest_size(self.sizes, self.size + len(acquired)) or self.size
        self.additional = acquired[: size - self.size]
        for head in pending.values():
            ray.kill(head)
        for held in acquired[len(self.additional) :]:
            held.release()
        return bool(self.additional)

    def variables(self, rank: int, addresses: Sequence[str], index: int) -> dict[str, str]:
        """Return the environment variables of a worker's command.

        `addresses`: of the first worker of each slice; `index`: of the worker's slice.
        """
        count = str(len(addresses) * self.workers)
        return {
            "PYTHONUNBUFFERED": "1",
            **self.request["environment"],
            **slice_variables(index, addresses),
            "RANK": str(rank),
            "WORLD_SIZE": count,
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": str(rank),
            "NUM_NODES": count,
            "MASTER_ADDR": addresses[0],
            "MASTER_PORT": _MASTER_PORT,
            "HPCDASH_ATTEMPT": str(self.attempts.number),
            "HPCDASH_JOB_ID": submission_id(),
        }


def _accepts_connections(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _outcome(reference: Any, worker: str, timeout: float | None = None) -> tuple[Outcome, str]:
    """Return the outcome of a worker, and its node's address, '' if that is unknown."""
    try:
        code, is_preempted, node = ray.get(reference, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        return Outcome(CANCELLED, worker, "did not end in time"), ""
    except ray.exceptions.RayError as error:
        return error_outcome(worker, _names(error), _error_text(error)), ""
    return exit_outcome(worker, code, is_preempted=is_preempted), node


def _names(error: Exception) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]


def _error_text(error: Exception) -> str:
    text: str = error_text(_names(error), str(error))
    return text


def submission_id() -> str:
    """Return the ID of this driver's submission; '' if it was not submitted."""
    try:
        return str(json.loads(os.environ.get(_JOB_CONFIG, "{}"))["metadata"]["job_submission_id"])
    except (ValueError, KeyError, TypeError):
        return ""


class Publisher:
    """Writes the run's record into the metadata of its job, until that fails."""

    def __init__(self, job: str) -> None:
        self._key = f"{_RECORD_KEY}{job}".encode() if job else b""

    def __call__(self, status: SliceRunStatus) -> None:
        if not self._key:
            return
        try:
            from ray.experimental import internal_kv

            job = internal_kv._internal_kv_get(self._key, namespace=_RECORD_NAMESPACE)
            record = None if job is None else with_record(job, status.record())
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
    """Exit at a signal: Ray ends the workers with the driver."""
    # print raises if the signal interrupted another print.
    os.write(1, b"hpcdash: stopped\n")
    os._exit(128 + number)


def main() -> int:
    with open("request.json", encoding="utf-8") as file:
        request = json.load(file)
    sys.stdout = LabelledStream(sys.stdout)
    sys.stderr = LabelledStream(sys.stderr)
    ray.init(logging_level="ERROR")
    # Ray's own handler prints the stacks of its threads.
    signal.signal(signal.SIGTERM, _stop)
    return SliceRun(request, Publisher(submission_id())).run()


if __name__ == "__main__":
    sys.exit(main())
