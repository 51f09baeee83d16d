"""`hpcdash kill-switch` and `save-switch`: say which file, who sees it and what is in the way; drop, clear or look."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from hpcdash.backends.actions import Outcome
from hpcdash.cli.acting import is_agreed
from hpcdash.cli.oneshot import with_session
from hpcdash.cli.options import CommonOptions, named_jobs
from hpcdash.cli.switch_output import Found, announce, state_words, write_json
from hpcdash.config import load_settings
from hpcdash.domain.switch_looks import in_time
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import visible
from hpcdash.errors import EXIT_REFUSED, EXIT_UNREACHABLE, HpcdashError, NoSuchJob, UsageError
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.session import ClusterSession
from hpcdash.services.switches.switches import Switch, Switches, SwitchLog, SwitchRefused

Deed = Literal["drop", "clear", "status", "forget"]
_NOBODY_LEFT = "no job that is known to name it runs or waits, and one that starts later would see it"


class _Declined(Exception):
    """The person said no."""


def run_switch(
    common: CommonOptions,
    kind: SwitchKind,
    jobs: Sequence[str],
    *,
    path: str,
    clear: bool,
    status: bool,
    forget: bool,
    form: str,
) -> None:
    """Drop the switches of some jobs, remove them (`clear`), tell of them (`status`), or `forget` what was named.

    Ends the process with 1 where one was refused, with 3 where an outcome is not known.
    """
    settings = load_settings(common.config)
    deed = _deed(path=path, clear=clear, status=status, forget=forget)
    changes = deed in ("drop", "clear")
    if changes and (common.read_only or settings.read_only):
        whence = "--read-only" if common.read_only else f"read_only in {settings.file}"
        raise UsageError(f"{kind}-switch: nothing is changed here ({whence})", "--status looks all the same.")
    must_ask = kind is SwitchKind.KILL and deed == "drop" and not common.yes
    can_ask = sys.stdin.isatty() and sys.stderr.isatty()
    job_ids = named_jobs(jobs)
    if must_ask and not can_ask:
        raise UsageError(f"{kind}-switch asks first, and there is no terminal to ask on", "--yes does it without.")

    async def work(session: ClusterSession) -> tuple[list[Found], list[Outcome], ClusterSession]:
        await session.store.open(force=True)
        switches = Switches(session.actions, session.actions.journal.path.parent)
        if deed == "forget":
            return [], await _forgotten(switches, kind, job_ids), session
        await _lists(session)
        pairs, unknown = await _switches(switches, kind, job_ids, path)
        looked = [await _looked_at(switches, *one) for one in pairs]
        found = [one for one, _ in looked]
        if deed == "status":
            return found, unknown, session
        plans: list[tuple[Found, SwitchLog, Plan]] = []
        outcomes = unknown
        asks = must_ask
        for one, log in looked:
            try:
                plan = _planned(switches, one, deed, must_agree=not (common.yes or can_ask))
            except SwitchRefused as error:
                if len(job_ids) == 1 or (len(looked) == 1 and not unknown):
                    raise
                outcomes += [Outcome(job_id, False, error.message) for job_id in one.job_ids]
                continue
            plans.append((one, log, plan))
            asks = asks or (deed == "clear" and bool(one.doubt) and not common.yes)
            announce(one, plan, session, in_full=common.debug)
        if asks and plans and not await is_agreed():
            raise _Declined
        for one, log, plan in plans:
            outcomes += await _done(switches, one, log, plan, deed)
        return found, outcomes, session

    try:
        found, outcomes, session = with_session(common, work)
    except _Declined:
        print("nothing was done", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    if form == "json":
        write_json(kind, found, outcomes, session)
    else:
        if deed == "status":
            for one in found:
                print(f"{' '.join(map(visible, one.job_ids))}  {visible(one.switch.path)}  {state_words(one)}")
        for outcome in outcomes:
            said = "" if outcome.done or deed == "status" else "unknown: " if outcome.done is None else "refused: "
            print(f"{visible(outcome.job_id)}  {said}{visible(outcome.words)}")
    sys.stdout.flush()
    ways = {outcome.done for outcome in outcomes}
    if ways - {True}:
        sys.exit(EXIT_UNREACHABLE if None in ways else EXIT_REFUSED)


def _deed(*, path: str, clear: bool, status: bool, forget: bool) -> Deed:
    if clear and status:
        raise UsageError("--clear and --status cannot be used together", "--status only looks.")
    if forget and (path or clear or status):
        raise UsageError("--forget goes with no other option of a switch", "It forgets a path that was named before.")
    return "forget" if forget else "clear" if clear else "status" if status else "drop"


async def _lists(session: ClusterSession) -> None:
    """Everyone's jobs, to see who else names a switch; where they cannot be asked for, nobody else is known."""
    try:
        await session.store.fetch(Kind.EVERYONE)
    except HpcdashError as error:
        print(f"hpcdash: who else names it is not known: {visible(error.message)}", file=sys.stderr)


