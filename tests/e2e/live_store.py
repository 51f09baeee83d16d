"""A ClusterStore in this process on a lab, over its sshd or on the spot, and bounded waits on
it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hpcdash.backends.base import Backend
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.poller import Pace, Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.snapshots import SnapshotCache
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.transport.base import Prompter
from hpcdash.transport.ssh import SshTransport
from tests.support.person import Person
from tests.support.slurm import SlurmLab
from tests.support.waiting import deadline

QUICK = Pace(dict.fromkeys(Kind, 0.2), controller_share=0.0)


@asynccontextmanager
async def store_on(
    lab: SlurmLab,
    user: str,
    *,
    config: Path | None = None,
    known_hosts: Path | None = None,
    host: str | None = None,
    person: Prompter | None = None,
    commands_per_minute: int = 100_000,
    cache: SnapshotCache | None = None,
    backends: Sequence[Backend] = (BACKEND,),
) -> AsyncIterator[ClusterStore]:
    """The store of a person who is `user` there, over the lab's sshd; `backends` are tried in
    order.
    """
    transport = SshTransport(
        host or f"lab-{user}",
        person or Person(),
        config_path=config or lab.ssh_config,
        known_hosts=known_hosts,
    )
    budget = CommandBudget(commands_per_minute)
    store = ClusterStore(
        "lab", transport, backends, clock=SystemClock(), budget=budget, cache=cache
    )
    # What ended in the very second of the first look is shown: jobs of the test before are not to
    # be.
    await asyncio.sleep(1 - time.time() % 1)
    try:
        yield store
    finally:
        await store.close()
        await transport.close()


@asynccontextmanager
async def polled(store: ClusterStore, pace: Pace = QUICK) -> AsyncIterator[Poller]:
    """The store with its poller running."""
    poller = Poller(store, pace)
    poller.start()
    try:
        yield poller
    finally:
        await poller.stop()


async def until(store: ClusterStore, what: str, holds: Callable[[], bool]) -> None:
    """Wait for the store's changes until something holds."""
    woken = asyncio.Event()
    stop = store.listen(lambda _changed: woken.set())
    over = deadline()
    try:
        while not holds():
            assert time.monotonic() < over, f"waited in vain for {what}; {told(store)}"
            woken.clear()
            try:
                await asyncio.wait_for(woken.wait(), 0.5)
            except TimeoutError:
                continue
    finally:
        stop()


def told(store: ClusterStore) -> str:
    """What the store has told so far, for a failing test."""
    return (
        f"events {list(store.events)}, connection {store.connection_error!r}, errors "
        f"{store.errors!r}"
    )


def states(store: ClusterStore, kind: Kind = Kind.MINE) -> Mapping[str, str]:
    """The state of each job that the store shows."""
    table = store.table(kind)
    if table is None:
        return {}
    return dict(
        zip(table["id"].to_pylist(), table["state"].cast("string").to_pylist(), strict=True)
    )


def happened(store: ClusterStore, job_id: str) -> list[tuple[str, str]]:
    """(before, after) of each thing that was told of a job."""
    return [(event.before, event.after) for event in store.events if event.job_id == job_id]
