"""Job chains: found by what jobs wait for, and in words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.domain.array_tasks import ArrayTasks, parse_tasks, read_tasks
from hpcdash.domain.dependencies import (
    SINGLETON,
    Condition,
    Dependency,
    format_never,
    parse_dependency,
    waits_for,
)
from hpcdash.domain.job_ids import parse_job_number
from hpcdash.domain.states import ACTIVE, ENDED, ENDED_BADLY, WAITING, JobState
from hpcdash.domain.units import format_span

Row = Mapping[str, Any]
FOLLOWS = frozenset({"after", "afterok", "afternotok", "afterany", "aftercorr"})
# Of an array with more tasks than this in one row the row counts as a whole.
_MAX_TASKS_APART = 100_000
_NOTHING = Dependency()
# In a row whose state is another one here than its scheduler's.
TOLD_STATE = "_told_state"
# sbatch's --dependency=…, -d …; qsub's -W depend=… (other attributes may stand before it).
_ON_A_LINE = re.compile(r"(?:^|\s)(?:--dep\w*(?:=|\s+)|-d\s*|-W\s*[^\s]*?depend=)([^\s]+)")
_BARE_IDS = re.compile(r"[0-9]+(?:_[0-9]+)?(?:[:,][0-9]+(?:_[0-9]+)?)*")
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
_MAX_SIGNS = 40
_WAITED = {
    "afterany": "after {}",
    "afterok": "after {} succeeds",
    "afternotok": "after {} fails",
    "after": "once {} began",
    "aftercorr": "task by task after {}",
}


class Unit(Struct, frozen=True):
    """A job, or an array with all of its tasks; `rows` are of domain.schema.JOBS, in the order of
    their tasks.

    `after` is what it waits for, or waited for; `place` how many stand before it at the most.
    `by_name`: nothing tells what it followed but that it has the name of the one before, waited
    while that ran and began after it.
    """

    job_id: str
    rows: tuple[Row, ...]
    after: Dependency = _NOTHING
    place: int = 0
    by_name: bool = False
    throttle: int | None = None

    @property
    def number(self) -> str:
        return parse_job_number(self.job_id)

    @property
    def is_array(self) -> bool:
        return any(row["array_id"] is not None for row in self.rows)

    @property
    def has_ended(self) -> bool:
        return all(row["state"] in ENDED for row in self.rows)

    @property
    def is_waiting(self) -> bool:
        return all(row["state"] in WAITING for row in self.rows)

    @property
    def began_at(self) -> datetime | None:
        return min(
            (row["started_at"] for row in self.rows if row["started_at"] is not None), default=None
        )

    @property
    def ended_at(self) -> datetime | None:
        """None while one of its tasks has not ended, and where it is not told."""
        ends = [row["ends_at"] for row in self.rows]
        return max(ends) if self.has_ended and None not in ends else None


class JobChain(Struct, frozen=True):
    """Units in the order they run in; `before` maps a unit's number to those it follows, as far as
    they are known.

    `lost` are numbers of jobs that units of it followed and that nothing knows any more. `unsure`
    are ids, likeliest first, of those of which is not known what they followed: of units of it, and
    of others with their name.
    """

    units: tuple[Unit, ...]
    before: Mapping[str, tuple[str, ...]]
    lost: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for unit in self.units for row in unit.rows)

    @property
    def living(self) -> tuple[Row, ...]:
        """Jobs that can still be held, altered or cancelled."""
        return tuple(row for row in self.rows if row["state"] not in ENDED)

    @property
    def is_alone(self) -> bool:
        """Whether it is one plain job, that nothing follows."""
        return len(self.units) == 1 and not self.units[0].is_array and not self.lost

    def find_unit(self, job_id: str) -> Unit | None:
        number = parse_job_number(job_id)
        return next((unit for unit in self.units if unit.number == number), None)

    def after(self, number: str) -> tuple[str, ...]:
        """The numbers of those that follow one."""
        return tuple(
            unit.number for unit in self.units if number in self.before.get(unit.number, ())
        )

    @property
    def ends(self) -> tuple[Unit, ...]:
        """Units that nothing follows: one, unless the chain has branches."""
        followed = {number for numbers in self.before.values() for number in numbers}
        return tuple(unit for unit in self.units if unit.number not in followed)

    @property
    def branches(self) -> tuple[tuple[Unit, tuple[str, ...]], ...]:
        """Units that two or more others follow directly, with the numbers of these followers."""
        places = {unit.number: unit.place for unit in self.units}
        found = []
        for unit in self.units:
            # A unit that also waits for another of them comes later.
            at_once = tuple(one for one in self.after(unit.number) if places[one] == unit.place + 1)
            if len(at_once) > 1:
                found.append((unit, at_once))
        return tuple(found)


def find_chain(
    job_id: str, rows: Iterable[Row], reported: Mapping[str, str] | None = None
) -> JobChain:
    """Find the chain of a job, of a task's array, or of an array.

    `rows` are those of its owner, the freshest first. `reported` maps a job's number to the
    dependency it was submitted with, '' for none, for jobs whose row has none (any more). Empty if
    no row is of the job.
    """
    units = _units(rows, reported or {})
    number = parse_job_number(job_id)
    if number not in units:
        return JobChain((), {})
    links = _links(units)
    named: set[str] = set()
    members = _connected(number, links, units)
    while (found := _joined_by_name(members, links, units, reported or {})) is not None:
        follower, leader = found
        links[follower] = (leader,)
        named.add(follower)
        members = _connected(number, links, units)
    places = _places(members, links)
    ordered = sorted(members, key=lambda one: (places[one], int(one)))
    before = {one: tuple(leader for leader in links[one] if leader in members) for one in ordered}
    lost = {leader: None for one in ordered for leader in links[one] if leader not in units}
    placed = tuple(replace(units[one], place=places[one], by_name=one in named) for one in ordered)
    return JobChain(placed, before, tuple(lost), _unsure(placed, units, reported or {}))


def living_targets(
    chain: JobChain, among: Collection[str] | None = None
) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """(ids, rows) of what has not ended, the last first: none begins because the one before it is
    cancelled.

    `among`: the ids of the rows that are meant, None for all. Tasks have the ids of their rows: by
    an array's number those that ended would be meant too, which schedulers refuse.
    """
    rows = tuple(row for row in reversed(chain.living) if among is None or row["id"] in among)
    return tuple(str(row["id"]) for row in rows), rows


def _unsure(
    chain: Sequence[Unit], units: Mapping[str, Unit], reported: Mapping[str, str]
) -> tuple[str, ...]:
    """IDs of the chain's units whose predecessor is unknown, newest first; then IDs of units with
    the same name that may follow one of them: they never began, or not before its end.
    """
    # A job that waits for resources may have waited for a job before: Slurm drops fulfilled
    # dependencies.
    own = [unit for unit in reversed(chain) if is_unknown(unit, reported)]
    names = {(unit.rows[0]["user"], unit.rows[0]["name"]) for unit in chain}
    members = {unit.number for unit in chain}
    ends = [ended_at for unit in chain if (ended_at := unit.ended_at) is not None]
    first = min((int(number) for number in members), default=0)
    others = [
        units[number]
        for number in sorted(units, key=int)
        if number not in members and int(number) > first and is_unknown(units[number], reported)
    ]
    likely = [
        unit
        for unit in others
        if (unit.rows[0]["user"], unit.rows[0]["name"]) in names
        and not unit.is_waiting
        and ends
        and (unit.began_at is None or unit.began_at >= min(ends))
    ]
    return tuple(unit.job_id for unit in (*own, *likely))


def is_unknown(unit: Unit, reported: Mapping[str, str]) -> bool:
    """Whether nothing tells what a unit followed, if anything."""
    return not unit.after.conditions and unit.number not in reported


def given_dependency(text: str) -> str:
    """Return the dependency on a submission's command line, as schedulers show it; '' for none.

    A bare number is Slurm's notation for afterany.
    """
    found = _ON_A_LINE.search(text)
    if found is None:
        return ""
    value = found[1].strip("'\"")
    return f"afterany:{value.replace(',', ':')}" if _BARE_IDS.fullmatch(value) else value


def _units(rows: Iterable[Row], reported: Mapping[str, str]) -> dict[str, Unit]:
    """By number; of rows with the same job or task the first counts."""
    members: dict[str, list[Row]] = {}
    known_tasks: dict[str, set[int]] = {}
    known_ids: set[str] = set()
    for row in rows:
        number = parse_job_number(str(row["id"]))
        if not number or row["id"] in known_ids:
            continue
        tasks = _row_tasks(row)
        seen = known_tasks.setdefault(number, set())
        if tasks is None or tasks.count > _MAX_TASKS_APART:
            if (
                row["array_id"] is None
                and number in members
                and members[number][0]["array_id"] is None
            ):
                continue
        elif any(task in seen for task in tasks):
            continue
        else:
            seen.update(tasks)
        known_ids.add(str(row["id"]))
        members.setdefault(number, []).append(row)
    return {number: _unit(number, found, reported) for number, found in members.items()}


def _as_it_waits(row: Row) -> Row:
    """A row whose job is held for what it depends on, as PBS has it, as one that waits: nobody held
    it.

    Whether its owner holds it besides is not told; TOLD_STATE keeps the state that was.
    """
    reason = (row["reason"] or "").lower()
    if (
        row["state"] != JobState.HELD
        or not row["dependency"]
        or not ("depend" in reason or "by pbs" in reason)
    ):
        return row
    return {**row, "state": str(JobState.PENDING), TOLD_STATE: row["state"]}


def _unit(number: str, rows: list[Row], reported: Mapping[str, str]) -> Unit:
    rows.sort(key=lambda row: row["_task"] if row["_task"] is not None else -1)
    text = next((row["dependency"] for row in rows if row["dependency"]), None) or reported.get(
        number
    )
    throttles = (tasks.throttle for row in rows if (tasks := _row_tasks(row)) is not None)
    # sacct has what is left of a cancelled array as a job of its number.
    job_id = str(next((row["array_id"] for row in rows if row["array_id"]), rows[0]["id"]))
    throttle = next((one for one in throttles if one), None)
    return Unit(job_id, tuple(map(_as_it_waits, rows)), parse_dependency(text), throttle=throttle)


def _row_tasks(row: Row) -> ArrayTasks | None:
    return None if row["array_id"] is None else read_tasks(row["array_task"])


def _links(units: Mapping[str, Unit]) -> dict[str, tuple[str, ...]]:
    """The numbers each unit follows; those of its name before it for `singleton`, the nearest
    only.
    """
    links: dict[str, tuple[str, ...]] = {}
    by_name: dict[tuple[Any, Any], list[str]] = {}
    for number in sorted(units, key=int):
        unit = units[number]
        row = unit.rows[0]
        same = by_name.setdefault((row["user"], row["name"]), [])
        leaders: dict[str, None] = {}
        for condition in unit.after.conditions:
            leader = parse_job_number(condition.job_id)
            if follows(condition) and leader and leader != number:
                leaders[leader] = None
            elif condition.kind == SINGLETON and same:
                leaders[same[-1]] = None
        links[number] = tuple(leaders)
        same.append(number)
    return links


def follows(condition: Condition) -> bool:
    """Whether it has a job follow another one; Torque writes afteranyarray."""
    return condition.kind.removesuffix("array") in FOLLOWS


def _connected(
    number: str, links: Mapping[str, Sequence[str]], units: Mapping[str, Unit]
) -> set[str]:
    neighbours: dict[str, set[str]] = {}
    for one, leaders in links.items():
        for leader in leaders:
            if leader in units:
                neighbours.setdefault(one, set()).add(leader)
                neighbours.setdefault(leader, set()).add(one)
    found = {number}
    ahead = [number]
    while ahead:
        for other in neighbours.get(ahead.pop(), ()):
            if other not in found:
                found.add(other)
                ahead.append(other)
    return found


def _places(members: set[str], links: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the length of the longest chain of jobs before each member.

    A cycle, which no scheduler allows, is cut where it closes.
    """
    places: dict[str, int] = {}
    # A job waits for jobs submitted before it, which have lower numbers, unless it was changed
    # later.
    for _ in range(2):
        for one in sorted(members, key=int):
            places[one] = max(
                (places.get(leader, 0) + 1 for leader in links[one] if leader in members), default=0
            )
    return places


