"""TrainingGuard as a callback of Hugging Face's Trainer. Imports transformers, which nothing else here does."""

from __future__ import annotations

from transformers import TrainerCallback

from hpcdash.job.guard import TrainingGuard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class GuardCallback(TrainerCallback):  # type: ignore[misc]
    """Has the Trainer save and stop as a TrainingGuard says, and writes what it logs.

        trainer = Trainer(..., callbacks=[GuardCallback(metrics="metrics.jsonl")])
        trainer.train(resume_from_checkpoint=get_last_checkpoint(output_dir))

    Takes the arguments of TrainingGuard, or a ready made `guard`. Make it first thing in main: where the kill switch is
    there, the program ends then. The Trainer saves as its own arguments say, besides.
    """

    def __init__(self, guard: TrainingGuard | None = None, **options: Any) -> None:
        super().__init__()
        self.guard = guard or TrainingGuard(**options)

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
        self.guard.saved()
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        """What the Trainer logs, on rank 0."""
        if logs and self.guard.metrics is not None:
            self.guard.metrics.write(state.global_step, **logs)
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """After the last step."""
        self.guard.close()
        return control
