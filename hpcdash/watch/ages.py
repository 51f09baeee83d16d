"""When something was written, by our own clock, though a file server's is wrong."""

from __future__ import annotations

from hpcdash.domain.units import HOUR

# Servers' clocks go wrong by minutes; beyond this an age is one, unless it contradicts what was seen.
MOST_SKEW_SECONDS = 1.0 * HOUR


def grown_at(now: float, age_seconds: float, seen_at: float | None) -> float:
    """The epoch at which a log got what it did not have when it was last seen (None: never): now, as far as anyone
    knows, for its age is by the clock of its server. A look that is long past leaves more room than clocks are wrong
    by: there its age counts, as far as it is not from before that look."""
    written = now - age_seconds
    if seen_at is None:
        return written
    return now if age_seconds <= MOST_SKEW_SECONDS else max(seen_at, written)
