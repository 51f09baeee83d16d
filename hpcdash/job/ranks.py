"""Agreement of a training's ranks: each gives a number, all get the highest.

Imports no framework.

All ranks must call it at the same places of their loops, as with any collective.
"""

from __future__ import annotations

import sys

from hpcdash.job.rank_variables import rank_among_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    # A rank's own number in, the highest of all ranks out; called by every rank.
    AllReduceMax = Callable[[int], int]


def torch_all_reduce_max(number: int) -> int:
    """The highest of the numbers that the ranks of torch.distributed give; a collective over its
    default group.
    """
    torch = sys.modules["torch"]
    distributed = torch.distributed
    # NCCL reduces what is on a GPU alone; gloo and mpi what is not.
    on = "cuda" if str(distributed.get_backend()).endswith("nccl") else "cpu"
    numbers = torch.tensor([number], dtype=torch.int64, device=on)
    distributed.all_reduce(numbers, op=distributed.ReduceOp.MAX)
    return int(numbers.item())


def torch_is_distributed() -> bool:
    """Whether the program has torch.distributed running by now, among more than one rank; never
    imports torch.
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)


class Rank:
    """This process's rank among all.

    It is the given one, else torch.distributed's once it runs, else its environment's.
    """

    def __init__(self, given: int | None) -> None:
        self._is_given = given is not None
        self._known = rank_among_all() if given is None else given

    @property
    def now(self) -> int:
        if not self._is_given and torch_is_distributed():
            # Stored for the time after its group.
            self._known = int(sys.modules["torch"].distributed.get_rank())
        return self._known


def all_reduce_highest(number: int, all_reduce_max: AllReduceMax | None) -> int:
    """The highest number of all ranks: by what is given, else by torch.distributed where it runs,
    else one's own.
    """
    if all_reduce_max is not None:
        return int(all_reduce_max(number))
    return torch_all_reduce_max(number) if torch_is_distributed() else number


ALONE = (
    "each rank searches separately for a checkpoint; call this once torch.distributed is "
    "initialized"
)


def broadcast_from_rank_0(number: int, rank: int, all_reduce_max: AllReduceMax | None) -> int:
    """Return rank 0's number of 0 or more, -1 for none, in all ranks.

    Those of others are ignored.
    """
    return all_reduce_highest(number + 1 if rank == 0 else 0, all_reduce_max) - 1


def can_agree(all_reduce_max: AllReduceMax | None) -> bool:
    """Whether ranks can exchange numbers at all."""
    return all_reduce_max is not None or torch_is_distributed()
