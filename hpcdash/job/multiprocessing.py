"""Starts a training's processes on a node, one for each GPU, each on the CPUs of a NUMA node."""

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
# Time for the other processes to end at TERM after a failure.
_PATIENCE_SECONDS = 10.0
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def spawn(
    main: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = 1, bind_numa: bool = True
) -> None:
    """Call `main(number, *args)` in `nprocs` new processes, numbered from 0, and wait for them.

    `main` is a module-level function, and the program calls `spawn` under `if __name__ ==
    "__main__":`. With `bind_numa`, process i gets the job's CPUs on NUMA node i × nodes / nprocs,
    as GPUs are numbered on most hosts, and allocates that node's memory. A single NUMA node is left
    as it is.

    If a process fails, the others are ended, and RuntimeError names it and its exit; its traceback
    is on stderr. TERM, USR1 and USR2 are passed on to all processes, and `spawn` keeps waiting, so
    that a save has all the time that the scheduler allows.
    """
    from multiprocessing import connection, get_context

    context = get_context("spawn")
    numa_nodes = _numa_nodes() if bind_numa else []
    running: dict[int, SpawnProcess] = {}
    fatal_signal = 0
    try:
        with _signals_passed_on(running) as passed_on:
            for number in range(nprocs):
                cpus = None
                if len(numa_nodes) > 1:
                    cpus = numa_nodes[number * len(numa_nodes) // nprocs]
                process = context.Process(
                    target=_run, args=(main, number, tuple(args), cpus, os.getpid())
                )
                process.start()
                running[number] = process
                # A signal during the start reached only the processes before this one.
                for earlier in tuple(passed_on):
                    _send_signal(process, earlier)
            while running:
                sentinels = connection.wait([process.sentinel for process in running.values()])
                for number, process in list(running.items()):
                    if process.sentinel not in sentinels:
                        continue
                    del running[number]
                    process.join()
                    if process.exitcode and -process.exitcode in passed_on:
                        fatal_signal = -process.exitcode
                    elif process.exitcode:
                        exit_text = _format_exit(process.exitcode)
                        raise RuntimeError(f"process {number} of {nprocs} {exit_text}")
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join(_PATIENCE_SECONDS)
            process.kill()
            process.join()
    if fatal_signal:
        # The parent gets the same exit status as without child processes.
        os.kill(os.getpid(), fatal_signal)


@contextmanager
def _signals_passed_on(running: dict[int, SpawnProcess]) -> Iterator[set[int]]:
    """Pass signals that would end this process on to `running`, which may have to finish a save.

    Yields the signals passed on so far.
    """
    import signal
    import threading

    passed_on: set[int] = set()

    def pass_on(number: int, _: object) -> None:
        passed_on.add(number)
        for process in list(running.values()):
            _send_signal(process, number)

    caught = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, pass_on)
                caught.append(number)
    try:
        yield passed_on
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def _send_signal(process: SpawnProcess, number: int) -> None:
    if process.pid is not None:
        os.kill(process.pid, number)


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
    """Have the kernel end this process when its parent is killed: it would occupy its GPU."""
    import ctypes
    import signal

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def _format_exit(code: int) -> str:
    import signal

    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"failed with exit status {code}"


def _numa_nodes() -> list[list[int]]:
    """Return the CPUs that this process may use, for each NUMA node; [] if they are unknown."""
    import re

    from hpcdash.job.context import expand_hosts

    found = {}
    try:
        allowed = os.sched_getaffinity(0)
        for name in os.listdir(_NUMA_NODES):
            number = re.fullmatch(r"node([0-9]+)", name)
            if number:
                with open(f"{_NUMA_NODES}/{name}/cpulist", encoding="ascii") as file:
                    # `0-3,8-11`, in the syntax of a list of hosts.
                    cpus = {int(cpu) for cpu in expand_hosts(f"[{file.read().strip()}]")}
                found[int(number[1])] = sorted(cpus & allowed)
    # macOS has no CPU affinities.
    except (AttributeError, OSError, ValueError) as error:
        warn(f"processes are not bound to NUMA nodes: {error}")
        return []
    return [cpus for _, cpus in sorted(found.items()) if cpus]
