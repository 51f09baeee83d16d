"""A real Slurm asked by Torque's commands (Debian's slurm-wlm-torque): all is read and done as
Slurm itself says.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.base import Capability
from hpcdash.backends.pbs.backend import BACKEND as PBS
from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.backends.submissions import Submission
from hpcdash.domain.tables import Kind
from hpcdash.errors import ControllerDown, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.state.journal import Journal
from tests.e2e.conftest import clear
from tests.e2e.live_store import store_on
from tests.support.program import Program, find_row
from tests.support.slurm import SlurmLab, hostile_jobs, why_no_wrappers

Row = Mapping[str, object]
Fate = dict[str, tuple[bool | None, str]]
UNKNOWN = "99999999"
FORGED_STATE = b"forge\n\tjob_state = C\n\tJob_Owner = root@x\n\texec_host = n1/8"
# A name that ends its own record and begins another.
FORGED_JOB = (
    b"fr\n\tJob_Owner = bob@n1\n\tjob_state = R\n\tqueue = main\n\tqtime = Sat Nov 21 12:42:34 "
    b"2026\n\tPriority = 7\n"
    b"\teuser = bob(1002)\n\tegroup = bob(1002)\n\tResource_List.walltime = "
    b"00:01:00\n\tResource_List.nodect = 1\n"
    b"\tResource_List.ncpus = 1\n\nJob Id:\t777777\n\tJob_Name = whole"
)
SCRIPT = """#!/bin/sh
#PBS -l walltime=00:07:00
echo "$# arguments: $1, $2"
sleep 600
"""


@pytest.fixture(scope="module")
def lab(slurm_lab: SlurmLab) -> Iterator[SlurmLab]:
    """The lab with no job in it, on a machine that has the wrappers."""
    if reason := why_no_wrappers():
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    clear(slurm_lab)
    yield slurm_lab
    clear(slurm_lab)


@pytest.fixture
async def store(lab: SlurmLab) -> AsyncIterator[ClusterStore]:
    """What alice sees by Torque's commands."""
    async with store_on(lab, "alice", backends=(PBS,)) as store:
        await store.open()
        yield store


@pytest.fixture
def wrapped(lab: SlurmLab, over_ssh: Program) -> Program:
    """hpcdash of alice's, told to use PBS's commands."""
    return Program(over_ssh.home, (*over_ssh.before, "--backend", "pbs"), over_ssh.variables)


async def rows(store: ClusterStore, kind: Kind = Kind.EVERYONE) -> dict[str, Row]:
    """The rows of a fresh table, by id or name."""
    snapshot = await store.fetch(kind)
    assert snapshot.rejected == ()
    key = "id" if "id" in snapshot.table.schema.names else "name"
    return {str(row[key]): row for row in snapshot.table.to_pylist()}


def truth(lab: SlurmLab, fields: str, *words: str) -> dict[str, list[str]]:
    """What squeue says of each job, by its number."""
    told = lab.admin(
        "squeue", "-a", "-h", "-o", f"%A|{fields}".replace(" ", "|"), *words
    ).stdout.decode()
    return {line.split("|")[0]: line.split("|")[1:] for line in told.splitlines()}


def moment(text: str) -> datetime | None:
    """A time of Slurm's; the lab's clock is this machine's."""
    return None if text in ("N/A", "") else datetime.fromisoformat(text).astimezone(UTC)


def seconds(text: str) -> int | None:
    if text == "UNLIMITED":
        return None
    days, _, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    hours, minutes, rest = [0] * (3 - len(parts)) + parts
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + rest


async def does(store: ClusterStore, folder: Path, verb: str, *job_ids: str, **changes: str) -> Fate:
    actions = Actions(store, Journal(folder / "journal.jsonl"))
    report = await actions.run(actions.plan(ActionRequest(Verb(verb), job_ids, changes=changes)))
    return {outcome.job_id: (outcome.done, outcome.words) for outcome in report.outcomes}


# -- who is there


