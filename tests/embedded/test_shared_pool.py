"""A pool shared on a real embedded queue: tasks are suspended, saved and resumed, though its
coordinator is killed.
"""

from __future__ import annotations

import csv
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcdash.embedded.start import supervisor_pid
from tests.support.program import Program, home_with
from tests.support.shared_pool import SharedPool
from tests.support.waiting import wait_until

CONFIG = """
[embedded]
cpus = 4
grace_seconds = 0.5
[share.lab]
nodes = 2
poll_seconds = 0.1
grace_seconds = {grace}
choosers = ["*"]
least_gpus = 0
[[share.lab.quotas]]
priority = "NORMAL"
nodes = 2
[[share.lab.quotas]]
priority = "HIGH"
nodes = 1
"""
# Writes each step it takes to a log of all its runs, and where it is when it is told to suspend.
TRAINING = """
import os, time
from hpcdash.job.suspend import go_suspend, receive_suspend_command
folder = "FOLDER"
step = int(open(folder + "/saved").read()) if os.path.exists(folder + "/saved") else 0
open(folder + "/starts", "a").write("start\\\\n")
while step < STEPS and not os.path.exists(folder + "/enough"):
    step += 1
    open(folder + "/steps", "a").write("%d\\\\n" % step)
    time.sleep(0.02)
    if receive_suspend_command():
        open(folder + "/saved", "w").write(str(step))
        go_suspend()
"""
# Written for another platform: its model saves, in a process of its own, and knows nothing of the
# pool.
MODEL = """
import os, time
import hfai
class Model:
    step = 0
    def state_dict(self): return {"step": self.step}
    def load_state_dict(self, state): self.step = state["step"]
def main(gpu):
    model = Model()
    epoch, step, others = hfai.checkpoint.init(model, ckpt_path="FOLDER/latest.pt")
    assert (model.step, others) == (step, "best" if step else None)
    while not os.path.exists("FOLDER/enough"):
        model.step = step = step + 1
        with open("FOLDER/steps", "a") as log: print(step, file=log)
        print("step", step, "loss", 1 / step, flush=True)
        time.sleep(0.02)
        model.try_save(epoch, step, "best")
if __name__ == "__main__":
    hfai.multiprocessing.spawn(main, args=(), nprocs=1, bind_numa=True)
"""


class Lab(SharedPool):
    def __init__(self, folder: Path, grace: float, config: str = CONFIG) -> None:
        super().__init__(folder)
        self.folder = folder
        queue = folder / "queue"
        self.queue_folder = queue
        self.published = folder / "state" / "share" / "lab" / "pool.json"
        self.program = Program(
            home_with(folder / "home"),
            ("--local", "--backend", "local"),
            {"HPCDASH_QUEUE": str(queue), "HPCDASH_STATE": str(folder / "state"), "TZ": "UTC"},
        )
        self.program.config.parent.mkdir(parents=True)
        self.program.config.write_text(config.format(grace=grace))

    def coordinator_call(self, *words: str) -> tuple[Sequence[str], Path, Mapping[str, str] | None]:
        return self.program.argv("share", *words), self.program.home, self.program.environment

    def work(self, name: str) -> Path:
        return self.folder / name

    def add(self, name: str, *, is_hot: bool = False) -> str:
        return self.submit(name, "high" if is_hot else "normal")

    def submit(
        self,
        name: str,
        priority: str,
        *,
        command: str = "",
        steps: int = 100_000,
        slots: int = 1,
        **more: Any,
    ) -> str:
        folder = self.work(name)
        folder.mkdir()
        code = TRAINING.replace("FOLDER", str(folder)).replace("STEPS", str(steps))
        (folder / "train.py").write_text(code.replace("\\\\n", "\\n"))
        request = self.program.home / f"{name}.toml"
        lines = {
            "name": name,
            "command": command or f"python3 {folder}/train.py",
            "share": priority,
            "slots": slots,
        }
        lines |= {"slots_per_node": slots, **more}
        request.write_text(
            "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        )
        submitted = self.program("submit", str(request), "--yes")
        assert submitted.status == 0, submitted
        return submitted.text.strip()


@pytest.fixture
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lab]:
    given = getattr(request, "param", 60.0)
    lab = Lab(tmp_path, given) if isinstance(given, float) else Lab(tmp_path, 60.0, given)
    try:
        yield lab
    finally:
        lab.kill()
        for row in lab.program.rows("jobs"):
            lab.program("cancel", row["id"], "--yes")
        wait_until("no job is left", lambda: not lab.program.rows("jobs"))
        if (supervisor := supervisor_pid(lab.queue_folder)) is not None:
            os.kill(supervisor, signal.SIGTERM)


