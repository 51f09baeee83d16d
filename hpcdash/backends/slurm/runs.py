"""Runs of ended jobs with what their steps used, from one sacct a slice of time: rows of
domain.schema.RUNS.

sacct prints a run's row and then those of its steps.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.queries import (
    Answer,
    ParsedTable,
    Query,
)
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import require_success
from hpcdash.backends.slurm.history import (
    SacctRows,
    none_to_null,
    refused_submissions,
    sacct_columns,
    text_or_null,
    user_options,
)
from hpcdash.backends.slurm.jobs import ID_PATTERN, is_any
from hpcdash.backends.slurm.usage import clock_seconds
from hpcdash.backends.slurm.values import durations, memory_bytes
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
_MILLISECONDS = 1000
_STEP_FIELDS = ("maxrss", "tresusageintot")
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
    # -D: each run of a job that was put back, not the last alone.
    options = ("-n", "-D", "-P", f"--delimiter={token}", *user_options(user), *selection)
    argv = slurm("sacct", *options, "-o", ",".join(FIELDS))
    parse = partial(parse_runs, token=token, counts_gpus=counts_gpus)
    return Query(argv, parse, limit_seconds=_LIMIT_SECONDS)


def parse_runs(answer: Answer, *, token: str, counts_gpus: bool = True) -> ParsedTable:
    """Rows of domain.schema.RUNS that ended, in sacct's order; raises what the answer's failure
    stands for.
    """
    require_success(answer)
    rows = _RunRows(token)
    raw = rows.read(answer)
    steps = pa.concat_tables(rows.steps).combine_chunks()
    has_id = pc.match_substring_regex(as_array(raw["jobid"]), ID_PATTERN)
    table = _in_schema(raw, _used(raw, steps), counts_gpus)
    ended = pc.and_(
        pc.is_valid(table["ends_at"]),
        pc.invert(is_any(as_array(table["state"]), frozenset(ACTIVE))),
    )
    refused = [
        f"not a job ID: {text!r}" for text in raw["jobid"].filter(pc.invert(has_id)).to_pylist()
    ]
    table = table.filter(
        pc.and_(pc.and_(ended, has_id), pc.invert(refused_submissions(raw)))
    ).combine_chunks()
    return ParsedTable(table, (*rows.rejected, *refused), is_cut=answer.truncated)


class _RunRows(SacctRows):
    """sacct's rows: those of runs whole, and of steps their use and the number of their run."""

    def __init__(self, token: str) -> None:
        super().__init__(token, FIELDS)
        self._count = 0
        self.steps = [_STEP_TEXT.empty_table()]

    def add(self, table: pa.Table) -> None:
        is_step = pc.match_substring(as_array(table["jobid"]), ".")
        is_run = pc.invert(is_step)
        # A step belongs to the last row before it that is none.
        numbers = pc.add(
            pc.cumulative_sum(pc.cast(is_run, pa.int64())), pa.scalar(self._count - 1, pa.int64())
        )
        runs = table.filter(is_run)
        super().add(runs)
        self._count += runs.num_rows
        steps = table.select(_STEP_FIELDS).filter(is_step)
        used = [numbers.filter(is_step), *map(self.restored, steps.column_names, steps.columns)]
        self.steps.append(pa.table(used, schema=_STEP_TEXT))


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
    return pa.table(columns, schema=schema.RUNS)


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
        return as_array(per_distinct(reported, memory_bytes, pa.int64()))


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
