"""Files of a cluster, read by the real script under each shell that may be sh there."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.backends.queries import Query
from hpcdash.errors import UnreadableOutput
from hpcdash.services.files import Chunk, FileRange, FileStat, files_query, whole_file_query
from hpcdash.transport.base import CommandResult

pytestmark = pytest.mark.system
SHELLS = [shell for shell in ("dash", "bash", "ksh", "busybox") if shutil.which(shell)]
# Its options are BSD's, and of coreutils' it has none.
BSD_STAT = """#!/bin/sh
[ "$1" = -f ] && [ $# -eq 2 ] || { echo 'stat: illegal option -- c' >&2; exit 1; }
exec {stat} -L -c "$(printf %s "$2" | sed 's/%z/%s/; s/%m/%Y/; s/%Su/%U/')" -
"""
Run = Callable[[Query[tuple[Chunk, ...]]], tuple[Chunk, ...]]


def answer(query: Query[tuple[Chunk, ...]], shell: str = "sh", path: str = "") -> CommandResult:
    words = [
        shutil.which(shell) or shell,
        *(("sh",) if shell == "busybox" else ()),
        *query.argv[1:],
    ]
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"} if path else None
    done = subprocess.run(words, capture_output=True, check=False, env=environment)
    return CommandResult(query.argv, done.returncode, done.stdout, done.stderr, 0.0)


@pytest.fixture(params=SHELLS)
def run(request: pytest.FixtureRequest) -> Run:
    return lambda query: query.parse(answer(query, request.param))


def test_ranges_and_ends_of_many_files_come_with_one_command(run: Run, tmp_path: Path) -> None:
    content = os.urandom(300_000)
    names = ["plain", "-n", "two words", "new\nline\n", "quote'\"$(id)`", "*", "caf\udce9", "a\\nb"]
    for name in names:
        with open(os.fsencode(tmp_path / name), "wb") as file:
            file.write(content)
    wanted = [
        (0, 10),
        (99_999, 100_001),
        (299_999, 5),
        (300_000, 10),
        (5, 0),
        (None, 7),
        (None, 1 << 20),
        (0, 1 << 20),
    ]
    ranges = [
        FileRange(str(tmp_path / name), begin, length)
        for name, (begin, length) in zip(names, wanted, strict=True)
    ]
    chunks = run(files_query(ranges))
    whole = len(content)
    begins = [max(0, whole - length) if begin is None else begin for begin, length in wanted]
    assert [chunk.offset for chunk in chunks] == begins
    assert [chunk.content for chunk in chunks] == [
        content[begin : begin + length] for begin, (_, length) in zip(begins, wanted, strict=True)
    ]
    assert {(chunk.stat.size, chunk.stat.problem) for chunk in chunks} == {(whole, "")}
    assert len({chunk.stat.identity for chunk in chunks}) == len(names)


def test_each_that_cannot_be_read_says_why_and_the_others_are_read(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"here")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "round").symlink_to("about")
    (tmp_path / "about").symlink_to(tmp_path / "round")
    problems = {
        f"{tmp_path}": "this is a folder",
        f"{tmp_path}/none": "no such file",
        f"{tmp_path}/a/b": f"no such folder: {tmp_path}/a",
        f"{tmp_path}/file/x": f"{tmp_path}/file is not a folder",
        f"{tmp_path}/fifo": "not a regular file",
        f"{tmp_path}/link": "a link to gone, which does not exist",
        f"{tmp_path}/loop": "a link to loop, itself a dangling link",
        f"{tmp_path}/round": "a link to about, itself a dangling link",
        "/dev/zero": "not a regular file",
        "a\0b": "not a valid file path",
        "\ud800": "not a valid file path",
        "": "the path of the file is unknown",
        f"{tmp_path}/file": "",
    }
    chunks = run(files_query([FileRange(path, 0, 10) for path in problems]))
    assert [chunk.stat.problem for chunk in chunks] == list(problems.values())
    assert [chunk.content for chunk in chunks] == [b""] * (len(problems) - 1) + [b"here"]


def test_what_is_as_it_was_is_not_read_again(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one")
    [known] = [chunk.stat for chunk in run(files_query([FileRange(str(path), None, 9)]))]

    def again() -> tuple[bytes, bool]:
        [chunk] = run(files_query([FileRange(str(path), None, 9, known)]))
        return chunk.content, chunk.stat == known

    assert again() == (b"", True)
    os.utime(path, (1, 1))
    assert again() == (b"one", False)
    path.write_bytes(b"one more")
    assert again() == (b"one more", False)
    os.truncate(path, 2)
    assert again() == (b"on", False)
    path.rename(tmp_path / "log.1")
    path.write_bytes(b"new")
    os.utime(path, (known.modified_at, known.modified_at))
    assert again() == (b"new", False)
    path.unlink()
    assert again() == (b"", False)


def test_one_that_stands_for_another_is_read_where_that_holds_but_blanks(
    run: Run, tmp_path: Path
) -> None:
    for name, text in (("words", "bad\n"), ("blanks", " \n\t\n"), ("other", "more")):
        (tmp_path / name).write_text(text)
    ranges = []
    for first in ("words", "blanks", "none", ""):
        ranges += [
            FileRange(f"{tmp_path}/{first}" if first else "", None, 100),
            FileRange(f"{tmp_path}/other", None, 100, if_blank=True),
        ]
    chunks = run(files_query(ranges))
    assert [chunk.content for chunk in chunks[1::2]] == [b"", b"more", b"more", b"more"]
    assert chunks[1].stat == FileStat()
    assert chunks[0].content == b"bad\n"


def test_the_age_is_by_the_clock_there(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    os.utime(path, (time.time() - 600,) * 2)
    ranges = [FileRange(str(path), 0, 0), FileRange(str(tmp_path / "none"), 0, 0)]
    there, missing = run(files_query(ranges, with_age=True))
    assert there.stat.age_seconds == pytest.approx(600, abs=5)
    assert missing.stat.age_seconds is None
    assert run(files_query(ranges))[0].stat.age_seconds is None


def test_a_file_cannot_forge_the_answer_for_the_next(run: Run, tmp_path: Path) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    other.write_bytes(b"other")
    query = files_query([FileRange(str(path), 0, 1000), FileRange(str(other), 0, 1000)])
    token = query.argv[4].encode()
    forged = b"x" + token + b" there 1:1 3 0 0\nbad" + token
    path.write_bytes(forged)
    assert [chunk.content for chunk in run(query)] == [forged, b"other"]


def test_bsd_s_stat_is_understood(tmp_path: Path) -> None:
    stat = tmp_path / "bin" / "stat"
    stat.parent.mkdir()
    stat.write_text(BSD_STAT.replace("{stat}", str(shutil.which("stat"))))
    stat.chmod(0o755)
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    query = files_query([FileRange(str(path), None, 4)])
    [by_bsd] = query.parse(answer(query, path=str(stat.parent)))
    assert by_bsd == query.parse(answer(query))[0]
    assert (by_bsd.content, by_bsd.stat.size) == (b"6789", 10)


def test_what_an_answer_that_was_cut_lacks_is_said_of_each_file(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"0123456789")
    query = files_query([FileRange(str(tmp_path / name), 0, 100) for name in "abc"])
    whole = answer(query)
    cut = replace(
        whole, stdout=b"Welcome!\n" + whole.stdout[: whole.stdout.rindex(b"there") - 25], status=137
    )
    chunks = query.parse(cut)
    assert [bool(chunk.stat.problem) for chunk in chunks] == [False, True, True]
    assert chunks[0].content == b"0123456789"
    nothing = replace(whole, stdout=b"", stderr=b"This account is not available.\n", status=1)
    assert {chunk.stat.problem for chunk in query.parse(nothing)} == {
        "This account is not available."
    }


def test_a_whole_file_is_read_or_it_is_said_why_not(tmp_path: Path) -> None:
    script, large = tmp_path / "-script", tmp_path / "large"
    script.write_bytes(b"#!/bin/sh\n\0\xff")
    large.write_bytes(b"x" * ((1 << 20) + 1))

    def read(path: Path) -> bytes:
        query = whole_file_query(str(path), 1 << 20)
        done = subprocess.run(query.argv, capture_output=True, check=False)
        return query.parse(
            CommandResult(query.argv, done.returncode, done.stdout, done.stderr, 0.0)
        )

    assert read(script) == script.read_bytes()
    os.truncate(script, 0)
    assert read(script) == b""
    for path, problem in (
        (large, "larger than 1 MiB"),
        (tmp_path, "this is a folder"),
        (tmp_path / "none", "no such file"),
    ):
        with pytest.raises(UnreadableOutput) as caught:
            read(path)
        assert caught.value.message == problem
        assert caught.value.argv == ("cat", "--", str(path))
    os.truncate(large, 1 << 20)
    assert len(read(large)) == 1 << 20
    query = whole_file_query(str(large), 1 << 20)
    done = subprocess.run(query.argv, capture_output=True, check=False)
    with pytest.raises(UnreadableOutput, match="cut short"):
        query.parse(CommandResult(query.argv, 137, done.stdout[:1000], b"", 0.0))
