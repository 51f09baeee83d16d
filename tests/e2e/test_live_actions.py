"""Acting on jobs of a real Slurm, as those who may and those who may not; what became of them is
read from Slurm.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.state.journal import Journal
from tests.e2e.conftest import clear
from tests.e2e.live_store import store_on
from tests.support.program import Program, program_over_ssh, together
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slurm_releases

Fate = dict[str, tuple[bool | None, str]]
# Tells who got which signal, and goes on.
TRAPPING = """#!/bin/bash
#SBATCH -o signals-%A_%a.out
trap 'echo batch USR1' USR1
srun -n1 bash -c 'trap "echo step USR1" USR1; echo up; while :; do sleep 0.1; done' &
while :; do wait; sleep 0.1; done
"""


@pytest.fixture(scope="module")
def lab(slurm_lab: SlurmLab) -> Iterator[SlurmLab]:
    """The lab with no job in it."""
    clear(slurm_lab)
    yield slurm_lab
    clear(slurm_lab)


class Person:
    """Somebody who acts on jobs over ssh."""

    def __init__(self, actions: Actions) -> None:
        self.actions = actions

    async def does(
        self, verb: str, *job_ids: str, signal: str = "", to: str = "", **changes: str
    ) -> Fate:
        plan = self.actions.plan(ActionRequest(Verb(verb), job_ids, signal, to, changes))
        report = await self.actions.run(plan)
        assert report.journal_problem == ""
        return {outcome.job_id: (outcome.done, outcome.text) for outcome in report.outcomes}


@asynccontextmanager
async def somebody(lab: SlurmLab, user: str, folder: Path) -> AsyncIterator[Person]:
    async with store_on(lab, user) as store:
        yield Person(Actions(store, Journal(folder / f"{user}.jsonl")))


@pytest.fixture
async def alice(lab: SlurmLab, tmp_path: Path) -> AsyncIterator[Person]:
    async with somebody(lab, "alice", tmp_path) as person:
        yield person


@pytest.fixture
async def bob(lab: SlurmLab, tmp_path: Path) -> AsyncIterator[Person]:
    async with somebody(lab, "bob", tmp_path) as person:
        yield person


def states(lab: SlurmLab, *job_ids: str) -> dict[str, str]:
    """`STATE/REASON` of each job or task, ended ones too, by Slurm's own word."""
    told = lab.admin(
        "squeue", "-h", "-r", "-t", "all", "-o", "%i %T/%r", "-j", ",".join(job_ids)
    ).stdout.decode()
    return dict(line.split(" ", 1) for line in told.splitlines())


def field(lab: SlurmLab, job_id: str, name: str) -> str:
    """What `scontrol show job` says of a job's field."""
    told = lab.admin("scontrol", "show", "job", "-o", job_id).stdout.decode()
    found = re.search(rf"\b{name}=(\S*)", told)
    assert found, told
    return found[1]


async def test_own_jobs_are_cancelled_and_others_refuse(lab: SlurmLab, alice: Person) -> None:
    running, held, other = lab.submit("alice"), lab.submit("alice", "-H"), lab.submit("bob", "-H")
    lab.wait_state(running, "RUNNING")
    assert await alice.does("cancel", running, held, other, "99999999") == {
        running: (True, ""),
        held: (True, ""),
        other: (False, "Access/permission denied"),
        "99999999": (False, "Invalid job id specified"),
    }
    lab.wait_state(running, "CANCELLED")
    lab.wait_state(held, "CANCELLED")
    assert states(lab, other)[other].startswith("PENDING")
    assert await alice.does("cancel", held) == {
        held: (False, "Job/step already completing or completed")
    }


@pytest.mark.journey
async def test_tasks_and_whole_arrays_are_cancelled(lab: SlurmLab, alice: Person) -> None:
    array = lab.submit("alice", "-H", "--array=0-9%2")
    assert await alice.does("cancel", f"{array}_[3-5]", f"{array}_8") == {
        f"{array}_[3-5]": (True, ""),
        f"{array}_8": (True, ""),
    }
    left = {task for task, state in states(lab, array).items() if state.startswith("PENDING")}
    assert left == {f"{array}_{task}" for task in (0, 1, 2, 6, 7, 9)}
    # What a row of the queue calls those that are left, and some of them have ended: Slurm does not
    # say which.
    assert (await alice.does("cancel", f"{array}_[5-7%2]"))[f"{array}_[5-7%2]"][0] is None
    assert await alice.does("cancel", array) == {array: (True, "")}
    lab.wait_state(array, "CANCELLED")


