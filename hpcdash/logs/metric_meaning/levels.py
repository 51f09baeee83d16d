"""The level that a curve goes along and the noise around it, robust against spikes.

Figures are of blocks of 64 points: the median and the median absolute deviation from a straight line through the block,
whose slope is the median over pairs of points half a block apart, so that a steep fall is no noise. A running median
over nine blocks takes spikes out and keeps a steady fall and a sudden drop as they are; between the middles of blocks
the level is a straight line.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hpcdash.logs.metrics import Floats, Integers

BLOCK = 64
BEFORE_BLOCKS, AROUND_BLOCKS = 3, 9
# How far medians of blocks scatter around their running median tells noise that is slower than a block.
_SCATTER_BLOCKS = 33
# A normal deviation is 1.4826 median absolute deviations.
MAD_TO_SIGMA = 1.4826
# Noise is taken to be at least this part of the level: less is nothing that a person would be called for.
LEAST_NOISE = 0.005
# So many points tell where the curve stands before one of them; among the first ones fewer do.
BEFORE_POINTS, FEWEST_BEFORE, FIRST_POINTS = 32, 16, 256
_HALF = BLOCK // 2
_MIDDLE = (BLOCK - 1) / 2


@dataclass(frozen=True, slots=True)
class Blocks:
    """Of each block (n each) its slope a point, and median and median absolute deviation about that line; the last may
    be of fewer points."""

    medians: Floats
    deviations: Floats
    slopes: Floats


NO_BLOCKS = Blocks(np.empty(0), np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class Levels:
    """By block (n each): the level in its middle, the change a point up to there, and the noise; `expected` is where
    the two blocks before lead to, a rise twice as steep, and `expected_slopes` how steep that is.

    What points are measured from is nowhere below the straight line, nor below what the blocks before let expect: what
    stands before a sudden drop is no spike, nor is a hump. The first block has no level.
    """

    middles: Floats
    slopes: Floats
    noises: Floats
    expected: Floats
    expected_slopes: Floats

    def at(self, point: int) -> float:
        """The level that a point is measured from."""
        block, position = divmod(point, BLOCK)
        return float(self._above(np.array([block]))[0, position])

    def noise_at(self, point: int) -> float:
        return float(self.noises[point // BLOCK])

    def z_of(self, values: Floats, begin: int) -> Floats:
        """How far the points from `begin` (a whole block) on stand above the level, in units of the noise."""
        blocks = np.arange(begin // BLOCK, self.middles.size)
        z: Floats = self._above(blocks).reshape(-1)[: values.size - begin]
        np.subtract(values[begin:], z, out=z)
        z /= np.repeat(self.noises[blocks], BLOCK)[: z.size]
        return z

    def z_of_noise(self, values: Floats, blocks: Blocks, begin: int) -> Floats:
        """The same from each block's own line, where points stand as often above as below."""
        first = begin // BLOCK
        lines = blocks.medians[first:, None] + blocks.slopes[first:, None] * (np.arange(BLOCK) - _MIDDLE)
        z: Floats = lines.reshape(-1)[: values.size - begin]
        np.subtract(values[begin:], z, out=z)
        z /= np.repeat(self.noises[first:], BLOCK)[: z.size]
        return z

    def _above(self, blocks: Integers) -> Floats:
        """(blocks, 64); nan in the first block."""
        own, slopes = self.middles[blocks, None], self.slopes[blocks, None]
        before = np.maximum(blocks - 1, 0)
        behind = np.where(blocks + 1 < self.slopes.size, self.slopes[(blocks + 1) % self.slopes.size], 0.0)[:, None]
        since_before = np.arange(BLOCK) + (BLOCK - _MIDDLE)
        level: Floats = self.middles[before, None] + self.slopes[before, None] * since_before
        steps = np.arange(BLOCK) - _MIDDLE
        np.maximum(level[:, :_HALF], own + slopes * steps[:_HALF], out=level[:, :_HALF])
        np.maximum(level[:, _HALF:], own + np.maximum(slopes, behind) * steps[_HALF:], out=level[:, _HALF:])
        np.maximum(level, self.expected[blocks, None] + self.expected_slopes[blocks, None] * steps, out=level)
        level[blocks == 0] = np.nan
        return level


def level_before(values: Floats, point: int) -> float:
    """Where the curve stands just before a point: a robust line through the 32 points before it, led on to it.

    Never outside of what these points span; nan of the first point.
    """
    before = values[max(point - BEFORE_POINTS, 0) : point]
    if not before.size:
        return nan
    half = before.size // 2
    slope = float(np.median(before[before.size - half :] - before[:half])) / (before.size - half) if half >= 4 else 0.0
    since = np.arange(before.size) - before.size
    level = float(np.median(before - slope * since))
    return min(max(level, float(before.min())), float(before.max()))