async def test_the_wrappers_are_found_and_offer_only_what_they_have(
    lab: SlurmLab, store: ClusterStore
) -> None:
    assert store.probe is not None
    assert (store.probe.dialect, store.probe.user, store.probe.controller_answers) == (
        "slurm-wrappers",
        lab.alice,
        True,
    )
    assert store.probe.commands["qstat"] == "/usr/bin/qstat"
    missing = {Capability.HISTORY, Capability.SIGNAL, Capability.SUSPEND, Capability.KEEPS_SCRIPTS}
    assert not missing & store.backend.capabilities
    assert {Capability.CANCEL, Capability.HOLD, Capability.SUBMIT} <= store.backend.capabilities
    assert store.backend.actions.alterable == ()


async def test_slurm_itself_is_found_first_where_nobody_said_which(lab: SlurmLab) -> None:
    async with store_on(lab, "alice", backends=(SLURM, PBS)) as store:
        await store.open()
        assert store.backend.name == "slurm"


def test_this_machine_s_scheduler_is_slurm_though_it_has_a_qstat(
    lab: SlurmLab, locally: Program
) -> None:
    bare = Program(locally.home, (), locally.variables)
    assert bare("jobs", "--all", "--format", "json").json["backend"] == "slurm"
    listed = bare("clusters", "--format", "json").json["clusters"]
    assert "pbs" not in [cluster["backend"] for cluster in listed]


# -- what is read


async def test_jobs_are_read_as_squeue_tells_them(lab: SlurmLab, store: ClusterStore) -> None:
    held = lab.submit("alice", "-H", "-J", "held one", "-t", "1-02:03:00")
    later = lab.submit("bob", "--begin=now+3600", "-J", "later", "-n3")
    endless = lab.submit("alice", "-H", "-p", "long", "-t", "UNLIMITED")
    sweep = lab.submit("alice", "-H", "--array=0-9%3", "-J", "sweep")
    running = lab.submit("alice", "-N2", "-n3", "-J", "two nodes")
    lab.wait_state(running, "RUNNING")
    found = {
        job_id: row for job_id, row in (await rows(store)).items() if row["native_state"] != "C"
    }
    told = truth(lab, "%u %P %V %S %l %C %D %a %j")
    assert set(found) == set(told) == {held, later, endless, sweep, running}
    for job_id, (user, queue, submitted, _, limit, cpus, count, account, name) in told.items():
        row = found[job_id]
        assert (row["user"], row["queue"], row["account"], row["name"]) == (
            user,
            queue,
            account,
            name,
        )
        assert (row["cpus"], row["nodes"], row["limit_seconds"]) == (
            int(cpus),
            int(count),
            seconds(limit),
        )
        assert row["submitted_at"] == moment(submitted)
    assert {job_id: row["state"] for job_id, row in found.items()} == {
        held: "held",
        later: "pending",
        endless: "held",
        sweep: "held",
        running: "running",
    }
    (start,) = truth(lab, "%S", "-j", running)[running]
    assert found[running]["started_at"] == moment(start)
    assert [found[job_id]["started_at"] for job_id in (held, later)] == [None, None]
    assert [found[job_id]["node_list"] for job_id in (held, later)] == [None, None]
    assert str(found[running]["node_list"]).startswith("n")
    assert found[running]["elapsed_seconds"] in range(60)


async def test_one_s_own_jobs_leave_out_those_of_others_and_those_that_ended(
    lab: SlurmLab, store: ClusterStore
) -> None:
    mine, other = lab.submit("alice", "-H"), lab.submit("bob", "-H")
    ended = lab.submit("alice", script="#!/bin/sh\n")
    lab.wait_state(ended, "COMPLETED")
    found = await rows(store, Kind.MINE)
    assert mine in found
    assert other not in found
    assert found.get(ended, {"state": "gone"})["state"] not in (
        "running",
        "pending",
        "failed",
        "cancelled",
    )


