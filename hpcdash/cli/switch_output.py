"""What `hpcdash kill-switch` and `save-switch` print: what is about to be done, what is known, JSON. Asks nothing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcdash.backends.actions import Outcome, Verb
from hpcdash.cli.acting import jobs_words
from hpcdash.cli.stdout import print_json
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.stakes import count_jobs
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.switch_looks import SwitchLook, clear_doubt, folder_words, group_words, warnings
from hpcdash.domain.switch_progress import Progress, progress_words, shared_words, unseen_words
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import clip, visible
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.session import ClusterSession
from hpcdash.services.switches.switches import Namesakes, Switch

_COMMAND_LETTERS = 2000


@dataclass(frozen=True, slots=True)
class Found:
    """A switch of some of the jobs that were asked for, and what is there.

    `log` is whether its log grows; `said` what that says since it was dropped from here, None where that is not known.
    """

    switch: Switch
    job_ids: tuple[str, ...]
    look: SwitchLook
    namesakes: Namesakes
    progress: Progress
    log: str
    said: str | None
    dropped_here_seconds_ago: float | None

    @property
    def matters(self) -> bool:
        """Whether it is there, or somebody may see it yet: what to know of its folder is of use."""
        return self.look.is_dropped or bool(self.namesakes.rows)

    @property
    def warnings(self) -> tuple[str, ...]:
        return warnings(self.look, self.switch.kind, self.switch.owner) if self.matters else ()

    @property
    def group(self) -> str:
        return group_words(self.look) if self.matters else ""

    @property
    def doubt(self) -> str:
        """Why a person is asked before what is there is removed."""
        return clear_doubt(self.look, is_dropped_here=self.dropped_here_seconds_ago is not None)

    @property
    def unseen(self) -> str:
        """That it may have come to nothing yet, of one that is there."""
        return unseen_words(self.switch.kind, self.progress) if self.look.is_dropped else ""

    @property
    def words(self) -> str:
        said = None if self.said is None else visible(self.said)
        return progress_words(self.switch.kind, self.look, self.progress, self.dropped_here_seconds_ago, said)


def announce(one: Found, plan: Plan, session: ClusterSession, *, in_full: bool) -> None:
    """What will be done, who sees it and what to know of the folder, on stderr; `in_full`: the command itself too."""
    switch, look = one.switch, one.look
    is_clearing = plan.request.verb in (Verb.CLEAR_KILL_SWITCH, Verb.CLEAR_SAVE_SWITCH)
    whose = jobs_words(one.namesakes.rows) if one.namesakes.rows else "no living job"
    deed = "" if look.is_dropped else "stops: " if switch.kind is SwitchKind.KILL else "seen by: "
    running = count_jobs(row for row in one.namesakes.rows if row["state"] in ACTIVE)
    told = [switch.also_words, *one.warnings, "" if is_clearing else shared_words(switch.kind, running)]
    if is_clearing:
        told += [one.doubt, one.unseen]
    if plan.request.verb is Verb.KILL_SWITCH:
        told.append("it stays until it is cleared (--clear): what starts later ends at once")
    command = plan.commands[0]
    script = shlex.join(command.argv).split("\n") if in_full else []
    asides = [one.group, one.namesakes.note, f"log of {switch.job_id}: {one.log}"]
    lines = [
        f"{plan.request.verb} on {visible(session.name)}: {visible(switch.path)} ({visible(switch.naming.whence)})",
        f"  folder: {folder_words(look)}",
        f"  {deed}{whose}",
        *(f"  {visible(words)}" for words in asides if words),
        *(f"  ! {visible(words)}" for words in told if words),
        f"  {clip(visible(command.words), _COMMAND_LETTERS)}",
        *(f"  {clip(visible(line), _COMMAND_LETTERS)}" for line in script),
    ]
    print("\n".join(lines), file=sys.stderr)


def state_words(one: Found) -> str:
    """What is known of it, in a line."""
    log = "" if one.progress.ended and not one.progress.living else visible(one.log)
    known = [visible(one.switch.also_words), *one.warnings, one.group, log, visible(one.namesakes.note)]
    return "; ".join([one.words, *(words for words in known if words)])


def write_json(kind: SwitchKind, found: Sequence[Found], outcomes: Sequence[Outcome], session: ClusterSession) -> None:
    """All of it for machines, on stdout."""
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
    print_json(answer)


def _as_json(one: Found) -> dict[str, Any]:
    look, progress = one.look, one.progress
    there = bool(look.there)
    was_dropped = look.is_dropped or one.dropped_here_seconds_ago is not None
    return {
        "job_ids": list(one.job_ids),
        "path": visible(one.switch.path),
        "whence": visible(one.switch.naming.whence),
        "also_named": visible(one.switch.naming.also) or None,
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
