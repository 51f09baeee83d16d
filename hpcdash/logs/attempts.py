"""Where in a log a new attempt begins: steps that go back; knows no file and no metric."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np

from hpcdash.logs.metrics import Floats, MetricBatch

MAX_ATTEMPTS = 1000
# Ranks that write the same steps overtake each other by a step or two; a restart takes its time.
OVERTAKING_STRIDES, RESTART_SECONDS = 2.0, 60.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """A stretch of a log whose steps do not go back; first and last finite value of each of AXES, nan where there is
    none, and the least distance of two steps, inf where there are none."""

    offset: int
    first: tuple[float, float, float, float]
    last: tuple[float, float, float, float]
    stride: float = inf


def goes_back(before: tuple[float, ...], after: tuple[float, ...]) -> bool:
    """Whether `after` begins a new attempt: its step, or where either has none its epoch, is lower."""
    if not (np.isnan(before[0]) or np.isnan(after[0])):
        return after[0] < before[0]
    return after[1] < before[1]


def attempts_in(batch: MetricBatch) -> list[Attempt]:
    """The attempts of a batch with at least one sample, in its order."""
    leading = batch.steps if not np.all(np.isnan(batch.steps)) else batch.epochs
    known = np.flatnonzero(~np.isnan(leading))
    back = known[1:][leading[known[1:]] < leading[known[:-1]]]
    if back.size > MAX_ATTEMPTS:  # as many as make them one; where exactly they begin is not asked any more
        back = np.concatenate((back[:MAX_ATTEMPTS], back[-1:]))
    starts = np.concatenate(([0], back))
    ends = np.concatenate((back, [batch.offsets.size]))
    columns = (batch.steps, batch.epochs, batch.tokens, batch.times)
    found = []
    for begin, end in zip(starts.tolist(), ends.tolist(), strict=True):
        values = [column[begin:end] for column in columns]
        values = [column[~np.isnan(column)] if np.isnan(column).any() else column for column in values]
        firsts = [float(column[0]) if column.size else np.nan for column in values]
        lasts = [float(column[-1]) if column.size else np.nan for column in values]
        found.append(
            Attempt(
                int(batch.offsets[begin]),
                (firsts[0], firsts[1], firsts[2], firsts[3]),
                (lasts[0], lasts[1], lasts[2], lasts[3]),
                _least_stride(values[0]),
            )
        )
    return found


def _least_stride(steps: Floats) -> float:
    strides = np.diff(steps)
    strides = strides[strides > 0]
    return float(strides.min()) if strides.size else inf


def attempt_of(parts: list[Attempt]) -> Attempt:
    """The parts, in the order of the log, as one."""

    def of_axis(values: list[float]) -> float:
        return next((value for value in values if not np.isnan(value)), np.nan)

    firsts = [of_axis([part.first[i] for part in parts]) for i in range(4)]
    lasts = [of_axis([part.last[i] for part in reversed(parts)]) for i in range(4)]
    stride = parts[0].stride
    last_step = parts[0].last[0]
    for part in parts[1:]:
        between = part.first[0] - last_step
        stride = min(stride, part.stride, between if between > 0 else inf)
        last_step = last_step if np.isnan(part.last[0]) else part.last[0]
    return Attempt(
        parts[0].offset, (firsts[0], firsts[1], firsts[2], firsts[3]), (lasts[0], lasts[1], lasts[2], lasts[3]), stride
    )


def without_overtaking(attempts: list[Attempt]) -> list[Attempt]:
    """Attempts that go back by no more than two of the log's strides, with no minute between, are one with those
    before."""
    tolerated = OVERTAKING_STRIDES * min((attempt.stride for attempt in attempts), default=inf)
    if len(attempts) < 2 or tolerated == inf:
        return attempts
    together = [[attempts[0]]]
    for older, newer in pairwise(attempts):
        if older.last[0] - newer.first[0] <= tolerated and not newer.first[3] - older.last[3] > RESTART_SECONDS:
            together[-1].append(newer)
        else:
            together.append([newer])
    return [attempt_of(parts) for parts in together]
