"""Functions on a real Slurm over ssh, as alice: results for her alone, and a line that is cut while
she waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

import hpcdash
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.poller import Pace
from tests.support.cut_line import CutLine, ssh_config_through
from tests.support.program import Program, home_with
from tests.support.slurm import SlurmLab

pytestmark = [pytest.mark.system, pytest.mark.slurm]
SECONDS = 200.0


@pytest.fixture
async def line(slurm_lab: SlurmLab) -> AsyncIterator[CutLine]:
    """A line to the login node that a test can cut."""
    line = CutLine(slurm_lab.ssh_port)
    await line.start()
    yield line
    await line.stop()


@pytest.fixture
async def juno(
    slurm_lab: SlurmLab, line: CutLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[hpcdash.Cluster]:
    text = slurm_lab.ssh_config.read_text()
    config = ssh_config_through(text, slurm_lab.ssh_port, line.port, tmp_path)
    program = Program(home_with(tmp_path / "home", config.read_text()))
    program.config.parent.mkdir(parents=True)
    program.config.write_text(
        '[clusters.juno]\nssh = "lab-alice"\n[poll]\ncommands_per_minute = 600\n'
    )
    for name, value in program.environment.items():
        monkeypatch.setenv(name, value)
    cluster = await asyncio.to_thread(hpcdash.connect, "juno", time="5m")
    cluster.session.poller.pace = Pace(dict.fromkeys(Kind, 0.5), controller_share=0.5)
    yield cluster
    await asyncio.to_thread(cluster.close)


async def test_results_come_over_a_line_that_is_cut_and_to_nobody_else(
    slurm_lab: SlurmLab, line: CutLine, juno: hpcdash.Cluster, calls: ModuleType
) -> None:
    odd = await calls.odd_alone.amap([1, 2, 3, 5])
    first = await calls.add.asubmit(odd[2], 10)
    context = await calls.where.asubmit()
    ranks = await calls.inspect_allocation.asubmit(["a"])
    line.cut()
    assert await first.aresult(SECONDS) == 13
    job_id, folder, work_dir = await context.aresult(SECONDS)
    assert (job_id, work_dir) == (context.id, f"{folder}/code")
    allocation = await ranks.aresult(SECONDS)
    assert (allocation["params"], allocation["rank"], allocation["world_size"]) == (["a"], "0", 4)
    assert allocation["hosts"]
    one, even, *others = await odd.aresults(SECONDS, return_exceptions=True)
    assert (one, others) == (1, [3, 5])
    assert type(even) is ValueError
    assert "client_calls.py" in str(even.__cause__)
    seen = slurm_lab.as_user("bob", "ls", folder, check=False)
    assert seen.returncode != 0
    again = await juno.aattach(f"{odd.id}_3")
    assert await again.aresult(SECONDS) == 5
    lines = [words async for words in first.alogs()]
    assert lines == ["adding 3 and 10"]

    def run() -> list[int]:
        with hpcdash.Executor(juno, at_most=8) as executor:
            return list(executor.map(calls.square, range(40), chunksize=5))

    assert await asyncio.to_thread(run) == [number * number for number in range(40)]
