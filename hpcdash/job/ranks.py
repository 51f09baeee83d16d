"""Agreement of a training's ranks: each gives a number, all get the highest.

All ranks must call it at the same places of their loops, as with any collective. It imports no
framework.
"""

from __future__ import annotations

import sys

from hpcdash.job.rank_variables import rank_among_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    # Takes a rank's number and returns the highest of all ranks; every rank calls it.
    AllReduceMax = Callable[[int], int]


def torch_all_reduce_max(number: int) -> int:
    """Return the highest number of all ranks: a collective over torch's default process group."""
    torch = sys.modules["torch"]
    distributed = torch.distributed
    # NCCL reduces only tensors on GPUs; gloo and mpi only tensors in host memory.
    device = "cuda" if str(distributed.get_backend()).endswith("nccl") else "cpu"
    numbers = torch.tensor([number], dtype=torch.int64, device=device)
    distributed.all_reduce(numbers, op=distributed.ReduceOp.MAX)
    return int(numbers.item())


def torch_is_distributed() -> bool:
    """Return whether the program has initialized torch.distributed with more than one rank.

    It never imports torch.
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)


class Rank:
    """Rank of this process: the given rank, else torch.distributed's, else the environment's."""

    def __init__(self, given: int | None) -> None:
        self._is_given = given is not None
        self._known = rank_among_all() if given is None else given

    @property
    def now(self) -> int:
        if not self._is_given and torch_is_distributed():
            # Stored for the time after the process group is destroyed.
            self._known = int(sys.modules["torch"].distributed.get_rank())
        return self._known


def all_reduce_highest(number: int, all_reduce_max: AllReduceMax | None) -> int:
    """Return the highest number of all ranks, by `all_reduce_max` or torch.distributed; without
    both, the number itself.
    """
    if all_reduce_max is not None:
        return int(all_reduce_max(number))
    return torch_all_reduce_max(number) if torch_is_distributed() else number


ALONE = (
    "each rank searches separately for a checkpoint; call this once torch.distributed is "
    "initialized"
)


def broadcast_from_rank_0(number: int, rank: int, all_reduce_max: AllReduceMax | None) -> int:
    """Return rank 0's number, which is -1 or more, in all ranks; other numbers are ignored."""
    return all_reduce_highest(number + 1 if rank == 0 else 0, all_reduce_max) - 1


def can_agree(all_reduce_max: AllReduceMax | None) -> bool:
    """Return whether the ranks can exchange numbers."""
    return all_reduce_max is not None or torch_is_distributed()
