from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from hpcdash.backends.base import Backend, Probe
from hpcdash.backends.queries import Answer, JobScope, ParsedTable, Query
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.domain.tables import Kind
from hpcdash.errors import (
    CommandMissing,
    CommandTimedOut,
    ConnectionFailed,
    ControllerDown,
    NoConfiguration,
    NoSuchJob,
    RateLimited,
    UnreadableOutput,
)
from hpcdash.services.cluster.job_counts import with_job_counts
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from tests.support.parts import changed, fixed_backend
from tests.support.scripted_cluster import Cluster
from tests.support.scripted_transport import (
    EVERYONE,
    HISTORY,
    MINE,
    NATIVE,
    NODES,
    ONE,
    PROBED,
    ScriptedTransport,
)
from tests.support.waiting import until

NATIVE_88 = (
    "JobId=88 JobName=train\n   UserId=alice(1001) GroupId=alice(1001)\n   "
    "StdOut=/home/alice/slurm-88.out\n"
)


async def test_callers_at_the_same_time_share_one_question(cluster: Cluster) -> None:
    gate = cluster.transport.hangs[MINE] = asyncio.Event()
    asking = [asyncio.create_task(cluster.store.fetch(Kind.MINE)) for _ in range(3)]
    await until(lambda: cluster.transport.count(MINE))
    asking[0].cancel()
    gate.set()
    first, second, third = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert second is third is cluster.store.snapshots[Kind.MINE]
    assert cluster.transport.count(MINE) == 1
    await cluster.store.fetch(Kind.MINE)
    assert cluster.transport.count(MINE) == 2


async def test_an_error_is_kept_with_what_was_known_and_cleared_by_the_next_answer(
    cluster: Cluster,
) -> None:
    cluster.transport.mine = [{"jobarrayid": "1"}]
    known = await cluster.store.fetch(Kind.MINE)
    error = cluster.transport.fails[MINE] = ControllerDown("down")
    cluster.told.clear()
    with pytest.raises(ControllerDown):
        await cluster.store.fetch(Kind.MINE)
    assert cluster.store.errors == {Kind.MINE: error}
    assert cluster.store.snapshots[Kind.MINE] is known
    assert [changed.kind for changed in cluster.told] == [Kind.MINE]
    cluster.transport.fails.clear()
    await cluster.store.fetch(Kind.MINE)
    assert cluster.store.errors == {}


async def test_an_answer_of_one_kind_says_that_the_line_is_good_for_all(cluster: Cluster) -> None:
    cluster.transport.fails = {NODES: ConnectionFailed("lost"), EVERYONE: ControllerDown("down")}
    for kind in (Kind.NODES, Kind.EVERYONE):
        with pytest.raises((ConnectionFailed, ControllerDown)):
            await cluster.store.fetch(kind)
    await cluster.store.fetch(Kind.MINE)
    assert list(cluster.store.errors) == [Kind.EVERYONE]


async def test_output_that_is_cut_off_is_shown_as_far_as_it_goes(cluster: Cluster) -> None:
    cluster.transport.everyone = [{"jobarrayid": str(number)} for number in range(1, 40)]
    cluster.transport.cut[EVERYONE] = 4000
    snapshot = await cluster.store.fetch(Kind.EVERYONE)
    assert 0 < snapshot.table.num_rows < 39
    assert len(snapshot.rejected) == 1


async def test_what_a_failed_command_printed_is_not_kept_with_its_error(cluster: Cluster) -> None:
    class Printed(bytearray):
        """Bytes that can be watched."""

    kept: list[weakref.ref[Printed]] = []

    def parse(answer: Answer) -> ParsedTable:
        printed = Printed(b"x" * 100)
        kept.append(weakref.ref(printed))
        raise UnreadableOutput("no nodes")

    unreadable = changed(BACKEND.queue, nodes=lambda: Query(BACKEND.queue.nodes().argv, parse))
    cluster.store.backend = replace(BACKEND, queue=unreadable)
    with pytest.raises(UnreadableOutput):
        await cluster.store.fetch(Kind.NODES)
    gc.collect()
    assert isinstance(cluster.store.errors[Kind.NODES], UnreadableOutput)
    assert kept[0]() is None


async def test_a_replaced_table_is_let_go(cluster: Cluster) -> None:
    cluster.transport.nodes = [{"nodelist": "g1"}]
    cluster.transport.everyone = [{"jobarrayid": "1"}]
    for kind in (Kind.NODES, Kind.EVERYONE, Kind.MINE):
        old = weakref.ref((await cluster.store.fetch(kind)).table)
        await cluster.store.fetch(kind)
        # A thread lets go of what it was given a moment after it has answered.
        await until(lambda old=old: gc.collect() >= 0 and old() is None)


