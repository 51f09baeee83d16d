"""Orders the attempts of several logs of one run, also where a requeued job went on in its log after another's; knows
no file and no metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import nan

import numpy as np
from numpy.typing import NDArray

from hpcdash.logs.attempts import Attempt, Jump

Flags = NDArray[np.bool_]

# Each is compared with each.
MOST_ORDERED = 200
# What begins where another ended may be so large a part of a gap, or of the other, away from that.
_PART_OF_GAP, _PART_REPEATED, _PART_AHEAD = 1 / 8, 1 / 2, 1 / 8
_STEP, _TIME = 0, 3


@dataclass(frozen=True, slots=True)
class LogPiece:
    """An attempt, or a part of one: of log number `log`, from offset `begin` up to `until`, None for its end."""

    log: int
    begin: int
    until: int | None
    attempt: Attempt

    @property
    def first_step(self) -> float:
        return self.attempt.first[_STEP]

    @property
    def last_step(self) -> float:
        return self.attempt.last[_STEP]


def in_order(attempts: Sequence[Sequence[Attempt]], jumps: Sequence[Sequence[Jump]]) -> list[LogPiece]:
    """The attempts of all logs, oldest first: those of a log in its order, else as times tell, else the one that begins
    where another ended after it, else as the logs are given.

    An attempt is two where its steps jump and another log has those between: a job that was requeued appends to its
    log. Logs that begin at the same step and have no such jump are of independent runs.
    """
    logs = [_pieces_of(number, of_log) for number, of_log in enumerate(attempts)]
    if len(logs) < 2 or not 0 < sum(map(len, logs)) <= MOST_ORDERED:
        return [piece for log in logs for piece in log]
    logs, fills = _split(logs, jumps)
    pieces = [piece for log in logs for piece in log]
    if len(pieces) > MOST_ORDERED:
        return pieces
    begins = [log[0].first_step if log else nan for log in logs]
    before: list[set[int]] = [set() for _ in pieces]
    numbers: dict[tuple[int, int], int] = {}
    for number, piece in enumerate(pieces):
        numbers[piece.log, piece.begin] = number
        if number and pieces[number - 1].log == piece.log:
            before[number].add(number - 1)
    for filler, (log, begin) in fills:
        behind = numbers[log, begin]
        # What fills a gap may be a part of an attempt that was not split there.
        between = next((n for n, one in enumerate(pieces) if one.log == filler.log and _holds(one, filler.begin)), None)
        if between is not None:
            before[behind].add(between)
            before[between].add(behind - 1)
    related = {frozenset((filler.log, log)) for filler, (log, _) in fills}
    spans = _Spans(pieces)
    for number, piece in enumerate(pieces):
        for older in np.flatnonzero(spans.are_before(piece) & (spans.logs != piece.log)).tolist():
            log = pieces[older].log
            if abs(begins[log] - begins[piece.log]) > 0 or frozenset((log, piece.log)) in related:
                before[number].add(older)
    return [pieces[number] for number in _sorted(before)]


def _pieces_of(number: int, attempts: Sequence[Attempt]) -> list[LogPiece]:
    begins = [0, *(attempt.offset for attempt in attempts[1:])]
    ends = [*begins[1:], None]
    return [LogPiece(number, *one) for one in zip(begins, ends, attempts, strict=False)]


def _holds(piece: LogPiece, offset: int) -> bool:
    return piece.begin <= offset and (piece.until is None or offset < piece.until)


def _split(
    logs: Sequence[list[LogPiece]], jumps: Sequence[Sequence[Jump]]
) -> tuple[list[list[LogPiece]], list[tuple[LogPiece, tuple[int, int]]]]:
    """The logs with attempts split where what another log has fills a jump, and what fills the jump before which
    piece, by its log and beginning."""
    # At all jumps, to see what fits into those of the others.
    finest = [[part for piece in log for part in _cut(piece, jumps[piece.log])] for log in logs]
    parts = [part for log in finest for part in log]
    spans = _Spans(parts)
    fills: list[tuple[LogPiece, tuple[int, int]]] = []
    found = []
    for number, log in enumerate(logs):
        filled = []
        for jump in jumps[number]:
            piece = next((one for one in log if one.begin < jump.offset and _holds(one, jump.offset)), None)
            if piece is None or (fillers := _fillers(jump, jumps[number], piece, spans)) is None:
                continue
            filled.append(jump)
            fills += [(parts[filler], (number, jump.offset)) for filler in fillers]
        found.append([part for piece in log for part in _cut(piece, filled)])
    return found, fills


def _cut(piece: LogPiece, jumps: Sequence[Jump]) -> Iterator[LogPiece]:
    for jump in jumps:
        if piece.begin < jump.offset and _holds(piece, jump.offset):
            older = replace(piece.attempt, last=jump.before)
            newer = replace(piece.attempt, offset=jump.offset, first=jump.after)
            yield replace(piece, until=jump.offset, attempt=older)
            piece = replace(piece, begin=jump.offset, attempt=newer)
    yield piece


class _Spans:
    """Logs, first and last steps and times of pieces, an array each, to compare one with all."""

    def __init__(self, pieces: Sequence[LogPiece]) -> None:
        self.logs = np.array([one.log for one in pieces])
        self.first, self.first_time = np.array([one.attempt.first for one in pieces])[:, [_STEP, _TIME]].T
        self.last, self.last_time = np.array([one.attempt.last for one in pieces])[:, [_STEP, _TIME]].T

    def overlap(self, jump: Jump) -> Flags:
        found: Flags = (self.last > jump.before[_STEP]) & (self.first < jump.after[_STEP])
        return found

    def are_before(self, newer: LogPiece) -> Flags:
        """Whether this one began after each had ended, by their times, or about where each had, by their steps."""
        begin, end = newer.attempt.first[_TIME], newer.attempt.last[_TIME]
        is_timed = ~np.isnan(self.first_time + self.last_time + begin + end)
        by_time = (self.last_time <= begin) & (self.first_time < begin)
        span = self.last - self.first
        step = newer.first_step
        is_near = (step >= self.last - span * _PART_REPEATED) & (step <= self.last + np.maximum(span * _PART_AHEAD, 1))
        by_step = is_near & (self.first < step) & (self.last < newer.last_step)
        found: Flags = np.where(is_timed, by_time, by_step)
        return found


def _fillers(jump: Jump, jumps: Sequence[Jump], piece: LogPiece, spans: _Spans) -> list[int] | None:
    """Which of `spans` of other logs have the steps that a jump of the piece, one of its log's `jumps`, leaves out;
    None where it is not all of them, or they go over several of its kind: then this log says its steps more seldom."""
    is_inside = (spans.logs != piece.log) & spans.overlap(jump) & (spans.last < piece.last_step)
    is_inside &= ~(spans.first_time < jump.before[_TIME]) & ~(spans.last_time > jump.after[_TIME])
    if not is_inside.any():
        return None
    alike = [one for one in jumps if one is not jump and 2 * one.steps >= jump.steps]
    if any((is_inside & spans.overlap(one)).any() for one in alike):
        return None
    inside: list[int] = np.flatnonzero(is_inside).tolist()
    begin, end = jump.before[_STEP], jump.after[_STEP]
    nearly = (end - begin) * _PART_OF_GAP
    reached = begin
    for one in sorted(inside, key=lambda number: float(spans.first[number])):
        if spans.first[one] > reached + nearly:
            return None
        reached = max(reached, float(spans.last[one]))
    return inside if reached + nearly >= end else None


def _sorted(before: Sequence[set[int]]) -> Iterator[int]:
    """The numbers, each behind those `before` it, else ascending; where these contradict each other the lowest goes
    first."""
    left = [len(one) for one in before]
    behind: list[list[int]] = [[] for _ in before]
    for number, ones in enumerate(before):
        for one in ones:
            behind[one].append(number)
    ready = [number for number, count in enumerate(left) if not count]
    heapify(ready)
    waiting = set(range(len(before)))
    while waiting:
        number = heappop(ready) if ready else min(waiting)
        if number not in waiting:
            continue
        waiting.remove(number)
        yield number
        for one in behind[number]:
            left[one] -= 1
            if not left[one]:
                heappush(ready, one)
