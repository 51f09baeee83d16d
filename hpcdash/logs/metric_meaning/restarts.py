"""What restarts cost a run, in words, and what the next one will."""

from __future__ import annotations

from math import isnan

from hpcdash.logs.joined import LostTime
from hpcdash.logs.metric_meaning.findings import duration_words, step_words


def lost_time_words(lost: LostTime) -> str:
    """`3 restarts: 1 200 steps again (40 min), 12 min between attempts`; "" without a restart."""
    if not lost.restarts:
        return ""
    said = f"{lost.restarts} restart" + ("s" if lost.restarts > 1 else "")
    parts = []
    if lost.repeated_steps:
        again = f"{step_words(lost.repeated_steps)} steps again"
        parts.append(again if isnan(lost.repeated_seconds) else f"{again} ({duration_words(lost.repeated_seconds)})")
    if lost.gap_seconds > 0:
        parts.append(f"{duration_words(lost.gap_seconds)} between attempts")
    return f"{said}: {', '.join(parts)}" if parts else said


def repeated_seconds(lost: LostTime) -> float:
    """What steps that were done again took of one restart on average; 0 where none was or no times are known."""
    return _each(lost, lost.repeated_seconds)


def gap_seconds(lost: LostTime) -> float:
    """How long one restart was waited for on average, in the queue for the most part; 0 where that is not known."""
    return _each(lost, lost.gap_seconds)


def _each(lost: LostTime, seconds: float) -> float:
    return 0.0 if not lost.restarts or isnan(seconds) else seconds / lost.restarts
