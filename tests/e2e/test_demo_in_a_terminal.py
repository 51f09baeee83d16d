"""The demonstration in a terminal: a full screen soon, and nothing of it left however a person
leaves.
"""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.program import Program, home_with
from tests.support.screen import Screen, dashboard
from tests.support.waiting import until

_ROW = re.compile(r"^.{2,40}[▸◦‖✗✓◔] ", re.MULTILINE)
# On a machine that does other things as well; by itself it takes a second.
_CHECKOUT = Path(__file__).parents[2]


def demonstration(tmp_path: Path) -> Program:
    """hpcdash of a person with an empty home, whose temporary files are in a folder of their
    own.
    """
    (tmp_path / "tmp").mkdir()
    return Program(home_with(tmp_path / "home"), variables={"TMPDIR": str(tmp_path / "tmp")})


def left_behind(folder: Path) -> list[str]:
    """Files in a folder, and processes that work in it or name it."""
    found = [str(path) for path in (folder / "tmp").iterdir()]
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(str(folder)) or str(folder / "tmp") in " ".join(
                process.cmdline()
            ):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


async def nothing_is_left(folder: Path) -> None:
    await until(lambda: not left_behind(folder), f"nothing in {folder}")


def is_full(text: str) -> bool:
    return len(_ROW.findall(text)) >= 8


@pytest.mark.journey
async def test_it_shows_a_full_screen_and_a_log(tmp_path: Path) -> None:
    async with dashboard(demonstration(tmp_path), "demo", is_cold=True) as screen:
        await screen.until(is_full)
        text = await screen.until("timed out")
        for words in (
            "train-7b",
            "10]",
            "after ",
            "not before ",
            "held",
            "2 failed",
            "exit 1",
            "$(rm -rf ~)",
        ):
            assert words in text
        assert "1/6 enter open job" in text
        screen.type("\r")
        await screen.until("2/6 l live log")
        screen.type("l")
        await screen.until(lambda text: "lm loss" in text and "2/6" not in text)
        screen.type("q")
        await screen.until(lambda text: "lm loss" not in text)
        screen.type("q")
        await screen.until(is_full)
        screen.type("5")
        await screen.until("lm loss: spike at 4")
        screen.type("1")
        await screen.until(is_full)
        screen.type("\x05")
        await screen.until(lambda text: "/6 " not in text)
        screen.type("q")
        assert await screen.ended() == 0
        assert b"Traceback" not in screen.raw
    await nothing_is_left(tmp_path)
    assert not (tmp_path / "home" / "cache").exists()


# How one leaves, and the status of the program then.
WAYS: dict[str, tuple[Callable[[Screen], None], int]] = {
    "ctrl+q": (lambda screen: screen.type("\x11"), 0),
    "terminated": (lambda screen: screen.process.terminate(), 128 + signal.SIGTERM),
    "hung up": (Screen.hang_up, 128 + signal.SIGHUP),
    "killed": (lambda screen: screen.process.kill(), -signal.SIGKILL),
}


@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_left_however_it_ends(tmp_path: Path, way: str) -> None:
    async with dashboard(demonstration(tmp_path), "demo") as screen:
        await screen.until(is_full)
        assert left_behind(tmp_path)
        leave, status = WAYS[way]
        leave(screen)
        assert await screen.ended() == status
    await nothing_is_left(tmp_path)


async def test_who_leaves_as_it_starts_is_told_of_no_error(tmp_path: Path) -> None:
    async with dashboard(demonstration(tmp_path), "demo") as screen:
        await screen.until(lambda _: b"\x1b[?1049h" in screen.raw)
        screen.type("\x11")
        assert await screen.ended() == 0
        assert "went wrong" not in screen.raw.decode(errors="replace")
    await nothing_is_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_nothing_is_left_when_it_ends_before_it_is_there(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with dashboard(demonstration(tmp_path), "demo", is_cold=True) as screen:
        await until(lambda: any((tmp_path / "tmp").glob("hpcdash-demo-*/queue")), "its queue")
        screen.process.send_signal(number)
        await screen.ended()
    await nothing_is_left(tmp_path)


async def test_what_a_killed_one_leaves_is_gone_with_the_next(tmp_path: Path) -> None:
    async with dashboard(demonstration(tmp_path), "demo") as screen:
        await screen.until(is_full)
        (undertaker,) = (
            one
            for one in psutil.Process(screen.process.pid).children()
            if "hpcdash.embedded.demo" in one.cmdline()
        )
        undertaker.kill()
        screen.process.kill()
        await screen.ended()
    assert left_behind(tmp_path)
    again = Program(tmp_path / "home", variables={"TMPDIR": str(tmp_path / "tmp")})
    async with dashboard(again, "demo") as screen:
        await screen.until(is_full)
        screen.type("q")
        assert await screen.ended() == 0
    await nothing_is_left(tmp_path)


async def test_ctrl_c_says_how_to_leave(tmp_path: Path) -> None:
    async with dashboard(demonstration(tmp_path), "demo") as screen:
        await screen.until(is_full)
        screen.type("\x03")
        await screen.until("ctrl+q")


class MakeDemo(Program, frozen=True):
    """`make demo` in another folder."""

    checkout: Path = Path()

    def argv(self, *words: str) -> tuple[str, ...]:
        # Python and its packages are those the tests run with; all that is the project's own comes
        # from the folder.
        return ("make", "-C", str(self.checkout), "demo", f"BIN={Path(sys.executable).parent}")


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
async def test_a_fresh_copy_of_the_project_has_a_demonstration(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(_CHECKOUT / name, copy)
    for name in ("hpcdash", "themes", "fixtures"):
        shutil.copytree(_CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    # As after the installation, which needs the network.
    (copy / ".venv").mkdir()
    (copy / ".venv" / ".program").touch()
    plain = demonstration(tmp_path)
    variables = {**plain.variables, "PYTHONPATH": str(copy)}
    async with dashboard(
        MakeDemo(plain.home, variables=variables, checkout=copy), columns=80, lines=24
    ) as screen:
        await screen.until(is_full)
        assert str(copy / "hpcdash" / "embedded" / "demo" / "train.py") in " ".join(
            left_behind(tmp_path)
        )
        screen.type("q")
        assert await screen.ended() == 0
    await nothing_is_left(tmp_path)
