"""A concurrent.futures.Executor whose calls run as jobs, for use with joblib, dask and others."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from hpcdash.client.cluster import Cluster, connect_aside
from hpcdash.client.job import SubmittedJob
from hpcdash.client.loop import run_in_loop, start_in_loop
from hpcdash.client.packaging import dumps, is_by_value, refuse_import_time
from hpcdash.domain.array_tasks import MAX_TASKS
from hpcdash.errors import HpcdashError
from hpcdash.job.pickles import CallEach
from hpcdash.job.task import Task

R = TypeVar("R")
# Calls within this time become one array.
_GATHER_SECONDS = 0.25
_MAX_TASKS = min(1000, MAX_TASKS)


class Executor(concurrent.futures.Executor):
    """Runs functions as jobs of a cluster; `options` are those of hpcdash.task.

    Calls in quick succession become the tasks of one array, `at_most` of which run at once. A
    future can be cancelled until its array is submitted. If an exception leaves the `with` block,
    the jobs are cancelled.
    """

    def __init__(
        self,
        cluster: Cluster | str = "",
        *,
        at_most: int | None = None,
        **options: Any,
    ) -> None:
        self.cluster = cluster if isinstance(cluster, Cluster) else connect_aside(cluster)
        self._owns_cluster = not isinstance(cluster, Cluster)
        self._at_most = at_most
        # dask submits up to this number of calls at once.
        self._max_workers = at_most or _MAX_TASKS
        self._options = options
        self._gathered: list[tuple[bytes, _Call]] = []
        self._lock = threading.Lock()
        self._flushing: Future[None] | None = None
        self._is_shut = False
        self._calls: set[_Call] = set()
        self._units: list[SubmittedJob] = []
        self._watching: set[asyncio.Task[None]] = set()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Return the future of a call. Raises UsageError for arguments that cannot be pickled."""
        function: Any = fn.function if isinstance(fn, CallEach) else fn
        if isinstance(function, Task):
            function = function.function
        refuse_import_time(function)
        content = dumps((fn, args, kwargs), by_value=is_by_value(function))
        future = _Call(function)
        with self._lock:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._gathered.append((content, future))
            self._calls.add(future)
            if self._flushing is None or self._flushing.done():
                self._flushing = start_in_loop(self._gather())
        return future

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        **_more: Any,
    ) -> Iterator[R]:
        """Implement concurrent.futures.Executor.map; `chunksize` calls are one task."""
        if chunksize > 1:
            chunks = _chunks(zip(*iterables, strict=False), chunksize)
            results = super().map(CallEach(fn), chunks, timeout=timeout)
            return itertools.chain.from_iterable(results)
        return super().map(fn, *iterables, timeout=timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new calls, and `wait` for the others; `cancel_futures` cancels their arrays."""
        with self._lock:
            self._is_shut = True
            calls = list(self._calls)
        if cancel_futures:
            for call in calls:
                call.cancel()
            run_in_loop(self._cancel())
        if wait:
            if self._flushing is not None:
                concurrent.futures.wait([self._flushing])
            concurrent.futures.wait(calls)
            if self._owns_cluster:
                self.cluster.close()

    def __exit__(self, kind: Any, *_: object) -> None:
        self.shutdown(wait=kind is None, cancel_futures=kind is not None)

    # -- event loop

    async def _gather(self) -> None:
        while True:
            count = -1
            # The array grows while more calls arrive.
            while count != len(self._gathered) and len(self._gathered) < _MAX_TASKS:
                count = len(self._gathered)
                await asyncio.sleep(_GATHER_SECONDS)
            with self._lock:
                some = self._gathered[:_MAX_TASKS]
                self._gathered = self._gathered[_MAX_TASKS:]
                if not some:
                    self._flushing = None
                    return
            await self._submit(some)

    async def _submit(self, some: list[tuple[bytes, _Call]]) -> None:
        """Submit an array per module of functions; the futures raise errors of the submission."""
        by_code: dict[tuple[str, bool], list[tuple[bytes, _Call]]] = {}
        for content, call in some:
            if call.set_running_or_notify_cancel():
                module = str(getattr(call.function, "__module__", ""))
                by_code.setdefault((module, is_by_value(call.function)), []).append((content, call))
            else:
                self._calls.discard(call)
        for packed_calls in by_code.values():
            contents = [content for content, _ in packed_calls]
            calls = [call for _, call in packed_calls]
            task: Task[Any, Any] = Task(calls[0].function, self._options)
            try:
                array = await self.cluster.submit_packed(task, contents, self._at_most)
            except Exception as error:
                for call in calls:
                    call.set_exception(error)
                    self._calls.discard(call)
                continue
            self._units.append(array)
            watching = asyncio.create_task(
                self._watch(array, calls), name=f"futures of {array.tracked.job_id}"
            )
            self._watching.add(watching)
            watching.add_done_callback(self._watching.discard)

    async def _cancel(self) -> None:
        for unit in [*self._units]:
            if not unit.tracked.is_over:
                # The job may finish first.
                with contextlib.suppress(HpcdashError):
                    await self.cluster.cancel_jobs((unit.tracked.job_id,))

    async def _watch(self, unit: SubmittedJob, calls: list[_Call]) -> None:
        remaining = dict(enumerate(calls))
        try:
            while remaining:
                for index in await unit.wait_for_any_result(remaining):
                    call = remaining.pop(index)
                    try:
                        result = await unit.value(index, None)
                    except Exception as error:
                        call.set_exception(error)
                    else:
                        call.set_result(result)
                    self._calls.discard(call)
        except BaseException as error:
            is_error = isinstance(error, Exception)
            reason = error if is_error else RuntimeError("the cluster was closed")
            for call in remaining.values():
                call.set_exception(reason)
                self._calls.discard(call)
            if not is_error:
                raise


class _Call(Future[Any]):
    """The future of a call of `function`, whose module's code its job has."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function


def _chunks(each: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    remaining = iter(each)
    while chunk := list(itertools.islice(remaining, size)):
        yield chunk
