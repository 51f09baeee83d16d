"""A machine that has Slurm's commands by Torque's names (Debian's slurm-wlm-torque) beside its own:
Slurm is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from hpcdash.backends.base import Backend
from hpcdash.backends.pbs.backend import BACKEND as PBS
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from tests.e2e.conftest import clear
from tests.e2e.live_store import store_on
from tests.support.program import Program
from tests.support.slurm import SlurmLab, why_no_wrappers


@pytest.fixture(scope="module")
def lab(slurm_lab: SlurmLab) -> Iterator[SlurmLab]:
    """The lab with no job in it, on a machine that has the wrappers."""
    if reason := why_no_wrappers():
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    clear(slurm_lab)
    yield slurm_lab
    clear(slurm_lab)


@pytest.mark.parametrize("backends", [(SLURM, PBS), (PBS, SLURM)], ids=["slurm first", "pbs first"])
async def test_slurm_itself_is_found_where_nobody_said_which(
    lab: SlurmLab, backends: tuple[Backend, ...]
) -> None:
    async with store_on(lab, "alice", backends=backends) as store:
        await store.open()
        assert store.backend.name == "slurm"


def test_this_machine_s_scheduler_is_slurm_though_it_has_a_qstat(
    lab: SlurmLab, locally: Program
) -> None:
    bare = Program(locally.home, (), locally.variables)
    assert bare("jobs", "--all", "--format", "json").json["backend"] == "slurm"
    listed = bare("clusters", "--format", "json").json["clusters"]
    assert "pbs" not in [cluster["backend"] for cluster in listed]


def test_as_a_pbs_it_is_refused_with_what_to_do(lab: SlurmLab, over_ssh: Program) -> None:
    run = Program(over_ssh.home, (*over_ssh.before, "--backend", "pbs"), over_ssh.variables)("jobs")
    assert run.status != 0
    assert "no PBS here: qstat is Slurm's" in run.stderr
    assert "put squeue on the PATH" in run.stderr
