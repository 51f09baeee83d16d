"""`hpcdash kill-switch` and `save-switch`: report, set, clear or check a job's switch file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any, Literal

from msgspec.structs import replace

from hpcdash.backends.actions import Outcome, Verb
from hpcdash.cli.actions import (
    exit_status,
    format_jobs,
    outcome_entries,
    refuse_read_only,
    refuse_unnamed_cluster,
)
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions, named_jobs
from hpcdash.cli.terminal import can_prompt, confirm, print_json, print_notes, require_prompt
from hpcdash.config.read import load_settings
from hpcdash.domain.impact import count_jobs
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.switch_text import format_folder, format_shared
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, visible
from hpcdash.errors import (
    HpcdashError,
    NoSuchJob,
    UsageError,
)
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.session import ClusterSession
from hpcdash.services.switches.switches import JobSwitches, Switch
from hpcdash.services.switches.tracker import SwitchRefused, SwitchTracker

_COMMAND_LETTERS = 2000
SwitchVerb = Literal["drop", "clear", "status", "forget"]
SwitchResults = tuple[list[SwitchTracker], list[Outcome], ClusterSession]
_NOBODY_LEFT = "no known running or pending job uses it, but a job that starts later would see it"


def announce(tracker: SwitchTracker, plan: Plan, session: ClusterSession, *, debug: bool) -> None:
    """Print an action on a switch to stderr: its effect, the jobs that see it, notes on the folder.

    `debug` prints the command itself too.
    """
    switch = tracker.switch
    assert tracker.snapshot is not None
    jobs = format_jobs(tracker.living) if tracker.living else "no running or pending job"
    if not tracker.is_dropped:
        jobs = f"{'stops' if switch.kind is SwitchKind.KILL else 'seen by'}: {jobs}"
    notes = [
        tracker.group_note,
        tracker.jobs_note,
        f"log of {switch.job_id}: {tracker.log_message}",
    ]
    cautions = [switch.overridden_note, *tracker.warnings]
    if plan.request.verb in (Verb.CLEAR_KILL_SWITCH, Verb.CLEAR_SAVE_SWITCH):
        cautions += [tracker.doubt, tracker.unseen]
    else:
        running = count_jobs(row for row in tracker.living if row["state"] in ACTIVE)
        cautions.append(format_shared(switch.kind, running))
    if plan.request.verb is Verb.KILL_SWITCH:
        cautions.append(
            "the switch stays set until you clear it (--clear): jobs that start later exit at once"
        )
    command = plan.commands[0]
    commands = [command.text, *(shlex.join(command.argv).split("\n") if debug else ())]
    lines = [
        f"{plan.request.verb} on {visible(session.name)}: {visible(switch.path)} "
        f"({visible(switch.source)})",
        f"  folder: {format_folder(tracker.snapshot)}",
        f"  {jobs}",
        *(f"  {visible(note)}" for note in notes if note),
        *(f"  ! {visible(caution)}" for caution in cautions if caution),
        *(f"  {clip(visible(line), _COMMAND_LETTERS)}" for line in commands),
    ]
    print("\n".join(lines), file=sys.stderr)


def format_state(tracker: SwitchTracker) -> str:
    """Return the known state of a switch, in one line."""
    has_ended = tracker.progress.ended and not tracker.progress.living
    parts = [
        tracker.summary,
        visible(tracker.switch.overridden_note),
        *tracker.warnings,
        tracker.group_note,
        "" if has_ended else visible(tracker.log_message),
        visible(tracker.jobs_note),
    ]
    return "; ".join(filter(None, parts))


def _write_json(
    kind: SwitchKind,
    trackers: Sequence[SwitchTracker],
    outcomes: Sequence[Outcome],
    session: ClusterSession,
) -> None:
    answer: dict[str, Any] = {
        **session.envelope(),
        "kind": str(kind),
        "switches": [_as_json(tracker) for tracker in trackers],
        "results": outcome_entries(outcomes),
    }
    print_json(answer)


def _as_json(tracker: SwitchTracker) -> dict[str, Any]:
    switch = tracker.switch
    check = tracker.snapshot
    assert check is not None
    folder = check.folder if check.there else None
    progress = tracker.progress
    dropped_here = tracker.dropped_here_seconds_ago
    was_dropped = check.is_dropped or dropped_here is not None
    return {
        "job_ids": list(tracker.job_ids),
        "path": visible(switch.path),
        "source": visible(switch.source),
        "overridden_path": visible(switch.overridden) or None,
        "present": str(check.thing),
        "dropped_by": visible(check.file.owner) if check.is_dropped else None,
        "dropped_seconds_ago": _whole(check.age_seconds) if check.is_dropped else None,
        "folder": visible(check.there) or None,
        "folder_owner": visible(folder.owner) if folder else None,
        "folder_group": visible(folder.group) if folder else None,
        "group_may_write": folder.group_may_write if folder else None,
        "may_write": check.may_write if folder else None,
        "problem": check.problem or None,
        "warnings": list(tracker.warnings),
        "jobs": [visible(job_id) for job_id in tracker.living_ids],
        "living": count_jobs(tracker.living),
        "ended_since": progress.ended if was_dropped else None,
        "ended_cleanly": progress.clean if was_dropped else None,
        "dropped_here_seconds_ago": _whole(dropped_here),
        "words": tracker.summary,
        "log": visible(tracker.log_message),
    }


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)


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
    """Set, clear or show the switches of jobs, or forget named ones.

    Exits with 1 where one was refused, with 3 where an outcome is unknown.
    """
    settings = load_settings(common.config)
    action = _choose_verb(path=path, clear=clear, status=status, forget=forget)
    if action in ("drop", "clear"):
        refuse_read_only(common, settings, f"{kind}-switch", "--status still works.")
    needs_confirmation = kind is SwitchKind.KILL and action == "drop" and not common.yes
    job_ids = named_jobs(jobs)
    if needs_confirmation:
        require_prompt(f"{kind}-switch")

    async def work(session: ClusterSession) -> SwitchResults:
        await session.store.open(force=True)
        refuse_unnamed_cluster(session, job_ids)
        switches = JobSwitches(session.actions, session.actions.journal.path.parent)
        if action == "forget":
            return [], [await _forget(switches, job_id, kind) for job_id in job_ids], session
        await _fetch_everyone(session)
        trackers, outcomes = await _find_switches(switches, kind, job_ids, path)
        for tracker in trackers:
            await tracker.check()
        if action != "status":
            plans = _plan_all(trackers, action, outcomes, can_agree=common.yes or can_prompt())
            for tracker, plan in plans:
                announce(tracker, plan, session, debug=common.debug)
            is_doubtful = action == "clear" and any(tracker.doubt for tracker, _ in plans)
            prompts = needs_confirmation or (is_doubtful and not common.yes)
            if prompts and plans:
                await confirm()
            for tracker, plan in plans:
                outcomes += await _run(tracker, plan)
        return trackers, outcomes, session

    trackers, outcomes, session = with_session(common, work)
    if form == "json":
        _write_json(kind, trackers, outcomes, session)
    else:
        _write_text(trackers, outcomes, is_status=action == "status")
    sys.stdout.flush()
    if exit_code := exit_status(outcomes):
        sys.exit(exit_code)


def _write_text(
    trackers: Sequence[SwitchTracker], outcomes: Sequence[Outcome], *, is_status: bool
) -> None:
    for tracker in trackers if is_status else ():
        ids = " ".join(map(visible, tracker.job_ids))
        print(f"{ids}  {visible(tracker.switch.path)}  {format_state(tracker)}")
    for outcome in outcomes:
        result = ""
        if not (outcome.done or is_status):
            result = "unknown: " if outcome.done is None else "refused: "
        print(f"{visible(outcome.job_id)}  {result}{visible(outcome.text)}")


def _choose_verb(*, path: str, clear: bool, status: bool, forget: bool) -> SwitchVerb:
    if clear and status:
        raise UsageError(
            "--clear and --status cannot be used together", "--status changes nothing."
        )
    if forget and (path or clear or status):
        raise UsageError(
            "--forget cannot be combined with other switch options",
            "--forget clears the path given earlier.",
        )
    if forget:
        return "forget"
    if clear:
        return "clear"
    return "status" if status else "drop"


async def _forget(switches: JobSwitches, job_id: str, kind: SwitchKind) -> Outcome:
    switch = await switches.find(job_id, kind)
    return Outcome(job_id, True, switches.forget(switch))


async def _fetch_everyone(session: ClusterSession) -> None:
    """Fetch everyone's jobs, to find others that name a switch; none where the query fails."""
    try:
        await session.store.fetch(Kind.EVERYONE)
    except HpcdashError as error:
        print_notes(f"could not search for other jobs that use it: {error.message}")


