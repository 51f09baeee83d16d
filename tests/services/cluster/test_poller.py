from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from hpcdash.domain.tables import Kind
from hpcdash.errors import (
    AuthenticationFailed,
    CommandTimedOut,
    ConfigError,
    ConnectionFailed,
    ControllerDown,
    HostKeyChanged,
    HostKeyRefused,
    HpcdashError,
    NotRecorded,
    NotSent,
    UnreadableOutput,
    UsageError,
    without_env,
)
from hpcdash.services.cluster.poller import NEEDS_A_PERSON
from hpcdash.services.cluster.store import Changed
from hpcdash.transport.base import CommandResult
from tests.support.scripted_cluster import Cluster, settled
from tests.support.scripted_transport import EVERYONE, HISTORY, MINE, NODES, PROBED, QUEUES
from tests.support.waiting import until

SHOWN = (Kind.MINE, Kind.EVERYONE, Kind.NODES)


async def after(cluster: Cluster, seconds: float) -> None:
    """Lets time pass and the poller see it."""
    cluster.clock.seconds += seconds
    cluster.poller.focus(cluster.poller.focused)
    await settled(cluster)


async def started(cluster: Cluster, *kinds: Kind) -> None:
    cluster.poller.show(kinds)
    cluster.poller.start()
    await settled(cluster)


async def failed_polls(cluster: Cluster, polls: int) -> None:
    for _ in range(polls):
        await cluster.poller.poll([Kind.MINE])


async def test_ones_own_jobs_are_asked_with_one_command_a_poll(cluster: Cluster) -> None:
    await started(cluster)
    assert cluster.transport.asked == [PROBED, MINE]
    await after(cluster, 14.9)
    assert cluster.transport.asked == [PROBED, MINE]
    await after(cluster, 0.2)
    assert cluster.transport.asked == [PROBED, MINE, MINE]
    assert cluster.budget.per_minute == 3


async def test_everyones_jobs_nodes_and_queues_are_asked_only_while_they_are_shown(
    cluster: Cluster,
) -> None:
    await started(cluster, Kind.EVERYONE, Kind.NODES)
    assert sorted(cluster.transport.asked) == sorted([PROBED, MINE, EVERYONE, NODES])
    cluster.poller.show([])
    await after(cluster, 61)
    assert sorted(cluster.transport.asked) == sorted([PROBED, MINE, EVERYONE, NODES, MINE])


async def test_what_is_shown_in_passing_is_polled_every_two_minutes_and_rarely_if_large(
    cluster: Cluster,
) -> None:
    cluster.poller.show([], in_passing=[Kind.NODES])
    cluster.poller.start()
    await settled(cluster)
    assert cluster.transport.asked.count(NODES) == 1
    await after(cluster, 61)
    cluster.poller.poll_now()
    await settled(cluster)
    assert cluster.transport.asked.count(NODES) == 1
    await after(cluster, 60)
    assert cluster.transport.asked.count(NODES) == 2
    await after(cluster, 20)
    cluster.poller.passing_changed()
    await settled(cluster)
    assert cluster.transport.asked.count(NODES) == 2
    await after(cluster, 11)
    assert cluster.transport.asked.count(NODES) == 3
    cluster.store.answer_bytes[Kind.NODES] = 2_000_000
    await after(cluster, 121)
    assert cluster.transport.asked.count(NODES) == 3
    cluster.poller.poll_now(with_passing=True)
    await settled(cluster)
    assert cluster.transport.asked.count(NODES) == 4
    # Shown for itself it has its own pace.
    cluster.poller.show([Kind.NODES], in_passing=[Kind.NODES])
    await after(cluster, 61)
    assert cluster.transport.asked.count(NODES) == 5


async def test_a_view_that_is_shown_again_is_not_asked_for_anew(cluster: Cluster) -> None:
    await started(cluster, Kind.NODES)
    for kinds in ([], [Kind.NODES], [Kind.QUEUES], [Kind.NODES], [Kind.QUEUES]):
        cluster.poller.show(kinds)
        await settled(cluster)
    assert (
        cluster.transport.count(NODES),
        cluster.transport.count(QUEUES),
        cluster.transport.count(MINE),
    ) == (1, 1, 1)


