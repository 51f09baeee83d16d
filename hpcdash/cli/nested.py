"""Commands that run inside a server: on its event loop and sessions, with their output captured."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hpcdash.services.session import ClusterSession
    from hpcdash.transport.pool import ConnectionPool

T = TypeVar("T")


class NestedCall:
    """One command inside a server, in a thread; its coroutines run on the server's loop.

    `sessions`, by their clusters' names, and `pool` are the server's.
    """

    def __init__(self, pool: ConnectionPool, sessions: dict[str, ClusterSession]) -> None:
        self.pool = pool
        self.sessions = sessions
        self.stdout = _captured()
        self.stderr = _captured()
        self._loop = asyncio.get_running_loop()
        self._running: concurrent.futures.Future[Any] | None = None
        self._is_cancelled = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the server's loop, from the command's thread."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running = future
        if self._is_cancelled:
            future.cancel()
        return future.result()

    def cancel(self) -> None:
        """Cancel what runs, and what the command would run later."""
        self._is_cancelled = True
        if self._running is not None:
            self._running.cancel()

    @property
    def output(self) -> bytes:
        return _content(self.stdout)

    @property
    def notes(self) -> list[str]:
        """Lines on stderr."""
        lines = _content(self.stderr).decode("utf-8", "replace").splitlines()
        return [line.removeprefix("hpcdash: ") for line in lines if line.strip()]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current call of the calling task or thread."""
        before = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(before)


_CURRENT: ContextVar[NestedCall | None] = ContextVar("_CURRENT", default=None)


def current_call() -> NestedCall | None:
    """Return the call that this code belongs to; None outside a server."""
    return _CURRENT.get()


@contextmanager
def captured_streams() -> Iterator[None]:
    """Write the stdout and stderr of nested calls into those calls."""
    own = (sys.stdout, sys.stderr)
    sys.stdout = _Routed("stdout", own[0])
    sys.stderr = _Routed("stderr", own[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = own


class _Routed:
    """Stream of the current call, or the process's own outside of one."""

    def __init__(self, name: str, own: Any) -> None:
        self._name = name
        self._own = own

    def __getattr__(self, attribute: str) -> Any:
        call = _CURRENT.get()
        stream = self._own if call is None else getattr(call, self._name)
        return getattr(stream, attribute)


def _captured() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)


def _content(stream: io.TextIOWrapper) -> bytes:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue()
