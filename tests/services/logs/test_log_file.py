"""Reading real files by offset, on this machine and over a real sshd, whatever becomes of them."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path

import pytest

from hpcdash.errors import CommandTimedOut, UnreachableError
from hpcdash.services.logs import file as log_file
from hpcdash.services.logs.file import FileChange, FollowedFile, LogFile, next_check_seconds
from hpcdash.services.logs.lines import shown_line
from hpcdash.services.logs.pieces import BLOCK, LONGEST_PIECE, pieces
from hpcdash.services.logs.window import LogWindow
from hpcdash.transport.base import Transport
from hpcdash.transport.local import LocalTransport
from hpcdash.transport.ssh import SshTransport
from tests.support.person import Person
from tests.support.records import for_each
from tests.support.sshd import Sshd, login_user, until_gone, until_there, why_no_sshd

pytestmark = pytest.mark.system
GIGABYTE = 1 << 30


@pytest.fixture(scope="module")
def login_node() -> Iterator[Sshd]:
    if reason := why_no_sshd():
        pytest.skip(reason)
    # pytest's own folders are closed to the users who log in; this one is not.
    with tempfile.TemporaryDirectory(prefix="hpcdash-log-") as folder:
        server = Sshd(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(params=["here", "over ssh"])
async def transport(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Transport]:
    if request.param == "here":
        yield LocalTransport()
        return
    sshd: Sshd = request.getfixturevalue("login_node")
    user = login_user("bash")
    if user is None:
        pytest.skip("no user with bash as login shell")
    (tmp_path / "config").write_text(f"Host *\n  IdentityFile {sshd.key}\n  IdentitiesOnly yes\n")
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key_line}\n")
    made = SshTransport(
        f"{user}@127.0.0.1:{sshd.port}",
        Person(),
        config_path=tmp_path / "config",
        known_hosts=tmp_path / "known_hosts",
    )
    yield made
    await made.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that any user may enter and read."""
    with tempfile.TemporaryDirectory(prefix="hpcdash-log-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o644)
    return path


def with_a_tail(path: Path, size: int, tail: bytes) -> Path:
    """A sparse file of `size` bytes that ends with `tail`."""
    with path.open("wb") as file:
        file.truncate(size - len(tail))
        file.seek(size - len(tail))
        file.write(tail)
    path.chmod(0o644)
    return path


async def test_any_part_is_read_as_it_is(transport: Transport, folder: Path) -> None:
    content = os.urandom(300_000)
    file = LogFile(transport, str(write(folder / "log", content)))
    for offset, length in (
        (0, 10),
        (0, 400_000),
        (1, 1),
        (511, 2),
        (512, 512),
        (99_999, 100_001),
        (299_999, 5),
    ):
        chunk = await file.read(offset, length)
        assert (chunk.offset, chunk.content) == (offset, content[offset : offset + length])
        assert (chunk.stat.size, chunk.stat.problem) == (300_000, "")
    for length in (1, 1000, 299_999, 300_000, 500_000):
        chunk = await file.read_end(length)
        assert chunk.content == content[-length:]
        assert chunk.ends_the_file
    beyond = await file.read(300_000, 10)
    assert (beyond.content, beyond.stat.size) == (b"", 300_000)
    assert (await file.read(10**12, 10)).content == b""


@for_each(
    "name",
    [
        "plain",
        "-n",
        "two words",
        "new\nline\n",
        "quote'\"$(id)`",
        "*",
        "caf\udce9",
        "日本",
        "\x01\x1b[31m",
        "a\\nb",
    ],
    ids=ascii,
)
async def test_a_path_may_hold_anything(transport: Transport, folder: Path, name: str) -> None:
    path = f"{folder}/{name}"
    with open(path, "wb") as file:  # noqa: ASYNC230
        file.write(b"here")
    os.chmod(path, 0o644)
    assert (await LogFile(transport, path).read(0, 10)).content == b"here"


async def test_a_relative_path_begins_in_the_home_and_is_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "-rf", b"here")
    assert (await LogFile(LocalTransport(), "-rf").read(0, 10)).content == b"here"