async def test_views_share_a_question(cluster: Cluster) -> None:
    await started(cluster, Kind.EVERYONE, Kind.EVERYONE, Kind.MINE)
    await asyncio.gather(*(cluster.poller.poll([Kind.EVERYONE]) for _ in range(3)))
    assert cluster.transport.count(EVERYONE) == 2
    assert cluster.transport.count(MINE) == 1


async def test_without_focus_everything_is_asked_four_times_less_often(cluster: Cluster) -> None:
    await started(cluster, Kind.NODES)
    cluster.poller.focus(False)
    assert [cluster.poller.interval_seconds(kind) for kind in (Kind.MINE, Kind.NODES)] == [60, 240]
    await after(cluster, 59)
    assert cluster.transport.count(MINE) == 1
    cluster.poller.focus(True)
    await settled(cluster)
    assert cluster.transport.count(MINE) == 2


@pytest.mark.parametrize(
    ("took_seconds", "interval"), [(0.03, 15), (1.5, 15), (2.0, 20), (30.0, 300)]
)
async def test_never_more_than_a_tenth_of_the_controllers_time_is_taken(
    cluster: Cluster, took_seconds: float, interval: float
) -> None:
    def answer_slowly(word: str) -> None:
        cluster.clock.seconds += took_seconds if word == MINE else 0

    cluster.transport.on_run = answer_slowly
    await started(cluster)
    assert cluster.poller.interval_seconds(Kind.MINE) == pytest.approx(interval)
    assert cluster.poller.next_in_seconds(Kind.MINE) == pytest.approx(interval)
    assert cluster.poller.interval_seconds(Kind.NODES) == 60


async def test_what_a_person_took_to_log_in_is_not_the_controllers_time(cluster: Cluster) -> None:
    await started(cluster)
    connect = cluster.transport.connect

    async def connect_slowly(*, force: bool = False) -> None:
        cluster.clock.seconds += 120
        await connect(force=force)

    cluster.transport.connect = connect_slowly  # type: ignore[method-assign]
    await after(cluster, 16)
    assert cluster.transport.count(MINE) == 2
    assert cluster.poller.interval_seconds(Kind.MINE) == 15


async def test_after_failures_the_next_question_waits_twice_as_long_up_to_five_minutes(
    cluster: Cluster,
) -> None:
    cluster.transport.fails[MINE] = ControllerDown("down")
    waits = []
    for _ in range(9):
        await failed_polls(cluster, 1)
        waits.append(cluster.poller.next_in_seconds(Kind.MINE))
    expected = [5, 15, 20, 40, 80, 160, 300, 300, 300]
    for wait, middle in zip(waits, expected, strict=True):
        assert 0.75 * middle <= wait <= min(1.25 * middle, 300)
    assert waits[1] == 15


async def test_a_week_of_failures_is_borne(cluster: Cluster) -> None:
    cluster.transport.fails[MINE] = ControllerDown("down")
    await failed_polls(cluster, 1200)
    assert cluster.poller.next_in_seconds(Kind.MINE) == 300


async def test_an_answer_ends_the_back_off(cluster: Cluster) -> None:
    cluster.transport.fails[MINE] = ControllerDown("down")
    await failed_polls(cluster, 5)
    cluster.transport.fails.clear()
    await cluster.poller.poll([Kind.MINE])
    assert cluster.poller.interval_seconds(Kind.MINE) == 15
    assert not cluster.store.errors


async def test_a_command_that_was_given_up_on_is_asked_again_within_minutes_at_most_a_tenth_of_the_time(
    cluster: Cluster,
) -> None:
    def hang(word: str) -> None:
        cluster.clock.seconds += 20 if word == MINE else 0

    cluster.transport.on_run = hang
    cluster.transport.fails[MINE] = CommandTimedOut("no answer")
    waits = []
    for _ in range(4):
        await cluster.poller.poll([Kind.MINE])
        waits.append(cluster.poller.next_in_seconds(Kind.MINE))
    assert waits == pytest.approx([60, 120, 200, 200])


