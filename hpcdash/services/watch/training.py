"""Takes in what a training's log got since the last round, and says what stands out."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from hpcdash.services.files import Chunk
from hpcdash.services.metrics.batch import Floats, MetricBatch
from hpcdash.services.metrics.findings import (
    MetricFinding,
    find_lost_numbers,
    find_not_finite,
    find_plateau,
    find_stall,
    find_vanished,
    find_zero,
)
from hpcdash.services.metrics.joined import joined
from hpcdash.services.metrics.reader import MetricReader
from hpcdash.services.metrics.series import MetricLog
from hpcdash.services.metrics.spikes import find_spikes
from hpcdash.services.metrics.throughput import run_paces, seconds_per_step
from hpcdash.services.metrics.vocabulary import is_known, is_loss
from hpcdash.services.watch.rules.hanging import grown_at
from hpcdash.services.watch.state import LogTail, Moment, WatchedMetric

MOST_POINTS = 2048
# Levels that spikes are measured from are of blocks of so many points.
BLOCK = 64
MOST_METRICS = 4
# Of the metrics beside the losses: whether they are numbers, and that they are still logged.
MOST_OTHER_METRICS, MOST_OTHER_POINTS = 12, 256
MOST_MOMENTS = 100
MOST_STANDS = 12
# How much before what is new is read again: a block of several lines, or a line, that was not whole
# then.
OVERLAP_BYTES = 16 << 10
# A log that was not written to for so long holds nothing back.
QUIET_SECONDS = 5.0
# A claimed pace that differs from the observed one by this factor, over this long, is not trusted.
_CLEARLY = 1.5
_SEEN_SECONDS = 60.0
_JUDGED = ("val", "eval", "test")


def read_from(tail: LogTail) -> int:
    """Return the offset of the next bytes to read."""
    return max(0, tail.read_to - OVERLAP_BYTES)


def read_on(
    tail: LogTail | None, chunk: Chunk, now: float, patterns: Sequence[str] = (), head: bytes = b""
) -> LogTail:
    """The next state; `now` is the epoch at which it was looked at.

    A log that is another one is begun anew.

    `head` is its beginning where `chunk` does not begin there and it was not read before.
    """
    check = chunk.look
    # A copy of a log is another file in each process.
    is_other = tail is not None and check.modified_at > 0 and tail.identity != check.identity
    if tail is None or is_other or check.size < tail.read_to:
        tail = LogTail(identity=check.identity, csv_header=_header(head, patterns))
    tail.identity = check.identity
    seen_at, tail.looked_at = tail.looked_at or None, now
    age = check.age_seconds
    if age is None:
        age = now - seen_at if seen_at is not None and check.size == tail.read_to else 0.0
    written = now - age
    if not tail.sampled_at:
        tail.sampled_at = written
    if tail.is_done and not chunk.content:
        return tail
    reader = MetricReader(patterns, at=chunk.offset, csv_header=tail.csv_header or None)
    # What is held because more may follow is certain once nothing does.
    is_quiet = chunk.ends_the_file and age >= QUIET_SECONDS and chunk.content.endswith(b"\n")
    batch = reader.feed(chunk.content, is_end=is_quiet)
    tail.is_done = is_quiet
    tail.read_to = chunk.end
    tail.csv_header = list(reader.csv_header or tail.csv_header)
    tail.epochs.note(batch)
    if tail.epochs.position is not None:
        tail.last_step = tail.epochs.last_step
        steps = batch.steps + tail.epochs.correction(batch.epochs)
        batch = replace(batch, steps=steps, position=None, is_mixed=False)
    elif batch.last_step is not None:
        tail.last_step = batch.last_step
    is_new = batch.offsets > tail.sampled_to
    if not is_new.any():
        return tail
    x = _places(batch, is_new, tail)
    tail.sampled_to, tail.sampled_at = int(batch.offsets[-1]), grown_at(now, age, seen_at)
    names = sorted((name for name in batch.metrics if is_loss(name)), key=_rank)
    remaining = [*tail.metrics, *(name for name in names if name not in tail.metrics)][
        :MOST_METRICS
    ]
    others = sorted(
        (name for name in batch.metrics if not is_loss(name)), key=lambda name: not is_known(name)
    )
    others = [*tail.others, *(name for name in others if name not in tail.others)][
        :MOST_OTHER_METRICS
    ]
    for name, points in batch.metrics.items():
        new = is_new[points.samples]
        if name in remaining:
            _append(
                tail, tail.metrics, name, x[points.samples][new], points.values[new], MOST_POINTS
            )
        elif name in others:
            _append(
                tail,
                tail.others,
                name,
                x[points.samples][new],
                points.values[new],
                MOST_OTHER_POINTS,
            )
    steps = batch.steps[np.isfinite(batch.steps)]
    if steps.size:
        # Between these only the difference counts, so both are by the server's clock.
        _note_stand(tail, float(steps[-1]), written)
    _note_pace(tail, batch, names)
    return tail


def noticed(tail: LogTail, now: float) -> list[Noticed]:
    """Return what stands out, for each metric the oldest first.

    `now` is the epoch second of the last check. Spikes are noted in `tail`, so that each stays the
    same however much of the log is stored.
    """
    found: list[Noticed] = []
    has_steps = tail.step is not None
    for name, stored in tail.metrics.items():
        x, values = _array(stored.x), _array(stored.values)
        if not x.size:
            continue
        lasting = [one for one in find_not_finite(x, values) if one.step_to is None]
        passed = [one for one in find_not_finite(x, values) if one.step_to is not None]
        spikes = find_spikes(x, values).findings
        lasting += [one for one in spikes if one.kind == "divergence"]
        lasting += filter(None, [find_zero(x, values)])
        if name == next(iter(tail.metrics)) and not lasting:
            lasting += filter(
                None, [find_vanished(x, [_array(other.x) for other in tail.others.values()])]
            )
        for one in lasting:
            _know(tail, name, one, is_known=False)
        for one in (*passed, *(one for one in spikes if one.kind == "spike")):
            _know(tail, name, one, is_known=True)
        begun = {one.step_from for one in lasting}
        found += [
            Noticed(
                name,
                moment.kind,
                moment.words,
                moment.begin,
                is_moment=True,
                counts_steps=has_steps,
            )
            for moment in tail.moments
            if moment.metric == name and moment.is_told and moment.begin not in begun
        ]
        found += [
            Noticed(name, one.kind, one.words, one.step_from, counts_steps=has_steps)
            for one in lasting
        ]
        plateau = find_plateau(x, values)
        if plateau is not None:
            found.append(Noticed(name, "plateau", plateau.words, plateau.step_from))
    for name, stored in tail.others.items():
        found += [
            Noticed(name, one.kind, one.words, one.step_from, counts_steps=has_steps)
            for one in find_lost_numbers(name, _array(stored.x), _array(stored.values))
        ]
    stall = _stall(tail, now)
    if stall is not None:
        found.append(
            Noticed(next(iter(tail.metrics), "log"), "stall", stall.words, stall.step_from)
        )
    return found


def course(tail: LogTail) -> Course | None:
    """Return the course of a training; None if its final step is unknown.

    The pace is the log's own, else the one seen by rounds. A log's pace that is clearly slower than
    the seen one is rejected; pauses only make the seen pace slower.
    """
    if tail.step is None or tail.last_step is None:
        return None
    claimed, seen, span = tail.seconds_per_step, None, 0.0
    if len(tail.stands) > 1:
        (begin, first), (end, last) = tail.stands[0], tail.stands[-1]
        span = end - begin
        seen = span / (last - first) if last > first and span > 0 else None
    is_refuted = (
        claimed is not None
        and seen is not None
        and claimed > _CLEARLY * seen
        and span >= _SEEN_SECONDS
    )
    return Course(tail.step, tail.last_step, seen if claimed is None or is_refuted else claimed)


def _header(head: bytes, patterns: Sequence[str]) -> list[str]:
    if not head:
        return []
    reader = MetricReader(patterns)
    reader.feed(head[: head.rfind(b"\n") + 1])
    return list(reader.csv_header or ())


def _places(batch: MetricBatch, is_new: NDArray[np.bool_], tail: LogTail) -> Floats:
    """Return the positions of a batch's samples: by step, else epoch, else sample number."""
    before = tail.sample_count
    tail.sample_count += int(is_new.sum())
    for axis in (batch.steps, batch.epochs):
        if np.isfinite(axis).any():
            return axis
    return before + np.cumsum(is_new, dtype=np.float64)