def z_at_first(values: Floats) -> Floats:
    """How far each of the first 256 points stands above the 16 before it, in units of their own noise: there blocks are
    too few to tell. nan of the first 16."""
    values = values[:FIRST_POINTS]
    z = np.full(values.size, nan)
    if values.size <= FEWEST_BEFORE:
        return z
    rows = sliding_window_view(values[:-1], FEWEST_BEFORE)
    half = FEWEST_BEFORE // 2
    slopes = _row_medians(rows[:, half:] - rows[:, :half])[:, None] / half
    flat = rows - slopes * (np.arange(FEWEST_BEFORE) - FEWEST_BEFORE)
    led_on = _row_medians(flat)
    deviations = MAD_TO_SIGMA * _row_medians(np.abs(flat - led_on[:, None]))
    gaps = _row_medians(np.abs(np.diff(rows, axis=1)))
    # Nowhere below the newest of them: what falls quickly, or rises steadily, stands not far above.
    levels = np.maximum(np.minimum(led_on, rows.max(axis=1)), _row_medians(rows[:, half:]))
    noises = np.maximum(np.maximum(deviations, gaps), LEAST_NOISE * np.abs(levels)) + 1e-12
    z[FEWEST_BEFORE:] = (values[FEWEST_BEFORE:] - levels) / noises
    return z


def blocks_of(values: Floats, known: Blocks, known_points: int) -> Blocks:
    """Figures of all blocks of `values`; `known` are those when it had its first `known_points` alone."""
    whole_before = known_points // BLOCK
    whole = values.size // BLOCK * BLOCK
    parts = [_figures(values[whole_before * BLOCK : whole].reshape(-1, BLOCK))]
    if whole < values.size:
        parts.append(_figures(values[None, whole:]))
    return Blocks(
        np.concatenate((known.medians[:whole_before], *(part.medians for part in parts))),
        np.concatenate((known.deviations[:whole_before], *(part.deviations for part in parts))),
        np.concatenate((known.slopes[:whole_before], *(part.slopes for part in parts))),
    )


def _figures(rows: Floats) -> Blocks:
    length = rows.shape[1]
    half = length // 2
    slopes = np.zeros(rows.shape[0])
    if half >= 4:
        slopes = _row_medians(rows[:, length - half :] - rows[:, :half]) / (length - half)
    flat = rows - slopes[:, None] * (np.arange(length) - (length - 1) / 2)
    medians = _row_medians(flat)
    return Blocks(medians, _row_medians(np.abs(flat - medians[:, None])), slopes)


def levels_of(blocks: Blocks) -> Levels:
    """Level and noise along the curve."""
    middles = _median_around(blocks.medians, AROUND_BLOCKS)
    slopes = np.diff(middles, prepend=middles[:1]) / BLOCK
    within = np.fmax(_median_before(blocks.deviations), _median_around(blocks.deviations, AROUND_BLOCKS))
    between = np.zeros(middles.size)
    # Where the running median is of what was before alone, a fall is no scatter.
    around = max(middles.size - AROUND_BLOCKS // 2, 0)
    if around:
        scatter = _median_around(np.abs(blocks.medians - middles)[:around], _SCATTER_BLOCKS)
        between = np.append(scatter, np.full(middles.size - around, scatter[-1]))
    noises = np.maximum(MAD_TO_SIGMA * np.fmax(within, between), LEAST_NOISE * np.abs(middles) + 1e-12)
    # Of the first block alone a rise is told by its own line.
    steepness = np.concatenate((np.maximum(blocks.slopes[:1], 0), np.diff(blocks.medians) / BLOCK))
    steepness = np.concatenate(([0.0], np.where(steepness > 0, 2 * steepness, steepness)[:-1]))
    expected = np.concatenate((blocks.medians[:1], blocks.medians[:-1])) + BLOCK * steepness
    return Levels(middles, slopes, noises, expected, steepness)


def _median_before(figures: Floats) -> Floats:
    padded = np.concatenate((np.full(BEFORE_BLOCKS, figures[0]), figures[:-1]))
    return _row_medians(sliding_window_view(padded, BEFORE_BLOCKS))


def _median_around(figures: Floats, window: int) -> Floats:
    """A running median: at the beginning of fewer blocks, as many before as behind; at the end of what was before."""
    half = window // 2
    around = np.empty(figures.size)
    if figures.size >= window:
        around[half : figures.size - half] = _row_medians(sliding_window_view(figures, window))
    for k in {*range(min(half, figures.size)), *range(max(figures.size - half, 0), figures.size)}:
        reach = min(k, half)
        around[k] = np.median(figures[k - reach : k + reach + 1])
    return around


def _row_medians(rows: Floats) -> Floats:
    """Medians along the second axis; sorting so short rows takes a tenth of the time of np.median."""
    ordered = np.sort(rows, axis=1)
    middle = ordered.shape[1] // 2
    medians: Floats = ordered[:, middle] if ordered.shape[1] % 2 else (ordered[:, middle - 1] + ordered[:, middle]) / 2
    return medians
