"""A cluster with more to look at than fits a round, that answers late, or whose file server's clock
is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.backends.job_detail import JobDetail
from hpcdash.backends.queries import Query
from hpcdash.config.read import settings_from_text
from hpcdash.domain.alerts import Severity
from hpcdash.domain.tables import Kind
from hpcdash.errors import CommandError, RateLimited
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import Chunk, FileStat
from hpcdash.services.watch.cluster import MAX_LOCATED, Watching
from hpcdash.services.watch.endings import find_ending
from hpcdash.services.watch.facts import MAX_FILES, MAX_TAILS, Facts, FactsRequest
from hpcdash.services.watch.judge import Judgement, judge
from hpcdash.services.watch.state import WatchState
from hpcdash.services.watch.watched import FRESH_SECONDS
from hpcdash.transport.local import LocalTransport
from tests.support.job_rows import build_table, job_row

NOW = 1_790_000_000.0
HOUR = 3600.0
ROUND = 600.0
HANGING = '[[watch.hanging]]\nname = "train"\nlimit_seconds = "30m"\n'


class Clock(SystemClock):
    epoch = NOW

    def now(self) -> float:
        return self.epoch


class Busy(ClusterStore):
    """Has `jobs` that run since two hours; `answer` gives what the login node tells, after
    `late_seconds`.
    """

    def __init__(
        self, jobs: int, answer: Callable[[FactsRequest], Facts] = lambda asked: Facts()
    ) -> None:
        self.ticking = Clock()
        backends = (embedded_backend(("false",)),)
        budget = CommandBudget(100_000)
        super().__init__(
            "here", LocalTransport(), backends, clock=self.ticking, budget=budget, user="ada"
        )
        started = datetime.fromtimestamp(NOW - 2 * HOUR, UTC)
        rows = [
            job_row(str(number), "running", user="ada", started_at=started)
            for number in range(1, jobs + 1)
        ]
        self.snapshots[Kind.MINE] = Snapshot(Kind.MINE, build_table(*rows), NOW)
        self.answer = answer
        self.late_seconds = 0.0
        self.located: list[str] = []

    async def open(self) -> None:
        return None

    async def fetch(self, kind: Kind, max_age_seconds: float) -> Snapshot:
        return self.snapshots[kind]

    async def run_query(self, query: Query[Any]) -> Any:
        self.ticking.epoch += self.late_seconds
        return self.answer(query.parse.keywords["requested"])  # type: ignore[attr-defined]

    async def fetch_detail(self, job_id: str, known: object = None) -> JobDetail:
        self.located.append(job_id)
        raise CommandError("not yours")


def watching(store: Busy, text: str) -> Watching:
    return Watching(store, settings_from_text(text, Path("/c.toml")).watch)


async def look(watch: Watching) -> Judgement:
    found = await watch.check()
    assert isinstance(watch.store.clock, Clock)
    watch.store.clock.epoch += ROUND
    return found


def silent(asked: FactsRequest) -> Facts:
    return Facts(
        {path: FileStat("1:1", 10, NOW - 5000, age_seconds=5000.0) for path in asked.files}
    )


async def test_what_took_long_to_answer_counts_as_of_now() -> None:
    store = Busy(1, silent)
    store.late_seconds = FRESH_SECONDS + 1
    found = await look(watching(store, HANGING + 'log = "/l/{id}"'))
    assert [one.rule for one in found.findings] == ["is-hanging"]
    assert "has not grown for 1 h 23 min" in found.findings[0].text
    assert found.unknown == set()


async def test_a_log_that_a_rule_names_is_not_on_the_node_that_has_the_jobs_own_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unreached:
        def __init__(self, *_: object) -> None: ...

        async def run(self, *_: object, **__: object) -> None:
            raise CommandError("no route")

    monkeypatch.setattr("hpcdash.services.watch.cluster.ThroughNode", Unreached)
    watch = watching(Busy(1, silent), HANGING + 'log = "/l/{id}"\n[[watch.losses]]\nname = "train"')
    watch.state.log_files, watch.state.hosts = {"1": ["/own/1"]}, {"1": "cn01"}
    found = await look(watch)
    assert [one.text for one in found.findings if one.rule == "is-hanging"] == [
        "job 1 (train): the log has not grown for 1 h 23 min: /l/1"
    ]


async def test_a_log_whose_time_nobody_knows_hangs_when_it_keeps_its_size() -> None:
    copies = count()
    store = Busy(
        1, lambda asked: Facts({path: FileStat(f"1:{next(copies)}", 10) for path in asked.files})
    )
    watch = watching(store, HANGING + 'log = "/l/{id}"')
    assert (await look(watch)).findings == []
    store.ticking.epoch += 1800
    assert [one.rule for one in (await look(watch)).findings] == ["is-hanging"]


async def test_of_more_logs_than_fit_a_round_each_has_its_turn_and_those_that_wait_are_counted() -> (
    None
):
    jobs = MAX_FILES + 50
    watch = watching(Busy(jobs, silent), HANGING + 'log = "/l/{id}"')
    hung = set()
    for _ in range(2):
        found = await look(watch)
        assert found.problems == [
            "the logs of 50 more jobs were not checked: a round checks at most 200 logs; the "
            "next round continues"
        ]
        hung |= {one.subject for one in found.findings}
    assert len(hung) == jobs


async def test_of_a_job_that_waits_for_its_turn_both_streams_are_looked_at_together() -> None:
    watch = watching(Busy(MAX_FILES, silent), HANGING)
    watch.state.log_files = {
        str(one): [f"/l/{one}.out", f"/l/{one}.err"] for one in range(1, MAX_FILES + 1)
    }
    rounds = [{one.subject for one in (await look(watch)).findings} for _ in range(2)]
    assert [len(one) for one in rounds] == [MAX_FILES // 2] * 2
    assert not rounds[0] & rounds[1]


async def test_logs_of_trainings_that_are_not_there_do_not_keep_the_others_from_their_turn() -> (
    None
):
    missing = {f"/l/{one}" for one in range(1, MAX_TAILS + 1)}

    def some(asked: FactsRequest) -> Facts:
        there = [path for path in asked.tails if path not in missing]
        return Facts(
            tails={
                path: Chunk(FileStat("1:1", 9, age_seconds=0.0), 0, b"loss 2.5\n") for path in there
            }
        )

    watch = watching(Busy(MAX_TAILS + 4, some), '[[watch.losses]]\nname = "train"\nlog = "/l/{id}"')
    first = await look(watch)
    assert first.problems == [
        f"4 more training logs were not read: a round reads at most {MAX_TAILS}; the next round "
        "continues"
    ]
    for _ in range(2):
        await look(watch)
    assert len(watch.state.tails) == 4


async def test_jobs_that_cannot_be_located_do_not_keep_the_others_from_their_turn() -> None:
    store = Busy(2 * MAX_LOCATED)
    watch = watching(store, HANGING)
    for _ in range(2):
        await look(watch)
    assert sorted(store.located, key=int) == [str(one) for one in range(1, 2 * MAX_LOCATED + 1)]


@pytest.mark.parametrize("behind", [40 * 60.0, 0.0, 3 * HOUR])
async def test_a_log_that_grows_is_fresh_however_wrong_its_servers_clock_is_and_one_that_stands_is_not(
    behind: float,
) -> None:
    size, written = 0, NOW

    def seen(asked: FactsRequest) -> Facts:
        age = max(0.0, store.ticking.epoch - written + behind)
        return Facts(
            {path: FileStat("1:1", size, written - behind, age_seconds=age) for path in asked.files}
        )

    store = Busy(1, seen)
    watch = watching(store, HANGING + 'log = "/l/{id}"')
    await look(watch)
    for _ in range(3):
        size, written = size + 100, store.ticking.epoch
        assert (await look(watch)).findings == []
    words = [[one.text for one in (await look(watch)).findings] for _ in range(4)]
    # The last growth was seen at most a round late.
    assert words[0] == []
    assert "has not grown for" in words[-1][0]


async def test_a_place_that_does_not_answer_is_a_problem_and_no_silence_of_its_logs() -> None:
    watch = watching(Busy(2, lambda asked: Facts(silent=["/l"])), HANGING + 'log = "/l/{id}"')
    found = await look(watch)
    assert found.problems == [
        "/l did not respond in time: is its file system mounted? Nothing there was checked"
    ]
    assert (found.findings, found.unknown) == ([], {"is-hanging//1", "is-hanging//2"})


async def test_a_place_that_cannot_be_looked_at_for_some_rounds_is_an_alert_until_it_can() -> None:
    def answer(asked: FactsRequest) -> Facts:
        if failure:
            raise failure[0]
        return Facts(silent=list(dead))

    dead = ["/l"]
    failure: list[Exception] = []
    watch = watching(
        Busy(2, answer), HANGING + 'log = "/l/{id}"\n[[watch.storage]]\npath = "/l/deep"'
    )
    assert [len((await look(watch)).findings) for _ in range(3)] == [0, 0, 1]
    assert len(judge(watch).findings) == 1
    watch.state = msgspec.json.decode(msgspec.json.encode(watch.state), type=WatchState)
    (found,) = (await look(watch)).findings
    assert (found.key, found.severity) == ("cannot-look///l", Severity.CRITICAL)
    assert found.text == "/l could not be checked 4 times in a row: does not respond"

    # Where the command itself fails nothing is known of the place: it stays as it was.
    failure.append(CommandError("it broke"))
    assert [len((await look(watch)).findings) for _ in range(3)] == [1, 1, 2]
    failure.clear()
    dead.clear()
    # The storage path is still told by no tool, and so far in one round only.
    assert [one for one in (await look(watch)).findings if one.rule == "cannot-look"] == []
    assert find_ending(watch, found) == "/l can be checked again"
    # Our own ceiling on commands says nothing of a place.
    failure.append(RateLimited("too many"))
    before = dict(watch.state.blind)
    await look(watch)
    assert watch.state.blind == before == {"/l/deep": ("untold", 1)}
    watch.settings = replace(watch.settings, hanging=(), storage=())
    assert find_ending(watch, found) is None
