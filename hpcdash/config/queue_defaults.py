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
    """A queue as far as the choice goes."""

    name: str
    is_default: bool = False
    has_gpus: bool = False


class DefaultPools(Struct, frozen=True):
    """The queue of trainings and that of all else; None where a cluster has no queue."""

    compute: str | None
    aux: str | None


def default_pools(pools: Sequence[Pool]) -> DefaultPools:
    """aux: the default queue, else the first; compute: the default one if it has GPUs, else the
    first that has some, else aux.
    """
    aux = next((pool for pool in pools if pool.is_default), pools[0] if pools else None)
    with_gpus = [pool for pool in pools if pool.has_gpus]
    compute = (
        aux if aux is not None and (aux.has_gpus or not with_gpus) else next(iter(with_gpus), aux)
    )
    return DefaultPools(compute.name if compute else None, aux.name if aux else None)


def overridden(
    common: Mapping[str, object], queue_defaults: Mapping[str, Mapping[str, object]], queue: str
) -> dict[str, object]:
    """Return the values of a queue: its own over the common ones.

    Its lists come after the common lists, its tables over the common tables. Names of queues match
    in upper and lower case alike.
    """
    result = dict(common)
    for name, own in queue_defaults.items():
        if name.casefold() != queue.casefold():
            continue
        for key, value in own.items():
            result[key] = _added(result.get(key), value)
    return result


def _added(before: object, value: object) -> object:
    if isinstance(before, list) and isinstance(value, list):
        return [*before, *value]
    if isinstance(before, tuple) and isinstance(value, tuple):
        return (*before, *value)
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        return {**before, **value}
    return value


def with_queue_defaults(
    request: Request, queues: Mapping[str, Mapping[str, object]], pools: Sequence[Pool]
) -> Request:
    """The request with a queue where it names none, and with what `queues` say of its queue.

    `queues` are [launch.queues.NAME] by the fields of Request and Site, as LaunchSettings has them;
    names match in upper and lower case alike. A scalar counts where the request says nothing, and
    over what the site says of all; lists go before the request's own, tables (environment) below
    it. `pools` are the cluster's queues in its order; none: nothing is known of them, and the queue
    stays as it is. What is asked for as no kind of slot is what the site says (its slot_type),
    where it says one.
    """
    if not request.queue:
        request = replace(request, queue=_default_queue(request, pools))
    own = overridden({}, queues, request.queue)
    in_site = {
        key: value for key, value in own.items() if key in _SITE_FIELDS and _is_unset(request, key)
    }
    in_request = {key: value for key, value in own.items() if key not in _SITE_FIELDS}
    filled: dict[str, Any] = {}
    for key, value in in_request.items():
        requested = getattr(request, key)
        if isinstance(value, Mapping):
            filled[key] = {**value, **requested}
        elif isinstance(value, tuple | list):
            filled[key] = (*value, *(item for item in requested if item not in value))
        elif key not in request.said and requested == getattr(_DEFAULTS, key):
            filled[key] = value
    site: dict[str, Any] = in_site
    filled = {**filled, "site": replace(request.site, **site)}
    slot_type = filled.get("slot_type") or request.slot_type or request.site.slot_type
    return replace(request, **{**filled, "slot_type": slot_type})


def _default_queue(request: Request, pools: Sequence[Pool]) -> str:
    """Return the site's queue, else compute for GPUs, aux without.

    '' where a cluster has no queue.
    """
    chosen = default_pools(pools)
    slot_type = request.slot_type or request.site.slot_type
    wants_gpus = request.slots > 0 and slot_type is not SlotType.CPU
    named = request.site.default_gpu_queue if wants_gpus else request.site.default_cpu_queue
    return named or (chosen.compute if wants_gpus else chosen.aux) or ""


def _is_unset(request: Request, key: str) -> bool:
    return SITE_SAID + key not in request.said
