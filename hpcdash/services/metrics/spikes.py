"""Finds spikes and divergence of a metric that should fall, against a robust level and its
noise.
"""

from __future__ import annotations

from math import log, nan

import numpy as np
from msgspec import Struct
from numpy.lib.stride_tricks import sliding_window_view

from hpcdash.services.metrics.batch import Floats, Integers
from hpcdash.services.metrics.findings import MetricFinding, format_number, format_step

BLOCK = 64
BEFORE_BLOCKS = 3
AROUND_BLOCKS = 9
# The scatter of block medians around their running median measures noise that is slower than a
# block.
_SCATTER_BLOCKS = 33
# A normal deviation is 1.4826 median absolute deviations.
MAD_TO_SIGMA = 1.4826
# Noise is taken to be at least this part of the level: less is nothing that a person would be
# called for.
MIN_NOISE = 0.005
# This many points determine the level before a point; among the first ones fewer do.
BEFORE_POINTS = 32
FEWEST_BEFORE = 16
FIRST_POINTS = 256
# Places of a block's points from its middle on.
_STEPS = np.arange(BLOCK) - (BLOCK - 1) / 2
# Rows of the figures of blocks.
MEDIAN = 0
DEVIATION = 1
SLOPE = 2
Z_IN_A_ROW = 8.0
MAX_Z_IN_A_ROW = 20.0
IN_A_ROW = 3
Z_ALONE = 12.0
# A lasting rise above the best level is a divergence from this part of the level on.
DIVERGED_PART = 0.1
KNOWN_TAIL_POINTS = 20_000
HEAVY_EXPONENT = 0.35
MAX_Z_UNKNOWN = 60.0
Z_BACK = 3.0
PATIENCE_POINTS = 48
# Fewer points determine nothing.
FEWEST_POINTS = 20
# How rarely noise may pass: a point alone, and each of a row.
_ALONE_CHANCE = 5e-7
_ROW_CHANCE = 1e-3
# How much of what was judged before is judged again when points come: more than what a level is
# measured over.
_AGAIN_BLOCKS = 24
MAX_FINDINGS = 200
# The tail of the noise is measured on so many of the newest points.
_TAIL_POINTS = 200_000


