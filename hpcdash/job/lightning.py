"""TrainingGuard as a callback of Lightning's Trainer; imports lightning or pytorch_lightning."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic

from hpcdash.job.guard import TrainingGuard
from hpcdash.job.on_disk import remove, sync_file_system, sync_folder
from hpcdash.job.warnings_once import OnceLog

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAME = "guard.ckpt"
_PREVIOUS_NAME = f"{_NAME}.before"


class GuardCallback(Callback):  # type: ignore[misc]
    """Callback that has Lightning save and stop for a TrainingGuard, and writes its metrics.

        guard = GuardCallback("checkpoints", metrics="metrics.jsonl")
        trainer = Trainer(callbacks=[guard])
        trainer.fit(model, ckpt_path=guard.resume_from())

    It saves to `guard.ckpt` in `folder` through a temporary file that is renamed: the file is
    always a complete checkpoint. The other arguments are those of TrainingGuard, or an existing
    `guard`. Create it first in main: if the kill switch is set, the program ends then.

    To stop, it saves and sets `trainer.should_stop`, and disables `min_epochs` and `min_steps`,
    because Lightning would continue until both are met. Lightning may validate once more after that
    save, in epochs with validation; the guard stops earlier by the duration of the last validation.
    """

    def __init__(
        self, folder: str | os.PathLike[str], guard: TrainingGuard | None = None, **options: Any
    ) -> None:
        super().__init__()
        self.folder = Path(os.path.abspath(os.path.expanduser(os.fspath(folder))))
        self.guard = guard or TrainingGuard(**options)
        self._last_step = -1
        self._minimums: list[tuple[Any, str, Any]] = []
        self._validation_start = 0.0
        self._log = OnceLog()

    def resume_from(self) -> str | None:
        """Return the path to pass as `ckpt_path`; None if nothing has been saved."""
        # Between the two renames of a checkpoint that is a folder, the previous checkpoint has the
        # second name.
        for path in (self.folder / _NAME, self.folder / _PREVIOUS_NAME):
            if path.exists():
                return str(path)
        return None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        """Finish a step, which is several batches with accumulated gradients."""
        step = trainer.global_step
        if step == self._last_step:
            return
        self._last_step = step
        every = trainer.log_every_n_steps
        metrics = trainer.callback_metrics if every and step % every == 0 else {}
        self.guard.step(step, **{str(name): value for name, value in metrics.items()})
        if self.guard.should_save():
            self._save(trainer)
            self.guard.saved()
        if self.guard.should_stop():
            self._stop(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Start timing a validation."""
        self._validation_start = monotonic()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the duration of a validation, except the sanity check before the training."""
        if not trainer.sanity_checking:
            self.guard.preemption.also("validation", monotonic() - self._validation_start)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Restore the Trainer's minimums, and close the guard."""
        for loop, name, value in self._minimums:
            setattr(loop, name, value)
        self._minimums = []
        self.guard.close()

    def _stop(self, trainer: Any) -> None:
        trainer.should_stop = True
        loop = trainer.fit_loop
        for owner, name in ((loop, "min_epochs"), (getattr(loop, "epoch_loop", loop), "min_steps")):
            value = getattr(owner, name, None)
            if value:
                try:
                    setattr(owner, name, 0)
                    self._minimums.append((owner, name, value))
                except AttributeError:
                    self._log.warn(
                        name, f"this version of Lightning continues until {name}={value} is reached"
                    )

    def _save(self, trainer: Any) -> None:
        beside = self.folder / f".saving-{_NAME}"
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove(beside)
        trainer.strategy.barrier()
        trainer.save_checkpoint(str(beside))
        sync_file_system(self.folder)
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            self._replace(beside)
            sync_folder(self.folder)
        trainer.strategy.barrier()

    def _replace(self, beside: Path) -> None:
        """Replace the checkpoint by a file, or by a folder, which sharded strategies write."""
        final = self.folder / _NAME
        if not beside.is_dir():
            os.replace(beside, final)
            return
        from shutil import rmtree

        previous = self.folder / _PREVIOUS_NAME
        if final.exists():
            rmtree(previous, ignore_errors=True)
            final.rename(previous)
        beside.rename(final)
        rmtree(previous, ignore_errors=True)
