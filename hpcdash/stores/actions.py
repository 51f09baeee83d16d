"""Acts on jobs: plans the commands, runs them, notes them in the journal, tells how each job fared. Knows no screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdash.backends.base import ActionCommand, ActionRequest, Outcome
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.journal import Journal

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be done: the request, the rows of domain.schema.JOBS it touches as far as known, the commands."""

    request: ActionRequest
    rows: tuple[Row, ...]
    commands: tuple[ActionCommand, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """How it went; `journal_problem` says in words why it is not in the journal, '' where it is."""

    plan: Plan
    outcomes: tuple[Outcome, ...]
    journal_problem: str = ""


class Actions:
    """Acts on the jobs of one cluster."""

    def __init__(self, store: ClusterStore, journal: Journal) -> None:
        self.store = store
        self.journal = journal

    def plan(self, request: ActionRequest, rows: Sequence[Row] = ()) -> Plan:
        """The commands; raises UsageError for what cannot be asked. Nothing runs."""
        raise NotImplementedError

    async def rows_of(self, job_ids: Sequence[str]) -> tuple[Row, ...]:
        """The rows of some jobs as the scheduler has them now; what it does not know is left out."""
        raise NotImplementedError

    async def run(self, plan: Plan, told: Callable[[Outcome], None] = lambda outcome: None) -> Report:
        """Run the commands one after the other. Raises nothing for what the scheduler refuses or a line that fails:

        each job has its outcome, None (unknown) where the answer was lost.
        """
        raise NotImplementedError
