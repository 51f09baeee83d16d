"""Which files a request's `files` mean, and how they come to a launch's folder, as git and a shell
have it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.backends.actions import Outcome
from hpcdash.errors import UsageError
from hpcdash.services.submit.code_files import (
    PackedCode,
    code_command,
    find_code_files,
    folder_query,
    pack_code_files,
    read_code_files,
)
from hpcdash.services.submit.staging import discard_argv, staged_files, staging_command
from hpcdash.transport.base import CommandResult

pytestmark = pytest.mark.system
LIMIT = 1 << 20
HOSTILE = (
    b"-rf",
    b"new\nline",
    b"$(touch pwned)",
    b"\xff\xfe.bin",
    b"tab\t",
    b"'q\"\\",
    b"--to-command=id",
)


def run(argv: tuple[str, ...], stdin: bytes = b"", *, file_blocks: int = 0) -> CommandResult:
    if file_blocks:
        # A write fails as on a full disk.
        argv = ("sh", "-c", f'trap "" XFSZ; ulimit -f {file_blocks}; exec "$@"', "sh", *argv)
    ended = subprocess.run(argv, input=stdin, capture_output=True, check=False)
    return CommandResult(argv, ended.returncode, ended.stdout, ended.stderr, 0.0)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def names(project: Path, *files: str) -> list[str]:
    return [os.fsdecode(one.name) for one in find_code_files(files or (".",), project, LIMIT).files]


def packed(project: Path, *files: str) -> PackedCode:
    return pack_code_files(find_code_files(files or (".",), project, LIMIT))


class Cluster:
    """A folder of launches, and commands as the cluster's shell runs them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sums = ""

    def stage(self, name: str = "one") -> str:
        staged = staged_files(str(self.root / name), {"batch.sh": b"#!/bin/bash\n"}, {})
        command = staging_command(staged, "job")
        assert run(command.argv, command.stdin or b"").status == 0
        self.sums = staged.sums_digest
        return staged.folder

    def arrived(self, code: PackedCode) -> int | None:
        query = folder_query(str(self.root), code.digest)
        return query.parse(run(query.argv))

    def send(
        self, code: PackedCode, folder: str, *, keep: int | None = None, file_blocks: int = 0
    ) -> Outcome:
        """`keep`: the line is cut after so many bytes."""
        command = code_command(
            replace(code, arrived=self.arrived(code)), str(self.root), folder, "job"
        )
        content = command.stdin or b""
        (outcome,) = command.read(run(command.argv, content[:keep], file_blocks=file_blocks))
        return outcome


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "launches")


@pytest.mark.parametrize("is_repository", [True, False])
def test_what_git_ignores_stays_and_so_do_its_own_files(project: Path, is_repository: bool) -> None:
    write(
        project,
        {".gitignore": "*.pt\n/out/\n!kept.pt\n", "train.py": "1", "model.pt": "1", "kept.pt": "1"},
    )
    write(
        project, {"out/log": "1", "src/.gitignore": "cache/\n", "src/a.py": "1", "src/cache/x": "1"}
    )
    if is_repository:
        git(project, "init", "-q")
        write(project, {".git/info/exclude": "train.py\n"})
        git(project, "add", "-f", "src/cache/x")
    expected = [".gitignore", "kept.pt", "src/.gitignore", "src/a.py"]
    expected += ["src/cache/x"] if is_repository else ["train.py"]
    assert names(project) == sorted(expected)
    assert names(project, "src", "kept.pt") == sorted(
        one for one in expected if one.startswith(("src/", "kept"))
    )


def test_a_repository_within_comes_along_and_what_is_gone_does_not(project: Path) -> None:
    git(project, "init", "-q")
    write(project, {"a.py": "1", "gone.py": "1", "lib/b.py": "1"})
    git(project, "add", "a.py", "gone.py")
    (project / "gone.py").unlink()
    git(project / "lib", "init", "-q")
    assert names(project) == ["a.py", "lib/b.py"]


def test_a_folder_outside_is_unpacked_at_the_top_and_two_of_a_name_are_refused(
    project: Path,
) -> None:
    write(project, {"jobs/r.toml": "1", "src/a.py": "1", "other/a.py": "2"})
    assert names(project / "jobs", "../src") == ["a.py"]
    assert names(project / "jobs", ".", "../src/a.py") == ["a.py", "r.toml"]
    with pytest.raises(UsageError, match=r"a\.py appears twice"):
        names(project / "jobs", "../src", "../other")


