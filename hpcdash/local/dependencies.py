"""Whether what a submission waits for has come about, by asking the queue's file. Changes nothing but `ready`."""

from __future__ import annotations

from hpcdash.local.database import Database
from hpcdash.local.job import ACTIVE
from hpcdash.local.request import Dependency, Request

MET, NOT_YET, NEVER = 1, 0, -1
_UNFINISHED = ("pending", *ACTIVE)
_ENDED_BADLY = ("failed", "timeout", "cancelled", "gone")


def judge(database: Database, number: int, request: Request, name: bytes) -> None:
    """Note, inside `writing`, whether a submission's pending jobs may start now, or never may."""
    verdicts = [_verdict(database, number, name, one) for one in request.dependencies]
    kinds = {verdict for verdict, _ in verdicts}
    if request.any_dependency:
        verdict = MET if MET in kinds else NEVER if kinds == {NEVER} else NOT_YET
    else:
        verdict = NEVER if NEVER in kinds else NOT_YET if NOT_YET in kinds else MET
    if verdict == NOT_YET:
        return
    database.change("UPDATE jobs SET ready = ? WHERE number = ? AND state = 'pending'", (verdict, number))
    not_before = max((at for _, at in verdicts if at is not None), default=None)
    if verdict == MET and not_before is not None:
        database.change(
            "UPDATE jobs SET begin_at = max(coalesce(begin_at, 0), ?) WHERE number = ?", (not_before, number)
        )


def _verdict(database: Database, number: int, name: bytes, one: Dependency) -> tuple[int, float | None]:
    """(the verdict; not before this time) on one condition."""
    if one.kind == "singleton":
        earlier = database.rows(
            "SELECT 1 FROM submissions JOIN jobs USING (number) WHERE submissions.name = ? AND number < ?"
            " AND state IN (?, ?, ?, ?) LIMIT 1",
            (name, number, *_UNFINISHED),
        )
        return NOT_YET if earlier else MET, None
    assert one.number is not None
    if one.kind == "after":
        if _any(database, one, ("pending",)):
            return NOT_YET, None
        # One that was cancelled before it began counts from then.
        begun = database.number(
            f"SELECT max(coalesce(started_at, ended_at)) FROM jobs WHERE {_which(one)}", _values(one)
        )
        return MET, None if not one.minutes or begun is None else begun + 60 * one.minutes
    if one.kind == "afterok" and _any(database, one, _ENDED_BADLY):
        return NEVER, None
    if _any(database, one, _UNFINISHED):
        return NOT_YET, None
    if one.kind == "afternotok":
        return MET if _any(database, one, _ENDED_BADLY) else NEVER, None
    return MET, None


def _any(database: Database, one: Dependency, states: tuple[str, ...]) -> bool:
    """Whether a job that is depended on is in one of some states."""
    marks = ",".join("?" * len(states))
    condition = f"SELECT 1 FROM jobs WHERE {_which(one)} AND state IN ({marks}) LIMIT 1"
    return bool(database.rows(condition, (*_values(one), *states)))


def _which(one: Dependency) -> str:
    return "number = ?" if one.task is None else "number = ? AND task = ?"


def _values(one: Dependency) -> tuple[int | None, ...]:
    return (one.number,) if one.task is None else (one.number, one.task)
