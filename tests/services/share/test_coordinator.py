"""One coordinator on a Slurm in this process: what it does with tasks, their files and its
database, step by step.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcdash.config.settings import LaunchSettings, PoolSettings, QuotaSettings, Site
from hpcdash.config.watch_settings import PoolsRule
from hpcdash.domain.share import Priority
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.share import files, text
from hpcdash.services.share.coordinator import Coordinator
from hpcdash.services.share.database import PoolHeld, ShareDatabase, StoredTask
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit.sudoers import NOTHING_THERE
from hpcdash.services.watch.rules.pools import find_stuck
from tests.support.scripted_cluster import Cluster
from tests.support.scripted_transport import ACT, Command
from tests.support.slurm_text import shown_job

NORMAL, HIGH = Priority.NORMAL, Priority.HIGH
POOL = PoolSettings(
    "lab",
    2,
    queue="gpu",
    choosers=("*",),
    quotas=(QuotaSettings(NORMAL, 2), QuotaSettings(HIGH, 2)),
    grace_seconds=5.0,
)
KEEPER = "keeper"


class Lab:
    """The pool `lab` of two nodes, whose jobs hold, run and are requeued as Slurm is told."""

    def __init__(self, folder: Path, pool: PoolSettings = POOL) -> None:
        self.folder = folder
        self.cluster = Cluster(folder, user=KEEPER)
        self.transport = self.cluster.transport
        self.transport.user = KEEPER
        self.transport.answers[ACT] = self._act
        nodes = [f"g{number}" for number in range(1, pool.nodes + 1)]
        self.transport.nodes = [{"nodelist": name, "statecomplete": "idle"} for name in nodes]
        self.free = [*nodes]
        self.jobs: dict[str, dict[str, str]] = {}
        self.count = 0
        self.said: list[str] = []
        self.transport.answers["sudo"] = self._as_owner
        # What root's program cannot do now.
        self.fails: set[str] = set()
        self.pool = pool
        self.begin()

    def begin(self) -> None:
        """Another coordinator goes on, as after the first was killed."""
        self.database = ShareDatabase(self.folder / "lab")
        self.database.acquire(self.now)
        actions = Actions(self.cluster.store, Journal(self.folder / "journal.jsonl"))
        launch = LaunchSettings(site=Site(storage_root=str(self.folder)))
        self.coordinator = Coordinator(
            self.pool, self.database, actions, self.said.append, launch=launch
        )

    def kill(self) -> None:
        # The lock goes with the process.
        self.database.close()

    @property
    def now(self) -> float:
        return self.cluster.clock.seconds

    def work(self, job_id: str) -> Path:
        return self.folder / f"launch-{job_id}"

    def submit(
        self, priority: str = "NORMAL", nodes: int = 1, user: str = KEEPER, **fields: str
    ) -> str:
        """A held job that is marked as a task, with the files that a submission makes."""
        self.count += 1
        job_id = str(self.count)
        self.work(job_id).mkdir()
        (self.work(job_id) / "suspend").touch()
        self.jobs[job_id] = {
            "jobarrayid": job_id,
            "arrayjobid": job_id,
            "username": user,
            "name": f"task{job_id}",
            "numnodes": str(nodes),
            "submittime": str(int(self.now)),
            "comment": f"hpcdash-share:{priority}:{self.work(job_id)}",
            **HELD,
            **fields,
        }
        logs = {"StdErr": self.work(job_id) / "log.err", "StdOut": self.work(job_id) / "log.out"}
        self.transport.native[job_id] = shown_job(
            job_id, NumNodes=nodes, Requeue=1, OverSubscribe="NO", **logs
        )
        return job_id

    def run(self, job_id: str) -> None:
        """The scheduler starts a job."""
        job = self.jobs[job_id]
        taken, self.free = self.free[: int(job["numnodes"])], self.free[int(job["numnodes"]) :]
        job |= {
            "state": "RUNNING",
            "reason": "None",
            "nodelist": ",".join(taken),
            "starttime": str(int(self.now)),
        }

    def see(self, job_id: str) -> None:
        """A task sees the command."""
        seen = self.work(job_id) / "suspend.seen"
        seen.write_text("seen\n")
        os.utime(seen, (self.now, self.now))

    def end(self, job_id: str) -> None:
        """A job has gone from the queue."""
        self._free_nodes(job_id)
        del self.jobs[job_id]

    def _free_nodes(self, job_id: str) -> None:
        self.free = sorted({*self.free, *filter(None, self.jobs[job_id]["nodelist"].split(","))})

    def _act(self, command: Command) -> None:
        program, *words = command.words
        job_id = words[-1]
        if program == "scontrol" and words[0] == "release":
            self.run(job_id)
        elif program == "scontrol" and words[0] in ("hold", "requeuehold"):
            self._free_nodes(job_id)
            self.jobs[job_id] |= HELD
        elif program == "scancel":
            self.end(job_id)
            self.transport.history.append({"jobid": job_id, "state": "CANCELLED by 0"})

    def _as_owner(self, command: Command) -> str | tuple[int, bytes, bytes]:
        """Root's program: `sudo -n -u ACCOUNT PROGRAM VERB LAUNCH FILE …`."""
        verb, launch, name = command.words[5:8]
        file = self.folder / launch / name
        if verb in self.fails:
            return 1, b"", b"I/O error"
        if verb == "write":
            file.write_bytes(command.limits["stdin"])
            return ""
        if not file.exists():
            return NOTHING_THERE, b"", b""
        return f"1:1 {file.stat().st_size} {file.stat().st_mtime:.0f} 0\n"

    async def run_all(self) -> None:
        """Until all that fits runs."""
        while await self.step():
            assert self.now < 1_795_250_000
        await self.step()

    async def step(self, seconds: float = 1.0, *, is_ending: bool = False) -> bool:
        self.cluster.clock.seconds += seconds
        self.transport.everyone = self.transport.recent = [*self.jobs.values()]
        return await self.coordinator.step(is_ending=is_ending)

    def task(self, job_id: str) -> StoredTask:
        (found,) = self.database.tasks("id = ?", job_id)
        return found

    def states(self) -> dict[str, str]:
        return {one.id: one.state for one in self.database.tasks()}

    def hows(self, job_id: str) -> list[str]:
        """How each of a task's runs ended."""
        return [run.how for run in self.database.task_runs([job_id], 99).get(job_id, [])]

    def sent(self, *words: str) -> int:
        """How often Slurm was told something."""
        return self.transport.acted.count(words)


