"""Priorities of a shared pool's tasks, and the mark by which a job asks its coordinator for one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

# Every user who has no quota under a name of their own.
EVERYONE = "*"
# The file in a task's launch folder that the coordinator writes the suspend command to.
SUSPEND_NAME = "suspend"
MAX_LABELS = 8
LONGEST_LABEL = 64
_MARK_START = "hpcdash-share:"
_PAUSED = "+paused"
_MARK = re.compile(
    re.escape(_MARK_START) + rf"(?P<priority>[A-Z_]+)(?P<paused>{re.escape(_PAUSED)})?"
    r"(?:\+pool=(?P<pool>[A-Za-z0-9._-]+))?(?:\+labels=(?P<labels>[A-Za-z0-9._~%,-]+))?(?::(?P<folder>/[A-Za-z0-9._/@+-]+))?"
)


class Priority(IntEnum):
    """AUTO is the highest of the others that has quota left."""

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
    """A priority by its name in upper or lower case; raises ValueError."""
    try:
        return Priority[text.strip().upper().replace("-", "_")]
    except KeyError:
        raise ValueError(
            f"{text!r} is not a priority: {', '.join(one.name for one in (*LEVELS, Priority.AUTO))}"
        ) from None


@dataclass(frozen=True, slots=True)
class TaskMark:
    """Mark for the coordinator in a job's comment.

    It has the task's priority, and the launch's folder ('': none). `is_paused`: its owner requests
    its suspension for as long as the mark reports so. `pool`: the only pool it is a task of ('':
    any that its queue belongs to).
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
            f"+labels={write_labels(self.labels)}" if self.labels else "",
            f":{self.folder}" if self.folder else "",
        ]
        return "".join(parts)


def parse_mark(comment: str | None) -> TaskMark | None:
    """The mark in a comment, which any user may have written; None for any other comment."""
    found = _MARK.fullmatch(comment or "")
    if found is None or found["priority"] not in Priority.__members__:
        return None
    return TaskMark(
        Priority[found["priority"]],
        found["folder"] or "",
        bool(found["paused"]),
        found["pool"] or "",
        read_labels(found["labels"] or ""),
    )


def write_labels(labels: Iterable[str]) -> str:
    """Labels in one word, which `read_labels` reads."""
    from urllib.parse import quote

    return ",".join(quote(label, safe="") for label in labels)


def read_labels(text: str) -> tuple[str, ...]:
    """At most MAX_LABELS; what anybody may have written is cut to LONGEST_LABEL characters."""
    from urllib.parse import unquote

    found = (unquote(word)[:LONGEST_LABEL] for word in text.split(",", MAX_LABELS)[:MAX_LABELS])
    return tuple(dict.fromkeys(label for label in found if label))
