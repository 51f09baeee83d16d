"""Counts that a log writes, as steps: those that are too large for a float to tell apart are none."""

from __future__ import annotations

from math import nan

from hpcdash.logs.metric_words import is_step


def step_of(count: float) -> float:
    """A count as a step, nan where it can be none."""
    return float(count) if is_step(count) else nan


def last_step_of(digits: str) -> int | None:
    """The final step of at most 19 digits and commas, None where it can be none."""
    value = int(digits.replace(",", ""))
    return value if is_step(value) else None
