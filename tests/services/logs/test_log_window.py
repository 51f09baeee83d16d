"""What is held of a log while it grows, is paged through, truncated, replaced, deleted: real files,
real commands.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcdash.services.logs import window as log_window
from hpcdash.services.logs.file import FileChange, LogFile
from hpcdash.services.logs.window import LogWindow
from hpcdash.transport.local import LocalTransport
from tests.support.real_files import (
    append,
    bytes_of,
    make_folder,
    put,
    remove,
    remove_folder,
    rename,
    size_of,
)

pytestmark = pytest.mark.system


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        self.seconds += 1.0
        return self.seconds


def window_of(path: Path) -> LogWindow:
    return LogWindow(LogFile(LocalTransport(), str(path)), Hands().now)


def numbered(count: int, first: int = 0) -> bytes:
    return b"".join(b"line %07d of a log\n" % number for number in range(first, first + count))


def held(window: LogWindow) -> bytes:
    return b"".join(row.content for row in window.rows)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "job.out"


async def test_a_large_log_opens_at_its_end(log: Path) -> None:
    put(log, numbered(100_000))
    window = window_of(log)
    await window.follow(0.0)
    assert window.rows[-1].content == b"line 0099999 of a log\n"
    assert window.ends_the_file
    assert not window.begins_the_file
    assert len(held(window)) <= log_window.END_BYTES


async def test_every_line_is_met_once_on_the_way_back_to_the_first(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = numbered(40_000)
    put(log, content)
    window = window_of(log)
    await window.follow(0.0)
    offsets = {row.offset for row in window.rows}
    while not window.begins_the_file:
        before = window.start
        await window.read_before()
        assert window.start < before
        offsets |= {row.offset for row in window.rows}
        assert held(window) == content[window.start : window.end]
        assert window.end - window.start <= log_window.HELD_BYTES
    assert sorted(offsets) == list(range(0, len(content), len(numbered(1))))


async def test_no_more_is_held_than_a_few_mebibytes_whichever_way_one_pages(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_window, "HELD_BYTES", 1 << 18)
    content = numbered(60_000)
    put(log, content)
    window = window_of(log)
    await window.open_at(0)
    ends = []
    while not window.ends_the_file:
        await window.read_after()
        ends.append(window.end)
        assert held(window) == content[window.start : window.end]
        assert window.end - window.start <= (1 << 18) + log_window.PAGE_BYTES
    assert ends == sorted(set(ends))
    assert ends[-1] == len(content)
    assert window.start > 0


async def test_a_log_of_empty_lines_does_not_fill_the_memory(log: Path) -> None:
    put(log, b"\n" * 1_000_000)
    window = window_of(log)
    await window.follow(0.0)
    assert len(window.rows) <= log_window.HELD_ROWS
    assert window.rows[-1].offset == 999_999
    await window.read_before()
    assert len(window.rows) <= log_window.HELD_ROWS
    assert held(window) == b"\n" * (window.end - window.start)


async def test_what_is_appended_completes_the_last_line(log: Path) -> None:
    put(log, b"first\nhalf a")
    window = window_of(log)
    assert await window.follow(0.0)
    assert [row.content for row in window.rows] == [b"first\n", b"half a"]
    append(log, b" line\nthird\n")
    assert await window.follow(0.5)
    assert [row.content for row in window.rows] == [b"first\n", b"half a line\n", b"third\n"]
    assert not await window.follow(0.5)


async def test_more_than_a_screen_needs_is_skipped_while_following(log: Path) -> None:
    put(log, numbered(10))
    window = window_of(log)
    await window.follow(0.0)
    append(log, numbered(500_000, first=10))
    assert await window.follow(0.5)
    assert window.rows[-1].content == b"line 0500009 of a log\n"
    assert window.end - window.start <= log_window.END_BYTES
    assert held(window) == numbered(500_010)[window.start : window.end]


async def test_a_line_without_end_is_held_in_pieces_and_joined_as_it_grows(log: Path) -> None:
    put(log, b"x" * 100_000)
    window = window_of(log)
    await window.follow(0.0)
    for _ in range(3):
        append(log, b"y" * 20_000)
        await window.follow(0.5)
    fresh = window_of(log)
    await fresh.follow(0.0)
    assert list(window.rows) == list(fresh.rows)
    assert held(window) == bytes_of(log)


async def test_a_progress_bar_of_megabytes_is_one_row_at_its_end(log: Path) -> None:
    put(log, b"begin\n" + b"".join(b"\r%7d steps" % step for step in range(80_000)))
    window = window_of(log)
    await window.follow(0.0)
    while not window.begins_the_file:
        await window.read_before()
    assert window.rows[0].content == b"begin\n"
    assert len(window.rows) == 2
    assert window.rows[-1].content.endswith(b"  79999 steps")


async def test_a_deleted_log_keeps_what_was_read_and_one_made_anew_is_followed(log: Path) -> None:
    put(log, b"old words\n")
    window = window_of(log)
    await window.follow(0.0)
    remove(log)
    assert await window.follow(0.5)
    assert window.happened is not None
    assert window.happened.change is FileChange.DELETED
    assert held(window) == b"old words\n"
    assert window.ends_the_file
    put(log, b"old words and many new ones\n")
    assert await window.follow(0.5)
    assert window.happened.change is FileChange.REPLACED
    assert held(window) == b"old words and many new ones\n"


async def test_a_truncated_log_is_read_anew_and_so_said(log: Path) -> None:
    put(log, numbered(100))
    window = window_of(log)
    await window.follow(0.0)
    os.truncate(log, 0)
    append(log, b"again\n")
    assert await window.check()
    assert window.happened is not None
    assert (window.happened.change, window.happened.size) == (FileChange.TRUNCATED, 6)
    assert held(window) == b"again\n"


async def test_a_rotated_log_is_another_file(log: Path) -> None:
    put(log, numbered(100))
    window = window_of(log)
    await window.follow(0.0)
    rename(log, log.with_suffix(".1"))
    put(log, numbered(200))
    assert await window.check()
    assert window.happened is not None
    assert window.happened.change is FileChange.REPLACED
    assert held(window) == numbered(200)


async def test_what_cannot_be_read_for_a_while_is_not_said_to_be_deleted(log: Path) -> None:
    put(log, numbered(3))
    window = window_of(log)
    await window.follow(0.0)
    away = log.with_suffix(".away")
    rename(log, away)
    make_folder(log)
    await window.follow(0.5)
    assert window.happened is not None
    assert window.happened.change is FileChange.CLOSED
    remove_folder(log)
    rename(away, log)
    await window.follow(0.5)
    assert window.happened is None
    assert held(window) == numbered(3)


async def test_a_log_that_is_not_there_yet_is_opened_once_it_is(log: Path) -> None:
    window = window_of(log)
    assert not await window.follow(0.0)
    assert window.stat.problem
    assert window.happened is None
    assert not window.is_open
    put(log, b"")
    await window.follow(0.5)
    assert window.is_open
    assert not window.rows
    put(log, b"started\n")
    await window.follow(0.5)
    assert held(window) == b"started\n"


async def test_a_row_is_found_by_any_of_its_bytes_and_by_those_it_overwrote(log: Path) -> None:
    put(log, b"begin\n" + b"".join(b"\r%7d steps" % step for step in range(8_000)) + b"\nend\n")
    window = window_of(log)
    await window.follow(0.0)
    assert window.index_of(0) == window.index_of(5) == 0
    assert window.index_of(40) == 1
    assert window.index_of(size_of(log) - 1) == len(window.rows) - 1


async def test_rows_that_are_held_are_searched_without_asking(log: Path) -> None:
    put(log, b"one Error\ntwo\nthree error\n")
    window = window_of(log)
    await window.follow(0.0)
    assert window.find("error", 0) == 0
    assert window.find("error", 1) == 14
    assert window.find("Error", 1) is None
    assert window.find("error", 14, backwards=True) == 0


async def test_growth_is_told_in_bytes_a_second_and_when_it_last_was(log: Path) -> None:
    put(log, b"")
    window = window_of(log)
    await window.follow(0.0)
    for _ in range(4):
        append(log, b"x" * 50)
        await window.follow(0.5)
    assert window.growth.bytes_per_second == pytest.approx(50.0)
    grew_at = window.growth.last_at
    await window.follow(0.5)
    assert window.growth.last_at == grew_at
