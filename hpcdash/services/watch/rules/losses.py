"""Findings on a training by its metrics, and on an end after its time limit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import ceil, inf
from typing import Any

from msgspec import Struct

from hpcdash.config.watch_settings import LossWatch
from hpcdash.domain.alerts import Finding, Severity, format_job, shown
from hpcdash.domain.units import format_span
from hpcdash.services.metrics.facts import judge_loss
from hpcdash.services.metrics.findings import (
    MetricFinding,
    find_lost_numbers,
    find_stall,
    find_vanished,
    find_zero,
    format_step,
)
from hpcdash.services.metrics.pace import CLEARLY
from hpcdash.services.watch.rules.rows import job_finding
from hpcdash.services.watch.state import LogTail, Moment

RULE = "loss"
LATE = "ends-late"
STALL = "stall"
LIMIT = "limit"
MAX_MOMENTS = 100
_GRAVE = frozenset({"nan", "inf", "divergence"})
# Of the spikes of a metric the newest are shown.
_MAX_SHOWN = 3
# Near the limit a pace that is remeasured each round would raise and clear it repeatedly.
_CERTAIN_PART = 1.05
# An observed pace that differs from the log's own is trusted after this long.
_SEEN_SECONDS = 60.0


def losses(
    job_id: str,
    tail: LogTail,
    now: float,
    watch: LossWatch,
    name: str = "",
    known: Collection[str] = (),
) -> list[Finding]:
    """Return a finding for each metric of a log and lasting problem, and one for each moment, by
    its step.

    `now` is the epoch second of the last check, `name` the job's. Kinds that are not watched and
    metrics that are `known` from another log are left out. Spikes are noted in `tail`, so that each
    stays the same however much of the log is stored.
    """
    found: list[Finding] = []
    moments: list[Finding] = []

    def report(metric: str, kind: str, text: str, begin: float, *, is_moment: bool = False) -> None:
        if kind not in watch.kinds or metric in known:
            return
        is_grave = kind in _GRAVE and not is_moment
        where = f"@{begin:.10g}" if is_moment else ""
        # Checkpoints are named by step: an epoch, or a count of samples, is none.
        place = f"step {format_step(begin)}" if tail.step is not None else "then"
        (moments if is_moment else found).append(
            Finding(
                RULE,
                job_id,
                watch.severity if is_grave else Severity.WARNING,
                f"{format_job(job_id, name)}: {shown(metric)}: {shown(text)}",
                _next_step(shown(job_id), kind, place, is_moment=is_moment),
                aspect=f"{kind} {metric}{where}".replace("/", "|"),
                is_moment=is_moment,
                name=name,
            )
        )

    for metric, stored in tail.metrics.items():
        x, values = stored.arrays()
        judged, _ = judge_loss(x, values)
        lasting = [
            one for one in judged if one.step_to is None and one.kind not in ("spike", "plateau")
        ]
        passing = [one for one in judged if one not in lasting and one.kind != "plateau"]
        broken = find_zero(x, values)
        if broken is None and not lasting and metric == next(iter(tail.metrics)):
            broken = find_vanished(x, (other.arrays()[0] for other in tail.others.values()))
        lasting += [broken] if broken is not None else []
        for one in lasting:
            _note_moment(tail, metric, one, is_moment=False)
        for one in passing:
            _note_moment(tail, metric, one, is_moment=True)
        begun = {one.step_from for one in lasting}
        reported = [
            one
            for one in tail.moments
            if one.metric == metric and one.is_told and one.begin not in begun
        ]
        for kind in dict.fromkeys(one.kind for one in reported):
            for moment in [one for one in reported if one.kind == kind][-_MAX_SHOWN:]:
                report(metric, kind, moment.text, moment.begin, is_moment=True)
        for one in (*lasting, *(one for one in judged if one.kind == "plateau")):
            report(metric, one.kind, one.text, one.step_from)
    for metric, stored in tail.others.items():
        for one in find_lost_numbers(metric, *stored.arrays()):
            report(metric, one.kind, one.text, one.step_from)
    if tail.usual_gap is not None and tail.longest_gap is not None and tail.metrics:
        # By our clock: a log's times may be of another zone.
        step = tail.step if tail.step is not None else float(tail.sample_count)
        stall = find_stall(now - tail.sampled_at, tail.usual_gap, tail.longest_gap, step)
        if stall is not None:
            report(next(iter(tail.metrics)), STALL, stall.text, step)
    return [*found, *moments]


def _note_moment(tail: LogTail, metric: str, found: MetricFinding, *, is_moment: bool) -> None:
    """Note a finding with its step, unless it is one that is noted already."""
    end = inf if found.step_to is None else found.step_to
    for moment in tail.moments:
        is_same = moment.metric == metric and moment.kind == found.kind
        if is_same and moment.begin <= end and found.step_from <= moment.end:
            moment.text = found.text
            moment.end = max(moment.end, moment.end if found.step_to is None else end)
            return
    until = found.step_from if found.step_to is None else end
    moments = [
        *tail.moments,
        Moment(metric, found.kind, found.step_from, until, found.text, is_moment),
    ]
    tail.moments = sorted(moments, key=lambda moment: moment.begin)[-MAX_MOMENTS:]


def cannot_be_seen(job_id: str, why: str, name: str = "") -> Finding:
    """Build the finding that a training's metrics cannot be read: its log cannot be checked."""
    text = f"cannot read the metrics of {format_job(job_id, name)}: {shown(why)}"
    step = (
        "Write the log to a file that the login node can read, and set log under [[watch.losses]]"
    )
    return Finding(RULE, job_id, Severity.INFO, text, step, aspect="cannot be seen", name=name)