@pytest.mark.system
@pytest.mark.parametrize("lab", [2.0], indirect=True)
def test_a_higher_priority_takes_nodes_and_gives_them_back(lab: Lab) -> None:
    lab.submit("good", "normal")
    lab.submit("deaf", "normal", command="sleep 600")
    lab.submit("large", "high", command="true", slots=2)
    lab.start()
    lab.until(good="running", deaf="running")
    # One at a time: the second says who has the pool.
    assert "this pool already has a coordinator: process " in lab.program(
        "share", "run", "lab", "--once"
    ).refused(1)
    # More than the quota ever gives is refused, and before it is submitted once the coordinator has
    # said its rules.
    again = lab.program("submit", str(lab.program.home / "large.toml"), "--yes").refused(2)
    assert "quota at HIGH is 1" in again
    wait_until("large is refused", lambda: lab.states().get("large") == "refused")
    assert lab.tasks()["large"]["why"] == "requests 2 nodes, but root's quota at HIGH is 1".replace(
        "root", lab.tasks()["good"]["user"]
    )
    # The later of the two gives way: it does not answer, and is ended when its seconds are over.
    lab.submit("hot", "high")
    tasks = lab.until(hot="running", deaf="waiting", good="running")
    assert (tasks["deaf"]["suspended"], tasks["good"]["suspended"]) == (1, 0)
    (lab.folder / "hot" / "enough").touch()
    tasks = lab.until(hot="succeeded", deaf="running")
    assert [run["how"] for run in tasks["deaf"]["runs"]] == ["ignored", ""]
    assert all(run["started_at"] for run in tasks["deaf"]["runs"])
    # A person's stop is for good.
    assert lab.program("cancel", tasks["deaf"]["id"], "--yes").status == 0
    (lab.folder / "good" / "enough").touch()
    lab.until(deaf="stopped", good="succeeded")


@pytest.mark.system
def test_a_model_that_saves_goes_on_where_it_was_though_its_coordinator_is_killed(lab: Lab) -> None:
    program = lab.folder / "model.py"
    program.write_text(MODEL.replace("FOLDER", str(lab.folder / "model")))
    lab.submit("model", "normal", command=f"python3 -m hpcdash.job.hfai {program}", slots=2)
    lab.start()
    for turn in (1, 2):
        known = len(lab.steps("model"))
        wait_until("the model trains", lambda known=known: len(lab.steps("model")) > known)
        lab.submit(f"hot{turn}", "high", steps=5)
        said = "been requested to suspend" if turn == 1 else "is suspended"
        wait_until(
            said, lambda said=said: said in lab.log.read_text().rpartition("waits at HIGH")[2]
        )
        lab.kill()
        lab.start()
        lab.until(**{f"hot{turn}": "succeeded", "model": "running"})
    (lab.folder / "model" / "enough").touch()
    tasks = lab.until(model="succeeded")
    assert tasks["model"]["suspended"] == 2
    steps = list(range(1, len(lab.steps("model")) + 1))
    assert lab.steps("model") == steps
    # All runs are one curve.
    _, *rows = lab.program("metrics", tasks["model"]["id"], "--format", "csv").text.splitlines()
    assert [int(row.partition(",")[0]) for row in rows] == steps


