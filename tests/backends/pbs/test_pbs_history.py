"""What `qstat -x` says of jobs that ended."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.base import HistoryScope
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.history import PbsHistory, parse_history, parse_history_native
from hpcdash.backends.pbs.listing import Want
from hpcdash.backends.queries import ParsedTable
from hpcdash.domain import schema
from hpcdash.errors import AccountingUnavailable, HpcdashError, NoSuchJob
from hpcdash.transport.base import CommandResult
from tests.support.pbs import SCENES
from tests.support.pbs.job_text import (
    ARRAY,
    CLOCK,
    ENDED_JOB,
    JOB,
    TOKEN,
    WAITING_JOB,
    answered,
    dsv,
    fetch_rows,
    question,
)
from tests.support.records import for_each

DAY = 86400
NO_HISTORY = b"qstat: PBS is not configured to maintain job history \n"


def past(*lines: bytes, since_seconds: int = DAY, job_ids: tuple[str, ...] = ()) -> ParsedTable:
    asked = question(Want.NAMED if job_ids else Want.ENDED, Dialect.OPENPBS, *job_ids)
    return parse_history(answered(*lines), question=asked, since_seconds=since_seconds)


def ids(table: ParsedTable) -> list[Any]:
    return table.table["id"].to_pylist()


def test_what_ended_last_comes_first() -> None:
    early = ENDED_JOB | {"obittime": "Sat Nov 21 04:15:00 2026"}
    assert ids(past(dsv("1.s", early), dsv("2.s", ENDED_JOB))) == ["2.s", "1.s"]


def test_what_lives_is_no_history() -> None:
    assert ids(past(dsv("1.s", JOB), dsv("2.s", WAITING_JOB), dsv("3.s", ENDED_JOB))) == ["3.s"]


def test_a_job_that_moved_to_another_server_has_not_ended() -> None:
    assert ids(past(dsv("1.s", ENDED_JOB | {"job_state": "M", "substate": "94"}))) == []


def test_what_went_into_the_history_since_then_is_taken_though_it_ended_before() -> None:
    # It ended ten minutes ago; its files were copied for as long.
    assert ids(past(dsv("1.s", ENDED_JOB), since_seconds=60)) == ["1.s"]


def test_jobs_asked_for_by_id_come_whenever_they_ended_and_even_if_they_live() -> None:
    long_ago = ENDED_JOB | {"obittime": "Sat Nov 21 04:15:00 2020"}
    read = past(dsv("1.s", long_ago), dsv("2.s", JOB), job_ids=("1", "2"), since_seconds=0)
    assert set(ids(read)) == {"1.s", "2.s"}


def test_the_tasks_that_ended_of_an_array_that_lives_on_are_history() -> None:
    subjob = ENDED_JOB | {"job_state": "X", "array_id": "14[].s"}
    read = past(
        dsv("14[].s", ARRAY),
        dsv("14[1].s", subjob),
        dsv("14[2].s", subjob | {"substate": "93", "Exit_status": "7"}),
    )
    assert [(row["id"], row["state"], row["exit_code"]) for row in fetch_rows(read)] == [
        ("14[1].s", "completed", 0),
        ("14[2].s", "failed", 7),
    ]


def test_an_ended_array_is_one_row_where_its_tasks_were_not_listed() -> None:
    ended = ARRAY | {"job_state": "F", "substate": "92", "obittime": "Sat Nov 21 04:20:00 2026"}
    (only,) = fetch_rows(past(dsv("14[].s", ended)))
    assert (only["id"], only["array_task"], only["_tasks"]) == ("14[].s", "1-10", 10)


@pytest.mark.parametrize("job_ids", [(), ("12",)])
def test_a_server_without_a_history_says_so(job_ids: tuple[str, ...]) -> None:
    asked = question(Want.NAMED if job_ids else Want.ENDED, Dialect.OPENPBS, *job_ids)
    with pytest.raises(AccountingUnavailable) as caught:
        parse_history(answered(stderr=NO_HISTORY), question=asked, since_seconds=DAY)
    assert "job_history_enable" in caught.value.message


def test_torque_s_history_is_what_it_still_lists() -> None:
    raw = (SCENES.parents[1] / "torque-6.1" / "printed" / "qstat-x-t.xml").read_bytes()
    answer = CommandResult((), 0, b"Clock: 1772616600\nOwner: maya\n" + raw, b"", 0.1)
    asked = question(Want.ENDED, Dialect.TORQUE)
    read = parse_history(answer, question=asked, since_seconds=200)
    assert [job_id.partition(".")[0] for job_id in ids(read)] == [
        "1037",
        "1036",
        "1035",
        "1034",
        "1033",
        "1032",
    ]


def test_the_recorded_history_ends_in_order() -> None:
    raw = (SCENES / "finished" / "ended.dsv").read_bytes().replace(b"@@", TOKEN.encode())
    rows = fetch_rows(past(raw, since_seconds=7 * DAY))
    ends = [row["ends_at"] for row in rows]
    assert ends == sorted(ends, reverse=True)
    assert len(rows) == raw.count(b"\n")


def test_everything_that_is_said_of_a_job_is_in_its_order() -> None:
    asked = question(Want.WHOLE, Dialect.OPENPBS, "1")
    native = parse_history_native(answered(dsv("1.s", ENDED_JOB)), question=asked)
    assert list(native.items()) == [("Job Id", "1.s"), *ENDED_JOB.items()]


def test_a_job_no_history_knows_is_no_such_job() -> None:
    query = PbsHistory(Dialect.OPENPBS).native("1")
    with pytest.raises(NoSuchJob):
        query.parse(answered())
    with pytest.raises(AccountingUnavailable):
        query.parse(answered(stderr=NO_HISTORY))


@given(st.data())
def test_no_answer_breaks_the_reader(data: st.DataObject) -> None:
    ended = ARRAY | {"job_state": "F", "substate": "92"}
    raw = bytearray(
        dsv("1.s", ENDED_JOB)
        + dsv("14[].s", ended)
        + dsv("15[2].s", ENDED_JOB | {"job_state": "X"})
    )
    for _ in range(data.draw(st.integers(0, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        read = past(cut, since_seconds=data.draw(st.integers(0, CLOCK)))
    except HpcdashError:
        return
    assert read.table.schema == schema.JOBS


def test_a_long_history_is_read_without_a_copy_of_what_was_printed() -> None:
    asked = question(Want.ENDED, Dialect.OPENPBS)
    answer = answered(*(dsv(str(number), ENDED_JOB) for number in range(1, 20_001)))
    tracemalloc.start()
    try:
        parsed = parse_history(answer, question=asked, since_seconds=DAY)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parsed.table.num_rows == 20_000
    assert peak_bytes < len(answer.stdout) / 2


# As OpenPBS 23.06.06 printed it.
SERVER = (
    "Server: "
    "pbs01{0}server_state=Active{0}managers=root@*,adm@pbs01{0}operators=root@*{0}query_other_jobs={1}\n"
)


@for_each(
    ("user", "said", "expected"),
    [
        ("alice", "True", False),
        ("alice", "False", True),
        ("adm", "False", False),
        ("root", "False", None),
        ("root", "True", False),
        ("alice", "", None),
    ],
)
def test_the_server_says_whether_others_jobs_are_hidden(
    user: str, said: str, expected: bool | None
) -> None:
    query = PbsHistory(Dialect.OPENPBS).scope(user)
    assert query is not None
    printed = SERVER.format(query.argv[-1], said).encode()
    assert query.parse(CommandResult(query.argv, 0, printed, b"", 0.1)).hides_others is expected
    of_torque = PbsHistory(Dialect.TORQUE).scope(user)
    assert of_torque is not None
    text = printed.replace(query.argv[-1].encode(), b"\n    ").replace(b"=", b" = ")
    assert (
        of_torque.parse(CommandResult(of_torque.argv, 0, text, b"", 0.1)).hides_others is expected
    )


@for_each(
    ("said", "expected"),
    [
        ("job_history_enable = True\n    job_history_duration = 72:00:00", 3 * 86_400),
        # What nobody set is two weeks.
        ("job_history_enable = True", 14 * 86_400),
        ("job_history_enable = False", None),
        ("keep_completed = 300", 300),
        ("server_state = Active", None),
    ],
)
def test_the_server_says_how_long_it_keeps_ended_jobs(said: str, expected: int | None) -> None:
    query = PbsHistory(Dialect.TORQUE).scope("alice")
    assert query is not None
    answer = CommandResult(query.argv, 0, f"Server: pbs01\n    {said}\n".encode(), b"", 0.1)
    assert query.parse(answer) == HistoryScope(retention_seconds=expected)
