"""Generated batch scripts for Slurm, as they are, on the embedded queue."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdash.backends.script.body import Place, secrets_file
from hpcdash.backends.script.folder import CONTAINER_UP, LIBRARY_NAME, SECRETS_NAME
from hpcdash.domain.request import (
    Call,
    Container,
    EarlySignal,
    Launcher,
    Request,
    Runtime,
    SlotType,
)
from hpcdash.embedded.scancel import parse_arguments
from hpcdash.errors import UsageError
from hpcdash.job.zip import job_zip
from tests.embedded.queue_lab import QueueLab
from tests.support.records import for_each
from tests.support.scripts import Scheduler, batch_script
from tests.support.waiting import wait_until

_TORCHRUN = f"""#!{sys.executable}
import os, subprocess, sys
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if word.startswith("--"))
print(" ".join(sorted(f"{{name}}={{value}}" for name, value in options.items())), flush=True)
command = [sys.executable, *[word for word in sys.argv[1:] if not word.startswith("--")]]
ranks = range(int(options["nproc-per-node"]))
workers = [subprocess.Popen(command, env={{**os.environ, "LOCAL_RANK": str(rank)}}) for rank in ranks]
sys.exit(max(abs(worker.wait()) for worker in workers))
"""
_TRAIN = """
import os, signal, time
flags = []
signal.signal(signal.SIGUSR1, lambda *_: flags.append(1))
rank = os.environ.get("LOCAL_RANK", os.environ["SLURM_PROCID"])
until = time.monotonic() + 50
while not flags and time.monotonic() < until:
    time.sleep(0.02)
print(rank, "warned" if flags else "never warned", flush=True)
"""
_SAVE = """
import os, signal, time
flags = []
shell = os.getppid()
signal.signal(signal.SIGTERM, lambda *_: flags.append(1))
print("up", flush=True)
while not flags:
    time.sleep(0.02)
