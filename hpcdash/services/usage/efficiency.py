"""Use of requested resources by ended runs, grouped by run, array or name, with advice.

The resources are CPUs, memory, GPUs and time.
"""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Iterable
from math import isfinite
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.domain.columns import Column, as_array
from hpcdash.domain.efficiency import enough_memory
from hpcdash.domain.schema import COUNT, TEXT, WORD, UsageSource
from hpcdash.domain.states import JobState
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_duration, format_memory

# A comment of jobstats is "JS1:" and gzipped JSON in base64: about 200 bytes, and 100 for each
# further node.
_JOBSTATS = "JS1:"
_MAX_COMMENT_CHARACTERS = 1 << 20
_MAX_JSON_BYTES = 1 << 22
# As columns of numbers, or Python's own objects, they take several times as much.
_RUNS_AT_ONCE = 50_000

# Of one run, of an array or of all runs of a name: `runs` is how many. Uses are fractions of the
# request, 1 is all of it, and may be larger; null is unknown.
EFFICIENCY = pa.schema(
    [
        ("id", TEXT),
        ("name", TEXT),
        ("user", WORD),
        ("queue", WORD),
        ("state", WORD),
        ("runs", COUNT),
        ("cpus", COUNT),
        ("gpus", COUNT),
        ("memory_bytes", COUNT),
        ("memory_peak_bytes", COUNT),
        ("elapsed_seconds", COUNT),
        ("limit_seconds", COUNT),
        ("cpu_use", pa.float64()),
        ("memory_use", pa.float64()),
        ("gpu_use", pa.float64()),
        ("gpu_memory_use", pa.float64()),
        ("time_use", pa.float64()),
        ("usage_source", WORD),
    ]
)
USES = ("cpu_use", "memory_use", "gpu_use", "gpu_memory_use", "time_use")
# Use below this is worth a check, or is a waste.
FAIR_USE = 0.75
POOR_USE = 0.25
# Smallest saving, and shortest run, that get advice.
_MIN_SAVED_BYTES = 2 << 30
_MIN_SAVED_SECONDS = 3600
_MIN_RUN_SECONDS = 300
_TIME_HEADROOM = 1.25
_LITTLE_GPU = 0.1
_LITTLE_USE = 0.5


class _Node(msgspec.Struct):
    cpus: float | None = None
    total_time: float | None = None
    used_memory: float | None = None
    total_memory: float | None = None
    gpu_utilization: dict[str, float] = {}
    gpu_used_memory: dict[str, float] = {}
    gpu_total_memory: dict[str, float] = {}


class _Summary(msgspec.Struct):
    nodes: dict[str, _Node]
    total_time: float | None = None


_DECODER = msgspec.json.Decoder(_Summary)


class JobstatsUse(Struct, frozen=True):
    """Measurements of one run by jobstats, over all its nodes; None is unknown.

    Uses are fractions of what the run had: CPU time of all CPUs' time, memory of all nodes' memory,
    GPUs' mean.
    """

    cpu_seconds: float | None = None
    cpu_use: float | None = None
    memory_peak_bytes: int | None = None
    memory_use: float | None = None
    gpu_use: float | None = None
    gpu_memory_peak_bytes: int | None = None
    gpu_memory_use: float | None = None


def parse_jobstats(comment: str | None) -> JobstatsUse | None:
    """Parse a job's AdminComment that jobstats wrote; None for any other or malformed one.

    No more than a few MiB are unpacked: anyone who may write comments may write a bomb.
    """
    if (
        comment is None
        or not comment.startswith(_JOBSTATS)
        or len(comment) > _MAX_COMMENT_CHARACTERS
    ):
        return None
    try:
        packed = binascii.a2b_base64(comment[len(_JOBSTATS) :], strict_mode=True)
        unpacking = zlib.decompressobj(wbits=31)
        unpacked = unpacking.decompress(packed, _MAX_JSON_BYTES)
        summary = _DECODER.decode(unpacked) if unpacking.eof else None
    except (ValueError, zlib.error, msgspec.DecodeError, RecursionError):
        # jobstats itself writes "JS1:Short" and "JS1:None".
        return None
    return None if summary is None else _summed(summary)


