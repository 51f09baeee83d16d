"""Every recorded case is read as its expected.json says, and agrees with what scontrol said of the
same jobs.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hpcdash.backends.queries import JobScope
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.domain import schema
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.transport.replay import ReplayTransport
from tests.support.play_case import backend_of, expected_of, play, table_questions
from tests.support.records import for_each

VERSIONS = Path(__file__).resolve().parents[3] / "fixtures" / "slurm"
# A case that extends another has no lists of its own.
CASES = sorted(
    file.parent
    for file in VERSIONS.glob("*/*/case.toml")
    if "\nextends =" not in file.read_text("utf-8")
)
EXPECTED = {case: json.loads((case / "expected.json").read_text("utf-8")) for case in CASES}
GIBIBYTE = 1 << 30

by_case = for_each("case", CASES, ids=lambda case: f"{case.parent.name}-{case.name}")


def shown_jobs() -> list[Any]:
    """(case, job id) of each job whose scontrol answer is recorded in a case whose queue answers.

    A heterogeneous job is shown as a whole for the sake of its components, which are recorded too.
    """
    return [
        pytest.param(case, argv[-1], id=f"{case.parent.name}-{case.name}-{argv[-1]}")
        for case in CASES
        for recorded in [ReplayTransport(case).case.answers]
        for argv, answers in recorded.items()
        if argv[:2] == ("scontrol", "-d") and answers[0].status == 0
        if (*argv[:-1], f"{argv[-1]}+1") not in recorded
    ]


@by_case
def test_a_case_is_read_as_expected(case: Path) -> None:
    assert expected_of(case) == EXPECTED[case]


def whole_queues() -> list[Path]:
    """The cases where both queues answered, with every row."""
    wanted = {"jobs", "jobs_mine"}
    return [
        case
        for case in CASES
        if wanted <= EXPECTED[case].keys() and "jobs" not in EXPECTED[case]["rejected"]
    ]


@for_each("case", whole_queues(), ids=lambda case: f"{case.parent.name}-{case.name}")
def test_one_s_own_jobs_are_those_of_everyone_s_with_one_s_name(case: Path) -> None:
    expected = EXPECTED[case]
    user = ReplayTransport(case).user
    assert {row["id"] for row in expected["jobs_mine"]} == {
        row["id"] for row in expected["jobs"] if row["user"] == user
    }


@by_case
def test_rows_have_the_contract_s_columns_and_no_others(case: Path) -> None:
    for key, (kind, _) in table_questions(BACKEND, "x").items():
        for row in EXPECTED[case].get(key, ()):
            assert list(row) == schema.public_names(kind)


def find_row(rows: list[dict[str, Any]], job_id: str) -> dict[str, Any]:
    """The row of a job, or of the rest of an array whose first task it is."""
    array_id, _, task = job_id.partition("_")
    return next(
        (row for row in rows if row["id"] == job_id),
        None,
    ) or next(row for row in rows if re.match(rf"{array_id}_\[{task}\b", row["id"]))


def said(text: str, key: str) -> str:
    found = re.search(rf"(?m)(?:^|\s){key}=(\S*)", text)
    return found.group(1).replace("(null)", "") if found else ""


def moment(epoch: str) -> str | None:
    return (
        datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if epoch.isdigit()
        else None
    )


def seconds(text: str) -> int | None:
    if ":" not in text:
        return None
    days, _, clock = text.rpartition("-")
    hours, minutes, rest = clock.split(":")
    return int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(rest)


@for_each(("case", "job_id"), shown_jobs)
def test_a_row_says_what_scontrol_says(case: Path, job_id: str) -> None:
    transport = ReplayTransport(case)
    text = play_text(transport, job_id)
    # An array's number also shows its tasks; a text may hold lines of scontrol's, and the true ones
    # are the owner's.
    text = re.split(r"\n\s*\n(?=JobId=\d+ ArrayJobId=)", text)[0]
    row = find_row(EXPECTED[case]["jobs_and_ended"], job_id)
    text = text[text.rindex(f"   UserId={row['user']}(") :]
    assert said(text, "JobState") == row["native_state"]
    assert said(text, "Account") == (row["account"] or "")
    assert said(text, "QOS") == (row["qos"] or "")
    assert said(text, "Partition") == row["queue"]
    assert int(said(text, "NumNodes").partition("-")[0]) == row["nodes"]
    assert int(said(text, "NumCPUs").partition("-")[0]) == row["cpus"]
    # From 23.02 on AllocTRES, and ReqTRES of a job that waits.
    counts = said(text, "TRES") or said(text, "AllocTRES") or said(text, "ReqTRES")
    tres = dict(part.split("=") for part in counts.split(","))
    assert int(tres.get("gres/gpu", 0)) == row["gpus"]
    assert gibibytes(tres["mem"]) == pytest.approx(row["memory_bytes"] / GIBIBYTE)
    assert seconds(said(text, "TimeLimit")) == row["limit_seconds"]
    assert moment(said(text, "SubmitTime")) == row["submitted_at"]
    assert moment(said(text, "EligibleTime")) == row["eligible_at"]
    assert said(text, "NodeList") == (row["node_list"] or "")
    if row["started_at"] is not None:
        assert moment(said(text, "StartTime")) == row["started_at"]
        assert moment(said(text, "EndTime")) == row["ends_at"]
    if row["exit_code"] is not None:
        assert said(text, "ExitCode") == f"{row['exit_code']}:{row['exit_signal']}"


def gibibytes(text: str) -> float:
    return float(text[:-1]) * {"M": 1 / 1024, "G": 1, "T": 1024}[text[-1]]


def play_text(transport: ReplayTransport, job_id: str) -> str:
    answer = transport.case.answers[("scontrol", "-d", "show", "job", job_id)][0]
    assert answer.stdout_file is not None
    return answer.stdout_file.read_bytes().decode("utf-8", "replace")


@for_each(("case", "job_id"), shown_jobs)
def test_a_job_s_detail_has_its_own_name_and_its_own_paths(case: Path, job_id: str) -> None:
    transport = ReplayTransport(case)
    row_id = find_row(EXPECTED[case]["jobs_and_ended"], job_id)["id"]
    table = play(transport, backend_of(transport).queue.jobs(JobScope(job_ids=(row_id,)))).table
    row = table.slice(table["id"].to_pylist().index(row_id), 1)
    detail = BACKEND.detail.join(row, play(transport, BACKEND.detail.native(job_id)))
    shown = table_to_json_rows(detail.job, schema.public_names(schema.JOBS))[0]
    assert detail.native["JobName"] == shown["name"]
    assert detail.native["UserId"].partition("(")[0] == shown["user"]
    assert detail.native["JobState"] == shown["native_state"]
    assert detail.native["WorkDir"] == shown["work_dir"]
    assert shown["stdout_path"].startswith(("/home/", "/nonexistent/"))
    assert not [
        key
        for key in detail.native
        if key.split(" ")[0] in {"JobName", "UserId", "StdOut"} and " " in key
    ]