OF_GPUS = """
[embedded]
cpus = 4
gpus = 2
[share.lab]
nodes = 2
gpus_per_node = 1
least_gpus = 1
no_log_seconds = 3
poll_seconds = 0.1
[[share.lab.quotas]]
priority = "NORMAL"
nodes = 2
"""
# Gives up its node once, without being asked.
GIVES_WAY = """
import os, time
from hpcdash.job.suspend import go_suspend
again = os.path.exists("FOLDER/again")
open("FOLDER/again", "w").close()
if not again: go_suspend()
while not os.path.exists("FOLDER/enough"): time.sleep(0.05)
"""
# Writes to its errors alone, and before Python has started, which may take seconds.
TELLS = "while sleep 0.2; do echo on >&2; done & python3 PROGRAM; kill $!"


@pytest.mark.system
@pytest.mark.parametrize("lab", [pytest.param(OF_GPUS, id="of-gpus")], indirect=True)
def test_a_task_that_is_silent_fails_and_one_that_suspends_itself_has_its_turn_again(
    lab: Lab,
) -> None:
    lab.submit("silent", "normal", command="sleep 600", slot_type="cuda")
    program = lab.folder / "gives.py"
    program.write_text(GIVES_WAY.replace("FOLDER", str(lab.work("gives"))))
    command = TELLS.replace("PROGRAM", str(program))
    lab.submit("gives", "normal", command=command, slot_type="cuda", labels=["nlp", "7B, run 2"])
    lab.submit("slight", "normal", command="true", slot_type="cpu")
    lab.start()
    tasks = lab.until(silent="failed", gives="running", slight="refused")
    assert tasks["slight"]["why"] == "requests 0 GPUs, but a task in this pool needs at least 1"
    assert tasks["silent"]["why"] == "no log output for 3 s"
    # Nobody was interrupted for another.
    gives = tasks["gives"]
    assert ([run["how"] for run in gives["runs"]], gives["suspended"]) == (["yielded", ""], 1)
    shown = lab.program("share", "show", "--filter", 'labels:"7B, run 2"').text
    assert ("gives" in shown, "silent" in shown, "INTERRUPTED" in shown) == (True, False, False)
    assert lab.program("share", "show", "--filter", "label~nlp").refused(2).startswith("hpcdash: ")
    unmatched = lab.program("share", "show", "--filter", "labels:zz")
    assert (unmatched.status, unmatched.stderr) == (0, "None of 3 tasks matches the filter.\n")
    lab.enough("gives")
    lab.until(gives="succeeded")


@pytest.mark.system
def test_an_owner_s_wishes_reach_the_coordinator_through_the_queue(lab: Lab) -> None:
    lab.submit("one", "normal", slots=2)
    lab.submit("two", "normal", steps=20)
    lab.start()
    tasks = lab.until(one="running", two="waiting")
    first, second = tasks["one"]["id"], tasks["two"]["id"]
    assert "needs confirmation, but there is no terminal" in lab.program(
        "share", "suspend", first
    ).refused(2)
    assert "root's quota" in lab.program("share", "raise", first, "--to", "high", "--yes").refused(
        1
    ).replace(tasks["one"]["user"], "root")
    assert "has no task 99" in lab.program("share", "stop", "99", "--yes").refused(1)
    # Raised, the second takes its node from the first, which is named before it is done.
    raised = lab.program("share", "raise", second, "--yes")
    assert (raised.status, f"job {first} (one)" in raised.stderr) == (0, True), raised
    lab.until(two="succeeded", one="running")
    assert lab.program("share", "suspend", first, "--yes").status == 0
    tasks = lab.until(one="paused")
    assert [run["how"] for run in tasks["one"]["runs"]] == ["suspended", "paused"]
    assert lab.program("share", "resume", first, "--yes").status == 0
    lab.until(one="running")
    assert lab.program("share", "stop", first, "--yes").status == 0
    lab.until(one="stopped")
    titles, *rows = csv.reader(lab.program("share", "show", "--format", "csv").text.splitlines())
    assert {row[titles.index("name")]: row[titles.index("state")] for row in rows} == {
        "one": "stopped",
        "two": "succeeded",
    }
    # A trace under this pool's own rules: its nodes, and its quotas.
    trace = lab.folder / "trace.csv"
    trace.write_text(
        "submitted_at,user,nodes,seconds,priority\n0,ann,2,100,NORMAL\n0,ann,1,100,LOW\n0,ann,3,100,NORMAL\n"
    )
    simulated = lab.program("share", "simulate", str(trace), "--pool", "lab")
    assert "tasks never run" in simulated.stderr
    assert "time slices" in simulated.text
    outcome = json.loads(
        lab.program("share", "simulate", str(trace), "--pool", "lab", "--format", "json").text
    )
    assert [(one["nodes"], one["tasks"], one["never_run"]) for one in outcome["outcomes"][:1]] == [
        (2, 1, 2)
    ]
    assert "--nodes" in lab.program("share", "simulate", str(trace)).refused(2)


