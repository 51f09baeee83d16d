"""Ending in time: real signals to real processes, and ends of jobs."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hpcdash.job import Checkpoints, TrainingGuard
from hpcdash.job.end_time import end_time, process_start, walltime_seconds
from hpcdash.job.preemption import Preemption
from tests.job.oldest_python import oldest_python
from tests.support.records import for_each

LOOP = """
import os, signal, sys, time
{before}
from hpcdash.job import Preemption
preemption = Preemption()
print("ready", flush=True)
for step in range(100000):
    time.sleep(0.002)
    why = preemption.should_stop(step)
    if why:
        print("saved:", why.split(" at ")[0], flush=True)
        break
"""


def started(code: str) -> "subprocess.Popen[str]":
    training = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert training.stdout is not None
    assert training.stdout.readline() == "ready\n"
    return training


@pytest.mark.system
@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_signal_lets_the_iteration_end_and_save(name: str) -> None:
    training = started(LOOP.format(before=""))
    training.send_signal(signal.Signals[name])
    out, _ = training.communicate()
    assert (training.returncode, out) == (0, f"saved: received {name}\n")


@pytest.mark.system
def test_a_handler_that_was_there_is_called_too() -> None:
    # Not print: the signal may come while the main thread is still in its own.
    before = (
        "signal.signal(signal.SIGUSR1, lambda number, frame: os.write(1, b'mine %d\\n' % number))"
    )
    training = started(LOOP.format(before=before))
    training.send_signal(signal.SIGUSR1)
    out, _ = training.communicate()
    assert out == f"mine {int(signal.SIGUSR1)}\nsaved: received SIGUSR1\n"


@pytest.mark.system
def test_a_worker_that_is_forked_is_ended_by_term_and_outlives_the_warning() -> None:
    code = LOOP.format(before="").replace(
        'print("ready", flush=True)',
        """
import multiprocessing
workers = multiprocessing.get_context("fork")
heard, tell = workers.Pipe(False)
def work():
    tell.send("up")
    time.sleep(60)
worker = workers.Process(target=work, daemon=True)
worker.start()
heard.recv()
os.kill(worker.pid, signal.SIGUSR1)
worker.join(0.3)
word = "ready" if worker.is_alive() else "lost"
worker.terminate()
worker.join(10)
print(word if worker.exitcode == -signal.SIGTERM else f"worker {worker.exitcode}", flush=True)
""",
    )
    training = started(code)
    training.send_signal(signal.SIGTERM)
    out, _ = training.communicate()
    assert out == "saved: received SIGTERM\n"


WORKERS = """
import multiprocessing, os, signal, subprocess, threading, time
from hpcdash.job import Preemption

def work(up):
    up.put("up")
    time.sleep(60)

def train(up):
    preemption = Preemption()
    up.put("up")
    while not preemption.should_stop():
        time.sleep(0.01)
    up.put(preemption.should_stop())

