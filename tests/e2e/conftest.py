"""Fixtures: the program in a home of its own, over ssh as alice and locally as root, and a lab with
an ordinary day.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.snapshots import SnapshotCache
from tests.e2e.live_store import store_on
from tests.e2e.scene import DRAINED_NODE, Scene, play
from tests.support.pbs.over_ssh import HOST, PbsCluster, pbs_over_ssh, why_no_cluster
from tests.support.program import Program, home_with, program_on_the_spot, program_over_ssh
from tests.support.ray_cluster import RayCluster
from tests.support.slurm import SlurmLab, free_base_port
from tests.support.suite import people
from tests.support.waiting import wait_until


@pytest.fixture
def over_ssh(slurm_lab: SlurmLab, tmp_path: Path) -> Program:
    """hpcdash of a person whose account on the cluster is alice's."""
    return program_over_ssh(slurm_lab, tmp_path / "home")


@pytest.fixture
def locally(slurm_lab: SlurmLab, tmp_path: Path) -> Program:
    """hpcdash on the cluster itself, as root."""
    return program_on_the_spot(slurm_lab, tmp_path / "root")


# Stands for docker: writes down its words, and runs the command behind the image.
DOCKER = """#!/bin/bash
echo "$@" >>"$DOCKER_WORDS"
[ "$1" = run ] || exit 0
until [ "$1" = img:1 ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """The session's Ray: a head, and what nodes tests add. They look only at what they submit."""
    folder = tmp_path_factory.mktemp("docker")
    docker = folder / "docker"
    docker.write_text(DOCKER)
    docker.chmod(stat.S_IRWXU)
    cluster = RayCluster(variables={"DOCKER_WORDS": str(folder / "words")}, path=str(folder))
    try:
        cluster.start(**{"TPU-v4-8-head": 1, "slice-h": 4})
        yield cluster
    finally:
        cluster.stop()


def clear(lab: SlurmLab, *drained: str) -> None:
    """End all jobs and give drained nodes back.

    Unlike reset(), it does not wait for these to answer a ping.
    """
    lab.admin("scancel", "--quiet", "--state=PENDING", check=False)
    lab.admin("scancel", "--quiet", "--full", "--signal=KILL", "--state=RUNNING", check=False)
    lab.admin("scancel", "--quiet", "--state=RUNNING", check=False)
    wait_until("jobs to end", lambda: not lab.admin("squeue", "-h", "-o", "%i").stdout)
    for node in drained:
        lab.admin("scontrol", "update", f"nodename={node}", "state=resume", check=False)


@pytest.fixture(scope="session")
def stage(slurm_lab: SlurmLab) -> Iterator[list[Scene]]:
    """The scene that was played last, if any; the lab is left as it was found."""
    played: list[Scene] = []
    yield played
    # A lab of this session's own ends here with all that is in it.
    if played and os.environ.get("HPCDASH_SLURM_LAB"):
        clear(slurm_lab, DRAINED_NODE)


@pytest.fixture(scope="module")
def scene(slurm_lab: SlurmLab, stage: list[Scene]) -> Scene:
    """An ordinary day, which no test changes: the one of the module before where it still
    stands.
    """
    if not (stage and stage[-1].stands()):
        clear(slurm_lab)
        stage.append(play(slurm_lab))
    return stage[-1]


def _small_lab(*, empty: bool = False, min_job_age: int = 2) -> Iterator[SlurmLab]:
    # pytest's own temporary folders are closed to the lab's users. A command gives an absent
    # controller up sooner here.
    folder = tempfile.mkdtemp(prefix="hpcdash-slurm-")
    lab = SlurmLab(
        folder,
        base_port=free_base_port(),
        users=people(),
        accounting=False,
        empty=empty,
        extra_conf="MessageTimeout=2",
        min_job_age=min_job_age,
    )
    try:
        lab.start()
        yield lab
    finally:
        lab.stop(wipe=True)


@pytest.fixture(scope="session")
def small_lab(slurm_lab: SlurmLab) -> Iterator[SlurmLab]:
    """A Slurm that keeps no history, forgets jobs soon, and whose commands wait two seconds for the
    controller.
    """
    yield from _small_lab()


@dataclass(frozen=True, slots=True)
class LeftRunning:
    """A job of alice's that hpcdash saw running, as `cache` remembers, and that then ran out of its
    time.
    """

    lab: SlurmLab
    cache: SnapshotCache
    job_id: str


@pytest.fixture(scope="session")
def left_running(
    slurm_lab: SlurmLab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LeftRunning]:
    """Made early and looked at late: a controller looks for jobs over their time only twice a
    minute.
    """
    cache = SnapshotCache(tmp_path_factory.mktemp("cache"), "lab")

    async def look(lab: SlurmLab) -> None:
        async with store_on(lab, "alice", cache=cache) as store:
            await store.open()
            await store.fetch(Kind.MINE)

    for lab in _small_lab(min_job_age=3600):
        job_id = lab.submit("alice", "-J", "too slow", "-t", "5")
        lab.wait_state(job_id, "RUNNING")
        asyncio.run(look(lab))
        lab.admin("scontrol", "update", f"jobid={job_id}", "endtime=now+1")
        yield LeftRunning(lab, cache, job_id)


@pytest.fixture(scope="session")
def lab_without_nodes(slurm_lab: SlurmLab) -> Iterator[SlurmLab]:
    """A Slurm with one queue, no node and no job."""
    yield from _small_lab(empty=True)


@pytest.fixture(scope="session")
def pbs_login_node() -> Iterator[PbsCluster]:
    """A login node behind a real sshd, whose PBS answers as it was recorded."""
    if reason := why_no_cluster():
        pytest.skip(reason)
    with pbs_over_ssh() as cluster:
        yield cluster


@dataclass(frozen=True, slots=True)
class PbsPerson:
    """hpcdash of somebody with an account on a PBS cluster, and the cluster."""

    program: Program
    cluster: PbsCluster


@pytest.fixture
def pbs_cluster(pbs_login_node: PbsCluster, tmp_path: Path) -> Callable[[str], PbsPerson]:
    """`pbs_cluster(scene)`: the cluster as it is in a scene, and hpcdash that reaches it over
    ssh.
    """

    def at(scene: str) -> PbsPerson:
        pbs_login_node.stand_ins.play(scene)
        pbs_login_node.stand_ins.called.write_text("")
        home = tmp_path / scene
        return PbsPerson(
            Program(home_with(home, pbs_login_node.ssh_config), ("--ssh", HOST)), pbs_login_node
        )

    return at
