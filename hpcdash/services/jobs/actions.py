"""Acts on jobs: plans the commands, runs them, writes them to the journal, returns each job's
outcome.
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
from hpcdash.services.jobs.scripts import save_scripts
from hpcdash.services.state.journal import Journal, JournalUnwritable

Row = Mapping[str, Any]
# More ids than this are searched in the whole queue: each makes the command longer.
_MAX_NAMED_IDS = 500
ANSWER_LOST = "the answer was lost; check the job"
NEVER_ARRIVED = "never received"
pause = asyncio.sleep
# The messages of a command that ends sooner are reported only with its outcome.
_PROGRESS_SECONDS = 2.0


class Plan(Struct, frozen=True):
    """Planned action: the request, the known affected rows of domain.schema.JOBS, the commands."""

    request: ActionRequest
    rows: tuple[Row, ...]
    commands: tuple[ActionCommand, ...]
    # All parts of a submission that is sent in parts.
    parts: tuple[str, ...] = ()

    @property
    def pause_seconds(self) -> float:
        """Total seconds that the commands wait for each other."""
        return sum(command.pause_seconds for command in self.commands)


class Report(Struct, frozen=True):
    """Result of an action.

    `journal_problem` is the reason that it is not in the journal, '' if it is. `note_again` writes
    later outcomes to the journal, and returns the reason if it fails; None if the action is not in
    the journal.
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
        # Actions that were cancelled after they were sent, with an unknown outcome.
        self.cut_off: list[tuple[Verb, str]] = []

    def plan(self, request: ActionRequest, rows: Sequence[Row] = (), *, run_as: str = "") -> Plan:
        """Plan the commands, and run none. Raises UsageError for an invalid request.

        With `run_as` the commands run as the account of a launch, with sudo.
        """
        commands = self.store.backend.actions.commands(request)
        if run_as:
            commands = tuple(self._with_sudo(command, run_as) for command in commands)
        return Plan(request, tuple(rows), commands)

    def _with_sudo(self, command: ActionCommand, account: str) -> ActionCommand:
        program, *parts = without_env(command.argv)
        path = self.store.probe.commands.get(program, "") if self.store.probe else ""
        if not path.startswith("/"):
            title = self.store.backend.title
            raise UsageError(
                f"{title} cannot run this as {account}",
                f"Run it as {account}: {command.text}",
            )
        return replace(command, argv=("sudo", "-n", "-u", account, path, *parts))

    @property
    def can_signal_parts(self) -> bool:
        """Whether a signal can be sent to a part of a job, such as its batch shell."""
        return self._can_query(ActionRequest(Verb.SIGNAL, ("1",), signal="USR1", recipient="batch"))

    @property
    def can_change_limits_by_amounts(self) -> bool:
        """Whether a time limit can be raised by an amount."""
        return self._can_query(ActionRequest(Verb.ALTER, ("1",), changes={"time": "+1h"}))

    def _can_query(self, request: ActionRequest) -> bool:
        try:
            self.store.backend.actions.commands(request)
        except UsageError:
            return False
        return True

    async def fetch_rows(self, job_ids: Sequence[str]) -> tuple[Row, ...]:
        """Fetch the rows that `job_ids` select, as select_rows does, including finished jobs.

        Unknown IDs have no row. Raises UsageError for an ID that the scheduler takes for another
        job's.
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

        Refusals and connection errors are outcomes; the outcome is None (unknown) if an answer was
        lost. No command is repeated, and none is sent after a lost answer. Of several commands that
        submit a job the last submits it: if an earlier one fails or its answer is lost, the job was
        not submitted. If cancelled, the outcomes so far are written to the journal. `on_message`
        receives each line of stderr of a command that runs for seconds.
        """
        running = _Run(plan, self.store, on_outcome, on_message)
        await running.open()
        noting = asyncio.ensure_future(asyncio.to_thread(self._note_before, plan))
        try:
            await asyncio.shield(noting)
            await running.run_commands()
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
        """Write a plan to the journal; return (action ID, '') or ('', reason of the failure)."""
        names: dict[str, str] = {}
        for command in plan.commands:
            if command.job_name:
                names.update(dict.fromkeys(command.job_ids, command.job_name))
        try:
            action_id = self.journal.before(
                cluster=self.store.name,
                user=self.store.user,
                verb=plan.request.verb,
                job_ids=plan.request.job_ids,
                commands=[command.argv for command in plan.commands],
                names=names,
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
    """Refuse IDs that are not a job's own: Slurm takes 28 and 28+1 for the component 27+1, and 30
    for the task 29_1.
    """
    requested = set(map(parse_job_number, named))
    own: set[str] = set()
    others = []
    for row in jobs.select(["id", "_other_id"]).to_pylist():
        number = parse_job_number(row["id"])
        own.add(number)
        if row["_other_id"] is not None:
            own.add(parse_job_number(row["_other_id"]))
        if not {number, row["_other_id"]} & requested:
            others.append(row["id"])
    unknown = [job_id for job_id in named if parse_job_number(job_id) not in own]
    if unknown and others:
        raise UsageError(
            f"no job has the ID {', '.join(unknown)}; the scheduler lists {', '.join(others)} "
            "instead",
            "Use the job's own ID.",
        )


class _Run:
    """Commands of a plan as they run, and the known outcome of each job."""

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
        # Number of commands that were sent.
        self._count = 0
        self._is_open = True

    async def open(self) -> None:
        """Open the connection; if that fails, no command is sent."""
        try:
            await self._store.open(force=True)
        except HpcdashError as error:
            self._note_unsent(self._plan.commands, error.message)
            self._is_open = False

    async def run_commands(self) -> None:
        """Run the commands until one cannot be sent or its answer is lost."""
        if not self._is_open:
            return
        commands = self._plan.commands
        is_submission = self._plan.request.verb is Verb.SUBMIT
        for position, command in enumerate(commands):
            if is_submission and self._has_failed(command):
                continue
            if command.pause_seconds:
                await pause(command.pause_seconds)
            self._sent = command
            self._count = position + 1
            try:
                answer = await self._run(command)
            except NotSent as error:
                self._sent = None
                self._note_unsent(commands[position:], error.message)
                return
            except (UnreachableError, CommandTimedOut) as error:
                self._note(self._lost_outcomes(command, f" ({error.message})"))
                self._sent = None
                self._note_unsent(commands[position + 1 :], "the previous command got no answer")
                return
            except HpcdashError as error:
                self._sent = None
                self._note_unsent(commands[position:], error.message)
                return
            outcomes = await asyncio.to_thread(command.read, answer)
            self._note(outcomes)
            self._sent = None
            if is_submission:
                saved = await save_scripts(self._store, command, outcomes)
                self._note(outcome for outcome in saved if outcome not in outcomes)

    async def _run(self, command: ActionCommand) -> Answer:
        """Run a command; if it runs for long, report the lines of stderr as they arrive."""
        if self._on_progress is None:
            return await self._store.act(command)
        received = bytearray()
        reported = 0
        acting = asyncio.ensure_future(self._store.act(command, received.extend))
        try:
            while not (await asyncio.wait({acting}, timeout=_PROGRESS_SECONDS))[0]:
                end = received.rfind(b"\n") + 1
                for line in received[reported:end].decode("utf-8", "replace").splitlines():
                    self._on_progress(command.explain(line.strip()))
                reported = max(reported, end)
        finally:
            if not acting.done():
                acting.cancel()
                await asyncio.wait({acting})
        return acting.result()

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return an outcome per job, in the order of the request."""
        known = dict(self._known)
        if self._sent is not None:
            for outcome in self._lost_outcomes(self._sent):
                _combine(known, outcome)
        for command in self._plan.commands[self._count :]:
            for job_id in command.job_ids:
                _combine(known, Outcome(job_id, False, "not run"))
        return tuple(known[job_id] for job_id in dict.fromkeys(self._plan.request.job_ids))

    def _has_failed(self, command: ActionCommand) -> bool:
        """Whether an earlier command failed or was lost, so that `command` must not submit."""
        before = [self._known[job_id] for job_id in command.job_ids if job_id in self._known]
        for outcome in before:
            if outcome.done is None:
                text = f"{NEVER_ARRIVED}: {outcome.text}"
                self._known[outcome.job_id] = replace(outcome, done=False, text=text)
        return any(outcome.done is not True for outcome in before)

    def _lost_outcomes(self, command: ActionCommand, why: str = "") -> list[Outcome]:
        """Return the outcomes of a command without an answer.

        A job that a later command would have submitted was not submitted.
        """
        later: set[str] = set()
        if self._plan.request.verb is Verb.SUBMIT:
            for one in reversed(self._plan.commands):
                if one is command:
                    break
                later.update(one.job_ids)
        outcomes = []
        for job_id in command.job_ids:
            if job_id in later:
                text = f"{NEVER_ARRIVED}: the previous command got no answer{why}"
                outcomes.append(Outcome(job_id, False, text))
            else:
                outcomes.append(Outcome(job_id, None, f"{ANSWER_LOST}{why}"))
        return outcomes

    def _note_unsent(self, commands: Sequence[ActionCommand], why: str) -> None:
        is_submission = self._plan.request.verb is Verb.SUBMIT
        text = f"{NEVER_ARRIVED if is_submission else 'not run'}: {why}"
        for command in commands:
            self._note(Outcome(job_id, False, text) for job_id in command.job_ids)

    def _note(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            _combine(self._known, outcome)
            self._report(self._known[outcome.job_id])


def _combine(known: dict[str, Outcome], outcome: Outcome) -> None:
    """Note an outcome; a job of several commands is done if all of them succeeded."""
    before = known.get(outcome.job_id)
    if before is None or before.done is True:
        known[outcome.job_id] = outcome
