"""Rank of this process in a training, from the environment that launchers and schedulers set."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Open MPI, PMIx, MPICH and Intel MPI. mpirun starts its daemons as tasks of Slurm: SLURM_PROCID is
# the daemon's.
MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
MPI_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID")
MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
MPI_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


# Number of processes that Slurm started together: in a step its own number, in a batch script the
# requested one.
SLURM_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
_NODES = ("NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_OF_A_LAUNCHER = ("LOCAL_RANK", "WORLD_SIZE")


def is_launcher_set(given: Mapping[str, str]) -> bool:
    """Whether RANK, LOCAL_RANK and WORLD_SIZE are right, all three together, and what Slurm and MPI
    say is not.

    Those who start processes by srun have Slurm's variables right in each. torchrun, accelerate and
    deepspeed, which are tasks of Slurm themselves, set the three for the processes that they start,
    in which Slurm's are the launcher's. So the three go first where they are all there, and
    torchrun says that it set them (TORCHELASTIC_RUN_ID), or WORLD_SIZE is not the number that srun
    or mpirun started, or neither started this process. Lightning, where it starts processes itself,
    says NODE_RANK instead of RANK.
    """
    is_ranked = first_whole_number(given, "RANK", "NODE_RANK") is not None
    if not is_ranked or any(whole_number(given.get(name, "")) is None for name in _OF_A_LAUNCHER):
        return False
    started = first_whole_number(given, *MPI_SIZES, *SLURM_SIZES)
    is_in_step = first_whole_number(given, *MPI_SIZES, "SLURM_STEP_ID", "SLURM_STEPID") is not None
    return (
        bool(given.get("TORCHELASTIC_RUN_ID"))
        or not is_in_step
        or started != whole_number(given["WORLD_SIZE"])
    )


def find_rank(given: Mapping[str, str]) -> int | None:
    """Return a process's rank among all, None where its environment has none."""
    if is_launcher_set(given):
        return _launched_rank(given)
    return first_whole_number(given, *MPI_RANKS, "SLURM_PROCID", "RANK")


def _launched_rank(given: Mapping[str, str]) -> int | None:
    rank = whole_number(given.get("RANK", ""))
    if rank is not None:
        return rank
    node, local = int(given["NODE_RANK"]), int(given["LOCAL_RANK"])
    # Lightning does not report the number of processes on a node.
    size, nodes = int(given["WORLD_SIZE"]), first_whole_number(given, *_NODES) or 0
    if node and (not nodes or size % nodes):
        return None
    return node * (size // nodes) + local if node else local


def rank_among_all(environment: Mapping[str, str] | None = None) -> int:
    """This process's rank among all that train, 0 where there are none.

    Where only its node's rank is known, and its own there, a number that is at least not 0.
    """
    given = os.environ if environment is None else environment
    rank = find_rank(given)
    if rank is None and is_launcher_set(given):
        rank = first_whole_number(given, "NODE_RANK")
    return rank or 0


def processes_in_all(environment: Mapping[str, str] | None = None) -> int:
    """Return the number of processes that train together, 1 where it is unknown."""
    given = os.environ if environment is None else environment
    # SLURM_NTASKS is that of a batch script too, which is one process.
    names = (
        ("WORLD_SIZE",)
        if is_launcher_set(given)
        else (*MPI_SIZES, "SLURM_STEP_NUM_TASKS", "WORLD_SIZE")
    )
    return first_whole_number(given, *names) or 1


def whole_number(text: str) -> int | None:
    """A text that is a whole number of 0 or more; None for any other."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def first_whole_number(given: Mapping[str, str], *names: str) -> int | None:
    """The first variable that is a whole number of 0 or more; None where none is."""
    numbers = (whole_number(given.get(name, "")) for name in names)
    return next((number for number in numbers if number is not None), None)
