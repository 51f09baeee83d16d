"""`hpcdash kill-switch` and `save-switch`: report, set, clear or check a job's switch file."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import Outcome, Verb
from hpcdash.cli.actions import format_jobs, refuse_unnamed_cluster
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions, named_jobs
from hpcdash.cli.terminal import is_agreed, print_json
from hpcdash.config.read import load_settings
from hpcdash.domain.impact import count_jobs
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.switch_text import (
    SwitchProgress,
    SwitchSnapshot,
    clear_doubt,
    format_folder,
    format_group,
    format_progress,
    format_shared,
    format_unseen,
    in_time,
    warnings,
)
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, visible
from hpcdash.errors import (
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    Declined,
    HpcdashError,
    NoSuchJob,
    UsageError,
)
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.session import ClusterSession
from hpcdash.services.switches.switches import (
    JobSwitches,
    Switch,
    SwitchJobs,
    SwitchLog,
    SwitchRefused,
)

_COMMAND_LETTERS = 2000
SwitchVerb = Literal["drop", "clear", "status", "forget"]
_NOBODY_LEFT = (
    "no running or pending job is known to use it, and a job that starts later would see it"
)


class SwitchStatus(Struct, frozen=True):
    """Switch of some of the requested jobs, and the present file.

    `log` is the state of its log; `said` its text since the drop from here, None where that is
    unknown.
    """

    switch: Switch
    job_ids: tuple[str, ...]
    look: SwitchSnapshot
    switch_jobs: SwitchJobs
    progress: SwitchProgress
    log: str
    said: str | None
    dropped_here_seconds_ago: float | None

    @property
    def matters(self) -> bool:
        """Whether it exists, or some job may see it yet: notes on its folder are then of use."""
        return self.look.is_dropped or bool(self.switch_jobs.rows)

    @property
    def warnings(self) -> tuple[str, ...]:
        return warnings(self.look, self.switch.kind, self.switch.owner) if self.matters else ()

    @property
    def group(self) -> str:
        return format_group(self.look) if self.matters else ""

    @property
    def doubt(self) -> str:
        """Reason to confirm the removal of the present file; '' for none."""
        return clear_doubt(self.look, is_dropped_here=self.dropped_here_seconds_ago is not None)

    @property
    def unseen(self) -> str:
        """Note that a dropped switch may have had no effect yet; '' if it is not dropped."""
        return format_unseen(self.switch.kind, self.progress) if self.look.is_dropped else ""

    @property
    def words(self) -> str:
        reported = None if self.said is None else visible(self.said)
        return format_progress(
            self.switch.kind, self.look, self.progress, self.dropped_here_seconds_ago, reported
        )


def announce(one: SwitchStatus, plan: Plan, session: ClusterSession, *, in_full: bool) -> None:
    """Print an action on a switch to stderr: its effect, the jobs that see it, notes on the folder.

    `in_full` prints the command itself too.
    """
    switch, check = one.switch, one.look
    is_clearing = plan.request.verb in (Verb.CLEAR_KILL_SWITCH, Verb.CLEAR_SAVE_SWITCH)
    whose = (
        format_jobs(one.switch_jobs.rows) if one.switch_jobs.rows else "no running or pending job"
    )
    action = (
        "" if check.is_dropped else "stops: " if switch.kind is SwitchKind.KILL else "seen by: "
    )
    running = count_jobs(row for row in one.switch_jobs.rows if row["state"] in ACTIVE)
    reported = [
        switch.overridden_note,
        *one.warnings,
        "" if is_clearing else format_shared(switch.kind, running),
    ]
    if is_clearing:
        reported += [one.doubt, one.unseen]
    if plan.request.verb is Verb.KILL_SWITCH:
        reported.append("it stays until you clear it (--clear): jobs that start later exit at once")
    command = plan.commands[0]
    script = shlex.join(command.argv).split("\n") if in_full else []
    asides = [one.group, one.switch_jobs.note, f"log of {switch.job_id}: {one.log}"]
    lines = [
        f"{plan.request.verb} on {visible(session.name)}: {visible(switch.path)} "
        f"({visible(switch.naming.source)})",
        f"  folder: {format_folder(check)}",
        f"  {action}{whose}",
        *(f"  {visible(text)}" for text in asides if text),
        *(f"  ! {visible(text)}" for text in reported if text),
        f"  {clip(visible(command.words), _COMMAND_LETTERS)}",
        *(f"  {clip(visible(line), _COMMAND_LETTERS)}" for line in script),
    ]
    print("\n".join(lines), file=sys.stderr)


def format_state(one: SwitchStatus) -> str:
    """Return the known state of a switch, in one line."""
    log = "" if one.progress.ended and not one.progress.living else visible(one.log)
    known = [
        visible(one.switch.overridden_note),
        *one.warnings,
        one.group,
        log,
        visible(one.switch_jobs.note),
    ]
    return "; ".join([one.words, *(text for text in known if text)])


def write_json(
    kind: SwitchKind,
    found: Sequence[SwitchStatus],
    outcomes: Sequence[Outcome],
    session: ClusterSession,
) -> None:
    """All of it for machines, on stdout."""
    answer: dict[str, Any] = {
        "schema": 1,
        **session.envelope(),
        "kind": str(kind),
        "switches": [_as_json(one) for one in found],
        "results": [
            {"job_id": one.job_id, "done": one.done, "words": one.words} for one in outcomes
        ],
    }
    print_json(answer)


def _as_json(one: SwitchStatus) -> dict[str, Any]:
    check, progress = one.look, one.progress
    there = bool(check.there)
    was_dropped = check.is_dropped or one.dropped_here_seconds_ago is not None
    return {
        "job_ids": list(one.job_ids),
        "path": visible(one.switch.path),
        "source": visible(one.switch.naming.source),
        "overridden_path": visible(one.switch.naming.overridden) or None,
        "present": str(check.thing),
        "dropped_by": visible(check.file.owner) if check.is_dropped else None,
        "dropped_seconds_ago": _whole(check.age_seconds) if check.is_dropped else None,
        "folder": visible(check.there) if there else None,
        "folder_owner": visible(check.folder.owner) if there else None,
        "folder_group": visible(check.folder.group) if there else None,
        "group_may_write": check.folder.group_may_write if there else None,
        "may_write": check.may_write if there else None,
        "problem": check.problem or None,
        "warnings": list(one.warnings),
        "jobs": [visible(job_id) for job_id in one.switch_jobs.job_ids],
        "living": count_jobs(one.switch_jobs.rows),
        "ended_since": progress.ended if was_dropped else None,
        "ended_cleanly": progress.clean if was_dropped else None,
        "dropped_here_seconds_ago": _whole(one.dropped_here_seconds_ago),
        "words": one.words,
        "log": visible(one.log),
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
    """Drop, remove (`clear`) or show (`status`) the switches of jobs, or `forget` named ones.

    Ends the process with 1 where one was refused, with 3 where an outcome is unknown.
    """
    settings = load_settings(common.config)
    action = _choose_verb(path=path, clear=clear, status=status, forget=forget)
    changes = action in ("drop", "clear")
    if changes and (common.read_only or settings.read_only):
        source = "--read-only" if common.read_only else f"read_only in {settings.file}"
        raise UsageError(
            f"{kind}-switch is refused: hpcdash is read-only ({source})", "--status still works."
        )
    must_ask = kind is SwitchKind.KILL and action == "drop" and not common.yes
    can_prompt = sys.stdin.isatty() and sys.stderr.isatty()
    job_ids = named_jobs(jobs)
    if must_ask and not can_prompt:
        raise UsageError(
            f"{kind}-switch needs confirmation, but there is no terminal",
            "Use --yes to skip the question.",
        )

    async def work(
        session: ClusterSession,
    ) -> tuple[list[SwitchStatus], list[Outcome], ClusterSession]:
        await session.store.open(force=True)
        refuse_unnamed_cluster(session, job_ids)
        switches = JobSwitches(session.actions, session.actions.journal.path.parent)
        if action == "forget":
            return [], await _forgotten(switches, kind, job_ids), session
        await _lists(session)
        pairs, unknown = await _switches(switches, kind, job_ids, path)
        looked = [await _looked_at(switches, *one) for one in pairs]
        found = [one for one, _ in looked]
        if action == "status":
            return found, unknown, session
        plans: list[tuple[SwitchStatus, SwitchLog, Plan]] = []
        outcomes = unknown
        prompts = must_ask
        for one, log in looked:
            try:
                plan = _planned(switches, one, action, must_agree=not (common.yes or can_prompt))
            except SwitchRefused as error:
                if len(job_ids) == 1 or (len(looked) == 1 and not unknown):
                    raise
                outcomes += [Outcome(job_id, False, error.message) for job_id in one.job_ids]
                continue
            plans.append((one, log, plan))
            prompts = prompts or (action == "clear" and bool(one.doubt) and not common.yes)
            announce(one, plan, session, in_full=common.debug)
        if prompts and plans and not await is_agreed():
            raise Declined
        for one, log, plan in plans:
            outcomes += await _done(switches, one, log, plan, action)
        return found, outcomes, session

    found, outcomes, session = with_session(common, work)
    if form == "json":
        write_json(kind, found, outcomes, session)
    else:
        if action == "status":
            for one in found:
                print(
                    f"{' '.join(map(visible, one.job_ids))}  {visible(one.switch.path)}  "
                    f"{format_state(one)}"
                )
        for outcome in outcomes:
            message = (
                ""
                if outcome.done or action == "status"
                else "unknown: "
                if outcome.done is None
                else "refused: "
            )
            print(f"{visible(outcome.job_id)}  {message}{visible(outcome.words)}")
    sys.stdout.flush()
    ways = {outcome.done for outcome in outcomes}
    if ways - {True}:
        sys.exit(EXIT_UNREACHABLE if None in ways else EXIT_REFUSED)


def _choose_verb(*, path: str, clear: bool, status: bool, forget: bool) -> SwitchVerb:
    if clear and status:
        raise UsageError(
            "--clear and --status cannot be used together", "--status changes nothing."
        )
    if forget and (path or clear or status):
        raise UsageError(
            "--forget cannot be combined with other switch options",
            "It forgets the path given earlier.",
        )
    return "forget" if forget else "clear" if clear else "status" if status else "drop"


async def _lists(session: ClusterSession) -> None:
    """Fetch everyone's jobs, to find others that name a switch; none where the query fails."""
    try:
        await session.store.fetch(Kind.EVERYONE)
    except HpcdashError as error:
        print(
            f"hpcdash: could not look for other jobs that use it: {visible(error.message)}",
            file=sys.stderr,
        )