async def test_a_suspended_job_whose_priority_is_naught_is_not_held(
    lab: SlurmLab, store: ClusterStore
) -> None:
    job_id = lab.submit("alice")
    lab.wait_state(job_id, "RUNNING")
    lab.admin("scontrol", "suspend", job_id)
    lab.wait_state(job_id, "SUSPENDED")
    assert (await rows(store))[job_id]["state"] == "suspended"
    lab.admin("scontrol", "resume", job_id)


async def test_no_job_is_no_error(lab: SlurmLab, store: ClusterStore) -> None:
    clear(lab)
    assert all(
        row["state"] not in ("running", "pending", "held") for row in (await rows(store)).values()
    )


async def test_nodes_are_read_as_sinfo_tells_them(lab: SlurmLab, store: ClusterStore) -> None:
    lab.admin("scontrol", "update", "nodename=g2", "state=drain", "reason=Xid 79, bus = lost")
    try:
        found = await rows(store, Kind.NODES)
    finally:
        lab.admin("scontrol", "update", "nodename=g2", "state=resume")
    told = lab.admin("sinfo", "-h", "-N", "-o", "%N %c %m").stdout.decode().split("\n")
    expected = dict.fromkeys(line for line in told if line)
    assert set(found) == {line.split()[0] for line in expected}
    for line in expected:
        name, cpus, memory_mebibytes = line.split()
        assert (found[name]["cpus"], found[name]["memory_bytes"]) == (
            int(cpus),
            int(memory_mebibytes) << 20,
        )
    assert {name: found[name]["state"] for name in ("g2", "x1")} == {"g2": "drained", "x1": "down"}
    assert found["g2"]["reason"] == "Xid 79, bus = lost"
    assert (found["g1"]["gpus"], found["g1"]["gpu_type"], found["n1"]["gpus"]) == (4, "a100", 0)
    assert found["n1"]["features"] == ["cpu", "skylake"]


async def test_queues_are_slurm_s_partitions(lab: SlurmLab, store: ClusterStore) -> None:
    found = await rows(store, Kind.QUEUES)
    told = {
        line.split()[0].rstrip("*"): int(line.split()[1])
        for line in lab.admin("sinfo", "-a", "-h", "-o", "%P %D").stdout.decode().splitlines()
    }
    assert {name: row["nodes"] for name, row in found.items()} == told
    limits = dict(
        line.split()
        for line in lab.admin("sinfo", "-a", "-h", "-o", "%R %l").stdout.decode().splitlines()
    )
    assert {name: row["limit_seconds"] for name, row in found.items()} == {
        name: None if limit == "infinite" else seconds(limit) for name, limit in limits.items()
    }


async def test_names_meant_to_forge_rows_are_names(lab: SlurmLab, store: ClusterStore) -> None:
    clear(lab)
    jobs = hostile_jobs(lab)
    try:
        jobs[FORGED_STATE] = lab.submit("alice", "-H", b"--job-name=" + FORGED_STATE)
        snapshot = await store.fetch(Kind.EVERYONE)
    finally:
        clear(lab, "n3")
    found = {str(row["id"]): row for row in snapshot.table.to_pylist()}
    mine = {job_id: found[job_id] for job_id in jobs.values()}
    assert {row["state"] for row in mine.values()} == {"held"}
    assert {(row["user"], row["queue"], row["node_list"]) for row in mine.values()} == {
        (lab.alice, "main", None)
    }
    # Slurm itself drops blanks at the ends of a name.
    for name, job_id in jobs.items():
        assert (
            str(mine[job_id]["name"]).strip()[:20] == name.decode("utf-8", "replace").strip()[:20]
            or not name.strip()
        )
    assert not lab.tripwire.exists()


async def test_a_name_that_holds_a_whole_record_makes_no_job(
    lab: SlurmLab, store: ClusterStore
) -> None:
    clear(lab)
    job_id = lab.submit("alice", "-H", b"--job-name=" + FORGED_JOB)
    after = lab.submit("alice", "-H", "-J", "after it")
    found = {str(row["id"]): row for row in (await store.fetch(Kind.EVERYONE)).table.to_pylist()}
    assert "777777" not in found
    assert (found[after]["name"], found[after]["state"]) == ("after it", "held")
    assert (found[job_id]["user"], found[job_id]["state"]) == (lab.alice, "held")


