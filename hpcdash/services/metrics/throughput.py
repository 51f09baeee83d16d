"""Pace of a training: from times of its samples, or from pace metrics in its logs."""

from __future__ import annotations

import re
from collections import deque
from math import isfinite, nan
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.domain.units import format_amount
from hpcdash.services.metrics.batch import Floats
from hpcdash.services.metrics.joined import JoinedRun

Measure = Literal[
    "seconds_per_step", "steps_per_second", "tokens_per_second", "samples_per_second", "teraflops"
]
NEWEST_SECONDS = 3600.0
NEWEST_PART = 0.1
# Below this the newest pace is reported as unchanged.
STEADY_PERCENT = 3.0

_PER = r"(?: ?/ ?| per )"
_SECOND = r"(?:s|sec|secs|second|seconds)"
_MEASURES: tuple[tuple[Measure, re.Pattern[str]], ...] = (
    ("teraflops", re.compile(r"\bt(?:era)? ?flops?\b")),
    (
        "tokens_per_second",
        re.compile(
            rf"\b(?:tokens?|tok|toks|words?){_PER}(?:gpu{_PER}|device{_PER})?{_SECOND}\b|\b(?:tps|wps|tgs|tok s)\b"
        ),
    ),
    (
        "samples_per_second",
        re.compile(rf"\b(?:samples?|examples?|images?|imgs?|sequences?|seqs?){_PER}{_SECOND}\b"),
    ),
    (
        "steps_per_second",
        re.compile(
            rf"\b(?:it|its|iter|iters|iterations?|steps?|batch|batches|updates?){_PER}{_SECOND}\b|\bups\b"
        ),
    ),
    (
        "seconds_per_step",
        re.compile(
            rf"\b(?:time|{_SECOND}|ms|msec|milliseconds?){_PER}(?:it|iter|iteration|step|update)\b"
            # Composer's `time/batch` counts batches.
            rf"|\b(?:{_SECOND}|ms|msec|milliseconds?){_PER}batch\b|\btime per batch\b"
            r"|\b(?:iteration|iter|step|batch|update) (?:time|duration)\b"
        ),
    ),
)
_MILLI = re.compile(r"(?<![a-z])(?:ms|msec|milliseconds?)(?![a-z])")
_EVALUATION = re.compile(r"\b(?:eval|valid|val|validation|test|predict)")
# The seen pace counts if the log's pace differs by more than this factor.
CLEARLY = 1.5
# Growth indicates a pace only after this long and this many changes, because programs may write in
# bursts.
LEAST_GROWTH_SECONDS, LEAST_CHANGES = 5.0, 4
_MOST_STANDS = 600
# A job's age determines a pace once its start is a small part of it.
LEAST_AGE_SECONDS = 600.0
_ORDER: tuple[Measure, ...] = (
    "seconds_per_step",
    "steps_per_second",
    "tokens_per_second",
    "samples_per_second",
    "teraflops",
)


class Quantity(Struct, frozen=True):
    """Measure of a metric by its name.

    `factor` converts its values to seconds or TFLOP/s.
    """

    measure: Measure
    factor: float
    per_device: bool


class TrainingPace(Struct, frozen=True):
    """A measure: newest (median of the last hour, or of the last tenth where no times are known),
    median of the whole run, and how much faster the newest is, in percent (slower: negative); nan
    where it cannot be told. `source` is the metric's name, `times`, or how else it was seen.
    `claimed` is what the log says where it was seen to be another.
    """

    measure: Measure
    newest: float
    run: float
    drift_percent: float
    source: str
    per_device: bool = False
    claimed: float = nan

    @property
    def words(self) -> str:
        """`0.52 s/step, 14 % slower than the run's median`, `51.4k tokens/s, steady`."""
        if isfinite(self.claimed):
            claim = replace(self, newest=self.claimed, drift_percent=nan, claimed=nan).words
            return f"{replace(self, claimed=nan).words} (its log says {claim})"
        unit = {
            "seconds_per_step": "s/step",
            "steps_per_second": "steps/s",
            "tokens_per_second": "tokens/s",
            "samples_per_second": "samples/s",
            "teraflops": "TFLOP/s",
        }[self.measure]
        amount = self.newest
        if unit == "s/step" and amount < 0.1:
            amount, unit = 1000 * amount, "ms/step"
        message = f"{format_amount(amount)} {unit}" + (" per device" if self.per_device else "")
        if not isfinite(self.drift_percent):
            return message
        if abs(self.drift_percent) < STEADY_PERCENT:
            return f"{message}, steady"
        way = "faster" if self.drift_percent > 0 else "slower"
        return f"{message}, {abs(self.drift_percent):.0f} % {way} than the run's median"


