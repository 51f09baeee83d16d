"""Where in a log a new attempt begins, and where only an epoch: steps that go back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor, inf, isfinite

import numpy as np

from hpcdash.logs.metrics import Floats, MetricBatch

MAX_ATTEMPTS = 1000
MOST_JUMPS = 8
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


@dataclass(frozen=True, slots=True)
class Jump:
    """Where the step goes up by much from one sample to the next: the offset of the sample behind, and what both say of
    each of AXES."""

    offset: int
    before: tuple[float, float, float, float]
    after: tuple[float, float, float, float]

    @property
    def steps(self) -> float:
        return self.after[0] - self.before[0]


def largest_jumps(jumps: list[Jump]) -> tuple[Jump, ...]:
    """The few largest, in the order of the log; of the same size the oldest."""
    return tuple(
        sorted(sorted(jumps, key=lambda one: (-one.steps, one.offset))[:MOST_JUMPS], key=lambda one: one.offset)
    )


def jumps_in(batch: MetricBatch) -> list[Jump]:
    """The largest of a batch."""
    known = np.flatnonzero(~np.isnan(batch.steps))
    ups = np.diff(batch.steps[known])
    if ups.size > MOST_JUMPS:
        least = np.partition(ups, ups.size - MOST_JUMPS)[ups.size - MOST_JUMPS]
        larger = np.flatnonzero(ups > least)
        at = np.concatenate((larger, np.flatnonzero(ups == least)[: MOST_JUMPS - larger.size]))
    else:
        at = np.arange(ups.size)
    columns = (batch.steps, batch.epochs, batch.tokens, batch.times)

    def axes_at(sample: int) -> tuple[float, float, float, float]:
        steps, epochs, tokens, times = (float(column[sample]) for column in columns)
        return steps, epochs, tokens, times

    return [
        Jump(int(batch.offsets[known[i + 1]]), axes_at(known[i]), axes_at(known[i + 1]))
        for i in at.tolist()
        if ups[i] > 0
    ]


def stretches_in(batch: MetricBatch, row: int) -> list[Attempt]:
    """The stretches of a batch with at least one sample, in its order: where the step (`row` 0) or the epoch (1) of a
    sample is lower than that of the last sample before that has one, a new one begins.

    Samples before the first one with a step (or epoch) are a stretch of their own: they belong to what is before them.
    """
    leading = (batch.steps, batch.epochs)[row]
    known = np.flatnonzero(~np.isnan(leading))
    back = known[1:][leading[known[1:]] < leading[known[:-1]]]
    if back.size > MAX_ATTEMPTS:  # as many as make them one; where exactly they begin is not asked any more
        back = np.concatenate((back[:MAX_ATTEMPTS], back[-1:]))
    starts = np.concatenate(([0], known[:1][known[:1] > 0], back))
    ends = np.concatenate((starts[1:], [batch.offsets.size]))
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


def put_together(older: list[Attempt], newer: list[Attempt], row: int) -> list[Attempt]:
    """The stretches of two parts of a log that follow each other; `row` as in stretches_in."""
    if not older or not newer:
        return older + newer
    if np.isnan(newer[0].last[row]):
        older, newer = [*older[:-1], attempt_of([older[-1], newer[0]])], newer[1:]
    if not newer or np.isnan(older[-1].last[row]) or newer[0].first[row] < older[-1].last[row]:
        return older + newer
    return [*older[:-1], attempt_of([older[-1], newer[0]]), *newer[1:]]


def steps_before(stretches: list[Attempt], steps_of_epoch: int | None) -> list[float] | None:
    """How many steps were done before each stretch, where steps are counted within their epoch: they go back as the
    epoch rises. None where they are not."""
    is_next = [_is_next_epoch(older, newer) for older, newer in pairwise(stretches)]
    if not any(is_next):
        return None
    epochs = [floor(one.first[1]) if isfinite(one.first[1]) else None for one in stretches]
    furthest = max(one.last[0] for one in stretches if one.last[0] == one.last[0])
    # A number behind the step is its epoch's only where the steps reach about so far.
    if steps_of_epoch is not None and furthest <= steps_of_epoch <= 2 * furthest:
        begin = min(1, *(epoch for epoch in epochs if epoch is not None))
        return [0.0 if epoch is None else float((epoch - begin) * steps_of_epoch) for epoch in epochs]
    before = [0.0]
    known = {} if epochs[0] is None else {epochs[0]: 0.0}
    for index, is_risen in enumerate(is_next, 1):
        epoch = epochs[index]
        if epoch is None:
            before.append(before[-1])
            continue
        if epoch not in known:
            top = before[-1] + stretches[index - 1].last[0]
            known[epoch] = top if is_risen else max((known[k] for k in known if k < epoch), default=0.0)
        before.append(known[epoch])
    return before


def _is_next_epoch(older: Attempt, newer: Attempt) -> bool:
    return newer.first[0] < older.last[0] and newer.first[1] > older.last[1]


def attempts_of(stretches: list[Attempt], before: list[float] | None, row: int) -> list[Attempt]:
    """The attempts that stretches make, each `before` so many steps on; `row` as in stretches_in."""
    moved = [_moved(one, steps) for one, steps in zip(stretches, before, strict=True)] if before else stretches
    together: list[list[Attempt]] = []
    for index, one in enumerate(moved):
        is_first = index == 1 and np.isnan(stretches[0].last[row])
        goes_on = before is not None and index > 0 and _is_next_epoch(stretches[index - 1], stretches[index])
        if is_first or goes_on:
            together[-1].append(one)
        else:
            together.append([one])
    return without_overtaking([attempt_of(parts) if len(parts) > 1 else parts[0] for parts in together])


def _moved(one: Attempt, steps: float) -> Attempt:
    if not steps or np.isnan(one.first[0]):
        return one
    return replace(one, first=(one.first[0] + steps, *one.first[1:]), last=(one.last[0] + steps, *one.last[1:]))


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
