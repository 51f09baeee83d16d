"""Findings on a run to show under its chart: pace, end, restarts, and what stands out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite, nan

import numpy as np
from msgspec import Struct, field

from hpcdash.domain.text import visible
from hpcdash.services.metrics.batch import Floats
from hpcdash.services.metrics.cells import AXES
from hpcdash.services.metrics.charts.curves import SeriesCache, value_at
from hpcdash.services.metrics.charts.state import FINDINGS, Mark, main_metric
from hpcdash.services.metrics.eta import (
    estimate_eta,
    format_lost_time,
    gap_seconds,
    repeated_seconds,
)
from hpcdash.services.metrics.findings import (
    MetricFinding,
    find_lost_numbers,
    find_not_finite,
    find_plateau,
    find_stall,
    find_vanished,
    find_zero,
)
from hpcdash.services.metrics.joined import SAMPLES, JoinedRun, Series
from hpcdash.services.metrics.spikes import (
    FEWEST_POINTS,
    NOTHING_ANALYSED,
    SpikeAnalysis,
    find_spikes,
)
from hpcdash.services.metrics.throughput import (
    PaceGrowth,
    TrainingPace,
    average_pace,
    run_paces,
    seconds_per_step,
)
from hpcdash.services.metrics.vocabulary import is_loss

# Those that call for a person come first.
_GRAVE = ("divergence", "nan", "inf", "stall")


class JobFacts(Struct, frozen=True):
    """Facts from the scheduler about the job.

    `limit_seconds_left` is None if it does not run or has no limit. `now` is an epoch second;
    `age_seconds` is how long it has run, if all of its output is read, else None.
    """

    now: float
    is_running: bool = False
    limit_seconds_left: float | None = None
    limit_seconds: float | None = None
    is_array: bool = False
    age_seconds: float | None = None


class ChartReading(Struct, frozen=True):
    """`meaning` are end, pace and restarts in words.

    `marks` by metric, along `axis`, in the order of their x; `found` all of them, the gravest and
    newest first. `too_few`: of so few points nothing can be told.
    """

    meaning: tuple[str, ...] = ()
    marks: Mapping[str, tuple[Mark, ...]] = field(default_factory=dict)
    found: tuple[Mark, ...] = ()
    axis: str = ""
    too_few: bool = False


class RunReader:
    """Reads one run again and again; of a spike search only what is new is judged."""

    def __init__(self, *, is_ascii: bool = False) -> None:
        self._is_ascii = is_ascii
        self._spikes: dict[str, SpikeAnalysis] = {}
        self._growth = PaceGrowth()

    def read(
        self, run: JoinedRun, names: Sequence[str], axis: str, facts: JobFacts, stored: SeriesCache
    ) -> ChartReading:
        """Find anomalies in the metrics `names`, along `axis`, and describe the run's course."""
        home = next(
            (one for one in ("step", "tokens", "epoch", "point") if one in run.axes()), "point"
        )
        marks: dict[str, tuple[Mark, ...]] = {}
        points = 0
        ranked: list[tuple[bool, float, Mark]] = []
        for name in names:
            if name not in run.names:
                continue
            series = stored.series(run, name, home)
            points = max(points, int(series.points.sum()))
            findings = self._findings(run, name, series, facts)
            places = [one.peak_at if isfinite(one.peak_at) else one.step_from for one in findings]
            along = _along(run, name, home, axis, np.array(places))
            made = []
            for finding, x in zip(findings, along.tolist(), strict=True):
                mark = self._mark(finding, x, series, name)
                made.append(mark)
                is_open = finding.step_to is None and finding.kind in _GRAVE
                ranked.append((is_open, finding.step_from, mark))
            marks[name] = tuple(sorted(made, key=lambda mark: mark.x))
        for name, finding in find_broken(run, names):
            [x] = _along(run, name, home, axis, np.array([finding.step_from])).tolist()
            sign, plain, style, _ = FINDINGS[finding.kind]
            text = f"{visible(name)}: {finding.words}"
            mark = Mark(
                x, nan, plain if self._is_ascii else sign, style, text, finding.kind, lasts=True
            )
            if name in marks:
                marks[name] = tuple(sorted((*marks[name], mark), key=lambda mark: mark.x))
            ranked.append((True, finding.step_from, mark))
        ranked.sort(key=lambda one: one[:2], reverse=True)
        return ChartReading(
            self._meaning(run, facts),
            marks,
            tuple(mark for _, _, mark in ranked),
            axis,
            points < FEWEST_POINTS,
        )

    def _findings(
        self, run: JoinedRun, name: str, series: Series, facts: JobFacts
    ) -> list[MetricFinding]:
        x, values = series.x, series.values
        found = list(find_not_finite(x, values))
        if is_loss(name) and len(series):
            self._spikes[name] = find_spikes(x, values, self._spikes.get(name, NOTHING_ANALYSED))
            found += self._spikes[name].findings
            plateau = find_plateau(x, values)
            found += [plateau] if plateau is not None else []
        if facts.is_running and name == main_metric(run.names) and len(series):
            axes, _ = run.written(name)
            stall = find_stall(axes[AXES.index("time")], facts.now, float(series.x[-1]))
            found += [stall] if stall is not None else []
        return found

    def _mark(self, finding: MetricFinding, x: float, series: Series, name: str) -> Mark:
        sign, plain, style, _ = FINDINGS[finding.kind]
        y = finding.value
        if finding.kind in ("divergence", "stall"):
            there = value_at(series, finding.step_from)
            y = there[1] if there is not None else nan
        elif finding.kind in ("nan", "inf"):
            y = nan
        text = finding.words if is_loss(name) else f"{visible(name)}: {finding.words}"
        sign = plain if self._is_ascii else sign
        return Mark(
            x,
            y if isfinite(y) else nan,
            sign,
            style,
            text,
            finding.kind,
            lasts=finding.step_to is None,
        )

    def _meaning(self, run: JoinedRun, facts: JobFacts) -> tuple[str, ...]:
        name = main_metric(run.names)
        if name is None:
            return ()
        axes, _ = run.written(name)
        steps = axes[0][np.isfinite(axes[0])]
        growth = age = None
        if facts.is_running and steps.size:
            self._growth.note(facts.now, float(steps[-1]))
            growth, age = self._growth.pace(), average_pace(run, facts.age_seconds)
        messages = describe_course(run, run_paces(run, name, growth, age), steps, facts)
        restarts = format_lost_time(run.lost_time())
        return (*messages, restarts) if restarts else messages


