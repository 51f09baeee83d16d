"""Findings on a training by its metrics, and on an end after its time limit."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from math import ceil, inf

from msgspec import Struct

from hpcdash.config.watch_settings import LossesRule
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
from hpcdash.services.watch.rules.rows import Row, job_finding
from hpcdash.services.watch.state import LogTail, Moment

LOSS = "loss"
LATE = "ends-late"
STALL = "stall"
LIMIT = "limit"
MAX_MOMENTS = 100
_SEVERE = frozenset({"nan", "inf", "divergence"})
# Of the spikes of a metric the newest are shown.
_MAX_SHOWN = 3
# Near the limit a pace that is remeasured each round would raise and clear it repeatedly.
_CERTAIN_PART = 1.05
# An observed pace that differs from the log's own is trusted after this long.
_SEEN_SECONDS = 60.0


def find_losses(
    row: Row, tail: LogTail, now: float, rule: LossesRule, known: Collection[str] = ()
) -> list[Finding]:
    """Return a finding for each metric of a log and lasting problem, and one for each moment, by
    its step.

    `now` is the epoch second of the last check. Kinds that are not watched and metrics that are
    `known` from another log are left out. Spikes are noted in `tail`, so that each stays the same
    however much of the log is stored.
    """
    lasting: list[Moment] = []
    passed: list[Moment] = []
    for metric, stored in tail.metrics.items():
        x, values = stored.arrays()
        judged, _ = judge_loss(x, values)
        plateaus = [finding for finding in judged if finding.kind == "plateau"]
        open_ended = [
            finding
            for finding in judged
            if finding.step_to is None and finding.kind not in ("spike", "plateau")
        ]
        closed = [
            finding for finding in judged if finding not in plateaus and finding not in open_ended
        ]
        broken = find_zero(x, values)
        if broken is None and not open_ended and metric == next(iter(tail.metrics)):
            broken = find_vanished(x, (other.arrays()[0] for other in tail.others.values()))
        if broken is not None:
            open_ended.append(broken)
        for finding in open_ended:
            _note_moment(tail, metric, finding, is_moment=False)
        for finding in closed:
            _note_moment(tail, metric, finding, is_moment=True)
        passed += _newest_moments(tail, metric, {finding.step_from for finding in open_ended})
        lasting += [_lasting(metric, finding) for finding in chain(open_ended, plateaus)]
    for metric, stored in tail.others.items():
        lasting += [
            _lasting(metric, finding) for finding in find_lost_numbers(metric, *stored.arrays())
        ]
    if tail.usual_gap is not None and tail.longest_gap is not None and tail.metrics:
        # By our clock: a log's times may be of another zone.
        step = tail.step if tail.step is not None else float(tail.sample_count)
        stall = find_stall(now - tail.sampled_at, tail.usual_gap, tail.longest_gap, step)
        if stall is not None:
            lasting.append(_lasting(next(iter(tail.metrics)), stall))
    return [
        _build_finding(row, tail, rule, moment, is_moment=is_moment)
        for moments, is_moment in ((lasting, False), (passed, True))
        for moment in moments
        if moment.kind in rule.kinds and moment.metric not in known
    ]


def _lasting(metric: str, finding: MetricFinding) -> Moment:
    return Moment(metric, finding.kind, begin=finding.step_from, end=inf, text=finding.text)


def _newest_moments(tail: LogTail, metric: str, begun: Collection[float]) -> Iterator[Moment]:
    """Yield the newest reported moments of each kind, but those that begin as a lasting problem."""
    by_kind: dict[str, list[Moment]] = {}
    for moment in tail.moments:
        if moment.metric == metric and moment.is_reported and moment.begin not in begun:
            by_kind.setdefault(moment.kind, []).append(moment)
    for moments in by_kind.values():
        yield from moments[-_MAX_SHOWN:]


def _note_moment(tail: LogTail, metric: str, finding: MetricFinding, *, is_moment: bool) -> None:
    """Note a finding with its step, unless it is one that is noted already."""
    end = inf if finding.step_to is None else finding.step_to
    for moment in tail.moments:
        is_same = moment.metric == metric and moment.kind == finding.kind
        if is_same and moment.begin <= end and finding.step_from <= moment.end:
            moment.text = finding.text
            if finding.step_to is not None:
                moment.end = max(moment.end, end)
            return
    noted = _lasting(metric, finding)
    noted.end = finding.step_from if finding.step_to is None else end
    noted.is_reported = is_moment
    moments = [*tail.moments, noted]
    tail.moments = sorted(moments, key=lambda moment: moment.begin)[-MAX_MOMENTS:]


def _build_finding(
    row: Row, tail: LogTail, rule: LossesRule, moment: Moment, *, is_moment: bool
) -> Finding:
    who = shown(row["id"])
    where = f"@{moment.begin:.10g}" if is_moment else ""
    # Checkpoints are named by step: an epoch, or a count of samples, is none.
    place = f"step {format_step(moment.begin)}" if tail.step is not None else "then"
    severity = Severity.WARNING
    if moment.kind == STALL:
        step = f"hpcdash log {who} -f; hpcdash stacks {who}"
    elif moment.kind not in _SEVERE:
        step = f"hpcdash metrics {who}; hpcdash save-switch {who} saves a checkpoint now"
    elif is_moment:
        step = f"hpcdash metrics {who}; keep a checkpoint from before {place}"
    else:
        severity = rule.severity
        # With `keep` a save that is broken takes the place of a good one; a kill switch, and TERM,
        # save too.
        step = (
            f"hpcdash cancel {who}, and resume from the newest checkpoint before {place}. Do not "
            "use a save switch: every save from now on is corrupt and may replace a good one, as "
            "may the last one at a kill switch or cancel"
        )
    return Finding(
        LOSS,
        row["id"],
        severity,
        f"{format_job(row['id'], row['name'])}: {shown(moment.metric)}: {shown(moment.text)}",
        step,
        aspect=f"{moment.kind} {moment.metric}{where}".replace("/", "|"),
        is_moment=is_moment,
        name=row["name"] or "",
    )


class Course(Struct, frozen=True):
    """Course of a training towards its final step."""

    step: float
    last_step: int
    # None: unknown.
    seconds_per_step: float | None = None


def read_course(tail: LogTail) -> Course | None:
    """Return the course of a training; None if its final step is unknown.

    The pace is the log's own, else the one seen by rounds. A log's pace that is clearly slower than
    the seen one is rejected; pauses only make the seen pace slower.
    """
    if tail.step is None or tail.last_step is None:
        return None
    pace = tail.seconds_per_step
    if len(tail.stands) > 1:
        begin, first = tail.stands[0]
        end, last = tail.stands[-1]
        if last > first and end > begin:
            seen = (end - begin) / (last - first)
            is_slower = pace is not None and pace > CLEARLY * seen
            if pace is None or (is_slower and end - begin >= _SEEN_SECONDS):
                pace = seen
    return Course(tail.step, tail.last_step, pace)


def find_late_end(row: Row, course: Course, now: float, waiting: int) -> list[Finding]:
    """Return a finding if a running job will not be at its final step by its time limit, and too
    few jobs or tasks of its chain wait for the rest.

    `waiting` counts those that will start; `now` is an epoch.
    """
    if course.seconds_per_step is None or row["ends_at"] is None or not row["limit_seconds"]:
        return []
    work = max(0, course.last_step - course.step) * course.seconds_per_step
    left = max(0.0, row["ends_at"].timestamp() - now)
    needed = ceil((work - left) / row["limit_seconds"])
    if work <= left * _CERTAIN_PART or waiting >= needed:
        return []
    who = shown(row["id"])
    ending = "s" if needed > 1 else ""
    tasks = f"{needed} more job{ending} of this length"
    if row.get("array_id"):
        tasks = f"{needed} more array task{ending}"
    text = (
        f" needs {format_span(work)} to reach its last step, {course.last_step}, but its time "
        f"limit is in {format_span(left)}: it needs {tasks}; {waiting or 'none'} queued"
    )
    step = (
        f"hpcdash submit SCRIPT --array 1-{needed - waiting}%1 --after {who}, or hpcdash alter "
        f"{who} --time"
    )
    return [job_finding(LATE, row, text, step)]
