"""PBS's comments in plain words: why a job waits, how it ended, and what to do. Knows no table."""

from __future__ import annotations


def reason_of(state: str, comment: str | None, *, substate: str | None = None) -> str | None:
    """What of a job's comment is a reason: why it waits, or how it ended; None for `Job run at …` and the like."""
    raise NotImplementedError


def reason_hint(state: str, reason: str | None) -> str:
    """As Backend.reason_hint."""
    raise NotImplementedError
