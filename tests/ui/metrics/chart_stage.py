"""A dashboard whose jobs are recorded and whose training logs are real files of a test's folder.

Asserts nothing.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.metrics.plot import ChartPlot
from hpcdash.ui.metrics.view import ChartView
from tests.ui.logs.log_stage import RUNNING, log_dashboard
from tests.ui.stage import NOW, settled, until

FOLDER = Path("/home/maya/vision")


def loss_at(step: int, noise: random.Random) -> float:
    """A loss that falls from 10 towards 2."""
    return 2.0 + 8.0 * math.exp(-step / 180) + noise.gauss(0, 0.03)


def training_log(
    steps: Sequence[int],
    loss: Callable[[int], float] | None = None,
    *,
    last: int = 4000,
    seed: int = 7,
) -> bytes:
    """Lines as Megatron's, a step a line."""
    noise = random.Random(seed)
    lines = []
    for step in steps:
        value = loss_at(step, noise) if loss is None else loss(step)
        rate = 3e-4 * min(1.0, step / 200)
        lines.append(
            f" iteration {step:8}/{last:8} | lm loss: {value:.6E} | grad norm: "
            f"{abs(noise.gauss(0.9, 0.12)):.3f} | "
            f"learning rate: {rate:.3E} | elapsed time per iteration (ms): 520.0 | consumed "
            f"samples: {step * 1024:12} |"
        )
    return "".join(f"{line}\n" for line in lines).encode()


def chart_dashboard(folder: Path, **arguments: Any) -> HpcdashApp:
    """On a clock that stands still; jobs write to job.out of a folder."""
    (folder / "job.err").touch()
    return log_dashboard(
        folder, both_in_one=True, clock=FrozenClock(NOW), shown_folder=FOLDER, **arguments
    )


async def open_chart(
    pilot: Pilot[Any], job_id: str = RUNNING, others: Sequence[str] = ()
) -> ChartView:
    """To a job's chart, once it shows all that its log says."""
    await settled(pilot)
    await pilot.app.main.push("chart", job_id=job_id, others=tuple(others))
    await drawn(pilot)
    return chart_of(pilot)


def chart_of(pilot: Pilot[Any]) -> ChartView:
    view = pilot.app.main.view
    assert isinstance(view, ChartView)
    return view


def plot_of(pilot: Pilot[Any]) -> ChartPlot:
    return chart_of(pilot).query_one(ChartPlot)


async def drawn(pilot: Pilot[Any]) -> None:
    """Wait until everything was read, judged and drawn."""

    def is_still() -> bool:
        view = chart_of(pilot)
        return view.is_drawn and all(
            run.error is not None or _is_read(view, run) for run in view.runs
        )

    await until(pilot, is_still, "drawn")
    await pilot.pause()


def _is_read(view: ChartView, run: Any) -> bool:
    watched = run.watched
    if watched is None or not run.is_open:
        return False
    if not watched.run.names or not view.picture.panels:
        return not watched.run.names
    judged = run.read_changes == (
        run.changes,
        tuple(panel.name for panel in view.picture.panels),
        view.picture.axis,
    )
    return watched.progress.is_whole and judged


async def press_drawn(pilot: Pilot[Any], *keys: str) -> None:
    """Keys, and the picture they bring about."""
    await pilot.press(*keys)
    # Behind the keys in the program's queue.
    obeyed = asyncio.Event()
    pilot.app.call_later(obeyed.set)
    await obeyed.wait()
    await drawn(pilot)


def lines_of(pilot: Pilot[Any]) -> list[str]:
    """The picture as plain text."""
    return ["".join(words for words, _ in line) for line in chart_of(pilot).picture.lines]
