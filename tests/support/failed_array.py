"""An array of which some tasks failed, on a cluster in this process; its logs are real files, read by a real shell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from hpcdash.errors import without_env
from hpcdash.transport.base import CommandResult
from tests.support.scripted_transport import ScriptedTransport
from tests.support.slurm_text import Fields

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
SCRIPT = b"#!/bin/bash\n#SBATCH --time=20\nsrun train\n"


class FailedArray(ScriptedTransport):
    """Array 88 of alice's, its logs in a folder.

    `submitted` has the words and stdin of each sbatch; `sbatch` is its status, stdout and stderr, or what is raised.
    """

    def __init__(self, folder: Path, ends: dict[int, tuple[str, str, str, str]] | None = None) -> None:
        super().__init__()
        self.folder = folder
        self.submitted: list[tuple[tuple[str, ...], bytes | None]] = []
        self.sbatch: tuple[int, bytes, bytes] | Exception = (0, b"Submitted batch job 93\n", b"")
        self.submit_line = "sbatch --mem=4G -a 0-9%4 train.sh"
        self.log_reads = 0
        for task, (state, code, node, log) in sorted((ends or ENDS).items()):
            self.end(task, state, code, node, log)
        self.recent = [*self.mine]

    def end(self, task: int, state: str, code: str, node: str, log: str) -> None:
        (self.folder / f"88_{task:02d}.out").write_text(log.format(task=task))
        row: Fields = {
            "jobarrayid": f"88_{task}",
            "arraytaskid": str(task),
            "state": state,
            "exit_code": code,
            "nodelist": node,
            "name": "lr-sweep",
            "workdir": str(self.folder),
        }
        self.mine = [*(known for known in self.mine if known["jobarrayid"] != row["jobarrayid"]), row]
        self.recent = [*self.mine]

    async def run(self, argv: tuple[str, ...], *, stdin: bytes | None = None, **limits: Any) -> CommandResult:
        words = without_env(argv)
        if "sbatch" in words[:5]:
            self.submitted.append((words, stdin))
            if isinstance(self.sbatch, Exception):
                raise self.sbatch
            status, stdout, stderr = self.sbatch
            return CommandResult(argv, status, stdout, stderr, 0.01)
        if words[0] == "sh" and "tail -c" in words[2]:
            self.log_reads += 1
            process = await asyncio.create_subprocess_exec(*argv, stdout=-1, stderr=-1)
            stdout, stderr = await process.communicate()
            return CommandResult(argv, process.returncode or 0, stdout, stderr, 0.01)
        if words[:2] == ("scontrol", "write"):
            return CommandResult(argv, 0, SCRIPT, b"", 0.01)
        if words[0] == "scontrol" and "show" in words:
            return CommandResult(argv, 0, self._shown(words[-1]).encode(), b"", 0.01)
        if words[0] == "sacct" and words[-1] == "ALL":
            fields = ["JobID", *(f"Field{number}" for number in range(30)), "SubmitLine"]
            separator = next(word for word in words if word.startswith("--delimiter=")).removeprefix("--delimiter=")
            values = ["88_0", *("" for _ in range(30)), self.submit_line]
            text = "\n".join(separator.join(line) for line in (fields, values)) + "\n"
            return CommandResult(argv, 0, text.encode(), b"", 0.01)
        return await super().run(argv, stdin=stdin, **limits)

    def _shown(self, job_id: str) -> str:
        task = job_id.partition("_")[2] or "0"
        path = f"{self.folder}/88_{int(task):02d}.out"
        return (
            f"JobId={100 + int(task)} ArrayJobId=88 ArrayTaskId={task} JobName=lr-sweep\n   UserId=alice(1001)\n"
            f"   BatchFlag=1\n   Command={self.folder}/train.sh\n   StdErr={path}\n   StdOut={path}\n"
        )
