"""What squeue's rows mean."""

from __future__ import annotations

from typing import Any

import pytest

from hpcdash.backends.base import Probe
from hpcdash.backends.queries import JobScope
from hpcdash.backends.slurm.backend import slurm_backend
from hpcdash.backends.slurm.jobs import LAYOUT, SlurmQueue, parse_jobs, queue_id
from hpcdash.backends.slurm.rows import Layout
from hpcdash.backends.slurm.states import job_state
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.errors import ControllerDown, NoSuchJob, UnreadableOutput
from hpcdash.recorded import find_token
from tests.support.records import for_each
from tests.support.slurm_text import JOB, TOKEN, answered, printed_row, queue_text


def read(**fields: str | bytes) -> dict[str, Any]:
    """The one row of a queue with one job."""
    parsed = parse_jobs(answered(queue_text(fields)), token=TOKEN)
    (row,) = table_to_json_rows(parsed.table, parsed.table.column_names)
    return row


@for_each(
    "reason",
    [
        *("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "job requeued in held state"),
        *("launch failed requeued held", "user env retrieval failed requeued held"),
    ],
)
def test_a_pending_job_that_is_held_is_held_not_pending(reason: str) -> None:
    assert read(state="PENDING", reason=reason)["state"] == "held"


def test_records_of_an_array_that_are_held_for_two_reasons_are_held() -> None:
    assert read(state="PENDING", reason="JobHeldUser,JobHeldAdmin")["state"] == "held"


def test_an_array_with_some_tasks_held_is_pending() -> None:
    assert read(state="PENDING", reason="JobHeldUser,Priority")["state"] == "pending"


def test_a_special_exit_is_held() -> None:
    assert read(state="SPECIAL_EXIT", reason="job requeued in held state")["state"] == "held"


@for_each(
    ("word", "state"),
    [
        ("CONFIGURING", "running"),
        ("SIGNALING", "running"),
        ("STAGE_OUT", "running"),
        ("STOPPED", "suspended"),
        ("RESIZING", "suspended"),
        ("REQUEUE_HOLD", "requeued"),
        ("EXPEDITING", "requeued"),
        ("RESV_DEL_HOLD", "held"),
        ("BOOT_FAIL", "failed"),
        ("DEADLINE", "timeout"),
        ("OUT_OF_MEMORY", "out_of_memory"),
        ("REVOKED", "cancelled"),
        ("CANCELLED by 1001", "cancelled"),
        ("NODE_FAIL", "node_failed"),
        ("POSTPONED_BY_MAGIC", "unknown"),
    ],
)
def test_slurm_s_words_for_states(word: str, state: str) -> None:
    assert job_state(word) == state


def test_an_unknown_state_keeps_slurm_s_own_word() -> None:
    row = read(state="TELEPORTING")
    assert (row["state"], row["native_state"]) == ("unknown", "TELEPORTING")


@for_each(
    ("raw", "code", "signal"),
    [("0", 0, 0), ("768", 3, 0), ("35072", 137, 0), ("11", 0, 11), ("139", 0, 11), ("125", 0, 125)],
)
def test_squeue_gives_the_raw_wait_status(raw: str, code: int, signal: int) -> None:
    row = read(state="FAILED", exit_code=raw, reason="NonZeroExitCode")
    assert (row["exit_code"], row["exit_signal"]) == (code, signal)


def test_a_job_that_has_not_ended_has_no_exit_code() -> None:
    row = read(state="RUNNING", exit_code="0")
    assert (row["exit_code"], row["exit_signal"]) == (None, None)


@for_each(
    ("text", "count"),
    [
        ("3-10%1", 8),
        ("5", 1),
        ("1,3,5-7", 5),
        ("0-100:10", 11),
        ("1,5-7,100-200:50%2", 7),
        ("0-999", 1000),
        ("1,2,...", 2),
    ],
)
def test_how_many_tasks_a_row_holds(text: str, count: int) -> None:
    assert read(jobarrayid=f"7_[{text}]", arrayjobid="7", arraytaskid=text)["_tasks"] == count


def test_the_rest_of_an_array_is_one_row_for_eight_tasks() -> None:
    row = read(
        jobarrayid="88_[3-10%1]",
        arrayjobid="88",
        arraytaskid="3-10%1",
        state="PENDING",
        reason="JobArrayTaskLimit",
    )
    assert (row["id"], row["array_id"], row["array_task"]) == ("88_[3-10%1]", "88", "3-10%1")
    assert (row["_number"], row["_task"], row["_tasks"]) == (88, 3, 8)


def test_a_job_that_is_no_array_has_no_array_columns() -> None:
    row = read(jobarrayid="88", arrayjobid="88", arraytaskid="N/A")
    assert (row["array_id"], row["array_task"], row["_task"], row["_tasks"]) == (
        None,
        None,
        None,
        1,
    )


def test_the_number_of_an_array_s_cancelled_rest_is_no_task() -> None:
    assert (
        read(jobarrayid="9", arrayjobid="9", arraytaskid="4294967294", state="CANCELLED")[
            "array_task"
        ]
        is None
    )


def test_a_component_of_a_heterogeneous_job_keeps_its_id() -> None:
    row = read(jobarrayid="65+1", arrayjobid="66")
    assert (row["id"], row["_number"]) == ("65+1", 65)


@for_each(
    ("tres", "gpus"),
    [
        ("cpu=2,mem=200M,node=1,billing=2,gres/gpu=2", 2),
        ("cpu=2,mem=200M,node=1,billing=2,gres/gpu:a100=2,gres/gpu:v100=1", 3),
        ("cpu=2,mem=200M,node=1,gres/gpu=4,gres/gpu:a100=4", 4),
        ("cpu=2,mem=200M,node=1,billing=2", 0),
        ("cpu=2,mem=200M,node=1,license/gres/gpu=7", 0),
    ],
)
def test_gpus_come_from_the_allocated_tres_however_they_were_asked_for(
    tres: str, gpus: int
) -> None:
    assert read(**{"tres-alloc": tres})["gpus"] == gpus


@for_each(
    ("tres", "memory"),
    [
        *(
            ("mem=200M", 200 << 20),
            ("mem=1.50G", 3 << 29),
            ("mem=2T", 2 << 40),
            ("mem=512", 512 << 20),
        ),
        *(
            ("cpu=1", None),
            ("cpu=1,license/foomem=2", None),
            ("cpu=1,license/foomem=2,mem=4G", 4 << 30),
        ),
    ],
)
def test_memory_is_in_binary_units(tres: str, memory: int | None) -> None:
    assert read(**{"tres-alloc": tres})["memory_bytes"] == memory


@for_each(
    ("text", "limit"),
    [
        ("7-00:00:00", 604800),
        ("12:00:00", 43200),
        ("30:00", 1800),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
    ],
)
def test_time_limits(text: str, limit: int | None) -> None:
    assert read(timelimit=text)["limit_seconds"] == limit


@for_each("nothing", ["None", "(null)", ""])
def test_no_reason_is_null(nothing: str) -> None:
    assert read(reason=nothing)["reason"] is None


def test_a_reason_keeps_its_spaces_and_commas() -> None:
    reason = "ReqNodeNotAvail, UnavailableNodes:g[1-2]"
    assert read(state="PENDING", reason=reason)["reason"] == reason


def test_a_job_cancelled_while_it_waited_neither_began_nor_waits() -> None:
    row = read(
        state="CANCELLED",
        reason="JobHeldUser",
        nodelist="",
        starttime="1795242110",
        endtime="1795242110",
    )
    assert (row["started_at"], row["reason"]) == (None, None)
    assert row["ends_at"] == "2026-11-21T06:21:50Z"


def test_why_a_job_failed_stays() -> None:
    assert (
        read(state="FAILED", reason="NonZeroExitCode", exit_code="256")["reason"]
        == "NonZeroExitCode"
    )


def test_the_expected_start_of_a_waiting_job_is_no_start() -> None:
    row = read(state="PENDING", reason="Resources", starttime="1795285309")
    assert (row["started_at"], row["ends_at"], row["_expected_start_at"]) == (
        None,
        None,
        "2026-11-21T18:21:49Z",
    )


@for_each("name", ["(null)", "N/A", "None", "nan", "-", '"a,b",c', " spaces "])
def test_a_name_that_looks_like_nothing_is_a_name(name: str) -> None:
    assert read(name=name)["name"] == name


def test_one_bad_row_is_rejected_and_the_others_stand() -> None:
    good, bad = queue_text({}), queue_text({"jobarrayid": "89"})
    raw = good + bad.replace(b"\x1fgpu\x1f", b"\x1f", 1) + queue_text({"jobarrayid": "90"})
    parsed = parse_jobs(answered(raw), token=TOKEN)
    assert parsed.table["id"].to_pylist() == ["88", "90"]
    assert len(parsed.rejected) == 1
    assert parsed.rejected[0].startswith("89 88 N/A alice physics")


@pytest.mark.parametrize("job_id", ["squeue: warning", "9" * 40])
def test_a_row_without_a_number_of_a_job_is_rejected(job_id: str) -> None:
    parsed = parse_jobs(answered(queue_text({"jobarrayid": job_id}, {})), token=TOKEN)
    assert (parsed.table["id"].to_pylist(), len(parsed.rejected)) == (["88"], 1)


@for_each(
    "fields",
    [
        {"prioritylong": "9" * 30, "submittime": "9" * 18, "timelimit": "9" * 30 + ":00:00"},
        {
            "arraytaskid": "²",
            "exit_code": "٣",
            "numcpus": "1e999",
            "tres-alloc": "mem=infG,gres/gpu=nan",
        },
        {"numnodes": "-1", "endtime": "-5", "exit_code": "1:2:3", "state": "FAILED"},
    ],
)
def test_numbers_that_are_none_are_null(fields: dict[str, str]) -> None:
    parsed = parse_jobs(answered(queue_text(fields)), token=TOKEN)
    assert parsed.table.num_rows == 1
    table_to_json_rows(parsed.table, parsed.table.column_names)


def test_an_empty_queue_is_an_empty_table() -> None:
    assert parse_jobs(answered(), token=TOKEN).table.num_rows == 0


def test_a_single_job_that_is_not_there_is_no_such_job() -> None:
    with pytest.raises(NoSuchJob):
        parse_jobs(answered(), token=TOKEN, one_job=True)


def test_other_text_is_no_list_of_jobs() -> None:
    with pytest.raises(UnreadableOutput) as error:
        parse_jobs(answered(b"JOBID PARTITION\n 1 main\n"), token=TOKEN)
    assert "JOBID PARTITION" in error.value.output


def test_a_failure_is_no_empty_queue() -> None:
    stderr = b"slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
    with pytest.raises(ControllerDown):
        parse_jobs(answered(status=1, stderr=stderr), token=TOKEN)


@for_each(
    ("scope", "words"),
    [
        (JobScope("alice"), ("-u", "alice")),
        (JobScope(""), ("--me",)),
        (JobScope("alice", ended=True), ("-u", "alice", "-t", "all")),
        (JobScope(job_ids=("7", "8_3")), ("-t", "all", "-j", "7,8_3")),
        (JobScope(), ()),
        (
            JobScope(queue="shared", qos="low", reservation="ours"),
            ("-p", "shared", "-q", "low", "-R", "ours"),
        ),
    ],
)
def test_whose_jobs_are_asked_for(scope: JobScope, words: tuple[str, ...]) -> None:
    argv = SlurmQueue().jobs(scope).argv
    program = argv.index("squeue")
    assert argv[program + 1 : program + 3] == ("-a", "-h")
    assert argv[program + 3 : -2] == words
    assert argv[-2] == "-O"


def test_the_rest_of_an_array_is_asked_for_as_the_array() -> None:
    # squeue reads '6_[1-2,4-6]' as the jobs 6 and 4.
    assert queue_id("6_[1-2,4-6]") == "6"
    assert "6,6_3" in SlurmQueue().jobs(JobScope(job_ids=("6_[1-2,4-6]", "6", "6_3"))).argv


@for_each(
    ("version", "field", "answer", "gpus"),
    [
        ("slurm 22.05.8", "oversubscribe", "NO", None),
        ("slurm 22.05.8", "oversubscribe", "OK", 0),
        ("slurm-wlm 26.05.5", "exclusive", "NODE", None),
        ("slurm-wlm 26.05.5", "exclusive", "NO", 0),
        ("slurm-wlm 26.05.5", "exclusive", "USER", 0),
    ],
)
def test_only_a_job_with_whole_nodes_may_have_gpus_that_it_did_not_ask_for(
    version: str, field: str, answer: str, gpus: int | None
) -> None:
    query = slurm_backend(Probe("alice", version, counts_gpus=False)).queue.jobs(JobScope())
    fields = tuple(field if name == "oversubscribe" else name for name in LAYOUT.plain)
    asked = Layout(fields, LAYOUT.hostile)
    token = find_token(query.argv)
    assert query.argv[-1] == asked.option(token)
    row = printed_row(asked, {**JOB, field: answer, "tres-alloc": "cpu=8,mem=48G,node=1"}, token)
    assert query.parse(answered(row)).table["gpus"].to_pylist() == [gpus]
