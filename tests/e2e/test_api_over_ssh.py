"""`hpcdash serve --api` on a real Slurm over ssh: alice alone sees her launch, and jobs from
outside are listed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

pytest.importorskip("aiohttp", reason="the extra [api] is not installed")

from tests.support.api import OTHER, Api, write_tokens
from tests.support.program import Program
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.slurm]


@pytest.fixture
def api(slurm_lab: SlurmLab, over_ssh: Program) -> Iterator[Api]:
    alice, bob = slurm_lab.alice, slurm_lab.account("bob")
    write_tokens(over_ssh, alice, bob)
    served = Api(over_ssh)
    served.start()
    yield served
    served.end()


def test_alice_s_launch_is_hers_alone(api: Api, slurm_lab: SlurmLab) -> None:
    outside = slurm_lab.submit("alice", "--hold")
    of_bob = slurm_lab.submit("bob", "--hold")
    launch = api.launch(
        "a", command="echo task $SLURM_ARRAY_TASK_ID", array="0-2", time="10m", name="three"
    )
    path = f"/launches/{launch['id']}"
    followed = api("GET", f"{path}/logs?follow=true&task=1").text
    assert "task 1" in followed
    assert (
        json.loads(re.findall(r"^event: end\ndata: (.*)$", followed, re.M)[0])["status"]
        == "COMPLETED"
    )
    ended = api.ended(launch["id"])
    assert (ended["status"], ended["tasks"]) == ("COMPLETED", {"completed": 3})
    ids = {job["id"] for job in api("GET", "/jobs?state=waiting").json["jobs"]}
    assert (outside in ids, of_bob in ids) == (True, False)
    # The accounting has it a moment later, and the server asks for what has ended only now and
    # then.
    of_sacct = ("sacct", "-nX", "-o", "state", "-j", launch["job_id"])
    wait_until(
        "the accounting to know them",
        lambda: slurm_lab.admin(*of_sacct).stdout.split() == [b"COMPLETED"] * 3,
    )
    assert launch["job_id"] in {
        job["array_id"] for job in api("GET", "/jobs?state=ended").json["jobs"]
    }
    # bob sees his jobs, and nothing of hers.
    assert of_bob in {job["id"] for job in api("GET", "/jobs", token=OTHER).json["jobs"]}
    for asked in (path, f"{path}/logs", f"{path}/logs?task=1"):
        assert api("GET", asked, token=OTHER).status == 404
    assert api("GET", "/launches", token=OTHER).json["launches"] == []
    slots = {
        (one["slot_type"], one["gpu_type"]): one["total"]
        for one in api("GET", "/resources").json["slots"]
    }
    assert slots["gpu", "a100"] == 8
    assert api("DELETE", path).status == 204
    refused = api(
        "POST",
        "/launches",
        {"command": "true", "time": "10m", "queue": "nowhere", "slot_type": "cpu"},
    )
    assert (refused.status, "nowhere" in refused.message or "partition" in refused.message) == (
        409,
        True,
    )
    slurm_lab.admin("scancel", outside, of_bob)
