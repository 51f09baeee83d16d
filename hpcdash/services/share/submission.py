"""A task of a shared pool before it is submitted: where it goes, and whether the pool would ever
run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

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
_PLACES = ("queue", "qos", "reservation")


def with_pool(request: Request, pools: Sequence[PoolSettings]) -> Request:
    """A task in the queue, QoS and reservation of its pool: the one that is named, else the only
    one that fits.

    Raises UsageError where there is none of that name, or something else is asked for.
    """
    if request.pool and all(one.name != request.pool for one in pools):
        known = ", ".join(one.name for one in pools) or "none"
        raise UsageError(
            f"pool: there is no [share.{request.pool}] in the configuration",
            f"Pools here: {known}.",
        )
    fitting = _fitting(request, pools)
    if pools and not fitting:
        requested = ", ".join(
            f"{what} {there}" for what in _PLACES if (there := getattr(request, what))
        )
        raise UsageError(
            f"share: no pool has {requested}",
            f"Pools here: {', '.join(one.name for one in pools)}.",
        )
    if len(fitting) > 1:
        raise UsageError(
            "share: several pools fit",
            f"Choose one with pool: {', '.join(one.name for one in fitting)}.",
        )
    for pool in fitting:
        for what in _PLACES:
            requested = getattr(request, what)
            has = getattr(pool, what)
            if has and requested not in ("", has):
                raise UsageError(
                    f"{what}: pool {pool.name} has {has}, not {requested}", f"Remove {what}."
                )
            request = replace(request, **{what: has or requested})
        if pool.node_list and not any(getattr(pool, what) for what in _PLACES):
            # Nothing else identifies the task's owner.
            request = replace(request, pool=pool.name)
    return request


def _fitting(request: Request, pools: Sequence[PoolSettings]) -> list[PoolSettings]:
    """The pool that a task names; else those whose queue, QoS and reservation it leaves open or
    asks for.
    """
    if request.pool:
        return [one for one in pools if one.name == request.pool]
    return [
        one
        for one in pools
        if all(
            getattr(request, what) in ("", has) for what in _PLACES if (has := getattr(one, what))
        )
    ]


def require_node_count(request: Request, slot_type: SlotType) -> None:
    """Raises UsageError for a task whose scheduler would find any number of nodes."""
    if is_spread(request, slot_type) and request.slots > 1:
        raise UsageError(
            "slots_per_node: a task of a shared pool needs a fixed number of nodes",
            "Set the number of slots per node.",
        )


async def require_turn(
    store: ClusterStore, pools: Sequence[PoolSettings], request: Request, slot_type: SlotType
) -> str:
    """Return a warning about a task's pool, that it seems to have no coordinator; '' for none.

    Raises UsageError for a task that its coordinator would refuse, as far as it has published its
    rules.
    """
    if not store.backend.detail.holds_requeued:
        return ""
    fitting = _fitting(request, pools)
    if len(fitting) != 1:
        return (
            "share: the configuration has no pool; the job stays held until a coordinator "
            "elsewhere starts it"
        )
    try:
        pool = await PoolReader(store, fitting[0]).read()
    except HpcdashError as error:
        # It may not have begun yet; it refuses what it must itself.
        return f"share: {error.message}; the job stays held until it is coordinated"
    user = request.site.run_as or store.user or ""
    if text := refusal(
        pool, fitting[0], request, user, slot_type, is_embedded=store.backend.is_embedded
    ):
        raise UsageError(
            f"share: pool {pool.pool} rejects this: {text}", "`hpcdash share show` has its quotas."
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
        each = (settings.gpus_per_node or 1) if gpus else settings.cpus_per_node
        nodes = -(-total // each)
    requested = parse_priority(request.share) if request.share else Priority.AUTO
    priority = pool.rules.allowed_priority(user, requested)
    task = PoolTask("", user, max(1, nodes), priority, (0.0, 0))
    if text := pool.rules.refusal(task, capacity=pool.nodes, gpus=gpus):
        return text
    twin = next(
        (
            one
            for one in pool.tasks
            if one.is_unfinished and (one.user, one.name) == (user, request.name)
        ),
        None,
    )
    return (
        f"{user} has a task of this name: job {twin.id}"
        if twin is not None and request.name
        else ""
    )
