"""Starts a training's processes on a node, one per GPU, each on the CPUs of one NUMA node."""

from __future__ import annotations

import os
from contextlib import contextmanager

from hpcdash.job.warnings_once import warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.context import SpawnProcess
    from typing import Any

_NUMA_NODES = "/sys/devices/system/node"
# Time for the other processes to end at TERM, once one has failed.
_PATIENCE_SECONDS = 10.0
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def spawn(
    main: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = 1, bind_numa: bool = True
) -> None:
    """Calls `main(number, *args)` in `nprocs` new processes, numbered from 0, and waits for all of
    them.

    `main` is a module-level function, and the program calls `spawn` under `if __name__ ==
    "__main__":`. With `bind_numa`, process i gets the job's CPUs on NUMA node i × nodes / nprocs,
    as GPUs are numbered on most hosts, and allocates that node's memory. A single NUMA node is left
    as it is.

    If one process fails, the others are ended: RuntimeError says which one and how; its traceback
    is on stderr. TERM, USR1 and USR2 are passed on to all of them, and `spawn` keeps waiting, so a
    save has the time the scheduler gives.
    """
    from multiprocessing import connection, get_context

    context = get_context("spawn")
    cpus = _split_cpus(nprocs) if bind_numa else [None] * nprocs
    running: dict[int, SpawnProcess] = {}
    ended_by = 0
    try:
        with _signals_passed_on(running) as passed_on:
            for number in range(nprocs):
                process = context.Process(
                    target=_run, args=(main, number, tuple(args), cpus[number], os.getpid())
                )
                process.start()
                running[number] = process
            while running:
                ended = connection.wait([process.sentinel for process in running.values()])
                for number in [
                    number for number, process in running.items() if process.sentinel in ended
                ]:
                    process = running.pop(number)
                    process.join()
                    if process.exitcode and -process.exitcode in passed_on:
                        ended_by = -process.exitcode
                    elif process.exitcode:
                        raise RuntimeError(f"process {number} of {nprocs} {_end(process.exitcode)}")
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join(_PATIENCE_SECONDS)
            process.kill()
            process.join()
    if ended_by:
        # The parent sees the exit status as if this had no child processes of its own.
        os.kill(os.getpid(), ended_by)


@contextmanager
def _signals_passed_on(running: dict[int, SpawnProcess]) -> Iterator[set[int]]:
    """Has what would end this process go to those it waits for, who may have a save to end first.

    Gives what came.
    """
    import signal
    import threading

    passed_on: set[int] = set()

    def pass_on(number: int, _: object) -> None:
        passed_on.add(number)
        for process in list(running.values()):
            if process.pid is not None:
                os.kill(process.pid, number)

    names = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    caught = [one for one in names if signal.getsignal(one) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        caught = []
    for one in caught:
        signal.signal(one, pass_on)
    try:
        yield passed_on
    finally:
        for one in caught:
            signal.signal(one, signal.SIG_DFL)


def _run(
    main: Callable[..., Any],
    number: int,
    args: tuple[Any, ...],
    cpus: Sequence[int] | None,
    parent: int,
) -> None:
    _end_with(parent)
    if cpus:
        os.sched_setaffinity(0, cpus)
    main(number, *args)


def _end_with(parent: int) -> None:
    """Let the kernel end this process when its parent is killed, as it would keep its GPU."""
    import ctypes
    import signal

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def _end(code: int) -> str:
    import signal

    return (
        f"was killed by {signal.Signals(-code).name}"
        if code < 0
        else f"failed with exit status {code}"
    )


def _split_cpus(processes: int) -> list[list[int] | None]:
    """The CPUs of each process; None where there are no two NUMA nodes to choose from."""
    nodes = _numa_nodes()
    if len(nodes) < 2:
        return [None] * processes
    return [nodes[number * len(nodes) // processes] for number in range(processes)]


def _numa_nodes() -> list[list[int]]:
    """The CPUs that this process may use, by NUMA node; [] where that is not known."""
    import re

    from hpcdash.job.context import expand_hosts

    found = {}
    try:
        allowed = os.sched_getaffinity(0)
        for name in os.listdir(_NUMA_NODES):
            number = re.fullmatch(r"node([0-9]+)", name)
            if number:
                with open(f"{_NUMA_NODES}/{name}/cpulist", encoding="ascii") as file:
                    # `0-3,8-11`, as a list of hosts has it.
                    cpus = {int(cpu) for cpu in expand_hosts(f"[{file.read().strip()}]")}
                found[int(number[1])] = sorted(cpus & allowed)
    # macOS has no affinities.
    except (AttributeError, OSError, ValueError) as error:
        warn(f"processes are not bound to NUMA nodes: {error}")
        return []
    return [cpus for _, cpus in sorted(found.items()) if cpus]