def test_a_file_or_link_and_a_folder_of_one_name_are_refused(project: Path) -> None:
    write(project, {"jobs/r.toml": "1", "a/data": "1", "b/data/deep/x": "1", "c/data2/x": "1"})
    (project / "l").mkdir()
    (project / "l/data").symlink_to("/etc")
    for first, kind, path in (("../a", "file", "a/data"), ("../l", "link", "l/data")):
        with pytest.raises(UsageError, match=r"^files: data appears twice: ") as refused:
            names(project / "jobs", first, "../b")
        words = rf": {kind} /tmp\S*/{path} and folder /tmp\S*/b/data$"
        assert re.search(words, refused.value.message), refused.value.message
        assert names(project / "jobs", first, "../c") == ["data", "data2/x"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["missing"], "missing does not exist"),
        (["empty"], "no files to send"),
        (["."], "the largest is big, 2M: more th"),
    ],
)
def test_what_cannot_be_sent_is_refused(project: Path, files: list[str], words: str) -> None:
    (project / "empty").mkdir()
    (project / "big").write_bytes(bytes(LIMIT * 2))
    (project / "small").write_bytes(b"1")
    with pytest.raises(UsageError, match=words):
        find_code_files(files, project, LIMIT)


def test_without_git_a_gitignore_is_not_passed_over(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(project))
    write(project, {"a.py": "1"})
    assert names(project) == ["a.py"]
    write(project, {"src/.gitignore": "*"})
    with pytest.raises(UsageError, match="git is not installed on this machine"):
        names(project)


def test_no_link_is_followed(project: Path, tmp_path: Path, cluster: Cluster) -> None:
    secret = tmp_path / "secret"
    write(secret, {"key": "hidden words"})
    git(project, "init", "-q")
    write(project, {"a.py": "1", "swapped/key": "mine"})
    git(project, "add", ".")
    shutil.rmtree(project / "swapped")
    for name, target in {
        "swapped": secret,
        "out": secret,
        "up": "../secret/key",
        "in": "a.py",
    }.items():
        (project / name).symlink_to(target)
    code = find_code_files(["."], project, LIMIT)
    assert [os.fsdecode(one.name) for one in code.files] == ["a.py", "in", "out", "swapped", "up"]
    assert "out and 2 more points outside the folder" in code.notes[1]
    folder = Path(cluster.stage())
    assert cluster.send(pack_code_files(code), str(folder)).done
    assert os.readlink(folder / "code" / "out") == str(secret)
    assert os.readlink(folder / "code" / "in") == "a.py"
    assert [path.name for path in folder.rglob("key")] == []


def test_names_arrive_as_they_are_with_their_bytes_and_modes(
    project: Path, cluster: Cluster
) -> None:
    for name in HOSTILE:
        (Path(os.fsdecode(os.fsencode(project) + b"/" + name))).write_bytes(name)
    deep = project / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    (deep / "run.sh").write_bytes(b"#!/bin/sh\n")
    (deep / "run.sh").chmod(0o755)
    os.mkfifo(project / "pipe")
    folder = Path(cluster.stage())
    assert cluster.send(packed(project), str(folder)) == Outcome(
        "job", True, f"files are in {folder}/code"
    )
    there = folder / "code"
    assert {
        os.fsencode(path.name): path.read_bytes() for path in there.iterdir() if path.is_file()
    } == {name: name for name in HOSTILE}
    assert (there / deep.relative_to(project) / "run.sh").stat().st_mode & 0o777 == 0o700
    assert (there / "-rf").stat().st_mode & 0o777 == 0o600


def test_equal_files_make_one_archive_which_is_sent_once(project: Path, cluster: Cluster) -> None:
    write(project, {"a.py": "1", "src/b.py": "2"})
    first = packed(project)
    os.utime(project / "a.py", (1, 1))
    again = packed(project)
    assert again.digest == first.digest
    assert cluster.send(first, cluster.stage("one")).done
    assert cluster.arrived(again) is None
    command = code_command(
        replace(again, arrived=None), str(cluster.root), cluster.stage("two"), "job"
    )
    assert command.stdin == b""
    assert "already on the cluster" in command.text
    assert cluster.send(again, str(cluster.root / "two")).done
    assert (cluster.root / "two" / "code" / "src" / "b.py").read_text() == "2"
    (cache,) = cluster.root.glob(".code-*")
    assert cache.stat().st_mode & 0o777 == 0o700
    write(project, {"a.py": "3"})
    assert packed(project).digest != first.digest