def _joined_by_name(
    members: set[str],
    links: Mapping[str, Sequence[str]],
    units: Mapping[str, Unit],
    reported: Mapping[str, str],
) -> tuple[str, str] | None:
    """(one of the chain, the one before it), or (one after, one of the chain): of the same name,
    one at a time.

    The later is the next of that name, waited while the earlier ran and began after its end, and
    nothing tells what it waited for.
    """
    if not any(is_unknown(unit, reported) for unit in units.values()):
        return None
    names = {(units[one].rows[0]["user"], units[one].rows[0]["name"]) for one in members}
    same: dict[tuple[Any, Any], list[str]] = {}
    for number in sorted(units, key=int):
        row = units[number].rows[0]
        if (key := (row["user"], row["name"])) in names:
            same.setdefault(key, []).append(number)
    for numbers in same.values():
        for position, number in enumerate(numbers[1:], 1):
            earlier = numbers[position - 1]
            if (
                (number in members) == (earlier in members)
                or links[number]
                or not is_unknown(units[number], reported)
            ):
                continue
            if _waited_for(units[number], units[earlier]):
                return number, earlier
    return None


def _waited_for(later: Unit, earlier: Unit) -> bool:
    ended_at = earlier.ended_at
    began_at = later.began_at
    submitted_at = later.rows[0]["submitted_at"]
    if ended_at is None or submitted_at is None or earlier.began_at is None or began_at is None:
        return False
    return bool(submitted_at < ended_at <= began_at)


