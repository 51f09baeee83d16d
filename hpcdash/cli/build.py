"""Builds the concrete parts: which clusters, over which transports, with which backends. The only place that does."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from pathlib import Path

import platformdirs

from hpcdash.backends.base import Backend
from hpcdash.backends.embedded.backend import EmbeddedBackend
from hpcdash.backends.slurm import BACKEND as SLURM
from hpcdash.cli.options import CommonOptions
from hpcdash.config import ClusterSettings, Settings, did_you_mean, parse_ssh_destination
from hpcdash.errors import UsageError
from hpcdash.local.machine import node_name
from hpcdash.stores.actions import Actions
from hpcdash.stores.budget import CommandBudget
from hpcdash.stores.cache import SnapshotCache
from hpcdash.stores.clock import FrozenClock, SystemClock
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.journal import Journal
from hpcdash.stores.poller import Pace, Poller
from hpcdash.stores.snapshots import Kind
from hpcdash.transport.base import Prompter, Transport
from hpcdash.transport.pool import ConnectionPool
from hpcdash.ui.session import ClusterSession

# The schedulers that are driven over any transport; the embedded queue is of this machine alone.
BACKENDS: dict[str, Backend] = {SLURM.name: SLURM}
EMBEDDED = "local"
# Where Slurm's commands find their configuration, besides SLURM_CONF.
_SLURM_CONFIGURATIONS = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/var/spool/slurm/conf-cache/slurm.conf",
)


def cache_root() -> Path:
    """Where snapshots are kept between runs; HPCDASH_CACHE sets another place."""
    named = os.environ.get("HPCDASH_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("hpcdash")


def state_root() -> Path:
    """Where the journal and kept scripts are; HPCDASH_STATE sets another place."""
    named = os.environ.get("HPCDASH_STATE")
    return Path(named) if named else platformdirs.user_state_path("hpcdash")


def journal() -> Journal:
    """What was done from here, on whichever cluster."""
    return Journal(state_root() / "journal.jsonl")


def found_here() -> list[str]:
    """The schedulers this machine seems to have: their commands are on the PATH, and know where to ask.

    Slurm's commands without a configuration are packages that were installed and no cluster.
    """
    is_configured = bool(os.environ.get("SLURM_CONF")) or any(map(os.path.exists, _SLURM_CONFIGURATIONS))
    return [SLURM.name] if shutil.which("squeue") and is_configured else []


def queue_folder() -> Path:
    """Where this machine's embedded queue is; HPCDASH_QUEUE sets another place. Homes may be shared by machines."""
    named = os.environ.get("HPCDASH_QUEUE")
    return Path(named) if named else state_root() / "queue" / node_name()


def queue_program(folder: Path) -> tuple[str, ...]:
    """The argv before a command of the embedded queue in a folder."""
    # -P: a folder that one happens to be in must not stand for the package.
    return (sys.executable, "-P", "-m", "hpcdash.local", str(folder))


def chosen_clusters(common: CommonOptions, settings: Settings) -> list[ClusterSettings]:
    """The clusters to show, the first one first; raises UsageError with what to do where there is none."""
    if common.ssh:
        try:
            destination = parse_ssh_destination(common.ssh)
        except ValueError as error:
            raise UsageError(f"--ssh {common.ssh!r}: {error}") from error
        chosen = [ClusterSettings(common.ssh, common.ssh, "ssh", destination, poll=settings.poll)]
    elif common.local:
        chosen = [ClusterSettings("local", "local", poll=settings.poll)]
    elif common.cluster:
        if common.cluster not in settings.clusters:
            known = ", ".join(settings.clusters) or "none"
            near = did_you_mean(common.cluster, settings.clusters)
            raise UsageError(f"no cluster {common.cluster!r} in the configuration{near}", f"Configured: {known}.")
        chosen = [settings.clusters[common.cluster]]
    elif settings.clusters:
        first = settings.default_cluster or next(iter(settings.clusters))
        chosen = [settings.clusters[first], *(one for name, one in settings.clusters.items() if name != first)]
    else:
        chosen = [ClusterSettings("local", "local", poll=settings.poll)]
    return [replace(one, backend=common.backend) if common.backend else one for one in chosen]


