"""Growth of file systems and quotas, from the readings that hpcdash has kept itself."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcdash.domain.units import DAY, HOUR
from hpcdash.private_files import atomic_write, make_folder
from hpcdash.services.watch.rules.places import daily_growth

FILE = "storage.json"
# A forecast needs this many readings over this time.
MIN_READINGS = 3
MIN_SPAN_SECONDS = 6 * HOUR
# Later than this it is none.
MAX_FULL_SECONDS = 365 * DAY
_KEPT_SECONDS = 14 * DAY
_APART_SECONDS = 10 * 60.0
_MAX_PLACES = 200
# A fall by this part of the use is a clean-up: what grew before says nothing about what will.
_CLEANED_SHARE = 0.05

# Epoch second and bytes used.
Reading = tuple[float, int]


class Growth(Struct, frozen=True):
    """Bytes a day by which a place grows, and the epoch second at which it is full.

    None: not within MAX_FULL_SECONDS.
    """

    bytes_a_day: int
    full_at: float | None = None


def read_readings(file: Path | None) -> dict[str, list[Reading]]:
    """Return the kept readings by place; none if the file is missing or cannot be read."""
    if file is not None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode(file.read_bytes(), type=dict[str, list[Reading]])
    return {}


def keep_readings(
    file: Path | None, used_bytes: Mapping[str, int], now: float
) -> dict[str, list[Reading]]:
    """Add readings of places at an epoch second, write all, and return them.

    Of readings within ten minutes the first stays; those of more than two weeks are dropped.
    """
    known = read_readings(file)
    for place, used in used_bytes.items():
        readings = [one for one in known.get(place, []) if 0 <= now - one[0] <= _KEPT_SECONDS]
        if not readings or now - readings[-1][0] >= _APART_SECONDS:
            readings.append((now, used))
        # The newest places are last.
        known.pop(place, None)
        known[place] = readings
    newest = dict(list(known.items())[-_MAX_PLACES:])
    if file is not None:
        with contextlib.suppress(OSError):
            make_folder(file.parent)
            atomic_write(file, msgspec.json.encode(newest))
    return newest


def find_growth(readings: Sequence[Reading], limit_bytes: int | None, now: float) -> Growth | None:
    """Return the growth since the last clean-up; None without MIN_READINGS over MIN_SPAN_SECONDS,
    and for a place that does not grow.
    """
    start = 0
    for at, (before, after) in enumerate(pairwise(readings), 1):
        if after[1] < before[1] * (1 - _CLEANED_SHARE):
            start = at
    recent = readings[start:]
    if len(recent) < MIN_READINGS or recent[-1][0] - recent[0][0] < MIN_SPAN_SECONDS:
        return None
    growth = daily_growth(recent)
    if growth < 1:
        return None
    full_at = None
    if limit_bytes is not None:
        seconds = DAY * max(0, limit_bytes - recent[-1][1]) / growth
        if seconds <= MAX_FULL_SECONDS:
            full_at = max(now, recent[-1][0] + seconds)
    return Growth(round(growth), full_at)
