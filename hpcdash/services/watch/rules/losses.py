"""Findings on a training by its metrics, and on an end after its time limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from hpcdash.config.watch_settings import LossWatch
from hpcdash.domain.alerts import Finding, Severity, finding_key, format_job, shown
from hpcdash.domain.units import format_span
from hpcdash.services.watch.training import Course, Noticed

RULE = "loss"
LATE = "ends-late"
STALL = "stall"
LIMIT = "limit"
_GRAVE = frozenset({"nan", "inf", "divergence"})
# Of the spikes of a metric the newest are shown.
_MOST_MOMENTS = 3
# Near the limit a pace that is remeasured each round would raise and clear it repeatedly.
_CERTAIN_PART = 1.05


def losses(
    job_id: str, noticed: Iterable[Noticed], watch: LossWatch, name: str = ""
) -> list[Finding]:
    """One for each metric and lasting trouble, and one for each moment, by its step; kinds that are
    not watched are left out.
    """
    found: list[Finding] = []
    moments: dict[tuple[str, str], list[Finding]] = {}
    who = shown(job_id)
    for one in noticed:
        if one.kind not in watch.kinds:
            continue
        is_grave = one.kind in _GRAVE and not one.is_moment
        finding = Finding(
            RULE,
            job_id,
            watch.severity if is_grave else Severity.WARNING,
            f"{format_job(job_id, name)}: {shown(one.metric)}: {shown(one.words)}",
            _next_step(who, one),
            aspect=_aspect(one),
            is_moment=one.is_moment,
            name=name,
        )
        if one.is_moment:
            moments.setdefault((one.metric, one.kind), []).append(finding)
        else:
            found.append(finding)
    return [
        *found,
        *(finding for newest in moments.values() for finding in newest[-_MOST_MOMENTS:]),
    ]


def stall_key(job_id: str, metric: str) -> str:
    """The key of a job's stall."""
    return finding_key(RULE, job_id, _aspect(Noticed(metric, STALL, "")))


def cannot_be_seen(job_id: str, why: str, name: str = "") -> Finding:
    """Build the finding that a training's metrics cannot be read: its log cannot be checked."""
    text = f"cannot read the metrics of {format_job(job_id, name)}: {shown(why)}"
    step = (
        "Write the log to a file that the login node can read, and set log under [[watch.losses]]"
    )
    return Finding(RULE, job_id, Severity.INFO, text, step, aspect="cannot be seen", name=name)


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
        f"{format_job(who, row.get('name'))} needs {format_span(work)} to reach its last step, "
        f"{course.last_step}, "
        f"but its time limit is in {format_span(left)}: it needs {tasks}; {waiting or 'none'} "
        f"queued"
    )
    step = (
        f"hpcdash submit SCRIPT --array 1-{needed - waiting}%1 --after {who}, or hpcdash alter "
        f"{who} --time"
    )
    return [Finding(LATE, str(row["id"]), Severity.WARNING, text, step, name=row.get("name") or "")]


def _next_step(who: str, one: Noticed) -> str:
    """Format the advice on a finding; after broken weights it requests no further save."""
    if one.kind == STALL:
        return f"hpcdash log {who} -f; hpcdash stacks {who}"
    if one.kind not in _GRAVE:
        return f"hpcdash metrics {who}; hpcdash save-switch {who} saves a checkpoint now"
    # Checkpoints are named by step: an epoch, or a count of samples, is none.
    begin = f"step {one.begin:,.0f}".replace(",", " ") if one.counts_steps else "then"
    if one.is_moment:
        return f"hpcdash metrics {who}; keep a checkpoint from before {begin}"
    # With `keep` a save that is broken takes the place of a good one; a kill switch, and TERM, save
    # too.
    return (
        f"hpcdash cancel {who}, and resume from the newest checkpoint before {begin}. Do not use a "
        f"save switch: "
        "every save from now on is corrupt and may replace a good one, as may the last one at a "
        "kill switch or cancel"
    )


def _aspect(one: Noticed) -> str:
    where = f"@{one.begin:.10g}" if one.is_moment else ""
    return f"{one.kind} {one.metric}{where}".replace("/", "|")
