"""TrainingGuard as a callback of Lightning's Trainer.

Imports lightning or pytorch_lightning, as nothing else here.
"""

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


class GuardCallback(Callback):  # type: ignore[misc]
    """Makes Lightning save and stop when a TrainingGuard says so, and writes the logged metrics.

        guard = GuardCallback("checkpoints", metrics="metrics.jsonl")
        trainer = Trainer(callbacks=[guard])
        trainer.fit(model, ckpt_path=guard.resume_from())

    Saves to `guard.ckpt` in `folder` through a temporary file that is renamed, so that it is
    complete or the previous one. Takes the arguments of TrainingGuard, or an existing `guard`.
    Create it first in main: if the kill switch is set, the program ends then.

    To stop, it saves and sets `trainer.should_stop`, and disables `min_epochs` and `min_steps`,
    because Lightning would continue until both are met. Lightning may validate once more after that
    save, in epochs with validation; the guard stops earlier before the end of the job by as long as
    the last validation took.
    """

    def __init__(
        self, folder: str | os.PathLike[str], guard: TrainingGuard | None = None, **options: Any
    ) -> None:
        super().__init__()
        self.folder = Path(os.path.abspath(os.path.expanduser(os.fspath(folder))))
        self.guard = guard or TrainingGuard(**options)
        self._last_step = -1
        self._minimums: list[tuple[Any, str, Any]] = []
        self._validates_since = 0.0
        self._log = OnceLog()

    def resume_from(self) -> str | None:
        """The path to pass as `ckpt_path`, None if nothing has been saved."""
        # Between the two renames of a checkpoint that is a folder, the one before has the other
        # name.
        found = (
            path for path in (self.folder / _NAME, self.folder / f"{_NAME}.before") if path.exists()
        )
        return next((str(path) for path in found), None)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        """After each batch; with accumulated gradients several are one step."""
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
        """Before each validation."""
        self._validates_since = monotonic()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Time each validation; that of a few batches before the start does not count."""
        if not trainer.sanity_checking:
            self.guard.preemption.also("validation", monotonic() - self._validates_since)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """After the last step."""
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
        beside, final = self.folder / f".saving-{_NAME}", self.folder / _NAME
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove(beside)
        trainer.strategy.barrier()
        trainer.save_checkpoint(str(beside))
        sync_file_system(self.folder)
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            _replace(beside, final)
            sync_folder(self.folder)
        trainer.strategy.barrier()


def _replace(beside: Path, final: Path) -> None:
    """Gives a file, or a folder as sharded strategies write, its name."""
    if not beside.is_dir():
        os.replace(beside, final)
        return
    from shutil import rmtree

    before = final.with_name(f"{final.name}.before")
    if final.exists():
        rmtree(before, ignore_errors=True)
        final.rename(before)
    beside.rename(final)
    rmtree(before, ignore_errors=True)
