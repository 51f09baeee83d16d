"""What hpcdash keeps is closed to others, and it writes nothing where somebody else could have laid
a trap.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.private_files import (
    NotPrivate,
    atomic_write,
    is_private_group,
    make_folder,
    make_private,
    require_own,
    write_output,
)
from hpcdash.shell_files import shell_text
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
@pytest.mark.parametrize(
    "words", [("jobs",), ("submit", "job.sh"), ("doctor",), ("cancel", "1", "--yes")]
)
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
    ("folder", "name"),
    [("queue", "supervisor.log"), ("state", "journal.jsonl"), ("state", "state.db")],
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
    assert f"{trap} belongs to nobody, who may have put it there" in said
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
    with pytest.raises(
        NotPrivate, match=r"file/queue cannot be created: Not a directory\nSet HPCDASH_QUEUE"
    ):
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


RULES = """
import subprocess, sys
from hpcdash.private_files import find_weak_spot
from hpcdash.shell_files import shell_text
for path in sys.argv[2:]:
    spot = find_weak_spot(path)
    script = f'{shell_text("weak_spot.sh")}\\nweak_spot "$1"'
    shell = subprocess.run([*sys.argv[1].split(), "-c", script, "sh", path], capture_output=True, text=True)
    print("" if spot is None else spot.message, shell.stdout.strip() + shell.stderr, sep="\\t")
