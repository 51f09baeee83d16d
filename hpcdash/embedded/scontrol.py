"""`scontrol` for jobs of the embedded queue: the nodes' names, and a requeue of the job itself."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from hpcdash.domain.nodelist import expand


def main() -> NoReturn:
    """Run `scontrol show hostnames [LIST]` or `scontrol requeue JOB…`; refuse other arguments."""
    parts = sys.argv[1:]
    if parts[:1] == ["show"] and parts[1:2] in (["hostnames"], ["hostname"]):
        nodes = parts[2] if len(parts) > 2 else os.environ.get("SLURM_JOB_NODELIST", "")
        for name in expand(nodes):
            print(name)
        sys.exit(0)
    if parts[:1] == ["requeue"] and len(parts) > 1:
        from hpcdash.embedded.commands import run_in_own_queue

        status, output = run_in_own_queue("scontrol", parts)
        if status:
            print("scontrol: not requeued:", output, file=sys.stderr)
        sys.exit(status)
    sys.exit(
        "scontrol: this machine's embedded queue supports only: show hostnames [LIST], requeue JOB"
    )
