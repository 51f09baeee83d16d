"""A warning before the time limit reaches the command's processes: the generated bash run with
stand-ins.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdash.backends.pbs.script import fanout as pbs_fanout
from hpcdash.backends.pbs.script import signal_timer as pbs_signal_timer
from hpcdash.backends.script.body import START
from hpcdash.backends.slurm.script import fanout as slurm_fanout
from hpcdash.backends.slurm.script import signal_option as slurm_signal_option
from hpcdash.backends.slurm.script import signal_trap as slurm_signal_trap
from hpcdash.domain.request import EarlySignal
from hpcdash.errors import UsageError
from tests.support.records import for_each
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system
USR1 = EarlySignal("USR1", 600)
BATCH = EarlySignal("USR1", 600, batch_only=True)
# A training: the handler sets a flag, the loop ends. Its child in a session of its own does the
# same.
TRAINING = """
import os, signal, subprocess, sys, time
flags = []
signal.signal(signal.SIGUSR1, lambda *_: flags.append(1))
child = None
if sys.argv[1] == "parent":
    child = subprocess.Popen([sys.executable, "-c", os.environ["CODE"], "child"], start_new_session=True)
open(f"ready.{sys.argv[1]}.{os.getpid()}", "w").close()
until = time.monotonic() + 15
while not flags and time.monotonic() < until:
    time.sleep(0.02)
