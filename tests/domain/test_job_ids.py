"""Job ids as people write them, and what is told of those that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.job_ids import BadJobId, covers, parse_job_id, split_ids


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("12", "12"),
        ("0012", "12"),
        ("12_3", "12_3"),
        ("12_[3]", "12_3"),
        ("12_[3-5,9%2]", "12_[3-5,9]"),
        ("12_[0-15:4]", "12_[0-12:4]"),
        ("65+1", "65+1"),
    ],
)
def test_an_id_is_read_without_its_throttle(text: str, same: str) -> None:
    assert str(parse_job_id(text)) == same


@pytest.mark.parametrize(
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
        ("12 13", 2),
        ("12345678901", 0),
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
    assert split_ids(" , ") == []
    assert split_ids("88_[3,4") == ["88_[3,4"]


@pytest.mark.parametrize(
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
