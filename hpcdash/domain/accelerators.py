"""Memory and number formats of GPUs, by the names that schedulers and sites give them.

Source: the vendors' data sheets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

_GIB = 1 << 30


class GpuModel(Struct, frozen=True):
    """A model: the sizes of memory that it is sold with, in GiB, and its number formats."""

    memory_gib: tuple[int, ...]
    formats: frozenset[str] = frozenset()


_PASCAL = frozenset({"fp16"})
_VOLTA = frozenset({"fp16", "int8"})
_AMPERE = _VOLTA | {"bf16", "tf32"}
_HOPPER = _AMPERE | {"fp8"}
_BLACKWELL = _HOPPER | {"fp4"}
_CDNA = _VOLTA | {"bf16"}
# The first that is found in a name counts.
_MODELS: tuple[tuple[str, GpuModel], ...] = (
    (r"gh200", GpuModel((96, 144), _HOPPER)),
    (r"g?b300", GpuModel((288,), _BLACKWELL)),
    (r"g?b200", GpuModel((180, 192), _BLACKWELL)),
    (r"h200", GpuModel((141,), _HOPPER)),
    (r"h100", GpuModel((80, 94, 96), _HOPPER)),
    (r"h20", GpuModel((96,), _HOPPER)),
    (r"a100", GpuModel((40, 80), _AMPERE)),
    (r"a800", GpuModel((40, 80), _AMPERE)),
    (r"l40s?", GpuModel((48,), _HOPPER)),
    (r"l4", GpuModel((24,), _HOPPER)),
    (r"rtx_?pro_?6000", GpuModel((96,), _BLACKWELL)),
    (r"(?:rtx_?)?6000_?ada|ada_?6000", GpuModel((48,), _HOPPER)),
    (r"(?:rtx_?)?5090", GpuModel((32,), _BLACKWELL)),
    (r"(?:rtx_?)?4090", GpuModel((24,), _HOPPER)),
    (r"(?:rtx_?)?3090(?:_?ti)?", GpuModel((24,), _AMPERE)),
    (r"(?:rtx_?)?3080", GpuModel((10, 12), _AMPERE)),
    (r"(?:rtx_?)?2080_?ti", GpuModel((11,), _VOLTA)),
    (r"(?:gtx_?)?1080_?ti", GpuModel((11,))),
    (r"titan_?v", GpuModel((12,), _VOLTA)),
    (r"titan_?rtx", GpuModel((24,), _VOLTA)),
    (r"(?:rtx_?)?a6000", GpuModel((48,), _AMPERE)),
    (r"(?:rtx_?)?a5500", GpuModel((24,), _AMPERE)),
    (r"(?:rtx_?)?a5000", GpuModel((24,), _AMPERE)),
    (r"(?:rtx_?)?a4000", GpuModel((16,), _AMPERE)),
    (r"rtx_?8000", GpuModel((48,), _VOLTA)),
    (r"rtx_?6000", GpuModel((24,), _VOLTA)),
    (r"rtx_?5000", GpuModel((16,), _VOLTA)),
    (r"a40", GpuModel((48,), _AMPERE)),
    (r"a30", GpuModel((24,), _AMPERE)),
    (r"a16", GpuModel((16,), _AMPERE)),
    (r"a10g?", GpuModel((24,), _AMPERE)),
    (r"a2", GpuModel((16,), _AMPERE)),
    (r"v100s?", GpuModel((16, 32), _VOLTA)),
    (r"t4", GpuModel((16,), _VOLTA)),
    (r"p100", GpuModel((12, 16), _PASCAL)),
    (r"p40", GpuModel((24,), frozenset({"int8"}))),
    (r"p4", GpuModel((8,), frozenset({"int8"}))),
    (r"m60", GpuModel((8,))),
    (r"k80", GpuModel((12,))),
    (r"k40", GpuModel((12,))),
    (r"mi325x?", GpuModel((256,), _CDNA | {"fp8"})),
    (r"mi300x", GpuModel((192,), _CDNA | {"fp8"})),
    (r"mi300a", GpuModel((128,), _CDNA | {"fp8"})),
    # A scheduler may count an MI250 as one device or, by its two dies, as two.
    (r"mi250x?", GpuModel((64, 128), _CDNA)),
    (r"mi210", GpuModel((64,), _CDNA)),
    (r"mi100", GpuModel((32,), _CDNA)),
)
_PATTERNS = tuple(
    (re.compile(rf"(?<![a-z0-9])(?:{name})(?![0-9])"), model) for name, model in _MODELS
)
FORMATS = tuple(sorted(_BLACKWELL | _CDNA))
# `1g.10gb`: a slice of 10 GB.
_SLICE = re.compile(r"(?<![0-9])[0-9]g\.([0-9]{1,3})gb")
_MEMORY = re.compile(
    r"(?<![0-9.a-z])([0-9]{1,3})_?gi?b?(?![a-z0-9])|gpu_?mem_?([0-9]{1,3})(?![0-9])"
)
_SEPARATORS = re.compile(r"[\s:=/-]+")


class GpuFacts(Struct, frozen=True):
    """Bounds of a GPU's memory in bytes, and its number formats; None: unknown."""

    min_memory_bytes: int | None = None
    max_memory_bytes: int | None = None
    formats: frozenset[str] | None = None

    def has_memory(self, requested_bytes: int) -> bool | None:
        """Return whether it has that much memory, within the rounding of vendors' figures; None:
        unknown.
        """
        if self.min_memory_bytes is None or self.max_memory_bytes is None:
            return None
        if self.min_memory_bytes >= requested_bytes:
            return True
        return False if self.max_memory_bytes < requested_bytes else None

    def has_formats(self, requested: Iterable[str]) -> bool | None:
        """Return whether it computes in all of these formats; None: unknown."""
        return None if self.formats is None else self.formats.issuperset(requested)


# A cluster has few kinds of nodes.
@lru_cache(maxsize=1024)
def gpu_facts(gpu_type: str | None, features: tuple[str, ...] = ()) -> GpuFacts:
    """Return the facts of a GPU by its type's name and its node's features.

    A size that a name states overrides the model's; a slice of a GPU (MIG) has its own.
    """
    names = [_SEPARATORS.sub("_", gpu_type.casefold())] if gpu_type else []
    for feature in features:
        name = _SEPARATORS.sub("_", feature.casefold())
        if "gpu" in name or "vram" in name or _find_model([name]) is not None:
            names.append(name)
    model = _find_model(names)
    formats = None if model is None else model.formats
    for name in names:
        if found := _SLICE.search(name) or _MEMORY.search(name):
            size = int(next(filter(None, found.groups()))) * _GIB
            return GpuFacts(size, size, formats)
    if model is None:
        return GpuFacts()
    return GpuFacts(model.memory_gib[0] * _GIB, model.memory_gib[-1] * _GIB, formats)


def _find_model(names: Iterable[str]) -> GpuModel | None:
    for name in names:
        for pattern, model in _PATTERNS:
            if pattern.search(name):
                return model
    return None