async def test_whose_jobs_are_ours_is_configured_else_probed_else_left_to_the_command(
    tmp_path: Path,
) -> None:
    configured = Cluster(tmp_path, user="carol")
    plain = Cluster(tmp_path)
    assert (configured.store.user, plain.store.user) == ("carol", "")
    await plain.store.fetch(Kind.MINE)
    assert "--me" in plain.transport.argvs[-1]
    for cluster, user in ((configured, "carol"), (plain, "alice")):
        await cluster.store.open()
        assert cluster.store.user == user
        await cluster.store.fetch(Kind.MINE)
        argv = cluster.transport.argvs[-1]
        assert argv[argv.index("-u") + 1] == user


async def test_a_cluster_is_probed_once(cluster: Cluster) -> None:
    gate = cluster.transport.hangs[PROBED] = asyncio.Event()
    opening = [asyncio.create_task(cluster.store.open()) for _ in range(3)]
    await until(lambda: cluster.transport.asked)
    gate.set()
    probes = await asyncio.gather(*opening)
    await cluster.store.open(force=True)
    assert cluster.transport.asked == [PROBED]
    assert all(probe is cluster.store.probe for probe in probes)
    assert (probes[0].user, probes[0].cluster, probes[0].has_accounting) == ("alice", "lab", True)


async def test_an_opening_that_is_given_up_leaves_the_way_free(cluster: Cluster) -> None:
    cluster.transport.hangs[PROBED] = asyncio.Event()
    opening = asyncio.create_task(cluster.store.open())
    await until(lambda: cluster.transport.asked)
    opening.cancel()
    cluster.transport.hangs.pop(PROBED)
    assert (await cluster.store.open()).user == "alice"


async def test_what_stands_in_the_way_is_kept_until_the_line_is_open(cluster: Cluster) -> None:
    error = cluster.transport.connect_error = ConnectionFailed("no route")
    with pytest.raises(ConnectionFailed):
        await cluster.store.open()
    assert (cluster.store.connection_error,) == (error,)
    cluster.transport.connect_error = None
    await cluster.store.open()
    assert cluster.store.connection_error is None
    assert {changed.kind for changed in cluster.told} == {None}


def probed(name: str, parse: Callable[[Answer], Probe]) -> Backend:
    """Slurm by another name, whose probe is read by `parse`."""
    query = Query(BACKEND.probe.query().argv, parse)
    made = fixed_backend(BACKEND, name=name)
    return replace(made, probe=changed(made.probe, query=lambda: query))


async def test_backends_are_tried_in_order(tmp_path: Path) -> None:
    def parse(answer: Answer) -> Probe:
        raise CommandMissing("not here")

    absent = probed("absent", parse)
    cluster = Cluster(tmp_path)
    store = ClusterStore(
        "two",
        cluster.transport,
        (absent, BACKEND),
        clock=cluster.clock,
        budget=CommandBudget(30, cluster.clock),
    )
    assert store.backend.name == "absent"
    await store.open()
    assert store.backend.name == BACKEND.name
    assert (cluster.transport.count(PROBED), cluster.transport.adoptions) == (2, 0)


def without_configuration(answer: Answer) -> Probe:
    raise NoConfiguration("no configuration")


# Its commands are installed, and belong to no cluster.
UNCONFIGURED = probed("unconfigured", without_configuration)
# Its server does not answer.
SILENT = probed("silent", lambda answer: Probe("alice", "1", controller_answers=False))


async def test_a_scheduler_that_is_installed_and_belongs_to_no_cluster_makes_way_for_one_that_answers(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)

    def store_of(*backends: Backend) -> ClusterStore:
        budget = CommandBudget(30, cluster.clock)
        return ClusterStore("some", cluster.transport, backends, clock=cluster.clock, budget=budget)

    store = store_of(UNCONFIGURED, BACKEND)
    await store.open()
    assert store.backend.name == BACKEND.name
    for backends in ((UNCONFIGURED,), (UNCONFIGURED, SILENT)):
        with pytest.raises(NoConfiguration):
            await store_of(*backends).open()
    store = store_of(SILENT, BACKEND)
    await store.open()
    assert store.backend.name == "silent"


async def test_a_missing_scheduler_is_looked_for_once_as_a_login_shell_finds_it(
    cluster: Cluster,
) -> None:
    def find() -> bool:
        cluster.transport.silent.clear()
        return True

    cluster.transport.silent = {"squeue"}
    cluster.transport.adopted = find
    await cluster.store.open()
    assert (
        cluster.transport.adoptions,
        cluster.transport.count(PROBED),
        cluster.budget.per_minute,
    ) == (1, 2, 3)