async def test_a_slow_line_is_not_charged_to_the_controller(cluster: Cluster) -> None:
    run = cluster.transport.run

    async def over_a_slow_line(argv: tuple[str, ...], **options: Any) -> CommandResult:
        answer = await run(argv, **options)
        cluster.clock.seconds += 12
        return replace(answer, seconds=12.0, answer_seconds=0.1)

    cluster.transport.run = over_a_slow_line  # type: ignore[method-assign]
    await cluster.poller.poll([Kind.MINE])
    assert cluster.poller.interval_seconds(Kind.MINE) == 15
    assert not cluster.poller.is_spared(Kind.MINE)


async def test_an_answer_that_was_still_coming_at_its_time_limit_is_the_lines_fault(
    cluster: Cluster,
) -> None:
    def hang(word: str) -> None:
        cluster.clock.seconds += 60 if word == MINE else 0

    cluster.transport.on_run = hang
    cut = CommandTimedOut("no answer")
    cut.answer_seconds = 0.2
    cluster.transport.fails[MINE] = cut
    await cluster.poller.poll([Kind.MINE])
    assert cluster.poller.next_in_seconds(Kind.MINE) <= 15


async def test_a_line_that_was_lost_is_tried_at_once_then_as_its_transport_says(
    cluster: Cluster,
) -> None:
    await cluster.poller.poll([Kind.MINE])
    cluster.transport.fails[MINE] = ConnectionFailed("lost")
    await cluster.poller.poll([Kind.MINE])
    assert cluster.poller.next_in_seconds(Kind.MINE) == 0
    cluster.transport.health.retry_at = time.time() + 5
    await cluster.poller.poll([Kind.MINE])
    assert 4 < cluster.poller.next_in_seconds(Kind.MINE) <= 5


async def test_a_command_that_never_left_is_not_counted(cluster: Cluster) -> None:
    await cluster.poller.poll([Kind.MINE])
    sent = cluster.budget.per_minute
    cluster.transport.fails[MINE] = NotSent("no line")
    await failed_polls(cluster, 3)
    assert cluster.budget.per_minute == sent
    cluster.transport.fails[MINE] = ConnectionFailed("the line broke")
    await failed_polls(cluster, 1)
    assert cluster.budget.per_minute == sent + 1


async def test_what_was_given_up_on_has_longer_the_next_time(cluster: Cluster) -> None:
    limits: list[float] = []
    run = cluster.transport.run

    async def noted(argv: tuple[str, ...], **options: Any) -> CommandResult:
        if without_env(argv)[0] == "squeue":
            limits.append(options["limit_seconds"])
        return await run(argv, **options)

    cluster.transport.run = noted  # type: ignore[method-assign]
    cluster.transport.fails[MINE] = CommandTimedOut("no answer", "It may hang.")
    for _ in range(4):
        await cluster.poller.poll([Kind.MINE])
        cluster.transport.fails[MINE] = CommandTimedOut("no answer", "It may hang.")
    assert limits == [60, 120, 120, 120]
    assert (
        cluster.store.errors[Kind.MINE].next_step
        == "It may hang. It may just be slow: the next attempt waits up to 120 s."
    )
    cluster.transport.fails.clear()
    await cluster.poller.poll([Kind.MINE])
    await cluster.poller.poll([Kind.MINE])
    assert limits[-2:] == [120, 60], "an answer that came soon needs no more"


async def test_a_slow_answer_is_asked_for_every_five_minutes_at_the_least(cluster: Cluster) -> None:
    def answer_slowly(word: str) -> None:
        cluster.clock.seconds += 60 if word == MINE else 0

    cluster.transport.on_run = answer_slowly
    await started(cluster)
    assert cluster.poller.interval_seconds(Kind.MINE) == 300
    assert (cluster.poller.is_spared(Kind.MINE), cluster.poller.is_spared(Kind.NODES)) == (
        True,
        False,
    )


async def test_a_failing_kind_does_not_stop_the_others(cluster: Cluster) -> None:
    cluster.transport.fails[NODES] = UnreadableOutput("not a list of nodes")
    await started(cluster, *SHOWN)
    for _ in range(3):
        await after(cluster, 61)
    assert cluster.transport.count(MINE) == cluster.transport.count(EVERYONE) == 4
    assert list(cluster.store.errors) == [Kind.NODES]