def one_at_a_time(unit: Unit) -> bool:
    """Whether an array's tasks run one after the other, as far as is known."""
    if unit.throttle is not None:
        return unit.throttle == 1
    return sum(row["state"] in ACTIVE for row in unit.rows) <= 1


class AppendWish(Struct, frozen=True):
    """Jobs to append to a chain: `count` jobs one after the other, or an `array`.

    `path` '' is the same script.
    """

    count: int = 1
    array: str = ""
    path: str = ""


def read_append(typed: str, *, is_array: bool) -> AppendWish:
    """Reads `3`, `1-10%1`, `3 ~/next.sh`, `next.sh`, ``; to an array 3 appends 1-3%1.

    Raises ValueError in words.
    """
    first, _, rest = typed.strip().partition(" ")
    path = rest.strip()
    if first.isascii() and first.isdecimal():
        count = int(first[:9])
        if not count:
            raise ValueError("none to append")
        return (
            AppendWish(array=f"1-{count}%1", path=path)
            if is_array
            else AppendWish(count, path=path)
        )
    if not first:
        return AppendWish()
    if not first[0].isdecimal():
        return AppendWish(path=typed.strip())
    return AppendWish(array=str(parse_tasks(first)), path=path)


def job_class(row: Row) -> str:
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
    """Count the elements of each class that occurs; a record of several tasks counts each."""
    counts = dict.fromkeys(CLASSES, 0)
    for row in rows:
        counts[job_class(row)] += row["_tasks"] or 1
    return {name: count for name, count in counts.items() if count}


