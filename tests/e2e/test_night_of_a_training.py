"""A night of a training, unattended: preempted, out of time, stopped by a colleague's file, and
nothing is lost.

The training imports hpcdash.job from what `hpcdash submit` put beside it: nothing is installed
where it runs.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

from tests.embedded.queue_lab import QueueLab
from tests.support.program import Program, Run, home_with, program_over_ssh
from tests.support.receivers import HookReceiver, hook_receiver
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

EVERY_STEPS = 10
MAX_LOOKS = 20
TRAIN = f"""
import os, time
from hpcdash.job import Checkpoints, TrainingGuard
guard = TrainingGuard(save_every_steps={EVERY_STEPS}, metrics="metrics.jsonl", look_every_seconds=0.2)
checkpoints = Checkpoints()
newest = checkpoints.newest()
assert os.environ["HPCDASH_RESUME_FROM"] == (str(newest.path) if newest else "")
first = newest.step + 1 if newest else 1
left = int(os.environ["HPCDASH_END_TIME"]) - time.time()
print(f"from step {{first}}, {{left:.0f}} s left, {{__import__('hpcdash.job').job.__file__}}", flush=True)
for step in range(first, 100_000):
    time.sleep(0.05)
    loss = 8 / step + 2
    print(f"step {{step}}: loss {{loss:.6f}}", flush=True)
    guard.step(step, loss=loss)
    if guard.should_save():
        with checkpoints.saving(step) as folder:
            (folder / "model").write_text(str(step))
    if guard.should_stop():
        break
