"""Finds out what became of submissions of earlier runs that the journal has as unknown. Knows no screen."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.backends.submissions import MARK_START
from hpcdash.stores.actions import Plan, Report
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.journal import Journal, JournalEntry, JournalUnwritable
from hpcdash.stores.lost_answers import CLOCKS_APART, Search, settle

_MARK = re.compile(rf"{re.escape(MARK_START)}[0-9a-f]{{10}}\b")
_NAME = "--job-name="


async def settle_noted(
    store: ClusterStore, journal: Journal, entry: JournalEntry, told: Callable[[str], None] = lambda words: None
) -> tuple[Outcome, ...]:
    """As `settle` for a submission of an earlier run that the journal has; what is found is noted there.

    Its outcomes as they are where nothing is unknown, or no mark was noted.
    """
    outcomes = entry.outcomes or tuple(Outcome(job_id, None) for job_id in entry.job_ids)
    noted = _Noted(Plan(ActionRequest(Verb.SUBMIT, entry.job_ids), (), ()), searches_of(entry))
    return await settle(store, noted, Report(noted.plan, outcomes, "", partial(_note, journal, entry.action_id)), told)


def searches_of(entry: JournalEntry) -> Mapping[str, Search]:
    """How the jobs of a noted submission are recognised; those without a mark are left out."""
    if entry.verb != Verb.SUBMIT:
        return {}
    not_before = datetime.fromtimestamp(entry.at, UTC) - CLOCKS_APART
    found = []
    for words in entry.commands:
        marks = [match[0] for word in words if (match := _MARK.search(word))]
        name = next((word.removeprefix(_NAME) for word in words if word.startswith(_NAME)), None)
        if marks:
            found.append(Search(marks[-1], name, not_before, _account(words) or entry.user))
    return dict(zip(entry.job_ids, found, strict=True)) if len(found) == len(entry.job_ids) else {}


def _account(words: Sequence[str]) -> str:
    """Whose job it is that was submitted through sudo; '' for one's own."""
    return words[words.index("-u") + 1] if words[0] == "sudo" and "-u" in words[:-1] else ""


@dataclass(frozen=True, slots=True)
class _Noted:
    plan: Plan
    searches: Mapping[str, Search]


def _note(journal: Journal, action_id: str, outcomes: Sequence[Outcome]) -> str:
    try:
        journal.after(action_id, outcomes)
    except JournalUnwritable as error:
        return f"this is not in the journal: {error.message}"
    return ""
