"""What the store tells of real jobs as they start and end, and how it comes back from everything
that breaks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hpcdash.domain.tables import Kind
from hpcdash.errors import ConnectionFailed, ControllerDown, HostKeyChanged, RateLimited
from hpcdash.services.cluster.store import ClusterStore
from tests.e2e.conftest import LeftRunning
from tests.e2e.live_store import happened, polled, states, store_on, until
from tests.support.person import Person
from tests.support.slurm import SlurmLab
from tests.support.sshd import Sshd, until_gone

QUICK_SCRIPT = "#!/bin/sh\nwhile [ ! -e {flag} ]; do sleep 0.1; done\nexit {status}\n"


@pytest.fixture
async def store(clean_slurm: SlurmLab) -> AsyncIterator[ClusterStore]:
    async with store_on(clean_slurm, "alice") as one:
        yield one


def flag(lab: SlurmLab, name: str) -> Path:
    """A file a job waits for; it is not there yet."""
    path = lab.run_dir / "jobs" / name
    path.unlink(missing_ok=True)
    return path


async def in_thread(lab_call: object, *words: str) -> None:
    """A command of the lab beside the running store."""
    await asyncio.to_thread(lab_call, *words)  # type: ignore[arg-type]


async def until_state(store: ClusterStore, job_id: str, state: str) -> None:
    await until(store, state, lambda: states(store).get(job_id) == state)


async def test_a_job_is_told_as_started_and_as_ended_with_how_it_ended(
    clean_slurm: SlurmLab, store: ClusterStore
) -> None:
    """Completed, failed and cancelled jobs leave the default list of squeue at once; the end is
    looked up first.
    """
    lab = clean_slurm
    ends = {"completed": 0, "failed": 3}
    flags = {word: flag(lab, word) for word in ends}
    jobs = {
        word: lab.submit(
            "alice",
            "--hold",
            "-J",
            word,
            script=QUICK_SCRIPT.format(flag=flags[word], status=status),
        )
        for word, status in ends.items()
    }
    jobs["cancelled"] = lab.submit("alice", "--hold", "-J", "cancelled")
    async with polled(store):
        await until(store, "held jobs", lambda: list(states(store).values()) == ["held"] * 3)
        await in_thread(lab.as_user, "alice", "scontrol", "release", ",".join(jobs.values()))
        await until(store, "running jobs", lambda: list(states(store).values()) == ["running"] * 3)
        assert all(len(happened(store, job_id)) == 1 for job_id in jobs.values())
        assert {happened(store, job_id)[0][1] for job_id in jobs.values()} == {"running"}
        for path in flags.values():
            path.touch()
        await in_thread(lab.as_user, "alice", "scancel", jobs["cancelled"])
        for word in ("completed", "failed", "cancelled"):
            await until_state(store, jobs[word], word)
            before, after = happened(store, jobs[word])[-1]
            assert before in ("running", "completing")
            assert after == word
            assert len(happened(store, jobs[word])) == 2
        table = store.table(Kind.MINE)
        assert table is not None
        codes = dict(zip(table["id"].to_pylist(), table["exit_code"].to_pylist(), strict=True))
        assert (codes[jobs["completed"]], codes[jobs["failed"]]) == (0, 3)
    assert store.errors == {}


async def test_a_job_that_ran_out_of_its_time_while_hpcdash_was_closed_is_told_at_the_next_start(
    left_running: LeftRunning,
) -> None:
    job_id = left_running.job_id
    await asyncio.to_thread(left_running.lab.wait_state, job_id, "TIMEOUT")
    async with store_on(left_running.lab, "alice", cache=left_running.cache) as store:
        store.load_cached()
        assert states(store) == {job_id: "running"}
        await store.open()
        await store.fetch(Kind.MINE)
        assert states(store) == {job_id: "timeout"}
        assert happened(store, job_id) == [("running", "timeout")]


async def test_the_tasks_of_an_array_are_told_one_by_one(
    clean_slurm: SlurmLab, store: ClusterStore
) -> None:
    """Task 1 ends while it is looked at; 2 ends, and 3 and 4 run out of the pending record, while
    nobody looks.
    """
    flags = {task: flag(clean_slurm, f"sweep.{task}") for task in (1, 2, 3, 4)}
    script = QUICK_SCRIPT.format(
        flag=str(flags[1]).replace(".1", ".$SLURM_ARRAY_TASK_ID"),
        status="$((SLURM_ARRAY_TASK_ID == 3))",
    )
    job_id = clean_slurm.submit("alice", "--hold", "-J", "sweep", "--array=1-4%1", script=script)
    one, two, three, four = (f"{job_id}_{task}" for task in (1, 2, 3, 4))
    await store.open()
    await store.fetch(Kind.MINE)
    assert states(store) == {f"{job_id}_[1-4%1]": "held"}
    clean_slurm.as_user("alice", "scontrol", "release", job_id)
    clean_slurm.wait_state(one, "RUNNING")
    await store.fetch(Kind.MINE)
    assert states(store) == {one: "running", f"{job_id}_[2-4%1]": "pending"}
    flags[1].touch()
    clean_slurm.wait_state(two, "RUNNING")
    await store.fetch(Kind.MINE)
    assert states(store) == {one: "completed", two: "running", f"{job_id}_[3-4%1]": "pending"}
    for path in flags.values():
        path.touch()
    clean_slurm.wait_state(job_id, "COMPLETED", "FAILED")
    await store.fetch(Kind.MINE)
    assert states(store) == {one: "completed", two: "completed", three: "failed", four: "completed"}
    told = {task: [after for _, after in happened(store, task)] for task in (one, two, three, four)}
    assert told == {
        one: ["running", "completed"],
        two: ["running", "completed"],
        three: ["failed"],
        four: ["completed"],
    }
    assert len(store.events) == 6


async def test_what_waits_of_an_array_and_is_cancelled_is_told_as_cancelled(
    clean_slurm: SlurmLab, store: ClusterStore
) -> None:
    job_id = clean_slurm.submit(
        "alice", "-J", "sweep", "--array=1-5%1", script=QUICK_SCRIPT.format(flag="no", status=0)
    )
    await store.open()
    clean_slurm.wait_state(f"{job_id}_1", "RUNNING")
    await store.fetch(Kind.MINE)
    assert states(store) == {f"{job_id}_1": "running", f"{job_id}_[2-5%1]": "pending"}
    clean_slurm.as_user("alice", "scancel", job_id)
    clean_slurm.wait_state(job_id, "CANCELLED")
    await store.fetch(Kind.MINE)
    assert set(states(store).values()) == {"cancelled"}
    assert {event.after for event in store.events} == {"cancelled"}
    ids = [event.job_id for event in store.events]
    assert len(ids) == len(set(ids))


async def test_a_job_that_nobody_remembers_is_gone_and_not_called_finished(
    small_lab: SlurmLab,
) -> None:
    """Without accounting, and with a controller that forgot the job while nobody looked, its exit
    is unknown.
    """
    job_id = small_lab.submit("alice", "--hold", "-J", "forgotten")
    async with store_on(small_lab, "alice") as store:
        await store.open()
        await store.fetch(Kind.MINE)
        assert states(store) == {job_id: "held"}
        await in_thread(small_lab.as_user, "alice", "scancel", job_id)
        # A restart without its kept state makes the controller forget at once what it would purge
        # within a minute.
        await asyncio.to_thread(forget_everything, small_lab)
        await store.fetch(Kind.MINE)
        assert states(store) == {job_id: "gone"}
        assert happened(store, job_id) == [("held", "gone")]
        table = store.table(Kind.MINE)
        assert table is not None
        (row,) = table.to_pylist()
        assert (row["exit_code"], row["exit_signal"], row["name"]) == (None, None, "forgotten")
        assert "exit unknown" in row["reason"]
        assert "this cluster keeps no job history" in row["reason"]


def forget_everything(lab: SlurmLab) -> None:
    lab.stop_controller()
    for kept in (lab.run_dir / "state").glob("job_state*"):
        kept.unlink()
    lab.start_controller()


async def test_the_store_comes_back_by_itself_after_the_controller_did(small_lab: SlurmLab) -> None:
    small_lab.reset()
    job_id = small_lab.submit("alice", "--hold")
    async with store_on(small_lab, "alice") as store, polled(store) as poller:
        await until(store, "the job", lambda: states(store) == {job_id: "held"})
        poller.poll_now()
        await asyncio.to_thread(small_lab.stop_controller)
        await until(
            store, "the error", lambda: isinstance(store.errors.get(Kind.MINE), ControllerDown)
        )
        # What was known stays, and nothing is told of jobs that nobody could be asked about.
        assert states(store) == {job_id: "held"}
        assert list(store.events) == []
        await asyncio.to_thread(small_lab.start_controller)
        await until(store, "an end of the error", lambda: Kind.MINE not in store.errors)
        assert states(store) == {job_id: "held"}
        assert list(store.events) == []
    small_lab.reset()


async def test_the_ceiling_on_commands_is_kept_whatever_is_asked(clean_slurm: SlurmLab) -> None:
    async with store_on(clean_slurm, "alice", commands_per_minute=5) as store:
        await store.open()
        for _ in range(4):
            await store.fetch(Kind.MINE)
        with pytest.raises(RateLimited):
            await store.fetch(Kind.MINE)
        assert store.budget.per_minute == 5
        assert store.snapshots[Kind.MINE].table.num_rows == 0
        async with polled(store) as poller:
            poller.show([Kind.NODES, Kind.EVERYONE])
            # Each kind was due and came to nothing.
            await until(
                store,
                "refusals",
                lambda: all(
                    poller.next_in_seconds(kind) > 0 for kind in (Kind.NODES, Kind.EVERYONE)
                ),
            )
        assert store.budget.per_minute == 5


@pytest.fixture
def own_sshd(clean_slurm: SlurmLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A second sshd in front of the lab, which a test may kill or give another key."""
    folder = clean_slurm.run_dir / "ssh" / "second"
    server = Sshd(folder)
    server.start(f"SetEnv SLURM_CONF={clean_slurm.conf}\n")
    try:
        yield server
    finally:
        server.stop()


