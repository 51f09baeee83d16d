"""The archive of runs: what it asks for, what it keeps, and what becomes of that when something
breaks.
"""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from hpcdash.domain import query
from hpcdash.domain.runs import merge_runs
from hpcdash.domain.schema import RUNS
from hpcdash.domain.spans import Span
from hpcdash.errors import CommandTimedOut, ConnectionFailed
from hpcdash.services.usage.archive import ArchiveProgress, FetchedRuns, RunSelection
from tests.support.accounting import RUNS_ASKED, Accounting
from tests.support.scripted_cluster import Cluster
from tests.support.scripted_transport import Command, Reply
from tests.support.slurm_text import Fields

DAY = 86_400


@dataclass
class Stage:
    """A cluster whose accounting has a run a day for 100 days, the newest an hour ago."""

    root: Path
    accounting: Accounting = field(default_factory=Accounting)
    clusters: list[Cluster] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cluster = self.new_cluster()
        self.now = int(self.cluster.clock.now())
        self.accounting.runs = [self.run(str(100 - day), day * DAY + 3600) for day in range(100)]

    def run(self, job_id: str, ended_ago: int, *, hours: int = 2, **fields: str) -> Fields:
        end = self.now - ended_ago
        times = {"start": str(end - hours * 3600), "end": str(end), "submit": str(end - 5 * 3600)}
        return {
            "jobid": job_id,
            **times,
            "eligible": times["submit"],
            "elapsedraw": str(hours * 3600),
            **fields,
        }

    def new_cluster(self) -> Cluster:
        """The program anew on the same disk."""
        cluster = Cluster(self.root)
        cluster.transport.answers[RUNS_ASKED] = self.accounting
        self.clusters.append(cluster)
        self.cluster = cluster
        return cluster

    async def fetch(self, days: float, until_days: float = 0, **selection: object) -> FetchedRuns:
        span = Span(self.now - int(days * DAY), self.now - int(until_days * DAY))
        return await self.cluster.store.archive.fetch_runs(span, RunSelection(**selection))  # type: ignore[arg-type]

    def files(self) -> list[Path]:
        return sorted(self.root.rglob("runs-*.arrow"))

    def asked_seconds(self) -> int:
        return sum(span.seconds for span in self.accounting.asked)


@pytest.fixture
async def stage(tmp_path: Path) -> object:
    made = Stage(tmp_path / "cache")
    yield made
    for cluster in made.clusters:
        await cluster.close()


def ids(fetched: FetchedRuns) -> list[str]:
    found: list[str] = fetched.table["id"].to_pylist()
    return found


async def test_a_second_look_asks_only_for_what_is_new(stage: Stage) -> None:
    first = await stage.fetch(30)
    assert ids(first) == [str(number) for number in range(100, 70, -1)]
    assert first.table.schema == RUNS
    assert first.is_whole
    stage.accounting.asked.clear()
    stage.new_cluster()
    stage.cluster.clock.seconds += 1800
    stage.accounting.runs.append(stage.run("101", -1000))
    span = Span(stage.now - 30 * DAY, stage.now + 1800)
    second = await stage.cluster.store.archive.fetch_runs(span)
    assert ids(second) == ["101", *ids(first)]
    # Ten minutes more than what is new: the accounting may have been late.
    assert stage.accounting.asked == [Span(stage.now - 600, stage.now + 1800)]


async def test_a_longer_span_asks_for_what_is_before_and_a_shorter_one_for_nothing_old(
    stage: Stage,
) -> None:
    await stage.fetch(10)
    stage.accounting.asked.clear()
    assert len(ids(await stage.fetch(40))) == 40
    assert min(span.since for span in stage.accounting.asked) == stage.now - 40 * DAY
    assert stage.asked_seconds() == 30 * DAY + 600
    stage.accounting.asked.clear()
    assert ids(await stage.fetch(5)) == ["100", "99", "98", "97", "96"]
    assert stage.asked_seconds() == 600


async def test_slices_do_not_overlap_and_grow_while_they_are_cheap(stage: Stage) -> None:
    stage.accounting.runs = [
        stage.run(str(number), number * DAY, user="bob") for number in range(1, 301)
    ]
    fetched = await stage.fetch(300, everyone=True)
    assert len(ids(fetched)) == 300
    asked = sorted(stage.accounting.asked, key=lambda span: span.since)
    assert all(one.until == other.since for one, other in pairwise(asked))
    assert len(asked) < 12


