"""Is there time to save? A job's end before its next checkpoint, and a preemption's grace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from msgspec import Struct

from hpcdash.config.watch_settings import CheckpointWatch
from hpcdash.domain.alerts import Finding, Severity, format_job, shown
from hpcdash.domain.states import JobState
from hpcdash.domain.units import MINUTE, format_span
from hpcdash.services.watch.rules.rows import Row, rows_where

END = "end-before-save"
GRACE = "grace-too-short"
NO_SAVE = "no-save"
# This many intervals without a save, plus the time of one, are reported: a single late save is not.
MISSED_INTERVALS = 3
_ENDS_THE_JOB = frozenset({"cancel", "requeue", "checkpoint"})


class Saves(Struct, frozen=True):
    """Checkpoint schedule of a job and the time of its last save.

    `last_saved_at` is an epoch second (None: not saved yet, or unknown). `place`, a folder or a
    pattern of files, is where its saves are searched, '' if unknown; `newest` is the last one's
    name, as far as it is known. `is_folder`: the search is for whole checkpoints in it.
    """

    job_id: str
    watch: CheckpointWatch
    last_saved_at: float | None = None
    place: str = ""
    newest: str = ""
    is_folder: bool = True

    @property
    def longest_seconds(self) -> float:
        """After so long without a save it does not save."""
        return MISSED_INTERVALS * self.watch.interval_seconds + self.watch.save_seconds

    def unsaved_since(self, row: Row, now: float) -> float:
        """The epoch of its last save, or of its start: an earlier job's save keeps nothing of this
        one.
        """
        started: float = row["started_at"].timestamp() if row["started_at"] is not None else now
        return max(self.last_saved_at, started) if self.last_saved_at is not None else started


class GraceFacts(Struct, frozen=True):
    """Effect of preemption on the jobs of a QoS, or a queue.

    `preempt_mode` is in the scheduler's terms, '' if unreported; `grace_seconds` runs from the
    first signal to the end, None if unknown. `is_preempted`: other jobs can preempt its jobs.
    """

    name: str
    preempt_mode: str = ""
    grace_seconds: float | None = None
    is_preempted: bool = True


def end_before_save(jobs: pa.Table, saves: Iterable[Saves], now: float) -> list[Finding]:
    """One for each running job that reaches its time limit before its next save is over, and loses
    more than a save.
    """
    plans = list(saves)
    rows = _rows(jobs, plans, JobState.RUNNING)
    found = []
    for job in plans:
        row = rows.get(job.job_id)
        if row is None or row["ends_at"] is None:
            continue
        last = job.unsaved_since(row, now)
        watch = job.watch
        ends = row["ends_at"].timestamp()
        saved = last + watch.interval_seconds + watch.save_seconds
        is_late = saved < now
        # A save that is late is begun any moment; one that has not come for long, an interval from
        # now at best.
        is_stopped = bool(job.place) and now - last > job.longest_seconds
        saved = max(
            saved, now + watch.save_seconds + (watch.interval_seconds if is_stopped else 0.0)
        )
        if ends >= saved + watch.spare_seconds or ends <= now:
            continue
        # Less training is lost than a save takes.
        if ends - last <= watch.save_seconds + watch.spare_seconds:
            continue
        can_save = ends - now >= watch.save_seconds + watch.spare_seconds
        if not is_late:
            why = f" but finishes its next save in {_span(saved - now)}: "
        elif job.place:
            why = f" and has not saved for {_span(now - last)}: "
        else:
            why = " and its last save is unknown: up to "
        text = f"{format_job(job.job_id, row['name'])} ends in {_span(ends - now)}{why}"
        text += f"{_span(ends - last)} of training would be lost"
        longer = f"hpcdash alter {shown(job.job_id)} --time"
        step = f"hpcdash save-switch {shown(job.job_id)}, or {longer}" if can_save else longer
        severity = Severity.WARNING if can_save else Severity.CRITICAL
        found.append(Finding(END, job.job_id, severity, text, step, name=row["name"] or ""))
    return found


def no_save(jobs: pa.Table, saves: Iterable[Saves], now: float) -> list[Finding]:
    """One for each running job whose saves are looked for, at `now`, and that has missed
    MISSED_INTERVALS of them.
    """
    plans = [job for job in saves if job.place]
    rows = _rows(jobs, plans, JobState.RUNNING)
    found = []
    for job in plans:
        row = rows.get(job.job_id)
        if row is None:
            continue
        silent = now - job.unsaved_since(row, now)
        if silent <= job.longest_seconds:
            continue
        missed = int(silent / job.watch.interval_seconds)
        who, place = format_job(job.job_id, row["name"]), shown(job.place)
        if job.last_saved_at is None:
            newest = f"no {'complete checkpoint' if job.is_folder else 'file'} yet: {place}"
        else:
            what = "the newest complete checkpoint" if job.is_folder else "the newest file"
            name = f", {shown(job.newest)}," if job.newest else ""
            newest = f"{what}{name} is {_span(now - job.last_saved_at)} old: {place}"
        text = (
            f"{who}: no save in {missed} intervals of {_span(job.watch.interval_seconds)}; {newest}"
        )
        step = f"hpcdash log {shown(job.job_id)} -f; hpcdash save-switch {shown(job.job_id)}"
        found.append(
            Finding(NO_SAVE, job.job_id, Severity.WARNING, text, step, name=row["name"] or "")
        )
    return found


def grace_too_short(
    jobs: pa.Table,
    qos: Mapping[str, GraceFacts],
    saves: Iterable[Saves],
    queues: Mapping[str, GraceFacts] | None = None,
) -> list[Finding]:
    """One for each job or array that runs or waits where it may be preempted with a grace shorter
    than a save.

    `qos` and `queues` are by name. Where the QoS has to make way but does not say how, its queue
    does.
    """
    plans = list(saves)
    rows = _rows(jobs, plans, JobState.RUNNING, JobState.PENDING, JobState.HELD)
    found: dict[str, Finding] = {}
    for job in plans:
        row = rows.get(job.job_id)
        if row is None:
            continue
        own, queue = qos.get(row["qos"] or ""), (queues or {}).get(first_queue(row))
        if own is not None and own.is_preempted:
            facts, what = own, "QoS"
        elif queue is not None and queue.is_preempted:
            facts, what = queue, "partition"
        else:
            continue
        mode = facts.preempt_mode or (queue.preempt_mode if queue is not None else "")
        if facts.grace_seconds is None or facts.grace_seconds >= job.watch.save_seconds:
            continue
        if not _ENDS_THE_JOB & set(mode.lower().replace("+", ",").split(",")):
            continue
        # All tasks of an array have the same, and it is reported once.
        subject = str(row["array_id"] or row["id"])
        text = (
            f"{format_job(subject, row['name'])}: its {what} {shown(facts.name)} is preemptible "
            f"({shown(mode)}) "
            f"with {_span(facts.grace_seconds)} of grace; a save takes "
            f"{_span(job.watch.save_seconds)}"
        )
        step = f"Save more often, or use a {what} that is not preemptible."
        found.setdefault(
            subject, Finding(GRACE, subject, Severity.WARNING, text, step, name=row["name"] or "")
        )
    return list(found.values())


def first_queue(row: Mapping[str, Any]) -> str:
    """The first of the partitions that a job names, '' where it names none."""
    return str(row["queue"] or "").partition(",")[0]


def _rows(jobs: pa.Table, saves: Iterable[Saves], *states: JobState) -> dict[str, Row]:
    """By id, of the jobs that are meant and in one of the states."""
    requested = [job.job_id for job in saves]
    return {row["id"]: row for row in rows_where(jobs, id=requested, state=tuple(map(str, states)))}


def _span(seconds: float) -> str:
    """Format a span like format_span, but to the second below ten minutes.

    A grace of 90 s is less than a save of 100 s.
    """
    return f"{seconds:.0f} s" if MINUTE <= seconds < 10 * MINUTE else format_span(seconds)
