"""A train on a cluster in this process: two jobs that ended, one that runs, one that waits, an array after it.

Asserts nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hpcdash.errors import without_env
from hpcdash.transport.base import CommandResult
from tests.ui.jobs.acting_stage import PENDING, ActingTransport, job

SCRIPT = b"#!/bin/bash\n#SBATCH --time=20\nsrun train\n"
WAITS = {**PENDING, "reason": "Dependency", "eligibletime": "N/A"}
PAST = {"jobname": "train", "alloctres": "cpu=8", "elapsedraw": "3600", "nodelist": "g1"}


class TrainTransport(ActingTransport):
    """`submitted` has the words and stdin of each sbatch, which get 91, 92, …; `script` is every job's.

    `line_asked` hears of whom the accounting is asked how it was submitted. What reads and writes a stub's file is run
    here, on a real file.
    """

    def __init__(self, *, has_array: bool = True) -> None:
        rows = [
            job("62", name="train", timeused="30:00"),
            job("63", name="train", dependency="afterany:62(unfulfilled)", **WAITS),
        ]
        if has_array:
            rows.append(job("64_[1-300%1]", name="last-part", dependency="afterany:63(unfulfilled)", **WAITS))
        super().__init__(*rows)
        self.recent = [*rows]
        self.history = [
            {**PAST, "jobid": "60", "state": "COMPLETED", "start": "1795238400", "end": "1795242000"},
            {**PAST, "jobid": "61", "state": "FAILED", "start": "1795242000", "end": "1795245600", "exitcode": "3:0"},
        ]
        self.lines = {"60": "sbatch run.sh", "61": "sbatch -d afterany:60 run.sh", "62": "sbatch -d afterany:61 run.sh"}
        self.submitted: list[tuple[tuple[str, ...], bytes | None]] = []
        self.script = SCRIPT
        self.line_asked: Callable[[str], None] = lambda job_id: None

    async def run(self, argv: tuple[str, ...], *, stdin: bytes | None = None, **limits: Any) -> CommandResult:
        words = without_env(argv)
        if "sbatch" in words[:5]:
            self.submitted.append((words, stdin))
            return CommandResult(argv, 0, f"Submitted batch job {90 + len(self.submitted)}\n".encode(), b"", 0.01)
        if words[:2] == ("scontrol", "write"):
            return CommandResult(argv, 0, self.script, b"", 0.01)
        if words[0] == "sacct" and words[-1] == "ALL":
            return CommandResult(argv, 0, self._line(words), b"", 0.01)
        if words[0] == "scontrol" and "show" in words:
            told = f"JobId={words[-1].partition('_')[0]} JobName=train\n   UserId=alice(1001)\n   BatchFlag=1\n"
            return CommandResult(argv, 0, told.encode(), b"", 0.01)
        if words[0] == "sh" and ("read_file" in words[2] or "sha256sum" in words[2]):
            process = await asyncio.create_subprocess_exec(*argv, stdin=-1, stdout=-1, stderr=-1)
            stdout, stderr = await process.communicate(stdin)
            return CommandResult(argv, process.returncode or 0, stdout, stderr, 0.01)
        return await super().run(argv, **limits)

    def _line(self, words: tuple[str, ...]) -> bytes:
        """What the accounting says of how a job was submitted."""
        asked = words[words.index("-j") + 1]
        self.line_asked(asked)
        separator = next(word for word in words if word.startswith("--delimiter=")).removeprefix("--delimiter=")
        more = [f"Field{number}" for number in range(30)]
        rows = [["JobID", *more, "SubmitLine"], [asked, *["" for _ in more], self.lines.get(asked, "sbatch run.sh")]]
        return ("\n".join(separator.join(row) for row in rows) + "\n").encode()
