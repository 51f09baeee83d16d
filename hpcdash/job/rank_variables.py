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
# Number of processes that Slurm started together: in a step the step's number, in a batch script
# the requested number.
SLURM_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
_NODES = ("NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_LAUNCHER_VARIABLES = ("LOCAL_RANK", "WORLD_SIZE")


def is_launcher_set(given: Mapping[str, str]) -> bool:
    """Return whether RANK, LOCAL_RANK and WORLD_SIZE apply, and not the variables of Slurm or MPI.

    In a process that srun started, Slurm's variables are right. torchrun, accelerate and deepspeed
    are tasks of Slurm themselves and set the three for the processes that they start, where Slurm's
    variables are still the launcher's. So the three apply if all of them are set, and torchrun set
    them (TORCHELASTIC_RUN_ID), or WORLD_SIZE differs from the number that srun or mpirun started,
    or neither started this process. Lightning sets NODE_RANK instead of RANK in the processes that
    it starts.
    """
    is_ranked = first_whole_number(given, "RANK", "NODE_RANK") is not None
    if not is_ranked or any(
        whole_number(given.get(name, "")) is None for name in _LAUNCHER_VARIABLES
    ):
        return False
    started = first_whole_number(given, *MPI_SIZES, *SLURM_SIZES)
    is_in_step = first_whole_number(given, *MPI_SIZES, "SLURM_STEP_ID", "SLURM_STEPID") is not None
    return (
        bool(given.get("TORCHELASTIC_RUN_ID"))
        or not is_in_step
        or started != whole_number(given["WORLD_SIZE"])
    )


def find_rank(given: Mapping[str, str]) -> int | None:
    """Return a process's rank among all; None if its environment has none."""
    if not is_launcher_set(given):
        return first_whole_number(given, *MPI_RANKS, "SLURM_PROCID", "RANK")
    rank = whole_number(given.get("RANK", ""))
    if rank is not None:
        return rank
    node_rank = int(given["NODE_RANK"])
    local_rank = int(given["LOCAL_RANK"])
    if not node_rank:
        return local_rank
    # Lightning does not report the number of processes on a node.
    size = int(given["WORLD_SIZE"])
    nodes = first_whole_number(given, *_NODES)
    if not nodes or size % nodes:
        return None
    return node_rank * (size // nodes) + local_rank


def rank_among_all(environment: Mapping[str, str] | None = None) -> int:
    """Return this process's rank among all that train; 0 if the environment has no ranks.

    If only the rank of its node and its rank there are known, it is the node's rank: a process on
    another node than the first is not rank 0.
    """
    given = os.environ if environment is None else environment
    rank = find_rank(given)
    if rank is None and is_launcher_set(given):
        rank = first_whole_number(given, "NODE_RANK")
    return rank or 0


def processes_in_all(environment: Mapping[str, str] | None = None) -> int:
    """Return the number of processes that train together; 1 if it is unknown."""
    given = os.environ if environment is None else environment
    # A batch script, which is one process, has SLURM_NTASKS too.
    names = () if is_launcher_set(given) else (*MPI_SIZES, "SLURM_STEP_NUM_TASKS")
    return first_whole_number(given, *names, "WORLD_SIZE") or 1


def whole_number(text: str) -> int | None:
    """Parse a whole number of 0 or more; None for any other text."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def first_whole_number(given: Mapping[str, str], *names: str) -> int | None:
    """Return the first variable that is a whole number of 0 or more; None if none is."""
    numbers = (whole_number(given.get(name, "")) for name in names)
    return next((number for number in numbers if number is not None), None)