def _append(
    tail: LogTail,
    metrics: dict[str, WatchedMetric],
    name: str,
    x: Floats,
    values: Floats,
    most_points: int,
) -> None:
    """The newest wins: what an attempt repeats is not kept of the one before."""
    known = np.isfinite(x)
    x, values = x[known], values[known]
    if not x.size:
        return
    stored = metrics.setdefault(name, WatchedMetric())
    before = _array(stored.x)
    if before.size and x[0] < before[-1]:
        tail.moments = [one for one in tail.moments if one.metric != name or one.begin < x[0]]
    x, values = np.concatenate((before, x)), np.concatenate((_array(stored.values), values))
    stays = x <= np.minimum.accumulate(x[::-1])[::-1]
    x, values = x[stays], values[stays]
    # Whole blocks go, so that the levels spikes are measured from stay the same.
    over = max(0, x.size - most_points) // BLOCK * BLOCK
    stored.x, stored.values = (
        x[over:].astype("<f8").tobytes(),
        values[over:].astype("<f8").tobytes(),
    )


def _note_stand(tail: LogTail, step: float, at: float) -> None:
    if tail.step is not None and step < tail.step:
        tail.stands = []
    tail.step = step
    tail.stands = [*tail.stands, (at, step)][-MOST_STANDS:]


