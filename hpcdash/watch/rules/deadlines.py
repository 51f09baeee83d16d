"""Is there time to save? A job's end before its next checkpoint, and a preemption's grace. Knows no scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from hpcdash.domain.states import JobState
from hpcdash.domain.units import format_duration
from hpcdash.watch.findings import Finding, Severity, shown
from hpcdash.watch.rules.rows import Row, rows_where
from hpcdash.watch.settings import CheckpointWatch

END = "end-before-save"
GRACE = "grace-too-short"
_ENDS_THE_JOB = frozenset({"cancel", "requeue", "checkpoint"})


@dataclass(frozen=True, slots=True)
class Saves:
    """How a job saves, and when its last save was over (an epoch; None: it has not saved yet, or nobody knows)."""

    job_id: str
    watch: CheckpointWatch
    last_saved_at: float | None = None


@dataclass(frozen=True, slots=True)
class QosFacts:
    """What a QoS does to its jobs when others need their place: `preempt_mode` in the scheduler's words, the cluster's
    own where the QoS says `cluster`; `grace_seconds` from the first signal to the end, None where it is not known."""

    name: str
    preempt_mode: str = ""
    grace_seconds: float | None = None


def end_before_save(jobs: pa.Table, saves: Iterable[Saves], now: float) -> list[Finding]:
    """One for each running job that reaches its time limit before its next save is over, and loses more than a save."""
    plans = list(saves)
    rows = _rows(jobs, plans, JobState.RUNNING)
    found = []
    for job in plans:
        row = rows.get(job.job_id)
        if row is None or row["ends_at"] is None:
            continue
        started = row["started_at"].timestamp() if row["started_at"] is not None else now
        last = max(job.last_saved_at, started) if job.last_saved_at is not None else started
        watch = job.watch
        ends = row["ends_at"].timestamp()
        saved = last + watch.interval_seconds + watch.save_seconds
        # A save that is late is begun any moment.
        saved = max(saved, now + watch.save_seconds)
        if ends >= saved + watch.spare_seconds or ends <= now:
            continue
        # Less training is lost than a save takes.
        if ends - last <= watch.save_seconds + watch.spare_seconds:
            continue
        can_save = ends - now >= watch.save_seconds + watch.spare_seconds
        words = (
            f"job {shown(job.job_id)} ends in {format_duration(ends - now)}, its next save is over in "
            f"{format_duration(saved - now)}: {format_duration(ends - last)} of training would be lost"
        )
        step = f"hpcdash save-switch {shown(job.job_id)}, or alter --time" if can_save else "hpcdash alter JOB --time"
        severity = Severity.WARNING if can_save else Severity.CRITICAL
        found.append(Finding(END, job.job_id, severity, words, step))
    return found


def grace_too_short(jobs: pa.Table, qos: Mapping[str, QosFacts], saves: Iterable[Saves]) -> list[Finding]:
    """One for each job that runs or waits in a QoS whose grace is shorter than a save; `qos` is by name."""
    plans = list(saves)
    rows = _rows(jobs, plans, JobState.RUNNING, JobState.PENDING, JobState.HELD)
    found = []
    for job in plans:
        row = rows.get(job.job_id)
        facts = qos.get(row["qos"] or "") if row is not None else None
        if facts is None or facts.grace_seconds is None or facts.grace_seconds >= job.watch.save_seconds:
            continue
        if not _ENDS_THE_JOB & set(facts.preempt_mode.lower().replace("+", ",").split(",")):
            continue
        words = (
            f"job {shown(job.job_id)}: its QoS {shown(facts.name)} preempts ({shown(facts.preempt_mode)}) with a grace "
            f"of {format_duration(facts.grace_seconds)}, a save takes {format_duration(job.watch.save_seconds)}"
        )
        step = "Save more often, or take a QoS that is not preempted."
        found.append(Finding(GRACE, job.job_id, Severity.WARNING, words, step))
    return found


def _rows(jobs: pa.Table, saves: Iterable[Saves], *states: JobState) -> dict[str, Row]:
    """By id, of the jobs that are meant and in one of the states."""
    wanted = [job.job_id for job in saves]
    return {row["id"]: row for row in rows_where(jobs, id=wanted, state=tuple(map(str, states)))}