async def _switches(
    switches: Switches, kind: SwitchKind, job_ids: Sequence[str], path: str
) -> tuple[list[tuple[Switch, tuple[str, ...]]], list[Outcome]]:
    """Each switch once, with those of the jobs that have it, and why others have none that is known.

    Raises NoSuchJob and UsageError where one job alone was asked for.
    """
    by_path: dict[str, tuple[Switch, tuple[str, ...]]] = {}
    unknown: list[Outcome] = []
    for job_id in job_ids:
        try:
            switch = await switches.find(job_id, kind, path)
            if problem := switch.naming.problem:
                raise UsageError(problem, "--path FILE names it, and is remembered for jobs of this name.")
        except (NoSuchJob, UsageError) as error:
            if len(job_ids) == 1:
                raise
            unknown.append(Outcome(job_id, False, error.message))
            continue
        first, ids = by_path.get(switch.path, (switch, ()))
        by_path[switch.path] = (first, (*ids, job_id))
    return list(by_path.values()), unknown


async def _looked_at(switches: Switches, switch: Switch, job_ids: tuple[str, ...]) -> tuple[Found, SwitchLog]:
    here = await asyncio.to_thread(switches.dropped_here_seconds_ago, switch)
    look = in_time(await switches.look(switch), here)
    namesakes = await switches.namesakes(switch)
    progress = await switches.progress(look, (*job_ids, *namesakes.job_ids), here)
    log = await asyncio.to_thread(switches.log_of, switch)
    is_gone = here is not None and not look.is_dropped
    said, grows = await log.told(switch.living) if is_gone else (None, await log.words(switch.living))
    return Found(switch, job_ids, look, namesakes, progress, grows, said, here), log


def _planned(switches: Switches, one: Found, deed: Deed, *, must_agree: bool) -> Plan:
    """What drops or clears it; raises SwitchRefused where something is in the way, or it would have to be asked."""
    if deed == "clear":
        plan = switches.plan_clear(one.switch, one.look, one.job_ids)
        if one.doubt and must_agree:
            raise SwitchRefused(f"{one.switch.path}: {one.doubt}", "--yes removes it all the same.")
        return plan
    if not one.matters:
        raise SwitchRefused(f"{one.switch.path}: {_NOBODY_LEFT}", "touch makes it all the same.")
    return switches.plan_drop(one.switch, one.look, one.job_ids)


async def _done(switches: Switches, one: Found, log: SwitchLog, plan: Plan, deed: Deed) -> tuple[Outcome, ...]:
    """Run it; what is to be kept of a drop is kept where it was done."""
    report = await switches.carry_out(one.switch, plan)
    problems = [report.journal_problem]
    if deed == "drop" and any(outcome.done for outcome in report.outcomes):
        problems += [switches.remember(one.switch), switches.mark(one.switch, log)]
    for problem in filter(None, problems):
        print(f"hpcdash: {visible(problem)}", file=sys.stderr)
    if deed == "drop" or not one.unseen:
        return report.outcomes
    return tuple(
        replace(outcome, words=f"{outcome.words}; {one.unseen}") if outcome.done else outcome
        for outcome in report.outcomes
    )


async def _forgotten(switches: Switches, kind: SwitchKind, job_ids: Sequence[str]) -> list[Outcome]:
    found = [await switches.find(job_id, kind) for job_id in job_ids]
    return [Outcome(switch.job_id, True, switches.forget(switch)) for switch in found]
