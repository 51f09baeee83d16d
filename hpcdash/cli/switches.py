"""`hpcdash kill-switch` and `save-switch`: say which file, who sees it and what is in the way; drop, clear or look."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hpcdash.backends.actions import Outcome, Verb
from hpcdash.cli.acting import is_agreed, jobs_words
from hpcdash.cli.oneshot import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.config import load_settings
from hpcdash.domain.job_ids import split_ids
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.stakes import count_jobs
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.switch_looks import (
    Progress,
    SwitchLook,
    folder_words,
    group_words,
    progress_words,
    shared_words,
    warnings,
)
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import clip, visible
from hpcdash.errors import EXIT_REFUSED, EXIT_UNREACHABLE, HpcdashError, UsageError
from hpcdash.stores.actions import Plan
from hpcdash.stores.snapshots import Kind
from hpcdash.stores.switches import Namesakes, Switch, Switches, SwitchRefused
from hpcdash.ui.session import ClusterSession

_COMMAND_LETTERS = 2000
_NOBODY_LEFT = "no job that is known to name it runs or waits, and one that starts later would see it"


class _Declined(Exception):
    """The person said no."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A switch of some of the jobs that were asked for, and what is there."""

    switch: Switch
    job_ids: tuple[str, ...]
    look: SwitchLook
    namesakes: Namesakes
    progress: Progress
    log: str
    dropped_here_seconds_ago: float | None

    @property
    def matters(self) -> bool:
        """Whether it is there, or somebody may see it yet: what to know of its folder is of use."""
        return self.look.is_dropped or bool(self.namesakes.rows)

    @property
    def warnings(self) -> tuple[str, ...]:
        return warnings(self.look, self.switch.kind, self.switch.owner) if self.matters else ()

    @property
    def words(self) -> str:
        return progress_words(self.switch.kind, self.look, self.progress, self.dropped_here_seconds_ago)


