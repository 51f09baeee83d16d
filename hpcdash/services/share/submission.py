"""Whether a pool would ever run a task, asked before it is submitted."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdash.config.settings import PoolSettings
from hpcdash.domain.request import Request, SlotType, slots_of
from hpcdash.domain.share import parse_priority
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.share.scheduling import PoolTask
from hpcdash.services.share.state import Pool, PoolReader


async def require_turn(
    store: ClusterStore, pools: Sequence[PoolSettings], request: Request, slot_type: SlotType
) -> None:
    """Raises UsageError for a task that its pool's coordinator would refuse, as far as it has published its rules."""
    fitting = [one for one in pools if one.queue in ("", request.queue) and one.qos in ("", request.qos)]
    if not request.share or len(fitting) != 1:
        return
    try:
        pool = await PoolReader(store, fitting[0]).read()
    except HpcdashError:
        # It may not have begun yet; it refuses what it must itself.
        return
    user = request.site.run_as or store.user or ""
    if words := refusal(pool, fitting[0], request, user, slot_type, is_embedded=store.backend.is_embedded):
        raise UsageError(f"share: pool {pool.pool} refuses this: {words}", "`hpcdash share show` has its quotas.")


def refusal(
    pool: Pool, settings: PoolSettings, request: Request, user: str, slot_type: SlotType, *, is_embedded: bool
) -> str:
    """Why a pool would refuse a request of a user; '' where it would not."""
    slots = slots_of(request)
    total = max(1, slots.nodes * slots.per_node)
    gpus = 0 if slot_type is SlotType.CPU else total
    nodes = slots.nodes
    if is_embedded:
        each = (settings.gpus_per_node or 1) if gpus else settings.cpus_per_node
        nodes = -(-total // each)
    priority = pool.rules.allowed_priority(user, parse_priority(request.share))
    task = PoolTask("", user, max(1, nodes), priority, (0.0, 0))
    if words := pool.rules.refusal(task, capacity=pool.nodes, gpus=gpus):
        return words
    twin = next((one for one in pool.tasks if one.is_unfinished and (one.user, one.name) == (user, request.name)), None)
    return f"{user} has a task of this name: job {twin.id}" if twin is not None and request.name else ""
