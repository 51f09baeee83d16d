"""Facts of a run that its log reports: anomalies, pace and end, and the cost of restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan

import numpy as np
from msgspec import Struct, field

from hpcdash.domain.text import visible
from hpcdash.services.metrics.batch import AXES, Floats
from hpcdash.services.metrics.charts.curves import value_at
from hpcdash.services.metrics.charts.state import Mark, main_metric
from hpcdash.services.metrics.findings import (
    MetricFinding,
    find_lost_numbers,
    find_not_finite,
    find_plateau,
    find_stall,
    find_vanished,
    find_zero,
    sample_gaps,
)
from hpcdash.services.metrics.joined import SAMPLES, JoinedRun
from hpcdash.services.metrics.pace import (
    JobFacts,
    PaceGrowth,
    average_pace,
    format_end,
    format_lost_time,
    run_paces,
    seconds_per_step,
)
from hpcdash.services.metrics.series import Series
from hpcdash.services.metrics.spikes import (
    FEWEST_POINTS,
    NOTHING_ANALYSED,
    SpikeAnalysis,
    find_spikes,
)
from hpcdash.services.metrics.vocabulary import is_loss

# Those that call for a person come first.
_SEVERE = ("divergence", "nan", "inf", "stall")
# The usual gap between samples is that of the newest.
_NEWEST_TIMES = 500


class RunFacts(Struct, frozen=True):
    """Facts of a run that its log reports."""

    # Those of each metric that was judged.
    findings: Mapping[str, Sequence[MetricFinding]] = field(default_factory=dict)
    # They along `axis`, in the order of their x.
    marks: Mapping[str, tuple[Mark, ...]] = field(default_factory=dict)
    # All of them and what shows that the training is broken, the severest and newest first.
    found: tuple[Mark, ...] = ()
    axis: str = ""
    # Whether so few points determine nothing.
    too_few: bool = False
    # End, pace and restarts, each as text.
    course: tuple[str, ...] = ()


class RunReader:
    """Reads one run again and again; of a spike search only what is new is judged."""

    def __init__(self) -> None:
        self._spikes: dict[str, SpikeAnalysis] = {}
        self._growth = PaceGrowth()

    def read(self, run: JoinedRun, names: Sequence[str], axis: str, job: JobFacts) -> RunFacts:
        """Find anomalies in the metrics `names`, along `axis`, and describe the run's course."""
        findings: dict[str, list[MetricFinding]] = {}
        marks: dict[str, list[Mark]] = {}
        ranked: list[tuple[bool, float, Mark]] = []
        points = 0
        for name in names:
            if name not in run.names:
                continue
            home = home_axis(run, name)
            series = run.series(name, home)
            points = max(points, int(series.points.sum()))
            findings[name] = self._judge(run, name, series, job)
            begins = np.array([finding.place for finding in findings[name]])
            places = _along(run, name, home, axis, begins).tolist()
            marks[name] = []
            for finding, x in zip(findings[name], places, strict=True):
                y = finding.value
                if finding.kind in ("divergence", "stall"):
                    nearest = value_at(series, finding.step_from)
                    y = nan if nearest is None else nearest[1]
                mark = _build_mark(finding, x, y, "" if is_loss(name) else name)
                marks[name].append(mark)
                is_severe = mark.lasts and finding.kind in _SEVERE
                ranked.append((is_severe, finding.step_from, mark))
        home = home_axis(run)
        for name, finding in find_broken(run, names):
            [x] = _along(run, name, home, axis, np.array([finding.step_from])).tolist()
            mark = _build_mark(finding, x, nan, name)
            if name in marks:
                marks[name].append(mark)
            ranked.append((True, finding.step_from, mark))
        ranked.sort(key=lambda item: item[:2], reverse=True)
        course = (*self.read_course(run, job), format_lost_time(run.lost_time()))
        return RunFacts(
            findings=findings,
            marks={
                name: tuple(sorted(some, key=lambda mark: mark.x)) for name, some in marks.items()
            },
            found=tuple(mark for _, _, mark in ranked),
            axis=axis,
            too_few=points < FEWEST_POINTS,
            course=tuple(filter(None, course)),
        )

    def _judge(
        self, run: JoinedRun, name: str, series: Series, job: JobFacts
    ) -> list[MetricFinding]:
        if is_loss(name):
            before = self._spikes.get(name, NOTHING_ANALYSED)
            findings, self._spikes[name] = judge_loss(series.x, series.values, before)
        else:
            findings = list(find_not_finite(series.x, series.values))
        if job.is_running and len(series) and name == main_metric(run.names):
            axes, _ = run.written(name)
            times = axes[AXES.index("time")]
            times = times[np.isfinite(times)][-_NEWEST_TIMES:]
            if (gaps := sample_gaps(times)) is not None:
                stall = find_stall(job.now - float(times[-1]), *gaps, float(series.x[-1]))
                findings += [stall] if stall is not None else []
        return findings

    def read_course(
        self, run: JoinedRun, job: JobFacts, metric: str | None = None
    ) -> tuple[str, ...]:
        """Describe the end and the pace of a run by a metric's samples (None: the main one's)."""
        name = metric or main_metric(run.names)
        if name is None:
            return ()
        axes, _ = run.written(name)
        steps = axes[0][np.isfinite(axes[0])]
        growth = age = None
        if job.is_running and steps.size:
            self._growth.note(job.now, float(steps[-1]))
            growth = self._growth.pace()
            age = average_pace(run, job.age_seconds)
        paces = run_paces(run, name, growth, age)
        step_seconds = seconds_per_step(paces)
        lost = run.lost_time()
        messages = []
        if job.is_running and run.last_step is not None and step_seconds and steps.size:
            is_timed = lost.restarts and not np.isnan(lost.repeated_seconds)
            end = format_end(
                float(steps[-1]),
                float(run.last_step),
                step_seconds,
                limit_seconds_left=job.limit_seconds_left,
                task_limit_seconds=job.limit_seconds,
                repeated_seconds=lost.repeated_seconds / lost.restarts if is_timed else 0.0,
                is_array=job.is_array,
            )
            messages += [end] if end is not None else []
        for measures in (
            ("seconds_per_step", "steps_per_second"),
            ("tokens_per_second", "samples_per_second"),
            ("teraflops",),
        ):
            messages += [pace.text for pace in paces if pace.measure in measures][:1]
        return tuple(messages)


