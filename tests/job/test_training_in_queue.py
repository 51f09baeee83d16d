"""A training in jobs of the embedded queue: it ends before its time limit does, and says so."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcdash.job
from tests.embedded.queue_lab import QueueLab

pytestmark = pytest.mark.system
ROOT = Path(hpcdash.job.__file__).parents[2]
CODE = """
import time
from hpcdash.job import Checkpoints, TrainingGuard
guard, checkpoints = TrainingGuard(), Checkpoints("checkpoints")
for step in range(1, 100000):
    time.sleep(0.01)
    guard.step(step)
    if guard.should_save():
        with checkpoints.saving(step) as folder:
            (folder / "model").write_text("weights")
    if guard.should_stop():
        break
"""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueLab]:
    lab = QueueLab(tmp_path / "queue", tmp_path / "work")
    (lab.work / "train.py").write_text(CODE)
    yield lab
    lab.end()


def test_a_training_saves_and_ends_before_its_time_limit(queue: QueueLab) -> None:
    script = f"#!/bin/bash\nexport PYTHONPATH={ROOT}\n{sys.executable} train.py\n"
    number = queue.submit(script, "--time=0:04")
    job = queue.ended(number)
    said = (queue.work / f"slurm-{number}.out").read_text()
    assert (job.state, job.exit_code) == ("completed", 0), said
    assert "s of 2 × (iteration + save)" in said
    assert len(list((queue.work / "checkpoints").glob("step-*"))) == 1
