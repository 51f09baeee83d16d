"""Logs of jobs on a real Slurm, over ssh and on the spot: the last lines, those that come, and the
metrics in them.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdash.services.metrics.run import WatchedRun
from tests.e2e.live_store import store_on
from tests.support.program import Program, program_over_ssh
from tests.support.screen import dashboard
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slurm_releases

WRITES = """#!/bin/sh
for step in 1 2 3 4 5 6; do echo "step $step"; sleep 0.2; done
echo "no such thing" >&2
exit 3
"""


@dataclass(frozen=True, slots=True)
class Written:
    """A job of alice's and the file of its stdout, which a test may write to."""

    job_id: str
    path: Path

    def append(self, content: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(content)


@pytest.fixture(scope="module")
def lab(slurm_lab: SlurmLab) -> Iterator[SlurmLab]:
    yield slurm_lab
    slurm_lab.reset()


@pytest.fixture(scope="module")
def sleeper(lab: SlurmLab) -> Written:
    """A job that runs and writes nothing itself."""
    job_id = lab.submit("alice", "-J", "sleeper", "-o", "sleeper-%j.out")
    lab.wait_state(job_id, "RUNNING")
    path = lab.work_dir("alice") / f"sleeper-{job_id}.out"
    # It is cut to nothing when the job opens it.
    wait_until("the job's file", path.exists)
    return Written(job_id, path)


class Following:
    """A running `hpcdash log -f`, its stdout read as it comes."""

    def __init__(self, program: Program, words: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            program.argv("log", *words),
            env=program.environment,
            cwd=program.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.read = {"stdout": b"", "stderr": b""}

    def until(self, stream: str, wanted: bytes) -> None:
        """Read until this has come."""
        pipe = getattr(self.process, stream)
        while wanted not in self.read[stream]:
            got = os.read(pipe.fileno(), 1 << 16)
            assert got, (wanted, self.read, self.process.wait())
            self.read[stream] += got

    def ended(self) -> tuple[int, bytes, str]:
        """Wait for its end: status, all of stdout, all of stderr."""
        out, err = self.process.communicate()
        return (
            self.process.returncode,
            self.read["stdout"] + out,
            (self.read["stderr"] + err).decode(),
        )


@contextmanager
def following(program: Program, *words: str) -> Iterator[Following]:
    run = Following(program, words)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.communicate()


@pytest.mark.parametrize("fixture", ["over_ssh", "locally"])
def test_the_last_lines_are_those_of_the_file(
    sleeper: Written, request: pytest.FixtureRequest, fixture: str
) -> None:
    program: Program = request.getfixturevalue(fixture)
    lines = [b"step %d \x1b[2J\xff\r\n" % step for step in range(30_000)]
    sleeper.path.write_bytes(b"".join(lines) + b"open")
    for count in (1, 2, 20_000, 30_001):
        run = program("log", sleeper.job_id, "-n", str(count))
        assert (run.status, run.stderr) == (0, "")
        assert run.stdout == b"".join([*lines, b"open"][-count:])
    assert program("log", sleeper.job_id).stdout == b"".join([*lines, b"open"][-100:])
    assert program("log", sleeper.job_id, "-n", "0").stdout == b""
    assert program("log", sleeper.job_id, "--path").stdout == os.fsencode(sleeper.path) + b"\n"


def test_what_is_added_cut_off_and_replaced_is_followed(
    over_ssh: Program, sleeper: Written
) -> None:
    sleeper.path.write_bytes(b"old 1\nold 2\n")
    much = b"".join(b"much %d\n" % number for number in range(1_000_000))
    with following(over_ssh, sleeper.job_id, "-f", "-n", "1") as run:
        run.until("stdout", b"old 2\n")
        sleeper.append(b"new 1\nha")
        run.until("stdout", b"new 1\nha")
        sleeper.append(b"lf\n" + much)
        run.until("stdout", much[-20:])
        sleeper.path.write_bytes(b"again\n")
        run.until("stdout", b"again\n")
        sleeper.path.rename(sleeper.path.with_suffix(".1"))
        run.until("stderr", b"is gone: no such file")
        sleeper.path.write_bytes(b"another file\n")
        run.until("stdout", b"another file\n")
        run.process.send_signal(signal.SIGINT)
        status, out, err = run.ended()
    assert status == 130
    assert out == b"old 2\nnew 1\nhalf\n" + much + b"again\nanother file\n"
    assert "was truncated from" in err
    assert "Traceback" not in err


def test_following_ends_with_the_job_and_says_how_it_ended(
    lab: SlurmLab, over_ssh: Program
) -> None:
    job_id = lab.submit("alice", "-J", "writes", "-o", "w-%j.out", "-e", "w-%j.err", script=WRITES)
    with following(over_ssh, job_id, "-f") as run:
        status, out, err = run.ended()
    assert (status, out) == (0, b"".join(b"step %d\n" % step for step in range(1, 7)))
    assert f"job {job_id} failed: exit 3" in err
    again = over_ssh("log", job_id, "--err", "-f")
    assert (again.status, again.stdout) == (0, b"no such thing\n")
    assert f"job {job_id} failed: exit 3" in again.stderr


def test_of_an_array_some_of_which_waits_it_is_the_log_of_a_task_that_runs(
    lab: SlurmLab, over_ssh: Program
) -> None:
    script = "#!/bin/sh\necho task $SLURM_ARRAY_TASK_ID\nsleep 600\n"
    array = lab.submit("alice", "-J", "sweep", "-o", "a-%A-%a.out", "--array=4-9%1", script=script)
    path = lab.work_dir("alice") / f"a-{array}-4.out"
    wait_until("the first task's words", lambda: path.exists() and path.stat().st_size > 0)
    run = over_ssh("log", array)
    assert (run.status, run.stdout) == (0, b"task 4\n")
    assert f"showing {array}_4, the only task of array {array}" in run.stderr


def test_a_job_that_waits_has_no_log_yet_and_it_can_be_waited_for(
    lab: SlurmLab, over_ssh: Program
) -> None:
    job_id = lab.submit(
        "alice", "-J", "held", "--hold", "-o", "held-%j.out", script="#!/bin/sh\necho done\n"
    )
    path = lab.work_dir("alice") / f"held-{job_id}.out"
    words = over_ssh("log", job_id).refused(1)
    assert f"{path}: no such file." in words
    assert f"Job {job_id} is held" in words
    assert over_ssh("log", job_id, "--path").text == f"{path}\n"
    with following(over_ssh, job_id, "-f") as run:
        run.until(
            "stderr", f"stdout will be written to {path} (the job is held); waiting for it".encode()
        )
        lab.as_user("alice", "scontrol", "release", job_id)
        status, out, err = run.ended()
    assert (status, out) == (0, b"done\n")
    assert f"job {job_id} completed" in err


def test_a_terminal_gets_no_sequence_but_colours(locally: Program, sleeper: Written) -> None:
    sleeper.path.write_bytes(
        b"\x1b[2J\x1b]0;owned\x07\x1b[31mred\x1b[0m \x07\n 10%\r 20%\r\nopen \x1b[1A"
    )

    def seen(**variables: str) -> bytes:
        keyboard, screen = pty.openpty()
        argv = locally.argv("log", sleeper.job_id)
        environment = {**locally.environment, **variables}
        process = subprocess.Popen(
            argv, env=environment, stdin=screen, stdout=screen, stderr=screen, cwd=locally.home
        )
        os.close(screen)
        shown = b""
        try:
            while part := os.read(keyboard, 4096):
                shown += part
        except OSError:
            # Linux says so when the last who had the terminal open is gone.
            assert process.wait() == 0, shown
        finally:
            os.close(keyboard)
        return shown

    assert seen() == "\x1b[31mred\x1b[0m ␇\r\n 20%\r\nopen \r\n".encode()
    assert seen(NO_COLOR="1") == "red ␇\r\n 20%\r\nopen \r\n".encode()


def test_whoever_has_read_enough_ends_it_quietly(over_ssh: Program, sleeper: Written) -> None:
    sleeper.path.write_bytes(b"line\n" * 2_000_000)
    for words in (("-n", "2000000"), ("-f",)):
        with following(over_ssh, sleeper.job_id, *words) as run:
            run.until("stdout", b"line\n")
            assert run.process.stdout is not None
            run.process.stdout.close()
            assert run.process.wait() == 0
            assert run.process.stderr is not None
            assert run.process.stderr.read() == b""


def test_what_cannot_be_read_is_refused_with_words(lab: SlurmLab, over_ssh: Program) -> None:
    assert "999999" in over_ssh("log", "999999").refused(1)
    job_id = lab.submit("alice", "-J", "silent", "-o", "/dev/null")
    assert "/dev/null: output goes to /dev/null." in over_ssh("log", job_id).refused(1)
    assert over_ssh("log", job_id, "-f").refused(1)


def test_another_persons_closed_log_says_so(lab: SlurmLab, tmp_path: Path) -> None:
    job_id = lab.submit("bob", "-J", "private", "-o", "private-%j.out")
    lab.wait_state(job_id, "RUNNING")
    path = lab.work_dir("bob") / f"private-{job_id}.out"
    wait_until("the job's file", path.exists)
    path.chmod(0o600)
    words = program_over_ssh(lab, tmp_path / "alice")("log", job_id).refused(1)
    assert "no permission to" in words


TRAIN = r"""#!/bin/bash
awk -v truth=truth-$SLURM_JOB_ID-$SLURM_ARRAY_TASK_ID -v first=$((SLURM_ARRAY_TASK_ID * 100 + 1)) 'BEGIN {
  srand(7)
  for (step = first; step < first + 200; step++) {
    loss = 10 / sqrt(step) + rand() / 10
    printf "step %d/500: loss %s, lr 0.001\n", step, loss; fflush()
    printf "[%d, %s]\n", step, loss > truth; fflush(truth)
    if (step % 20 == 0) system("sleep 0.2")
  }
}'
"""


def truth(path: Path) -> list[tuple[int, float]]:
    return [(step, loss) for step, loss in map(json.loads, path.read_text().splitlines())]


@pytest.mark.journey
def test_a_training_is_followed_to_its_end_and_its_curve_is_what_it_wrote(
    lab: SlurmLab, over_ssh: Program
) -> None:
    job_id = lab.submit("alice", "-J", "gpt", "-o", "gpt-%j.out", "-e", "gpt-%j.err", script=TRAIN)
    # What is asked before the job has begun is told that there is no log yet.
    wait_until("its log", (lab.work_dir("alice") / f"gpt-{job_id}.out").exists)
    answer = over_ssh("metrics", job_id, "-f", "--format", "json", "--metric", "loss").json
    assert (answer["schema"], answer["backend"]) == (1, "slurm")
    (series,) = answer["series"]
    wrote = truth(lab.work_dir("alice") / f"truth-{job_id}-")
    assert len(wrote) == 200
    assert list(zip(series["x"], series["y"], strict=True)) == wrote
    assert series["source"] == str(lab.work_dir("alice") / f"gpt-{job_id}.out")
    chart = over_ssh("metrics", job_id).text
    assert chart.startswith(f"{job_id} gpt\n")
    assert " loss  newest " in chart


def test_an_arrays_tasks_are_one_curve_in_which_the_newest_counts(
    lab: SlurmLab, over_ssh: Program
) -> None:
    array = lab.submit(
        "alice", "-J", "chain", "-o", "chain-%A_%a.out", "--array=0-2%1", script=TRAIN
    )
    folder = lab.work_dir("alice")
    wait_until("the first log", (folder / f"chain-{array}_0.out").exists)
    answer = over_ssh("metrics", array, "-f", "--format", "json", "--metric", "loss").json
    (series,) = answer["series"]
    wrote: dict[int, float] = {}
    for task in range(3):
        (path,) = folder.glob(f"truth-*-{task}")
        wrote |= dict(truth(path))
        path.unlink()
    assert dict(zip(series["x"], series["y"], strict=True)) == wrote
    assert series["source"].split(", ") == [
        str(folder / f"chain-{array}_{task}.out") for task in range(3)
    ]


async def test_the_end_of_a_large_log_is_there_at_once(lab: SlurmLab) -> None:
    job_id = lab.submit(
        "alice", "-J", "large", "-o", "large-%j.out", script="#!/bin/sh\necho up\nsleep 600\n"
    )
    path = lab.work_dir("alice") / f"large-{job_id}.out"
    wait_until("the job's file", lambda: path.exists() and path.stat().st_size > 0)
    line = b"step %09d/2000000 | loss 2.5000 | lr 1.0e-4 | " + b"x" * 40 + b"\n"
    with path.open("wb") as file:
        for begin in range(0, 1_000_000, 100_000):
            file.write(b"".join(line % step for step in range(begin, begin + 100_000)))
    async with store_on(lab, "alice") as store:
        await store.open()
        run = WatchedRun(store, job_id)
        await run.open()
        assert run.run.series("loss").x[-1] == 999_999
        assert run.progress.bytes_read <= 1 << 20
        assert run.progress.total_bytes == path.stat().st_size
        assert await run.read_whole()
        assert run.run.series("loss").points.sum() == 1_000_000
    lab.as_user("alice", "scancel", job_id)


async def test_a_chart_in_a_terminal_is_drawn_as_the_training_goes_on(
    lab: SlurmLab, over_ssh: Program
) -> None:
    # It goes on once its first steps were seen.
    script = TRAIN.replace(
        'system("sleep 0.2")', 'system("until [ -e go-$SLURM_JOB_ID ]; do sleep 0.05; done")'
    )
    job_id = lab.submit("alice", "-J", "live", "-o", "live-%j.out", script=script)
    async with dashboard(over_ssh, "metrics", job_id, "-f", columns=80, lines=30) as screen:
        await screen.until(lambda text: " loss  newest " in text and "at step 200" not in text)
        (lab.work_dir("alice") / f"go-{job_id}").touch()
        await screen.until(lambda text: "at step 200" in text)
        assert await screen.ended() == 0