HELD = {
    "state": "PENDING",
    "reason": "JobHeldUser",
    "nodelist": "",
    "starttime": "N/A",
    "endtime": "N/A",
}


@pytest.fixture
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lab]:
    changes: dict[str, Any] = getattr(request, "param", {})
    lab = Lab(tmp_path, replace(POOL, **changes))
    yield lab
    lab.kill()


async def test_a_command_that_cannot_be_written_now_is_tried_again_until_the_grace_is_over(
    lab: Lab,
) -> None:
    task = lab.submit(nodes=2, user="bob")
    await lab.run_all()
    lab.fails.add("write")
    lab.submit("HIGH", 2)
    for _ in range(4):
        assert await lab.step()
    assert (lab.states()[task], lab.sent("scontrol", "requeuehold", "incomplete", task)) == (
        "suspending",
        0,
    )
    lab.fails.clear()
    await lab.step(0.5)
    assert (lab.work(task) / "suspend").read_text() == "suspend\n"
    assert lab.sent("scontrol", "requeuehold", "incomplete", task) == 0
    await lab.step(2.0)
    assert lab.sent("scontrol", "requeuehold", "incomplete", task) == 1


async def test_what_can_never_be_told_is_not_waited_for(lab: Lab) -> None:
    task = lab.submit(nodes=2)
    await lab.run_all()
    (lab.work(task) / "suspend").unlink()
    lab.submit("HIGH", 2)
    await lab.step()
    assert lab.sent("scontrol", "requeuehold", "incomplete", task) == 1


