"""What the chart view looks like, on real files and a clock that stands still."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hpcdash.ui.view import View
from tests.support.real_files import put
from tests.ui.logs.log_stage import PENDING, RUNNING
from tests.ui.metrics.chart_stage import (
    chart_dashboard,
    chart_of,
    drawn,
    open_chart,
    press_drawn,
    training_log,
)

SMALL, LARGE = (80, 24), (140, 40)
Act = Callable[[Pilot[Any]], Awaitable[None]]


@pytest.fixture(autouse=True)
def one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is read once: how many commands there were is on the screen."""

    async def never(run: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("hpcdash.services.metrics.run.WatchedRun._read_on", never)


def spiked(step: int) -> float:
    """Falls from 10, with a ripple, two spikes, and nan for a while."""
    if 1700 <= step < 1710:
        return math.nan
    spike = 3.0 if step in (900, 901, 902) or 1300 <= step < 1304 else 0.0
    return 2.0 + 8.0 * math.exp(-step / 150) + 0.05 * math.sin(step * 1.7) + spike


def restarted() -> bytes:
    """600 steps, then again from 401 on with another rate."""
    return training_log(range(1, 601)) + training_log(
        range(401, 1201), lambda step: 4.0 - step / 600
    )


async def nothing(pilot: Pilot[Any]) -> None:
    """Just the chart."""


async def overlay(pilot: Pilot[Any]) -> None:
    await chart_of(pilot).show_others([PENDING])
    await drawn(pilot)


async def log_scale(pilot: Pilot[Any]) -> None:
    await press_drawn(pilot, "y")


async def zoomed(pilot: Pilot[Any]) -> None:
    await press_drawn(pilot, "plus", "plus", "left", "c")


async def several(pilot: Pilot[Any]) -> None:
    view = chart_of(pilot)
    await press_drawn(pilot, "v", "down", "space", "down", "space", "down", "space", "enter")
    assert len(view.picture.panels) > 1


async def next_sign(pilot: Pilot[Any]) -> None:
    await press_drawn(pilot, "n")


SCENES: dict[str, tuple[bytes, Act]] = {
    "few": (training_log(range(0, 1200, 100)), nothing),
    "overlay": (training_log(range(1, 1201)), overlay),
    "log-scale": (training_log(range(1, 1201)), log_scale),
    "zoomed": (training_log(range(1, 1201)), zoomed),
    "several": (training_log(range(1, 1201)), several),
    "spikes": (training_log(range(1, 2401), spiked), nothing),
    "next-sign": (training_log(range(1, 2401), spiked), next_sign),
    "restart": (restarted(), nothing),
    "nan-only": (training_log(range(1, 401), lambda step: math.nan), nothing),
    "empty": (b"hello\n" * 50, nothing),
}
SHOWN = [*((name, SMALL) for name in ("spikes", "several")), *((name, LARGE) for name in SCENES)]


async def look(pilot: Pilot[Any], act: Act, job_id: str = RUNNING) -> None:
    await open_chart(pilot, job_id)
    await act(pilot)
    chart_of(pilot).post_message(View.CrumbsChanged())
    await pilot.pause()


@pytest.mark.parametrize(
    ("scene", "size"), SHOWN, ids=[f"{name}-{size[0]}x{size[1]}" for name, size in SHOWN]
)
def test_a_chart_looks_as_it_did(
    snap_compare: Any, tmp_path: Path, scene: str, size: tuple[int, int]
) -> None:
    content, act = SCENES[scene]
    put(tmp_path / "job.out", content)

    async def go_there(pilot: Pilot[Any]) -> None:
        await look(pilot, act)

    assert snap_compare(chart_dashboard(tmp_path), terminal_size=size, run_before=go_there)


def test_a_chart_without_colours_looks_as_it_did(
    snap_compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "job.out", training_log(range(1, 2401), spiked))
    monkeypatch.setenv("NO_COLOR", "1")

    async def go_there(pilot: Pilot[Any]) -> None:
        await look(pilot, overlay)

    assert snap_compare(chart_dashboard(tmp_path), terminal_size=SMALL, run_before=go_there)


def test_a_chart_of_a_job_that_waits_looks_as_it_did(snap_compare: Any, tmp_path: Path) -> None:
    async def go_there(pilot: Pilot[Any]) -> None:
        await look(pilot, nothing, PENDING)

    assert snap_compare(chart_dashboard(tmp_path), terminal_size=SMALL, run_before=go_there)
