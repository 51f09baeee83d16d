"""Searching a whole log for a text or a time: real files, real commands."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpcdash.services.logs import search as log_search
from hpcdash.services.logs.file import LogFile
from hpcdash.services.logs.search import NoTimes, SearchHit, find_text, find_time, local_wall_time
from hpcdash.transport.local import LocalTransport
from tests.support.real_files import put, put_sparse, size_of
from tests.support.scripted_transport import ScriptedTransport

pytestmark = pytest.mark.system
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC).timestamp()


def make_file(path: Path, content: bytes) -> LogFile:
    put(path, content)
    return LogFile(LocalTransport(), str(path))


async def test_a_search_goes_on_from_the_other_end(tmp_path: Path) -> None:
    content = b"an error\n" + b"nothing\n" * 1000
    file = make_file(tmp_path / "log", content)
    assert await find_text(file, "error", 9, len(content)) == SearchHit(0, has_wrapped=True)
    assert await find_text(file, "error", 9, len(content), backwards=True) == SearchHit(0)
    assert await find_text(file, "error", 0, len(content), backwards=True) == SearchHit(
        0, has_wrapped=True
    )
    assert await find_text(file, "fault", 9, len(content)) is None


async def test_a_long_search_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "SPAN_BYTES", 1 << 18)
    content = b"nothing\n" * 100_000 + b"found\n"
    file = make_file(tmp_path / "log", content)
    shares: list[float] = []
    assert await find_text(file, "found", 0, len(content), on_output=shares.append) == SearchHit(
        800_000
    )
    assert shares == sorted(shares)
    assert len(shares) >= 3
    assert shares[-1] <= 1


def lines(count: int, *, seconds: int = 1) -> bytes:
    begin = NOW - count * seconds
    stamps = (datetime.fromtimestamp(begin + number * seconds, UTC) for number in range(count))
    return b"".join(b"%s step\n" % f"{stamp:%Y-%m-%d %H:%M:%S}".encode() for stamp in stamps)


async def line_at(file: LogFile, offset: int | None) -> bytes:
    assert offset is not None
    chunk = await file.read(offset, 100)
    return chunk.content.split(b"\n")[0]


async def test_the_first_line_at_a_time_is_found(tmp_path: Path) -> None:
    content = lines(50_000)
    file = make_file(tmp_path / "log", content)
    found = await find_time(file, "10:22:33", len(content), NOW, UTC)
    assert await line_at(file, found.offset) == b"2026-11-21 10:22:33 step"
    assert local_wall_time(found.seconds) == "2026-11-21 10:22:33"
    assert (await find_time(file, "2026-11-01", len(content), NOW, UTC)).offset == 0
    assert (await find_time(file, "2026-11-22", len(content), NOW, UTC)).offset is None


async def test_the_first_line_after_a_gap_is_found(tmp_path: Path) -> None:
    trace = b"Traceback (most recent call last):\n" + b"  File somewhere\n" * 8000
    content = lines(5_000, seconds=10)[: 25 * 2_500] + trace + lines(1_000)
    file = make_file(tmp_path / "log", content)
    before_the_gap = content[25 * 2_499 : 25 * 2_499 + 19].decode()
    found = await find_time(file, before_the_gap, len(content), NOW, UTC)
    assert found.offset == 25 * 2_499
    found = await find_time(file, "11:43:00", len(content), NOW, UTC)
    assert await line_at(file, found.offset) == b"2026-11-21 11:43:20 step"


async def test_a_log_without_times_says_so(tmp_path: Path) -> None:
    content = b"loss 0.25\n" * 200_000
    file = make_file(tmp_path / "log", content)
    with pytest.raises(NoTimes):
        await find_time(file, "10:22", len(content), NOW, UTC)


async def test_few_pieces_of_a_huge_log_are_read_for_a_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    head = lines(2_000)
    put_sparse(path, head, 10 << 30, b"\n" + lines(2_000))
    transport = ScriptedTransport(behind=LocalTransport())
    log = LogFile(transport, str(path))
    found = await find_time(log, "11:40", size_of(path), NOW, UTC)
    assert await line_at(log, found.offset) == b"2026-11-21 11:40:00 step"
    assert len(transport.argvs) < 60