async def _switches(
    switches: JobSwitches, kind: SwitchKind, job_ids: Sequence[str], path: str
) -> tuple[list[tuple[Switch, tuple[str, ...]]], list[Outcome]]:
    """Return each switch once, with its jobs, and why other jobs have none that is known.

    Raises NoSuchJob and UsageError where a single job was requested.
    """
    by_path: dict[str, tuple[Switch, tuple[str, ...]]] = {}
    unknown: list[Outcome] = []
    for job_id in job_ids:
        try:
            switch = await switches.find(job_id, kind, path)
            if problem := switch.naming.problem:
                is_own = switch.owner in ("", switches.store.user)
                query = (
                    "Give it"
                    if is_own
                    else f"Ask {visible(switch.owner)} which file it watches, and give it"
                )
                raise UsageError(
                    problem, f"{query} with --path FILE; it is remembered for jobs of this name."
                )
        except (NoSuchJob, UsageError) as error:
            if len(job_ids) == 1:
                raise
            unknown.append(Outcome(job_id, False, error.message))
            continue
        first, ids = by_path.get(switch.path, (switch, ()))
        by_path[switch.path] = (first, (*ids, job_id))
    return list(by_path.values()), unknown


async def _looked_at(
    switches: JobSwitches, switch: Switch, job_ids: tuple[str, ...]
) -> tuple[SwitchStatus, SwitchLog]:
    here = await asyncio.to_thread(switches.dropped_here_seconds_ago, switch)
    check = in_time(await switches.look(switch), here)
    switch_jobs = await switches.switch_jobs(switch)
    progress = await switches.progress(check, (*job_ids, *switch_jobs.job_ids), here)
    log = await asyncio.to_thread(switches.switch_log, switch)
    is_gone = here is not None and not check.is_dropped
    message, grows = (
        await log.since_mark(switch.living) if is_gone else (None, await log.words(switch.living))
    )
    return SwitchStatus(switch, job_ids, check, switch_jobs, progress, grows, message, here), log


