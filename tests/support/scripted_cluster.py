"""A store and a poller over a scripted transport, with a clock that a test moves, and an array that
failed there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.poller import Pace, Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.snapshots import SnapshotCache
from hpcdash.services.cluster.store import Changed, ClusterStore
from hpcdash.services.jobs.tracker import JobEvent
from tests.support.scripted_transport import HISTORY, PROBED, Command, ScriptedTransport, run_here
from tests.support.slurm_text import Fields, submit_line_text
from tests.support.waiting import until

PACE = Pace(
    {
        Kind.MINE: 15.0,
        Kind.EVERYONE: 60.0,
        Kind.NODES: 60.0,
        Kind.QUEUES: 60.0,
        Kind.HISTORY: 300.0,
        Kind.HISTORY_EVERYONE: 300.0,
        Kind.SHARES: 600.0,
        Kind.LIMITS: 60.0,
        Kind.RESERVATIONS: 60.0,
    }
)


class HandClock:
    """Epoch and monotonic seconds at once; moves when a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1_795_242_200.0

    def now(self) -> float:
        return self.seconds

    def __call__(self) -> float:
        return self.seconds


async def settled(cluster: Cluster) -> None:
    """Lets all run to its end but what hangs on the other side."""
    hanging = cluster.transport.hangs.keys()

    def rests() -> bool:
        if PROBED in hanging:
            return True
        waiting = {*cluster.poller._in_flight, *cluster.store._fetching}
        return all((HISTORY if kind is Kind.HISTORY else kind) in hanging for kind in waiting)

    for _ in range(3):
        for _ in range(5):
            await asyncio.sleep(0)
        await until(rests)


@dataclass
class Cluster:
    """A store over a scripted transport, its poller, and all that its listeners were told."""

    root: Path
    clock: HandClock = field(default_factory=HandClock)
    transport: ScriptedTransport = field(default_factory=ScriptedTransport)
    user: str = ""
    ceiling: int = 600
    told: list[Changed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.budget = CommandBudget(self.ceiling, self.clock)
        self.cache = SnapshotCache(self.root, "lab")
        self.store = ClusterStore(
            "lab",
            self.transport,
            (BACKEND,),
            clock=self.clock,
            budget=self.budget,
            cache=self.cache,
            user=self.user,
        )
        self.store.listen(self.told.append)
        self.poller = Poller(self.store, PACE, monotonic=self.clock)

    async def mine(self) -> list[JobEvent]:
        """A look at one's own jobs; what happened to them by it."""
        self.told.clear()
        await self.store.fetch(Kind.MINE)
        return [event for changed in self.told for event in changed.events]

    def states(self) -> dict[str, str]:
        """The jobs as they are shown, by id, in their order."""
        table = self.store.table(Kind.MINE)
        assert table is not None
        return dict(zip(table["id"].to_pylist(), table["state"].to_pylist(), strict=True))

    async def close(self) -> None:
        await self.poller.stop()
        await self.store.close()


TRACEBACK = """step 40
Traceback (most recent call last):
  File "train.py", line {task}, in <module>
    loss.backward()
RuntimeError: CUDA out of memory. Tried to allocate {task}.50 GiB
srun: error: g1: task 0: Exited with exit code 1
"""
MISSING = "/var/spool/slurmd/job00{task}/slurm_script: line 4: nvidia-smi: command not found\n"
# Task → (state of squeue, exit code as squeue prints it, node, log).
ENDS: dict[int, tuple[str, str, str, str]] = {
    **dict.fromkeys((0, 2, 4, 5), ("COMPLETED", "0", "g2", "loss 0.1\n")),
    **dict.fromkeys((3, 7, 8), ("FAILED", "256", "g1", TRACEBACK)),
    9: ("FAILED", "32512", "g2", MISSING),
    1: ("TIMEOUT", "0", "g2", "step 1\n\n"),
}
SCRIPT = "#!/bin/bash\n#SBATCH --time=20\nsrun train\n"


# Looks at the ends of logs.
LOG_ENDS = "sh*tail -c"


def failed_array(
    folder: Path, ends: dict[int, tuple[str, str, str, str]] | None = None
) -> ScriptedTransport:
    """A cluster with array 88 of alice's, whose logs are in a folder; what is submitted is job
    93.
    """
    transport = ScriptedTransport()
    for task, end in sorted((ends or ENDS).items()):
        end_task(transport, folder, task, *end)

    def shown(command: Command) -> str:
        task = int(command.words[-1].partition("_")[2] or "0")
        path = f"{folder}/88_{task:02d}.out"
        return (
            f"JobId={100 + task} ArrayJobId=88 ArrayTaskId={task} JobName=lr-sweep\n   "
            "UserId=alice(1001)\n"
            f"   BatchFlag=1\n   Command={folder}/train.sh\n   StdErr={path}\n   StdOut={path}\n"
        )

    transport.answers = {
        "sbatch": "Submitted batch job 93\n",
        LOG_ENDS: run_here,
        "scontrol write": SCRIPT,
        "scontrol*show": shown,
        "sacct*ALL": lambda command: submit_line_text(
            command.words, {"88_0": "sbatch --mem=4G -a 0-9%4 train.sh"}
        ),
    }
    return transport


def end_task(
    transport: ScriptedTransport,
    folder: Path,
    task: int,
    state: str,
    code: str,
    node: str,
    log: str,
) -> None:
    (folder / f"88_{task:02d}.out").write_text(log.format(task=task))
    row: Fields = {
        "jobarrayid": f"88_{task}",
        "arraytaskid": str(task),
        "state": state,
        "exit_code": code,
        "nodelist": node,
        "name": "lr-sweep",
        "workdir": str(folder),
    }
    transport.mine = [
        *(known for known in transport.mine if known["jobarrayid"] != row["jobarrayid"]),
        row,
    ]
    transport.recent = [*transport.mine]
