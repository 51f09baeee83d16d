"""Which queue a request goes to where none is named."""

from __future__ import annotations

import pytest

from hpcdash.config.queue_defaults import Pool, with_queue_defaults
from hpcdash.domain.request import Request, Site, SlotType
from tests.support.records import for_each

CPU, CPU_DEFAULT = Pool("cpu"), Pool("cpu", is_default=True)
GPU, GPU_DEFAULT, MORE = (
    Pool("gpu", has_gpus=True),
    Pool("gpu", is_default=True, has_gpus=True),
    Pool("h", has_gpus=True),
)


@for_each(
    ("pools", "for_gpus", "for_cpus"),
    [
        pytest.param([MORE, GPU_DEFAULT], "gpu", "gpu", id="the default one has GPUs"),
        pytest.param([CPU_DEFAULT, GPU, MORE], "gpu", "cpu", id="another one has GPUs"),
        pytest.param([CPU_DEFAULT], "cpu", "cpu", id="none has GPUs"),
        pytest.param([CPU, GPU], "gpu", "cpu", id="none is the default"),
        pytest.param([], "", "", id="there is none"),
    ],
)
def test_a_request_without_a_queue_goes_to_one(
    pools: list[Pool], for_gpus: str, for_cpus: str
) -> None:
    assert with_queue_defaults(Request(), {}, pools).queue == for_gpus
    assert with_queue_defaults(Request(slots=0), {}, pools).queue == for_cpus


@pytest.mark.parametrize("pools", [[], [CPU_DEFAULT, GPU]], ids=["unknown", "known"])
def test_the_site_s_default_queues_are_for_gpus_and_for_all_else(pools: list[Pool]) -> None:
    site = Site(default_cpu_queue="long", default_gpu_queue="a100")
    queues = {"a100": {"account": "lab"}}
    for request, queue in (
        (Request(site=site), "a100"),
        (Request(site=site, slot_type=SlotType.CPU), "long"),
        (Request(site=site, slots=0), "long"),
        (Request(site=site, queue="mine"), "mine"),
    ):
        found = with_queue_defaults(request, queues, pools)
        assert (found.queue, found.account) == (queue, "lab" if queue == "a100" else "")
