"""Types of TPU slices: how many workers one has, and how many chips a worker.

Source: Google's tables of TPU versions. v2 to v5p count TensorCores, two a chip and eight a worker; v5litepod and v6e
count chips, up to eight on one worker and four on each of several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

_TYPE = re.compile(r"(v2|v3|v4|v5p|v5litepod|v6e)-([1-9][0-9]{0,4})")
_BY_CHIPS = ("v5litepod", "v6e")
_CORES_A_WORKER = 8
_CHIPS_A_WORKER = 4
_MOST_CHIPS_ALONE = 8
_HEAD = re.compile(r"TPU-(.+)-head")


@dataclass(frozen=True)
class SliceType:
    """What a slice of a type has: `workers`, each a machine with `chips`."""

    name: str
    workers: int
    chips: int

    @property
    def head_resource(self) -> str:
        """The resource that its first worker alone has: the lock of a slice."""
        return f"TPU-{self.name}-head"


def slice_type(name: str, *, known: Iterable[str] = ()) -> SliceType:
    """Of a name such as v4-256. Raises ValueError, which names the nearest of `known`."""
    found = _TYPE.fullmatch(name)
    if found is None:
        near = get_close_matches(name, [*known, "v4-8", "v5p-8", "v5litepod-16", "v6e-8"], 1)
        raise ValueError(
            f"{name!r} is not a slice type such as v4-256" + (f"; did you mean {near[0]}?" if near else "")
        )
    version, size = found[1], int(found[2])
    if version not in _BY_CHIPS:
        if size % _CORES_A_WORKER:
            raise ValueError(f"{name}: {version} slices have a multiple of {_CORES_A_WORKER} cores")
        return SliceType(name, size // _CORES_A_WORKER, _CHIPS_A_WORKER)
    if size <= _MOST_CHIPS_ALONE:
        return SliceType(name, 1, size)
    if size % _CHIPS_A_WORKER:
        raise ValueError(f"{name}: {version} slices have up to {_MOST_CHIPS_ALONE} chips or a multiple of 4")
    return SliceType(name, size // _CHIPS_A_WORKER, _CHIPS_A_WORKER)


def types_among(resources: Iterable[str]) -> list[str]:
    """The slice types whose heads are among a cluster's resources."""
    return sorted({found[1] for name in resources if (found := _HEAD.fullmatch(name))})
