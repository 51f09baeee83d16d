"""Actions of an assistant: planned first, then run once, by a token, when a person accepts."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcdash.assembly import chosen_clusters
from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.submissions import Submission
from hpcdash.cli.actions import announce, refuse_unnamed_cluster, report_json
from hpcdash.cli.assistant.tools import FILE, Parameter, ToolSpec
from hpcdash.cli.jobs import open_sessions
from hpcdash.cli.nested import current_call
from hpcdash.cli.options import CommonOptions, named_jobs, on_named_cluster
from hpcdash.cli.submit import (
    REQUEST_ENDING,
    RequestSubmission,
    ScriptSubmission,
    read_script,
    submission_json,
)
from hpcdash.cli.terminal import JSON_SCHEMA, print_notes
from hpcdash.config.read import load_settings
from hpcdash.domain.job_ids import parse_job_number, plain_id
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.text import clip, visible, visible_text
from hpcdash.errors import UsageError, without_env
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.submission import SubmissionPlan

PLAN_SECONDS = 300.0
ALLOWED_VERBS = (
    Verb.SUBMIT,
    Verb.CANCEL,
    Verb.HOLD,
    Verb.RELEASE,
    Verb.REQUEUE,
    Verb.SUSPEND,
    Verb.RESUME,
)
RUN_PLAN = "run_plan"
_MOST_PLANS = 50
_COMMAND_LETTERS = 1000
_MOST_LINES = 40
_JOBS = Parameter(
    "jobs", "", "Job IDs that the person named: 4711, 88_3, 88_[3-5]", "array", is_required=True
)


def plan_tool(verb: Verb) -> ToolSpec:
    """Return the tool that plans an action."""
    parameters = (FILE,) if verb is Verb.SUBMIT else (_JOBS,)
    text = f"Plan to {verb}: returns the exact commands and a token for {RUN_PLAN}. Runs nothing."
    return ToolSpec(f"plan_{verb}", text, (), parameters)


class PendingPlan(Struct):
    """Plan that waits for a person; `lines` describe it, `typed` is the command of a person."""

    verb: Verb
    session: ClusterSession
    plan: Plan | SubmissionPlan
    lines: list[str]
    typed: str
    expires_at: float
    # Whether a person was asked, so that an answer may follow.
    awaits_person: bool = False

    @property
    def action(self) -> Plan:
        return self.plan.plan if isinstance(self.plan, SubmissionPlan) else self.plan

    @property
    def question(self) -> str:
        """Text for the person who accepts it."""
        commands = [clip(visible(one.text), _COMMAND_LETTERS) for one in self.action.commands]
        shown = commands[:_MOST_LINES]
        if len(commands) > len(shown):
            shown.append(f"… and {len(commands) - len(shown)} more commands")
        lines = self.lines[: 2 * _MOST_LINES]
        if isinstance(self.plan, SubmissionPlan):
            script = visible_text(self.plan.shown).splitlines()
            lines += [*shown, "", *(clip(line, 200) for line in script[:_MOST_LINES])]
            if len(script) > _MOST_LINES:
                lines.append(f"… and {len(script) - _MOST_LINES} more lines")
        return "\n".join(["An assistant asks to run:", *lines])


class Plans:
    """Plans of one assistant, by their tokens."""

    def __init__(self, common: CommonOptions, *, allow_unattended: bool) -> None:
        self._common = common
        self._allow_unattended = allow_unattended
        self._pending: dict[str, PendingPlan] = {}
        # Jobs that this assistant submitted.
        self._submitted: set[tuple[str, str, str]] = set()

    async def make(self, verb: Verb, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Plan an action; return its JSON, and the token.

        Raises HpcdashError. Notes are printed.
        """
        if verb is Verb.SUBMIT:
            pending = await self._plan_submission(str(given["file"]))
        else:
            pending = await self._plan_action(verb, given["jobs"])
        now = time.monotonic()
        self._pending = {token: one for token, one in self._pending.items() if one.expires_at > now}
        while len(self._pending) >= _MOST_PLANS:
            self._pending.pop(next(iter(self._pending)))
        token = secrets.token_urlsafe(18)
        self._pending[token] = pending
        answer: dict[str, Any] = {
            "schema": JSON_SCHEMA,
            **pending.session.envelope(),
            "verb": str(verb),
            "commands": [without_env(command.argv) for command in pending.action.commands],
            "effects": pending.lines,
            "jobs": [
                {key: row[key] for key in ("id", "name", "user", "state")}
                for row in pending.action.rows
            ],
            "command_for_a_person": pending.typed,
            "expires_at": format_utc(time.time() + PLAN_SECONDS),
        }
        if isinstance(pending.plan, SubmissionPlan):
            answer |= {"script": pending.plan.shown, "folder": pending.plan.folder or None}
        return answer, token

    async def _plan_action(self, verb: Verb, jobs: list[str]) -> PendingPlan:
        chosen: dict[str, Any] = {"jobs": named_jobs(jobs)}
        common = on_named_cluster(self._common, chosen)
        job_ids = named_jobs(chosen["jobs"])
        if not job_ids:
            raise UsageError("no job specified")
        session = await self._session(common)
        refuse_unnamed_cluster(session, job_ids)
        request = ActionRequest(verb, job_ids)
        session.actions.plan(request)
        plan = await announce(session, request, job_ids, is_listed=True)
        typed = self._typed(common, str(verb), *plan.request.job_ids)
        return self._pend(verb, session, plan, typed)

    async def _plan_submission(self, file: str) -> PendingPlan:
        if not Path(file).is_absolute():
            raise UsageError("file: expected an absolute path")
        submission: RequestSubmission | ScriptSubmission
        if file.endswith(REQUEST_ENDING):
            submission = RequestSubmission.read(
                self._common, file, options=(), array="", after=(), held=False
            )
        else:
            script = read_script(file, is_program=False)
            submission = ScriptSubmission(Submission(script, Path(file).name), file)
        session = await self._session(self._common)
        planned = await submission.plan(session, (), None)
        print_notes(*planned.notes)
        folder = f", in {Path.cwd()}" if session.store.transport.name == "local" else ""
        print_notes(f"submit on {session.name}: {file}{folder}")
        typed = self._typed(self._common, "submit", file)
        return self._pend(Verb.SUBMIT, session, planned, typed)

    def _pend(
        self, verb: Verb, session: ClusterSession, plan: Plan | SubmissionPlan, typed: str
    ) -> PendingPlan:
        call = current_call()
        lines = call.notes if call is not None else []
        expires_at = time.monotonic() + PLAN_SECONDS
        return PendingPlan(verb, session, plan, lines, typed, expires_at=expires_at)

    async def _session(self, common: CommonOptions) -> ClusterSession:
        settings = load_settings(common.config)
        clusters = chosen_clusters(common, settings)[:1]
        async with open_sessions(clusters, settings, common) as [session]:
            await session.store.open(force=True)
            return session

    def _typed(self, common: CommonOptions, command: str, *arguments: str) -> str:
        return shlex.join(["hpcdash", *common.cluster_argv(), command, "--", *arguments])

    def find(self, token: str) -> PendingPlan:
        """Return the plan of a token. Raises UsageError for an unknown, used or expired one."""
        pending = self._pending.get(token)
        if pending is None or pending.expires_at <= time.monotonic():
            self._pending.pop(token, None)
            raise UsageError(
                "this token is unknown, used or expired",
                f"A token runs its plan once, within {PLAN_SECONDS / 60:.0f} minutes: plan again.",
            )
        return pending

    def await_person(self, token: str) -> None:
        """Mark the plan as shown to a person, who has as long again to answer."""
        pending = self._pending[token]
        pending.awaits_person = True
        pending.expires_at = time.monotonic() + PLAN_SECONDS

    def discard(self, token: str) -> None:
        """Forget the plan of a token."""
        self._pending.pop(token, None)

    def may_run_unattended(self, pending: PendingPlan) -> bool:
        """Return whether a plan touches only jobs that this assistant submitted."""
        if not self._allow_unattended or pending.verb is Verb.SUBMIT:
            return False
        touched = [*pending.action.request.job_ids, *(row["id"] for row in pending.action.rows)]
        return all(_identity(pending.session, one) in self._submitted for one in touched)

    async def run(self, token: str) -> dict[str, Any]:
        """Run the plan of a token, which is used up before. Raises UsageError as `find` does."""
        pending = self.find(token)
        self.discard(token)
        session = pending.session
        if not isinstance(pending.plan, SubmissionPlan):
            report = await session.actions.run(pending.plan)
            print_notes(report.journal_problem)
            return {"schema": JSON_SCHEMA, **report_json(report, session)}
        result = await session.launches.submit(pending.plan, session.actions, print_notes)
        print_notes(result.journal_problem, result.message)
        if result.outcome.new_job:
            self._submitted.add(_identity(session, result.outcome.new_job))
        answer = submission_json((result.outcome,), pending.plan, 1)
        return {"schema": JSON_SCHEMA, **session.envelope(), **answer}


def _identity(session: ClusterSession, job_id: str) -> tuple[str, str, str]:
    """Return the cluster, its site's cluster, and the number of a job."""
    return session.name, plain_id(job_id)[1], parse_job_number(job_id)
