"""Jobs, nodes and queues that a real Slurm hides unless it is asked for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdash.services.submit.queues import fetch_offers
from tests.e2e.live_store import store_on
from tests.support.program import Program
from tests.support.slurm import SlurmLab

pytestmark = [pytest.mark.slurm, pytest.mark.slurm_releases]


@pytest.fixture
def lab(clean_slurm: SlurmLab) -> Iterator[SlurmLab]:
    """Partition long is hidden, gpu is open to bob's group alone, as is debug to alice's."""
    clean_slurm.admin("scontrol", "update", "partitionname=long", "hidden=yes")
    clean_slurm.admin("scontrol", "update", "partitionname=gpu", f"allowgroups={clean_slurm.bob}")
    clean_slurm.admin(
        "scontrol", "update", "partitionname=debug", f"allowgroups={clean_slurm.alice}"
    )
    yield clean_slurm
    clean_slurm.admin("scontrol", "update", "partitionname=long", "hidden=no")
    for name in ("gpu", "debug"):
        clean_slurm.admin("scontrol", "update", f"partitionname={name}", "allowgroups=ALL")


def test_own_jobs_in_a_hidden_partition_are_listed_and_shown(
    lab: SlurmLab, over_ssh: Program
) -> None:
    running, array = (
        lab.submit("alice", "-p", "long"),
        lab.submit("alice", "-p", "long", "--hold", "-a", "1-3"),
    )
    lab.wait_state(running, "RUNNING")
    ids = {row["array_id"] or row["id"] for row in over_ssh.rows("jobs")}
    assert {running, array} <= ids
    assert running in {row["id"] for row in over_ssh.rows("jobs", "--all")}
    assert "long" in over_ssh("show", running).text


def test_queues_that_are_hidden_or_closed_to_me_are_marked(
    lab: SlurmLab, over_ssh: Program
) -> None:
    is_open = {row["name"]: row["available"] for row in over_ssh.rows("queues")}
    assert {name: is_open[name] for name in ("main", "debug", "long", "gpu")} == {
        "main": True,
        "debug": True,
        "long": True,
        "gpu": False,
    }
    lines = {line.split()[0]: line for line in over_ssh("queues").text.splitlines()}
    assert "hidden" in lines["long"]
    assert f"closed to you, or hidden: for group {lab.bob}" in lines["gpu"]
    assert not any("hidden" in lines[name] for name in ("main", "debug"))


def test_nodes_of_a_hidden_partition_name_it(lab: SlurmLab, over_ssh: Program) -> None:
    assert {row["name"] for row in over_ssh.rows("nodes") if "long" in row["queues"]} == {
        "n2",
        "n3",
    }


async def test_a_queue_that_is_hidden_or_closed_to_me_is_not_offered(lab: SlurmLab) -> None:
    async with store_on(lab, "alice") as store:
        offers = await fetch_offers(store)
    assert {"main", "debug"} <= {queue.name for queue in offers.listed}
    assert not {"long", "gpu"} & {queue.name for queue in offers.listed}
    # Who names it means it.
    assert offers.queue("long") is not None


def test_a_request_for_gpus_goes_to_no_queue_that_is_closed_to_me(
    lab: SlurmLab, over_ssh: Program, tmp_path: Path
) -> None:
    request = tmp_path / "request.toml"
    request.write_text('name = "train"\ncommand = "true"\nslots = 1\n')
    rendered = over_ssh("submit", "--dry-run", str(request))
    assert "--partition=gpu" not in rendered.text
