"""The callbacks for frameworks, with stand-ins of the same interface: neither framework is
installed here.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hpcdash.job import TrainingGuard


@pytest.fixture
def frameworks() -> Iterator[None]:
    """Modules with the classes that the callbacks are made from."""
    names = ("transformers", "lightning", "lightning.pytorch")
    modules = {name: ModuleType(name) for name in names}
    vars(modules["transformers"])["TrainerCallback"] = type("TrainerCallback", (), {})
    vars(modules["lightning.pytorch"])["Callback"] = type("Callback", (), {})
    ours = ("hpcdash.job.huggingface", "hpcdash.job.lightning")
    sys.modules.update(modules)
    yield
    for name in (*names, *ours):
        sys.modules.pop(name, None)


def guard_of(folder: Path) -> TrainingGuard:
    kill, save = str(folder / "KILL"), str(folder / "SAVE")
    metrics = folder / "metrics.jsonl"
    return TrainingGuard(
        kill=kill, save=save, look_every_seconds=0, metrics=metrics, memory=None, signals=()
    )


def test_the_trainer_of_hugging_face_saves_and_stops_when_told(
    frameworks: None, tmp_path: Path
) -> None:
    from hpcdash.job.huggingface import GuardCallback

    callback: Any = GuardCallback(guard_of(tmp_path))
    done = []
    for step in range(1, 100):
        if step == 3:
            (tmp_path / "SAVE").touch()
        if step == 6:
            (tmp_path / "KILL").touch()
        state, control = (
            SimpleNamespace(global_step=step),
            SimpleNamespace(should_save=False, should_training_stop=False),
        )
        callback.on_step_end(None, state, control)
        callback.on_log(None, state, control, logs={"loss": 1 / step, "epoch": 0.1, "step": step})
        if control.should_save:
            done.append(f"saved {step}")
            (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
            (tmp_path / "run" / f"checkpoint-{step}" / "model.safetensors").write_text(
                f"weights after {step}"
            )
            (tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
            callback.on_save(SimpleNamespace(output_dir=str(tmp_path / "run")), state, control)
        if control.should_training_stop:
            done.append(f"ended {step}")
            break
    callback.on_train_end(None, state, control)
    assert done == ["saved 3", "saved 6", "ended 6"]
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in written[:2]] == [(1, 1.0), (2, 0.5)]
    assert callback.resume_from(tmp_path / "run") == f"{tmp_path}/run/checkpoint-6"


@pytest.mark.parametrize(
    ("harm", "newest"),
    [
        ("none", 30),
        # The run was killed in the middle of its save: the Trainer's own way takes it.
        ("no state", 20),
        ("empty weights", 20),
        ("cut weights of a marked one", 10),
        ("saved instead of higher steps", 5),
    ],
)
def test_a_torn_checkpoint_of_the_trainer_is_passed_over(
    frameworks: None, tmp_path: Path, harm: str, newest: int, caplog: pytest.LogCaptureFixture
) -> None:
    from hpcdash.job.huggingface import GuardCallback

    callback: Any = GuardCallback(guard_of(tmp_path))
    assert callback.resume_from(tmp_path / "run") is None

    def save(step: int, *, is_marked: bool) -> Path:
        path = tmp_path / "run" / f"checkpoint-{step}"
        path.mkdir(parents=True)
        for name in ("model.safetensors", "trainer_state.json"):
            (path / name).write_text('{"weights": 1}')
        if is_marked:
            callback.on_save(
                SimpleNamespace(output_dir=tmp_path / "run"),
                SimpleNamespace(global_step=step),
                None,
            )
        return path

    save(10, is_marked=True)
    second = save(20, is_marked=True)
    last = save(30, is_marked=False)
    if harm == "no state":
        (last / "trainer_state.json").unlink()
    elif harm == "empty weights":
        (last / "model.safetensors").write_text("")
    elif harm == "cut weights of a marked one":
        shutil.rmtree(last)
        (second / "model.safetensors").write_text("{")
    elif harm == "saved instead of higher steps":
        save(5, is_marked=True)
    assert callback.resume_from(tmp_path / "run") == f"{tmp_path}/run/checkpoint-{newest}"
    assert caplog.text.count("is incomplete and was skipped") == (newest in (10, 20))
    callback.on_train_end(None, None, None)


def test_a_clock_that_goes_back_makes_no_later_checkpoint_an_older_one(
    frameworks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcdash.job.huggingface import GuardCallback

    clock = iter((2_000_000_000.0, 1_900_000_000.0))
    monkeypatch.setattr("hpcdash.job.checkpoint.time", lambda: next(clock))
    callback: Any = GuardCallback(guard_of(tmp_path))
    for step in (10, 20):
        path = tmp_path / "run" / f"checkpoint-{step}"
        path.mkdir(parents=True)
        (path / "trainer_state.json").write_text("{}")
        callback.on_save(
            SimpleNamespace(output_dir=tmp_path / "run"), SimpleNamespace(global_step=step), None
        )
    assert callback.resume_from(tmp_path / "run") == f"{tmp_path}/run/checkpoint-20"


def test_rank_0_of_the_trainer_chooses_for_all(frameworks: None, tmp_path: Path) -> None:
    from hpcdash.job.huggingface import GuardCallback

    for step in (10, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    options: dict[str, Any] = {"memory": None, "signals": (), "kill": "", "save": "", "metrics": ""}
    told: list[int] = []
    first: Any = GuardCallback(
        rank=0, all_reduce_max=lambda number: told.append(number) or number, **options
    )
    assert first.resume_from(tmp_path) == f"{tmp_path}/checkpoint-20"
    (tmp_path / "checkpoint-30").mkdir()
    (tmp_path / "checkpoint-30" / "trainer_state.json").write_text("{}")
    second: Any = GuardCallback(
        rank=1, all_reduce_max=lambda number: max(number, told.pop(0)), **options
    )
    assert second.resume_from(tmp_path) == f"{tmp_path}/checkpoint-20"


class Trainer:
    """Of Lightning's Trainer what the callback uses."""

    is_global_zero = True
    log_every_n_steps = 2

    def __init__(self, *, is_sharded: bool) -> None:
        self.global_step = 0
        self.should_stop = False
        self.sanity_checking = False
        self.fit_loop = SimpleNamespace(min_epochs=3, epoch_loop=SimpleNamespace(min_steps=50))
        self.callback_metrics: dict[str, float] = {}
        self.is_sharded = is_sharded
        self.strategy = SimpleNamespace(barrier=lambda: None)

    @property
    def is_stopping(self) -> bool:
        """As Lightning's loops ask, in the first epoch."""
        min_steps = self.fit_loop.epoch_loop.min_steps
        has_steps = not min_steps or self.global_step >= min_steps
        return self.should_stop and not self.fit_loop.min_epochs and has_steps

    def save_checkpoint(self, path: str) -> None:
        file = Path(path)
        if self.is_sharded:
            file.mkdir()
            file = file / "shard0"
        file.write_text(f"step {self.global_step}")


