"""Clusters of a Slurm site that are not configured: one command a day, and the lines to add them."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path

import pytest

from hpcdash.config.destination import SshDestination
from hpcdash.config.settings import ClusterSettings
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.site import (
    SiteClusters,
    fetch_site_clusters,
    format_proposals,
    propose_clusters,
)
from hpcdash.services.cluster.snapshots import SnapshotCache
from hpcdash.services.cluster.store import ClusterStore
from tests.support.scripted_cluster import Cluster
from tests.support.scripted_transport import ScriptedTransport

JUNO = ClusterSettings(
    "juno", "Juno", "ssh", SshDestination("juno", "ada"), backend="slurm", is_configured=True
)
SITE = SiteClusters("slurm", ("lab", "lab2", "lab3"), "lab", 0.0)


def second(name: str, cluster: str) -> ClusterSettings:
    return ClusterSettings(name, name, "ssh", JUNO.ssh, site_cluster=cluster, is_configured=True)


def test_the_lines_reach_the_cluster_by_the_same_login() -> None:
    [proposal] = propose_clusters([(JUNO, SITE), (second("gpus", "lab2"), None)])
    assert proposal.name == "lab3"
    assert tomllib.loads(proposal.config) == {
        "clusters": {"lab3": {"ssh": "ada@juno", "slurm_cluster": "lab3"}}
    }
    lines = format_proposals([proposal], "/c/config.toml")
    assert lines[0] == "Not configured: lab3. To add, write to /c/config.toml:"
    assert "[clusters.lab3]" in lines


def test_a_name_that_is_taken_gets_a_number() -> None:
    taken = second("lab3", "lab2")
    [proposal] = propose_clusters([(JUNO, SITE), (taken, None)])
    assert list(tomllib.loads(proposal.config)["clusters"]) == ["lab3-2"]


def test_nothing_is_proposed_where_all_are_configured_or_one_s_name_is_unknown() -> None:
    everything = [(JUNO, SITE), (second("a", "lab2"), None), (second("b", "lab3"), None)]
    assert propose_clusters(everything) == []
    # juno may be lab or lab3.
    assert propose_clusters([(JUNO, None), (second("a", "lab2"), SITE)]) == []
    assert propose_clusters([(JUNO, SiteClusters("slurm", (), "lab", 0.0))]) == []


def test_without_a_table_the_default_cluster_gets_one_too() -> None:
    here = ClusterSettings("local", "local")
    found = propose_clusters([(here, SiteClusters("slurm", ("lab", "lab2"), "lab", 0.0))])
    tables = [tomllib.loads(one.config)["clusters"] for one in found]
    assert tables == [
        {"lab": {"transport": "local"}},
        {"lab2": {"transport": "local", "slurm_cluster": "lab2"}},
    ]


async def test_the_clusters_are_queried_once_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = ScriptedTransport()
    transport.answers["sacctmgr"] = "lab\nlab2\n$(rm)\n"

    def store() -> ClusterStore:
        from hpcdash.backends.slurm.backend import BACKEND
        from hpcdash.services.cluster.clock import ClusterClock

        return ClusterStore(
            "juno",
            transport,
            (BACKEND,),
            clock=ClusterClock(),
            budget=CommandBudget(600),
            cache=SnapshotCache(tmp_path, "juno"),
        )

    for _ in range(2):
        found = await fetch_site_clusters(store())
        assert found is not None
        assert (found.names, found.own) == (("lab", "lab2"), "lab")
    assert transport.count("sacctmgr") == 1
    later = time.time() + 86_401
    monkeypatch.setattr(time, "time", lambda: later)
    # Users may not list them.
    transport.answers["sacctmgr"] = (1, b"", b"access denied")
    for _ in range(2):
        refused = await fetch_site_clusters(store())
        assert refused is not None
        assert refused.names == ()
    assert transport.count("sacctmgr") == 2


async def test_a_scheduler_with_one_cluster_is_not_queried(cluster: Cluster) -> None:
    from hpcdash.backends.pbs.backend import BACKEND

    assert BACKEND.probe.site_clusters() is None
