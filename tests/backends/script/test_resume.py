"""Which checkpoint a start of a job is told to go on from: the script's lines run in bash, over
real folders.
"""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from hpcdash.backends.script.body import Place
from hpcdash.backends.script.resume import fixed_part, resume_lines
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.request import Container, Request, Runtime
from hpcdash.errors import UsageError
from hpcdash.job.checkpoint import MARKER, Checkpoints
from tests.support.records import for_each
from tests.support.scripts import Scheduler, batch_script

pytestmark = pytest.mark.system


def started(checkpoints: str, folder: Path, *, task: str = "") -> tuple[str, str, int]:
    """(HPCDASH_RESUME_FROM, stderr, exit status) of a start in a folder."""
    script = resume_lines(checkpoints, "TASK") + 'printf %s "$HPCDASH_RESUME_FROM"\n'
    ended = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "TASK": task},
    )
    return ended.stdout, ended.stderr, ended.returncode


def aged(path: Path, seconds: float) -> Path:
    """A file that is there, so old."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    os.utime(path, (1e9 - seconds, 1e9 - seconds))
    return path


def test_the_first_start_makes_the_folder_and_begins_anew(tmp_path: Path) -> None:
    found, said, status = started("my runs/llm", tmp_path)
    assert (found, status) == ("", 0)
    assert said == (f"hpcdash: starting over: no complete checkpoint in {tmp_path}/my runs/llm\n")
    assert (tmp_path / "my runs/llm").is_dir()


def test_it_goes_on_from_what_the_library_saved_last_and_not_from_what_it_was_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path / "c")
    for step, clock in ((5000, 2e9), (1000, 1e9)):
        # The second host's clock is behind.
        monkeypatch.setattr("hpcdash.job.checkpoint.time", partial(float, clock))
        with checkpoints.saving(step) as folder:
            (folder / "model").write_text("x")
    aged(tmp_path / "c" / ".saving-00006000" / MARKER, -2e9)
    found, said, _ = started(f"{tmp_path}/c", tmp_path)
    newest = checkpoints.newest()
    assert newest is not None
    assert (found, said) == (str(newest.path), f"hpcdash: resuming from {newest.path}\n")
    assert newest.step == 1000


@pytest.mark.parametrize("last", ["trainer_state.json", ".metadata", MARKER])
def test_a_checkpoint_without_what_is_written_last_is_not_whole(tmp_path: Path, last: str) -> None:
    aged(tmp_path / "c/checkpoint-500" / last, 60)
    aged(tmp_path / "c/checkpoint-900/model.safetensors", 0)
    # Where the Trainer writes before it renames.
    aged(tmp_path / "c/tmp-checkpoint-900/trainer_state.json", 0)
    # The Trainer writes its state beside the checkpoints too, at its end.
    aged(tmp_path / "c" / last, 0)
    assert started("c", tmp_path)[0] == f"{tmp_path}/c/checkpoint-500"


def test_a_checkpoint_may_be_a_link_to_where_there_is_room(tmp_path: Path) -> None:
    aged(tmp_path / "c/step-1" / MARKER, 60)
    aged(tmp_path / "elsewhere" / MARKER, 0)
    (tmp_path / "c/step-2").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "c/step-3").symlink_to(tmp_path / "gone")
    assert started("c", tmp_path)[0] == f"{tmp_path}/c/step-2"


def test_lightning_s_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    aged(tmp_path / "c/guard.ckpt", 0)
    aged(tmp_path / "c/epoch=3.ckpt", -10)
    assert started("c", tmp_path)[0] == f"{tmp_path}/c/guard.ckpt"


def test_each_task_of_an_array_has_its_own_folder(tmp_path: Path) -> None:
    aged(tmp_path / "50%-7/step-1" / MARKER, 0)
    assert started("50%%-%a", tmp_path, task="7")[0] == f"{tmp_path}/50%-7/step-1"
    assert started("50%%-%a", tmp_path, task="8")[0] == ""


def test_a_name_that_bash_could_run_is_a_name(tmp_path: Path) -> None:
    name = "a $(touch run) 'b'"
    aged(tmp_path / name / "$(touch run)" / MARKER, 0)
    assert started(name, tmp_path)[0] == f"{tmp_path}/{name}/$(touch run)"
    assert not list(tmp_path.rglob("run"))


def test_a_folder_that_cannot_be_written_ends_the_job_before_it_has_begun(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found, said, status = started("file/c", tmp_path)
    assert (found, status) == ("", 1)
    assert said.endswith(f"hpcdash: cannot save checkpoints in {tmp_path}/file/c: ending the job\n")


@for_each(
    ("array", "checkpoints", "is_told"),
    [("1-5", "c", True), ("1-5%1", "c", False), ("1-5", "c/%a", False), (None, "c", False)],
)
def test_tasks_at_once_in_one_folder_are_warned_of(
    array: str | None, checkpoints: str, is_told: bool
) -> None:
    request = Request(
        command="x", checkpoints=checkpoints, array=parse_tasks(array) if array else None
    )
    for scheduler in Scheduler:
        warnings = batch_script(scheduler, request, Place("u", "/f")).warnings
        assert any(words.startswith("checkpoints: ") for words in warnings) is is_told


def test_a_task_s_folder_needs_an_array() -> None:
    with pytest.raises(UsageError, match="needs an array"):
        batch_script(Scheduler.SLURM, Request(command="x", checkpoints="c/%a"), Place("u", "/f"))


def test_a_container_sees_the_folder_and_is_told_the_checkpoint() -> None:
    assert (fixed_part("/runs/a%%b/%a/c"), fixed_part("/runs/llm"), fixed_part("%a")) == (
        "/runs/a%b",
        "/runs/llm",
        "",
    )
    request = Request(
        command="x",
        checkpoints="/runs/llm/%a",
        array=parse_tasks("1-2"),
        container=Container(Runtime.PODMAN, "i:1"),
    )
    for scheduler in Scheduler:
        text = batch_script(scheduler, request, Place("u", "/f")).text
        assert "--env=HPCDASH_RESUME_FROM " in text
        assert "/runs/llm:/runs/llm" in text


def test_a_training_that_does_not_say_where_it_saves_is_told_how() -> None:
    for scheduler in Scheduler:
        hint = "# the request, hpcdash sets the checkpoint to resume from: ${HPCDASH_RESUME_FROM:+"
        assert (
            hint
            in batch_script(scheduler, Request(command="x", requeue=True), Place("u", "/f")).text
        )
        assert "RESUME" not in batch_script(scheduler, Request(command="x"), Place("u", "/f")).text
