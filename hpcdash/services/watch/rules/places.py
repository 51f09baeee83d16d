"""Rules on places: disks that fill up, and logs and places that cannot be checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import linear_regression

from hpcdash.config.watch_settings import StorageRule
from hpcdash.domain.alerts import Finding, Severity, format_job, shown
from hpcdash.domain.units import DAY, HOUR, format_count, format_memory, format_span
from hpcdash.services.watch.disks import DiskUsage
from hpcdash.services.watch.rules.jobs import HANGING
from hpcdash.services.watch.rules.rows import Row

STORAGE = "storage"
UNSEEN = "cannot-look"
BYTES = "bytes"
INODES = "inodes"
CRITICAL_SHARE = 0.95
# Many file systems report figures that are half an hour old: a shorter span shows no growth.
SHORTEST_SPAN_SECONDS = HOUR
# Reasons that a place cannot be checked.
SILENT = "silent"
UNREPORTED = "untold"
ABSENT = "absent"
FAILED = "failed"
_WHY = {
    SILENT: "does not respond",
    UNREPORTED: "no tool reports its usage",
    ABSENT: "no such file, or no permission",
    FAILED: "the command to check logs and disks fails",
}
_STEPS = {
    SILENT: "Is the file system mounted? Until it responds, hung jobs, saves and free space "
    "there are not checked",
    UNREPORTED: "Check the path under [[watch.storage]]. hpcdash watch --once --dry-run tries "
    "again",
    ABSENT: "Check the path: log under [[watch.losses]], or the job's output",
    FAILED: "hpcdash watch --once --dry-run shows why; hpcdash doctor checks the connection",
}
UNSEEN_LOG = "cannot be seen"

Sample = tuple[float, int]


def daily_growth(samples: Sequence[Sample]) -> float:
    """Return the units a day by which (epoch, used) samples grow; 0 over less than an hour."""
    times = [moment for moment, _ in samples]
    if not times or max(times) - min(times) < SHORTEST_SPAN_SECONDS:
        return 0.0
    return DAY * linear_regression(times, [used for _, used in samples]).slope


def find_full(
    rule: StorageRule, aspect: str, usage: DiskUsage, samples: Sequence[Sample] = ()
) -> list[Finding]:
    """Return a finding if BYTES or INODES run out; the samples are in any order."""
    growth = daily_growth(samples)
    if aspect == BYTES:
        used = usage.bytes_used
        limit = usage.bytes_limit if rule.limit_bytes is None else rule.limit_bytes
        floor = rule.floor_bytes
        growth = max(growth, rule.planned_bytes_a_day)
        unit = ""
        step = "Remove or move old checkpoints."
    else:
        used = usage.inodes_used
        limit = usage.inodes_limit if rule.limit_inodes is None else rule.limit_inodes
        floor = rule.floor_inodes
        unit = " inodes"
        step = "Remove or archive small files (environments, caches)."
    if used is None or not limit:
        return []

    def amount(number: float) -> str:
        return format_memory(number) if aspect == BYTES else format_count(round(number))

    usable = rule.full_at * limit
    share = used / usable if usable else 1.0
    free = usable - used
    severities = []
    parts = [f"{100 * share:.0f}% of {amount(usable)}{unit} used, {amount(max(free, 0))} free"]
    if rule.full_at < 1:
        parts.append(f"counted as full at {100 * rule.full_at:g}% of {amount(limit)}")
    if share >= rule.alert_share:
        is_critical = share >= max(CRITICAL_SHARE, rule.alert_share)
        severities.append(Severity.CRITICAL if is_critical else Severity.WARNING)
    if floor is not None and free < floor:
        severities.append(Severity.CRITICAL)
        parts.append(f"below the required {amount(floor)}")
    if growth > 0 and rule.forecast_seconds is not None and free > 0:
        seconds = DAY * free / growth
        if seconds <= rule.forecast_seconds:
            is_critical = seconds <= rule.critical_seconds
            severities.append(Severity.CRITICAL if is_critical else Severity.WARNING)
            parts.append(f"full in {format_span(seconds)} at {amount(growth)} a day")
    if not severities:
        return []
    omitted = " and do not include one server" if usage.is_inexact else ""
    step += f" Figures from {usage.source}, which may lag{omitted}."
    text = f"{shown(rule.path)}: {'; '.join(parts)}"
    return [Finding(STORAGE, rule.path, max(severities), text, step, aspect=aspect)]


def find_unseen_place(place: str, why: str, rounds: int) -> Finding:
    """Build the finding that a place could not be checked for that many rounds.

    `why` is SILENT, UNREPORTED, ABSENT or FAILED.
    """
    why_text = _WHY.get(why, shown(why))
    text = f"{shown(place)} could not be checked {rounds} times in a row: {why_text}"
    severity = Severity.CRITICAL if why in (SILENT, FAILED) else Severity.WARNING
    return Finding(UNSEEN, place, severity, text, _STEPS.get(why, ""))


def count_unseen(
    before: Mapping[str, tuple[str, int]], unseen: Mapping[str, str], remaining: Collection[str]
) -> dict[str, tuple[str, int]]:
    """Return (reason, rounds in a row) by place that could not be checked.

    These are the places `found` now with the reason, and the `remaining` ones, whose turn it was
    not.
    """
    after = {place: before[place] for place in remaining if place in before}
    for place, why in unseen.items():
        _, rounds = before.get(place, ("", 0))
        after[place] = (why, rounds + 1)
    return after


def lies_in(path: str, places: Collection[str]) -> bool:
    """Whether a path is one of these folders or files, or below one."""
    return any(f"{path}/".startswith(f"{place.rstrip('/')}/") for place in places)


def unseen_log(rule: str, row: Row, why: str) -> Finding:
    """Build the finding that a job's log cannot be checked by HANGING or LOSS."""
    who = format_job(row["id"], row["name"])
    table = "hanging" if rule == HANGING else "losses"
    unknown = f"check whether {who} hangs" if rule == HANGING else f"read the metrics of {who}"
    step = (
        f"Write the log to a file that the login node can read, and set log under [[watch.{table}]]"
    )
    return Finding(
        rule,
        row["id"],
        Severity.INFO,
        f"cannot {unknown}: {shown(why)}",
        step,
        aspect=UNSEEN_LOG,
        name=row["name"] or "",
    )
