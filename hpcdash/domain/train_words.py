"""A train in signs and words: one line however long, what each element waits for, when all would have ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.dependencies import SINGLETON, never_words, waits_for
from hpcdash.domain.job_ids import number_of
from hpcdash.domain.states import ACTIVE, ENDED_BADLY, WAITING, JobState
from hpcdash.domain.trains import Train, Unit, follows, one_at_a_time

Row = Mapping[str, Any]
DONE, FAILED, CANCELLED, RUNNING, WAITS = "done", "failed", "cancelled", "running", "waiting"
HELD, UNKNOWN = "held", "unknown"
# In the order they are counted in.
CLASSES = (DONE, FAILED, CANCELLED, RUNNING, WAITS, HELD, UNKNOWN)
# The state whose sign stands for a class.
SIGN_OF = {
    DONE: JobState.COMPLETED,
    FAILED: JobState.FAILED,
    CANCELLED: JobState.CANCELLED,
    RUNNING: JobState.RUNNING,
    WAITS: JobState.PENDING,
    HELD: JobState.HELD,
    UNKNOWN: JobState.UNKNOWN,
}
_MOST_SIGNS = 40
_WAITED = {
    "afterany": "after {}",
    "afterok": "after {}, ended well",
    "afternotok": "after {}, ended badly",
    "after": "once {} began",
    "aftercorr": "task by task after {}",
}


@dataclass(frozen=True, slots=True)
class AppendWish:
    """What is to be appended: `count` jobs one after the other, or an `array`; `path` '' is for the same script."""

    count: int = 1
    array: str = ""
    path: str = ""


def read_append(typed: str, *, is_array: bool) -> AppendWish:
    """Reads `3`, `1-10%1`, `3 ~/next.sh`, `next.sh`, ``; to an array 3 appends 1-3%1. Raises ValueError in words."""
    first, _, rest = typed.strip().partition(" ")
    path = rest.strip()
    if first.isascii() and first.isdecimal():
        count = int(first[:9])
        if not count:
            raise ValueError("none to append")
        return AppendWish(array=f"1-{count}%1", path=path) if is_array else AppendWish(count, path=path)
    if not first:
        return AppendWish()
    if not first[0].isdecimal():
        return AppendWish(path=typed.strip())
    return AppendWish(array=str(parse_tasks(first)), path=path)


def class_of(row: Row) -> str:
    """One of CLASSES."""
    state = row["state"]
    if state == JobState.COMPLETED:
        return DONE
    if state == JobState.CANCELLED:
        return CANCELLED
    if state == JobState.GONE:
        return UNKNOWN
    if state in ENDED_BADLY:
        return FAILED
    if state in ACTIVE:
        return RUNNING
    if state == JobState.HELD:
        return HELD
    return WAITS if state in WAITING else UNKNOWN


def class_counts(rows: Iterable[Row]) -> dict[str, int]:
    """How many elements are of each class that any is of; a record of several tasks counts each."""
    counts = dict.fromkeys(CLASSES, 0)
    for row in rows:
        counts[class_of(row)] += row["_tasks"] or 1
    return {name: count for name, count in counts.items() if count}


def picture(rows: Sequence[Row], signs: Mapping[str, str], width: int = 76) -> str:
    """A line of at most `width` cells: `✓✓✗▸◦◦◦◦  2 done, 1 failed, 1 running, 4 waiting`.

    Longer trains have their runs counted, `✓412 ✗1 ▸1 ◦584`, and very mixed ones only the counts, of which no more than
    44 cells are ever needed up to 9999 elements. `signs` maps states to signs of one cell.
    """
    counts = class_counts(rows)
    words = ", ".join(f"{count} {name}" for name, count in counts.items())
    runs = [(name, sum(row["_tasks"] or 1 for row in members)) for name, members in groupby(rows, key=class_of)]
    sign = {name: signs.get(SIGN_OF[name], "?") for name in CLASSES}
    strips = ["".join(sign[name] * count for name, count in runs)] if sum(counts.values()) <= _MOST_SIGNS else []
    strips.append(" ".join(f"{sign[name]}{count}" for name, count in runs))
    for strip in strips:
        if len(strip) + 2 + len(words) <= width:
            return f"{strip}  {words}".strip()
    return words if len(words) <= width else " ".join(f"{sign[name]}{count}" for name, count in counts.items())


def wait_words(unit: Unit, train: Train) -> str:
    """What a unit waits for, or followed: `after 12`, `after 12, ended well`; '' for nothing that is known."""
    if unit.by_name:
        return f"after {', '.join(train.before[unit.number])}, by its name"
    parts = []
    for condition in unit.after.conditions:
        if condition.kind == SINGLETON:
            parts.append("one at a time of its name")
        elif follows(condition):
            kind = condition.kind.removesuffix("array") if condition.kind not in _WAITED else condition.kind
            words = _WAITED[kind].format(condition.job_id)
            parts.append(f"{words} + {condition.delay_minutes} min" if condition.delay_minutes else words)
    return (" or " if unit.after.is_any else "; ").join(parts)


def lost_words(unit: Unit, train: Train) -> str:
    """Why a waiting unit can never start; '' while it can."""
    if not unit.is_waiting:
        return ""
    return never_words(waits_for(unit.after, train.rows), unit.after.is_any)


def latest_end(train: Train, now: datetime) -> datetime | None:
    """When a train would have ended if each of its elements took its whole limit and waited for nothing else.

    None where one that has not ended has no limit that is known, and for a train that has ended.
    """
    begins: dict[str, datetime] = {}
    ends: dict[str, datetime] = {}
    if not train.living:
        return None
    for unit in train.units:
        ready = now
        for condition in unit.after.conditions:
            known = begins if condition.kind == "after" else ends
            ready = max(ready, known.get(number_of(condition.job_id), now))
        for leader in train.before[unit.number]:
            if not unit.after.conditions or all(one.kind == SINGLETON for one in unit.after.conditions):
                ready = max(ready, ends.get(leader, now))
        lasts = _latest_end(unit, ready, now)
        if lasts is None:
            return None
        begins[unit.number], ends[unit.number] = min(unit.began_at or ready, ready), lasts
    return max(ends.values())


def _latest_end(unit: Unit, ready: datetime, now: datetime) -> datetime | None:
    """Of what runs the end of its limit; then those that wait, so many at a time, from then on."""
    end = ready
    waiting = 0
    limit_seconds = 0
    for row in unit.rows:
        if row["state"] in ACTIVE:
            if row["ends_at"] is None:
                return None
            end = max(end, row["ends_at"], now)
        elif class_of(row) in (WAITS, HELD):
            if row["limit_seconds"] is None:
                return None
            waiting += row["_tasks"] or 1
            limit_seconds = max(limit_seconds, row["limit_seconds"])
    at_once = unit.throttle or (1 if one_at_a_time(unit) else waiting) or 1
    return end + timedelta(seconds=-(-waiting // at_once) * limit_seconds)


def train_notes(train: Train) -> tuple[str, ...]:
    """What a person should know of how the train was put together, a sentence each."""
    notes = []
    for unit, followers in train.branches:
        notes.append(f"a branch: {', '.join(followers)} follow {unit.number}")
    named = [unit.number for unit in train.units if unit.by_name]
    if named:
        notes.append(f"joined by name, as nothing tells what they waited for: {', '.join(named)}")
    if train.lost:
        notes.append(f"followed once, and in no list any more: {', '.join(train.lost)}")
    for unit in train.units:
        if unit.is_array and not one_at_a_time(unit):
            at_once = f"{unit.throttle} at once" if unit.throttle else "side by side"
            notes.append(f"the tasks of {unit.job_id} run {at_once}")
        if words := lost_words(unit, train):
            notes.append(f"{unit.job_id} {words}")
    return tuple(notes)


def hold_words(rows: Iterable[Row], now: datetime) -> str:
    """What a hold costs those whose turn has begun to come; '' for none.

    Seen on Slurm 22.05.8: a hold keeps the time of submission, and has the eligible time, which a priority's age is
    counted from, begin anew at the release. One that waits for another job, or for its turn in an array, has none yet.
    """
    waits = [
        (now - row["eligible_at"]).total_seconds()
        for row in rows
        if class_of(row) == WAITS and row["eligible_at"] is not None and row["eligible_at"] <= now
    ]
    if not waits or max(waits) < 60:
        return ""
    hours, minutes = divmod(int(max(waits)) // 60, 60)
    return f"a hold may start the age anew of {len(waits)} that waited up to {hours} h {minutes:02} min for a turn"