"""
WATCH = """
[[watch.running]]
name = "night"
[[watch.chains]]
name = "night"
fewest_waiting = 4
[[watch.hanging]]
name = "night"
limit_seconds = "1m"
[[watch.webhook]]
url = "http://127.0.0.1:{port}/"
"""
SAVES = """
[[watch.saves]]
name = "night"
interval_seconds = 1
save_seconds = 1
spare_seconds = 1
checkpoints = "{run}/checkpoints"
"""


class Night:
    """A train of five in `run`, a folder that a group shares; `program` is its owner's hpcdash,
    `colleague` another's.

    `fields` are of the request, `watch` of the configuration; `limit_seconds` is that of the second
    run, and `stops` what it says of its end.
    """

    fields = ""
    limit_seconds = 0
    stops = ""
    watch = ""
    alerts_at_first: tuple[tuple[str, str], ...] = ()

    def __init__(self, program: Program, colleague: Program, run: Path, hook: HookReceiver) -> None:
        self.program, self.colleague, self.run, self.hook = program, colleague, run, hook
        # Others may write to `run`, and what they could replace is not run.
        self.storage = Path(f"{run}-launches")
        self.job = ""
        self.folder = Path()

    async def call(self, *words: str, by: Program | None = None) -> Run:
        """One command, which goes well."""
        run = await asyncio.to_thread(by or self.program, *words)
        assert run.status == 0, run
        return run

    async def submit(self) -> None:
        self.program.config.parent.mkdir(parents=True, exist_ok=True)
        watch = (WATCH + self.watch).format(run=self.run, port=self.hook.port)
        self.program.config.write_text(f'[launch]\nstorage_root = "{self.storage}"\n{watch}')
        file = self.program.home / "night.toml"
        file.write_text(
            'name = "night"\nscript = "train.py"\nslots = 0\narray = "1-5%1"\nrequeue = true\n'
            f'work_dir = "{self.run}"\nkill_switch = "{self.run}/KILL"\nsave_switch = '
            f'"{self.run}/SAVE"\n'
            f'checkpoints = "checkpoints"\n{self.fields}'
        )
        (self.program.home / "train.py").write_text(TRAIN)
        answer = json.loads((await self.call("submit", str(file), "--format", "json")).stdout)
        self.job, self.folder = answer["job_id"], Path(answer["folder"])

    def log(self, task: int, ending: str = "out") -> str:
        path = self.folder / f"{self.job}_{task}.{ending}"
        return path.read_text() if path.exists() else ""

    def errors(self) -> str:
        return "".join(self.log(task, "err") for task in range(1, 6))

    async def until(self, what: str, look: Callable[[], bool]) -> None:
        """Until something has come about."""

        def evidence() -> str:
            return "\n".join(
                self.log(task, ending)[-500:] for task in range(1, 6) for ending in ("out", "err")
            )

        await asyncio.to_thread(wait_until, what, look, evidence)

    def runs(self) -> list[list[int]]:
        """The steps of each run of the training, in their order: the first is where it went on."""
        texts = [text for task in range(1, 6) for text in self.log(task).split("from step ")[1:]]
        return sorted(
            [int(text.split(",")[0]), *map(int, re.findall(r"^step (\d+):", text, re.M))]
            for text in texts
        )

    async def trains(self, run: int) -> None:
        """Until the training has begun for the `run`th time and has saved since."""

        def has_saved() -> bool:
            runs = self.runs()
            return len(runs) == run and len(runs[-1]) > EVERY_STEPS + 1

        await self.until(f"run {run} of the training", has_saved)

    async def watches(self) -> list[tuple[str, str]]:
        """(kind, rule) of what a round of the watchdogs tells."""
        before = len(self.hook.requests)
        await self.call("watch", "--once")
        bodies = [json.loads(request.body) for request in self.hook.requests[before:]]
        return [(alert["kind"], alert["rule"]) for body in bodies for alert in body["alerts"]]

    async def is_preempted(self) -> None:
        """What runs has to make way, and the training goes on elsewhere or later; that run comes to
        its time limit.
        """
        raise NotImplementedError

    async def ends(self) -> dict[str, str]:
        """How each task ended, once the accounting has heard of all."""
        found: dict[str, str] = {}
        for _ in range(MAX_LOOKS):
            answer = json.loads((await self.call("history", "--format", "json")).stdout)
            found = {
                row["id"]: row["state"] for row in answer["jobs"] if row["array_id"] == self.job
            }
            if len(found) == 5:
                break
        return found


class OnTheQueue(Night):
    fields = 'time = "25s"\n'
    limit_seconds = 25
    stops = r"s left at step \d+, less than the"

    async def is_preempted(self) -> None:
        await self.call("requeue", f"{self.job}_1", "--yes")


class OnSlurm(Night):
    # Slurm looks after limits each 30 s: it warns a run of a minute when it next looks, and those
    # of two none too soon.
    fields = (
        'time = "2m"\nqueue = "gpu"\nqos = "low"\nsignal = "USR1@40"\nextra_args = '
        '["--nodelist=g2"]\n'
    )
    limit_seconds = 60
    stops = r"received SIGUSR1 at step"
    watch = SAVES
    alerts_at_first = (("raised", "grace-too-short"),)
    lab: SlurmLab

    async def is_preempted(self) -> None:
        await self.call("alter", f"{self.job}_2", "--time", "1m", "--yes")
        other = self.lab.submit(
            "bob",
            "--qos=high",
            "-pgpu",
            "-wg2",
            "-N1",
            "-n8",
            "-t1",
            "-o/dev/null",
            script="#!/bin/sh\nsleep 1\n",
        )

        def row() -> str:
            words = ("squeue", "-h", "-j", f"{self.job}_1", "-o", "%T %r")
            return self.lab.admin(*words).stdout.decode().strip()

        try:
            await self.until("the preemption", lambda: row() == "PENDING BeginTime")
            # It would wait for two minutes, while the next task goes on.
            self.lab.admin("scontrol", "update", f"jobid={self.job}_1", "starttime=now+1")
        finally:
            self.lab.admin("scancel", "--quiet", other, check=False)


@asynccontextmanager
async def on_the_queue(folder: Path) -> AsyncIterator[Night]:
    queue = QueueLab(folder / "queue", folder / "work")
    variables = {"HPCDASH_QUEUE": str(queue.folder), "HPCDASH_STATE": str(folder / "state")}
    program = Program(home_with(folder / "home"), ("--local", "--backend", "local"), variables)
    run = folder / "run"
    run.mkdir(mode=0o2770)
    try:
        async with hook_receiver() as hook:
            yield OnTheQueue(program, program, run, hook)
    finally:
        queue.end()


def folder_of_two(lab: SlurmLab) -> Path:
    """A folder of alice's that bob may write to. pytest's own are closed to them."""
    run = Path(tempfile.mkdtemp(prefix="hpcdash-night-"))
    shutil.chown(run, lab.alice, lab.bob)
    run.chmod(0o2770)
    return run


@asynccontextmanager
async def on_slurm(lab: SlurmLab, folder: Path) -> AsyncIterator[Night]:
    program = program_over_ssh(lab, folder / "home")
    colleague = Program(home_with(folder / "bob", lab.ssh_config.read_text()), ("--ssh", "lab-bob"))
    run = folder_of_two(lab)
    async with hook_receiver() as hook:
        night = OnSlurm(program, colleague, run, hook)
        night.lab = lab
        night.storage.mkdir(mode=0o755)
        shutil.chown(night.storage, lab.alice)
        try:
            yield night
        finally:
            if night.job:
                lab.admin("scancel", "--quiet", night.job, check=False)
            # What is ended may still write.
            for left in (run, night.storage):
                shutil.rmtree(left, ignore_errors=True)


async def test_a_night_on_the_embedded_queue(tmp_path: Path) -> None:
    async with on_the_queue(tmp_path) as night:
        await a_night(night)


async def test_a_night_on_slurm(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    async with on_slurm(slurm_lab, tmp_path) as night:
        await a_night(night)


async def a_night(night: Night) -> None:
    await night.submit()
    await night.trains(run=1)
    told, dropped = await asyncio.gather(night.watches(), night.call("save-switch", night.job))
    assert told == list(night.alerts_at_first)
    assert dropped.text == f"{night.job}  created {night.run}/SAVE\n"
    await night.until("its save", lambda: not (night.run / "SAVE").exists())

    await night.is_preempted()
    await night.trains(run=2)
    assert await night.watches() == []

    # The third run takes over what the second saved before its time was over.
    await night.trains(run=3)
    assert re.search(night.stops, night.errors()), night.errors()
    assert await night.watches() == [("raised", "no-successor")]

    # Somebody else of the group wants the nodes.
    dropped = await night.call(
        "kill-switch", night.job, "--path", f"{night.run}/KILL", "--yes", by=night.colleague
    )
    assert "created" in dropped.text
    await night.until(
        "the end of the train", lambda: night.errors().count("exiting before training") == 3
    )
    told = []
    for _ in range(MAX_LOOKS):
        told += await night.watches()
        if ("raised", "is-running") in told:
            break
    over = [("recovered", rule) for _, rule in (*night.alerts_at_first, ("raised", "no-successor"))]
    assert sorted(told) == [("raised", "is-running"), *over]
    assert await night.watches() == []

    # Every run went on where the one before had saved, as each was told to end.
    runs = night.runs()
    assert len(runs) == 3, night.errors()
    for run, following in pairwise(runs):
        assert following[0] - 1 == run[-1], night.errors()
    assert await night.ends() == dict.fromkeys(
        (f"{night.job}_{task}" for task in range(1, 6)), "completed"
    )
    assert night.errors().count(f"kill switch {night.run}/KILL is set") == 4

    # The second run was told its own end, and found the library beside its script.
    log = "".join(night.log(task) for task in range(1, 6))
    (left,) = re.findall(
        rf"^from step {runs[1][0]}, (\d+) s left, {night.folder}/hpcdash-job.zip/", log, re.M
    )
    assert night.limit_seconds - 5 <= int(left) <= night.limit_seconds

    # One curve, from the first step to the last.
    answer = json.loads(
        (await night.call("metrics", night.job, "--metric", "loss", "--format", "json")).stdout
    )
    (series,) = answer["series"]
    steps = list(range(1, runs[-1][-1] + 1))
    assert series["x"] == steps
    assert series["y"] == [round(8 / step + 2, 6) for step in steps]
    kept = [
        json.loads(line)["step"] for line in (night.run / "metrics.jsonl").read_text().splitlines()
    ]
    assert kept == steps
