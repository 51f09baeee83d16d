"""Pace of a training, from times of its samples or from pace metrics in its logs; its estimated
end, and the cost of its restarts.
"""

from __future__ import annotations

import re
from collections import deque
from math import ceil, isfinite, isnan, nan
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.domain.units import format_amount, format_span
from hpcdash.services.metrics.batch import Floats
from hpcdash.services.metrics.findings import format_step
from hpcdash.services.metrics.joined import JoinedRun, LostTime

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
MIN_GROWTH_SECONDS = 5.0
MIN_CHANGES = 4
_MAX_STANDS = 600
# A job's age determines a pace once its start is a small part of it.
MIN_AGE_SECONDS = 600.0
# In the order in which paces are shown.
_UNITS: dict[Measure, str] = {
    "seconds_per_step": "s/step",
    "steps_per_second": "steps/s",
    "tokens_per_second": "tokens/s",
    "samples_per_second": "samples/s",
    "teraflops": "TFLOP/s",
}


class JobFacts(Struct, frozen=True):
    """Facts from the scheduler about the job."""

    # An epoch second.
    now: float
    is_running: bool = False
    # None if it does not run or has no limit.
    limit_seconds_left: float | None = None
    limit_seconds: float | None = None
    is_array: bool = False
    # How long it has run, if all of its output is read, else None.
    age_seconds: float | None = None


class Quantity(Struct, frozen=True):
    """Measure of a metric by its name."""

    measure: Measure
    # Converts its values to seconds or TFLOP/s.
    factor: float
    per_device: bool


class TrainingPace(Struct, frozen=True):
    """Pace of a training by one measure."""

    measure: Measure
    # The median of the last hour, or of the last tenth if no times are known.
    newest: float
    # How much faster that is than the whole run's (slower: negative), nan if unknown.
    drift_percent: float
    # The metric's name, `times`, or how else it was observed.
    source: str
    per_device: bool = False
    # The log's own pace if another one was observed.
    claimed: float = nan

    @property
    def text(self) -> str:
        """`0.52 s/step, 14 % slower than the run's median`, `51.4k tokens/s, steady`."""
        text = self._format(self.newest)
        if abs(self.drift_percent) < STEADY_PERCENT:
            text += ", steady"
        elif isfinite(self.drift_percent):
            way = "faster" if self.drift_percent > 0 else "slower"
            text += f", {abs(self.drift_percent):.0f}% {way} than the run's median"
        if isfinite(self.claimed):
            text += f" (the log reports {self._format(self.claimed)})"
        return text

    def _format(self, amount: float) -> str:
        unit = _UNITS[self.measure]
        if unit == "s/step" and amount < 0.1:
            amount = 1000 * amount
            unit = "ms/step"
        return f"{format_amount(amount)} {unit}" + (" per device" if self.per_device else "")


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


def times_pace(steps: Floats, times: Floats) -> TrainingPace | None:
    """Seconds per step from `steps` (n) and `times` (n, epoch seconds) of samples in the order they
    were written.

    Medians over stretches of samples: a pause for a checkpoint is not the pace, and times of whole
    seconds do not matter. None with fewer than two samples that go on.
    """
    known = np.isfinite(steps) & np.isfinite(times)
    steps = steps[known]
    times = times[known]
    took = np.diff(times)
    done = np.diff(steps)
    goes_on = (done > 0) & (took >= 0)
    if not goes_on.any():
        return None
    newest = goes_on & (times[1:] >= times[-1] - NEWEST_SECONDS)
    if newest.sum() < 5:
        newest = goes_on.copy()
        newest[: int(newest.size * (1 - NEWEST_PART))] = False
        newest = newest if newest.any() else goes_on
    run = _stretch_median(took[goes_on], done[goes_on])
    now = _stretch_median(took[newest], done[newest])
    if run <= 0 or now <= 0:
        return None
    return TrainingPace("seconds_per_step", now, 100 * (run / now - 1), "times")


