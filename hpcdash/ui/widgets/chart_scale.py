"""Where an axis has its ticks, and what they say; knows no metric and no screen."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from math import ceil, floor, isfinite, log10

Tick = tuple[float, str]
_TIME_STEPS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800)
_TIME_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def linear_ticks(begin: float, end: float, most: int) -> list[Tick]:
    """Round values from `begin` to `end`, about `most` of them at the most."""
    step = _round_step((end - begin) / max(most, 1))
    if not step:
        return []
    return [(value, tick_words(value, step)) for value in _multiples(begin, end, step, most)]


def log_ticks(begin: float, end: float, most: int) -> list[Tick]:
    """Powers of ten from 10**begin to 10**end, with 2 and 5 where there is room; of less than a decade round values."""
    if end - begin < 0.9:
        ticks = linear_ticks(10**begin, 10**end, most)
        return [(log10(value), words) for value, words in ticks if value > 0]
    every = max(1, ceil((end - begin) / max(most, 1)))
    factors = (1, 2, 5) if (end - begin) * 3 <= most else (1,)
    ticks = []
    for decade in range(floor(begin), ceil(end) + 1):
        for factor in factors:
            at = decade + log10(factor)
            if begin <= at <= end and (factor != 1 or decade % every == 0):
                words = f"{factor}e{decade}" if abs(decade) > 3 else f"{factor * 10.0**decade:g}"
                ticks.append((at, words))
    return ticks


def clock_ticks(begin: float, end: float, most: int, zone: tzinfo | None) -> list[Tick]:
    """Instants, in epoch seconds, at round times of the clock."""
    step = _time_step((end - begin) / max(most, 1))
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 43_200 else "%d %b"
    moved = datetime.fromtimestamp(begin, UTC).astimezone(zone).utcoffset()
    offset = moved.total_seconds() if moved is not None else 0.0
    return [
        (value - offset, f"{datetime.fromtimestamp(value - offset, UTC).astimezone(zone):{form}}")
        for value in _multiples(begin + offset, end + offset, step, most)
    ]


def duration_ticks(begin: float, end: float, most: int) -> list[Tick]:
    """Seconds since a beginning, in the unit that fits."""
    step = _time_step((end - begin) / max(most, 1))
    size, unit = next(((size, unit) for size, unit in _TIME_UNITS if step >= size), (1.0, "s"))
    return [(value, f"{value / size:g} {unit}") for value in _multiples(begin, end, step, most)]


def tick_words(value: float, step: float) -> str:
    """`2.50`, `12k`, `1.5M`, `1e+30`, with as many digits as tell ticks of that distance apart."""
    largest = abs(value)
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= 1e13:
            break
        if step >= size / 1000 and largest >= 10 * size / 10:
            digits = max(0, min(4, 1 - floor(log10(step / size))))
            return f"{round(value / size, digits):g}{unit}"
    if value == 0:
        return "0"
    digits = -floor(log10(step)) if step > 0 else 0
    if abs(step * 10.0**digits - round(step * 10.0**digits)) > 1e-6:
        digits += 1  # 2.5, 7.5
    if largest >= 1e6 or step < 1e-4:
        return f"{value:.3g}"
    return f"{value:.{max(0, digits)}f}"


def _multiples(begin: float, end: float, step: float, most: int) -> list[float]:
    first = ceil(begin / step - 1e-9)
    count = min(floor(end / step + 1e-9) - first + 1, 4 * max(most, 1) + 4)
    return [(first + at) * step for at in range(max(count, 0))]


def _round_step(least: float) -> float:
    if not (isfinite(least) and least > 0):
        return 0.0
    size = 10.0 ** floor(log10(least))
    return next((size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= least * 0.999), 10 * size)


def _time_step(least: float) -> float:
    found = next((step for step in _TIME_STEPS if step >= least), None)
    return float(found) if found is not None else 604_800.0 * ceil(least / 604_800)
