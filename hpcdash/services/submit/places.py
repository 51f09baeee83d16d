"""Search for the places where a job could run, on one cluster or several, and when it would start
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.base import Capability
from hpcdash.domain.demand import Demand
from hpcdash.domain.offers import Offers
from hpcdash.domain.places import Place, PlaceFinder, best_places, find_gap, rank
from hpcdash.domain.room import NODE_COLUMNS, QueueNodes, count_usable, simulate_start
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted
from hpcdash.domain.units import MINUTE
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.everywhere import within
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.checks import estimate_start
from hpcdash.services.submit.queues import fetch_offers
from hpcdash.services.submit.shapes import JobShape
from hpcdash.services.usage.limits import fetch_limits
from hpcdash.services.usage.waits import WaitTimes, wait_times

Row = Mapping[str, Any]
# A dry run costs the controller a tenth of a second, and they are run one after the other.
MAX_DRY_RUNS = 12
_DRY_RUNS_AT_ONCE = 2
_CLUSTER_SECONDS = 30.0
_UID = "00000000"


class ClusterPlaces(Struct, frozen=True):
    """Places on one cluster, unranked; `notes` are facts that could not be fetched."""

    session: ClusterSession
    places: tuple[Place, ...] = ()
    offers: Offers = field(default_factory=Offers)
    notes: tuple[str, ...] = ()
    error: HpcdashError | None = None


class PlaceAnswer(Struct, frozen=True):
    """Places on all clusters, the earliest start first.

    `dry_runs` is the number of start estimates that were requested (not those that were known for
    less than a minute), `commands` that of all scheduler commands.
    """

    places: tuple[Place, ...]
    clusters: tuple[ClusterPlaces, ...]
    dry_runs: int
    commands: int

    @property
    def errors(self) -> Mapping[str, HpcdashError]:
        """Errors by cluster."""
        return {one.session.name: one.error for one in self.clusters if one.error is not None}


async def search_places(
    shape: JobShape,
    sessions: Sequence[ClusterSession],
    on_progress: Callable[[Sequence[Place]], None] = lambda places: None,
    *,
    max_dry_runs: int = MAX_DRY_RUNS,
) -> PlaceAnswer:
    """Find and rank the places of a job on clusters; a cluster's error is in the answer.

    First the places that queues, accounts, limits and nodes rule out are known, and `on_progress`
    receives them all; then the scheduler estimates the start in the most promising ones.
    """
    before = _count_sent(sessions)
    clusters = await asyncio.gather(*(_fetch_in_time(shape, session) for session in sessions))
    places = [place for cluster in clusters for place in cluster.places]
    now = max((one.session.store.clock.now() for one in clusters), default=0.0)
    on_progress(rank(places, now))
    by_name = {cluster.session.name: cluster for cluster in clusters}
    estimable = [
        place
        for place in rank(places, now)
        if place.accepts and by_name[place.cluster].session.store.backend.submit.estimates_starts
    ]
    chosen = _spread(estimable)[:max_dry_runs]
    queried = _count_sent(sessions)
    estimated = await asyncio.gather(
        *(
            _estimate_all(shape, cluster, [one for one in chosen if one.cluster == name])
            for name, cluster in by_name.items()
        )
    )
    dry_runs = _count_sent(sessions) - queried
    places = [*(place for place in places if place not in chosen), *chain(*estimated)]
    commands = _count_sent(sessions) - before
    return PlaceAnswer(tuple(rank(places, now)), tuple(clusters), dry_runs, commands)


def _count_sent(sessions: Sequence[ClusterSession]) -> int:
    return sum(session.store.budget.sent for session in sessions)


def _spread(places: Sequence[Place]) -> list[Place]:
    """Sort places so that each queue's best comes before another one's second."""
    turns: dict[tuple[str, str], int] = {}
    numbered = []
    for place in places:
        turn = turns.get((place.cluster, place.queue), 0)
        turns[place.cluster, place.queue] = turn + 1
        numbered.append((turn, place))
    return [place for _, place in sorted(numbered, key=lambda pair: pair[0])]


async def _fetch_in_time(shape: JobShape, session: ClusterSession) -> ClusterPlaces:
    """Fetch the places on a cluster, which delays the others by _CLUSTER_SECONDS at most."""
    try:
        return await within(session, _fetch_cluster(shape, session), _CLUSTER_SECONDS)
    except HpcdashError as error:
        return ClusterPlaces(session, error=error)


async def _fetch_cluster(shape: JobShape, session: ClusterSession) -> ClusterPlaces:
    store = session.store
    await store.open()
    store.backend.require(Capability.QUEUES)
    notes: list[str] = []
    offers, limits, reservations = await asyncio.gather(
        fetch_offers(store),
        _fetch_rows(store, Capability.LIMITS, notes),
        _fetch_rows(store, Capability.RESERVATIONS, notes),
    )
    await session.launches.queues.fetch()
    if store.backend.is_embedded:
        await store.fetch(Kind.EVERYONE)
    search = _ClusterSearch(session, offers, limits, reservations)
    places = await asyncio.to_thread(search.find, shape)
    return ClusterPlaces(session, tuple(places), offers, (*offers.notes, *notes))


class _ClusterSearch:
    """Search on a cluster by its tables; runs in a thread and queries nothing."""

    def __init__(
        self,
        session: ClusterSession,
        offers: Offers,
        limits: Sequence[Row],
        reservations: Sequence[Row],
    ) -> None:
        store = session.store
        self._store = store
        self._launches = session.launches
        self._offers = offers
        self._reservations = reservations
        self._now = store.clock.now()
        nodes = store.table(Kind.NODES)
        self._nodes = QueueNodes(() if nodes is None else nodes.select(NODE_COLUMNS).to_pylist())
        self._finder = PlaceFinder(store.name, offers, limits, self._nodes, store.user)
        queues = store.table(Kind.QUEUES)
        rows = [] if queues is None else queues.select(["name", "jobs_pending"]).to_pylist()
        self._pending = {row["name"]: row["jobs_pending"] for row in rows}

    def find(self, shape: JobShape) -> list[Place]:
        """Find the places of a job, with what is known of its start without the scheduler."""
        waits = self._store.archive.known_waits()
        places = []
        for queue in self._offers.queues:
            demand = shape.demand_at(queue, self._offers, self._launches)
            if demand is None:
                continue
            nodes = self._nodes.in_queue(queue.name)
            gap = find_gap(self._reservations, nodes, demand, self._now)
            similar = None
            if waits.num_rows:
                job = {
                    "queue": queue.name,
                    "nodes": demand.nodes or 1,
                    "gpus": demand.gpus,
                    "limit_seconds": demand.limit_seconds,
                }
                similar = wait_times(waits, job)
            for place in self._finder.find(demand):
                found = place
                if place.accepts:
                    found = replace(place, sooner=gap or _sooner(place, demand))
                    found = self._with_start(found, demand, nodes, similar)
                places.append(found)
        return places

    def _with_start(
        self, place: Place, demand: Demand, nodes: Sequence[Row], similar: WaitTimes | None
    ) -> Place:
        """Return a place with a start that hpcdash itself computes, if there is any."""
        if self._store.backend.is_embedded:
            everyone = self._store.table(Kind.EVERYONE)
            jobs = [] if everyone is None else everyone.to_pylist()
            starts_at = simulate_start(demand, jobs, nodes, self._now)
            if starts_at is None:
                return place
            return replace(place, starts_at_epoch=starts_at, estimated_by="hpcdash")
        if place.room.is_free_now and not self._store.backend.submit.estimates_starts:
            pending = self._pending.get(place.queue)
            if not pending:
                return replace(place, starts_at_epoch=self._now, estimated_by="free nodes")
            are = "is" if pending == 1 else "are"
            reason = f"{place.reason}, but {counted(pending, 'job')} {are} pending"
            place = replace(place, reason=reason)
        elif place.room.is_free_now:
            return place
        if similar is None:
            return place
        return replace(
            place,
            wait_seconds=similar.median_seconds,
            most_wait_seconds=similar.most_seconds,
            estimated_by="; ".join(
                filter(None, (f"history: {counted(similar.runs, 'similar job')}", similar.score))
            ),
        )


def _sooner(place: Place, demand: Demand) -> str:
    room = place.room
    if room.is_free_now or not room.free or not demand.nodes or room.free >= demand.nodes:
        return ""
    return f"{counted(room.free, 'node')} of {demand.nodes} would fit now"


class FreeSlots(Struct, frozen=True):
    """Free GPUs and CPUs that jobs of the user could have; `gpus` None: the cluster has none."""

    gpus: int | None
    cpus: int


def count_free(nodes: pa.Table, offers: Offers) -> FreeSlots:
    """Count what is free on the nodes of the queues that the user may use and that start jobs.

    `nodes` are rows of domain.schema.NODES; a node in several queues counts once, a node in none
    counts.
    """
    open_queues = {
        name
        for name, place in best_places(offers).items()
        if place.accepts is not False
        and (queue := offers.queue(name)) is not None
        and queue.is_available
    }
    rows = nodes.select(NODE_COLUMNS).to_pylist()
    if offers.queues:
        rows = [
            row for row in rows if not row["queues"] or not open_queues.isdisjoint(row["queues"])
        ]
    has_gpus = bool(pc.sum(nodes["gpus"]).as_py())
    return FreeSlots(count_usable(rows, "gpus") if has_gpus else None, count_usable(rows, "cpus"))


async def _fetch_rows(store: ClusterStore, table: Capability, notes: list[str]) -> Sequence[Row]:
    """Fetch limits or reservations; without them, add a note."""
    if table not in store.backend.capabilities:
        return ()
    try:
        if table is Capability.LIMITS:
            snapshot = await fetch_limits(store, notes.append)
        else:
            snapshot = await store.fetch(Kind.RESERVATIONS)
    except HpcdashError as error:
        notes.append(f"{table} are unknown: {error.message}")
        return ()
    rows: list[dict[str, Any]] = snapshot.table.to_pylist()
    return rows


async def _estimate_all(
    shape: JobShape, cluster: ClusterPlaces, places: Sequence[Place]
) -> list[Place]:
    """Estimate places on a cluster, one first: it shows whether a wrapper submits the script."""
    turn = asyncio.Semaphore(_DRY_RUNS_AT_ONCE)

    async def estimate(place: Place) -> Place:
        async with turn:
            return await _estimate(shape, cluster, place)

    first = [await estimate(place) for place in places[:1]]
    return [*first, *await asyncio.gather(*map(estimate, places[1:]))]


async def _estimate(shape: JobShape, cluster: ClusterPlaces, place: Place) -> Place:
    """Return a place with the scheduler's estimate, or its refusal."""
    session = cluster.session
    store = session.store
    script = shape.script
    options = shape.options
    try:
        if shape.request is not None:
            request = shape.request_at(place, cluster.offers.queue(place.queue))
            script = session.launches.render(request, uid=_UID).text.encode(
                "utf-8", "surrogateescape"
            )
        else:
            reader = store.backend.scripts.reader()
            options = (*options, *reader.place_options(place.queue, None, place.account, place.qos))
        estimate = await estimate_start(
            store, script, options, name=shape.name, gpu_types=cluster.offers.gpu_types
        )
    except HpcdashError as error:
        return replace(place, accepts=None, reason=f"no estimate: {error.message}")
    if not estimate.is_known:
        return replace(place, reason="; ".join(filter(None, (place.reason, estimate.hint))))
    by = store.backend.title
    room = place.room
    if estimate.is_nodes_missing and room.is_possible and room.in_service < room.able:
        # A dry run counts only nodes in service; a job may wait for the others.
        return replace(place, accepts=None if room.doubt else True)
    if estimate.refusal:
        return replace(
            place, accepts=False, reason=estimate.hint or estimate.refusal, estimated_by=by
        )
    if estimate.starts_at_epoch is None:
        return replace(place, accepts=True)
    reason = place.reason
    is_later = estimate.starts_at_epoch - store.clock.now() >= MINUTE
    if is_later and place.room.is_free_now:
        reason = f"{reason}, but other jobs are ahead"
    return replace(
        place,
        accepts=True,
        reason=reason,
        starts_at_epoch=estimate.starts_at_epoch,
        estimated_by=by,
        wait_seconds=None,
        most_wait_seconds=None,
    )
