"""Is there time to save? A job's end before its next checkpoint, and a preemption's grace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from hpcdash.config.watch_settings import CheckpointWatch
from hpcdash.domain.alerts import Finding, Severity, format_job, shown
from hpcdash.domain.states import JobState
from hpcdash.domain.units import MINUTE, format_span
from hpcdash.services.watch.rules.rows import job_finding
from hpcdash.services.watch.state import QosState

Row = Mapping[str, Any]

END = "end-before-save"
GRACE = "grace-too-short"
NO_SAVE = "no-save"
# This many intervals without a save, plus the time of one, are reported: a single late save is not.
MISSED_INTERVALS = 3
_ENDS_THE_JOB = frozenset({"cancel", "requeue", "checkpoint"})


class Saves(Struct, frozen=True):
    """Checkpoint schedule of a job, a row of domain.schema.JOBS, and the time of its last save.

    `last_saved_at` is an epoch second (None: not saved yet, or unknown). `place`, a folder or a
    pattern of files, is where its saves are searched, '' if unknown; `newest` is the last one's
    name, as far as it is known. `is_folder`: the search is for whole checkpoints in it.
    """

    row: Row
    watch: CheckpointWatch
    last_saved_at: float | None = None
    place: str = ""
    newest: str = ""
    is_folder: bool = True

    @property
    def is_running(self) -> bool:
        return bool(self.row["state"] == JobState.RUNNING)

    @property
    def longest_seconds(self) -> float:
        """After so long without a save it does not save."""
        return MISSED_INTERVALS * self.watch.interval_seconds + self.watch.save_seconds

    def unsaved_since(self, now: float) -> float:
        """The epoch of its last save, or of its start: an earlier job's save keeps nothing of this
        one.
        """
        started_at = self.row["started_at"]
        started: float = now if started_at is None else started_at.timestamp()
        return started if self.last_saved_at is None else max(self.last_saved_at, started)


def end_before_save(saves: Iterable[Saves], now: float) -> list[Finding]:
    """One for each running job that reaches its time limit before its next save is over, and loses
    more than a save.
    """
    found = []
    for job in saves:
        row = job.row
        watch = job.watch
        if not job.is_running or row["ends_at"] is None:
            continue
        last = job.unsaved_since(now)
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
        text = f" ends in {_span(ends - now)}{why}{_span(ends - last)} of training would be lost"
        who = shown(row["id"])
        longer = f"hpcdash alter {who} --time"
        step = f"hpcdash save-switch {who}, or {longer}" if can_save else longer
        severity = Severity.WARNING if can_save else Severity.CRITICAL
        found.append(job_finding(END, row, text, step, severity))
    return found


def no_save(saves: Iterable[Saves], now: float) -> list[Finding]:
    """One for each running job whose saves are searched and that has missed MISSED_INTERVALS of
    them at `now`.
    """
    found = []
    for job in saves:
        silent = now - job.unsaved_since(now)
        if not job.is_running or not job.place or silent <= job.longest_seconds:
            continue
        if job.last_saved_at is None:
            newest = f"no {'complete checkpoint' if job.is_folder else 'file'} yet"
        else:
            what = "the newest complete checkpoint" if job.is_folder else "the newest file"
            name = f", {shown(job.newest)}," if job.newest else ""
            newest = f"{what}{name} is {_span(now - job.last_saved_at)} old"
        interval = job.watch.interval_seconds
        text = (
            f": no save in {int(silent / interval)} intervals of {_span(interval)}; {newest}: "
            f"{shown(job.place)}"
        )
        who = shown(job.row["id"])
        step = f"hpcdash log {who} -f; hpcdash save-switch {who}"
        found.append(job_finding(NO_SAVE, job.row, text, step))
    return found


def grace_too_short(
    saves: Iterable[Saves], qos: Mapping[str, QosState], queues: Mapping[str, QosState]
) -> list[Finding]:
    """One for each job or array that runs or waits where it may be preempted with a grace shorter
    than a save.

    `qos` and `queues` are by name. If the QoS is preemptible without a mode, that of its queue
    counts.
    """
    found: dict[str, Finding] = {}
    for job in saves:
        row = job.row
        own = qos.get(row["qos"] or "")
        queue = queues.get(first_queue(row))
        if own is not None and own.is_preempted:
            state = own
            what = "QoS"
            name = row["qos"]
        elif queue is not None and queue.is_preempted:
            state = queue
            what = "partition"
            name = first_queue(row)
        else:
            continue
        mode = state.preempt_mode or (queue.preempt_mode if queue is not None else "")
        if state.grace_seconds is None or state.grace_seconds >= job.watch.save_seconds:
            continue
        if not _ENDS_THE_JOB & set(mode.lower().replace("+", ",").split(",")):
            continue
        # All tasks of an array have the same, and it is reported once.
        subject = str(row["array_id"] or row["id"])
        text = (
            f"{format_job(subject, row['name'])}: its {what} {shown(name)} is preemptible "
            f"({shown(mode)}) with {_span(state.grace_seconds)} of grace; a save takes "
            f"{_span(job.watch.save_seconds)}"
        )
        step = f"Save more often, or use a {what} that is not preemptible."
        found.setdefault(
            subject, Finding(GRACE, subject, Severity.WARNING, text, step, name=row["name"] or "")
        )
    return list(found.values())


def first_queue(row: Row) -> str:
    """The first of the partitions that a job names, '' where it names none."""
    return str(row["queue"] or "").partition(",")[0]


def _span(seconds: float) -> str:
    """Format a span like format_span, but to the second below ten minutes.

    A grace of 90 s is less than a save of 100 s.
    """
    return f"{seconds:.0f} s" if MINUTE <= seconds < 10 * MINUTE else format_span(seconds)
