"""TrainingGuard as a callback of Hugging Face's Trainer.

Imports transformers, which nothing else here does.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from time import time

from transformers import TrainerCallback

from hpcdash.job.checkpoint import MARKER, difference, marker_of, read_marker, saved_at
from hpcdash.job.guard import TrainingGuard
from hpcdash.job.on_disk import sync_file_system, wait_until_seen, write_whole
from hpcdash.job.rank_variables import processes_in_all
from hpcdash.job.ranks import ALONE, all_reduce_highest, broadcast_from_rank_0, can_agree
from hpcdash.job.save_times import remember
from hpcdash.job.warnings_once import OnceLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The Trainer writes it last.
_STATE = "trainer_state.json"
_NAMED = re.compile(r"checkpoint-([0-9]{1,18})")


class GuardCallback(TrainerCallback):  # type: ignore[misc]
    """Makes the Trainer save and stop when a TrainingGuard says so, and writes the metrics it logs.

        guard = GuardCallback(metrics="metrics.jsonl")
        trainer = Trainer(..., callbacks=[guard])
        trainer.train(resume_from_checkpoint=guard.resume_from(output_dir))

    Each checkpoint the Trainer saves gets a marker, `WHOLE.json`, which tells it from a torn one: a
    run killed during a save leaves those, and `get_last_checkpoint` would take them. Takes the
    arguments of TrainingGuard, or an existing `guard`. Create it first in main: if the kill switch
    is set, the program ends then. The Trainer also saves as its own arguments say.
    """

    def __init__(self, guard: TrainingGuard | None = None, **options: Any) -> None:
        super().__init__()
        self.guard = guard or TrainingGuard(**options)
        self._log = OnceLog()

    def resume_from(self, output_dir: str | os.PathLike[str]) -> str | None:
        """The path to pass as `resume_from_checkpoint`: the complete checkpoint saved last; None if
        there is none.

        Rank 0 chooses for all ranks once torch.distributed is running (TrainingArguments starts
        it): call it on all ranks. A checkpoint saved without this callback counts as complete if it
        has the Trainer's own state, which is written last, and no empty file.
        """
        folder = Path(os.path.abspath(os.path.expanduser(os.fspath(output_dir))))
        rank, all_reduce_max = self.guard.rank, self.guard.all_reduce_max
        if can_agree(all_reduce_max):
            step = broadcast_from_rank_0(
                self._newest(folder) if rank == 0 else -1, rank, all_reduce_max
            )
        else:
            if processes_in_all() > 1:
                self._log.warn("alone", f"{ALONE}, if they train together")
            step = self._newest(folder)
        if step < 0:
            return None
        path = folder / f"checkpoint-{step}"
        wait_until_seen(path / _STATE, rank)
        remember((read_marker(path) or {}).get("save_seconds"))
        return str(path)

    def _newest(self, folder: Path) -> int:
        """The step of the newest whole checkpoint, -1 for none."""
        found = []
        for name in os.listdir(folder) if folder.is_dir() else ():
            named = _NAMED.fullmatch(name)
            if named:
                marker = read_marker(folder / name)
                wrong, at = _unmarked(folder / name) if marker is None else ("", saved_at(marker))
                wrong = wrong or (
                    difference(folder / name, marker, has_checksum=False) if marker else ""
                )
                if wrong:
                    message = (
                        f"the checkpoint {folder / name} is incomplete and was skipped: {wrong}"
                    )
                    self._log.warn(name, message)
                else:
                    found.append((at, int(named[1])))
        return max(found)[1] if found else -1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """After each optimizer step."""
        self.guard.step(state.global_step)
        if self.guard.should_save():
            control.should_save = True
        if self.guard.stop_reason:
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """After the Trainer has saved."""
        path = Path(os.path.abspath(args.output_dir)) / f"checkpoint-{state.global_step}"
        try:
            if path.is_dir():
                sync_file_system(path)
        except OSError as error:
            self._log.warn("unmarked", f"{path} may not be on the disk yet: {error.strerror}")
        # All ranks have written their parts.
        all_reduce_highest(0, self.guard.all_reduce_max)
        seconds = self.guard.saved()
        if self.guard.rank == 0 and path.is_dir():
            try:
                # After all others, whatever the clocks of the hosts that saved them.
                at = max([time(), *(0.001 + other for other in _saved_before(path))])
                with write_whole(path / MARKER) as beside:
                    reported: dict[str, Any] = {
                        "step": int(state.global_step),
                        "saved_at": round(at, 3),
                        "save_seconds": None if seconds is None else round(seconds, 3),
                    }
                    text = marker_of(path, **reported)
                    beside.write_text(text, encoding="utf-8")
                    os.utime(beside, (at, at))
            except OSError as error:
                self._log.warn("unmarked", f"{path} cannot be marked complete: {error.strerror}")
        return control

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        """Write the values that the Trainer logs, on rank 0."""
        if logs and self.guard.metrics is not None:
            self.guard.metrics.write(state.global_step, **logs)
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """After the last step."""
        self.guard.close()
        return control


def _saved_before(path: Path) -> list[float]:
    """Return the saving times of the checkpoints beside `path`, as read by `resume_from`."""
    beside = [
        path.with_name(name)
        for name in os.listdir(path.parent)
        if _NAMED.fullmatch(name) and name != path.name
    ]
    marked = [(other, read_marker(other)) for other in beside]
    return [_unmarked(other)[1] if marker is None else saved_at(marker) for other, marker in marked]


def _unmarked(path: Path) -> tuple[str, float]:
    """Return the defect of a checkpoint without a marker, "" for none, and when it was saved."""
    try:
        json.loads((path / _STATE).read_text(encoding="utf-8"))
        empty = [
            found.name for found in path.rglob("*") if found.is_file() and not found.stat().st_size
        ]
        return (f"{empty[0]} is empty" if empty else ""), (path / _STATE).stat().st_mtime
    except (OSError, ValueError):
        return f"it has neither a marker nor the Trainer's {_STATE}", 0.0