def test_a_controller_that_is_down_is_said_so_with_what_to_do(
    small_lab: SlurmLab, tmp_path: Path
) -> None:
    if reason := why_no_wrappers():
        pytest.skip(reason)

    async def ask() -> None:
        async with store_on(small_lab, "alice", backends=(PBS,)) as store:
            await store.open()
            small_lab.stop_controller()
            with pytest.raises(ControllerDown, match="slurmctld"):
                await store.fetch(Kind.EVERYONE)

    try:
        asyncio.run(ask())
    finally:
        small_lab.start_controller()


# -- what is done


async def test_jobs_are_held_released_and_cancelled(
    lab: SlurmLab, store: ClusterStore, tmp_path: Path
) -> None:
    job_id, other = lab.submit("alice", "--begin=now+3600"), lab.submit("bob", "-H")
    assert await does(store, tmp_path, "hold", job_id) == {job_id: (True, "")}
    assert truth(lab, "%r", "-j", job_id)[job_id] == ["JobHeldUser"]
    assert (await rows(store))[job_id]["state"] == "held"
    assert await does(store, tmp_path, "release", job_id) == {job_id: (True, "")}
    assert truth(lab, "%r", "-j", job_id)[job_id] != ["JobHeldUser"]
    fate = await does(store, tmp_path, "cancel", job_id, other, UNKNOWN)
    assert {known: done for known, (done, _) in fate.items()} == {
        job_id: True,
        other: False,
        UNKNOWN: False,
    }
    assert "denied" in fate[other][1]
    assert fate[UNKNOWN][1]
    lab.wait_state(job_id, "CANCELLED")
    assert lab.job_states(other) == {"PENDING"}


async def test_what_is_refused_is_refused_in_slurm_s_words(
    lab: SlurmLab, store: ClusterStore, tmp_path: Path
) -> None:
    other = lab.submit("bob", "-H")
    for verb in ("hold", "release"):
        fate = await does(store, tmp_path, verb, other, UNKNOWN)
        assert {known: done for known, (done, _) in fate.items()} == {other: False, UNKNOWN: False}
        assert "Invalid user id" in fate[other][1]
        assert "Invalid job id" in fate[UNKNOWN][1]


async def test_a_requeue_tells_that_the_wrapper_cannot_or_is_done(
    lab: SlurmLab, store: ClusterStore, tmp_path: Path
) -> None:
    job_id = lab.submit("alice")
    lab.wait_state(job_id, "RUNNING")
    done, words = (await does(store, tmp_path, "requeue", job_id))[job_id]
    # The qrerun of 22.05 calls Slurm's own function in a way that it does not have any more.
    assert done or words
    assert done == (lab.job_states(job_id) != {"RUNNING"})
    if not done:
        assert "Perl" not in words


@pytest.mark.parametrize(
    ("verb", "changes"),
    [
        ("suspend", {}),
        ("resume", {}),
        ("signal", {}),
        ("alter", {"time": "2h"}),
        ("alter", {"queue": "long"}),
    ],
)
async def test_what_the_wrappers_have_not_is_refused_before_anything_runs(
    lab: SlurmLab, store: ClusterStore, tmp_path: Path, verb: str, changes: dict[str, str]
) -> None:
    job_id = lab.submit("alice", "-H")
    with pytest.raises(UsageError) as refusal:
        await does(store, tmp_path, verb, job_id, **changes)
    assert "slurm" in (refusal.value.next_step + refusal.value.message).lower()


@pytest.mark.parametrize("pattern", ["{}[1]", "{}_1", "{}_[1-2]"])
async def test_a_task_is_never_taken_for_its_array(
    lab: SlurmLab, store: ClusterStore, tmp_path: Path, pattern: str
) -> None:
    array = lab.submit("alice", "-H", "--array=1-3")
    with pytest.raises(UsageError):
        await does(store, tmp_path, "cancel", pattern.format(array))
    assert lab.job_states(array) == {"PENDING"}


