"""Memory and number formats of GPUs by the names that sites give them."""

from __future__ import annotations

from hpcdash.domain.accelerators import gpu_facts
from tests.support.records import for_each

GIB = 1 << 30


@for_each(
    ("gpu_type", "features", "least", "most"),
    [
        ("a100", (), 40, 80),
        ("A100", ("gpu", "a100_80gb"), 80, 80),
        ("nvidia_a100-sxm4-80gb", (), 80, 80),
        ("Tesla V100-SXM2-32GB", (), 32, 32),
        ("nvidia_a100_3g.39gb", (), 39, 39),
        ("1g.5gb", ("a100",), 5, 5),
        ("l40s", (), 48, 48),
        ("rtx_6000_ada", (), 48, 48),
        ("rtx6000", (), 24, 24),
        ("2080ti", (), 11, 11),
        (None, ("GPU_SKU:A100_SXM4", "GPU_MEM:80GB"), 80, 80),
        # A node's own memory is not its GPUs'.
        ("v100", ("192g", "skylake"), 16, 32),
    ],
)
def test_a_gpu_s_memory_follows_from_its_name(
    gpu_type: str | None, features: tuple[str, ...], least: int, most: int
) -> None:
    facts = gpu_facts(gpu_type, features)
    assert (facts.min_memory_bytes, facts.max_memory_bytes) == (least * GIB, most * GIB)


@for_each("gpu_type", ["gpu", "accelerator", "", "tesla", "a1000000", "xl4"])
def test_nothing_is_claimed_of_an_unknown_gpu(gpu_type: str) -> None:
    facts = gpu_facts(gpu_type)
    assert facts.has_memory(GIB) is None
    assert facts.has_formats(["bf16"]) is None


@for_each(
    ("gpu_type", "formats", "has"),
    [
        ("v100", ["bf16"], False),
        ("t4", ["bf16"], False),
        ("a100", ["bf16", "tf32"], True),
        ("a100", ["fp8"], False),
        ("h100", ["fp8"], True),
        ("l40s", ["fp8"], True),
        ("b200", ["fp4"], True),
        ("mi300x", ["fp8"], True),
        ("mi250x", ["bf16"], True),
    ],
)
def test_the_number_formats_of_known_gpus(gpu_type: str, formats: list[str], has: bool) -> None:
    assert gpu_facts(gpu_type).has_formats(formats) is has


def test_a_size_between_a_model_s_sizes_is_unknown() -> None:
    facts = gpu_facts("a100")
    assert facts.has_memory(40 * GIB) is True
    assert facts.has_memory(60 * GIB) is None
    assert facts.has_memory(100 * GIB) is False