async def test_jobs_and_tasks_are_held_and_released(
    lab: SlurmLab, alice: Person, bob: Person
) -> None:
    array = lab.submit("alice", "--array=0-5", "--begin=now+3600")
    job, other = lab.submit("alice", "--begin=now+3600"), lab.submit("bob", "-H")
    tasks = f"{array}_[3-4]"
    assert await alice.does("hold", tasks, other, job, "99999999") == {
        tasks: (True, ""),
        other: (False, "Invalid user id"),
        job: (True, ""),
        "99999999": (False, "Invalid job id specified"),
    }
    told = states(lab, array, job)
    assert {known for known, state in told.items() if "JobHeldUser" in state} == {
        f"{array}_3",
        f"{array}_4",
        job,
    }
    assert await alice.does("release", f"{array}_3", f"{array}_4", job) == dict.fromkeys(
        (f"{array}_3", f"{array}_4", job), (True, "")
    )
    assert not [state for state in states(lab, array, job).values() if "Held" in state]
    done, words = (await bob.does("release", array))[array]
    assert (done, "Invalid user id" in words) == (False, True), words
    lab.admin("scontrol", "hold", job)
    assert await alice.does("release", job) == {job: (False, "Access/permission denied")}
    lab.admin("scancel", array, job, other)


async def test_running_jobs_are_requeued(lab: SlurmLab, alice: Person) -> None:
    running, held = lab.submit("alice"), lab.submit("alice", "-H")
    array = lab.submit("alice", "--array=0-3%1")
    lab.wait_state(running, "RUNNING")
    wait_until(
        "a task to run", lambda: states(lab, array).get(f"{array}_0", "").startswith("RUNNING")
    )
    fate = await alice.does("requeue", held, running, f"{array}_[0-2]")
    assert fate[held] == (False, "Job is pending execution")
    assert fate[running] == (True, "")
    done, words = fate[f"{array}_[0-2]"]
    assert (done, "Job is pending execution" in words, f"done: {array}_0" in words) == (
        False,
        True,
        True,
    )
    assert field(lab, running, "Restarts") == "1"
    lab.admin("scancel", running, held, array)


async def test_a_job_that_is_not_to_be_requeued_says_so_and_what_allows_it(
    lab: SlurmLab, alice: Person, locally: Program
) -> None:
    job = lab.submit("alice", "--no-requeue")
    lab.wait_state(job, "RUNNING")
    done, words = (await alice.does("requeue", job))[job]
    assert done is False
    assert "submitted with --no-requeue" in words
    told = await asyncio.to_thread(locally, "requeue", "--yes", job)
    assert f"{job} is not requeued: submitted with --no-requeue" in told.stderr
    (allows,) = re.findall("`(.*)`", words)
    lab.as_user("alice", *allows.split())
    assert await alice.does("requeue", job) == {job: (True, "")}
    lab.admin("scancel", job)


async def test_an_array_over_the_limits_of_the_cluster_is_refused_before_it_is_sent(
    lab: SlurmLab, locally: Program
) -> None:
    script = locally.home / "a.sh"
    script.write_text("#!/bin/sh\n")
    for tasks, limit in (("1-300000", "MaxArraySize"), ("1-200000", "MaxJobCount")):
        said = (
            await asyncio.to_thread(locally, "submit", "--hold", "--array", tasks, str(script))
        ).refused(2)
        assert limit in said
        assert "submit on" not in said


async def test_a_script_for_a_queue_that_is_down_is_warned_of_as_a_request_is(
    lab: SlurmLab, locally: Program
) -> None:
    script = locally.home / "closed.sh"
    script.write_text("#!/bin/sh\n#SBATCH --partition=closed\n#SBATCH --time=9-0\n")
    done = await asyncio.to_thread(locally, "submit", "--dry-run", str(script))
    assert (
        "line 2: queue closed is not starting jobs now. The job waits there until the queue opens"
        in done.stderr
    )
    assert "line 3: 9-00:00:00 exceeds the limit of queue closed" in done.stderr
    over = await asyncio.to_thread(
        locally, "submit", "--dry-run", str(script), "--", "-p", "main", "-t", "5"
    )
    assert (over.status, over.stderr) == (0, "")


