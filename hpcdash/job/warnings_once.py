"""Messages that a training logs once.

A loop of a million steps must not report a million times that a disk is gone.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable


def warn(text: str) -> None:
    """One warning of the logger `hpcdash.job`: on stderr unless the program has set up logging
    otherwise.
    """
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
