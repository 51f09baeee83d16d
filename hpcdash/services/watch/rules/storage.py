"""Is there room left? Bytes and inodes of a path: a share, a floor, and a forecast."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdash.config.watch_settings import StorageWatch
from hpcdash.domain.alerts import Finding, Severity, shown
from hpcdash.domain.units import DAY, HOUR, format_count, format_memory, format_span
from hpcdash.services.watch.disks import DiskUsage

RULE = "storage"
BYTES, INODES = "bytes", "inodes"
CRITICAL_SHARE = 0.95
# Many file systems report figures that are half an hour old: a shorter span shows no growth.
SHORTEST_SPAN_SECONDS = HOUR

Sample = tuple[float, int]


def growth_a_day(samples: Sequence[Sample]) -> float | None:
    """Return the units a day by which (epoch, used) samples grow: the slope of the line that fits
    them best. None for fewer than two, or a short span.
    """
    if len(samples) < 2:
        return None
    times = [moment for moment, _ in samples]
    if max(times) - min(times) < SHORTEST_SPAN_SECONDS:
        return None
    middle = sum(times) / len(times)
    mean = sum(used for _, used in samples) / len(samples)
    spread = sum((moment - middle) ** 2 for moment in times)
    return DAY * sum((moment - middle) * (used - mean) for moment, used in samples) / spread


def storage(
    usage: DiskUsage,
    watch: StorageWatch,
    bytes_history: Sequence[Sample] = (),
    inodes_history: Sequence[Sample] = (),
) -> list[Finding]:
    """At most one for bytes and one for inodes; the histories are of the same path, in any
    order.
    """
    limit_bytes = watch.limit_bytes if watch.limit_bytes is not None else usage.bytes_limit
    limit_inodes = watch.limit_inodes if watch.limit_inodes is not None else usage.inodes_limit
    grown = max(growth_a_day(bytes_history) or 0.0, watch.planned_bytes_a_day)
    found = (
        _judge(BYTES, usage, usage.bytes_used, limit_bytes, watch.floor_bytes, grown, watch),
        _judge(
            INODES,
            usage,
            usage.inodes_used,
            limit_inodes,
            watch.floor_inodes,
            growth_a_day(inodes_history),
            watch,
        ),
    )
    return [finding for finding in found if finding is not None]


def _judge(
    aspect: str,
    usage: DiskUsage,
    used: int | None,
    limit: int | None,
    floor: int | None,
    grown: float | None,
    watch: StorageWatch,
) -> Finding | None:
    if used is None or limit is None or limit <= 0:
        return None
    usable = watch.full_at * limit
    share = used / usable if usable else 1.0
    free = usable - used
    severities: list[Severity] = []
    unit = " inodes" if aspect == INODES else ""
    parts = [
        f"{100 * share:.0f}% of {_amount(aspect, usable)}{unit} used, "
        f"{_amount(aspect, max(free, 0))} free"
    ]
    if watch.full_at < 1:
        parts.append(f"counted as full at {100 * watch.full_at:g}% of {_amount(aspect, limit)}")
    if share >= watch.alert_share:
        is_critical = share >= max(CRITICAL_SHARE, watch.alert_share)
        severities.append(Severity.CRITICAL if is_critical else Severity.WARNING)
    if floor is not None and free < floor:
        severities.append(Severity.CRITICAL)
        parts.append(f"below the required {_amount(aspect, floor)}")
    if grown is not None and grown > 0 and watch.forecast_seconds is not None and free > 0:
        seconds = DAY * free / grown
        if seconds <= watch.forecast_seconds:
            is_critical = seconds <= watch.critical_seconds
            severities.append(Severity.CRITICAL if is_critical else Severity.WARNING)
            parts.append(f"full in {format_span(seconds)} at {_amount(aspect, grown)} a day")
    if not severities:
        return None
    step = "Remove or move old checkpoints."
    if aspect == INODES:
        step = "Remove or archive small files (environments, caches)."
    omitted = " and omits one server" if usage.is_inexact else ""
    step += f" Figures from {usage.source}, which may lag{omitted}."
    text = f"{shown(watch.path)}: {'; '.join(parts)}"
    return Finding(RULE, watch.path, max(severities), text, step, aspect)


def _amount(aspect: str, amount: float) -> str:
    return format_memory(amount) if aspect == BYTES else format_count(round(amount))
