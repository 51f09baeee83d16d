"""Which queue a request goes to where none is named, and what a site says of single queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pool:
    """A queue as far as the choice goes."""

    name: str
    is_default: bool = False
    has_gpus: bool = False


@dataclass(frozen=True, slots=True)
class DefaultPools:
    """The queue of trainings and that of all else; None where a cluster has no queue."""

    compute: str | None
    aux: str | None


def default_pools(pools: Sequence[Pool]) -> DefaultPools:
    """aux: the default queue, else the first; compute: the default one if it has GPUs, else the first that has some,
    else aux.
    """
    aux = next((pool for pool in pools if pool.is_default), pools[0] if pools else None)
    with_gpus = [pool for pool in pools if pool.has_gpus]
    compute = aux if aux is not None and (aux.has_gpus or not with_gpus) else next(iter(with_gpus), aux)
    return DefaultPools(compute.name if compute else None, aux.name if aux else None)


def overridden(
    common: Mapping[str, object], of_queues: Mapping[str, Mapping[str, object]], queue: str
) -> dict[str, object]:
    """What holds in a queue: its own values in place of the common ones, its lists after the common lists,
    its tables over the common tables.

    Names of queues match in upper and lower case alike.
    """
    result = dict(common)
    for name, own in of_queues.items():
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
