"""Survival of child processes at a signal to the whole step, such as Slurm's warning.

Handles no signal itself.

A handler of Python's is gone in a program that is started: a signal handled before ends it by
default. Blocked stays blocked, and a signal blocked for the moment of the start is not lost: here
it is delivered right after.
"""

from __future__ import annotations

from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

# Signals, once for each user of them.
_spared: list[int] = []
_has_wrapped = False


def spare_workers_from(numbers: Iterable[int]) -> None:
    """Block these signals in processes that multiprocessing starts by spawn or forkserver."""
    global _has_wrapped
    _spared.extend(numbers)
    if _has_wrapped or not _spared:
        return
    from multiprocessing import util

    # Workers, the fork server and the resource tracker are all started by this one; no hook is
    # called before it.
    start: Any = getattr(util, "spawnv_passfds", None)
    if start is None:
        return

    def start_spared(*given: Any, **named: Any) -> Any:
        with blocked(_spared):
            return start(*given, **named)

    vars(util)["spawnv_passfds"] = start_spared
    _has_wrapped = True


def spare_no_longer(numbers: Iterable[int]) -> None:
    """Takes back one `spare_workers_from`."""
    for number in numbers:
        _spared.remove(number)


@contextmanager
def blocked(numbers: Iterable[int]) -> Iterator[None]:
    """Signals that this thread, and what it starts, does not get; this thread does when the block
    ends.
    """
    import signal

    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(numbers))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_in_worker(numbers: Iterable[int]) -> None:
    """In a process that multiprocessing started, lets signals through that its parent spared it
    from.
    """
    import signal
    import sys

    process: Any = sys.modules.get("multiprocessing.process")
    if process is None:
        return
    # Its main module is imported before it knows its parent.
    is_begun = process.parent_process() is not None or getattr(
        process.current_process(), "_inheriting", False
    )
    if is_begun:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, set(numbers))