@pytest.mark.system
def test_a_state_that_cannot_be_published_again_is_reported_again(lab: Lab) -> None:
    lab.published = lab.folder / "shared" / "pool.json"
    config = lab.program.config.read_text()
    state_file = f'state_file = "{lab.published}"\npoll_seconds'
    lab.program.config.write_text(config.replace("poll_seconds", state_file))

    def reports() -> int:
        return lab.log.read_text().count("cannot publish the state")

    lab.start()
    wait_until("the missing folder is reported", lambda: reports() == 1)
    lab.published.parent.mkdir()
    lab.submit("one", "normal")
    lab.until(one="running")
    lab.published.parent.rename(lab.folder / "elsewhere")
    lab.enough("one")
    wait_until("the folder that is gone is reported", lambda: reports() == 2)


@pytest.mark.system
@pytest.mark.long
def test_a_coordinator_that_is_killed_at_fifty_moments_loses_nothing_and_does_nothing_twice(
    lab: Lab,
) -> None:
    lab.kill_often(50, (0.2, 1.5))


DAY = """
[embedded]
cpus = 4
grace_seconds = 0.5
[share.lab]
nodes = 4
poll_seconds = 0.1
grace_seconds = 20
demote_after_seconds = 4
choosers = ["*"]
[[share.lab.quotas]]
priority = "LOW"
nodes = 4
[[share.lab.quotas]]
priority = "NORMAL"
nodes = 3
[[share.lab.quotas]]
priority = "ABOVE_NORMAL"
nodes = 2
[[share.lab.quotas]]
priority = "HIGH"
nodes = 1
"""


@pytest.mark.system
@pytest.mark.long
@pytest.mark.parametrize("lab", [pytest.param(DAY, id="a-day")], indirect=True)
def test_a_day_in_fast_motion_keeps_quotas_and_loses_no_step(lab: Lab) -> None:
    chance = random.Random(1)
    quotas = {"LOW": 4, "NORMAL": 3, "ABOVE_NORMAL": 2, "HIGH": 1}
    lab.start()
    names = [f"task{number}" for number in range(24)]
    seen: set[str] = set()

    def look() -> dict[str, str]:
        """The states; at every moment each priority has at most its quota, and all together the
        pool.
        """
        tasks = lab.tasks().values()
        used = Counter[str]()
        for task in tasks:
            if task["state"] in ("starting", "running", "suspending"):
                used[task["level"]] += task["nodes"]
                seen.add(task["level"])
        assert all(count <= quotas[level] for level, count in used.items()), used
        assert used.total() <= 4
        return {task["name"]: task["state"] for task in tasks}

    for number, name in enumerate(names):
        priority = chance.choice(["LOW", "NORMAL", "ABOVE_NORMAL", "HIGH", "AUTO"])
        slots = 1 if priority == "HIGH" else chance.choice([1, 1, 2])
        # Some are there until the last has come, however long submitting takes.
        lab.submit(name, priority, steps=chance.choice([20, 100, 100_000]), slots=slots)
        if number == 12:
            lab.kill()
            lab.start()
        wait_until(f"{name} is known", lambda name=name: name in look())
    lab.enough(*names)
    wanted = dict.fromkeys(names, "succeeded")
    wait_until(f"{wanted}", lambda: look() == wanted)
    lab.assert_nothing_lost(*names)
    tasks = lab.tasks()
    assert seen == set(quotas)
    assert sum(task["suspended"] for task in tasks.values()) >= 3
    assert any(task["is_demoted"] for task in tasks.values())
