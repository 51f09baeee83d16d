"""`hpcdash move`: moves a waiting job to another queue, account, QoS or cluster."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from hpcdash.assembly import chosen_clusters
from hpcdash.backends.actions import Outcome
from hpcdash.cli.actions import (
    exit_status,
    format_jobs,
    refuse_read_only,
    refuse_unnamed_cluster,
)
from hpcdash.cli.ending import run_async
from hpcdash.cli.jobs import open_sessions
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import confirm, print_json, print_notes, require_prompt
from hpcdash.config.destination import ClusterChoice
from hpcdash.config.read import load_settings
from hpcdash.domain.text import clip, visible
from hpcdash.errors import without_env
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.move_plan import Destination, MovePlan, plan_move
from hpcdash.services.submit.moves import MoveResult, run_move

_COMMAND_LETTERS = 1000


def run_move_command(
    common: CommonOptions,
    job_id: str,
    destination: Destination,
    *,
    target: str,
    dry_run: bool,
    form: str,
) -> None:
    """Move a job, to another cluster if one is given.

    Exits with 1 if nothing was moved, with 3 if the outcome is unclear.
    """
    settings = load_settings(common.config)
    if not dry_run:
        refuse_read_only(common, settings, "move")
    [source] = chosen_clusters(common, settings)[:1]
    chosen = [source]
    if target and target != source.name:
        chosen += chosen_clusters(ClusterChoice(cluster=target), settings)

    async def work() -> tuple[MovePlan, MoveResult | None]:
        async with open_sessions(chosen, settings, common) as sessions:
            return await _move(common, sessions, job_id, destination, dry_run=dry_run)

    planned, result = run_async(work())
    if form == "json":
        print_json(_answer(planned, result))
    elif result is not None:
        print(f"{visible(result.job_id)}  {visible(result.text)}")
    sys.stdout.flush()
    if result is not None and not result.done:
        sys.exit(exit_status((Outcome(result.job_id, result.done),)))


async def _move(
    common: CommonOptions,
    sessions: Sequence[ClusterSession],
    job_id: str,
    destination: Destination,
    *,
    dry_run: bool,
) -> tuple[MovePlan, MoveResult | None]:
    """Plan, announce, confirm and run a move; the result is None for a dry run."""
    for session in sessions:
        await session.store.resolve_backend()
    source = sessions[0]
    await source.store.open(force=True)
    refuse_unnamed_cluster(source, (job_id,))
    planned = await plan_move(source, sessions[-1], job_id, destination)
    needs_confirmation = planned.copy is not None and not common.yes and not dry_run
    if needs_confirmation:
        require_prompt("move")
    _announce(planned)
    if dry_run:
        return planned, None
    if needs_confirmation:
        await confirm()
    try:
        return planned, await run_move(planned, print_notes)
    except asyncio.CancelledError:
        print_notes(
            f"move of {planned.job_id}: interrupted; hpcdash journal --settle finishes or undoes it"
        )
        raise


def _announce(planned: MovePlan) -> None:
    """Print the jobs, the place, and the commands to stderr."""
    where = ", ".join(filter(None, (_cluster_text(planned), str(planned.destination))))
    print(
        f"move on {visible(planned.source.name)}: {format_jobs(planned.plan.rows)} to "
        f"{visible(where)}",
        file=sys.stderr,
    )
    for text in (*planned.notes, *(command.text for command in planned.plan.commands)):
        print(f"  {clip(visible(text), _COMMAND_LETTERS)}", file=sys.stderr)


def _cluster_text(planned: MovePlan) -> str:
    return "" if planned.source is planned.target else f"cluster {planned.target.name}"


def _answer(planned: MovePlan, result: MoveResult | None) -> dict[str, object]:
    destination = planned.destination
    return {
        **planned.source.envelope(),
        "verb": "move",
        "job_id": planned.job_id,
        "to": {
            "cluster": planned.target.name,
            "queue": destination.queue or None,
            "account": destination.account or None,
            "qos": destination.qos or None,
        },
        "in_place": planned.change is not None,
        "notes": planned.notes,
        "commands": [without_env(command.argv) for command in planned.plan.commands],
        "done": None if result is None else result.done,
        "new_job": None if result is None else result.new_job or None,
        "words": "nothing was changed" if result is None else result.text,
    }
