"""An ordinary day on the lab: jobs of two people that wait, run and have ended, and a drained node.

Asserts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

DRAINED_NODE = "n3"
DRAIN_REASON = "kernel update, back at 6"
IRREGULAR_TASKS = ",".join(str(task) for task in range(100, 1000, 7))
_WAITING = "#!/bin/sh\nsleep 43200\n"


@dataclass(frozen=True, slots=True)
class Scene:
    """The lab and the ids of its jobs."""

    lab: SlurmLab
    training: str
    gpus_held: str
    array: str
    irregular: str
    held: str
    held_by_root: str
    dependent: str
    bobs: str
    bobs_pending: str
    completed: str
    failed: str
    signalled: str
    cancelled: str
    cancelled_waiting: str

    def stands(self) -> bool:
        """Whether the jobs that it left waiting and running are the whole queue."""
        left = {
            self.training,
            self.gpus_held,
            self.array,
            self.irregular,
            self.held,
            self.held_by_root,
        }
        left |= {self.dependent, self.bobs, self.bobs_pending}
        return {line.partition("_")[0] for line in self.squeue("-o", "%i")} == left

    def squeue(self, *words: str, user: str = "root") -> list[str]:
        """squeue's own lines, times as epochs and arrays whole."""
        argv = ("env", "SLURM_BITSTR_LEN=0", "SLURM_TIME_FORMAT=%s", "squeue", "-h", *words)
        ended = self.lab.admin(*argv) if user == "root" else self.lab.as_user(user, *argv)
        return ended.stdout.decode().splitlines()


def play(lab: SlurmLab) -> Scene:
    """Submit everything and wait until it stands; about three seconds."""
    submit = lab.submit
    jobs = {
        "training": submit(
            "alice",
            *(
                "-J",
                "train lr=1e-3",
                "-p",
                "gpu",
                "-w",
                "g1",
                "--gres=gpu:a100:2",
                "-c4",
                "--mem=4G",
                "-t",
                "2:00:00",
            ),
            *("--comment=best so far", "-o", "train.%j.out"),
            script=_WAITING,
        ),
        "array": submit(
            "alice",
            "-J",
            "sweep",
            "--array=1-10%1",
            "-o",
            "sweep_%A_%a.out",
            "-e",
            "sweep_%A_%a.err",
        ),
        "bobs": submit("bob", "-J", "mpi", "-N1", "-n2"),
        "failed": submit(
            "alice", "-J", "broken import", script="#!/bin/sh\necho boom >&2\nexit 3\n"
        ),
        "completed": submit("alice", "-J", "eval", script="#!/bin/sh\ntrue\n"),
        "signalled": submit("alice", "-J", "segv", script="#!/bin/sh\nkill -SEGV $$\n"),
        "cancelled": submit("alice", "-J", "not needed"),
    }
    jobs |= {
        "cancelled_waiting": submit("alice", "-J", "changed my mind", "--hold"),
        "gpus_held": submit("alice", "-J", "three gpus", "-p", "gpu", "--gpus=3", "--hold"),
        "irregular": submit("alice", "-J", "irregular", f"--array={IRREGULAR_TASKS}", "--hold"),
        "held": submit("alice", "-J", "held by its user", "--hold", "-t", "1-00:00:00"),
        "held_by_root": submit("alice", "-J", "held by root", "--begin=now+1hour"),
        "dependent": submit("alice", "-J", "after training", "-d", f"afterok:{jobs['training']}"),
        "bobs_pending": submit("bob", "-J", "tomorrow", "--begin=now+1day"),
    }
    lab.admin("scontrol", "hold", jobs["held_by_root"])
    lab.admin(
        "scontrol", "update", f"nodename={DRAINED_NODE}", "state=drain", f"reason={DRAIN_REASON}"
    )
    for label in ("training", "cancelled", "bobs"):
        lab.wait_state(jobs[label], "RUNNING")
    for label in ("cancelled", "cancelled_waiting"):
        lab.as_user("alice", "scancel", jobs[label])
        lab.wait_state(jobs[label], "CANCELLED")
    lab.wait_state(f"{jobs['array']}_1", "RUNNING")
    for label, state in (("failed", "FAILED"), ("signalled", "FAILED"), ("completed", "COMPLETED")):
        lab.wait_state(jobs[label], state)
    # The controller tells the accounting of ends in batches.
    ended = {jobs[label] for label in ("failed", "signalled", "completed", "cancelled")}
    wait_until("the accounting to know of all ends", lambda: ended <= _ended_in_accounting(lab))
    return Scene(lab, **jobs)


def _ended_in_accounting(lab: SlurmLab) -> set[str]:
    # Asked up to now, sacct leaves out what happened within this second.
    lines = (
        lab.admin("sacct", "-anX", "-P", "-o", "jobid,end", "-S", "now-1hour")
        .stdout.decode()
        .splitlines()
    )
    return {line.partition("|")[0] for line in lines if not line.endswith("|Unknown")}