async def test_suspending_is_for_operators(lab: SlurmLab, alice: Person, locally: Program) -> None:
    job = lab.submit("alice")
    lab.wait_state(job, "RUNNING")
    assert await alice.does("suspend", job) == {job: (False, "Access/permission denied")}
    assert locally("suspend", job).status == 0
    assert states(lab, job)[job].startswith("SUSPENDED")
    run = locally("resume", job, "--format", "json")
    assert json.loads(run.stdout)["results"] == [{"job_id": job, "done": True, "words": ""}]
    assert states(lab, job)[job].startswith("RUNNING")
    again = locally("resume", job)
    assert (again.status, "Job is not suspended" in again.text) == (1, True)
    lab.admin("scancel", job)


async def test_signals_reach_whom_they_are_for_and_no_batch_shell_twice(
    lab: SlurmLab, alice: Person
) -> None:
    job = lab.submit("alice", script=TRAPPING)
    # Of this array a task runs and others wait: Slurm calls that a transition, and its scancel
    # would signal again.
    array = lab.submit("alice", "--array=0-3%1", script=TRAPPING)
    folder = lab.work_dir("alice")
    find_by_job = next(
        iter(folder.glob(f"signals-{job}_*.out")), folder / f"signals-{job}_4294967294.out"
    )
    task_note = folder / f"signals-{array}_0.out"

    def said(file: Path, words: str) -> int:
        return file.read_text().count(words) if file.exists() else 0

    wait_until("both to be up", lambda: said(find_by_job, "up") == 1 and said(task_note, "up") == 1)
    held = lab.submit("alice", "-H")
    assert await alice.does("signal", job, held, signal="USR1", to="batch") == {
        job: (True, ""),
        held: (False, "not sent: the job is not running"),
    }
    wait_until("the batch shell's word", lambda: said(find_by_job, "batch USR1") == 1)
    assert said(find_by_job, "step USR1") == 0
    assert await alice.does("signal", job, signal="sigusr1", to="0") == {job: (True, "")}
    # One signal to a step may be told twice: Slurm's own doing.
    wait_until("the step's word", lambda: said(find_by_job, "step USR1") >= 1)
    assert said(find_by_job, "batch USR1") == 1
    steps = said(find_by_job, "step USR1")
    assert await alice.does("signal", job, signal="10", to="full") == {job: (True, "")}
    wait_until(
        "both words",
        lambda: said(find_by_job, "step USR1") > steps and said(find_by_job, "batch USR1") > 1,
    )
    fate = await alice.does("signal", array, f"{array}_3", signal="USR1", to="batch")
    assert fate[array][0] is True
    assert fate[f"{array}_3"] == (False, "not sent: the job is not running")
    assert said(task_note, "batch USR1") == 1
    lab.admin("scancel", job, held, array)