def find_broken(run: JoinedRun, shown: Collection[str]) -> list[tuple[str, MetricFinding]]:
    """Find what shows that a training is broken beside nan in the metrics `shown`: metrics that
    became nan or inf, and a main loss that is exactly 0 or no longer logged; each by its metric's
    name.
    """
    home = next((one for one in ("step", "tokens", "epoch") if one in run.axes()), "")
    main = main_metric(run.names)
    written = {}
    for name in run.names:
        axes, values = run.written(name)
        written[name] = (
            axes[AXES.index(home)] if home else np.arange(values.size, dtype=float),
            values,
        )
    found = [
        (name, finding)
        for name, (x, values) in written.items()
        if name not in shown
        for finding in find_lost_numbers(name, x, values)
    ]
    if main is not None and is_loss(main):
        x, values = written[main]
        beside = [places for name, (places, _) in written.items() if name != main]
        finding = find_zero(x, values) or (find_vanished(x, beside) if home else None)
        found += [(main, finding)] if finding is not None else []
    return found


def describe_course(
    run: JoinedRun, paces: tuple[TrainingPace, ...], steps: Floats, facts: JobFacts
) -> tuple[str, ...]:
    """End and pace of a run in words; `steps` (n) are those it was at, in the order they were
    written.
    """
    step_seconds = seconds_per_step(paces)
    messages = []
    lost = run.lost_time()
    if facts.is_running and run.last_step is not None and step_seconds and steps.size:
        eta = estimate_eta(
            float(steps[-1]),
            float(run.last_step),
            step_seconds,
            facts.limit_seconds_left,
            facts.limit_seconds,
            repeated_seconds(lost),
            gap_seconds(lost),
            is_array=facts.is_array,
        )
        messages += [eta.words] if eta is not None else []
    for measures in (
        ("seconds_per_step", "steps_per_second"),
        ("tokens_per_second", "samples_per_second"),
    ):
        messages += [pace.words for pace in paces if pace.measure in measures][:1]
    messages += [pace.words for pace in paces if pace.measure == "teraflops"]
    return tuple(messages)


def _along(run: JoinedRun, name: str, home: str, axis: str, x: Floats) -> Floats:
    """Convert positions `x` on the axis `home` to positions on `axis`; nan if unknown."""
    if axis == home or not x.size:
        return x
    axes, values = run.written(name)
    count = np.arange(values.size, dtype=float)
    home_rank = axes[AXES.index(home)] if home in AXES else count
    axis_metrics = (
        axes[AXES.index(axis)]
        if axis in AXES
        else run.samples_at(axes[0])
        if axis == SAMPLES
        else count
    )
    known = np.flatnonzero(np.isfinite(home_rank) & np.isfinite(axis_metrics))
    if not known.size:
        return np.full(x.size, nan)
    order = known[np.argsort(home_rank[known], kind="stable")]
    found: Floats = np.interp(x, home_rank[order], axis_metrics[order])
    return found
