from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.domain.tables import Kind
from hpcdash.errors import AccountingUnavailable, ControllerDown
from hpcdash.services.jobs.tracker import (
    EXIT_UNKNOWN,
    KEEP_SECONDS,
    LOOKING_UP,
    NO_HISTORY,
    JobEvent,
)
from tests.support.parts import changed
from tests.support.scripted_cluster import Cluster
from tests.support.scripted_transport import HISTORY, RECENT, ScriptedTransport
from tests.support.slurm_text import Fields
from tests.support.waiting import until


def job(job_id: str, state: str = "RUNNING", **changes: str) -> Fields:
    waits = {"starttime": "N/A", "nodelist": ""} if state == "PENDING" else {}
    return {"jobarrayid": job_id, "arrayjobid": job_id, "state": state, **waits, **changes}


def task(array: str, number: int, state: str = "RUNNING") -> Fields:
    return job(f"{array}_{number}", state, arrayjobid=array, arraytaskid=str(number))


def record(array: str, tasks: str, state: str = "PENDING") -> Fields:
    return job(f"{array}_[{tasks}]", state, arrayjobid=array, arraytaskid=tasks)


def past(job_id: str, state: str = "COMPLETED", **changes: str) -> Fields:
    return {"jobid": job_id, "state": state, **changes}


def words(events: list[JobEvent]) -> list[tuple[str, str, str]]:
    return [(event.job_id, event.before, event.after) for event in events]


def shown(cluster: Cluster, job_id: str, column: str) -> object:
    table = cluster.store.table(Kind.MINE)
    assert table is not None
    return dict(zip(table["id"].to_pylist(), table[column].to_pylist(), strict=True))[job_id]


@pytest.fixture
async def queue(cluster: Cluster) -> ScriptedTransport:
    """The other side, with nothing in its queue, after a first look at it."""
    await cluster.store.open()
    return cluster.transport


