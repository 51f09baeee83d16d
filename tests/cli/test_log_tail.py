"""How a log gets to stdout: the last lines, what comes, and what is said when the file or the line
fails.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rich.color import ColorSystem

from hpcdash.cli import log as log_tail
from hpcdash.cli.log import LogFollower, RawOutput, TerminalOutput, color_system
from hpcdash.errors import AuthenticationFailed, ConnectionFailed
from hpcdash.services.logs.file import LogFile
from hpcdash.transport.base import Transport
from hpcdash.transport.local import LocalTransport
from tests.support.records import for_each
from tests.support.scripted_transport import ScriptedTransport
from tests.support.waiting import until


class Gathered(io.BytesIO):
    """A stdout of no file."""

    def fileno(self) -> int:
        return 1


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdash.services.logs.file.next_check_seconds", lambda quiet_seconds: 0.01)
    monkeypatch.setattr(log_tail, "LONGEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(log_tail, "_QUIET_SECONDS", 0.05)


async def never() -> bool:
    return False


async def last_lines(path: Path, lines: int) -> bytes:
    out = Gathered()
    file = LogFile(LocalTransport(), str(path))
    await LogFollower(file, RawOutput(out)).show_last(
        await file.read_end(log_tail.SMALL_BYTES), lines
    )
    return out.getvalue()


@asynccontextmanager
async def followed(path: Path, transport: Transport | None = None) -> AsyncIterator[Gathered]:
    out = Gathered()
    tail = LogFollower(LogFile(transport or LocalTransport(), str(path)), RawOutput(out))
    tail.note(await tail.file.stat())
    task = asyncio.create_task(tail.follow(never))
    try:
        yield out
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_the_last_lines_of_any_file_are_those_tail_prints(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for content in (
        b"",
        b"\n",
        b"a",
        b"a\n",
        b"a\nb",
        b"\n\n\n",
        b"x" * 200_000,
        b"a\n" + b"y" * 200_000 + b"\nb\n",
    ):
        path.write_bytes(content)
        for lines in (0, 1, 2, 3, 10):
            tail = subprocess.run(  # noqa: ASYNC221
                ["tail", "-n", str(lines), path], capture_output=True, check=True
            ).stdout
            assert await last_lines(path, lines) == tail


async def test_lines_as_long_as_the_file_are_not_looked_for_to_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log_tail, "_SEARCHED_BYTES", 1 << 20)
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(10 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"the end\n")
    shown = await last_lines(path, 3)
    assert shown.endswith(b"\0the end\n")
    assert 1 << 20 <= len(shown) <= 6 << 20
    assert capsys.readouterr().err == "hpcdash: showing only the last 1 MiB; 3 lines are longer\n"


async def test_a_file_deleted_and_made_anew_is_read_from_its_start_whatever_its_inode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, aside = tmp_path / "log", tmp_path / "aside"
    path.write_bytes(b"one\n")
    async with followed(path) as out:
        await until(lambda: out.getvalue() == b"one\n")
        path.rename(aside)
        said = ""

        def is_said() -> bool:
            nonlocal said
            said += capsys.readouterr().err
            return "is gone: no such file" in said

        await until(is_said)
        aside.write_bytes(b"two, and longer\n")
        aside.rename(path)
        await until(lambda: out.getvalue() == b"one\ntwo, and longer\n")
    assert "was replaced by another file; from the start:" in capsys.readouterr().err


async def test_a_lost_line_is_told_once_and_nothing_of_the_log_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    transport = ScriptedTransport(behind=LocalTransport())
    async with followed(path, transport) as out:
        await until(lambda: out.getvalue() == b"one\n")
        transport.fails["*"] = ConnectionFailed("The line was lost.")
        asked = len(transport.argvs)
        await until(lambda: len(transport.argvs) > asked + 3)
        path.write_bytes(b"one\ntwo\n")
        transport.fails.clear()
        await until(lambda: out.getvalue() == b"one\ntwo\n")
    assert capsys.readouterr().err == (
        "hpcdash: The line was lost. Retrying.\nhpcdash: the cluster is responding again\n"
    )


async def test_what_only_a_person_can_mend_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    transport = ScriptedTransport(behind=LocalTransport())
    tail = LogFollower(LogFile(transport, str(path)), RawOutput(Gathered()))
    tail.note(await tail.file.stat())
    transport.fails["*"] = AuthenticationFailed("Who are you?")
    with pytest.raises(AuthenticationFailed):
        await tail.follow(never)


async def test_a_quiet_file_of_a_job_that_is_over_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    tail = LogFollower(LogFile(LocalTransport(), str(path)), RawOutput(out := Gathered()))
    tail.note(await tail.file.stat())
    answers = iter((False, False, True))

    async def is_over() -> bool:
        return next(answers)

    await tail.follow(is_over)
    assert out.getvalue() == b"one\n"


def on_a_terminal(*parts: bytes, colours: ColorSystem | None = ColorSystem.STANDARD) -> str:
    """What a terminal gets of parts that come one after the other."""
    output = TerminalOutput(out := Gathered(), colours, "utf-8")
    offset = 0
    for part in parts:
        output.write(part, offset)
        output.pause()
        offset += len(part)
    output.end_line()
    return out.getvalue().decode()


def test_a_progress_bar_moves_in_place() -> None:
    shown = on_a_terminal(b"start\n", b" 10%|#  ", b"\r 20%|## ", b"\r100%|###\ndone\n")
    assert shown == "start\n 10%|#  \r\x1b[K 20%|## \r\x1b[K100%|###\ndone\n"


def test_a_sequence_torn_between_two_reads_is_whole_again() -> None:
    assert on_a_terminal(b"\x1b[3", b"1mred\x1b[", b"0m\n").endswith("\r\x1b[K\x1b[31mred\x1b[0m\n")
    assert on_a_terminal(b"\x1b]0;ti", b"tle\x07words\n").endswith("\r\x1b[Kwords\n")


def test_the_colours_of_a_log_are_written_anew_and_nothing_else_of_its_sequences() -> None:
    log = b"\x1b[8;31mhidden\x1b[0m \x1b[5m\x1b[38;5;9mred\x1b]0;title\x07 \x1b[2Jend\n"
    assert on_a_terminal(log) == "\x1b[31mhidden\x1b[0m \x1b[91mred end\x1b[0m\n"
    assert on_a_terminal(log, colours=None) == "hidden red end\n"


def test_letters_that_are_not_ours_to_write_are_replaced() -> None:
    output = TerminalOutput(out := Gathered(), None, "ascii")
    output.write("é\x1b[2J\x07\n".encode(), 0)
    assert out.getvalue() == b"??\n"


@for_each(
    ("variables", "colours"),
    [
        ({"TERM": "xterm-256color"}, ColorSystem.EIGHT_BIT),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, ColorSystem.TRUECOLOR),
        ({"TERM": "linux"}, ColorSystem.STANDARD),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, None),
        ({"TERM": "dumb"}, None),
        ({}, None),
    ],
)
def test_as_many_colours_as_the_terminal_has(
    variables: dict[str, str], colours: ColorSystem | None
) -> None:
    assert color_system(variables) is colours


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who writes that nobody reads")
def test_a_pipe_nobody_reads_is_noticed_without_writing() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as stream:
        output = RawOutput(stream)
        output.pause()
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            output.pause()
