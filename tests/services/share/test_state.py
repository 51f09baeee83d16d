"""What a pool's coordinator publishes, and whom its readers believe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.config.settings import PoolSettings, QuotaSettings
from hpcdash.domain.share import Priority
from hpcdash.errors import HpcdashError
from hpcdash.private_files import user_name
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.share import text
from hpcdash.services.share.coordinator import pool_rules
from hpcdash.services.share.database import ShareDatabase, StoredTask
from hpcdash.services.share.scheduling import decide, queue_up
from hpcdash.services.share.state import (
    MAX_BYTES,
    Pool,
    PoolReader,
    Run,
    build_state,
    parse_state,
    publish,
)
from hpcdash.transport.local import LocalTransport

NOW = 1_795_244_354.0
NORMAL, ABOVE, HIGH, AUTO = Priority.NORMAL, Priority.ABOVE_NORMAL, Priority.HIGH, Priority.AUTO
POOL = PoolSettings(
    "lab",
    4,
    choosers=("ada", "bob"),
    quotas=(QuotaSettings(NORMAL, 2), QuotaSettings(ABOVE, 2), QuotaSettings(HIGH, 4, ("bob",))),
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[ShareDatabase]:
    database = ShareDatabase(tmp_path / "lab")
    database.acquire(NOW)
    yield database
    database.close()


class Tasks:
    """Puts tasks into a database, each a minute after the one before."""

    def __init__(self, database: ShareDatabase) -> None:
        self.database = database
        self.count = 0

    def add(
        self,
        user: str,
        priority: Priority = NORMAL,
        nodes: int = 1,
        *,
        name: str = "",
        **fields: Any,
    ) -> str:
        self.count += 1
        at = NOW - 3600 + 60 * self.count
        given = {
            "state": "waiting",
            "reason": "",
            "level": None,
            "since": None,
            "requested_at": None,
        } | fields
        task = StoredTask(
            id=str(self.count),
            number=self.count,
            user=user,
            name=name or f"task{self.count}",
            nodes=nodes,
            priority=priority,
            submitted_at=at,
            folder="",
            above_normal_seconds=0.0,
            demoted=0,
            suspended=0,
            retry_at=0.0,
            **given,
        )
        with self.database.writing(NOW):
            self.database.add(task)
        return task.id

    def run(
        self,
        user: str,
        priority: Priority = NORMAL,
        nodes: int = 1,
        *,
        level: Priority | None = None,
    ) -> str:
        job_id = self.add(user, priority, nodes)
        with self.database.writing(NOW):
            self.database.begin_run(job_id, priority if level is None else level, NOW - 600)
            self.database.start_run(job_id, NOW - 600)
        return job_id

    def state(self) -> Pool:
        """As the coordinator publishes it."""
        stored = self.database.unfinished_tasks()
        decision = decide(
            [one.running_task for one in stored if one.state == "running"],
            queue_up(one.pool_task for one in stored if one.state == "waiting"),
            pool_rules(POOL).quotas,
            capacity=POOL.nodes,
            free=POOL.nodes - sum(one.nodes for one in stored if one.state == "running"),
        )
        state = build_state(POOL, pool_rules(POOL), self.database, decision, NOW)
        return parse_state(msgspec.json.encode(state))


def test_each_that_waits_says_why_and_when_it_is_its_turn(database: ShareDatabase) -> None:
    tasks = Tasks(database)
    tasks.run("bob", HIGH, 2)
    tasks.run("ada", ABOVE)
    tasks.run("ada")
    quota = tasks.add("ada", NORMAL, 2)
    first = tasks.add("bob", NORMAL, 1)
    behind = tasks.add("cleo", NORMAL, 2)
    automatic = tasks.add("ada", AUTO, 2)
    paused = tasks.add("bob", HIGH, state="paused")
    state = tasks.state()
    # One's own task of the same priority is not interrupted; another one's is, where it came later.
    assert (state.nodes_used, text.format_use(state)) == (
        4,
        "4 of 4 nodes used, 3 run, 4 wait, 1 paused",
    )
    told = {task.id: (task.level, text.format_turn(task), task.why) for task in state.tasks}
    assert told[quota] == ("NORMAL", "", "quota: ada has 1 of 2 nodes at NORMAL")
    assert told[first] == ("NORMAL", "next", "waits for 1 node")
    assert told[behind] == ("NORMAL", "2nd", f"behind job {first} of bob")
    assert told[automatic] == (None, "", "ada's quota is used up at every priority")
    assert told[paused][2] == "suspended by the owner until resumed"
    # ABOVE_NORMAL becomes NORMAL half an hour after it began.
    demoted = state.task("2")
    assert demoted is not None
    assert text.format_demotion(demoted, state.taken_at) == "20 min"
    assert text.quota_users(state, "cleo") == ["cleo", "ada", "bob", "*"]
    assert [text.format_quota(state, "ada", level) for level in text.quota_levels(state)] == [
        "",
        "1/2",
        "1/2",
    ]
    assert text.format_quota(state, "bob", "HIGH") == "2/4"


def interrupted_users(pool: Pool, job_id: str, **changes: str) -> list[str]:
    task = next(task for task in pool.tasks if task.id == job_id)
    changed = msgspec.structs.replace(task, **changes)
    return [interrupted.user for interrupted in pool.interrupted_by(changed)]


def test_the_interrupted_are_those_that_a_wish_takes_nodes_from(database: ShareDatabase) -> None:
    tasks = Tasks(database)
    tasks.run("ada", NORMAL, 2)
    tasks.run("cleo", AUTO, 2, level=NORMAL)
    wish = tasks.add("bob", NORMAL, 2)
    paused = tasks.add("bob", HIGH, 4, state="paused")
    state = tasks.state()
    # AUTO has quota left above NORMAL.
    assert interrupted_users(state, wish, priority="HIGH") == ["ada"]
    assert interrupted_users(state, paused, state="waiting") == ["ada", "cleo"]
    assert interrupted_users(state, wish, state="paused") == []


def test_the_history_of_interruptions_is_newest_first_and_says_how(database: ShareDatabase) -> None:
    tasks = Tasks(database)
    for user, how, ended in (
        ("ada", "suspended", 200),
        ("bob", "slow", 100),
        ("cleo", "paused", 50),
    ):
        job_id = tasks.run(user)
        [task] = database.tasks("id = ?", job_id)
        with database.writing(NOW):
            database.end_run(task, "waiting", NOW - ended, how)
    # What a person suspended was not interrupted for another.
    assert [
        text.format_interruption(task, run) for task, run, _ in tasks.state().interruptions()
    ] == [
        "job 2 (task2) of bob at NORMAL after 8 min: too slow to save",
        "job 1 (task1) of ada at NORMAL after 6 min: saved",
    ]


def test_a_folder_that_leads_elsewhere_does_not_cost_the_coordinator_a_file(
    database: ShareDatabase, tmp_path: Path
) -> None:
    state = Tasks(database).state()
    precious = tmp_path / "mine" / "pool.json"
    precious.parent.mkdir()
    precious.write_text('{"schema":1,"pool":"other"}')
    (tmp_path / "shared").symlink_to(precious.parent)
    file = tmp_path / "shared" / "pool.json"
    with pytest.raises(HpcdashError, match=r"mine/pool\.json is not a pool state file"):
        publish(state, file)
    assert precious.read_text() == '{"schema":1,"pool":"other"}'
    # A link in its place is replaced, and what it leads to is not.
    (tmp_path / "shared").unlink()
    (tmp_path / "shared").mkdir()
    file.symlink_to(precious)
    publish(state, file)
    publish(state, file)
    assert (file.is_symlink(), precious.read_text()) == (False, '{"schema":1,"pool":"other"}')
    assert [one.name for one in file.parent.iterdir()] == ["pool.json"]


def test_a_pool_that_is_too_large_for_its_readers_is_published_in_part(
    database: ShareDatabase, tmp_path: Path
) -> None:
    tasks = Tasks(database)
    tasks.add("ada", name="\x00" * 5000)
    state = tasks.state()
    (task,) = state.tasks
    assert len(task.name) == 200
    run = Run(1, "NORMAL", None, None, "suspended")
    many = [
        msgspec.structs.replace(task, id=str(number), place=number + 1, runs=(run,) * 50)
        for number in range(9000)
    ]
    # What came last runs, and the last but one is next.
    many[-2:] = [
        msgspec.structs.replace(many[-2], place=0),
        msgspec.structs.replace(many[-1], state="running"),
    ]
    publish(msgspec.structs.replace(state, tasks=tuple(many)), tmp_path / "pool.json")
    assert (tmp_path / "pool.json").stat().st_size <= MAX_BYTES
    found = parse_state((tmp_path / "pool.json").read_bytes())
    assert [len(one.runs) for one in found.tasks[:2]] == [3, 3]
    assert found.tasks_left_out == 9000 - len(found.tasks) > 0
    assert [one.id for one in found.tasks[-2:]] == ["8998", "8999"]


def test_what_has_nodes_is_published_though_thousands_came_before(database: ShareDatabase) -> None:
    tasks = Tasks(database)
    first = tasks.add("ada")
    [one] = database.tasks()
    with database.writing(NOW):
        for number in range(2, 5002):
            database.add(msgspec.structs.replace(one, id=str(number), number=number))
    tasks.count = 5001
    late = tasks.run("bob", HIGH)
    state = tasks.state()
    assert (state.tasks[0].id, state.tasks[-1].id, state.tasks_left_out) == (first, late, 2)


def reader(file: Path, coordinator: str = "") -> PoolReader:
    store = ClusterStore(
        "here",
        LocalTransport(),
        (BACKEND,),
        clock=FrozenClock(NOW),
        budget=CommandBudget(600),
        user=user_name(os.geteuid()),
    )
    return PoolReader(store, PoolSettings("lab", 4, coordinator=coordinator, state_file=str(file)))


async def complaint(reader: PoolReader) -> str:
    with pytest.raises(HpcdashError) as raised:
        await reader.read()
    return raised.value.message


@pytest.mark.system
async def test_only_the_coordinator_s_file_is_believed(
    database: ShareDatabase, tmp_path: Path
) -> None:
    file = tmp_path / "pool.json"
    assert "has no published state" in await complaint(reader(file))
    hostile = "\x1b[2J[bold]\x00"
    tasks = Tasks(database)
    tasks.add("ada", name=hostile)
    publish(tasks.state(), file)
    assert file.stat().st_mode & 0o777 == 0o644
    one = reader(file)
    state = await one.read()
    assert [task.name for task in state.tasks] == [hostile]
    assert "\x1b" not in text.format_task(state.tasks[0])
    # What has not changed is not read again, what has is.
    assert await one.read() is state
    tasks.add("bob")
    publish(tasks.state(), file)
    assert len((await one.read()).tasks) == 2
    assert f"belongs to {user_name(os.geteuid())}, its coordinator is hpcshare" in await complaint(
        reader(file, "hpcshare")
    )
    for content in (
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"x":' + b"[" * 1_000_000,
        file.read_bytes().replace(b'"NORMAL"', b'"NORMAL\\n"'),
        file.read_bytes().replace(b'"schema":1', b'"schema":2'),
        file.read_bytes().replace(b'"nodes":4', b'"nodes":-4'),
    ):
        file.write_bytes(content)
        assert "is not a valid pool state file" in await complaint(reader(file))
    with file.open("r+b") as stream:
        stream.truncate(MAX_BYTES + 1)
    assert "is larger than 8 MiB" in await complaint(reader(file))
    file.unlink()
    os.mkfifo(file)
    assert "not a regular file" in await complaint(reader(file))