def config_for(lab: SlurmLab, sshd: Sshd, folder: Path) -> Path:
    path = folder / "ssh_config"
    path.write_text(
        f"Host second\n HostName 127.0.0.1\n Port {sshd.port}\n User {lab.alice}\n IdentityFile "
        f"{sshd.key}\n"
        f" IdentitiesOnly yes\n UserKnownHostsFile {folder / 'known_hosts'}\n"
    )
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key_line}\n")
    return path


async def test_a_login_node_that_crashes_and_comes_back_is_found_again_and_keeps_nothing_of_ours(
    clean_slurm: SlurmLab, own_sshd: Sshd, tmp_path: Path
) -> None:
    job_id = clean_slurm.submit("alice", "--hold")
    async with store_on(
        clean_slurm, "alice", host="second", config=config_for(clean_slurm, own_sshd, tmp_path)
    ) as store:
        async with polled(store):
            await until(store, "the job", lambda: states(store) == {job_id: "held"})
            running = asyncio.create_task(
                store.transport.run(("sleep", "98765.71"), limit_seconds=60)
            )
            await store.fetch(Kind.MINE)
            own_sshd.kill_with_sessions()
            with pytest.raises(ConnectionFailed):
                await running
            assert await until_gone("98765.71") == []
            await until(store, "the error", lambda: bool(store.connection_error or store.errors))
            assert states(store) == {job_id: "held"}
            other = clean_slurm.submit("alice", "--hold")
            own_sshd.start(f"SetEnv SLURM_CONF={clean_slurm.conf}\n")
            await until(
                store, "both jobs", lambda: states(store) == {job_id: "held", other: "held"}
            )
            assert store.connection_error is None
            assert store.errors == {}
        assert list(store.events) == []


