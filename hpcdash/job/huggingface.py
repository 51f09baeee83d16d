"""TrainingGuard as a callback of Hugging Face's Trainer; imports transformers."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from transformers import TrainerCallback

from hpcdash.job.checkpoint import difference, read_marker, saved_at, write_marker
from hpcdash.job.guard import TrainingGuard
from hpcdash.job.on_disk import sync_file_system, wait_until_seen
from hpcdash.job.rank_variables import processes_in_all
from hpcdash.job.ranks import ALONE, all_reduce_highest, broadcast_from_rank_0, can_agree
from hpcdash.job.save_times import remember
from hpcdash.job.warnings_once import OnceLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# File that the Trainer writes last.
_STATE = "trainer_state.json"
_CHECKPOINT_NAME = re.compile(r"checkpoint-([0-9]{1,18})")


class GuardCallback(TrainerCallback):  # type: ignore[misc]
    """Callback that has the Trainer save and stop for a TrainingGuard, and writes its metrics.

        guard = GuardCallback(metrics="metrics.jsonl")
        trainer = Trainer(..., callbacks=[guard])
        trainer.train(resume_from_checkpoint=guard.resume_from(output_dir))

    Each checkpoint that the Trainer saves gets a marker, `WHOLE.json`. A torn checkpoint, which a
    run killed during a save leaves, has none; `get_last_checkpoint` would return it. The arguments
    are those of TrainingGuard, or an existing `guard`. Create it first in main: if the kill switch
    is set, the program ends then. The Trainer still saves for its own arguments.
    """

    def __init__(self, guard: TrainingGuard | None = None, **options: Any) -> None:
        super().__init__()
        self.guard = guard or TrainingGuard(**options)
        self._log = OnceLog()

    def resume_from(self, output_dir: str | os.PathLike[str]) -> str | None:
        """Return the path to pass as `resume_from_checkpoint`: the complete checkpoint saved last;
        None if there is none.

        Rank 0 chooses for all ranks once torch.distributed is running (TrainingArguments starts
        it): call it on all ranks. A checkpoint saved without this callback counts as complete if it
        has the Trainer's own state, which is written last, and no empty file.
        """
        folder = Path(os.path.abspath(os.path.expanduser(os.fspath(output_dir))))
        rank = self.guard.rank
        all_reduce_max = self.guard.all_reduce_max
        if can_agree(all_reduce_max):
            step = self._newest_step(folder) if rank == 0 else -1
            step = broadcast_from_rank_0(step, rank, all_reduce_max)
        else:
            if processes_in_all() > 1:
                self._log.warn("alone", f"{ALONE}, if they train together")
            step = self._newest_step(folder)
        if step < 0:
            return None
        path = folder / f"checkpoint-{step}"
        wait_until_seen(path / _STATE, rank)
        remember((read_marker(path) or {}).get("save_seconds"))
        return str(path)

    def _newest_step(self, folder: Path) -> int:
        """Return the step of the newest complete checkpoint; -1 for none."""
        newest = (0.0, -1)
        for path, step in _checkpoints(folder):
            defect, epoch = _state(path)
            if defect:
                self._log.warn(
                    path.name, f"the checkpoint {path} is incomplete and was skipped: {defect}"
                )
            else:
                newest = max(newest, (epoch, step))
        return newest[1]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Finish an optimizer step."""
        self.guard.step(state.global_step)
        if self.guard.should_save():
            control.should_save = True
        if self.guard.stop_reason:
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Mark the checkpoint that the Trainer has saved."""
        path = Path(os.path.abspath(args.output_dir)) / f"checkpoint-{state.global_step}"
        try:
            if path.is_dir():
                sync_file_system(path)
        except OSError as error:
            self._log.warn("unmarked", f"{path} may not be on disk yet: {error.strerror}")
        # Wait until all ranks have written their parts.
        all_reduce_highest(0, self.guard.all_reduce_max)
        seconds = self.guard.saved()
        if self.guard.rank == 0 and path.is_dir():
            others = (other for other, _ in _checkpoints(path.parent) if other.name != path.name)
            try:
                write_marker(
                    path,
                    [_state(other)[1] for other in others],
                    step=int(state.global_step),
                    save_seconds=None if seconds is None else round(seconds, 3),
                )
            except OSError as error:
                self._log.warn("unmarked", f"{path} cannot be marked complete: {error.strerror}")
        return control

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        """Write the values that the Trainer logs."""
        if logs and self.guard.metrics is not None:
            self.guard.metrics.write(state.global_step, **logs)
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Close the guard."""
        self.guard.close()
        return control


def _checkpoints(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield path and step of the checkpoints in a folder, also of torn ones."""
    for name in os.listdir(folder) if folder.is_dir() else ():
        match = _CHECKPOINT_NAME.fullmatch(name)
        if match:
            yield folder / name, int(match[1])


def _state(path: Path) -> tuple[str, float]:
    """Return a checkpoint's defect, "" if it is complete, and the epoch of its save."""
    marker = read_marker(path)
    if marker is not None:
        return difference(path, marker, has_checksum=False), saved_at(marker)
    try:
        json.loads((path / _STATE).read_text(encoding="utf-8"))
        empty = [
            found.name for found in path.rglob("*") if found.is_file() and not found.stat().st_size
        ]
        return (f"{empty[0]} is empty" if empty else ""), (path / _STATE).stat().st_mtime
    except (OSError, ValueError):
        return f"neither a completion marker nor the Trainer's {_STATE}", 0.0