class Levels(Struct, frozen=True):
    """Level and noise of a curve by block (n each), and where the two blocks before lead to.

    What points are measured from is nowhere below the straight line, nor below what the blocks
    before let expect: what stands before a sudden drop is no spike, nor is a hump. The first block
    has no level.
    """

    # In the middle of the block.
    middles: Floats
    # Change a point up to there.
    slopes: Floats
    noises: Floats
    # Where the two blocks before lead to, a rise twice as steep, and how steep that is.
    expected: Floats
    expected_slopes: Floats

    def level_at(self, point: int) -> float:
        """The level that a point is measured from."""
        block, position = divmod(point, BLOCK)
        return float(self._above(np.array([block]))[0, position])

    def noise_at(self, point: int) -> float:
        return float(self.noises[point // BLOCK])

    def z_scores(self, values: Floats, begin: int) -> Floats:
        """Return the height above the level, in units of the noise, of the points from `begin` on.

        `begin` is the start of a whole block.
        """
        lines = self._above(np.arange(begin // BLOCK, self.middles.size))
        return self._in_noise(values, begin, lines)

    def noise_z_scores(self, values: Floats, blocks: Floats, begin: int) -> Floats:
        """The same from each block's own line, where points stand as often above as below."""
        first = begin // BLOCK
        lines = blocks[MEDIAN, first:, None] + blocks[SLOPE, first:, None] * _STEPS
        return self._in_noise(values, begin, lines)

    def _in_noise(self, values: Floats, begin: int, lines: Floats) -> Floats:
        z = lines.reshape(-1)[: values.size - begin]
        np.subtract(values[begin:], z, out=z)
        z /= np.repeat(self.noises[begin // BLOCK :], BLOCK)[: z.size]
        return z

    def _above(self, blocks: Integers) -> Floats:
        """(blocks, 64); nan in the first block."""
        before = np.maximum(blocks - 1, 0)
        slopes = self.slopes[blocks, None]
        behind = np.append(self.slopes[1:], 0.0)[blocks, None]
        rises = np.where(_STEPS < 0, slopes, np.maximum(slopes, behind))
        rises *= _STEPS
        rises += self.middles[blocks, None]
        level: Floats = self.slopes[before, None] * (_STEPS + BLOCK)
        level += self.middles[before, None]
        np.maximum(level, rises, out=level)
        expected = self.expected_slopes[blocks, None] * _STEPS
        expected += self.expected[blocks, None]
        np.maximum(level, expected, out=level)
        level[blocks == 0] = nan
        return level


def level_before(values: Floats, point: int) -> float:
    """Extrapolate the curve to a point by a robust line through the 32 points before it.

    The result is never outside the range of these points; nan for the first point.
    """
    before = values[max(point - BEFORE_POINTS, 0) : point]
    if not before.size:
        return nan
    half = before.size // 2
    slope = (
        float(np.median(before[before.size - half :] - before[:half])) / (before.size - half)
        if half >= 4
        else 0.0
    )
    since = np.arange(before.size) - before.size
    level = float(np.median(before - slope * since))
    return min(max(level, float(before.min())), float(before.max()))


def z_at_first(values: Floats) -> Floats:
    """Return how far each of the first 256 points is above the 16 before it.

    The unit is their own noise: there are too few blocks there to judge by. nan for the first 16.
    """
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
    noises = np.maximum(np.maximum(deviations, gaps), MIN_NOISE * np.abs(levels)) + 1e-12
    z[FEWEST_BEFORE:] = (values[FEWEST_BEFORE:] - levels) / noises
    return z


def build_blocks(values: Floats, known: Floats, known_points: int) -> Floats:
    """Median, median absolute deviation and slope per point of each block of `values`, (3, n): the
    first two about the line of that slope. The last block may have fewer points.

    `known` are those when it had its first `known_points` alone.
    """
    whole_before = known_points // BLOCK
    whole = values.size // BLOCK * BLOCK
    parts = [
        known[:, :whole_before],
        _figures(values[whole_before * BLOCK : whole].reshape(-1, BLOCK)),
    ]
    if whole < values.size:
        parts.append(_figures(values[None, whole:]))
    return np.concatenate(parts, axis=1)


def _figures(rows: Floats) -> Floats:
    length = rows.shape[1]
    half = length // 2
    slopes = np.zeros(rows.shape[0])
    if half >= 4:
        slopes = _row_medians(rows[:, length - half :] - rows[:, :half]) / (length - half)
    flat = rows - slopes[:, None] * (np.arange(length) - (length - 1) / 2)
    medians = _row_medians(flat)
    return np.stack((medians, _row_medians(np.abs(flat - medians[:, None])), slopes))


def block_levels(blocks: Floats) -> Levels:
    """Level and noise along the curve."""
    medians, deviations, own_slopes = blocks
    middles = _median_around(medians, AROUND_BLOCKS)
    slopes = np.diff(middles, prepend=middles[:1]) / BLOCK
    padded = np.concatenate((np.full(BEFORE_BLOCKS, deviations[0]), deviations[:-1]))
    before = _row_medians(sliding_window_view(padded, BEFORE_BLOCKS))
    within = np.fmax(before, _median_around(deviations, AROUND_BLOCKS))
    between = np.zeros(middles.size)
    # Where the running median is of what was before alone, a fall is no scatter.
    around = max(middles.size - AROUND_BLOCKS // 2, 0)
    if around:
        between[:around] = _median_around(np.abs(medians - middles)[:around], _SCATTER_BLOCKS)
        between[around:] = between[around - 1]
    noises = np.maximum(
        MAD_TO_SIGMA * np.fmax(within, between), MIN_NOISE * np.abs(middles) + 1e-12
    )
    # In the first block, only its own slope reveals a rise.
    steepness = np.append(np.maximum(own_slopes[:1], 0), np.diff(medians) / BLOCK)
    steepness = np.append(0.0, np.where(steepness > 0, 2 * steepness, steepness)[:-1])
    expected = np.append(medians[:1], medians[:-1]) + BLOCK * steepness
    return Levels(middles, slopes, noises, expected, steepness)


def _median_around(figures: Floats, window: int) -> Floats:
    """A running median: at the beginning of fewer blocks, as many before as behind; at the end of
    what was before.
    """
    half = window // 2
    around = np.empty(figures.size)
    if figures.size >= window:
        around[half : figures.size - half] = _row_medians(sliding_window_view(figures, window))
    for k in {*range(min(half, figures.size)), *range(max(figures.size - half, 0), figures.size)}:
        reach = min(k, half)
        around[k] = np.median(figures[k - reach : k + reach + 1])
    return around


def _row_medians(rows: Floats) -> Floats:
    """Medians along the second axis; sorting so short rows takes a tenth of the time of
    np.median.
    """
    ordered = np.sort(rows, axis=1)
    middle = ordered.shape[1] // 2
    medians: Floats = ordered[:, middle]
    if ordered.shape[1] % 2 == 0:
        medians = (ordered[:, middle - 1] + medians) / 2
    return medians


class Limits(Struct, frozen=True):
    """The z from which a point alone, and each of three in a row, is a spike."""

    alone: float = Z_ALONE
    in_a_row: float = Z_IN_A_ROW


class SpikeAnalysis(Struct, frozen=True):
    """Findings so far, with the state to continue from when points are added."""

    findings: tuple[MetricFinding, ...]
    points: int
    first_x: float
    blocks: Floats
    limits: Limits
    limits_points: int


NOTHING_ANALYSED = SpikeAnalysis(
    (), 0, nan, blocks=np.empty((3, 0)), limits=Limits(), limits_points=0
)


@np.errstate(over="ignore", invalid="ignore")
def find_spikes(
    x: Floats, values: Floats, before: SpikeAnalysis = NOTHING_ANALYSED
) -> SpikeAnalysis:
    """Spikes and divergences of `values` (n) at `x` (n, ascending), oldest first; nan and inf take
    no part.

    `before` is the analysis of the same series when it was shorter: only its end and what came is
    judged then. Of a series that begins elsewhere everything is judged again. Of more than 200 the
    newest are returned.
    """
    finite = np.isfinite(values)
    if not finite.all():
        x = x[finite]
        values = values[finite]
    if not values.size:
        return NOTHING_ANALYSED
    if before.points > values.size or before.first_x != x[0]:
        before = NOTHING_ANALYSED
    blocks = build_blocks(values, before.blocks, before.points)
    levels = block_levels(blocks)
    begin = max(before.points // BLOCK - _AGAIN_BLOCKS, 0) * BLOCK
    limits = before.limits
    judged = before.limits_points
    if values.size > 1.2 * judged:
        # Measure the tail of the noise again once there is a fifth more data.
        limits = _spike_limits(values, blocks, levels)
        judged = values.size
    remaining = [
        finding
        for finding in before.findings
        if finding.step_to is not None and finding.step_from < x[begin]
    ]
    again_from = max((finding.step_to or 0.0 for finding in remaining), default=-np.inf)
    flagged = _flagged(levels.z_scores(values, begin), limits) + begin
    if not begin and values.size >= FEWEST_POINTS:
        early = _flagged(z_at_first(values), Limits(MAX_Z_UNKNOWN, MAX_Z_IN_A_ROW))
        flagged = np.union1d(early, flagged)
    spans = _spans(values, flagged[x[flagged] > again_from], levels)
    findings = [*remaining, *(_finding(x, values, start, back) for start, back in spans)]
    if all(finding.step_to is not None for finding in findings):
        diverging = _slow_divergence(x, values, blocks[MEDIAN], levels.noises)
        findings += [diverging] if diverging is not None else []
    findings.sort(key=lambda finding: finding.step_from)
    return SpikeAnalysis(
        findings=tuple(findings[-MAX_FINDINGS:]),
        points=values.size,
        first_x=float(x[0]),
        blocks=blocks,
        limits=limits,
        limits_points=judged,
    )


def _spike_limits(values: Floats, blocks: Floats, levels: Levels) -> Limits:
    """Return the z that noise with this run's tail reaches as rarely as required: a power law
    through two of its quantiles.

    Of the newest points; what is a spike by the lowest limits is not taken for noise.
    """
    begin = max(0, values.size - _TAIL_POINTS) // BLOCK * BLOCK
    z = levels.noise_z_scores(values, blocks, begin)
    is_noise = ~np.isnan(z)
    is_noise[: BLOCK - begin] = False
    flagged = _flagged(levels.z_scores(values, begin), Limits(np.inf)) + begin
    for start, back in _spans(values, flagged, levels):
        # A block that is in part of a spike has no line of its own.
        first = start // BLOCK * BLOCK
        behind = None if back is None else (back // BLOCK + 1) * BLOCK - begin
        is_noise[first - begin : behind] = False
    z = z[is_noise]
    if z.size < 500:
        return Limits(MAX_Z_UNKNOWN)
    q95, q995 = np.quantile(z, (0.95, 0.995))
    if not 0 < q95 < q995:
        return Limits(MAX_Z_UNKNOWN)
    # A tail that few points have shown is taken to be heavy.
    least_exponent = HEAVY_EXPONENT if z.size < KNOWN_TAIL_POINTS else 0.0
    exponent = min(max(log(q995 / q95) / log(10.0), least_exponent), 1.0)
    alone = float(q995 * (0.005 / _ALONE_CHANCE) ** exponent)
    in_a_row = float(q995 * (0.005 / _ROW_CHANCE) ** exponent)
    return Limits(max(Z_ALONE, alone), min(max(Z_IN_A_ROW, in_a_row), MAX_Z_IN_A_ROW))


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
    """Return where each rise of flagged points begins and where it is over, None if it is not."""
    spans: list[tuple[int, int | None]] = []
    place = 0
    while place < flagged.size and len(spans) < MAX_FINDINGS:
        start = int(flagged[place])
        level = np.fmax(levels.level_at(start), level_before(values, start))
        back = _back_at(values, start, float(level) + Z_BACK * levels.noise_at(start))
        spans.append((start, back))
        place = flagged.size if back is None else int(np.searchsorted(flagged, back))
    return spans


def _back_at(values: Floats, start: int, limit: float) -> int | None:
    """Return where the median of eight points first is at or below the limit; None if nowhere."""
    window = 8
    size = 256
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


def _finding(x: Floats, values: Floats, start: int, back: int | None) -> MetricFinding:
    until = values.size if back is None else back
    level = level_before(values, start)
    highest = start + int(np.argmax(values[start:until]))
    peak = float(values[highest])
    peak_at = float(x[highest])
    first = float(x[start])
    rise = f"{format_number(level)} → {format_number(peak)}"
    if back is not None:
        after = back - start
        text = f"spike at {format_step(first)}: {rise}, recovered after {after} point" + (
            "s" if after > 1 else ""
        )
        return MetricFinding("spike", first, float(x[back]), peak, text, peak_at=peak_at)
    # It does not come back: its newest points are nearly as far up as the upper half of the rise.
    newest = np.median(values[-16:])
    upper = np.quantile(values[start:], 0.75)
    if until - start >= PATIENCE_POINTS and newest - level >= 0.8 * (upper - level):
        text = (
            f"diverging since {format_step(first)}: {rise}, no recovery in {until - start} points"
        )
        return MetricFinding("divergence", first, None, peak, text)
    text = f"spike at {format_step(first)}: {rise}, not yet recovered"
    return MetricFinding("spike", first, None, peak, text, peak_at=peak_at)


def _slow_divergence(
    x: Floats, values: Floats, medians: Floats, noises: Floats
) -> MetricFinding | None:
    """A rise too slow for a spike: the newest level lastingly above the best that there was."""
    if medians.size < 4:
        return None
    smooth = np.median(sliding_window_view(medians, 3), axis=1)
    best_at = int(np.argmin(smooth))
    best = float(smooth[best_at])
    rise = max(10 * float(noises[min(best_at + 1, noises.size - 1)]), DIVERGED_PART * abs(best))
    newest = float(np.median(values[-BLOCK // 2 :]))
    is_above = smooth[best_at:] > best + 0.3 * rise
    if newest <= best + rise or smooth[-1] <= best + 0.7 * rise or not is_above.any():
        return None
    last_below = int(np.flatnonzero(smooth[best_at:] <= best + 0.3 * rise)[-1])
    start = min((best_at + last_below + 2) * BLOCK, values.size - 1)
    peak = float(values[start:].max())
    text = (
        f"diverging since {format_step(float(x[start]))}: from {format_number(best)} at best "
        f"to {format_number(newest)}"
    )
    return MetricFinding("divergence", float(x[start]), None, peak, text)