class Course(Struct, frozen=True):
    """Course of a training: its step, its final step, seconds per step (None: unknown)."""

    step: float
    last_step: int
    seconds_per_step: float | None = None


def course(tail: LogTail) -> Course | None:
    """Return the course of a training; None if its final step is unknown.

    The pace is the log's own, else the one seen by rounds. A log's pace that is clearly slower than
    the seen one is rejected; pauses only make the seen pace slower.
    """
    if tail.step is None or tail.last_step is None:
        return None
    pace = tail.seconds_per_step
    if len(tail.stands) > 1:
        (begin, first), (end, last) = tail.stands[0], tail.stands[-1]
        if last > first and end > begin:
            seen = (end - begin) / (last - first)
            if pace is None or (pace > CLEARLY * seen and end - begin >= _SEEN_SECONDS):
                pace = seen
    return Course(tail.step, tail.last_step, pace)


def ends_late(
    row: Mapping[str, Any], course: Course | None, now: float, waiting: int
) -> list[Finding]:
    """At most one: a running job (a row of domain.schema.JOBS) will not be at its final step by its
    time limit, and of its chain fewer jobs or tasks wait than that takes. `waiting` counts those
    that will start; `now` is an epoch.
    """
    if (
        course is None
        or course.seconds_per_step is None
        or row["ends_at"] is None
        or not row["limit_seconds"]
    ):
        return []
    work = max(0, course.last_step - course.step) * course.seconds_per_step
    left = max(0.0, row["ends_at"].timestamp() - now)
    if work <= left * _CERTAIN_PART:
        return []
    needed = ceil((work - left) / row["limit_seconds"])
    if waiting >= needed:
        return []
    who = shown(row["id"])
    ending = "s" if needed > 1 else ""
    tasks = (
        f"{needed} more array task{ending}"
        if row.get("array_id")
        else f"{needed} more job{ending} of this length"
    )
    text = (
        f" needs {format_span(work)} to reach its last step, {course.last_step}, but its time "
        f"limit is in {format_span(left)}: it needs {tasks}; {waiting or 'none'} queued"
    )
    step = (
        f"hpcdash submit SCRIPT --array 1-{needed - waiting}%1 --after {who}, or hpcdash alter "
        f"{who} --time"
    )
    return [job_finding(LATE, row, text, step)]


def _next_step(who: str, kind: str, place: str, *, is_moment: bool) -> str:
    """Format the advice on a finding; after broken weights it requests no further save."""
    if kind == STALL:
        return f"hpcdash log {who} -f; hpcdash stacks {who}"
    if kind not in _GRAVE:
        return f"hpcdash metrics {who}; hpcdash save-switch {who} saves a checkpoint now"
    if is_moment:
        return f"hpcdash metrics {who}; keep a checkpoint from before {place}"
    # With `keep` a save that is broken takes the place of a good one; a kill switch, and TERM, save
    # too.
    return (
        f"hpcdash cancel {who}, and resume from the newest checkpoint before {place}. Do not use a "
        "save switch: every save from now on is corrupt and may replace a good one, as may the "
        "last one at a kill switch or cancel"
    )