def main():
    os.setpgrp()
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    signal.signal(signal.SIGUSR1, lambda number, frame: print("mine", flush=True))
    preemption = Preemption()
    started = []
    for method in ("fork", "spawn", "forkserver"):
        for target in (work, train):
            context = multiprocessing.get_context(method)
            up = context.SimpleQueue()
            started.append((context.Process(target=target, args=(up,), daemon=True), up))
            started[-1][0].start()
    with preemption.sparing():
        spared = subprocess.Popen(["sleep", "60"])
    other = subprocess.Popen(["sleep", "60"])
    for _, up in started:
        up.get()
    os.killpg(0, signal.SIGUSR1)
    # Those that make one of their own hear of it; the others, which were told at the same time, are there still.
    print([up.get() for _, up in started[1::2]], other.wait(), flush=True)
    print([worker.is_alive() for worker, _ in started[::2]], spared.poll(), preemption.should_stop(1), flush=True)
    for worker, _ in started[::2]:
        worker.terminate()
        worker.join()
    spared.terminate()
    print([worker.exitcode for worker, _ in started[::2]], spared.wait(), flush=True)
    preemption.close()
    print(signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.mark.system
@pytest.mark.parametrize("python", [sys.executable, "3.8"])
def test_a_warning_to_the_whole_step_spares_workers_however_they_were_started(
    tmp_path: Path, python: str
) -> None:
    (tmp_path / "train.py").write_text(WORKERS)
    ended = subprocess.run(
        [oldest_python() if python == "3.8" else python, str(tmp_path / "train.py")],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in ended.stdout.splitlines() if line != "mine"]
    assert said == [
        f"{['received SIGUSR1'] * 3} {-signal.SIGUSR1}",
        "[True, True, True] None received SIGUSR1 at step 1",
        f"{[-signal.SIGTERM] * 3} {-signal.SIGTERM}",
        "False",
    ], ended.stderr
    # Its own handler is called in it, and in what was forked from it.
    assert ended.stdout.count("mine") == 3
    assert ended.stderr == ""


def test_off_the_main_thread_it_refuses_in_plain_words() -> None:
    refused: list[str] = []

    def make() -> None:
        try:
            Preemption()
        except RuntimeError as error:
            refused.append(str(error))
        Preemption(signals=())

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert len(refused) == 1
    assert "create this in the main thread" in refused[0]


def test_the_handlers_that_were_there_are_put_back() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    preemption = Preemption()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert preemption.should_stop(7) == "received SIGUSR1 at step 7"
    assert preemption.should_stop(8) == "received SIGUSR1 at step 7"
    preemption.close()
    assert signal.getsignal(signal.SIGUSR1) == before


@pytest.mark.system
@pytest.mark.parametrize("order", ["a.close(); b.close()", "b.close(); a.close()"])
def test_closed_in_any_order_the_handlers_that_were_there_are_put_back(order: str) -> None:
    code = f"""
import os, signal
from hpcdash.job import Preemption
a = Preemption(); b = Preemption()
{order}
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGTERM


@pytest.mark.system
def test_one_that_is_closed_passes_signals_on_to_what_was_there_before() -> None:
    code = """
import os, signal
from hpcdash.job import Preemption
signal.signal(signal.SIGUSR1, lambda number, frame: print("first"))
a = Preemption()
between = signal.getsignal(signal.SIGUSR1)
signal.signal(signal.SIGUSR1, lambda number, frame: (print("theirs"), between(number, frame)))
b = Preemption()
a.close()
os.kill(os.getpid(), signal.SIGUSR1)
print(bool(a.reason()), bool(b.reason()))
os.kill(os.getpid(), signal.SIGTERM)
print("b is there for TERM")
b.close()
# Theirs still calls the first one's.
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGTERM)
"""
    ended = subprocess.run(
        [sys.executable, "-u", "-c", code], capture_output=True, text=True, check=False
    )
    said = ["theirs", "first", "False True", "b is there for TERM", "theirs", "first"]
    assert ended.stdout.splitlines() == said, ended.stderr
    assert ended.returncode == -signal.SIGTERM


def test_it_stops_when_twice_an_iteration_and_a_save_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1_000_000.0]
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1001000")
    preemption = Preemption(signals=(), now=lambda: clock[0])
    assert preemption.grace_seconds() == 2 * 1000 / 20
    preemption.iterated(100)
    preemption.iterated(120)
    preemption.saved(80)
    assert preemption.grace_seconds() == 2 * (120 + 80)
    clock[0] = 1_000_599
    assert preemption.reason() == ""
    clock[0] = 1_000_600
    assert (
        preemption.reason(5)
        == "400 s left at step 5, less than the 400 s of 2 × (iteration + save)"
    )


def test_some_seconds_are_left_for_the_end_however_fast_all_is() -> None:
    preemption = Preemption(signals=(), walltime=10_000, save_seconds=0)
    preemption.iterated(0.01)
    assert preemption.grace_seconds() == 10
    assert preemption.ends_at is not None
    preemption.ends_at += 9 - preemption.seconds_left()
    assert preemption.reason(3) == "9 s left at step 3, less than the 10 s of the job end"
    # Of a test that runs for a minute it is not too much.
    short = Preemption(
        signals=(), exit_duration_in_mins=(time.time() - process_start() + 60) / 60, save_seconds=0
    )
    assert short.grace_seconds() == pytest.approx(3, abs=0.1)
    short.also("validation", 20)
    assert short.grace_seconds() == 40


def test_a_run_that_resumed_knows_how_long_the_save_before_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((100.0, 125.0))
    with monkeypatch.context() as patched:
        patched.setattr("hpcdash.job.checkpoint.monotonic", lambda: next(clock))
        with Checkpoints(tmp_path, rank=0).saving(7) as folder:
            (folder / "model").write_text("weights")
    preemption = Preemption(signals=())
    assert preemption.grace_seconds() == 2 * 60
    Checkpoints(tmp_path, rank=0).resume_from()
    assert preemption.grace_seconds() == 2 * 25
    assert Preemption(signals=(), save_seconds=40).grace_seconds() == 2 * 40
    preemption.saved(30)
    assert preemption.grace_seconds() == 2 * 30
    guard = TrainingGuard(kill="", save="", memory=None, signals=(), save_seconds=50)
    assert guard.preemption.grace_seconds() == 2 * 50


def test_a_slow_first_iteration_is_forgotten_in_time() -> None:
    preemption = Preemption(signals=(), save_seconds=0)
    preemption.iterated(300)
    for _ in range(50):
        preemption.iterated(1)
    assert preemption.grace_seconds() == 2


def test_a_job_without_an_end_is_never_out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    preemption = Preemption(signals=())
    assert (preemption.seconds_left(), preemption.should_stop(1)) == (float("inf"), "")


@for_each(
    ("written", "seconds"),
    [
        (90, 90),
        ("90", 90),
        ("90:00", 5400),
        ("24:00:00", 86400),
        ("1-12", 129600),
        ("1-12:30:05", 131405),
    ],
)
def test_a_walltime_is_seconds(written: str, seconds: float) -> None:
    assert walltime_seconds(written) == seconds


@for_each("written", ["", "x", "1:2:3:4", "-5", "1-x", "inf", "nan", "-1:00"])
def test_a_walltime_that_is_none_is_refused_with_what_to_write(written: str) -> None:
    with pytest.raises(ValueError, match="use seconds, HH:MM:SS or D-HH:MM:SS"):
        walltime_seconds(written)


def test_the_earliest_end_counts_and_minutes_are_from_the_start_of_the_program() -> None:
    started_at = process_start()
    assert 0 <= time.time() - started_at < 86400
    assert end_time(environment={}) is None
    assert end_time(environment={"SLURM_JOB_END_TIME": "2000000000"}) == 2_000_000_000
    assert end_time(environment={"SLURM_JOB_END_TIME": "soon"}) is None
    assert end_time(environment={"HPCDASH_END_TIME": "1700000000.5"}) == 1_700_000_000.5
    of_the_launch = {
        "HPCDASH_END_TIME": "1900000000",
        "HPCDASH_END_TIME_OF": "7",
        "SLURM_JOB_END_TIME": "2000000000",
    }
    assert end_time(environment=of_the_launch) == 1_900_000_000
    assert end_time(environment={**of_the_launch, "SLURM_JOB_ID": "7"}) == 1_900_000_000
    # It is of the job that this one was submitted from.
    assert end_time(environment={**of_the_launch, "SLURM_JOB_ID": "8"}) == 2_000_000_000
    ends = end_time(exit_duration_in_mins=5990, walltime="1000:00:00", environment={})
    assert ends == pytest.approx(started_at + 5990 * 60, abs=0.1)
    assert end_time(environment={"PBS_WALLTIME": "3600"}) == pytest.approx(
        started_at + 3600, abs=0.1
    )


@pytest.mark.system
def test_slurm_is_asked_once_and_only_where_wanted(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    program = tmp_path / "scontrol"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> {calls}\n'
        'echo "JobId=$4 JobName=x TimeLimit=1-00:00:00 StartTime=2033-05-17T03:33:20 '
        "EndTime=2033-05-18T03:33:20"
        ' Deadline=N/A"\n'
    )
    program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_END_TIME": "1990000000",
    }
    code = (
        "from hpcdash.job import Preemption\n"
        "import sys\n"
        "preemption = Preemption(ask_slurm=sys.argv[1:] == ['ask'])\n"
        "for step in range(1000): preemption.should_stop(step)\n"
        "print(int(preemption.ends_at))\n"
    )

    def ends(*arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return ended.stdout.strip()

    assert ends() == "1990000000"
    assert not calls.exists()
    assert ends("ask") == "2000000000"
    assert calls.read_text() == "--oneliner show job 7\n"
    # The last task of an array has the array's number, which means all of its tasks.
    environment |= {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "5"}
    assert ends("ask") == "2000000000"
    assert calls.read_text().endswith("show job 7_5\n")
    program.write_text("#!/bin/sh\necho 'slurm_load_jobs error' >&2\nexit 1\n")
    assert ends("ask") == "1990000000"


REPORTING = """
import os, signal, sys, time
from hpcdash.job import {imports}
{guard}
for step in range(1000):
    {loop}
    if step == 3:
        os.kill(os.getpid(), signal.SIGUSR1)
    if guard.should_stop(step):
        break
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("imports", "guard", "loop"),
    [
        ("Preemption", "guard = Preemption()", "pass"),
        ("TrainingGuard", "guard = TrainingGuard(memory=None)", "guard.step(step)"),
    ],
)
def test_the_batch_script_is_notified_of_a_stop_for_signals_and_of_those_that_follow(
    tmp_path: Path, imports: str, guard: str, loop: str
) -> None:
    marker = tmp_path / "stopped"
    ended = subprocess.run(
        [sys.executable, "-c", REPORTING.format(imports=imports, guard=guard, loop=loop)],
        env={**os.environ, "HPCDASH_STOPPED_EARLY": str(marker), "SLURM_JOB_ID": "7"},
        check=False,
    )
    assert (ended.returncode, marker.read_text()) == (0, "SIGUSR1 7\nSIGTERM 7\n")