def picture(rows: Sequence[Row], signs: Mapping[str, str], width: int = 76) -> str:
    """A line of at most `width` cells: `✓✓✗▸◦◦◦◦  2 done, 1 failed, 1 running, 4 waiting`.

    Longer chains have their runs counted, `✓412 ✗1 ▸1 ◦584`, and very mixed ones only the counts,
    of which no more than 44 cells are ever needed up to 9999 elements. `signs` maps states to signs
    of one cell.
    """
    counts = class_counts(rows)
    text = ", ".join(f"{count} {name}" for name, count in counts.items())
    runs = [
        (name, sum(row["_tasks"] or 1 for row in members))
        for name, members in groupby(rows, key=job_class)
    ]
    sign = {name: signs.get(SIGN_OF[name], "?") for name in CLASSES}
    strips = (
        ["".join(sign[name] * count for name, count in runs)]
        if sum(counts.values()) <= _MAX_SIGNS
        else []
    )
    strips.append(" ".join(f"{sign[name]}{count}" for name, count in runs))
    for strip in strips:
        if len(strip) + 2 + len(text) <= width:
            return f"{strip}  {text}".strip()
    return (
        text
        if len(text) <= width
        else " ".join(f"{sign[name]}{count}" for name, count in counts.items())
    )


def format_wait(unit: Unit, chain: JobChain) -> str:
    """Format the condition that a unit waits for or followed; '' if none is known.

    For example `after 12` or `after 12, succeeded`.
    """
    if unit.by_name:
        return f"after {', '.join(chain.before[unit.number])}, by its name"
    parts = []
    for condition in unit.after.conditions:
        if condition.kind == SINGLETON:
            parts.append("one at a time with its name")
        elif follows(condition):
            kind = (
                condition.kind.removesuffix("array")
                if condition.kind not in _WAITED
                else condition.kind
            )
            text = _WAITED[kind].format(condition.job_id)
            parts.append(
                f"{text} + {condition.delay_minutes} min" if condition.delay_minutes else text
            )
    return (" or " if unit.after.is_any else "; ").join(parts)


