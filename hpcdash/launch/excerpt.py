"""What is shown of a failed launch's stderr: its end, and the line that says why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcdash.backends.script.body import CONTAINER_UP
from hpcdash.domain.root_cause import RootCause, Strength, root_cause

# As many lines are read; of a command that was started as many are shown.
MOST_LINES = 500
SHOWN_LINES, SHOWN_WITH_DEBUG = 15, 100


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines that are safe to show, blank ones at the ends left out; () where nothing was written.

    `cause` says why where anything does; where its line is further up it comes before the others as `above`.
    """

    cause: RootCause | None
    lines: tuple[str, ...]
    above: str = ""

    @property
    def words(self) -> str:
        """The line that says why, and which rank wrote it; '' where nothing was written."""
        return "" if self.cause is None else self.cause.words

    @property
    def says_why(self) -> bool:
        """Whether there is more than a launcher's remarks, or the last that happened to be written."""
        return self.cause is not None and self.cause.strength > Strength.WORDS


def hosts_up(stderr: Iterable[str]) -> frozenset[str]:
    """The hosts whose container said that it is up, among these lines."""
    found = set()
    for line in stderr:
        _, mark, host = line.partition(CONTAINER_UP)
        if mark and (host := host.strip()):
            found.add(host)
    return frozenset(found)


def failure_excerpt(
    stderr: Sequence[str], *, containers: int = 0, up: int | None = None, debug: bool = False
) -> Excerpt:
    """The end of a failed job's stderr, of lines as logs.lines shows them; of more than MOST_LINES the last.

    `containers` are to come up, 0 without any; `up` of them did, None: as many as these lines tell. Where all did the
    command was started, and its last SHOWN_LINES are enough; else all lines are shown.
    """
    tail = list(stderr[-MOST_LINES:])
    while tail and not tail[-1].strip():
        tail.pop()
    cause = root_cause(tail)
    is_started = containers <= (len(hosts_up(stderr)) if up is None else up)
    shown = tail[-(SHOWN_WITH_DEBUG if debug else SHOWN_LINES) :] if is_started else tail
    begins = len(tail) - len(shown)
    above = tail[cause.at] if cause is not None and cause.at < begins else ""
    while shown and not shown[0].strip():
        del shown[0]
    return Excerpt(cause, tuple(shown), above)
