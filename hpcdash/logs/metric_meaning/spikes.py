"""Finds spikes and divergence of a metric that should fall, as a loss.

A point is judged by how far it stands above the level that the curve goes along, in units of the noise around it (z).
Neither a steep fall nor a lasting rise is a spike. Three points in a row far above are a spike; a point alone must
stand above what the tail of this run's own noise lets expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, nan

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hpcdash.logs.metric_meaning.findings import Finding, number_words, step_words
from hpcdash.logs.metric_meaning.levels import (
    BLOCK,
    NO_BLOCKS,
    Blocks,
    Levels,
    blocks_of,
    level_before,
    levels_of,
    z_at_first,
)
from hpcdash.logs.metrics import Floats, Integers

Z_IN_A_ROW, MOST_Z_IN_A_ROW, IN_A_ROW = 8.0, 20.0, 3
Z_ALONE = 12.0
# A lasting rise above the best level is a divergence from this part of the level on.
DIVERGED_PART = 0.1
KNOWN_TAIL_POINTS, HEAVY_EXPONENT, MOST_Z_UNKNOWN = 20_000, 0.35, 60.0
Z_BACK = 3.0
PATIENCE_POINTS = 48
# Of fewer points nothing can be told.
FEWEST_POINTS = 20
# How rarely noise may pass: a point alone, and each of a row.
_ALONE_CHANCE, _ROW_CHANCE = 5e-7, 1e-3
# How much of what was judged before is judged again when points come: more than what a level is measured over.
_AGAIN_BLOCKS = 24
MOST_FINDINGS = 200
# The tail of the noise is measured on so many of the newest points.
_TAIL_POINTS = 200_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The z from which a point alone, and each of three in a row, is a spike."""

    alone: float = Z_ALONE
    in_a_row: float = Z_IN_A_ROW


@dataclass(frozen=True, slots=True)
class SpikeAnalysis:
    """What was found so far, with what is needed to go on when points come."""

    findings: tuple[Finding, ...]
    points: int
    first_x: float
    blocks: Blocks
    limits: Limits
    limits_points: int


NOTHING_ANALYSED = SpikeAnalysis((), 0, nan, NO_BLOCKS, Limits(), 0)


