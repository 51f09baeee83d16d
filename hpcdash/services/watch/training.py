"""Reads on in the logs of trainings, from the bytes they got since the last round."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np
from msgspec.structs import replace

from hpcdash.services.files import Chunk
from hpcdash.services.metrics.batch import Floats, MetricBatch
from hpcdash.services.metrics.findings import sample_gaps
from hpcdash.services.metrics.joined import joined
from hpcdash.services.metrics.pace import run_paces, seconds_per_step
from hpcdash.services.metrics.reader import MetricReader
from hpcdash.services.metrics.series import MetricLog
from hpcdash.services.metrics.vocabulary import is_known, is_loss
from hpcdash.services.watch.state import LogTail, WatchedMetric, grown_at

MAX_POINTS = 2048
# Levels that spikes are measured from are of blocks of so many points.
BLOCK = 64
MAX_METRICS = 4
# Of the metrics beside the losses: whether they are numbers, and that they are still logged.
MAX_OTHER_METRICS = 12
MAX_OTHER_POINTS = 256
MAX_STANDS = 12
# A log that was not written to for so long holds nothing back.
QUIET_SECONDS = 5.0
_EVALUATIONS = ("val", "eval", "test")


def read_on(
    tail: LogTail | None, chunk: Chunk, now: float, patterns: Sequence[str] = (), head: bytes = b""
) -> LogTail:
    """Return the next state of a log, checked at the epoch `now`; another log starts again.

    `head` is its beginning where `chunk` does not begin there and it was not read before.
    """
    check = chunk.stat
    # A copy of a log is another file in each process.
    is_other = tail is not None and check.modified_at > 0 and tail.identity != check.identity
    if tail is None or is_other or check.size < tail.read_to:
        beginning = MetricReader(patterns)
        beginning.feed(head[: head.rfind(b"\n") + 1])
        tail = LogTail(csv_header=list(beginning.csv_header or ()))
    tail.identity = check.identity
    seen_at = tail.looked_at or None
    tail.looked_at = now
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
    tail.is_done = chunk.ends_the_file and age >= QUIET_SECONDS and chunk.content.endswith(b"\n")
    batch = reader.feed(chunk.content, is_end=tail.is_done)
    tail.read_to = chunk.end
    tail.csv_header = list(reader.csv_header or tail.csv_header)
    tail.epochs.note(batch)
    if tail.epochs.position is not None:
        tail.last_step = tail.epochs.last_step
        batch = replace(tail.epochs.corrected(batch), position=None, is_mixed=False)
    elif batch.last_step is not None:
        tail.last_step = batch.last_step
    is_new = batch.offsets > tail.sampled_to
    if not is_new.any():
        return tail
    # Samples are placed by step, else by epoch, else by their number.
    axes = [axis for axis in (batch.steps, batch.epochs) if np.isfinite(axis).any()]
    x = axes[0] if axes else tail.sample_count + np.cumsum(is_new, dtype=np.float64)
    tail.sample_count += int(is_new.sum())
    tail.sampled_to = int(batch.offsets[-1])
    tail.sampled_at = grown_at(now, age, seen_at)
    losses = sorted(filter(is_loss, batch.metrics), key=_rank)
    others = [name for name in batch.metrics if name not in losses]
    others.sort(key=lambda name: not is_known(name))
    selected = [*dict.fromkeys((*tail.metrics, *losses))][:MAX_METRICS]
    selected += [*dict.fromkeys((*tail.others, *others))][:MAX_OTHER_METRICS]
    for name, points in batch.metrics.items():
        if name in selected:
            new = is_new[points.samples]
            _append(tail, name, x[points.samples][new], points.values[new])
    _note_step(tail, batch.steps, written)
    _note_pace(tail, batch, losses)
    return tail


def _note_step(tail: LogTail, steps: Floats, written: float) -> None:
    """Note the newest step, written at an epoch; an earlier step than before starts again."""
    finite = steps[np.isfinite(steps)]
    if not finite.size:
        return
    step = float(finite[-1])
    before = tail.stands if tail.step is None or step >= tail.step else []
    tail.step = step
    # Between these only the difference counts, so both are by the server's clock.
    tail.stands = [*before, (written, step)][-MAX_STANDS:]


def _append(tail: LogTail, name: str, x: Floats, values: Floats) -> None:
    """Append points of a metric; of a step that is repeated the newest counts."""
    metrics = tail.metrics if is_loss(name) else tail.others
    most_points = MAX_POINTS if is_loss(name) else MAX_OTHER_POINTS
    known = np.isfinite(x)
    x = x[known]
    values = values[known]
    if not x.size:
        return
    stored = metrics.setdefault(name, WatchedMetric())
    before, values_before = stored.arrays()
    if before.size and x[0] < before[-1]:
        tail.moments = [
            moment for moment in tail.moments if moment.metric != name or moment.begin < x[0]
        ]
    x = np.concatenate((before, x))
    values = np.concatenate((values_before, values))
    stays = x <= np.minimum.accumulate(x[::-1])[::-1]
    # Whole blocks go, so that the levels spikes are measured from stay the same.
    over = max(0, int(stays.sum()) - most_points) // BLOCK * BLOCK
    stored.x = x[stays][over:].astype("<f8").tobytes()
    stored.values = values[stays][over:].astype("<f8").tobytes()


def _note_pace(tail: LogTail, batch: MetricBatch, losses: Sequence[str]) -> None:
    if (gaps := sample_gaps(batch.axes[3])) is not None:
        tail.usual_gap, tail.longest_gap = gaps
    if losses:
        log = MetricLog()
        log.append(batch)
        pace = seconds_per_step(run_paces(joined([log]), losses[0]))
        if pace is not None and isfinite(pace) and pace > 0:
            tail.seconds_per_step = pace


def _rank(name: str) -> tuple[bool, int, str]:
    plain = name.lower()
    return any(word in plain for word in _EVALUATIONS), len(name), name
