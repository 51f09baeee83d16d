"""Generated batch scripts submitted to a real Slurm: what is given, what runs on each node, how it
ends.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from hpcdash.backends.script.body import Place, secrets_file
from hpcdash.backends.script.folder import CONTAINER_UP
from hpcdash.backends.slurm.lint import refusal_hint
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.request import (
    Container,
    EarlySignal,
    Launcher,
    Request,
    Runtime,
    Site,
    SlotType,
)
from tests.support.process_lists import seen_command_lines
from tests.support.records import for_each
from tests.support.scripts import Scheduler, batch_script
from tests.support.slurm import LabError, SlurmLab
from tests.support.waiting import wait_until

CPU = SlotType.CPU
BOTH, GRES, NEITHER = (
    Site(),
    Site(tres_supported=False),
    Site(tres_supported=False, gres_supported=False),
)
HOSTILE = "a b;$(touch owned) `touch owned` 'q' \"d\" \\ * ~ {x}\nline two\t%s é"
# Slurm looks after time limits each 30 s, and sends a signal up to 30 s early: from the 5th second
# of a minute on.
USR1, BATCH_USR1 = EarlySignal("USR1", 25), EarlySignal("USR1", 25, batch_only=True)

_ROW = 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'
# As torchrun does: the workers are its children, and it waits for them.
_TORCHRUN = """#!/usr/bin/python3
import os, subprocess, sys
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if word.startswith("--"))
command = [word for word in sys.argv[1:] if not word.startswith("--")]
workers = [
    subprocess.Popen([sys.executable, *command], env={**os.environ, "LOCAL_RANK": str(rank)})
    for rank in range(int(options["nproc-per-node"]))
]
sys.exit(max(abs(worker.wait()) for worker in workers))
"""
_TRAIN = """
import os, signal, sys, time
flags = []
signal.signal(signal.SIGUSR1, lambda *_: flags.append(1))
until = time.monotonic() + 55
while not flags and time.monotonic() < until:
    time.sleep(0.05)
print(os.environ["SLURM_NODEID"], os.environ.get("LOCAL_RANK"), "warned" if flags else "never warned", flush=True)
time.sleep(1)
print("saved", flush=True)
"""
_RUNTIME = """#!/usr/bin/python3
import json, os, sys
words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
if words[1] not in ("list", "import", "create"):
    at = words.index("sh")
    seen = {name: os.environ.get(name) for name in ("V", "APPTAINERENV_V")}
    print(json.dumps([os.environ["SLURM_NODEID"], words[:at], seen]), flush=True)
    os.execvp("sh", words[at:])
"""
# Stands for an srun that has the plugin.
_PYXIS_SRUN = """#!/bin/bash
for word; do
  shift
  [[ "$word" == --container-* ]] || set -- "$@" "$word"