async def test_a_login_node_that_comes_back_with_another_key_is_refused_and_asked_no_more(
    clean_slurm: SlurmLab, own_sshd: Sshd, tmp_path: Path
) -> None:
    job_id = clean_slurm.submit("alice", "--hold")
    person = Person(accepts=True)
    config = config_for(clean_slurm, own_sshd, tmp_path)
    before = (tmp_path / "known_hosts").read_bytes()
    async with (
        store_on(clean_slurm, "alice", host="second", config=config, person=person) as store,
        polled(store) as poller,
    ):
        await until(store, "the job", lambda: states(store) == {job_id: "held"})
        own_sshd.kill_with_sessions()
        own_sshd.replace_host_key()
        own_sshd.start(f"SetEnv SLURM_CONF={clean_slurm.conf}\n")
        await until(store, "refusal", lambda: isinstance(poller.waiting_for_person, HostKeyChanged))
        assert person.questions == []
        assert states(store) == {job_id: "held"}
        tried = own_sshd.log.count("Connection from")
        quiet_until = time.monotonic() + 0.7
        while time.monotonic() < quiet_until:
            await asyncio.to_thread(clean_slurm.admin, "true")
        assert own_sshd.log.count("Connection from") == tried
        assert (tmp_path / "known_hosts").read_bytes() == before
        # The site says the key is right: a person sets it straight and asks again.
        (tmp_path / "known_hosts").write_text(
            f"[127.0.0.1]:{own_sshd.port} {own_sshd.host_key_line}\n"
        )
        poller.poll_now()
        await until(
            store,
            "an end of the error",
            lambda: store.connection_error is None and not store.errors,
        )
