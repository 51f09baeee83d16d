"""Attempts of a run: where a new one begins in a log, where only an epoch, and their order over
several logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import floor, inf, isfinite, isnan, nan

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from hpcdash.services.metrics.batch import MetricBatch

MAX_ATTEMPTS = 1000
MAX_JUMPS = 8
# Ranks that write the same steps overtake each other by a step or two; a restart takes its time.
OVERTAKING_STRIDES = 2.0
RESTART_SECONDS = 60.0
Flags = NDArray[np.bool_]
# A value of each of AXES, nan where it is not known.
Axes = tuple[float, ...]
# Each is compared with each.
MAX_ORDERED = 200
# What begins where another ended may be so large a part of a gap, or of the other, away from that.
_PART_OF_GAP = 1 / 8
_PART_REPEATED = 1 / 2
_PART_AHEAD = 1 / 8
_STEP = 0
_TIME = 3


class Attempt(Struct, frozen=True):
    """A stretch of a log whose steps do not go back; first and last finite value of each of AXES,
    nan where there is none, and the least distance of two steps, inf where there are none.
    """

    offset: int
    first: Axes
    last: Axes
    stride: float = inf


class Jump(Struct, frozen=True):
    """Large rise of the step from one sample to the next.

    `offset` is that of the later sample, `before` and `after` are the values of AXES at both.
    """

    offset: int
    before: Axes
    after: Axes

    @property
    def steps(self) -> float:
        return self.after[0] - self.before[0]


def largest_jumps(jumps: list[Jump]) -> tuple[Jump, ...]:
    """The few largest, in the order of the log; of the same size the oldest."""
    largest = sorted(jumps, key=lambda jump: (-jump.steps, jump.offset))[:MAX_JUMPS]
    return tuple(sorted(largest, key=lambda jump: jump.offset))


def jumps_in(batch: MetricBatch) -> list[Jump]:
    """The largest of a batch."""
    known = np.flatnonzero(~np.isnan(batch.steps))
    ups = np.diff(batch.steps[known])
    largest = np.argsort(-ups, kind="stable")[:MAX_JUMPS]
    jumps = []
    for place in largest[ups[largest] > 0].tolist():
        before, after = batch.axes[:, known[place : place + 2]].T.tolist()
        jumps.append(Jump(int(batch.offsets[known[place + 1]]), tuple(before), tuple(after)))
    return jumps


def stretches_in(batch: MetricBatch, row: int) -> list[Attempt]:
    """The stretches of a batch with at least one sample, in its order: where the step (`row` 0) or
    the epoch (1) of a sample is lower than that of the last sample before that has one, a new one
    begins.

    Samples before the first one with a step (or epoch) are a stretch of their own: they belong to
    what is before them.
    """
    leading = batch.axes[row]
    known = np.flatnonzero(~np.isnan(leading))
    back = known[1:][leading[known[1:]] < leading[known[:-1]]]
    if back.size > MAX_ATTEMPTS:
        # So many are joined to one, whose parts' places no longer matter.
        back = np.concatenate((back[:MAX_ATTEMPTS], back[-1:]))
    starts = np.concatenate(([0], known[:1][known[:1] > 0], back))
    ends = np.concatenate((starts[1:], [batch.offsets.size]))
    stretches = []
    for begin, end in zip(starts.tolist(), ends.tolist(), strict=True):
        values = [column[~np.isnan(column)] for column in batch.axes[:, begin:end]]
        firsts = tuple(float(column[0]) if column.size else nan for column in values)
        lasts = tuple(float(column[-1]) if column.size else nan for column in values)
        strides = np.diff(values[0])
        strides = strides[strides > 0]
        stride = float(strides.min()) if strides.size else inf
        stretches.append(Attempt(int(batch.offsets[begin]), firsts, lasts, stride))
    return stretches


def put_together(older: list[Attempt], newer: list[Attempt], row: int) -> list[Attempt]:
    """The stretches of two parts of a log that follow each other; `row` as in stretches_in."""
    if not older or not newer:
        return older + newer
    if np.isnan(newer[0].last[row]):
        older = [*older[:-1], join_attempt([older[-1], newer[0]])]
        newer = newer[1:]
    if not newer or np.isnan(older[-1].last[row]) or newer[0].first[row] < older[-1].last[row]:
        return older + newer
    return [*older[:-1], join_attempt([older[-1], newer[0]]), *newer[1:]]


def steps_before(stretches: list[Attempt], epoch_steps: int | None) -> list[float] | None:
    """Return the number of steps before each stretch; None if steps are not counted within epochs.

    Steps that are counted within their epoch go back as the epoch rises.
    """
    is_next = [_is_next_epoch(older, newer) for older, newer in pairwise(stretches)]
    if not any(is_next):
        return None
    first_epochs = [stretch.first[1] for stretch in stretches]
    epochs = [floor(epoch) if isfinite(epoch) else None for epoch in first_epochs]
    furthest = max(stretch.last[0] for stretch in stretches if not isnan(stretch.last[0]))
    # A number behind the step is its epoch's only where the steps reach about so far.
    if epoch_steps is not None and furthest <= epoch_steps <= 2 * furthest:
        begin = min(1, *(epoch for epoch in epochs if epoch is not None))
        return [0.0 if epoch is None else float((epoch - begin) * epoch_steps) for epoch in epochs]
    before = [0.0]
    known = {} if epochs[0] is None else {epochs[0]: 0.0}
    for index, is_risen in enumerate(is_next, 1):
        epoch = epochs[index]
        if epoch is None:
            before.append(before[-1])
            continue
        if epoch not in known:
            top = before[-1] + stretches[index - 1].last[0]
            known[epoch] = (
                top if is_risen else max((known[k] for k in known if k < epoch), default=0.0)
            )
        before.append(known[epoch])
    return before


def _is_next_epoch(older: Attempt, newer: Attempt) -> bool:
    return newer.first[0] < older.last[0] and newer.first[1] > older.last[1]


def split_attempts(stretches: list[Attempt], before: list[float] | None, row: int) -> list[Attempt]:
    """The attempts that stretches make, each `before` so many steps on; `row` as in
    stretches_in.
    """
    attempts = stretches
    goes_on = [False] * len(stretches)
    if before is not None:
        goes_on[1:] = [_is_next_epoch(older, newer) for older, newer in pairwise(stretches)]
        attempts = [
            _moved(attempt, steps) for attempt, steps in zip(stretches, before, strict=True)
        ]
    if len(stretches) > 1 and isnan(stretches[0].last[row]):
        goes_on[1] = True
    attempts = _join_where(goes_on, attempts)
    # Those that go back by no more than two of the log's strides, with no minute between, are one
    # with those before.
    tolerated = OVERTAKING_STRIDES * min((attempt.stride for attempt in attempts), default=inf)
    if tolerated == inf:
        return attempts
    goes_on = [False]
    for older, newer in pairwise(attempts):
        is_late = newer.first[3] - older.last[3] > RESTART_SECONDS
        goes_on.append(older.last[0] - newer.first[0] <= tolerated and not is_late)
    return _join_where(goes_on, attempts)


def _join_where(goes_on: Sequence[bool], attempts: Sequence[Attempt]) -> list[Attempt]:
    """Join attempts that go on with those before them."""
    groups: list[list[Attempt]] = []
    for is_same, attempt in zip(goes_on, attempts, strict=True):
        if is_same:
            groups[-1].append(attempt)
        else:
            groups.append([attempt])
    return [join_attempt(parts) for parts in groups]


def _moved(attempt: Attempt, steps: float) -> Attempt:
    first, last = ((axes[0] + steps, *axes[1:]) for axes in (attempt.first, attempt.last))
    return replace(attempt, first=first, last=last)


def join_attempt(parts: list[Attempt]) -> Attempt:
    """The parts, in the order of the log, as one."""
    whole = parts[0]
    for part in parts[1:]:
        between = part.first[0] - whole.last[0]
        whole = Attempt(
            whole.offset,
            tuple(map(_known, whole.first, part.first)),
            tuple(map(_known, part.last, whole.last)),
            min(whole.stride, part.stride, between if between > 0 else inf),
        )
    return whole


def _known(value: float, otherwise: float) -> float:
    return otherwise if isnan(value) else value


class LogPiece(Struct, frozen=True):
    """An attempt, or a part of one: of log number `log`, from offset `begin` up to `until`, inf
    for its end.
    """

    log: int
    begin: int
    until: float
    attempt: Attempt

    @property
    def first_step(self) -> float:
        return self.attempt.first[_STEP]

    @property
    def last_step(self) -> float:
        return self.attempt.last[_STEP]

    def holds(self, offset: int) -> bool:
        return self.begin <= offset < self.until

    def is_split_at(self, jump: Jump) -> bool:
        """Whether it has samples on both sides of a jump."""
        return self.begin < jump.offset < self.until


def in_order(
    attempts: Sequence[Sequence[Attempt]], jumps: Sequence[Sequence[Jump]]
) -> list[LogPiece]:
    """The attempts of all logs, oldest first: those of a log in its order, else as times tell, else
    the one that begins where another ended after it, else as the logs are given.

    An attempt is two where its steps jump and another log has those between: a job that was
    requeued appends to its log. Logs that begin at the same step and have no such jump are of
    independent runs.
    """
    logs = []
    for number, log_attempts in enumerate(attempts):
        begins = [0, *(attempt.offset for attempt in log_attempts[1:])]
        spans = zip(begins, [*begins[1:], inf], log_attempts, strict=False)
        logs.append([LogPiece(number, *span) for span in spans])
    if len(logs) < 2 or not 0 < sum(map(len, logs)) <= MAX_ORDERED:
        return [piece for log in logs for piece in log]
    logs, fills = _split(logs, jumps)
    pieces = [piece for log in logs for piece in log]
    if len(pieces) > MAX_ORDERED:
        return pieces
    first_steps = [log[0].first_step if log else nan for log in logs]
    before: list[set[int]] = [set() for _ in pieces]
    numbers: dict[tuple[int, int], int] = {}
    for number, piece in enumerate(pieces):
        numbers[piece.log, piece.begin] = number
        if number and pieces[number - 1].log == piece.log:
            before[number].add(number - 1)
    for filler, (log, begin) in fills:
        behind = numbers[log, begin]
        # What fills a gap may be a part of an attempt that was not split there.
        for between, piece in enumerate(pieces):
            if piece.log == filler.log and piece.holds(filler.begin):
                before[behind].add(between)
                before[between].add(behind - 1)
                break
    related = {frozenset((filler.log, log)) for filler, (log, _) in fills}
    every = _Spans(pieces)
    for number, piece in enumerate(pieces):
        for older in np.flatnonzero(every.are_before(piece) & (every.logs != piece.log)).tolist():
            log = pieces[older].log
            is_apart = abs(first_steps[log] - first_steps[piece.log]) > 0
            if is_apart or frozenset((log, piece.log)) in related:
                before[number].add(older)
    return [pieces[number] for number in _sorted(before)]


def _split(
    logs: Sequence[list[LogPiece]], jumps: Sequence[Sequence[Jump]]
) -> tuple[list[list[LogPiece]], list[tuple[LogPiece, tuple[int, int]]]]:
    """The logs with attempts split where what another log has fills a jump, and what fills the jump
    before which piece, by its log and beginning.
    """
    # At all jumps, to see what fits into those of the others.
    finest = [[part for piece in log for part in _cut(piece, jumps[piece.log])] for log in logs]
    parts = [part for log in finest for part in log]
    spans = _Spans(parts)
    fills: list[tuple[LogPiece, tuple[int, int]]] = []
    split_logs = []
    for number, log in enumerate(logs):
        filled = []
        for jump in jumps[number]:
            split = (piece for piece in log if piece.is_split_at(jump))
            piece = next(split, None)
            if piece is None or (fillers := _fillers(jump, jumps[number], piece, spans)) is None:
                continue
            filled.append(jump)
            fills += [(parts[filler], (number, jump.offset)) for filler in fillers]
        split_logs.append([part for piece in log for part in _cut(piece, filled)])
    return split_logs, fills


def _cut(piece: LogPiece, jumps: Sequence[Jump]) -> Iterator[LogPiece]:
    for jump in jumps:
        if piece.is_split_at(jump):
            older = replace(piece.attempt, last=jump.before)
            newer = replace(piece.attempt, offset=jump.offset, first=jump.after)
            yield replace(piece, until=jump.offset, attempt=older)
            piece = replace(piece, begin=jump.offset, attempt=newer)
    yield piece


class _Spans:
    """Logs, first and last steps and times of pieces, an array each, to compare one with all."""

    def __init__(self, pieces: Sequence[LogPiece]) -> None:
        self.logs = np.array([piece.log for piece in pieces])
        first = np.array([piece.attempt.first for piece in pieces])
        last = np.array([piece.attempt.last for piece in pieces])
        self.first = first[:, _STEP]
        self.first_time = first[:, _TIME]
        self.last = last[:, _STEP]
        self.last_time = last[:, _TIME]

    def overlap(self, jump: Jump) -> Flags:
        is_inside: Flags = (self.last > jump.before[_STEP]) & (self.first < jump.after[_STEP])
        return is_inside

    def are_before(self, newer: LogPiece) -> Flags:
        """Return for each whether `newer` began after it had ended, by their times.

        Without times, whether `newer` began about where it had ended, by their steps.
        """
        begin = newer.attempt.first[_TIME]
        end = newer.attempt.last[_TIME]
        is_timed = ~np.isnan(self.first_time + self.last_time + begin + end)
        by_time = (self.last_time <= begin) & (self.first_time < begin)
        span = self.last - self.first
        step = newer.first_step
        is_near = (step >= self.last - span * _PART_REPEATED) & (
            step <= self.last + np.maximum(span * _PART_AHEAD, 1)
        )
        by_step = is_near & (self.first < step) & (self.last < newer.last_step)
        is_before: Flags = np.where(is_timed, by_time, by_step)
        return is_before


def _fillers(jump: Jump, jumps: Sequence[Jump], piece: LogPiece, spans: _Spans) -> list[int] | None:
    """Return the `spans` of other logs that fill a jump of the piece, one of its log's `jumps`.

    None if they do not fill all of it, or fill several jumps of its kind: then this log reports its
    steps less often.
    """
    is_inside = (spans.logs != piece.log) & spans.overlap(jump) & (spans.last < piece.last_step)
    is_inside &= ~(spans.first_time < jump.before[_TIME]) & ~(spans.last_time > jump.after[_TIME])
    if not is_inside.any():
        return None
    alike = [other for other in jumps if other is not jump and 2 * other.steps >= jump.steps]
    if any((is_inside & spans.overlap(other)).any() for other in alike):
        return None
    inside: list[int] = np.flatnonzero(is_inside).tolist()
    begin = jump.before[_STEP]
    end = jump.after[_STEP]
    nearly = (end - begin) * _PART_OF_GAP
    reached = begin
    for number in sorted(inside, key=lambda number: float(spans.first[number])):
        if spans.first[number] > reached + nearly:
            return None
        reached = max(reached, float(spans.last[number]))
    return inside if reached + nearly >= end else None


def _sorted(before: Sequence[set[int]]) -> Iterator[int]:
    """The numbers, each behind those `before` it, else ascending; where these contradict each other
    the lowest goes first.
    """
    waiting = set(range(len(before)))
    while waiting:
        number = min(waiting, key=lambda number: (not before[number].isdisjoint(waiting), number))
        waiting.remove(number)
        yield number
