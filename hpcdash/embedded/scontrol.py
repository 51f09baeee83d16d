"""`scontrol` for jobs of the embedded queue: the nodes' names, and a requeue of the job itself."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import NoReturn

from hpcdash.domain.nodelist import expand
from hpcdash.embedded.processes import MARK


def main() -> NoReturn:
    """`scontrol show hostnames [LIST]` and `scontrol requeue JOB…`; anything else is refused."""
    parts = sys.argv[1:]
    if parts[:1] == ["show"] and parts[1:2] in (["hostnames"], ["hostname"]):
        for name in expand(
            parts[2] if len(parts) > 2 else os.environ.get("SLURM_JOB_NODELIST", "")
        ):
            print(name)
        sys.exit(0)
    if parts[:1] == ["requeue"] and len(parts) > 1:
        sys.exit(_requeue(parts[1:]))
    sys.exit(
        "scontrol: this machine's embedded queue knows only: show hostnames [LIST], requeue JOB"
    )


def _requeue(jobs: list[str]) -> int:
    from hpcdash.embedded.commands import main as run

    folder = os.environ.get(MARK, "").partition(":")[2]
    if not folder:
        sys.exit("scontrol: this is not a job of the embedded queue")
    with redirect_stdout(StringIO()) as answers:
        status = run([folder, "requeue", *jobs])
    if status:
        print("scontrol: not requeued:", answers.getvalue().strip(), file=sys.stderr)
    return status
