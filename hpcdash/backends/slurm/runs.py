"""Runs of ended jobs with what their steps used, from one sacct a slice of time: rows of domain.schema.RUNS.

sacct prints a run's row and then those of its steps, each with the same fields and one delimiter. The first and the
last field of a row are Slurm's own, so a row ends at the newline after its last delimiter, whatever the others hold.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from hpcdash.backends.queries import Answer, ParsedTable, Query, noise_lines
from hpcdash.backends.slurm import values
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import require_success, unreadable
from hpcdash.backends.slurm.history import limit_seconds, none_to_null, text_or_null
from hpcdash.backends.slurm.jobs import ID_PATTERN, array_columns, exit_columns, is_any, states
from hpcdash.backends.slurm.usage import clock_seconds, size_bytes
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema
from hpcdash.domain.columns import as_array, per_distinct, row_numbers, text_column
from hpcdash.domain.schema import UsageSource
from hpcdash.domain.states import ACTIVE, ENDED

FIELDS = (
    *("jobid", "user", "account", "partition", "qos", "state", "nnodes", "ncpus", "alloctres", "reqtres"),
    *("elapsedraw", "timelimitraw", "submit", "eligible", "start", "end", "suspended", "totalcpu"),
    *("maxrss", "tresusageintot", "nodelist", "jobname", "comment", "admincomment", "workdir"),
    "exitcode",
)
# With states and times sacct lists what came into one of the states within the times, that which was never eligible
# too. Source: the sql of slurmdbd's as_mysql_job.c; measured on 22.05.
ENDED_STATES = "BF,CA,CD,DL,F,NF,OOM,PR,RQ,RV,TO"
_LIMIT_SECONDS = 180.0
# So much is read at once; a row that cannot be makes the least of it slow.
_MOST_BYTES = 1 << 22
_LEAST_BYTES = 1 << 17
_MILLISECONDS = 1000
_STEP_FIELDS = ("maxrss", "tresusageintot")
_TEXT = pa.schema([(name, pa.string()) for name in FIELDS])
_STEP_TEXT = pa.schema([("run", pa.int64()), *((name, pa.string()) for name in _STEP_FIELDS)])


def runs_query(user: str | None, since: int, until: int) -> Query[ParsedTable]:
    """As HistoryPart.runs."""
    # sacct's end is in the span.
    return _query(user, "-s", ENDED_STATES, "-S", f"uts{since}", "-E", f"uts{max(since, until - 1)}")


def runs_at_query(user: str | None, at: int) -> Query[ParsedTable]:
    """As HistoryPart.runs_at."""
    # Without states sacct lists what was eligible and had not ended at any time within the times.
    return _query(user, "-S", f"uts{at}", "-E", f"uts{at + 1}")


def _query(user: str | None, *selection: str) -> Query[ParsedTable]:
    token = fresh_token()
    # Without -u or -a sacct lists the caller's own jobs (everyone's for root).
    whose = ("-a",) if user is None else ("-u", user) if user else ()
    # -D: each run of a job that was put back, not the last alone.
    argv = slurm("sacct", "-n", "-D", "-P", f"--delimiter={token}", *whose, *selection, "-o", ",".join(FIELDS))
    return Query(argv, partial(parse_runs, token=token), limit_seconds=_LIMIT_SECONDS)


def parse_runs(answer: Answer, *, token: str) -> ParsedTable:
    """Rows of domain.schema.RUNS that ended, in sacct's order; raises what the answer's failure stands for."""
    require_success(answer)
    lines = _Lines(token.encode())
    lines.read(answer.stdout)
    if not lines.count and answer.stdout.strip() and lines.delimiter not in answer.stdout:
        raise unreadable(answer, "jobs of the past")
    raw, steps = lines.runs(), lines.steps()
    has_id = pc.match_substring_regex(as_array(raw["jobid"]), ID_PATTERN)
    table = _in_schema(raw, _used(raw, steps))
    ended = pc.and_(pc.is_valid(table["ends_at"]), pc.invert(is_any(as_array(table["state"]), frozenset(ACTIVE))))
    refused = [f"no job's id: {text!r}" for text in raw["jobid"].filter(pc.invert(has_id)).to_pylist()]
    table = table.filter(pc.and_(ended, has_id)).combine_chunks()
    return ParsedTable(table, (*lines.rejected, *refused), is_cut=answer.truncated)


class _Lines:
    """sacct's rows as text columns: those of runs whole, and of steps what they used and the number of their run."""

    def __init__(self, delimiter: bytes) -> None:
        self.delimiter = delimiter
        self.rejected: list[str] = []
        self.count = 0
        self._runs: list[pa.Table] = []
        self._steps: list[pa.Table] = []

    def runs(self) -> pa.Table:
        return pa.concat_tables([_TEXT.empty_table(), *self._runs]).combine_chunks()

    def steps(self) -> pa.Table:
        return pa.concat_tables([_STEP_TEXT.empty_table(), *self._steps]).combine_chunks()

    def read(self, raw: bytes) -> None:
        """Chunks without a strange byte are read as the CSV that they are."""
        position, size = 0, _MOST_BYTES
        while position < len(raw):
            end = raw.rfind(b"\n", position, position + size) + 1
            if end and self._read_clean(raw[position:end]):
                position, size = end, min(2 * size, _MOST_BYTES)
            elif size > _LEAST_BYTES:
                size = max(size // 8, _LEAST_BYTES)
            else:
                table, noise, position = _read_any(raw, self.delimiter, position)
                self._add(table, 0)
                self.rejected += noise

    def _read_clean(self, chunk: bytes) -> bool:
        """Reads rows that are a line each with all their fields; False, and none is read, where any is not.

        The first of them begins a row. Its delimiters cannot be forged and its last field holds no newline, so where
        its line has all of them the row ends with the line, and the next line begins a row.
        """
        lines, start = chunk.count(b"\n"), self.delimiter[:1]
        delimiters = lines * (len(FIELDS) - 1)
        if chunk.count(self.delimiter) != delimiters or chunk.count(start) != delimiters or b"\r" in chunk:
            return False
        if not chunk.isascii():
            chunk = chunk.decode("utf-8", "replace").encode()
        is_whole = True

        def refuse(_row: pa_csv.InvalidRow) -> str:
            nonlocal is_whole
            is_whole = False
            return "skip"

        # Split at the first byte of the delimiter: each field begins with the rest of it, which costs less to cut off
        # of those that are needed than to replace everywhere.
        table = pa_csv.read_csv(
            pa.py_buffer(chunk),
            read_options=pa_csv.ReadOptions(column_names=FIELDS, use_threads=False, encoding="utf8"),
            parse_options=pa_csv.ParseOptions(
                delimiter=start.decode(), quote_char=False, ignore_empty_lines=False, invalid_row_handler=refuse
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(FIELDS, pa.string()), null_values=[], strings_can_be_null=False
            ),
        )
        if not is_whole or table.num_rows != lines:
            return False
        self._add(table, len(self.delimiter) - 1)
        return True

    def _add(self, table: pa.Table, skip: int) -> None:
        """`skip` bytes are cut off from the beginning of each field but the first."""
        is_step = pc.match_substring(as_array(table["jobid"]), ".")
        is_run = pc.invert(is_step)
        # A step belongs to the last row before it that is none.
        numbers = pc.add(pc.cumulative_sum(pc.cast(is_run, pa.int64())), pa.scalar(self.count - 1, pa.int64()))
        runs, steps = table.filter(is_run), table.select(_STEP_FIELDS).filter(is_step)
        self._runs.append(pa.table([runs["jobid"], *(_without(runs[name], skip) for name in FIELDS[1:])], schema=_TEXT))
        columns = [numbers.filter(is_step), *(_without(steps[name], skip) for name in _STEP_FIELDS)]
        self._steps.append(pa.table(columns, schema=_STEP_TEXT))
        self.count += runs.num_rows


def _without(column: pa.ChunkedArray, skip: int) -> pa.Array:
    array = as_array(column)
    # pyarrow 26's binary_slice fails for some lengths.
    return pc.utf8_slice_codeunits(array, skip) if skip else array


def _read_any(raw: bytes, delimiter: bytes, position: int) -> tuple[pa.Table, list[str], int]:
    """The rows from `position` on, about _LEAST_BYTES of them; what is no row, in words; and where the next begins."""
    between = len(FIELDS) - 1
    rows: list[list[bytes]] = []
    noise: list[str] = []
    chunk_end = position + _LEAST_BYTES
    while position < min(chunk_end, len(raw)):
        fields: list[bytes] = []
        at = position
        while len(fields) < between and (found := raw.find(delimiter, at)) >= 0:
            fields.append(raw[at:found])
            at = found + len(delimiter)
        end = raw.find(b"\n", at) if len(fields) == between else -1
        if end < 0:
            if raw[position:].strip():
                noise += ["the output ended inside a row"] if fields else noise_lines(raw[position:])
            position = len(raw)
            break
        # What a wrapper or a warning printed before a row ends with a newline; an id holds none.
        before, _, fields[0] = fields[0].rpartition(b"\n")
        noise += noise_lines(before, delimiter) if before.strip() else []
        rows.append([*fields, raw[at:end]])
        position = end + 1
    table = pa.table({name: text_column([row[k] for row in rows]) for k, name in enumerate(FIELDS)})
    return table, noise, position


def _in_schema(raw: pa.Table, used: dict[str, pa.Array]) -> pa.Table:
    null_time = pa.scalar(None, schema.TIME)
    ids = raw["jobid"]
    native = values.words(raw["state"])
    state = states(native, values.words(pa.nulls(raw.num_rows, pa.string())))
    ended = is_any(state, frozenset(ENDED))
    nodes_at = none_to_null(raw["nodelist"])
    alloc = none_to_null(raw["alloctres"])
    tres = pc.if_else(pc.is_valid(alloc), alloc, none_to_null(raw["reqtres"]))
    gpus, memory_bytes = values.tres_columns(tres)
    cpus = values.integers(none_to_null(raw["ncpus"]))
    cpus = pc.if_else(pc.equal(cpus, 0), values.per_distinct(tres, values.tres_cpus, pa.int64()), cpus)
    # Slurm gives a job that was cancelled before it began the time of its end as a start, and no nodes.
    started = pc.if_else(pc.is_null(nodes_at), null_time, values.instants(none_to_null(raw["start"])))
    exit_code, exit_signal = exit_columns(none_to_null(raw["exitcode"]), ended)
    # '11_2'
    tasks = pc.if_else(
        pc.match_substring(ids, "_"),
        pc.replace_substring_regex(ids, r"^[^_]*_\[?([^\]]*)\]?$", r"\1"),
        pa.scalar(None, pa.string()),
    )
    is_known = pc.or_(pc.is_valid(used["cpu"]), pc.is_valid(used["memory"]))
    source = pc.if_else(is_known, pa.scalar(str(UsageSource.ACCOUNTING)), pa.scalar(None, pa.string()))
    columns = {
        "id": ids,
        **array_columns(ids, pc.replace_substring_regex(ids, r"_.*$", ""), tasks),
        "name": raw["jobname"],
        **{name: values.words(none_to_null(raw[name])) for name in ("user", "account", "qos")},
        "queue": values.words(none_to_null(raw["partition"])),
        "state": state,
        "native_state": native,
        "nodes": values.integers(none_to_null(raw["nnodes"])),
        "cpus": cpus,
        "gpus": gpus,
        "memory_bytes": memory_bytes,
        "elapsed_seconds": values.integers(none_to_null(raw["elapsedraw"])),
        "limit_seconds": values.per_distinct(none_to_null(raw["timelimitraw"]), limit_seconds, pa.int64()),
        "submitted_at": values.instants(none_to_null(raw["submit"])),
        "eligible_at": values.instants(none_to_null(raw["eligible"])),
        "started_at": started,
        "ends_at": values.instants(none_to_null(raw["end"])),
        "suspended_seconds": values.durations(none_to_null(raw["suspended"])),
        "node_list": nodes_at,
        "work_dir": text_or_null(raw["workdir"]),
        "exit_code": exit_code,
        "exit_signal": exit_signal,
        "cpu_seconds_used": used["cpu"],
        "memory_peak_bytes": used["memory"],
        "gpu_use": pc.min_element_wise(
            pc.divide(used["gpu"].cast(pa.float64()), pc.multiply(100.0, pc.max_element_wise(gpus, 1))),
            pa.scalar(1.0),
            skip_nulls=False,
        ),
        "gpu_memory_peak_bytes": used["gpu_memory"],
        "usage_source": values.words(source),
        "run": pa.repeat(pa.scalar(1, pa.int64()), raw.num_rows),
        "_task_memory_peak_bytes": used["task_memory"],
        "_admin_comment": text_or_null(raw["admincomment"]),
        "_reason": values.words(pa.nulls(raw.num_rows, pa.string())),
        "_comment": text_or_null(raw["comment"]),
    }
    return pa.table([columns[name] for name in schema.RUNS.names], schema=schema.RUNS)


def _used(raw: pa.Table, steps: pa.Table) -> dict[str, pa.Array]:
    """What each run used: CPU seconds of all its steps, and of the step that used most the memory of all its tasks.

    Both as seff 2.1 of Slurm's contribs reckons them; `task_memory` is what reportseff takes, the largest MaxRSS.
    """
    steps = steps.filter(pc.match_substring(steps["tresusageintot"], "mem="))
    total = as_array(steps["tresusageintot"])
    nothing = pa.nulls(len(total), pa.int64())
    has_gpus = pc.any(pc.match_substring(total, "gres/gpu"), min_count=0).as_py()
    gpu, gpu_memory = (_amounts(total, name) if has_gpus else nothing for name in ("gres/gpuutil", "gres/gpumem"))
    used = {"memory": _amounts(total, "mem"), "task_memory": _sizes(as_array(steps["maxrss"]))}
    steps = pa.table({"run": steps["run"], **used, "gpu": gpu, "gpu_memory": gpu_memory})
    names = ("memory", "task_memory", "gpu", "gpu_memory")
    peaks = steps.group_by("run", use_threads=False).aggregate([(name, "max") for name in names])
    at = pc.index_in(row_numbers(raw.num_rows), value_set=as_array(peaks["run"]))
    found = {name: as_array(peaks[f"{name}_max"]).take(at) for name in names}
    # Without a gathering plugin Slurm writes a CPU time of nought, and no memory.
    cpu = _cpu_seconds(as_array(raw["totalcpu"]))
    is_gathered = pc.or_(pc.greater(cpu, 0.0), pc.is_valid(found["memory"]))
    return {**found, "cpu": pc.if_else(pc.fill_null(is_gathered, False), cpu, pa.scalar(None, pa.float64()))}


def _amounts(tres: pa.Array, name: str) -> pa.Array:
    """The sizes of a TRES in 'cpu=00:00:27,mem=367864K' as whole numbers; null where there is none."""
    found = pc.extract_regex(tres, rf"(?:^|,){name}=(?P<size>[0-9.]{{1,18}}[KMGTPE]?)(?:,|$)")
    return _sizes(pc.struct_field(found, "size"))


def _sizes(texts: pa.Array) -> pa.Array:
    """'367864K', '1.50G', '31936' in bytes; null for '' and what is none."""
    is_kib = pc.ends_with(texts, "K")
    digits = pc.utf8_rtrim(texts, "K")
    is_plain = pc.and_(
        pc.string_is_ascii(digits), pc.and_(pc.utf8_is_digit(digits), pc.less_equal(pc.binary_length(digits), 15))
    )
    nothing = pa.scalar(None, pa.string())
    numbers = pc.cast(pc.if_else(is_plain, digits, nothing), pa.int64())
    plain = pc.multiply(numbers, pc.if_else(is_kib, 1024, 1))
    others = pc.if_else(is_plain, nothing, texts)
    if others.null_count == len(others):
        return plain
    return pc.coalesce(plain, as_array(per_distinct(others, size_bytes, pa.int64())))


def _cpu_seconds(texts: pa.Array) -> pa.Array:
    """'00:10.909' and '01:02:03' as seconds; with days, and what is no time, one look a distinct text."""
    clock = pc.extract_regex(texts, r"^(?:(?P<h>[0-9]{2,3}):)?(?P<m>[0-9]{2}):(?P<s>[0-9]{2})(?:\.(?P<f>[0-9]{3}))?$")

    def part(name: str) -> pa.Array:
        found = pc.struct_field(clock, name)
        return pc.cast(pc.if_else(pc.equal(found, ""), "0", found), pa.int64())

    minutes = pc.add(pc.multiply(part("h"), 60), part("m"))
    whole = pc.add(pc.multiply(minutes, 60), part("s"))
    seconds = pc.add(whole.cast(pa.float64()), pc.divide(part("f").cast(pa.float64()), float(_MILLISECONDS)))
    others = pc.if_else(pc.is_valid(seconds), pa.scalar(None, pa.string()), texts)
    if others.null_count == len(others):
        return seconds
    return pc.coalesce(seconds, as_array(per_distinct(others, clock_seconds, pa.float64())))
