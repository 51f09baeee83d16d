"""Several reasons why a thing is refused, as one error. Knows nothing of what they are about."""

from __future__ import annotations

from collections.abc import Iterable

from hpcdash.errors import UsageError


def raise_for(reasons: Iterable[tuple[str, str]]) -> None:
    """Raises UsageError for (words, next step) of one reason, or of all of them, each once; nothing where none is."""
    found = tuple(dict.fromkeys(reasons))
    if found:
        steps = dict.fromkeys(step for _, step in found if step)
        raise UsageError("; ".join(words for words, _ in found), " ".join(step.rstrip(".") + "." for step in steps))
