"""A table leaves out the PBS server that all its jobs are of."""

from __future__ import annotations

import pyarrow as pa

from hpcdash.domain.columns import shared_beginning, shared_ending, shortened
from hpcdash.domain.job_ids import parse_server
from tests.support.records import for_each


@for_each(
    ("job_id", "server"),
    [
        ("12.pbs01", "pbs01"),
        ("12[].pbs01.example.org", "pbs01.example.org"),
        ("12[3].pbs01", "pbs01"),
        ("12[3-5,9].pbs01", "pbs01"),
        ("12", ""),
        ("12_3", ""),
        ("12_[3-5%1]", ""),
        ("12+1", ""),
        ("12.0", ""),
        ("", ""),
        ("x.pbs01", ""),
        ("12.pbs 01", ""),
    ],
)
def test_the_server_is_what_stands_after_the_first_dot(job_id: str, server: str) -> None:
    assert parse_server(job_id) == server


def test_a_server_all_ids_name_is_left_out() -> None:
    ids = pa.array(["12[].pbs01.x.org", "1.pbs01.x.org", "12[3-5].pbs01.x.org"])
    assert shortened(ids).to_pylist() == ["12[]", "1", "12[3-5]"]
    assert shared_ending(ids) == ".pbs01.x.org"


@for_each(
    "ids",
    [
        ["1.a", "2.b"],
        ["1.pbs01", "2"],
        ["1.pbs01", "2.x.pbs01"],
        ["1.pbs01", "2.x.pbs01", "3.other"],
        ["12", "12_3"],
        ["12.0"],
        ["1.pbs01", None],
        [],
    ],
    ids=str,
)
def test_ids_of_several_servers_or_of_none_stay_whole(ids: list[str | None]) -> None:
    assert shortened(pa.array(ids, pa.string())).to_pylist() == ids


@for_each(
    ("ids", "beginning"),
    [
        (["raysubmit_a1", "raysubmit_b"], "raysubmit_"),
        (["raysubmit_a1", "02000000"], ""),
        (["raysubmit_"], ""),
        (["12_3", "12_4"], ""),
        (["raysubmit_a", None], ""),
        ([], ""),
    ],
)
def test_a_word_that_all_ids_begin_with_is_left_out(ids: list[str | None], beginning: str) -> None:
    assert shared_beginning(pa.array(ids, pa.string())) == beginning


def test_chunks_and_dictionaries_are_columns_too() -> None:
    chunked = pa.chunked_array([["1.a"], [], ["2.a"]])
    assert shortened(chunked).to_pylist() == ["1", "2"]
