"""Sizes of jobs to find a place for."""

from __future__ import annotations

import pytest

from hpcdash.errors import UsageError
from hpcdash.services.submit.shapes import job_request, parse_shape
from tests.support.records import for_each


@for_each(
    ("text", "slots", "share"),
    [
        ("--gpus 4", 4, None),
        ("gpus=4 nodes=2", 4, 2),
        ("gpus=5 nodes=2", 5, 3),
        ("nodes=3", 3, 1),
    ],
)
def test_a_size_has_slots_and_their_number_per_node(
    text: str, slots: int, share: int | None
) -> None:
    request = parse_shape(text).request
    assert request is not None
    assert (request.slots, request.slots_per_node) == (slots, share)


@for_each(
    ("text", "message", "step"),
    [
        (
            "gpus=4 nodes=3",
            "4 GPUs cannot be spread over 3 nodes",
            "2 on each are 6, 1 on each 3.",
        ),
        (
            "cpus=8 nodes=5",
            "8 CPUs cannot be spread over 5 nodes",
            "2 on each are 10, 1 on each 5.",
        ),
        ("gpus=1 nodes=2", "nodes: 2 are more than the GPUs, 1", ""),
    ],
)
def test_a_size_that_no_request_has_is_refused(text: str, message: str, step: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        parse_shape(text)
    assert refused.value.next_step == step


def test_a_job_that_is_unevenly_spread_counts_with_its_largest_share_on_each_node() -> None:
    row = {"id": "7", "nodes": 3, "gpus": 4, "cpus": 12, "limit_seconds": 60, "memory_bytes": None}
    request = job_request(row)
    assert (request.slots, request.slots_per_node) == (6, 2)
    even = job_request({**row, "nodes": 2})
    assert (even.slots, even.slots_per_node) == (4, 2)
