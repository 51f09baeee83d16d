"""A concurrent.futures.Executor whose calls run as jobs: joblib, dask and the like can take it."""

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
# Calls that come within this time go as one array.
_GATHER_SECONDS = 0.25
_MAX_TASKS = min(1000, MAX_TASKS)


class Executor(concurrent.futures.Executor):
    """Runs functions as jobs of a cluster; `options` are those of hpcdash.task.

    Calls that come soon after each other are the tasks of one array, `at_most` of which run at
    once. A future can be cancelled until its array is submitted; where a `with` block is left by an
    exception, the jobs are cancelled.
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
        # dask hands over as many calls at once.
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
        """A future of one call. Raises UsageError for arguments that cannot be pickled."""
        of = fn.function if isinstance(fn, CallEach) else fn
        function = of.function if isinstance(of, Task) else of
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
            return (one for chunk in results for one in chunk)
        return super().map(fn, *iterables, timeout=timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; `wait` for those there are.

        `cancel_futures` cancels them, and the arrays they are in.
        """
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
            # While more come there is one array to be made of them.
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
        """An array for each module that functions are of; what keeps it from being submitted is
        what futures raise.
        """
        by_code: dict[tuple[str, bool], list[tuple[bytes, _Call]]] = {}
        for content, call in some:
            if call.set_running_or_notify_cancel():
                module = str(getattr(call.function, "__module__", ""))
                by_code.setdefault((module, is_by_value(call.function)), []).append((content, call))
            else:
                self._calls.discard(call)
        for those in by_code.values():
            calls = [call for _, call in those]
            task: Task[Any, Any] = Task(calls[0].function, self._options)
            try:
                array = await self.cluster.submit_packed(
                    task, [content for content, _ in those], self._at_most
                )
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
        for unit in [unit for unit in self._units if not unit.tracked.is_over]:
            # A finished job cannot be cancelled.
            with contextlib.suppress(HpcdashError):
                await self.cluster.cancel_jobs((unit.tracked.job_id,))

    async def _watch(self, unit: SubmittedJob, calls: list[_Call]) -> None:
        left = dict(enumerate(calls))
        try:
            while left:
                for index in await unit.wait_for_any_result(left):
                    call = left.pop(index)
                    try:
                        result = await unit.value(index, None)
                    except Exception as error:
                        call.set_exception(error)
                    else:
                        call.set_result(result)
                    self._calls.discard(call)
        except BaseException as error:
            for call in left.values():
                call.set_exception(
                    error
                    if isinstance(error, Exception)
                    else RuntimeError("the cluster was closed")
                )
                self._calls.discard(call)
            if not isinstance(error, Exception):
                raise


class _Call(Future[Any]):
    """The future of one call of `function`, of whose module its job has the code."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function


def _chunks(each: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    rest = iter(each)
    while some := list(itertools.islice(rest, size)):
        yield some
