"""What a cluster offers: from the tables that are there, asked where they are old, and told where
it cannot be.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hpcdash.backends.embedded.backend import embedded_backend
from hpcdash.backends.pbs.backend import BACKEND as PBS
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.domain.offers import AccountOffer, QueueOffer
from hpcdash.domain.tables import Kind
from hpcdash.errors import AccountingUnavailable, ConnectionFailed, ControllerDown
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.state.folders import queue_program
from hpcdash.services.submit.queues import fetch_offers
from hpcdash.transport.local import LocalTransport
from hpcdash.transport.replay import ReplayTransport
from tests.support.pbs.cluster import StandIns
from tests.support.scripted_cluster import Cluster
from tests.support.scripted_transport import NODES, QUEUES, ScriptedTransport

EVERYDAY = Path(__file__).resolve().parents[3] / "fixtures" / "slurm" / "22.05" / "everyday"
EVERYDAY_OF_PBS = EVERYDAY.parents[2] / "pbs" / "23.06" / "everyday"
ACCOUNTING = "sacctmgr"


def accounted(**arguments: str) -> ScriptedTransport:
    """A cluster whose accounting answers as well."""
    transport = ScriptedTransport(**arguments)
    transport.answers = {
        ACCOUNTING: "alice|physics|physics||normal,tiny|normal\nalice|chem\n",
        "sacctmgr* qos ": "normal||||||||\ntiny|00:10:00|||||||\n",
    }
    return transport


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, transport=accounted())
    made.transport.queues = [
        {},
        {"partition": "main*", "gres": "(null)", "gresused": "(null)", "time": "infinite"},
    ]
    made.transport.nodes = [
        {},
        {
            "nodelist": "g2",
            "statecomplete": "idle+drain",
            "cpusstate": "0/0/8/8",
            "gresused": "gpu:a100:0(IDX:N/A)",
        },
        {
            "nodelist": "n1",
            "partition": "main",
            "gres": "(null)",
            "gresused": "(null)",
            "memory": "8000",
        },
    ]
    yield made
    await made.close()


async def test_a_queue_has_what_its_nodes_have_and_what_is_free_on_those_that_are_up(
    cluster: Cluster,
) -> None:
    gpu = (await fetch_offers(cluster.store)).queue("gpu")
    assert gpu == QueueOffer(
        "gpu",
        limit_seconds=172_800,
        nodes=2,
        nodes_idle=1,
        cpus=16,
        # g2 is drained: what is free there is not to be had.
        cpus_idle=2,
        gpus=8,
        gpus_idle=2,
        gpu_types=("a100",),
        cpus_per_node=8,
        gpus_per_node=4,
        memory_per_node_bytes=16000 << 20,
        gpu_nodes=2,
    )


async def test_the_default_queue_is_the_one_without_a_name(cluster: Cluster) -> None:
    queue = (await fetch_offers(cluster.store)).queue("")
    assert queue is not None
    assert (queue.name, queue.limit_seconds, queue.gpus_per_node, queue.gpu_types) == (
        "main",
        None,
        0,
        (),
    )


async def test_accounts_and_qos_are_one_s_own_and_a_row_that_is_none_is_told(
    cluster: Cluster,
) -> None:
    offers = await fetch_offers(cluster.store)
    assert offers.accounts == (AccountOffer("physics", True, ("normal", "tiny")),)
    assert [(one.name, one.limit_seconds) for one in offers.qos] == [
        ("normal", None),
        ("tiny", 600),
    ]
    assert offers.notes == ("1 row of accounts could not be read: alice|chem",)
    assert any(
        "name=alice" in words and "cluster=lab" in words for words in cluster.transport.argvs
    )


async def test_the_accounts_of_whoever_jobs_are_submitted_as_can_be_asked(cluster: Cluster) -> None:
    await fetch_offers(cluster.store, user="ada")
    assert any("name=ada" in words for words in cluster.transport.argvs)


async def test_tables_that_are_fresh_are_not_asked_again(cluster: Cluster) -> None:
    await fetch_offers(cluster.store)
    assert [cluster.transport.count(word) for word in (NODES, QUEUES, ACCOUNTING)] == [1, 1, 2]
    cluster.clock.seconds += 60
    await fetch_offers(cluster.store)
    assert [cluster.transport.count(word) for word in (NODES, QUEUES)] == [1, 1]
    cluster.clock.seconds += 60
    await fetch_offers(cluster.store)
    assert [cluster.transport.count(word) for word in (NODES, QUEUES)] == [2, 2]


async def test_an_accounting_that_is_away_is_a_note_and_the_queues_stand(cluster: Cluster) -> None:
    cluster.transport.fails[ACCOUNTING] = AccountingUnavailable("the database is away")
    offers = await fetch_offers(cluster.store)
    assert [queue.name for queue in offers.queues] == ["gpu", "main"]
    assert (offers.accounts, offers.qos) == ((), ())
    assert set(offers.notes) == {
        "accounts are unknown: the database is away",
        "QoS are unknown: the database is away",
    }


async def test_a_cluster_without_accounting_is_not_asked_for_accounts(tmp_path: Path) -> None:
    made = Cluster(tmp_path, transport=accounted(storage="accounting_storage/none"))
    offers = await fetch_offers(made.store)
    await made.close()
    assert made.transport.count(ACCOUNTING) == 0
    assert offers.notes == ("no accounting on this cluster: no accounts or QoS to choose from",)


async def test_a_controller_that_is_down_leaves_what_was_known_with_its_age(
    cluster: Cluster,
) -> None:
    await cluster.store.fetch(Kind.QUEUES)
    cluster.clock.seconds += 600
    cluster.transport.fails = {
        QUEUES: ControllerDown("slurmctld is away"),
        NODES: ControllerDown("slurmctld is away"),
    }
    offers = await fetch_offers(cluster.store)
    assert [queue.name for queue in offers.queues] == ["gpu", "main"]
    assert "queues are 10 min old: slurmctld is away" in offers.notes
    assert "nodes are unknown: slurmctld is away" in offers.notes


async def test_a_cluster_that_is_not_reached_offers_what_is_kept_of_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    await fetch_offers(cluster.store)
    later = Cluster(tmp_path)
    later.transport.connect_error = ConnectionFailed("no route to juno")
    offers = await fetch_offers(later.store)
    assert [queue.name for queue in offers.queues] == ["gpu", "main"]
    assert offers.notes == ("no answer: no route to juno",)
    await later.close()


async def test_an_ordinary_day_is_offered_as_it_was_recorded() -> None:
    store = ClusterStore(
        "atlas", ReplayTransport(EVERYDAY), (SLURM,), clock=SystemClock(), budget=CommandBudget(100)
    )
    offers = await fetch_offers(store)
    await store.close()
    assert offers.notes == ()
    assert [account.name for account in offers.accounts] == ["vision", "climate"]
    assert {qos.name: qos.most_cpus for qos in offers.qos}["limited"] == 6
    gpu = offers.queue("gpu")
    assert gpu is not None
    assert (gpu.gpus, gpu.gpus_per_node, gpu.cpus_per_node) == (40, 8, 96)
    assert gpu.gpus_idle <= 40 - 36


@pytest.mark.system
async def test_on_pbs_each_queue_may_have_any_node_which_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins = StandIns.install(tmp_path / "pbs", "everyday")
    monkeypatch.setenv("PATH", stand_ins.environment["PATH"])
    store = ClusterStore(
        "pbs", LocalTransport(), (PBS,), clock=SystemClock(), budget=CommandBudget(100)
    )
    offers = await fetch_offers(store)
    await store.close()
    assert offers.notes == ("the nodes of each queue are unknown: counting all nodes",)
    assert (offers.accounts, offers.qos, offers.gpu_types) == ((), (), ("a100",))
    default, gpu = offers.queue(""), offers.queue("gpu")
    assert default is not None
    assert gpu is not None
    assert (default.name, gpu.limit_seconds, gpu.gpus) == ("workq", 86_400, 4)


@pytest.mark.system
async def test_the_embedded_queue_offers_this_machine(tmp_path: Path) -> None:
    backend = embedded_backend(queue_program(tmp_path / "queue"))
    store = ClusterStore(
        "here", LocalTransport(), (backend,), clock=SystemClock(), budget=CommandBudget(100)
    )
    offers = await fetch_offers(store)
    await store.close()
    (queue,) = offers.queues
    assert queue.is_default
    assert queue.cpus > 0
    assert offers.notes == ()


async def test_a_pbs_queue_says_what_it_does_with_a_job_and_only_what_starts_none_is_warned_of() -> (
    None
):
    transport = ReplayTransport(EVERYDAY_OF_PBS)
    store = ClusterStore("pbs", transport, (PBS,), clock=SystemClock(), budget=CommandBudget(100))
    offers = await fetch_offers(store)
    told = {queue.name: (queue.note, queue.closed_reason, queue.refuses) for queue in offers.queues}
    assert told == {
        **dict.fromkeys(("workq", "gpu", "debug"), ("", "", False)),
        "maint": (
            "disabled: PBS rejects new jobs",
            "queue maint is disabled: PBS rejects new jobs",
            True,
        ),
        "stopped": (
            "stopped: jobs wait until the site starts the queue",
            "queue stopped is stopped: jobs wait until the site starts the queue",
            False,
        ),
        "bobonly": (
            "closed to you: only bob may submit",
            "queue bobonly is closed to you: only bob may submit",
            False,
        ),
        "route": ("routes jobs to workq", "", False),
    }
    await store.close()
