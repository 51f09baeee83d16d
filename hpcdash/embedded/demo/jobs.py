"""The demonstration's jobs: a dozen small ones that really run, each to show something of the
dashboard.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import re
import shlex
import shutil
import signal
import stat
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from hpcdash.embedded import commands, processes
from hpcdash.embedded.start import ensure_supervisor, supervisor_pid, wake
from hpcdash.embedded.store import QueueStore
from hpcdash.errors import HpcdashError
from hpcdash.private_files import atomic_write

READY = "ready"
FOLDER_PREFIX = "hpcdash-demo-"
_SAMPLES = Path(__file__).parent
# Pretended resources of the machine, so that every sample runs; none of them uses a GPU.
_SLOTS = {"cpus": 12, "gpus": 4, "grace_seconds": 1}
_BEGIN_SECONDS = 10.0
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One submission: its name, what it runs, sbatch's options; `after` names one handed in
    before.
    """

    name: str
    command: str
    options: tuple[str, ...] = ()
    after: str = ""
    environment: tuple[tuple[str, str], ...] = field(default=())


def _python(file: str, *arguments: str) -> str:
    return shlex.join([sys.executable, "-u", str(_SAMPLES / file), *arguments])


def samples(folder: Path) -> tuple[Sample, ...]:
    """In the order they are handed in; their switches and outputs are in `folder`."""

    def switches(name: str) -> tuple[tuple[str, str], ...]:
        kinds = ("kill", "save")
        return tuple(
            (f"HPCDASH_{kind.upper()}_SWITCH", str(folder / f"{name}.{kind}")) for kind in kinds
        )

    chain = (
        ("HEAD_START", "900"),
        ("SECONDS_A_STEP", "0.25"),
        ("STEPS_A_RUN", "1100"),
        ("CHECKPOINT", "chain.txt"),
    )
    return (
        Sample(
            "train-7b",
            _python("train.py"),
            ("--time=2:00:00", "--cpus-per-task=2", "--gpus=2"),
            environment=switches("train-7b"),
        ),
        Sample("tokenize", "echo 1.2 B tokens written", ("--time=10",)),
        Sample("ablation-lr1e-3", _python("broken.py"), ("--time=1:00:00", "--gpus=1")),
        Sample("shards", _python("preprocess.py"), ("--array=1-10%4", "--time=15")),
        Sample(
            "finetune-lora",
            _python("finetune.py"),
            ("--time=30", "--gpus=1", "--error=finetune-lora-%j.err"),
        ),
        Sample("profile-io", "echo started; exec sleep 600", ("--time=0:02",)),
        Sample(
            "allreduce-bench",
            "echo rank 0: waiting for rank 3 of 4; sleep 86400",
            ("--time=4:00:00",),
        ),
        Sample(
            "train-chain",
            _python("train.py", "--resume"),
            ("--array=1-10%1", "--time=20:00:00", "--gpus=1"),
            environment=(*switches("train-chain"), *chain),
        ),
        Sample("evaluate", "echo would score the checkpoint", ("--time=20",), after="train-7b"),
        Sample("sweep-next", "true", ("--hold", "--time=2:00:00")),
        Sample("$(rm -rf ~)", "echo a name is only a name", ("--time=5",)),
        Sample("weekly-report", "true", ("--begin=now+3hours", "--time=5")),
    )


class Demonstration:
    """A queue in a folder of its own, thrown away at the end.

    A process has one: its working folder is the jobs'.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queue_folder = folder / "queue"
        self.work_folder = folder / "work"

    def begin(self) -> None:
        """Hand the samples in through the queue's own commands; raises HpcdashError where it takes
        one not.
        """
        self.queue_folder.mkdir(mode=0o700)
        self.work_folder.mkdir(mode=0o700)
        atomic_write(self.queue_folder / "slots.json", json.dumps(_SLOTS).encode())
        os.chdir(self.work_folder)
        QueueStore(self.queue_folder).close()
        # Awake before the first job is there: each submission would start one otherwise.
        ensure_supervisor(self.queue_folder)
        over = time.monotonic() + _BEGIN_SECONDS
        while not wake(self.queue_folder):
            if time.monotonic() > over:
                raise HpcdashError("the demo's queue did not start")
            time.sleep(0.005)
        numbers: dict[str, str] = {}
        for sample in samples(self.work_folder):
            numbers[sample.name] = self._hand_in(sample, numbers)

    def _hand_in(self, sample: Sample, numbers: dict[str, str]) -> str:
        pattern = (
            "%A_%a" if any(option.startswith("--array") for option in sample.options) else "%j"
        )
        file = re.sub(r"[^a-z0-9-]+", "-", sample.name).strip("-")
        script = self.work_folder / f"{file}.sh"
        exports = "".join(
            f"export {name}={shlex.quote(value)}\n" for name, value in sample.environment
        )
        script.write_text(f"#!/bin/sh\n{exports}{sample.command}\n")
        options = [f"--job-name={sample.name}", f"--output={file}-{pattern}.out", *sample.options]
        if sample.after:
            options.append(f"--dependency=afterok:{numbers[sample.after]}")
        status, message, complaint = self._command("submit", *options, str(script))
        if status != 0:
            raise HpcdashError(f"cannot fill the demo queue: {complaint.strip()}")
        return str(json.loads(message)["id"])

    def _command(self, *arguments: str) -> tuple[int, str, str]:
        """(status, stdout, stderr) of a command of the queue, run in this process."""
        reported = io.StringIO()
        complaint = io.StringIO()
        with contextlib.redirect_stdout(reported), contextlib.redirect_stderr(complaint):
            status = commands.main([str(self.queue_folder), *arguments])
        return status, reported.getvalue(), complaint.getvalue()

    def end(self) -> None:
        """End every job and the supervisor; the folder is the caller's to remove."""
        if not self.queue_folder.exists():
            return
        over = time.monotonic() + _END_SECONDS
        try:
            status, message, _ = self._command("jobs")
            if status == 0 and (ids := json.loads(message)["columns"].get("id")):
                self._command("cancel", *sorted({one.partition("_")[0] for one in ids}))
            while any((self.queue_folder / "attempts").glob("*")) and time.monotonic() < over:
                time.sleep(0.02)
            if (pid := supervisor_pid(self.queue_folder)) is not None:
                os.kill(pid, signal.SIGTERM)
                while supervisor_pid(self.queue_folder) is not None and time.monotonic() < over:
                    time.sleep(0.01)
        finally:
            # A supervisor that the last poll has started may not have its lock yet.
            processes.send(
                processes.marked(f"{processes.APART}={self.queue_folder}"), signal.SIGKILL
            )


def remove_left_behind(beside: Path) -> None:
    """End and remove this person's demonstrations in the folder of `beside` with killed processes.

    Each holds the lock of its folder as long as a process is left to remove it.
    """
    for folder in beside.parent.glob(f"{FOLDER_PREFIX}*"):
        if folder == beside:
            continue
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            facts = os.fstat(lock)
            if facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) == stat.S_IRWXU:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(HpcdashError):
                    Demonstration(folder).end()
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(lock)
