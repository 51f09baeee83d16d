"""Root's program that keeps the launches of other accounts, under three shells and the real sudo,
and under attack.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdash.errors import UsageError
from hpcdash.services.submit.sudoers import NOTHING_THERE, program_text
from tests.support.records import for_each
from tests.support.sudo_rules import SudoSite, sudo_site, why_no_sudo

pytestmark = pytest.mark.system
SHELLS = ("/usr/bin/dash", "/usr/bin/bash", "/usr/bin/busybox sh")
REFUSED, USAGE, MORE, NOT_STAGED = 1, 2, 4, 5
# Puts a link to $2 in the place of $1, and a folder of its own, by turns, until it is ended.
SWAP = """
import os, sys
uid, place, target = int(sys.argv[1]), *sys.argv[2:]
os.setgroups([]); os.setgid(uid); os.setuid(uid)
print("swapping", flush=True)
while True:
    for make in (lambda: os.symlink(target, place), lambda: os.mkdir(place, 0o777)):
        try:
            make()
        except OSError:
            pass
        for undo in (os.unlink, os.rmdir, lambda path: os.rename(path, path + ".away")):
            try:
                undo(place)
            except OSError:
                pass
"""


@pytest.fixture(scope="module")
def a_site() -> Iterator[SudoSite]:
    if reason := why_no_sudo():
        pytest.skip(reason)
    with sudo_site() as found:
        found.install()
        yield found


@pytest.fixture(params=SHELLS)
def site(a_site: SudoSite, request: pytest.FixtureRequest) -> SudoSite:
    """A storage root without launches, and the program as one shell runs it."""
    shell: str = request.param
    if not Path(shell.split()[0]).exists():
        pytest.skip(f"{shell} is not installed")
    a_site.install_program(shell)
    for entry in a_site.root.iterdir():
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink()
        else:
            shutil.rmtree(entry)
    return a_site


def made(site: SudoSite, account: str, name: str = "one", **files: bytes) -> Path:
    """A launch of an account's with these files, whose names have `_` in the place of dots."""
    done = site.launch(account, "make", name)
    folder = site.root / name
    assert (done.returncode, done.stdout.decode()) == (0, f"{folder}\n"), done
    for file, content in files.items():
        assert (
            site.launch(account, "write", name, file.replace("_", "."), stdin=content).returncode
            == 0
        )
    return folder


def precious(site: SudoSite, account: str) -> Path:
    """A folder of an account's own that nothing here is to touch, with a file."""
    folder = site.home(account) / "precious"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(mode=0o755)
    (folder / "model").write_bytes(b"weights")
    for path in (folder, folder / "model"):
        shutil.chown(path, account)
    return folder


def is_untouched(folder: Path) -> bool:
    return {path.name: path.read_bytes() for path in folder.iterdir()} == {"model": b"weights"}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- what it is for


