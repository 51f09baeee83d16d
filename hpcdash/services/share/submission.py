"""Tasks of a shared pool before their submission: the pool of a request, and its refusals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil

from msgspec.structs import replace

from hpcdash.backends.script.body import is_spread
from hpcdash.config.settings import PoolSettings
from hpcdash.domain.request import Request, SlotType, request_slots
from hpcdash.domain.share import Priority, parse_priority
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.share.scheduling import PoolTask
from hpcdash.services.share.state import Pool, PoolReader
from hpcdash.services.share.text import format_silence

# Fields of a request that select its pool.
_PLACE_FIELDS = ("queue", "qos", "reservation")


def with_pool(request: Request, pools: Sequence[PoolSettings]) -> Request:
    """Return a request with the queue, QoS and reservation of its pool.

    That is the requested pool, or the only matching one. Raises UsageError if there is none or
    several, or the request contradicts it.
    """
    names = ", ".join(pool.name for pool in pools)
    matches = _matching_pools(request, pools)
    if request.pool and not matches:
        raise UsageError(
            f"pool: no [share.{request.pool}] in the configuration",
            f"Pools here: {names or 'none'}.",
        )
    if pools and not matches:
        places = [
            f"{field} {place}" for field in _PLACE_FIELDS if (place := getattr(request, field))
        ]
        raise UsageError(f"share: no pool has {', '.join(places)}", f"Pools here: {names}.")
    if len(matches) > 1:
        raise UsageError(
            "share: several pools match",
            f"Choose one with pool: {', '.join(pool.name for pool in matches)}.",
        )
    for pool in matches:
        for field in _PLACE_FIELDS:
            requested = getattr(request, field)
            place = getattr(pool, field)
            if place and requested not in ("", place):
                raise UsageError(
                    f"{field}: pool {pool.name} has {place}, not {requested}", f"Remove {field}."
                )
            request = replace(request, **{field: place or requested})
        if pool.node_list and not any(getattr(pool, field) for field in _PLACE_FIELDS):
            # Only the mark in the job's comment can name the pool.
            request = replace(request, pool=pool.name)
    return request


def _matching_pools(request: Request, pools: Sequence[PoolSettings]) -> list[PoolSettings]:
    """Return the pool that a request names, or those whose queue, QoS and reservation match it."""
    if request.pool:
        return [pool for pool in pools if pool.name == request.pool]
    return [
        pool
        for pool in pools
        if all(
            getattr(request, field) in ("", place)
            for field in _PLACE_FIELDS
            if (place := getattr(pool, field))
        )
    ]


def require_node_count(request: Request, slot_type: SlotType) -> None:
    """Raise UsageError for a task that could get any number of nodes."""
    if is_spread(request, slot_type) and request.slots > 1:
        raise UsageError(
            "slots_per_node: a task of a shared pool needs a fixed number of nodes",
            "Set the number of slots per node.",
        )


async def check_pool(
    store: ClusterStore, pools: Sequence[PoolSettings], request: Request, slot_type: SlotType
) -> str:
    """Return a warning that a task's pool seems to have no coordinator; '' for none.

    Raises UsageError for a task that its coordinator would refuse by its published rules.
    """
    if not store.backend.detail.holds_requeued:
        return ""
    matches = _matching_pools(request, pools)
    if len(matches) != 1:
        return (
            "share: the configuration has no pool; the job stays held until a coordinator "
            "elsewhere starts it"
        )
    try:
        pool = await PoolReader(store, matches[0]).read()
    except HpcdashError as error:
        # It may not have started yet, and refuses tasks itself.
        return f"share: {error.message}; the job stays held until a coordinator starts it"
    user = request.site.run_as or store.user or ""
    if text := refusal(
        pool, matches[0], request, user, slot_type, is_embedded=store.backend.is_embedded
    ):
        raise UsageError(
            f"share: pool {pool.pool} rejects this: {text}",
            "`hpcdash share show` lists its quotas.",
        )
    silence = format_silence(pool, datetime.fromtimestamp(store.clock.now(), UTC))
    return f"share: pool {pool.pool}: {silence}" if silence else ""


def refusal(
    pool: Pool,
    settings: PoolSettings,
    request: Request,
    user: str,
    slot_type: SlotType,
    *,
    is_embedded: bool,
) -> str:
    """Return the reason that a pool would refuse a request of a user; '' if it would not."""
    slots = request_slots(request)
    total = max(1, slots.nodes * slots.per_node)
    gpus = 0 if slot_type is SlotType.CPU else total
    nodes = slots.nodes
    if is_embedded:
        slots_per_node = (settings.gpus_per_node or 1) if gpus else settings.cpus_per_node
        nodes = ceil(total / slots_per_node)
    requested = parse_priority(request.share) if request.share else Priority.AUTO
    priority = pool.rules.allowed_priority(user, requested)
    task = PoolTask("", user, max(1, nodes), priority, (0.0, 0))
    if text := pool.rules.refusal(task, capacity=pool.nodes, gpus=gpus):
        return text
    for other in pool.tasks:
        if (
            request.name
            and other.is_unfinished
            and (other.user, other.name) == (user, request.name)
        ):
            return f"{user} already has a task with this name: job {other.id}"
    return ""
