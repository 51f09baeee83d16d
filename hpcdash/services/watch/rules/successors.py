"""Is there a job lined up? A chain that runs with nothing, or too little, behind it."""

from __future__ import annotations

from collections.abc import Iterable

from hpcdash.backends.base import ReasonsPart
from hpcdash.config.watch_settings import ChainWatch
from hpcdash.domain.alerts import Finding, Severity, shown
from hpcdash.domain.chains import JobChain
from hpcdash.domain.states import ACTIVE, WAITING, JobState
from hpcdash.domain.text import counted

RULE = "no-successor"


def no_successor(
    chains: Iterable[JobChain], reasons: ReasonsPart, watch: ChainWatch
) -> list[Finding]:
    """One for each running chain with fewer jobs and tasks behind it that will start than
    required.
    """
    found = []
    for chain in chains:
        running = [row for row in chain.rows if row["state"] in ACTIVE]
        if not running:
            continue
        ready, held, never = _waiting(chain, reasons)
        if ready >= watch.fewest_waiting:
            continue
        last = running[-1]
        behind = f"{counted(ready, 'successor')} queued" if ready else "no successor queued"
        besides = [
            f"{number} {what}"
            for number, what in ((held, "held"), (never, "that will never start"))
            if number
        ]
        text = f"{shown(last['name'])} ({shown(last['id'])}) is running with {behind}" + (
            f", plus {' and '.join(besides)}" if besides else ""
        )
        step = f"hpcdash submit SCRIPT --array 1-10%1 --after {shown(last['id'])}"
        if held and not never:
            step = f"hpcdash release {shown(last['id'])} --chain"
        found.append(Finding(RULE, chain.units[0].job_id, Severity.WARNING, text, step))
    return found


def ready_behind(chain: JobChain, reasons: ReasonsPart) -> int:
    """Count the jobs and tasks of a chain that wait and will start on their own."""
    return _waiting(chain, reasons)[0]


def _waiting(chain: JobChain, reasons: ReasonsPart) -> tuple[int, int, int]:
    """Count a chain's waiting jobs and tasks: (those that will start, those that are held, those
    that never start).
    """
    waiting = [row for row in chain.rows if row["state"] in WAITING]
    held = sum(row["_tasks"] or 1 for row in waiting if row["state"] == JobState.HELD)
    never = sum(
        row["_tasks"] or 1 for row in waiting if reasons.never_starts(row["state"], row["reason"])
    )
    return sum(row["_tasks"] or 1 for row in waiting) - held - never, held, never
