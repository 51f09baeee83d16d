"""The runner in jobs of the embedded queue: its context, its ranks, its array tasks, its
failure.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcdash.job
from hpcdash.job.pickles import packed
from tests.embedded.queue_lab import QueueLab
from tests.job.runner_scripts import call_text, runner_script

pytestmark = pytest.mark.system
ROOT = str(Path(hpcdash.job.__file__).parent.parent.parent)
CODE = """
def where(item=None, *, job):
    return item, job.job_id, job.rank, job.world_size, job.output_dir

def fails():
    raise RuntimeError("nan")
"""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueLab]:
    lab = QueueLab(tmp_path / "queue", tmp_path / "work")
    (lab.work / "mine.py").write_text(CODE)
    yield lab
    lab.end()


def script(queue: QueueLab, function: str, *wrap: str, **fields: Any) -> str:
    output = str(queue.work / "out.pkl")
    call = call_text(f"mine:{function}", str(queue.work), output=output, **fields)
    return runner_script(call, sys.executable, (ROOT,), wrap=wrap)


def result(queue: QueueLab, name: str) -> Any:
    return pickle.loads((queue.work / name).read_bytes())


def test_each_rank_of_a_job_knows_its_own(queue: QueueLab) -> None:
    number = queue.submit(script(queue, "where", "srun"), "--ntasks=2")
    assert queue.ended(number).state == "completed"
    folder = str(queue.work)
    assert result(queue, "out.pkl") == (None, number, 0, 2, folder)
    assert result(queue, "out.pkl.1") == (None, number, 1, 2, folder)


def test_each_array_task_has_its_item(queue: QueueLab) -> None:
    (queue.work / "items").write_bytes(packed(["a", "b"]))
    number = queue.submit(
        script(queue, "where", items_file=str(queue.work / "items"), task="SLURM_ARRAY_TASK_ID"),
        "--array=0-1",
    )
    assert {queue.ended(f"{number}_{task}").state for task in (0, 1)} == {"completed"}
    assert [result(queue, f"out-{task}.pkl")[0] for task in (0, 1)] == ["a", "b"]


def test_a_function_that_raises_fails_the_job(queue: QueueLab) -> None:
    number = queue.submit(script(queue, "fails"))
    job = queue.ended(number)
    assert (job.state, job.exit_code) == ("failed", 1)
    assert (queue.work / f"slurm-{number}.out").read_text().endswith("RuntimeError: nan\n")
    assert not (queue.work / "out.pkl").exists()
