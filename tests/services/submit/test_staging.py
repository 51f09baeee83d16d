"""The commands that fill a launch's folder and remove it, as a shell runs them."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from hpcdash.backends.actions import Outcome
from hpcdash.backends.script.folder import LIBRARY_NAME
from hpcdash.errors import UsageError
from hpcdash.services.submit.staging import (
    MAX_STAGED_BYTES,
    Staged,
    discard_argv,
    inspect_query,
    remove_libraries_argv,
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
    given = {
        "-rf": b"dash",
        "two words": BINARY,
        "naïve.py": b"\r\n\x00",
        "$(id)": b"",
        "a'b\"c*": b"x" * 70_000,
    }
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
    assert "not submitted" in outcome.text
    assert "File exists" in outcome.text
    assert sorted(tmp_path.rglob("*")) == before


def test_what_does_not_arrive_whole_is_removed_again(tmp_path: Path) -> None:
    staged = staged_files(str(tmp_path / "jobs" / "one-1"), OWN, {"table": BINARY})
    command = staging_command(staged, "job")
    for cut in (
        staged.archive[:5000],
        staged.archive.replace(b"#!/bin/bash\ntrue", b"#!/bin/bash\nfals", 1),
    ):
        (outcome,) = command.read(run(command.argv, cut))
        assert outcome.done is False
        assert list((tmp_path / "jobs").iterdir()) == []


def test_where_no_folder_can_be_made_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(b"")
    outcome = stage(staged_files(str(tmp_path / "jobs" / "one-1"), OWN, {}))
    assert outcome.done is False
    assert f"cannot create {tmp_path}/jobs/one-1 and its files: mkdir: " in outcome.text


@for_each(
    "name", ["", ".", "..", "a/b", "/etc/passwd", "a\nb", "a\\nb", "a\x1b[2J", "x" * 101, "\udcff"]
)
def test_a_name_that_is_no_plain_one_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="staged file"):
        staged_files("/jobs/one", OWN, {name: b""})


def test_more_than_is_staged_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match="absolute paths"):
        staged_files("/jobs/one", OWN, {"model": bytes(MAX_STAGED_BYTES)})


@for_each("account", ["root", "ALL", "-u", "a b", "#0", "%wheel", "alice:root"])
def test_an_account_that_is_none_is_not_submitted_as(account: str) -> None:
    with pytest.raises(UsageError, match="run_as"):
        staged_files("/jobs/one", OWN, {}, run_as=account)


def test_the_folder_is_removed_with_all_that_came_into_it_and_nothing_beside_it(
    tmp_path: Path,
) -> None:
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


@pytest.mark.parametrize(
    "result",
    [
        "predictions.out",
        "42-losses.err",
        "out/7.out",
        "table",
        "\n7.out",
        "\n\n7.out",
        "7.out.gz",
        "7.outs",
    ],
)
def test_what_is_called_nearly_as_a_log_or_replaced_what_was_staged_is_a_result(
    tmp_path: Path, result: str
) -> None:
    staged = staged_files(str(tmp_path / "one-1"), OWN, {"table": b"1"})
    assert stage(staged).done
    folder = tmp_path / "one-1"
    for log in ("7.out", "7_3.err", "7.rank-0.out", "job.out", "job.3.err", "7_3.rank-11.err"):
        (folder / log).write_bytes(b"")
    argv = discard_argv(str(tmp_path), "one-1", staged.sums_digest, has_run=True)
    path = folder / ("files/table" if result == "table" else result)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"2")
    left = run(argv)
    assert left.stderr.startswith(b"unstaged content:  ")
    (inspected,) = inspect_query([(str(folder), staged.sums_digest)]).parse(
        answer_of([(folder, staged)])
    )
    assert inspected.reason_to_stay.startswith("unstaged content:  ")
    path.write_bytes(b"1") if result == "table" else path.unlink()
    (inspected,) = inspect_query([(str(folder), staged.sums_digest)]).parse(
        answer_of([(folder, staged)])
    )
    assert inspected.reason_to_stay == ""
    assert run(argv).status == 0


def answer_of(folders: list[tuple[Path, Staged]]) -> CommandResult:
    return run(
        inspect_query([(str(folder), staged.sums_digest) for folder, staged in folders]).argv
    )


def test_a_link_a_colleague_s_folder_and_what_is_not_there_are_not_ours_to_remove(
    tmp_path: Path,
) -> None:
    ours, linked, theirs, gone, other = (
        tmp_path / name for name in ("ours", "linked", "theirs", "gone", "other")
    )
    made = {
        folder: staged_files(str(folder), OWN, {"table": b"1"})
        for folder in (ours, linked, theirs, gone, other)
    }
    for folder in (ours, theirs, other):
        assert stage(made[folder]).done
    linked.symlink_to(ours)
    os.chown(theirs, 12345, 12345)
    (other / "SHA256SUMS").write_text("")
    folders = list(made.items())
    found = inspect_query([(str(folder), staged.sums_digest) for folder, staged in folders]).parse(
        answer_of(folders)
    )
    assert [one.reason_to_stay for one in found] == [
        "",
        "a link, or not a folder of yours",
        "a link, or not a folder of yours",
        "the folder does not exist",
        "the contents differ from the staged files",
    ]
    assert [one.exists for one in found] == [True, True, True, False, True]
    for folder in (linked, theirs, other):
        argv = discard_argv(str(tmp_path), folder.name, made[folder].sums_digest, has_run=True)
        assert run(argv).status not in (0, NOTHING_THERE)
        assert folder.exists()


def test_launches_have_one_library_which_goes_once_none_has_it(tmp_path: Path) -> None:
    own = {**OWN, LIBRARY_NAME: b"library"}
    first, second = (staged_files(str(tmp_path / name), own, {}) for name in ("one", "two"))
    newer = staged_files(str(tmp_path / "three"), {**own, LIBRARY_NAME: b"newer"}, {})
    for staged in (first, second, newer):
        assert stage(staged).done
    one, two = (tmp_path / name / LIBRARY_NAME for name in ("one", "two"))
    assert one.samefile(two)
    assert len(list((tmp_path / ".library").iterdir())) == 2
    removal = remove_libraries_argv([str(tmp_path)])
    assert run(removal).stdout == b""
    for name, staged in (("one", first), ("three", newer)):
        assert run(discard_argv(str(tmp_path), name, staged.sums_digest, has_run=True)).status == 0
    assert len(run(removal).stdout.split()) == 1
    # Of a submission whose library was pruned as it was staged the job has its own.
    next((tmp_path / ".library").iterdir()).unlink()
    assert two.read_bytes() == b"library"
    # One that was changed is not taken for it.
    third = staged_files(str(tmp_path / "four"), own, {})
    digest = hashlib.sha256(b"library").hexdigest()
    (tmp_path / ".library" / f"{digest}.zip").write_bytes(b"changed")
    assert stage(third).done
    assert (tmp_path / "four" / LIBRARY_NAME).read_bytes() == b"library"


def test_a_folder_of_libraries_that_is_a_link_or_another_s_is_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious.zip").write_bytes(b"1")
    (tmp_path / ".library").symlink_to(elsewhere)
    assert stage(staged_files(str(tmp_path / "one"), {**OWN, LIBRARY_NAME: b"library"}, {})).done
    assert run(remove_libraries_argv([str(tmp_path)])).stdout == b""
    assert [file.name for file in elsewhere.iterdir()] == ["precious.zip"]
    assert (tmp_path / "one" / LIBRARY_NAME).read_bytes() == b"library"


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
    assert left.stderr == b"unstaged content:  files/results of it.csv\n"
    assert (folder / "batch.sh").exists()
    (folder / "files" / "results of it.csv").unlink()
    (folder / "model").symlink_to(tmp_path)
    assert run(argv).status not in (0, NOTHING_THERE)
    (folder / "model").unlink()
    assert run(argv).status == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    ("mode_there", "is_staged"), [(0o777, False), (0o1777, True), (0o775, True), (0o2770, True)]
)
def test_nothing_is_staged_where_anybody_may_swap_it(
    tmp_path: Path, mode_there: int, is_staged: bool
) -> None:
    root = tmp_path / "jobs"
    root.mkdir()
    root.chmod(mode_there)
    outcome = stage(staged_files(str(root / "one-1"), OWN, {}))
    assert outcome.done is is_staged
    assert (root / "one-1").exists() is is_staged
    if not is_staged:
        assert (
            f"others may write to {root}, so others could replace files that jobs run from {root}"
            in outcome.text
        )


def test_a_folder_of_another_s_that_all_may_write_to_is_one_that_they_may_swap_things_in(
    tmp_path: Path,
) -> None:
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
