"""Finds out what became of submissions of earlier runs that the journal has as unknown."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.backends.submissions import MARK_START
from hpcdash.stores.actions import Plan, Report
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.journal import Journal, JournalEntry, JournalUnreadable, JournalUnwritable
from hpcdash.stores.lost_answers import CLOCKS_APART, Search, settle

_MARK = re.compile(rf"{re.escape(MARK_START)}[0-9a-f]{{10}}\b")
_NAME = "--job-name="
_RECENT_SECONDS = 86_400.0


async def settle_noted(
    store: ClusterStore, journal: Journal, entry: JournalEntry, told: Callable[[str], None] = lambda words: None
) -> tuple[Outcome, ...]:
    """As `settle` for a submission of an earlier run that the journal has; what is found is noted there.

    Its outcomes as they are where nothing is unknown, or no mark was noted.
    """
    outcomes = entry.outcomes or tuple(Outcome(job_id, None) for job_id in entry.job_ids)
    # The journal has this machine's time, the queue the cluster's.
    at = datetime.fromtimestamp(store.clock.now() - journal.age_seconds(entry), UTC)
    searches = {name: replace(one, not_before=at - CLOCKS_APART) for name, one in searches_of(entry).items()}
    noted = _Noted(Plan(ActionRequest(Verb.SUBMIT, entry.job_ids), (), ()), searches)
    return await settle(store, noted, Report(noted.plan, outcomes, "", partial(_note, journal, entry.action_id)), told)


def searches_of(entry: JournalEntry) -> Mapping[str, Search]:
    """How the jobs of a noted submission are recognised, by their marks, else a single one by its name; {} where that
    is not noted."""
    if entry.verb != Verb.SUBMIT:
        return {}
    not_before = datetime.fromtimestamp(entry.at, UTC) - CLOCKS_APART
    marked = [(marks[-1], words) for words in entry.commands if (marks := _MARK.findall("\n".join(words)))]
    if not marked and len(entry.job_ids) == 1 and entry.names and entry.commands:
        marked = [("", entry.commands[-1])]
    if len(marked) != len(entry.job_ids):
        return {}
    found = {}
    for job_id, (mark, words) in zip(entry.job_ids, marked, strict=True):
        name = entry.names.get(job_id) or next((word[len(_NAME) :] for word in words if word.startswith(_NAME)), None)
        found[job_id] = Search(mark, name, not_before, _account(words) or entry.user)
    return found


def unsettled(journal: Journal, cluster: str, *, newest: int = 200) -> list[JournalEntry]:
    """The submissions to a cluster whose outcome nobody saw and that can be looked for, newest first.

    Raises JournalUnreadable.
    """
    noted = (one for one in journal.read(newest)[0] if one.cluster == cluster)
    return [one for one in noted if one.state == "unknown" and searches_of(one)]


def unsettled_today(store: ClusterStore, journal: Journal) -> list[JournalEntry]:
    """Those of the last day, as of a run that was killed; none where the journal cannot be read."""
    try:
        return [one for one in unsettled(journal, store.name) if journal.age_seconds(one) < _RECENT_SECONDS]
    except JournalUnreadable:
        return []


async def settle_recent(store: ClusterStore, journal: Journal) -> list[str]:
    """Looks for the submissions of the last day whose outcome nobody saw; a sentence for each of what became of it.

    Asks nothing where there is none; raises nothing of HpcdashError.
    """
    said = []
    for entry in await asyncio.to_thread(unsettled_today, store, journal):
        at = datetime.fromtimestamp(entry.at).astimezone()
        for outcome in await settle_noted(store, journal, entry):
            what = f"it is {outcome.words}" if outcome.done else outcome.words
            said.append(f"nobody saw how the submission of {outcome.job_id} at {at:%H:%M} ended: {what}")
    return said


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
