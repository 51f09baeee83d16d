"""Places for a job by queues, accounts, QoS, limits and the room on the nodes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hpcdash.domain.demand import Demand
from hpcdash.domain.offers import (
    AccessRules,
    AccountOffer,
    Offers,
    QosOffer,
    QueueAccess,
    QueueOffer,
)
from hpcdash.domain.places import Place, PlaceFinder, find_gap, fold, rank
from hpcdash.domain.room import QueueNodes, find_room, simulate_start
from tests.support.job_rows import job_row
from tests.support.records import for_each

GIB = 1 << 30
NOW = 1_800_000_000.0


def node(name: str = "n1", **fields: Any) -> dict[str, Any]:
    usual = {
        "name": name,
        "state": "idle",
        "queues": ["gpu"],
        "cpus": 32,
        "cpus_used": 0,
        "gpus": 4,
        "gpus_used": 0,
        "gpu_type": "a100",
        "memory_bytes": 64 * GIB,
        "memory_used_bytes": 0,
        "features": [],
    }
    return usual | fields


def queue(name: str = "gpu", **fields: Any) -> QueueOffer:
    return QueueOffer(
        name,
        **{"nodes": 2, "gpus": 8, "gpu_nodes": 2, "cpus": 64, "gpu_types": ("a100",), **fields},
    )


def limit(resource: str, maximum: int, used: int | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "scope": "qos",
        "name": "normal",
        "per": "user",
        "subject": "alice",
        "resource": resource,
        "maximum": maximum,
        "used": used,
        "free": None if used is None else max(0, maximum - used),
        "queues": None,
        **fields,
    }


def offers(*queues: QueueOffer, access: AccessRules | None = None) -> Offers:
    return Offers(
        queues or (queue(),),
        accounts=(
            AccountOffer("chem", is_default=True, qos=("normal", "high")),
            AccountOffer("physics", qos=("normal",)),
        ),
        qos=(QosOffer("normal"), QosOffer("high", limit_seconds=3600)),
        access=access,
    )


def places(
    demand: Demand,
    known: Offers | None = None,
    limits: tuple[dict[str, Any], ...] = (),
    nodes: tuple[dict[str, Any], ...] = (node(), node("n2")),
) -> list[Place]:
    return PlaceFinder("lab", known or offers(), limits, QueueNodes(nodes), "alice").find(demand)


GPUS = Demand(nodes=1, gpus=4, gpus_per_node=4, cpus_per_node=4, limit_seconds=7200)


@for_each(
    ("change", "free", "shortage"),
    [
        ({}, 2, ""),
        ({"gpus_used": 2}, 0, "4 GPUs are free, but no node has 4"),
        ({"cpus_used": 30}, 0, "4 CPUs are free, but no node has 4"),
        ({"state": "allocated"}, 0, "no node is free"),
        ({"state": "drained"}, 0, "no node is free"),
    ],
)
def test_room_counts_the_nodes_with_all_that_a_job_needs_at_once(
    change: dict[str, Any], free: int, shortage: str
) -> None:
    """Cores of one node and GPUs of another are no room."""
    room = find_room([node(**change), node("n2", **change)], GPUS)
    assert (room.able, room.free, room.shortage) == (2, free, shortage)
    assert room.is_possible is True
    assert room.is_free_now is (free > 0)


def test_memory_that_is_spread_over_nodes_is_no_room() -> None:
    nodes = [node(f"n{at}", memory_used_bytes=63 * GIB) for at in range(190)]
    room = find_room(nodes, Demand(nodes=1, cpus_per_node=1, memory_per_node_bytes=8 * GIB))
    assert room.is_free_now is False
    assert room.shortage == "at most 1G of memory is free on a node"


@for_each(
    ("demand", "able"),
    [
        (Demand(nodes=1, gpus=8, gpus_per_node=8), 0),
        (Demand(nodes=1, gpus=1, gpu_type="v100"), 0),
        (Demand(nodes=1, gpus=1, gpu_type="A100"), 2),
        (Demand(nodes=1, gpus=1, gpu_memory_bytes=40 * GIB), 2),
        (Demand(nodes=1, gpus=1, gpu_memory_bytes=90 * GIB), 0),
        (Demand(nodes=1, gpus=1, gpu_formats=("fp8",)), 0),
        (Demand(nodes=1, features=("ib",)), 0),
    ],
)
def test_only_nodes_with_the_right_hardware_are_able(demand: Demand, able: int) -> None:
    assert find_room([node(), node("n2")], demand).able == able


def test_what_is_unknown_of_a_gpu_is_a_doubt_and_no_refusal() -> None:
    room = find_room([node()], Demand(nodes=1, gpus=1, gpu_memory_bytes=60 * GIB))
    assert (room.able, room.doubt) == (1, "a100 has 40G or 80G")


def test_each_account_and_qos_has_its_answer() -> None:
    found = places(GPUS)
    assert [(one.account, one.qos, one.accepts) for one in found] == [
        ("chem", "normal", True),
        ("chem", "high", False),
        ("physics", "normal", True),
    ]
    assert "exceeds the limit of QoS high" in found[1].reason
    assert found[0].reason == "2 nodes have room now"


@for_each(
    ("access", "reason"),
    [
        (QueueAccess(accounts=("staff",)), "queue gpu admits only account staff"),
        (QueueAccess(qos=("gpu",)), "queue gpu admits only QoS gpu"),
        (
            QueueAccess(max_cpus_per_node=2),
            "4 CPUs per node exceed the limit of queue gpu: 2. At most 2",
        ),
        (QueueAccess(min_nodes=2), "queue gpu requires at least 2 nodes. At least 2"),
        (QueueAccess(denied_accounts=("chem", "physics")), "queue gpu denies account chem"),
    ],
)
def test_a_queue_that_refuses_all_has_one_answer(access: QueueAccess, reason: str) -> None:
    demand = Demand(nodes=1, gpus=1, cpus_per_node=4, limit_seconds=60)
    (place, *others) = places(demand, offers(access=AccessRules({"gpu": access})))
    assert (place.accepts, place.reason) == (False, reason)
    assert not others or "denies" in reason


def test_accounts_below_an_admitted_one_are_not_refused() -> None:
    access = QueueAccess(accounts=("staff",), admits_subaccounts=True)
    found = places(GPUS, offers(access=AccessRules({"gpu": access})))
    assert found[0].accepts is True


def test_an_account_of_other_queues_is_refused() -> None:
    known = offers(queue(), queue("main"))
    bound = AccountOffer("chem", is_default=True, qos=("normal",), queues=("main",))
    known = Offers(known.queues, accounts=(bound,))
    nodes = (node(queues=["gpu", "main"]),)
    found = PlaceFinder("lab", known, nodes=QueueNodes(nodes)).find(GPUS)
    assert {one.queue: one.accepts for one in found} == {"gpu": False, "main": True}
    assert found[0].reason == "account chem may be charged only in main"


def test_a_qos_may_override_the_queue_s_time_limit() -> None:
    short = queue(limit_seconds=3600)
    demand = Demand(nodes=1, gpus=1, limit_seconds=7200)
    rules = AccessRules(over_time=frozenset({"normal"}))
    answers = {
        (one.account, one.qos): one.accepts for one in places(demand, offers(short, access=rules))
    }
    assert answers["physics", "normal"] is True
    assert answers["chem", "high"] is False
    (refused,) = places(demand, Offers((short,)))
    assert refused.accepts is False


def test_a_job_without_a_time_limit_has_the_queue_s_default() -> None:
    access = AccessRules({"gpu": QueueAccess(default_limit_seconds=7200)})
    demand = Demand(nodes=1, gpus=1)
    found = places(demand, offers(access=access), (limit("limit_seconds", 600, per="job"),))
    assert found[0].accepts is False
    assert "time limit 10:00" in found[0].reason


@for_each(
    ("row", "accepts", "reason"),
    [
        (limit("gpus", 2, 0), False, "the job would pend forever: QoS normal: 0 of 2 GPUs used"),
        (limit("gpus", 6, 4), True, "QoS normal: 4 of 6 GPUs used, for user alice"),
        (limit("gpus", 8, 4), True, "2 nodes have room now"),
        (limit("jobs_submitted", 10, 10), False, "no more jobs may be queued: QoS normal: 10"),
        (limit("jobs_running", 10, 10), True, "QoS normal: 10 of 10 running jobs"),
        (limit("gpu_minutes", 100, 0), False, "the job would pend forever"),
        (limit("gpus", 2, 0, name="other"), True, "2 nodes have room now"),
        (limit("gpus", 2, 0, queues=["gpu"]), False, "the job would pend forever"),
        (limit("gpus", 2, 0, subject="bob"), True, "2 nodes have room now"),
        (limit("gpus", 2, 0, scope="association", name="chem/alice"), False, "the job would pend"),
        (limit("gpus", 2, 0, scope="association", name="other/alice"), True, "2 nodes have"),
        (
            limit("gpus", 2, 0, scope="account", name="chem", subject=None),
            False,
            "the job would pend",
        ),
        (limit("gpus", 2, 0, scope="account", name="physics", subject=None), True, "2 nodes"),
        (
            limit("gpus", 2, 0, scope="account", name="science", subject=None),
            False,
            "the job would",
        ),
        (limit("gpus", 2, 0, scope="association", name="chem/alice/main"), True, "2 nodes have"),
    ],
)
def test_limits_refuse_what_exceeds_them_and_delay_what_exceeds_the_rest(
    row: dict[str, Any], accepts: bool, reason: str
) -> None:
    first = places(GPUS, limits=(row,))[0]
    assert first.accepts is accepts
    assert first.reason.startswith(reason)


def test_a_hidden_queue_is_searched_only_by_name() -> None:
    hidden = queue("secret", is_listed=False)
    nodes = (node(queues=["secret"]),)
    assert not places(GPUS, Offers((hidden,)), nodes=nodes)
    named = Demand(queues=("secret",), nodes=1, gpus=1)
    assert places(named, Offers((hidden,)), nodes=nodes)[0].accepts is True


def test_the_earliest_start_is_first_and_refusals_are_last() -> None:
    ranked = rank(
        [
            Place("lab", "refused", accepts=False),
            Place("lab", "unknown", accepts=True),
            Place("lab", "late", accepts=True, starts_at_epoch=NOW + 7200),
            Place("lab", "like-others", accepts=True, wait_seconds=3600),
            Place("lab", "soon", accepts=True, starts_at_epoch=NOW + 600),
        ],
        NOW,
    )
    assert [one.queue for one in ranked] == ["soon", "like-others", "late", "unknown", "refused"]
    assert [one.format_start(NOW) for one in ranked] == [
        "in 10 min",
        "in 1 h",
        "in 2 h",
        "?",
        "never",
    ]


def test_places_with_one_answer_are_one_line() -> None:
    (first, second) = fold(
        [
            Place("lab", "gpu", "chem", "high", accepts=True),
            Place("lab", "gpu", "chem", "normal", accepts=True, defaults=2),
            Place("lab", "gpu", "physics", "normal", accepts=True),
            Place("lab", "gpu", "physics", "low", accepts=False, reason="no"),
        ]
    )
    assert (first.qos, first.other_qos, first.other_accounts) == ("normal", ("high",), ("physics",))
    assert second.reason == "no"


def test_a_reservation_in_the_way_gives_the_limit_that_ends_before_it() -> None:
    reservation = {
        "name": "maintenance",
        "allowed": False,
        "starts_at": datetime.fromtimestamp(NOW + 3600, UTC),
        "node_list": "n[1-2]",
    }
    nodes = [node(), node("n2")]
    assert find_gap([reservation], nodes, GPUS, NOW) == (
        "a limit under 1 h ends before reservation maintenance"
    )
    assert not find_gap([{**reservation, "node_list": "n1"}], nodes, GPUS, NOW)
    assert not find_gap([{**reservation, "allowed": True}], nodes, GPUS, NOW)


def test_the_start_on_one_machine_is_after_the_jobs_before_it() -> None:
    def at(seconds: float) -> datetime:
        return datetime.fromtimestamp(NOW + seconds, UTC)

    machine = [node(cpus=4, gpus=0)]
    running = job_row("1", "running", cpus=4, gpus=0, ends_at=at(600), _number=1)
    waiting = job_row("2", "pending", cpus=3, gpus=0, limit_seconds=900, _number=2)
    two = Demand(cpus=2)
    assert simulate_start(two, [], machine, NOW) == NOW
    assert simulate_start(two, [running], machine, NOW) == NOW + 600
    assert simulate_start(two, [waiting, running], machine, NOW) == NOW + 1500
    assert simulate_start(Demand(cpus=1), [running, waiting], machine, NOW) == NOW + 600
    assert simulate_start(Demand(cpus=5), [], machine, NOW) is None
    assert simulate_start(two, [{**running, "ends_at": None}], machine, NOW) is None
