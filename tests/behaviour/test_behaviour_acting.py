"""What people do to jobs, on the embedded queue and on Slurm alike."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.behaviour.clusters import Cluster

STUBBORN = """
trap 'echo got TERM; exit' TERM
sleep 1000 &
echo "child $! up"
# Its child may get TERM first: what it ends after is its own.
while :; do wait; sleep 0.05; done
"""
TRAPPING = """
trap 'echo batch USR1' USR1
bash -c 'trap "echo child USR1" USR1; echo child up; while :; do sleep 0.05; done' &
while :; do wait; sleep 0.05; done
"""


def process_state(pid: int) -> str:
    """The letter of a process's state: S sleeps, T is stopped, Z has ended; '' where there is
    none.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


async def wait_for_process(cluster: Cluster, pid: int, *states: str) -> None:
    async def look() -> bool | None:
        return process_state(pid) in states or None

    await cluster.until(
        look, lambda: f"process {pid} to be one of {states}; it is {process_state(pid)!r}"
    )


async def test_a_running_job_that_is_cancelled_gets_term_and_leaves_nothing(
    cluster: Cluster,
) -> None:
    trapping, plain = await asyncio.gather(
        cluster.up(STUBBORN), cluster.up("echo $$ up; sleep 1000")
    )
    child = int((await cluster.log(trapping)).split()[1])
    assert process_state(child) == "S"
    await cluster.do("cancel", trapping, plain)
    rows = await cluster.all_ended(trapping, plain)
    assert [row["state"] for row in rows] == ["cancelled", "cancelled"]
    assert "got TERM" in (await cluster.log(trapping)).splitlines()
    await wait_for_process(cluster, child, "", "Z")
    for job in (trapping, plain):
        ((done, words),) = (await cluster.does("cancel", job)).values()
        assert (done, bool(words)) == (False, True)


async def test_a_job_that_waits_is_cancelled_and_never_runs(cluster: Cluster) -> None:
    held, later = await asyncio.gather(
        cluster.submit("touch ran-although-cancelled", held=True),
        cluster.submit("touch ran-although-cancelled", "--begin=now+3600"),
    )
    await cluster.do("cancel", held, later)
    for row in await cluster.all_ended(held, later):
        assert (row["state"], row["started_at"], row["reason"], row["exit_code"]) == (
            "cancelled",
            None,
            None,
            0,
        )
        assert row["ends_at"] is not None
    assert not (cluster.work / "ran-although-cancelled").exists()


async def test_a_job_is_held_and_released(cluster: Cluster) -> None:
    handed_in_held, later = await asyncio.gather(
        cluster.submit("true", held=True), cluster.submit("true", "--begin=now+3600")
    )
    row = await cluster.row(handed_in_held)
    assert (row["state"], row["reason"]) == ("held", "JobHeldUser")
    await cluster.do("hold", later)
    row = await cluster.row(later)
    # Slurm tells who: root is its administrator.
    assert (row["state"], row["reason"]) in (("held", "JobHeldUser"), ("held", "JobHeldAdmin"))
    # Held once more, released once: it is not held.
    await cluster.do("hold", handed_in_held)
    await cluster.do("release", handed_in_held, later)
    assert (await cluster.ended(handed_in_held))["state"] == "completed"
    assert (await cluster.row(later))["state"] == "pending"
    await cluster.do("release", later)
    await cluster.do("cancel", later)


async def test_what_ended_is_not_held_nor_released_nor_signalled(cluster: Cluster) -> None:
    job = await cluster.submit("true")
    await cluster.ended(job)
    for verb in ("cancel", "hold", "release", "suspend", "resume"):
        ((done, words),) = (await cluster.does(verb, job)).values()
        assert (done, bool(words)) == (False, True), (verb, done, words)
    ((done, words),) = (await cluster.does("signal", job, signal="USR1", to="batch")).values()
    assert (done, bool(words)) == (False, True)
    ((done, words),) = (await cluster.does("alter", job, time="5")).values()
    assert (done, bool(words)) == (False, True)


