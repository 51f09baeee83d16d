"""Whole scripts kept as files to be read; `HPCDASH_WRITE_GOLDEN=1 pytest tests/backends` writes
them anew.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpcdash.backends.script.body import Place
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.request import (
    Call,
    Container,
    EarlySignal,
    Launcher,
    Request,
    Runtime,
    Site,
    SlotType,
)

FOLDER = Path(__file__).parent / "golden"
PLACE = Place("1a2b", "/home/ann/launches/hpcdash_exp-1a2b")
REQUESTS = {
    "torchrun": Request(
        command="train.py --lr 1e-3",
        slots=8,
        slots_per_node=4,
        queue="gpu",
        account="vision",
        limit_seconds=72000,
        memory_bytes=64 << 30,
        work_dir="/home/ann/my work",
        signal=EarlySignal("USR1", 600, batch_only=True),
        requeue=True,
        launcher=Launcher.TORCHRUN,
        environment={"NOTE": "it's a $HOME", "DATA": "/data"},
        kill_switch="/home/ann/KILL",
        save_switch="/home/ann/SAVE",
        checkpoints="/home/ann/my runs/llm",
    ),
    "array": Request(
        name="sweep",
        command='python sweep.py "$SLURM_ARRAY_TASK_ID$PBS_ARRAY_INDEX"',
        slots=4,
        slots_per_node=4,
        slot_type=SlotType.CPU,
        array=parse_tasks("1-10%2"),
        after=("17", "18"),
        hold=True,
        requeue=True,
        limit_seconds=3600,
    ),
    "container": Request(
        script="/home/ann/train.py",
        slots=2,
        slots_per_node=2,
        limit_seconds=3600,
        container=Container(Runtime.APPTAINER, "/images/torch.sif", ("/data:/d:ro",)),
        environment={"DATA": "/d"},
    ),
    "probe": Request(
        command="python train.py",
        slots=8,
        slots_per_node=4,
        limit_seconds=3600,
        signal=EarlySignal("USR1", 600, batch_only=True),
        environment={"DATA": "/data"},
        site=Site(node_probe='nvidia-smi -L > /dev/null &&\n  test -d "$DATA"\n'),
    ),
    "files": Request(
        command="train.py --lr 1e-3",
        files=(".",),
        slots=8,
        slots_per_node=4,
        limit_seconds=3600,
        begin="2026-12-01T08:00:00",
        launcher=Launcher.DEEPSPEED,
        startup_hook="module load cuda\npip install --user -r requirements.txt",
        environment={"WANDB_API_KEY": "hunter2", "DATA": "/data"},
    ),
    "call-torchrun": Request(
        call=Call("lab.train", "main", kwargs={"lr": 0.001}, python="/opt/env/bin/python"),
        slots=8,
        slots_per_node=4,
        limit_seconds=3600,
        launcher=Launcher.TORCHRUN,
    ),
    "mpirun": Request(
        command="./simulate --steps 100",
        slots=8,
        slots_per_node=4,
        slot_type=SlotType.CPU,
        limit_seconds=3600,
        launcher=Launcher.MPIRUN,
        signal=EarlySignal("USR1", 600, batch_only=True),
    ),
    "horovodrun": Request(
        command="python train.py",
        slots=8,
        slots_per_node=4,
        limit_seconds=3600,
        launcher=Launcher.HOROVODRUN,
    ),
    "call": Request(
        call=Call(
            "lab.train",
            "Trainer.fit",
            kwargs={"lr": 0.001},
            items=({"seed": 1}, {"seed": 2}),
            sys_path=("/home/ann/my code",),
            wheel="/home/ann/dist/lab-1.0-py3-none-any.whl",
        ),
        array=parse_tasks("0-1%1"),
        slots=2,
        slots_per_node=1,
        limit_seconds=3600,
    ),
}


def assert_golden(name: str, text: str) -> None:
    """The text is that of the file; a test that fails shows the difference."""
    file = FOLDER / name
    if os.environ.get("HPCDASH_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text.splitlines() == file.read_text().splitlines()
