"""#PBS lines: what each asks for in a few words, and which options a script carries."""

from __future__ import annotations


def explain(line: str) -> str:
    """As Backend.explain_directive."""
    raise NotImplementedError