def test_a_launch_is_its_account_s_alone_and_is_read_as_it_was_written(site: SudoSite) -> None:
    content = bytes(range(256)) * 300
    folder = made(site, site.alice, "x-1_2", data=content, run_sh=b"#!/bin/sh\n", empty=b"")
    assert {path.owner() for path in (folder, *folder.iterdir())} == {site.alice}
    modes = {path.name: path.stat().st_mode & 0o7777 for path in folder.iterdir()}
    assert modes == {"data": 0o600, "run.sh": 0o700, "empty": 0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert site.launch(site.alice, "read", "x-1_2", "data").stdout == content


def test_a_part_of_a_file_comes_with_what_the_file_is(site: SudoSite) -> None:
    log = made(site, site.alice, log=b"0123456789") / "log"
    found = log.stat()
    head = f"{found.st_dev}:{found.st_ino} 10 {int(found.st_mtime)}"
    for first, count, begin, part in (
        ("0", "4", 0, b"0123"),
        ("7", "100", 7, b"789"),
        ("end", "3", 7, b"789"),
        ("end", "99", 0, b"0123456789"),
        ("99", "5", 99, b""),
        ("3", "0", 3, b""),
    ):
        assert (
            site.launch(site.alice, "read", "one", "log", first, count).stdout
            == f"{head} {begin}\n".encode() + part
        )


def test_a_file_is_replaced_whole_or_not_at_all(site: SudoSite) -> None:
    folder = made(site, site.alice, data=b"old")
    done = site.launch(site.alice, "write", "one", "data", digest(b"new"), stdin=b"ne")
    assert (done.returncode, (folder / "data").read_bytes()) == (REFUSED, b"old")
    assert (
        site.launch(site.alice, "write", "one", "data", digest(b"new"), stdin=b"new").returncode
        == 0
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"data": b"new"}


def test_a_launch_is_removed_only_if_it_is_the_one_that_is_meant(site: SudoSite) -> None:
    sums = f"{digest(b'1')}  data\n".encode()
    folder = made(site, site.alice, SHA256SUMS=sums, data=b"1")
    assert site.launch(site.alice, "remove", "one", digest(b"other")).returncode == NOT_STAGED
    assert (folder / "data").exists()
    assert site.launch(site.alice, "remove", "one", digest(sums)).returncode == 0
    assert not folder.exists()
    assert site.launch(site.alice, "remove", "one", digest(sums)).returncode == NOTHING_THERE


def test_results_keep_a_launch_that_has_run_and_logs_do_not(site: SudoSite) -> None:
    sums = f"{digest(b'1')}  data\n".encode()
    folder = made(site, site.alice, SHA256SUMS=sums, data=b"1")
    for name in ("7.out", "7.err", "result.pkl"):
        (folder / name).touch()
    left = site.launch(site.alice, "remove", "one", digest(sums), "staged")
    assert (left.returncode, left.stderr) == (
        MORE,
        b"hpcdash-launch: unstaged content:  result.pkl\n",
    )
    (folder / "result.pkl").unlink()
    assert site.launch(site.alice, "remove", "one", digest(sums), "staged").returncode == 0
    assert not folder.exists()


def test_one_that_was_never_filled_is_removed(site: SudoSite) -> None:
    folder = made(site, site.alice)
    assert site.launch(site.alice, "remove", "one", digest(b"whatever")).returncode == 0
    assert not folder.exists()


def test_what_is_not_there_is_told_from_what_is_refused(site: SudoSite) -> None:
    assert site.launch(site.alice, "read", "one", "log").returncode == NOTHING_THERE
    made(site, site.alice)
    assert site.launch(site.alice, "read", "one", "log").returncode == NOTHING_THERE


# -- a hostile launcher, who says what it likes


@pytest.fixture
def launch(site: SudoSite) -> Path:
    return made(site, site.alice, log=b"1")


@for_each(
    "name",
    [
        "",
        ".",
        "..",
        "../one",
        "/etc",
        "a/b",
        "-rf",
        ".ssh",
        "a b",
        "a\nb",
        "a\n",
        "*",
        "[a]",
        "$(id)",
        "a'",
        "é",
        "\udcff",
        "x" * 201,
    ],
    ids=ascii,
)
def test_a_name_that_is_no_plain_one_is_refused(site: SudoSite, launch: Path, name: str) -> None:
    before = sorted(site.top.rglob("*"))
    for words in (
        ("make", name),
        ("write", name, "log"),
        ("write", "one", name),
        ("read", name, "log"),
        ("read", "one", name),
        ("remove", name),
    ):
        assert site.run_as(site.alice, str(site.program), *words).returncode == USAGE, words
    assert sorted(site.top.rglob("*")) == before


@for_each(
    "words",
    [
        (),
        ("make",),
        ("make", "two", "three"),
        ("chown", "one"),
        ("write", "one"),
        ("read", "one", "log", "1"),
        ("read", "one", "log", "-1", "5"),
        ("read", "one", "log", "08", "5"),
        ("read", "one", "log", "$(id)", "5"),
        ("read", "one", "log", "a[$(id>&2)]", "5"),
        ("read", "one", "log", "0", "9" * 16),
        ("read", "one", "log", "0", "1", "2"),
        ("remove", "one", "", "all"),
        ("remove", "one", "", "staged", "x"),
    ],
    ids=str,
)
def test_other_words_than_its_own_are_refused(
    site: SudoSite, launch: Path, words: tuple[str, ...]
) -> None:
    done = site.run_as(site.alice, str(site.program), *words)
    assert (done.returncode, done.stdout) == (USAGE, b"")
    assert (launch / "log").read_bytes() == b"1"


def test_a_system_account_and_root_launch_nothing(site: SudoSite) -> None:
    done = site.launch(site.system, "make", "one")
    assert done.returncode == REFUSED
    assert b"is a system account, below UID_MIN" in done.stderr
    assert (
        subprocess.run([site.program, "make", "one"], capture_output=True, check=False).returncode
        == REFUSED
    )
    assert site.launch(site.second_root, "make", "one").returncode != 0
    assert site.launch(site.outsider, "make", "one").returncode != 0
    assert list(site.root.iterdir()) == []


def test_the_launcher_s_surroundings_change_nothing(site: SudoSite, tmp_path: Path) -> None:
    trap = site.home(site.launcher) / "trap"
    trap.mkdir(exist_ok=True)
    for name in ("mkdir", "stat", "id", "cat", "sh"):
        (trap / name).write_text(f"#!/bin/sh\ntouch {site.home(site.launcher)}/trapped\n")
        (trap / name).chmod(0o755)
    hostile = {
        "PATH": f"{trap}:/usr/bin:/bin",
        "IFS": "e/",
        "CDPATH": str(trap),
        "ENV": f"{trap}/sh",
        "LC_ALL": "tr_TR",
    }
    site.home(site.launcher).chmod(0o777)
    argv = ("/usr/bin/sudo", "-n", "-u", site.alice, str(site.program), "make", "one")
    shell = ("/bin/sh", "-c", f'umask 0; cd {trap}; exec "$@"', "sh")
    done = site.run_as(site.launcher, *shell, *argv, variables=hostile)
    assert done.returncode == 0, done
    assert (site.root / "one").stat().st_mode & 0o777 == 0o700
    # As under a sudo that has no secure_path.
    assert (
        site.run_as(
            site.alice, *shell, str(site.program), "make", "two", variables=hostile
        ).returncode
        == 0
    )
    assert not (site.home(site.launcher) / "trapped").exists()


def test_the_launcher_changes_neither_the_program_nor_the_root(site: SudoSite) -> None:
    text = site.program.read_text()
    for command in (
        f"echo >> {site.program}",
        f"mv {site.program} {site.program}.old",
        f"ln -sf /bin/sh {site.program}",
        f"chmod 777 {site.root}",
        f"rmdir {site.root}",
        f"mv {site.root} {site.root}.old",
    ):
        assert site.run_as(site.launcher, "sh", "-c", command).returncode != 0, command
    assert site.program.read_text() == text
    assert site.root.stat().st_mode & 0o7777 == 0o1777


# -- hostile members and others, who put things where launches are


@pytest.mark.parametrize("planter", ["launcher", "bob", "outsider"])
def test_a_planted_link_leads_nowhere(site: SudoSite, planter: str) -> None:
    target = precious(site, site.alice)
    assert (
        site.run_as(
            getattr(site, planter), "ln", "-s", str(target), str(site.root / "one")
        ).returncode
        == 0
    )
    assert site.launch(site.alice, "make", "one").returncode == REFUSED
    assert site.launch(site.alice, "write", "one", "model", stdin=b"bad").returncode == NOT_STAGED
    assert (
        site.launch(site.alice, "write", "one", "authorized_keys", stdin=b"bad").returncode
        == NOT_STAGED
    )
    done = site.launch(site.alice, "read", "one", "model")
    assert (done.returncode, done.stdout) == (NOT_STAGED, b"")
    assert site.launch(site.alice, "remove", "one").returncode == NOT_STAGED
    assert is_untouched(target)
    assert (site.root / "one").is_symlink()


def test_a_planted_link_to_a_launch_of_the_account_s_own_is_no_launch(site: SudoSite) -> None:
    folder = made(site, site.alice, "one", log=b"1")
    site.run_as(site.bob, "ln", "-s", str(folder), str(site.root / "two"))
    assert site.launch(site.alice, "remove", "two").returncode == NOT_STAGED
    assert site.launch(site.alice, "write", "two", "log", stdin=b"bad").returncode == NOT_STAGED
    assert (folder / "log").read_bytes() == b"1"


@pytest.mark.parametrize(
    "kind", ["open folder", "readable folder", "file", "fifo", "dangling link"]
)
def test_what_others_planted_is_never_used(site: SudoSite, kind: str) -> None:
    place = str(site.root / "one")
    planted = site.home(site.bob) / "planted"
    planted.mkdir(exist_ok=True)
    (planted / "log").write_text("planted")
    command = {
        "open folder": ("mkdir", "-m", "777", place),
        "readable folder": (
            "cp",
            "-r",
            "--preserve=mode",
            str(site.home(site.bob) / "planted"),
            place,
        ),
        "file": ("cp", "/etc/hostname", place),
        "fifo": ("mkfifo", "-m", "666", place),
        "dangling link": ("ln", "-s", str(site.home(site.alice) / "new"), place),
    }[kind]
    assert site.run_as(site.bob, *command).returncode == 0
    assert site.launch(site.alice, "make", "one").returncode == REFUSED
    assert site.launch(site.alice, "write", "one", "log", stdin=b"1").returncode == NOT_STAGED
    read = site.launch(site.alice, "read", "one", "log")
    assert (read.returncode, read.stdout) == (NOT_STAGED, b"")
    assert site.launch(site.alice, "remove", "one").returncode == NOT_STAGED
    assert os.path.lexists(place)
    assert not (site.home(site.alice) / "new").exists()


def test_a_launch_is_no_other_account_s(site: SudoSite) -> None:
    folder = made(site, site.alice, log=b"1")
    assert site.launch(site.bob, "read", "one", "log").returncode == NOT_STAGED
    assert site.launch(site.bob, "write", "one", "log", stdin=b"bad").returncode == NOT_STAGED
    assert site.launch(site.bob, "remove", "one").returncode == NOT_STAGED
    for account in (site.bob, site.launcher, site.outsider):
        assert site.run_as(account, "ls", str(folder)).returncode != 0
        for command in (("rm", "-rf"), ("mv", "-t", str(site.home(account)))):
            assert site.run_as(account, *command, str(folder)).returncode != 0
    assert (folder / "log").read_bytes() == b"1"


def test_a_folder_that_others_may_write_to_is_no_launch(site: SudoSite) -> None:
    """One of alice's that lay open could be moved there, with links in it."""
    folder = made(site, site.alice, log=b"1")
    folder.chmod(0o777)
    site.run_as(
        site.bob, "ln", "-s", str(precious(site, site.alice) / "model"), str(folder / "more")
    )
    for words in (("read", "one", "log"), ("write", "one", "more"), ("remove", "one")):
        assert site.launch(site.alice, *words).returncode == NOT_STAGED, words
    assert is_untouched(site.home(site.alice) / "precious")


def test_links_and_folders_in_a_launch_are_neither_read_nor_written_through(site: SudoSite) -> None:
    target = precious(site, site.alice)
    folder = made(site, site.alice)
    (folder / "link").symlink_to(target / "model")
    (folder / "loop").symlink_to("loop")
    (folder / "to").symlink_to(target)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    os.link(target / "model", folder / "hard")
    for name in ("link", "loop", "to", "folder", "fifo"):
        assert site.launch(site.alice, "read", "one", name).returncode == NOT_STAGED, name
        assert (
            site.launch(site.alice, "write", "one", name, stdin=b"bad").returncode == NOT_STAGED
        ), name
    # Another file takes the name: what else the old one is called stays as it was.
    assert site.launch(site.alice, "write", "one", "hard", stdin=b"new").returncode == 0
    assert (folder / "hard").read_bytes() == b"new"
    assert is_untouched(target)
    assert site.launch(site.alice, "remove", "one").returncode == 0
    assert not folder.exists()
    assert is_untouched(target)


def test_whoever_swaps_folders_for_links_while_it_runs_gains_nothing(site: SudoSite) -> None:
    target = precious(site, site.alice)
    place = site.root / "one"
    uid = str(pwd.getpwnam(site.outsider).pw_uid)
    argv = [sys.executable, "-c", SWAP, uid, str(place), str(target)]
    swapping = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd="/")
    try:
        assert swapping.stdout is not None
        assert swapping.stdout.readline() == b"swapping\n"
        for _ in range(12):
            done = site.launch(site.alice, "make", "one")
            if done.returncode == 0:
                # Made: nobody else takes it away.
                assert place.owner() == site.alice
                assert site.launch(site.alice, "write", "one", "log", stdin=b"1").returncode == 0
                assert (place / "log").read_bytes() == b"1"
                assert site.launch(site.alice, "remove", "one").returncode == 0
            else:
                assert (
                    site.launch(site.alice, "write", "one", "model", stdin=b"bad").returncode != 0
                )
                assert site.launch(site.alice, "read", "one", "model").stdout == b""
                assert site.launch(site.alice, "remove", "one").returncode != 0
            assert is_untouched(target)
    finally:
        swapping.kill()
        swapping.wait()


