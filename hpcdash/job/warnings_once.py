"""Warnings that a training logs once, not at each of a million steps."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable


def warn(text: str) -> None:
    """Log a warning of `hpcdash.job`, by default on stderr."""
    import logging

    logging.getLogger("hpcdash.job").warning("hpcdash: %s", text)


class OnceLog:
    """Log that remembers its messages by key."""

    def __init__(self) -> None:
        self._reported: set[Hashable] = set()

    def warn(self, key: Hashable, text: str) -> None:
        """Log a text unless one with this key was logged."""
        if key not in self._reported:
            self._reported.add(key)
            warn(text)