async def test_commands_in_a_folder_that_is_not_on_the_path_are_found_there(
    cluster: Cluster,
) -> None:
    cluster.transport.silent = {"squeue"}
    cluster.transport.elsewhere = "/opt/slurm/bin"
    await cluster.store.open()
    assert (cluster.transport.prepended, cluster.transport.adoptions) == (["/opt/slurm/bin"], 0)


async def test_they_are_found_too_by_who_asks_without_a_probe(cluster: Cluster) -> None:
    cluster.transport.silent = {"squeue", "sinfo"}
    cluster.transport.elsewhere = "/opt/slurm/bin"
    cluster.transport.mine = [{"jobarrayid": "1"}]
    await asyncio.gather(cluster.store.fetch(Kind.MINE), cluster.store.fetch(Kind.NODES))
    assert cluster.states() == {"1": "running"}
    assert (cluster.transport.prepended, cluster.transport.count(PROBED)) == (["/opt/slurm/bin"], 1)


async def test_all_who_ask_at_once_hear_why_the_commands_are_missing(cluster: Cluster) -> None:
    cluster.transport.silent = {"squeue", "sinfo"}
    asked = (cluster.store.fetch(Kind.MINE), cluster.store.fetch(Kind.NODES))
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in errors] == [CommandMissing, CommandMissing]
    assert len({str(error) for error in errors}) == 1


async def test_a_login_shell_is_not_asked_again_until_a_person_asks(cluster: Cluster) -> None:
    cluster.transport.silent = {"squeue"}
    cluster.transport.adopted = lambda: True
    for _ in range(3):
        with pytest.raises(CommandMissing):
            await cluster.store.open()
    assert (cluster.transport.adoptions, cluster.transport.count(PROBED)) == (1, 4)
    with pytest.raises(CommandMissing):
        await cluster.store.open(force=True)
    assert cluster.transport.adoptions == 2


async def test_commands_that_are_missed_at_the_same_time_share_one_login_shell(
    cluster: Cluster,
) -> None:
    def find() -> bool:
        cluster.transport.silent.clear()
        return True

    await cluster.store.open()
    cluster.transport.silent = {"squeue", "sinfo"}
    cluster.transport.adopted = find
    await asyncio.gather(cluster.store.fetch(Kind.MINE), cluster.store.fetch(Kind.NODES))
    assert cluster.transport.adoptions == 1


async def test_a_login_shell_that_hangs_does_not_hide_what_is_missing(cluster: Cluster) -> None:
    def hang() -> bool:
        raise CommandTimedOut("the login shell gave no answer")

    cluster.transport.silent = {"squeue"}
    cluster.transport.adopted = hang
    with pytest.raises(CommandMissing):
        await cluster.store.open()


async def test_the_last_runs_tables_are_shown_until_newer_ones_are_there(tmp_path: Path) -> None:
    first = Cluster(tmp_path)
    first.transport.mine = [{"jobarrayid": "1"}]
    await first.store.fetch(Kind.MINE)
    second = Cluster(tmp_path)
    second.clock.seconds += 3600
    second.store.load_cached()
    cached = second.store.snapshots[Kind.MINE]
    assert (cached.cached, cached.taken_at) == (True, first.clock.now())
    assert second.states() == {"1": "running"}
    second.transport.fails[MINE] = ControllerDown("down")
    with pytest.raises(ControllerDown):
        await second.store.fetch(Kind.MINE)
    assert second.states() == {"1": "running"}
    second.transport.fails.clear()
    second.transport.mine = [{"jobarrayid": "1"}, {"jobarrayid": "2"}]
    await second.store.fetch(Kind.MINE)
    live = second.store.snapshots[Kind.MINE]
    assert (live.cached, live.taken_at) == (False, second.clock.now())
    second.store.load_cached()
    assert second.store.snapshots[Kind.MINE] is live


async def test_what_the_last_run_knew_of_another_scheduler_by_this_name_is_dropped(
    tmp_path: Path,
) -> None:
    first = Cluster(tmp_path)
    first.transport.mine = [{"jobarrayid": "1"}]
    await first.store.open()
    await first.store.fetch(Kind.MINE)
    same = Cluster(tmp_path)
    same.store.load_cached()
    await same.store.open()
    assert same.states() == {"1": "running"}
    other = Cluster(tmp_path)
    other.transport.cluster = "juno"
    other.store.load_cached()
    assert other.states() == {"1": "running"}
    await other.store.open()
    assert other.store.table(Kind.MINE) is None
    await until(lambda: Kind.MINE in [changed.kind for changed in other.told])


