"""A job's metrics followed through its logs, on an embedded queue whose jobs really run."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

import hpcdash
from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.errors import ConfigError, ConnectionFailed, NoSuchJob
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.logs.locate import locate_logs
from hpcdash.services.metrics import run as metric_looks
from hpcdash.services.metrics import run as metrics
from hpcdash.services.metrics import source as metric_source
from hpcdash.services.metrics.places import NamedMetricsFiles
from hpcdash.services.metrics.run import WatchedRun
from hpcdash.services.state.folders import queue_program
from hpcdash.services.state.submitted_scripts import ScriptStore
from hpcdash.services.submit.launch_records import LaunchRecord, LaunchRecords
from hpcdash.transport.base import CommandResult
from hpcdash.transport.local import LocalTransport
from tests.embedded.queue_lab import QueueLab
from tests.support.real_files import append, put
from tests.support.scripted_transport import Command, ScriptedTransport
from tests.support.waiting import until, wait_until

pytestmark = pytest.mark.system


READS = "sh -c"


class Reads:
    """Runs reads here, and counts those that go on at once; the first `deaf` that are cancelled are
    answered all the same, as asyncio.wait_for of Python 3.11 may.
    """

    def __init__(self, deaf: int = 0) -> None:
        self.at_once = self.most_at_once = self.ignored = 0
        self.deaf = deaf

    async def __call__(self, command: Command) -> CommandResult:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        answering = asyncio.ensure_future(command.run_here())
        try:
            return await asyncio.shield(answering)
        except asyncio.CancelledError:
            if self.ignored < self.deaf:
                self.ignored += 1
                return await answering
            answering.cancel()
            raise
        finally:
            self.at_once -= 1


def counting(reads: Reads) -> ScriptedTransport:
    transport = ScriptedTransport(behind=LocalTransport())
    transport.answers[READS] = reads
    return transport


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueLab]:
    folder = tmp_path_factory.mktemp("metrics")
    lab = QueueLab(folder / "queue", folder / "work", cpus=64)
    yield lab
    lab.end()


@pytest.fixture
def reads() -> Reads:
    return Reads()


@pytest.fixture
def transport(reads: Reads) -> ScriptedTransport:
    return counting(reads)


@pytest.fixture
async def store(queue: QueueLab, transport: ScriptedTransport) -> AsyncIterator[ClusterStore]:
    backend = embedded_backend(queue_program(queue.folder))
    made = ClusterStore(
        "here", transport, (backend,), clock=SystemClock(), budget=CommandBudget(1_000_000)
    )
    await made.open()
    yield made
    await made.close()


def lines(first: int, last: int, loss: float = 5.0) -> bytes:
    return b"".join(
        b"step %d: loss %.4f\n" % (step, loss - step * 1e-5) for step in range(first, last)
    )


def steps(run: WatchedRun, name: str = "loss") -> list[float]:
    return run.run.series(name).x.tolist()


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
    wait_until(f"{path}", lambda: (path.exists() and path.stat().st_size > 0) or None)


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
    assert min(b - a for a, b in pairwise(told)) >= 0.9 * metrics.NOTIFY_SECONDS


async def test_both_streams_count_and_neither_is_a_restart_of_the_other(
    queue: QueueLab, store: ClusterStore
) -> None:
    job_id, path = sleeping(queue, "both", "-e", "both-%j.err")
    stderr = path.with_suffix(".err")
    put(path, lines(0, 100))
    put(
        stderr, b"".join(b"step %d: grad_norm 0.5, loss 9.0\n" % step for step in range(0, 100, 10))
    )
    run = WatchedRun(store, job_id)
    await run.open()
    assert run.run.names == ("grad_norm", "loss")
    assert steps(run) == [*range(100)]
    assert steps(run, "grad_norm") == [*range(0, 100, 10)]
    assert run.run.series("loss").high.max() == 5.0
    assert run.run.lost_time().restarts == 0
    assert (run.named_source("grad_norm"), run.named_source("loss")) == (
        str(stderr),
        f"{path}, {stderr}",
    )


async def test_tasks_of_an_array_are_one_run_in_the_order_they_ran(
    queue: QueueLab, store: ClusterStore
) -> None:
    body = (
        "f=$((SLURM_ARRAY_TASK_ID * 90)); for s in $(seq $f $((f + 99))); do echo step $s: "
        "loss 1.$s; done"
    )
    array = queue.submit(body, "-J", "chain", "-o", "chain-%A_%a.out", "-a", "0-3%1")
    for task in range(4):
        queue.wait(f"{array}_{task}", "completed")
    run = WatchedRun(store, array)
    await run.open()
    assert await run.read_whole()
    assert steps(run) == [*range(370)]
    assert run.run.lost_time().repeated_steps == 30
    assert (run.is_over, run.problem, run.title) == (True, "", f"{array} chain")
    alone = WatchedRun(store, f"{array}_2")
    await alone.open()
    assert steps(alone) == [*range(180, 280)]
    # What a requeued task appends to its log.
    with (queue.work / f"chain-{array}_0.out").open("a") as log:
        log.writelines(f"step {step}: loss 1.5\n" for step in range(370, 400))
    requeued = WatchedRun(store, array)
    await requeued.open()
    assert await requeued.read_whole()
    assert steps(requeued) == [*range(400)]
    assert (requeued.run.lost_time().repeated_steps, requeued.run.lost_time().restarts) == (30, 4)


async def test_a_metrics_file_is_read_in_place_of_the_logs(
    queue: QueueLab, store: ClusterStore
) -> None:
    job_id, path = sleeping(queue, "file")
    put(path, lines(0, 10))
    put(queue.work / "metrics.csv", b"step,acc\n1,0.5\n2,0.75\n")
    run = WatchedRun(store, job_id, file="metrics.csv")
    await run.open()
    await run.read_whole()
    assert run.run.names == ("acc",)
    assert run.run.series("acc").values.tolist() == [0.5, 0.75]


async def test_the_file_that_a_job_names_is_read_besides_its_log(
    queue: QueueLab, store: ClusterStore
) -> None:
    train = "\n".join(
        (
            "from hpcdash.job import MetricsWriter",
            "writer = MetricsWriter()",
            "for step in range(1, 21):",
            "    writer.write(step, loss=5 / step, accuracy=step / 20)",
            "    if step % 10 == 0: print(f'step {step}: loss {5 / step:.1f}, lr 0.5', flush=True)",
        )
    )
    (queue.work / "train.py").write_text(train)
    begin = (
        f"export PYTHONPATH={Path(hpcdash.__file__).parent.parent} "
        'HPCDASH_METRICS="$SLURM_SUBMIT_DIR/m/'
    )
    end = f"{sys.executable} train.py; echo up; sleep 600"
    job_id = queue.submit(f'{begin}$SLURM_JOB_ID.jsonl"\n{end}', "-J", "named", "-o", "named.out")
    written(queue.work / "named.out")
    wait_until("its log", lambda: b"up" in (queue.work / "named.out").read_bytes() or None)
    run = WatchedRun(store, job_id)
    await run.open()
    await run.read_whole()
    assert (run.run.names, run.problem) == (("accuracy", "loss", "lr"), "")
    # All its steps are in the file, every tenth in the log.
    assert (steps(run), steps(run, "lr")) == ([*range(1, 21)], [10, 20])
    assert run.run.series("loss").values[6] == pytest.approx(5 / 7)
    assert run.named_source("loss") == f"{queue.work}/named.out, {queue.work}/m/{job_id}.jsonl"
    async with followed(run):
        append(queue.work / "m" / f"{job_id}.jsonl", b'{"step": 21, "loss": 0.25}\n')
        await until(lambda: steps(run)[-1] == 21)

    unknown = queue.submit(
        'export HPCDASH_METRICS=$(date).jsonl\necho "step 1: loss 2.5"; sleep 600', "-o", "u.out"
    )
    written(queue.work / "u.out")
    other = WatchedRun(store, unknown)
    await other.open()
    assert steps(other) == [1]
    assert (
        "line 2 of the script sets it to $(date).jsonl; a command's output cannot be resolved here"
        in other.problem
    )


async def test_a_metrics_file_is_named_by_a_launch_a_directive_or_for_each_task(
    queue: QueueLab, store: ClusterStore, tmp_path: Path
) -> None:
    store.scripts = ScriptStore(tmp_path / "scripts")
    launched = queue.submit("true", "-J", "launched", "--hold")
    directed = queue.submit("#SBATCH --export=ALL,HPCDASH_METRICS=d/m.jsonl\ntrue", "--hold")
    request = 'work_dir = "/scratch/me"\n[environment]\nHPCDASH_METRICS = "run/m.jsonl"\n'
    record = LaunchRecord("/x", "", launched, "launched", "never", "", 1, 1.7e9, request)
    LaunchRecords(tmp_path, "here").launched(record)
    array = queue.submit(
        "HPCDASH_METRICS=/m/$SLURM_ARRAY_TASK_ID\n", "-J", "each", "-a", "1-2", "--hold"
    )
    shared = queue.submit("HPCDASH_METRICS=/m/all\n", "-J", "all", "-a", "1-2", "--hold")
    named = NamedMetricsFiles(store)
    for job_id, path in (
        (launched, "/scratch/me/run/m.jsonl"),
        (directed, f"{queue.work}/d/m.jsonl"),
    ):
        place = await locate_logs(store, job_id)
        assert await named.find((place.row,), place.detail) == ({job_id: path}, "")
    rows = {}
    for job_id in (array, shared):
        row = (await locate_logs(store, job_id)).row
        rows[job_id] = [
            {**row, "id": f"{job_id}_{task}", "array_id": job_id, "array_task": task}
            for task in "12"
        ]
    assert (await named.find(rows[array]))[0] == {f"{array}_1": "/m/1", f"{array}_2": "/m/2"}
    assert (await named.find(rows[shared]))[0] == {f"{shared}_2": "/m/all"}


async def test_ones_own_expressions_are_used(queue: QueueLab, store: ClusterStore) -> None:
    job_id, path = sleeping(queue, "own")
    put(path, b"@7 energy -3.5 eV\n@8 energy -4.5 eV\n")
    run = WatchedRun(store, job_id, patterns=[r"@(?P<step>\d+) energy (?P<energy>\S+)"])
    await run.open()
    assert run.run.series("energy").values.tolist() == [-3.5, -4.5]
    with pytest.raises(ConfigError):
        WatchedRun(store, job_id, patterns=["("])


async def test_a_job_that_waits_says_so_and_its_log_is_read_once_it_comes(
    queue: QueueLab, store: ClusterStore
) -> None:
    job_id = queue.submit(
        "echo 'step 1: loss 2.5'; sleep 600", "-J", "held", "--hold", "-o", "held-%j.out"
    )
    run = WatchedRun(store, job_id)
    await run.open()
    assert run.problem == f"{queue.work}/held-{job_id}.out: no such file"
    async with followed(run):
        assert queue.act("release", job_id)[0]["done"]
        await until(lambda: run.run.names == ("loss",))
        assert run.problem == ""


async def test_a_log_without_a_metric_says_so(queue: QueueLab, store: ClusterStore) -> None:
    job_id, path = sleeping(queue, "prose")
    put(path, b"hello\n" * 100)
    run = WatchedRun(store, job_id)
    await run.open()
    assert run.problem == f"no metrics found in {path}"


async def test_while_the_line_fails_what_was_read_stays_and_it_goes_on_after(
    queue: QueueLab,
    store: ClusterStore,
    transport: ScriptedTransport,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "LONGEST_PAUSE_SECONDS", 0.05)
    job_id, path = sleeping(queue, "cut")
    put(path, lines(0, 10))
    run = WatchedRun(store, job_id)
    await run.open()
    async with followed(run):
        transport.fails[READS] = ConnectionFailed("the line is cut.", "Wait.")
        await until(lambda: run.problem == "the line is cut.")
        append(path, lines(10, 20))
        assert steps(run) == [*range(10)]
        transport.fails.clear()
        await until(lambda: steps(run) == [*range(20)])
        await until(lambda: run.problem == "")


async def test_no_more_than_two_reads_go_on_at_once_and_none_when_nobody_follows(
    queue: QueueLab,
    store: ClusterStore,
    transport: ScriptedTransport,
    reads: Reads,
    monkeypatch: pytest.MonkeyPatch,
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
    assert 1 <= reads.most_at_once <= 2
    assert reads.at_once == 0
    before = transport.count(READS)
    await asyncio.sleep(2 * metrics.NOTIFY_SECONDS)
    assert transport.count(READS) == before


async def test_a_job_that_is_known_nowhere_is_no_job(store: ClusterStore) -> None:
    with pytest.raises(NoSuchJob):
        await WatchedRun(store, "99999").open()


async def test_the_end_of_a_job_is_known_though_its_log_s_next_turn_is_far_off(
    queue: QueueLab, store: ClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_FIRST_STATE_SECONDS", 0.2)
    job_id = queue.submit(
        "echo 'step 1: loss 2.5'; sleep 600", "-J", "far", "-o", "far-%A_%a.out", "--array=0"
    )
    written(queue.work / f"far-{job_id}_0.out")
    run = WatchedRun(store, job_id)
    await run.open()
    # As where many logs are followed and few commands a minute are allowed.
    monkeypatch.setattr(store.budget, "reserve_read_seconds", lambda: 1000.0)
    async with followed(run):
        queue.act("cancel", job_id)
        await until(lambda: run.is_over)


async def test_reading_ends_though_a_read_does_not_hear_that_it_is_cancelled(
    queue: QueueLab,
) -> None:
    reads = Reads(deaf=3)
    transport = counting(reads)
    backend = embedded_backend(queue_program(queue.folder))
    store = ClusterStore(
        "here", transport, (backend,), clock=SystemClock(), budget=CommandBudget(1_000_000)
    )
    await store.open()
    job_id, path = sleeping(queue, "deaf")
    put(path, lines(0, 200_000))
    run = WatchedRun(store, job_id)
    await run.open()
    task = asyncio.create_task(run.follow(lambda: None))
    await until(lambda: reads.at_once > 0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert reads.ignored
    assert reads.at_once == 0
    await store.close()


async def test_a_log_that_grows_all_the_time_is_read_no_more_often_than_the_ceiling_on_commands_allows(
    queue: QueueLab,
    store: ClusterStore,
    transport: ScriptedTransport,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job_id, path = sleeping(queue, "fast", "-e", "fast-%j.err")
    put(path, lines(0, 100))
    put(path.with_suffix(".err"), b"warning\n")
    monkeypatch.setattr(metric_looks, "next_check_seconds", lambda quiet: 0.02)
    monkeypatch.setattr(store, "budget", CommandBudget(400))
    run = WatchedRun(store, job_id)
    await run.open()
    async with followed(run):
        await until(lambda: transport.count(READS) > 6)
        before, began, step = transport.count(READS), time.monotonic(), 100
        while time.monotonic() < began + 1.2:
            append(path, lines(step, step + 10))
            step += 10
            await asyncio.sleep(0.02)
        # 60 s of 400 commands are 0.15 s apart; the other stream takes few of them.
        assert 3 <= transport.count(READS) - before <= 1.2 / 0.15 + 2
        await until(lambda: steps(run)[-1] == step - 1)