async def test_a_task_is_silent_once_neither_its_output_nor_its_errors_grow(lab: Lab) -> None:
    tasks = [lab.submit(user=user) for user in (KEEPER, "bob")]
    await lab.run_all()
    for task in tasks:
        (lab.work(task) / "log.out").touch()
        (lab.work(task) / "log.err").touch()
        os.utime(lab.work(task) / "log.out", (lab.now, lab.now))
        os.utime(lab.work(task) / "log.err", (lab.now + 1000, lab.now + 1000))
    await lab.step(1900.0)
    assert set(lab.states().values()) == {"running"}
    await lab.step(1000.0)
    await lab.step()
    assert set(lab.states().values()) == {"failed"}
    assert {one.reason for one in lab.database.tasks()} == {"no log output for 1800 s"}


async def test_a_task_that_has_saved_is_suspended_however_long_it_was_silent(lab: Lab) -> None:
    task = lab.submit()
    await lab.run_all()
    for name in ("log.out", "log.err"):
        (lab.work(task) / name).touch()
        os.utime(lab.work(task) / name, (lab.now, lab.now))
    (lab.work(task) / "suspend.ready").write_text("ready\n")
    await lab.step(1900.0)
    while lab.states()[task] != "starting":
        await lab.step()
    assert lab.hows(task) == ["yielded", ""]
    # Neither the silence of the run before counts, nor the time until the scheduler starts a task.
    lab.jobs[task]["starttime"] = str(int(lab.now + 100))
    await lab.step(1850.0)
    await lab.step()
    assert lab.states() == {task: "running"}
    await lab.step(100.0)
    await lab.step()
    assert lab.states() == {task: "failed"}


async def test_a_task_whose_errors_cannot_be_seen_is_not_judged_by_its_output(lab: Lab) -> None:
    task = lab.submit()
    await lab.run_all()
    (lab.work(task) / "log.out").touch()
    os.utime(lab.work(task) / "log.out", (lab.now, lab.now))
    await lab.step(4000.0)
    assert lab.states() == {task: "running"}


@pytest.mark.parametrize("lab", [{"quotas": (QuotaSettings(NORMAL, 1),)}], indirect=True)
async def test_the_next_task_starts_once_the_one_whose_quota_it_needs_has_left(lab: Lab) -> None:
    first, second = lab.submit(), lab.submit()
    await lab.run_all()
    lab.jobs[first]["comment"] = lab.jobs[first]["comment"].replace("NORMAL", "NORMAL+paused")
    for _ in range(3):
        await lab.step()
    # A node is free all the while.
    assert lab.states() == {first: "suspending", second: "waiting"}
    await lab.run_all()
    assert lab.states() == {first: "paused", second: "running"}