async def test_each_field_is_altered_or_refused_in_slurms_words(
    lab: SlurmLab, alice: Person
) -> None:
    job, array = lab.submit("alice", "-H", "-t", "60"), lab.submit("alice", "-H", "--array=0-5%3")
    other = lab.submit("bob", "-H")
    for changes, name, value in (
        ({"time": "2h"}, "TimeLimit", "02:00:00"),
        ({"time": "-30m"}, "TimeLimit", "01:30:00"),
        ({"time": "90"}, "TimeLimit", "01:30:00"),
        ({"queue": "debug", "time": "20"}, "Partition", "debug"),
        ({"qos": "low"}, "QOS", "low"),
        ({"nice": "50"}, "Nice", "50"),
    ):
        assert await alice.does("alter", job, **changes) == {job: (True, "")}
        assert field(lab, job, name) == value
    assert await alice.does("alter", f"{array}_[0-5%3]", throttle="2") == {
        f"{array}_[0-5%3]": (True, "")
    }
    assert field(lab, array, "ArrayTaskThrottle") == "2"
    assert await alice.does("alter", f"{array}_[2-3]", time="10") == {f"{array}_[2-3]": (True, "")}
    assert field(lab, f"{array}_3", "TimeLimit") == "00:10:00"
    assert field(lab, array, "TimeLimit") != "00:10:00"
    assert await alice.does("alter", job, other, time="5") == {
        job: (True, ""),
        other: (False, "Invalid user id"),
    }
    assert field(lab, job, "TimeLimit") == "00:05:00"
    for changes, words in (
        ({"queue": "nowhere"}, "Invalid partition name specified"),
        ({"qos": "nosuch"}, "Invalid qos specification"),
        ({"nice": "-50"}, "Access/permission denied"),
        ({"time": "-9h"}, "TimeLimit decrement larger than current time limit"),
    ):
        done, said = (await alice.does("alter", job, **changes))[job]
        assert (done, words in said) == (False, True), said
    running = lab.submit("alice", "-t", "10")
    lab.wait_state(running, "RUNNING")
    assert await alice.does("alter", running, time="2-00:00:00") == {
        running: (False, "Access/permission denied")
    }
    assert await alice.does("alter", running, queue="debug") == {
        running: (False, "Job is no longer pending execution")
    }
    lab.admin("scancel", job, array, other, running)


async def test_a_controller_that_is_down_leaves_no_doubt_about_a_cancel(
    small_lab: SlurmLab, tmp_path: Path
) -> None:
    job = small_lab.submit("alice", "-H")
    async with somebody(small_lab, "alice", tmp_path) as alice:
        await alice.actions.store.open()
        program = program_over_ssh(small_lab, tmp_path / "home")
        with small_lab.controller_down():
            fate, run = await asyncio.gather(
                alice.does("cancel", job), asyncio.to_thread(program, "hold", job)
            )
        assert "does not respond" in run.refused(3)
        done, words = fate[job]
        assert (done, "Unable to contact slurm controller" in words) == (False, True), words
        assert states(small_lab, job)[job].startswith("PENDING")
        small_lab.admin("scancel", job)


async def test_a_controller_that_hangs_leaves_it_unknown(
    small_lab: SlurmLab, tmp_path: Path
) -> None:
    job = small_lab.submit("alice", "-H")
    async with somebody(small_lab, "alice", tmp_path) as alice:
        await alice.actions.store.open()
        with small_lab.controller_hung():
            done, _ = (await alice.does("cancel", job))[job]
        assert done is None
        assert [entry.state for entry in alice.actions.journal.read()[0]] == ["unknown"]
    small_lab.wait_state(job, "CANCELLED")


# -- on the command line


def test_a_part_that_is_refused_ends_with_status_1(lab: SlurmLab, over_ssh: Program) -> None:
    own, other = lab.submit("alice", "-H"), lab.submit("bob", "-H")
    run = over_ssh("cancel", f"{own},{other}", "--yes")
    assert run.status == 1
    assert run.text.split("\n") == [
        f"{own}  cancelled",
        f"{other}  refused: Access/permission denied",
        "",
    ]
    assert f"1 job owned by {lab.alice}, 1 by {lab.bob} (2 held)" in run.stderr
    assert f"scancel -v {own} {other}" in run.stderr
    answer = json.loads(over_ssh("journal", "--format", "json").stdout)
    (action,) = answer["actions"]
    assert (action["verb"], action["state"], action["user"]) == ("cancel", "partly", lab.alice)
    assert "1 of 2 done" in over_ssh("journal").text
    lab.admin("scancel", other)


def test_what_destroys_wants_a_yes_and_read_only_wants_nothing(
    lab: SlurmLab, over_ssh: Program
) -> None:
    job = lab.submit("alice", "-H")
    destroying = (("cancel", job), ("requeue", job), ("signal", "USR1", job))
    assert all("--yes" in run.refused(2) for run in together(over_ssh, *destroying))
    refused = together(
        over_ssh, ("--read-only", "cancel", job, "--yes"), ("hold", job, "--read-only")
    )
    assert all("read-only" in run.refused(2) for run in refused)
    over_ssh.config.parent.mkdir(parents=True)
    over_ssh.config.write_text("read_only = true\n")
    assert "read_only" in over_ssh("release", job).refused(2)
    over_ssh.config.unlink()
    assert "JobHeldUser" in states(lab, job)[job]
    assert over_ssh("journal").text.count("\n") == 1
    run = over_ssh("release", job, "--format", "json")
    assert json.loads(run.stdout)["verb"] == "release"
    assert run.status == 0
    lab.admin("scancel", job)


