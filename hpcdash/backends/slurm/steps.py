"""The steps of a job, in the columns of domain.schema.STEPS: from sacct, and what running ones use
from sstat.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.job_detail import is_one_run
from hpcdash.backends.queries import (
    TEXT_BYTES,
    Answer,
    AnswerPart,
    Native,
    ParsedTable,
    Query,
    Row,
    decoded,
)
from hpcdash.backends.slurm.commands import slurm_script
from hpcdash.backends.slurm.errors import require_success
from hpcdash.backends.slurm.history import SacctRows, none_to_null, sacct_id
from hpcdash.backends.slurm.jobs import accounted_exit_columns, is_any, states
from hpcdash.backends.slurm.runs import amounts, cpu_seconds
from hpcdash.backends.slurm.values import instants, integers
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema
from hpcdash.domain.columns import as_array, dictionary_text, where
from hpcdash.domain.states import ENDED

FIELDS = (
    "jobid",
    "jobidraw",
    "state",
    "nnodes",
    "ncpus",
    "ntasks",
    "elapsedraw",
    "start",
    "end",
    "totalcpu",
    "tresusageintot",
    "nodelist",
    "jobname",
    "exitcode",
)
_SSTAT_FIELDS = "jobid,tresusageintot"


def steps_query(row: Row) -> Query[ParsedTable] | None:
    if not is_one_run(row):
        return None
    token = fresh_token()
    running = "" if row["state"] in ENDED else _SSTAT_FIELDS
    parts = (token, sacct_id(str(row["id"])), ",".join(FIELDS), running)
    return Query(
        slurm_script("backends/slurm/steps.sh", *parts),
        partial(parse_steps, token=token),
        command=("sacct",),
        cap_bytes=TEXT_BYTES,
    )


def parse_steps(answer: Answer, *, token: str) -> ParsedTable:
    """Rows of domain.schema.STEPS in sacct's order."""
    # The failed command is sacct, whatever ran it.
    require_success(
        AnswerPart(("sacct",), answer.stdout, answer.stderr, answer.truncated, answer.status)
    )
    reported, _, used = answer.stdout.rpartition(token.encode())
    rows = SacctRows(token, FIELDS)
    raw = rows.read(AnswerPart(("sacct",), reported))
    raw = raw.filter(pc.match_substring(raw["jobid"], "."))
    return ParsedTable(_in_schema(raw, _running(used)), tuple(rows.rejected))


def _running(used: bytes) -> dict[str, str]:
    """Own number and name of each running step → its TRESUsageInTot."""
    lines = (line.partition("|") for line in decoded(used).splitlines())
    return {step: tres for step, bar, tres in lines if bar}


def _in_schema(raw: pa.Table, running: Native) -> pa.Table:
    native = dictionary_text(raw["state"])
    state = states(native, dictionary_text(pa.nulls(raw.num_rows, pa.string())))
    ended = is_any(state, frozenset(ENDED))
    sampled = pa.array([running.get(step) for step in raw["jobidraw"].to_pylist()], pa.string())
    tres = pc.coalesce(sampled, as_array(raw["tresusageintot"]))
    cpu = as_array(cpu_seconds(as_array(raw["totalcpu"])))
    clocks = pc.struct_field(pc.extract_regex(sampled, r"(?:^|,)cpu=(?P<cpu>[-0-9:.]*)"), "cpu")
    cpu = pc.if_else(pc.is_valid(sampled), as_array(cpu_seconds(clocks)), cpu)
    # For a running step sacct reports a CPU time of 0.
    is_known = pc.or_(ended, pc.is_valid(sampled))
    exit_code, exit_signal = accounted_exit_columns(none_to_null(raw["exitcode"]), ended)
    columns = {
        "id": pc.replace_substring_regex(raw["jobid"], r"^[^.]*\.", ""),
        "name": raw["jobname"],
        "state": state,
        "native_state": native,
        "nodes": integers(none_to_null(raw["nnodes"])),
        "cpus": integers(none_to_null(raw["ncpus"])),
        "tasks": integers(none_to_null(raw["ntasks"])),
        "elapsed_seconds": integers(none_to_null(raw["elapsedraw"])),
        "started_at": instants(none_to_null(raw["start"])),
        "ends_at": instants(none_to_null(raw["end"])),
        "node_list": none_to_null(raw["nodelist"]),
        "exit_code": exit_code,
        "exit_signal": exit_signal,
        "cpu_seconds_used": where(is_known, cpu),
        "memory_peak_bytes": amounts(tres, "mem"),
    }
    return pa.table(columns, schema=schema.STEPS)