async def test_a_calm_coordinator_keeps_its_lease(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = lab.submit()
    await lab.run_all()
    for _ in range(9):
        await lab.step(10.0)
    assert lab.states() == {task: "running"}
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    with pytest.raises(PoolHeld, match="this pool already has a coordinator: process "):
        ShareDatabase(lab.folder / "lab").acquire(lab.now)


async def test_one_that_was_taken_over_does_nothing_more(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = lab.submit()
    await lab.run_all()
    # Another host does not see the lock on some file systems, and takes over once the lease has
    # lapsed.
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    successor = ShareDatabase(lab.folder / "lab")
    lab.submit("HIGH", 2)

    def take_over(command: Command) -> None:
        lab.transport.answers.pop("squeue")
        successor.acquire(lab.now + 61)

    # While the first one waits for an answer.
    lab.transport.answers["squeue"] = take_over
    acted = len(lab.transport.acted)
    for _ in range(2):
        with pytest.raises(PoolHeld, match=r"this pool was taken over by process .* on elsewhere"):
            await lab.step()
    assert (len(lab.transport.acted), lab.states()) == (acted, {task: "running"})
    successor.close()


async def test_a_task_that_follows_another_job_has_no_turn_before(lab: Lab) -> None:
    first = lab.submit(nodes=2)
    await lab.run_all()
    after = lab.submit("HIGH", dependency=f"afterok:{first}(unfulfilled)")
    other = lab.submit(user="bob")
    await lab.run_all()
    pool = lab.coordinator.state()
    told = {task.id: (task.place, task.why) for task in pool.tasks}
    assert told[after] == (None, f"waits for job {first}")
    assert told[other] == (1, "waits for 1 node")
    # It takes no nodes, whatever its priority: whoever does interrupts somebody.
    raised = replace(next(task for task in pool.tasks if task.id == other), priority=HIGH.name)
    assert [task.id for task in pool.interrupted_by(raised)] == [first]
    watch = PoolsRule(no_turn_seconds=60)
    later = pool.taken_at + timedelta(seconds=100)
    stuck = [task.id for task in pool.tasks if [*find_stuck(pool, task, watch, later)]]
    assert stuck == [other]
    del lab.jobs[after]["dependency"]
    await lab.run_all()
    assert lab.states() == {first: "waiting", after: "running", other: "waiting"}


async def test_a_job_that_is_no_task_is_named_with_the_nodes_it_takes(lab: Lab) -> None:
    task = lab.submit(nodes=2)
    lab.run(lab.submit(user="eve", comment="(null)"))
    await lab.run_all()
    pool = lab.coordinator.state()
    assert lab.states() == {task: "waiting"}
    assert (pool.nodes_usable, text.format_foreign_jobs(pool)) == (
        1,
        "not tasks of the pool: job 2 of eve on 1 node",
    )


async def test_a_task_that_vanished_is_given_up_though_each_coordinator_looks_once(
    lab: Lab,
) -> None:
    task = lab.submit()
    await lab.run_all()
    lab.end(task)
    states = []
    for _ in range(4):
        await lab.step(100.0)
        states.append(lab.states()[task])
        lab.kill()
        lab.begin()
    assert states == ["running", "running", "running", "unknown"]


async def test_a_task_that_is_back_in_the_queue_has_not_vanished(lab: Lab) -> None:
    task = lab.submit()
    await lab.run_all()
    job = lab.jobs.pop(task)
    await lab.step(200.0)
    lab.jobs[task] = job
    await lab.step(200.0)
    del lab.jobs[task]
    await lab.step(200.0)
    assert lab.states() == {task: "running"}


async def test_a_start_goes_on_after_a_coordinator_was_away_for_longer_than_it_may_take(
    lab: Lab,
) -> None:
    task = lab.submit()
    lab.transport.answers["scontrol release"] = (1, b"", b"Slurm is restarting")
    await lab.step()
    lab.kill()
    del lab.transport.answers["scontrol release"]
    lab.cluster.clock.seconds += 3600
    lab.begin()
    await lab.run_all()
    assert (lab.states(), lab.sent("scontrol", "hold", task)) == ({task: "running"}, 0)


async def test_a_start_that_does_not_come_about_is_taken_back(lab: Lab) -> None:
    task, other = lab.submit(nodes=2), lab.submit()
    lab.transport.answers["scontrol release"] = (1, b"", b"Access denied")
    for _ in range(3):
        await lab.step(61.0)
    del lab.transport.answers["scontrol release"]
    await lab.run_all()
    assert lab.states() == {task: "waiting", other: "running"}
    assert lab.task(task).reason.startswith("did not start: job 1: release: ")


async def test_how_a_run_ended_is_not_told_by_the_command_of_the_run_before(lab: Lab) -> None:
    task = lab.submit(nodes=2, user="bob")
    for has_seen in (True, False):
        await lab.run_all()
        hot = lab.submit("HIGH", 2)
        await lab.step()
        if has_seen:
            lab.see(task)
        await lab.step(6.0)
        await lab.run_all()
        lab.end(hot)
        lab.transport.history.append({"jobid": hot})
    await lab.run_all()
    assert lab.hows(task) == ["slow", "ignored", ""]


async def test_a_task_that_saw_the_command_has_its_seconds_to_save_from_then_on(lab: Lab) -> None:
    task = lab.submit(nodes=2, user="bob")
    await lab.run_all()
    lab.submit("HIGH", 2)
    await lab.step()
    await lab.step(3.0)
    lab.see(task)
    await lab.step(5.0)
    assert lab.states()[task] == "suspending"
    (lab.work(task) / "suspend.ready").write_text("ready\n")
    await lab.step(0.5)
    await lab.run_all()
    assert lab.hows(task)[0] == "suspended"


async def test_a_thousand_tasks_of_one_user_stall_nobody(lab: Lab) -> None:
    running = lab.submit(nodes=2)
    await lab.run_all()
    flood = [lab.submit(user="eve") for _ in range(100)]
    hot = lab.submit("HIGH", 2, user="bob")
    before = len(lab.transport.acted)
    assert await lab.step()
    # bob's is seen at the first look, and acted on.
    assert (lab.states()[running], lab.states()[hot]) == ("suspending", "waiting")
    assert len(lab.transport.acted) - before <= 20
    await lab.run_all()
    assert (lab.states()[hot], len(lab.states())) == ("running", len(flood) + 2)


async def test_one_that_ends_finishes_a_suspension_and_begins_none(lab: Lab) -> None:
    one, other = lab.submit(), lab.submit(user="bob")
    await lab.run_all()
    lab.submit("HIGH")
    await lab.step()
    assert lab.states() == {one: "running", other: "suspending", "3": "waiting"}
    lab.submit("HIGH")
    assert await lab.step(is_ending=True)
    assert await lab.step(5.0, is_ending=True)
    assert not await lab.step(is_ending=True)
    assert lab.states() == {one: "running", other: "waiting", "3": "waiting", "4": "waiting"}


async def test_a_task_that_is_requeued_after_its_end_is_admitted_as_it_is_now(lab: Lab) -> None:
    task = lab.submit()
    await lab.run_all()
    job = lab.jobs[task]
    lab.end(task)
    lab.transport.history.append({"jobid": task})
    await lab.run_all()
    assert lab.states() == {task: "succeeded"}
    # Meanwhile another one has its name.
    twin = lab.submit(name=job["name"])
    await lab.step()
    lab.jobs[task] = job | HELD
    await lab.run_all()
    assert lab.states() == {task: "refused", twin: "running"}
    assert lab.task(task).reason == f"{KEEPER} already has a task with this name: job {twin}"


async def test_a_disk_that_does_not_respond_holds_up_its_own_task_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "OWN_LIMIT_SECONDS", 0.05)
    dead, well = lab.submit(), lab.submit()
    await lab.run_all()
    responds, opened = threading.Event(), os.open

    def open_when_it_responds(path: str, *given: Any, **more: Any) -> int:
        if str(lab.work(dead)) in str(path):
            responds.wait()
        return opened(path, *given, **more)

    monkeypatch.setattr("os.open", open_when_it_responds)
    lab.submit("HIGH", 2)
    for _ in range(2):
        await lab.step()
    assert lab.states() == {dead: "suspending", well: "suspending", "3": "waiting"}
    assert (lab.work(well) / "suspend").read_text() == "suspend\n"
    await lab.step(5.0)
    assert lab.sent("scontrol", "requeuehold", "incomplete", dead) == 1
    responds.set()
    await lab.run_all()
    assert lab.states()["3"] == "running"


async def test_a_task_that_no_command_reaches_says_so(lab: Lab) -> None:
    task = lab.submit(user="bob", comment="hpcdash-share:NORMAL:/home/bob/run")
    await lab.run_all()
    assert (
        f"job {task} cannot be warned before it is suspended: the launch folder is not in storage_root"
        in lab.said
    )
    [shown] = lab.coordinator.state().tasks
    assert shown.why == "suspended without warning: the launch folder is not in storage_root"
