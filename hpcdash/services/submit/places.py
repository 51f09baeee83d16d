"""Search for the places where a job could run, on one cluster or several, and when it would start
there.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.base import Capability
from hpcdash.config.request import build_request
from hpcdash.domain.accelerators import FORMATS
from hpcdash.domain.demand import Demand
from hpcdash.domain.offers import Offers, QueueOffer
from hpcdash.domain.places import Place, find_gap, find_places, rank
from hpcdash.domain.request import Request, SlotType
from hpcdash.domain.room import NODE_COLUMNS, queue_nodes
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted
from hpcdash.domain.units import MINUTE, format_memory, format_span, parse_memory
from hpcdash.errors import CommandTimedOut, HpcdashError, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.checks import estimate_start
from hpcdash.services.submit.queues import fetch_offers
from hpcdash.services.submit.request_lint import build_demand
from hpcdash.services.usage.limits import fetch_limits

if TYPE_CHECKING:
    from hpcdash.services.usage.waits import WaitTimes

# A dry run costs the controller a tenth of a second, and they are run one after the other.
MAX_DRY_RUNS = 12
_DRY_RUNS_AT_ONCE = 2
# A person may have to enter a second factor meanwhile.
_CLUSTER_SECONDS = 60.0
_UID = "00000000"


class JobShape(Struct, frozen=True):
    """Job to find a place for: a request, or a batch script with options over its own.

    `file` is the script's path on the login node, '' if it is not there. `gpu_memory_bytes` is that
    of each GPU, `gpu_formats` its number formats (bf16, fp8): no scheduler knows them. `queue`,
    `account` and `qos` are the only ones searched; '' for all.
    """

    request: Request | None = None
    script: bytes = b""
    name: str = "hpcdash"
    options: tuple[str, ...] = ()
    file: str = ""
    gpu_memory_bytes: int | None = None
    gpu_formats: tuple[str, ...] = ()
    queue: str = ""
    account: str = ""
    qos: str = ""
    # Slots without a number per node fill as few nodes as the queue's largest allows.
    fills_nodes: bool = False

    def request_at(self, place: Place, queue: QueueOffer | None) -> Request:
        """Return the request with a place's queue, account and QoS."""
        assert self.request is not None
        request = replace(
            self.request,
            queue=place.queue,
            account=place.account or self.request.account,
            qos=place.qos or self.request.qos,
        )
        is_cpu = request.slot_type is SlotType.CPU
        most = 0 if queue is None else (queue.cpus_per_node if is_cpu else queue.gpus_per_node)
        is_given = request.slots_per_node is not None or not self.fills_nodes
        if is_given or not most or not request.slots:
            return request
        nodes = -(-request.slots // most)
        return replace(request, slots_per_node=-(-request.slots // nodes))


# Options that describe a job, and the keys of REQUEST.toml that they set.
_KEYS = {
    "gpu_type": "gpu_type",
    "cpus_per_gpu": "cpus_per_gpu",
    "mem": "memory",
    "time": "time",
}
_COUNTS = ("gpus", "cpus", "nodes")
SIZE_OPTIONS = (*_COUNTS, *_KEYS)
SHAPE_OPTIONS = (*SIZE_OPTIONS, "gpu_mem", "needs", "queue", "account", "qos")


def parse_shape(text: str) -> JobShape:
    """Parse options as on the command line: `--gpus 4 --time 2d`; the dashes may be left out.

    Raises UsageError, and RequestProblems for a value.
    """
    try:
        parts = shlex.split(text.replace("=", " "))
    except ValueError:
        raise UsageError("unclosed quote") from None
    options: dict[str, Any] = {}
    for name, value in zip_longest(parts[::2], parts[1::2], fillvalue=""):
        key = name.lstrip("-").replace("-", "_")
        if key not in SHAPE_OPTIONS:
            known = ", ".join(one.replace("_", "-") for one in SHAPE_OPTIONS)
            raise UsageError(f"no option {name}", f"Known: {known}.")
        if not value:
            raise UsageError(f"{name}: no value")
        options[key] = value
    return build_shape(options)


def build_shape(options: Mapping[str, Any], shape: JobShape | None = None) -> JobShape:
    """Build a job from SHAPE_OPTIONS; of a given one, only what no request has is set.

    Raises UsageError, and RequestProblems for a value.
    """
    given = {name: value for name, value in options.items() if value}
    formats = tuple(str(given.get("needs", "")).casefold().replace(",", " ").split())
    if unknown := [name for name in formats if name not in FORMATS]:
        raise UsageError(
            f"needs: {unknown[0]} is no number format of GPUs", f"Known: {', '.join(FORMATS)}."
        )
    gpu_memory = None
    if "gpu_mem" in given:
        try:
            gpu_memory = parse_memory(str(given["gpu_mem"]))
        except ValueError as error:
            raise UsageError(f"gpu-mem: {error}", "For example: 40G.") from None
    if shape is None:
        shape = JobShape(build_request(_request_keys(given), "the options"), fills_nodes=True)
    return replace(
        shape,
        gpu_memory_bytes=gpu_memory,
        gpu_formats=formats,
        queue=given.get("queue", ""),
        account=given.get("account", ""),
        qos=given.get("qos", ""),
    )


def _request_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    counts = {}
    for name in _COUNTS:
        if name in given:
            if not str(given[name]).isdecimal() or not int(given[name]):
                raise UsageError(f"{name}: expected a number from 1, not {given[name]}")
            counts[name] = int(given[name])
    if "gpus" in counts and "cpus" in counts:
        raise UsageError("cpus is for jobs without GPUs", "Use cpus-per-gpu.")
    nodes = counts.get("nodes", 0)
    slots = counts.get("gpus") or counts.get("cpus") or nodes or 1
    if nodes > slots:
        raise UsageError(
            f"nodes: {nodes} are more than the {'GPUs' if 'gpus' in counts else 'CPUs'}, {slots}"
        )
    needs_gpu = "gpus" in counts or bool({"gpu_type", "gpu_mem", "needs"} & given.keys())
    keys: dict[str, Any] = {
        "command": "true",
        "plain": True,
        "slots": slots,
        "slot_type": "cuda" if needs_gpu else "cpu",
    }
    if nodes:
        keys["slots_per_node"] = -(-slots // nodes)
    for name, key in _KEYS.items():
        if name in given:
            keys[key] = int(given[name]) if str(given[name]).isdecimal() else given[name]
    return keys


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
    estimable = [place for place in rank(places, now) if _can_estimate(place, by_name)]
    chosen = _spread(estimable)[:max_dry_runs]
    turns = {name: asyncio.Semaphore(_DRY_RUNS_AT_ONCE) for name in by_name}

    async def estimate(place: Place) -> Place:
        cluster = by_name[place.cluster]
        async with turns[place.cluster]:
            return await _estimate(shape, cluster, place)

    queried = _count_sent(sessions)
    estimated = await asyncio.gather(*map(estimate, chosen))
    dry_runs = _count_sent(sessions) - queried
    places = [*(place for place in places if place not in chosen), *estimated]
    commands = _count_sent(sessions) - before
    return PlaceAnswer(tuple(rank(places, now)), tuple(clusters), dry_runs, commands)


def _count_sent(sessions: Sequence[ClusterSession]) -> int:
    return sum(session.store.budget.sent for session in sessions)


def _can_estimate(place: Place, clusters: Mapping[str, ClusterPlaces]) -> bool:
    submit = clusters[place.cluster].session.store.backend.submit
    return place.accepts is not False and submit.estimates_starts


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
    """Fetch the places on a cluster; after a while its time is over, and the others' answers count."""
    try:
        async with asyncio.timeout(_CLUSTER_SECONDS):
            return await _fetch_cluster(shape, session)
    except TimeoutError:
        error = CommandTimedOut(f"no answer within {_CLUSTER_SECONDS:g} s")
        return ClusterPlaces(session, error=error)


async def _fetch_cluster(shape: JobShape, session: ClusterSession) -> ClusterPlaces:
    store = session.store
    try:
        await store.open()
        store.backend.require(Capability.QUEUES)
        notes: list[str] = []
        offers, limits, reservations = await asyncio.gather(
            fetch_offers(store),
            _fetch_rows(store, Capability.LIMITS, notes),
            _fetch_rows(store, Capability.RESERVATIONS, notes),
        )
        await session.launches.queues.fetch()
        everyone = store.table(Kind.EVERYONE)
        if store.backend.is_embedded:
            everyone = (await store.fetch(Kind.EVERYONE)).table
        table = store.table(Kind.NODES)
        places = await asyncio.to_thread(
            _judge, shape, session, offers, limits, reservations, table, everyone
        )
    except HpcdashError as error:
        return ClusterPlaces(session, error=error)
    return ClusterPlaces(session, tuple(places), offers, (*offers.notes, *notes))


def _judge(
    shape: JobShape,
    session: ClusterSession,
    offers: Offers,
    limits: Sequence[Mapping[str, Any]],
    reservations: Sequence[Mapping[str, Any]],
    node_table: pa.Table | None,
    everyone: pa.Table | None,
) -> list[Place]:
    from hpcdash.services.usage.waits import wait_times

    store = session.store
    now = store.clock.now()
    nodes = [] if node_table is None else node_table.select(NODE_COLUMNS).to_pylist()
    queue_table = store.table(Kind.QUEUES)
    pending = {}
    if queue_table is not None:
        names = queue_table["name"].to_pylist()
        pending = dict(zip(names, queue_table["jobs_pending"].to_pylist(), strict=True))
    known_waits = store.archive.known_waits()
    places = []
    for queue in offers.queues:
        demand = shape_demand(shape, session, offers, queue)
        if demand is None:
            continue
        own = queue_nodes(nodes, queue.name)
        waits: WaitTimes | None = None
        if known_waits.num_rows:
            waits = wait_times(known_waits, _job_row(demand, queue))
        gap = find_gap(reservations, own, demand, now)
        only = replace(offers, queues=(queue,))
        for place in find_places(store.name, demand, only, limits, nodes, store.user):
            found = place
            if place.accepts and waits is not None and not place.room.is_free_now:
                found = replace(
                    place,
                    wait_seconds=waits.median_seconds,
                    most_wait_seconds=waits.most_seconds,
                    estimated_by=f"history: {counted(waits.runs, 'job')} like it",
                )
            if place.accepts:
                found = replace(found, sooner=gap or _sooner(place, demand))
            if place.accepts and store.backend.is_embedded and everyone is not None:
                found = _simulated(found, demand, everyone, own, now)
            elif (
                place.accepts
                and place.room.is_free_now
                and not store.backend.submit.estimates_starts
            ):
                found = _without_estimate(found, pending.get(queue.name), now)
            places.append(found)
    return places


def _without_estimate(place: Place, pending: int | None, now: float) -> Place:
    """Return a place with free nodes where the scheduler estimates no start."""
    if pending:
        are = "is" if pending == 1 else "are"
        return replace(place, reason=f"{place.reason}, but {counted(pending, 'job')} {are} pending")
    return replace(place, starts_at_epoch=now, estimated_by="free nodes")


def shape_demand(
    shape: JobShape, session: ClusterSession, offers: Offers, queue: QueueOffer
) -> Demand | None:
    """Return the resources of a job in a queue; None if it names another queue."""
    if shape.request is not None:
        if shape.request.queue and shape.request.queue != queue.name:
            return None
        place = Place(session.name, queue.name, shape.account, shape.qos)
        request = shape.request_at(place, queue)
        demand = build_demand(request, offers, packs_nodes=session.launches.packs_nodes)
    else:
        reader = session.store.backend.scripts.reader()
        demand = reader.script_demand(shape.script, shape.options)
        demand = replace(
            demand, account=shape.account or demand.account, qos=shape.qos or demand.qos
        )
    if shape.queue and shape.queue != queue.name:
        return None
    return replace(
        demand,
        queues=(queue.name,),
        gpu_memory_bytes=shape.gpu_memory_bytes,
        gpu_formats=shape.gpu_formats,
        where={},
    )


def _job_row(demand: Demand, queue: QueueOffer) -> Mapping[str, Any]:
    return {
        "queue": queue.name,
        "nodes": demand.nodes or 1,
        "gpus": demand.gpus,
        "limit_seconds": demand.limit_seconds,
    }


def _sooner(place: Place, demand: Demand) -> str:
    room = place.room
    if room.is_free_now or not room.free or not demand.nodes or room.free >= demand.nodes:
        return ""
    return f"{counted(room.free, 'node')} of {demand.nodes} would fit now"


def _simulated(
    place: Place, demand: Demand, everyone: pa.Table, nodes: Sequence[Mapping[str, Any]], now: float
) -> Place:
    from hpcdash.domain.room import simulate_start

    starts_at = simulate_start(demand, everyone.to_pylist(), nodes, now)
    if starts_at is None:
        return place
    return replace(place, starts_at_epoch=starts_at, estimated_by="hpcdash")


def queue_access(offers: Offers) -> Mapping[str, Place]:
    """Return the best answer of each queue for any job of the user."""
    found: dict[str, Place] = {}
    for place in rank(find_places("", Demand(), offers, (), (), ""), 0.0):
        found.setdefault(place.queue, place)
    return found


async def _fetch_rows(
    store: ClusterStore, table: Capability, notes: list[str]
) -> Sequence[Mapping[str, Any]]:
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
            store,
            script,
            options,
            name=shape.name,
            file=shape.file,
            gpu_types=cluster.offers.gpu_types,
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
        reason = f"{reason}, but other jobs are before it"
    return replace(
        place,
        accepts=True,
        reason=reason,
        starts_at_epoch=estimate.starts_at_epoch,
        estimated_by=by,
        wait_seconds=None,
        most_wait_seconds=None,
    )


def request_of_job(row: Mapping[str, Any]) -> Request:
    """Return a request with the size, account and limit of a row of domain.schema.JOBS.

    Raises UsageError if its size is unknown.
    """
    nodes = row["nodes"] or 1
    gpus = row["gpus"]
    slots = gpus or row["cpus"]
    if not slots:
        raise UsageError(f"the size of job {row['id']} is unknown", "Give it: --gpus, --cpus.")
    return Request(
        command="true",
        plain=True,
        slots=slots,
        slots_per_node=-(-slots // nodes),
        slot_type=SlotType.CUDA if gpus else SlotType.CPU,
        limit_seconds=row["limit_seconds"],
        memory_bytes=None if row["memory_bytes"] is None else row["memory_bytes"] // nodes,
    )


def format_shape(shape: JobShape) -> str:
    """Format a job's size: `4 a100 GPUs with 40G each for 2 d`."""
    request = shape.request
    if request is None:
        return shape.name
    is_cpu = request.slot_type is SlotType.CPU
    unit = "CPU" if is_cpu else f"{request.gpu_type} GPU".strip()
    parts = [counted(request.slots, unit)]
    if shape.gpu_memory_bytes:
        parts.append(f"with {format_memory(shape.gpu_memory_bytes)} each")
    if shape.gpu_formats:
        parts.append(f"for {', '.join(shape.gpu_formats)}")
    if request.slots_per_node:
        parts.append(f"on {counted(-(-request.slots // request.slots_per_node), 'node')}")
    if request.memory_bytes:
        parts.append(f"with {format_memory(request.memory_bytes)} of memory a node")
    if request.limit_seconds:
        parts.append(f"for {format_span(request.limit_seconds)}")
    return " ".join(parts)
