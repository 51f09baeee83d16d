from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.columns import STATE_ORDER, column_text, match_text, row_numbers, sort_rows
from hpcdash.domain.schema import JOBS, NODES, WORD
from hpcdash.domain.states import ACTIVE, JobState, NodeState


def places(
    column: list[Any], key: str, descending: bool = False, schema: pa.Schema = JOBS
) -> list[int]:
    table = pa.table(
        {key: pa.array(column, schema.field(key).type), "place": row_numbers(len(column))}
    )
    found: list[int] = sort_rows(table, key, descending)["place"].to_pylist()
    return found


def test_the_active_states_come_first_and_every_state_has_a_place() -> None:
    assert set(STATE_ORDER[: len(ACTIVE)]) == ACTIVE
    assert set(STATE_ORDER) == {*JobState, *NodeState}
    assert len(set(STATE_ORDER)) == len(STATE_ORDER)


def test_states_go_from_running_to_ended_with_null_last_either_way() -> None:
    states = ["completed", "held", None, "running", "pending", "failed"]
    assert places(states, "state") == [3, 4, 1, 5, 0, 2]
    assert places(states, "state", descending=True) == [0, 5, 1, 4, 3, 2]


def test_names_go_by_their_numbers_and_without_regard_to_case() -> None:
    assert places(["n10", "N9", "n01", None, "a"], "name", schema=NODES) == [4, 2, 1, 0, 3]
    assert places(["b", "A", "a", "B"], "user") == [1, 2, 0, 3]


def test_ids_go_by_job_and_task_number() -> None:
    ids = ["100", "99_10", "99_9", "99_[11-20]", "odd"]
    columns = {"id": ids, "_number": [100, 99, 99, 99, None], "_task": [None, 10, 9, 11, None]}
    table = pa.table(
        {name: pa.array(values, JOBS.field(name).type) for name, values in columns.items()}
    )
    assert sort_rows(table, "id")["id"].to_pylist() == ["99_9", "99_10", "99_[11-20]", "100", "odd"]
    assert sort_rows(table, "id", descending=True)["id"].to_pylist() == [
        "100",
        "99_[11-20]",
        "99_10",
        "99_9",
        "odd",
    ]


@pytest.mark.parametrize("descending", [False, True])
@given(values=st.lists(st.none() | st.integers(0, 4)))
def test_sorting_is_stable_with_nulls_last(descending: bool, values: list[int | None]) -> None:
    known = [place for place, value in enumerate(values) if value is not None]
    expected = sorted(known, key=lambda place: values[place] or 0, reverse=False)
    if descending:
        expected = sorted(known, key=lambda place: -(values[place] or 0))
    expected += [place for place, value in enumerate(values) if value is None]
    assert places(values, "cpus", descending) == expected
    words = [None if value is None else "abcde"[value] for value in values]
    assert places(words, "user", descending) == expected
    assert places(words, "name", descending) == expected


def test_lists_and_numbers_with_fractions_are_sorted_too() -> None:
    assert places([["b"], ["a", "z"], None, []], "queues", schema=NODES) == [3, 1, 0, 2]
    assert places([2.5, None, 0.5], "load", schema=NODES) == [2, 0, 1]


def test_a_column_that_is_not_there_cannot_be_sorted_by() -> None:
    with pytest.raises(KeyError):
        sort_rows(JOBS.empty_table(), "colour")


def test_words_are_judged_once_each_and_null_is_false() -> None:
    seen: list[list[str]] = []

    def is_a(values: pa.Array) -> pa.Array:
        seen.append(values.to_pylist())
        return pc.equal(values, "a")

    column = pa.array(["a", "b", None, "a"]).dictionary_encode().cast(WORD)
    assert match_text(column, is_a).to_pylist() == [True, False, False, True]
    assert seen == [["a", "b"]]
    assert match_text(
        pa.chunked_array([column.slice(1, 2), column.slice(3)]), is_a
    ).to_pylist() == [
        False,
        False,
        True,
    ]


def test_one_element_of_a_list_is_enough() -> None:
    column = pa.array([["b", "a", "a"], [], None, ["b"], ["a"]], pa.list_(pa.string()))
    assert match_text(column, lambda values: pc.equal(values, "a")).to_pylist() == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert match_text(column.slice(3), lambda values: pc.equal(values, "a")).to_pylist() == [
        False,
        True,
    ]


def test_every_kind_of_column_has_a_text() -> None:
    assert column_text(pa.array([["a", "b"], None])).to_pylist() == ["a,b", None]
    assert column_text(pa.array(["a", None]).dictionary_encode()).to_pylist() == ["a", None]
    assert column_text(pa.array([1, None])).to_pylist() == ["1", None]
    assert column_text(pa.chunked_array([], pa.string())).to_pylist() == []
