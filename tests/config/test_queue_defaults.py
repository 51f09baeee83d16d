"""Which queue a request goes to where none is named."""

from __future__ import annotations

import pytest

from hpcdash.config.queue_defaults import DefaultPools, Pool, default_pools, overridden

CPU, CPU_DEFAULT = Pool("cpu"), Pool("cpu", is_default=True)
GPU, GPU_DEFAULT, MORE = (
    Pool("gpu", has_gpus=True),
    Pool("gpu", is_default=True, has_gpus=True),
    Pool("h", has_gpus=True),
)


@pytest.mark.parametrize(
    ("pools", "compute", "aux"),
    [
        pytest.param([MORE, GPU_DEFAULT], "gpu", "gpu", id="the default one has GPUs"),
        pytest.param([CPU_DEFAULT, GPU, MORE], "gpu", "cpu", id="another one has GPUs"),
        pytest.param([CPU_DEFAULT], "cpu", "cpu", id="none has GPUs"),
        pytest.param([CPU, GPU], "gpu", "cpu", id="none is the default"),
        pytest.param([], None, None, id="there is none"),
    ],
)
def test_a_request_without_a_queue_goes_to_one(pools: list[Pool], compute: str | None, aux: str | None) -> None:
    assert default_pools(pools) == DefaultPools(compute, aux)


def test_of_a_queue_its_own_values_count_and_its_lists_are_added() -> None:
    common = {"slot_type": "cuda", "extra_args": ["--nice=3"], "binds": ["/data"]}
    of_queues = {"GPU": {"slot_type": "rocm", "extra_args": ["--constraint=mi250"]}, "cpu": {"slot_type": "cpu"}}
    assert overridden(common, of_queues, "gpu") == {
        "slot_type": "rocm",
        "extra_args": ["--nice=3", "--constraint=mi250"],
        "binds": ["/data"],
    }
    assert common["extra_args"] == ["--nice=3"]
