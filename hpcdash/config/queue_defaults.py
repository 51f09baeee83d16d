"""Defaults of a request: its queue, and the site's values for that queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.domain.request import SITE_SAID, Request, Site, SlotType

_SITE_FIELDS = frozenset(Site.__struct_fields__) - {"slot_type"}
_DEFAULTS = Request()


class Pool(Struct, frozen=True):
    """Queue to choose from."""

    name: str
    is_default: bool = False
    has_gpus: bool = False


def merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a queue: its own over the common ones.

    Its lists come after the common lists, its tables over the common tables.
    """
    result = dict(common)
    for key, value in own.items():
        if isinstance(value, tuple):
            result[key] = (*common.get(key, ()), *value)
        elif isinstance(value, Mapping):
            result[key] = {**common.get(key, {}), **value}
        else:
            result[key] = value
    return result


def with_queue_defaults(
    request: Request, queues: Mapping[str, Mapping[str, object]], pools: Sequence[Pool]
) -> Request:
    """Return the request with a queue, and with the settings of that queue.

    `queues` are [launch.queues.NAME] by the fields of Request and Site, as in LaunchSettings; the
    case of names does not matter. A single value applies if the request sets none, and takes the
    place of the site's; lists go before the request's own, and its environment overrides the
    queue's. `pools` are the cluster's queues in its order; if they are unknown (empty), the queue
    stays as it is. A request without a slot_type has the site's.
    """
    queue = request.queue or _default_queue(request, pools)
    site: dict[str, Any] = {}
    filled: dict[str, Any] = {"queue": queue}
    by_name = {name.casefold(): values for name, values in queues.items()}
    for key, value in by_name.get(queue.casefold(), {}).items():
        if key in _SITE_FIELDS:
            if SITE_SAID + key not in request.said:
                site[key] = value
            continue
        requested = getattr(request, key)
        if isinstance(value, Mapping):
            filled[key] = {**value, **requested}
        elif isinstance(value, tuple):
            filled[key] = (*value, *(item for item in requested if item not in value))
        elif key not in request.said and requested == getattr(_DEFAULTS, key):
            filled[key] = value
    filled["site"] = replace(request.site, **site)
    filled["slot_type"] = filled.get("slot_type") or request.slot_type or request.site.slot_type
    return replace(request, **filled)


def _default_queue(request: Request, pools: Sequence[Pool]) -> str:
    """Return the site's queue for such requests, else the cluster's; '' if it has none.

    The cluster's queue is its default, else its first; for GPUs, among those with GPUs, if any.
    """
    slot_type = request.slot_type or request.site.slot_type
    needs_gpus = request.slots > 0 and slot_type is not SlotType.CPU
    site = request.site
    if site_queue := site.default_gpu_queue if needs_gpus else site.default_cpu_queue:
        return site_queue

    def rank(pool: Pool) -> tuple[bool, bool]:
        return needs_gpus and not pool.has_gpus, not pool.is_default

    return min(pools, key=rank).name if pools else ""
