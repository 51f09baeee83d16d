"""Job chains: found by the dependencies of jobs, and described as text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby, pairwise
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
# A row with more tasks than this counts as a whole.
_MAX_SINGLE_TASKS = 100_000
_NOTHING = Dependency()
# The scheduler's state in a row whose state differs here.
TOLD_STATE = "_told_state"
# sbatch's --dependency=…, -d …; qsub's -W depend=… (other attributes may stand before it).
_ON_A_LINE = re.compile(r"(?:^|\s)(?:--dep\w*(?:=|\s+)|-d\s*|-W\s*[^\s]*?depend=)([^\s]+)")
_BARE_IDS = re.compile(r"[0-9]+(?:_[0-9]+)?(?:[:,][0-9]+(?:_[0-9]+)?)*")
DONE = "done"
FAILED = "failed"
CANCELLED = "cancelled"
RUNNING = "running"
WAITS = "waiting"
HELD = "held"
UNKNOWN = "unknown"
# The classes in the order of their counts, with the state that has the sign of the class.
CLASSES = {
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
    "after": "after {} starts",
    "aftercorr": "each task after the same task of {}",
}


class Unit(Struct, frozen=True):
    """A job, or an array with all of its tasks; `rows` are of domain.schema.JOBS, in the order of
    their tasks.

    `after` is what it waits or waited for, `place` the largest number of units before it. A unit is
    linked `by_name` if nothing is known of what it followed, but it has the name of the unit
    before, waited while that ran and started after its end.
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
    def name_key(self) -> tuple[Any, Any]:
        """Owner and name, the same for units that may be linked by name."""
        return self.rows[0]["user"], self.rows[0]["name"]

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
        """The end of the last task; None while a task has not ended, and if it is unreported."""
        ends = [row["ends_at"] for row in self.rows]
        return max(ends) if self.has_ended and None not in ends else None


class JobChain(Struct, frozen=True):
    """Units in the order they run in; `before` maps a unit's number to the known units it follows.

    `lost` are the numbers of jobs that units followed and that are no longer listed. `unsure` are
    the IDs, likeliest first, of units with unknown predecessors: of the chain, and others with
    their name.
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
        """Whether it is a single plain job without followers."""
        return len(self.units) == 1 and not self.units[0].is_array and not self.lost

    def find_unit(self, job_id: str) -> Unit | None:
        number = parse_job_number(job_id)
        return next((unit for unit in self.units if unit.number == number), None)

    def after(self, number: str) -> tuple[str, ...]:
        """Return the numbers of the units that follow a unit."""
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
            # A follower that also waits for another follower comes later.
            direct = tuple(
                number for number in self.after(unit.number) if places[number] == unit.place + 1
            )
            if len(direct) > 1:
                found.append((unit, direct))
        return tuple(found)


def find_chain(
    job_id: str, rows: Iterable[Row], reported: Mapping[str, str] | None = None
) -> JobChain:
    """Find the chain of a job, of a task's array, or of an array.

    `rows` are those of its owner, the freshest first. `reported` maps a job's number to the
    dependency it was submitted with, '' for none, for jobs whose row has none (any more). Empty if
    no row is of the job.
    """
    reported = reported or {}
    units = _units(rows, reported)
    start = parse_job_number(job_id)
    if start not in units:
        return JobChain((), {})
    links = _links(units)
    named: set[str] = set()
    members = _connected(start, links, units)
    while (found := _joined_by_name(members, links, units, reported)) is not None:
        follower, leader = found
        links[follower] = (leader,)
        named.add(follower)
        members = _connected(start, links, units)
    places = _places(members, links)
    placed: list[Unit] = []
    before: dict[str, tuple[str, ...]] = {}
    lost: dict[str, None] = {}
    for number in sorted(members, key=lambda number: (places[number], int(number))):
        placed.append(replace(units[number], place=places[number], by_name=number in named))
        before[number] = tuple(leader for leader in links[number] if leader in members)
        lost.update(dict.fromkeys(leader for leader in links[number] if leader not in units))
    return JobChain(tuple(placed), before, tuple(lost), _unsure(placed, units, reported))


def living_targets(
    chain: JobChain, among: Collection[str] | None = None
) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """Return the IDs and rows of the jobs that have not ended, the last first.

    In that order no job starts because the job before it is cancelled. `among` are the IDs of the
    selected rows, None for all. Tasks have the IDs of their rows: an array's number would include
    ended tasks, which schedulers refuse.
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
    names = {unit.name_key for unit in chain}
    members = {unit.number for unit in chain}
    ends = [ended_at for unit in chain if (ended_at := unit.ended_at) is not None]
    first = min((int(number) for number in members), default=0)
    likely: list[Unit] = []
    for number in sorted(units, key=int):
        unit = units[number]
        is_later = number not in members and int(number) > first
        if not is_later or unit.is_waiting or unit.name_key not in names or not ends:
            continue
        is_after_end = unit.began_at is None or unit.began_at >= min(ends)
        if is_after_end and is_unknown(unit, reported):
            likely.append(unit)
    return tuple(unit.job_id for unit in (*own, *likely))


