"""`scancel` for jobs of the embedded queue: signals a job's own steps, or ends the job."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from hpcdash.embedded.commands import run_in_own_queue

_RECIPIENTS = {"-b": "batch", "--batch": "batch", "-f": "full", "--full": "full"}
_JOB = re.compile(r"([0-9]{1,15}(?:_[0-9]{1,9})?)(\.[0-9]{1,9})?")


def parse_arguments(parts: Sequence[str]) -> tuple[str, str, list[str]] | None:
    """Parse `[--signal=NAME] [--batch|--full] JOB[.STEP]…` to (signal or '', recipient, jobs).

    The recipient is steps, batch (the batch shell) or full (both). Steps of a job are signalled
    together. None for other arguments.
    """
    name = ""
    recipient = "steps"
    jobs: list[str] = []
    remaining = list(parts)
    while remaining:
        word = remaining.pop(0)
        if word in ("-s", "--signal") and remaining:
            name = remaining.pop(0)
        elif word.startswith("--signal="):
            name = word.partition("=")[2]
        elif re.fullmatch("-s[A-Za-z0-9]+", word):
            name = word[2:]
        elif word in _RECIPIENTS:
            recipient = _RECIPIENTS[word]
        elif (job := _JOB.fullmatch(word)) and not (job[2] and not name):
            jobs.append(job[1])
        else:
            return None
    return (name, recipient, jobs) if jobs else None


def main() -> NoReturn:
    """Exit with 1 if a job does not exist, or cannot be reached; other arguments are refused."""
    parsed = parse_arguments(sys.argv[1:])
    if parsed is None:
        sys.exit(
            "scancel: this machine's embedded queue supports only: [--signal=NAME] "
            "[--batch|--full] JOB[.STEP]…"
        )
    name, recipient, jobs = parsed
    if name:
        from hpcdash.embedded.script import signal_number

        # This program is one of the job's processes, and must survive the signal, as Slurm's does.
        with suppress(ValueError, OSError):
            signal.signal(signal_number(name), signal.SIG_IGN)
    parts = ["signal", name, recipient] if name else ["cancel"]
    status, output = run_in_own_queue("scancel", [*parts, *map(_own_task, jobs)])
    if status:
        print("scancel: error:", output, file=sys.stderr)
    sys.exit(status)


def _own_task(job: str) -> str:
    """Return the task's ID for a task's own number.

    The number of an array's last task is also the array's, but a job's SLURM_JOB_ID means only
    itself.
    """
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    if task is None or job != os.environ.get("SLURM_JOB_ID"):
        return job
    return f"{os.environ.get('SLURM_ARRAY_JOB_ID', job)}_{task}"