def backends_of(cluster: ClusterSettings) -> Sequence[Backend]:
    """The backends to try, in order."""
    is_here = cluster.transport == "local"
    if cluster.backend == EMBEDDED or (cluster.backend is None and is_here and not found_here()):
        if not is_here:
            raise UsageError(
                f"cluster {cluster.name}: the embedded queue is this machine's own, and not behind {cluster.transport}",
                "Run hpcdash there, or leave the backend out to have its scheduler found.",
            )
        return (EmbeddedBackend(queue_program(queue_folder())),)
    if cluster.backend is None:
        return tuple(BACKENDS.values())
    if cluster.backend not in BACKENDS:
        raise UsageError(
            f"cluster {cluster.name}: this version has no backend {cluster.backend!r}", "It has: slurm, local."
        )
    return (BACKENDS[cluster.backend],)


def why_this(common: CommonOptions, settings: Settings) -> str:
    """What was chosen where nobody said anything, and how to say something; '' where somebody did."""
    if common.ssh or common.local or common.cluster or common.backend or settings.clusters:
        return ""
    chosen = "this machine's Slurm" if found_here() else "this machine's embedded queue (no Slurm or PBS is here)"
    return f"no cluster is configured: this is {chosen}. Add one: hpcdash clusters add NAME --ssh USER@HOST"


def connection_pool(prompter: Prompter) -> ConnectionPool:
    """The transports of one run; clusters behind one login node share its connection. Imported when first used."""

    def local(_destination: str, path: str) -> Transport:
        from hpcdash.transport.local import LocalTransport

        return LocalTransport(path=path)

    def ssh(destination: str, path: str) -> Transport:
        from hpcdash.transport.ssh import SshTransport

        return SshTransport(destination, prompter, path=path)

    def openssh(destination: str, path: str) -> Transport:
        from hpcdash.transport.openssh import OpenSshTransport

        return OpenSshTransport(destination, path=path)

    return ConnectionPool({"local": local, "ssh": ssh, "openssh": openssh})


def pace_of(cluster: ClusterSettings) -> Pace:
    poll = cluster.poll
    seconds = {
        Kind.MINE: poll.mine_seconds,
        Kind.EVERYONE: poll.everyone_seconds,
        Kind.NODES: poll.nodes_seconds,
        Kind.QUEUES: poll.nodes_seconds,
        Kind.HISTORY: poll.history_seconds,
        Kind.HISTORY_EVERYONE: poll.history_seconds,
    }
    return Pace(seconds, poll.unfocused_factor, poll.controller_share)


def build_session(cluster: ClusterSettings, pool: ConnectionPool, *, zone: tzinfo | None = None) -> ClusterSession:
    """A cluster's store and poller; nothing is asked yet."""
    transport = pool.transport(cluster.transport, str(cluster.ssh or ""), cluster.path)
    store = ClusterStore(
        cluster.name,
        transport,
        backends_of(cluster),
        clock=SystemClock(),
        budget=CommandBudget(cluster.poll.commands_per_minute),
        cache=SnapshotCache(cache_root(), f"{cluster.name} {cluster.ssh or 'local'} {cluster.user or ''}".strip()),
        user=cluster.user or "",
        title=cluster.title,
    )
    return ClusterSession(store, Poller(store, pace_of(cluster)), Actions(store, journal()), _origin(cluster), zone)


def build_queue_session(folder: Path, *, name: str, state_folder: Path, cache_folder: Path | None) -> ClusterSession:
    """An embedded queue in a folder as a cluster, asked more often than a shared controller is."""
    from hpcdash.transport.local import LocalTransport

    store = ClusterStore(
        name,
        LocalTransport(),
        (EmbeddedBackend(queue_program(folder)),),
        clock=SystemClock(),
        budget=CommandBudget(600),
        cache=SnapshotCache(cache_folder, name) if cache_folder else None,
    )
    pace = Pace(dict.fromkeys(Kind, 1.0), unfocused_factor=2.0, controller_share=0.5)
    return ClusterSession(
        store, Poller(store, pace), Actions(store, Journal(state_folder / "journal.jsonl")), "this machine"
    )


def _origin(cluster: ClusterSettings) -> str:
    if cluster.ssh is not None:
        return f"{cluster.transport} {cluster.ssh}"
    return "this machine"


def build_replay(case_directory: Path) -> ClusterSession:
    """A recorded case as a cluster; its clock stands still."""
    from hpcdash.transport.replay import ReplayTransport

    transport = ReplayTransport(case_directory)
    backend = BACKENDS.get(transport.backend, SLURM)
    store = ClusterStore(
        transport.name,
        transport,
        (backend,),
        clock=FrozenClock(transport.clock),
        budget=CommandBudget(600),
        user=transport.user,
        title=f"{transport.name} (recorded)",
    )
    poller = Poller(store, pace_of(ClusterSettings("replay", "replay")))
    return ClusterSession(store, poller, Actions(store, journal()), str(case_directory), UTC)