def is_unknown(unit: Unit, reported: Mapping[str, str]) -> bool:
    """Whether it is unknown what a unit followed, if anything."""
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
    """Build the units by number; of several rows of a job or task the first counts."""
    members: dict[str, list[Row]] = {}
    known_tasks: dict[str, set[int]] = {}
    known_ids: set[str] = set()
    for row in rows:
        number = parse_job_number(str(row["id"]))
        if not number or row["id"] in known_ids:
            continue
        tasks = _row_tasks(row)
        seen = known_tasks.setdefault(number, set())
        if tasks is None or tasks.count > _MAX_SINGLE_TASKS:
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


def _as_pending(row: Row) -> Row:
    """Return a row that PBS holds for its dependency as pending, since nobody held it.

    Whether its owner holds it too is unreported; TOLD_STATE has the original state.
    """
    reason = (row["reason"] or "").lower()
    is_by_pbs = "depend" in reason or "by pbs" in reason
    if row["state"] == JobState.HELD and row["dependency"] and is_by_pbs:
        return {**row, "state": str(JobState.PENDING), TOLD_STATE: row["state"]}
    return row


def _unit(number: str, rows: list[Row], reported: Mapping[str, str]) -> Unit:
    rows.sort(key=lambda row: row["_task"] if row["_task"] is not None else -1)
    text = next((row["dependency"] for row in rows if row["dependency"]), None) or reported.get(
        number
    )
    # sacct has what is left of a cancelled array as a job of its number.
    job_id = str(next((row["array_id"] for row in rows if row["array_id"]), rows[0]["id"]))
    throttles = (tasks.throttle for row in rows if (tasks := _row_tasks(row)) is not None)
    return Unit(
        job_id,
        tuple(map(_as_pending, rows)),
        parse_dependency(text),
        throttle=next(filter(None, throttles), None),
    )


def _row_tasks(row: Row) -> ArrayTasks | None:
    return None if row["array_id"] is None else read_tasks(row["array_task"])


def _links(units: Mapping[str, Unit]) -> dict[str, tuple[str, ...]]:
    """Return the numbers that each unit follows; for `singleton` the nearest before it with its
    name.
    """
    links: dict[str, tuple[str, ...]] = {}
    latest: dict[tuple[Any, Any], str] = {}
    for number in sorted(units, key=int):
        unit = units[number]
        leaders: dict[str, None] = {}
        for condition in unit.after.conditions:
            leader = parse_job_number(condition.job_id)
            if follows(condition) and leader and leader != number:
                leaders[leader] = None
            elif condition.kind == SINGLETON and unit.name_key in latest:
                leaders[latest[unit.name_key]] = None
        links[number] = tuple(leaders)
        latest[unit.name_key] = number
    return links


def follows(condition: Condition) -> bool:
    """Whether a condition has a job follow another job; Torque writes afteranyarray."""
    return condition.kind.removesuffix("array") in FOLLOWS


