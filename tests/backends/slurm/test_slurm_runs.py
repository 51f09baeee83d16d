"""Runs with what their steps used, of what sacct prints."""

from __future__ import annotations

from typing import Any

import pytest

from hpcdash.backends.slurm.runs import parse_runs, runs_at_query, runs_query
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.domain.schema import RUNS
from hpcdash.errors import AccountingUnavailable, UnreadableOutput
from tests.support.records import for_each
from tests.support.slurm_text import TOKEN, Fields, answered, runs_text

MIB = 1 << 20
# As Slurm 22.05.8 printed a job of two nodes and eight tasks, put back once.
STEPS: tuple[Fields, ...] = (
    {"jobid": "88", "state": "REQUEUED", "totalcpu": "00:02:10", "end": "1795242200"},
    {
        "jobid": "88.batch",
        "maxrss": "3000K",
        "tresusageintot": "cpu=00:00:01,energy=0,mem=3000K,vmem=9000K",
    },
    {
        "jobid": "88.0",
        "maxrss": "1000K",
        "tresusageintot": "cpu=00:02:09,energy=0,mem=7984K,pages=0,vmem=1T",
    },
    {"jobid": "88", "totalcpu": "1-00:00:05", "submit": "1795242201", "end": "1795252200"},
    {
        "jobid": "88.batch",
        "maxrss": "214488K",
        "tresusageintot": "cpu=00:00:00,energy=0,mem=214488K",
    },
    {"jobid": "88.extern", "maxrss": "", "tresusageintot": "energy=0"},
)


def read(*rows: Fields) -> list[dict[str, Any]]:
    parsed = parse_runs(answered(runs_text(*rows), argv=("sacct",)), token=TOKEN)
    assert parsed.rejected == ()
    assert parsed.table.schema == RUNS
    return table_to_json_rows(parsed.table, RUNS.names)


def test_each_run_has_what_its_own_steps_used() -> None:
    first, second = read(*STEPS)
    assert (first["state"], second["state"]) == ("requeued", "completed")
    # As seff: the step whose tasks' peaks sum up to most; as reportseff: the largest MaxRSS.
    assert (first["memory_peak_bytes"], first["_task_memory_peak_bytes"]) == (
        7984 << 10,
        3000 << 10,
    )
    assert (second["memory_peak_bytes"], second["_task_memory_peak_bytes"]) == (
        214488 << 10,
        214488 << 10,
    )
    assert (first["cpu_seconds_used"], second["cpu_seconds_used"]) == (130.0, 86405.0)
    assert {first["usage_source"], second["usage_source"]} == {"accounting"}


@for_each(
    ("fields", "expected"),
    [
        ({"totalcpu": "05:30.250"}, {"cpu_seconds_used": 330.25, "usage_source": "accounting"}),
        ({"totalcpu": "103:00:01"}, {"cpu_seconds_used": 370801.0}),
        # Without a plugin that gathers it.
        (
            {"totalcpu": "00:00:00"},
            {"cpu_seconds_used": None, "memory_peak_bytes": None, "usage_source": None},
        ),
        ({"totalcpu": "INVALID"}, {"cpu_seconds_used": None}),
        ({"suspended": "00:10:00"}, {"suspended_seconds": 600}),
        # Never eligible, and cancelled.
        (
            {
                "eligible": "Unknown",
                "start": "None",
                "nodelist": "None assigned",
                "state": "CANCELLED by 1001",
            },
            {"eligible_at": None, "started_at": None, "state": "cancelled"},
        ),
        (
            {"ncpus": "0", "alloctres": "", "reqtres": "cpu=8,gres/gpu=4,mem=2G"},
            {"cpus": 8, "gpus": 4},
        ),
        (
            {"admincomment": "JS1:H4sI", "workdir": ""},
            {"_admin_comment": "JS1:H4sI", "work_dir": None},
        ),
        (
            {"jobid": "88_4"},
            {"id": "88_4", "array_id": "88", "array_task": "4", "_number": 88, "_task": 4},
        ),
        ({"exitcode": "0:11", "state": "FAILED"}, {"exit_code": 0, "exit_signal": 11}),
        ({"alloctres": "cpu=1,mem=64512M"}, {"memory_bytes": 64512 * MIB}),
    ],
)
def test_what_a_row_says(fields: Fields, expected: dict[str, Any]) -> None:
    (row,) = read(fields)
    assert {name: row[name] for name in expected} == expected