def test_what_was_cut_is_not_used_and_goes_on_where_it_ended(
    project: Path, cluster: Cluster
) -> None:
    (project / "data").write_bytes(os.urandom(300_000))
    code = packed(project)
    folder = cluster.stage()
    cut = cluster.send(code, folder, keep=150_000)
    assert cut.done is False
    assert (
        f"150000 of {len(code.archive)} bytes of the files arrived: submit again to send the rest"
        in cut.text
    )
    assert not (Path(folder) / "code").exists()
    assert cluster.arrived(code) == 150_000
    rest = code_command(replace(code, arrived=150_000), str(cluster.root), folder, "job")
    assert len(rest.stdin or b"") == len(code.archive) - 150_000
    assert cluster.send(code, folder).done
    assert (Path(folder) / "code" / "data").read_bytes() == (project / "data").read_bytes()


def test_a_part_that_another_shell_still_writes_is_left_to_it(
    project: Path, cluster: Cluster
) -> None:
    write(project, {"a.py": "1"})
    code, folder = packed(project), cluster.stage()
    cache = cluster.root / f".code-{os.getuid()}"
    cache.mkdir(mode=0o700)
    (cache / f"{code.digest}.{os.uname().nodename}.{os.getpid()}.part").write_bytes(b"half")
    assert cluster.arrived(code) == 0
    assert cluster.send(code, folder).done


@pytest.mark.parametrize("is_kept", [True, False])
def test_damaged_files_are_not_used(project: Path, cluster: Cluster, is_kept: bool) -> None:
    (project / "data").write_bytes(os.urandom(1000))
    code = packed(project)
    if is_kept:
        assert cluster.send(code, cluster.stage("one")).done
        (kept,) = cluster.root.glob(".code-*/*")
        kept.write_bytes(kept.read_bytes()[:-3] + b"abc")
        folder = cluster.stage("two")
        outcome = cluster.send(code, folder)
    else:
        folder = cluster.stage("two")
        command = code_command(code, str(cluster.root), folder, "job")
        (outcome,) = command.read(run(command.argv, code.archive[:-3] + b"abc"))
    assert outcome.done is False
    assert "damaged" in outcome.text
    assert not (Path(folder) / "code").exists()
    assert cluster.send(code, folder).done


def test_a_full_disk_is_said_and_leaves_no_part(project: Path, cluster: Cluster) -> None:
    (project / "data").write_bytes(os.urandom(300_000))
    (project / "zeros").write_bytes(bytes(700_000))
    code, folder = packed(project), cluster.stage()
    outcome = cluster.send(code, folder, file_blocks=200)
    assert outcome.done is False
    assert "File too large" in outcome.text
    assert list(cluster.root.glob(".code-*/*")) == []
    # It arrives whole, and cannot be unpacked.
    outcome = cluster.send(code, folder, file_blocks=900)
    assert outcome.done is False
    assert not (Path(folder) / "code").exists()
    assert cluster.send(code, folder).done


def test_a_full_disk_is_named_with_the_room_it_has_and_the_next_step(
    project: Path, tmp_path: Path
) -> None:
    (project / "data").write_bytes(os.urandom(300_000))
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "none", disk], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        cluster, code = Cluster(disk), packed(project)
        for held, words in (
            (200, "cat: write error: No space left on device"),
            (0, "tar: code/data: "),
        ):
            folder = cluster.stage(f"held-{held}")
            (disk / "held").write_bytes(bytes(held << 10))
            outcome = cluster.send(code, folder)
            assert outcome.done is False
            assert re.search(
                rf"{re.escape(words)}.*; \d+ KiB are free in {disk}\. Delete files on that disk",
                outcome.text,
            )
            assert not (Path(folder) / "code").exists()
        refused = staging_command(
            staged_files(f"{disk}/two", {"batch.sh": bytes(500_000)}, {}), "job"
        )
        (outcome,) = refused.read(run(refused.argv, refused.stdin or b""))
        assert outcome.done is False
        assert "No space left on device" in outcome.text or "Wrote only" in outcome.text
        assert "set storage_root in [launch]" in outcome.text
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_the_cause_that_tar_gives_is_reported(project: Path, cluster: Cluster) -> None:
    write(project, {"a.py": "1"})
    code = find_code_files((".",), project, LIMIT)
    link = replace(code.files[0], name=b"b", target=b"/etc")
    clashing = replace(code, files=(link, replace(code.files[0], name=b"b/a.py")))
    outcome = cluster.send(pack_code_files(clashing), cluster.stage())
    assert outcome.done is False
    assert outcome.text.startswith("nothing was submitted: tar: code/b")
    assert "Exiting with failure" not in outcome.text