def _connected(
    number: str, links: Mapping[str, Sequence[str]], units: Mapping[str, Unit]
) -> set[str]:
    """Return the numbers of all units that are linked, over any others, with a unit."""
    neighbours: defaultdict[str, set[str]] = defaultdict(set)
    for follower, leaders in links.items():
        for leader in leaders:
            if leader in units:
                neighbours[follower].add(leader)
                neighbours[leader].add(follower)
    found = {number}
    ahead = [number]
    while ahead:
        new = neighbours[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def _places(members: set[str], links: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the length of the longest chain of jobs before each member.

    A cycle, which no scheduler allows, is cut where it closes.
    """
    places: dict[str, int] = {}
    # A job waits for jobs submitted before it, which have lower numbers, unless it was changed
    # later.
    for _ in range(2):
        for number in sorted(members, key=int):
            leaders = members.intersection(links[number])
            places[number] = max((places.get(leader, 0) + 1 for leader in leaders), default=0)
    return places


def _joined_by_name(
    members: set[str],
    links: Mapping[str, Sequence[str]],
    units: Mapping[str, Unit],
    reported: Mapping[str, str],
) -> tuple[str, str] | None:
    """Return the numbers of two units, of which one is a member, that are linked by their name.

    The first is the next unit with the name of the second, waited while that ran and started after
    its end, and it is unknown what it waited for.
    """
    if not any(is_unknown(unit, reported) for unit in units.values()):
        return None
    names = {units[number].name_key for number in members}
    by_name: dict[tuple[Any, Any], list[Unit]] = {}
    for unit in sorted(units.values(), key=lambda unit: int(unit.number)):
        if unit.name_key in names:
            by_name.setdefault(unit.name_key, []).append(unit)
    for namesakes in by_name.values():
        for earlier, later in pairwise(namesakes):
            is_extension = (later.number in members) != (earlier.number in members)
            is_free = not links[later.number] and is_unknown(later, reported)
            if is_extension and is_free and _waited_for(later, earlier):
                return later.number, earlier.number
    return None


def _waited_for(later: Unit, earlier: Unit) -> bool:
    ended_at = earlier.ended_at
    began_at = later.began_at
    submitted_at = later.rows[0]["submitted_at"]
    if ended_at is None or submitted_at is None or earlier.began_at is None or began_at is None:
        return False
    return bool(submitted_at < ended_at <= began_at)


def one_at_a_time(unit: Unit) -> bool:
    """Whether an array's tasks run one after the other, as far as known."""
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
    """Parse `3`, `1-10%1`, `3 ~/next.sh`, `next.sh` or ``; to an array 3 appends 1-3%1.

    Raises ValueError with a message for a person.
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
    """Return the class of a row, one of CLASSES."""
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
    """Draw a chain in `width` cells: `✓✓✗▸◦◦◦◦  2 done, 1 failed, 1 running, 4 waiting`.

    Longer chains have their runs counted, `✓412 ✗1 ▸1 ◦584`, and very mixed chains only the counts,
    which need at most 44 cells up to 9999 elements. `signs` maps states to signs of one cell.
    """
    counts = class_counts(rows)
    text = ", ".join(f"{count} {name}" for name, count in counts.items())
    runs = [
        (name, sum(row["_tasks"] or 1 for row in members))
        for name, members in groupby(rows, key=job_class)
    ]
    sign = {name: signs.get(state, "?") for name, state in CLASSES.items()}
    lines = [" ".join(f"{sign[name]}{count}" for name, count in runs) + f"  {text}", text]
    if sum(counts.values()) <= _MAX_SIGNS:
        lines.insert(0, "".join(sign[name] * count for name, count in runs) + f"  {text}")
    shortest = " ".join(f"{sign[name]}{count}" for name, count in counts.items())
    return next((line.strip() for line in lines if len(line) <= width), shortest)


def format_wait(unit: Unit, chain: JobChain) -> str:
    """Format the condition that a unit waits for or followed; '' if none is known.

    For example `after 12` or `after 12, succeeded`.
    """
    if unit.by_name:
        return f"after {', '.join(chain.before[unit.number])}, by name"
    parts = []
    for condition in unit.after.conditions:
        if condition.kind == SINGLETON:
            parts.append("one at a time with this name")
        elif follows(condition):
            text = _WAITED[condition.kind.removesuffix("array")].format(condition.job_id)
            delay = f" + {condition.delay_minutes} min" if condition.delay_minutes else ""
            parts.append(f"{text}{delay}")
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
        if all(condition.kind == SINGLETON for condition in unit.after.conditions):
            ready = max((ready, *(ends.get(leader, now) for leader in chain.before[unit.number])))
        end = _latest_end(unit, ready, now)
        if end is None:
            return None
        begins[unit.number] = min(unit.began_at or ready, ready)
        ends[unit.number] = end
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
        notes.append(f"linked by name (dependencies unknown): {', '.join(named)}")
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
        f"a hold may reset the queue age of {len(waits)} eligible jobs (up to "
        f"{format_span(max(waits))})"
    )
