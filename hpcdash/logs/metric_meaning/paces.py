"""The paces of a joined run, from its times and from what its logs say themselves; knows no file and no screen."""

from __future__ import annotations

from dataclasses import replace

from hpcdash.logs.joined import JoinedRun
from hpcdash.logs.metric_meaning.throughput import (
    Measure,
    Pace,
    Quantity,
    pace_of_metric,
    pace_of_times,
    quantity_of,
    tokens_per_second,
)
from hpcdash.logs.metrics import Floats

# nanoGPT writes `time 123.45ms, mfu 12.3%` and no other time.
_NANOGPT_TIME = Quantity("seconds_per_step", 1e-3, False)
_ORDER: tuple[Measure, ...] = (
    "seconds_per_step",
    "steps_per_second",
    "tokens_per_second",
    "samples_per_second",
    "teraflops",
)


def paces_of_run(run: JoinedRun, steps_of: str) -> tuple[Pace, ...]:
    """At most one pace a measure; what the log says itself goes before what its times say.

    Steps, times and tokens are those of the samples of the metric `steps_of`; KeyError where the run has no such
    metric.
    """
    if steps_of not in run.names:
        raise KeyError(steps_of)
    paces: dict[Measure, Pace] = {}
    most: dict[Measure, tuple[bool, int]] = {}
    for name in run.names:
        quantity = _NANOGPT_TIME if name == "time" and "mfu" in run.names else quantity_of(name)
        if quantity is None:
            continue
        axes, values = run.written(name)
        pace = pace_of_metric(name, values, axes[3], quantity=quantity)
        # Of several the one of the whole job rather than of a device, then the one that is said most often.
        rank = (not quantity.per_device, values.size)
        if pace is not None and rank > most.get(pace.measure, (False, -1)):
            paces[pace.measure], most[pace.measure] = pace, rank
    axes, _ = run.written(steps_of)
    for derived in _derived(axes, paces):
        paces.setdefault(derived.measure, derived)
    return tuple(paces[measure] for measure in _ORDER if measure in paces)


def seconds_per_step(paces: tuple[Pace, ...]) -> float | None:
    """For `eta_of`; None where no pace of steps is among them."""
    for pace in paces:
        if pace.measure == "seconds_per_step":
            return pace.newest
        if pace.measure == "steps_per_second":
            return 1.0 / pace.newest
    return None


def _derived(axes: Floats, paces: dict[Measure, Pace]) -> list[Pace]:
    by_time = pace_of_times(axes[0], axes[3])
    derived = [by_time] if by_time is not None and "steps_per_second" not in paces else []
    of_steps = paces.get("seconds_per_step") or paces.get("steps_per_second") or by_time
    if of_steps is not None:
        tokens = tokens_per_second(of_steps, axes[0], axes[2])
        if tokens > 0:
            run = tokens / (1 + of_steps.drift_percent / 100)
            derived.append(replace(of_steps, measure="tokens_per_second", newest=tokens, run=run, source="tokens"))
    return derived
