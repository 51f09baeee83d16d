"""`model.try_save`: saves a training at its pool's request to suspend, then suspends it."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from functools import lru_cache

import hpcdash.job.shards as shards
from hpcdash.job.rank_variables import processes_in_all
from hpcdash.job.ranks import Rank, all_reduce_highest, torch_is_distributed
from hpcdash.job.suspend import SUSPEND_READY, go_suspend, receive_suspend_command
from hpcdash.job.warnings_once import OnceLog, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PARTS = ("model", "optimizer", "scheduler", "amp_scaler")
_log = OnceLog()


class TrySave:
    """`model.try_save`, which `hpcdash.job.checkpoint.init` adds to a model.

    A copy of the model, or a model from its pickle, has None there: it is not trained.
    """

    def __init__(self, parts: tuple[Any, ...], checkpoints: Any, replicated: bool | None) -> None:
        """Take hpcdash.job.checkpoint's `checkpoints`, with a `barrier` for several ranks."""
        self._model = _inner(parts[0])
        self._parts = dict(zip(_PARTS, (self._model, *parts[1:])))
        self._is_distributed = torch_is_distributed()
        self._rank = Rank(None)
        self._checkpoints = checkpoints
        if self._checkpoints.folder.is_file():
            raise RuntimeError(
                f"{self._checkpoints.folder} is a file: use another path for the checkpoint folder"
            )
        modules = parts[0].modules() if hasattr(parts[0], "modules") else ()
        kinds = {type(module).__name__ for module in modules}
        if "FullyShardedDataParallel" in kinds:
            raise RuntimeError(
                "FullyShardedDataParallel does not expose its shards: shard the model with "
                "fully_shard, or save it with torch.distributed.checkpoint"
            )
        if replicated is None:
            # ZeroRedundancyOptimizer has a part of its state in each rank.
            is_split = hasattr(parts[1], "consolidate_state_dict")
            replicated = not self._is_distributed or (
                "DistributedDataParallel" in kinds and not is_split
            )
        self._replicated = replicated
        # Number of calls since the training started, which names its checkpoints.
        self._calls = 0
        self._is_in_pool: bool | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def __call__(self, epoch: int, step: int, others: object = None, force: bool = False) -> bool:
        """Save and suspend if the coordinator has requested it; with `force`, save in any case.

        Returns whether it saved. `init` will return `epoch`, `step` and `others`: at the end of a
        step, pass `step + 1`. `others` may be tensors, numbers, text, and lists, tuples, dicts and
        sets of them. All ranks call it at the same places and with the same `force`. Outside a
        shared pool it saves only with `force`. Raises TypeError, at its first call, for a state
        that cannot be saved, and the errors of writing files.
        """
        if self._is_in_pool is None:
            shards.Parts(self._state(others))
            self._is_in_pool = bool(
                all_reduce_highest(int(bool(os.environ.get(SUSPEND_READY))), None)
            )
        self._calls += 1
        is_requested = self._is_in_pool and bool(
            all_reduce_highest(int(receive_suspend_command()), None)
        )
        if not (is_requested or force) or not self._writes():
            return False
        self._save(int(epoch), int(step), others)
        if is_requested:
            go_suspend()
        return True

    def resume(self) -> tuple[int, int, Any]:
        """Load the newest checkpoint; return `epoch`, `step` and `others` of its `try_save`."""
        newest = self._checkpoints.resume_from()
        if newest is None:
            return 0, 0, None
        rank = self._rank.now
        ranks = _ranks()
        saved = shards.read_plain(newest.path, 0)
        if not saved["replicated"]:
            if saved["ranks"] != ranks:
                raise RuntimeError(
                    f"{newest.path} contains the parts of {saved['ranks']} ranks, but this "
                    f"training has {ranks}: start {saved['ranks']} ranks; any number can resume "
                    "a model in DistributedDataParallel"
                )
            saved = shards.read_plain(newest.path, rank)
        tensors = shards.read_tensors(newest.path, saved["files"])
        missing = [number for number in range(saved["tensors"]) if number not in tensors]
        if missing:
            raise RuntimeError(
                f"{newest.path} lacks {len(missing)} of its {saved['tensors']} tensors"
            )
        state = shards.put_together(saved["state"], tensors, self._tensor_finder())
        if saved["metadata"] is not None:
            # torch has the versions of a module's parts in an attribute of its state.
            state["model"] = OrderedDict(state["model"])
            state["model"]._metadata = saved["metadata"]
        for name, part in self._parts.items():
            part_state = state.get(name)
            if part is None and part_state is not None:
                raise RuntimeError(f"{newest.path} was saved with {name}, but init received none")
            if part is not None and part_state is None:
                raise RuntimeError(f"{newest.path} was saved without {name}, but init received one")
            if part is not None:
                part.load_state_dict(part_state)
        self._calls = newest.step
        if rank == 0:
            warn(f"resumed from {newest.path}: epoch {saved['epoch']}, step {saved['step']}")
        return saved["epoch"], saved["step"], state["others"]

    def _writes(self) -> bool:
        """Return whether this process saves: only rank 0 if the ranks cannot communicate."""
        if not self._is_distributed and processes_in_all() > 1:
            _log.warn(
                "alone",
                "only rank 0 saves: if the ranks train together, call init once "
                "torch.distributed is initialized",
            )
        return self._is_distributed or self._rank.now == 0

    def _state(self, others: object) -> dict[str, Any]:
        state = {
            name: None if part is None else part.state_dict() for name, part in self._parts.items()
        }
        state["others"] = others
        return state

    def _save(self, epoch: int, step: int, others: object) -> None:
        state = self._state(others)
        parts = shards.Parts(state)
        rank = self._rank.now
        ranks = _ranks()
        is_replicated = bool(self._replicated) and self._is_same_in_all(parts)
        if is_replicated:
            owners = parts.owners(ranks, self._shared_paths())
        else:
            owners = [rank] * len(parts.tensors)
        own = {
            number: parts.tensors[number] for number, owner in enumerate(owners) if owner == rank
        }
        with self._checkpoints.saving(self._calls) as folder:
            shards.write_tensors(folder, rank, own)
            if rank == 0 or not is_replicated:
                content = {
                    "epoch": epoch,
                    "step": step,
                    "ranks": ranks,
                    "replicated": is_replicated,
                    "metadata": shards.Parts(getattr(state["model"], "_metadata", None)).plain,
                    "tensors": len(owners),
                    "files": sorted(set(owners)),
                    "state": parts.plain,
                }
                shards.write_plain(folder, rank, content)

    def _is_same_in_all(self, parts: shards.Parts) -> bool:
        """Return whether all ranks have tensors of the same names and shapes; else each saves its
        own.
        """
        layout = int(parts.has_local) or parts.layout()
        highest = all_reduce_highest(layout, None)
        is_different = bool(all_reduce_highest(int(highest != layout or parts.has_local), None))
        if is_different:
            _log.warn(
                "other",
                "the ranks' states differ: each saves its own, so a resume needs the same number "
                "of ranks",
            )
        return not is_different

    def _shared_paths(self) -> Callable[[tuple[str, ...]], bool]:
        """Return a function for whether DistributedDataParallel keeps the tensor at a path the same
        in all ranks: the parameters, not the averages of a batch norm.
        """
        named_parameters = getattr(self._model, "named_parameters", tuple)
        names = {name for name, _ in named_parameters()}

        def is_shared(path: tuple[str, ...]) -> bool:
            return path[0] == "optimizer" or (path[0] == "model" and path[1] in names)

        return is_shared

    def _tensor_finder(self) -> Callable[[tuple[str, ...]], Any]:
        """Return a function for this rank's DTensor at a path: the model's parameter, also for the
        state that an optimizer has for it.
        """

        @lru_cache(maxsize=None)
        def model_state() -> Any:
            return self._model.state_dict()

        @lru_cache(maxsize=None)
        def parameters() -> list[Any]:
            groups = self._parts["optimizer"].param_groups
            return [parameter for group in groups for parameter in group["params"]]

        def find(path: tuple[str, ...]) -> Any:
            if path[0] == "model":
                return model_state()[path[1]]
            if path[:2] == ("optimizer", "state"):
                return parameters()[int(path[2])]
            raise RuntimeError(f"{'.'.join(path)} cannot be read: it was spread over ranks")

        return find


def barrier() -> object:
    return sys.modules["torch"].distributed.barrier()


def _ranks() -> int:
    return int(sys.modules["torch"].distributed.get_world_size()) if torch_is_distributed() else 1


def _inner(model: Any) -> Any:
    """Return the model in its wrappers, whose state does not depend on them."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            model = model.module
        else:
            return model
