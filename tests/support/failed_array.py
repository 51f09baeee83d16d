"""An array of which some tasks failed, on a cluster in this process; its logs are real files, read by a real shell."""

from __future__ import annotations

from pathlib import Path

from tests.support.scripted_transport import Command, ScriptedTransport, run_here
from tests.support.slurm_text import Fields, submit_line_text

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


def failed_array(folder: Path, ends: dict[int, tuple[str, str, str, str]] | None = None) -> ScriptedTransport:
    """A cluster with array 88 of alice's, whose logs are in a folder; what is submitted is job 93."""
    transport = ScriptedTransport()
    for task, end in sorted((ends or ENDS).items()):
        end_task(transport, folder, task, *end)

    def shown(command: Command) -> str:
        task = int(command.words[-1].partition("_")[2] or "0")
        path = f"{folder}/88_{task:02d}.out"
        return (
            f"JobId={100 + task} ArrayJobId=88 ArrayTaskId={task} JobName=lr-sweep\n   UserId=alice(1001)\n"
            f"   BatchFlag=1\n   Command={folder}/train.sh\n   StdErr={path}\n   StdOut={path}\n"
        )

    transport.answers = {
        "sbatch": "Submitted batch job 93\n",
        LOG_ENDS: run_here,
        "scontrol write": SCRIPT,
        "scontrol*show": shown,
        "sacct*ALL": lambda command: submit_line_text(command.words, {"88_0": "sbatch --mem=4G -a 0-9%4 train.sh"}),
    }
    return transport


def end_task(transport: ScriptedTransport, folder: Path, task: int, state: str, code: str, node: str, log: str) -> None:
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
    transport.mine = [*(known for known in transport.mine if known["jobarrayid"] != row["jobarrayid"]), row]
    transport.recent = [*transport.mine]
