"""A report of what runs used over a span of time: hours, jobs, failures and waiting, by day, queue,
user and more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.domain.columns import as_array
from hpcdash.domain.schema import COUNT, TEXT
from hpcdash.domain.spans import Span
from hpcdash.domain.states import JobState
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_span
from hpcdash.services.usage.archive import OTHERS_HIDDEN, FetchedRuns
from hpcdash.services.usage.efficiency import (
    Advice,
    advise,
    column_codes,
    column_floats,
    name_codes,
    whole_peaks,
    with_use,
)

GROUPINGS = ("day", "week", "queue", "user", "account", "name")
OF_TIME = ("day", "week")
FAILURES = (JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.NODE_FAILED)
# Upper ends of the waits that are counted together, in seconds; the last has none.
WAIT_ENDS = (60, 600, 3600, 6 * 3600, 24 * 3600, 3 * 86400)
WAIT_LABELS = ("< 1 min", "1-10 min", "10-60 min", "1-6 h", "6-24 h", "1-3 d", "> 3 d")
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
NOT_KNOWN = "(none)"
_SIZE_ENDS = {"GPU": (1, 4, 8, 32, 128), "CPU": (1, 8, 32, 128, 512)}
_MAX_WASTEFUL = 20

# CPU and GPU seconds are allocated ones within the span. `jobs` ended in it, a requeued one once a
# run.
MEASURES: tuple[tuple[str, pa.DataType], ...] = (
    ("cpu_seconds", COUNT),
    ("gpu_seconds", COUNT),
    ("jobs", COUNT),
    ("failed", COUNT),
    ("requeued", COUNT),
    # Runs that have not ended: their hours to this day are in the first two.
    ("running", COUNT),
    # Of the first two, what failed runs had.
    ("failed_cpu_seconds", COUNT),
    ("failed_gpu_seconds", COUNT),
    # Of the first two, what was not used; of runs whose use is known, whose seconds the last two
    # are.
    ("unused_cpu_seconds", COUNT),
    ("unused_gpu_seconds", COUNT),
    ("measured_cpu_seconds", COUNT),
    ("measured_gpu_seconds", COUNT),
    # Runs that started in the span, and how long they had waited together.
    ("started", COUNT),
    ("wait_seconds", COUNT),
)
_NAMES = tuple(name for name, _ in MEASURES)
# What a report reads of a run once its use is known, and the columns of domain.schema.RUNS that it
# is made of.
_COLUMNS = (
    *(
        "id",
        "name",
        "user",
        "account",
        "queue",
        "state",
        "cpus",
        "gpus",
        "memory_bytes",
        "memory_peak_bytes",
    ),
    *("elapsed_seconds", "limit_seconds", "submitted_at", "eligible_at", "started_at", "ends_at"),
    *("suspended_seconds", "run", "usage_source"),
)
RUN_COLUMNS = (*_COLUMNS, "cpu_seconds_used", "gpu_use", "gpu_memory_peak_bytes", "_admin_comment")
_OF_WAITS = ("started", "wait_seconds")
_WAITS = (("wait_median_seconds", 0.5), ("wait_p80_seconds", 0.8))
GROUPS = pa.schema([("key", TEXT), *MEASURES, *((name, COUNT) for name, _ in _WAITS)])
WAITS = pa.schema(
    [
        ("queue", TEXT),
        ("size", TEXT),
        ("started", COUNT),
        ("wait_median_seconds", COUNT),
        ("wait_p80_seconds", COUNT),
        ("wait_p95_seconds", COUNT),
        ("wait_longest_seconds", COUNT),
        *((f"waits_{number}", COUNT) for number in range(len(WAIT_LABELS))),
    ]
)
WASTEFUL = pa.schema(
    [
        ("name", TEXT),
        ("user", TEXT),
        ("runs", COUNT),
        ("cpu_seconds", COUNT),
        ("gpu_seconds", COUNT),
        ("unused_cpu_seconds", COUNT),
        ("unused_gpu_seconds", COUNT),
        # Bytes that were not used, over time; of the peak of each run.
        ("unused_memory_gib_seconds", COUNT),
    ]
)


class Load(Struct, frozen=True):
    """CPUs or GPUs that were held, a mean by weekday (rows, from Monday) and hour; nan where the
    span has none.
    """

    unit: str
    held: np.ndarray

    @property
    def largest(self) -> float:
        known = self.held[np.isfinite(self.held)]
        return float(known.max()) if known.size else 0.0


class UsageReport(Struct, frozen=True):
    """Everything that is said of a span.

    Tables are of GROUPS, WAITS and WASTEFUL; `total` has the names of MEASURES.

    `notes` say in words what has to be known to read it. Any grouping's column of MEASURES adds up
    to `total`.
    """

    span: Span
    zone: tzinfo
    users: int
    total: Mapping[str, int | None]
    groups: Mapping[str, pa.Table]
    waits: pa.Table
    load: Load
    wasteful: pa.Table
    advice: tuple[Advice, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return (
            not self.total["jobs"] and not self.total["cpu_seconds"] and not self.total["started"]
        )

    @property
    def unit(self) -> str:
        """Unit of the hours that are shown first: GPUs if any was held."""
        return self.load.unit


def build_report(
    runs: pa.Table, span: Span, zone: tzinfo = UTC, notes: Sequence[str] = ()
) -> UsageReport:
    """The report of `runs`, rows of domain.schema.RUNS with RUN_COLUMNS, in any order.

    With a column `cluster` they are grouped by it, too.

    Days are those of `zone`.

    One without an end still runs, and began its `elapsed_seconds` and the time it was suspended
    ago. A run counts with its hours in the span, as sreport cuts it: on the days it ran; as a job
    and a failure on the day it ended; with its wait on the day it started. Suspended time is no CPU
    time, but GPU time: it keeps its GPUs.
    """
    used = with_use(runs.select(RUN_COLUMNS)).select([*_COLUMNS, "cpu_use", "gpu_use"])
    if "cluster" in runs.column_names:
        used = used.append_column("cluster", runs["cluster"])
    begin, end = _times(used)
    inside = np.flatnonzero((end > span.since) & (begin < span.until) | _within(end, span))
    if len(inside) < used.num_rows:
        used = used.take(pa.array(inside))
        begin = begin[inside]
        end = end[inside]
    advice = advise(used)
    held = _Held(used, begin, end, span)
    wasteful = _wasteful(used, held)
    hours = _Hours(held, span, zone)
    waits = _waits_in(used, begin, span)
    groupings = {
        name: _ByTime(hours, begin, end, by_week=name == "week")
        if name in OF_TIME
        else _ByColumn(used[name])
        for name in (*GROUPINGS, "cluster")
        if name in OF_TIME or name in used.column_names
    }
    total: dict[str, int] = {}
    # One after the other: of a million runs each takes 8 MB.
    for name, values in _measures(used, held, waits, end, span):
        total[name] = int(values.sum())
        for grouping in groupings.values():
            grouping.add(name, values)
    groups = {name: grouping.table(waits) for name, grouping in groupings.items()}
    unit = "GPU" if total["gpu_seconds"] else "CPU"
    waited = waits[~np.isnan(waits)]
    more = {
        name: round(float(np.quantile(waited, part))) if waited.size else None
        for name, part in _WAITS
    }
    unknown = int(np.isnan(column_floats(used["cpus"])[held.seconds > 0]).sum())
    messages = [f"{unknown} runs have no CPU count: their hours are missing"] if unknown else []
    if no_gpus := int(np.isnan(column_floats(used["gpus"])[held.seconds > 0]).sum()):
        messages.append(
            f"the GPUs of {counted(no_gpus, 'run')} are unknown: their GPU hours are missing"
        )
    return UsageReport(
        span,
        zone,
        len(pc.unique(as_array(used["user"]).cast(TEXT)).drop_null()),
        {**total, **more},
        groups,
        _waits(used, waits, unit),
        Load(unit, hours.load(unit)),
        wasteful,
        tuple(advice),
        (*notes, *messages),
    )


def _times(runs: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and end of runs, in epoch seconds; nan: never started, or unknown."""
    end = column_floats(as_array(runs["ends_at"]).cast(COUNT))
    begin = column_floats(as_array(runs["started_at"]).cast(COUNT))
    elapsed = column_floats(runs["elapsed_seconds"])
    begin = np.where(np.isnan(begin) & (elapsed > 0), end - elapsed, begin)
    suspended = np.nan_to_num(column_floats(runs["suspended_seconds"]))
    return begin, np.where(np.isnan(end), begin + elapsed + suspended, end)