async def test_the_last_runs_queue_says_nothing_of_todays_nodes(tmp_path: Path) -> None:
    first = Cluster(tmp_path)
    first.transport.everyone = [{"jobarrayid": "1", "nodelist": "g1"}]
    await first.store.fetch(Kind.EVERYONE)
    second = Cluster(tmp_path)
    second.store.load_cached()
    second.transport.nodes = [{"nodelist": "g1"}]
    second.transport.everyone = [{"jobarrayid": str(number), "nodelist": "g1"} for number in (1, 2)]
    assert (await second.store.fetch(Kind.NODES)).table["jobs"].to_pylist() == [None]
    await second.store.fetch(Kind.EVERYONE)
    assert second.store.snapshots[Kind.NODES].table["jobs"].to_pylist() == [2]


async def test_nodes_that_come_while_jobs_are_counted_are_not_replaced_by_older_ones(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, go_on = asyncio.Event(), asyncio.Event()
    to_thread = asyncio.to_thread

    async def count_slowly(function, *arguments, **named):  # type: ignore[no-untyped-def]
        result = await to_thread(function, *arguments, **named)
        if function is with_job_counts and not counting.is_set():
            counting.set()
            await go_on.wait()
        return result

    cluster.transport.nodes = [{"nodelist": "old"}]
    await cluster.store.fetch(Kind.NODES)
    monkeypatch.setattr(asyncio, "to_thread", count_slowly)
    asking = asyncio.create_task(cluster.store.fetch(Kind.EVERYONE))
    await counting.wait()
    cluster.transport.nodes = [{"nodelist": "new"}]
    await cluster.store.fetch(Kind.NODES)
    go_on.set()
    await asking
    assert cluster.store.snapshots[Kind.NODES].table["name"].to_pylist() == ["new"]


async def test_the_ceiling_refuses_before_anything_is_sent(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, ceiling=1)
    await cluster.store.fetch(Kind.MINE)
    with pytest.raises(RateLimited, match="1 commands per minute"):
        await cluster.store.fetch(Kind.MINE)
    assert cluster.transport.asked == [MINE]


async def test_closing_ends_what_is_being_asked_and_the_line(cluster: Cluster) -> None:
    cluster.transport.hangs[MINE] = asyncio.Event()
    asking = asyncio.create_task(cluster.store.fetch(Kind.MINE))
    await until(lambda: cluster.transport.asked)
    await cluster.store.close()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert cluster.transport.is_closed
    assert Kind.MINE not in cluster.store.snapshots


async def test_a_listener_hears_until_it_stops_listening(cluster: Cluster) -> None:
    heard: list[Kind | None] = []
    stop = cluster.store.listen(lambda changed: heard.append(changed.kind))
    await cluster.store.fetch(Kind.MINE)
    stop()
    stop()
    await cluster.store.fetch(Kind.NODES)
    assert heard == [Kind.MINE]


async def test_a_job_is_told_in_full_from_the_queue(cluster: Cluster) -> None:
    cluster.transport.recent = [{"jobarrayid": "88"}]
    cluster.transport.native = {"88": NATIVE_88}
    detail = await cluster.store.fetch_detail("88")
    assert detail.job["id"].to_pylist() == ["88"]
    assert detail.job["stdout_path"].to_pylist() == ["/home/alice/slurm-88.out"]
    assert detail.native["JobName"] == "train"
    assert sorted(cluster.transport.asked) == sorted([ONE, NATIVE])


async def test_a_job_that_left_the_queue_is_told_from_history(cluster: Cluster) -> None:
    cluster.transport.history = [{"jobid": "88", "state": "TIMEOUT"}]
    detail = await cluster.store.fetch_detail("88")
    assert detail.job["state"].to_pylist() == ["timeout"]
    assert detail.native["state"] == "TIMEOUT"
    assert cluster.transport.count(HISTORY) == 2


async def test_a_job_that_is_in_neither_is_no_job(cluster: Cluster) -> None:
    with pytest.raises(
        NoSuchJob, match="job 88 was not found in the queue or in the job history"
    ) as absent:
        await cluster.store.fetch_detail("88")
    assert absent.value.evidence == "", "no command failed"


async def test_a_job_whose_history_cannot_be_asked_is_not_said_to_be_unknown_to_it(
    cluster: Cluster,
) -> None:
    cluster.transport.fails[HISTORY] = ControllerDown("the database is away")
    with pytest.raises(NoSuchJob, match="the job history cannot be queried: the database is away"):
        await cluster.store.fetch_detail("88")


async def test_an_error_of_the_queue_is_not_taken_for_an_absent_job(cluster: Cluster) -> None:
    cluster.transport.fails[ONE] = ControllerDown("down")
    with pytest.raises(ControllerDown):
        await cluster.store.fetch_detail("88")
    assert cluster.transport.count(HISTORY) == 0


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("7_5", "7_[3-9%1]"),
        ("7_1", "7_1"),
        ("7", "7_1"),
        ("7_[3-9%1]", "7_[3-9%1]"),
        ("7_[2-9%1]", "7_[3-9%1]"),
    ],
)
async def test_a_task_is_found_in_the_record_that_holds_it(
    cluster: Cluster, asked: str, found: str
) -> None:
    cluster.transport.recent = [
        {"jobarrayid": "7_1", "arrayjobid": "7", "arraytaskid": "1"},
        {"jobarrayid": "7_[3-9%1]", "arrayjobid": "7", "arraytaskid": "3-9%1", "state": "PENDING"},
    ]
    cluster.transport.native = {"7": NATIVE_88}
    assert (await cluster.store.fetch_detail(asked)).job["id"].to_pylist() == [found]


