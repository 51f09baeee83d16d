"""Dependencies of a job in both directions: as schedulers write them, as text, as a small tree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpcdash.domain.job_ids import (
    parse_array_id,
    parse_job_id,
    parse_job_number,
    plain_id,
    split_ids,
)
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
    "afterburstbuffer": "after burst buffer stage-out",
    "expand": "to expand that job",
    "before": "starts after this one starts",
    "beforeok": "starts after this one succeeds",
    "beforenotok": "starts after this one fails",
    "beforeany": "starts after this one ends",
}
_ARRAY_MEANING = {
    "afterok": "after all tasks succeed",
    "afternotok": "after all tasks end, if at least one failed",
    "afterany": "after all tasks end",
    "after": "after all tasks start",
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
    """Split an item of a request's `after` into its kind and job ID: `afterok:12`, or `12` for
    afterany.
    """
    kind, colon, job_id = text.partition(":")
    return (kind, job_id) if colon and kind in AFTER_KINDS else (AFTER_KINDS[0], text)


def format_after(after: Iterable[str]) -> str:
    """Format `afterany:14,afterok:12:13`, as Slurm, PBS and the embedded queue read it."""
    by_kind: dict[str, list[str]] = {}
    for kind, job_id in map(split_after, after):
        by_kind.setdefault(kind, []).append(job_id)
    return ",".join(":".join((kind, *ids)) for kind, ids in by_kind.items())


class Condition(Struct, frozen=True):
    """Condition of a dependency on a job, or on all tasks of an array (`is_array`).

    `job_id` is '' for `singleton`; `status` is the scheduler's: 'unfulfilled', 'failed', ….
    """

    kind: str
    job_id: str = ""
    is_array: bool = False
    delay_minutes: int | None = None
    status: str = ""

    def text(self) -> str:
        """Format the condition, as `after success`."""
        if self.kind == SINGLETON:
            return "after all jobs of the owner with this name have ended"
        meanings = _MEANING | _ARRAY_MEANING if self.is_array else _MEANING
        meaning = meanings.get(self.kind, self.kind)
        return f"{self.delay_minutes} min {meaning}" if self.delay_minutes else meaning

    def is_hopeless(self, states: Sequence[str]) -> bool:
        """Whether the other job, or its tasks, ended in states that rule it out."""
        if self.status == "failed":
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

    def find_condition(self, job_id: str, array_id: str | None) -> Condition | None:
        """Return the condition on a job or on its array; conditions do not name its cluster."""
        job_id = plain_id(job_id)[0]
        own_array_id = plain_id(array_id or parse_array_id(job_id))[0]
        for condition in self.conditions:
            if condition.job_id == job_id or (
                condition.job_id == own_array_id and (condition.is_array or array_id)
            ):
                return condition
        return None


def parse_dependency(text: str | None) -> Dependency:
    """Parse `afterok:123_*(unfulfilled),afterany:124`, `afterok:1?afternotok:3`, `after:1+5`,
    `afterany:9.server:15[].server`, `singleton`.

    Unknown parts are left out, as the original text is shown too.
    """
    if not text:
        return Dependency()
    conditions: list[Condition] = []
    for part in re.split("[,?]", text):
        found = _CONDITION.fullmatch(part.strip())
        if found is None:
            continue
        kind = found[1].lower()
        status = (found[3] or "").lower()
        if kind == "on":
            # PBS: a number of jobs that will name this job; it names none itself.
            continue
        if kind == SINGLETON and not found[2]:
            conditions.append(Condition(kind, status=status))
        for job in (found[2] or "").split(":"):
            named = _JOB.fullmatch(job.strip())
            if named is not None:
                number, task, delay = named.groups()
                job_id = f"{number}_{task}" if task and task != "*" else number
                is_array = task == "*" or "[]" in number
                conditions.append(
                    Condition(kind, job_id, is_array, int(delay) if delay else None, status)
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
    """Return the jobs that a job depends on, with their state in `rows` (domain.schema.JOBS).

    `rows` are of its cluster, which conditions do not name.
    """
    known = [
        (row, {plain_id(str(row[name]))[0] for name in ("id", "array_id") if row[name]})
        for row in rows
    ]
    branches = []
    for condition in dependency.conditions:
        job_id = condition.job_id
        members = [row for row, ids in known if job_id in ids]
        name = str(members[0]["name"] or "") if members else ""
        states = _state_counts(members)
        is_hopeless = condition.is_hopeless(list(states))
        branches.append(Branch(job_id, name, states, condition.text(), is_hopeless=is_hopeless))
    return branches


def waited_for_by(job_id: str, array_id: str | None, rows: Iterable[Row]) -> list[Branch]:
    """Return the jobs that wait for a job, and the jobs that wait for these.

    `rows` are the jobs of its cluster that have a dependency.
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
            condition = dependency.find_condition(job_id, array_id)
            if condition is None or row["id"] in seen or len(branches) >= _MAX_ROWS:
                continue
            seen.add(row["id"])
            branches.append(
                Branch(
                    row["id"], str(row["name"] or ""), _state_counts([row]), condition.text(), depth
                )
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
    return (
        f"can never start: {which} did not end as required; cancel the job or change the dependency"
    )


def _state_counts(rows: Sequence[Row]) -> dict[str, int]:
    """Count the tasks in each state: active, waiting, then ended."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[str(row["state"])] += row["_tasks"] or 1
    return dict(sorted(counts.items(), key=lambda pair: (pair[0] in ENDED, pair[0] not in ACTIVE)))