def _note_pace(tail: LogTail, batch: MetricBatch, names: Sequence[str]) -> None:
    times = batch.times[np.isfinite(batch.times)]
    gaps = np.diff(times)
    gaps = gaps[gaps > 0]
    if gaps.size > 1:
        tail.usual_gap, tail.longest_gap = float(np.median(gaps)), float(gaps.max())
    if names:
        log = MetricLog()
        log.append(batch)
        pace = seconds_per_step(run_paces(joined([log]), names[0]))
        if pace is not None and isfinite(pace) and pace > 0:
            tail.seconds_per_step = pace


def _stall(tail: LogTail, now: float) -> MetricFinding | None:
    """By how long no sample came since one was seen, by our clock: a log's times may be of another
    zone.
    """
    if tail.usual_gap is None or tail.longest_gap is None or not tail.metrics:
        return None
    ends = [
        tail.sampled_at - tail.usual_gap - tail.longest_gap,
        tail.sampled_at - tail.usual_gap,
        tail.sampled_at,
    ]
    # Three gaps whose median is the usual one and whose largest is the longest.
    times = np.array([ends[0] - tail.usual_gap, *ends])
    return find_stall(times, now, tail.step if tail.step is not None else float(tail.sample_count))


def _know(tail: LogTail, name: str, one: MetricFinding, *, is_known: bool) -> None:
    """Note what begins at a step, where it is not the same as something that is noted."""
    end = one.step_to if one.step_to is not None else float("inf")
    for moment in tail.moments:
        is_same = moment.metric == name and moment.kind == one.kind
        if is_same and moment.begin <= end and one.step_from <= moment.end:
            moment.words = one.words
            moment.end = min(
                max(moment.end, one.step_to if one.step_to is not None else moment.end), 1e300
            )
            return
    until = one.step_to if one.step_to is not None else one.step_from
    more = [*tail.moments, Moment(name, one.kind, one.step_from, until, one.words, is_known)]
    tail.moments = sorted(more, key=lambda moment: moment.begin)[-MOST_MOMENTS:]


def _array(content: bytes) -> Floats:
    return np.frombuffer(content, dtype="<f8").astype(np.float64)


def _rank(name: str) -> tuple[bool, int, str]:
    """A training's loss before an evaluation's, short names before long ones."""
    plain = name.lower()
    return any(word in plain for word in _JUDGED), len(name), name


class Noticed(Struct, frozen=True):
    """Something about a training: `kind` is nan, inf, divergence, spike, plateau or stall; `begin`
    is its step.

    Where its log tells no steps (`counts_steps`), `begin` is an epoch, or how many samples there
    were before it. What `is_moment` has passed, or passes by itself.
    """

    metric: str
    kind: str
    words: str
    begin: float = 0.0
    is_moment: bool = False
    counts_steps: bool = True


class Course(Struct, frozen=True):
    """Course of a training: its step, its final step, seconds per step (None: unknown)."""

    step: float
    last_step: int
    seconds_per_step: float | None = None
