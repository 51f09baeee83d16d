"""Every recorded case of a PBS is read as its expected.json says, and no answer breaks a reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.base import Capability
from hpcdash.backends.pbs.backend import BACKEND, pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.queries import JobScope
from hpcdash.domain import schema
from hpcdash.transport.base import CommandResult
from hpcdash.transport.replay import ReplayTransport
from tests.support.play_case import backend_of, expected_of, play, table_questions
from tests.support.records import for_each

VERSIONS = Path(__file__).resolve().parents[3] / "fixtures" / "pbs"
# A case that extends another has no lists of its own.
CASES = sorted(
    file.parent
    for file in VERSIONS.glob("*/*/case.toml")
    if "\nextends =" not in file.read_text("utf-8")
)
EXPECTED = {case: json.loads((case / "expected.json").read_text("utf-8")) for case in CASES}
SETTLED = pbs_backend(Dialect.OPENPBS)
by_case = for_each("case", CASES, ids=lambda case: case.name)


@by_case
def test_a_case_is_read_as_expected(case: Path) -> None:
    assert expected_of(case) == EXPECTED[case]


@by_case
def test_rows_have_the_contract_s_columns_and_no_others(case: Path) -> None:
    for key, (kind, _) in table_questions(BACKEND, "x").items():
        for row in EXPECTED[case].get(key, ()):
            assert list(row) == schema.public_names(kind)


@by_case
def test_one_s_own_jobs_are_those_of_everyone_s_with_one_s_name(case: Path) -> None:
    expected, user = EXPECTED[case], ReplayTransport(case).user
    mine, everyone = expected.get("jobs_mine", ()), expected.get("jobs", ())
    assert {row["user"] for row in mine} <= {user}
    # Of everyone's arrays there is the array, of one's own each task.
    assert list(dict.fromkeys(row["array_id"] or row["id"] for row in mine)) == list(
        dict.fromkeys(row["array_id"] or row["id"] for row in everyone if row["user"] == user)
    )


@by_case
def test_an_id_is_one_row(case: Path) -> None:
    for key in ("jobs", "jobs_and_ended", "history"):
        ids = [row["id"] for row in EXPECTED[case].get(key, ())]
        assert len(ids) == len(set(ids))


@by_case
def test_a_job_that_never_ran_has_no_start_and_one_that_runs_no_exit(case: Path) -> None:
    for row in EXPECTED[case].get("jobs_and_ended", ()):
        if row["state"] in ("pending", "held"):
            assert row["elapsed_seconds"] in (None, 0)
            assert row["node_list"] is None
        if row["state"] in ("pending", "held", "running", "suspended", "completing"):
            assert (row["exit_code"], row["exit_signal"]) == (None, None)


def said_of_jobs(case: Path) -> dict[str, dict[str, str]]:
    """id → what the recorded list says of each job, read plainly: no value of these cases holds the
    delimiter.
    """
    found = {}
    for name in ("jobs", "ended"):
        file = case.parent / "scenes" / case.name / f"{name}.dsv"
        for line in (
            file.read_bytes().decode("utf-8", "replace").split("\n")[:-1] if file.is_file() else ()
        ):
            head, *fields = line.split("@@")
            found[head.removeprefix("Job Id: ")] = dict(field.split("=", 1) for field in fields)
    return found


def seconds_of(text: str | None) -> int | None:
    if text is None:
        return None
    hours, minutes, seconds = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def instant_of(text: str | None) -> str | None:
    return text and datetime.strptime(text, "%a %b %d %H:%M:%S %Y").strftime("%Y-%m-%dT%H:%M:%SZ")


@for_each(
    "name", ["everyday", "odd", "finished", "node-failed", "preempted", "private", "history-off"]
)
def test_rows_say_what_qstat_said(name: str) -> None:
    case = VERSIONS / "23.06" / name
    said = said_of_jobs(case)
    rows = {row["id"]: row for row in EXPECTED[case]["jobs_and_ended"]}
    arrays = {job_id for job_id in said if "[]" in job_id}
    assert rows.keys() - arrays <= said.keys() | {"14[6-10].pbs01"}
    assert len(said) > len(arrays)
    for job_id in said.keys() - arrays:
        row, job = rows[job_id], said[job_id]
        assert (row["name"], row["user"]) == (job["Job_Name"], job["Job_Owner"].split("@")[0])
        assert (row["queue"], row["native_state"]) == (job["queue"], job["job_state"])
        assert (row["account"], row["priority"]) == (job.get("Account_Name"), int(job["Priority"]))
        assert row["limit_seconds"] == seconds_of(job.get("Resource_List.walltime"))
        assert row["nodes"] == int(job["Resource_List.nodect"])
        assert (row["cpus"], row["gpus"]) == (
            int(job["Resource_List.ncpus"]),
            int(job.get("Resource_List.ngpus", "0")),
        )
        assert row["submitted_at"] == instant_of(job["ctime"])
        assert row["started_at"] == (
            instant_of(job.get("stime")) if row["state"] not in ("pending", "held") else None
        )
        if job["job_state"] == "F":
            assert row["ends_at"] is not None
            status = int(job.get("Exit_status", "-1"))
            by_signal = status > 256
            expected = (
                (0, status - 256) if by_signal else (status, 0) if status >= 0 else (None, None)
            )
            assert (row["exit_code"], row["exit_signal"]) == expected


@for_each("key", ["jobs", "jobs_mine", "jobs_and_ended", "nodes", "queues", "history"])
def test_a_pbs_without_f_is_read_as_one_that_has_it(key: str) -> None:
    by_name = {case.name: expected for case, expected in EXPECTED.items()}
    assert by_name["older"][key] == by_name["everyday"][key]


def shown_jobs() -> list[Any]:
    """(case, row) of each job or task whose own answers are kept; an array's are those of its
    tasks.
    """
    found = []
    for case in CASES:
        argvs = {word for argv in ReplayTransport(case).case.answers for word in argv}
        rows = {
            row["id"]: row
            for key in ("history", "jobs_and_ended")
            for row in EXPECTED[case].get(key, ())
        }
        shown = [
            row for job_id, row in rows.items() if job_id in argvs and job_id != row["array_id"]
        ]
        found += [pytest.param(case, row, id=f"{case.name}-{row['id']}") for row in shown]
    return found


@for_each(("case", "row"), shown_jobs())
def test_the_page_of_a_job_says_what_its_row_says(case: Path, row: dict[str, Any]) -> None:
    transport = ReplayTransport(case)
    backend = backend_of(transport)
    has_past = Capability.HISTORY in backend.capabilities
    rows = (
        backend.history.jobs(None, 0, (row["id"],))
        if has_past
        else backend.queue.jobs(JobScope(job_ids=(row["id"],)))
    )
    found = play(transport, rows).table
    index = found["id"].to_pylist().index(row["id"])
    native = play(
        transport, (backend.history.native if has_past else backend.detail.native)(row["id"])
    )
    detail = backend.detail.join(found.slice(index, 1), native)
    (shown,) = detail.job.to_pylist()
    assert (shown["name"], shown["user"], shown["queue"]) == (
        row["name"],
        row["user"],
        row["queue"],
    )
    assert detail.native["Job_Name"] == row["name"]
    assert detail.native["job_state"] == row["native_state"]


def actions() -> Iterator[tuple[str, ActionRequest]]:
    ids = ("2.pbs01", "12[3].pbs01", "14[6-10].pbs01", "12[].pbs01")
    for verb in (Verb.CANCEL, Verb.HOLD, Verb.RELEASE, Verb.REQUEUE, Verb.SUSPEND, Verb.RESUME):
        yield verb.value, ActionRequest(verb, ids)
    yield "signal", ActionRequest(Verb.SIGNAL, ids, signal="USR1")
    yield "alter", ActionRequest(Verb.ALTER, ids[:1], changes={"time": "2h"})


@pytest.mark.parametrize(("name", "request_"), list(actions()), ids=[name for name, _ in actions()])
@settings(suppress_health_check=list(HealthCheck))
@given(
    said=st.lists(
        st.sampled_from((b"qdel: ", b"Unknown Job Id ", b"12[3].pbs01", b"\n", b"\xff", b" "))
    )
)
def test_an_action_has_one_outcome_for_each_job_whatever_it_said(
    name: str, request_: ActionRequest, said: list[bytes]
) -> None:
    for command in SETTLED.actions.commands(request_):
        for status in (0, 1, 153, 255):
            outcomes = command.read(CommandResult(command.argv, status, b"", b"".join(said), 0.0))
            assert [outcome.job_id for outcome in outcomes] == list(command.job_ids)
