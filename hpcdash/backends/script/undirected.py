"""Reader of scripts without directives: they request nothing, and cannot be wrong in that."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdash.domain.demand import Demand, LintFinding
from hpcdash.domain.offers import Offers


def lint_script(script: bytes, offers: Offers, over: Sequence[str] = ()) -> tuple[LintFinding, ...]:
    return ()


def script_demand(script: bytes, over: Sequence[str] = ()) -> Demand:
    return Demand()


def queue_and_time_options(queue: str, limit_seconds: int | None) -> tuple[str, ...]:
    return ()


def refusal_hint(
    text: str,
    version: str,
    script: str,
    options: Sequence[str] = (),
    gpu_types: Sequence[str] = (),
) -> str:
    return ""
