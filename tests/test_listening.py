"""A port of this machine, and a unix socket that nobody but its owner opens or replaces."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdash.errors import HpcdashError, UsageError
from hpcdash.listening import listen_on_loopback, listen_on_socket

pytestmark = pytest.mark.system

_NOBODY = 65534
_CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody may enter, with a short name."""
    with tempfile.TemporaryDirectory(prefix="hpcdash-", dir="/tmp") as made:
        os.chmod(made, 0o755)
        yield Path(made)


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connecting:
        connecting.connect(str(path))


def test_a_port_is_of_this_machine_alone_and_taken_once() -> None:
    with listen_on_loopback(0) as listening:
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(HpcdashError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen_on_loopback(port)


def test_a_socket_is_its_owners_and_gone_afterwards(folder: Path) -> None:
    path = folder / "it"
    old_mask = os.umask(0)
    try:
        with listen_on_socket(path):
            assert stat.S_IMODE(path.lstat().st_mode) == 0o600
            connect(path)
        assert not path.exists()
    finally:
        assert os.umask(old_mask) == 0


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process takes root")
def test_another_user_cannot_connect(folder: Path) -> None:
    with listen_on_socket(folder / "it") as listening:
        argv = [sys.executable, "-c", _CONNECT, str(folder / "it")]
        mine = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert mine.returncode == 0
        listening.accept()[0].close()
        argv[0] = "/usr/bin/python3"
        other = subprocess.run(
            argv, user=_NOBODY, group=_NOBODY, capture_output=True, text=True, check=False
        )
        assert "PermissionError" in other.stderr


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_write_to_is_refused_wherever_it_is_above(
    folder: Path, mode: int
) -> None:
    below = folder / "a" / "b"
    below.mkdir(parents=True)
    (folder / "a").chmod(mode)
    with (
        pytest.raises(UsageError, match=f"other users may write to {folder}/a "),
        listen_on_socket(below / "it"),
    ):
        pass
    (folder / "a").chmod(mode | stat.S_ISVTX)
    with listen_on_socket(below / "it"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="to give a folder away takes root")
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    (folder / "theirs").mkdir(mode=0o755)
    os.chown(folder / "theirs", _NOBODY, _NOBODY)
    with (
        pytest.raises(UsageError, match="belongs to another user"),
        listen_on_socket(folder / "theirs" / "it"),
    ):
        pass


def test_a_link_to_a_folder_is_judged_by_where_it_leads(folder: Path) -> None:
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    (folder / "link").symlink_to("open")
    with (
        pytest.raises(UsageError, match=r"other users may write to .*/open "),
        listen_on_socket(folder / "link" / "it"),
    ):
        pass


def test_what_is_there_already_is_left_alone(folder: Path) -> None:
    (folder / "file").write_text("kept")
    (folder / "link").symlink_to("elsewhere")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "live"))
        listening.listen()
        (folder / "link to live").symlink_to("live")
        for name, words in (
            ("file", "not your socket"),
            ("link", "not your socket"),
            ("link to live", "not your socket"),
            ("live", "listens"),
        ):
            with pytest.raises(UsageError, match=words), listen_on_socket(folder / name):
                pass
    assert (folder / "file").read_text() == "kept"
    assert sorted(path.name for path in folder.iterdir()) == [
        "file",
        "link",
        "link to live",
        "live",
    ]


def test_the_socket_of_one_that_was_killed_is_replaced(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(folder / "it"))
    with listen_on_socket(folder / "it"):
        connect(folder / "it")


def test_a_socket_that_came_in_its_place_stays(folder: Path) -> None:
    with listen_on_socket(folder / "it"):
        (folder / "it").unlink()
        (folder / "it").touch()
    assert (folder / "it").exists()


@pytest.mark.parametrize(("name", "words"), [("x" * 200, "too long"), ("none/it", "No such file")])
def test_a_path_that_cannot_be_is_refused_with_words(folder: Path, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words), listen_on_socket(folder / name):
        pass
