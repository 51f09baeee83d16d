"""What the log view looks like, on real files and a clock that stands still."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.ui.view import View
from tests.support.real_files import put, remove
from tests.ui.logs.log_stage import (
    PENDING,
    RUNNING,
    current_view,
    log_dashboard,
    open_log,
    pane_of,
    shows,
)
from tests.ui.stage import NOW, until

SMALL, LARGE = (80, 24), (140, 40)
Act = Callable[[Pilot[Any], Path], Awaitable[None]]


def training_log() -> bytes:
    lines = [b"node g02, 4 \xc3\x97 a100, \xe8\xa8\x93\xe7\xb7\xb4 begins\n"]
    for epoch in range(60):
        minute = b"2026-11-21 05:%02d:00" % epoch
        lines.append(
            minute
            + b" \x1b[32mINFO\x1b[0m  epoch %d  loss %.4f  lr 3.0e-04\n" % (epoch, 1 / (epoch + 1))
        )
        if epoch % 9 == 4:
            lines.append(
                minute + b" \x1b[1;31mERROR\x1b[0m a worker was slow\tby 12 s \x1b]0;x\x07\xff\n"
            )
        if epoch % 13 == 7:
            lines.append(
                b"config "
                + b", ".join(b"key_%d=%d" % (one, one * epoch) for one in range(30))
                + b"\n"
            )
    lines.append(b"".join(b"\r%3d%%|%s|" % (10 * one, b"#" * one) for one in range(8)))
    return b"".join(lines)


async def nothing(pilot: Pilot[Any], log: Path) -> None:
    """Just the log."""


async def wrap(pilot: Pilot[Any], log: Path) -> None:
    await pilot.press("w", "pageup")


async def search(pilot: Pilot[Any], log: Path) -> None:
    await pilot.press("slash", *"error", "enter", "N")


async def beside(pilot: Pilot[Any], log: Path) -> None:
    await pilot.press("s")
    await shows(pilot, "a warning")


async def deleted(pilot: Pilot[Any], log: Path) -> None:
    remove(log)
    pane_of(pilot).read_now()
    await shows(pilot, "was deleted")


async def at_a_time(pilot: Pilot[Any], log: Path) -> None:
    await pilot.press("at", *"05", "colon", *"20", "enter")
    await shows(pilot, "from 2026-11-21 05:20:00")


async def typing(pilot: Pilot[Any], log: Path) -> None:
    await pilot.press("percent_sign", *"25")


SCENES: dict[str, tuple[str, Act]] = {
    "wrap": (RUNNING, wrap),
    "search": (RUNNING, search),
    "beside": (RUNNING, beside),
    "deleted": (RUNNING, deleted),
    "waiting": (PENDING, nothing),
    "time": (RUNNING, at_a_time),
    "typing": (RUNNING, typing),
}
SHOWN = [("beside", SMALL), *((name, LARGE) for name in SCENES)]


@pytest.mark.parametrize(
    ("scene", "size"), SHOWN, ids=[f"{name}-{size[0]}x{size[1]}" for name, size in SHOWN]
)
def test_a_log_looks_as_it_did(
    snap_compare: Any, tmp_path: Path, scene: str, size: tuple[int, int]
) -> None:
    log = tmp_path / "job.out"
    job_id, act = SCENES[scene]
    if job_id == RUNNING:
        put(log, training_log())
        os.utime(log, (NOW - 750, NOW - 750))
    put(tmp_path / "job.err", b"a warning\n" * 3)
    os.utime(tmp_path / "job.err", (NOW - 3, NOW - 3))

    async def go_there(pilot: Pilot[Any]) -> None:
        await open_log(pilot, job_id)
        await act(pilot, log)
        await until(pilot, lambda: not pane_of(pilot).is_working and not pane_of(pilot)._paging)
        current_view(pilot).post_message(View.CrumbsChanged())
        await pilot.pause()

    app = log_dashboard(tmp_path, clock=FrozenClock(NOW), shown_folder=Path("/home/maya/vision"))
    assert snap_compare(app, terminal_size=size, run_before=go_there)
