"""An allocation's script, run by bash: its runs have the environment of their owner."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpcdash.backends.script.allocation import KIND, Waiting
from hpcdash.backends.script.body import Place
from hpcdash.domain.request import Request
from tests.support.scripts import Scheduler, batch_script
from tests.support.waiting import wait_until

# Names of its variables, earlier and present ones without their prefix.
NAMES = (
    *("name", "job", "pause", "idle", "every", "counts_gpus", "work", "runs", "run", "next"),
    *("status", "used_at", "checked_at", "now", "use", "unknown", "said", "warned", "steps", "own"),
)


@pytest.mark.system
@pytest.mark.parametrize("scheduler", Scheduler)
def test_a_run_has_the_exported_variables_of_its_owner(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    request = Request(kind=KIND, command=":", work_dir=str(tmp_path), job_library=False)
    place = Place("u", str(tmp_path), waiting=Waiting(1))
    text = batch_script(scheduler, request, place).text
    run = tmp_path / "runs" / "1.a"
    run.mkdir(parents=True, mode=0o700)
    run.parent.chmod(0o700)
    (run / "batch.sh").write_text("env\n")
    values = {name: f"mine-{name}" for name in NAMES}
    (tmp_path / "nodes").write_text("n1\n")
    job = {"SLURM_JOB_ID": "1", "PBS_JOBID": "1.s", "PBS_NODEFILE": str(tmp_path / "nodes")}
    with subprocess.Popen(
        ["bash", "-c", text],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **job, **values},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as script:
        wait_until("the end of the run", (run / "ended").exists)
        # Another one after a look at what is in use.
        second = tmp_path / "runs" / "2.a"
        (tmp_path / "2.a").mkdir(mode=0o700)
        (tmp_path / "2.a" / "batch.sh").write_text("env\n")
        (tmp_path / "2.a").rename(second)
        wait_until("the end of the second", (second / "ended").exists)
        script.terminate()
    for folder in (run, second):
        lines = (folder / "out").read_text().splitlines()
        assert {
            name: f"{name}={value}" in lines for name, value in values.items()
        } == dict.fromkeys(NAMES, True)
