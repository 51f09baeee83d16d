"""Runs calls that may never return, such as a stat on a dead mount, in a separate thread."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Aside:
    """Thread for calls whose callers wait only so long; it is started with the first call.

    A call that is late goes on: the next caller gets its result, and no other call starts before.
    """

    def __init__(self) -> None:
        self._process = 0
        self._calls: Any = None
        self._is_late = False

    def answer(self, call: Callable[[], Any], wait_seconds: float, otherwise: Any) -> Any:
        """Return or raise the result of `call`; return `otherwise` after `wait_seconds`."""
        if self._process != os.getpid() and not self._has_started():
            return call()
        if not self._lock.acquire(timeout=wait_seconds):
            return otherwise
        try:
            if self._is_late:
                wait_seconds = 0.0
            else:
                self._is_late = True
                self._calls.put(call)
            try:
                value, error = self._answers.get(timeout=wait_seconds)
            except self._empty:
                return otherwise
            self._is_late = False
        finally:
            self._lock.release()
        if error is not None:
            raise error
        return value

    def __del__(self) -> None:
        if self._calls is not None:
            self._calls.put(None)

    def _has_started(self) -> bool:
        """Start the thread, also in a forked process, which has no threads of its parent.

        Returns whether it could be started.
        """
        from queue import Empty, SimpleQueue
        from threading import Lock, Thread

        calls: Any = SimpleQueue()
        answers: Any = SimpleQueue()
        try:
            Thread(target=_work, args=(calls, answers), name="hpcdash.job", daemon=True).start()
        except RuntimeError:
            # The user's limit of threads is reached, or the interpreter is about to end.
            return False
        self._calls = calls
        self._answers = answers
        self._empty = Empty
        self._lock = Lock()
        self._is_late = False
        self._process = os.getpid()
        return True


def _work(calls: Any, answers: Any) -> None:
    while True:
        call = calls.get()
        if call is None:
            return
        try:
            answers.put((call(), None))
        except BaseException as error:  # The caller raises it.
            answers.put((None, error))
