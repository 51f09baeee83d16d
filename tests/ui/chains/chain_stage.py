"""A train on a cluster in this process: two jobs that ended, one that runs, one that waits, an
array after it.

Asserts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.scripted_transport import ScriptedTransport, run_here
from tests.support.slurm_text import shown_job, submit_line_text
from tests.ui.jobs.acting_stage import PENDING, job

SCRIPT = b"#!/bin/bash\n#SBATCH --time=20\nsrun train\n"
WAITS = {**PENDING, "reason": "Dependency", "eligibletime": "N/A"}
PAST = {"jobname": "train", "alloctres": "cpu=8", "elapsedraw": "3600", "nodelist": "g1"}


LINES = {
    "60": "sbatch run.sh",
    "61": "sbatch -d afterany:60 run.sh",
    "62": "sbatch -d afterany:61 run.sh",
}
# The command that asks the accounting how a job was submitted.
SUBMIT_LINE = "sacct*ALL"


def train_cluster(*, has_array: bool = True, lines: Mapping[str, str] = LINES) -> ScriptedTransport:
    """The cluster; `lines` is how jobs were submitted.

    What reads and writes a stub's file is run on a real file.
    """
    rows = [
        job("62", name="train", timeused="30:00"),
        job("63", name="train", dependency="afterany:62(unfulfilled)", **WAITS),
    ]
    if has_array:
        rows.append(
            job("64_[1-300%1]", name="last-part", dependency="afterany:63(unfulfilled)", **WAITS)
        )
    transport = ScriptedTransport(*rows)
    transport.recent = [*rows]
    transport.history = [
        {**PAST, "jobid": "60", "state": "COMPLETED", "start": "1795238400", "end": "1795242000"},
        {
            **PAST,
            "jobid": "61",
            "state": "FAILED",
            "start": "1795242000",
            "end": "1795245600",
            "exitcode": "3:0",
        },
    ]
    transport.answers = {
        "scontrol*show": lambda command: shown_job(command.words[-1]),
        "scontrol write": SCRIPT,
        SUBMIT_LINE: lambda command: submit_line_text(
            command.words,
            {asked_of(command.words): lines.get(asked_of(command.words), "sbatch run.sh")},
        ),
        "sh*read_file": run_here,
        "sh*sha256sum": run_here,
    }
    return transport


def asked_of(words: tuple[str, ...]) -> str:
    return words[words.index("-j") + 1]


def lines_asked(transport: ScriptedTransport) -> list[str]:
    """Of whom the accounting was asked how it was submitted."""
    return [asked_of(words) for words in transport.ran(SUBMIT_LINE)]