def _planned(
    switches: JobSwitches, one: SwitchStatus, action: SwitchVerb, *, must_agree: bool
) -> Plan:
    """Return the plan that drops or clears a switch.

    Raises SwitchRefused where something prevents it, or it would need a confirmation.
    """
    if action == "clear":
        plan = switches.plan_clear(one.switch, one.look, one.job_ids)
        if one.doubt and must_agree:
            raise SwitchRefused(f"{one.switch.path}: {one.doubt}", "Use --yes to remove it anyway.")
        return plan
    if not one.matters:
        raise SwitchRefused(f"{one.switch.path}: {_NOBODY_LEFT}", "Use touch to create it anyway.")
    return switches.plan_drop(one.switch, one.look, one.job_ids)


async def _done(
    switches: JobSwitches, one: SwitchStatus, log: SwitchLog, plan: Plan, action: SwitchVerb
) -> tuple[Outcome, ...]:
    """Run the plan, and store the record of a drop after success."""
    report = await switches.carry_out(one.switch, plan)
    problems = [report.journal_problem]
    if action == "drop" and any(outcome.done for outcome in report.outcomes):
        problems += [switches.remember(one.switch), switches.mark(one.switch, log)]
    for problem in filter(None, problems):
        print(f"hpcdash: {visible(problem)}", file=sys.stderr)
    if action == "drop" or not one.unseen:
        return report.outcomes
    return tuple(
        replace(outcome, words=f"{outcome.words}; {one.unseen}") if outcome.done else outcome
        for outcome in report.outcomes
    )


async def _forgotten(
    switches: JobSwitches, kind: SwitchKind, job_ids: Sequence[str]
) -> list[Outcome]:
    found = [await switches.find(job_id, kind) for job_id in job_ids]
    return [Outcome(switch.job_id, True, switches.forget(switch)) for switch in found]
