"""Duration of this training's saves, as the run before it measured.

Measures nothing, reads no file.
"""

from __future__ import annotations

_known: float | None = None


def remember(seconds: object) -> None:
    """Store the duration of the save in a checkpoint's marker; ignore any other value."""
    global _known
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < 1e7:
        _known = float(seconds)


def remembered() -> float | None:
    """Seconds of the save of what this process resumed from; None where it has not, or that is not
    known.
    """
    return _known