def format_lost(unit: Unit, chain: JobChain) -> str:
    """Format the reason that a waiting unit can never start; '' while it can."""
    if not unit.is_waiting:
        return ""
    return format_never(waits_for(unit.after, chain.rows), unit.after.is_any)


def latest_end(chain: JobChain, now: datetime) -> datetime | None:
    """Return the latest end of a chain: each element runs to its limit and waits for nothing else.

    None if an unfinished element has no known limit, and for a finished chain.
    """
    begins: dict[str, datetime] = {}
    ends: dict[str, datetime] = {}
    if not chain.living:
        return None
    for unit in chain.units:
        ready = now
        for condition in unit.after.conditions:
            known = begins if condition.kind == "after" else ends
            ready = max(ready, known.get(parse_job_number(condition.job_id), now))
        for leader in chain.before[unit.number]:
            if not unit.after.conditions or all(
                one.kind == SINGLETON for one in unit.after.conditions
            ):
                ready = max(ready, ends.get(leader, now))
        lasts = _latest_end(unit, ready, now)
        if lasts is None:
            return None
        begins[unit.number], ends[unit.number] = min(unit.began_at or ready, ready), lasts
    return max(ends.values())


def _latest_end(unit: Unit, ready: datetime, now: datetime) -> datetime | None:
    """Return when a unit ends if its running jobs, and then its waiting jobs, reach their limits.

    As many waiting jobs run at a time as the unit allows; None if an end or a limit is unknown.
    """
    end = ready
    waiting = 0
    limit_seconds = 0
    for row in unit.rows:
        if row["state"] in ACTIVE:
            if row["ends_at"] is None:
                return None
            end = max(end, row["ends_at"], now)
        elif job_class(row) in (WAITS, HELD):
            if row["limit_seconds"] is None:
                return None
            waiting += row["_tasks"] or 1
            limit_seconds = max(limit_seconds, row["limit_seconds"])
    at_once = unit.throttle or (1 if one_at_a_time(unit) else waiting) or 1
    return end + timedelta(seconds=-(-waiting // at_once) * limit_seconds)


def chain_notes(chain: JobChain) -> tuple[str, ...]:
    """Return notes on how the chain was put together, a sentence each."""
    notes = []
    for unit, followers in chain.branches:
        notes.append(f"a branch: {', '.join(followers)} follow {unit.number}")
    named = [unit.number for unit in chain.units if unit.by_name]
    if named:
        notes.append(f"linked by name; their dependencies are unknown: {', '.join(named)}")
    if chain.lost:
        notes.append(f"no longer listed: {', '.join(chain.lost)}")
    for unit in chain.units:
        if unit.is_array and not one_at_a_time(unit):
            at_once = f"{unit.throttle} at once" if unit.throttle else "in parallel"
            notes.append(f"the tasks of {unit.job_id} run {at_once}")
        if text := format_lost(unit, chain):
            notes.append(f"{unit.job_id} {text}")
    return tuple(notes)


def format_hold(rows: Iterable[Row], now: datetime) -> str:
    """Format the cost of a hold for eligible jobs; '' for none.

    Seen on Slurm 22.05.8: a hold keeps the time of submission, and a release resets the eligible
    time, from which a priority's age is counted. A job that waits for another job, or for its turn
    in an array, has no eligible time yet.
    """
    waits = [
        (now - row["eligible_at"]).total_seconds()
        for row in rows
        if job_class(row) == WAITS and row["eligible_at"] is not None and row["eligible_at"] <= now
    ]
    if not waits or max(waits) < 60:
        return ""
    return (
        f"a hold may reset the queue age of {len(waits)} that have waited up to "
        f"{format_span(max(waits))} for a turn"
    )