"""
SHELLS = [
    shell
    if shutil.which(shell.split()[0])
    else pytest.param(shell, marks=pytest.mark.skip(reason="it is not there"))
    for shell in ("sh", "bash", "busybox sh")
]
# An account with a group of its name, and one that is neither's.
OWN, OTHER = "www-data", "mail"


def weak_spots(shell: str, *paths: Path) -> list[str]:
    """What the rules in Python and in a shell find for an account; they have to agree."""
    argv = [sys.executable, "-P", "-c", RULES, shell, *map(str, paths)]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nowhere/home",
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    done = subprocess.run(
        argv,
        user=OWN,
        group=OWN,
        extra_groups=[],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    found = []
    for line in done.stdout.splitlines():
        here, there = line.split("\t")
        assert here == there.removesuffix(", an account that is not known here")
        found.append(here)
    return found


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder of root's that every account enters."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def made(folder: Path, mode: int, owner: str | int = OWN, group: str | int = OWN) -> Path:
    folder.mkdir()
    shutil.chown(folder, owner, group)
    folder.chmod(mode)
    return folder


@as_root
@pytest.mark.parametrize("shell", SHELLS)
def test_each_part_of_a_path_is_ones_own_or_root_s_and_nobody_else_writes_there(
    shell: str, public: Path
) -> None:
    places = {
        "closed": (made(public / "closed", 0o755), ""),
        "private group": (made(public / "private group", 0o2775), ""),
        "sticky": (made(public / "sticky", 0o1777, "root", "root"), ""),
        "shared": (
            made(public / "shared", 0o2775, OWN, OTHER),
            f"members of group {OTHER} may write to ",
        ),
        "root's group": (
            made(public / "root's group", 0o775, "root", "root"),
            "members of group root may write to ",
        ),
        "open": (made(public / "open", 0o757), "others may write to "),
        "theirs": (made(public / "theirs", 0o755, "nobody"), "nobody"),
        "sticky, theirs": (made(public / "sticky, theirs", 0o1777, "nobody"), "nobody"),
        "unknown": (made(public / "unknown", 0o755, 54321), "uid 54321"),
    }
    for place, _ in places.values():
        made(place / "amal", 0o755)
    paths = [place / "amal" / "launches" for place, _ in places.values()]
    for (place, expected), found in zip(places.values(), weak_spots(shell, *paths), strict=True):
        if " " in expected and not expected.startswith("uid"):
            assert found == f"{expected}{place}"
        else:
            assert found == (f"{place} belongs to {expected}" if expected else "")


@as_root
@pytest.mark.parametrize("shell", SHELLS)
def test_links_are_followed_part_by_part_and_so_is_what_goes_up(shell: str, public: Path) -> None:
    made(public / "own", 0o755)
    made(public / "own" / "below", 0o755)
    shared = made(public / "shared", 0o2775, OWN, OTHER)
    sticky = made(public / "sticky", 0o1777, "root", "root")
    links = {
        public / "own" / "out": shared,
        shared / "back": public / "own",
        public / "own" / "in": Path("below/../below"),
        public / "own" / "round": Path("round"),
        sticky / "mine": public / "own",
        sticky / "theirs": public / "own",
    }
    for link, target in links.items():
        link.symlink_to(target)
        owner = "nobody" if link.name == "theirs" else OWN
        os.chown(link, pwd.getpwnam(owner).pw_uid, -1, follow_symlinks=False)
    weak = f"members of group {OTHER} may write to {shared}"
    expected = {
        public / "own" / "out" / "new": weak,
        shared / "back" / "below": weak,
        public / "own" / "in" / "new": "",
        public / "own" / "below" / ".." / ".." / "shared" / ".." / "own": weak,
        sticky / "mine" / "below": "",
        sticky / "theirs" / "below": f"{sticky}/theirs belongs to nobody",
    }
    assert weak_spots(shell, *expected) == list(expected.values())


@as_root
@pytest.mark.parametrize("shell", SHELLS)
def test_a_private_group_with_an_access_list_is_not_private(shell: str, public: Path) -> None:
    folder = made(public / "listed", 0o775)
    # acl(5): the owner, user 65534, the group, the mask and others.
    entries = [
        (1, 7, 0xFFFFFFFF),
        (2, 7, 65534),
        (4, 7, 0xFFFFFFFF),
        (16, 7, 0xFFFFFFFF),
        (32, 5, 0xFFFFFFFF),
    ]
    content = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(folder, "system.posix_acl_access", content)
    except OSError as error:
        pytest.skip(f"this file system keeps no access lists: {error}")
    if shell.startswith("busybox"):
        pytest.skip("its ls shows no access lists")
    assert weak_spots(shell, folder) == [f"members of group {OWN} may write to {folder}"]


@pytest.mark.parametrize(
    ("groups", "accounts", "is_private"),
    [
        ("amal:x:70001:", "", True),
        ("amal:x:70001:amal", "", True),
        ("amal:x:70001:amal,bob", "", False),
        ("amal:x:70001:", "bob:x:70002:70001::/:/bin/sh", False),
        ("amal:x:70001:", "alias:x:70001:70001::/:/bin/sh", True),
        ("amal:x:70001:\nproject:x:70001:", "", False),
        ("project:x:70001:", "", False),
        ("", "", False),
    ],
)
def test_a_private_group_has_ones_own_name_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, accounts: str, is_private: bool
) -> None:
    accounts = "\n".join(filter(None, ("amal:x:70001:70001::/:/bin/sh", accounts)))
    (tmp_path / "group").write_text(f"{groups}\n" if groups else "")
    (tmp_path / "passwd").write_text(f"{accounts}\n")
    stubs = {
        "getent": f'if [ "$2" ]; then grep ":$2:" {tmp_path}/"$1"; else cat {tmp_path}/"$1"; fi',
        "id": "case $1 in -un) echo amal ;; -u) echo 70001 ;; esac",
    }
    for name, text in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    script = f"{shell_text('weak_spot.sh')}\nprivate_group 70001"
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert (
        subprocess.run(["sh", "-c", script], env=path, check=False).returncode == 0
    ) is is_private
    group_rows = [
        grp.struct_group((name, word, int(gid), [one for one in members.split(",") if one]))
        for name, word, gid, members in (line.split(":") for line in groups.splitlines())
    ]
    rows = [line.split(":") for line in accounts.splitlines()]
    account_rows = [
        pwd.struct_passwd((*row[:2], int(row[2]), int(row[3]), *row[4:])) for row in rows
    ]

    def group_of(gid: int) -> grp.struct_group:
        for row in group_rows:
            if row.gr_gid == gid:
                return row
        raise KeyError(gid)

    monkeypatch.setattr(os, "geteuid", lambda: 70001)
    monkeypatch.setattr(grp, "getgrgid", group_of)
    monkeypatch.setattr(grp, "getgrall", lambda: group_rows)
    monkeypatch.setattr(
        pwd, "getpwuid", lambda uid: next(row for row in account_rows if row.pw_uid == uid)
    )
    monkeypatch.setattr(pwd, "getpwall", lambda: account_rows)
    assert is_private_group(70001) is is_private


@as_root
@pytest.mark.parametrize("words", [("jobs",), ("submit", "job.sh"), ("doctor",)])
def test_a_queue_that_others_could_replace_is_refused_and_not_made(
    program: Program, tmp_path: Path, words: tuple[str, ...]
) -> None:
    project = made(tmp_path / "project", 0o2775, "root", OTHER)
    own = made(project / "amal", 0o755, "root", "root")
    run = replace(program, variables={**program.variables, "HPCDASH_QUEUE": str(own / "queue")})(
        *words
    )
    assert run.status != 0
    assert f"members of group {OTHER} may write to {project}" in run.stderr + run.text
    assert "Set HPCDASH_QUEUE to a folder below your home" in run.stderr + run.text
    assert list(own.iterdir()) == []


@as_root
def test_jobs_of_a_queue_that_others_could_replace_by_now_are_shown_and_end_but_it_takes_no_more(
    program: Program, tmp_path: Path
) -> None:
    project = made(tmp_path / "project", 0o755, "root", OTHER)
    program = replace(
        program, variables={**program.variables, "HPCDASH_QUEUE": str(project / "queue")}
    )
    assert program("submit", "job.sh").status == 0
    project.chmod(0o2775)
    assert program("jobs").status == 0
    assert program("log", "1", "-f").status == 0
    assert f"members of group {OTHER} may write to" in program("submit", "job.sh").stderr


def test_what_a_person_names_is_replaced_but_for_pipes_and_open_streams(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    precious.chmod(0o640)
    file = tmp_path / "out.csv"
    file.symlink_to(precious)
    write_output(file, b"new")
    assert (file.is_symlink(), file.read_bytes(), precious.read_bytes()) == (
        False,
        b"new",
        b"precious",
    )
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
    assert {
        "slots.json",
        "journal.jsonl",
        "launches.jsonl.schema-0",
        "state.db",
        "queue.db",
    } <= names
    open_to_others = [
        f"{stat.filemode(path.lstat().st_mode)} {path}"
        for path in kept
        if path.is_file() and path.stat().st_mode & 0o077
    ]
    assert open_to_others == []
