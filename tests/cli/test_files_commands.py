"""`hpcdash files`, `get`, `put` and `sync` on an embedded queue: names of any bytes, links, what is
there already, disks that are full.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import stat
import struct
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.embedded.queue_lab import QueueLab
from tests.support.program import Program, Run, home_with

ROOT = Path(__file__).parent.parent.parent
ODD = b"-n \xff\n\x1b[31m$(id) 'q"


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueLab]:
    lab = QueueLab(tmp_path / "queue", tmp_path / "work", cpus=2)
    yield lab
    lab.end()


@pytest.fixture
def person(queue: QueueLab, tmp_path: Path) -> Program:
    variables = {"HPCDASH_QUEUE": str(queue.folder), "HPCDASH_STATE": str(tmp_path / "state")}
    return Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"), variables)


@pytest.fixture
def job(queue: QueueLab) -> str:
    """A job that has ended in a folder of its own."""
    folder = queue.work / "run"
    (folder / "out").mkdir(parents=True)
    number = queue.submit("exit 0", cwd=folder)
    queue.ended(number)
    return number


@pytest.fixture
def out(queue: QueueLab, job: str) -> Path:
    return queue.work / "run" / "out"


def listed(person: Program, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = person("files", *words, "--format", "json").json["files"]
    return found


def results(run: Run) -> dict[str, str]:
    """The result of each file of a copy, by name."""
    return {row["name"]: row["result"] for row in json.loads(run.text)["transfers"]}


def write(folder: Path, name: bytes, content: bytes) -> bytes:
    path = os.path.join(os.fsencode(folder), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
    return path


# -- files


def test_the_folders_of_a_job_and_their_use_are_listed(person: Program, job: str) -> None:
    (folder,) = listed(person, job)
    assert folder["path"] == str(person.home.parent / "work" / "run")
    assert folder["format"] == "work dir, output"


def test_entries_are_listed_newest_first_with_visible_names(
    person: Program, job: str, out: Path
) -> None:
    write(out, ODD, b"12345")
    write(out, b"old", b"")
    os.utime(out / "old", (1, 1))
    (out / "to-etc").symlink_to("/etc")
    os.utime(out / "to-etc", (2, 2), follow_symlinks=False)
    rows = listed(person, job, "out")
    assert [row["name"] for row in rows] == ["-n \\xff␊␛[31m$(id) 'q", "to-etc", "old"]
    assert (rows[0]["size_bytes"], rows[0]["kind"]) == (5, "file")
    assert rows[0]["encoded_path"].endswith("/out/-n%20%FF%0A%1B%5B31m%24%28id%29%20%27q")
    assert (rows[1]["kind"], rows[1]["target"], rows[1]["size_bytes"]) == ("link", "/etc", None)
    text = person("files", job, "out").text
    assert "\x1b" not in text
    assert len(text.splitlines()) == 4


def test_whole_and_broken_checkpoints_are_told_apart(person: Program, job: str, out: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    tensors = struct.pack("<Q", len(header)) + header + bytes(16)
    write(out, b"good.safetensors", tensors)
    write(out, b"cut.safetensors", tensors[:-1])
    write(out, b"stub.safetensors", b"\x08")
    with zipfile.ZipFile(out / "good.pt", "w") as archive:
        archive.writestr("data.pkl", bytes(1000))
    write(out, b"cut.pt", (out / "good.pt").read_bytes()[:500])
    write(out, b"dcp-good/.metadata", b"x")
    write(out, b"dcp-good/__0_0.distcp", b"x")
    write(out, b"dcp-cut/__0_0.distcp", b"x")
    index = json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}).encode()
    for name, parts in ((b"hf-good", b"ab"), (b"hf-cut", b"a")):
        write(out, name + b"/model.safetensors.index.json", index)
        for part in parts:
            write(out, name + b"/%c.safetensors" % part, tensors)
    marker = json.dumps({"saved_at": 1, "files": {"m": {"bytes": 3}}}).encode()
    for name, content in ((b"step-1", b"abc"), (b"step-2", b"ab")):
        write(out, name + b"/WHOLE.json", marker)
        write(out, name + b"/m", content)
    write(out, b"evil/WHOLE.json", json.dumps({"files": {"../x": {"bytes": 1}}}).encode())
    write(out, b"notes.txt", b"PK")
    write(out, b"tokens.bin", bytes(100))
    rows = {
        row["name"]: (row["format"], row["checkpoint"], row["problem"])
        for row in listed(person, job, "out")
    }
    size = len(tensors)
    assert rows == {
        "good.safetensors": ("safetensors", "whole", None),
        "cut.safetensors": ("safetensors", "broken", f"has {size - 1} of {size} bytes"),
        "stub.safetensors": ("safetensors", "broken", "shorter than its header"),
        "good.pt": ("torch", "whole", None),
        "cut.pt": ("torch", "broken", "ends within its data"),
        "dcp-good": ("DCP", "whole", None),
        "dcp-cut": ("DCP", "broken", "without its .metadata, which is written last"),
        "hf-good": ("HF index", "whole", None),
        "hf-cut": ("HF index", "broken", "b.safetensors is missing"),
        "step-1": ("hpcdash", "whole", None),
        "step-2": ("hpcdash", "broken", "m has 2 of 3 bytes"),
        "evil": ("hpcdash", "broken", "names a file outside of its folder"),
        "notes.txt": (None, None, None),
        "tokens.bin": (None, None, None),
    }
    broken = listed(person, job, "out", "--filter", "checkpoint:broken")
    assert len(broken) == 7


def test_a_hundred_thousand_entries_are_listed(person: Program, job: str, out: Path) -> None:
    many = out / "many"
    many.mkdir()
    first = many / "0"
    first.touch()
    # Links are made faster than files, and are listed as such.
    folder = os.open(many, os.O_RDONLY)
    for number in range(1, 100_000):
        os.mkdir(str(number), dir_fd=folder) if number < 3 else os.symlink(
            "0", str(number), dir_fd=folder
        )
    os.close(folder)
    rows = listed(person, job, "out/many")
    assert len(rows) == 100_000


# -- get


def test_files_and_folders_are_copied_byte_for_byte(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    content = os.urandom(3_000_000)
    write(out, b"sub/" + ODD, content)
    write(out, b"empty", b"")
    (out / "shadow").symlink_to("/etc/shadow")
    os.mkfifo(out / "pipe")
    run = person("get", job, "out", "out/empty", "--to", str(tmp_path / "here"), "--format", "json")
    assert run.status == 0, run
    shown = "out/sub/-n \\xff␊␛[31m$(id) 'q"
    assert results(run) == {
        shown: "copied",
        "out/empty": "copied",
        "empty": "copied",
        "out/shadow": "skipped",
        "out/pipe": "skipped",
    }
    here = os.fsencode(tmp_path / "here")
    with open(os.path.join(here, b"out/sub", ODD), "rb") as file:
        assert file.read() == content
    assert sorted(os.listdir(os.path.join(here, b"out"))) == [b"empty", b"sub"]
    again = person("get", job, "out", "--to", str(tmp_path / "here"), "--format", "json")
    assert results(again)[shown] == "unchanged"


def test_what_is_here_is_left_without_force(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    write(out, b"a", b"theirs")
    write(tmp_path, b"here/a", b"mine")
    refused = person("get", job, "out/a", "--to", str(tmp_path / "here"))
    assert refused.status == 1
    assert "exists here; --force replaces it" in refused.text
    assert (tmp_path / "here" / "a").read_bytes() == b"mine"
    assert person("get", job, "out/a", "--to", str(tmp_path / "here"), "--force").status == 0
    assert (tmp_path / "here" / "a").read_bytes() == b"theirs"
    assert os.listdir(tmp_path / "here") == ["a"]


def test_nothing_is_written_through_a_link_here(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    write(out, b"sub/a", b"theirs")
    write(out, b"b", b"theirs")
    outside = tmp_path / "outside"
    outside.mkdir()
    write(tmp_path, b"precious", b"mine")
    here = tmp_path / "here" / "out"
    here.mkdir(parents=True)
    (here / "sub").symlink_to(outside)
    (here / "b").symlink_to(tmp_path / "precious")
    run = person("get", job, "out", "--to", str(tmp_path / "here"), "--force", "--format", "json")
    assert run.status == 1
    assert results(run) == {"out/sub/a": "failed", "out/b": "copied"}
    assert os.listdir(outside) == []
    assert (tmp_path / "precious").read_bytes() == b"mine"
    # The link itself was replaced.
    assert not (here / "b").is_symlink()


def test_a_planted_part_is_not_written_to(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    write(out, b"a", b"theirs")
    here = tmp_path / "here"
    person("get", job, "out/a", "--to", str(here))
    (here / "a").unlink()
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    # The name of a part depends on the file only.
    part = part_name(out / "a", b"a")
    (here / part).symlink_to(precious)
    assert person("get", job, "out/a", "--to", str(here)).status == 1
    assert precious.read_bytes() == b"mine"
    (here / part).unlink()
    os.link(precious, here / part)
    assert person("get", job, "out/a", "--to", str(here)).status == 1
    assert precious.read_bytes() == b"mine"


def part_name(source: Path, name: bytes) -> str:
    digest = hashlib.sha256(os.fsencode(source) + b"\0" + name).hexdigest()
    return f".hpcdash-{digest[:16]}.part"


def test_a_part_is_continued_if_the_file_begins_with_it(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    content = os.urandom(1_000_000)
    write(out, b"a", content)
    write(out, b"b", content)
    here = tmp_path / "here"
    write(here, part_name(out / "a", b"a").encode(), content[:600_000])
    write(here, part_name(out / "b", b"b").encode(), b"x" + content[1:600_000])
    run = person("get", job, "out/a", "out/b", "--to", str(here), "--format", "json")
    assert results(run) == {"a": "resumed", "b": "copied"}
    assert (here / "a").read_bytes() == (here / "b").read_bytes() == content
    assert sorted(os.listdir(here)) == ["a", "b"]


def test_a_disk_that_is_full_here_is_reported_and_the_copy_continues_later(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    content = os.urandom(2_000_000)
    write(out, b"a", content)
    here = tmp_path / "here"
    words = ("get", job, "out/a", "--to", str(here))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))

    full = subprocess.run(
        person.argv(*words),
        env={**person.environment, "PYTHONPATH": str(ROOT)},
        cwd=person.home,
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )
    assert full.returncode == 1, full
    assert "no room on this machine for a" in full.stderr
    assert "Traceback" not in full.stderr
    assert not (here / "a").exists()
    run = person(*words, "--format", "json")
    assert results(run) == {"a": "resumed"}
    assert (here / "a").read_bytes() == content


# -- put


def test_files_and_folders_are_sent_byte_for_byte(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    content = os.urandom(5_000_000)
    data = tmp_path / "data"
    write(data, b"sub/" + ODD, content)
    write(data, b"empty", b"")
    for number in range(300):
        write(data, b"many/%d" % number, b"%d" % number)
    (data / "link").symlink_to("/etc/shadow")
    run = person("put", job, str(data), "--to", "out", "--format", "json")
    assert run.status == 0, run
    found = results(run)
    assert found.pop("data/link") == "skipped"
    assert len(found) == 302
    assert set(found.values()) == {"copied"}
    with open(os.path.join(os.fsencode(out), b"data/sub", ODD), "rb") as file:
        assert file.read() == content
    assert (out / "data" / "many" / "299").read_bytes() == b"299"
    assert sorted(os.listdir(out / "data")) == ["empty", "many", "sub"]
    assert sorted(os.listdir(out)) == ["data"]
    again = person("put", job, str(data), "--to", "out", "--format", "json")
    assert set(results(again).values()) == {"unchanged", "skipped"}
    actions = person("journal", "--format", "json").json["actions"]
    assert [entry["verb"] for entry in actions] == ["put", "put"]


def test_what_is_there_is_left_without_force(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    mine = write(tmp_path, b"a", b"mine")
    write(out, b"a", b"theirs")
    refused = person("put", job, os.fsdecode(mine), "--to", "out")
    assert refused.status == 1
    assert "exists there; --force replaces it" in refused.text
    assert (out / "a").read_bytes() == b"theirs"
    assert person("put", job, os.fsdecode(mine), "--to", "out", "--force").status == 0
    assert (out / "a").read_bytes() == b"mine"
    assert person("--read-only", "put", job, os.fsdecode(mine), "--to", "out").status == 2


def test_nothing_is_sent_through_a_link_there(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    write(tmp_path, b"data/sub/a", b"mine")
    write(tmp_path, b"data/b", b"mine")
    outside = tmp_path / "outside"
    outside.mkdir()
    write(tmp_path, b"precious", b"theirs")
    (out / "data").mkdir()
    (out / "data" / "sub").symlink_to(outside)
    (out / "data" / "b").symlink_to(tmp_path / "precious")
    run = person("put", job, str(tmp_path / "data"), "--to", "out", "--format", "json")
    assert results(run) == {"data/sub/a": "left", "data/b": "left"}
    forced = person(
        "put", job, str(tmp_path / "data"), "--to", "out", "--force", "--format", "json"
    )
    assert results(forced) == {"data/sub/a": "failed", "data/b": "copied"}
    assert os.listdir(outside) == []
    assert (tmp_path / "precious").read_bytes() == b"theirs"


def test_a_planted_folder_of_parts_is_not_entered(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    mine = write(tmp_path, b"a", b"mine")
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (out / f".hpcdash-parts-{os.getuid()}").symlink_to(outside)
    run = person("put", job, os.fsdecode(mine), "--to", "out", "--format", "json")
    assert results(run) == {"a": "failed"}
    assert os.listdir(outside) == []
    (out / f".hpcdash-parts-{os.getuid()}").unlink()
    (out / f".hpcdash-parts-{os.getuid()}").mkdir()
    (out / f".hpcdash-parts-{os.getuid()}").chmod(0o777)
    run = person("put", job, os.fsdecode(mine), "--to", "out", "--format", "json")
    assert results(run) == {"a": "failed"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts a file system")
def test_a_disk_that_is_full_there_is_reported_and_nothing_is_damaged(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    small = out / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small]).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        write(small, b"a", b"before")
        big = write(tmp_path, b"a", os.urandom(4_000_000))
        run = person("put", job, os.fsdecode(big), "--to", "out/small", "--force")
        assert run.status == 1
        assert "no room there" in run.stderr
        assert os.listdir(small) == ["a"]
        assert (small / "a").read_bytes() == b"before"
    finally:
        subprocess.run(["umount", small], check=True)


# -- delete


def test_files_are_deleted_after_a_yes_and_written_to_the_journal(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    write(out, b"sub/" + ODD, b"12345")
    write(tmp_path, b"precious", b"mine")
    (out / "link").symlink_to(tmp_path / "precious")
    (out / "folder").symlink_to(tmp_path)
    declined = person("files", job, "out/sub", "--delete")
    assert declined.status == 2
    assert (out / "sub").exists()
    run = person("files", job, "out/sub", "out/link", "out/folder", "--delete", "--yes")
    assert run.status == 0, run
    assert "Delete 3 files, 5B" in run.stderr
    assert os.listdir(out) == []
    assert (tmp_path / "precious").read_bytes() == b"mine"
    (entry,) = person("journal", "--format", "json").json["actions"]
    assert (entry["verb"], entry["state"]) == ("delete-files", "done")


def test_home_the_job_s_folder_and_what_is_outside_of_it_are_refused(
    person: Program, queue: QueueLab, tmp_path: Path
) -> None:
    work = person.home / "project" / "run"
    work.mkdir(parents=True)
    number = queue.submit("exit 0", cwd=person.home.parent)
    queue.ended(number)
    inner = queue.submit("exit 0", cwd=work)
    queue.ended(inner)
    (work / "up").symlink_to(tmp_path)
    for job, path in (
        (number, "home"),
        (inner, "."),
        (inner, str(work)),
        (inner, ".."),
        (inner, "../../project"),
        (inner, "up/queue"),
        (inner, str(tmp_path / "queue")),
    ):
        run = person("files", job, path, "--delete", "--yes")
        assert run.status == 2, run
    assert work.is_dir()
    assert (tmp_path / "queue").is_dir()


def test_files_of_a_running_job_are_refused(person: Program, queue: QueueLab) -> None:
    folder = queue.work / "run"
    (folder / "out").mkdir(parents=True)
    write(folder, b"out/a", b"")
    ended = queue.submit("exit 0", cwd=folder)
    queue.ended(ended)
    running = queue.submit("sleep 600", cwd=folder / "out")
    queue.wait(running, "running")
    for job, path in ((running, "a"), (ended, "out/a"), (ended, "out")):
        run = person("files", job, path, "--delete", "--yes")
        assert run.status == 2, run
        assert "has not ended" in run.stderr
    assert (folder / "out" / "a").exists()


# -- sync


def test_a_folder_is_followed_until_the_job_ends(
    person: Program, queue: QueueLab, tmp_path: Path
) -> None:
    folder = queue.work / "run"
    (folder / "out").mkdir(parents=True)
    go = tmp_path / "go"
    os.mkfifo(go)
    number = queue.submit(f"echo one >out/log; read x <{go}; echo two >>out/log", cwd=folder)
    queue.wait(number, "running")
    here = tmp_path / "here"
    with subprocess.Popen(
        person.argv("sync", number, "out", "--to", str(here), "--every", "5s"),
        env={**person.environment, "PYTHONPATH": str(ROOT)},
        cwd=person.home,
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "copied  log\n"
        assert (here / "log").read_text() == "one\n"
        go.write_text("\n")
        assert following.stdout.read() == "resumed  log\n"
        assert following.wait() == 0
    assert (here / "log").read_text() == "one\ntwo\n"


def test_what_was_changed_or_not_brought_is_left_and_listed(
    person: Program, job: str, out: Path, tmp_path: Path
) -> None:
    for name in (b"changed", b"same", b"own", b"gone"):
        write(out, name, b"1")
    here = tmp_path / "here"
    write(here, b"own", b"mine")
    first = person("sync", job, "out", "--to", str(here), "--once")
    assert first.status == 1
    assert "left  own  was not brought by sync: not replaced" in first.text
    (here / "changed").write_bytes(b"edited")
    for name in (b"changed", b"same", b"own"):
        write(out, name, b"12")
    (out / "gone").unlink()
    run = person("sync", job, "out", "--to", str(here), "--once")
    assert sorted(run.text.splitlines()) == [
        "left  changed  was changed here: not replaced",
        "left  own  was not brought by sync: not replaced",
        "resumed  same",
    ]
    assert (here / "changed").read_bytes() == b"edited"
    assert (here / "own").read_bytes() == b"mine"
    assert (here / "same").read_bytes() == b"12"
    assert (here / "gone").read_bytes() == b"1"
    # A file with the time and the size of what was brought, but other bytes.
    times = (here / "same").stat()
    (here / "same").write_bytes(b"xy")
    os.utime(here / "same", ns=(times.st_atime_ns, times.st_mtime_ns))
    write(out, b"same", b"123")
    assert "left  same" in person("sync", job, "out", "--to", str(here), "--once").text
    assert stat.S_IMODE((here / ".hpcdash-sync.json").stat().st_mode) == 0o600
    other = person("sync", job, ".", "--to", str(here), "--once")
    assert other.status == 2
    assert "follows" in other.stderr
