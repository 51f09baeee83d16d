"""`model.try_save`: saves a training at its pool's request to suspend, then suspends it."""

from __future__ import annotations

import os
import sys

import hpcdash.job.shards as shards
from hpcdash.job.rank_variables import processes_in_all
from hpcdash.job.ranks import Rank, all_reduce_highest, torch_is_distributed
from hpcdash.job.suspend import SUSPEND_READY, go_suspend, receive_suspend_command
from hpcdash.job.warnings_once import OnceLog, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PARTS = ("model", "optimizer", "scheduler", "amp_scaler")
_log = OnceLog()


class TrySave:
    """`model.try_save`, as `hpcdash.job.checkpoint.init` puts it there.

    A copy of the model, and one from a pickle of it, has None there: it is not what is trained.
    """

    def __init__(self, parts: tuple[Any, ...], checkpoints: Any, replicated: bool | None) -> None:
        """`checkpoints` are hpcdash.job.checkpoint's Checkpoints, with `barrier` where there are
        several ranks.
        """
        self._model = _inner(parts[0])
        self._parts = dict(zip(_PARTS, (self._model, *parts[1:])))
        self._is_distributed = torch_is_distributed()
        self._rank = Rank(None)
        self._checkpoints = checkpoints
        if self._checkpoints.folder.is_file():
            raise RuntimeError(
                f"{self._checkpoints.folder} is a file: use another path for the checkpoint folder"
            )
        if any(type(one).__name__ == "FullyShardedDataParallel" for one in _modules(parts[0])):
            raise RuntimeError(
                "FullyShardedDataParallel does not expose its shards: shard the model with "
                "fully_shard, or save it with torch.distributed.checkpoint"
            )
        self._replicated = replicated
        if replicated is None:
            self._replicated = not self._is_distributed or (
                _is_ddp(parts[0]) and not _is_zero(self._parts)
            )
        # Number of calls since the training started: its checkpoints are named by it.
        self._calls = 0
        self._is_in_pool: bool | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def __call__(self, epoch: int, step: int, others: object = None, force: bool = False) -> bool:
        """Saves and suspends when the coordinator has asked for it; whether it saved, which `force`
        has it do anyway.

        `init` will return the three that are given here: the step to begin with, so `step + 1`
        where a step is done. `others` may be tensors, numbers, text, and lists, tuples, dicts and
        sets of them. All ranks call it, at the same places and with the same `force`. Outside a
        shared pool it does nothing but what `force` says. Raises TypeError, at its first call, for
        a state that cannot be saved, and what writing the files raises.
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
        """Puts the newest checkpoint into the model and the rest, and gives what `try_save` was
        given with it.
        """
        newest = self._checkpoints.resume_from()
        if newest is None:
            return 0, 0, None
        rank, ranks = self._rank.now, _ranks()
        reported = shards.read_plain(newest.path, 0)
        if not reported["replicated"]:
            if reported["ranks"] != ranks:
                raise RuntimeError(
                    f"{newest.path} holds the parts of {reported['ranks']} ranks, and this "
                    f"training has {ranks}: start {reported['ranks']}; any number can resume a "
                    "model in DistributedDataParallel"
                )
            reported = shards.read_plain(newest.path, rank)
        tensors = shards.read_tensors(newest.path, reported["files"])
        missing = [number for number in range(reported["tensors"]) if number not in tensors]
        if missing:
            raise RuntimeError(
                f"{newest.path} lacks {len(missing)} of its {reported['tensors']} tensors"
            )
        state = shards.put_together(reported["state"], tensors, self._like)
        for name, part in self._parts.items():
            if (part is None) != (state.get(name) is None):
                now = "has none" if part is None else "has one"
                raise RuntimeError(
                    f"{newest.path} was saved {'without' if part else 'with'} {name}, and init "
                    f"{now}"
                )
            if part is not None:
                part.load_state_dict(
                    _with_metadata(state[name], reported["metadata"])
                    if name == "model"
                    else state[name]
                )
        self._calls = newest.step
        if rank == 0:
            warn(f"resumed from {newest.path}: epoch {reported['epoch']}, step {reported['step']}")
        return reported["epoch"], reported["step"], state["others"]

    def _writes(self) -> bool:
        """Whether this process saves: rank 0 alone where the ranks cannot communicate."""
        if not self._is_distributed and processes_in_all() > 1:
            _log.warn(
                "alone",
                "only rank 0 saves: if the ranks train together, call init once "
                "torch.distributed is initialized",
            )
        return self._is_distributed or self._rank.now == 0

    def _state(self, others: object) -> dict[str, Any]:
        return {
            **{
                name: None if part is None else part.state_dict()
                for name, part in self._parts.items()
            },
            "others": others,
        }

    def _save(self, epoch: int, step: int, others: object) -> None:
        state = self._state(others)
        parts, rank, ranks = shards.Parts(state), self._rank.now, _ranks()
        is_replicated = bool(self._replicated) and self._is_same_in_all(parts)
        owners = (
            parts.owners(ranks, self._is_parameter)
            if is_replicated
            else [rank] * len(parts.tensors)
        )
        own = {
            number: parts.tensors[number] for number, owner in enumerate(owners) if owner == rank
        }
        with self._checkpoints.saving(self._calls) as folder:
            shards.write_tensors(folder, rank, own)
            if rank == 0 or not is_replicated:
                reported: dict[str, Any] = {
                    "epoch": epoch,
                    "step": step,
                    "ranks": ranks,
                    "replicated": is_replicated,
                }
                metadata = getattr(state["model"], "_metadata", None)
                reported["metadata"] = shards.Parts(metadata).plain
                reported["tensors"], reported["files"] = len(owners), sorted(set(owners))
                shards.write_plain(folder, rank, {**reported, "state": parts.plain})

    def _is_same_in_all(self, parts: shards.Parts) -> bool:
        """Whether all ranks have tensors of the same names and shapes: else each saves its own."""
        own = int(parts.has_local) or parts.layout()
        highest = all_reduce_highest(own, None)
        is_other = bool(all_reduce_highest(int(highest != own or parts.has_local), None))
        if is_other:
            _log.warn(
                "other",
                "the ranks' states differ: each saves its own, so a resume needs the same number "
                "of ranks",
            )
        return not is_other

    def _is_parameter(self, path: tuple[str, ...]) -> bool:
        """Whether training together keeps a tensor the same in all ranks, as it does not a batch
        norm's averages.
        """
        if path[0] == "model":
            return path[1] in self._parameters
        return path[0] == "optimizer"

    @property
    def _parameters(self) -> frozenset[str]:
        named = getattr(self._model, "named_parameters", None)
        return frozenset(name for name, _ in named()) if named else frozenset()

    def _like(self, path: tuple[str, ...]) -> Any:
        """This rank's DTensor that a part of one belongs to: the model's own, or that of an
        optimizer's state.
        """
        if path[0] == "model":
            return self._model.state_dict()[path[1]]
        if path[:2] == ("optimizer", "state"):
            groups = self._parts["optimizer"].param_groups
            return [one for group in groups for one in group["params"]][int(path[2])]
        raise RuntimeError(f"{'.'.join(path)} cannot be read: it was spread over ranks")


def barrier() -> object:
    return sys.modules["torch"].distributed.barrier()


def _ranks() -> int:
    return int(sys.modules["torch"].distributed.get_world_size()) if torch_is_distributed() else 1


def _with_metadata(state: dict[str, Any], metadata: dict[str, Any] | None) -> dict[str, Any]:
    """A module's state with what torch keeps of the versions of its parts."""
    if metadata is None:
        return state
    from collections import OrderedDict

    named = OrderedDict(state)
    named._metadata = metadata  # type: ignore[attr-defined]
    return named


def _inner(model: Any) -> Any:
    """The model in what wraps it: its state is the same, by how many processes and however compiled
    it is trained.
    """
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            model = model.module
        else:
            return model


def _modules(model: Any) -> Any:
    return model.modules() if hasattr(model, "modules") else ()


def _is_ddp(model: Any) -> bool:
    return any(type(one).__name__ == "DistributedDataParallel" for one in _modules(model))


def _is_zero(parts: dict[str, Any]) -> bool:
    """Whether the optimizer has its state in parts, as ZeroRedundancyOptimizer."""
    return hasattr(parts["optimizer"], "consolidate_state_dict")
