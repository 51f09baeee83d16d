"""What a login node is asked beside its scheduler, by the real script, sh and coreutils: logs,
saves, disks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hpcdash.config.watch_settings import StorageRule
from hpcdash.errors import UnreadableOutput
from hpcdash.job.checkpoint import Checkpoints
from hpcdash.services.watch.facts import (
    MAX_TAIL_BYTES,
    DiskQuery,
    Facts,
    FactsRequest,
    facts_query,
)
from hpcdash.services.watch.rules.places import BYTES, INODES, find_full
from hpcdash.services.watch.state import OVERLAP_BYTES, LogTail
from hpcdash.transport.base import CommandResult

pytestmark = pytest.mark.system
MIB = 1 << 20
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")


def look(
    asked: FactsRequest,
    *,
    path: str = "",
    noise: bytes = b"",
    variables: Mapping[str, str] | None = None,
    file_seconds: int = 10,
) -> Facts:
    query = facts_query(asked, "ada")
    assert "FILE=10 " in query.argv[2]
    script = query.argv[2].replace("FILE=10 ", f"FILE={file_seconds} ")
    environment = {**os.environ, **(variables or {})}
    if path:
        environment["PATH"] = f"{path}:{environment['PATH']}"
    argv = (*query.argv[:2], script, *query.argv[3:])
    ended = subprocess.run(argv, capture_output=True, check=False, env=environment)
    return query.parse(
        CommandResult(query.argv, ended.returncode, noise + ended.stdout, ended.stderr, 0.1)
    )


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def dead_mount(folder: Path) -> Iterator[Path]:
    """A file system whose server never answers: whoever asks it for anything waits."""
    folder.mkdir()
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no file system can be served here: {error}")
    try:
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
        if ctypes.CDLL(None).mount(b"dead", os.fsencode(folder), b"fuse", 0, options) != 0:
            pytest.skip("no file system can be mounted here")
        yield folder
    finally:
        os.close(server)
        subprocess.run(["umount", "-l", folder], check=False, capture_output=True)


def program(folder: Path, name: str, body: str) -> str:
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path.parent)


def test_a_logs_size_and_age_are_told_whatever_its_name_holds(tmp_path: Path) -> None:
    log = tmp_path / "it's a\n log*.out"
    log.write_bytes(b"x" * 1234)
    os.utime(log, (time.time() - 600,) * 2)
    missing = str(tmp_path / "none")
    facts = look(FactsRequest(files=(str(log), missing)), noise=b"Welcome!\n")
    assert facts.files[str(log)].size == 1234
    assert facts.files[str(log)].age_seconds == pytest.approx(600, abs=3)
    assert (facts.files[missing].is_there, facts.files[missing].age_seconds) == (False, None)


def test_of_a_log_only_what_is_new_is_read_and_of_a_long_one_its_end_and_head(
    tmp_path: Path,
) -> None:
    log = tmp_path / "it's a\n log*.out"
    log.write_bytes(b"step,loss\n" + b"\x00\xff\r12345\n" * (MAX_TAIL_BYTES // 8))
    first = look(FactsRequest(tails={str(tmp_path / "none"): LogTail(), str(log): LogTail()}))
    assert set(first.tails) == {str(log)}
    chunk = first.tails[str(log)]
    content = log.read_bytes()
    assert (chunk.offset, chunk.content) == (
        len(content) - MAX_TAIL_BYTES,
        content[-MAX_TAIL_BYTES:],
    )
    assert first.heads == {str(log): content[:4096]}
    end = len(content)
    with log.open("ab") as opened:
        opened.write(b"new\n")
    identity = chunk.stat.identity
    facts = look(FactsRequest(tails={str(log): LogTail(identity, end)}))
    chunk = facts.tails[str(log)]
    assert (chunk.offset, chunk.content, facts.heads, chunk.stat.size) == (
        end - OVERLAP_BYTES,
        content[-OVERLAP_BYTES:] + b"new\n",
        {},
        end + 4,
    )
    done = FactsRequest(tails={str(log): LogTail(identity, end + 4, is_done=True)})
    assert look(done).tails[str(log)].content == b""
    log.write_bytes(b"anew")
    assert look(done).tails[str(log)].content == b"anew"


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    facts = look(FactsRequest(files=(str(tmp_path / "log"),)), file_seconds=30)
    assert facts.silent == []


@NEEDS_ROOT
def test_a_dead_mount_blinds_to_nothing_but_itself_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("step 1\n")
    (tmp_path / "1.pt").touch()
    healthy, saved = str(tmp_path / "log"), f"{tmp_path}/*.pt"
    with dead_mount(tmp_path / "dead") as dead:
        (tmp_path / "link").symlink_to(dead)
        link = tmp_path / "link"
        asked = FactsRequest(
            files=(*(f"{dead}/{one}/log" for one in range(20)), healthy),
            newest=(f"{link}/*/*.pt", saved),
            checkpoints=(str(dead),),
            disks=(DiskQuery(str(dead), by_du=True), DiskQuery(str(tmp_path))),
            tails=dict.fromkeys((f"{dead}/0/log", f"{link}/log", healthy), LogTail()),
        )
        facts = look(asked, file_seconds=5)
    assert facts.files.keys() == {healthy}
    assert facts.newest.keys() == {saved}
    assert facts.newest[saved] is not None
    assert facts.tails.keys() == {healthy}
    assert facts.disks[str(dead)].usage is None
    assert facts.disks[str(tmp_path)].usage is not None
    assert facts.silent == [str(dead), str(link)]


def test_the_newest_file_of_a_pattern_tells_the_last_save(tmp_path: Path) -> None:
    for name, age in (("step 1.pt", 7200), ("step 2.pt", 300), ("other", 0)):
        path = tmp_path / "my run" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    pattern, none = f"{tmp_path}/my run/step *.pt", f"{tmp_path}/my run/none*"
    facts = look(FactsRequest(newest=(pattern, none)))
    assert facts.newest[pattern] == pytest.approx(300, abs=3)
    assert facts.newest[none] is None
    assert facts.names == {pattern: "step 2.pt"}
    # A name's line break begins no line, as of a file of the far future.
    (tmp_path / "my run" / "step 3\n99999999999 .pt").touch()
    facts = look(FactsRequest(newest=(pattern,)))
    assert facts.newest[pattern] == pytest.approx(0, abs=3)
    assert facts.names[pattern].startswith("step 3\\n9")


def test_of_checkpoints_only_whole_ones_count(tmp_path: Path) -> None:
    folder = tmp_path / "check points"
    checkpoints = Checkpoints(folder)
    with checkpoints.saving(1) as inside:
        (inside / "model").write_text("x")
    whole = next(folder.glob("step-*")) / "WHOLE.json"
    os.utime(whole, (time.time() - 1000,) * 2)
    torn = folder / "step-00000002"
    torn.mkdir()
    (torn / "model").write_text("half")
    facts = look(FactsRequest(checkpoints=(str(folder),)))
    assert facts.newest[str(folder)] == pytest.approx(1000, abs=3)
    assert facts.names[str(folder)] == whole.parent.name


@pytest.mark.parametrize(
    ("last_written", "name"),
    [
        ("checkpoint-20/trainer_state.json", "checkpoint-20"),
        ("epoch 3/.metadata", "epoch 3"),
        ("guard.ckpt", "guard.ckpt"),
    ],
)
def test_whole_checkpoints_of_other_libraries_count_as_a_launch_counts_them(
    tmp_path: Path, last_written: str, name: str
) -> None:
    written = tmp_path / "saved" / last_written
    written.parent.mkdir(parents=True)
    written.touch()
    folder = str(tmp_path / "saved")
    facts = look(FactsRequest(checkpoints=(folder,)))
    assert (facts.newest[folder], facts.names) == (pytest.approx(0, abs=3), {folder: name})


@NEEDS_ROOT
def test_a_disk_that_runs_out_of_bytes_is_found(tmp_path: Path) -> None:
    with mounted(tmp_path / "a disk", "size=8m") as folder:
        asked, watch = FactsRequest(disks=(DiskQuery(str(folder)),)), StorageRule(str(folder))

        def found() -> list[str]:
            usage = look(asked).disks[str(folder)].usage
            assert usage is not None
            aspects = (BYTES, INODES)
            return [aspect for aspect in aspects if find_full(watch, aspect, usage)]

        assert found() == []
        (folder / "checkpoint").write_bytes(b"\0" * 7 * MIB)
        assert found() == ["bytes"]
        (folder / "checkpoint").unlink()
        assert found() == []


@NEEDS_ROOT
def test_a_disk_that_runs_out_of_inodes_is_found(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64m,nr_inodes=100") as folder:
        for number in range(90):
            (folder / str(number)).touch()
        usage = look(FactsRequest(disks=(DiskQuery(str(folder)),))).disks[str(folder)].usage
        assert usage is not None
        assert find_full(StorageRule(str(folder)), BYTES, usage) == []
        (finding,) = find_full(StorageRule(str(folder)), INODES, usage)
        assert (finding.aspect, finding.severity.word) == ("inodes", "warning")
        assert finding.text.startswith(f"{folder}: 91% of 100 inodes used")


def test_a_folder_with_limits_of_its_own_is_counted_by_du(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3 * MIB)
    asked = DiskQuery(str(tmp_path), "none", by_du=True, inodes_by_du=True)
    counted = look(FactsRequest(disks=(asked,))).disks[str(tmp_path)].counted
    assert counted is not None
    assert counted.bytes_used is not None
    assert 3 * MIB <= counted.bytes_used < 4 * MIB
    assert counted.inodes_used == 2


def test_a_quota_tool_goes_before_df(tmp_path: Path) -> None:
    printed = (
        "Disk quotas for usr $3 (uid 1000):\n"
        "     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace\n"
        "       $4  900000*  1000000 1000000       -  42       0       0       -"
    )
    path = program(
        tmp_path, "lfs", f'[ "$1 $2" = "quota -u" ] || exit 9\ncat <<END\n{printed}\nEND'
    )
    (disk,) = look(FactsRequest(disks=(DiskQuery(str(tmp_path), "lfs"),)), path=path).disks.values()
    assert disk.usage is not None
    assert (disk.usage.bytes_used, disk.usage.bytes_limit) == (900000 * 1024, 1000000 * 1024)
    assert "lfs quota" in disk.usage.source


@pytest.mark.parametrize(
    "body", ["exit 1", "echo rubbish", "kill -9 $$", "head -c 100 /dev/urandom"]
)
def test_without_a_quota_that_can_be_read_df_tells(tmp_path: Path, body: str) -> None:
    path = program(tmp_path, "lfs", body)
    (disk,) = look(
        FactsRequest(disks=(DiskQuery(str(tmp_path), "lfs", "group:lab"),)), path=path
    ).disks.values()
    assert disk.usage is not None
    assert disk.usage.source.startswith("df")


def test_a_folder_that_is_not_there_tells_nothing_and_the_next_all(tmp_path: Path) -> None:
    gone, there = str(tmp_path / "gone"), str(tmp_path)
    disks = look(FactsRequest(disks=(DiskQuery(gone), DiskQuery(there)))).disks
    assert disks[gone].usage is None
    assert disks[there].usage is not None


def test_an_answer_that_was_cut_short_tells_no_more_than_it_holds(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("12345")
    query = facts_query(FactsRequest(files=(str(log), str(tmp_path / "other"))))
    whole = subprocess.run(query.argv, capture_output=True, check=True).stdout
    cut = whole[: whole.rindex(b"\x1e", 0, whole.rindex(b"\x1e")) + 30]
    facts = query.parse(CommandResult(query.argv, 137, cut, b"", 0.1))
    assert facts.files.keys() == {str(log)}
    with pytest.raises(UnreadableOutput):
        query.parse(CommandResult(query.argv, 127, b"sh: not found", b"", 0.1))
