"""Submits jobs one after the other, each to wait for the end of the one before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from hpcdash.backends.actions import Outcome
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.stores.actions import Actions
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.resubmission import Again, settle

# Each is a call of the scheduler's own submission command.
MOST_LINKS = 100


async def submit_chain(
    plan_link: Callable[[tuple[str, ...]], Awaitable[Again]],
    actions: Actions,
    store: ClusterStore,
    count: int,
    told: Callable[[int, Outcome], None] = lambda link, outcome: None,
    heard: Callable[[str], None] | None = None,
) -> tuple[Outcome, ...]:
    """Submit `count` jobs; `plan_link` plans one that waits for the ids it is given: () for the first, then the job
    before it.

    One outcome for each that was tried, told as (0-based link, outcome) once it is settled; `heard` is as in
    Actions.run. The first that was not
    submitted, or of which that is not known, is the last: `chain_words` says what stands then. Raises UsageError for a
    count that is none, and what planning the first raises; a later one that cannot be planned is an outcome.
    """
    if not 1 <= count <= MOST_LINKS:
        raise UsageError(f"a chain has 1 to {MOST_LINKS} jobs, not {count}", "A longer train is an array: 1-1000%1.")
    outcomes: list[Outcome] = []
    after: tuple[str, ...] = ()
    for link in range(count):
        try:
            again = await plan_link(after)
        except HpcdashError as error:
            if not outcomes:
                raise
            outcome = Outcome(outcomes[-1].job_id, False, f"not submitted: {error.message}")
        else:
            outcome = await _submitted(again, actions, store, heard)
        outcomes.append(outcome)
        told(link, outcome)
        if not outcome.new_job:
            break
        after = (outcome.new_job,)
    return tuple(outcomes)


async def _submitted(
    again: Again, actions: Actions, store: ClusterStore, heard: Callable[[str], None] | None
) -> Outcome:
    """Runs a plan of one submission, looks for it where the answer was lost, and says where the journal has it not."""
    report = await actions.run(again.plan, heard=heard)
    outcome = (await settle(store, again, report))[-1]
    if report.journal_problem:
        return replace(outcome, words=f"{outcome.words}; {report.journal_problem}")
    return outcome


def chain_words(outcomes: Sequence[Outcome], count: int) -> str:
    """`job 7`; `4 jobs, one after the other: 7 8 9 10`; of one that broke off, what stands and why no more."""
    standing = [outcome.new_job for outcome in outcomes if outcome.new_job]
    jobs = f"{len(standing)} job{'' if len(standing) == 1 else 's'}"
    if count == 1:
        return outcomes[0].words if outcomes else "nothing was sent"
    if len(standing) == count:
        return f"{jobs}, one after the other: {' '.join(standing)}"
    rest = count - len(outcomes)
    last = outcomes[-1] if outcomes else None
    parts = [f"{jobs} of {count} submitted" + (f", which stay: {' '.join(standing)}" if standing else "")]
    if last is not None and not last.new_job:
        parts.append(f"number {len(outcomes)}: {last.words or 'no word of why'}")
    if rest:
        parts.append(f"the {rest} after it {'was' if rest == 1 else 'were'} not sent")
    return "; ".join(parts)