def _summed(summary: _Summary) -> JobstatsUse | None:
    nodes = list(summary.nodes.values())
    cpu_seconds = _sum(node.total_time for node in nodes)
    cpus = _sum(node.cpus for node in nodes)
    cpu_time = (
        None if cpus is None or not (seconds := _amount(summary.total_time)) else cpus * seconds
    )
    memory = _sum(node.used_memory for node in nodes)
    all_memory = _sum(node.total_memory for node in nodes)
    gpus = [_amount(value) for node in nodes for value in node.gpu_utilization.values()]
    gpu_memory = _sum(value for node in nodes for value in node.gpu_used_memory.values())
    all_gpu_memory = _sum(value for node in nodes for value in node.gpu_total_memory.values())
    busy = _sum(gpus)
    found = JobstatsUse(
        cpu_seconds,
        _part(cpu_seconds, cpu_time),
        None if memory is None else int(memory),
        _part(memory, all_memory),
        None if busy is None else busy / (100 * len(gpus)),
        None if gpu_memory is None else int(gpu_memory),
        _part(gpu_memory, all_gpu_memory),
    )
    return None if found == JobstatsUse() else found


def _amount(value: float | None) -> float | None:
    """A number as it is; None for what no meter shows."""
    return value if value is not None and isfinite(value) and 0 <= value < 2.0**62 else None


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum; None where there is none, or where one is not known."""
    total = 0.0
    count = 0
    for value in values:
        if (amount := _amount(value)) is None:
            return None
        total = total + amount
        count = count + 1
    return total if count else None


def _part(amount: float | None, whole: float | None) -> float | None:
    return amount / whole if amount is not None and whole else None


def with_use(runs: pa.Table) -> pa.Table:
    """Rows of domain.schema.RUNS with the columns of USES: parts of what was asked, null where not
    known.

    What jobstats wrote goes before the accounting: it was measured by the kernel over the whole
    run, where the accounting has samples. Memory is that of the step that used most, of the whole
    job's memory, as seff has it.
    """
    elapsed = pc.cast(runs["elapsed_seconds"], pa.float64())
    columns = {
        "cpu_use": _ratio(
            runs["cpu_seconds_used"], pc.multiply(pc.cast(runs["cpus"], pa.float64()), elapsed)
        ),
        "memory_use": _ratio(runs["memory_peak_bytes"], runs["memory_bytes"]),
        "gpu_use": runs["gpu_use"],
        "gpu_memory_use": pa.nulls(runs.num_rows, pa.float64()),
        "time_use": _ratio(elapsed, runs["limit_seconds"]),
    }
    measured = {
        name: runs[name]
        for name in ("cpu_seconds_used", "memory_peak_bytes", "gpu_memory_peak_bytes")
    }
    source = pc.cast(runs["usage_source"], TEXT)
    comments = as_array(runs["_admin_comment"])
    has_comment = pc.fill_null(pc.starts_with(comments, _JOBSTATS), False)
    if pc.any(has_comment).as_py():
        found = _jobstats_table(comments.filter(has_comment))
        for name, column in {**columns, **measured}.items():
            before = columns if name in columns else measured
            if name in found.column_names:
                before[name] = _overlaid(column, has_comment, found[name])
        source = _overlaid(source, has_comment, found["usage_source"])
    for name, column in {
        **measured,
        "usage_source": pc.cast(pc.dictionary_encode(source), WORD),
    }.items():
        runs = runs.set_column(runs.column_names.index(name), runs.schema.field(name), column)
    for name, column in columns.items():
        if name in runs.column_names:
            runs = runs.set_column(runs.column_names.index(name), name, column)
        else:
            runs = runs.append_column(name, column)
    return runs


def _jobstats_table(comments: pa.Array) -> pa.Table:
    """Parse jobstats' comments into columns of RUNS and of USES, a row per comment, else null."""
    names = {
        "cpu_use": "cpu_use",
        "memory_use": "memory_use",
        "gpu_use": "gpu_use",
        "gpu_memory_use": "gpu_memory_use",
        "cpu_seconds_used": "cpu_seconds",
        "memory_peak_bytes": "memory_peak_bytes",
        "gpu_memory_peak_bytes": "gpu_memory_peak_bytes",
    }
    kinds = {
        column: COUNT if name.endswith("_bytes") else pa.float64() for column, name in names.items()
    }
    schema = pa.schema([*kinds.items(), ("usage_source", TEXT)])
    blocks = []
    for start in range(0, len(comments), _RUNS_AT_ONCE):
        found = [parse_jobstats(text) for text in comments.slice(start, _RUNS_AT_ONCE).to_pylist()]
        columns = {
            column: [None if use is None else getattr(use, name) for use in found]
            for column, name in names.items()
        }
        columns["usage_source"] = [
            None if use is None else UsageSource.JOBSTATS.value for use in found
        ]
        blocks.append(pa.table(columns, schema=schema))
    return pa.concat_tables(blocks)