time.sleep(0.4)
print("saved" if os.getppid() == shell else "its shell has ended", flush=True)
"""
_RUNTIME = """#!/bin/bash
while [ "$1" != sh ]; do shift; done
exec "$@"
"""
# The queue sends its signal four seconds after the start: Python is to handle it by then.
SIGNALS = {"USR1": EarlySignal("USR1", 56), "B:USR1": EarlySignal("USR1", 56, batch_only=True)}


@pytest.fixture
def launches(queue: QueueLab) -> QueueLab:
    """A queue whose jobs find stand-ins for torchrun and apptainer."""
    queue.set_slots(cpus=4, gpus=2, grace_seconds=30)
    folder = queue.work / "bin"
    folder.mkdir()
    for name, text in {"torchrun": _TORCHRUN, "apptainer": _RUNTIME}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (queue.work / "train.py").write_text(_TRAIN)
    queue.environment["PATH"] = f"{folder}:{queue.environment['PATH']}"
    return queue


def submit(queue: QueueLab, command: str, **fields: Any) -> str:
    known: dict[str, Any] = {"work_dir": str(queue.work), "slots": 0, "limit_seconds": 60}
    request = Request(command=command, **(known | fields))
    script = batch_script(Scheduler.SLURM, request, Place("test", str(queue.work)))
    done = queue.run("submit", stdin=script.text.encode())
    assert done.returncode == 0, done.stderr.decode()
    wait_until("a supervisor that listens", lambda: (queue.folder / "wake").exists())
    return str(json.loads(done.stdout)["id"])


def said(queue: QueueLab, number: str) -> list[str]:
    file = queue.work / f"{number}.out"
    return sorted(file.read_text().splitlines()) if file.exists() else []


def errors(queue: QueueLab, number: str) -> str:
    return (queue.work / f"{number}.err").read_text()


def test_a_plain_script_runs_with_its_gpus_and_variables_and_ends_with_its_status(
    launches: QueueLab,
) -> None:
    number = submit(
        launches,
        'echo "$CUDA_VISIBLE_DEVICES $SLURM_JOB_NUM_NODES $V"\nexit 7',
        slots=2,
        slots_per_node=2,
        environment={"V": "a 'b'  c"},
    )
    assert launches.ended(number).exit_code == 7
    assert said(launches, number) == ["0,1 1 a 'b'  c"], errors(launches, number)


@pytest.mark.parametrize(
    "launcher", [Launcher.PLAIN, Launcher.SRUN, Launcher.TORCHRUN, Launcher.HOROVODRUN]
)
def test_a_path_in_the_request_is_the_command_s_and_takes_no_command_of_the_script_away(
    launches: QueueLab, launcher: Launcher
) -> None:
    programs = launches.work / "venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("train", "torchrun", "horovodrun"):
        (programs / name).write_text('#!/bin/sh\necho "runs $0 on $PATH"\n')
        (programs / name).chmod(0o755)
    number = submit(
        launches,
        "train" if launcher in (Launcher.PLAIN, Launcher.SRUN) else "train.py",
        launcher=launcher,
        slots=1,
        slots_per_node=1,
        slot_type=SlotType.CPU,
        startup_hook="train",
        environment={"PATH": str(programs)},
        signal=EarlySignal("USR1", 1, batch_only=False),
    )
    assert launches.ended(number).state == "completed", errors(launches, number)
    started = "train" if launcher in (Launcher.PLAIN, Launcher.SRUN) else launcher
    assert said(launches, number) == [f"runs {programs}/{started} on {programs}"]
    assert f"runs {programs}/train on {programs}" in errors(launches, number)


@pytest.mark.parametrize("signal", SIGNALS)
def test_an_early_signal_reaches_the_workers_of_torchrun(launches: QueueLab, signal: str) -> None:
    fields: dict[str, Any] = {"slots": 2, "slots_per_node": 2, "slot_type": SlotType.CPU}
    number = submit(
        launches, "train.py", launcher=Launcher.TORCHRUN, signal=SIGNALS[signal], **fields
    )
    job = launches.ended(number)
    lines = said(launches, number)
    assert lines[:2] == ["0 warned", "1 warned"], errors(launches, number)
    assert "nnodes=1 node-rank=0 nproc-per-node=2" in lines[2]
    assert (job.state, job.exit_code) == ("completed", 0)


@pytest.mark.parametrize("signal", SIGNALS)
def test_an_early_signal_reaches_each_rank_of_srun(launches: QueueLab, signal: str) -> None:
    fields: dict[str, Any] = {"slots": 2, "slots_per_node": 2, "slot_type": SlotType.CPU}
    command = f"{sys.executable} train.py"
    number = submit(launches, command, launcher=Launcher.SRUN, signal=SIGNALS[signal], **fields)
    assert launches.ended(number).state == "completed", errors(launches, number)
    assert said(launches, number) == ["0 warned", "1 warned"]


def test_each_rank_has_a_log_of_its_own_beside_the_job_s_and_the_job_its_status(
    launches: QueueLab,
) -> None:
    fields: dict[str, Any] = {
        "slots": 2,
        "slots_per_node": 2,
        "slot_type": SlotType.CPU,
        "rank_logs": True,
    }
    says = (
        'echo "rank $SLURM_PROCID"; echo "ill $SLURM_PROCID" >&2; printf end; exit "$((7 * '
        'SLURM_PROCID))"'
    )
    command = f"[ $SLURM_PROCID = 0 ] || sleep 0.5\n{says}"
    number = submit(launches, command, launcher=Launcher.SRUN, **fields)
    assert launches.ended(number).exit_code == 7
    logs = {
        file.name.removeprefix(f"{number}.rank-"): file
        for file in launches.work.glob(f"{number}.rank-*")
    }
    assert {
        name: (file.read_text(), file.stat().st_mode & 0o777) for name, file in logs.items()
    } == {
        "0.out": ("rank 0\nend", 0o600),
        "0.err": ("ill 0\n", 0o600),
        "1.out": ("rank 1\nend", 0o600),
        "1.err": ("ill 1\n", 0o600),
    }
    assert (launches.work / f"{number}.out").read_text() == "rank 0\nendrank 1\nend"
    assert {"ill 0", "ill 1"} <= set(errors(launches, number).splitlines())


def test_one_rank_that_fails_ends_the_others_and_the_job_with_its_status(
    launches: QueueLab,
) -> None:
    fields: dict[str, Any] = {
        "slots": 2,
        "slots_per_node": 2,
        "slot_type": SlotType.CPU,
        "limit_seconds": 60,
    }
    number = submit(
        launches,
        '[ "$SLURM_PROCID" = 1 ] || exec sleep 300; exit 7',
        launcher=Launcher.SRUN,
        **fields,
    )
    job = launches.ended(number)
    assert (job.state, job.exit_code) == ("failed", 7)


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_container_runs_and_its_command_of_several_lines_goes_on_after_a_signal(
    launches: QueueLab, signal: str
) -> None:
    container = Container(Runtime.APPTAINER, "/i.sif")
    command = f"echo begun ${{PYTHONPATH%%:*}}\n{sys.executable} train.py\necho went on"
    number = submit(launches, command, container=container, signal=SIGNALS[signal])
    assert launches.ended(number).state == "completed", errors(launches, number)
    assert said(launches, number) == [
        "0 warned",
        f"begun {launches.work}/{LIBRARY_NAME}",
        "went on",
    ]
    assert CONTAINER_UP in errors(launches, number)


@pytest.mark.parametrize(
    "container", [None, Container(Runtime.APPTAINER, "/i.sif")], ids=["plain", "container"]
)
def test_a_command_of_several_lines_may_save_before_it_is_ended(
    launches: QueueLab, container: Container | None
) -> None:
    (launches.work / "save.py").write_text(_SAVE)
    number = submit(launches, f"true\n{sys.executable} save.py\necho went on", container=container)
    wait_until("a program that runs", lambda: "up" in said(launches, number))
    launches.run("cancel", number)
    assert launches.ended(number).state == "cancelled"
    assert said(launches, number) == ["saved", "up"]


def test_a_task_of_an_array_signals_itself_alone(launches: QueueLab) -> None:
    # The first task's own id is the array's number.
    step = (
        'trap "echo warned; exit" USR1; touch up.$SLURM_ARRAY_TASK_ID; while [ ! -e over ]; do '
        "sleep 0.02; done"
    )
    first = (
        "while [ ! -e up.1 ] || [ ! -e up.2 ]; do sleep 0.02; done; scancel --signal=USR1 "
        '"$SLURM_JOB_ID.0"'
    )
    body = (
        f"sh -c '{step}; echo quiet' &\n[ $SLURM_ARRAY_TASK_ID = 2 ] || {{ {first}; touch "
        f"over; }}\nwait"
    )
    number = launches.submit(body, "--array=1-2")
    for task, words in ((1, "warned"), (2, "quiet")):
        assert launches.ended(f"{number}_{task}").state == "completed"
        # The shell also says that its sleep was ended by the signal.
        assert launches.output(f"{number}_{task}").splitlines()[-1] == words


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"slots": 2, "slots_per_node": 1},
            "2 tasks of 1 GPUs, 1 per node, are requested; this machine is a single node",
        ),
        (
            {"slots": 2, "slot_type": SlotType.CPU},
            "2 nodes requested, but this machine is a single",
        ),
    ],
    ids=["GPUs", "CPUs"],
)
def test_a_request_of_several_nodes_is_refused_with_what_to_write(
    launches: QueueLab, fields: dict[str, Any], words: str
) -> None:
    script = batch_script(Scheduler.SLURM, Request(command="true", **fields), Place("test"))
    done = launches.run("submit", stdin=script.text.encode())
    assert (done.returncode, launches.rows("jobs")) == (2, [])
    assert words in done.stderr.decode()
    assert "slots_per_node = slots" in done.stderr.decode()


def test_scancel_in_a_job_cancels_and_refuses_what_it_does_not_know(launches: QueueLab) -> None:
    number = launches.submit(
        'scancel --state=PENDING; echo "unknown: $?"; scancel $SLURM_JOB_ID; sleep 30'
    )
    assert launches.ended(number).state == "cancelled"
    assert "unknown: 1" in launches.output(number)
    assert "embedded queue supports only" in launches.output(number)


@for_each(
    ("words", "asked"),
    [
        (["--signal=USR1", "12.0"], ("USR1", "steps", ["12"])),
        (["-s", "10", "-b", "12_3"], ("10", "batch", ["12_3"])),
        (["-sTERM", "--full", "12", "13"], ("TERM", "full", ["12", "13"])),
        (["12"], ("", "steps", ["12"])),
        (["12.0"], None),
        (["--user=ann"], None),
        ([], None),
    ],
    ids=str,
)
def test_what_scancel_reads(words: list[str], asked: tuple[str, str, list[str]] | None) -> None:
    assert parse_arguments(words) == asked


# -- copies of what others could replace

_COPIED = """
import os, signal, sys, time
import hpcdash.job
flags = []
signal.signal(signal.SIGTERM, lambda *_: flags.append(1))
print(os.environ["HPCDASH_COPY"], __file__, hpcdash.job.__file__, os.environ["API_TOKEN"], flush=True)
while sys.argv[1:] and not flags:
    time.sleep(0.02)
