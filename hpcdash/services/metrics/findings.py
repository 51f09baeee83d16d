"""Findings in a metric, as text: not a number, a plateau, a silent log."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite, nan
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hpcdash.domain.units import format_amount, format_span
from hpcdash.services.metrics.batch import Floats

FindingKind = Literal["spike", "divergence", "nan", "inf", "plateau", "stall"]
PLATEAU_POINTS = 1000
# What part of a run must be flat, and how little of its level is no progress.
PLATEAU_PART = 0.3
MIN_PROGRESS = 0.001
USUAL_GAPS = 10.0
MIN_SILENCE_SECONDS = 60.0
# So many records without the loss, and so many zeros, are no accident.
VANISHED_RECORDS = 5
ZEROS = 3
_NEWEST_RECORDS = 2048


class MetricFinding(Struct, frozen=True):
    """Finding in a metric, by values of the axis that its series was given with."""

    kind: FindingKind
    step_from: float
    # None: it has not ended.
    step_to: float | None
    # The highest value of it; of a plateau its level, of a stall the seconds since the last sample.
    value: float
    text: str
    # Where the highest value of a spike is, else nan.
    peak_at: float = nan

    @property
    def place(self) -> float:
        """The peak, or the beginning of a finding without one."""
        return self.peak_at if isfinite(self.peak_at) else self.step_from


def format_number(value: float) -> str:
    """`2.513`, `51.43k`, `1.2e+30`, `nan`: four digits."""
    return format_amount(value, 4)


def format_step(step: float) -> str:
    """`12 400`; a step that is no whole number (an epoch) by four digits."""
    return f"{step:,.0f}".replace(",", " ") if step == round(step) else f"{step:.4g}"


def find_not_finite(x: Floats, values: Floats) -> tuple[MetricFinding, ...]:
    """The first nan and the first inf of `values` (n) at `x` (n); `step_to` is where the values are
    numbers again.
    """
    finite = np.isfinite(values)
    if finite.all():
        return ()
    findings = []
    kinds: tuple[tuple[FindingKind, NDArray[np.bool_]], ...] = (
        ("nan", np.isnan(values)),
        ("inf", np.isinf(values)),
    )
    for kind, is_odd in kinds:
        places = np.flatnonzero(is_odd)
        if not places.size:
            continue
        first = float(x[places[0]])
        count = "once"
        if places.size > 1:
            count = f"{places.size} times, last at {format_step(float(x[places[-1]]))}"
        numbers = x[places[-1] :][finite[places[-1] :]]
        until = float(numbers[0]) if numbers.size else None
        end = (
            "no finite value since" if until is None else f"finite again since {format_step(until)}"
        )
        text = f"{kind} first at {format_step(first)} ({count}); {end}"
        findings.append(MetricFinding(kind, first, until, float(values[places[0]]), text))
    return tuple(findings)


def find_lost_numbers(name: str, x: Floats, values: Floats) -> tuple[MetricFinding, ...]:
    """Find a metric beside the loss that was a number and is none any more; a gradient's need not
    have been one.
    """
    lasting = tuple(finding for finding in find_not_finite(x, values) if finding.step_to is None)
    return lasting if "grad" in name.lower() or np.isfinite(values).any() else ()


def find_zero(x: Floats, values: Floats) -> MetricFinding | None:
    """Find a loss (n) at `x` (n) that is exactly 0 from some point on.

    A loss that came down to 0 in steps of its own size was rounded, and is none.
    """
    finite = np.isfinite(values)
    x = x[finite]
    values = values[finite]
    others = np.flatnonzero(values)
    since = int(others[-1]) + 1 if others.size else 0
    if values.size - since < ZEROS:
        return None
    before = np.abs(values[others[-20:]])
    changes = np.abs(np.diff(before))
    if changes.any() and before[-1] <= 5 * max(
        float(np.median(changes)), float(changes[changes > 0].min())
    ):
        return None
    text = f"exactly 0 since {format_step(float(x[since]))} ({values.size - since} points)"
    return MetricFinding("nan", float(x[since]), None, 0.0, text)


def find_vanished(x: Floats, beside: Iterable[Floats]) -> MetricFinding | None:
    """Find a loss, logged at `x` (n), that is no longer logged while steps go on.

    `beside` are the places of the metrics beside it, all in the order in which they were written.
    Of a metric that was logged with it, more records follow than ever stood between two of the
    loss. Megatron leaves out a loss that is nan.
    """
    x = _newest_attempt(x)
    records = 0
    since = nan
    for other in map(_newest_attempt, beside):
        if not x.size or not other.size:
            continue
        before = other[other <= x[-1]][-_NEWEST_RECORDS:]
        after = other[other > x[-1]]
        shared = np.flatnonzero(np.isin(before, x))
        if shared.size < 2 or after.size <= max(
            records, VANISHED_RECORDS - 1, 2 * int(np.diff(shared).max())
        ):
            continue
        records = int(after.size)
        since = float(after[0])
    if not records:
        return None
    text = (
        f"not logged since {format_step(since)}, in {records} records: some trainers do "
        "not log a loss that is nan"
    )
    return MetricFinding("nan", since, None, nan, text)


def _newest_attempt(x: Floats) -> Floats:
    """The places from the last restart on, where they went back; ascending."""
    x = x[np.isfinite(x)]
    restarts = np.flatnonzero(np.diff(x) < 0)
    return x[restarts[-1] + 1 :] if restarts.size else x


def find_plateau(x: Floats, values: Floats) -> MetricFinding | None:
    """Find a plateau: no progress in the newest three tenths of the run.

    No tenth is lower than the one before by a thousandth of the level. None if there is progress,
    if noise hides it, or with fewer than 1000 points.
    """
    count = int(values.size * PLATEAU_PART)
    if values.size < PLATEAU_POINTS:
        return None
    newest = values[-count:]
    parts = [part[np.isfinite(part)] for part in np.array_split(newest, 3)]
    if any(part.size < count // 6 for part in parts):
        return None
    levels = [float(np.median(part)) for part in parts]
    deviations = [
        np.median(np.abs(part - level)) for part, level in zip(parts, levels, strict=True)
    ]
    noise = 1.4826 * float(max(deviations))
    # The error of a median of n points is 1.25 sigma / sqrt(n); of a difference of two of them 1.41
    # times that.
    error = 1.77 * noise / (count / 3) ** 0.5
    least = MIN_PROGRESS * abs(levels[0])
    falls = [levels[0] - levels[1], levels[1] - levels[2], (levels[0] - levels[2]) / 2]
    if 2 * error > least or any(abs(fall) > least + error for fall in falls):
        return None
    since = float(x[-count])
    text = f"flat at {format_number(levels[2])} since {format_step(since)} ({count} points)"
    return MetricFinding("plateau", since, None, levels[2], text)


def sample_gaps(times: Floats) -> tuple[float, float] | None:
    """Return the usual and the longest time from one sample to the next, in seconds.

    None where fewer than three of the `times` (n, epoch seconds) are known and differ.
    """
    gaps = np.diff(times[np.isfinite(times)])
    gaps = gaps[gaps > 0]
    return (float(np.median(gaps)), float(gaps.max())) if gaps.size > 1 else None


def find_stall(
    silence: float, usual: float, longest: float, last_step: float
) -> MetricFinding | None:
    """Find a log without a sample for longer than ten usual gaps, two of its longest, and a minute.

    All but `last_step`, where it stands, are in seconds.
    """
    if silence <= max(USUAL_GAPS * usual, 2 * longest, MIN_SILENCE_SECONDS):
        return None
    text = (
        f"no sample for {format_span(silence)} after {format_step(last_step)}; usually every "
        f"{format_span(usual)}"
    )
    return MetricFinding("stall", last_step, None, silence, text)