async def test_the_first_look_at_a_queue_is_no_event(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1"), job("2", "PENDING")]
    assert await cluster.mine() == []
    assert cluster.states() == {"1": "running", "2": "pending"}


async def test_a_job_that_starts_is_told(cluster: Cluster, queue: ScriptedTransport) -> None:
    queue.mine = [job("1", "PENDING", name="train")]
    await cluster.mine()
    queue.mine = [job("1", name="train")]
    assert await cluster.mine() == [
        JobEvent(cluster.clock.now(), "1", "train", "pending", "running")
    ]
    assert list(cluster.store.events) == [
        JobEvent(cluster.clock.now(), "1", "train", "pending", "running")
    ]
    assert await cluster.mine() == []


async def test_a_running_job_that_waits_again_is_told(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1")]
    await cluster.mine()
    queue.mine = [job("1", "PENDING", reason="BeginTime")]
    assert words(await cluster.mine()) == [("1", "running", "pending")]


async def test_a_waiting_job_that_is_held_is_no_event(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1", "PENDING", reason="Priority")]
    await cluster.mine()
    queue.mine = [job("1", "PENDING", reason="JobHeldUser")]
    assert await cluster.mine() == []


async def test_a_job_that_ended_is_in_the_same_list(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1"), job("2")]
    await cluster.mine()
    queue.mine = [job("2")]
    queue.recent = [job("2"), job("1", "TIMEOUT", reason="TimeLimit", exit_code="15")]
    assert words(await cluster.mine()) == [("1", "running", "timeout")]
    assert cluster.states() == {"2": "running", "1": "timeout"}
    assert (queue.count("squeue"), queue.count(HISTORY)) == (2, 0)


async def test_a_vanished_job_is_then_looked_for_in_history(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1")]
    await cluster.mine()
    queue.mine, queue.history = [], [past("1", "FAILED", exitcode="3:0")]
    assert words(await cluster.mine()) == [("1", "running", "failed")]
    assert shown(cluster, "1", "exit_code") == 3
    await cluster.mine()
    assert (queue.count("squeue"), queue.count(HISTORY)) == (3, 1)


async def test_the_list_is_shown_before_the_vanished_are_looked_up(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1"), job("2")]
    await cluster.mine()
    queue.mine = [job("2")]
    queue.hangs[HISTORY] = asyncio.Event()
    looking = asyncio.create_task(cluster.store.fetch(Kind.MINE))
    await until(lambda: cluster.states() == {"2": "running", "1": "unknown"})
    assert shown(cluster, "1", "reason") == LOOKING_UP
    queue.history = [past("1")]
    queue.hangs.pop(HISTORY).set()
    await looking
    assert cluster.states() == {"2": "running", "1": "completed"}


async def test_a_job_that_history_still_calls_running_is_asked_for_three_times(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1")]
    await cluster.mine()
    queue.mine, queue.history = [], [past("1", "RUNNING", end="Unknown")]
    for _ in range(2):
        assert await cluster.mine() == []
        assert cluster.states() == {"1": "unknown"}
    assert words(await cluster.mine()) == [("1", "running", "gone")]
    assert shown(cluster, "1", "reason") == EXIT_UNKNOWN
    assert await cluster.mine() == []
    assert queue.count(HISTORY) == 3


async def test_history_that_lags_has_the_last_word(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1")]
    await cluster.mine()
    queue.mine, queue.history = [], [past("1", "RUNNING", end="Unknown")]
    assert await cluster.mine() == []
    queue.history = [past("1", "OUT_OF_MEMORY")]
    assert words(await cluster.mine()) == [("1", "running", "out_of_memory")]


async def test_a_job_that_is_nowhere_is_gone_with_its_exit_unknown(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1")]
    await cluster.mine()
    queue.mine = []
    told = [words(await cluster.mine()) for _ in range(3)]
    assert told == [[], [], [("1", "running", "gone")]]
    assert shown(cluster, "1", "exit_code") is None


async def test_a_job_that_the_queue_knows_as_alive_is_never_gone(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1")]
    await cluster.mine()
    queue.mine, queue.recent = [], [job("1")]
    assert [await cluster.mine() for _ in range(6)] == [[]] * 6
    assert queue.count(HISTORY) == 0
    queue.mine = [job("1")]
    assert await cluster.mine() == []
    assert cluster.states() == {"1": "running"}


async def test_without_accounting_a_vanished_job_is_gone_at_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, transport=ScriptedTransport(storage="accounting_storage/none"))
    await cluster.store.open()
    cluster.transport.mine = [job("1")]
    await cluster.mine()
    cluster.transport.mine = []
    assert words(await cluster.mine()) == [("1", "running", "gone")]
    assert shown(cluster, "1", "reason") == NO_HISTORY
    assert "exit unknown" in NO_HISTORY
    assert cluster.transport.count(HISTORY) == 0


async def test_without_sacct_a_vanished_job_is_gone_after_some_polls(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1")]
    await cluster.mine()
    queue.mine = []
    queue.silent.add("sacct")
    assert [len(await cluster.mine()) for _ in range(3)] == [0, 0, 1]
    assert queue.adoptions == 1


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (RECENT, ControllerDown("down")),
        (HISTORY, AccountingUnavailable("the database does not answer")),
    ],
)
async def test_while_the_looking_up_fails_nothing_is_said_and_it_is_asked_more_and_more_seldom(
    cluster: Cluster, queue: ScriptedTransport, asked: str, error: ControllerDown
) -> None:
    # Where what ended is a list of its own, it is asked for that first.
    backend = cluster.store.backend
    cluster.store.backend = replace(
        backend, queue=changed(backend.queue, lists_ended=asked is HISTORY)
    )
    queue.mine = [job("1")]
    await cluster.mine()
    queue.mine = []
    queue.fails[asked] = error
    asked_in_poll = []
    for _ in range(12):
        before = queue.count(asked)
        assert await cluster.mine() == []
        asked_in_poll.append(queue.count(asked) - before)
    assert asked_in_poll == [1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]
    assert cluster.states() == {"1": "unknown"}
    assert Kind.MINE not in cluster.store.errors
    del queue.fails[asked]
    queue.history = [past("1")]
    told = [event for _ in range(4) for event in await cluster.mine()]
    assert words(told) == [("1", "running", "completed")]


async def test_an_array_that_burned_through_is_told_task_by_task(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [record("7", "0-2%1")]
    await cluster.mine()
    queue.mine = []
    queue.recent = [task("7", 0, "COMPLETED"), task("7", 1, "FAILED"), task("7", 2, "COMPLETED")]
    assert words(await cluster.mine()) == [
        ("7_0", "pending", "completed"),
        ("7_1", "pending", "failed"),
        ("7_2", "pending", "completed"),
    ]
    assert cluster.states() == {"7_0": "completed", "7_1": "failed", "7_2": "completed"}


async def test_what_is_left_of_an_array_is_settled_beside_tasks_told_before(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [task("7", 0), task("7", 9), record("7", "1-2")]
    await cluster.mine()
    queue.mine = [task("7", 9), record("7", "1-2")]
    queue.recent = [task("7", 0, "COMPLETED"), task("7", 9)]
    assert words(await cluster.mine()) == [("7_0", "running", "completed")]
    queue.mine = [task("7", 9)]
    queue.recent = [*queue.recent, task("7", 1, "COMPLETED"), task("7", 2, "FAILED")]
    assert words(await cluster.mine()) == [
        ("7_1", "pending", "completed"),
        ("7_2", "pending", "failed"),
    ]
    assert cluster.states() == {
        "7_9": "running",
        "7_0": "completed",
        "7_1": "completed",
        "7_2": "failed",
    }


async def test_of_an_array_known_in_part_history_tells_the_whole(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [record("7", "0-2")]
    await cluster.mine()
    queue.mine = []
    queue.recent = [task("7", 2, "COMPLETED")]
    queue.history = [past("7_0"), past("7_1", "TIMEOUT"), past("7_2")]
    assert sorted(words(await cluster.mine())) == [
        ("7_0", "pending", "completed"),
        ("7_1", "pending", "timeout"),
        ("7_2", "pending", "completed"),
    ]


async def test_a_task_that_started_meanwhile_settles_its_record_in_silence(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [record("7", "1-2")]
    await cluster.mine()
    queue.mine, queue.recent = [], [task("7", 1), task("7", 2, "COMPLETED")]
    assert words(await cluster.mine()) == [
        ("7_1", "pending", "running"),
        ("7_2", "pending", "completed"),
    ]
    assert cluster.states() == {"7_1": "running", "7_2": "completed"}


@pytest.mark.parametrize(
    "remainder",
    [job("7", "CANCELLED"), record("7", "3-9%1", "CANCELLED")],
    ids=["by the array's own number", "with other words for its tasks"],
)
async def test_the_cancelled_rest_of_an_array_is_told_once(
    cluster: Cluster, queue: ScriptedTransport, remainder: Fields
) -> None:
    queue.mine = [record("7", "3-9")]
    await cluster.mine()
    queue.mine, queue.recent = [], [remainder]
    (event,) = await cluster.mine()
    assert (event.job_id.partition("_[")[0], event.before, event.after) == (
        "7",
        "pending",
        "cancelled",
    )
    assert shown(cluster, event.job_id, "array_id") == "7"
    assert await cluster.mine() == []


async def test_departed_jobs_are_dropped_after_a_quarter_of_an_hour(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1"), job("2")]
    await cluster.mine()
    queue.mine, queue.recent = [job("2")], [job("1", "COMPLETED")]
    await cluster.mine()
    cluster.clock.seconds += KEEP_SECONDS
    await cluster.mine()
    assert list(cluster.states()) == ["2", "1"]
    cluster.clock.seconds += 1
    await cluster.mine()
    assert list(cluster.states()) == ["2"]


async def test_a_job_that_comes_back_is_no_longer_departed(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1")]
    await cluster.mine()
    queue.mine, queue.recent = [], [job("1", "NODE_FAIL")]
    assert words(await cluster.mine()) == [("1", "running", "node_failed")]
    queue.mine = [job("1", "PENDING")]
    assert words(await cluster.mine()) == [("1", "node_failed", "pending")]
    assert cluster.states() == {"1": "pending"}


async def test_a_job_that_only_seemed_to_be_missing_is_no_event(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1")]
    await cluster.mine()
    queue.mine = []
    await cluster.mine()
    queue.mine = [job("1")]
    assert await cluster.mine() == []
    assert cluster.states() == {"1": "running"}


async def test_many_vanished_jobs_are_asked_for_in_several_commands_and_a_thousand_in_several_polls(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    numbers = [str(number) for number in range(1, 651)]
    queue.mine = [job(number) for number in numbers]
    await cluster.mine()
    queue.mine, queue.history = [], [past(number) for number in numbers]
    told = [event.job_id for event in await cluster.mine()]
    assert queue.count(HISTORY) == 5
    assert all(
        len(argv[argv.index("-j") + 1].split(",")) <= 100
        for argv in queue.argvs
        if argv[0] == "sacct"
    )
    told += [event.job_id for event in await cluster.mine()]
    assert (sorted(told, key=int), queue.count(HISTORY)) == (numbers, 7)


async def test_the_ceiling_on_commands_is_no_failure_of_the_looking_up(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, ceiling=3)
    cluster.transport.mine = [job("1")]
    await cluster.store.open()
    await cluster.mine()
    cluster.transport.mine, cluster.transport.history = [], [past("1")]
    assert await cluster.mine() == []
    assert cluster.transport.count(HISTORY) == 0
    cluster.clock.seconds += 60
    assert words(await cluster.mine()) == [("1", "running", "completed")]


async def test_a_job_that_began_and_ended_between_two_polls_is_told(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.recent = [job("1", "COMPLETED", endtime=str(int(cluster.clock.now()) - 1))]
    assert await cluster.mine() == []
    assert cluster.states() == {}, "it ended before anybody looked"
    queue.recent = [*queue.recent, job("2", "FAILED", name="short", exit_code="768")]
    assert await cluster.mine() == [JobEvent(cluster.clock.now(), "2", "short", "", "failed")]
    assert cluster.states() == {"2": "failed"}
    assert shown(cluster, "2", "exit_code") == 3
    assert await cluster.mine() == []
    assert (queue.count("squeue"), queue.count(HISTORY)) == (3, 0)


async def test_tasks_that_had_ended_before_the_first_poll_count_in_an_array_that_goes_on(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [record("7", "3-6%2")]
    ended = {"endtime": str(int(cluster.clock.now()) - 1)}
    queue.recent = [
        {**row, **ended}
        for row in (task("7", 1, "FAILED"), task("7", 2, "COMPLETED"), task("6", 1, "FAILED"))
    ]
    assert await cluster.mine() == []
    assert cluster.states() == {"7_[3-6%2]": "pending", "7_1": "failed", "7_2": "completed"}


async def test_tasks_that_began_and_ended_between_two_polls_are_counted(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [task("7", 1), task("7", 2), record("7", "3-6%2")]
    await cluster.mine()
    queue.mine = [record("7", "5-6%2")]
    queue.recent = [
        task("7", number, "FAILED" if number % 2 else "COMPLETED") for number in (1, 2, 3, 4)
    ]
    assert sorted(words(await cluster.mine())) == [
        ("7_1", "running", "failed"),
        ("7_2", "running", "completed"),
        ("7_3", "pending", "failed"),
        ("7_4", "pending", "completed"),
    ]
    queue.mine, queue.recent = (
        [],
        [*queue.recent, task("7", 5, "FAILED"), task("7", 6, "COMPLETED")],
    )
    await cluster.mine()
    assert sorted(cluster.states().values()) == ["completed"] * 3 + ["failed"] * 3


async def test_tasks_that_the_controller_forgot_at_once_are_looked_for_in_history(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [record("7", "3-6%2")]
    await cluster.mine()
    queue.mine = [task("7", 5), record("7", "6%2")]
    queue.history = [past("7_3", "FAILED", exitcode="1:0"), past("7_4")]
    assert sorted(words(await cluster.mine())) == [
        ("7_3", "pending", "failed"),
        ("7_4", "pending", "completed"),
        ("7_5", "pending", "running"),
    ]


async def test_a_job_is_missed_where_the_controller_forgets_it_before_the_next_poll(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    assert cluster.store.probe is not None
    cluster.store.probe = replace(cluster.store.probe, ended_kept_seconds=10)
    await cluster.mine()
    assert not cluster.store.misses_short_jobs
    cluster.clock.seconds += 15
    await cluster.mine()
    assert cluster.store.misses_short_jobs
    cluster.clock.seconds += 5
    await cluster.mine()
    assert not cluster.store.misses_short_jobs


async def test_what_left_since_the_last_run_is_looked_up(tmp_path: Path) -> None:
    first = Cluster(tmp_path)
    first.transport.mine = [job("1")]
    await first.store.open()
    await first.mine()
    await first.close()
    second = Cluster(tmp_path)
    second.store.load_cached()
    second.transport.history = [past("1", "TIMEOUT")]
    await second.store.open()
    assert words(await second.mine()) == [("1", "running", "timeout")]


async def test_the_jobs_of_another_user_in_the_cache_are_nothing_of_ours(tmp_path: Path) -> None:
    first = Cluster(tmp_path)
    first.transport.mine = [job("1"), job("2", username="bob")]
    await first.store.open()
    await first.mine()
    second = Cluster(tmp_path, transport=ScriptedTransport(user="bob"))
    second.store.load_cached()
    second.transport.history = [past("1", "FAILED"), past("2", "COMPLETED", user="bob")]
    await second.store.open()
    assert words(await second.mine()) == [("2", "running", "completed")]
    assert second.states() == {"2": "completed"}


async def test_why_a_job_waits_is_told_when_it_changes_and_not_at_each_poll(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [
        job("1", "PENDING", reason="Priority"),
        job("2", "PENDING", reason="Dependency"),
        job("3"),
    ]
    assert await cluster.mine() == []
    queue.mine = [job("1", "PENDING", reason="Resources"), *queue.mine[1:]]
    assert await cluster.mine() == [], "a reason is no news of its own"
    await cluster.mine()
    [event] = cluster.store.reason_events
    assert (event.job_id, event.before, event.after, event.reason) == (
        "1",
        "pending",
        "pending",
        "Resources",
    )


async def test_a_reason_that_differs_in_its_figures_alone_is_the_same(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1", "PENDING", reason="Not Running: Insufficient ncpus (R: 4 A: 2 T: 8)")]
    await cluster.mine()
    queue.mine = [job("1", "PENDING", reason="Not Running: Insufficient ncpus (R: 4 A: 3 T: 8)")]
    await cluster.mine()
    assert not cluster.store.reason_events


async def test_a_held_job_that_waits_for_its_turn_now_is_told_with_why(
    cluster: Cluster, queue: ScriptedTransport
) -> None:
    queue.mine = [job("1", "PENDING", reason="JobHeldUser")]
    await cluster.mine()
    queue.mine = [job("1", "PENDING", reason="Priority")]
    await cluster.mine()
    [event] = cluster.store.reason_events
    assert (event.before, event.after, event.reason) == ("held", "pending", "Priority")
