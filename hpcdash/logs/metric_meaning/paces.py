"""The paces of a joined run: what its logs say themselves, unless it is seen to go at another one."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import isfinite, nan

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
# What is seen counts where the log says another pace than it by more than this factor.
CLEARLY = 1.5
# Growth tells a pace after so long and so many changes: what a program writes may come in pieces.
LEAST_GROWTH_SECONDS, LEAST_CHANGES = 5.0, 4
_MOST_STANDS = 600
# A job's age tells a pace once its start is a small part of it.
LEAST_AGE_SECONDS = 600.0
_ORDER: tuple[Measure, ...] = (
    "seconds_per_step",
    "steps_per_second",
    "tokens_per_second",
    "samples_per_second",
    "teraflops",
)


class Growth:
    """Where a run stood as one watched it: `note` each look, and `pace` tells the pace that was seen."""

    def __init__(self) -> None:
        self._stands: deque[tuple[float, float]] = deque(maxlen=_MOST_STANDS)

    def note(self, now: float, step: float) -> None:
        """At `now` (seconds of any clock) the newest step was `step`; one that goes back is a new beginning."""
        if self._stands and step < self._stands[-1][1]:
            self._stands.clear()
        if not self._stands or step > self._stands[-1][1]:
            self._stands.append((now, step))

    def pace(self) -> Pace | None:
        """None while too little was seen."""
        # What was there at the first look came before it.
        changes = list(self._stands)[1:]
        if len(changes) < LEAST_CHANGES or changes[-1][0] - changes[0][0] < LEAST_GROWTH_SECONDS:
            return None
        (begin, first), (end, last) = changes[0], changes[-1]
        return _seen((end - begin) / (last - first), "growth")


def pace_of_age(run: JoinedRun, age_seconds: float | None) -> Pace | None:
    """What a job of that age that wrote the newest attempt did at most need for a step; None where it is young."""
    if age_seconds is None or age_seconds < LEAST_AGE_SECONDS or not run.attempts:
        return None
    attempt = run.attempts[-1]
    steps = attempt.last[0] - attempt.first[0]
    return _seen(age_seconds / steps, "age") if isfinite(steps) and steps > 0 else None


def paces_of_run(
    run: JoinedRun, steps_of: str, growth: Pace | None = None, age: Pace | None = None
) -> tuple[Pace, ...]:
    """At most one pace a measure. Of the steps what the log says itself, unless what is seen is clearly another: by
    its times, else by its `growth`; by the `age` of its job where that is too short for what the log says, as much else
    than steps may have taken its time.

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
    claimed = seconds_per_step(tuple(paces.values()))
    by_eye = pace_of_times(axes[0], axes[3]) or growth
    if by_eye is None and age is not None and (claimed is None or claimed > age.newest):
        by_eye = age
    if by_eye is not None and (claimed is None or not 1 / CLEARLY < claimed / by_eye.newest < CLEARLY):
        paces.pop("steps_per_second", None)
        paces["seconds_per_step"] = replace(by_eye, claimed=nan if claimed is None else claimed)
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


def _seen(pace_seconds: float, source: str) -> Pace:
    return Pace("seconds_per_step", pace_seconds, nan, nan, source)


def _derived(axes: Floats, paces: dict[Measure, Pace]) -> list[Pace]:
    derived: list[Pace] = []
    of_steps = paces.get("seconds_per_step") or paces.get("steps_per_second")
    if of_steps is not None:
        tokens = tokens_per_second(of_steps, axes[0], axes[2])
        if tokens > 0:
            run = tokens / (1 + of_steps.drift_percent / 100)
            by_tokens = replace(of_steps, measure="tokens_per_second", newest=tokens, run=run, source="tokens")
            derived.append(replace(by_tokens, claimed=nan))
    return derived
