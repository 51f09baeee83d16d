"""Two Slurm clusters in this process that carry out what they accept, a job to move between them,
and deaths of the process that moves it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.errors import ConnectionFailed
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.poller import Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit.launches import Launches
from tests.support.scripted_cluster import PACE
from tests.support.scripted_transport import Command, Reply, ScriptedTransport
from tests.support.slurm_text import submit_line_text

NOW = 1_795_242_200.0
MARK = "hpcdash:0123456789"
SCRIPT = "#!/bin/bash\n#SBATCH --time=20\npython train.py /data/set\n"
WAITS = {"state": "PENDING", "reason": "Priority"}
HELD = {"state": "PENDING", "reason": "JobHeldUser"}
RUNS = {"state": "RUNNING", "reason": "None", "nodelist": "n1", "timeused": "0:05"}
CANCELLED = {"state": "CANCELLED", "reason": "None"}
ESTIMATE = f"sbatch: Job 5 to start at {NOW:.0f} using 8 processors on nodes n1 in partition main"
NOBODY = 4_194_303


class Killed(BaseException):
    """End of the process that moves a job, by SIGKILL."""


class Site:
    """One of the clusters. `jobs` are in squeue's fields; what is in `paths` exists.

    By verb (hold, submit, cancel, release): `refusals` are the scheduler's words, `lost` are those
    of which no answer comes back, `before` and `after` are called around them. `sent` are the
    commands that change jobs.
    """

    def __init__(self, name: str, folder: Path, first: int) -> None:
        self.name = name
        self.jobs: dict[str, dict[str, str]] = {}
        self.paths = {"/home/alice", "/home/alice/train.py", "/data/set"}
        self.refusals: dict[str, str] = {}
        self.lost: set[str] = set()
        self.before: dict[str, Callable[[], None]] = {}
        self.after: dict[str, Callable[[], None]] = {}
        self.sent: list[str] = []
        self.submit_lines = {"12": "sbatch -p main train.sh"}
        self.next_id = first
        self.transport = transport = ScriptedTransport()
        transport.cluster = name
        transport.answers = {
            "scontrol hold": self._verb("hold", HELD),
            "scontrol release": self._verb("release", WAITS),
            "scancel": self._verb("cancel", CANCELLED),
            "sbatch": self._submit,
            "scontrol write": SCRIPT,
            "scontrol*show": self._show,
            "sacct*ALL": lambda command: submit_line_text(command.words, self.submit_lines),
            "sh*still there": "",
            _checks_paths: self._existing,
            _estimates_start: (0, b"", ESTIMATE.encode()),
            "squeue": self._refresh,
        }
        transport.queues = [{"partition": queue} for queue in ("main", "long")]
        nodes = {"nodelist": "n1", "cpusstate": "0/8/0/8", "statecomplete": "idle"}
        transport.nodes = [{**nodes, "partition": queue} for queue in ("main", "long")]
        self.journal = Journal(folder / "state" / "journal.jsonl", now=lambda: NOW)
        store = ClusterStore(
            name, transport, (BACKEND,), clock=FrozenClock(NOW), budget=CommandBudget(10_000)
        )
        launches = Launches(store, None, folder / "state")
        self.session = ClusterSession(
            store, Poller(store, PACE), Actions(store, self.journal), launches
        )

    def add(self, job_id: str = "12", **fields: str) -> None:
        self.jobs[job_id] = {
            "jobarrayid": job_id,
            "arrayjobid": job_id.partition("_")[0],
            "partition": "main",
            "nodelist": "",
            "timeused": "0:00",
            "starttime": "N/A",
            "endtime": "N/A",
            "comment": MARK,
            "tres-alloc": "cpu=8,mem=4G,node=1,billing=8",
            **WAITS,
            **fields,
        }

    def state(self, job_id: str) -> str:
        """held, pending, running, cancelled …; '' where there is no such job."""
        job = self.jobs.get(job_id)
        if job is None:
            return ""
        return "held" if job["reason"] == "JobHeldUser" else job["state"].lower()

    def _refresh(self, command: Command) -> Reply:
        rows = list(self.jobs.values())
        self.transport.recent = [*rows]
        self.transport.mine = [*rows]
        self.transport.everyone = [row for row in rows if row["state"] in ("PENDING", "RUNNING")]
        return None

    def _verb(self, verb: str, becomes: dict[str, str]) -> Callable[[Command], Reply]:
        def reply(command: Command) -> Reply:
            job_id = command.words[-1]
            return self._carry_out(verb, command, lambda: self._change(verb, job_id, becomes))

        return reply

    def _carry_out(self, verb: str, command: Command, act: Callable[[], Reply]) -> Reply:
        self.sent.append(" ".join(command.words))
        self.before.pop(verb, lambda: None)()
        if (text := self.refusals.get(verb)) is not None:
            reply: Reply = (1, b"", text.encode())
        else:
            reply = act()
        self.after.pop(verb, lambda: None)()
        return ConnectionFailed("the line broke") if verb in self.lost else reply

    def _change(self, verb: str, job_id: str, becomes: dict[str, str]) -> Reply:
        for known, job in self.jobs.items():
            if known.partition("_")[0] != job_id.partition("_")[0]:
                continue
            if job["state"] == "RUNNING" and verb != "cancel":
                # Slurm takes a hold and a release of a running job: they set its priority.
                continue
            if job["state"] in ("PENDING", "RUNNING"):
                job.update(becomes)
        return (0, b"", b"")

    def _submit(self, command: Command) -> Reply:
        def act() -> Reply:
            job_id = str(self.next_id)
            self.next_id += 1
            words = command.words
            comment = next(word for word in words if word.startswith("--comment="))
            state = HELD if "--hold" in words else WAITS
            self.add(job_id, comment=comment.partition("=")[2], **state)
            return f"Submitted batch job {job_id}\n"

        return self._carry_out("submit", command, act)

    def _show(self, command: Command) -> Reply:
        job_id = command.words[-1].partition("_")[0]
        if command.words[-2] != "job" or not self.jobs.get(
            job_id, self.jobs.get(f"{job_id}_[0-3]")
        ):
            return None
        return (
            f"JobId={job_id} JobName=train\n   UserId=alice(1001)\n   BatchFlag=1\n   "
            "Command=/home/alice/train.sh\n   StdErr=/home/alice/o\n   StdOut=/home/alice/o\n"
        )

    def _existing(self, command: Command) -> Reply:
        return "".join("1\n" if path in self.paths else "0\n" for path in command.words[4:])


def _estimates_start(words: tuple[str, ...]) -> bool:
    return "--test-only" in words


def _checks_paths(words: tuple[str, ...]) -> bool:
    return words[:2] == ("sh", "-c") and words[2].startswith("for path; do")


class Sites:
    """Job 12 of alice waits on `lab`; `other` is the cluster that it may move to."""

    def __init__(self, folder: Path) -> None:
        self.lab = Site("lab", folder, 70)
        self.other = Site("lab2", folder, 93)
        self.lab.add()
        self._journal_at_death = b""

    @property
    def journal(self) -> Journal:
        return self.lab.journal

    def find(self, name: str) -> ClusterSession | None:
        return {"lab": self.lab.session, "lab2": self.other.session}.get(name)

    @property
    def states(self) -> tuple[str, str]:
        """States of job 12 and of its copy, 93."""
        return self.lab.state("12"), self.other.state("93")

    def die(self) -> None:
        """End as by SIGKILL: nothing more reaches the journal."""
        self._journal_at_death = self.journal.path.read_bytes()
        raise Killed

    def restart(self) -> None:
        """Put the journal back as it was at the death, of a process that is gone."""
        text = self._journal_at_death.decode()
        text = text.replace(f'"pid":{os.getpid()}', f'"pid":{NOBODY}')
        self.journal.path.write_text(re.sub(r',"pid_started_ticks":\d+', "", text))
        for site in (self.lab, self.other):
            site.sent.clear()
            site.before.clear()
            site.after.clear()

    def entries(self) -> list[Any]:
        return self.journal.read()[0]