def judge_loss(
    x: Floats, values: Floats, before: SpikeAnalysis = NOTHING_ANALYSED
) -> tuple[list[MetricFinding], SpikeAnalysis]:
    """Return the findings in a loss (n) at `x` (n), and the analysis to continue from.

    `before` is that of the same loss when it was shorter.
    """
    spikes = find_spikes(x, values, before)
    plateau = find_plateau(x, values)
    findings = [*find_not_finite(x, values), *spikes.findings]
    return findings + ([plateau] if plateau is not None else []), spikes


def home_axis(run: JoinedRun, name: str | None = None) -> str:
    """Return the axis that findings of a metric are along, or those of several metrics."""
    axes = run.axes(name)
    return next((axis for axis in ("step", "tokens", "epoch") if axis in axes), "point")


def find_broken(run: JoinedRun, shown: Sequence[str]) -> list[tuple[str, MetricFinding]]:
    """Find what shows that a training is broken beside nan in the metrics `shown`: metrics that
    became nan or inf, and a main loss that is exactly 0 or no longer logged; each by its metric's
    name.
    """
    home = home_axis(run)
    places: dict[str, Floats] = {}
    findings: list[tuple[str, MetricFinding]] = []
    main = main_metric(run.names)
    main_values = np.empty(0)
    for name in run.names:
        axes, values = run.written(name)
        if name == main:
            main_values = values
        x = axes[AXES.index(home)] if home in AXES else np.arange(values.size, dtype=float)
        places[name] = x
        if name not in shown:
            findings += [(name, finding) for finding in find_lost_numbers(name, x, values)]
    if main is not None and is_loss(main):
        x = places.pop(main)
        broken = find_zero(x, main_values)
        if broken is None and home in AXES:
            broken = find_vanished(x, places.values())
        findings += [(main, broken)] if broken is not None else []
    return findings


def _along(run: JoinedRun, name: str, home: str, axis: str, x: Floats) -> Floats:
    """Convert positions `x` on the axis `home` to positions on `axis`; nan if unknown."""
    if axis == home or not x.size:
        return x
    axes, values = run.written(name)
    numbers = np.arange(values.size, dtype=float)
    at_home = axes[AXES.index(home)] if home in AXES else numbers
    if axis == SAMPLES:
        on_axis = run.samples_at(axes[0])
    else:
        on_axis = axes[AXES.index(axis)] if axis in AXES else numbers
    known = np.flatnonzero(np.isfinite(at_home) & np.isfinite(on_axis))
    if not known.size:
        return np.full(x.size, nan)
    order = known[np.argsort(at_home[known], kind="stable")]
    positions: Floats = np.interp(x, at_home[order], on_axis[order])
    return positions


def _build_mark(finding: MetricFinding, x: float, y: float, name: str) -> Mark:
    """Build the mark of a finding, whose text begins with `name` ('': with none)."""
    text = f"{visible(name)}: {finding.text}" if name else finding.text
    return Mark(x, y if isfinite(y) else nan, text, finding.kind, lasts=finding.step_to is None)