time.sleep(0.2)
print("saved", flush=True)
sys.exit(4)
"""
_EVIL = b"echo somebody else was here\n"
CONTAINERS = [
    pytest.param(None, id="plain"),
    pytest.param(Container(Runtime.APPTAINER, "/i.sif"), id="container"),
]


def stage_copied(queue: QueueLab, **fields: Any) -> tuple[Path, str]:
    """The folder of a launch whose job runs copies of its files, and the job's script."""
    folder = queue.work / "launch"
    request = Request(
        script="train.py",
        environment={"API_TOKEN": "t0ken"},
        **({"work_dir": str(queue.work), "slots": 0, "limit_seconds": 60} | fields),
    )
    contents = {
        "files/train.py": _COPIED.encode(),
        LIBRARY_NAME: job_zip(),
        SECRETS_NAME: secrets_file(request),
    }
    (folder / "files").mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    copies = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    place = Place("test", str(folder), script=f"{folder}/files/train.py", copies=copies)
    return folder, batch_script(Scheduler.SLURM, request, place).text


def hand_in(queue: QueueLab, text: str) -> str:
    done = queue.run("submit", stdin=text.encode())
    assert done.returncode == 0, done.stderr.decode()
    wait_until("a supervisor that listens", lambda: (queue.folder / "wake").exists())
    return str(json.loads(done.stdout)["id"])


