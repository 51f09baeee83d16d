"""What was done to jobs from here, and how it ended: JSON lines, written before each action and after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdash.backends.base import Outcome
from hpcdash.errors import HpcdashError


class JournalUnwritable(HpcdashError):
    """The journal's file cannot be written: no room, no permission."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One action. `state` is done, refused, partly, unknown (it was begun, and nobody saw its end) or running.

    Times are epoch seconds; `outcomes` is empty until it ended.
    """

    action_id: str
    at: float
    ended_at: float | None
    cluster: str
    user: str
    verb: str
    job_ids: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    state: str
    outcomes: tuple[Outcome, ...] = ()


class Journal:
    """One file, 0600, that several programs may write at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def before(
        self, *, cluster: str, user: str, verb: str, job_ids: Sequence[str], commands: Sequence[tuple[str, ...]]
    ) -> str:
        """Note what is about to be done, on the disk when it returns its action id; raises JournalUnwritable."""
        raise NotImplementedError

    def after(self, action_id: str, outcomes: Sequence[Outcome]) -> None:
        """Note how it ended; raises JournalUnwritable."""
        raise NotImplementedError

    def read(self, newest: int = 500) -> tuple[list[JournalEntry], int]:
        """The newest entries, newest first, and how many lines could not be read."""
        raise NotImplementedError