@pytest.mark.parametrize("word", ["88_[3-", "x", "88_[3,q]", "1;id", "--", "$(id)"])
def test_a_malformed_id_is_status_2_with_its_place(over_ssh: Program, word: str) -> None:
    said = over_ssh("hold", "--", "1", word).refused(2)
    assert "^" in said if word != "--" else said


@pytest.mark.parametrize(("typed", "status"), [(b"y\n", 0), (b"\n", 1)])
def test_a_person_at_a_terminal_is_asked(
    lab: SlurmLab, over_ssh: Program, typed: bytes, status: int
) -> None:
    job = lab.submit("alice", "-H")
    ours, theirs = pty.openpty()
    asked = subprocess.Popen(
        over_ssh.argv("cancel", job),
        env=over_ssh.environment,
        cwd=over_ssh.home,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(ours, 4096)
    assert f"scancel -v {job}".encode() in shown
    assert states(lab, job)[job].startswith("PENDING")
    os.write(ours, typed)
    assert asked.wait() == status
    os.close(ours)
    assert states(lab, job)[job].startswith("CANCELLED" if status == 0 else "PENDING")
    lab.admin("scancel", job)


# Says when it is connected, and acts when it is told to.
ACTING = """
import asyncio, sys
from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.services.state.folders import journal
from hpcdash.services.jobs.actions import Actions
from tests.e2e.live_store import store_on
from tests.support.slurm import SlurmLab

async def act():
    async with store_on(SlurmLab.attach(sys.argv[1]), "alice") as store:
        await store.open()
        print("open", flush=True)
        sys.stdin.readline()
        actions = Actions(store, journal())
        await actions.run(actions.plan(ActionRequest(Verb.CANCEL, (sys.argv[2],))))

asyncio.run(act())
"""


HETEROGENEOUS = """#!/bin/bash
#SBATCH -n1 -c1 --mem=50
#SBATCH hetjob
#SBATCH -n1 -c1 --mem=50
srun --het-group=1 echo from the component
sleep 600
"""


def test_a_component_has_its_leader_s_log_and_no_other_id_acts_on_it(
    lab: SlurmLab, over_ssh: Program
) -> None:
    job = lab.submit("alice", script=HETEROGENEOUS)
    number = int(job) + 1

    def has_written() -> bool:
        return over_ssh("log", f"{job}+1").text == "from the component\n"

    wait_until("the component's line in the log", has_written)
    assert over_ssh("log", str(number)).text == "from the component\n"
    for other in (f"{number}", f"{number}+1"):
        refused = over_ssh("cancel", other, "--yes").refused(2)
        assert f"no job has the ID {other}; the scheduler lists {job}+1 instead" in refused
    assert over_ssh("cancel", f"{job}+1", "--yes").status == 0
    lab.admin("scancel", job)
    assert over_ssh("log", f"{job}+1").text.startswith("from the component\n")


def test_a_program_killed_on_the_way_leaves_an_unknown_outcome(
    lab: SlurmLab, over_ssh: Program
) -> None:
    job = lab.submit("alice", "-H")
    file = over_ssh.home / "state" / "hpcdash" / "journal.jsonl"
    acting = subprocess.Popen(
        [over_ssh.argv()[0], "-c", ACTING, str(lab.run_dir), job],
        env={**over_ssh.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert acting.stdin is not None
    assert acting.stdout is not None
    assert acting.stdout.readline() == b"open\n"
    with lab.controller_hung():
        acting.stdin.write(b"go\n")
        acting.stdin.flush()
        wait_until(
            "the journal's first line", lambda: file.exists() and file.read_bytes().endswith(b"\n")
        )
        running = over_ssh("journal").text
        acting.kill()
        acting.communicate()
    assert re.search(rf"cancel +{job} +running\n", running)
    assert re.search(rf"cancel +{job} +outcome unknown\n", over_ssh("journal").text)
    lab.admin("scancel", job)