@pytest.mark.parametrize("ends_for", ["success", "kill switch", "memory", "time"])
def test_the_batch_script_is_not_notified_of_any_other_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_for: str
) -> None:
    class NoMemory:
        def reason(self) -> str:
            return "no memory" if ends_for == "memory" else ""

    marker, kill = tmp_path / "stopped", tmp_path / "KILL"
    monkeypatch.setenv("HPCDASH_STOPPED_EARLY", str(marker))
    walltime = 0.01 if ends_for == "time" else None
    memory: Any = NoMemory()
    with TrainingGuard(
        kill=str(kill), memory=memory, walltime=walltime, look_every_seconds=0
    ) as guard:
        if ends_for == "kill switch":
            kill.touch()
            os.kill(os.getpid(), signal.SIGTERM)
        guard.step(1)
        assert bool(guard.should_stop()) == (ends_for != "success")
    assert not marker.exists()


@pytest.mark.system
def test_a_marker_that_cannot_be_written_does_not_end_the_training(tmp_path: Path) -> None:
    training = subprocess.Popen(
        [sys.executable, "-c", LOOP.format(before="")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HPCDASH_STOPPED_EARLY": f"{tmp_path}/gone/stopped"},
    )
    assert training.stdout is not None
    assert training.stdout.readline() == "ready\n"
    training.send_signal(signal.SIGTERM)
    out, said = training.communicate()
    assert (training.returncode, out) == (0, "saved: received SIGTERM\n")
    assert "the batch script is not notified of this stop" in said
