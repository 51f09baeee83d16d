"""Gives each behaviour test both schedulers: an embedded queue of this run's own, and the lab's
Slurm, as root.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.services.state.folders import queue_program
from tests.behaviour.clusters import Cluster, Slurm, opened
from tests.embedded.queue_lab import QueueLab
from tests.support.slurm import SlurmLab

# Tells what it gets, and goes on until it is killed.
OUT_OF_TIME = """
trap 'echo USR1' USR1
trap 'echo TERM; exit 5' TERM
echo up
while :; do sleep 0.05; done
"""
SCHEDULERS = (
    pytest.param("embedded"),
    pytest.param("slurm", marks=pytest.mark.slurm),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in one event loop: a store lives in one."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def embedded_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueLab]:
    """An embedded queue with room for all that a test starts at once."""
    folder = tmp_path_factory.mktemp("behaviour")
    lab = QueueLab(folder / "queue", folder / "work", cpus=64, grace_seconds=1)
    yield lab
    lab.end()


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=SCHEDULERS)
async def scheduler(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    """Each scheduler in turn."""
    journal = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "embedded":
            queue: QueueLab = request.getfixturevalue("embedded_lab")
            backend = embedded_backend(queue_program(queue.folder))
            found = Cluster("embedded", backend, queue.work, journal, look_seconds=0.05)
        else:
            lab: SlurmLab = request.getfixturevalue("slurm_lab")
            for name, value in lab.env.items():
                patch.setenv(name, value)
            found = Slurm(
                "slurm", SLURM, tmp_path_factory.mktemp("work"), journal, look_seconds=0.02
            )
        async with opened(found):
            # Looked at last: a Slurm takes half a minute to see it.
            patch.chdir(found.work)
            found.first_job = await found.out_of_time(OUT_OF_TIME)
            yield found


@pytest.fixture
def cluster(scheduler: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A scheduler, with commands run in its folder."""
    monkeypatch.chdir(scheduler.work)
    return scheduler
