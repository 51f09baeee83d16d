"""What new points cost the chart view at a million points: the event loop's longest wait, the
picture, the search.

    python -m benchmarks.chart_view         exits 1 when the event loop waits for longer than promised

A run of a million points is shown on 200 by 50 cells without a terminal; 200 points come ten times
a second.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any

import numpy as np

from benchmarks.metric_series import batch_of, loss_of
from hpcdash.services.metrics.joined import joined
from hpcdash.services.metrics.pace import JobFacts
from hpcdash.services.metrics.series import MetricLog
from hpcdash.ui.metrics.following import ShownRun
from hpcdash.ui.metrics.view import ChartView

POINTS, NEW_POINTS = 1_000_000, 200
SIZE = (200, 50)
SECONDS = 10.0
PROMISED_MS = 50.0
_PULSE_SECONDS = 0.005
_PAUSE_SECONDS = 0.1


class GrowingRun:
    """In place of a WatchedRun: the samples come from memory, and a log of them grows."""

    def __init__(self, points: int) -> None:
        self.title = "4711 llama-7b"
        self.row = None
        self.paths = ()
        self.problem = ""
        self.is_over = False
        self._loss = loss_of(np.arange(1.0, points * 2))
        self._log = MetricLog()
        self._count = 0
        while self._count < points:
            self._add(5000)
        self.run = joined([self._log.snapshot()])

    def job_facts(self) -> JobFacts:
        return JobFacts(time.time())

    def _add(self, count: int) -> None:
        values = self._loss[self._count : self._count + count]
        self._log.append(batch_of(self._count, values, ("lm loss",)))
        self._count += count

    def grow(self, count: int) -> None:
        self._add(count)
        self.run = joined([self._log.snapshot()])


async def longest_waits(seconds: float) -> list[float]:
    """How much later than asked for the event loop came back, in ms, for so long."""
    waits = []
    over = time.perf_counter() + seconds
    while time.perf_counter() < over:
        began = time.perf_counter()
        await asyncio.sleep(_PULSE_SECONDS)
        waits.append((time.perf_counter() - began - _PULSE_SECONDS) * 1e3)
    return waits


async def measure(
    pilot: Any, view: ChartView, grown: GrowingRun
) -> tuple[list[float], list[float], int]:
    """Waits of the loop, ms of the pictures from the change to the screen, and how many pictures
    there were.
    """
    shown = view.runs[0]
    pictures: list[float] = []

    async def grow() -> None:
        while True:
            await asyncio.to_thread(grown.grow, NEW_POINTS)
            began = time.perf_counter()
            view._changed(shown)
            while not view.is_drawn:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            pictures.append((time.perf_counter() - began) * 1e3)
            await asyncio.sleep(_PAUSE_SECONDS)

    growing = asyncio.create_task(grow())
    waits = await longest_waits(SECONDS)
    growing.cancel()
    await asyncio.wait({growing})
    return waits, pictures, len(pictures)


async def run(points: int) -> float:
    from tests.ui.stage import dashboard, settled

    grown = GrowingRun(points)

    async def nothing(self: ChartView, shown: ShownRun) -> None:
        shown.watched = grown  # type: ignore[assignment]
        shown.is_open = True
        self._changed(shown)
        await asyncio.Event().wait()

    ChartView._watch = nothing  # type: ignore[method-assign, assignment]
    grown.progress = type("Whole", (), {"is_whole": True, "bytes_read": 0, "total_bytes": 0})()  # type: ignore[attr-defined]
    app = dashboard("everyday")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        idle = await longest_waits(2.0)
        await app.main.push("chart", job_id="4711")
        view = app.main.view
        assert isinstance(view, ChartView)
        first = await longest_waits(3.0)
        waits, pictures, count = await measure(pilot, view, grown)
    print(
        f"{points} points, {SIZE[0]} by {SIZE[1]} cells, {NEW_POINTS} more {count} times in "
        f"{SECONDS:g} s"
    )
    print(
        f"event loop's longest wait: idle {max(idle):.0f} ms, opening {max(first):.0f} ms, growing "
        f"{max(waits):.0f} ms"
    )
    print(f"  growing: 99 % below {statistics.quantiles(waits, n=100)[98]:.1f} ms")
    print(
        f"from new points to their picture: median {statistics.median(pictures):.0f} ms, worst "
        f"{max(pictures):.0f} ms"
    )
    return max(waits)


def main() -> None:
    if asyncio.run(run(POINTS)) > PROMISED_MS:
        sys.exit(f"the event loop waited for longer than {PROMISED_MS:g} ms")


if __name__ == "__main__":
    main()