@np.errstate(over="ignore", invalid="ignore")
def find_spikes(x: Floats, values: Floats, before: SpikeAnalysis = NOTHING_ANALYSED) -> SpikeAnalysis:
    """Spikes and divergences of `values` (n) at `x` (n, ascending), oldest first; nan and inf take no part.

    `before` is the analysis of the same series when it was shorter: only its end and what came is judged then. Of a
    series that begins elsewhere everything is judged again. Of more than 200 the newest are told.
    """
    finite = np.isfinite(values)
    if not finite.all():
        x, values = x[finite], values[finite]
    if not values.size:
        return NOTHING_ANALYSED
    if before.points > values.size or before.first_x != x[0]:
        before = NOTHING_ANALYSED
    blocks = blocks_of(values, before.blocks, before.points)
    levels = levels_of(blocks)
    begin = max(before.points // BLOCK - _AGAIN_BLOCKS, 0) * BLOCK
    limits, judged = before.limits, before.limits_points
    if values.size > 1.2 * judged:
        # The tail of the noise is measured anew once there is a fifth more of it.
        limits, judged = _limits_of(values, blocks, levels), values.size
    kept = [finding for finding in before.findings if finding.step_to is not None and finding.step_from < x[begin]]
    again_from = max((finding.step_to or 0.0 for finding in kept), default=-np.inf)
    flagged = _flagged(levels.z_of(values, begin), limits) + begin
    if not begin and values.size >= FEWEST_POINTS:
        early = _flagged(z_at_first(values), Limits(MOST_Z_UNKNOWN, MOST_Z_IN_A_ROW))
        flagged = np.union1d(early, flagged)
    spans = _spans(values, flagged[x[flagged] > again_from], levels)
    found = [_finding(x, values, start, back, levels) for start, back in spans]
    found += _slow_divergence(x, values, blocks.medians, levels.noises, [*kept, *found])
    merged = sorted([*kept, *found], key=lambda finding: finding.step_from)
    return SpikeAnalysis(tuple(merged[-MOST_FINDINGS:]), values.size, float(x[0]), blocks, limits, judged)


def _limits_of(values: Floats, blocks: Blocks, levels: Levels) -> Limits:
    """The z that noise with this run's tail reaches as rarely as is asked: a power law through two of its quantiles.

    Of the newest points; what is a spike by the lowest limits is not taken for noise.
    """
    begin = max(0, values.size - _TAIL_POINTS) // BLOCK * BLOCK
    z = levels.z_of_noise(values, blocks, begin)
    is_noise = ~np.isnan(z)
    is_noise[: BLOCK - begin] = False
    flagged = _flagged(levels.z_of(values, begin), Limits(np.inf)) + begin
    for start, back in _spans(values, flagged, levels):
        # A block that is in part of a spike has no line of its own.
        first, behind = start // BLOCK * BLOCK, None if back is None else (back // BLOCK + 1) * BLOCK - begin
        is_noise[first - begin : behind] = False
    z = z[is_noise]
    if z.size < 500:
        return Limits(MOST_Z_UNKNOWN)
    q95, q995 = np.quantile(z, (0.95, 0.995))
    if not 0 < q95 < q995:
        return Limits(MOST_Z_UNKNOWN)
    # A tail that few points have shown is taken to be heavy.
    least_exponent = HEAVY_EXPONENT if z.size < KNOWN_TAIL_POINTS else 0.0
    exponent = min(max(log(q995 / q95) / log(10.0), least_exponent), 1.0)
    alone = float(q995 * (0.005 / _ALONE_CHANCE) ** exponent)
    in_a_row = float(q995 * (0.005 / _ROW_CHANCE) ** exponent)
    return Limits(max(Z_ALONE, alone), min(max(Z_IN_A_ROW, in_a_row), MOST_Z_IN_A_ROW))


def _flagged(z: Floats, limits: Limits) -> Integers:
    high = z > limits.in_a_row
    places = np.flatnonzero(high)
    if not places.size:
        return places
    row = high.copy()
    for back in range(1, IN_A_ROW):
        row[back:] &= high[:-back]
        row[:back] = False
    ends = np.flatnonzero(row)
    begins = np.concatenate([ends - back for back in range(IN_A_ROW)])
    return np.unique(np.concatenate((begins, places[z[places] > limits.alone])))


def _spans(values: Floats, flagged: Integers, levels: Levels) -> list[tuple[int, int | None]]:
    """Where the flagged points begin to be up, and where it is over, None where it is not."""
    spans: list[tuple[int, int | None]] = []
    at = 0
    while at < flagged.size and len(spans) < MOST_FINDINGS:
        start = int(flagged[at])
        level = np.fmax(levels.at(start), level_before(values, start))
        back = _back_at(values, start, float(level) + Z_BACK * levels.noise_at(start))
        spans.append((start, back))
        at = flagged.size if back is None else int(np.searchsorted(flagged, back))
    return spans


def _back_at(values: Floats, start: int, limit: float) -> int | None:
    """Where the median of eight points is first no more above the limit; None while it is."""
    window, size = 8, 256
    position = start + 1
    while position + window <= values.size:
        stretch = values[position : position + size + window - 1]
        below = np.flatnonzero(np.median(sliding_window_view(stretch, window), axis=1) <= limit)
        if below.size:
            first = position + int(below[0])
            inside = np.flatnonzero(values[first : first + window] <= limit)
            return first + int(inside[0])
        position += size
        size = min(size * 2, 65_536)
    return None


def _finding(x: Floats, values: Floats, start: int, back: int | None, levels: Levels) -> Finding:
    until = values.size if back is None else back
    level = level_before(values, start)
    highest = start + int(np.argmax(values[start:until]))
    peak, peak_at = float(values[highest]), float(x[highest])
    z = (peak - level) / levels.noise_at(start)
    first = float(x[start])
    rise = f"{number_words(level)} → {number_words(peak)}"
    if back is not None:
        after = back - start
        words = f"spike at {step_words(first)}: {rise}, back after {after} point" + ("s" if after > 1 else "")
        return Finding("spike", first, float(x[back]), peak, z, after, words, peak_at)
    if until - start >= PATIENCE_POINTS and _stays_up(values[start:], level):
        words = f"diverged since {step_words(first)}: {rise}, not back for {until - start} points"
        return Finding("divergence", first, None, peak, z, None, words)
    words = f"spike at {step_words(first)}: {rise}, not yet back"
    return Finding("spike", first, None, peak, z, None, words, peak_at)


def _stays_up(values: Floats, level: float) -> bool:
    """Whether the newest points are nearly as far up as the upper half of the rise: it does not come back."""
    return bool(np.median(values[-16:]) - level >= 0.8 * (np.quantile(values, 0.75) - level))


def _slow_divergence(x: Floats, values: Floats, medians: Floats, noises: Floats, known: list[Finding]) -> list[Finding]:
    """A rise too slow for a spike: the newest level lastingly above the best that there was."""
    if any(finding.step_to is None for finding in known) or medians.size < 4:
        return []
    smooth = np.median(sliding_window_view(medians, 3), axis=1)
    best_at = int(np.argmin(smooth))
    best = float(smooth[best_at])
    rise = max(10 * float(noises[min(best_at + 1, noises.size - 1)]), DIVERGED_PART * abs(best))
    newest = float(np.median(values[-BLOCK // 2 :]))
    above = np.flatnonzero(smooth[best_at:] > best + 0.3 * rise)
    if newest <= best + rise or smooth[-1] <= best + 0.7 * rise or not above.size:
        return []
    below = np.flatnonzero(smooth[best_at:] <= best + 0.3 * rise)
    start = min((best_at + int(below[-1]) + 2) * BLOCK, values.size - 1)
    peak = float(values[start:].max())
    z = (newest - best) / float(noises[-1])
    words = (
        f"diverging since {step_words(float(x[start]))}: from {number_words(best)} at best to {number_words(newest)}"
    )
    return [Finding("divergence", float(x[start]), None, peak, z, None, words)]
