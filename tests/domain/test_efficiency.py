"""What a job used of what it was given, and what to ask for next time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcdash.backends.job_detail import Usage
from hpcdash.domain.efficiency import NOT_ACCOUNTED, advice, meters
from tests.support.records import for_each

GIB = 1 << 30
# An hour on 64 cores with 256 GiB, of which 12.4 cores and 41 GiB were used.
HOUR = Usage(
    cpu_seconds=12.4 * 3600,
    cpus=64,
    elapsed_seconds=3600,
    memory_peak_bytes=41 * GIB,
    requested_memory_bytes=256 * GIB,
)


def words(usage: Usage, nodes: int = 1) -> dict[str, str]:
    return {meter.label: meter.text for meter in meters(usage, nodes)}


def test_cpu_and_memory_are_parts_of_what_was_asked_for() -> None:
    cpu, memory = meters(HOUR)
    assert (cpu.text, memory.text) == ("12.4/64 cores (19%)", "peak 41G of 256G (16%)")
    assert (cpu.fraction, memory.fraction) == (pytest.approx(0.19375), pytest.approx(41 / 256))


def test_on_several_nodes_memory_is_that_of_one() -> None:
    assert "per node" in words(HOUR, nodes=2)["memory"]


def test_what_is_not_known_is_not_nought() -> None:
    unknown = Usage(cpus=8, elapsed_seconds=100, gpus=2)
    assert words(unknown) == {"CPU": NOT_ACCOUNTED, "memory": NOT_ACCOUNTED, "GPU": NOT_ACCOUNTED}
    assert all(meter.fraction is None for meter in meters(unknown))


def test_gpus_are_spoken_of_where_there_are_some() -> None:
    assert "GPU" not in words(replace(HOUR, gpus=0))
    assert words(replace(HOUR, gpus=4, gpu_percent=87.2))["GPU"] == "87% busy (4 GPUs)"


def test_hardly_any_is_more_than_none() -> None:
    assert words(replace(HOUR, cpu_seconds=20.0))["CPU"] == "< 0.1/64 cores (< 1%)"
    assert words(replace(HOUR, cpu_seconds=0.0))["CPU"] == "0/64 cores (0%)"


def test_a_job_that_asked_for_far_more_memory_is_told_so() -> None:
    assert (
        advice(HOUR, "completed")
        == "requested 256G, used at most 41G: a request of 52G may start sooner"
    )


@for_each("state", ["running", "failed", "cancelled", "timeout"])
def test_a_job_that_did_not_end_by_itself_might_have_used_more(state: str) -> None:
    busy = replace(HOUR, cpu_seconds=60.0 * 3600)
    assert advice(busy, state) == ""


def test_a_little_memory_is_not_worth_a_word() -> None:
    little = replace(
        HOUR, cpu_seconds=60.0 * 3600, memory_peak_bytes=GIB // 10, requested_memory_bytes=2 * GIB
    )
    assert advice(little, "completed") == ""


def test_idle_cores_are_spoken_of_while_it_runs() -> None:
    assert advice(HOUR, "running").startswith("keeps 12.4 of 64 cores busy")
    assert advice(replace(HOUR, cpus=1, cpu_seconds=10.0), "running") == ""


def test_a_young_job_gets_no_advice() -> None:
    assert advice(replace(HOUR, elapsed_seconds=200, cpu_seconds=1.0), "running") == ""


def test_a_job_out_of_memory_is_told_to_ask_for_more_however_young() -> None:
    assert "request more memory" in advice(replace(HOUR, elapsed_seconds=3), "out_of_memory")


def test_gpus_that_did_nothing_come_first() -> None:
    assert "the 4 GPUs were nearly idle" in advice(
        replace(HOUR, gpus=4, gpu_percent=0.5), "running"
    )
    assert "the GPU was nearly idle" in advice(replace(HOUR, gpus=1, gpu_percent=0.5), "running")
    assert "GPU" not in advice(replace(HOUR, gpus=4, gpu_percent=None), "running")
