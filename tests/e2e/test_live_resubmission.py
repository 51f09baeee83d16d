"""On the real Slurm: what failed of an array is submitted again as it was, and trains are read and
appended to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdash.backends.actions import ActionCommand
from hpcdash.backends.queries import Answer
from hpcdash.backends.submissions import NewLimits
from hpcdash.domain.triage import TaskGroup
from hpcdash.errors import CommandTimedOut
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.jobs.triage import Triage, TriageReader
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit.recovery import reconcile
from hpcdash.services.submit.resubmission import plan_again, resubmissions
from hpcdash.services.submit.submission import SubmissionPlan
from tests.e2e.live_store import store_on
from tests.support.program import Program, program_over_ssh
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slurm_releases]

# Task 3 ends with a traceback on stderr, 7 is killed from within, 9 misses a command; the others
# end well.
SCRIPT = """#!/bin/bash
#SBATCH --time=20
#SBATCH --comment=of-the-script
echo "task $SLURM_ARRAY_TASK_ID with $# arguments: $1"
case $SLURM_ARRAY_TASK_ID in
3) printf '%s\\n' 'Traceback (most recent call last):' '  File "train.py", line 12, in <module>' \\
    'RuntimeError: CUDA out of memory. Tried to allocate 2.50 GiB' >&2; exit 1;;
7) sh -c 'kill -KILL $$'; exit;;
9) no-such-program --epochs 3;;
esac
"""
OPTIONS = (
    "-J",
    "sweep one",
    "-a",
    "0-9%4",
    "-o",
    "logs/%x-%a.out",
    "-e",
    "logs/%x-%a.err",
    "--mem=50M",
    "-n2",
)


@dataclass(frozen=True, slots=True)
class Sweep:
    """An array of alice's whose tasks 3, 7 and 9 failed, and the folder it ran in."""

    lab: SlurmLab
    array_id: str
    folder: Path


@pytest.fixture(scope="module")
def sweep(slurm_lab: SlurmLab) -> Sweep:
    folder = slurm_lab.work_dir("alice") / "triage of a sweep"
    slurm_lab.as_user("alice", "rm", "-rf", folder)
    slurm_lab.as_user("alice", "mkdir", "-p", folder / "logs")
    slurm_lab.as_user(
        "alice", "sh", "-c", 'cat > "$1"', "sh", folder / "train.sh", stdin=SCRIPT.encode()
    )
    words = ("sbatch", "--parsable", "-D", folder, *OPTIONS, folder / "train.sh", "--lr=0.1")
    array_id = slurm_lab.as_user("alice", *words).stdout.decode().strip()
    slurm_lab.wait_state(array_id, "COMPLETED", "FAILED")

    def known() -> bool:
        listed = slurm_lab.admin(
            "sacct", "-anX", "-P", "-o", "jobid,end", "-j", array_id
        ).stdout.decode()
        return sum(not line.endswith("|Unknown") for line in listed.splitlines()) == 10

    wait_until("accounting to have the array's end", known)
    return Sweep(slurm_lab, array_id, folder)


async def triage_of(store: ClusterStore, array_id: str) -> Triage:
    await store.open()
    return await TriageReader(store, array_id).read()


def shown(group: TaskGroup) -> tuple[str, str, int | None, str | None]:
    return str(group.tasks), group.state, group.exit_code, group.line


def told(lab: SlurmLab, job_id: str) -> Mapping[str, str]:
    """What squeue tells of a job that waits or ended."""
    fields = (
        "name",
        "arraytaskid",
        "partition",
        "account",
        "qos",
        "timelimit",
        "comment",
        "workdir",
        "numcpus",
    )
    option = ",".join(f"{field}:\x1f" for field in fields)
    text = lab.admin("squeue", "-h", "-t", "all", "-j", job_id, "-O", option).stdout.decode()
    return dict(zip(fields, text.split("\x1f"), strict=False))


