"""What is done on the login node: real shells, real permissions, real full and read-only disks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdash.backends.actions import Outcome
from hpcdash.domain.switch_text import (
    SwitchSnapshot,
    Thing,
    clear_doubt,
    clear_refusal,
    format_group,
    refusal,
    warnings,
)
from hpcdash.domain.switches import SwitchKind
from hpcdash.errors import CommandTimedOut
from hpcdash.services.switches.scripts import (
    ACT_SECONDS,
    clear_command,
    drop_command,
    dropped_path,
    snapshot_query,
    written_query,
)
from hpcdash.transport.base import CommandResult
from hpcdash.transport.local import LocalTransport
from tests.support import suite

pytestmark = pytest.mark.system
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes accounts and mounts")


@dataclass(frozen=True, slots=True)
class Node:
    """Runs commands under a shell, as an account ('' who runs the tests)."""

    shell: str = "dash"
    account: str = ""

    def run(self, argv: Sequence[str]) -> CommandResult:
        words = [self.shell, *(("sh",) if self.shell == "busybox" else ()), *argv[1:]]
        if self.account:
            words = [
                "setpriv",
                f"--reuid={self.account}",
                f"--regid={self.account}",
                "--init-groups",
                *words,
            ]
        done = subprocess.run(words, capture_output=True, check=False)
        return CommandResult(tuple(argv), done.returncode, done.stdout, done.stderr, 0.0)

    def look(self, path: Path | str, owner: str = "") -> SwitchSnapshot:
        query = snapshot_query(str(path), owner)
        return query.parse(self.run(query.argv))

    def drop(
        self, path: Path | str, owner: str = "", look: SwitchSnapshot | None = None
    ) -> Outcome:
        command = drop_command(look or self.look(path, owner), owner, ("7",))
        (outcome,) = command.read(self.run(command.argv))
        return outcome

    def clear(self, path: Path | str) -> Outcome:
        command = clear_command(self.look(path), ("7",))
        (outcome,) = command.read(self.run(command.argv))
        return outcome


@pytest.fixture(params=SHELLS)
def node(request: pytest.FixtureRequest) -> Node:
    return Node(request.param)


@pytest.mark.parametrize(
    "name", ["KILL", "-rf", "a b", "$(touch gone)", 'it\'s "it"', "*", "ä\udcff", "; exit 0"]
)
def test_a_switch_is_dropped_seen_and_cleared_whatever_it_is_called(
    node: Node, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    assert node.drop(path) == Outcome("7", True, f"created {path}")
    look = node.look(path)
    assert (look.thing, look.file.size, look.file.uid) == (Thing.FILE, 0, os.geteuid())
    assert look.age_seconds is not None
    assert look.age_seconds < 1000
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert node.clear(path).done
    assert list(tmp_path.iterdir()) == []


def test_a_second_drop_and_a_second_clear_change_nothing(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "KILL"
    before = node.look(path)
    path.touch()
    assert node.drop(path, look=before) == Outcome("7", False, "already set")
    assert refusal(node.look(path)).startswith("already set ")
    dropped = node.look(path)
    path.unlink()
    command = clear_command(dropped, ("7",))
    assert command.read(node.run(command.argv))[0].text == "already removed"


@pytest.mark.parametrize(
    "target", ["elsewhere/here", "elsewhere/nothing", "elsewhere", "/dev/null"]
)
def test_a_planted_link_is_refused_and_nothing_is_made_where_it_leads(
    node: Node, tmp_path: Path, target: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "here").write_text("mine")
    path = tmp_path / "KILL"
    free = node.look(path)
    path.symlink_to(tmp_path / target)
    look = node.look(path)
    assert look.thing is Thing.LINK
    assert look.link_to == str(tmp_path / target)
    assert "a link" in refusal(look)
    # Planted after one looked, too.
    assert node.drop(path, look=free) == Outcome(
        "7", False, "the path is a link or not a regular file; nothing was done"
    )
    # Trainings take any link for the switch: what is cleared is the link itself.
    assert look.is_dropped
    assert clear_doubt(look, is_dropped_here=True)
    assert node.clear(path).done
    assert [entry.name for entry in elsewhere.iterdir()] == ["here"]
    assert (elsewhere / "here").read_text() == "mine"
    assert not path.is_symlink()


@pytest.mark.parametrize("target", ["nothing", "full"])
def test_no_file_is_made_or_emptied_through_a_link_that_is_planted_after_the_checks(
    node: Node, tmp_path: Path, target: str
) -> None:
    path = tmp_path / "KILL"
    argv = list(drop_command(node.look(path), "", ("7",)).argv)
    checks = 'if [ -h "$file" ]; then exit 69; fi\nif [ -e "$file" ]; then exit 70; fi\n'
    assert argv[2].count(checks) == 1
    argv[2] = argv[2].replace(checks, "")
    (tmp_path / "full").write_text("mine")
    path.symlink_to(target)
    assert node.run(argv).status == 69
    assert (tmp_path / "full").read_text() == "mine"
    assert not (tmp_path / "nothing").exists()


def test_a_folder_stays_and_a_fifo_is_cleared(node: Node, tmp_path: Path) -> None:
    folder, fifo = tmp_path / "folder", tmp_path / "fifo"
    folder.mkdir()
    os.mkfifo(fifo)
    for path, thing, is_cleared in ((folder, Thing.FOLDER, False), (fifo, Thing.SPECIAL, True)):
        assert node.look(path).thing is thing
        assert node.drop(path).done is False
        assert node.clear(path).done is is_cleared
        assert path.exists() is not is_cleared


@pytest.mark.parametrize("before", ["empty", "link"])
def test_what_took_a_switch_s_place_after_the_look_stays(
    node: Node, tmp_path: Path, before: str
) -> None:
    path = tmp_path / "KILL"
    if before == "empty":
        path.touch()
    else:
        path.symlink_to("nowhere")
    look = node.look(path)
    path.unlink()
    path.write_text("a note")
    command = clear_command(look, ("7",))
    assert command.read(node.run(command.argv))[0].done is False
    assert path.read_text() == "a note"


def test_a_file_with_content_is_no_switch_and_stays(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"x" * 2000)
    assert "2000 bytes" in clear_refusal(node.look(path))
    assert node.clear(path).done is False
    assert path.stat().st_size == 2000


def test_a_folder_that_is_gone_or_another_is_told(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert "does not exist" in node.look(folder / "KILL").problem
    folder.write_text("")
    assert node.look(folder / "KILL").problem == "the path of the folder is not a folder"
    folder.unlink()
    folder.symlink_to("nowhere")
    assert node.look(folder / "KILL").problem == "the folder is a link to nowhere"
    folder.unlink()
    folder.mkdir()
    look = node.look(folder / "KILL")
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert "gone or was replaced" in node.drop(folder / "KILL", look=look).text
    assert not (tmp_path / "KILL").exists()


def test_a_link_on_the_way_is_followed_and_told(node: Node, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "scratch").symlink_to("real")
    path = tmp_path / "scratch" / "KILL"
    look = node.look(path)
    assert look.there == str(tmp_path / "real")
    assert any("leads to" in words for words in warnings(look, SwitchKind.KILL, ""))
    assert node.drop(path).done
    assert (tmp_path / "real" / "KILL").is_file()


def test_ages_are_of_the_login_node_s_clock(tmp_path: Path) -> None:
    """Its clock and its file server's are an hour ahead of ours: the age is still what passed
    there.
    """
    date = tmp_path / "bin" / "date"
    date.parent.mkdir()
    ahead = int(time.time()) + 3600
    date.write_text(f"#!/bin/sh\necho {ahead}\n")
    date.chmod(0o755)
    path = tmp_path / "KILL"
    path.touch()
    os.utime(path, (ahead - 12, ahead - 12))
    query = snapshot_query(str(path), "")
    done = subprocess.run(
        query.argv,
        env={"PATH": f"{date.parent}:{os.environ['PATH']}"},
        capture_output=True,
        check=False,
    )
    look = query.parse(CommandResult(query.argv, 0, done.stdout, b"", 0.0))
    assert look.age_seconds == 12


async def test_a_disk_that_does_not_answer_ends_at_a_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = tmp_path / "bin" / "stat"
    hangs.parent.mkdir()
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    (tmp_path / "log").touch()
    query = written_query({str(tmp_path / "log"): None})
    transport = LocalTransport(path=str(hangs.parent))
    with pytest.raises(CommandTimedOut):
        await transport.run(query.argv, limit_seconds=0.3)


def test_of_a_log_what_was_written_since_is_read(node: Node, tmp_path: Path) -> None:
    log, none = tmp_path / "-log of 7", tmp_path / "none"
    log.write_text("before\n")
    ages: list[float | None] = []
    os.utime(log, (time.time() - 50, time.time() - 50))

    def told(*read: int | None) -> list[tuple[int, str] | None]:
        query = written_query(dict(zip((str(log), str(none), "/dev/null"), read, strict=True)))
        found = query.parse(node.run(query.argv))
        ages.append(found[0].stat.age_seconds)
        return [
            (one.stat.size, one.content.decode()) if one.stat.is_there else None for one in found
        ]

    assert told(None, None, None) == [(7, ""), None, None]
    assert ages[0] is not None
    assert 49 <= ages[0] <= 60
    log.write_text("before\nsaved\nlo")
    assert told(7, None, 0) == [(15, "saved\nlo"), None, None]
    assert told(200, 0, 0) == [(15, ""), None, None], "a log that was begun anew"


def test_a_disk_that_hangs_as_it_is_written_to_holds_nobody_up_for_a_minute(tmp_path: Path) -> None:
    look = Node(SHELLS[0]).look(tmp_path / "KILL")
    for command in (drop_command(look, "", ("7",)), clear_command(look, ("7",))):
        assert command.limit_seconds == ACT_SECONDS == 20


def test_a_command_is_told_in_plain_words_and_without_its_script(tmp_path: Path) -> None:
    path = tmp_path / "KILL"
    look = Node(SHELLS[0]).look(path)
    group = tmp_path.group()
    assert (
        drop_command(look, "", ("7",)).text
        == f"create the empty file {path}, group {group}; links are not followed"
    )
    path.touch()
    assert clear_command(Node(SHELLS[0]).look(path), ("7",)).text == f"remove the empty file {path}"
    path.write_text("a note")
    words = clear_command(Node(SHELLS[0]).look(path), ("7",)).text
    assert words == f"remove the file {path}, at most 6 bytes"
    path.unlink()
    path.symlink_to("nowhere")
    words = clear_command(Node(SHELLS[0]).look(path), ("7",)).text
    assert words == f"remove the link {path}, not its target"


def test_a_command_tells_which_file_it_is_for(tmp_path: Path) -> None:
    look = Node(SHELLS[0]).look(tmp_path / "KILL")
    assert dropped_path(drop_command(look, "alice", ("7",)).argv) == str(tmp_path / "KILL")
    assert dropped_path(clear_command(look, ("7",)).argv) == str(tmp_path / "KILL")
    assert dropped_path(("scancel", "7")) == ""


# -- other people's folders and disks


@dataclass(frozen=True, slots=True)
class People:
    """Two colleagues and one who is none, and a folder that all may enter."""

    alice: Node
    bob: Node
    mallory: Node
    group: str
    root: Path


@pytest.fixture(scope="module")
def people() -> Iterator[People]:
    group = suite.group(f"group{os.getpid()}")
    root = Path(tempfile.mkdtemp(prefix="hpcdash-switch-"))
    root.chmod(0o755)
    try:
        alice, bob, mallory = (
            Node(SHELLS[0], suite.account(f"{who}{os.getpid()}", "-M", "-U", *more))
            for who, more in (("alice", ("-G", group)), ("bob", ("-G", group)), ("mallory", ()))
        )
        yield People(alice, bob, mallory, group, root)
    finally:
        shutil.rmtree(root)


def make_folder(people: People, name: str, owner: str, group: str, mode: int) -> Path:
    folder = people.root / name
    folder.mkdir()
    shutil.chown(folder, owner, group)
    folder.chmod(mode)
    return folder


@NEEDS_ROOT
def test_a_colleague_drops_it_in_the_group_s_folder_and_another_clears_it(people: People) -> None:
    path = make_folder(people, "shared", people.alice.account, people.group, 0o770) / "KILL"
    look = people.bob.look(path, people.alice.account)
    assert refusal(look) == ""
    assert warnings(look, SwitchKind.KILL, people.alice.account) == ()
    assert people.bob.drop(path, people.alice.account).done
    assert (path.owner(), path.group(), path.stat().st_mode & 0o777) == (
        people.bob.account,
        people.group,
        0o664,
    )
    assert refusal(people.alice.look(path)).startswith("already set ")
    assert people.alice.clear(path).text == f"removed {path}, created by {people.bob.account}"


@NEEDS_ROOT
def test_a_folder_that_the_group_cannot_write_is_told_to_both(people: People) -> None:
    path = make_folder(people, "closed", people.alice.account, people.group, 0o750) / "KILL"
    mine = people.alice.look(path)
    assert warnings(mine, SwitchKind.KILL, people.alice.account) == ()
    assert (
        format_group(mine)
        == f"members of the group {people.group} cannot create or clear the switch there"
    )
    look = people.bob.look(path, people.alice.account)
    assert look.may_write is False
    assert people.bob.drop(path, people.alice.account) == Outcome("7", False, "Permission denied")
    assert "cannot be entered" in people.mallory.look(path).problem


@NEEDS_ROOT
def test_a_stranger_s_open_folder_is_refused_before_and_by_the_command_itself(
    people: People,
) -> None:
    mallory = people.mallory.account
    path = make_folder(people, "trap", mallory, mallory, 0o777) / "KILL"
    look = people.alice.look(path, people.alice.account)
    assert f"belongs to {mallory}:" in refusal(look)
    assert "owner has changed" in people.alice.drop(path, people.alice.account).text
    assert not path.exists()
    assert people.alice.drop(path, mallory).done, "the job's own owner may have it there"


@NEEDS_ROOT
def test_a_group_one_is_not_in_is_not_given_and_it_is_said(people: People) -> None:
    mallory = people.mallory.account
    path = make_folder(people, "open", mallory, people.group, 0o777) / "KILL"
    outcome = people.mallory.drop(path)
    assert outcome.done
    assert path.group() == mallory
    assert "the file keeps your group" in outcome.text


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


@NEEDS_ROOT
def test_a_read_only_disk_says_so(node: Node, tmp_path: Path) -> None:
    with mounted(tmp_path / "ro", "ro,size=64k") as folder:
        # busybox does not ask the disk what root may.
        assert node.look(folder / "KILL").may_write is (node.shell == "busybox")
        assert node.drop(folder / "KILL") == Outcome("7", False, "Read-only file system")


@NEEDS_ROOT
def test_a_full_disk_says_so(node: Node, tmp_path: Path) -> None:
    # One file is the disk's own folder: no other can be made.
    with mounted(tmp_path / "full", "nr_inodes=1,size=64k") as folder:
        assert node.drop(folder / "KILL") == Outcome("7", False, "No space left on device")
