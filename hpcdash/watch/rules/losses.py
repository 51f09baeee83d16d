"""What metrics say that is wrong with a training: loss spikes, nan. Knows no metric and no log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hpcdash.watch.findings import Finding, Severity, shown

RULE = "loss"
_GRAVE = frozenset({"nan", "inf", "diverged"})


class MetricFinding(Protocol):
    """What is conspicuous in a metric: `kind` is nan, inf, spike, diverged, … and `words` say it on one line."""

    @property
    def metric(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def words(self) -> str: ...


def losses(job_id: str, conspicuous: Iterable[MetricFinding]) -> list[Finding]:
    """One for each metric and kind of trouble of a job, with its last words; nan, inf and diverged are grave."""
    latest: dict[tuple[str, str], MetricFinding] = {}
    for one in conspicuous:
        latest[one.metric, one.kind] = one
    step = f"hpcdash metrics {shown(job_id)}; hpcdash save-switch {shown(job_id)} keeps it as it is"
    return [
        Finding(
            RULE,
            job_id,
            Severity.CRITICAL if kind in _GRAVE else Severity.WARNING,
            f"job {shown(job_id)}: {shown(one.words)}",
            step,
            aspect=f"{kind} {metric}".replace("/", "|"),
        )
        for (metric, kind), one in latest.items()
    ]