async def test_a_span_in_the_past_has_what_began_in_it_and_ended_after_it(stage: Stage) -> None:
    stage.accounting.runs = [
        stage.run("1", 20 * DAY + 3600),
        stage.run("2", 9 * DAY, hours=48),
        stage.run("3", 5 * DAY, hours=24 * 12),
        stage.run("4", 3 * DAY),
    ]
    assert ids(await stage.fetch(20, 10)) == ["3", "2"]
    # What began before and ended in it is in it too.
    assert ids(await stage.fetch(20.5, 10)) == ["3", "2", "1"]


async def test_each_run_of_a_requeued_job_comes_once_and_is_numbered(stage: Stage) -> None:
    stage.accounting.runs = [
        stage.run("7", 3 * DAY, state="REQUEUED"),
        stage.run("7", 2 * DAY, state="NODE_FAIL"),
        stage.run("7", 1 * DAY, state="COMPLETED"),
        stage.run("8", 1 * DAY, state="REQUEUED"),
    ]
    await stage.fetch(1.5)
    fetched = await stage.fetch(10)
    rows = fetched.table.select(["id", "run", "state"]).to_pylist()
    assert [tuple(row.values()) for row in rows if row["id"] == "7"] == [
        ("7", 3, "completed"),
        ("7", 2, "node_failed"),
        ("7", 1, "requeued"),
    ]
    # As jobs: the last run of each that ended.
    assert merge_runs(fetched.table)["id"].to_pylist() == ["7"]


async def test_a_selection_narrows_what_came(stage: Stage) -> None:
    stage.accounting.runs = [
        stage.run("1", DAY, user="alice", jobname="train_a", partition="gpu"),
        stage.run("2", 2 * DAY, user="alice", jobname="eval%", state="TIMEOUT", account="chem"),
        stage.run("3", 3 * DAY, user="bob", jobname="train_b", partition="cpu"),
    ]
    for selection, expected in (
        ({}, ["1", "2"]),
        ({"everyone": True}, ["1", "2", "3"]),
        ({"users": ("bob",)}, ["3"]),
        ({"users": ("alice", "bob"), "queues": ("CPU", "none")}, ["3"]),
        ({"names": ("train*",), "everyone": True}, ["1", "3"]),
        ({"names": ("eval%",), "everyone": True}, ["2"]),
        ({"states": ("timeout",)}, ["2"]),
        ({"accounts": ("chem",)}, ["2"]),
        ({"expression": query.parse("elapsed_seconds>1h cpus:8 train", RUNS)}, ["1"]),
    ):
        assert ids(await stage.fetch(10, **selection)) == expected, selection


async def test_what_came_before_the_line_was_cut_is_kept_and_the_rest_asked_for_later(
    stage: Stage,
) -> None:
    cut = ConnectionFailed("the line was cut", "Try again.")
    stage.accounting.before = lambda turn: cut if turn == 1 else None
    fetched = await stage.fetch(90)
    assert fetched.problem is cut
    assert 0 < len(ids(fetched)) < 90
    assert [span.since for span in fetched.missing] == [stage.now - 90 * DAY]
    stage.accounting.before = lambda turn: None
    stage.accounting.asked.clear()
    stage.new_cluster()
    assert len(ids(await stage.fetch(90))) == 90
    assert stage.asked_seconds() == fetched.missing[0].seconds + 600


async def test_where_nothing_at_all_is_known_the_problem_is_raised_and_else_what_is_known_shown(
    stage: Stage,
) -> None:
    stage.accounting.before = lambda turn: ConnectionFailed("the line was cut", "Try again.")
    with pytest.raises(ConnectionFailed):
        await stage.fetch(10)
    stage.accounting.before = lambda turn: None
    await stage.fetch(10)
    stage.new_cluster()
    stage.cluster.transport.connect_error = ConnectionFailed("no route", "Later.")
    fetched = await stage.fetch(10)
    assert len(ids(fetched)) == 10
    assert fetched.problem is stage.cluster.transport.connect_error
    # The last ten minutes were never sure.
    assert [span.seconds for span in fetched.missing] == [600]


