"""What a pool would never run is refused before it is submitted."""

from __future__ import annotations

import msgspec
import pytest

from hpcdash.config.settings import PoolSettings
from hpcdash.domain.request import Request, SlotType
from hpcdash.errors import UsageError
from hpcdash.services.share.state import parse_state
from hpcdash.services.share.submission import refusal, with_pool
from tests.support.play_case import FIXTURES
from tests.support.records import for_each

POOL = parse_state(
    (FIXTURES / "slurm" / "22.05" / "pool" / "files" / "shared" / "lab" / "pool.json").read_bytes()
)
SETTINGS = PoolSettings("lab", 8)


@for_each(
    ("slots", "share", "user", "slot_type", "words"),
    [
        (3, "NORMAL", "maya", SlotType.CUDA, ""),
        (
            4,
            "NORMAL",
            "maya",
            SlotType.CUDA,
            "requests 4 nodes, but maya's quota at NORMAL is 3",
        ),
        (4, "HIGH", "amara", SlotType.CUDA, ""),
        (
            5,
            "HIGH",
            "amara",
            SlotType.CUDA,
            "requests 5 nodes, but amara's quota at any priority is 4",
        ),
        (
            1,
            "NORMAL",
            "maya",
            SlotType.CPU,
            "requests 0 GPUs, but a task in this pool needs at least 1",
        ),
    ],
)
def test_a_request_is_judged_as_its_coordinator_would(
    slots: int, share: str, user: str, slot_type: SlotType, words: str
) -> None:
    request = Request(command="train", name="new", slots=slots, slots_per_node=1, share=share)
    assert refusal(POOL, SETTINGS, request, user, slot_type, is_embedded=False) == words


def test_a_name_is_taken_until_its_task_has_ended() -> None:
    request = Request(command="train", name="sdxl-full", slots=1, slots_per_node=1, share="NORMAL")
    assert (
        refusal(POOL, SETTINGS, request, "chen", SlotType.CUDA, is_embedded=False)
        == "chen already has a task with this name: job 59"
    )
    ended = msgspec.structs.replace(POOL, tasks=())
    assert refusal(ended, SETTINGS, request, "chen", SlotType.CUDA, is_embedded=False) == ""


LAB = PoolSettings("lab", 8, queue="gpu", reservation="r1")
SPARE = PoolSettings("spare", 2, queue="cpu", qos="low")


@for_each(
    ("asked", "pools", "places"),
    [
        ({"share": "HIGH"}, (LAB,), ("gpu", "", "r1")),
        ({"pool": "spare"}, (LAB, SPARE), ("cpu", "low", "")),
        # What it asks for leaves one of them.
        ({"share": "HIGH", "queue": "cpu"}, (LAB, SPARE), ("cpu", "low", "")),
        ({"share": "HIGH"}, (), ("", "", "")),
    ],
)
def test_a_task_goes_where_its_pool_is(
    asked: dict[str, str], pools: tuple[PoolSettings, ...], places: tuple[str, ...]
) -> None:
    request = with_pool(Request(command="train", **asked), pools)
    assert (request.queue, request.qos, request.reservation) == places


def test_a_task_of_a_pool_that_is_a_list_of_nodes_names_it() -> None:
    named = PoolSettings("named", 2, node_list="n[1-2]")
    assert with_pool(Request(command="train", share="HIGH"), (named,)).pool == "named"
    assert with_pool(Request(command="train", share="HIGH"), (LAB,)).pool == ""


@for_each(
    ("asked", "words"),
    [
        ({"pool": "lob"}, r"pool: no \[share.lob\]"),
        ({"share": "HIGH"}, "share: several pools match"),
        ({"pool": "lab", "queue": "cpu"}, "queue: pool lab has gpu, not cpu"),
        # Nobody would release it.
        (
            {"share": "HIGH", "queue": "other", "qos": "low"},
            "share: no pool has queue other, qos low",
        ),
    ],
)
def test_a_task_without_a_place_is_refused(asked: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        with_pool(Request(command="train", **asked), (LAB, SPARE))