async def test_a_kind_that_hangs_does_not_hold_up_the_others(cluster: Cluster) -> None:
    cluster.transport.hangs[HISTORY] = asyncio.Event()
    await started(cluster, Kind.HISTORY)
    for _ in range(3):
        await after(cluster, 16)
    assert cluster.transport.count(MINE) == 4
    assert cluster.transport.count(HISTORY) == 1
    cluster.transport.hangs.pop(HISTORY).set()
    await until(lambda: Kind.HISTORY in cluster.store.snapshots)


async def test_it_is_known_how_long_an_answer_is_waited_for(cluster: Cluster) -> None:
    cluster.transport.hangs[HISTORY] = asyncio.Event()
    await started(cluster, Kind.HISTORY)
    await after(cluster, 7)
    assert cluster.poller.unanswered_seconds() == 7
    assert (
        cluster.poller.unanswered_seconds(Kind.HISTORY),
        cluster.poller.unanswered_seconds(Kind.MINE),
    ) == (7, 0)
    cluster.transport.hangs.pop(HISTORY).set()
    await until(lambda: Kind.HISTORY in cluster.store.snapshots)
    await settled(cluster)
    assert cluster.poller.unanswered_seconds() == 0


async def test_ask_now_asks_for_all_that_is_shown_at_once(cluster: Cluster) -> None:
    await started(cluster, *SHOWN)
    cluster.poller.poll_now()
    assert cluster.poller.next_in_seconds(Kind.NODES) == 0
    await settled(cluster)
    assert [cluster.transport.count(word) for word in (PROBED, MINE, EVERYONE, NODES, QUEUES)] == [
        1,
        2,
        2,
        2,
        0,
    ]
    assert True in cluster.transport.connects
    await after(cluster, 1)
    assert cluster.transport.count(MINE) == 2


async def test_ask_now_leaves_the_back_off(cluster: Cluster) -> None:
    cluster.transport.connect_error = ConnectionFailed("no route")
    await started(cluster)
    for _ in range(4):
        await after(cluster, 300)
    connects = len(cluster.transport.connects)
    await after(cluster, 30)
    assert len(cluster.transport.connects) == connects
    cluster.transport.connect_error = None
    cluster.poller.poll_now()
    await settled(cluster)
    assert cluster.transport.connects[connects:] == [True]
    assert cluster.store.connection_error is None
    assert cluster.transport.count(MINE) == 1


async def test_a_question_on_its_way_does_not_swallow_ask_now(cluster: Cluster) -> None:
    cluster.transport.hangs[MINE] = asyncio.Event()
    await started(cluster)
    cluster.poller.poll_now()
    await settled(cluster)
    assert cluster.transport.count(MINE) == 1
    cluster.transport.hangs.pop(MINE).set()
    await until(lambda: cluster.transport.count(MINE) == 2)


@pytest.mark.parametrize("kind_of_error", NEEDS_A_PERSON)
async def test_what_a_person_must_settle_is_asked_again_only_when_they_say_so(
    cluster: Cluster, kind_of_error: type[HpcdashError]
) -> None:
    error = cluster.transport.connect_error = kind_of_error("who are you?")
    await started(cluster, *SHOWN)
    assert (cluster.poller.waiting_for_person,) == (error,)
    assert (cluster.store.connection_error,) == (error,)
    for _ in range(3):
        await after(cluster, 10_000)
    cluster.poller.show([Kind.QUEUES])
    await settled(cluster)
    assert len(cluster.transport.connects) == 1
    cluster.poller.poll_now()
    await settled(cluster)
    assert cluster.transport.connects == [False, True]
    assert (cluster.poller.waiting_for_person,) == (error,)
    cluster.transport.connect_error = None
    cluster.poller.poll_now()
    await settled(cluster)
    assert cluster.poller.waiting_for_person is None
    assert cluster.store.connection_error is None
    await after(cluster, 16)
    assert cluster.transport.count(MINE) == 2


