"""What hpcdash keeps is closed to others, and it writes nothing where somebody else could have laid a trap."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpcdash.private_files import NotPrivate, atomic_write, make_folder, make_private, require_own, write_output
from tests.support.program import Program, home_with

pytestmark = pytest.mark.system
SOMEBODY_ELSE = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to somebody else")


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """hpcdash on an embedded queue whose slots are in the configuration."""
    variables = {"HPCDASH_QUEUE": str(tmp_path / "queue"), "HPCDASH_STATE": str(tmp_path / "state")}
    made = Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"), variables)
    made.config.parent.mkdir(parents=True)
    made.config.write_text("[embedded]\ncpus = 2\n")
    (made.home / "job.sh").write_text("#!/bin/sh\necho done\n")
    return made


def somebody_elses(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o777)
    os.chown(folder, SOMEBODY_ELSE, SOMEBODY_ELSE)
    return folder


@as_root
@pytest.mark.parametrize("words", [("jobs",), ("submit", "job.sh"), ("doctor",), ("cancel", "1", "--yes")])
def test_a_queue_in_somebody_elses_folder_is_refused_before_it_is_touched(
    program: Program, tmp_path: Path, words: tuple[str, ...]
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    queue = somebody_elses(tmp_path / "queue")
    traps = {"wake", "slots.json", "gpus.json", "supervisor.lock", "supervisor.log"}
    for trap in traps:
        (queue / trap).symlink_to(precious)
    run = program(*words)
    assert precious.read_bytes() == b"precious"
    assert run.status != 0
    assert f"{queue} belongs to nobody, not to you" in run.stderr + run.text
    assert "HPCDASH_QUEUE" in run.stderr + run.text
    assert {path.name for path in queue.iterdir()} == traps
    assert all(path.is_symlink() for path in queue.iterdir())


@as_root
@pytest.mark.parametrize(
    ("folder", "name"), [("queue", "supervisor.log"), ("state", "journal.jsonl"), ("state", "state.db")]
)
def test_what_somebody_else_left_in_ones_own_folder_is_not_written_through(
    program: Program, tmp_path: Path, folder: str, name: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    own = tmp_path / folder
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    trap = own / name
    trap.symlink_to(precious)
    os.chown(trap, SOMEBODY_ELSE, SOMEBODY_ELSE, follow_symlinks=False)
    said = program("submit", "job.sh").refused(2)
    assert f"{trap} belongs to nobody, who could have put it there" in said
    assert precious.read_bytes() == b"precious"
    assert own.stat().st_mode & 0o022 == 0
    # It is not forgotten once the folder is closed.
    assert str(trap) in program("submit", "job.sh").refused(2)


@as_root
def test_a_link_of_somebody_else_leads_nowhere(program: Program, tmp_path: Path) -> None:
    public = tmp_path / "public"
    public.mkdir(mode=0o755)
    link = tmp_path / "queue"
    link.symlink_to(public)
    os.chown(link, SOMEBODY_ELSE, SOMEBODY_ELSE, follow_symlinks=False)
    assert f"{link} belongs to nobody" in program("submit", "job.sh").refused(2)
    assert stat.S_IMODE(public.stat().st_mode) == 0o755
    assert list(public.iterdir()) == []


def test_a_link_of_ones_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to("there")
    make_private(tmp_path / "link", "HPCDASH_QUEUE")
    assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_told_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotPrivate, match=r"file/queue cannot be made: Not a directory\nSet HPCDASH_QUEUE"):
        make_private(tmp_path / "file" / "queue", "HPCDASH_QUEUE")
    require_own(tmp_path / "file" / "queue", "HPCDASH_QUEUE")


def test_no_umask_opens_a_folder_or_its_parents_to_others(tmp_path: Path) -> None:
    old_mask = os.umask(0)
    try:
        make_folder(tmp_path / ".config" / "hpcdash" / "themes")
    finally:
        os.umask(old_mask)
    for folder in (".config", ".config/hpcdash", ".config/hpcdash/themes"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    atomic_write(tmp_path / "slots.json", b"{", b"}")
    assert (tmp_path / "slots.json").read_bytes() == b"{}"
    assert stat.S_IMODE((tmp_path / "slots.json").stat().st_mode) == 0o600
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        atomic_write(tmp_path / "folder", b"{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "slots.json"]


def test_what_a_person_names_is_replaced_but_for_pipes_and_open_streams(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    precious.chmod(0o640)
    file = tmp_path / "out.csv"
    file.symlink_to(precious)
    write_output(file, b"new")
    assert (file.is_symlink(), file.read_bytes(), precious.read_bytes()) == (False, b"new", b"precious")
    os.link(precious, tmp_path / "hard")
    write_output(tmp_path / "hard", b"new")
    assert precious.read_bytes() == b"precious"
    assert stat.S_IMODE((tmp_path / "hard").stat().st_mode) == 0o640
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to("pipe")
    with os.fdopen(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
        write_output(tmp_path / "pipe", b"piped")
        write_output(tmp_path / "to-pipe", b"new")
        assert pipe.read() == b"piped"
    assert (tmp_path / "to-pipe").read_bytes() == b"new"
    reader, writer = os.pipe()
    for path in (f"/dev/fd/{writer}", f"/proc/self/fd/{writer}"):
        write_output(Path(path), b"streamed")
        assert os.read(reader, 100) == b"streamed"
    os.close(reader)
    os.close(writer)
    write_output(Path(os.devnull), b"gone")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_all_that_is_kept_is_closed_to_others(program: Program, tmp_path: Path) -> None:
    request = 'name = "r"\ncommand = "true"\nslots = 1\nslot_type = "cpu"\ntime = "5m"\n'
    (program.home / "r.toml").write_text(request)
    for folder in ("queue", "state"):
        (tmp_path / folder).mkdir(mode=0o755)
    # As older versions left them.
    lines = ("state/journal.jsonl", "state/journal.jsonl.1", "state/launches.jsonl")
    for name in ("queue/slots.json", *lines, "state/state.db"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o644)
    assert program("submit", "job.sh").status == 0
    assert program("submit", "r.toml").status == 0
    assert program("log", "1", "-f").status == 0
    assert program("history").status == 0
    kept = [path for folder in ("queue", "state") for path in (tmp_path / folder).rglob("*")]
    kept += [path for path in (program.home / "cache").rglob("*") if path.is_file()]
    names = {path.name for path in kept}
    assert {"slots.json", "journal.jsonl", "launches.jsonl.migrated", "state.db", "queue.db"} <= names
    open_to_others = [
        f"{stat.filemode(path.lstat().st_mode)} {path}"
        for path in kept
        if path.is_file() and path.stat().st_mode & 0o077
    ]
    assert open_to_others == []
