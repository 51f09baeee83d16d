"""What it costs to keep, show and judge the samples of long trainings: memory, appended points,
screens, analysis.

python -m benchmarks.metric_series          exits 1 when a screen, an analysis or the memory is more
than promised
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from hpcdash.services.metrics.batch import Floats, MetricBatch, Points
from hpcdash.services.metrics.downsample import (
    Smoothing,
    ViewPoints,
    downsample_view,
    smoothed,
)
from hpcdash.services.metrics.findings import find_not_finite, find_plateau
from hpcdash.services.metrics.joined import joined
from hpcdash.services.metrics.series import MetricLog, Series
from hpcdash.services.metrics.spikes import SpikeAnalysis, find_spikes

POINTS = 1_000_000
MANY_POINTS = 10_000_000
COLUMNS = 300
NEW_POINTS = 200
PROMISED = {"screen ms": 5.0, "analysis ms": 500.0, "refresh ms": 50.0, "MB": 200.0}
_BATCH = 5000
_LINE_BYTES = 100
_ROUNDS = 5


def best_ms(work: Callable[[], object]) -> float:
    """The best of a few rounds, in milliseconds."""
    rounds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        work()
        rounds.append(time.perf_counter() - started)
    return min(rounds) * 1e3


def loss_of(steps: Floats) -> Floats:
    """A power law with heavy-tailed noise, the same for the same number of steps."""
    noise = np.random.default_rng(steps.size).standard_t(3, steps.size)
    loss: Floats = 1.8 + 9 * (1 + steps / 60) ** -0.45 + 0.02 * noise
    return loss


def batch_of(begin: int, values: Floats, names: tuple[str, ...] = ("loss",)) -> MetricBatch:
    """A sample a line, a step a sample, a second a step."""
    lines = np.arange(begin, begin + values.size)
    unknown = np.full(values.size, np.nan)
    points = Points(np.arange(values.size), values)
    return MetricBatch(
        lines * _LINE_BYTES,
        np.stack((lines.astype(float), unknown, unknown, 1.7e9 + lines)),
        dict.fromkeys(names, points),
    )


def append_log(loss: Floats, exact_points: int | None = None) -> tuple[MetricLog, float]:
    """The log, and microseconds a point that appending took in batches of 5000."""
    log = MetricLog() if exact_points is None else MetricLog(exact_points=exact_points)
    batches = [
        batch_of(begin, loss[begin : begin + _BATCH]) for begin in range(0, loss.size, _BATCH)
    ]
    started = time.perf_counter()
    for batch in batches:
        log.append(batch)
    return log, (time.perf_counter() - started) / loss.size * 1e6


def screen(series: Series, log_y: bool = False) -> ViewPoints:
    """All of a series in the columns of a wide terminal."""
    return downsample_view(series, *series.span, COLUMNS, log_y=log_y)


def many_points() -> float:
    """Ten million points in the memory that is usual; the megabytes they are kept in."""
    log, microseconds = append_log(loss_of(np.arange(float(MANY_POINTS))))
    points, cells = log.stored_counts("loss")
    print(
        f"{MANY_POINTS:,} points appended: {microseconds:.2f} µs a point, kept in "
        f"{log.nbytes / 1e6:.0f} MB"
    )
    print(f"  {points:,} of them exact, the others in {cells:,} cells")
    series = joined([log]).series("loss")
    joining, drawing = (
        best_ms(lambda: joined([log]).series("loss")),
        best_ms(lambda: screen(series)),
    )
    print(f"  series {joining:.1f} ms, screen {drawing:.2f} ms")
    backward = MetricLog()
    batches = [batch_of(begin, np.ones(_BATCH)) for begin in range(0, MANY_POINTS // 4, _BATCH)]
    started = time.perf_counter()
    for batch in reversed(batches):
        backward.prepend(batch)
    taken = (time.perf_counter() - started) / (MANY_POINTS // 4) * 1e6
    print(f"  {MANY_POINTS // 4:,} points prepended: {taken:.2f} µs a point")
    single = [
        batch_of(MANY_POINTS + k, np.ones(1), ("loss", "lr", "norm", "scale", "time"))
        for k in range(2000)
    ]
    started = time.perf_counter()
    for batch in single:
        log.append(batch)
    print(
        "  one sample of five metrics: "
        f"{(time.perf_counter() - started) / len(single) * 1e6:.0f} µs"
    )
    return log.nbytes / 1e6


def million_points() -> tuple[float, float, float]:
    """Worst screen, whole analysis and refresh on a million exact points, in milliseconds."""
    steps = np.arange(float(POINTS))
    loss = loss_of(steps)
    log, _ = append_log(loss, exact_points=2 * POINTS)
    series = joined([log]).series("loss")
    below = loss.copy()
    below[::1000] = -1.0
    below[5::1000] = np.nan
    hostile = joined([append_log(below, exact_points=2 * POINTS)[0]]).series("loss")
    print(f"{POINTS:,} exact points: series {best_ms(lambda: joined([log]).series('loss')):.1f} ms")
    screens = {
        "linear": best_ms(lambda: screen(series)),
        "log": best_ms(lambda: screen(series, log_y=True)),
        "log, with nan and below zero": best_ms(lambda: screen(hostile, log_y=True)),
    }
    print("  screen: " + ", ".join(f"{name} {taken:.2f} ms" for name, taken in screens.items()))
    for smoothing in (
        Smoothing("ema", 0.99),
        Smoothing("mean", window=1000),
        Smoothing("median", window=1000),
    ):
        whole = best_ms(lambda of=smoothing: smoothed(series, 0, POINTS, COLUMNS, of))  # type: ignore[misc]
        zoomed = best_ms(lambda of=smoothing: smoothed(series, POINTS - 2000, POINTS, COLUMNS, of))  # type: ignore[misc]
        print(
            f"  smoothed by {smoothing.kind}: {whole:.1f} ms, the newest 2000 points "
            f"{zoomed:.1f} ms"
        )
    before: SpikeAnalysis = find_spikes(steps[:-NEW_POINTS], loss[:-NEW_POINTS])
    analysis = best_ms(lambda: find_spikes(steps, loss))
    refresh = best_ms(lambda: find_spikes(steps, loss, before))
    others = best_ms(lambda: (find_not_finite(steps, loss), find_plateau(steps, loss)))
    print(f"  spikes and divergence: {analysis:.0f} ms; {NEW_POINTS} points later {refresh:.1f} ms")
    print(f"  nan, inf and plateau: {others:.1f} ms")
    return max(screens.values()), analysis + others, refresh + others


def main() -> int:
    megabytes = many_points()
    figures = dict(zip(PROMISED, (*million_points(), megabytes), strict=True))
    over = [name for name, most in PROMISED.items() if figures[name] > most]
    for name in over:
        print(
            f"more than promised: {name} {figures[name]:.1f}, promised {PROMISED[name]:g}",
            file=sys.stderr,
        )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
