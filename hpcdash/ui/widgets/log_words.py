"""What is said of a log in words: why there is nothing to see, what became of its file, how it grows. Draws nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any

from hpcdash.domain.states import ENDED, WAITING
from hpcdash.domain.units import format_age, format_memory
from hpcdash.domain.words import clock_words, ended_words, state_word
from hpcdash.services.logs.window import Event, LogWindow
from hpcdash.ui.widgets.cells import short_instant

# A log that had nothing for so long is said to be still; training writes a line more often than that.
STILL_SECONDS = 10.0


def file_notes(window: LogWindow, row: Mapping[str, Any] | None, reason_hint: str, zone: tzinfo | None) -> list[str]:
    """What is to be said of the file itself: that it is not there and why, empty, or another than before."""
    look, happened = window.look, window.happened
    notes = []
    if happened is not None:
        when = clock_words(happened.at, zone)
        match happened.event:
            case Event.DELETED if window.file.host:
                read = "; what was read is shown" if window.rows else ""
                notes.append(
                    f"is no longer on {window.file.host} since {when}: it goes where it stays as the job ends{read}"
                )
            case Event.DELETED:
                read = "what was read is shown; " if window.rows else ""
                notes.append(f"was deleted at {when}; {read}looked for again")
            case Event.CLOSED:
                read = "what was read is shown; " if window.rows else ""
                notes.append(f"cannot be read since {when}: {look.problem}; {read}looked for again")
            case Event.TRUNCATED:
                notes.append(f"was truncated (to {format_memory(happened.size)}) at {when}")
            case Event.REPLACED:
                notes.append(f"another file took its place at {when}")
        if happened.event in (Event.DELETED, Event.CLOSED):
            return notes
    state = "" if row is None else str(row["state"])
    if window.looked_at is None:
        return notes
    if look.problem:
        if not look.is_there and state in WAITING:
            notes.append(f"will be at {window.file.path} once the job starts")
            notes.append(f"the job is {state_word(state)}{_why(row, reason_hint)}")
        elif not look.is_there and state not in ENDED:
            notes.append(f"{look.problem}; looked for again")
        else:
            notes.append(look.problem)
    elif look.is_there and look.size == 0:
        notes.append("is empty" if state in ENDED else "is empty so far")
    return notes


def _why(row: Mapping[str, Any] | None, reason_hint: str) -> str:
    reason = "" if row is None else row["reason"] or ""
    return "".join((f": {reason}" if reason else "", f" ({reason_hint})" if reason_hint else ""))


def job_note(row: Mapping[str, Any] | None, now: datetime, zone: tzinfo | None) -> str:
    """`the job ended: failed, exit 3, 2 min ago`; '' while it has not."""
    if row is None or str(row["state"]) not in ENDED:
        return ""
    words = [state_word(str(row["state"]))]
    if how := ended_words(row):
        words.append(how)
    if row["ends_at"] is not None:
        words.append(
            f"{format_age((now - row['ends_at']).total_seconds())} ago ({short_instant(row['ends_at'], now, zone)})"
        )
    return f"the job ended: {', '.join(words)}"


def growth_words(window: LogWindow, now: float, *, ended: bool) -> str:
    """`+3.4K/s`, `no new bytes for 12 min`, for a job that ended `last written 2 h ago`; '' where it is not known."""
    growth = window.growth
    still = None if growth.last_at is None else now - growth.last_at
    if not window.look.is_there or still is None:
        return ""
    if ended:
        return f"last written {format_age(still)} ago"
    if still >= STILL_SECONDS:
        return f"no new bytes for {format_age(still)}"
    rate = growth.bytes_per_second
    return f"+{format_memory(rate)}/s" if rate >= 1 else ""
