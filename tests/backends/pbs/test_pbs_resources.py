"""Each row of the table from slots to PBS's select, and what of a person's own resources stays."""

from __future__ import annotations

from typing import Any

import pytest

from hpcdash.backends.pbs.script import resource_directives as pbs_resources
from hpcdash.domain.offers import CpuShare
from hpcdash.domain.request import Launcher, Request, Site, SlotType
from hpcdash.errors import UsageError
from tests.support.records import for_each

CUDA, ROCM, CPU = SlotType.CUDA, SlotType.ROCM, SlotType.CPU
GRES, NONE = Site(), Site(gres_supported=False)


@for_each(
    ("slot_type", "site", "slots", "per_node", "wanted"),
    [
        pytest.param(
            CUDA, GRES, 8, 4, "-l select=2:ngpus=4 -l place=scatter", id="cuda gres S=8 P=4"
        ),
        pytest.param(CUDA, GRES, 4, 4, "-l select=1:ngpus=4", id="cuda gres S=4 P=4"),
        pytest.param(
            ROCM, GRES, 100, 16, "-l select=7:ngpus=16 -l place=scatter", id="rocm gres S=100 P=16"
        ),
        pytest.param(CUDA, GRES, 3, None, "-l select=3:ngpus=1", id="cuda gres S=3"),
        pytest.param(CUDA, NONE, 8, 4, "-l select=2 -l place=scatter", id="cuda none S=8 P=4"),
        pytest.param(CPU, GRES, 8, 4, "-l select=2:ncpus=4 -l place=scatter", id="cpu S=8 P=4"),
        pytest.param(CPU, NONE, 8, None, "-l select=8:ncpus=1", id="cpu S=8"),
        pytest.param(CUDA, GRES, 0, 4, "-l select=1:ncpus=1", id="cuda S=0"),
        pytest.param(CPU, GRES, 0, 4, "-l select=1:ncpus=1", id="cpu S=0"),
    ],
)
def test_slots_become_a_select(
    slot_type: SlotType, site: Site, slots: int, per_node: int | None, wanted: str
) -> None:
    request = Request(slots=slots, slots_per_node=per_node, site=site)
    assert " ".join(pbs_resources(request, slot_type).options) == wanted


@for_each(
    ("slot_type", "memory_bytes", "wanted"),
    [
        pytest.param(CUDA, 64 << 30, "-l select=2:ngpus=4:mem=64gb", id="cuda gres S=8 P=4 64 GiB"),
        pytest.param(
            CUDA, 1536 << 20, "-l select=2:ngpus=4:mem=1536mb", id="cuda gres S=8 P=4 1.5 GiB"
        ),
        pytest.param(CPU, 1000, "-l select=2:ncpus=4:mem=1kb", id="cpu S=8 P=4 1000 B"),
    ],
)
def test_memory_is_of_each_chunk(slot_type: SlotType, memory_bytes: int, wanted: str) -> None:
    request = Request(slots=8, slots_per_node=4, memory_bytes=memory_bytes)
    assert pbs_resources(request, slot_type).options[0] == wanted


@for_each("resource", ["ncpus=4", "ngpus=1", "mem=4gb", "nodes=2:ppn=4", "vnode=n1", "host=n1"])
def test_what_pbs_takes_in_a_select_alone_is_refused_beside_it(resource: str) -> None:
    with pytest.raises(UsageError, match="-l " + resource.partition("=")[0]):
        pbs_resources(Request(slots=4, extra_args=(f"-l {resource}",)), CUDA)


def test_of_a_person_s_own_select_and_place_what_is_not_ours_stays() -> None:
    extra = ("-l select=2:ngpus=4:mem=4gb", "-l place=scatter:shared,walltime=1:00:00")
    asked = pbs_resources(Request(slots=8, slots_per_node=4, extra_args=extra), CUDA)
    assert asked.options == (
        "-l select=2:ngpus=4:mem=4gb",
        "-l place=scatter:shared",
        "-l walltime=1:00:00",
    )
    assert not [words for words in asked.warnings if "select" in words]


@for_each(
    ("given", "per_node", "wanted"),
    [
        ("scatter:excl", 4, "scatter:excl"),
        ("excl", 4, "scatter:excl"),
        ("group=rack", 4, "scatter:group=rack"),
        ("scatter:exclhost:group=rack", 4, "scatter:exclhost:group=rack"),
        ("pack", 8, "pack"),
        ("pack:excl", None, "pack:excl"),
        ("vscatter", None, "vscatter"),
        ("free:shared:group=rack", None, "free:shared:group=rack"),
    ],
)
def test_a_place_that_a_person_gave_stays_whole(
    given: str, per_node: int | None, wanted: str
) -> None:
    """Each option and its value may be two items, as they are two words of a command line."""
    for more in (
        {"extra_args": (f"-l place={given}",)},
        {"extra_args": ("-l", f"place={given}")},
        {"place": given},
    ):
        asked = pbs_resources(Request(slots=8, slots_per_node=per_node, **more), CUDA)  # type: ignore[arg-type]
        assert asked.options[1:] == (f"-l place={wanted}",)