async def test_a_login_asked_again_in_the_midst_stops_the_polling_as_well(cluster: Cluster) -> None:
    await started(cluster)
    cluster.transport.fails[MINE] = AuthenticationFailed("the ticket has expired")
    await after(cluster, 16)
    assert isinstance(cluster.poller.waiting_for_person, AuthenticationFailed)
    cluster.transport.fails.clear()
    await after(cluster, 1000)
    assert cluster.transport.count(MINE) == 2
    cluster.poller.poll_now()
    await settled(cluster)
    assert cluster.transport.count(MINE) == 3


async def test_our_own_ceiling_is_no_failure(cluster: Cluster) -> None:
    await started(cluster)
    cluster.budget.ceiling = 2
    await after(cluster, 16)
    assert cluster.transport.count(MINE) == 1
    assert not cluster.store.errors
    assert cluster.poller.interval_seconds(Kind.MINE) == 15
    await after(cluster, 46)
    assert cluster.transport.count(MINE) == 2
    assert not cluster.store.errors


@pytest.mark.parametrize("place", ["connecting", "probing", "asking"])
@pytest.mark.parametrize(
    "error",
    [
        ConfigError("unreadable", file="config"),
        UsageError("wrong"),
        ConnectionFailed("lost"),
        AuthenticationFailed("no"),
        HostKeyChanged("changed"),
        HostKeyRefused("refused"),
        CommandTimedOut("hung"),
        ControllerDown("down"),
        NotRecorded("nothing"),
        HpcdashError("something"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_poller_survives_every_error_of_ours(
    cluster: Cluster, place: str, error: HpcdashError
) -> None:
    if place == "connecting":
        cluster.transport.connect_error = error
    else:
        cluster.transport.fails[PROBED if place == "probing" else MINE] = error
    await started(cluster)
    assert error in (cluster.store.connection_error, cluster.store.errors.get(Kind.MINE))
    cluster.transport.connect_error = None
    cluster.transport.fails.clear()
    cluster.poller.poll_now()
    await settled(cluster)
    assert Kind.MINE in cluster.store.snapshots
    assert cluster.store.connection_error is None
    assert not cluster.store.errors


async def test_a_mistake_of_our_own_is_reported_and_not_repeated_at_once(cluster: Cluster) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def break_down(word: str) -> None:
        if word == NODES:
            raise ZeroDivisionError

    cluster.transport.on_run = break_down
    await started(cluster, *SHOWN)
    await after(cluster, 16)
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]
    assert (cluster.transport.count(NODES), cluster.transport.count(MINE)) == (1, 2)
    await after(cluster, 61)
    assert cluster.transport.count(NODES) == 2


async def test_a_listener_that_raises_stops_neither_the_poller_nor_other_listeners(
    cluster: Cluster,
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    heard: list[Changed] = []

    def break_down(changed: Changed) -> None:
        raise ZeroDivisionError

    cluster.store.listen(break_down)
    cluster.store.listen(heard.append)
    await started(cluster)
    await after(cluster, 16)
    assert cluster.transport.count(MINE) == 2
    assert [changed.kind for changed in heard].count(Kind.MINE) == 2
    assert all(type(context["exception"]) is ZeroDivisionError for context in reported)


async def test_a_stopped_poller_asks_nothing_and_can_be_started_again(cluster: Cluster) -> None:
    cluster.transport.hangs[MINE] = asyncio.Event()
    await started(cluster)
    await cluster.poller.stop()
    await after(cluster, 1000)
    assert cluster.transport.count(MINE) == 1
    cluster.transport.hangs.pop(MINE).set()
    await settled(cluster)
    await started(cluster)
    assert cluster.transport.count(MINE) == 2
    await cluster.poller.stop()
    await cluster.poller.stop()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_a_poller_stopped_before_its_first_question_can_be_started_again(
    cluster: Cluster,
) -> None:
    cluster.poller.start()
    await asyncio.sleep(0)
    await cluster.poller.stop()
    await started(cluster)
    assert cluster.transport.count(MINE) == 1


async def test_the_poller_rests_between_questions(cluster: Cluster) -> None:
    turns = 0
    wait = cluster.poller._wake.wait

    async def counted_wait() -> Any:
        nonlocal turns
        turns += 1
        return await wait()

    cluster.poller._wake.wait = counted_wait  # type: ignore[method-assign]
    await started(cluster, *SHOWN)
    before = turns
    await settled(cluster)
    assert turns == before <= 8
