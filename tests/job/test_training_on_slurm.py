"""A training in jobs of a real Slurm: where its ranks meet, its end, a signal to the step, an array
burning through.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from uuid import uuid4

import pytest

from hpcdash.job import job_zip
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

USER = "alice"
CODE = """
import multiprocessing, os, socket, subprocess, sys, time
from hpcdash.job import TrainingGuard, torch_distributed_env

def work(up):
    up.put(1)
    time.sleep(100)

def workers(guard):
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        up = context.SimpleQueue()
        worker = context.Process(target=work, args=(up,), daemon=True)
        worker.start()
        up.get()
        yield worker
    with guard.preemption.sparing():
        yield subprocess.Popen(["sleep", "100"])

def main():
    guard = TrainingGuard(ask_slurm="ask" in sys.argv, look_every_seconds=0)
    port = int(torch_distributed_env()["MASTER_PORT"])
    with socket.socket() as meeting:
        if guard.rank == 0:
            meeting.bind(("", port))
    stale = int(os.environ.get("SLURM_JOB_END_TIME", "0"))
    *started, other = workers(guard)
    print("end", int(guard.preemption.ends_at or 0), stale, flush=True)
    print("port", port, flush=True)
    open("ready." + os.environ["SLURM_PROCID"], "w").close()
    for step in range(100000):
        time.sleep(0.01)
        guard.step(step)
        if guard.should_save() and guard.stop_reason:
            alive = [worker.is_alive() for worker in started] + [other.poll() is None]
            print("saved", guard.stop_reason.split(" at ")[0], *alive, flush=True)
        if guard.should_stop():
            break
    for worker in started:
        worker.terminate()
        worker.join()
    other.terminate()
    print("ended", *(worker.exitcode for worker in started), other.wait(), flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(slurm_lab: SlurmLab) -> Path:
    """A job's folder on what the nodes share, owned by the user, with a training and the zip."""
    made = slurm_lab.work_dir(USER) / f"training-{uuid4().hex[:8]}"
    slurm_lab.as_user(USER, "mkdir", made)
    (made / "train.py").write_text(CODE)
    (made / "job.zip").write_bytes(job_zip())
    return made


def shown_start(shown: str) -> float:
    """Epoch seconds of the StartTime of `scontrol show job`, which is in this machine's zone."""
    text = next(word.partition("=")[2] for word in shown.split() if word.startswith("StartTime="))
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").timestamp()


def submit(lab: SlurmLab, folder: Path, line: str, *options: str) -> str:
    script = (
        f"#!/bin/bash\nexport PYTHONPATH={folder}/job.zip\n"
        f"export HPCDASH_KILL_SWITCH={folder}/KILL\n{line.format(python='/usr/bin/python3')}\n"
    )
    return lab.submit(
        USER,
        "-t10",
        f"-D{folder}",
        f"-o{folder}/log",
        "--open-mode=append",
        *options,
        script=script,
    )


def test_a_signal_to_the_step_has_all_ranks_save_and_spares_what_they_started_however_they_did(
    slurm_lab: SlurmLab, folder: Path
) -> None:
    job = submit(slurm_lab, folder, "srun {python} train.py ask", "-N2", "-n2")
    wait_until(
        "both ranks train",
        lambda: len(list(folder.glob("ready.*"))) == 2,
        lambda: (folder / "log").read_text(),
    )
    slurm_lab.as_user(USER, "scancel", "--signal=USR1", f"{job}.0")
    slurm_lab.wait_state(job, "COMPLETED", "FAILED", "CANCELLED")
    log = (folder / "log").read_text()
    assert slurm_lab.job_states(job) == {"COMPLETED"}, log
    assert log.count("saved received SIGUSR1 True True True True\n") == 2, log
    assert log.count("ended -15 -15 -15 -15\n") == 2
    # All ranks meet at a port that is free where rank 0 is: srun itself listens at its own.
    assert log.count(f"port {20000 + int(job) % 12000}\n") == 2
    # Rank 0 alone asks, once; Slurm 22.05 says no end in the environment.
    ends = [
        [int(word) for word in line.split()[1:]]
        for line in log.splitlines()
        if line.startswith("end ")
    ]
    told = slurm_lab.admin("scontrol", "show", "job", job).stdout.decode()
    minutes = (max(end for end, _ in ends) - shown_start(told)) / 60
    assert minutes == 10
    assert {in_environment for _, in_environment in ends} <= {0, max(end for end, _ in ends)}


def test_an_array_that_is_queued_burns_through_while_the_kill_switch_is_there(
    slurm_lab: SlurmLab, folder: Path
) -> None:
    slurm_lab.as_user(USER, "touch", folder / "KILL")
    job = submit(slurm_lab, folder, "srun {python} train.py", "--array=1-4%1")
    slurm_lab.wait_state(job, "COMPLETED", "FAILED")
    assert slurm_lab.job_states(job) == {"COMPLETED"}
    assert (folder / "log").read_text().count("exiting before training") == 4
    assert not list(folder.glob("ready.*"))