@pytest.mark.parametrize("container", CONTAINERS)
def test_copies_are_run_and_removed_at_the_end(
    launches: QueueLab, container: Container | None
) -> None:
    folder, text = stage_copied(launches, container=container)
    number = hand_in(launches, text)
    assert launches.ended(number).exit_code == 4
    lines = (folder / f"{number}.out").read_text().splitlines()
    copy, program, library, token = next(line for line in lines if "t0ken" in line).split()
    assert program == f"{copy}/files/train.py"
    assert library.startswith(f"{copy}/{LIBRARY_NAME}/")
    assert token == "t0ken"
    assert lines[-1] == "saved"
    assert not Path(copy).exists()


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", ["files/train.py", LIBRARY_NAME, SECRETS_NAME])
def test_nothing_starts_from_files_that_somebody_replaced(
    launches: QueueLab, container: Container | None, name: str
) -> None:
    folder, text = stage_copied(launches, container=container, startup_hook="echo the hook runs")
    (folder / name).unlink()
    (folder / name).write_bytes(_EVIL)
    number = hand_in(launches, text)
    assert launches.ended(number).exit_code == 1
    written = (folder / f"{number}.out").read_text() + (folder / f"{number}.err").read_text()
    assert (
        f"{folder}/{name} differs from the submitted file; others may have replaced it. Nothing "
        "started." in written
    )
    assert "somebody else" not in written
    assert "t0ken" not in written


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_job_that_is_cancelled_saves_and_removes_its_copies(
    launches: QueueLab, container: Container | None
) -> None:
    folder, text = stage_copied(launches, container=container)
    text = text.replace("/files/train.py\n", "/files/train.py until it is told to end\n")
    number = hand_in(launches, text)
    log = folder / f"{number}.out"
    copy = wait_until(
        "its start", lambda: log.exists() and "t0ken" in log.read_text() and log.read_text()
    ).split()[0]
    assert Path(copy).is_dir()
    launches.act("cancel", number)
    launches.ended(number)
    assert log.read_text().splitlines()[-1] == "saved"
    wait_until("the end of its copies", lambda: not Path(copy).exists())


def test_what_cannot_be_run_from_copies_is_refused() -> None:
    place = Place("u", "/l", copies={LIBRARY_NAME: "0" * 64})
    for request, words in (
        (
            Request(command="./a.out", slots=4, slots_per_node=2, launcher=Launcher.MPIRUN),
            "launcher: mpirun",
        ),
        (Request(call=Call("m", "f", wheel="/w/lab.whl")), "call: a wheel or source"),
    ):
        with pytest.raises(UsageError, match=words):
            batch_script(Scheduler.SLURM, request, place)
