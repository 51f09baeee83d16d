"""Finds spikes and divergence of a metric that should fall, as a loss; knows no log and no screen.

A point is judged by how far it stands above a rolling median, in units of the rolling median absolute deviation (z).
The medians are of blocks of 64 points: what stood before (of three blocks) and what stands around (of nine), whichever
is higher, so that neither a falling curve nor a lasting rise is a spike. Three points in a row far above are a spike; a
point alone must stand above what the tail of this run's own noise lets expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, nan

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hpcdash.logs.metric_meaning.findings import Finding, number_words, step_words
from hpcdash.logs.metrics import Floats, Integers

BLOCK = 64
BEFORE_BLOCKS, AROUND_BLOCKS = 3, 9
# A normal deviation is 1.4826 median absolute deviations.
MAD_TO_SIGMA = 1.4826
Z_IN_A_ROW, MOST_Z_IN_A_ROW, IN_A_ROW = 8.0, 20.0, 3
Z_ALONE = 12.0
# Noise is taken to be at least this part of the level: less is nothing that a person would be called for.
LEAST_NOISE = 0.005
# A lasting rise above the best level is a divergence from this part of the level on.
DIVERGED_PART = 0.1
KNOWN_TAIL_POINTS, HEAVY_EXPONENT, MOST_Z_UNKNOWN = 20_000, 0.35, 60.0
Z_BACK = 3.0
PATIENCE_POINTS = 48
# How rarely noise may pass: a point alone, and each of a row.
_ALONE_CHANCE, _ROW_CHANCE = 5e-7, 1e-3
# How much of what was judged before is judged again when points come: more than what a level is measured over.
_AGAIN_BLOCKS = 24
MOST_FINDINGS = 200


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
    medians: Floats
    deviations: Floats
    limits: Limits
    limits_points: int

    @property
    def newest_is_bad(self) -> bool:
        """Whether a spike or a divergence is not over."""
        return any(finding.step_to is None for finding in self.findings)


NOTHING_ANALYSED = SpikeAnalysis((), 0, nan, np.empty(0), np.empty(0), Limits(), 0)


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
    medians, deviations = _block_figures(values, before)
    levels, noises = _levels(medians, deviations)
    begin_block = max(before.points // BLOCK - _AGAIN_BLOCKS, 0)
    begin = begin_block * BLOCK
    z = _z_of(values, begin, levels, noises)
    limits, judged = before.limits, before.limits_points
    if values.size > 1.2 * judged:
        # The tail of the noise is measured anew once there is a fifth more of it.
        limits, judged = _limits_of(values, medians, levels, noises), values.size
    kept = [finding for finding in before.findings if finding.step_to is not None and finding.step_from < x[begin]]
    again_from = max((finding.step_to or 0.0 for finding in kept), default=-np.inf)
    found = _episodes(x, values, z, begin, levels, noises, limits, again_from)
    found += _slow_divergence(x, values, medians, noises, [*kept, *found])
    merged = sorted([*kept, *found], key=lambda finding: finding.step_from)
    return SpikeAnalysis(tuple(merged[-MOST_FINDINGS:]), values.size, float(x[0]), medians, deviations, limits, judged)


def _block_figures(values: Floats, before: SpikeAnalysis) -> tuple[Floats, Floats]:
    """Median and median absolute deviation of each block, the last one perhaps of fewer points."""
    whole_before = before.points // BLOCK
    begin = whole_before * BLOCK
    whole = values.size // BLOCK * BLOCK
    blocks = values[begin:whole].reshape(-1, BLOCK)
    middle = np.median(blocks, axis=1)
    medians = [before.medians[:whole_before], middle]
    deviations = [before.deviations[:whole_before], np.median(np.abs(blocks - middle[:, None]), axis=1)]
    if whole < values.size:
        rest = values[whole:]
        medians.append(np.array([np.median(rest)]))
        deviations.append(np.array([np.median(np.abs(rest - medians[-1]))]))
    return np.concatenate(medians), np.concatenate(deviations)


def _levels(medians: Floats, deviations: Floats) -> tuple[Floats, Floats]:
    """The level that points of each block are measured from (nan in the first), and the noise there."""
    level = np.fmax(_median_before(medians), _median_around(medians))
    level[0] = nan
    noise = MAD_TO_SIGMA * np.fmax(_median_before(deviations), _median_around(deviations))
    return level, np.maximum(noise, LEAST_NOISE * np.abs(level) + 1e-12)


def _median_before(figures: Floats) -> Floats:
    padded = np.concatenate((np.full(BEFORE_BLOCKS, nan), figures[:-1]))
    padded[:BEFORE_BLOCKS] = figures[0]
    before: Floats = np.median(sliding_window_view(padded, BEFORE_BLOCKS), axis=1)
    return before


def _median_around(figures: Floats) -> Floats:
    half = AROUND_BLOCKS // 2
    around = np.empty(figures.size)
    if figures.size >= AROUND_BLOCKS:
        around[half : figures.size - half] = np.median(sliding_window_view(figures, AROUND_BLOCKS), axis=1)
    for k in {*range(min(half, figures.size)), *range(max(figures.size - half, 0), figures.size)}:
        around[k] = np.median(figures[max(k - half, 0) : k + half + 1])
    return around


def _z_of(values: Floats, begin: int, levels: Floats, noises: Floats) -> Floats:
    first = begin // BLOCK
    count = values.size - begin
    level = np.repeat(levels[first:], BLOCK)[:count]
    noise = np.repeat(noises[first:], BLOCK)[:count]
    above: Floats = values[begin:] - level
    above /= noise
    return above


def _limits_of(values: Floats, medians: Floats, levels: Floats, noises: Floats) -> Limits:
    """The z that noise with this run's tail reaches as rarely as is asked: a power law through two of its quantiles.

    What is a spike by the lowest limits is not taken for noise.
    """
    flagged = _flagged(_z_of(values, 0, levels, noises), Limits(np.inf))
    z = _z_of(values, 0, medians, noises)
    noise = ~np.isnan(z)
    for start, back in _spans(values, flagged, levels, noises):
        noise[start:back] = False
    z = z[noise][-200_000:]
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


def _episodes(
    x: Floats,
    values: Floats,
    z: Floats,
    begin: int,
    levels: Floats,
    noises: Floats,
    limits: Limits,
    again_from: float,
) -> list[Finding]:
    flagged = _flagged(z, limits) + begin
    found = []
    for start, back in _spans(values, flagged[x[flagged] > again_from], levels, noises):
        block = start // BLOCK
        found.append(_finding(x, values, start, back, float(levels[block]), float(noises[block])))
    return found


def _spans(values: Floats, flagged: Integers, levels: Floats, noises: Floats) -> list[tuple[int, int | None]]:
    """Where the flagged points begin to be up, and where it is over, None where it is not."""
    spans: list[tuple[int, int | None]] = []
    at = 0
    while at < flagged.size and len(spans) < MOST_FINDINGS:
        start = int(flagged[at])
        block = start // BLOCK
        back = _back_at(values, start, float(levels[block] + Z_BACK * noises[block]))
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


def _finding(x: Floats, values: Floats, start: int, back: int | None, level: float, noise: float) -> Finding:
    until = values.size if back is None else back
    peak = float(values[start:until].max())
    z = (peak - level) / noise
    first = float(x[start])
    rise = f"{number_words(level)} → {number_words(peak)} (z {z:.0f})"
    if back is not None:
        after = back - start
        words = f"spike at {step_words(first)}: {rise}, back within after {after} point" + ("s" if after > 1 else "")
        return Finding("spike", first, float(x[back]), peak, z, after, words)
    if until - start >= PATIENCE_POINTS and _stays_up(values[start:], level):
        words = f"diverged since {step_words(first)}: {rise}, not back for {until - start} points"
        return Finding("divergence", first, None, peak, z, None, words)
    return Finding("spike", first, None, peak, z, None, f"spike at {step_words(first)}: {rise}, not yet back")


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