def metric_quantity(name: str) -> Quantity | None:
    """Return the pace quantity that the metric `name` measures, None for none.

    For example `elapsed time per iteration (ms)` or `tps`.
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    plain = " ".join(re.sub(r"[_\-()\[\]|,:.]+", " ", apart).split())
    if _EVALUATION.search(plain):
        return None
    for measure, pattern in _MEASURES:
        if pattern.search(plain):
            milli = measure == "seconds_per_step" and _MILLI.search(plain)
            per_device = bool(re.search(r"gpu|device|\btgs\b", plain))
            return Quantity(measure, 1e-3 if milli else 1.0, per_device)
    return None


def times_pace(
    steps: Floats, times: Floats, newest_seconds: float = NEWEST_SECONDS
) -> TrainingPace | None:
    """Seconds per step from `steps` (n) and `times` (n, epoch seconds) of samples in the order they
    were written.

    Medians over stretches of samples: a pause for a checkpoint is not the pace, and times of whole
    seconds do not matter. None with fewer than two samples that go on.
    """
    known = np.isfinite(steps) & np.isfinite(times)
    steps, times = steps[known], times[known]
    took, done = np.diff(times), np.diff(steps)
    goes_on = (done > 0) & (took >= 0)
    if not goes_on.any():
        return None
    newest = goes_on & (times[1:] >= times[-1] - newest_seconds)
    if newest.sum() < 5:
        newest = goes_on.copy()
        newest[: int(newest.size * (1 - NEWEST_PART))] = False
        newest = newest if newest.any() else goes_on
    run = _stretch_median(took[goes_on], done[goes_on])
    now = _stretch_median(took[newest], done[newest])
    return _pace("seconds_per_step", now, run, "times") if run > 0 and now > 0 else None


def metric_pace(
    name: str,
    values: Floats,
    times: Floats,
    newest_seconds: float = NEWEST_SECONDS,
    quantity: Quantity | None = None,
) -> TrainingPace | None:
    """The pace that the log says itself: `values` (n) of the metric `name` at `times` (n, nan where
    unknown), in the order they were written. `quantity` says what it measures where the name does
    not. None where it is none of a pace, or no value is a number.
    """
    quantity = quantity or metric_quantity(name)
    known = np.isfinite(values) & (values > 0)
    if quantity is None or not known.any():
        return None
    values, times = values[known] * quantity.factor, times[known]
    last = times[-1]
    newest = times >= last - newest_seconds if isfinite(last) else np.zeros(values.size, dtype=bool)
    if newest.sum() < 5:
        newest = np.arange(values.size) >= min(
            int(values.size * (1 - NEWEST_PART)), max(values.size - 5, 0)
        )
    now, run = float(np.median(values[newest])), float(np.median(values))
    return _pace(quantity.measure, now, run, name, quantity.per_device)


def steps_per_second(pace: TrainingPace) -> float:
    """Convert a pace to steps per second; nan for another measure."""
    if pace.measure == "seconds_per_step":
        return 1.0 / pace.newest
    return pace.newest if pace.measure == "steps_per_second" else nan


def tokens_per_second(steps_pace: TrainingPace, steps: Floats, tokens: Floats) -> float:
    """Compute tokens per second from the pace of steps and the tokens (n) consumed at `steps` (n).

    nan if they do not grow.
    """
    known = np.isfinite(steps) & np.isfinite(tokens)
    steps, tokens = steps[known], tokens[known]
    done, consumed = np.diff(steps), np.diff(tokens)
    grows = (done > 0) & (consumed > 0)
    return (
        float(np.median(consumed[grows] / done[grows])) * steps_per_second(steps_pace)
        if grows.any()
        else nan
    )


def _pace(
    measure: Measure, newest: float, run: float, source: str, per_device: bool = False
) -> TrainingPace:
    faster = run / newest if measure == "seconds_per_step" else newest / run
    return TrainingPace(measure, newest, run, 100 * (faster - 1), source, per_device)


def _stretch_median(took: Floats, done: Floats) -> float:
    """Median seconds per step over at most 200 stretches of equally many samples, each of some
    seconds where that can be.
    """
    stretches = min(200, took.size)
    total = float(took.sum())
    # Times of whole seconds: a stretch of half a minute is right to three in a hundred.
    stretches = max(1, min(stretches, int(total // 30) if total >= 90 else stretches))
    starts = np.linspace(0, took.size, stretches, endpoint=False).astype(np.int64)
    return float(np.median(np.add.reduceat(took, starts) / np.add.reduceat(done, starts)))


# nanoGPT writes `time 123.45ms, mfu 12.3%` and no other time.
_NANOGPT_TIME = Quantity("seconds_per_step", 1e-3, False)


class PaceGrowth:
    """Progress of a watched run: `note` records each check, `pace` returns the pace seen."""

    def __init__(self) -> None:
        self._stands: deque[tuple[float, float]] = deque(maxlen=_MOST_STANDS)

    def note(self, now: float, step: float) -> None:
        """At `now` (seconds of any clock) the newest step was `step`; one that goes back is a new
        beginning.
        """
        if self._stands and step < self._stands[-1][1]:
            self._stands.clear()
        if not self._stands or step > self._stands[-1][1]:
            self._stands.append((now, step))

    def pace(self) -> TrainingPace | None:
        """None while too little was seen."""
        # The steps of the first check were done before it.
        changes = list(self._stands)[1:]
        if len(changes) < LEAST_CHANGES or changes[-1][0] - changes[0][0] < LEAST_GROWTH_SECONDS:
            return None
        (begin, first), (end, last) = changes[0], changes[-1]
        return _seen((end - begin) / (last - first), "growth")


def average_pace(run: JoinedRun, age_seconds: float | None) -> TrainingPace | None:
    """Compute an upper bound of the seconds per step from a job's age and its newest attempt.

    None if the job is young.
    """
    if age_seconds is None or age_seconds < LEAST_AGE_SECONDS or not run.attempts:
        return None
    attempt = run.attempts[-1]
    steps = attempt.last[0] - attempt.first[0]
    return _seen(age_seconds / steps, "age") if isfinite(steps) and steps > 0 else None


def run_paces(
    run: JoinedRun,
    metric: str,
    growth: TrainingPace | None = None,
    age: TrainingPace | None = None,
) -> tuple[TrainingPace, ...]:
    """At most one pace a measure.

    Of the steps what the log says itself, unless what is seen is clearly another: by its times,
    else by its `growth`; by the `age` of its job where that is too short for what the log says, as
    much else than steps may have taken its time.

    Steps, times and tokens are those of the samples of the metric `metric`; KeyError where the
    run has no such metric.
    """
    if metric not in run.names:
        raise KeyError(metric)
    paces: dict[Measure, TrainingPace] = {}
    most: dict[Measure, tuple[bool, int]] = {}
    for name in run.names:
        quantity = _NANOGPT_TIME if name == "time" and "mfu" in run.names else metric_quantity(name)
        if quantity is None:
            continue
        axes, values = run.written(name)
        pace = metric_pace(name, values, axes[3], quantity=quantity)
        # Of several the one of the whole job rather than of a device, then the most frequent one.
        rank = (not quantity.per_device, values.size)
        if pace is not None and rank > most.get(pace.measure, (False, -1)):
            paces[pace.measure], most[pace.measure] = pace, rank
    axes, _ = run.written(metric)
    claimed = seconds_per_step(tuple(paces.values()))
    by_eye = times_pace(axes[0], axes[3]) or growth
    if by_eye is None and age is not None and (claimed is None or claimed > age.newest):
        by_eye = age
    if by_eye is not None and (
        claimed is None or not 1 / CLEARLY < claimed / by_eye.newest < CLEARLY
    ):
        paces.pop("steps_per_second", None)
        paces["seconds_per_step"] = replace(by_eye, claimed=nan if claimed is None else claimed)
    for derived in _derived(axes, paces):
        paces.setdefault(derived.measure, derived)
    return tuple(paces[measure] for measure in _ORDER if measure in paces)


def seconds_per_step(paces: tuple[TrainingPace, ...]) -> float | None:
    """For `estimate_eta`; None where no pace of steps is among them."""
    for pace in paces:
        if pace.measure == "seconds_per_step":
            return pace.newest
        if pace.measure == "steps_per_second":
            return 1.0 / pace.newest
    return None


def _seen(pace_seconds: float, source: str) -> TrainingPace:
    return TrainingPace("seconds_per_step", pace_seconds, nan, nan, source)


def _derived(axes: Floats, paces: dict[Measure, TrainingPace]) -> list[TrainingPace]:
    derived: list[TrainingPace] = []
    step_pace = paces.get("seconds_per_step") or paces.get("steps_per_second")
    if step_pace is not None:
        tokens = tokens_per_second(step_pace, axes[0], axes[2])
        if tokens > 0:
            run = tokens / (1 + step_pace.drift_percent / 100)
            by_tokens = replace(
                step_pace, measure="tokens_per_second", newest=tokens, run=run, source="tokens"
            )
            derived.append(replace(by_tokens, claimed=nan))
    return derived
