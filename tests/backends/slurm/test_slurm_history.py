"""What sacct's rows mean."""

from __future__ import annotations

from typing import Any

import pytest

from hpcdash.backends.base import HistoryScope
from hpcdash.backends.slurm.history import FIELDS, SlurmHistory, parse_history, parse_history_native
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.errors import NoSuchJob, UnreadableOutput
from tests.support.records import for_each
from tests.support.slurm_text import PAST_JOB, TOKEN, answered, history_text


def read_all(raw: bytes, *, ended_only: bool = True) -> list[dict[str, Any]]:
    table = parse_history(answered(raw, argv=("sacct",)), token=TOKEN, ended_only=ended_only).table
    return table_to_json_rows(table, table.column_names)


def read(**fields: str | bytes) -> dict[str, Any]:
    (row,) = read_all(history_text(fields), ended_only=False)
    return row


def test_a_job_cancelled_by_somebody_is_cancelled_and_keeps_slurm_s_word() -> None:
    row = read(state="CANCELLED by 1001")
    assert (row["state"], row["native_state"]) == ("cancelled", "CANCELLED by 1001")


def test_a_signal_is_no_exit_code() -> None:
    row = read(state="FAILED", exitcode="0:11")
    assert (row["exit_code"], row["exit_signal"]) == (0, 11)


@for_each(
    ("told", "code", "number"),
    [
        ("9:0", 137, 0),
        ("15:0", 143, 0),
        ("11:0", 139, 0),
        ("6:0", 134, 0),
        ("3:0", 3, 0),
        ("0:15", 0, 15),
        ("1:0", 1, 0),
    ],
)
def test_a_job_has_the_exit_code_in_accounting_that_its_controller_told(
    told: str, code: int, number: int
) -> None:
    # sacct keeps seven bits: it writes 9:0 for a script that ended with exit 137.
    row = read(state="FAILED", exitcode=told)
    assert (row["exit_code"], row["exit_signal"]) == (code, number)


def test_the_reason_an_ended_job_once_waited_for_is_null() -> None:
    assert read(state="COMPLETED", reason="JobArrayTaskLimit")["reason"] is None


def test_a_job_that_still_waits_keeps_its_reason_and_has_no_start_or_end() -> None:
    row = read(
        state="PENDING",
        reason="JobHeldUser",
        start="Unknown",
        end="Unknown",
        nodelist="None assigned",
    )
    assert (row["state"], row["reason"], row["started_at"], row["ends_at"]) == (
        "held",
        "JobHeldUser",
        None,
        None,
    )


def test_a_job_that_never_ran_never_began() -> None:
    row = read(
        state="CANCELLED by 0", nodelist="None assigned", start="1795242110", end="1795242110"
    )
    assert (row["started_at"], row["node_list"], row["ends_at"]) == (
        None,
        None,
        "2026-11-21T06:21:50Z",
    )


def test_limits_are_minutes_there() -> None:
    assert read(timelimitraw="720")["limit_seconds"] == 43200
    assert read(timelimitraw="UNLIMITED")["limit_seconds"] is None
    assert read(timelimitraw="9" * 17)["limit_seconds"] is None


def test_a_job_without_an_allocation_shows_what_it_asked_for() -> None:
    row = read(alloctres="", reqtres="billing=1,cpu=1,gres/gpu=4,mem=2G,node=1")
    assert (row["gpus"], row["memory_bytes"]) == (4, 2 << 30)


def test_a_job_that_never_had_cpus_shows_those_it_asked_for() -> None:
    # sacct of 23.02 and later.
    assert read(ncpus="0", alloctres="", reqtres="billing=8,cpu=8,mem=2G,node=1")["cpus"] == 8
    assert read(ncpus="0", alloctres="", reqtres="")["cpus"] is None
    assert read(ncpus="4", alloctres="cpu=4,mem=2G", reqtres="cpu=8,mem=2G")["cpus"] == 4


def test_a_task_knows_its_array() -> None:
    row = read(jobid="88_4")
    assert (row["array_id"], row["array_task"], row["_number"], row["_task"]) == ("88", "4", 88, 4)


def test_the_rest_of_an_array_counts_its_tasks() -> None:
    row = read(jobid="88_[3-10%1]", state="PENDING")
    assert (row["array_task"], row["_tasks"]) == ("3-10%1", 8)


def test_only_ended_jobs_are_history_the_newest_first() -> None:
    raw = history_text(
        {"jobid": "1", "end": "1795242200"},
        {"jobid": "2", "end": "1795242300", "state": "FAILED"},
        {"jobid": "3", "state": "RUNNING", "end": "Unknown"},
    )
    assert [row["id"] for row in read_all(raw)] == ["2", "1"]