# -- a storage root that is not root's alone


def test_a_root_that_others_could_swap_is_not_used(site: SudoSite) -> None:
    def refused(why: str) -> bool:
        done = site.launch(site.alice, "make", "one")
        return done.returncode == REFUSED and why.encode() in done.stderr

    root, aside = site.root, site.top / "aside"
    root.rename(aside)
    try:
        assert refused(f"{root} does not exist")
        root.symlink_to(aside)
        assert refused(f"{root} is a link")
        root.unlink()
        root.mkdir()
        root.chmod(0o777)
        assert refused(f"others may write to {root}")
        root.chmod(0o775)
        assert refused(f"others may write to {root}")
        root.chmod(0o1777)
        shutil.chown(root, site.launcher)
        assert refused(f"{root} is not owned by root")
        shutil.chown(root, "root")
        site.top.chmod(0o757)
        assert refused(f"others may write to {site.top}")
        site.top.chmod(0o755)
        shutil.chown(site.top, site.launcher)
        assert refused(f"{site.top} is not owned by root")
        shutil.chown(site.top, "root")
        assert site.launch(site.alice, "make", "one").returncode == 0
        shutil.rmtree(root)
    finally:
        shutil.chown(site.top, "root")
        site.top.chmod(0o755)
        if root.is_symlink() or not root.exists():
            root.unlink(missing_ok=True)
        else:
            shutil.rmtree(root)
        aside.rename(root)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing_in_it(tmp_path: Path) -> None:
    file = tmp_path / "hpcdash-launch"
    file.write_text(program_text("/work/launches"))
    checked = subprocess.run(["shellcheck", file], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


@for_each("root", ["launches", "/", "/a/../b", "/a b", "/a;id", "/a/$(id)", "/a\n/b", "/a'"])
def test_a_root_that_a_shell_would_read_as_something_else_is_refused(root: str) -> None:
    with pytest.raises(UsageError):
        program_text(root)
