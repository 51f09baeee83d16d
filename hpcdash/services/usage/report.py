"""A report of what runs used over a span of time: hours, jobs, failures and waiting, by day, queue, user and more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import TYPE_CHECKING, Any

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
from hpcdash.services.usage.efficiency import USES, Advice, advise, column_floats, whole_peaks, with_use

if TYPE_CHECKING:
    import pandas as pd

GROUPINGS = ("day", "week", "queue", "user", "account", "name")
OF_TIME = ("day", "week")
FAILURES = (JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.NODE_FAILED)
# Upper ends of the waits that are counted together, in seconds; the last has none.
WAIT_ENDS = (60, 600, 3600, 6 * 3600, 24 * 3600, 3 * 86400)
WAIT_LABELS = ("< 1 min", "1-10 min", "10-60 min", "1-6 h", "6-24 h", "1-3 d", "> 3 d")
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
NOT_KNOWN = "(none)"
_SIZE_ENDS = {"GPU": (1, 4, 8, 32, 128), "CPU": (1, 8, 32, 128, 512)}
_MOST_WASTEFUL = 20

# CPU and GPU seconds are allocated ones within the span. `jobs` ended in it, a requeued one once a run.
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
    # Of the first two, what was not used; of runs whose use is known, whose seconds the last two are.
    ("unused_cpu_seconds", COUNT),
    ("unused_gpu_seconds", COUNT),
    ("measured_cpu_seconds", COUNT),
    ("measured_gpu_seconds", COUNT),
    # Runs that started in the span, and how long they had waited together.
    ("started", COUNT),
    ("wait_seconds", COUNT),
)
_NAMES = tuple(name for name, _ in MEASURES)
# What is read of a run.
_COLUMNS = (
    *("id", "name", "user", "account", "queue", "state", "cpus", "gpus", "memory_bytes", "memory_peak_bytes"),
    *("elapsed_seconds", "limit_seconds", "submitted_at", "eligible_at", "started_at", "ends_at"),
    *("suspended_seconds", "run", "usage_source"),
)
_READ = frozenset({*_COLUMNS, "cpu_seconds_used", "gpu_use", "gpu_memory_peak_bytes", "_admin_comment"})
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
    """CPUs or GPUs that were held, a mean by weekday (rows, from Monday) and hour; nan where the span has none."""

    unit: str
    held: np.ndarray

    @property
    def largest(self) -> float:
        known = self.held[np.isfinite(self.held)]
        return float(known.max()) if known.size else 0.0


class UsageReport(Struct, frozen=True):
    """Everything that is said of a span. Tables are of GROUPS, WAITS and WASTEFUL; `total` has the names of MEASURES.

    `notes` say in words what has to be known to read it. Any grouping's column of MEASURES adds up to `total`.
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
        return not self.total["jobs"] and not self.total["cpu_seconds"] and not self.total["started"]

    @property
    def unit(self) -> str:
        """What hours are shown of first: GPUs where any was held."""
        return self.load.unit


def build_report(runs: pa.Table, span: Span, zone: tzinfo = UTC, notes: Sequence[str] = ()) -> UsageReport:
    """The report of `runs`, rows of domain.schema.RUNS in any order. Days are those of `zone`.

    One without an end still runs, and began its `elapsed_seconds` and the time it was suspended ago. A run counts with
    its hours in the span, as sreport cuts it: on the days it ran; as a job and a failure on the day it ended; with its
    wait on the day it started. Suspended time is no CPU time, but GPU time: it keeps its GPUs.
    """
    import pandas as pd

    runs = runs.select([name for name in runs.column_names if name in _READ]).combine_chunks()
    used = with_use(runs).select([*_COLUMNS, *USES])
    begin, end = _times(used)
    inside = np.flatnonzero((end > span.since) & (begin < span.until) | _within(end, span))
    if len(inside) < used.num_rows:
        used = used.take(pa.array(inside))
        begin, end = begin[inside], end[inside]
    held = _Held(used, begin, end, span)
    frame = _measures(used, held, begin, end, span)
    hours = _Hours(held, span, zone)
    groups = {
        name: _by_time(frame, hours, begin, end, by_week=name == "week")
        if name in OF_TIME
        else _by_column(frame, _category(used[name]))
        for name in GROUPINGS
    }
    sums = frame.measures[list(_NAMES)].sum()
    total = {name: int(sums[name]) for name in _NAMES}
    unit = "GPU" if total["gpu_seconds"] else "CPU"
    waits = _waits(used, frame, unit)
    median = pd.Series(frame.waits[~np.isnan(frame.waits)])
    more = {name: None if median.empty else round(float(median.quantile(part))) for name, part in _WAITS}
    unknown = int(np.isnan(column_floats(used["cpus"])[held.seconds > 0]).sum())
    said = [f"{unknown} runs have no CPU count: their hours are missing"] if unknown else []
    if no_gpus := int(np.isnan(column_floats(used["gpus"])[held.seconds > 0]).sum()):
        said.append(f"the GPUs of {counted(no_gpus, 'run')} are unknown: their GPU hours are missing")
    return UsageReport(
        span,
        zone,
        len(pc.unique(as_array(used["user"]).cast(TEXT)).drop_null()),
        {**total, **more},
        groups,
        waits,
        Load(unit, hours.load(unit)),
        _wasteful(used, frame, pd),
        tuple(advise(used)),
        (*notes, *said),
    )


