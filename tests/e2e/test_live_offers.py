"""What a real Slurm offers to two people, what it would refuse, and when it would start what it takes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from hpcdash.domain.request import Container, Request
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.submit.checks import estimate_start, missing_paths
from hpcdash.services.submit.queues import fetch_offers
from tests.e2e.live_store import store_on
from tests.support.scripts import lint_script
from tests.support.slurm import SlurmLab


@pytest.fixture
async def store(slurm_lab: SlurmLab) -> AsyncIterator[ClusterStore]:
    async with store_on(slurm_lab, "alice") as one:
        await one.open()
        yield one


@pytest.mark.parametrize(("user", "accounts"), [("alice", ["physics", "chem"]), ("bob", ["physics"])])
async def test_a_person_is_offered_the_accounts_of_hers_alone(
    slurm_lab: SlurmLab, user: str, accounts: list[str]
) -> None:
    async with store_on(slurm_lab, user) as store:
        offers = await fetch_offers(store)
    assert [account.name for account in offers.accounts] == accounts
    assert offers.accounts[0].is_default
    assert offers.accounts[0].qos[0] == "normal"
    assert {qos.name: qos.limit_seconds for qos in offers.qos}["tiny"] == 600
    assert {qos.name: (qos.most_jobs, qos.most_cpus) for qos in offers.qos}["limited"] == (2, 6)
    assert offers.gpu_types == ("a100",)
    gpu, default = offers.queue("gpu"), offers.queue("")
    assert gpu is not None
    assert default is not None
    assert (gpu.gpus, gpu.gpus_per_node, gpu.limit_seconds) == (8, 4, 172_800)
    assert default.name == "main"
    assert offers.notes == ()


@pytest.mark.parametrize(
    "line",
    [
        "-p nosuch",
        "-A nosuch",
        "-q nosuch",
        "-N 40",
        "-p gpu --gres=gpu:5",
        "-p gpu --gpus-per-node=h100:1",
        "--mem=900G",
        "--bogus",
        "--gpu=1",
        "-t 90m",
        "--time=“1:00”",
        "–p gpu",
    ],
)
async def test_what_slurm_refuses_is_found_before(store: ClusterStore, line: str) -> None:
    script = f"#!/bin/sh\n#SBATCH {line}\ntrue\n".encode()
    estimate = await estimate_start(store, script)
    assert estimate.refusal
    (one, *_) = lint_script(script, "slurm", await fetch_offers(store))
    assert one.field == "line 2"


@pytest.mark.parametrize(
    "script", [b"", b"true\n", b"\xef\xbb\xbf#!/bin/sh\n", b"#!/bin/sh\r\ntrue\r\n", b"#!/bin/sh\nx\0\n"]
)
async def test_a_script_that_slurm_refuses_by_its_bytes_is_found_before(store: ClusterStore, script: bytes) -> None:
    assert (await estimate_start(store, script)).refusal
    assert lint_script(script, "slurm", await fetch_offers(store))[0].severity == "error"


async def test_what_slurm_takes_has_a_start_and_finds_nothing(store: ClusterStore) -> None:
    script = b"#!/bin/sh\n#SBATCH -p gpu -t 10 --gpus=a100:1 -A chem\n  #SBATCH -p nosuch\ntrue\n"
    before = await store.transport.run(("squeue", "-h", "--me", "-o", "%i"), limit_seconds=20)
    estimate = await estimate_start(store, script)
    after = await store.transport.run(("squeue", "-h", "--me", "-o", "%i"), limit_seconds=20)
    assert estimate.refusal == ""
    assert estimate.queue == "gpu"
    assert estimate.starts_at_epoch is not None
    assert estimate.starts_at_epoch > time.time() - 60
    # Nothing was submitted.
    assert set(after.stdout.split()) <= set(before.stdout.split())
    assert [one.severity for one in lint_script(script, "slurm", await fetch_offers(store))] == ["warning"]


async def test_options_take_the_place_of_a_script_s_lines(store: ClusterStore) -> None:
    estimate = await estimate_start(store, b"#!/bin/sh\n#SBATCH -p nosuch\n", ("-p", "debug"))
    assert (estimate.queue, estimate.refusal) == ("debug", "")


async def test_paths_are_looked_for_as_who_one_is_there(store: ClusterStore) -> None:
    request = Request(command="x", work_dir="/root", container=Container(image="/nosuch.sif", binds=("/etc",)))
    found = await missing_paths(store, request)
    assert [(one.field, one.words) for one in found] == [
        ("work_dir", "/root may not be entered"),
        ("container.image", "/nosuch.sif is not there"),
    ]
