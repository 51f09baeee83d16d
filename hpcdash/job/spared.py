"""Survival of child processes at a signal to the whole step, such as Slurm's warning.

A program that is started inherits no handler of Python: a signal that its parent handles ends it.
It does inherit blocked signals. A signal that arrives while this process blocks it for the start is
not lost: it is delivered right after.
"""

from __future__ import annotations

from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

# Signals to block, once for each caller of spare_workers_from.
_spared: list[int] = []
_has_wrapped = False


def spare_workers_from(numbers: Iterable[int]) -> None:
    """Block these signals in processes that multiprocessing starts by spawn or forkserver."""
    global _has_wrapped
    _spared.extend(numbers)
    if _has_wrapped or not _spared:
        return
    from multiprocessing import util

    # This function starts workers, the fork server and the resource tracker; no hook precedes it.
    start: Any = getattr(util, "spawnv_passfds", None)
    if start is None:
        return

    def start_spared(*args: Any, **kwargs: Any) -> Any:
        with blocked(_spared):
            return start(*args, **kwargs)

    vars(util)["spawnv_passfds"] = start_spared
    _has_wrapped = True


def spare_no_longer(numbers: Iterable[int]) -> None:
    """Undo a `spare_workers_from`."""
    for number in numbers:
        _spared.remove(number)


@contextmanager
def blocked(numbers: Iterable[int]) -> Iterator[None]:
    """Block signals for this thread until the block ends, and for what it starts meanwhile."""
    import signal

    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(numbers))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_in_worker(numbers: Iterable[int]) -> None:
    """Unblock signals in a process that multiprocessing started, where its parent blocked them."""
    import signal
    import sys

    process: Any = sys.modules.get("multiprocessing.process")
    if process is None:
        return
    # The main module of a worker is imported before the worker knows its parent.
    is_inheriting = getattr(process.current_process(), "_inheriting", False)
    if is_inheriting or process.parent_process() is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, set(numbers))