async def _find_switches(
    switches: JobSwitches, kind: SwitchKind, job_ids: Sequence[str], path: str
) -> tuple[list[SwitchTracker], list[Outcome]]:
    """Return each switch once, with its jobs, and why other jobs have none that is known.

    Raises NoSuchJob and UsageError where a single job was requested.
    """
    by_path: dict[str, list[Switch]] = {}
    unknown: list[Outcome] = []
    for job_id in job_ids:
        try:
            switch = await switches.find(job_id, kind, path)
            if switch.problem:
                is_own = switch.owner in ("", switches.store.user)
                who = "" if is_own else f"Ask {visible(switch.owner)} which file it watches, and "
                step = f"{who}specify it with --path FILE; it is remembered for jobs of this name."
                raise UsageError(switch.problem, step[0].upper() + step[1:])
        except (NoSuchJob, UsageError) as error:
            if len(job_ids) == 1:
                raise
            unknown.append(Outcome(job_id, False, error.message))
            continue
        by_path.setdefault(switch.path, []).append(switch)
    trackers = [
        SwitchTracker(switches, same[0], [switch.job_id for switch in same])
        for same in by_path.values()
    ]
    return trackers, unknown


def _plan_all(
    trackers: Sequence[SwitchTracker],
    action: SwitchVerb,
    outcomes: list[Outcome],
    *,
    can_agree: bool,
) -> list[tuple[SwitchTracker, Plan]]:
    """Plan the action on each switch; a refusal is an outcome, and raised for a single switch."""
    plans = []
    is_single = len(trackers) == 1 and not outcomes
    for tracker in trackers:
        try:
            plans.append((tracker, _plan(tracker, action, can_agree=can_agree)))
        except SwitchRefused as error:
            if is_single:
                raise
            outcomes += [Outcome(job_id, False, error.message) for job_id in tracker.job_ids]
    return plans


def _plan(tracker: SwitchTracker, action: SwitchVerb, *, can_agree: bool) -> Plan:
    """Return the plan that drops or clears a switch.

    Raises SwitchRefused where something prevents it, or it would need a confirmation.
    """
    path = tracker.switch.path
    if action == "clear":
        plan = tracker.plan_clear()
        if tracker.doubt and not can_agree:
            raise SwitchRefused(f"{path}: {tracker.doubt}", "Use --yes to remove it anyway.")
        return plan
    if not tracker.matters:
        raise SwitchRefused(f"{path}: {_NOBODY_LEFT}", "Use touch to create it anyway.")
    return tracker.plan_drop()


async def _run(tracker: SwitchTracker, plan: Plan) -> list[Outcome]:
    """Run the plan; a cleared switch that had no effect yet is reported."""
    unseen = "" if plan.request.verb in (Verb.KILL_SWITCH, Verb.SAVE_SWITCH) else tracker.unseen
    outcomes, problems = await tracker.run(plan)
    print_notes(*problems)
    return [
        replace(outcome, text=f"{outcome.text}; {unseen}") if outcome.done and unseen else outcome
        for outcome in outcomes
    ]