async def test_what_cannot_be_read_says_why(transport: Transport, folder: Path) -> None:
    write(folder / "file", b"x")
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("gone/file")
    (folder / "good link").symlink_to("file")
    problems = {
        "": "this is a folder",
        "/none": "no such file",
        "/a/b/c": f"no such folder: {folder}/a",
        "/file/x": f"{folder}/file is not a folder",
        "/fifo": "not a regular file",
        "/link": "a link to gone/file, which does not exist",
        "/good link": "",
    }
    for name, problem in problems.items():
        look = await LogFile(transport, f"{folder}{name}").stat()
        assert look.problem == problem
        assert look.is_there == (not problem)
        assert look.is_missing == (name in ("/none", "/a/b/c", "/file/x", "/link"))
    assert (await LogFile(transport, "/dev/null").stat()).problem == "output goes to /dev/null"
    assert (await LogFile(transport, "").stat()).problem == "the path of the file is unknown"
    for impossible in ("a\0b", "\ud800"):
        assert (await LogFile(transport, impossible).stat()).problem == "not a valid file path"
    for long in ("x" * 300_000, "x" * 5000):
        assert (await LogFile(transport, long).stat()).problem


@pytest.mark.parametrize("transport", ["over ssh"], indirect=True)
async def test_what_one_may_not_read_says_why(transport: Transport, folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir()
    write(closed / "log", b"x")
    write(folder / "log", b"x").chmod(0)
    closed.chmod(stat.S_IRWXU)
    if (await transport.run(("id", "-u"))).stdout.strip() == str(os.getuid()).encode():
        pytest.skip("the tests' own user logs in, and may read its files")
    look = await LogFile(transport, str(folder / "log")).stat()
    assert (look.problem, look.is_missing) == ("no permission to read this file", False)
    assert (
        await LogFile(transport, str(closed / "log")).stat()
    ).problem == f"no permission to enter {closed}"
    assert await LogFile(transport, str(folder / "log")).find("x", 0) is None
    assert await LogFile(transport, str(folder / "log")).count_lines(1) == 0


async def test_files_that_claim_to_be_empty_are_read(transport: Transport) -> None:
    chunk = await LogFile(transport, "/proc/version").read(0, 5)
    assert (chunk.content, chunk.stat.size) == (b"Linux", 5)


async def test_a_file_that_grows_is_read_from_where_one_was(
    transport: Transport, folder: Path
) -> None:
    path = write(folder / "log", b"")
    file = LogFile(transport, str(path))
    followed = FollowedFile(file)
    followed.note(await file.stat())
    read = b""
    for step in range(5):
        with path.open("ab") as writer:
            writer.write(b"step %d\n" % step * 1000)
        chunk = await file.read(followed.offset, 1 << 20)
        assert followed.note(chunk.stat) is FileChange.GREW
        followed.read_to(chunk.end)
        read += chunk.content
    assert read == path.read_bytes()


async def test_what_became_of_a_file_is_told(transport: Transport, folder: Path) -> None:
    path = folder / "log"
    file = LogFile(transport, str(path))
    followed = FollowedFile(file)
    changes: list[FileChange] = []

    async def look_again() -> None:
        changes.append(followed.note(await file.stat()))

    await look_again()
    write(path, b"one\ntwo\n")
    await look_again()
    os.truncate(path, 4)
    await look_again()
    await look_again()
    path.rename(folder / "log.1")
    write(path, b"a fresh and longer file\n")
    await look_again()
    path.unlink()
    await look_again()
    write(path, b"again\n")
    await look_again()
    os.truncate(path, 2)
    path.unlink()
    path.mkdir()
    await look_again()
    path.rmdir()
    await look_again()
    assert changes == [
        "unchanged",
        "appeared",
        "truncated",
        "unchanged",
        "replaced",
        "deleted",
        "replaced",
        "closed",
        "unchanged",
    ]


def test_a_quiet_file_is_looked_at_ever_more_seldom() -> None:
    pauses = [next_check_seconds(quiet) for quiet in (-1, 0, 1, 10, 30, 60, 3600)]
    assert pauses == sorted(pauses)
    assert (pauses[1], pauses[-1]) == (0.5, 3.0)


async def test_a_line_of_a_megabyte_and_bombs_of_escapes_are_a_few_safe_rows(
    transport: Transport, folder: Path
) -> None:
    bombs = (
        b"x" * (1 << 20)
        + b"\n"
        + b"\x1b" * (1 << 20)
        + b"\n"
        + b"\x1b[31m" * 100_000
        + b"\n"
        + b"\0" * (1 << 20)
    )
    file = LogFile(transport, str(write(folder / "log", bombs)))
    chunk = await file.read(0, len(bombs))
    assert chunk.content == bombs
    cut = pieces(chunk.content, 0, at_end=True)
    rows = [shown_line(bombs[start:end]).text for start, end in cut.rows()]
    assert len(bombs) // LONGEST_PIECE < len(rows) <= len(bombs) // BLOCK + 4
    assert rows[-1].startswith("␀×")
    assert all(row.isprintable() for row in rows)


async def peak_bytes(awaited: Awaitable[object]) -> int:
    tracemalloc.start()
    try:
        await awaited
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_ten_gigabytes_are_opened_at_the_end_and_in_the_middle_in_the_memory_of_a_small_file(
    transport: Transport, folder: Path
) -> None:
    tail = b"".join(b"step %d\n" % step for step in range(20_000))
    small_file = LogFile(transport, str(write(folder / "small", tail)))
    huge_file = LogFile(transport, str(with_a_tail(folder / "huge", 10 * GIGABYTE, tail)))
    small, huge = LogWindow(small_file, time.time), LogWindow(huge_file, time.time)
    await small.follow(0.0)

    await huge.follow(0.0)
    assert shown_line(huge.rows[-1].content).text == "step 19999"
    assert huge.end == 10 * GIGABYTE
    await huge.open_at(5 * GIGABYTE)
    assert {shown_line(row.content).text for row in huge.rows} == {"␀×32768"}

    little = await peak_bytes(small.open_at(len(tail)))
    for much in (
        huge.open_at(10 * GIGABYTE),
        huge.open_at(5 * GIGABYTE),
        huge.open_at(0),
    ):
        assert await peak_bytes(much) < 2 * little + 4 * LONGEST_PIECE


async def test_a_text_is_found_forwards_and_backwards(transport: Transport, folder: Path) -> None:
    log = (
        b"".join(b"line %d of the log\n" % number for number in range(2000))
        + b"Epoch 3 [50%] \\d+ caf\xc3\xa9 -x\n"
    )
    file = LogFile(transport, str(write(folder / "log", log)))

    async def found(wanted: str, offset: int, *, backwards: bool = False) -> int | None:
        return await file.find(wanted, offset, backwards=backwards)

    assert await found("line 1500", 0) == log.index(b"line 1500")
    assert await found("line 1500", log.index(b"line 1500")) == log.index(b"line 1500")
    assert await found("line 1500", log.index(b"line 1501")) is None
    assert await found("line 1500", log.index(b"line 1500"), backwards=True) is None
    assert await found("line 1500", len(log), backwards=True) == log.index(b"line 1500")
    assert await found("of the log", log.index(b"line 7 "), backwards=True) == log.index(b"line 6 ")
    assert await found("of the log", log.index(b"line 7 ") + 3) == log.index(b"line 7 ")
    last = log.index(b"Epoch")
    for wanted in ("epoch", "Epoch", "[50%]", "\\d+", "café", "-x", "CAFÉ".lower()):
        assert await found(wanted, 0) == last
    for wanted in ("EPOCH", ".*", "^Epoch", "", "log\nline", "\0", "no such words"):
        assert await found(wanted, 0) is None
    assert await file.find("line 1500", 0, span_bytes=1000) is None
    assert await found("line", 10**9) is None
    assert await LogFile(transport, f"{folder}/none").find("x", 0) is None


@pytest.fixture(params=["grep there", "no grep that tells offsets"])
def searching(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Transport:
    """This machine, looking through four blocks at once."""
    monkeypatch.setattr(log_file, "_FIND_WINDOW_BYTES", 1 << 18)
    monkeypatch.setattr(log_file, "_SCAN_BYTES", 1 << 18)
    if request.param == "grep there":
        return LocalTransport()
    (folder / "bin").mkdir()
    program = write(
        folder / "bin" / "grep", b"#!/bin/sh\necho 'grep: unrecognized option: b' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    return LocalTransport(path=str(folder / "bin"))


async def test_a_match_across_the_edge_of_two_windows_is_found(
    searching: Transport, folder: Path
) -> None:
    needle = b"needle in a stack"
    for place in range((1 << 18) - len(needle) - 1, (1 << 18) + 2, 3):
        log = b"\n" * place + needle + b"\n" * (1 << 18)
        file = LogFile(searching, str(write(folder / "log", log)))
        assert await file.find(needle.decode(), 0) == place
        assert await file.find(needle.decode(), place) == place
        assert await file.find(needle.decode(), place + 1) is None
        assert await file.find(needle.decode(), len(log), backwards=True) == place
        assert await file.find(needle.decode(), place + len(needle), backwards=True) == place
        assert await file.find(needle.decode(), place + len(needle) - 1, backwards=True) is None


async def test_the_nearest_of_many_matches_is_found(searching: Transport, folder: Path) -> None:
    lines = [b"number %d\n" % number for number in range(100_000)]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    file = LogFile(searching, str(write(folder / "log", b"".join(lines))))
    for here in (0, 1, 20_000, 50_001, 99_999):
        assert await file.find("number", starts[here]) == starts[here]
        before = starts[here - 1] if here else None
        assert await file.find("NUMBER".lower(), starts[here], backwards=True) == before


async def test_what_is_found_in_a_line_of_a_gigabyte_is_the_piece_that_holds_it(
    folder: Path,
) -> None:
    path = with_a_tail(folder / "log", GIGABYTE + 1000, b"the end" + b"\n" * 993)
    file = LogFile(LocalTransport(), str(path))
    place = await file.find("The end".lower(), GIGABYTE - (1 << 26))
    assert place == GIGABYTE
    os.pwrite(descriptor := os.open(path, os.O_WRONLY), b"middle", GIGABYTE // 2 + 100)
    os.close(descriptor)
    assert await file.find("middle", GIGABYTE // 2 - (1 << 26)) == GIGABYTE // 2
    assert await file.find("middle", GIGABYTE // 2 + (1 << 26), backwards=True) == GIGABYTE // 2


async def test_a_search_given_up_leaves_no_process(transport: Transport, folder: Path) -> None:
    path = with_a_tail(folder / "a-file-nobody-else-has.out", 500 * GIGABYTE, b"end\n")
    file = LogFile(transport, str(path))
    search = asyncio.ensure_future(file.find("xyzzy", 0, span_bytes=500 * GIGABYTE))
    await until_there("a-file-nobody-else-has")
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    assert await until_gone("a-file-nobody-else-has") == []
    with pytest.raises(CommandTimedOut):
        await file.count_lines(500 * GIGABYTE, limit_seconds=0.3)
    assert await until_gone("a-file-nobody-else-has") == []


async def test_newlines_before_an_offset_are_counted(transport: Transport, folder: Path) -> None:
    log = b"one\ntwo\nthree\nfour"
    file = LogFile(transport, str(write(folder / "log", log)))
    assert [await file.count_lines(offset) for offset in (0, 3, 4, 8, 14, 18, 99)] == [
        0,
        0,
        1,
        2,
        3,
        3,
        3,
    ]
    assert await LogFile(transport, f"{folder}/none").count_lines(5) == 0


@pytest.mark.parametrize("transport", ["over ssh"], indirect=True)
async def test_a_line_that_fails_raises_and_says_nothing_of_the_file(
    transport: Transport, folder: Path, login_node: Sshd
) -> None:
    file = LogFile(transport, str(write(folder / "log", b"x")))
    assert (await file.stat()).is_there
    login_node.kill_with_sessions()
    try:
        with pytest.raises(UnreachableError):
            await file.read(0, 1)
    finally:
        login_node.start()


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "lots of words\n",
        "1:2 10 20\nbytes",
        "1:2 -5 20 0\nbytes",
        f"1:2 {'9' * 5000} 20 0\nbytes",
        "1:2 ١٠ 20 0\nbytes",
        "\x1b[2J:2 10 20 0\nbytes",
    ],
)
async def test_another_account_s_reader_that_says_anything_is_no_file(
    tmp_path: Path, answer: str
) -> None:
    said = tmp_path / "said"
    said.write_text(answer)
    file = LogFile(LocalTransport(), "/jobs/one/7.out", reader=("sh", "-c", f"cat {said}", "sh"))
    for chunk in (await file.read(3, 10), await file.read_end(10)):
        assert (chunk.stat.is_there, chunk.content) == (False, b"")
        assert chunk.stat.problem


async def test_another_account_s_reader_gives_no_more_than_was_asked_for_from_there(
    tmp_path: Path,
) -> None:
    said = tmp_path / "said"
    said.write_text("1:2 4 20 999\n" + "x" * 100_000)
    file = LogFile(LocalTransport(), "/jobs/one/7.out", reader=("sh", "-c", f"cat {said}", "sh"))
    chunk = await file.read(3, 10)
    assert (chunk.offset, chunk.content) == (3, b"x" * 10)
    assert (await file.read_end(2)).offset == 2