def test_gpus_are_the_mean_of_those_it_had() -> None:
    step = "cpu=00:01:00,gres/gpumem=1536M,gres/gpuutil=120,mem=1G"
    (row,) = read(
        {"alloctres": "cpu=8,gres/gpu=4,mem=4G"},
        {"jobid": "88.0", "tresusageintot": step, "maxrss": "1G"},
    )
    assert (row["gpu_use"], row["gpu_memory_peak_bytes"]) == (0.3, 1536 * MIB)


def test_what_has_not_ended_is_no_run() -> None:
    assert [
        row["id"]
        for row in read({"jobid": "1", "state": "RUNNING", "end": "Unknown"}, {"jobid": "2"})
    ] == ["2"]


HOSTILE = [
    b"a\nb",
    b"997|x\n998",
    b"x\x1f\x1e\n5\x1e",
    b"\r\n",
    b"0:0\n999",
    b"\x1eabcDEF012",
    b"\xff\xfe",
    b"1.batch",
]


@for_each("name", HOSTILE)
def test_a_name_forges_no_run_and_no_step(name: bytes) -> None:
    """Also among so many plain rows that these are read many at once."""
    plain: list[Fields] = [{"jobid": str(1000 + number)} for number in range(400)]
    hostile: Fields = {
        "jobid": "7",
        "jobname": name,
        "comment": name,
        "workdir": name,
        "admincomment": name,
    }
    step: Fields = {"jobid": "7.0", "jobname": name, "tresusageintot": "mem=5K", "maxrss": "5K"}
    rows = read(*plain[:200], hostile, step, *plain[200:], {"jobid": "7.1x", "jobname": name})
    assert [row["id"] for row in rows] == [
        *(row["jobid"] for row in plain[:200]),
        "7",
        *(r["jobid"] for r in plain[200:]),
    ]
    mine = rows[200]
    shown = name.decode("utf-8", "replace")
    assert (mine["name"], mine["work_dir"], mine["_comment"]) == (shown, shown, shown)
    assert mine["memory_peak_bytes"] == 5 << 10


def test_noise_and_a_row_cut_short_are_told_and_the_rest_stands() -> None:
    raw = (
        b"welcome\n"
        + runs_text({})
        + b"sacct: warning\n"
        + runs_text({"jobid": "89"}, {"jobid": "90"})[:-9]
    )
    parsed = parse_runs(answered(raw), token=TOKEN)
    assert parsed.table["id"].to_pylist() == ["88", "89"]
    assert parsed.rejected == (
        "welcome",
        "sacct: warning",
        "the output ended in the middle of a row",
    )


def test_what_is_no_answer_is_told() -> None:
    with pytest.raises(UnreadableOutput):
        parse_runs(answered(b"<html>", argv=("sacct",)), token=TOKEN)
    down = answered(
        status=1,
        stderr=b"sacct: error: Problem talking to the database: Connection refused",
        argv=("sacct",),
    )
    with pytest.raises(AccountingUnavailable):
        parse_runs(down, token=TOKEN)
    assert parse_runs(answered(), token=TOKEN).table.num_rows == 0


def test_the_query_names_states_times_and_whose() -> None:
    words = runs_query("alice", 1000, 2000).argv
    words = words[words.index("sacct") :]
    assert words[words.index("-S") + 1 : words.index("-S") + 4] == ("uts1000", "-E", "uts1999")
    assert {"RQ", "CA", "TO"} <= {*words[words.index("-s") + 1].split(",")}
    assert "-D" in words
    assert "-X" not in words
    assert "-a" in runs_query(None, 1000, 2000).argv
    assert "-s" not in runs_at_query(None, 5000).argv
