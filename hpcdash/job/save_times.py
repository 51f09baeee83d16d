"""Duration of this training's saves, as the previous run measured it."""

from __future__ import annotations

_known: float | None = None


def remember(seconds: object) -> None:
    """Store the duration of the save in a checkpoint's marker; ignore any other value."""
    global _known
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < 1e7:
        _known = float(seconds)


def remembered() -> float | None:
    """Return the seconds that saving the resumed checkpoint took; None if unknown."""
    return _known
