"""The PULSE line of a job that is watched: that it runs, or what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from hpcdash.domain.stakes import span_words
from hpcdash.domain.states import ACTIVE, JobState
from hpcdash.domain.text import visible
from hpcdash.watch.rules.waiting import Reasons, never_words

Row = Mapping[str, Any]


def pulse_line(now: datetime, words: str) -> str:
    """`[2026-11-21 16:00:00] PULSE: …`, in the zone of `now`, one line whatever the words are, without its end."""
    return f"[{now:%Y-%m-%d %H:%M:%S}] PULSE: {visible(words)}"


def pulse_words(name: str, rows: Iterable[Row], now: datetime, reasons: Reasons) -> str:
    """How a job stands, of the rows (domain.schema.JOBS) that have its name and have not ended.

    The most alive of them counts; times are in the zone of `now`; `reasons` are the scheduler's.
    """
    ordered = sorted(rows, key=lambda row: (_rank(row), row["started_at"] or now, row["_number"] or 0, str(row["id"])))
    if not ordered:
        return f"{name} is neither running nor pending"
    row = ordered[0]
    who = f"{name} ({row['id']})"
    if row["state"] in ACTIVE:
        return f"{who} {_activity(row, now)}"
    reason = row["reason"] or ""
    if row["state"] == JobState.HELD:
        return f"{who} is held and will not start until it is released"
    if reason == "JobArrayTaskLimit" or "subjobs limit" in reason:
        return f"{who} waits for the task of its array that runs to end"
    if reasons.never_starts(row["state"], reason):
        return f"{who} {never_words(row['state'], reason, reasons)}"
    if reason == "Dependency" or "depend" in reason.lower():
        after = f" ({row['dependency']})" if row["dependency"] else ""
        return f"{who} waits for the job it depends on to end{after}"
    expected = row["_expected_start_at"]
    because = f" ({reason})" if reason else ""
    if expected is None:
        return f"{who} is pending, with no estimate of when it starts{because}"
    when = f"{expected.astimezone(now.tzinfo):%Y-%m-%d %H:%M:%S}"
    seconds = (expected - now).total_seconds()
    if seconds <= 0:
        return f"{who} is pending and was estimated to start at {when}{because}"
    return f"{who} is estimated to start in {span_words(seconds)}, at {when}{because}"


def _rank(row: Row) -> int:
    state = row["state"]
    if state in ACTIVE:
        return (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING).index(state)
    return 4 if state == JobState.HELD else 3


def _activity(row: Row, now: datetime) -> str:
    if row["state"] != JobState.RUNNING:
        return f"is {row['state']}"
    nodes = f" on {row['node_list']}" if row["node_list"] else ""
    if row["started_at"] is None:
        return f"is running{nodes}"
    ran = span_words((now - row["started_at"]).total_seconds())
    left = (row["ends_at"] - now).total_seconds() if row["ends_at"] is not None else None
    return f"has been running for {ran}{nodes}" + (f", {span_words(left)} left" if left and left > 0 else "")