def test_failures_of_an_array_are_told_apart_by_how_they_ended(sweep: Sweep) -> None:
    async def look() -> Triage:
        async with store_on(sweep.lab, "alice") as store:
            return await triage_of(store, f"{sweep.array_id}_3")

    triage = asyncio.run(look())
    assert triage.notes == ()
    failures = [shown(group) for group in triage.groups if group.failed]
    assert failures[0] == (
        "3",
        "failed",
        1,
        "RuntimeError: CUDA out of memory. Tried to allocate 2.50 GiB",
    )
    assert failures[1][:3] == ("7", "failed", 137)
    assert failures[2][:3] == ("9", "failed", 127)
    assert "no-such-program: command not found" in str(failures[2][3])
    assert [(str(group.tasks), group.state) for group in triage.groups[3:]] == [
        ("0-2,4-6,8", "completed")
    ]


async def submit(store: ClusterStore, again: SubmissionPlan, journal: Path) -> str:
    report = await Actions(store, Journal(journal)).run(again.plan)
    [outcome] = report.outcomes
    assert outcome.done, outcome
    return outcome.text.removeprefix("job ")


@pytest.mark.journey
def test_exactly_the_failed_tasks_are_submitted_again_as_they_were(
    sweep: Sweep, tmp_path: Path
) -> None:
    async def again() -> tuple[SubmissionPlan, str]:
        async with store_on(sweep.lab, "alice") as store:
            triage = await triage_of(store, sweep.array_id)
            prepared = await plan_again(store, resubmissions(triage.failed_rows))
            return prepared, await submit(store, prepared, tmp_path / "journal.jsonl")

    prepared, new_id = asyncio.run(again())
    assert prepared.plan.request.job_ids == (f"{sweep.array_id}_[3,7,9]",)
    sweep.lab.wait_state(new_id, "FAILED")
    before, after = told(sweep.lab, f"{sweep.array_id}_3"), told(sweep.lab, f"{new_id}_3")
    assert after == before
    assert after["comment"] == "of-the-script"
    tasks = (
        sweep.lab.admin("squeue", "-h", "-r", "-t", "all", "-j", new_id, "-o", "%K")
        .stdout.decode()
        .split()
    )
    assert sorted(tasks) == ["3", "7", "9"]
    script = sweep.lab.as_user(
        "alice", "scontrol", "write", "batch_script", new_id, "-"
    ).stdout.decode()
    assert script.rstrip("\n") == SCRIPT.rstrip("\n")
    assert (
        sweep.folder / "logs" / "sweep one-7.out"
    ).read_text() == "task 7 with 1 arguments: --lr=0.1\n"


def test_a_wrapped_job_with_no_comment_is_submitted_again_under_a_mark(
    slurm_lab: SlurmLab, tmp_path: Path
) -> None:
    old_id = slurm_lab.submit(
        "alice", "-J", "wrapped", "--wrap", "echo it is; exit 3", "-d", "singleton"
    )
    slurm_lab.wait_state(old_id, "FAILED")

    async def again() -> tuple[SubmissionPlan, str]:
        async with store_on(slurm_lab, "alice") as store:
            await store.open()
            detail = await store.fetch_detail(old_id)
            prepared = await plan_again(store, resubmissions(detail.job.to_pylist()))
            return prepared, await submit(store, prepared, tmp_path / "journal.jsonl")

    prepared, new_id = asyncio.run(again())
    [search] = prepared.searches.values()
    assert search.mark.startswith("hpcdash:")
    assert told(slurm_lab, new_id)["comment"] == search.mark
    sent = [part for command in prepared.plan.commands for part in command.argv]
    assert not [part for part in sent if part.startswith("--dependency")]
    slurm_lab.wait_state(new_id, "FAILED")


