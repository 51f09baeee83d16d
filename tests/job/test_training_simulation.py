"""A program that has been requested to suspend without a pool, and one that is written for another
platform's.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdash.job.zip import job_zip
from tests.job.oldest_python import oldest_python

ROOT = str(Path(__file__).resolve().parent.parent.parent)
# Asked to suspend it saves, unless it is `deaf` or `slow`; it ends by itself after some steps once
# it has resumed.
TRAINING = """
import os, sys, time
from pathlib import Path
from hpcdash.job.suspend import go_suspend, receive_suspend_command
saved = Path("saved")
print("resumes" if saved.exists() else "begins", *(os.environ[name] for name in ("WORLD_SIZE", "RANK", "MASTER_IP")))
sys.stdout.flush()
while not saved.exists():
    time.sleep(0.01)
    if sys.argv[1] != "deaf" and receive_suspend_command() and sys.argv[1] != "slow":
        saved.touch()
        go_suspend()
sys.exit(3)
"""
# As its platform's documentation has it, but for the GPUs, and a model that needs no PyTorch.
HFAI_PROGRAM = """
import time
import hfai
from hfai.client import go_suspend
class Model:
    steps = []
    def state_dict(self): return {"steps": self.steps}
    def load_state_dict(self, state): self.steps = state["steps"]
def main(gpu_id):
    model = Model()
    start_epoch, start_step, others = hfai.checkpoint.init(model, Model(), ckpt_path="latest.pt")
    for epoch in range(start_epoch, 2):
        for step in range(4):
            if step < start_step: continue
            model.steps = [*model.steps, (epoch, step)]
            if step == 2: model.try_save(epoch, step + 1, others=None, force=True)
            while not others and epoch == 1 and not start_epoch:
                if hfai.distributed.get_rank() == 0 and gpu_id == 0:
                    if hfai.client.receive_suspend_command():
                        model.try_save(epoch, step + 1, others="asked")
                time.sleep(0.01)
        start_step = 0
    print(model.steps)
if __name__ == "__main__":
    hfai.multiprocessing.spawn(main, args=(), nprocs=1, bind_numa=True)
"""


def simulated(
    folder: Path, *words: str, path: str = ROOT, python: str = sys.executable
) -> tuple[int, str, str]:
    given = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [python, "-m", "hpcdash.job.simulation", *words],
        cwd=folder,
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.system
@pytest.mark.parametrize("python", ["this", "oldest"])
def test_a_program_is_asked_to_suspend_and_resumes_when_it_is_run_again(
    tmp_path: Path, python: str
) -> None:
    program = sys.executable if python == "this" else oldest_python()
    (tmp_path / "train.py").write_text(TRAINING)
    words = ("--suspend-after", "0.3", "--grace", "60", program, "train.py", "good")
    status, out, said = simulated(tmp_path, *words, python=program)
    assert (status, out) == (0, "begins 1 0 127.0.0.1\n")
    assert "hpcdash: requesting suspension of the program\n" in said
    assert " s after the request\n" in said
    status, out, _ = simulated(tmp_path, "--", program, "train.py", "good", python=program)
    assert (status, out) == (3, "resumes 1 0 127.0.0.1\n")


@pytest.mark.system
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("deaf", "it never checked for the command"),
        ("slow", "it saw the command but did not call go_suspend"),
    ],
)
def test_a_program_that_does_not_suspend_in_time_is_ended_and_told_why(
    tmp_path: Path, kind: str, why: str
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    words = (
        "--suspend-after",
        "1",
        "--grace",
        "1",
        "--import",
        "1",
        sys.executable,
        "train.py",
        kind,
    )
    status, _, said = simulated(tmp_path, *words)
    assert status == 1
    assert f"the program did not suspend within 1 s and was terminated: {why}\n" in said


# As its platform's documentation has it: it saves, sleeps for as long as it has, and suspends.
# IMPORT are seconds.
DOCUMENTED = """
import sys, time
time.sleep(float(sys.argv[1]))
import hfai
while True:
    time.sleep(0.01)
    if hfai.client.receive_suspend_command():
        open("latest.pt", "w").close()
        time.sleep(float(sys.argv[2]))
        hfai.client.go_suspend()
"""


@pytest.mark.system
@pytest.mark.parametrize("imports", ["0", "2.5"])
def test_a_program_that_sleeps_through_its_time_and_one_that_still_imports_suspend_in_time(
    tmp_path: Path, imports: str
) -> None:
    (tmp_path / "train.py").write_text(DOCUMENTED)
    words = (
        "--suspend-after",
        "0.5",
        "--grace",
        "1",
        sys.executable,
        "-m",
        "hpcdash.job.hfai",
        "train.py",
    )
    status, _, said = simulated(tmp_path, *words, imports, "1")
    assert (status, "suspended" in said) == (0, True), said


@pytest.mark.system
def test_what_cannot_be_started_is_said(tmp_path: Path) -> None:
    assert simulated(tmp_path, "nosuch")[::2] == (
        127,
        "hpcdash: nosuch cannot be started: No such file or directory\n",
    )
    assert "nothing to run" in simulated(tmp_path)[2]


@pytest.mark.system
@pytest.mark.parametrize("library", ["folder", "zip"])
def test_a_program_that_imports_hfai_runs_as_it_is(tmp_path: Path, library: str) -> None:
    path = ROOT
    if library == "zip":
        path = str(tmp_path / "library.zip")
        Path(path).write_bytes(job_zip())
    (tmp_path / "train.py").write_text(HFAI_PROGRAM)
    words = (sys.executable, "-m", "hpcdash.job.hfai", "train.py")
    status, out, said = simulated(
        tmp_path, "--suspend-after", "2", "--grace", "60", *words, path=path
    )
    assert (status, out) == (0, ""), said
    status, out, said = simulated(tmp_path, *words, path=path)
    assert (status, out) == (
        0,
        f"{[(epoch, step) for epoch in range(2) for step in range(4)]}\n",
    ), said
