"""One thing found in a metric, and figures in words."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Literal

from hpcdash.domain.units import format_amount

FindingKind = Literal["spike", "divergence", "nan", "inf", "plateau", "stall"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What stands out from `step_from` to `step_to` (None: it has not ended); `z` is nan where none is measured.

    Steps are values of the axis that the series was given with. `value` is the highest value of it (of a plateau its
    level, of a stall the seconds since the last sample); of a spike `peak_at` is where, else nan. `over_after` counts
    the points until it was back, None where it is not.
    """

    kind: FindingKind
    step_from: float
    step_to: float | None
    value: float
    z: float = nan
    over_after: int | None = None
    words: str = ""
    peak_at: float = nan


def number_words(value: float) -> str:
    """`2.513`, `51.43k`, `1.2e+30`, `nan`: four digits."""
    return format_amount(value, 4)


def step_words(step: float) -> str:
    """`12 400`; a step that is no whole number (an epoch) by four digits."""
    return f"{step:,.0f}".replace(",", " ") if step == round(step) else f"{step:.4g}"


def duration_words(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `31 h`, `5.2 days`."""
    for size, word in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        amount = seconds / size
        if amount >= (3 if word == "days" else 1):
            return f"{amount:.1f}".removesuffix(".0") + f" {word}" if amount < 10 else f"{amount:.0f} {word}"
    return f"{seconds:.0f} s"
