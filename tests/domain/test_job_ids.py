"""Job ids as people write them, and what is told of those that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.job_ids import (
    BadJobId,
    covers,
    holds_many,
    in_full,
    named_ids,
    parse_array_id,
    parse_job_id,
    parse_job_number,
    parse_server,
    parse_task_part,
    slurm_job_id,
    split_ids,
    with_tasks,
)
from tests.support.records import for_each


@for_each(
    ("text", "same"),
    [
        ("12", "12"),
        ("0012", "12"),
        ("12_3", "12_3"),
        ("12_[3]", "12_3"),
        ("12_[3-5,9%2]", "12_[3-5,9]"),
        ("12_[0-15:4]", "12_[0-12:4]"),
        ("65+1", "65+1"),
        ("12.pbs01", "12.pbs01"),
        ("0.pbs-1.uni.example", "0.pbs-1.uni.example"),
        ("12[]", "12[]"),
        ("12[].pbs01", "12[].pbs01"),
        ("12[3]", "12[3]"),
        ("12[3-5,9%2].pbs01", "12[3-5,9].pbs01"),
        ("123456789012.pbs01", "123456789012.pbs01"),
    ],
)
def test_an_id_is_read_without_its_throttle(text: str, same: str) -> None:
    assert str(parse_job_id(text)) == same


@for_each(
    ("text", "position"),
    [
        ("", 0),
        ("x12", 0),
        ("12;x", 2),
        ("12_", 3),
        ("12_x", 3),
        ("12_3-5", 4),
        ("12_[3-", 6),
        ("12_[3,x]", 6),
        ("12_[5-3]", 4),
        ("12_[1,...]", 9),
        ("12+", 3),
        ("12.0", 2),
        ("12[", 3),
        ("12[x]", 3),
        ("12[3", 4),
        ("12[3]x", 5),
        ("12[].", 4),
        ("12.-x", 2),
        ("12.a b", 4),
        ("12_3.pbs01", 4),
        ("12 13", 2),
        ("1234567890123", 0),
    ],
)
def test_what_is_no_id_is_refused_with_the_place(text: str, position: int) -> None:
    with pytest.raises(BadJobId) as refused:
        parse_job_id(text)
    assert refused.value.position == position
    assert repr(text) in str(refused.value)


@given(st.text(alphabet="0123456789_[],-:%+. x\x1b", max_size=20))
def test_any_text_is_an_id_or_refused_at_a_place_in_it(text: str) -> None:
    place = None
    try:
        job = parse_job_id(text)
    except BadJobId as error:
        place = error.position
    if place is None:
        assert parse_job_id(str(job)) == job
    else:
        assert 0 <= place <= len(text)


def test_a_list_is_split_at_commas_outside_of_brackets() -> None:
    assert split_ids("88_[3-5,9],90, 91_2\n92") == ["88_[3-5,9]", "90", "91_2", "92"]
    assert split_ids("88_[3,4") == ["88_[3,4"]


@for_each(
    ("text", "ids"),
    [
        ("12, 13_[1,2]\n14[].srv", ["12", "13_[1,2]", "14[].srv"]),
        ("raysubmit_a1,raysubmit_b2 01000000", ["raysubmit_a1", "raysubmit_b2", "01000000"]),
        ("a b c", ["a b c"]),
        ("lr=0.1,bs=32,", ["lr=0.1,bs=32,"]),
        ("raysubmit_a1 again", ["raysubmit_a1 again"]),
        ("12 abc", ["12 abc"]),
    ],
)
def test_a_list_is_of_ids_that_a_scheduler_made_and_any_other_text_is_one_id(
    text: str, ids: list[str]
) -> None:
    assert named_ids(text) == ids


def test_digits_that_no_scheduler_counts_to_are_no_number() -> None:
    assert [parse_job_number(text) for text in ("12_3", "999999999999.srv", "9" * 5000, "x")] == [
        "12",
        "9" * 12,
        "",
        "",
    ]


@for_each("text", [",", " , ", "1,", "1, ", ",2", "1,,2", "1, ,2", "88_[3,4],"])
def test_a_list_in_which_an_id_is_missing_is_refused(text: str) -> None:
    for split in (split_ids, named_ids):
        with pytest.raises(BadJobId, match="missing"):
            split(text)


@for_each(
    ("one", "other", "does"),
    [
        ("12", "12_3", True),
        ("12", "12+1", True),
        ("12_3", "12", False),
        ("12_[3-5]", "12_[5-9]", True),
        ("12_[3-5]", "12_6", False),
        ("12+1", "12+2", False),
        ("12", "13", False),
    ],
)
def test_an_arrays_number_covers_its_tasks(one: str, other: str, does: bool) -> None:
    assert covers(parse_job_id(one), parse_job_id(other)) is does


@for_each(
    ("job_id", "array_id", "task", "many", "number"),
    [
        ("12", "12", "", False, "12"),
        ("12_3", "12", "3", False, "12"),
        ("12_[3-5%1]", "12", "[3-5%1]", True, "12"),
        ("65+1", "65+1", "", False, "65"),
        ("12.pbs01", "12.pbs01", "", False, "12"),
        ("12[].pbs01", "12[].pbs01", "", True, "12"),
        ("12[3].pbs01", "12[].pbs01", "3", False, "12"),
        ("12[3-5].pbs01", "12[].pbs01", "3-5", True, "12"),
        ("x", "x", "", False, ""),
    ],
)
def test_a_rows_id_tells_its_array_and_tasks(
    job_id: str, array_id: str, task: str, many: bool, number: str
) -> None:
    assert parse_array_id(job_id) == array_id
    assert parse_task_part(job_id) == task
    assert holds_many(job_id) is many
    assert parse_job_number(job_id) == number


@for_each(
    ("array_id", "tasks", "job_id"),
    [
        ("12", "3", "12_3"),
        ("12", "3-5%1", "12_[3-5]"),
        ("12[].pbs01", "3", "12[3].pbs01"),
        ("12[].pbs01", "3-5%2", "12[3-5].pbs01"),
        ("12[]", "1,3", "12[1,3]"),
    ],
)
def test_tasks_of_an_array_are_named_in_the_arrays_manner(
    array_id: str, tasks: str, job_id: str
) -> None:
    assert with_tasks(array_id, parse_tasks(tasks)) == job_id


@for_each(
    ("wanted", "other", "is_covered"),
    [
        ("12", "12.pbs01", True),
        ("12", "12[3].pbs01", True),
        ("12[]", "12[3].pbs01", True),
        ("12[3]", "12[3].pbs01", True),
        ("12[3]", "12[4].pbs01", False),
        ("12[3-5]", "12[4].pbs01", True),
        ("12.pbs01", "12.pbs02", False),
        ("12.pbs01", "12.pbs01.uni.example", True),
        ("12[3]", "12[].pbs01", False),
        ("13", "12.pbs01", False),
    ],
)
def test_a_server_left_out_is_any_servers(wanted: str, other: str, is_covered: bool) -> None:
    assert covers(parse_job_id(wanted), parse_job_id(other)) is is_covered


@for_each(
    ("typed", "row_id", "array_id", "in_the_rows_manner"),
    [
        ("12", "12.pbs01", None, "12.pbs01"),
        ("12", "12[3].pbs01", "12[].pbs01", "12[].pbs01"),
        ("12[7]", "12[6-10].pbs01", "12[].pbs01", "12[7].pbs01"),
        ("12_7", "12_[6-10%1]", "12", "12_7"),
        ("12", "12_3", "12", "12"),
        ("13", "12.pbs01", None, "13"),
        ("x", "12.pbs01", None, "x"),
    ],
)
def test_an_id_that_was_typed_is_written_as_its_rows_are(
    typed: str, row_id: str, array_id: str | None, in_the_rows_manner: str
) -> None:
    assert in_full(typed, row_id, array_id) == in_the_rows_manner


def test_a_server_s_port_is_part_of_its_name() -> None:
    assert str(parse_job_id("12[3].srv.site:15101")) == "12[3].srv.site:15101"
    assert parse_server("12[].srv:15101") == "srv:15101"
    with pytest.raises(BadJobId):
        parse_job_id("12.srv:x")


def test_slurm_takes_brackets_and_refuses_a_server() -> None:
    assert str(slurm_job_id("12[3-5]")) == "12_[3-5]"
    assert str(slurm_job_id("12[]")) == "12"
    with pytest.raises(BadJobId) as refused:
        slurm_job_id("12.pbs01")
    assert refused.value.position == 2