def test_it_says_how_much_has_arrived(project: Path, cluster: Cluster) -> None:
    (project / "data").write_bytes(os.urandom(200_000))
    code, folder = packed(project), cluster.stage()
    command = code_command(code, str(cluster.root), folder, "job")
    with subprocess.Popen(command.argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as sending:
        assert sending.stdin is not None
        assert sending.stderr is not None
        sending.stdin.write(code.archive[:150_000])
        sending.stdin.flush()
        # The first look may come before all of it is written.
        said = [command.explain(sending.stderr.readline().decode().strip()) for _ in range(2)]
        assert said[-1] == "146K of 196K of the files arrived"
        sending.stdin.write(code.archive[150_000:])
        sending.stdin.close()
        assert sending.wait() == 0
        assert not [line for line in sending.stderr if not line.startswith(b"arrived ")]
    assert command.explain("sbatch: error: other words") == "sbatch: error: other words"


def test_of_the_archives_that_rest_the_newest_four_are_kept(
    project: Path, cluster: Cluster
) -> None:
    write(project, {"a.py": "1"})
    cache = cluster.root / f".code-{os.getuid()}"
    folder = cluster.stage()
    cache.mkdir(mode=0o700)
    for hours in range(7):
        old = cache / f"{hours:064x}.tar.gz"
        old.touch()
        at = time.time() - 3600 * hours - 60
        os.utime(old, (at, at))
    assert cluster.send(packed(project), folder).done
    kept = sorted(path.name[:64].lstrip("0") or "0" for path in cache.iterdir())
    assert kept[:3] == ["0", "1", "2"]
    assert len(kept) == 4


@pytest.mark.parametrize("planted", ["link", "file"])
def test_a_cache_that_is_not_the_account_s_own_folder_is_not_used(
    project: Path, cluster: Cluster, tmp_path: Path, planted: str
) -> None:
    write(project, {"a.py": "1"})
    folder, place = cluster.stage(), cluster.root / f".code-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    if planted == "link":
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.write_bytes(b"")
    assert cluster.send(packed(project), folder).done is False
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not (Path(folder) / "code").exists()


def until_later_than(marker: Path, clock: Path) -> None:
    """A file system's clock ticks some hundred times a second."""
    while clock.touch() or clock.stat().st_mtime_ns <= marker.stat().st_mtime_ns:
        pass


@pytest.mark.parametrize(
    "made", ["", "code/src/new.pt", "code/a.py", "other", "code/__pycache__/a.pyc", "code/link"]
)
def test_a_finished_job_s_files_go_unless_it_changed_some(
    project: Path, cluster: Cluster, tmp_path: Path, made: str
) -> None:
    write(project, {"a.py": "1", "src/b.py": "2"})
    folder = Path(cluster.stage("-one"))
    assert cluster.send(packed(project), str(folder)).done
    until_later_than(folder / ".unpacked", tmp_path / "clock")
    if made == "code/link":
        (folder / made).symlink_to("a.py")
    elif made:
        write(folder, {made: "result"})
        # Whatever a program dates it.
        os.utime(folder / made, (1, 1))
    gone = run(discard_argv(str(cluster.root), "-one", cluster.sums, has_run=True))
    is_result = made not in ("", "code/__pycache__/a.pyc")
    assert (gone.status == 0, folder.exists()) == (not is_result, is_result), gone
    assert (made in gone.stderr.decode()) == is_result or not made or not is_result


def test_what_is_sent_without_an_archive_is_read_by_name_and_links_stand_for_files_that_are_sent(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_bytes(b"print(1)\n")
    (tmp_path / "tool").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "same.py").symlink_to("train.py")
    (tmp_path / "out").symlink_to("/etc/passwd")
    read = read_code_files(find_code_files(["."], tmp_path, 1 << 20))
    assert {name: (one.content, one.is_program) for name, one in read.items()} == {
        "same.py": (b"print(1)\n", False),
        "tool": (b"#!/bin/sh\n", True),
        "train.py": (b"print(1)\n", False),
    }
