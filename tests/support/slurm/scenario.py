"""A cluster as people know it: a job of nearly every state and reason, for looking at and for
recording.
"""

from __future__ import annotations

from tests.support.waiting import wait_until

from .lab import SlurmLab

_TRAIN = "#!/bin/sh\nsrun sleep 43200\n"


def scenario(lab: SlurmLab) -> dict[str, str]:
    """Submit the jobs, wait until they stand as named (about 10 s), and answer job ids by what they
    show.

    "timeout" runs out of its time within half a minute after that: the controller looks only so
    often.
    """
    alice, bob = lab.users[0], lab.users[-1]
    jobs = _ended_and_running(lab, alice, bob)
    _take_down_and_preempt(lab, alice, bob, jobs)
    _act_on_running(lab, alice, jobs)
    _pending(lab, alice, bob, jobs)
    return jobs


def _ended_and_running(lab: SlurmLab, alice: str, bob: str) -> dict[str, str]:
    jobs = {
        "timeout": lab.submit(alice, "-J", "ran out of time", "-t", "5"),
        "completed": lab.submit(
            alice, "-J", "eval", "--comment=best loss 0.12", script="#!/bin/sh\nsrun true\n"
        ),
        "failed": lab.submit(
            alice, "-J", "broken import", script="#!/bin/sh\necho boom >&2\nexit 3\n"
        ),
        "killed by a signal": lab.submit(bob, "-J", "segv", script="#!/bin/sh\nkill -SEGV $$\n"),
        "running with gpus": lab.submit(
            alice,
            *(
                "-J",
                "train resnet50 (lr=1e-3)",
                "-p",
                "gpu",
                "-w",
                "g1",
                "--gres=gpu:a100:2",
                "-c4",
                "--mem=4G",
            ),
            script=_TRAIN,
        ),
        "running on two nodes": lab.submit(
            bob, "-J", "mpi", "-p", "long", "-N2", "-n4", "--mem-per-cpu=50", script=_TRAIN
        ),
        "array": lab.submit(bob, "-J", "sweep", "-p", "long", "--array=0-99%2"),
        "licenses": lab.submit(alice, "-J", "holds both licenses", "-L", "matlab:2"),
    }
    for label, state in (
        ("completed", "COMPLETED"),
        ("failed", "FAILED"),
        ("killed by a signal", "FAILED"),
    ):
        lab.wait_state(jobs[label], state)
    for label in ("timeout", "running with gpus", "running on two nodes"):
        lab.wait_state(jobs[label], "RUNNING")
    lab.admin("scontrol", "update", f"jobid={jobs['timeout']}", "endtime=now+1")
    return jobs


def _take_down_and_preempt(lab: SlurmLab, alice: str, bob: str, jobs: dict[str, str]) -> None:
    on_g2 = ("-p", "gpu", "-w", "g2")
    jobs["node failed"] = lab.submit(alice, "-J", "was on g2", *on_g2, "--no-requeue")
    lab.wait_state(jobs["node failed"], "RUNNING")
    lab.admin("scontrol", "update", "nodename=g2", "state=down", "reason=lost power")
    lab.wait_state(jobs["node failed"], "NODE_FAIL")
    lab.resume_nodes()
    if lab.settings.accounting:
        jobs["preempted"] = lab.submit(bob, "-J", "scavenger", *on_g2, "-n8", "--qos=scavenger")
        lab.wait_state(jobs["preempted"], "RUNNING")
        jobs["preemptor"] = lab.submit(
            alice, "-J", "urgent", *on_g2, "-n8", "--qos=high", script="#!/bin/sh\nsleep 1\n"
        )
        lab.wait_state(jobs["preempted"], "PREEMPTED")
        lab.wait_state(jobs["preemptor"], "COMPLETED")
    lab.admin(
        "scontrol", "update", "nodename=g2", "state=drain", "reason=GPU 3 fell off the bus: Xid 79"
    )


def _act_on_running(lab: SlurmLab, alice: str, jobs: dict[str, str]) -> None:
    labels = ("suspended", "completing", "cancelled", "requeued and held", "special exit")
    jobs.update({label: lab.submit(alice, "-J", label) for label in labels})
    for label in labels:
        lab.wait_state(jobs[label], "RUNNING")
    lab.admin("scontrol", "suspend", jobs["suspended"])
    lab.slow_epilog(jobs["completing"], 900)
    for label in ("completing", "cancelled"):
        lab.as_user(alice, "scancel", jobs[label])
    lab.admin("scontrol", "requeuehold", jobs["requeued and held"])
    lab.admin("scontrol", "requeuehold", "state=SpecialExit", jobs["special exit"])
    lab.wait_state(jobs["completing"], "COMPLETING")
    lab.wait_state(jobs["cancelled"], "CANCELLED")


def _pending(lab: SlurmLab, alice: str, bob: str, jobs: dict[str, str]) -> None:
    running, ended = jobs["running with gpus"], jobs["failed"]
    jobs["held"] = lab.submit(alice, "-J", "held by its user", "--hold")
    jobs["held by admin"] = lab.submit(alice, "-J", "held by root", "--begin=now+1hour")
    lab.admin("scontrol", "hold", jobs["held by admin"])
    jobs["begin"] = lab.submit(alice, "-J", "tonight", "--begin=now+2hours")
    jobs["dependency"] = lab.submit(alice, "-J", "after training", "-d", f"afterok:{running}")
    jobs["dependency never satisfied"] = lab.submit(
        alice, "-J", "never", "-d", f"afterok:{running},afterok:{ended}"
    )
    jobs["partition down"] = lab.submit(alice, "-J", "to closed", "-p", "closed")
    jobs["over the partition's time"] = lab.submit(
        alice, "-J", "too long", "-p", "debug", "-t", "2:00:00"
    )
    jobs["license"] = lab.submit(
        alice, "-J", "waits for a license", "-p", "debug", "-L", "matlab:1"
    )
    jobs["node drained"] = lab.submit(alice, "-J", "wants g2", "-p", "gpu", "-w", "g2")
    if lab.settings.accounting:
        limited = [
            lab.submit(bob, "-J", "limited", "-p", "debug", "--qos=limited") for _ in range(3)
        ]
        # Which two of them run is the scheduler's choice.
        wait_until("two of three to run", lambda: len(_waiting(lab, limited)) == 1)
        (jobs["qos limit"],) = _waiting(lab, limited)
    jobs["resources"] = lab.submit(bob, "-J", "whole machine", "-N2", "--exclusive")
    jobs["priority"] = lab.submit(bob, "-J", "behind it", "-N2", "--exclusive", "--nice=5000")
    jobs["held array"] = lab.submit(alice, "-J", "held sweep", "--array=0-999", "--hold")
    lab.admin("scontrol", "update", "nodename=n3", "state=drain", "reason=kernel update")
    wait_until(
        "a reason for every pending job",
        lambda: b"None" not in lab.admin("squeue", "-h", "-t", "PD", "-o", "%r").stdout,
    )


def _waiting(lab: SlurmLab, job_ids: list[str]) -> list[str]:
    return [job_id for job_id in job_ids if lab.job_states(job_id) == {"PENDING"}]
