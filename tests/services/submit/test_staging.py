"""The commands that fill a launch's folder and remove it, as a shell runs them."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from hpcdash.backends.actions import Outcome
from hpcdash.errors import UsageError
from hpcdash.services.submit.staging import (
    MOST_STAGED_BYTES,
    Staged,
    discard_argv,
    staged_files,
    staged_folder,
    staging_command,
)
from hpcdash.services.submit.sudoers import NOTHING_THERE
from hpcdash.transport.base import CommandResult
from tests.support.records import for_each

pytestmark = pytest.mark.system
OWN = {"batch.sh": b"#!/bin/bash\ntrue\n", "request.toml": 'command = "é"\n'.encode()}
BINARY = bytes(range(256)) * 300


def run(argv: tuple[str, ...], stdin: bytes = b"") -> CommandResult:
    ended = subprocess.run(argv, input=stdin, capture_output=True, check=False)
    return CommandResult(argv, ended.returncode, ended.stdout, ended.stderr, 0.0)


def stage(staged: Staged) -> Outcome:
    command = staging_command(staged, "job")
    (outcome,) = command.read(run(command.argv, command.stdin or b""))
    return outcome


def discard(folder: Path, sums_digest: str) -> int:
    return run(discard_argv(str(folder.parent), folder.name, sums_digest)).status


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o777


def test_files_arrive_byte_by_byte_under_their_names(tmp_path: Path) -> None:
    given = {"-rf": b"dash", "two words": BINARY, "naïve.py": b"\r\n\x00", "$(id)": b"", "a'b\"c*": b"x" * 70_000}
    staged = staged_files(str(tmp_path / "jobs" / "one-1"), OWN, given)
    outcome = stage(staged)
    assert (outcome.job_id, outcome.done) == ("job", True), outcome
    folder = tmp_path / "jobs" / "one-1"
    assert staged_folder(staging_command(staged, "job").argv) == str(folder)
    assert {file.name: file.read_bytes() for file in (folder / "files").iterdir()} == given
    assert {name: (folder / name).read_bytes() for name in OWN} == OWN
    assert hashlib.sha256((folder / "SHA256SUMS").read_bytes()).hexdigest() == staged.sums_digest


def test_only_its_owner_reads_it_and_programs_can_be_run(tmp_path: Path) -> None:
    folder = tmp_path / "one-1"
    before = os.umask(0)
    try:
        assert stage(staged_files(str(folder), OWN, {"run.sh": b"#!/bin/sh\n", "table": b"1"})).done
    finally:
        os.umask(before)
    assert [mode(folder), mode(folder / "files")] == [0o700, 0o700]
    assert [mode(folder / "files" / "run.sh"), mode(folder / "files" / "table")] == [0o700, 0o600]
    assert [mode(folder / name) for name in OWN] == [0o700, 0o600]


def test_files_are_dated_as_they_were_staged(tmp_path: Path) -> None:
    """Sites remove what is old from their scratch file systems."""
    assert stage(staged_files(str(tmp_path / "one"), OWN, {"table": b"1"}, at=1_800_000_000.7)).done
    assert (tmp_path / "one" / "files" / "table").stat().st_mtime == 1_800_000_000


@pytest.mark.parametrize("planted", ["folder", "file", "link", "dangling link"])
def test_what_is_there_already_is_neither_entered_nor_changed(tmp_path: Path, planted: str) -> None:
    elsewhere, place = tmp_path / "elsewhere", tmp_path / "jobs" / "one-1"
    place.parent.mkdir()
    match planted:
        case "folder":
            place.mkdir()
        case "file":
            place.write_bytes(b"mine")
        case "link":
            elsewhere.mkdir()
            place.symlink_to(elsewhere)
        case _:
            place.symlink_to(elsewhere)
    before = sorted(tmp_path.rglob("*"))
    outcome = stage(staged_files(str(place), OWN, {}))
    assert outcome.done is False
    assert "not submitted" in outcome.words
    assert "File exists" in outcome.words
    assert sorted(tmp_path.rglob("*")) == before


def test_what_does_not_arrive_whole_is_removed_again(tmp_path: Path) -> None:
    staged = staged_files(str(tmp_path / "jobs" / "one-1"), OWN, {"table": BINARY})
    command = staging_command(staged, "job")
    for cut in (staged.archive[:5000], staged.archive.replace(b"#!/bin/bash\ntrue", b"#!/bin/bash\nfals", 1)):
        (outcome,) = command.read(run(command.argv, cut))
        assert outcome.done is False
        assert list((tmp_path / "jobs").iterdir()) == []


def test_where_no_folder_can_be_made_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(b"")
    outcome = stage(staged_files(str(tmp_path / "jobs" / "one-1"), OWN, {}))
    assert outcome.done is False
    assert f"cannot create {tmp_path}/jobs/one-1 and its files: mkdir: " in outcome.words


@for_each("name", ["", ".", "..", "a/b", "/etc/passwd", "a\nb", "a\\nb", "a\x1b[2J", "x" * 101, "\udcff"])
def test_a_name_that_is_no_plain_one_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="staged file"):
        staged_files("/jobs/one", OWN, {name: b""})


def test_more_than_is_staged_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match="absolute paths"):
        staged_files("/jobs/one", OWN, {"model": bytes(MOST_STAGED_BYTES)})


@for_each("account", ["root", "ALL", "-u", "a b", "#0", "%wheel", "alice:root"])
def test_an_account_that_is_none_is_not_submitted_as(account: str) -> None:
    with pytest.raises(UsageError, match="run_as"):
        staged_files("/jobs/one", OWN, {}, run_as=account)


def test_the_folder_is_removed_with_all_that_came_into_it_and_nothing_beside_it(tmp_path: Path) -> None:
    beside, precious = tmp_path / "jobs" / "one-2", tmp_path / "precious"
    precious.mkdir()
    (precious / "model").write_bytes(b"1")
    staged = staged_files(str(tmp_path / "jobs" / "one-1"), OWN, {"run.sh": b"#!/bin/sh\n"})
    assert stage(staged).done
    beside.mkdir()
    folder = tmp_path / "jobs" / "one-1"
    (folder / "log").mkdir()
    (folder / "log" / "1.out").write_bytes(b"")
    (folder / "to precious").symlink_to(precious)
    assert discard(folder, staged.sums_digest) == 0
    assert not folder.exists()
    assert beside.is_dir()
    assert (precious / "model").read_bytes() == b"1"
    assert discard(folder, staged.sums_digest) == NOTHING_THERE


def test_results_that_a_job_wrote_beside_its_script_are_not_removed_with_it(tmp_path: Path) -> None:
    staged = staged_files(str(tmp_path / "one-1"), OWN, {"two words.py": b"1"})
    assert stage(staged).done
    folder = tmp_path / "one-1"
    (folder / "files" / "__pycache__").mkdir()
    (folder / "files" / "__pycache__" / "more.pyc").write_bytes(b"")
    (folder / "7.out").write_bytes(b"")
    (folder / "7.err").write_bytes(b"")
    (folder / "files" / "results of it.csv").write_bytes(b"1")
    argv = discard_argv(str(tmp_path), "one-1", staged.sums_digest, has_run=True)
    left = run(argv)
    assert left.status not in (0, NOTHING_THERE)
    assert left.stderr == b"it holds more than was staged: files/results of it.csv\n"
    assert (folder / "batch.sh").exists()
    (folder / "files" / "results of it.csv").unlink()
    (folder / "model").symlink_to(tmp_path)
    assert run(argv).status not in (0, NOTHING_THERE)
    (folder / "model").unlink()
    assert run(argv).status == 0
    assert not folder.exists()


@pytest.mark.parametrize(("mode_there", "is_staged"), [(0o777, False), (0o1777, True), (0o775, True), (0o2770, True)])
def test_nothing_is_staged_where_anybody_may_swap_it(tmp_path: Path, mode_there: int, is_staged: bool) -> None:
    root = tmp_path / "jobs"
    root.mkdir()
    root.chmod(mode_there)
    outcome = stage(staged_files(str(root / "one-1"), OWN, {}))
    assert outcome.done is is_staged
    assert (root / "one-1").exists() is is_staged
    if not is_staged:
        assert f"others may write to {root}, and so others could replace what jobs run from {root}" in outcome.words


def test_a_folder_of_another_s_that_all_may_write_to_is_one_that_they_may_swap_things_in(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    root = tmp_path / "jobs"
    root.mkdir()
    os.chown(root, 65534, 65534)
    root.chmod(0o1777)
    assert stage(staged_files(str(root / "one-1"), OWN, {})).done is False


def test_a_link_in_its_place_and_a_folder_of_something_else_are_left(tmp_path: Path) -> None:
    staged = staged_files(str(tmp_path / "one-1"), OWN, {})
    other = staged_files(str(tmp_path / "one-2"), OWN, {"more": b"1"})
    assert stage(staged).done
    assert stage(other).done
    link = tmp_path / "one-3"
    link.symlink_to(tmp_path / "one-1")
    assert discard(link, staged.sums_digest) not in (0, NOTHING_THERE)
    assert discard(tmp_path / "one-2", staged.sums_digest) not in (0, NOTHING_THERE)
    assert (tmp_path / "one-1" / "batch.sh").exists()
    assert (tmp_path / "one-2" / "batch.sh").exists()
