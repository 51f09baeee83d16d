"""Priorities of a shared pool's tasks, and the mark in a job's comment that requests one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

# Every user without a quota of their own.
EVERYONE = "*"
# The file in a task's launch folder that the coordinator writes the suspend command to.
SUSPEND_NAME = "suspend"
MAX_LABELS = 8
LONGEST_LABEL = 64
_MARK_START = "hpcdash-share:"
_PAUSED = "+paused"
_MARK = re.compile(
    re.escape(_MARK_START) + rf"(?P<priority>[A-Z_]+)(?P<paused>{re.escape(_PAUSED)})?"
    r"(?:\+pool=(?P<pool>[A-Za-z0-9._-]+))?(?:\+labels=(?P<labels>[A-Za-z0-9._~%,-]+))?"
    r"(?::(?P<folder>/[A-Za-z0-9._/@+-]+))?"
)


class Priority(IntEnum):
    """Priority of a task; AUTO is the highest of the others with quota left."""

    AUTO = -1
    LOW = 0
    BELOW_NORMAL = 5
    UNDER_NORMAL = 8
    NORMAL = 10
    ABOVE_NORMAL = 20
    HIGH = 30
    VERY_HIGH = 40
    EXTREME_HIGH = 50


LEVELS = tuple(
    sorted((priority for priority in Priority if priority != Priority.AUTO), reverse=True)
)


def parse_priority(text: str) -> Priority:
    """Parse the name of a priority, in upper or lower case; raises ValueError."""
    try:
        return Priority[text.strip().upper().replace("-", "_")]
    except KeyError:
        names = ", ".join(priority.name for priority in (*LEVELS, Priority.AUTO))
        raise ValueError(f"{text!r} is not a valid priority: {names}") from None


@dataclass(frozen=True, slots=True)
class TaskMark:
    """Mark for the coordinator in a job's comment.

    `folder`: of the launch; '' for none. `is_paused`: its owner suspends the task until they
    resume it. `pool`: the task's only pool; '' for any that its queue belongs to.
    """

    priority: Priority
    folder: str = ""
    is_paused: bool = False
    pool: str = ""
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [
            f"{_MARK_START}{self.priority.name}",
            _PAUSED if self.is_paused else "",
            f"+pool={self.pool}" if self.pool else "",
            f"+labels={format_labels(self.labels)}" if self.labels else "",
            f":{self.folder}" if self.folder else "",
        ]
        return "".join(parts)


def parse_mark(comment: str | None) -> TaskMark | None:
    """Parse a comment, which any user may have written; None if it is not a mark."""
    match = _MARK.fullmatch(comment or "")
    if match is None or match["priority"] not in Priority.__members__:
        return None
    return TaskMark(
        Priority[match["priority"]],
        match["folder"] or "",
        is_paused=match["paused"] is not None,
        pool=match["pool"] or "",
        labels=parse_labels(match["labels"] or ""),
    )


def format_labels(labels: Iterable[str]) -> str:
    """Format labels as one word, which `parse_labels` reads."""
    from urllib.parse import quote

    return ",".join(quote(label, safe="") for label in labels)


def parse_labels(text: str) -> tuple[str, ...]:
    """Parse labels that any user may have written: the first few, cut to a fixed length."""
    from urllib.parse import unquote

    parts = text.split(",", MAX_LABELS)[:MAX_LABELS]
    labels = (unquote(part)[:LONGEST_LABEL] for part in parts)
    return tuple(dict.fromkeys(label for label in labels if label))
