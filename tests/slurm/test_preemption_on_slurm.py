"""Trainings that a real Slurm preempts, with a GraceTime and without: requeued once, from what they
saved, or ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from hpcdash.backends.script.body import Place
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.request import Request, SlotType
from hpcdash.job import job_zip
from tests.support.scripts import Scheduler, batch_script
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

USER = "alice"
NODE = "n2"
# It saves every 10 steps, and a file has it end; a save after a warning lasts until another file is
# there.
TRAINING = """
import os, pathlib, time
from hpcdash.job import Checkpoints, TrainingGuard

folder = pathlib.Path(os.environ["FOLDER"])
task = os.environ.get("SLURM_ARRAY_TASK_ID", "")
guard, checkpoints = TrainingGuard(save_every_steps=10, look_every_seconds=0), Checkpoints()
newest = checkpoints.resume_from()
first = newest.step + 1 if newest else 1
print("starts at step", first, flush=True)
for step in range(first, 100000):
    time.sleep(0.01)
    guard.step(step)
    if guard.should_save():
        with checkpoints.saving(step) as saved:
            (saved / "state").write_text(str(step))
            if guard.stop_reason:
                (folder / f"saving{task}").touch()
                while (folder / "slow").exists():
                    time.sleep(0.01)
    if step == first + 10:
        (folder / f"ready{task}").touch()
    if guard.should_stop() or (folder / f"finish{task}").exists():
        break