def metric_pace(
    name: str,
    values: Floats,
    times: Floats,
    quantity: Quantity | None = None,
) -> TrainingPace | None:
    """Return the log's own pace: `values` (n) of the metric `name` at `times` (n, nan if unknown),
    in the order they were written. `quantity` is what it measures, unless the name shows it. None
    if it measures no pace, or no value is a number.
    """
    quantity = quantity or metric_quantity(name)
    known = np.isfinite(values) & (values > 0)
    if quantity is None or not known.any():
        return None
    values = values[known] * quantity.factor
    times = times[known]
    last = times[-1]
    newest = times >= last - NEWEST_SECONDS if isfinite(last) else np.zeros(values.size, dtype=bool)
    if newest.sum() < 5:
        newest = np.arange(values.size) >= min(
            int(values.size * (1 - NEWEST_PART)), max(values.size - 5, 0)
        )
    now = float(np.median(values[newest]))
    run = float(np.median(values))
    faster = run / now if quantity.measure == "seconds_per_step" else now / run
    return TrainingPace(quantity.measure, now, 100 * (faster - 1), name, quantity.per_device)


def tokens_per_second(step_seconds: float, steps: Floats, tokens: Floats) -> float:
    """Compute tokens per second from the pace of steps and the tokens (n) consumed at `steps` (n).

    nan if they do not grow.
    """
    known = np.isfinite(steps) & np.isfinite(tokens)
    done = np.diff(steps[known])
    consumed = np.diff(tokens[known])
    grows = (done > 0) & (consumed > 0)
    if not grows.any():
        return nan
    return float(np.median(consumed[grows] / done[grows])) / step_seconds


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
        self._stands: deque[tuple[float, float]] = deque(maxlen=_MAX_STANDS)

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
        if len(changes) < MIN_CHANGES or changes[-1][0] - changes[0][0] < MIN_GROWTH_SECONDS:
            return None
        begin, first = changes[0]
        end, last = changes[-1]
        return TrainingPace("seconds_per_step", (end - begin) / (last - first), nan, "growth")


def average_pace(run: JoinedRun, age_seconds: float | None) -> TrainingPace | None:
    """Compute an upper bound of the seconds per step from a job's age and its newest attempt.

    None if the job is young.
    """
    if age_seconds is None or age_seconds < MIN_AGE_SECONDS or not run.attempts:
        return None
    attempt = run.attempts[-1]
    steps = attempt.last[0] - attempt.first[0]
    if not isfinite(steps) or steps <= 0:
        return None
    return TrainingPace("seconds_per_step", age_seconds / steps, nan, "age")


