"""Submissions of which nobody knows whether they arrived, so that none is made twice unasked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from hpcdash.backends.actions import Outcome
from hpcdash.services.submit.form import Draft


@dataclass(frozen=True, slots=True)
class _Sent:
    draft: Draft
    name: str
    at: datetime


class NotKnown:
    """Those of one form, until one like it was surely submitted."""

    def __init__(self) -> None:
        self._sent: list[_Sent] = []

    def note(self, draft: Draft, name: str, outcomes: Sequence[Outcome], at: datetime) -> None:
        """How a submission that was sent at `at` ended; `name` is the job's."""
        if any(outcome.done is None for outcome in outcomes):
            self._sent = [*self._without(draft, name), _Sent(draft, name, at)]
        elif outcomes and all(outcome.done for outcome in outcomes):
            self._sent = self._without(draft, name)

    def question(self, draft: Draft, name: str) -> str:
        """What is to be asked before the same, or one of the same name, is sent; '' where nothing is in doubt."""
        sent = next((one for one in reversed(self._sent) if one.draft == draft or one.name == name), None)
        if sent is None:
            return ""
        return f"whether job {sent.name} was submitted at {sent.at:%H:%M} is not known: submit once more?"

    def _without(self, draft: Draft, name: str) -> list[_Sent]:
        return [one for one in self._sent if one.draft != draft and one.name != name]
