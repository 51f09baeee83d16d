"""A job's metrics followed through its logs, on an embedded queue whose jobs really run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hpcdash.backends.embedded.backend import EmbeddedBackend
from hpcdash.cli.build import queue_program
from hpcdash.errors import ConfigError, ConnectionFailed, NoSuchJob
from hpcdash.stores import metric_source, metrics
from hpcdash.stores.budget import CommandBudget
from hpcdash.stores.clock import SystemClock
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.metrics import WatchedRun
from hpcdash.transport.base import Completed
from hpcdash.transport.local import LocalTransport
from tests.local.queue_lab import QueueLab
from tests.local.queue_lab import until as queue_until
from tests.support.real_files import append, put


class CountingTransport(LocalTransport):
    """Counts reads that go on at once; raises what is in `failure` for them."""

    failure: Exception | None = None
    reads = 0
    at_once = most_at_once = 0

    async def run(self, argv: tuple[str, ...], **limits: Any) -> Completed:
        if argv[:2] != ("sh", "-c"):
            return await super().run(argv, **limits)
        self.reads += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.failure is not None:
                raise self.failure
            return await super().run(argv, **limits)
        finally:
            self.at_once -= 1


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueLab]:
    folder = tmp_path_factory.mktemp("metrics")
    lab = QueueLab(folder / "queue", folder / "work", cpus=64)
    yield lab
    lab.end()


@pytest.fixture
def transport() -> CountingTransport:
    return CountingTransport()


@pytest.fixture
async def store(queue: QueueLab, transport: CountingTransport) -> AsyncIterator[ClusterStore]:
    backend = EmbeddedBackend(queue_program(queue.folder))
    made = ClusterStore("here", transport, (backend,), clock=SystemClock(), budget=CommandBudget(1_000_000))
    await made.open()
    yield made
    await made.close()


def lines(first: int, last: int, loss: float = 5.0) -> bytes:
    return b"".join(b"step %d: loss %.4f\n" % (step, loss - step * 1e-5) for step in range(first, last))


def steps(run: WatchedRun, name: str = "loss") -> list[float]:
    return run.run.series(name).x.tolist()


async def until(holds: Callable[[], bool], seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def followed(run: WatchedRun) -> AsyncIterator[list[float]]:
    """The run followed; when it told of a change."""
    told: list[float] = []
    task = asyncio.create_task(run.follow(lambda: told.append(time.monotonic())))
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.wait({task})


def written(path: Path) -> None:
    """Wait until a job has begun to write: what it finds there it cuts."""
    queue_until(lambda: (path.exists() and path.stat().st_size > 0) or None, f"{path}")


def sleeping(queue: QueueLab, name: str, *options: str) -> tuple[str, Path]:
    """A running job that writes nothing more itself, and the file of its stdout."""
    job_id = queue.submit("echo up; sleep 600", "-J", name, "-o", f"{name}-%j.out", *options)
    path = queue.work / f"{name}-{job_id}.out"
    written(path)
    return job_id, path


async def test_a_job_that_runs_is_opened_at_its_end_and_followed_while_the_past_comes(
    queue: QueueLab, store: ClusterStore
) -> None:
    job_id, path = sleeping(queue, "llama")
    put(path, lines(0, 150_000))
    run = WatchedRun(store, job_id)
    await run.open()
    assert run.title == f"{job_id} llama"
    assert steps(run)[-1] == 149_999
    assert not run.progress.is_whole
    assert run.progress.total_bytes == path.stat().st_size
    async with followed(run) as told:
        await until(lambda: run.progress.is_whole and len(steps(run)) == 150_000)
        before = run.run
        append(path, lines(150_000, 150_010))
        await until(lambda: steps(run)[-1] == 150_009)
        assert run.run is not before
        assert run.problem == ""
    assert told
    assert min(b - a for a, b in pairwise(told)) >= 0.9 * metrics.TOLD_SECONDS


async def test_both_streams_count_and_neither_is_a_restart_of_the_other(queue: QueueLab, store: ClusterStore) -> None:
    job_id, path = sleeping(queue, "both", "-e", "both-%j.err")
    stderr = path.with_suffix(".err")
    put(path, lines(0, 100))
    put(stderr, b"".join(b"step %d: grad_norm 0.5, loss 9.0\n" % step for step in range(0, 100, 10)))
    run = WatchedRun(store, job_id)
    await run.open()
    assert run.run.names == ("grad_norm", "loss")
    assert steps(run) == [*range(100)]
    assert steps(run, "grad_norm") == [*range(0, 100, 10)]
    assert run.run.series("loss").high.max() == 5.0
    assert run.run.lost_time().restarts == 0
    assert (run.source_of("grad_norm"), run.source_of("loss")) == (str(stderr), f"{path}, {stderr}")


async def test_tasks_of_an_array_are_one_run_in_the_order_they_ran(queue: QueueLab, store: ClusterStore) -> None:
    body = "f=$((SLURM_ARRAY_TASK_ID * 90)); for s in $(seq $f $((f + 99))); do echo step $s: loss 1.$s; done"
    array = queue.submit(body, "-J", "chain", "-o", "chain-%A_%a.out", "-a", "0-3%1")
    for task in range(4):
        queue.wait(f"{array}_{task}", "completed")
    run = WatchedRun(store, array)
    await run.open()
    assert await run.read_whole()
    assert steps(run) == [*range(370)]
    assert run.run.lost_time().repeated_steps == 30
    assert (run.is_over, run.problem, run.title) == (True, "", f"{array} chain")
    alone = WatchedRun(store, array, task="2")
    await alone.open()
    assert steps(alone) == [*range(180, 280)]
    with pytest.raises(NoSuchJob, match="no task 9"):
        await WatchedRun(store, array, task="9").open()


async def test_a_metrics_file_is_read_in_place_of_the_logs(queue: QueueLab, store: ClusterStore) -> None:
    job_id, path = sleeping(queue, "file")
    put(path, lines(0, 10))
    put(queue.work / "metrics.csv", b"step,acc\n1,0.5\n2,0.75\n")
    run = WatchedRun(store, job_id, file="metrics.csv")
    await run.open()
    await run.read_whole()
    assert run.run.names == ("acc",)
    assert run.run.series("acc").values.tolist() == [0.5, 0.75]


async def test_ones_own_expressions_are_used(queue: QueueLab, store: ClusterStore) -> None:
    job_id, path = sleeping(queue, "own")
    put(path, b"@7 energy -3.5 eV\n@8 energy -4.5 eV\n")
    run = WatchedRun(store, job_id, patterns=[r"@(?P<step>\d+) energy (?P<energy>\S+)"])
    await run.open()
    assert run.run.series("energy").values.tolist() == [-3.5, -4.5]
    with pytest.raises(ConfigError):
        WatchedRun(store, job_id, patterns=["("])


async def test_a_job_that_waits_says_so_and_its_log_is_read_once_it_comes(queue: QueueLab, store: ClusterStore) -> None:
    job_id = queue.submit("echo 'step 1: loss 2.5'; sleep 600", "-J", "held", "--hold", "-o", "held-%j.out")
    run = WatchedRun(store, job_id)
    await run.open()
    assert run.problem == f"{queue.work}/held-{job_id}.out: there is no such file"
    async with followed(run):
        assert queue.act("release", job_id)[0]["done"]
        await until(lambda: run.run.names == ("loss",))
        assert run.problem == ""


async def test_a_log_without_a_metric_says_so(queue: QueueLab, store: ClusterStore) -> None:
    job_id, path = sleeping(queue, "prose")
    put(path, b"hello\n" * 100)
    run = WatchedRun(store, job_id)
    await run.open()
    assert run.problem == f"no metric was found in {path}"


async def test_while_the_line_fails_what_was_read_stays_and_it_goes_on_after(
    queue: QueueLab, store: ClusterStore, transport: CountingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "LONGEST_PAUSE_SECONDS", 0.05)
    job_id, path = sleeping(queue, "cut")
    put(path, lines(0, 10))
    run = WatchedRun(store, job_id)
    await run.open()
    async with followed(run):
        transport.failure = ConnectionFailed("the line is cut.", "Wait.")
        await until(lambda: run.problem == "the line is cut.")
        append(path, lines(10, 20))
        assert steps(run) == [*range(10)]
        transport.failure = None
        await until(lambda: steps(run) == [*range(20)])
        await until(lambda: run.problem == "")


async def test_no_more_than_two_reads_go_on_at_once_and_none_when_nobody_follows(
    queue: QueueLab, store: ClusterStore, transport: CountingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_source, "FIRST_BYTES", 1 << 12)
    array = queue.submit("echo up; sleep 600", "-J", "wide", "-o", "wide-%a.out", "-a", "0-7")
    for task in range(8):
        written(queue.work / f"wide-{task}.out")
        put(queue.work / f"wide-{task}.out", lines(task * 1000, (task + 1) * 1000))
    run = WatchedRun(store, array)
    await run.open()
    async with followed(run):
        await until(lambda: run.progress.is_whole and len(steps(run)) == 8000)
    assert 1 <= transport.most_at_once <= 2
    assert transport.at_once == 0
    reads = transport.reads
    await asyncio.sleep(2 * metrics.TOLD_SECONDS)
    assert transport.reads == reads


async def test_a_job_that_is_known_nowhere_is_no_job(store: ClusterStore) -> None:
    with pytest.raises(NoSuchJob):
        await WatchedRun(store, "99999").open()


class DeafTransport(CountingTransport):
    """Answers the first reads that are cancelled all the same, as asyncio.wait_for of Python 3.11 may."""

    ignored = 0

    async def run(self, argv: tuple[str, ...], **limits: Any) -> Completed:
        answering = asyncio.ensure_future(super().run(argv, **limits))
        try:
            return await asyncio.shield(answering)
        except asyncio.CancelledError:
            if self.ignored >= 3:
                raise
            self.ignored += 1
            return await answering


async def test_reading_ends_though_a_read_does_not_hear_that_it_is_cancelled(queue: QueueLab) -> None:
    transport = DeafTransport()
    backend = EmbeddedBackend(queue_program(queue.folder))
    store = ClusterStore("here", transport, (backend,), clock=SystemClock(), budget=CommandBudget(1_000_000))
    await store.open()
    job_id, path = sleeping(queue, "deaf")
    put(path, lines(0, 200_000))
    run = WatchedRun(store, job_id)
    await run.open()
    task = asyncio.create_task(run.follow(lambda: None))
    await until(lambda: transport.at_once > 0)
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert task.cancelled()
    assert transport.ignored
    assert transport.at_once == 0
    await store.close()
