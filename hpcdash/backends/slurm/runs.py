"""Runs of ended jobs with what their steps used, from one sacct a slice of time: rows of
domain.schema.RUNS.

sacct prints a run's row and then those of its steps, each with the same fields and one delimiter.
The first and the last field of a row are Slurm's own, so a row ends at the newline after its last
delimiter, whatever the others hold.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.queries import (
    Answer,
    ParsedTable,
    Query,
    decoded,
    noise_lines,
    unreadable,
)
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import require_success
from hpcdash.backends.slurm.history import (
    none_to_null,
    refused_submissions,
    sacct_columns,
    text_or_null,
)
from hpcdash.backends.slurm.jobs import ID_PATTERN, is_any
from hpcdash.backends.slurm.rows import read_csv
from hpcdash.backends.slurm.usage import clock_seconds, size_bytes
from hpcdash.backends.slurm.values import durations
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema
from hpcdash.domain.columns import (
    as_array,
    dictionary_text,
    null_where,
    per_distinct,
    row_numbers,
    where,
)
from hpcdash.domain.schema import UsageSource
from hpcdash.domain.states import ACTIVE

FIELDS = (
    "jobid",
    "user",
    "account",
    "partition",
    "qos",
    "state",
    "nnodes",
    "ncpus",
    "alloctres",
    "reqtres",
    "elapsedraw",
    "timelimitraw",
    "submit",
    "eligible",
    "start",
    "end",
    "suspended",
    "totalcpu",
    "maxrss",
    "tresusageintot",
    "nodelist",
    "jobname",
    "comment",
    "admincomment",
    "workdir",
    "exitcode",
)
# With states and times sacct lists what came into one of the states within the times, that which
# was never eligible too. Source: the sql of slurmdbd's as_mysql_job.c; measured on 22.05.
ENDED_STATES = "BF,CA,CD,DL,F,NF,OOM,PR,RQ,RV,TO"
_LIMIT_SECONDS = 180.0
# In a thread, what holds the interpreter holds it for some milliseconds at this size.
_CHUNK_BYTES = 1 << 22
_PIECE_BYTES = 1 << 15
# Bytes that end a line or a field of ours, and the letters of their stand-ins.
_BREAKING = {b"\n": b"n", b"\r": b"r", b"\x1e": b"e"}
_MILLISECONDS = 1000
# Fields with text that people write.
_WRITTEN = frozenset({"jobname", "comment", "admincomment", "workdir"})
_STEP_FIELDS = ("maxrss", "tresusageintot")
_TEXT = pa.schema([(name, pa.string()) for name in FIELDS])
_STEP_TEXT = pa.schema([("run", pa.int64()), *((name, pa.string()) for name in _STEP_FIELDS)])


def runs_query(
    user: str | None, since: int, until: int, *, counts_gpus: bool = True
) -> Query[ParsedTable]:
    # sacct's end is in the span.
    times = ("-S", f"uts{since}", "-E", f"uts{max(since, until - 1)}")
    return _query(user, counts_gpus, "-s", ENDED_STATES, *times)


def runs_at_query(user: str | None, at: int, *, counts_gpus: bool = True) -> Query[ParsedTable]:
    # Without states sacct lists what was eligible and had not ended at any time within the times.
    return _query(user, counts_gpus, "-S", f"uts{at}", "-E", f"uts{at + 1}")


def _query(user: str | None, counts_gpus: bool, *selection: str) -> Query[ParsedTable]:
    token = fresh_token()
    # Without -u or -a sacct lists the caller's own jobs (everyone's for root).
    whose = ("-a",) if user is None else ("-u", user) if user else ()
    # -D: each run of a job that was put back, not the last alone.
    argv = slurm(
        "sacct",
        "-n",
        "-D",
        "-P",
        f"--delimiter={token}",
        *whose,
        *selection,
        "-o",
        ",".join(FIELDS),
    )
    parse = partial(parse_runs, token=token, counts_gpus=counts_gpus)
    return Query(argv, parse, limit_seconds=_LIMIT_SECONDS)


def parse_runs(answer: Answer, *, token: str, counts_gpus: bool = True) -> ParsedTable:
    """Rows of domain.schema.RUNS that ended, in sacct's order; raises what the answer's failure
    stands for.
    """
    require_success(answer)
    lines = _Lines(token.encode())
    lines.read(answer.stdout)
    if not lines.count and answer.stdout.strip() and lines.delimiter not in answer.stdout:
        raise unreadable(answer, "ended jobs")
    raw = lines.runs()
    steps = lines.steps()
    has_id = pc.match_substring_regex(as_array(raw["jobid"]), ID_PATTERN)
    table = _in_schema(raw, _used(raw, steps), counts_gpus)
    ended = pc.and_(
        pc.is_valid(table["ends_at"]),
        pc.invert(is_any(as_array(table["state"]), frozenset(ACTIVE))),
    )
    refused = [
        f"no job's id: {text!r}" for text in raw["jobid"].filter(pc.invert(has_id)).to_pylist()
    ]
    table = table.filter(
        pc.and_(pc.and_(ended, has_id), pc.invert(refused_submissions(raw)))
    ).combine_chunks()
    return ParsedTable(table, (*lines.rejected, *refused), is_cut=answer.truncated)


class _Lines:
    """sacct's rows as text columns: those of runs whole, and of steps what they used and the number
    of their run.
    """

    def __init__(self, delimiter: bytes) -> None:
        self.delimiter = delimiter
        self.rejected: list[str] = []
        self.count = 0
        # In front of the letter for a byte that would break a line; made after sacct has printed,
        # it is in no text.
        self._stand_in = secrets.token_hex(16).encode()
        self._has_stand_ins = False
        self._runs: list[pa.Table] = []
        self._steps: list[pa.Table] = []

    def runs(self) -> pa.Table:
        return pa.concat_tables([_TEXT.empty_table(), *self._runs]).combine_chunks()

    def steps(self) -> pa.Table:
        return pa.concat_tables([_STEP_TEXT.empty_table(), *self._steps]).combine_chunks()

    def read(self, raw: bytes) -> None:
        """All of sacct's output, in pieces of whole lines; a row that goes on after one is read
        with the next.
        """
        position = 0 if self.delimiter in raw else len(raw)
        rest = b""
        while position < len(raw):
            end = raw.find(b"\n", position + _CHUNK_BYTES) + 1 or len(raw)
            chunk = rest + raw[position:end]
            rest = b""
            delimiters = chunk.count(self.delimiter)
            lines = _count_lines(chunk)
            is_clean = (
                delimiters == lines * (len(FIELDS) - 1)
                and b"\r" not in chunk
                and chunk.endswith(b"\n")
            )
            if not (is_clean and self._read_rows(chunk, lines)):
                rows, rest = self._cleaned(chunk, delimiters)
                lines = _count_lines(rows)
                if not self._read_rows(rows, lines):
                    self.rejected.append(f"{lines} rows that are none of sacct's")
            position = end
        if rest.strip():
            is_row = self.delimiter in rest
            self.rejected += (
                ["the output ended in the middle of a row"] if is_row else noise_lines(rest)
            )

    def _cleaned(self, chunk: bytes, delimiters: int) -> tuple[bytes, bytes]:
        """The rows of a chunk as a line each, without the bytes that would break one; and what is
        left after them.

        A row that a person's text breaks into lines ends where it has all its delimiters.
        """
        between = len(FIELDS) - 1
        start = self.delimiter[:1]
        # Mostly it is newlines alone that break some lines; then each of these bytes begins a
        # delimiter.
        is_odd = b"\r" in chunk or chunk.count(start) != delimiters
        rows: list[bytes] = []
        row = b""
        found = 0
        for piece in _pieces(chunk):
            if not row and not is_odd and piece.count(start) == _count_lines(piece) * between:
                rows.append(piece)
                continue
            for line in _lines(piece):
                row += line
                found += line.count(self.delimiter)
                if found < between or not line.endswith(b"\n"):
                    continue
                if (
                    row.count(b"\n") == 1
                    and found == row.count(start) == between
                    and b"\r" not in row
                ):
                    rows.append(row)
                else:
                    rows.append(self._as_line(row))
                row = b""
                found = 0
        return b"".join(rows), row

    def _as_line(self, row: bytes) -> bytes:
        """A row with stand-ins for what would break its line."""
        fields = row[:-1].split(self.delimiter, len(FIELDS) - 1)
        # Output of a wrapper or a warning before a row ends with a newline; an ID has none.
        before, _, fields[0] = fields[0].rpartition(b"\n")
        self.rejected += noise_lines(before, self.delimiter) if before.strip() else []
        for byte, letter in _BREAKING.items():
            fields = [field.replace(byte, self._stand_in + letter) for field in fields]
        self._has_stand_ins = True
        return self.delimiter.join(fields) + b"\n"

    def _read_rows(self, chunk: bytes, lines: int) -> bool:
        """Reads rows that are a line each with all their fields; False, and none is read, where any
        is not.

        The first of them begins a row. Its delimiters cannot be forged and its last field holds no
        newline, so where its line has all of them the row ends with the line, and the next line
        begins a row.
        """
        if not chunk:
            return True
        if not chunk.isascii():
            chunk = decoded(chunk).encode()
        # Split at the first byte of the delimiter: each field begins with the rest of it, which
        # costs less to cut off of those that are needed than to replace everywhere. Where a line
        # has more of that byte it has more fields.
        table, is_whole = read_csv(chunk, FIELDS, self.delimiter[:1].decode())
        if not is_whole or table.num_rows != lines:
            return False
        self._add(table)
        return True

    def _add(self, table: pa.Table) -> None:
        is_step = pc.match_substring(as_array(table["jobid"]), ".")
        is_run = pc.invert(is_step)
        # A step belongs to the last row before it that is none.
        numbers = pc.add(
            pc.cumulative_sum(pc.cast(is_run, pa.int64())), pa.scalar(self.count - 1, pa.int64())
        )
        runs = table.filter(is_run)
        steps = table.select(_STEP_FIELDS).filter(is_step)
        columns = [
            runs["jobid"],
            *(self._restored(runs[name], name in _WRITTEN) for name in FIELDS[1:]),
        ]
        self._runs.append(pa.table(columns, schema=_TEXT))
        used = [
            numbers.filter(is_step),
            *(self._restored(steps[name], False) for name in _STEP_FIELDS),
        ]
        self._steps.append(pa.table(used, schema=_STEP_TEXT))
        self.count += runs.num_rows

    def _restored(self, column: pa.ChunkedArray, may_be_broken: bool) -> pa.Array:
        """A field without the rest of the delimiter before it, and with the bytes that stand-ins
        stand for.
        """
        # pyarrow 26's binary_slice fails for some lengths.
        texts = pc.utf8_slice_codeunits(as_array(column), len(self.delimiter) - 1)
        if not may_be_broken or not self._has_stand_ins:
            return texts
        if pc.any(pc.match_substring(texts, self._stand_in.decode()), min_count=0).as_py():
            for byte, letter in _BREAKING.items():
                texts = pc.replace_substring(
                    texts, (self._stand_in + letter).decode(), byte.decode()
                )
        return texts


def _count_lines(text: bytes) -> int:
    return text.count(b"\n")


def _pieces(chunk: bytes) -> Iterator[bytes]:
    """Yield whole lines in pieces so small that most contain no unusual line."""
    position = 0
    while position < len(chunk):
        end = chunk.find(b"\n", position + _PIECE_BYTES) + 1 or len(chunk)
        yield chunk[position:end]
        position = end


def _lines(chunk: bytes) -> list[bytes]:
    """The lines with their ends; a carriage return ends none."""
    lines = [line + b"\n" for line in chunk.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _in_schema(raw: pa.Table, used: dict[str, pa.Array], counts_gpus: bool) -> pa.Table:
    no_word = dictionary_text(pa.nulls(raw.num_rows, pa.string()))
    columns = sacct_columns(raw, no_word, counts_gpus)
    is_known = pc.or_(pc.is_valid(used["cpu"]), pc.is_valid(used["memory"]))
    source = where(is_known, pa.scalar(str(UsageSource.ACCOUNTING)))
    columns |= {
        # Not requested: it adds little to a finished run.
        "priority": pa.nulls(raw.num_rows, pa.int64()),
        # Slurm gives a job that was cancelled before it began the time of its end as a start, and
        # no nodes.
        "started_at": null_where(pc.is_null(columns["node_list"]), columns["started_at"]),
        "suspended_seconds": durations(none_to_null(raw["suspended"])),
        "cpu_seconds_used": used["cpu"],
        "memory_peak_bytes": used["memory"],
        "gpu_use": pc.min_element_wise(
            pc.divide(
                used["gpu"].cast(pa.float64()),
                pc.multiply(100.0, pc.max_element_wise(columns["gpus"], 1)),
            ),
            pa.scalar(1.0),
            skip_nulls=False,
        ),
        "gpu_memory_peak_bytes": used["gpu_memory"],
        "usage_source": dictionary_text(source),
        "run": pa.repeat(pa.scalar(1, pa.int64()), raw.num_rows),
        "_task_memory_peak_bytes": used["task_memory"],
        "_admin_comment": text_or_null(raw["admincomment"]),
        "_reason": no_word,
        "_comment": text_or_null(raw["comment"]),
    }
    return pa.table([columns[name] for name in schema.RUNS.names], schema=schema.RUNS)


def _used(raw: pa.Table, steps: pa.Table) -> dict[str, pa.Array]:
    """Return the use of each run: CPU seconds of all its steps, and the peak memory of one step.

    The memory is that of all tasks of the step that used most. Both are computed like seff 2.1 of
    Slurm's contribs; `task_memory` is what reportseff uses, the largest MaxRSS.
    """
    total = as_array(steps["tresusageintot"])
    nothing = pa.nulls(len(total), pa.int64())
    has_gpus = pc.any(pc.match_substring(total, "gres/gpu"), min_count=0).as_py()
    gpu, gpu_memory = (
        amounts(total, name) if has_gpus else nothing for name in ("gres/gpuutil", "gres/gpumem")
    )
    used = {"memory": amounts(total, "mem"), "task_memory": sizes(as_array(steps["maxrss"]))}
    steps = pa.table({"run": steps["run"], **used, "gpu": gpu, "gpu_memory": gpu_memory})
    names = ("memory", "task_memory", "gpu", "gpu_memory")
    peaks = steps.group_by("run", use_threads=False).aggregate([(name, "max") for name in names])
    at = pc.index_in(row_numbers(raw.num_rows), value_set=as_array(peaks["run"]))
    found = {name: as_array(peaks[f"{name}_max"]).take(at) for name in names}
    # Without a gathering plugin Slurm writes a CPU time of 0, and no memory.
    cpu = cpu_seconds(as_array(raw["totalcpu"]))
    is_gathered = pc.or_(pc.greater(cpu, 0.0), pc.is_valid(found["memory"]))
    return {
        **found,
        "cpu": where(pc.fill_null(is_gathered, False), cpu),
    }


def amounts(tres: pa.Array, name: str) -> pa.Array:
    """The sizes of a TRES in 'cpu=00:00:27,mem=367864K' as whole numbers; null where there is
    none.
    """
    found = pc.extract_regex(tres, rf"(?:^|,){name}=(?P<size>[0-9.]{{1,18}}[KMGTPE]?)(?:,|$)")
    return sizes(pc.struct_field(found, "size"))


def sizes(texts: pa.Array) -> pa.Array:
    """'367864K', '1.50G', '31936' in bytes; null for '' and what is none."""
    reported = null_where(pc.equal(texts, ""), texts)
    try:
        numbers = pc.cast(pc.utf8_rtrim(reported, "K"), pa.int64())
        return pc.multiply_checked(numbers, pc.if_else(pc.ends_with(reported, "K"), 1024, 1))
    except pa.ArrowInvalid:
        # Mostly it is a few: '1.50G'.
        return as_array(per_distinct(reported, size_bytes, pa.int64()))


def cpu_seconds(texts: pa.Array) -> pa.Array:
    """Convert '00:10.909' and '01:02:03' to seconds.

    Times with days, and texts that are no time, are parsed once per distinct text.
    """
    clock = pc.extract_regex(
        texts, r"^(?:(?P<h>[0-9]{2,3}):)?(?P<m>[0-9]{2}):(?P<s>[0-9]{2})(?:\.(?P<f>[0-9]{3}))?$"
    )

    def part(name: str) -> pa.Array:
        found = pc.struct_field(clock, name)
        return pc.cast(pc.if_else(pc.equal(found, ""), "0", found), pa.int64())

    minutes = pc.add(pc.multiply(part("h"), 60), part("m"))
    whole = pc.add(pc.multiply(minutes, 60), part("s"))
    seconds = pc.add(
        whole.cast(pa.float64()), pc.divide(part("f").cast(pa.float64()), float(_MILLISECONDS))
    )
    others = null_where(pc.is_valid(seconds), texts)
    if others.null_count == len(others):
        return seconds
    return pc.coalesce(seconds, as_array(per_distinct(others, clock_seconds, pa.float64())))