@pytest.mark.parametrize("is_sharded", [False, True])
def test_the_trainer_of_lightning_saves_and_stops_when_told(
    frameworks: None, tmp_path: Path, is_sharded: bool
) -> None:
    from hpcdash.job.lightning import GuardCallback

    callback: Any = GuardCallback(tmp_path / "checkpoints", guard_of(tmp_path))
    assert callback.resume_from() is None
    trainer = Trainer(is_sharded=is_sharded)
    saved = []
    for batch in range(100):
        trainer.global_step = batch // 2 + 1
        trainer.callback_metrics = {"train_loss": 1 / trainer.global_step}
        if batch in (6, 8):
            (tmp_path / "SAVE").touch()
        if batch == 20:
            (tmp_path / "KILL").touch()
        callback.on_train_batch_end(trainer, None, None, None, batch)
        where = callback.resume_from()
        if where:
            file = Path(where) / "shard0" if is_sharded else Path(where)
            saved.append(file.read_text())
        if trainer.is_stopping:
            break
    callback.on_train_end(trainer, None)
    assert (trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps) == (3, 50)
    assert list(dict.fromkeys(saved)) == ["step 4", "step 5", "step 11"]
    assert trainer.global_step == 11
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["guard.ckpt"]
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in written] == [2, 4, 6, 8, 10]


def test_time_is_left_for_the_validation_that_lightning_ends_with(
    frameworks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcdash.job.lightning import GuardCallback

    clock = iter((0.0, 10.0, 40.0))
    monkeypatch.setattr("hpcdash.job.lightning.monotonic", lambda: next(clock))
    callback: Any = GuardCallback(tmp_path, guard_of(tmp_path))
    trainer = Trainer(is_sharded=False)
    preemption = callback.guard.preemption
    for trainer.sanity_checking, grace_seconds in ((True, 2 * 60), (False, 2 * (60 + 30))):
        callback.on_validation_start(trainer, None)
        callback.on_validation_end(trainer, None)
        assert preemption.grace_seconds() == grace_seconds