@for_each("word", ["pack", "free", "vscatter", "spread"])
def test_a_place_that_gives_fewer_nodes_than_asked_for_is_refused_by_name(word: str) -> None:
    with pytest.raises(UsageError, match=rf"place={word}:excl in extra_args: .*{word}"):
        pbs_resources(
            Request(slots=8, slots_per_node=4, extra_args=(f"-l place={word}:excl",)), CUDA
        )
    with pytest.raises(UsageError, match=rf"place: .*{word}"):
        pbs_resources(Request(slots=8, slots_per_node=4, place=f"{word}:excl"), CUDA)


NODES_SHARE, QUEUES_OWN = CpuShare(8, "a node's share"), CpuShare(None, "the queue's")


@for_each(
    ("fields", "share", "wanted", "told"),
    [
        ({}, NODES_SHARE, "2:ngpus=4:ncpus=32", ["a node's share"]),
        ({"cpus_per_gpu": 2}, NODES_SHARE, "2:ngpus=4:ncpus=8", []),
        ({"cpus_per_gpu": 2}, None, "2:ngpus=4:ncpus=8", []),
        ({"memory_bytes": 1 << 30}, NODES_SHARE, "2:ngpus=4:ncpus=32:mem=1gb", ["a node's share"]),
        ({}, QUEUES_OWN, "2:ngpus=4", ["the queue's"]),
        ({"extra_args": ("-l select=1:ncpus=3",)}, NODES_SHARE, "2:ngpus=4:ncpus=3", []),
        (
            {"launcher": Launcher.TORCHRUN},
            NODES_SHARE,
            "2:ngpus=4:ncpus=32:ompthreads=8",
            ["a node's share"],
        ),
        ({"launcher": Launcher.TORCHRUN}, None, "2:ngpus=4", ["no CPUs requested"]),
        (
            {
                "launcher": Launcher.ACCELERATE,
                "cpus_per_gpu": 2,
                "extra_args": ("-l select=1:ompthreads=1",),
            },
            None,
            "2:ngpus=4:ncpus=8:ompthreads=1",
            [],
        ),
        ({"site": NONE}, NODES_SHARE, "2", []),
        ({"site": NONE, "cpus_per_gpu": 2}, NODES_SHARE, "2:ncpus=8", []),
        ({"slot_type": CPU, "cpus_per_gpu": 2}, NODES_SHARE, "2:ncpus=4", []),
    ],
    ids=lambda value: "" if isinstance(value, dict | list | CpuShare) else value,
)
def test_cpus_go_with_gpus(
    fields: dict[str, Any], share: CpuShare | None, wanted: str, told: list[str]
) -> None:
    request = Request(slots=8, slots_per_node=4, **fields)
    asked = pbs_resources(request, request.slot_type or CUDA, share)
    assert asked.options[0] == f"-l select={wanted}"
    said = [one for one in asked.warnings if "CUDA_VISIBLE_DEVICES" not in one]
    assert [one[: len(words)] for one, words in zip(said, told, strict=True)] == told


def test_two_places_are_refused() -> None:
    with pytest.raises(UsageError, match="set twice"):
        pbs_resources(Request(slots=8, extra_args=("-l place=excl", "-l place=shared")), CUDA)


def test_slots_that_are_not_counted_a_node_may_lie_together() -> None:
    """With scatter 8 of them would wait for 8 hosts."""
    assert pbs_resources(Request(slots=8), CUDA).options == ("-l select=8:ngpus=1",)


@for_each("select", ["2:ngpus=4", "4:ngpus=4", "2:mem=4gb"])
def test_what_the_slots_say_in_the_place_of_a_person_s_own_select_is_told(select: str) -> None:
    request = Request(
        slots=8, slots_per_node=2, cpus_per_gpu=1, extra_args=(f"-l select={select}",)
    )
    (told,) = pbs_resources(request, CUDA).warnings
    assert f"select={select}" in told


def test_a_value_with_a_blank_stays_one_word() -> None:
    (_, asked) = pbs_resources(Request(slots=1, extra_args=("-l 'software=a b'",)), CUDA).options
    assert asked == '-l "software=a b"'


def test_of_cpu_slots_a_person_s_gpus_stay_and_their_cpus_do_not() -> None:
    asked = pbs_resources(
        Request(slots=4, slots_per_node=4, extra_args=("-lselect=1:ncpus=64:ngpus=1",)), CPU
    )
    assert asked.options == ("-l select=1:ncpus=4:ngpus=1",)


def test_chunks_of_several_kinds_are_refused() -> None:
    with pytest.raises(UsageError, match="different chunks"):
        pbs_resources(Request(slots=4, extra_args=("-l select=1:ncpus=1+2:ngpus=1",)), CUDA)


def test_what_a_person_should_know_is_told() -> None:
    no_gpus = pbs_resources(Request(slots=8, slots_per_node=4, site=NONE), CUDA).warnings
    assert len(no_gpus) == 1
    assert "CUDA_VISIBLE_DEVICES" in no_gpus[0]
    assert pbs_resources(Request(slots=100, slots_per_node=32, cpus_per_gpu=1), CUDA).warnings == (
        "4 nodes × 32 GPUs = 128: 28 more than the 100 requested",
    )
    (typed,) = pbs_resources(
        Request(slots=8, slots_per_node=4, cpus_per_gpu=1, gpu_type="a100"), CUDA
    ).warnings
    assert "a100" in typed
    extra = ("-l select=1:gpu_model=a100",)
    named = Request(slots=8, slots_per_node=4, cpus_per_gpu=1, gpu_type="a100", extra_args=extra)
    assert pbs_resources(named, CUDA).warnings == ()