async def test_a_stop_keeps_what_has_come(stage: Stage) -> None:
    hangs, reached, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def hang_at(turn: int) -> Callable[[int], Reply]:
        def before(at: int) -> Reply:
            if at < turn:
                return None
            reached.set()
            return hangs

        return before

    stage.accounting.before = hang_at(1)
    seen: list[ArchiveProgress] = []
    span = Span(stage.now - 90 * DAY, stage.now)
    fetching = asyncio.create_task(
        stage.cluster.store.archive.fetch_runs(span, progress=seen.append, stop=stop)
    )
    await reached.wait()
    assert seen[-1].runs > 0
    assert 0 < seen[-1].fraction < 1
    stop.set()
    fetched = await fetching
    assert fetched.problem is None
    assert len(fetched.missing) == 1
    assert fetched.table.num_rows == seen[-1].runs
    # And so does whoever gives up on it.
    reached.clear()
    # The last ten minutes, a slice, and the next is not answered.
    stage.accounting.before = hang_at(4)
    giving_up = asyncio.create_task(stage.fetch(300))
    await reached.wait()
    giving_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving_up
    stage.new_cluster()
    stage.accounting.before = lambda turn: None
    stage.accounting.asked.clear()
    await stage.fetch(300)
    assert stage.asked_seconds() < 250 * DAY


async def test_a_slice_that_takes_too_long_is_asked_for_in_parts(stage: Stage) -> None:
    def slow(turn: int) -> Reply:
        return CommandTimedOut("sacct gave no answer", "It may hang.") if turn < 2 else None

    stage.accounting.before = slow
    fetched = await stage.fetch(30)
    assert fetched.is_whole
    assert len(ids(fetched)) == 30
    lengths = [span.seconds for span in stage.accounting.asked[:3]]
    assert lengths[0] > lengths[1] > lengths[2]


async def test_it_waits_where_our_own_ceiling_has_no_room(stage: Stage) -> None:
    await stage.cluster.store.open()
    budget = stage.cluster.budget
    for _ in range(budget.ceiling):
        budget.spend()
    waits: list[float] = []

    def told(progress: ArchiveProgress) -> None:
        if progress.wait_seconds:
            waits.append(progress.wait_seconds)
            stage.cluster.clock.seconds += 120

    stop = asyncio.Event()
    span = Span(stage.now - 10 * DAY, stage.now)
    fetched = await stage.cluster.store.archive.fetch_runs(span, progress=told, stop=stop)
    assert waits
    assert len(ids(fetched)) == 10


async def test_the_files_are_private_and_a_damaged_one_is_as_if_it_were_not_there(
    stage: Stage,
) -> None:
    await stage.fetch(60)
    files = stage.files()
    assert len(files) > 1
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert {stat.S_IMODE(file.parent.stat().st_mode) for file in files} == {0o700}
    newest = files[-1]
    raw = bytearray(newest.read_bytes())
    raw[len(raw) // 2] ^= 0x10
    newest.write_bytes(raw)
    files[0].write_bytes(b"ARROW1")
    stage.accounting.asked.clear()
    stage.new_cluster()
    assert len(ids(await stage.fetch(60))) == 60
    assert 600 < stage.asked_seconds() < 60 * DAY
    stage.accounting.asked.clear()
    stage.new_cluster()
    assert len(ids(await stage.fetch(60))) == 60
    assert stage.asked_seconds() == 600


async def test_what_another_account_may_see_is_not_shown(stage: Stage) -> None:
    await stage.fetch(10, everyone=True)
    stage.new_cluster()
    stage.cluster.transport.user = "bob"
    stage.accounting.asked.clear()
    await stage.fetch(10, everyone=True)
    assert stage.asked_seconds() == 10 * DAY


async def test_a_folder_that_cannot_be_written_costs_only_the_memory(stage: Stage) -> None:
    stage.root.mkdir(parents=True, exist_ok=True)
    stage.cluster.cache.folder.write_text("in the way")
    assert len(ids(await stage.fetch(10))) == 10
    assert stage.files() == []


async def test_an_empty_span_is_an_empty_table(stage: Stage) -> None:
    stage.accounting.runs = []
    fetched = await stage.fetch(3)
    assert (fetched.table.num_rows, fetched.table.schema, fetched.is_whole) == (0, RUNS, True)


def test_runs_that_are_gone_from_the_disk_are_missing(tmp_path: Path) -> None:
    from hpcdash.services.usage.run_files import RunFiles

    span = Span(0, 3 * DAY)
    writer = RunFiles(tmp_path, "mine", asker="alice", scheduler="slurm")
    writer.add(RUNS.empty_table(), span)
    writer.save()
    files = RunFiles(tmp_path, "mine", asker="alice", scheduler="slurm")
    files.load(span)
    assert files.missing(span) == []
    for file in tmp_path.iterdir():
        file.unlink()
    assert files.read(span, ["state"]).num_rows == 0
    assert files.missing(span) == [span]


def test_file_names_tell_nothing_of_a_user(tmp_path: Path) -> None:
    from hpcdash.services.usage.run_files import RunFiles

    files = RunFiles(tmp_path, "user ../../bob", asker="alice", scheduler="slurm")
    files.add(RUNS.empty_table(), Span(0, 3 * DAY))
    files.save()
    assert [
        re.fullmatch(r"runs-[0-9a-f]{12}-1969-12-29\.arrow", one.name) is not None
        for one in tmp_path.iterdir()
    ] == [True]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"PrivateData            = jobs\nNone|\n", True),
        (b"PrivateData            = none\n", False),
        ((1, b"", b"sacctmgr: error: no database\n"), None),
    ],
)
async def test_whether_others_are_hidden_is_asked_once_and_only_with_everyone_s(
    stage: Stage, reply: Reply, expected: bool | None
) -> None:
    asked = []

    def answer(command: Command) -> Reply:
        asked.append(command.words[-1])
        return reply

    stage.cluster.transport.answers[lambda words: "configuration" in " ".join(words)] = answer
    assert (await stage.fetch(2)).hides_others is None
    assert (await stage.fetch(2, users=("alice",))).hides_others is None
    assert asked == []
    for _ in range(2):
        assert (await stage.fetch(2, everyone=True)).hides_others is expected
    assert asked == ["alice"]