async def test_a_requeued_job_runs_again_under_its_number(cluster: Cluster) -> None:
    body = 'echo "run ${SLURM_RESTART_COUNT-first} up"; [ "$SLURM_RESTART_COUNT" ] || sleep 1000'
    cut, added = await asyncio.gather(cluster.up(body), cluster.up(body, "--open-mode=append"))
    waiting = await cluster.submit("true", held=True)
    before = await cluster.row(cut)
    await cluster.do("requeue", cut, added)
    await asyncio.gather(cluster.may_start_again(cut), cluster.may_start_again(added))
    rows = await cluster.all_ended(cut, added)
    assert [(row["state"], row["exit_code"]) for row in rows] == [
        ("completed", 0),
        ("completed", 0),
    ]
    assert [row["id"] for row in rows] == [cut, added]
    assert rows[0]["started_at"] >= before["started_at"]
    assert await cluster.log(cut) == "run 1 up\n"
    lines = (await cluster.log(added)).splitlines()
    assert (lines[0], lines[-1]) == ("run first up", "run 1 up")
    ((done, words),) = (await cluster.does("requeue", waiting)).values()
    assert (done, bool(words)) == (False, True)
    await cluster.do("cancel", waiting)


async def test_a_job_that_is_not_to_run_again_is_not_requeued(cluster: Cluster) -> None:
    job = await cluster.up("echo up; sleep 1000", "--no-requeue")
    ((done, words),) = (await cluster.does("requeue", job)).values()
    assert (done, bool(words)) == (False, True)
    assert (await cluster.row(job))["state"] == "running"
    await cluster.do("cancel", job)


async def test_a_suspended_job_stands_still_until_it_is_resumed(cluster: Cluster) -> None:
    job = await cluster.up(
        'echo "$$ up"; while [ ! -e suspended-go-on ]; do sleep 0.02; done; echo over'
    )
    pid = int((await cluster.log(job)).split()[0])
    await cluster.do("suspend", job)
    assert (await cluster.row(job))["state"] == "suspended"
    await wait_for_process(cluster, pid, "T")
    (cluster.work / "suspended-go-on").touch()
    # Once more changes nothing.
    await cluster.do("suspend", job)
    assert await cluster.log(job) == f"{pid} up\n"
    await cluster.do("resume", job)
    assert (await cluster.ended(job))["state"] == "completed"
    assert await cluster.log(job) == f"{pid} up\nover\n"


async def test_a_suspended_job_is_cancelled(cluster: Cluster) -> None:
    job = await cluster.up('echo "$$ up"; sleep 1000')
    pid = int((await cluster.log(job)).split()[0])
    await cluster.do("suspend", job)
    await cluster.do("cancel", job)
    assert (await cluster.ended(job))["state"] == "cancelled"
    await wait_for_process(cluster, pid, "", "Z")


async def test_a_signal_reaches_whom_it_is_for(cluster: Cluster) -> None:
    job = await cluster.up(TRAPPING)
    waiting = await cluster.submit("true", held=True)
    assert (await cluster.does("signal", job, waiting, signal="USR1", to="batch"))[job] == (
        True,
        "",
    )
    assert "child USR1" not in await cluster.wait_for_words(job, "batch USR1")
    await cluster.do("signal", job, signal="sigusr1", to="full")
    log = await cluster.wait_for_words(job, "child USR1")
    await cluster.until(
        lambda: count(cluster, job, "batch USR1", 2), lambda: f"two signals to the shell: {log}"
    )
    ((done, words),) = (await cluster.does("signal", waiting, signal="USR1", to="batch")).values()
    assert (done, bool(words)) == (False, True)
    await cluster.do("signal", job, signal="KILL", to="full")
    assert (await cluster.ended(job))["state"] == "cancelled"
    await cluster.do("cancel", waiting)


async def count(cluster: Cluster, job: str, words: str, wanted: int) -> bool | None:
    return (await cluster.log(job)).count(words) >= wanted or None


async def test_the_time_of_a_job_that_waits_is_altered(cluster: Cluster) -> None:
    job = await cluster.submit("true", "-t", "60", held=True)
    for change, seconds in (
        ("2h", 7200),
        ("-30m", 5400),
        ("90", 5400),
        ("+15", 6300),
        ("1-00:00:00", 86400),
    ):
        await cluster.do("alter", job, time=change)
        assert (await cluster.row(job))["limit_seconds"] == seconds, change
    ((done, words),) = (await cluster.does("alter", job, time="-9-00:00:00")).values()
    assert (done, bool(words)) == (False, True)
    await cluster.do("cancel", job)


async def test_each_job_has_its_own_outcome(cluster: Cluster) -> None:
    held, ended = await asyncio.gather(cluster.submit("true", held=True), cluster.submit("true"))
    await cluster.ended(ended)
    fate = await cluster.does("cancel", held, ended, "99999999")
    assert {job: done for job, (done, _) in fate.items()} == {
        held: True,
        ended: False,
        "99999999": False,
    }
