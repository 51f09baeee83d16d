"""What is read of one log's metrics while it is opened, grows, is filled in backwards, cut,
replaced: real files.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcdash.services.logs.file import LogFile
from hpcdash.services.metrics import source as metric_source
from hpcdash.services.metrics.joined import joined
from hpcdash.services.metrics.reader import MetricReader
from hpcdash.services.metrics.series import MetricLog
from hpcdash.services.metrics.source import MetricSource
from hpcdash.transport.local import LocalTransport
from tests.services.metrics.metric_batches import stored_counts
from tests.services.metrics.test_trainers import TRAINERS
from tests.support.real_files import append, bytes_of, put, remove, rename
from tests.support.records import for_each

pytestmark = pytest.mark.system
FIXTURES = Path(__file__).parents[3] / "fixtures" / "metrics"


def lines(first: int, last: int, loss: float = 5.0) -> bytes:
    return b"".join(
        b"step %d: loss %.4f lr 1e-4\n" % (step, loss - step * 1e-5) for step in range(first, last)
    )


def log_source(path: Path, **options: Any) -> MetricSource:
    return MetricSource(LogFile(LocalTransport(), str(path)), asyncio.Semaphore(2), **options)


def points(logs: list[MetricLog]) -> dict[str, list[Any]]:
    """Every sample that is held, in the order of the log, as text so that nan is equal to nan."""
    run = joined(logs)
    return {name: [np.vstack(run.written(name)).astype(str).tolist()] for name in run.names}


def read_forwards(content: bytes) -> dict[str, list[Any]]:
    log = MetricLog()
    log.append(MetricReader().feed(content, is_end=True))
    return points([log])


async def read_all(source: MetricSource) -> None:
    await source.open()
    while await source.read_new():
        pass
    while not source.is_whole:
        assert await source.read_before()
    await source.finish(is_over=True)


def steps(source: MetricSource) -> list[float]:
    return joined(source.snapshot()).series("loss").x.tolist()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "job.out"


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (
        ("HEAD_BYTES", 400),
        ("FIRST_BYTES", 700),
        ("SMALLEST_STRETCH", 300),
        ("LARGEST_STRETCH", 900),
        ("NEW_BYTES", 500),
    ):
        monkeypatch.setattr(metric_source, name, size)


async def test_the_newest_part_is_there_first_and_the_rest_comes_backwards(log: Path) -> None:
    put(log, lines(0, 200_000))
    source = log_source(log)
    await source.open()
    first = steps(source)
    assert first[-1] == 199_999
    assert first[0] > 100_000
    assert not source.is_whole
    assert source.bytes_read <= metric_source.FIRST_BYTES
    await read_all(source)
    assert source.bytes_read == source.total_bytes == len(bytes_of(log))
    assert points(source.snapshot()) == read_forwards(bytes_of(log))


@for_each("path", sorted(FIXTURES.glob("*.log")), ids=lambda path: path.stem)
async def test_read_in_small_parts_backwards_every_format_says_what_it_says_forwards(
    path: Path, small_reads: None
) -> None:
    source = log_source(path)
    await read_all(source)
    assert points(source.snapshot()) == read_forwards(bytes_of(path))


async def test_read_in_small_parts_backwards_each_trainer_says_what_it_says_forwards(
    log: Path, small_reads: None
) -> None:
    wrong = []
    for trainer in TRAINERS:
        content = trainer["log"].lstrip("\n").encode() * 3
        put(log, content)
        source = log_source(log)
        await read_all(source)
        if points(source.snapshot()) != read_forwards(content):
            wrong.append(trainer["name"])
    assert wrong == []


async def test_what_is_appended_is_read_once_however_the_lines_are_cut(
    log: Path, small_reads: None
) -> None:
    content = lines(0, 300)
    put(log, content[:1000])
    source = log_source(log)
    await source.open()
    for start in range(1000, len(content), 777):
        append(log, content[start : start + 777])
        while await source.read_new():
            pass
    await read_all(source)
    assert points(source.snapshot()) == read_forwards(content)
    assert not await source.read_new()


async def test_of_a_file_that_was_cut_what_was_read_stays_as_an_older_attempt(log: Path) -> None:
    put(log, lines(0, 100))
    source = log_source(log)
    await source.open()
    put(log, lines(50, 60, loss=3.0))
    assert await source.read_new()
    run = joined(source.snapshot())
    assert [attempt.first[0] for attempt in run.attempts] == [0, 50]
    assert steps(source) == [*range(60)]
    assert run.series("loss").newest[50] == pytest.approx(3.0 - 50e-5)


async def test_a_file_that_was_cut_and_is_longer_again_is_told_by_its_bytes(log: Path) -> None:
    put(log, lines(0, 100))
    source = log_source(log)
    await source.open()
    put(log, lines(100, 400))
    assert await source.read_new()
    assert steps(source) == [*range(400)]
    assert source.is_whole


async def test_another_file_under_the_name_begins_anew_and_one_with_the_same_bytes_goes_on(
    log: Path,
) -> None:
    put(log, lines(0, 100))
    source = log_source(log)
    await source.open()
    other = log.with_suffix(".new")
    put(other, lines(0, 120))
    rename(other, log)
    assert await source.read_new()
    assert steps(source) == [*range(120)]
    assert len(joined(source.snapshot()).attempts) == 1
    put(other, lines(110, 300, loss=2.0))
    rename(other, log)
    assert await source.read_new()
    assert len(joined(source.snapshot()).attempts) == 2
    assert steps(source) == [*range(300)]


async def test_of_a_file_that_is_gone_what_was_read_is_kept_and_said(log: Path) -> None:
    source = log_source(log)
    assert not await source.read_new()
    assert source.problem == "no such file"
    put(log, lines(0, 10))
    assert await source.read_new()
    assert (source.problem, steps(source)) == ("", [*range(10)])
    remove(log)
    assert not await source.read_new()
    assert source.problem == "no such file"
    assert steps(source) == [*range(10)]


async def test_a_table_whose_header_is_far_before_what_is_read_has_its_names(
    log: Path, small_reads: None
) -> None:
    put(
        log,
        b"step,train_loss,lr\n"
        + b"".join(b"%d,%.3f,0.1\n" % (step, 9 - step / 100) for step in range(400)),
    )
    source = log_source(log)
    await source.open()
    assert joined(source.snapshot()).series("train_loss").x[-1] == 399
    assert not source.is_whole
    await read_all(source)
    assert points(source.snapshot()) == read_forwards(bytes_of(log))


async def test_a_stretch_backwards_of_what_was_replaced_meanwhile_is_not_taken(
    log: Path, small_reads: None
) -> None:
    put(log, lines(0, 200))
    source = log_source(log)
    await source.open()
    other = log.with_suffix(".new")
    put(other, lines(1000, 1400))
    rename(other, log)
    assert not await source.read_before()
    assert await source.read_new()
    await read_all(source)
    assert steps(source)[-400:] == [*range(1000, 1400)]
    assert len(joined(source.snapshot()).attempts) == 2


async def test_what_was_given_out_stays_while_more_is_read(log: Path, small_reads: None) -> None:
    put(log, lines(0, 200))
    source = log_source(log)
    await source.open()
    kept = joined(source.snapshot())
    before = kept.series("loss").x.tolist()
    append(log, lines(200, 220))
    await read_all(source)
    assert kept.series("loss").x.tolist() == before
    assert steps(source) == [*range(220)]


async def test_memory_is_bounded_whatever_the_length(log: Path) -> None:
    put(log, lines(0, 150_000))
    source = log_source(log, exact_points=10_000, cells=2048)
    await read_all(source)
    (only,) = source.snapshot()
    exact_points, cells = stored_counts(only)
    assert exact_points <= 10_000
    assert cells <= 2 * 2048
    assert joined([only]).series("loss").points.sum() == 150_000


def table(header: bytes, row: bytes, first: int, last: int) -> bytes:
    return header + b"\n" + b"".join(row % step + b"\n" for step in range(first, last))


FORWARDS, SWAPPED = (b"step,loss,lr", b"%d,2.5,0.001"), (b"step,lr,loss", b"%d,0.001,2.5")
OTHER = (b"lr,loss,step", b"0.001,2.5,%d")


@pytest.mark.parametrize(
    "content",
    [
        b"loading a shard of what is read\n" * 40 + table(*FORWARDS, 0, 400),
        table(*FORWARDS, 0, 200) + table(*SWAPPED, 200, 500),
        table(*FORWARDS, 0, 200) + table(*SWAPPED, 200, 300) + table(*OTHER, 300, 500),
        table(*FORWARDS, 0, 200) + table(*SWAPPED, 200, 300) + table(*FORWARDS, 300, 500),
        table(*FORWARDS, 0, 200) + table(*FORWARDS, 150, 500),
    ],
    ids=["late", "changed", "changed twice", "changed and back", "repeated"],
)
async def test_a_tables_rows_are_those_of_the_header_before_them(
    log: Path, small_reads: None, content: bytes
) -> None:
    put(log, content)
    source = log_source(log)
    await read_all(source)
    assert points(source.snapshot()) == read_forwards(content)
    append(
        log,
        content[content.rindex(b"\n", 0, -1) + 1 :].replace(b"499", b"500").replace(b"399", b"400"),
    )
    assert await source.read_new()
    run = joined(source.snapshot())
    assert set(run.series("loss").mean) == {2.5}
    assert run.series("loss").x[-1] in (400, 500)