def _ratio(amount: pa.ChunkedArray, whole: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats; null where either is not known, or nothing was asked."""
    wholes = pc.cast(whole, pa.float64())
    return pc.divide(pc.cast(amount, pa.float64()), pc.if_else(pc.greater(wholes, 0), wholes, None))


def _overlaid(column: Column, mask: pa.Array, values: pa.ChunkedArray) -> pa.Array:
    """The column with `values` where the mask holds and they are known."""
    column = as_array(column)
    return pc.coalesce(
        pc.replace_with_mask(pa.nulls(len(column), column.type), mask, as_array(values)), column
    )


def compute_efficiency(runs: pa.Table, *, by: str = "run") -> pa.Table:
    """Rows of EFFICIENCY, `by` run, array (a job that is none stays one), or name (of one user's
    jobs).

    CPU and GPU use of several runs weigh each by what it had; of memory and time it is the largest
    part that any used. Runs whose use is not known do not count in it. What they do not share is
    null. The order is that of the runs.
    """
    used = with_use(runs)
    if by == "run":
        ones = pa.array(np.ones(used.num_rows, np.int64))
        return pa.table(
            [ones if name == "runs" else used[name] for name in EFFICIENCY.names], schema=EFFICIENCY
        )
    return _grouped(used, by)


def _grouped(used: pa.Table, by: str) -> pa.Table:
    arrays: list[str] = []
    if by == "array":
        group, arrays = column_codes(pc.coalesce(used["array_id"], used["id"]))
        count = len(arrays)
    else:
        group, count = name_codes(used)
    first = np.full(count, used.num_rows)
    np.minimum.at(first, group, np.arange(used.num_rows))
    columns: dict[str, Any] = {
        name: as_array(used[name]).take(pa.array(first)) for name in ("name", "user")
    }
    columns["id"] = (
        pa.array(arrays, TEXT) if by == "array" else as_array(used["id"]).take(pa.array(first))
    )
    for name in ("queue", "state", "usage_source"):
        columns[name] = _shared(used[name], group, first)
    columns["runs"] = np.bincount(group, minlength=count)
    for name in (
        "cpus",
        "gpus",
        "memory_bytes",
        "memory_peak_bytes",
        "elapsed_seconds",
        "limit_seconds",
    ):
        columns[name] = _largest(column_floats(used[name]), group, count)
    cpus, gpus, elapsed = (
        column_floats(used[name]) for name in ("cpus", "gpus", "elapsed_seconds")
    )
    for name, held in (("cpu_use", cpus), ("gpu_use", gpus), ("gpu_memory_use", gpus)):
        columns[name] = _weighted(column_floats(used[name]), held * elapsed, group, count)
    for name in ("memory_use", "time_use"):
        columns[name] = _largest(column_floats(used[name]), group, count)
    order = np.argsort(first, kind="stable")
    return pa.table(
        [_column(columns[field.name], field.type).take(pa.array(order)) for field in EFFICIENCY],
        schema=EFFICIENCY,
    )


def column_floats(column: pa.ChunkedArray) -> np.ndarray:
    """A column of numbers as floats, nan where null."""
    array = as_array(column)
    values: np.ndarray = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return values


def column_codes(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """A number for each row's text, and the texts; null is ''."""
    encoded = pc.dictionary_encode(pc.fill_null(as_array(column).cast(TEXT), ""))
    return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()


def name_codes(runs: pa.Table) -> tuple[np.ndarray, int]:
    """A number for the name of each run, of one user's runs, in the order of their first; and how
    many there are.
    """
    user, _ = column_codes(runs["user"])
    name, names = column_codes(runs["name"])
    encoded = pa.array(user.astype(np.int64) * len(names) + name).dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False), len(encoded.dictionary)


