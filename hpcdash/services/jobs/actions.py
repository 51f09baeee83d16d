"""Acts on jobs: plans the commands, runs them, notes them in the journal, tells how each job
fared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand, ActionRequest, Outcome, Verb
from hpcdash.backends.queries import Answer, JobScope
from hpcdash.domain.job_ids import parse_job_number
from hpcdash.errors import (
    CommandTimedOut,
    HpcdashError,
    NoSuchJob,
    NotSent,
    UnreachableError,
    UsageError,
    without_env,
)
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.rows import select_rows
from hpcdash.services.jobs.scripts import keep_submitted
from hpcdash.services.state.journal import Journal, JournalUnwritable

Row = Mapping[str, Any]
# More ids than this are searched in the whole queue: each makes the command longer.
_MAX_NAMED_IDS = 500
ANSWER_LOST = "the answer was lost; check the job"
NEVER_ARRIVED = "it never arrived"
pause = asyncio.sleep
# The message of a command that ends sooner is reported with its outcome.
_GOES_ON_SECONDS = 2.0


class Plan(Struct, frozen=True):
    """Planned action: the request, the known affected rows of domain.schema.JOBS, the commands."""

    request: ActionRequest
    rows: tuple[Row, ...]
    commands: tuple[ActionCommand, ...]
    # Of a submission in parts, what all of them are for.
    parts: tuple[str, ...] = ()

    @property
    def pause_seconds(self) -> float:
        """Total seconds that the commands wait for each other."""
        return sum(command.pause_seconds for command in self.commands)


class Report(Struct, frozen=True):
    """Result of an action.

    `journal_problem` is the reason that it is not in the journal, '' if it is. `note_again` notes
    there what was found out later, and returns the reason if it fails; None: it is not in the
    journal.
    """

    plan: Plan
    outcomes: tuple[Outcome, ...]
    journal_problem: str = ""
    note_again: Callable[[Sequence[Outcome]], str] | None = None


class Actions:
    """Acts on the jobs of one cluster."""

    def __init__(self, store: ClusterStore, journal: Journal) -> None:
        self.store = store
        self.journal = journal
        # Cancelled after it was sent: its end is unknown.
        self.cut_off: list[tuple[Verb, str]] = []

    def plan(self, request: ActionRequest, rows: Sequence[Row] = (), *, run_as: str = "") -> Plan:
        """The commands; raises UsageError for what cannot be asked. Nothing runs.

        With `run_as` they run as the account of a launch, as the sudo rules have it; '' is oneself.
        """
        commands = self.store.backend.actions.commands(request)
        if run_as:
            commands = tuple(self._as_account(command, run_as) for command in commands)
        return Plan(request, tuple(rows), commands)

    def _as_account(self, command: ActionCommand, account: str) -> ActionCommand:
        program, *parts = without_env(command.argv)
        path = (self.store.probe.commands if self.store.probe else {}).get(program, "")
        if not path.startswith("/"):
            title = self.store.backend.title
            raise UsageError(
                f"{title} cannot run this as {account}",
                f"Run it as {account}: {command.text}",
            )
        return replace(command, argv=("sudo", "-n", "-u", account, path, *parts))

    @property
    def can_signal_parts(self) -> bool:
        """Whether a signal can be for a part of a job, as its batch shell."""
        return self._can_query(ActionRequest(Verb.SIGNAL, ("1",), signal="USR1", recipient="batch"))

    @property
    def can_change_limits_by_amounts(self) -> bool:
        """Whether a time limit can be raised by an amount, whatever it is."""
        return self._can_query(ActionRequest(Verb.ALTER, ("1",), changes={"time": "+1h"}))

    def _can_query(self, request: ActionRequest) -> bool:
        try:
            self.store.backend.actions.commands(request)
        except UsageError:
            return False
        return True

    async def fetch_rows(self, job_ids: Sequence[str]) -> tuple[Row, ...]:
        """The rows that some ids mean, as the scheduler has them now, ended ones included; what it
        does not know is left out.

        An array's number means all of its rows. Of a record that holds many tasks, a row with those
        that are meant. Raises UsageError for an id that the scheduler takes for a job of another
        id.
        """
        named = tuple(dict.fromkeys(job_ids))
        scope = JobScope(job_ids=named) if len(named) <= _MAX_NAMED_IDS else JobScope(ended=True)
        try:
            parsed = await self.store.run_query(self.store.backend.queue.jobs(scope))
        except NoSuchJob:
            return ()
        if scope.job_ids:
            _refuse_other_names(named, parsed.table)
        return await asyncio.to_thread(select_rows, parsed.table, named)

    async def run(
        self,
        plan: Plan,
        on_outcome: Callable[[Outcome], None] = lambda outcome: None,
        on_message: Callable[[str], None] | None = None,
    ) -> Report:
        """Run the commands one after the other.

        Raises nothing for a refusal by the scheduler or a failing line: each job has its outcome,
        None (unknown) if the answer was lost. Nothing is tried twice, and nothing is sent after a
        lost answer. Of several commands that submit one job the last hands it over: if one before
        it fails or is lost, the job was not submitted. If cancelled, it notes in the journal what
        is known so far. `on_message` receives the stderr of a command that runs for seconds
        afterwards, a line at a time.
        """
        running = _Run(plan, self.store, on_outcome, on_message)
        # Whatever fails before a command is sent has changed nothing.
        await running.open()
        noting = asyncio.ensure_future(asyncio.to_thread(self._note_before, plan))
        try:
            await asyncio.shield(noting)
            await running.commands()
            if plan.request.verb is Verb.DELETE:
                await self.store.forget([one.job_id for one in running.outcomes() if one.done])
        except asyncio.CancelledError:
            self.cut_off += [
                (plan.request.verb, one.job_id) for one in running.outcomes() if one.done is None
            ]
            raise
        finally:
            action_id, problem = await noting
            if action_id:
                after = asyncio.to_thread(self._note_after, action_id, running.outcomes())
                problem = await asyncio.shield(asyncio.ensure_future(after))
        again = partial(self._note_after, action_id) if action_id else None
        return Report(plan, running.outcomes(), problem, again)

    def _note_before(self, plan: Plan) -> tuple[str, str]:
        """(action id, '') or ('', why it could not be noted)."""
        request = plan.request
        commands = [command.argv for command in plan.commands]
        try:
            action_id = self.journal.before(
                cluster=self.store.name,
                user=self.store.user,
                verb=request.verb,
                job_ids=request.job_ids,
                commands=commands,
                names={
                    job_id: one.job_name
                    for one in plan.commands
                    if one.job_name
                    for job_id in one.job_ids
                },
                parts=plan.parts,
            )
        except JournalUnwritable as error:
            return "", f"not written to the journal: {error.message}"
        return action_id, ""

    def _note_after(self, action_id: str, outcomes: Sequence[Outcome]) -> str:
        try:
            self.journal.after(action_id, outcomes)
        except JournalUnwritable as error:
            return f"the result was not written to the journal: {error.message}"
        return ""


def _refuse_other_names(named: Sequence[str], jobs: pa.Table) -> None:
    """Refuse ids that are not a job's own: Slurm takes 28 and 28+1 for the component 27+1, and 30
    for the task 29_1.
    """
    listed = list(zip(jobs["id"].to_pylist(), jobs["_other_id"].to_pylist(), strict=True))
    own = {parse_job_number(job_id) for ids in listed for job_id in ids if job_id is not None}
    requested = set(map(parse_job_number, named))
    unknown = [job_id for job_id in named if parse_job_number(job_id) not in own]
    others = [
        job_id for job_id, other in listed if not {parse_job_number(job_id), other} & requested
    ]
    if unknown and others:
        raise UsageError(
            f"{', '.join(unknown)}: not the ID of a job; the scheduler lists {', '.join(others)} "
            "for it",
            "Write the job's own ID.",
        )


class _Run:
    """The commands of one plan as they run, and what is known of each job."""

    def __init__(
        self,
        plan: Plan,
        store: ClusterStore,
        on_outcome: Callable[[Outcome], None],
        on_message: Callable[[str], None] | None,
    ) -> None:
        self._plan = plan
        self._store = store
        self._report = on_outcome
        self._on_progress = on_message
        self._known: dict[str, Outcome] = {}
        self._sent: ActionCommand | None = None
        self._begun = 0
        self._is_open = True

    async def open(self) -> None:
        """Open the line; where it does not, nothing is run."""
        try:
            await self._store.open(force=True)
        except HpcdashError as error:
            self._not_run(self._plan.commands, error.message)
            self._is_open = False

    async def commands(self) -> None:
        """Run them; what keeps one from running, or its answer from coming, keeps those after it
        from running.
        """
        if not self._is_open:
            return
        for position, command in enumerate(self._plan.commands):
            if self._was_refused(command):
                continue
            if command.pause_seconds:
                await pause(command.pause_seconds)
            self._sent = command
            self._begun = position + 1
            try:
                answer = await self._answer(command)
            except NotSent as error:
                self._sent = None
                self._not_run(self._plan.commands[position:], error.message)
                return
            except (UnreachableError, CommandTimedOut) as error:
                self._learn(self._lost(command, f" ({error.message})"))
                self._sent = None
                self._not_run(
                    self._plan.commands[position + 1 :], "the previous command got no answer"
                )
                return
            except HpcdashError as error:
                self._sent = None
                self._not_run(self._plan.commands[position:], error.message)
                return
            outcomes = await asyncio.to_thread(command.read, answer)
            self._learn(outcomes)
            self._sent = None
            if self._plan.request.verb is Verb.SUBMIT:
                remaining = await keep_submitted(self._store, command, outcomes)
                self._learn(
                    after
                    for after, before in zip(remaining, outcomes, strict=True)
                    if after != before
                )

    async def _answer(self, command: ActionCommand) -> Answer:
        """A command's answer with all of its output; if it runs for long, lines are passed on as
        they arrive.
        """
        if self._on_progress is None:
            return await self._store.act(command)
        reported = bytearray()
        known = 0
        acting = asyncio.ensure_future(self._store.act(command, reported.extend))
        try:
            while not (await asyncio.wait({acting}, timeout=_GOES_ON_SECONDS))[0]:
                end = reported.rfind(b"\n") + 1
                for line in reported[known:end].decode("utf-8", "replace").splitlines():
                    self._on_progress(command.explain(line.strip()))
                known = max(known, end)
        finally:
            if not acting.done():
                acting.cancel()
                await asyncio.wait({acting})
        return acting.result()

    def outcomes(self) -> tuple[Outcome, ...]:
        """One a job, in the order they were asked for."""
        known = dict(self._known)
        if self._sent is not None:
            _unless_failed(known, self._lost(self._sent))
        for command in self._plan.commands[self._begun :]:
            _unless_failed(known, (Outcome(job_id, False, "not run") for job_id in command.job_ids))
        return tuple(known[job_id] for job_id in dict.fromkeys(self._plan.request.job_ids))

    def _was_refused(self, command: ActionCommand) -> bool:
        """Whether what comes before a submission did not go well, so that the submission itself is
        not sent.
        """
        if self._plan.request.verb is not Verb.SUBMIT:
            return False
        before = [self._known[job_id] for job_id in command.job_ids if job_id in self._known]
        for outcome in before:
            if outcome.done is None:
                self._known[outcome.job_id] = replace(
                    outcome, done=False, text=f"{NEVER_ARRIVED}: {outcome.text}"
                )
        return any(outcome.done is not True for outcome in before)

    def _lost(self, command: ActionCommand, why: str = "") -> list[Outcome]:
        """The outcomes of a command that was sent and not answered; a job it only prepares was not
        submitted.
        """
        later: set[str] = set()
        if self._plan.request.verb is Verb.SUBMIT:
            position = next(at for at, one in enumerate(self._plan.commands) if one is command)
            later = {
                job_id for one in self._plan.commands[position + 1 :] for job_id in one.job_ids
            }
        return [
            Outcome(job_id, False, f"{NEVER_ARRIVED}: the previous command got no answer{why}")
            if job_id in later
            else Outcome(job_id, None, f"{ANSWER_LOST}{why}")
            for job_id in command.job_ids
        ]

    def _not_run(self, commands: Sequence[ActionCommand], why: str) -> None:
        text = (
            f"{NEVER_ARRIVED}: {why}"
            if self._plan.request.verb is Verb.SUBMIT
            else f"not run: {why}"
        )
        self._learn(
            Outcome(job_id, False, text) for command in commands for job_id in command.job_ids
        )

    def _learn(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            _unless_failed(self._known, (outcome,))
            self._report(self._known[outcome.job_id])


def _unless_failed(known: dict[str, Outcome], outcomes: Iterable[Outcome]) -> None:
    """Note outcomes; a job that several commands change is done when all of them did it."""
    for outcome in outcomes:
        before = known.get(outcome.job_id)
        if before is None or before.done is True:
            known[outcome.job_id] = outcome
