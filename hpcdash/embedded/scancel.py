"""`scancel` for jobs of the embedded queue: a signal to a job's own steps, or its own end."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from typing import NoReturn

from hpcdash.embedded.processes import MARK

_RECIPIENTS = {"-b": "batch", "--batch": "batch", "-f": "full", "--full": "full"}
_JOB = re.compile(r"([0-9]{1,15}(?:_[0-9]{1,9})?)(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class SignalRequest:
    """Jobs, and what they are to be sent ('' to be ended): to their steps, their batch shell or
    both (full).
    """

    jobs: tuple[str, ...]
    signal: str = ""
    recipient: str = "steps"


def read(parts: Sequence[str]) -> SignalRequest | None:
    """`[--signal=NAME] [--batch|--full] JOB[.STEP]…`; None for anything else.

    Steps of a job are signalled together.
    """
    name = ""
    recipient = "steps"
    jobs: list[str] = []
    left = list(parts)
    while left:
        word = left.pop(0)
        if word in ("-s", "--signal") and left:
            name = left.pop(0)
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
    return SignalRequest(tuple(jobs), name, recipient) if jobs else None


def main() -> NoReturn:
    """Ends with 1 where a job is not there, or cannot be reached; anything but what `read` takes is
    refused.
    """
    requested = read(sys.argv[1:])
    if requested is None:
        sys.exit(
            "scancel: this machine's embedded queue knows only: [--signal=NAME] [--batch|--full] "
            "JOB[.STEP]…"
        )
    folder = os.environ.get(MARK, "").partition(":")[2]
    if not folder:
        sys.exit("scancel: this is not a job of the embedded queue")
    from hpcdash.embedded.commands import main as run

    parts = ["signal", requested.signal, requested.recipient] if requested.signal else ["cancel"]
    _outlive(requested.signal)
    with redirect_stdout(StringIO()) as answers:
        status = run([folder, *parts, *map(_own_task, requested.jobs)])
    if status:
        print("scancel: error:", answers.getvalue().strip(), file=sys.stderr)
    sys.exit(status)


def _outlive(name: str) -> None:
    """This program is among the processes of the job that it has signalled, which Slurm's is
    not.
    """
    from hpcdash.embedded.script import signal_number

    with suppress(ValueError, OSError):
        signal.signal(signal_number(name), signal.SIG_IGN)


def _own_task(job: str) -> str:
    """The id of an array's last task is the array's own: to a job its SLURM_JOB_ID is itself
    alone.
    """
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    is_own = task is not None and job == os.environ.get("SLURM_JOB_ID")
    return f"{os.environ.get('SLURM_ARRAY_JOB_ID', job)}_{task}" if is_own else job