def run_switch(
    common: CommonOptions, kind: SwitchKind, jobs: Sequence[str], *, path: str, clear: bool, status: bool, form: str
) -> None:
    """Drop the switches of some jobs, remove them (`clear`), or tell of them (`status`).

    Ends the process with 1 where one was refused, with 3 where an outcome is not known.
    """
    settings = load_settings(common.config)
    if clear and status:
        raise UsageError("--clear and --status cannot be used together", "--status only looks.")
    if not status and (common.read_only or settings.read_only):
        whence = "--read-only" if common.read_only else f"read_only in {settings.file}"
        raise UsageError(f"{kind}-switch: nothing is changed here ({whence})", "--status looks all the same.")
    must_ask = kind is SwitchKind.KILL and not (clear or status or common.yes)
    can_ask = sys.stdin.isatty() and sys.stderr.isatty()
    job_ids = tuple(dict.fromkeys(job_id for words in jobs for job_id in split_ids(words)))
    if must_ask and not can_ask:
        raise UsageError(f"{kind}-switch asks first, and there is no terminal to ask on", "--yes does it without.")

    async def work(session: ClusterSession) -> tuple[list[_Found], list[Outcome], ClusterSession]:
        await session.store.open(force=True)
        switches = Switches(session.actions, session.actions.journal.path.parent)
        await _lists(session)
        found = [await _looked_at(switches, *one) for one in await _switches(switches, kind, job_ids, path)]
        if status:
            return found, [], session
        plans: list[tuple[Switch, Plan]] = []
        refused: list[Outcome] = []
        for one in found:
            plan = switches.plan_clear if clear else switches.plan_drop
            try:
                if not clear and not one.matters:
                    raise SwitchRefused(f"{one.switch.path}: {_NOBODY_LEFT}", "touch makes it all the same.")
                plans.append((one.switch, plan(one.switch, one.look, one.job_ids)))
            except SwitchRefused as error:
                if len(found) == 1:
                    raise
                refused += [Outcome(job_id, False, error.message) for job_id in one.job_ids]
                continue
            _announce(one, plans[-1][1], session, in_full=common.debug)
        if must_ask and plans and not await is_agreed():
            raise _Declined
        outcomes = refused
        for switch, made in plans:
            report = await switches.actions.run(made)
            outcomes += report.outcomes
            for problem in (report.journal_problem, "" if clear else switches.remember(switch)):
                if problem:
                    print(f"hpcdash: {visible(problem)}", file=sys.stderr)
        return found, outcomes, session

    try:
        found, outcomes, session = with_session(common, work)
    except _Declined:
        print("nothing was done", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    if form == "json":
        _write_json(kind, found, outcomes, session)
    elif status:
        for one in found:
            print(f"{' '.join(map(visible, one.job_ids))}  {visible(one.switch.path)}  {_state_words(one)}")
    else:
        for outcome in outcomes:
            said = "" if outcome.done else "unknown: " if outcome.done is None else "refused: "
            print(f"{visible(outcome.job_id)}  {said}{visible(outcome.words)}")
    sys.stdout.flush()
    ways = {outcome.done for outcome in outcomes}
    if ways - {True}:
        sys.exit(EXIT_UNREACHABLE if None in ways else EXIT_REFUSED)


async def _lists(session: ClusterSession) -> None:
    """Everyone's jobs, to see who else names a switch; where they cannot be asked for, nobody else is known."""
    try:
        await session.store.fetch(Kind.EVERYONE)
    except HpcdashError as error:
        print(f"hpcdash: who else names it is not known: {visible(error.message)}", file=sys.stderr)


async def _switches(
    switches: Switches, kind: SwitchKind, job_ids: Sequence[str], path: str
) -> list[tuple[Switch, tuple[str, ...]]]:
    """Each switch once, with those of the jobs that have it; raises UsageError where one is not known."""
    by_path: dict[str, tuple[Switch, tuple[str, ...]]] = {}
    for job_id in job_ids:
        switch = await switches.find(job_id, kind, path)
        if switch.problem:
            raise UsageError(switch.problem, "--path FILE names it, and is remembered for jobs of this name.")
        first, ids = by_path.get(switch.path, (switch, ()))
        by_path[switch.path] = (first, (*ids, job_id))
    return list(by_path.values())


async def _looked_at(switches: Switches, switch: Switch, job_ids: tuple[str, ...]) -> _Found:
    look = await switches.look(switch)
    namesakes = await switches.namesakes(switch)
    here = await asyncio.to_thread(switches.dropped_here_seconds_ago, switch)
    progress = await switches.progress(look, (*job_ids, *namesakes.job_ids), here)
    return _Found(switch, job_ids, look, namesakes, progress, await switches.log_words(switch), here)


def _announce(one: _Found, plan: Plan, session: ClusterSession, *, in_full: bool) -> None:
    """What will be done, who sees it and what to know of the folder, on stderr; `in_full`: the command itself too."""
    switch, look = one.switch, one.look
    whose = jobs_words(one.namesakes.rows) if one.namesakes.rows else "no living job"
    deed = "" if look.is_dropped else "stops: " if switch.kind is SwitchKind.KILL else "seen by: "
    running = count_jobs(row for row in one.namesakes.rows if row["state"] in ACTIVE)
    told = [*one.warnings, shared_words(switch.kind, running)]
    if plan.request.verb is Verb.KILL_SWITCH:
        told.append("it stays until it is cleared (--clear): what starts later ends at once")
    command = plan.commands[0]
    script = shlex.join(command.argv).split("\n") if in_full else []
    asides = [
        group_words(look, switch.owner) if one.matters else "",
        one.namesakes.note,
        f"log of {switch.job_id}: {one.log}",
    ]
    lines = [
        f"{plan.request.verb} on {visible(session.name)}: {visible(switch.path)} ({visible(switch.whence)})",
        f"  folder: {folder_words(look)}",
        f"  {deed}{whose}",
        *(f"  {visible(words)}" for words in asides if words),
        *(f"  ! {words}" for words in told if words),
        f"  {clip(visible(command.words), _COMMAND_LETTERS)}",
        *(f"  {clip(visible(line), _COMMAND_LETTERS)}" for line in script),
    ]
    print("\n".join(lines), file=sys.stderr)


def _state_words(one: _Found) -> str:
    group = group_words(one.look, one.switch.owner) if one.matters else ""
    log = "" if one.progress.ended and not one.progress.living else visible(one.log)
    known = [*one.warnings, group, log, visible(one.namesakes.note)]
    return "; ".join([one.words, *(words for words in known if words)])


def _write_json(
    kind: SwitchKind, found: Sequence[_Found], outcomes: Sequence[Outcome], session: ClusterSession
) -> None:
    store = session.store
    answer: dict[str, Any] = {
        "schema": 1,
        "cluster": session.name,
        "backend": store.backend.name,
        "taken_at": format_utc(store.clock.now()),
        "kind": str(kind),
        "switches": [_as_json(one) for one in found],
        "results": [{"job_id": one.job_id, "done": one.done, "words": one.words} for one in outcomes],
    }
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def _as_json(one: _Found) -> dict[str, Any]:
    look, progress = one.look, one.progress
    there = bool(look.there)
    was_dropped = look.is_dropped or one.dropped_here_seconds_ago is not None
    return {
        "job_ids": list(one.job_ids),
        "path": visible(one.switch.path),
        "whence": visible(one.switch.whence),
        "present": str(look.thing),
        "dropped_by": visible(look.file.owner) if look.is_dropped else None,
        "dropped_seconds_ago": _whole(look.age_seconds) if look.is_dropped else None,
        "folder": visible(look.there) if there else None,
        "folder_owner": visible(look.folder.owner) if there else None,
        "folder_group": visible(look.folder.group) if there else None,
        "group_may_write": look.folder.group_may_write if there else None,
        "may_write": look.may_write if there else None,
        "problem": look.problem or None,
        "warnings": list(one.warnings),
        "jobs_naming_it": [visible(job_id) for job_id in one.namesakes.job_ids],
        "living": count_jobs(one.namesakes.rows),
        "ended_since": progress.ended if was_dropped else None,
        "ended_cleanly": progress.clean if was_dropped else None,
        "dropped_here_seconds_ago": _whole(one.dropped_here_seconds_ago),
        "words": one.words,
        "log": visible(one.log),
    }


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)
