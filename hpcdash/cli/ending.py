"""Exit of hpcdash on a signal, on ctrl+c, or after its terminal is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol, TypeVar

from hpcdash.cli.nested import current_call

GRACE_SECONDS = 5.0
T = TypeVar("T")


class EndedBySignal(SystemExit):
    """Exit with the shell's status for a program that a signal ended."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class Dashboard(Protocol):
    """Protocol of the dashboard that receives signals."""

    is_outside: bool

    def end_soon(self, number: int) -> bool: ...

    def restore_terminal(self) -> None: ...


def run_async(
    work: Coroutine[Any, Any, T], on_signal: Callable[[int], bool] = lambda number: False
) -> T:
    """Run like asyncio.run; SIGINT, SIGTERM, SIGHUP and SIGQUIT cancel the work.

    KeyboardInterrupt or EndedBySignal follows. A second signal, or work that takes too long to be
    cancelled, ends the process. `on_signal` receives each signal before, and returns True where
    the work itself handles its end. Inside a server, the work runs on its loop.
    """
    if (call := current_call()) is not None:
        return call.run(work)
    ended_by: list[int] = []

    async def watched() -> T:
        task = asyncio.current_task()
        assert task is not None

        def end(number: int) -> None:
            if ended_by:
                os._exit(128 + number)
            if number == signal.SIGHUP:
                leave_terminal()
            if on_signal(number):
                return
            ended_by.append(number)
            if number == signal.SIGINT and sys.stderr.isatty():
                # The next message overwrites the ^C that the terminal shows.
                sys.stderr.write("\r")
            exit_later(128 + number)
            task.cancel()

        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in _handled_signals(
                signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT
            ):
                loop.add_signal_handler(number, end, number)
        return await work

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        if not ended_by:
            raise
    finally:
        # asyncio leaves Python's own handler of SIGINT, and the system's of the others.
        if ended_by:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    if ended_by[0] == signal.SIGINT:
        raise KeyboardInterrupt
    raise EndedBySignal(ended_by[0])


@contextmanager
def ends_silently() -> Iterator[None]:
    """End a command that runs until ctrl+c without a message."""
    try:
        yield
    except KeyboardInterrupt:
        raise EndedBySignal(signal.SIGINT) from None


@contextmanager
def ends_with_signals(app: Dashboard) -> Iterator[None]:
    """End the app on a signal; a second signal, or an app that takes too long, ends the process."""
    ended_by: list[int] = []

    def exit_now(number: int) -> None:
        # The interrupted code may be in the middle of a write, which Python cannot re-enter.
        try:
            app.restore_terminal()
        finally:
            os._exit(128 + number)

    def end(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            # The terminal is gone, and cannot be restored.
            signal.signal(signal.SIGCONT, signal.SIG_IGN)
        elif ended_by:
            exit_now(number)
        ended_by.append(number)
        if not app.end_soon(number):
            raise EndedBySignal(number)
        # Wait for a pager or an editor.
        if number == signal.SIGHUP or not app.is_outside:
            exit_later(128 + number, app.restore_terminal)

    numbers = _handled_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_later(status: int, first: Callable[[], None] = lambda: None) -> None:
    """End the process after GRACE_SECONDS, whatever it is doing, and call `first` before."""

    def exit_now(number: int, frame: FrameType | None) -> None:
        try:
            first()
        finally:
            os._exit(status)

    signal.signal(signal.SIGALRM, exit_now)
    signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)


def leave_terminal() -> None:
    """Discard all further output to a terminal that is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        # A terminal that is gone is no longer a tty; files and pipes stay.
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
    os.close(nowhere)


def _handled_signals(*numbers: signal.Signals) -> list[signal.Signals]:
    """Return the signals that are not ignored.

    Under nohup or in a shell's background a program continues.
    """
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