def _within(moments: np.ndarray, span: Span) -> np.ndarray:
    inside: np.ndarray = (moments >= span.since) & (moments < span.until)
    return inside


class _Held:
    """Times in which runs held CPUs and GPUs, in whole seconds, cut to the report's span."""

    def __init__(self, runs: pa.Table, begin: np.ndarray, end: np.ndarray, span: Span) -> None:
        low = np.fmax(begin, span.since)
        high = np.fmin(end, span.until)
        is_held = (high > low) & ~np.isnan(begin) & ~np.isnan(end)
        self.low = np.where(is_held, low, span.since).astype(np.int64)
        self.high = np.where(is_held, high, span.since).astype(np.int64)
        self.cpus = np.nan_to_num(column_floats(runs["cpus"])).astype(np.int64)
        self.gpus = np.nan_to_num(column_floats(runs["gpus"])).astype(np.int64)
        # Of the runs that were suspended: few are.
        suspended = np.nan_to_num(column_floats(runs["suspended_seconds"]))
        self._rows = rows = np.flatnonzero(is_held & (suspended > 0))
        self._begin = begin[rows].astype(np.int64)
        self._wall = (end[rows] - begin[rows]).astype(np.int64)
        # Suspended at most as long as the run lasted.
        self._suspended = np.minimum(suspended[rows].astype(np.int64), self._wall)

    @property
    def seconds(self) -> np.ndarray:
        seconds: np.ndarray = self.high - self.low
        return seconds

    def _lost(self, at: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """CPU seconds that the suspended runs `at` did not have between two moments.

        When one was suspended is not known, so it is spread over the run, in whole seconds: what is
        left out of one part of a run is in the next.
        """
        wall = np.maximum(self._wall[at], 1)
        passed = [np.clip(moment - self._begin[at], 0, wall) for moment in (low, high)]
        until_low, until_high = (self._suspended[at] * part // wall for part in passed)
        lost: np.ndarray = (until_high - until_low) * self.cpus[self._rows[at]]
        return lost

    @property
    def gpu_seconds(self) -> np.ndarray:
        seconds: np.ndarray = self.gpus * self.seconds
        return seconds

    @property
    def cpu_seconds(self) -> np.ndarray:
        rows = self._rows
        seconds: np.ndarray = self.cpus * self.seconds
        seconds[rows] -= self._lost(np.arange(len(rows)), self.low[rows], self.high[rows])
        return seconds

    def by_bin(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """CPU and GPU seconds in each of the bins between `edges`; of CPUs without the time they
        were suspended.
        """
        cpu, gpu = _seconds_by_bin(self.low, self.high, (self.cpus, self.gpus), edges)
        rows = self._rows
        if rows.size:
            first = np.searchsorted(edges, self.low[rows], "right") - 1
            counts = np.searchsorted(edges, self.high[rows], "left") - first
            pieces = np.repeat(np.arange(len(rows)), counts)
            bins = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - first, counts)
            low = np.maximum(self.low[rows][pieces], edges[bins])
            high = np.minimum(self.high[rows][pieces], edges[bins + 1])
            cpu -= np.bincount(bins, self._lost(pieces, low, high), minlength=len(cpu))
        return cpu, gpu


def _seconds_by_bin(
    low: np.ndarray, high: np.ndarray, weights: Sequence[np.ndarray], edges: np.ndarray
) -> list[np.ndarray]:
    """Seconds in each bin by each of the weights; exact below 2**53: 100 000 million CPUs for a
    day.
    """
    bins = len(edges) - 1
    rows = np.flatnonzero(high > low)
    low = low[rows]
    high = high[rows]
    first = np.searchsorted(edges, low, "right") - 1
    last = np.searchsorted(edges, high, "left") - 1
    one = first == last
    within = (high - low)[one]
    first_within = first[one]
    first = first[~one]
    last = last[~one]
    low = low[~one]
    high = high[~one]
    begun = edges[first + 1] - low
    ended = high - edges[last]
    found = []
    for weight in weights:
        weight = weight[rows].astype(np.float64)
        # Of no runs bincount makes whole numbers.
        sums = np.zeros(bins) + np.bincount(first_within, within * weight[one], minlength=bins)
        weight = weight[~one]
        sums += np.bincount(first, begun * weight, minlength=bins)
        sums += np.bincount(last, ended * weight, minlength=bins)
        whole = np.bincount(first + 1, weight, minlength=bins + 1) - np.bincount(
            last, weight, minlength=bins + 1
        )
        found.append(sums + np.cumsum(whole)[:bins] * np.diff(edges))
    return found


def _waits_in(runs: pa.Table, begin: np.ndarray, span: Span) -> np.ndarray:
    """Return how long runs waited before they started; nan if they did not start in the span."""
    requested = np.fmax(
        column_floats(as_array(runs["eligible_at"]).cast(COUNT)),
        column_floats(as_array(runs["submitted_at"]).cast(COUNT)),
    )
    return np.where(_within(begin, span), np.clip(begin - requested, 0, None), np.nan)


def _measures(
    runs: pa.Table, held: _Held, waits: np.ndarray, end: np.ndarray, span: Span
) -> Iterator[tuple[str, np.ndarray]]:
    """Each of MEASURES, and its value for every run."""
    is_running = pc.is_null(as_array(runs["ends_at"])).to_numpy(zero_copy_only=False)
    ended = _within(end, span) & ~is_running
    states = as_array(runs["state"]).cast(TEXT)
    failed = pc.fill_null(pc.is_in(states, pa.array(list(FAILURES), TEXT)), False).to_numpy(
        zero_copy_only=False
    )
    yield "jobs", ended
    yield "failed", ended & failed
    # A job's second run is there because it was put back into the queue.
    yield "requeued", ended & (column_floats(runs["run"]) > 1)
    yield "running", is_running
    yield "started", ~np.isnan(waits)
    yield "wait_seconds", np.nan_to_num(waits)
    for unit, seconds in (("cpu", held.cpu_seconds), ("gpu", held.gpu_seconds)):
        use = column_floats(runs[f"{unit}_use"])
        yield f"{unit}_seconds", seconds
        yield f"failed_{unit}_seconds", np.where(failed, seconds, 0)
        yield f"unused_{unit}_seconds", np.nan_to_num(_unused(seconds, use))
        yield f"measured_{unit}_seconds", np.where(np.isnan(use), 0, seconds)


def _unused(held: np.ndarray, use: np.ndarray) -> np.ndarray:
    """Seconds that were held and not used; nan where the use is not known."""
    unused: np.ndarray = np.rint(held * (1 - np.clip(use, 0, 1)))
    return unused


class _Grouping:
    """Sums by what a run counts for when it ended, and waits by what it counts for when it started.

    `ended` and `started` hold the number of that group for every run; `labels` are the groups'
    names.
    """

    def __init__(self, ended: np.ndarray, started: np.ndarray, labels: Sequence[str]) -> None:
        self._ended = ended.astype(np.int32)
        self._started = started.astype(np.int32)
        self._labels = labels
        self.sums: dict[str, np.ndarray] = {}

    def add(self, name: str, values: np.ndarray) -> None:
        """Take in one of MEASURES, a value a run."""
        group = self._started if name in _OF_WAITS else self._ended
        self.sums.setdefault(name, np.bincount(group, values, minlength=len(self._labels)))

    def table(self, waits: np.ndarray) -> pa.Table:
        """A row of GROUPS for each group, in the order of their numbers."""
        waited = ~np.isnan(waits)
        parts = [part for _, part in _WAITS]
        of_waits = _quantiles(waits[waited], self._started[waited], len(self._labels), parts)
        columns = {**self.sums, **dict(zip((name for name, _ in _WAITS), of_waits, strict=True))}
        counts = [_counts(columns[name]) for name in GROUPS.names[1:]]
        return pa.table([pa.array(self._labels, TEXT), *counts], schema=GROUPS)


class _ByColumn(_Grouping):
    """A group for each of a column's words."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        codes, parts = column_codes(column)
        super().__init__(codes, codes, [word or NOT_KNOWN for word in parts])

    def table(self, waits: np.ndarray) -> pa.Table:
        """The most hours first."""
        order = np.lexsort([-self.sums[name] for name in ("jobs", "cpu_seconds", "gpu_seconds")])
        return super().table(waits).take(pa.array(order))


class _ByTime(_Grouping):
    """A group a day or week of the span, those without anything too."""

    def __init__(self, hours: _Hours, begin: np.ndarray, end: np.ndarray, *, by_week: bool) -> None:
        labels = hours.days
        group = np.arange(len(labels))
        if by_week:
            mondays = [_monday(label) for label in labels]
            labels = list(dict.fromkeys(mondays))
            group = np.array([labels.index(monday) for monday in mondays])
        super().__init__(group[hours.local_day(end)], group[hours.local_day(begin)], labels)
        # A run's hours count on the days it ran.
        for name, seconds in (("cpu_seconds", hours.cpu), ("gpu_seconds", hours.gpu)):
            self.sums[name] = np.bincount(group[hours.day], seconds, minlength=len(labels))


def _monday(day: str) -> str:
    at = date.fromisoformat(day)
    return (at - timedelta(days=at.weekday())).isoformat()


def _quantiles(
    values: np.ndarray, group: np.ndarray, count: int, parts: Sequence[float]
) -> list[np.ndarray]:
    """Compute the quantiles `parts` of the groups 0 to `count` - 1; nan for an empty group."""
    sizes = np.bincount(group, minlength=count)
    has = sizes > 0
    ordered = values[np.lexsort((values, group))]
    starts = (np.cumsum(sizes) - sizes)[has]
    found = []
    for part in parts:
        place = part * (sizes[has] - 1)
        low = place.astype(np.int64)
        below = ordered[starts + low]
        above = ordered[starts + np.ceil(place).astype(np.int64)]
        group_values = np.full(count, np.nan)
        group_values[has] = below + (above - below) * (place - low)
        found.append(group_values)
    return found


def _counts(values: Any) -> pa.Array:
    floats = np.rint(np.asarray(values, dtype=np.float64))
    return pa.array(floats, mask=~np.isfinite(floats)).cast(COUNT)


def size_labels(unit: str) -> list[str]:
    """`1 GPU`, `2-4 GPUs`, …, `> 128 GPUs`."""
    ends = _SIZE_ENDS[unit]
    between = [f"{low + 1}-{high} {unit}s" for low, high in pairwise(ends)]
    return [f"1 {unit}", *between, f"> {ends[-1]} {unit}s"]


def _sizes(runs: pa.Table, unit: str) -> tuple[np.ndarray, list[str]]:
    """The class of each run's size, and their names; runs without GPUs have a class where GPUs
    count.
    """
    counts = np.nan_to_num(column_floats(runs["gpus" if unit == "GPU" else "cpus"]))
    sizes = np.searchsorted(np.array(_SIZE_ENDS[unit]), counts, "left") + 1
    return np.where(counts == 0, 0, sizes), ["no GPU" if unit == "GPU" else "?", *size_labels(unit)]


def _waits(runs: pa.Table, waits: np.ndarray, unit: str) -> pa.Table:
    waited = ~np.isnan(waits)
    waits = waits[waited]
    sizes, labels = _sizes(runs, unit)
    queue, queues = column_codes(runs["queue"])
    group = (queue * len(labels) + sizes)[waited]
    count = len(queues) * len(labels)
    wait_class = group * len(WAIT_LABELS) + np.searchsorted(np.array(WAIT_ENDS), waits, "right")
    classes = np.bincount(wait_class, minlength=count * len(WAIT_LABELS)).reshape(
        count, len(WAIT_LABELS)
    )
    columns: list[pa.Array] = [
        pa.array([name or NOT_KNOWN for name in queues for _ in labels], TEXT),
        pa.array(labels * len(queues), TEXT),
        *map(
            _counts,
            (
                np.bincount(group, minlength=count),
                *_quantiles(waits, group, count, (0.5, 0.8, 0.95, 1)),
            ),
        ),
        *map(_counts, classes.T),
    ]
    table = pa.table(columns, schema=WAITS)
    return table.filter(pc.greater(table["started"], 0))


def _wasteful(runs: pa.Table, held: _Held) -> pa.Table:
    """The names of jobs, each of one user's, that held the most for nothing."""
    memory = np.clip(column_floats(runs["memory_bytes"]) - whole_peaks(runs), 0, None) / (1 << 30)
    memory *= column_floats(runs["elapsed_seconds"])
    unused = {
        "unused_cpu_seconds": _unused(held.cpu_seconds, column_floats(runs["cpu_use"])),
        "unused_gpu_seconds": _unused(held.gpu_seconds, column_floats(runs["gpu_use"])),
        "unused_memory_gib_seconds": memory,
    }
    stored = np.flatnonzero(np.any([values > 0 for values in unused.values()], axis=0))
    group, count = name_codes(runs)
    group = group[stored]
    first = np.full(count, runs.num_rows)
    np.minimum.at(first, group, stored)
    sums = {
        "runs": np.bincount(group, minlength=count),
        "cpu_seconds": np.bincount(group, held.cpu_seconds[stored], minlength=count),
        "gpu_seconds": np.bincount(group, held.gpu_seconds[stored], minlength=count),
    }
    are_known = {}
    for column, values in unused.items():
        values = values[stored]
        sums[column] = np.bincount(group, np.nan_to_num(values), minlength=count)
        are_known[column] = np.bincount(group, ~np.isnan(values), minlength=count) > 0
    most = np.lexsort([-sums[column] for column in reversed(_WASTE_ORDER)])[:_MAX_WASTEFUL]
    most = most[sums["runs"][most] > 0]
    for column, is_known in are_known.items():
        # Unmeasured use is unknown, not zero.
        sums[column] = np.where(is_known, sums[column], np.nan)
    rows = pa.array(first[most])
    columns = [as_array(runs[column]).cast(TEXT).take(rows) for column in ("name", "user")]
    columns += [_counts(sums[column][most]) for column in WASTEFUL.names[2:]]
    return pa.table(columns, schema=WASTEFUL)


_WASTE_ORDER = ["unused_gpu_seconds", "unused_cpu_seconds", "unused_memory_gib_seconds"]


def day_edges(span: Span, zone: tzinfo) -> list[tuple[int, str]]:
    """Return the start of each of the span's days with its date.

    The first and the last day are cut; the last item is the end.
    """
    at = datetime.fromtimestamp(span.since, zone)
    edges = [(span.since, at.date().isoformat())]
    day = at.date()
    while True:
        day += timedelta(days=1)
        # Midnight by the zone's clock: a day may have 23 or 25 hours.
        begins = int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())
        if begins >= span.until:
            return [*edges, (span.until, "")]
        edges.append((begins, day.isoformat()))


class _Hours:
    """The hours of a span, the first and the last cut to it: the day of each, and what was held in
    it.
    """

    def __init__(self, held: _Held, span: Span, zone: tzinfo) -> None:
        edges: list[int] = []
        day: list[int] = []
        days = day_edges(span, zone)
        for number, ((begins, _), (ends, _)) in enumerate(pairwise(days)):
            local = datetime.fromtimestamp(begins, zone)
            whole = begins - (local.minute * 60 + local.second) + 3600
            hours = [begins, *range(whole, ends, 3600)]
            edges += hours
            day += [number] * len(hours)
        self.days = [name for _, name in days[:-1]]
        self.day = np.array(day)
        self._day_edges = np.array([at for at, _ in days], np.int64)
        self._edges = np.array([*edges, span.until], np.int64)
        self._zone = zone
        self.cpu, self.gpu = held.by_bin(self._edges)

    def local_day(self, moments: np.ndarray) -> np.ndarray:
        """The number of the day that a moment is in; of one outside of the span the nearest."""
        days = np.searchsorted(self._day_edges, np.nan_to_num(moments), "right") - 1
        inside: np.ndarray = np.clip(days, 0, len(self.days) - 1)
        return inside

    def load(self, unit: str) -> np.ndarray:
        """Return the mean concurrent use of each hour of each weekday."""
        held = np.zeros((7, 24))
        seconds = np.zeros((7, 24))
        amounts = self.gpu if unit == "GPU" else self.cpu
        for begins, length, amount in zip(
            self._edges.tolist(), np.diff(self._edges), amounts, strict=False
        ):
            local = datetime.fromtimestamp(begins, self._zone)
            held[local.weekday(), local.hour] += amount
            seconds[local.weekday(), local.hour] += length
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(seconds > 0, held / seconds, np.nan)


def runs_and_notes(
    fetched: FetchedRuns,
    *,
    everyone: bool,
    user: str,
    select: Callable[[pa.Table], pa.Table] | None = None,
) -> tuple[pa.Table, list[str]]:
    """Return a report's runs, ended and still running, and notes on them.

    The notes report whose runs they are, as far as the cluster shows them, and the unknown parts of
    the span. `select` filters the runs, if given.
    """
    parts = [
        fetched.table,
        *([fetched.running] if fetched.running is not None and fetched.running.num_rows else []),
    ]
    if select is not None:
        parts = [select(part) for part in parts]
    notes = [_whose(fetched, everyone=everyone, user=user)]
    if fetched.running is None:
        notes.append("Running jobs are not counted: the queue could not be queried")
    elif len(parts) > 1 and (running := parts[1].num_rows):
        notes.append(f"{counted(running, 'job')} still running, counted up to now")
    if forgotten := fetched.format_forgotten():
        notes.append(forgotten)
    if fetched.unasked_seconds:
        notes.append(
            f"{format_span(fetched.unasked_seconds)} of the time range are missing: fetching failed"
        )
    return pa.concat_tables(parts).unify_dictionaries(), notes


def _whose(fetched: FetchedRuns, *, everyone: bool, user: str) -> str:
    if not everyone:
        return "Your own jobs"
    tables = [fetched.table, *([] if fetched.running is None else [fetched.running])]
    whose = {
        name
        for table in tables
        for name in pc.unique(as_array(table["user"]).cast(TEXT)).to_pylist()
    } - {None}
    users = counted(len(whose), "user")
    if fetched.hides_others:
        return OTHERS_HIDDEN if whose <= {user} else f"Jobs of {users}. {OTHERS_HIDDEN}"
    if fetched.hides_others is False:
        return f"Jobs of {users}: no jobs are hidden from you"
    if whose == {user}:
        return "The cluster showed only your own jobs: other users' jobs may be private"
    return f"Jobs of {users}: only jobs that the cluster shows you"