"""


class Trained:
    """A launch of TRAINING in a folder of its own, with the QoS that others preempt."""

    def __init__(self, lab: SlurmLab, **fields: Any) -> None:
        self.lab = lab
        self.folder = lab.work_dir(USER) / f"preempted-{uuid4().hex[:8]}"
        lab.as_user(USER, "mkdir", self.folder)
        (self.folder / "train.py").write_text(TRAINING)
        (self.folder / "hpcdash-job.zip").write_bytes(job_zip())
        known: dict[str, Any] = {
            "command": f"/usr/bin/python3 {self.folder}/train.py",
            "slot_type": SlotType.CPU,
            "requeue": True,
            "checkpoints": f"{self.folder}/checkpoints",
            "kill_switch": f"{self.folder}/KILL",
            "environment": {"FOLDER": str(self.folder)},
            "qos": "low",
            "limit_seconds": 1200,
        }
        request = Request(**(known | fields))
        self.script = batch_script(
            Scheduler.SLURM, request, Place("1", str(self.folder)), queue_has_gpus=False
        ).text
        self.job = ""

    def submit(self, *options: str) -> Trained:
        self.job = self.lab.submit(USER, f"-w{NODE}", *options, script=self.script)
        return self

    def file(self, name: str) -> Path:
        return self.folder / name

    def touch(self, name: str) -> None:
        self.lab.as_user(USER, "touch", self.file(name))

    def wait_file(self, name: str) -> None:
        wait_until(name, self.file(name).exists, self.evidence)

    def log(self, task: str = "") -> str:
        name = f"{self.job}{task}"
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"{name}.[oe]*")))

    def evidence(self) -> str:
        return self.log() + self.shown()

    def shown(self, task: str = "") -> str:
        return self.lab.admin(
            "scontrol", "show", "job", self.job + task, check=False
        ).stdout.decode()

    def wait_shown(self, *words: str, task: str = "") -> None:
        wait_until(
            f"{words} in scontrol show job",
            lambda: all(f"{word} " in self.shown(task) for word in words),
            lambda: self.log(task) + self.shown(task),
        )

    def preempt(self) -> str:
        """Submit a job that needs the node, and return its id."""
        return self.lab.submit(USER, "--qos=high", "--exclusive", f"-w{NODE}", "-t5")

    def start_now(self, preempting: str, task: str = "") -> None:
        """Free the node, and start the requeued job without the two minutes that Slurm waits
        for.
        """
        self.lab.admin("scancel", preempting)
        self.file("ready" + task.strip("_")).unlink()
        # Within the same second slurmd takes the new start for the one it has just ended.
        self.lab.admin("scontrol", "update", f"jobid={self.job}{task}", "starttime=now+2")
        self.wait_file("ready" + task.strip("_"))

    def wait_runs(self, *states: str, task: str = "") -> None:
        """Wait until the accounting, which lags, has these runs of the job, in order."""

        def listed() -> str:
            return self.lab.admin(
                "sacct", "-DXnP", "-ostate", "-j", self.job + task
            ).stdout.decode()

        wait_until(
            f"runs {states}",
            lambda: [line.split()[0] for line in listed().splitlines()] == [*states],
            listed,
        )


@pytest.fixture
def grace(clean_slurm: SlurmLab) -> Iterator[Callable[[int], None]]:
    def set_grace(seconds: int) -> None:
        # The database has notified the controller before sacctmgr ends.
        clean_slurm.admin("sacctmgr", "-iQ", "modify", "qos", "low", "set", f"GraceTime={seconds}")

    yield set_grace
    set_grace(0)


def test_a_training_that_saves_within_the_grace_is_requeued_each_time_and_its_dependent_waits(
    clean_slurm: SlurmLab, grace: Callable[[int], None]
) -> None:
    grace(40)
    training = Trained(clean_slurm).submit()
    dependent = clean_slurm.submit(USER, "-wn3", f"-dafterany:{training.job}", script="#!/bin/sh\n")
    training.wait_file("ready")
    for restarts in (1, 2):
        preempting = training.preempt()
        training.wait_shown("JobState=PENDING", f"Restarts={restarts}")
        assert training.log().count("hpcdash: preempted: requeues job") == restarts
        assert clean_slurm.job_states(dependent) == {"PENDING"}
        training.start_now(preempting)
    starts = [
        int(line.split()[-1])
        for line in training.log().splitlines()
        if line.startswith("starts at step")
    ]
    assert starts == sorted(set(starts)), training.log()
    assert starts[0] == 1
    training.touch("finish")
    clean_slurm.wait_state(training.job, "COMPLETED")
    clean_slurm.wait_state(dependent, "COMPLETED")
    training.wait_runs("REQUEUED", "REQUEUED", "COMPLETED")


def test_without_a_grace_slurm_requeues_it_and_the_script_does_not_again(
    clean_slurm: SlurmLab, grace: Callable[[int], None]
) -> None:
    grace(0)
    training = Trained(clean_slurm).submit()
    training.wait_file("ready")
    preempting = training.preempt()
    training.wait_shown("JobState=PENDING", "Restarts=1")
    training.start_now(preempting)
    training.wait_shown("JobState=RUNNING", "Restarts=1")
    assert "requeues job" not in training.log()
    training.wait_runs("PREEMPTED", "RUNNING")


@pytest.mark.parametrize("within_grace", [True, False])
def test_a_training_that_is_cancelled_is_gone_for_good(
    clean_slurm: SlurmLab, grace: Callable[[int], None], within_grace: bool
) -> None:
    grace(40)
    training = Trained(clean_slurm).submit()
    training.wait_file("ready")
    training.touch("slow")
    if within_grace:
        training.preempt()
        training.wait_file("saving")
    clean_slurm.as_user(USER, "scancel", training.job)
    # It saves within KillWait.
    training.wait_file("saving")
    training.file("slow").unlink()
    training.wait_shown("JobState=CANCELLED", "Restarts=0")
    clean_slurm.wait_state(training.job, "CANCELLED")
    training.wait_runs("CANCELLED")
    assert "requeues job" not in training.log()


def test_a_training_that_ends_by_the_kill_switch_within_the_grace_is_completed(
    clean_slurm: SlurmLab, grace: Callable[[int], None]
) -> None:
    grace(40)
    training = Trained(clean_slurm).submit()
    training.wait_file("ready")
    training.touch("slow")
    training.preempt()
    training.wait_file("saving")
    training.touch("KILL")
    training.file("slow").unlink()
    clean_slurm.wait_state(training.job, "COMPLETED")
    training.wait_runs("COMPLETED")


def test_the_last_task_of_an_array_requeues_itself_and_neither_a_finished_nor_a_running_one(
    clean_slurm: SlurmLab, grace: Callable[[int], None]
) -> None:
    grace(40)
    array: dict[str, Any] = {"array": parse_tasks("1-3")}
    training = Trained(clean_slurm, checkpoints="checkpoints/%a", **array).submit("--hold")
    clean_slurm.admin("scontrol", "update", f"jobid={training.job}_2", "reqnodelist=n3")
    clean_slurm.admin("scontrol", "release", training.job)
    for task in "123":
        training.wait_file(f"ready{task}")
    # Its own number is the whole array's.
    assert f"JobId={training.job} ArrayJobId={training.job} ArrayTaskId=3 " in training.shown("_3")
    training.touch("finish1")
    training.wait_shown("JobState=COMPLETED", task="_1")
    preempting = training.preempt()
    training.wait_shown("JobState=PENDING", "Restarts=1", task="_3")
    training.start_now(preempting, "_3")
    for task, state in (("_1", "COMPLETED"), ("_2", "RUNNING")):
        assert f"JobState={state} " in training.shown(task)
        assert "Restarts=0 " in training.shown(task)
        assert training.log(task).count("starts at step") == 1
    for task in "23":
        training.touch(f"finish{task}")
    clean_slurm.wait_state(training.job, "COMPLETED")
    training.wait_runs("COMPLETED", task="_1")
    training.wait_runs("COMPLETED", task="_2")
    training.wait_runs("REQUEUED", "COMPLETED", task="_3")


def test_a_heterogeneous_job_waits_for_slurm_to_requeue_it(
    clean_slurm: SlurmLab, grace: Callable[[int], None]
) -> None:
    grace(8)
    training = Trained(clean_slurm).submit("-n1", ":", "-n1", "-wn3", "--qos=low")
    training.wait_file("ready")
    training.preempt()
    training.wait_shown("JobState=PENDING", "Restarts=1")
    # One component is pending before the other has completed.
    clean_slurm.wait_state(training.job, "PENDING")
    assert "requeues job" not in training.log()


# srun, too, waits for the controller, for a minute.
@pytest.mark.long
def test_while_the_controller_does_not_answer_the_script_waits(
    clean_slurm: SlurmLab, grace: Callable[[int], None]
) -> None:
    grace(600)
    training = Trained(clean_slurm).submit()
    training.wait_file("ready")
    training.touch("slow")
    training.preempt()
    training.wait_file("saving")
    with clean_slurm.controller_down():
        training.file("slow").unlink()
        waits = "the controller does not respond"
        wait_until("the script to wait", lambda: waits in training.log(), training.log)
    training.wait_shown("JobState=PENDING", "Restarts=1")
    assert training.log().count("requeues job") == 1
    training.wait_runs("REQUEUED", "PENDING")