@for_each("name", [b"a\nb", b"997|forged\n997|x", b"x\x1f\x1e\n5\x1e", b"\r\n", b"0:0\n999"])
def test_a_name_forges_no_row(name: bytes) -> None:
    rows = read_all(
        history_text({"jobname": name}, {"jobid": "89", "comment": name, "workdir": name})
    )
    assert [row["id"] for row in rows] == ["89", "88"]
    assert rows[1]["name"] == name.decode()
    assert (rows[0]["comment"], rows[0]["work_dir"]) == (name.decode(), name.decode())


def test_noise_before_and_between_rows_is_told() -> None:
    raw = b"welcome\n" + history_text({}) + b"sacct: warning\n" + history_text({"jobid": "89"})
    parsed = parse_history(answered(raw), token=TOKEN)
    assert sorted(parsed.table["id"].to_pylist()) == ["88", "89"]
    assert parsed.table["exit_code"].to_pylist() == [0, 0]
    assert parsed.rejected == ("welcome", "sacct: warning")


@for_each("cut", range(1, 160, 7))
def test_a_row_cut_short_is_no_row(cut: int) -> None:
    parsed = parse_history(answered(history_text({}, {"jobid": "89"})[:-cut]), token=TOKEN)
    assert parsed.table["id"].to_pylist() == ["88"]
    assert parsed.rejected


def test_other_text_is_no_history() -> None:
    with pytest.raises(UnreadableOutput):
        parse_history(answered(b"<html>", argv=("sacct",)), token=TOKEN)


def test_the_query_names_user_time_and_delimiter() -> None:
    argv = SlurmHistory().jobs("alice", 604800).argv
    assert argv[argv.index("-u", argv.index("sacct")) + 1] == "alice"
    assert argv[argv.index("-S") + 1] == "now-604800seconds"
    assert any(word.startswith("--delimiter=\x1e") for word in argv)
    assert "-a" in SlurmHistory().jobs(None, 60).argv
    assert not {"-a", "-u"} & set(SlurmHistory().jobs("", 60).argv[argv.index("sacct") :])


def test_the_rest_of_an_array_is_asked_for_by_its_number() -> None:
    argv = SlurmHistory().jobs(None, 0, ("11_[3-9%1]", "12_4")).argv
    assert argv[argv.index("-j") + 1] == "11,12_4"
    assert "11" in SlurmHistory().native("11_[3-9%1]").argv


def native_text(*rows: dict[str, str]) -> bytes:
    lines = [
        TOKEN.join(FIELDS),
        *(TOKEN.join({**PAST_JOB, **row}[name] for name in FIELDS) for row in rows),
    ]
    return "".join(line + "\n" for line in lines).encode()


def test_all_that_sacct_says_of_a_job_is_in_its_order_and_of_the_first() -> None:
    raw = native_text({"jobname": "two\nlines"}, {"jobid": "89", "jobname": "other"})
    native = parse_history_native(answered(raw), token=TOKEN)
    assert list(native) == [name for name in FIELDS if PAST_JOB[name]]
    assert (native["jobid"], native["jobname"], native["exitcode"]) == ("88", "two\nlines", "0:0")


def test_a_job_that_no_history_knows_is_no_such_job() -> None:
    with pytest.raises(NoSuchJob):
        parse_history_native(answered(native_text()), token=TOKEN)


# As Slurm 22.05.8 prints it below the heading of the database's part.
PRIVATE = b"PrivateData            = jobs,usage,users\nSlurmUser              = slurm(64030)\n"


@for_each(
    ("user", "printed", "expected"),
    [
        ("alice", PRIVATE + b"None|\n", True),
        # The database does not know the user.
        ("alice", PRIVATE, True),
        ("alice", PRIVATE + b"Operator|\n", False),
        ("alice", PRIVATE + b"None|physics,chemistry\n", None),
        ("root", PRIVATE, False),
        ("slurm", PRIVATE, False),
        ("alice", b"PrivateData            = usage,users\nNone|\n", False),
        ("alice", b"PrivateData            = none\nNone|\n", False),
        ("alice", b"None|\n", None),
        ("alice", b"\xff\xfe|||\n", None),
    ],
)
def test_the_database_s_private_data_says_whether_others_jobs_are_hidden(
    user: str, printed: bytes, expected: bool | None
) -> None:
    query = SlurmHistory().scope(user)
    assert query.argv[-1] == user
    assert query.parse(answered(printed, argv=query.argv)) == HistoryScope(hides_others=expected)
