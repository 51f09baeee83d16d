"""The event loop that all clusters of a program share, in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_starting = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def start_in_loop(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine in the loop."""
    global _loop, _thread
    with _starting:
        if _loop is None or _thread is None or not _thread.is_alive():
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_loop.run_forever, name="hpcdash", daemon=True)
            _thread.start()
    return asyncio.run_coroutine_threadsafe(work, _loop)


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, awaited in this thread; ctrl+c cancels it.

    Raises RuntimeError in the loop's own thread.
    """
    if threading.current_thread() is _thread:
        work.close()
        raise RuntimeError("this call would deadlock here: call it from another thread")
    future = start_in_loop(work)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


def finish_in_loop(work: Coroutine[Any, Any, object]) -> None:
    """Run a clean-up and wait for it, unless garbage collection runs it in the loop's thread."""
    if threading.current_thread() is _thread:
        start_in_loop(work)
    else:
        run_in_loop(work)


async def arun_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, awaited in another event loop."""
    return await asyncio.wrap_future(start_in_loop(work))