print(sys.argv[1], "warned" if flags else "never warned", flush=True)
sys.exit(child.wait() if child else 0)
"""
# As tm_spawn does: the words are started as they are, with none of the script's variables.
_PBS_TMRSH = f"""#!{sys.executable}
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.execvpe(sys.argv[2], sys.argv[2:], {{"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}})
"""
_SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
echo $$ > step_pid
exec "$@"
"""
_SCANCEL = """#!/bin/bash
echo "$@" > scancel_words
read -r pid < step_pid
kill -s "${1#--signal=}" "$pid"
"""


@dataclass
class Job:
    """A script that runs in `folder`; its processes have `job_id` in their environment."""

    folder: Path
    environment: dict[str, str]

    def start(self, script: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", script],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def left(self) -> list[str]:
        mark = self.environment["PBS_JOBID"].encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes():
                    found.append((path.parent / "cmdline").read_text())
            except OSError:
                continue
        return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job of three hosts; nothing of it may be left at the end."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, text in (("pbs_tmrsh", _PBS_TMRSH), ("srun", _SRUN), ("scancel", _SCANCEL)):
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    (tmp_path / "nodes").write_text("n1\nn2\nn1\nn3\n")
    environment = {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PBS_NODEFILE": str(tmp_path / "nodes"),
        "PBS_JOBID": f"{uuid.uuid4().int % 10**15}.server",
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NUM_NODES": "3",
    }
    started = Job(tmp_path, environment)
    yield started
    assert started.left() == []


def test_a_timer_of_one_second_warns_every_process_on_every_host_once(job: Job) -> None:
    words = [sys.executable, "-c", TRAINING, "parent"]
    script = (
        pbs_fanout(words, {"CODE": TRAINING}) + pbs_signal_timer(EarlySignal("USR1", 9), 10) + START
    )
    began = time.monotonic()
    process = job.start(script)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert sorted(out.splitlines()) == ["child warned"] * 3 + ["parent warned"] * 3
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("status", [0, 4])
def test_the_timer_ends_with_the_script_and_leaves_its_status(job: Job, status: int) -> None:
    script = pbs_fanout(["bash", "-c", f"exit {status}"], {}) + pbs_signal_timer(USR1, 3600) + START
    process = job.start(script)
    process.communicate()
    assert process.returncode == status


def test_a_command_that_ends_well_after_its_warning_ends_the_job_well(job: Job) -> None:
    on_host = (
        "trap 'warned=1' USR1; while [ -z \"$warned\" ]; do sleep 0.05; done; sleep 0.3; echo saved"
    )
    script = (
        pbs_fanout(["bash", "-c", on_host], {})
        + pbs_signal_timer(EarlySignal("USR1", 9), 10)
        + START
    )
    process = job.start(script)
    out, _ = process.communicate()
    assert (process.returncode, out) == (0, "saved\n" * 3)


def test_what_the_script_did_before_is_of_the_time_that_the_timer_waits(job: Job) -> None:
    # As after an hour in which the environment of the job was made.
    script = "SECONDS=3600\n" + pbs_fanout([sys.executable, "-c", TRAINING, "alone"], {})
    process = job.start(script + pbs_signal_timer(EarlySignal("USR1", 9), 3610) + START)
    out, err = process.communicate()
    assert (process.returncode, out) == (0, "alone warned\n" * 3), err


@pytest.mark.parametrize("step", [0, 2])
def test_a_signal_to_the_batch_shell_is_passed_to_the_step_and_its_end_is_waited_for(
    job: Job, step: int
) -> None:
    words = [sys.executable, "-c", TRAINING, "alone"]
    process = job.start(slurm_fanout(words, {}, step=step) + slurm_signal_trap(BATCH) + START)
    wait_until("the step", lambda: list(job.folder.glob("ready.alone.*")))
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate()
    assert (process.returncode, out) == (0, "alone warned\n")
    assert (job.folder / "scancel_words").read_text() == f"--signal=USR1 12.{step}\n"


def test_where_the_controller_does_not_answer_srun_itself_is_given_the_signal(job: Job) -> None:
    (job.folder / "bin" / "scancel").write_text("#!/bin/bash\nexit 1\n")
    words = [sys.executable, "-c", TRAINING, "alone"]
    process = job.start(slurm_fanout(words, {}) + slurm_signal_trap(BATCH) + START)
    wait_until("the step", lambda: list(job.folder.glob("ready.alone.*")))
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate()
    assert (process.returncode, out) == (0, "alone warned\n")


@for_each(
    ("asked", "option"),
    [
        (USR1, "--signal=USR1@600"),
        (BATCH, "--signal=B:USR1@600"),
        (EarlySignal("sigterm", 0), "--signal=TERM@0"),
        (EarlySignal("USR2", 65535), "--signal=USR2@65535"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_slurm_is_told_by_an_option(asked: EarlySignal, option: str) -> None:
    assert slurm_signal_option(asked) == option


def test_no_trap_is_written_where_slurm_signals_the_steps_itself() -> None:
    assert slurm_signal_trap(USR1) == ""


@for_each(
    "asked",
    [
        EarlySignal("USR1", 65536),
        EarlySignal("USR1", -1),
        EarlySignal("USR1;id", 5),
        EarlySignal("KILL", 5),
    ],
    ids=["too early for Slurm", "after the limit", "no name", "cannot be trapped"],
)
def test_slurm_refuses(asked: EarlySignal) -> None:
    with pytest.raises(UsageError, match="signal"):
        slurm_signal_option(asked)


@for_each(
    ("asked", "limit"),
    [(USR1, None), (USR1, 600), (EarlySignal("TERM", 5), 60), (EarlySignal("$(id)", 5), 60)],
    ids=["no limit", "no time before it", "TERM is the end itself", "no name"],
)
def test_the_timer_is_refused(asked: EarlySignal, limit: int | None) -> None:
    with pytest.raises(UsageError, match="signal"):
        pbs_signal_timer(asked, limit)


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize(
    "text",
    [
        slurm_fanout(["train"], {}) + slurm_signal_trap(BATCH),
        pbs_fanout(["train"], {"A": "b"}) + pbs_signal_timer(USR1, 3600),
    ],
    ids=["slurm", "pbs"],
)
def test_shellcheck_has_nothing_to_say(text: str) -> None:
    # SC2317: called by name, or from a trap.
    words = ["shellcheck", "-e", "SC2317,SC2016", "-"]
    checked = subprocess.run(
        words, input="#!/bin/bash\n" + text + START, capture_output=True, text=True
    )
    assert checked.stdout == ""
