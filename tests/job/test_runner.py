"""The runner as a job starts it: a process of its own, its exit status, what it tells and what it
touches.
"""

from __future__ import annotations

import ast
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

import hpcdash.job
from hpcdash.job.callbacks import Callback, shipped
from hpcdash.job.pickles import packed, read_packed
from hpcdash.job.results import write_result
from tests.support.records import for_each

pytestmark = pytest.mark.system
ROOT = Path(hpcdash.job.__file__).parent.parent.parent
OURS = ["runner", "injection", "callbacks", "states", "pickles"]

FUNCTIONS = """
import logging, os, subprocess, sys, threading

def noted(line):
    with open(os.environ["NOTES"], "a") as file:
        print(line, file=file)

noted("imported")

def add(x, y=1):
    noted("called")
    return x + y

def told(x, job=None):
    return x, job.job_id, job.rank, job.hostnames, job.output_dir

def fails(x):
    raise ValueError(f"no such loss: {x}")

class Hidden(Exception):
    def __str__(self):
        sys.exit(0)

def hides():
    raise Hidden

def says(text):
    print(text)
    return len(text)

def leaves(status):
    sys.exit(status)

def asks_the_scheduler():
    subprocess.run(["true"])

def logs():
    logging.basicConfig(format="user: %(message)s", level="INFO")
    logging.info("step 1")

def unwritable():
    return threading.Lock()

def seen(*args, **kwargs):
    return args, kwargs

class Trainer:
    @staticmethod
    def fit(x):
        return x * 2

seven = 7
"""
CALLBACKS = """
import os
from functions_noted import noted
from hpcdash.job.callbacks import Callback, RunsOn

class Notes(Callback):
    runs_on = RunsOn.BOTH

    def on_run_begin(self, event):
        noted(f"begin {event.launch.function} {event.job_context.job_id} {event.pid == os.getpid()}")
        noted(f"secret {'SLURM_JWT' in event.environment} {event.environment.get('SLURM_JOB_ID')}")

    def on_run_end(self, event):
        there = bool(event.result_path) and os.path.exists(event.result_path)
        noted(f"end {event.status} {event.result} {there} {event.duration_seconds >= 0}")

    def on_completed(self, event):
        failure = event.failure and f"{event.failure.type}: {event.failure.message}"
        noted(f"completed {event.status} {event.emitted_by} {event.launch.pre_submission_id} {failure}")

class Interrupted(Notes):
    def on_run_end(self, event):
        super().on_run_end(event)
        raise KeyboardInterrupt

class Breaks(Notes):
    def on_run_begin(self, event):
        raise SystemExit(5)

    def on_run_end(self, event):
        raise RuntimeError("no connection")

    def on_completed(self, event):
        raise KeyError("lost")
"""
NOTED = """
import os

def noted(line):
    with open(os.environ["NOTES"], "a") as file:
        print(line, file=file)
"""
# Loaded by the interpreter itself, before the runner is.
WATCH = """
import os, sys

def watch(event, args):
    if event.startswith(("subprocess.", "socket.", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork")):
        os.write(watched, (event + "\\n").encode())
    if event == "open" and os.path.basename(os.environ["OUT"]) in str(args[0]) and args[2] & (os.O_WRONLY | os.O_RDWR):
        os.write(watched, b"opened " + os.fsencode(args[0]) + b"\\n")
    if event == "os.rename":
        os.write(watched, b"renamed to " + os.fsencode(args[1]) + b"\\n")

watched = os.open(os.environ["WATCHED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(watch)
"""


