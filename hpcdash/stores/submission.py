"""Plans the submission of a batch script, marked so that one whose answer was lost is found."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import UTC, datetime

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.submissions import MARK_START, Submission
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.stores.actions import Plan
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.lost_answers import CLOCKS_APART, Search
from hpcdash.stores.resubmission import Again


async def refuse_large_array(store: ClusterStore, wanted: Submission) -> None:
    """Raises UsageError for an array that is larger than the cluster takes; where that cannot be asked it is sent."""
    query = store.backend.array_refusal_query(wanted)
    if query is None:
        return
    try:
        why = await store.ask(query)
    except HpcdashError:
        return
    if why:
        raise UsageError(why, "Submit it in parts, or have each task do more.")


def plan_submission(store: ClusterStore, wanted: Submission) -> Again:
    """What handing a script in would run; nothing is submitted. Raises UsageError for what cannot be.

    `stores.lost_answers.settle` finds out what became of one whose answer was lost.
    """
    marked = replace(wanted, mark=f"{MARK_START}{secrets.token_hex(5)}")
    handover = store.backend.submission(marked)
    not_before = datetime.fromtimestamp(store.clock.now(), UTC) - CLOCKS_APART
    request = ActionRequest(Verb.SUBMIT, handover.command.job_ids)
    searches = {wanted.name: Search(handover.mark, handover.job_name or None, not_before, wanted.run_as)}
    return Again(Plan(request, (), (handover.named_command,)), handover.notes, searches)