async def test_a_task_that_its_array_no_longer_holds_is_told_from_history(cluster: Cluster) -> None:
    cluster.transport.recent = [
        {"jobarrayid": "7_[3-9%1]", "arrayjobid": "7", "arraytaskid": "3-9%1", "state": "PENDING"}
    ]
    cluster.transport.native = {"7": NATIVE_88}
    cluster.transport.history = [{"jobid": "7_1", "state": "COMPLETED"}]
    assert (await cluster.store.fetch_detail("7_1")).job["state"].to_pylist() == ["completed"]


async def test_a_store_without_a_cache_remembers_nothing(tmp_path: Path) -> None:
    transport = ScriptedTransport()
    made = Cluster(tmp_path)
    store = ClusterStore(
        "bare", transport, (BACKEND,), clock=made.clock, budget=CommandBudget(30, made.clock)
    )
    store.load_cached()
    await store.fetch(Kind.MINE)
    assert store.table(Kind.NODES) is None
    assert isinstance(store.table(Kind.MINE), pa.Table)
    assert os.listdir(tmp_path) == []


async def test_a_question_put_by_a_script_that_hangs_is_named_as_a_person_would_name_it(
    cluster: Cluster,
) -> None:
    cluster.transport.fails[ONE] = CommandTimedOut(
        "sh had not finished", argv=("sh", "-c", "…"), output="said on stderr"
    )
    asked = cluster.store.backend.queue.jobs(JobScope(job_ids=("88",)))
    asked = replace(asked, command=("qstat", "-f"), limit_seconds=30.0)
    with pytest.raises(CommandTimedOut, match=r"qstat did not respond within 30 s") as raised:
        await cluster.store.run_query(asked)
    assert raised.value.argv == ("qstat", "-f")
    assert raised.value.output == "said on stderr"
    # A one-shot asks no second time, and the queue may stand on a disk that hangs.
    assert raised.value.next_step.endswith(
        "or its storage may be hung or busy; running jobs are not affected."
    )


async def test_counts_that_are_joined_again_go_down_as_well(cluster: Cluster) -> None:
    cluster.transport.everyone = [
        {"jobarrayid": "1", "state": "RUNNING", "nodelist": "cn01", "partition": "gpu"}
    ]
    cluster.transport.nodes = [{"nodelist": "cn01"}]
    await cluster.store.fetch(Kind.EVERYONE)
    await cluster.store.fetch(Kind.NODES)
    before = cluster.store.snapshots[Kind.NODES].table["jobs"].to_pylist()
    cluster.transport.everyone = []
    await cluster.store.fetch(Kind.EVERYONE)
    after = cluster.store.snapshots[Kind.NODES].table["jobs"].to_pylist()
    assert sum(before) == 1
    assert sum(after) == 0


async def test_the_first_to_listen_hears_once_of_what_changed_before(cluster: Cluster) -> None:
    store = ClusterStore(
        "lab",
        cluster.transport,
        (BACKEND,),
        clock=cluster.clock,
        budget=CommandBudget(600, cluster.clock),
    )
    first: list[Kind | None] = []
    second: list[Kind | None] = []
    await store.fetch(Kind.MINE)
    await store.fetch(Kind.MINE)
    store.listen(lambda changed: first.append(changed.kind))
    store.listen(lambda changed: second.append(changed.kind))
    await until(lambda: first)
    await store.fetch(Kind.NODES)
    await until(lambda: second)
    assert first == [Kind.MINE, Kind.NODES]
    assert second == [Kind.NODES]