def run_paces(
    run: JoinedRun,
    metric: str,
    growth: TrainingPace | None = None,
    age: TrainingPace | None = None,
) -> tuple[TrainingPace, ...]:
    """Return at most one pace a measure.

    The pace of steps is the log's own, unless the observed one clearly differs: by its times, else
    by its `growth`; by the `age` of its job only if that is too short for the log's pace, because
    more than steps may have taken its time.

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
            paces[pace.measure] = pace
            most[pace.measure] = rank
    axes, _ = run.written(metric)
    claimed = seconds_per_step(tuple(paces.values()))
    observed = times_pace(axes[0], axes[3]) or growth
    if observed is None and age is not None and (claimed is None or claimed > age.newest):
        observed = age
    if observed is not None:
        is_like = claimed is not None and 1 / CLEARLY < claimed / observed.newest < CLEARLY
        if not is_like:
            paces.pop("steps_per_second", None)
            paces["seconds_per_step"] = replace(
                observed, claimed=nan if claimed is None else claimed
            )
    step_pace = paces.get("seconds_per_step") or paces.get("steps_per_second")
    step_seconds = None if step_pace is None else seconds_per_step((step_pace,))
    if step_pace is not None and step_seconds and "tokens_per_second" not in paces:
        tokens = tokens_per_second(step_seconds, axes[0], axes[2])
        if tokens > 0:
            paces["tokens_per_second"] = TrainingPace(
                "tokens_per_second",
                tokens,
                step_pace.drift_percent,
                "tokens",
                step_pace.per_device,
            )
    return tuple(paces[measure] for measure in _UNITS if measure in paces)


def seconds_per_step(paces: tuple[TrainingPace, ...]) -> float | None:
    """Return the seconds of a step; None where no pace of steps is among them."""
    for pace in paces:
        if pace.measure == "seconds_per_step":
            return pace.newest
        if pace.measure == "steps_per_second":
            return 1.0 / pace.newest
    return None


def seconds_to_end(run: JoinedRun, metric: str) -> float | None:
    """Return the seconds from a run's newest step to its final one, at the pace of its log; None
    if either is unknown.
    """
    axes, _ = run.written(metric)
    steps = axes[0][np.isfinite(axes[0])]
    step_seconds = seconds_per_step(run_paces(run, metric))
    if run.last_step is None or not step_seconds or not steps.size:
        return None
    return max(float(run.last_step - steps[-1]) * step_seconds, 0.0)


def format_end(
    step: float,
    last_step: float,
    seconds_per_step: float,
    limit_seconds_left: float | None = None,
    task_limit_seconds: float | None = None,
    repeated_seconds: float = 0.0,
    *,
    is_array: bool = True,
) -> str | None:
    """`ends in 2 d, limit in 18 h: needs 3 more array tasks`: when `last_step` is reached from
    `step`, and whether that is in the seconds that the job has left (None: no limit is known).

    `task_limit_seconds` is the limit of each following array task, or job unless it `is_array`
    (None: unknown, then their number is unknown too). Each of them spends `repeated_seconds` of its
    limit on steps that were done before. None if the pace or the final step is unknown.
    """
    if not (isfinite(step) and isfinite(last_step) and isfinite(seconds_per_step)):
        return None
    if seconds_per_step <= 0:
        return None
    work = max(last_step - step, 0.0) * seconds_per_step
    if not work:
        return "at the final step"
    end = f"ends in {format_span(work)}"
    if limit_seconds_left is None or not isfinite(limit_seconds_left):
        return end
    left = max(limit_seconds_left, 0.0)
    end = f"{end}, limit in {format_span(left)}"
    if work <= left:
        return end
    if task_limit_seconds is None or not isfinite(task_limit_seconds):
        return f"{end}: needs {'more array tasks' if is_array else 'more jobs'}"
    useful = task_limit_seconds - repeated_seconds
    if useful <= 0:
        cost = format_span(repeated_seconds)
        limit = format_span(task_limit_seconds)
        unit = "task" if is_array else "job"
        return (
            f"{end}: another {unit} cannot finish the run: repeating steps takes {cost} of its "
            f"{limit}"
        )
    count = ceil((work - left) / useful)
    plural = "s" if count > 1 else ""
    units = f"array task{plural}" if is_array else f"job{plural} of this length"
    return f"{end}: needs {count} more {units}"


def format_lost_time(lost: LostTime) -> str:
    """`3 restarts: 1 200 steps repeated (40 min), 12 min between attempts`; "" without a
    restart.
    """
    if not lost.restarts:
        return ""
    message = f"{lost.restarts} restart" + ("s" if lost.restarts > 1 else "")
    parts = []
    if lost.repeated_steps:
        again = f"{format_step(lost.repeated_steps)} steps repeated"
        if not isnan(lost.repeated_seconds):
            again += f" ({format_span(lost.repeated_seconds)})"
        parts.append(again)
    if lost.gap_seconds > 0:
        parts.append(f"{format_span(lost.gap_seconds)} between attempts")
    return f"{message}: {', '.join(parts)}" if parts else message
