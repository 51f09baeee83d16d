"""Which process of a training this one is, as launchers and schedulers say in its environment."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Open MPI, PMIx, MPICH and Intel MPI. mpirun starts its daemons as tasks of Slurm: SLURM_PROCID is the daemon's.
MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
MPI_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID")
MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
MPI_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE")


def rank_among_all(environment: Mapping[str, str] | None = None) -> int:
    """This process's rank among all that train, 0 where there are none: a launcher's RANK before the scheduler's.

    torchrun runs as one task of Slurm a node, so SLURM_PROCID there is the node's and RANK the process's.
    """
    given = os.environ if environment is None else environment
    return first_whole_number(given, "RANK", *MPI_RANKS, "SLURM_PROCID") or 0


def processes_in_all(environment: Mapping[str, str] | None = None) -> int:
    """How many processes train together, 1 where nobody says so."""
    given = os.environ if environment is None else environment
    return first_whole_number(given, "WORLD_SIZE", *MPI_SIZES, "SLURM_STEP_NUM_TASKS") or 1


def whole_number(text: str) -> int | None:
    """A text that is a whole number of 0 or more; None for any other."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def first_whole_number(given: Mapping[str, str], *names: str) -> int | None:
    """The first variable that is a whole number of 0 or more; None where none is."""
    numbers = (whole_number(given.get(name, "")) for name in names)
    return next((number for number in numbers if number is not None), None)
