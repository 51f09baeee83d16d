"""Clusters of a scheduler's site that are not configured, and the lines that add them."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcdash.backends.registry import SITE_CLUSTERS
from hpcdash.config.settings import ClusterSettings
from hpcdash.config.toml_text import format_toml
from hpcdash.domain.text import visible
from hpcdash.private_files import atomic_write, make_folder
from hpcdash.services.cluster.store import ClusterStore

FILE = "site.json"
_EVERY_SECONDS = 86_400.0
_CONFIG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class SiteClusters(Struct, frozen=True):
    """Names of a site's clusters as its scheduler lists them, () if it does not; `own` is the
    cluster's own. Read at an epoch second.
    """

    backend: str
    names: tuple[str, ...]
    own: str
    at: float


class ProposedCluster(Struct, frozen=True):
    """A cluster that is not configured, and the lines of config.toml that add it."""

    name: str
    config: str


def read_site_clusters(file: Path | None) -> SiteClusters | None:
    """Return the stored names; None if there are none that can be read."""
    if file is not None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode(file.read_bytes(), type=SiteClusters)
    return None


async def fetch_site_clusters(store: ClusterStore) -> SiteClusters | None:
    """Return the clusters of a store's site, queried at most once a day; None for a scheduler
    without several clusters.

    Raises the errors of an unreachable cluster.
    """
    probe = await store.open()
    query = store.backend.probe.site_clusters()
    if query is None:
        return None
    file = store.cache_file(FILE)
    known = read_site_clusters(file)
    now = time.time()
    if known is not None and known.own == probe.cluster and 0 <= now - known.at < _EVERY_SECONDS:
        return known
    names = await store.poll(query)
    found = SiteClusters(store.backend.name, names, probe.cluster, now)
    if file is not None:
        with contextlib.suppress(OSError):
            make_folder(file.parent)
            atomic_write(file, msgspec.json.encode(found))
    return found


def propose_clusters(
    clusters: Iterable[tuple[ClusterSettings, SiteClusters | None]],
) -> list[ProposedCluster]:
    """Return the clusters of the sites that none of `clusters` is.

    None at a login whose configured cluster is not known by its site's name yet.
    """
    known = list(clusters)
    own = {cluster.site_cluster or (site.own if site else "") for cluster, site in known}
    unknown = {
        _place(cluster)
        for cluster, site in known
        if not cluster.site_cluster and (site is None or not site.own)
    }
    taken = {cluster.name for cluster, _ in known}
    found: dict[str, ProposedCluster] = {}
    for cluster, site in known:
        if site is None or _place(cluster) in unknown:
            continue
        key = next((key for key, name in SITE_CLUSTERS.items() if name == site.backend), "")
        others = [name for name in site.names if name not in own and name not in found]
        if not key or not others:
            continue
        if not cluster.is_configured and site.own:
            # Without a table it is the default, which others would replace.
            found[site.own] = _proposal(site.own, taken, _login(cluster))
        for name in others:
            found[name] = _proposal(name, taken, {**_login(cluster), key: name})
    return list(found.values())


def format_proposals(proposals: Sequence[ProposedCluster], file: str) -> list[str]:
    """Return lines for a person; [] without proposals."""
    if not proposals:
        return []
    names = ", ".join(visible(one.name) for one in proposals)
    lines = [f"Not configured: {names}. To add, write to {file}:"]
    for proposal in proposals:
        lines += ["", *proposal.config.splitlines()]
    return lines


def _place(cluster: ClusterSettings) -> tuple[str, str]:
    return cluster.transport, str(cluster.ssh or cluster.url)


def _login(cluster: ClusterSettings) -> dict[str, object]:
    """Return the keys that reach the cluster's login node."""
    logins = [str(login) for login in (cluster.ssh, *cluster.other_logins) if login is not None]
    keys: dict[str, object] = {}
    if logins:
        keys["ssh"] = logins if len(logins) > 1 else logins[0]
    if cluster.transport != "ssh":
        keys["transport"] = cluster.transport
    if cluster.path:
        keys["path"] = cluster.path
    if cluster.user:
        keys["user"] = cluster.user
    return keys


def _proposal(name: str, taken: set[str], fields: Mapping[str, object]) -> ProposedCluster:
    base = name if _CONFIG_NAME.fullmatch(name) else "cluster"
    free = base
    number = 1
    while free in taken:
        number += 1
        free = f"{base}-{number}"
    taken.add(free)
    return ProposedCluster(name, format_toml({"clusters": {free: dict(fields)}}).strip("\n"))