done
exec /usr/bin/srun "$@"
"""
SECRET = "hunter2 'quoted'"
# What waits is seen in lists of processes.
TELLS_ITS_SECRET = 'echo "${#API_TOKEN} $V"; sleep 2.25'


@dataclass(frozen=True)
class Row:
    """A row of the table from slots to options; `given` is (tasks, GPUs seen by each) of every
    node, in order.

    Empty where Slurm spreads the GPUs over the nodes as it finds them.
    """

    name: str
    given: list[tuple[int, int]]
    fields: dict[str, Any] = field(default_factory=dict)


def gpus(slots: int, per_node: int | None = None, site: Site = BOTH, **more: Any) -> dict[str, Any]:
    return {"slots": slots, "slots_per_node": per_node, "site": site, "queue": "gpu", **more}


def cpus(slots: int, per_node: int | None = None, **more: Any) -> dict[str, Any]:
    return {"slots": slots, "slots_per_node": per_node, "slot_type": CPU, **more}


SRUN: dict[str, Any] = {"launcher": Launcher.SRUN}
ROWS = [
    Row("cuda tres gres S=3", [], gpus(3)),
    Row("cuda tres gres S=8 P=4", [(1, 4), (1, 4)], gpus(8, 4)),
    Row("cuda tres gres S=4 P=2", [(1, 2), (1, 2)], gpus(4, 2)),
    Row("cuda tres gres S=8 P=4 T=a100", [(1, 4), (1, 4)], gpus(8, 4, gpu_type="a100")),
    Row("cuda tres gres S=6 P=4", [(1, 4), (1, 4)], gpus(6, 4)),
    Row("cuda tres gres S=4 shell", [(1, 4)], gpus(4, kind="shell")),
    Row("cuda gres S=4 P=2", [(1, 2), (1, 2)], gpus(4, 2, GRES)),
    Row("cuda gres S=2", [(1, 1), (1, 1)], gpus(2, None, GRES)),
    Row("cuda neither S=4 P=2", [(1, 0), (1, 0)], gpus(4, 2, NEITHER)),
    Row("cuda S=0", [(1, 0)], {"slots": 0}),
    Row("cpu S=8 P=4", [(1, 0), (1, 0)], cpus(8, 4)),
    Row("cpu S=2", [(1, 0), (1, 0)], cpus(2)),
    Row("srun cuda tres gres S=6", [], gpus(6, **SRUN)),
    Row("srun cuda tres gres S=3 shell", [(3, 3)], gpus(3, kind="shell", **SRUN)),
    Row("srun cuda tres gres S=8 P=4", [(4, 4), (4, 4)], gpus(8, 4, **SRUN)),
    Row("srun cuda gres S=4 P=2", [(2, 2), (2, 2)], gpus(4, 2, GRES, **SRUN)),
    Row("srun cpu S=4 P=2", [(2, 0), (2, 0)], cpus(4, 2, **SRUN)),
]
# pyxis is a plugin of srun's, which Debian does not have: a stand-in takes its options.
RUNTIMES = [one for one in Runtime if one not in (Runtime.NONE, Runtime.DOCKER, Runtime.PYXIS)]
CONTAINERS = {runtime: Container(runtime, "lab/net:1", ("/data:/d:ro",)) for runtime in RUNTIMES}
SECRETIVE = (Runtime.NONE, Runtime.PODMAN, Runtime.PYXIS)


class Ran:
    """Jobs by name, all submitted together; `text` and `field` are of those that ended."""

    def __init__(self, lab: SlurmLab) -> None:
        self.lab = lab
        self.folder = lab.work_dir("alice") / f"launch-{uuid4().hex[:8]}"
        lab.as_user("alice", "mkdir", "-p", self.folder / "bin")
        self.programs = {"torchrun": _TORCHRUN} | dict.fromkeys(
            ("apptainer", "podman", "enroot"), _RUNTIME
        )
        for name, text in self.programs.items():
            (self.folder / "bin" / name).write_text(text)
            (self.folder / "bin" / name).chmod(0o755)
        (self.folder / "pyxis").mkdir()
        (self.folder / "pyxis" / "srun").write_text(_PYXIS_SRUN)
        (self.folder / "pyxis" / "srun").chmod(0o755)
        (self.folder / "train.py").write_text(_TRAIN)
        self.path = f"--export=ALL,PATH={self.folder}/bin:/usr/bin:/bin"
        self.ids: dict[str, str] = {}
        self.seen: set[str] = set()

    def submit(self, known_as: str, command: str = _ROW, **fields: Any) -> None:
        known: dict[str, Any] = {
            "limit_seconds": 60,
            "memory_bytes": 64 << 20,
            "work_dir": str(self.folder),
        }
        request = Request(command=command, **(known | fields))
        script = batch_script(
            Scheduler.SLURM, request, Place("test", str(self.folder)), queue_has_gpus=True
        )
        has_pyxis = request.container is not None and request.container.runtime is Runtime.PYXIS
        path = self.path.replace("PATH=", f"PATH={self.folder}/pyxis:") if has_pyxis else self.path
        self.ids[known_as] = self.lab.submit("alice", path, script=script.text)

    def wait(self) -> None:
        def left() -> list[str]:
            words = ("squeue", "-h", "-o", "%F", "-j", ",".join(self.ids.values()))
            return self.lab.admin(*words, check=False).stdout.decode().split()

        wait_until(
            "the end of all jobs",
            lambda: not left(),
            lambda: self.lab.admin("squeue").stdout.decode(),
        )

    def text(self, name: str, ending: str = "out") -> str:
        path = self.folder / f"{self.ids[name]}.{ending}"
        return path.read_text() if path.exists() else f"no {path}"

    def lines(self, name: str) -> list[str]:
        return sorted(self.text(name).splitlines())

    def shown(self, name: str) -> dict[str, str]:
        """The fields of `scontrol show job`."""
        words = ("scontrol", "show", "job", "-o", self.ids[name])
        text = self.lab.admin(*words).stdout.decode(errors="replace").splitlines()[0]
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def end(self) -> None:
        self.lab.admin("scancel", *self.ids.values(), check=False)
        self.lab.as_user("alice", "rm", "-rf", self.folder, check=False)


@pytest.fixture(scope="module")
def ran(slurm_lab: SlurmLab) -> Iterator[Ran]:
    """All jobs of this file, side by side, once they ended."""
    jobs = Ran(slurm_lab)
    torchrun: dict[str, Any] = {"command": "train.py", "launcher": Launcher.TORCHRUN, **cpus(4, 2)}
    try:
        jobs.submit("warned by Slurm", signal=USR1, **torchrun)
        jobs.submit("warned by the script", signal=BATCH_USR1, **torchrun)
        several = "echo begun\n/usr/bin/python3 train.py\necho went on"
        jobs.submit("warned in several lines", several, signal=USR1, rank_logs=True, **cpus(2))
        jobs.submit(
            "warned in a container",
            several,
            signal=BATCH_USR1,
            container=CONTAINERS[Runtime.APPTAINER],
            slots=0,
        )
        fails = '[ "$SLURM_NODEID" = 1 ] || exec sleep 300; exit 7'
        jobs.submit("one node fails", fails, **cpus(2))
        jobs.submit(
            "one rank fails",
            '[ "$SLURM_PROCID" = 3 ] || exec sleep 300; exit 7',
            **cpus(4, 2, **SRUN),
        )
        jobs.submit(
            "hostile", 'printf "%s" "$V" | od -An -tx1', environment={"V": HOSTILE}, slots=0
        )
        cores = ("--cpus-per-task=3",)
        jobs.submit(
            "cores", 'scontrol show step -o "$SLURM_JOB_ID.0"', extra_args=cores, **gpus(2, 1)
        )
        jobs.submit(
            "array", 'echo "task $SLURM_ARRAY_TASK_ID"', array=parse_tasks("1-3%2"), slots=0
        )
        for runtime, container in CONTAINERS.items():
            environment = {"V": HOSTILE.replace("\n", " ")}
            jobs.submit(
                runtime, "echo inside", container=container, environment=environment, **gpus(2, 1)
            )
        secret = {"API_TOKEN": SECRET, "V": "plain"}
        (jobs.folder / "secrets.sh").write_bytes(
            secrets_file(Request(command="a", environment=secret))
        )
        (jobs.folder / "secrets.sh").chmod(0o644)
        for runtime in SECRETIVE:
            container = None if runtime is Runtime.NONE else Container(runtime, "lab/net:1")
            jobs.submit(
                f"secret {runtime}",
                TELLS_ITS_SECRET,
                container=container,
                environment=secret,
                **cpus(2),
            )
        for row in ROWS:
            jobs.submit(row.name, **row.fields)
        with seen_command_lines(
            "hunter2", "sleep 2.25", "--container-image=lab/net:1"
        ) as jobs.seen:
            jobs.wait()
        yield jobs
    finally:
        jobs.end()


pytestmark = pytest.mark.slurm


@for_each("row", ROWS, ids=lambda row: row.name)
def test_a_row_of_the_table_gives_its_nodes_tasks_and_gpus(ran: Ran, row: Row) -> None:
    lines = [line.split(" ") for line in ran.lines(row.name)]
    tasks = Counter(node for node, _ in lines)
    seen = {node: len(devices.split(",")) if devices else 0 for node, devices in lines}
    given = sorted(((tasks[node], seen[node]) for node in tasks), reverse=True)
    if row.given:
        assert given == row.given, ran.text(row.name, "err")
    else:
        is_task_a_gpu = row.fields.get("launcher") is Launcher.SRUN
        assert sum(seen.values()) == row.fields["slots"], ran.text(row.name, "err")
        assert all(count == (devices if is_task_a_gpu else 1) for count, devices in given), given


def test_where_slurm_has_its_bug_with_gpus_on_any_nodes_the_refusal_has_a_hint(
    slurm_lab: SlurmLab,
) -> None:
    script = batch_script(
        Scheduler.SLURM, Request(command="true", **gpus(8)), Place("test", "/tmp")
    )
    options = [line.removeprefix("#SBATCH ") for line in script.text.splitlines()]
    version = slurm_lab.admin("sbatch", "--version").stdout.decode()
    try:
        slurm_lab.submit("alice", "--test-only", script=script.text)
    except LabError as error:
        refusal = str(error)
    else:
        pytest.skip("this Slurm has no such bug")
    assert "15857" in refusal_hint(refusal, version, "", options)


@pytest.mark.parametrize("name", ["warned by Slurm", "warned by the script"])
def test_an_early_signal_reaches_the_workers_of_torchrun_on_every_node(ran: Ran, name: str) -> None:
    lines = ran.lines(name)
    warned = [f"{node} {rank} warned" for node in (0, 1) for rank in (0, 1)]
    assert lines == [*warned, *["saved"] * 4], ran.text(name, "err")
    assert ran.shown(name)["ExitCode"] == "0:0"


def test_a_command_of_several_lines_goes_on_after_an_early_signal(ran: Ran) -> None:
    assert Counter(ran.lines("warned in several lines")) == Counter(
        ["0 None warned", "1 None warned", *["begun", "saved", "went on"] * 2]
    ), ran.text("warned in several lines", "err")
    for rank in (0, 1):
        own = ran.folder / f"{ran.ids['warned in several lines']}.rank-{rank}.out"
        assert own.read_text() == f"begun\n{rank} None warned\nsaved\nwent on\n"
        assert own.stat().st_mode & 0o777 == 0o600


def test_an_early_signal_reaches_a_command_in_a_container(ran: Ran) -> None:
    lines = ran.text("warned in a container").splitlines()
    assert lines[1:] == ["begun", "0 None warned", "saved", "went on"], ran.text(
        "warned in a container", "err"
    )
    assert ran.shown("warned in a container")["ExitCode"] == "0:0"


@pytest.mark.parametrize("name", ["one node fails", "one rank fails"])
def test_what_fails_on_one_node_ends_the_job_with_its_status(ran: Ran, name: str) -> None:
    shown = ran.shown(name)
    assert (shown["JobState"], shown["ExitCode"]) == ("FAILED", "7:0")
    assert "exit code 7" in ran.text(name, "err")


def test_a_hostile_variable_arrives_as_it_was(ran: Ran) -> None:
    assert bytes.fromhex(ran.text("hostile")).decode() == HOSTILE
    assert not (ran.folder / "owned").exists()


def test_cores_of_a_task_reach_the_step(ran: Ran) -> None:
    assert all("cpu=6," in line for line in ran.lines("cores"))
    assert len(ran.lines("cores")) == 2


def test_each_task_of_an_array_has_a_log_of_its_own(ran: Ran) -> None:
    for task in (1, 2, 3):
        assert (ran.folder / f"{ran.ids['array']}_{task}.out").read_text() == f"task {task}\n"


@pytest.mark.parametrize("runtime", CONTAINERS)
def test_one_container_a_node_is_started_with_its_words_and_variables(
    ran: Ran, runtime: Runtime
) -> None:
    made = [json.loads(line) for line in ran.lines(runtime) if line.startswith("[")]
    assert [node for node, _, _ in made] == ["0", "1"], ran.text(runtime, "err")
    value = HOSTILE.replace("\n", " ")
    for _, words, seen in made:
        assert words[:2] == [
            runtime,
            {"apptainer": "exec", "podman": "run", "enroot": "start"}[runtime],
        ]
        assert any(
            word.startswith(("/data:/d:ro", "--volume=/data:/d:ro", "/data:/d:none:"))
            for word in words
        )
        assert seen["APPTAINERENV_V" if runtime is Runtime.APPTAINER else "V"] == value
        assert value not in words
    assert ran.lines(runtime).count("inside") == 2
    assert ran.text(runtime, "err").count(CONTAINER_UP) == 2


@pytest.mark.parametrize("runtime", SECRETIVE)
def test_a_secret_reaches_the_command_and_nothing_that_others_or_logs_show(
    ran: Ran, runtime: Runtime
) -> None:
    name = f"secret {runtime}"
    assert ran.lines(name).count(f"{len(SECRET)} plain") == 2, ran.text(name, "err")
    assert [line for line in ran.seen if "sleep 2.25" in line]
    assert [line for line in ran.seen if "hunter2" in line] == []
    shown = ran.lab.admin("scontrol", "show", "job", "-dd", ran.ids[name]).stdout
    script = ran.lab.admin("scontrol", "write", "batch_script", ran.ids[name], "-").stdout
    logs = b"".join(path.read_bytes() for path in (ran.lab.run_dir / "log").rglob("*.log"))
    assert not [
        part for part in (shown, script, logs, ran.text(name, "err").encode()) if b"hunter2" in part
    ]


def test_each_field_is_what_slurm_shows_of_the_job(slurm_lab: SlurmLab) -> None:
    jobs = Ran(slurm_lab)
    asked: dict[str, Any] = {
        "name": "my_run",
        "limit_seconds": 3660,
        "memory_bytes": 3 << 30,
        "hold": True,
        "requeue": True,
        "exclude_nodes": ("n1", "n2"),
        "project": "a b",
        "work_dir": "/tmp",
        "extra_args": ("--nice=3", "--comment 'x # y'"),
    }
    try:
        jobs.submit("first", "true", slots=0, hold=True)
        jobs.submit("all", "true", after=(jobs.ids["first"],), **asked, **cpus(3, 3))
        shown = jobs.shown("all")
        wanted = {
            "JobName": "my_run",
            "TimeLimit": "01:01:00",
            "MinMemoryNode": "3G",
            "Requeue": "1",
            "Nice": "3",
            "ExcNodeList": "n[1-2]",
            "WorkDir": "/tmp",
            "Reason": "JobHeldUser",
            "NumCPUs": "3",
            "Dependency": f"afterany:{jobs.ids['first']}(unfulfilled)",
            "StdOut": f"{jobs.folder}/{jobs.ids['all']}.out",
        }
        assert {name: shown.get(name) for name in wanted} == wanted
        assert jobs.shown("first")["Requeue"] == "0"
    finally:
        jobs.end()