def _times(runs: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """When runs began and ended, in epoch seconds as floats; nan: never began, or not known."""
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
    """From when to when runs held what, cut to the span: whole seconds, CPUs and GPUs."""

    def __init__(self, runs: pa.Table, begin: np.ndarray, end: np.ndarray, span: Span) -> None:
        low, high = np.fmax(begin, span.since), np.fmin(end, span.until)
        is_held = (high > low) & ~np.isnan(begin) & ~np.isnan(end)
        self.low = np.where(is_held, low, span.since).astype(np.int64)
        self.high = np.where(is_held, high, span.since).astype(np.int64)
        self.cpus = np.nan_to_num(column_floats(runs["cpus"])).astype(np.int64)
        self.gpus = np.nan_to_num(column_floats(runs["gpus"])).astype(np.int64)
        self.begin = np.where(is_held, begin, 0).astype(np.int64)
        wall = np.where(is_held, end - begin, 0)
        suspended = np.nan_to_num(column_floats(runs["suspended_seconds"]))
        # No more than there was.
        self.suspended = np.where(is_held, np.clip(suspended, 0, wall), 0).astype(np.int64)
        self.wall = np.maximum(wall, 1).astype(np.int64)

    @property
    def seconds(self) -> np.ndarray:
        return self.high - self.low

    def suspended_by(self, rows: np.ndarray, moment: np.ndarray) -> np.ndarray:
        """How long runs were suspended until a moment: when is not known, so it is spread over the run.

        Whole seconds: what is left out of one part of a run is in the next.
        """
        passed = np.clip(moment - self.begin[rows], 0, self.wall[rows])
        spread: np.ndarray = self.suspended[rows] * passed // self.wall[rows]
        return spread

    def cpu_seconds(self) -> np.ndarray:
        rows = np.arange(len(self.low))
        suspended = self.suspended_by(rows, self.high) - self.suspended_by(rows, self.low)
        seconds: np.ndarray = self.cpus * (self.seconds - suspended)
        return seconds

    def by_bin(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """CPU and GPU seconds in each of the bins between `edges`; of CPUs without the time they were suspended."""
        cpu, gpu = _seconds_by_bin(self.low, self.high, (self.cpus, self.gpus), edges)
        rows = np.flatnonzero((self.suspended > 0) & (self.high > self.low))
        if rows.size:
            first = np.searchsorted(edges, self.low[rows], "right") - 1
            counts = np.searchsorted(edges, self.high[rows], "left") - first
            pieces = np.repeat(rows, counts)
            bins = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - first, counts)
            low = np.maximum(self.low[pieces], edges[bins])
            high = np.minimum(self.high[pieces], edges[bins + 1])
            lost = self.suspended_by(pieces, high) - self.suspended_by(pieces, low)
            cpu -= np.bincount(bins, lost * self.cpus[pieces], minlength=len(cpu))
        return cpu, gpu


def _seconds_by_bin(
    low: np.ndarray, high: np.ndarray, weights: Sequence[np.ndarray], edges: np.ndarray
) -> list[np.ndarray]:
    """Seconds in each bin by each of the weights; exact below 2**53: 100 000 million CPUs for a day."""
    bins = len(edges) - 1
    rows = np.flatnonzero(high > low)
    low, high = low[rows], high[rows]
    first = np.searchsorted(edges, low, "right") - 1
    last = np.searchsorted(edges, high, "left") - 1
    one = first == last
    within, first_within = (high - low)[one], first[one]
    first, last, low, high = first[~one], last[~one], low[~one], high[~one]
    begun, ended = edges[first + 1] - low, high - edges[last]
    found = []
    for weight in weights:
        weight = weight[rows].astype(np.float64)
        # Of no runs bincount makes whole numbers.
        sums = np.zeros(bins) + np.bincount(first_within, within * weight[one], minlength=bins)
        weight = weight[~one]
        sums += np.bincount(first, begun * weight, minlength=bins)
        sums += np.bincount(last, ended * weight, minlength=bins)
        whole = np.bincount(first + 1, weight, minlength=bins + 1) - np.bincount(last, weight, minlength=bins + 1)
        found.append(sums + np.cumsum(whole)[:bins] * np.diff(edges))
    return found


class _Frame(Struct, frozen=True):
    """A row a run: its measures, and how long it waited before it started in the span (nan: it did not)."""

    measures: pd.DataFrame
    waits: np.ndarray


def _measures(runs: pa.Table, held: _Held, begin: np.ndarray, end: np.ndarray, span: Span) -> _Frame:
    import pandas as pd

    cpu, gpu = held.cpu_seconds(), held.gpus * held.seconds
    is_running = pc.is_null(as_array(runs["ends_at"])).to_numpy(zero_copy_only=False)
    ended = _within(end, span) & ~is_running
    states = as_array(runs["state"]).cast(TEXT)
    failed = pc.fill_null(pc.is_in(states, pa.array(list(FAILURES), TEXT)), False).to_numpy(zero_copy_only=False)
    again = column_floats(runs["run"]) > 1
    asked = np.fmax(
        column_floats(as_array(runs["eligible_at"]).cast(COUNT)),
        column_floats(as_array(runs["submitted_at"]).cast(COUNT)),
    )
    waits = np.where(_within(begin, span), np.clip(begin - asked, 0, None), np.nan)
    cpu_use, gpu_use = column_floats(runs["cpu_use"]), column_floats(runs["gpu_use"])
    columns = {
        "cpu_seconds": cpu,
        "gpu_seconds": gpu,
        "jobs": ended,
        "failed": ended & failed,
        # A job's second run is there because it was put back into the queue.
        "requeued": ended & again,
        "running": is_running,
        "failed_cpu_seconds": np.where(failed, cpu, 0),
        "failed_gpu_seconds": np.where(failed, gpu, 0),
        "unused_cpu_seconds": _unused(cpu, cpu_use),
        "unused_gpu_seconds": _unused(gpu, gpu_use),
        "measured_cpu_seconds": np.where(np.isnan(cpu_use), 0, cpu),
        "measured_gpu_seconds": np.where(np.isnan(gpu_use), 0, gpu),
        "started": ~np.isnan(waits),
        "wait_seconds": np.nan_to_num(waits),
    }
    frame = pd.DataFrame({name: np.asarray(values).astype(np.int64) for name, values in columns.items()})
    return _Frame(frame, waits)


def _unused(held: np.ndarray, use: np.ndarray) -> np.ndarray:
    known = ~np.isnan(use)
    return np.where(known, np.rint(held * (1 - np.clip(np.where(known, use, 1), 0, 1))), 0)


def _category(column: pa.ChunkedArray) -> pd.Categorical:
    import pandas as pd

    encoded = as_array(column)
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    # Two of a dictionary's words may be one.
    words = encoded.dictionary.to_pylist()
    if len(set(words)) != len(words):
        encoded = encoded.cast(TEXT).dictionary_encode()
        words = encoded.dictionary.to_pylist()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    return pd.Categorical.from_codes(codes, categories=words)


def _by_column(frame: _Frame, key: pd.Categorical) -> pa.Table:
    """A row for each of a column's words, the most hours first."""
    # Groups by number: pandas' groups by a null are slow.
    codes = np.asarray(key.codes, dtype=np.int64)
    codes = np.where(codes < 0, len(key.categories), codes)
    labels = [*key.categories, NOT_KNOWN]
    table = _grouped(frame, codes, codes, None)
    rows = table.sort_values(["gpu_seconds", "cpu_seconds", "jobs"], ascending=False, kind="stable")
    return _group_table(rows, [labels[code] for code in rows.index])


def _by_time(frame: _Frame, hours: _Hours, begin: np.ndarray, end: np.ndarray, *, by_week: bool) -> pa.Table:
    """A row a day or week of the span, those without anything too, in order."""
    labels = hours.days
    group = np.arange(len(labels))
    if by_week:
        mondays = [_monday(label) for label in labels]
        labels = list(dict.fromkeys(mondays))
        group = np.array([labels.index(monday) for monday in mondays])
    table = _grouped(frame, group[hours.day_of(end)], group[hours.day_of(begin)], len(labels))
    for name, seconds in (("cpu_seconds", hours.cpu), ("gpu_seconds", hours.gpu)):
        table[name] = np.bincount(group[hours.day], seconds, minlength=len(labels))
    return _group_table(table, labels)


def _monday(day: str) -> str:
    at = date.fromisoformat(day)
    return (at - timedelta(days=at.weekday())).isoformat()


def _grouped(frame: _Frame, ended: np.ndarray, started: np.ndarray, count: int | None) -> pd.DataFrame:
    """Sums by what a run counts for when it ended, and waits by what it counts for when it started."""
    import pandas as pd

    names = [name for name in _NAMES if name not in _OF_WAITS]
    table = frame.measures[names].groupby(ended, sort=True).sum()
    waited = ~np.isnan(frame.waits)
    waits = pd.DataFrame({"key": started[waited], "wait": frame.waits[waited]}).groupby("key")["wait"]
    of_waits = pd.DataFrame({"started": waits.size(), "wait_seconds": waits.sum()})
    for name, part in _WAITS:
        of_waits[name] = waits.quantile(part)
    if count is not None:
        table = table.reindex(range(count))
    table = table.join(of_waits, how="left")
    table[list(_NAMES)] = table[list(_NAMES)].fillna(0)
    return table


def _group_table(table: pd.DataFrame, labels: Sequence[str]) -> pa.Table:
    columns: list[pa.Array] = [pa.array(labels, TEXT)]
    for name in GROUPS.names[1:]:
        values = table[name].to_numpy(dtype=np.float64, na_value=np.nan)
        columns.append(_counts(values))
    return pa.table(columns, schema=GROUPS)


def _counts(values: Any) -> pa.Array:
    floats = np.rint(np.asarray(values, dtype=np.float64))
    return pa.array(floats, mask=~np.isfinite(floats)).cast(COUNT)


def size_labels(unit: str) -> list[str]:
    """`1 GPU`, `2-4 GPUs`, …, `> 128 GPUs`."""
    ends = _SIZE_ENDS[unit]
    between = [f"{low + 1}-{high} {unit}s" for low, high in pairwise(ends)]
    return [f"1 {unit}", *between, f"> {ends[-1]} {unit}s"]


def _sizes(runs: pa.Table, unit: str) -> tuple[np.ndarray, list[str]]:
    """The class of each run's size, and their names; runs without GPUs have a class where GPUs count."""
    counts = np.nan_to_num(column_floats(runs["gpus" if unit == "GPU" else "cpus"]))
    sizes = np.searchsorted(np.array(_SIZE_ENDS[unit]), counts, "left") + 1
    return np.where(counts == 0, 0, sizes), ["no GPU" if unit == "GPU" else "?", *size_labels(unit)]


def _waits(runs: pa.Table, frame: _Frame, unit: str) -> pa.Table:
    import pandas as pd

    waited = ~np.isnan(frame.waits)
    sizes, labels = _sizes(runs, unit)
    queue = _category(runs["queue"])
    table = pd.DataFrame({"queue": np.asarray(queue.codes)[waited], "size": sizes[waited], "wait": frame.waits[waited]})
    table["class"] = np.searchsorted(np.array(WAIT_ENDS), table["wait"].to_numpy(), "right")
    grouped = table.groupby(["queue", "size"], sort=True)
    waits = grouped["wait"]
    found = pd.DataFrame(
        {
            "started": waits.size(),
            "wait_median_seconds": waits.quantile(0.5),
            "wait_p80_seconds": waits.quantile(0.8),
            "wait_p95_seconds": waits.quantile(0.95),
            "wait_longest_seconds": waits.max(),
        }
    )
    classes = table.groupby(["queue", "size", "class"]).size().unstack(fill_value=0)
    columns: list[pa.Array] = [
        pa.array([queue.categories[code] if code >= 0 else NOT_KNOWN for code, _ in found.index], TEXT),
        pa.array([labels[size] for _, size in found.index], TEXT),
        *(_counts(found[name]) for name in WAITS.names[2:7]),
    ]
    for number in range(len(WAIT_LABELS)):
        columns.append(_counts(classes[number] if number in classes else np.zeros(len(found))))
    return pa.table(columns, schema=WAITS)


def _wasteful(runs: pa.Table, frame: _Frame, pandas: Any) -> pa.Table:
    """The names of jobs, each of one user's, that held the most for nothing."""
    user, name = _category(runs["user"]), _category(runs["name"])
    measures = frame.measures[["cpu_seconds", "gpu_seconds", "unused_cpu_seconds", "unused_gpu_seconds"]]
    spare = np.clip(column_floats(runs["memory_bytes"]) - whole_peaks(runs), 0, None)
    memory = spare / (1 << 30) * column_floats(runs["elapsed_seconds"])
    table = measures.assign(runs=1, unused_memory_gib_seconds=np.nan_to_num(memory))
    known = {
        "unused_cpu_seconds": ~np.isnan(column_floats(runs["cpu_use"])),
        "unused_gpu_seconds": ~np.isnan(column_floats(runs["gpu_use"])),
        "unused_memory_gib_seconds": ~np.isnan(memory),
    }
    for column, is_known in known.items():
        table[f"{column} known"] = is_known
    together = np.asarray(user.codes, np.int64) * (len(name.categories) + 1) + np.asarray(name.codes, np.int64)
    kept = (table[list(known)].to_numpy() > 0).any(axis=1)
    sums = table[kept].groupby(together[kept]).sum()
    sums = sums.sort_values(_WASTE_ORDER, ascending=False, kind="stable").head(_MOST_WASTEFUL)
    first = pandas.Series(np.flatnonzero(kept)).groupby(together[kept]).first()
    rows = first.loc[sums.index].to_numpy(dtype=np.int64)
    for column in known:
        # What nobody measured is not known, and not nothing.
        sums[column] = np.where(sums[f"{column} known"] > 0, sums[column], np.nan)
    columns = [as_array(runs[column]).cast(TEXT).take(pa.array(rows)) for column in ("name", "user")]
    columns += [_counts(sums[column]) for column in WASTEFUL.names[2:]]
    return pa.table(columns, schema=WASTEFUL)


_WASTE_ORDER = ["unused_gpu_seconds", "unused_cpu_seconds", "unused_memory_gib_seconds"]


def day_edges(span: Span, zone: tzinfo) -> list[tuple[int, str]]:
    """Where the span's days begin, the first and the last as they are cut, each with its date; the last is the end."""
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
    """The hours of a span, the first and the last cut to it: the day of each, and what was held in it."""

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

    def day_of(self, moments: np.ndarray) -> np.ndarray:
        """The number of the day that a moment is in; of one outside of the span the nearest."""
        days = np.searchsorted(self._day_edges, np.nan_to_num(moments), "right") - 1
        inside: np.ndarray = np.clip(days, 0, len(self.days) - 1)
        return inside

    def load(self, unit: str) -> np.ndarray:
        """What was held at once, a mean over the hours of each weekday and hour of the day."""
        held, seconds = np.zeros((7, 24)), np.zeros((7, 24))
        amounts = self.gpu if unit == "GPU" else self.cpu
        for begins, length, amount in zip(self._edges.tolist(), np.diff(self._edges), amounts, strict=False):
            local = datetime.fromtimestamp(begins, self._zone)
            held[local.weekday(), local.hour] += amount
            seconds[local.weekday(), local.hour] += length
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(seconds > 0, held / seconds, np.nan)


def runs_and_notes(
    fetched: FetchedRuns, *, everyone: bool, user: str, wanted: Callable[[pa.Table], pa.Table] | None = None
) -> tuple[pa.Table, list[str]]:
    """What a report is made of: the runs that ended and those that still run, and in words whose they are, as far as
    the cluster shows them, and what of the span is not known. Of the runs that are `wanted`, where that is given."""
    parts = [fetched.table, *([fetched.running] if fetched.running is not None and fetched.running.num_rows else [])]
    if wanted is not None:
        parts = [wanted(part) for part in parts]
    notes = [_whose(fetched, everyone=everyone, user=user)]
    if fetched.running is None:
        notes.append("Running jobs are not counted: the queue could not be queried")
    elif len(parts) > 1 and (running := parts[1].num_rows):
        notes.append(f"{counted(running, 'job')} still running, counted up to now")
    if forgotten := fetched.format_forgotten():
        notes.append(forgotten)
    if fetched.unasked_seconds:
        notes.append(f"{format_span(fetched.unasked_seconds)} of the span are missing: they could not be fetched")
    return pa.concat_tables(parts).unify_dictionaries(), notes


def _whose(fetched: FetchedRuns, *, everyone: bool, user: str) -> str:
    if not everyone:
        return "Your own jobs"
    tables = [fetched.table, *([] if fetched.running is None else [fetched.running])]
    whose = {name for table in tables for name in pc.unique(as_array(table["user"]).cast(TEXT)).to_pylist()} - {None}
    users = counted(len(whose), "user")
    if fetched.hides_others:
        return OTHERS_HIDDEN if whose <= {user} else f"Jobs of {users}. {OTHERS_HIDDEN}"
    if fetched.hides_others is False:
        return f"Jobs of {users}: the cluster hides none from you"
    if whose == {user}:
        return "The cluster showed no jobs but yours: others' may be private there"
    return f"Jobs of {users}: all that the cluster shows you"
