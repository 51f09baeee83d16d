"""The steps of a job, of what sacct and sstat print."""

from __future__ import annotations

import pytest

from hpcdash.backends.slurm.steps import FIELDS, parse_steps, steps_query
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.domain.schema import STEPS
from hpcdash.errors import AccountingUnavailable
from tests.support.job_rows import job_row
from tests.support.slurm_text import TOKEN, answered

STEP = {
    "jobid": "26.0",
    "jobidraw": "26.0",
    "state": "COMPLETED",
    "nnodes": "2",
    "ncpus": "8",
    "ntasks": "4",
    "elapsedraw": "90",
    "start": "1795242110",
    "end": "1795242200",
    "totalcpu": "00:04:30",
    "tresusageintot": "cpu=00:04:30,mem=4096K",
    "nodelist": "n[1-2]",
    "jobname": "python3",
    "exitcode": "0:0",
}
JOB = {
    **STEP,
    "jobid": "26",
    "jobidraw": "26",
    "ntasks": "",
    "tresusageintot": "",
    "jobname": "train",
}


def text(*rows: dict[str, str], sstat: str = "") -> bytes:
    lines = "".join(TOKEN.join(row[name] for name in FIELDS) + "\n" for row in rows)
    return f"{lines}{TOKEN}\n{sstat}".encode()


def test_ended_and_running_steps_have_what_each_used() -> None:
    running = {
        "jobid": "26.1",
        "jobidraw": "26.1",
        "state": "RUNNING",
        "end": "Unknown",
        "totalcpu": "00:00:00",
    }
    hostile = "x\n26.9\x1b|forged"
    raw = text(
        JOB,
        {**STEP, "jobid": "26.batch", "jobname": "batch", "exitcode": "3:0", "state": "FAILED"},
        {**STEP, "jobname": hostile},
        {**STEP, **running, "tresusageintot": ""},
        {**STEP, **running, "jobid": "26.2", "jobidraw": "26.2", "tresusageintot": ""},
        sstat="26.1|cpu=00:00:07,energy=0,mem=2048K,pages=0\n",
    )
    parsed = parse_steps(answered(raw), token=TOKEN)
    assert parsed.rejected == ()
    assert parsed.table.schema == STEPS
    batch, named, first, second = table_to_json_rows(parsed.table, STEPS.names)
    assert (batch["id"], batch["state"], batch["exit_code"]) == ("batch", "failed", 3)
    assert (named["id"], named["name"], named["tasks"], named["nodes"]) == ("0", hostile, 4, 2)
    assert (named["cpu_seconds_used"], named["memory_peak_bytes"]) == (270.0, 4 << 20)
    assert (first["state"], first["cpu_seconds_used"], first["memory_peak_bytes"]) == (
        "running",
        7.0,
        2 << 20,
    )
    # Of another's running job sstat tells nothing.
    assert (second["cpu_seconds_used"], second["memory_peak_bytes"], second["exit_code"]) == (
        None,
        None,
        None,
    )


def test_none_are_asked_for_before_the_job_began() -> None:
    assert steps_query(job_row("1", "pending")) is None
    asked = steps_query(job_row("11_2", "running", started=1))
    assert asked is not None
    assert asked.argv[-1] == "jobid,tresusageintot"
    ended = steps_query(job_row("11", "failed", started=1))
    assert ended is not None
    assert ended.argv[-1] == ""


def test_no_steps_is_an_empty_table_and_a_failure_is_one() -> None:
    assert parse_steps(answered(text(JOB)), token=TOKEN).table.num_rows == 0
    assert parse_steps(answered(text()), token=TOKEN).table.num_rows == 0
    with pytest.raises(AccountingUnavailable):
        parse_steps(
            answered(status=1, stderr=b"Problem talking to the database", argv=("sh",)), token=TOKEN
        )
