"""Positions and labels of the ticks of an axis."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from math import ceil, floor, isfinite, log10

Tick = tuple[float, str]
_TIME_STEPS = (
    1,
    2,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
    1800,
    3600,
    7200,
    10_800,
    21_600,
    43_200,
    86_400,
    172_800,
    604_800,
)
_TIME_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def linear_ticks(begin: float, end: float, most: int) -> list[Tick]:
    """Round values from `begin` to `end`, about `most` of them at the most."""
    step = _round_step((end - begin) / max(most, 1))
    if not step:
        return []
    return [(value, format_tick(value, step)) for value in _multiples(begin, end, step, most)]


def log_ticks(begin: float, end: float, most: int) -> list[Tick]:
    """Powers of ten from 10**begin to 10**end, with 2 and 5 where there is room; of less than a
    decade round values.
    """
    if end - begin < 0.9:
        ticks = linear_ticks(10**begin, 10**end, most)
        return [(log10(value), text) for value, text in ticks if value > 0]
    every = max(1, ceil((end - begin) / max(most, 1)))
    factors = (1, 2, 5) if (end - begin) * 3 <= most else (1,)
    ticks = []
    for decade in range(floor(begin), ceil(end) + 1):
        for factor in factors:
            position = decade + log10(factor)
            if begin <= position <= end and (factor != 1 or decade % every == 0):
                text = (
                    f"{factor}e{decade}"
                    if decade > 3 or decade < -3
                    else f"{factor * 10.0**decade:g}"
                )
                ticks.append((position, text))
    return ticks


def height_ticks(begin: float, end: float, most: int, widest: int, *, is_log: bool) -> list[Tick]:
    """Ticks of a height from `begin` to `end` (exponents where it `is_log`): about `most`, at least
    two of them, with words of at most `widest` letters that tell them apart. Where no such words
    do, the lower one and what is between them. None of a range that is none.
    """
    for count in range(most, 4 * most + 5):
        ticks = (log_ticks if is_log else linear_ticks)(begin, end, count)
        parts = {word for _, word in ticks}
        if len(ticks) > 1 and len(parts) == len(ticks) and max(map(len, parts)) <= widest:
            return ticks
    if not end > begin:
        return []
    low = begin + 0.1 * (end - begin)
    high = begin + 0.9 * (end - begin)
    value, apart = (10**low, 10**high - 10**low) if is_log else (low, high - low)
    return [(low, _shortened(value, widest)), (high, f"+{_shortened(apart, widest - 1)}")]


def whole_ticks(
    begin: float, end: float, most: int, formatter: Callable[[float], str]
) -> list[Tick]:
    """Return ticks at whole numbers from `begin` to `end`, about `most` of them at most."""
    step = max(1.0, _round_step((end - begin) / max(most, 1)))
    step = 5.0 if step == 2.5 else step
    return [(value, formatter(value)) for value in _multiples(begin, end, step, most)]


def clock_ticks(begin: float, end: float, most: int, zone: tzinfo | None) -> list[Tick]:
    """Instants, in epoch seconds, at round times of the clock."""
    step = _time_step((end - begin) / max(most, 1))
    form = "%d %b"
    if step < 43_200:
        form = "%H:%M:%S" if step < 60 else "%H:%M"
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


def format_tick(value: float, step: float) -> str:
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
    if largest >= 1e6:
        return f"{value:.3g}"
    if largest < 1e-3 or (step < 1e-4 and largest < 1e-2):
        # As few characters as possible: 2.5e-4.
        exponent = floor(log10(largest) + 1e-9)
        behind = max(0, exponent + digits)
        return f"{value / 10.0**exponent:.{behind}f}e{exponent}"
    return f"{value:.{max(0, digits)}f}"


def _shortened(value: float, widest: int) -> str:
    """The value in that many letters, with as many digits as there is room for."""
    return next(
        (word for digits in range(6, 0, -1) if len(word := f"{value:.{digits}g}") <= widest),
        f"{value:.0e}",
    )


def _multiples(begin: float, end: float, step: float, most: int) -> list[float]:
    first = ceil(begin / step - 1e-9)
    count = min(floor(end / step + 1e-9) - first + 1, 4 * max(most, 1) + 4)
    return [(first + number) * step for number in range(max(count, 0))]


def _round_step(least: float) -> float:
    if not (isfinite(least) and least > 0):
        return 0.0
    size = 10.0 ** floor(log10(least))
    return next(
        (size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= least * 0.999),
        10 * size,
    )


def _time_step(least: float) -> float:
    step = next((step for step in _TIME_STEPS if step >= least), None)
    return float(step) if step is not None else 604_800.0 * ceil(least / 604_800)
