"""Dependencies of a job in both directions: as schedulers write them, as text, as a small tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpcdash.domain.job_ids import parse_array_id, parse_job_id, parse_job_number, split_ids
from hpcdash.domain.states import ACTIVE, ENDED, ENDED_BADLY, JobState

_CONDITION = re.compile(r"([a-z]+)(?::([^()]*))?(?:\(([a-z]+)\))?", re.IGNORECASE)
# Slurm's 123, 123_*, 123_4, 123+5 (minutes); PBS's 123.server, 123[].server and @server after each.
_JOB = re.compile(
    r"([0-9]{1,12}(?:\[[0-9]{0,10}\])?(?:\.[A-Za-z][\w.-]*)?)(?:_(\*|[0-9]{1,10}))?(?:@[\w.-]+)?(?:\+([0-9]{1,10}))?"
)
SINGLETON = "singleton"
# What a request may wait for; without one, an end of any kind.
AFTER_KINDS = ("afterany", "afterok", "afternotok", "after")
# A chain of dependents is shown to this depth, and no more rows than this in all.
_MAX_DEPTH = 3
_MAX_ROWS = 20
_MEANING = {
    "after": "after it starts",
    "afterok": "after success",
    "afternotok": "after failure",
    "afterany": "after it ends",
    "aftercorr": "each task after the same task succeeds",
    "afterburstbuffer": "after its burst buffer is written back",
    "expand": "to grow into it",
    "before": "starts after this one starts",
    "beforeok": "starts after this one succeeds",
    "beforenotok": "starts after this one fails",
    "beforeany": "starts after this one ends",
}
_ARRAY_MEANING = {
    "afterok": "after all its tasks succeed",
    "afternotok": "after all its tasks end, at least one failed",
    "afterany": "after all its tasks end",
    "after": "after all its tasks start",
}

Row = Mapping[str, Any]


def parse_after(text: str) -> tuple[str, ...]:
    """Parse a dependency into a request's `after`.

    `12,afterok:13:14` becomes `12`, `afterok:13`, `afterok:14`. Raises ValueError for an invalid
    item.
    """
    found: dict[str, None] = {}
    for word in split_ids(text):
        kind, colon, jobs = word.partition(":")
        if colon and kind not in AFTER_KINDS:
            raise ValueError(f"{word!r}: {kind!r} is not one of {', '.join(AFTER_KINDS)}")
        for job in (jobs if colon else word).split(":"):
            found.setdefault(f"{kind}:{parse_job_id(job)}" if colon else str(parse_job_id(job)))
    return tuple(found)


def split_after(text: str) -> tuple[str, str]:
    """(kind, job id) of one of a request's `after`: `afterok:12`, or `12`, whose end is waited for
    however it ends.
    """
    kind, colon, job_id = text.partition(":")
    return (kind, job_id) if colon and kind in AFTER_KINDS else (AFTER_KINDS[0], text)


def format_after(after: Iterable[str]) -> str:
    """`afterany:14,afterok:12:13`, as Slurm, PBS and the embedded queue read it."""
    by_kind: dict[str, list[str]] = {}
    for kind, job_id in map(split_after, after):
        by_kind.setdefault(kind, []).append(job_id)
    return ",".join(":".join((kind, *ids)) for kind, ids in by_kind.items())


class Condition(Struct, frozen=True):
    """One of a dependency's parts: what must be true of which job.

    `job_id` is '' for `singleton`; `is_array`: all of an array's tasks are meant. `said` is what
    the scheduler says of it: 'unfulfilled', 'failed', ….
    """

    kind: str
    job_id: str = ""
    is_array: bool = False
    delay_minutes: int | None = None
    said: str = ""

    def text(self) -> str:
        """`once it succeeded`."""
        if self.kind == SINGLETON:
            return "once every job of its owner with this name has ended"
        meaning = (_ARRAY_MEANING if self.is_array else _MEANING).get(self.kind) or _MEANING.get(
            self.kind, self.kind
        )
        return (
            f"{self.delay_minutes} min {meaning.replace('once', 'after', 1)}"
            if self.delay_minutes
            else meaning
        )

    def can_never_be(self, states: Sequence[str]) -> bool:
        """Whether the other job, or tasks of it, ended in a way that rules it out."""
        if self.said == "failed":
            return True
        if self.kind in ("afterok", "aftercorr"):
            bad = [state in ENDED_BADLY and state != JobState.GONE for state in states]
            # Of aftercorr only the tasks whose own counterpart failed are lost.
            return bool(bad) and (any(bad) if self.kind == "afterok" else all(bad))
        return (
            self.kind == "afternotok"
            and bool(states)
            and all(state == JobState.COMPLETED for state in states)
        )


class Dependency(Struct, frozen=True):
    """Conditions, all of which must be true, or any one."""

    conditions: tuple[Condition, ...] = ()
    is_any: bool = False

    @property
    def job_ids(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(condition.job_id for condition in self.conditions if condition.job_id)
        )

    def names(self, job_id: str, array_id: str | None) -> Condition | None:
        """The condition that speaks of a job: of itself, or of the array it is a task of."""
        own_array_id = array_id or parse_array_id(job_id)
        for condition in self.conditions:
            if condition.job_id == job_id or (
                condition.job_id == own_array_id and (condition.is_array or array_id)
            ):
                return condition
        return None


def parse_dependency(text: str | None) -> Dependency:
    """Reads `afterok:123_*(unfulfilled),afterany:124`, `afterok:1?afternotok:3`, `after:1+5`,
    `afterany:9.server:15[].server`, `singleton`.

    What cannot be read is left out: a dependency is shown as it was written as well.
    """
    if not text:
        return Dependency()
    conditions: list[Condition] = []
    for part in re.split("[,?]", text):
        found = _CONDITION.fullmatch(part.strip())
        if found is None:
            continue
        kind = found[1].lower()
        jobs = found[2]
        reported = (found[3] or "").lower()
        if kind == "on":
            # PBS: so many jobs that will name this one; it names none itself.
            continue
        if not jobs:
            if kind == SINGLETON:
                conditions.append(Condition(kind, said=reported))
            continue
        for job in jobs.split(":"):
            named = _JOB.fullmatch(job.strip())
            if named is not None:
                number, task, delay = named.groups()
                job_id = f"{number}_{task}" if task and task != "*" else number
                is_array = task == "*" or "[]" in number
                conditions.append(
                    Condition(kind, job_id, is_array, int(delay) if delay else None, reported)
                )
    return Dependency(tuple(conditions), is_any="?" in text)


class Branch(Struct, frozen=True):
    """A line of the tree: a job, what is known about it, and how it depends on the one above it.

    `states` counts the job or its tasks by state; {} if nothing is known.
    """

    job_id: str
    name: str
    states: Mapping[str, int]
    text: str
    depth: int = 0
    is_hopeless: bool = False


def waits_for(dependency: Dependency, rows: Iterable[Row]) -> list[Branch]:
    """Return the jobs that a job depends on, with their state in `rows` (domain.schema.JOBS)."""
    known = list(rows)
    branches = []
    for condition in dependency.conditions:
        job_tables = (
            [row for row in known if condition.job_id in (row["id"], row["array_id"])]
            if condition.job_id
            else []
        )
        states = _states(job_tables)
        branches.append(
            Branch(
                condition.job_id,
                str(job_tables[0]["name"] or "") if job_tables else "",
                states,
                condition.text(),
                is_hopeless=condition.can_never_be(list(states)),
            )
        )
    return branches


def waited_for_by(job_id: str, array_id: str | None, rows: Iterable[Row]) -> list[Branch]:
    """Return the jobs that wait for a job, and the jobs that wait for these.

    `rows` are the jobs that have a dependency.
    """
    # Job 9 comes before job 10.
    waiting = sorted(
        (row for row in rows if row["dependency"]),
        key=lambda row: (len(parse_job_number(row["id"])), row["id"]),
    )
    parsed = [(row, parse_dependency(row["dependency"])) for row in waiting]
    branches: list[Branch] = []
    seen = {job_id}

    def add(job_id: str, array_id: str | None, depth: int) -> None:
        for row, dependency in parsed:
            condition = dependency.names(job_id, array_id)
            if condition is None or row["id"] in seen or len(branches) >= _MAX_ROWS:
                continue
            seen.add(row["id"])
            branches.append(
                Branch(row["id"], str(row["name"] or ""), _states([row]), condition.text(), depth)
            )
            if depth + 1 < _MAX_DEPTH:
                add(str(row["array_id"] or row["id"]), row["array_id"], depth + 1)

    add(job_id, array_id, 0)
    return branches


def format_never(branches: Sequence[Branch], is_any: bool) -> str:
    """Format advice on a dependency that can never be fulfilled; '' while it can."""
    lost = [branch.job_id for branch in branches if branch.is_hopeless]
    if not lost or (is_any and len(lost) < len(branches)):
        return ""
    which = " and ".join(lost) or "its condition"
    return f"can never start: {which} did not end that way; cancel it, or change its dependency"


def _states(rows: Sequence[Row]) -> dict[str, int]:
    states: dict[str, int] = {}
    for row in rows:
        state = str(row["state"])
        states[state] = states.get(state, 0) + (row["_tasks"] or 1)
    rank: dict[str, int] = {**dict.fromkeys(ACTIVE, 0), **dict.fromkeys(ENDED, 2)}
    return dict(sorted(states.items(), key=lambda pair: rank.get(pair[0], 1)))