async def test_what_was_hidden_is_asked_for_again_once_it_is_not(stage: Stage) -> None:
    policy = b"PrivateData            = jobs\nNone|\n"
    stage.cluster.transport.answers[lambda words: "configuration" in " ".join(words)] = (
        lambda _command: policy
    )
    stage.accounting.runs = [stage.run("1", 20 * DAY)]
    assert ids(await stage.fetch(30, everyone=True)) == ["1"]
    # Bob's was there all the time.
    stage.accounting.runs.append(stage.run("2", 21 * DAY, user="bob"))
    stage.accounting.asked.clear()
    assert ids(await stage.fetch(30, everyone=True)) == ["1"]
    assert stage.asked_seconds() == 600

    policy = b"PrivateData            = none\n"
    for _ in range(2):
        stage.accounting.asked.clear()
        stage.new_cluster()
        stage.cluster.transport.answers[lambda words: "configuration" in " ".join(words)] = (
            lambda _command: policy
        )
        fetched = await stage.fetch(30, everyone=True)
        assert (ids(fetched), fetched.hides_others) == (["1", "2"], False)
    # Once is enough.
    assert stage.asked_seconds() == 600


async def test_what_runs_is_of_the_queue_but_for_what_ended_meanwhile(stage: Stage) -> None:
    start = stage.now - 3600
    stage.accounting.runs = [stage.run("8", 0, start=str(start))]
    stage.cluster.transport.mine = [
        {
            "jobarrayid": "7",
            "jobid": "7",
            "state": "RUNNING",
            "starttime": str(start),
            "timeused": "40:00",
        },
        {
            "jobarrayid": "8",
            "jobid": "8",
            "state": "COMPLETING",
            "starttime": str(start),
            "timeused": "1:00:00",
        },
        {"jobarrayid": "9", "jobid": "9", "state": "PENDING"},
    ]
    span = Span(stage.now - DAY, stage.now + 1)
    fetched = await stage.cluster.store.archive.fetch_runs(span, with_running=True)
    assert ids(fetched) == ["8"]
    assert fetched.running is not None
    columns = ["id", "state", "started_at", "ends_at", "elapsed_seconds", "suspended_seconds"]
    (row,) = fetched.running.select(columns).to_pylist()
    assert (row["id"], row["state"], row["ends_at"]) == ("7", "running", None)
    assert (row["elapsed_seconds"], row["suspended_seconds"]) == (2400, 1200)
    before = await stage.cluster.store.archive.fetch_runs(
        Span(start - DAY, start), with_running=True
    )
    assert before.running is not None
    assert before.running.num_rows == 0