class Job:
    """A job's folder with the functions above, and the runner started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (
            ("functions", FUNCTIONS),
            ("told_callbacks", CALLBACKS),
            ("functions_noted", NOTED),
            ("sitecustomize", WATCH),
        ):
            (folder / f"{name}.py").write_text(text)
        self.out = folder / "result.pkl"
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{folder}:{ROOT}",
            "NOTES": str(folder / "notes"),
            "WATCHED": str(folder / "watched"),
            "OUT": str(self.out),
            "SLURM_JOB_ID": "4711",
            "SLURM_JWT": "secret",
        }

    def file(self, name: str, value: object) -> str:
        path = self.folder / name
        path.write_bytes(packed(value))
        return str(path)

    def callbacks(self, *names: str) -> str:
        sys.path.insert(0, str(self.folder))
        os.environ["NOTES"] = self.environment["NOTES"]
        try:
            import told_callbacks  # type: ignore[import-not-found]

            made: list[Callback] = [getattr(told_callbacks, name)() for name in names]
            (self.folder / "callbacks").write_bytes(shipped(made))
        finally:
            sys.path.remove(str(self.folder))
            for name in ("told_callbacks", "functions_noted"):
                sys.modules.pop(name, None)
        return str(self.folder / "callbacks")

    def run(
        self,
        function: str,
        *options: str,
        args: object = None,
        kwargs: object = None,
        stdout: int = PIPE,
        stderr: int = PIPE,
        **env: str,
    ) -> subprocess.CompletedProcess[str]:
        given = [] if args is None else ["--args-file", self.file("args", args)]
        given += [] if kwargs is None else ["--kwargs-file", self.file("kwargs", kwargs)]
        return self.run_words(
            "--module=functions",
            f"--function={function}",
            *given,
            f"--output-file={self.out}",
            *options,
            stdout=stdout,
            stderr=stderr,
            **env,
        )

    def run_words(
        self, *words: str, stdout: int = PIPE, stderr: int = PIPE, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hpcdash.job.runner", *words],
            cwd=self.folder,
            env={**self.environment, **env},
            stdout=stdout,
            stderr=stderr,
            text=True,
            check=False,
        )

    @property
    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def watched(self) -> list[str]:
        return (self.folder / "watched").read_text().splitlines()

    @property
    def result(self) -> Any:
        return pickle.loads(self.out.read_bytes())


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setenv("NOTES", "")
    return Job(tmp_path)


# -- order and exit status


def test_a_function_that_returns_ends_with_0_and_is_told_of_in_order(job: Job) -> None:
    told = job.callbacks("Notes")
    done = job.run(
        "add", f"--callbacks-file={told}", "--pre-submission-id=s1", args=(2,), kwargs={"y": 3}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert job.result == 5
    assert job.notes == [
        "imported",
        "begin add 4711 True",
        "secret False 4711",
        "called",
        "end success 5 True True",
        "completed success runner s1 None",
    ]


def test_a_function_that_raises_ends_with_1_and_its_own_traceback(job: Job) -> None:
    done = job.run("fails", f"--callbacks-file={job.callbacks('Notes')}", args=("nan",))
    assert done.returncode == 1
    first, *_, last = done.stderr.splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "ValueError: no such loss: nan")
    assert "runner.py" not in done.stderr
    assert not job.out.exists()
    assert job.notes[-2:] == [
        "end failure None False True",
        "completed failure runner None ValueError: no such loss: nan",
    ]


def test_a_failure_is_written_beside_the_result_and_goes_when_the_next_attempt_starts(
    job: Job,
) -> None:
    error = Path(f"{job.out}.error")
    job.run("add", args=(1,))
    job.run("fails", args=("nan",))
    assert not job.out.exists()
    written = json.loads(error.read_text())
    assert (written["type"], written["message"]) == ("ValueError", "no such loss: nan")
    assert "in fails" in written["traceback"]
    job.run("add", args=(1,))
    assert (job.result, error.exists()) == (2, False)


def test_where_stderr_is_full_the_failure_is_written_and_told_all_the_same(job: Job) -> None:
    callbacks = f"--callbacks-file={job.callbacks('Notes', 'Breaks')}"
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        assert job.run("fails", callbacks, args=("nan",), stderr=full).returncode == 1
        assert job.notes[-1] == "completed failure runner None ValueError: no such loss: nan"
        assert json.loads(Path(f"{job.out}.error").read_text())["message"] == "no such loss: nan"
        # What a callback raises is to be logged.
        assert job.run("add", callbacks, args=(2,), stderr=full).returncode == 0
        assert job.result == 3
    finally:
        os.close(full)


def test_where_stdout_is_full_or_closed_the_result_says_how_it_went(job: Job) -> None:
    read, closed = os.pipe()
    os.close(read)
    for stdout in (os.open("/dev/full", os.O_WRONLY), closed):
        done = job.run("says", args=("step 1",), stdout=stdout)
        os.close(stdout)
        assert (done.returncode, job.result) == (0, 6), done.stderr
        assert "hpcdash: the last output of the function is lost: " in done.stderr


def test_an_error_that_leaves_by_sys_exit_when_it_is_shown_is_an_error(job: Job) -> None:
    done = job.run("hides", f"--callbacks-file={job.callbacks('Notes')}")
    assert done.returncode == 1
    assert job.notes[-1] == "completed failure runner None Hidden: "
    assert json.loads(Path(f"{job.out}.error").read_text())["type"] == "Hidden"


def test_a_person_that_interrupts_a_callback_takes_neither_the_result_nor_what_others_are_told(
    job: Job,
) -> None:
    done = job.run("add", f"--callbacks-file={job.callbacks('Interrupted', 'Notes')}", args=(2,))
    assert (done.returncode != 0, job.result) == (True, 3)
    assert [line.split()[0] for line in job.notes[-4:]] == ["end", "end", "completed", "completed"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--module=functions", "--function=gone"],
            "AttributeError: module 'functions' has no attribute 'gone'",
        ),
        (
            ["--module=functions", "--function=seven"],
            "TypeError: functions.seven is not a function (int)",
        ),
        (["--module=nowhere", "--function=f"], "ModuleNotFoundError: No module named 'nowhere'"),
        (
            ["--module=__main__", "--function=f"],
            "ImportError: a function of the program itself cannot be imported",
        ),
        (["--module=functions", "--function=add", "--args-file=none"], "FileNotFoundError"),
    ],
)
def test_what_fails_before_the_call_is_completed_without_having_begun(
    job: Job, words: list[str], said: str
) -> None:
    done = job.run_words(*words, f"--callbacks-file={job.callbacks('Notes')}")
    assert done.returncode == 1
    assert said in done.stderr
    assert [line.split()[0] for line in job.notes if line != "imported"] == ["completed"]


@pytest.mark.parametrize(
    "words", [[], ["--module=m"], ["--module=m", "--function=f", "--context={}"]]
)
def test_a_command_line_that_is_wrong_ends_with_1(job: Job, words: list[str]) -> None:
    done = job.run_words(*words)
    assert done.returncode == 1
    assert "error:" in done.stderr


@pytest.mark.parametrize(
    ("status", "exit_status"), [(0, 0), (None, 0), (1, 1), (7, 1), ("out of memory", 1)]
)
def test_a_function_that_leaves_by_sys_exit_failed_unless_its_status_is_0(
    job: Job, status: object, exit_status: int
) -> None:
    done = job.run("leaves", f"--callbacks-file={job.callbacks('Notes')}", args=(status,))
    assert done.returncode == exit_status
    assert job.notes[-1].split()[:2] == ["completed", "failure" if exit_status else "success"]


def test_a_result_that_cannot_be_pickled_is_a_failure(job: Job) -> None:
    done = job.run("unwritable", f"--callbacks-file={job.callbacks('Notes')}")
    assert done.returncode == 1
    assert "cannot pickle" in done.stderr
    assert job.notes[-1].startswith("completed failure runner None TypeError: cannot pickle")
    assert not [
        path
        for path in job.folder.iterdir()
        if path.name.startswith("result.pkl") and path.suffix != ".error"
    ]


def test_what_callbacks_raise_is_logged_and_changes_nothing(job: Job) -> None:
    done = job.run("add", f"--callbacks-file={job.callbacks('Breaks', 'Notes')}", args=(2,))
    assert done.returncode == 0
    assert job.result == 3
    assert [line.split()[0] for line in job.notes] == [
        "imported",
        "begin",
        "secret",
        "called",
        "end",
        "completed",
    ]
    for hook in ("on_run_begin", "on_run_end", "on_completed"):
        assert f"hpcdash: ERROR: the callback Breaks failed in {hook}" in done.stderr


def test_callbacks_that_cannot_be_read_change_nothing(job: Job) -> None:
    done = job.run("add", "--callbacks-file=missing", args=(2,))
    assert (done.returncode, job.result) == (0, 3)
    assert "callbacks will not run: cannot read missing" in done.stderr


def test_a_callback_may_be_named_and_one_that_is_none_changes_nothing(job: Job) -> None:
    words = (
        "--callback=told_callbacks:Notes",
        "--callback=told_callbacks:os.path",
        "--callback=told_callbacks:Missing",
        "--callback=no.such:Notes",
    )
    done = job.run("add", *words, args=(2,))
    assert (done.returncode, job.result) == (0, 3)
    assert [line.split()[0] for line in job.notes] == [
        "imported",
        "begin",
        "secret",
        "called",
        "end",
        "completed",
    ]
    assert done.stderr.count("cannot be created and will not run") == 3


# -- what it is given


def test_the_context_is_of_the_environment_and_its_folder_of_the_command_line(job: Job) -> None:
    job.run(
        "told", "--job-dir=/jobs/b", args=(1,), SLURM_STEP_NODELIST="g[1-2]", JOB_DIR="/jobs/outer"
    )
    assert job.result == (1, "4711", None, ("g1", "g2"), "/jobs/b")


def test_each_rank_of_a_step_has_a_result_of_its_own(job: Job) -> None:
    for rank in (0, 1):
        job.run("told", args=("x",), SLURM_PROCID=str(rank))
    assert job.result[2] == 0
    assert pickle.loads(Path(f"{job.out}.1").read_bytes())[2] == 1


def test_a_name_with_dots_is_looked_for_in_the_class(job: Job) -> None:
    job.run("Trainer.fit", args=(4,))
    assert job.result == 8


def test_sys_path_is_where_modules_are_looked_for_first(job: Job) -> None:
    for name in ("a", "b"):
        (job.folder / name).mkdir()
        (job.folder / name / "here.py").write_text(f"def f(): return {name!r}")
    words = ["--module=here", "--function=f", f"--output-file={job.out}"]
    assert (
        job.run_words(
            *words, "--sys-path", f"{job.folder}/b", f"--sys-path={job.folder}/a"
        ).returncode
        == 0
    )
    assert job.result == "b"


@pytest.mark.parametrize(
    ("index", "seen"),
    [
        ("0", ((1, 2, "each"), {"y": 0})),
        ("1", (("each",), {"y": 5})),
        ("2", (([3, 4], "each"), {"y": 0})),
    ],
)
def test_an_array_task_has_its_item(job: Job, index: str, seen: object) -> None:
    items = job.file("items", [(1, 2), {"y": 5}, [3, 4]])
    options = [f"--array-items-file={items}", f"--array-index={index}"]
    assert job.run("seen", *options, args=("each",), kwargs={"y": 0}).returncode == 0
    assert job.result == seen


@pytest.mark.parametrize("variable", ["SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAYID"])
def test_an_array_task_finds_its_index_in_the_environment(job: Job, variable: str) -> None:
    items = job.file("items", ["a", "b"])
    job.run("seen", f"--array-items-file={items}", "--array-index=", **{variable: "1"})
    assert job.result == (("b",), {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--array-index=2"], "array index 2 is out of range"),
        (["--array-index=-1"], "array index -1 is out of range"),
        (["--array-index=x"], "--array-index: 'x' is not a number"),
        ([], "needs --array-index"),
    ],
)
def test_an_array_task_without_an_item_fails_and_leaves_no_earlier_result(
    job: Job, options: list[str], said: str
) -> None:
    job.out.write_text("of an attempt before")
    done = job.run("seen", f"--array-items-file={job.file('items', [1, 2])}", *options)
    assert done.returncode == 1
    assert said in done.stderr
    assert not job.out.exists()


def test_the_functions_own_logging_is_its_own(job: Job) -> None:
    assert job.run("logs").stderr == "user: step 1\n"


def test_a_file_may_be_a_plain_pickle(tmp_path: Path) -> None:
    write_result(str(tmp_path / "p"), {"a": 1})
    assert read_packed(str(tmp_path / "p")) == {"a": 1}


# -- what it touches


def test_it_starts_no_program_and_opens_no_socket(job: Job) -> None:
    done = job.run(
        "add", f"--callbacks-file={job.callbacks('Notes')}", "--job-dir=/jobs/b", args=(2,)
    )
    assert done.returncode == 0
    failed = job.run("fails", f"--callbacks-file={job.callbacks('Notes')}", args=(2,))
    assert failed.returncode == 1
    touched = [line for line in job.watched if not line.startswith(("opened", "renamed"))]
    assert touched == []


def test_the_watch_above_sees_what_a_function_starts(job: Job) -> None:
    job.run("asks_the_scheduler")
    assert "subprocess.Popen" in job.watched


def test_the_result_is_only_ever_renamed_to_its_place(job: Job) -> None:
    job.run("add", args=(2,))
    assert f"renamed to {job.out}" in job.watched
    assert f"opened {job.out}" not in job.watched
    assert [line for line in job.watched if line.startswith("opened")]


def test_a_result_that_fails_half_way_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r"
    write_result(str(path), "whole")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_result(str(path), "half")
    assert read_packed(str(path)) == "whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["r"]


def test_the_standard_library_alone_is_imported(tmp_path: Path) -> None:
    names = ", ".join(f"hpcdash.job.{name}" for name in OURS)
    show = (
        f"import sys; before = set(sys.modules); import {names}; print(*(set(sys.modules) - "
        "before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", show],
        env={"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "hpcdash" in loaded
    assert loaded - set(sys.stdlib_module_names) == {"hpcdash"}
    ours = {name for name in done.stdout.split() if name.startswith("hpcdash.")}
    assert all(name.startswith("hpcdash.job") for name in ours)
    assert not {"socket", "subprocess", "asyncio"} & loaded


@for_each("name", OURS)
def test_python_3_8_reads_it(name: str) -> None:
    text = (ROOT / "hpcdash" / "job" / f"{name}.py").read_text()
    assert "from __future__ import annotations" in text
    ast.parse(text, feature_version=(3, 8))