def whole_peaks(runs: pa.Table) -> np.ndarray:
    """The peaks of memory as floats, nan where not known, or seen of a part of the run alone."""
    is_part = pc.fill_null(
        pc.equal(as_array(runs["usage_source"]).cast(TEXT), UsageSource.WATCHED.value), False
    )
    return np.where(
        is_part.to_numpy(zero_copy_only=False), np.nan, column_floats(runs["memory_peak_bytes"])
    )


def _shared(column: pa.ChunkedArray, group: np.ndarray, first: np.ndarray) -> pa.Array:
    """The word that all rows of a group share; null where they do not."""
    codes, parts = column_codes(column)
    differs = np.bincount(group, codes != codes[first[group]], minlength=len(first)) > 0
    return pa.array(
        [
            parts[codes[row]] or None if not more else None
            for row, more in zip(first, differs, strict=True)
        ],
        TEXT,
    )


def _largest(values: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    largest = np.full(count, -np.inf)
    known = ~np.isnan(values)
    np.maximum.at(largest, group[known], values[known])
    return np.where(np.isinf(largest), np.nan, largest)


def _weighted(values: np.ndarray, weights: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    known = ~np.isnan(values * weights)
    whole = np.bincount(group[known], weights[known], minlength=count)
    parts = np.bincount(group[known], (values * weights)[known], minlength=count)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, parts / whole, np.nan)


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return (
            values.cast(TEXT).dictionary_encode().cast(kind) if kind == WORD else values.cast(kind)
        )
    floats = np.asarray(values, dtype=np.float64)
    return pa.array(floats, mask=~np.isfinite(floats)).cast(kind)


class Advice(Struct, frozen=True):
    """Advice on the next request of one name's runs, as values.

    `jobs` are some of their ids, the newest first. `memory_bytes` (of the whole job) and
    `limit_seconds` are enough; None: the requested amount is not too much.
    """

    user: str
    name: str
    runs: int
    jobs: tuple[str, ...]
    messages: tuple[str, ...]
    memory_bytes: int | None = None
    limit_seconds: int | None = None


def advise(runs: pa.Table, most: int = 20) -> list[Advice]:
    """Advice on names of jobs, those first that held the most for nothing.

    `runs` are as with_use gives them.

    Memory and time are spoken of where runs completed: others might have wanted more.
    """
    blocks = [runs.slice(start, _RUNS_AT_ONCE) for start in range(0, runs.num_rows, _RUNS_AT_ONCE)]
    idle = np.concatenate([np.zeros(0), *map(_idle_hours, blocks)])
    group, _ = name_codes(runs)
    group_idle = np.bincount(group, idle)
    # Some of them turn out to need no words.
    chosen = np.argsort(-group_idle, kind="stable")[: 4 * most]
    chosen = chosen[group_idle[chosen] > 0]
    is_member = np.isin(group, chosen) & (idle > 0)
    runs = runs.select(
        ["id", "user", "name", "state", "usage_source", "memory_peak_bytes", *_ADVISED_BY]
    )
    runs = runs.filter(pa.array(is_member))
    group = group[is_member]
    found: list[Advice] = []
    for number in chosen.tolist():
        members = runs.filter(pa.array(group == number))
        parts, memory, limit = _advice(members)
        if parts:
            first = members.slice(0, 3).to_pylist()
            whose, what = (first[0][column] or "" for column in ("user", "name"))
            jobs = tuple(row["id"] for row in first)
            found.append(Advice(whose, what, members.num_rows, jobs, tuple(parts), memory, limit))
    return found[:most]


_ADVISED_BY = (
    *("cpus", "gpus", "memory_bytes", "elapsed_seconds", "limit_seconds"),
    *("cpu_use", "gpu_use"),
)
# Equivalent of a GPU.
_CPUS_PER_GPU = 12
_GIB_PER_GPU = 96


def _advised_by(runs: pa.Table) -> dict[str, np.ndarray]:
    columns = {name: column_floats(runs[name]) for name in _ADVISED_BY}
    return {**columns, "memory_peak_bytes": whole_peaks(runs)}


def _idle_hours(runs: pa.Table) -> np.ndarray:
    """Compute the unused resources of runs, in hours of a GPU.

    Unknown use counts as used, and so do short runs.
    """
    columns = _advised_by(runs)
    hours = columns["elapsed_seconds"] / 3600
    idle: np.ndarray = np.zeros(len(hours))
    for unit, weight in (("gpu", 1), ("cpu", 1 / _CPUS_PER_GPU)):
        unused = np.nan_to_num(1 - np.clip(columns[f"{unit}_use"], 0, 1))
        idle += hours * np.nan_to_num(columns[f"{unit}s"]) * unused * weight
    unused_bytes = np.clip(columns["memory_bytes"] - columns["memory_peak_bytes"], 0, None)
    idle += hours * np.nan_to_num(unused_bytes) / (1 << 30) / _GIB_PER_GPU
    idle = np.nan_to_num(idle)
    # A limit that is far too long costs others nothing, but delays the job's own start.
    spare = columns["limit_seconds"] - columns["elapsed_seconds"]
    idle += np.where(spare >= _MIN_SAVED_SECONDS, 1e-6, 0)
    return np.where(columns["elapsed_seconds"] >= _MIN_RUN_SECONDS, idle, 0)


def _advice(runs: pa.Table) -> tuple[list[str], int | None, int | None]:
    """Return messages on the runs of one name, and sufficient memory and time if smaller."""
    columns = _advised_by(runs)
    is_completed = pc.equal(as_array(runs["state"]).cast(TEXT), JobState.COMPLETED.value)
    completed = pc.fill_null(is_completed, False).to_numpy(zero_copy_only=False)
    messages: list[str] = []
    new_memory: int | None = None
    new_limit: int | None = None
    count, use, _ = _mean_use(columns, "gpu", 1)
    if count and use < _LITTLE_USE:
        share = f"{100 * use:.0f}%" if use >= 0.01 or not use else "< 1%"
        text = f"GPUs {share} busy in {counted(count, 'run')}"
        if use < _LITTLE_GPU:
            messages.append(f"{text}: does the program detect them?")
        else:
            messages.append(f"{text}: request fewer, or feed them faster")
    count, requested, peak = _largest_pair(columns, completed, "memory_bytes", "memory_peak_bytes")
    enough = enough_memory(peak)
    if count and peak < requested / 2 and requested - enough >= _MIN_SAVED_BYTES:
        new_memory = enough
        messages.append(
            f"requested {format_memory(requested)}, peak {format_memory(peak)} in "
            f"{counted(count, 'run')}: {format_memory(enough)} is enough"
        )
    count, use, most = _mean_use(columns, "cpu", 2)
    if count and use < _LITTLE_USE:
        cores = f"{use * most:.1f}".removesuffix(".0")
        messages.append(
            f"{cores} of {most} CPUs busy in {counted(count, 'run')}: request fewer, or check the "
            "program's thread count"
        )
    count, limit, longest = _largest_pair(columns, completed, "limit_seconds", "elapsed_seconds")
    enough = -(-int(longest * _TIME_HEADROOM) // 900) * 900
    if count and longest < limit / 2 and limit - enough >= _MIN_SAVED_SECONDS:
        new_limit = enough
        messages.append(
            f"requested {format_duration(limit)}, longest {format_duration(longest)} in "
            f"{counted(count, 'run')}: {format_duration(enough)} is enough"
        )
    return messages, new_memory, new_limit


def _mean_use(columns: dict[str, np.ndarray], unit: str, least: int) -> tuple[int, float, int]:
    """Return the number of runs with known use, their mean use, and the most units of a run."""
    units = columns[f"{unit}s"]
    seconds = units * columns["elapsed_seconds"]
    used = columns[f"{unit}_use"] * seconds
    known = ~np.isnan(used) & (units >= least)
    total = seconds[known].sum()
    use = float(used[known].sum() / total) if total else 1.0
    return int(known.sum()), use, int(units[known].max(initial=0))


def _largest_pair(
    columns: dict[str, np.ndarray], completed: np.ndarray, name: str, other: str
) -> tuple[int, int, int]:
    """Return the number of completed runs that report both columns, and the maximum of each."""
    known = ~np.isnan(columns[name] * columns[other]) & completed
    largest = int(columns[name][known].max(initial=0))
    largest_other = int(columns[other][known].max(initial=0))
    return int(known.sum()), largest, largest_other
