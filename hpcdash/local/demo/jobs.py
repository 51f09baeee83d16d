"""The demonstration's jobs: a dozen small ones that really run, each to show something of the dashboard."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcdash.errors import HpcdashError
from hpcdash.local.wake import supervisor_pid

_SAMPLES = Path(__file__).parent
_SLOTS = {"cpus": 8, "gpus": 0, "grace_seconds": 2}
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One submission: its name, what it runs, sbatch's options; `after` names one handed in before."""

    name: str
    command: str
    options: tuple[str, ...] = ()
    after: str = ""
    environment: tuple[tuple[str, str], ...] = field(default=())


def _python(file: str, *arguments: str) -> str:
    return shlex.join([sys.executable, "-u", str(_SAMPLES / file), *arguments])


def samples(folder: Path) -> tuple[Sample, ...]:
    """In the order they are handed in; their switches and outputs are in `folder`."""
    switches = (("KILL_SWITCH", str(folder / "kill-switch")), ("SAVE_SWITCH", str(folder / "save-switch")))
    return (
        Sample("tokenize", "echo 1.2 B tokens written", ("--time=10",)),
        Sample("train-7b", _python("train.py"), ("--time=2:00:00", "--cpus-per-task=2"), environment=switches),
        Sample("finetune-lora", _python("finetune.py"), ("--time=30", "--error=finetune-lora-%j.err")),
        Sample("ablation-lr1e-3", _python("broken.py"), ("--time=1:00:00",)),
        Sample("shards", _python("preprocess.py"), ("--array=1-10%2", "--time=15")),
        Sample("profile-io", "echo started; exec sleep 600", ("--time=0:03", "--signal=B:TERM@1")),
        Sample("allreduce-bench", "echo waiting for rank 3 of 4; sleep 86400", ("--time=4:00:00",)),
        Sample(
            "train-chain",
            _python("train.py", "--resume"),
            ("--array=1-10%1", "--time=20:00:00"),
            environment=(("HEAD_START", "900"), ("SECONDS_A_STEP", "0.25")),
        ),
        Sample("evaluate", "echo would score the checkpoint", ("--time=20",), after="train-7b"),
        Sample("sweep-next", "true", ("--hold", "--time=2:00:00")),
        Sample("$(rm -rf ~)", "echo a name is only a name", ("--time=5",)),
        Sample("weekly-report", "true", ("--begin=now+3hours", "--time=5")),
    )


class Demonstration:
    """A queue in a folder of its own, thrown away at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queue_folder = folder / "queue"
        self.work_folder = folder / "work"

    def begin(self, program: Sequence[str]) -> None:
        """Hand the samples in through the queue's own command line, `program`."""
        self.queue_folder.mkdir(mode=0o700)
        self.work_folder.mkdir(mode=0o700)
        (self.queue_folder / "slots.json").write_text(json.dumps(_SLOTS))
        numbers: dict[str, str] = {}
        for sample in samples(self.work_folder):
            pattern = "%A_%a" if any(option.startswith("--array") for option in sample.options) else "%j"
            file = re.sub(r"[^a-z0-9-]+", "-", sample.name).strip("-")
            options = [f"--job-name={sample.name}", f"--output={file}-{pattern}.out"]
            if sample.after:
                options.append(f"--dependency=afterok:{numbers[sample.after]}")
            script = f"#!/bin/sh\n{sample.command}\n"
            done = subprocess.run(
                [*program, "submit", *options, *sample.options],
                input=script.encode(),
                capture_output=True,
                cwd=self.work_folder,
                env={**os.environ, **dict(sample.environment)},
                check=False,
            )
            if done.returncode != 0:
                raise HpcdashError(
                    f"the demonstration's queue cannot be filled: {done.stderr.decode('utf-8', 'replace').strip()}"
                )
            numbers[sample.name] = json.loads(done.stdout)["id"]

    def end(self, program: Sequence[str]) -> None:
        """End every job and the supervisor; the folder is the caller's to remove."""
        listed = subprocess.run([*program, "jobs"], capture_output=True, check=False)
        if listed.returncode == 0 and (ids := json.loads(listed.stdout)["columns"].get("id")):
            numbers = sorted({one.partition("_")[0] for one in ids})
            subprocess.run([*program, "cancel", *numbers], capture_output=True, check=False)
        over = time.monotonic() + _END_SECONDS
        while any((self.queue_folder / "attempts").glob("*")) and time.monotonic() < over:
            time.sleep(0.02)
        if (pid := supervisor_pid(self.queue_folder)) is not None:
            os.kill(pid, signal.SIGTERM)
            while supervisor_pid(self.queue_folder) is not None and time.monotonic() < over:
                time.sleep(0.01)