def test_a_script_is_submitted_queued_and_run(lab: SlurmLab, wrapped: Program) -> None:
    script = wrapped.home / "train it.sh"
    script.write_text(SCRIPT)
    told = wrapped(
        "submit", str(script), "--yes", "--", "-l", "nodes=1:ppn=2", "-q", "main", "-N", "named"
    )
    assert told.status == 0, told
    job_id = told.text.strip()
    user, queue, limit, cpus, name = truth(lab, "%u %P %l %C %j", "-j", job_id)[job_id]
    assert (user, queue, limit, cpus, name) == (lab.alice, "main", "7:00", "2", "named")
    assert find_row(wrapped.rows("jobs"), job_id)["state"] in ("pending", "running")
    lab.wait_state(job_id, "RUNNING")
    row = find_row(wrapped.rows("jobs"), job_id)
    assert (row["state"], row["limit_seconds"], row["name"]) == ("running", 420, "named")
    shown = wrapped("show", job_id, "--format", "json").json["job"]
    assert shown["native"]["job_state"] == "R"
    cancelled = wrapped("cancel", job_id, "--yes")
    assert cancelled.status == 0, cancelled
    lab.wait_state(job_id, "CANCELLED")


def test_a_submission_with_tasks_a_hold_and_a_job_to_wait_for(
    lab: SlurmLab, wrapped: Program
) -> None:
    first = lab.submit("alice", "-H")
    script = wrapped.home / "sweep.sh"
    script.write_text(SCRIPT)
    told = wrapped("submit", str(script), "--array", "1-4%2", "--after", first, "--hold", "--yes")
    assert told.status == 0, told
    array = told.text.strip()
    tasks, dependency, reason = truth(lab, "%K %E %r", "-j", array)[array]
    assert (tasks, dependency.partition("(")[0], reason) == (
        "1-4%2",
        f"afterany:{first}",
        "JobHeldUser",
    )


# The wrapper has a shell run its words.
@pytest.mark.parametrize(
    "words",
    [
        ("-N", "$(touch {tripwire})x"),
        ("-N", "a;touch {tripwire}"),
        ("-q", "main;touch {tripwire}"),
        ("-v", "A=`touch {tripwire}`"),
        ("-v", "A='$(touch {tripwire})'"),
        ("-o", "out > {tripwire}"),
        ("-W", "group_list=x';touch {tripwire};'"),
        ("-l", "walltime=10:00,proc=x';touch {tripwire};'"),
        ("-N$(touch {tripwire})x",),
        (),
    ],
)
def test_no_word_of_a_submission_is_run_by_the_wrapper_s_shell(
    lab: SlurmLab, words: tuple[str, ...]
) -> None:
    given = tuple(word.replace("{tripwire}", str(lab.tripwire)) for word in words)
    try:
        wanted = Submission(
            b"#!/bin/sh\n",
            "plain.sh",
            options=given,
            arguments=(f"$(touch {lab.tripwire})",),
            held=True,
        )
        command = pbs_backend(Dialect.SLURM_WRAPPERS).submit.submission(wanted).command
    except UsageError:
        # What cannot be kept from the shell is not handed to it.
        return
    lab.as_user("alice", *command.argv, stdin=command.stdin, check=False)
    was_run = lab.tripwire.exists()
    lab.tripwire.unlink(missing_ok=True)
    assert not was_run


def test_a_refused_submission_has_sbatch_s_own_words(lab: SlurmLab, wrapped: Program) -> None:
    script = wrapped.home / "plain.sh"
    script.write_text("#!/bin/sh\n")
    refusal = wrapped("submit", str(script), "--yes", "--", "-q", "nosuch")
    assert refusal.status == 1, refusal
    assert "invalid partition" in refusal.stderr.lower()
    assert "The command was" not in refusal.stderr
