"""Lightning's Trainer that survives the night: one callback more."""

from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

from hpcdash.job.lightning import GuardCallback


def main() -> None:
    # First thing: where the kill switch is there, the program ends here with exit status 0.
    guard = GuardCallback("checkpoints", metrics="metrics.jsonl", save_every_minutes=60)
    trainer = Trainer(max_epochs=100, callbacks=[guard])
    trainer.fit(BoringModel(), ckpt_path=guard.resume_from())


if __name__ == "__main__":
    main()
