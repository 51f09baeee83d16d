"""Rules on saves: a job's end before its next checkpoint, missed saves, a preemption's grace."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hpcdash.config.watch_settings import SavesRule
from hpcdash.domain.alerts import Finding, Severity, format_job, shown
from hpcdash.domain.states import JobState
from hpcdash.domain.units import MINUTE, format_span
from hpcdash.services.watch.rules.rows import Row, job_finding
from hpcdash.services.watch.state import QosState

ENDS_UNSAVED = "end-before-save"
SHORT_GRACE = "grace-too-short"
NO_SAVE = "no-save"
# This many intervals without a save, plus the time of one, are reported: a single late save is not.
MISSED_INTERVALS = 3
_ENDS_THE_JOB = frozenset({"cancel", "requeue", "checkpoint"})


class Saves(Struct, frozen=True):
    """Checkpoint schedule of a job, a row of domain.schema.JOBS, and its last save."""

    row: Row
    rule: SavesRule
    # Epoch second of the last save; None: not saved yet, or unknown.
    last_saved_at: float | None = None
    # Folder or pattern of files where its saves are searched, '' if unknown.
    place: str = ""
    # Name of the last save, as far as it is known.
    newest: str = ""

    @property
    def longest_seconds(self) -> float:
        """Time without a save after which it is taken not to save."""
        return MISSED_INTERVALS * self.rule.interval_seconds + self.rule.save_seconds

    def unsaved_since(self, now: float) -> float:
        """Return the epoch of its last save, or of its start.

        An earlier job's save keeps nothing of this one.
        """
        started_at = self.row["started_at"]
        started = now if started_at is None else float(started_at.timestamp())
        return started if self.last_saved_at is None else max(self.last_saved_at, started)


def find_end_before_save(job: Saves, now: float) -> list[Finding]:
    """Return a finding if a running job reaches its time limit before its next save is over, and
    loses more than a save.
    """
    row = job.row
    rule = job.rule
    if row["state"] != JobState.RUNNING or row["ends_at"] is None:
        return []
    last = job.unsaved_since(now)
    ends = row["ends_at"].timestamp()
    left = ends - now
    needed = rule.save_seconds + rule.spare_seconds
    next_save = last - now + rule.interval_seconds + rule.save_seconds
    is_late = next_save < 0
    # A save that is late starts any moment; one that has not come for long, an interval from now
    # at best.
    is_stopped = bool(job.place) and now - last > job.longest_seconds
    earliest = rule.save_seconds + (rule.interval_seconds if is_stopped else 0.0)
    next_save = max(next_save, earliest)
    if left <= 0 or left >= next_save + rule.spare_seconds:
        return []
    lost = ends - last
    # Less training is lost than a save takes.
    if lost <= needed:
        return []
    if not is_late:
        why = f" but finishes its next save in {_format_span(next_save)}: "
    elif job.place:
        why = f" and has not saved for {_format_span(now - last)}: "
    else:
        why = " and its last save is unknown: up to "
    text = f" ends in {_format_span(left)}{why}{_format_span(lost)} of training would be lost"
    who = shown(row["id"])
    step = f"hpcdash alter {who} --time"
    severity = Severity.CRITICAL
    if left >= needed:
        step = f"hpcdash save-switch {who}, or {step}"
        severity = Severity.WARNING
    return [job_finding(ENDS_UNSAVED, row, text, step, severity)]


def find_no_save(job: Saves, now: float) -> list[Finding]:
    """Return a finding if a running job whose saves are searched has missed MISSED_INTERVALS."""
    silent = now - job.unsaved_since(now)
    is_searched = job.row["state"] == JobState.RUNNING and job.place
    if not is_searched or silent <= job.longest_seconds:
        return []
    is_folder = not job.rule.saved
    if job.last_saved_at is None:
        newest = f"no {'complete checkpoint' if is_folder else 'file'} yet"
    else:
        what = "the newest complete checkpoint" if is_folder else "the newest file"
        name = f", {shown(job.newest)}," if job.newest else ""
        newest = f"{what}{name} is {_format_span(now - job.last_saved_at)} old"
    interval = job.rule.interval_seconds
    text = (
        f": no save in {int(silent / interval)} intervals of {_format_span(interval)}; {newest}: "
        f"{shown(job.place)}"
    )
    who = shown(job.row["id"])
    step = f"hpcdash log {who} -f; hpcdash save-switch {who}"
    return [job_finding(NO_SAVE, job.row, text, step)]


def find_short_grace(
    row: Row, rule: SavesRule, qos: Mapping[str, QosState], queues: Mapping[str, QosState]
) -> list[Finding]:
    """Return a finding if a job or its array may be preempted with a grace shorter than a save.

    `qos` and `queues` are by name. If the QoS is preemptible without a mode, that of its queue
    counts.
    """
    state = qos.get(row["qos"] or "")
    queue = queues.get(first_queue(row))
    what = "QoS"
    name = row["qos"]
    if state is None or not state.is_preempted:
        state = queue
        what = "partition"
        name = first_queue(row)
    if state is None or not state.is_preempted:
        return []
    mode = state.preempt_mode or (queue.preempt_mode if queue is not None else "")
    if state.grace_seconds is None or state.grace_seconds >= rule.save_seconds:
        return []
    if _ENDS_THE_JOB.isdisjoint(mode.lower().replace("+", ",").split(",")):
        return []
    # All tasks of an array have the same, and it is reported once.
    subject = str(row["array_id"] or row["id"])
    text = (
        f"{format_job(subject, row['name'])}: its {what} {shown(name)} is preemptible "
        f"({shown(mode)}) with {_format_span(state.grace_seconds)} of grace; a save takes "
        f"{_format_span(rule.save_seconds)}"
    )
    step = f"Save more often, or use a {what} that is not preemptible."
    return [Finding(SHORT_GRACE, subject, Severity.WARNING, text, step, name=row["name"] or "")]


def first_queue(row: Row) -> str:
    """Return the first of the partitions that a job names, '' where it names none."""
    return str(row["queue"] or "").partition(",")[0]


def _format_span(seconds: float) -> str:
    """Format a span like format_span, but to the second below ten minutes.

    A grace of 90 s is less than a save of 100 s.
    """
    return f"{seconds:.0f} s" if MINUTE <= seconds < 10 * MINUTE else format_span(seconds)
