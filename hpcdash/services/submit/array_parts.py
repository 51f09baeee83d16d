"""Submits an array's tasks in parts where the scheduler takes no list of them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.appending import appended
from hpcdash.backends.submissions import Submission, SubmitCommand
from hpcdash.domain.text import counted
from hpcdash.services.chains import submit_chain
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.submit.plan import SubmissionPlan


def _waiting(store: ClusterStore, command: ActionCommand, after: str) -> ActionCommand:
    """The command of a part, to wait for the end of a job, however that ends."""
    phrased = store.backend.submit.submission(Submission(b"#!/bin/sh\n", "x", after=(after,)))
    found = appended(SubmitCommand(command), phrased)
    return command if found is None else found.command


async def submit_parts(
    planned: SubmissionPlan,
    actions: Actions,
    *,
    is_chained: bool,
    after: str = "",
    on_outcome: Callable[[int, Outcome], None] = lambda part, outcome: None,
) -> tuple[Outcome, ...]:
    """Submit a plan's commands one by one, each an action of its own in the journal;
    `planned.plan.parts` are all.

    With `is_chained` each waits for the end of the one before it, the first for `after`. The first
    that was not submitted, or of which that is not known, is the last.
    """
    commands = iter(planned.plan.commands)

    async def plan_part(before: tuple[str, ...]) -> SubmissionPlan:
        command = next(commands)
        (name,) = command.job_ids
        if is_chained and (waits_for := before[0] if before else after):
            command = _waiting(actions.store, command, waits_for)
        request = replace(planned.plan.request, job_ids=(name,))
        plan = replace(planned.plan, request=request, commands=(command,))
        return SubmissionPlan(plan, (), {name: planned.searches[name]})

    return await submit_chain(
        plan_part, actions, actions.store, len(planned.plan.commands), on_outcome
    )


def format_parts(outcomes: tuple[Outcome, ...], count: int) -> str:
    """`submitted again in 2 parts: 93[] 94[]`; of parts that broke off, what stands and how to send
    the rest.
    """
    standing = [outcome.new_job for outcome in outcomes if outcome.new_job]
    if len(standing) == count:
        return f"submitted again in {counted(count, 'part')}: {' '.join(standing)}"
    last = outcomes[-1]
    stand = f", which stay: {' '.join(standing)}" if standing else ""
    return (
        f"{len(standing)} of {count} parts submitted{stand}; {last.job_id}: {last.words}; R "
        f"sends the rest"
    )
