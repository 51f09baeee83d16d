"""Batches and curves that the tests of metrics are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcdash.services.metrics.batch import Floats, MetricBatch, Points
from hpcdash.services.metrics.series import MetricLog


def batch_of(
    steps: Sequence[float] | Floats,
    values: Sequence[float] | Floats | None = None,
    *,
    begin: int = 0,
    times: Sequence[float] | Floats | None = None,
    tokens: Sequence[float] | Floats | None = None,
    name: str = "loss",
    line_bytes: int = 100,
    last_step: int | None = None,
) -> MetricBatch:
    """One metric, a line of so many bytes a sample, from the line number `begin` on."""
    count = len(steps)
    step_pace = np.asarray(steps, dtype=float)
    unknown = np.full(count, np.nan)
    return MetricBatch(
        offsets=np.arange(begin, begin + count, dtype=np.int64) * line_bytes,
        axes=np.stack(
            (
                step_pace,
                unknown,
                unknown if tokens is None else np.asarray(tokens, dtype=float),
                unknown if times is None else np.asarray(times, dtype=float),
            )
        ),
        metrics={
            name: Points(
                np.arange(count), np.asarray(step_pace if values is None else values, dtype=float)
            )
        },
        last_step=last_step,
    )


def stored_counts(log: MetricLog) -> tuple[int, int]:
    """(single points, cells of older points) of all metrics of a log."""
    counts = [log.stored_counts(name) for name in log.names]
    return sum(points for points, _ in counts), sum(cells for _, cells in counts)


def clean_loss(seed: int, count: int, noise: str = "student") -> tuple[Floats, Floats]:
    """Steps and a healthy loss: a power law, a noisy warm-up, heavy tails, a learning rate that
    restarts.
    """
    random = np.random.default_rng(seed)
    steps = np.arange(count, dtype=float)
    loss = 1.8 + 9 * (1 + steps / 60) ** -0.45
    for restart in range(20_000, count, 20_000):
        since = np.maximum(steps - restart, 0)
        loss += 0.15 * (1 - np.exp(-since / 100)) * np.exp(-since / 4000)
    drawn = {
        "normal": lambda: random.standard_normal(count),
        "student": lambda: random.standard_t(3, count),
        "skewed": lambda: random.lognormal(0, 0.8, count) - 1.4,
    }[noise]()
    return steps, loss + 0.02 * drawn * (1 + 3 * np.exp(-steps / 500))
