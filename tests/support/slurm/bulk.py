"""Fills a lab with very many distinct jobs, through libslurm and not sbatch."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .daemons import LabError
from .lab import SlurmLab
from .requirements import why_no_bulk

_SOURCE = Path(__file__).with_name("bulk.c")
# More clients at once only wait for the controller's lock.
_CLIENTS = 4


def bulk_jobs(
    lab: SlurmLab,
    user: str,
    count: int,
    *,
    partition: str = "main",
    held: bool = True,
    prefix: str = "run_seed",
    first: int = 1,
) -> None:
    """Submit `count` one-CPU jobs named PREFIX1, PREFIX2, … with differing time limits, about 2 000
    a second.

    `held`: they wait for their user, so that none starts; else as many run as fit. Numbers go on
    from `first`. Raises LabError where gcc or libslurm's headers are missing: ask
    requirements.why_no_bulk() before.
    """
    program = _compiled(lab)
    ends = [first + count * client // _CLIENTS for client in range(_CLIENTS + 1)]

    def submit(client: int) -> None:
        span = (str(ends[client]), str(ends[client + 1] - 1))
        words = (*span, partition, str(int(held)), prefix)
        lab.as_user(user, program, *words)

    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(submit, range(_CLIENTS)))


def _compiled(lab: SlurmLab) -> Path:
    reason = why_no_bulk()
    if reason:
        raise LabError(reason)
    program = lab.run_dir / "bin" / "bulk"
    if not program.exists():
        built = subprocess.run(
            ["gcc", "-O2", "-o", program, _SOURCE, "-lslurm"], capture_output=True
        )
        if built.returncode:
            raise LabError(
                f"gcc could not compile {_SOURCE.name}:\n{built.stderr.decode(errors='replace')}"
            )
    return program
