"""How every PBS command is called: in C locale, with times in UTC, which PBS prints without a zone."""

from __future__ import annotations

_SET = ("LC_ALL=C", "TZ=UTC")


def pbs(*argv: str) -> tuple[str, ...]:
    """A PBS command with a clean environment around it."""
    return ("env", *_SET, *argv)
