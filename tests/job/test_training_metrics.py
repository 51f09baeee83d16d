"""Metrics as lines that the chart's own reader reads, on disks that fill up too."""

import contextlib
import errno
import json
import math
import os
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest

from hpcdash.job.guard import TrainingGuard
from hpcdash.job.metrics import MetricsWriter
from hpcdash.services.metrics.formats import read_json


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_the_file_is_that_of_the_environment_unless_one_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HPCDASH_METRICS", raising=False)
    with pytest.raises(ValueError, match="set HPCDASH_METRICS"):
        MetricsWriter(rank=0)
    assert TrainingGuard(rank=0, signals=(), memory=None).metrics is None
    monkeypatch.setenv("HPCDASH_METRICS", str(tmp_path / "named.jsonl"))
    assert MetricsWriter(rank=0).path == str(tmp_path / "named.jsonl")
    assert MetricsWriter(tmp_path / "own", rank=0).path == str(tmp_path / "own")
    guard = TrainingGuard(rank=0, signals=(), memory=None)
    guard.step(1, loss=2.5)
    assert lines_of(tmp_path / "named.jsonl")[0]["loss"] == 2.5
    assert TrainingGuard(metrics="", rank=0, signals=(), memory=None).metrics is None


def test_a_chart_reads_step_metrics_and_time_of_each_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    before = time.time()
    writer = MetricsWriter(path, rank=0)
    writer.write(
        500,
        loss=2.125,
        lr=3e-4,
        **{"eval/accuracy": 0.5, "grad_norm": math.nan, "perplexity": math.inf},
    )
    (line,) = path.read_text().splitlines()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    reading = read_json(line)
    assert reading is not None
    assert reading.step == 500
    assert reading.time == pytest.approx(before, abs=5)
    assert {name: reading.values[name] for name in ("loss", "lr", "eval/accuracy")} == {
        "loss": 2.125,
        "lr": 3e-4,
        "eval/accuracy": 0.5,
    }
    assert math.isnan(reading.values["grad_norm"])
    assert reading.values["perplexity"] == math.inf


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "m", rank=0)
    for step in range(3):
        writer.write(step, loss=1)
        assert len(lines_of(tmp_path / "m")) == step + 1


def test_tensors_are_their_numbers_and_what_is_none_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Tensor:
        def item(self) -> float:
            return 0.25

    class Image:
        def item(self) -> float:
            raise RuntimeError("only one element tensors can be converted to Python scalars")

    writer = MetricsWriter(tmp_path / "m", rank=0)
    for _ in range(2):
        writer.write(
            1,
            loss=Tensor(),
            third=Fraction(1, 4),
            done=True,
            image=Image(),
            note="high",
            step_=3,
            time=0.1,
        )
    written = lines_of(tmp_path / "m")[0]
    del written["time"]
    assert written == {"step": 1, "loss": 0.25, "third": 0.25, "done": 1, "step_": 3}
    assert (
        caplog.text.count("image")
        == caplog.text.count("note")
        == caplog.text.count("name time")
        == 1
    )


def test_ranks_other_than_0_write_nothing(tmp_path: Path) -> None:
    MetricsWriter(tmp_path / "m", rank=3).write(1, loss=1)
    assert not (tmp_path / "m").exists()


@pytest.mark.system
def test_a_full_disk_loses_no_line_and_tears_none(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (244 << 10))
    path = small_disk / "metrics.jsonl"
    writer = MetricsWriter(path, rank=0)
    for step in range(2000):
        writer.write(step, loss=1.0, text_that_makes_lines_long=step)
    assert 0 < len(path.read_bytes()) < 20_000
    assert caplog.text.count("No space left on device") == 1
    ballast.unlink()
    writer.write(2000, loss=1.0)
    assert [line["step"] for line in lines_of(path)] == list(range(2001))


def test_a_mount_that_is_gone_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    writer = MetricsWriter(tmp_path / "file" / "metrics.jsonl", rank=0)
    for step in range(20_000):
        writer.write(step, loss=1.0)
    writer.close()
    assert caplog.text.count("cannot be written") == 1


def test_a_file_that_is_deleted_or_renamed_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr("hpcdash.job.metrics.monotonic", lambda: clock[0])
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, rank=0)
    writer.write(1, loss=1.0)
    path.unlink()
    writer.write(2, loss=1.0)
    clock[0] += 5
    writer.write(3, loss=1.0)
    path.rename(tmp_path / "old.jsonl")
    path.touch()
    clock[0] += 5
    writer.write(4, loss=1.0)
    writer.close()
    assert [line["step"] for line in lines_of(path)] == [4]
    assert [line["step"] for line in lines_of(tmp_path / "old.jsonl")] == [3]
    assert caplog.text.count("was deleted or renamed") == 1


def test_what_a_close_says_of_lost_lines_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def close(file: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    writer = MetricsWriter(tmp_path / "m", rank=0)
    writer.write(1, loss=1.0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "close", close)
        writer.close()
    assert f"{tmp_path / 'm'}: its last lines may be missing (Disk quota exceeded)" in caplog.text


def test_a_mount_that_hangs_stops_nothing_and_keeps_the_newest_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR)
    # A pipe that is full holds up a write as a mount that hangs does.
    os.set_blocking(reader, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(reader, b"\n" * 4096):
            pass
    monkeypatch.setattr("hpcdash.job.metrics._WAIT_SECONDS", 0.02)
    monkeypatch.setattr("hpcdash.job.metrics._MAX_WAITING_LINES", 20)
    writer = MetricsWriter(path, rank=0)
    for step in range(1000):
        writer.write(step, loss=1.0)
    assert not writer.flush()
    assert caplog.text.count("does not respond") == 1
    steps: list[int] = []
    while len(steps) < 21:
        with contextlib.suppress(BlockingIOError):
            steps += [
                json.loads(line)["step"] for line in os.read(reader, 1 << 20).splitlines() if line
            ]
    assert steps == [0, *range(980, 1000)]
    os.close(reader)


def test_half_a_line_takes_no_place_in_a_full_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.job.metrics._MAX_WAITING_LINES", 3)
    folder = tmp_path / "later"
    (tmp_path / "file").touch()
    folder.symlink_to(tmp_path / "file")
    writer = MetricsWriter(folder / "m", rank=0)
    for step in range(5):
        writer.write(step, loss=1)
    folder.unlink()
    folder.mkdir()
    (folder / "m").write_text('{"half')
    assert writer.flush()
    assert [json.loads(line)["step"] for line in (folder / "m").read_text().splitlines()[1:]] == [
        2,
        3,
        4,
    ]


def test_half_a_line_of_a_run_that_was_killed_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    MetricsWriter(path, rank=0).write(3, loss=1)
    assert [line[:12] for line in path.read_text().splitlines()] == [
        '{"step": 1, ',
        '{"step": 2, ',
        '{"step": 3, ',
    ]


@pytest.mark.system
def test_a_run_that_is_killed_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "m"
    code = (
        "import sys\n"
        "from hpcdash.job import MetricsWriter\n"
        "writer, step = MetricsWriter(sys.argv[1], rank=0), 0\n"
        "while True: step += 1; writer.write(step, loss=step / 3)\n"
    )
    for _ in range(5):
        training = subprocess.Popen([sys.executable, "-c", code, str(path)])
        size = path.stat().st_size if path.exists() else 0
        while not path.exists() or path.stat().st_size < size + 10_000:
            pass
        training.kill()
        training.wait()
    steps = [line["step"] for line in lines_of(path)]
    assert steps.count(1) == 5
    assert path.read_bytes().endswith(b"\n")