@pytest.mark.parametrize("is_sent", [True, False])
def test_after_a_lost_answer_the_new_job_is_looked_for_and_not_sent_again(
    slurm_lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    monkeypatch.setattr("hpcdash.services.submit.recovery._RETRY_SECONDS", 0.2)
    monkeypatch.setattr("hpcdash.services.submit.resubmission._HISTORY_LAG_SECONDS", 0.0)
    old_id = slurm_lab.submit("alice", "-J", f"lost {is_sent}", "--hold")

    async def again() -> tuple[bool | None, str]:
        async with store_on(slurm_lab, "alice") as store:
            await store.open()
            detail = await store.fetch_detail(old_id)
            prepared = await plan_again(store, resubmissions(detail.job.to_pylist()))
            send = store.act

            async def lose(command: ActionCommand) -> Answer:
                if is_sent:
                    await send(command)
                raise CommandTimedOut("no answer", argv=command.argv)

            monkeypatch.setattr(store, "act", lose)
            report = await Actions(store, Journal(tmp_path / "journal.jsonl")).run(prepared.plan)
            assert report.outcomes[0].done is None
            [outcome] = await reconcile(store, prepared, report)
            return outcome.done, outcome.text

    done, words = asyncio.run(again())
    listed = (
        slurm_lab.admin("squeue", "-h", "-n", f"lost {is_sent}", "-o", "%A").stdout.decode().split()
    )
    new_ids = [job_id for job_id in listed if job_id != old_id]
    assert len(new_ids) == is_sent
    assert (done, words) == ((True, f"job {new_ids[0]}") if is_sent else (False, words))
    slurm_lab.admin("scancel", *listed)


def test_a_job_is_submitted_again_with_more_time_and_memory(
    slurm_lab: SlurmLab, tmp_path: Path
) -> None:
    """Slurm takes no --mem beside the --mem-per-cpu of a script."""
    script = b"#!/bin/sh\n#SBATCH --time=5\n#SBATCH --mem-per-cpu=50M\nsleep 60\n"
    words = ("sbatch", "--parsable", "--hold", "-J", "starved", "-n2")
    old_id = slurm_lab.as_user("alice", *words, stdin=script).stdout.decode().strip()

    async def again() -> str:
        async with store_on(slurm_lab, "alice") as store:
            await store.open()
            detail = await store.fetch_detail(old_id)
            limits = NewLimits(time_seconds=5400, memory_bytes=400 << 20)
            prepared = await plan_again(store, resubmissions(detail.job.to_pylist()), limits)
            return await submit(store, prepared, tmp_path / "journal.jsonl")

    new_id = asyncio.run(again())
    shown = slurm_lab.admin("scontrol", "show", "job", new_id).stdout.decode()
    slurm_lab.admin("scancel", old_id, new_id)
    assert "TimeLimit=01:30:00" in shown
    assert "MinMemoryCPU=200M" in shown


def test_without_accounting_a_job_is_rebuilt_from_what_the_controller_says(
    small_lab: SlurmLab, tmp_path: Path
) -> None:
    folder = small_lab.work_dir("alice")
    small_lab.as_user(
        "alice", "sh", "-c", 'cat > "$1"', "sh", folder / "kept.sh", stdin=b"#!/bin/sh\nsleep 60\n"
    )
    words = (
        "sbatch",
        "--parsable",
        "--hold",
        "-n2",
        "--mem=50M",
        "-t",
        "7",
        "-o",
        "%j-kept.out",
        "kept.sh",
        "--lr=1",
    )
    old_id = small_lab.as_user("alice", *words).stdout.decode().strip()

    async def again() -> tuple[SubmissionPlan, str]:
        async with store_on(small_lab, "alice") as store:
            await store.open()
            detail = await store.fetch_detail(old_id)
            prepared = await plan_again(store, resubmissions(detail.job.to_pylist()))
            return prepared, await submit(store, prepared, tmp_path / "journal.jsonl")

    prepared, new_id = asyncio.run(again())
    # Slurm 22.05 shows the script's arguments, 24.11 neither these nor the command line, 26.05 all
    # of it.
    record = small_lab.admin("scontrol", "show", "job", old_id).stdout.decode()
    notes = " ".join(prepared.notes)
    assert ("is unknown: options are rebuilt" in notes) == ("SubmitLine=" not in record)
    assert ("the script's arguments are unknown" in notes) == ("--lr=1" not in record)
    before, after = told(small_lab, old_id), told(small_lab, new_id)
    assert {**after, "comment": before["comment"]} == before
    shown = small_lab.admin("scontrol", "show", "job", new_id).stdout.decode()
    assert f"StdOut={folder}/{new_id}-kept.out" in shown
    assert ("/dev/stdin" in shown) == ("--lr=1" in shown) == ("--lr=1" in record)
    small_lab.admin("scancel", old_id, new_id)


SLEEPS = "#!/bin/sh\n#SBATCH --time=5\nsleep 60\n"


@pytest.fixture
def program(slurm_lab: SlurmLab, tmp_path: Path) -> Program:
    return program_over_ssh(slurm_lab, tmp_path / "home")


@pytest.fixture
def train(slurm_lab: SlurmLab, program: Program) -> Iterator[tuple[str, str]]:
    """An array of which one task runs, and a job after it; both are gone afterwards."""
    script = program.home / "train.sh"
    script.write_text(SLEEPS)
    array = program("submit", str(script), "--array", "1-4%1").text.strip()
    last = program("submit", str(script), "--after", array).text.strip()
    wait_until("a task to run", lambda: b"R" in states(slurm_lab, f"{array}_1"))
    yield array, last
    slurm_lab.admin("scancel", "--quiet", last, array, check=False)


def states(lab: SlurmLab, *job_ids: str) -> bytes:
    """What squeue says of some jobs: id, state, reason."""
    return lab.admin("squeue", "-h", "-o", "%i %t %r", "-j", ",".join(job_ids), check=False).stdout


def test_a_train_is_told_from_any_of_its_jobs(
    slurm_lab: SlurmLab, program: Program, train: tuple[str, str]
) -> None:
    array, last = train
    raw = slurm_lab.admin("squeue", "-h", "-o", "%A", "-j", f"{array}_1").stdout.decode().strip()
    assert raw not in (array, last)
    for job in (array, last, f"{array}_1", raw):
        answer = program("chain", job, "--format", "json").json
        assert answer["counts"] == {"running": 1, "waiting": 4}
        assert answer["order"] == [
            {"job_id": array, "after": [], "by_name": False},
            {"job_id": last, "after": [array], "by_name": False},
        ]
        assert [row["id"] for row in answer["jobs"]] == [f"{array}_1", f"{array}_[2-4%1]", last]
        assert answer["ends_by"] is not None


def test_a_train_is_shown_in_a_line_and_a_table(program: Program, train: tuple[str, str]) -> None:
    array, last = train
    lines = program("chain", last).text.splitlines()
    assert lines[0].endswith("  1 running, 4 waiting")
    assert lines[1].startswith("ends by ")
    assert lines[1].endswith(" if each job runs to its time limit")
    assert [line.split()[0] for line in lines[3:]] == [f"{array}_1", f"{array}_[2-4%1]", last]
    assert lines[-1].split()[-2:] == ["after", array]


def test_all_that_waits_is_held_and_released_and_what_runs_stays(
    slurm_lab: SlurmLab, program: Program, train: tuple[str, str]
) -> None:
    array, last = train
    held = program("hold", "--chain", last)
    assert held.status == 0, held
    told = states(slurm_lab, array, last).decode()
    assert sorted(told.splitlines()) == sorted(
        [f"{array}_1 R None", f"{array}_[2-4%1] PD JobHeldUser", f"{last} PD JobHeldUser"]
    )
    assert "nothing to hold in the chain" in program("hold", "--chain", array).refused(2)
    assert program("release", "--chain", array).status == 0
    assert b"JobHeldUser" not in states(slurm_lab, array, last)


def test_a_train_is_cancelled_whole_once_it_is_agreed(
    slurm_lab: SlurmLab, program: Program, train: tuple[str, str]
) -> None:
    _, last = train
    assert "needs confirmation, but there is no terminal" in program(
        "cancel", "--chain", last
    ).refused(2)
    assert program("cancel", "--chain", last, "--yes").status == 0
    wait_until(
        "its end",
        lambda: program("chain", last, "--format", "json").json["counts"].keys() <= {"cancelled"},
    )


def test_a_job_that_nobody_knows_has_no_train(program: Program, slurm_lab: SlurmLab) -> None:
    assert "job 99999999 was not found" in program("chain", "99999999").refused(1)


def test_a_stub_reads_its_script_and_refuses_what_is_none(program: Program) -> None:
    script = program.home / "real.sh"
    script.write_text(SLEEPS)
    stub = program("stub", str(script)).text
    assert stub.startswith("#!/bin/sh\n#SBATCH --time=5\n")
    assert f". {script}\n" in stub
    assert ". /project/next.sh\n" in program("stub", str(script), "--at", "/project/next.sh").text
    script.write_text("echo no\n")
    program("stub", str(script)).refused(2)
