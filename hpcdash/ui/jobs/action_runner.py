"""Execution of a plan on jobs: confirm, run it beside the screen, report, and refresh."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.actions import Outcome, Verb
from hpcdash.domain.job_ids import parse_job_key
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_age
from hpcdash.services.jobs import action_text
from hpcdash.services.jobs.actions import Plan, Report
from hpcdash.services.session import ClusterSession
from hpcdash.ui.dialogs import Dialog
from hpcdash.ui.jobs.action_dialogs import ConfirmDialog, Question, ResultsDialog
from hpcdash.ui.jobs.journal import JournalView
from hpcdash.ui.view import View
from hpcdash.ui.widgets.command_bar import CommandBar
from hpcdash.ui.widgets.lines import Hint, PlainStatic
from hpcdash.ui.workers import call_after, start_worker

if TYPE_CHECKING:
    from hpcdash.services.submit.move_plan import MovePlan
    from hpcdash.services.submit.moves import MoveResult
    from hpcdash.services.submit.submission import SubmissionPlan, SubmissionResult
    from hpcdash.ui.screen import DashboardScreen

_DONE_SECONDS = 8.0
# The progress line appears after this time.
_QUIET_SECONDS = 0.4
# A scheduler carries out an accepted request a moment later.
_LAG_SECONDS = 3.0
_FORCED_NOTE = (
    "Forcing removes the job from the queue at once; processes left on the node keep running."
)


class Underway(Struct):
    """Running plan: the numbers of its jobs, and the IDs with an outcome."""

    cluster: str
    title: str
    numbers: frozenset[str]
    jobs: int
    started_at: float = field(default_factory=time.monotonic)
    reported_ids: set[str] = field(default_factory=set)
    # Last message of a command that is still running.
    message: str = ""

    def __str__(self) -> str:
        seconds = int(time.monotonic() - self.started_at)
        message = f"  {visible(self.message)}" if self.message else ""
        return f"{self.title}: {len(self.reported_ids)} of {self.jobs} …  {seconds} s{message}"


class UnderwayLine(PlainStatic):
    """Progress of a plan while it runs."""

    DEFAULT_CSS = """
    UnderwayLine { height: 1; width: 1fr; padding: 0 1; color: $accent; text-style: bold; }
    """

    def __init__(self, underway: Underway) -> None:
        super().__init__(str(underway))
        self._underway = underway

    def on_mount(self) -> None:
        self.set_interval(0.5, self._notify)

    def _notify(self) -> None:
        self.update(str(self._underway))


class ActionRunner:
    """Runs plans on `screen`, any number at a time, but only one for a job."""

    def __init__(self, screen: DashboardScreen) -> None:
        self.screen = screen
        self._underway: list[Underway] = []
        self._polls_due: dict[str, asyncio.TimerHandle] = {}
        # Jobs that hpcdash cancelled: their end is not notified.
        self.cancelled: set[tuple[str, str]] = set()

    async def carry_out(
        self, question: Question, session: ClusterSession | None = None
    ) -> Report | None:
        """Confirm, run and report a plan, by default on the shown cluster; None where the person
        declined.

        Await it in a worker: a key handler must not wait for a person.
        """
        view = self.screen.view
        session = session or self.screen.session
        dialog = self._prompt(question, session)
        if dialog is None or not await dialog.answer:
            return None
        return await self.run_plan(question.plan, view, session)

    def begin(
        self,
        question: Question,
        form: Dialog[None] | None = None,
        *,
        session: ClusterSession | None = None,
    ) -> None:
        """Start a plan from a key handler: prompt at once, and run the plan in a worker.

        `form` is closed once the plan is confirmed. `session`: None: the shown cluster.
        """
        view = self.screen.view
        session = session or self.screen.session
        dialog = self._prompt(question, session, form)

        def answered(answer: asyncio.Future[bool]) -> None:
            if answer.result():
                start_worker(
                    self.screen, self.run_plan, question.plan, view, session, group="acting"
                )

        if dialog is not None:
            dialog.answer.add_done_callback(answered)

    async def is_confirmed(self, question: Question) -> bool:
        """Prompt for a plan, and return whether the person confirmed it."""
        dialog = self._prompt(question, self.screen.session)
        return dialog is not None and await dialog.answer

    def _prompt(
        self, question: Question, session: ClusterSession, form: Dialog[None] | None = None
    ) -> ConfirmDialog | None:
        """Show the question; None, with a notification, while another plan acts on the jobs."""
        numbers = _numbers(question.plan.request.job_ids)
        for other in self._underway:
            if other.cluster == session.name and not other.numbers.isdisjoint(numbers):
                text = f"the {other.title} is still running"
                self.screen.notify(text, severity="warning")
                return None
        dialog = ConfirmDialog(
            replace(question, notes=(*question.notes, *self._format_age(session))),
            cluster=session.store.title,
            user=session.store.user,
            form=form,
            has_recipients=session.actions.can_signal_parts,
        )
        self.screen.app.push_screen(dialog)
        return dialog

    def _format_age(self, session: ClusterSession) -> list[str]:
        """Return a note on the age of the data if it is old; [] if not.

        Data is old after a previous run, or while a cluster does not answer.
        """
        taken_at = self.screen.view.taken_at()
        if taken_at is None:
            return []
        age = session.store.clock.now() - taken_at
        oldest = 4 * max(session.poller.pace.seconds.values(), default=0.0)
        return [f"data is {format_age(age)} old"] if age > oldest else []

    async def run_plan(self, plan: Plan, view: View, session: ClusterSession) -> Report:
        """Run a confirmed plan, and report it; the marks of the view are cleared as it starts."""
        view.clear_marks()
        async with self._progress(plan, session) as underway:

            def on_outcome(outcome: Outcome) -> None:
                underway.reported_ids.add(outcome.job_id)

            def on_progress(line: str) -> None:
                underway.message = line

            report = await session.actions.run(
                plan, on_outcome, on_progress if plan.request.verb is Verb.SUBMIT else None
            )
        if plan.request.verb is Verb.CANCEL:
            self.cancelled |= {(session.name, one.job_id) for one in report.outcomes if one.done}
        self._poll_after(session, report)
        forcible = [outcome for outcome in report.outcomes if outcome.can_force]
        failed = [outcome for outcome in report.outcomes if outcome.done is not True]
        if not forcible or any(not outcome.can_force for outcome in failed):
            self._notify(report, session)
        if forcible:
            self._propose_force(plan, forcible, session)
        if isinstance(self.screen.view, JournalView):
            self.screen.view.reread()
        return report

    @asynccontextmanager
    async def _progress(self, plan: Plan, session: ClusterSession) -> AsyncIterator[Underway]:
        """Show the progress of a plan while it runs, and keep others off its jobs."""
        ids = plan.request.job_ids
        underway = Underway(session.name, action_text.format_running(plan), _numbers(ids), len(ids))
        self._underway.append(underway)
        line = UnderwayLine(underway)
        timer = call_after(
            self.screen,
            _QUIET_SECONDS,
            lambda: self.screen.mount(line, before=self.screen.query_one(Hint)),
        )
        try:
            yield underway
        finally:
            self._underway.remove(underway)
            timer.cancel()
            if line.is_attached:
                await line.remove()

    async def move(self, planned: MovePlan) -> MoveResult:
        """Run a confirmed move, and report it. Raises JournalUnwritable."""
        from hpcdash.services.submit.moves import run_move

        source = planned.source
        async with self._progress(planned.plan, source) as underway:

            def on_progress(text: str) -> None:
                underway.message = text

            result = await run_move(planned, on_progress)
        if planned.copy is not None:
            self.cancelled.add((source.name, planned.job_id))
        report = Report(planned.plan, (Outcome(result.job_id, result.done, result.text),))
        for session in {source.name: source, planned.target.name: planned.target}.values():
            self._poll_after(session, report)
        if result.done:
            text = f"job {result.job_id}: {result.text}"
            self.screen.notify(visible(text), timeout=_DONE_SECONDS)
        else:
            self._notify(report, source)
        return result

    def _propose_force(
        self, plan: Plan, refused: Sequence[Outcome], session: ClusterSession
    ) -> None:
        """Prompt for the same action by force on the jobs that were refused without it."""
        ids = tuple(outcome.job_id for outcome in refused)
        rows = [row for row in plan.rows if {row["id"], row["array_id"]} & set(ids)]
        request = replace(plan.request, job_ids=ids, force=True)
        forced = session.actions.plan(request, rows)
        question = Question(forced, (f"refused: {visible(refused[0].text)}", _FORCED_NOTE))
        self.begin(question, session=session)

    def _poll_after(self, session: ClusterSession, report: Report) -> None:
        session.poller.poll_now()
        if any(outcome.done for outcome in report.outcomes):
            # One poll follows several actions in a row.
            if (waiting := self._polls_due.get(session.name)) is not None:
                waiting.cancel()
            self._polls_due[session.name] = call_after(
                self.screen, _LAG_SECONDS, session.poller.poll_now
            )

    async def submit(
        self, planned: SubmissionPlan, view: View, session: ClusterSession
    ) -> SubmissionResult:
        """Run a confirmed submission, search its job where the answer was lost, and record it."""
        report = await self.run_plan(planned.plan, view, session)
        was_lost = any(outcome.done is None for outcome in report.outcomes)

        def on_progress(text: str) -> None:
            self.screen.notify(visible(text), severity="warning", timeout=20)

        result = await session.launches.settle(planned, report, on_progress)
        if was_lost:
            if not result.outcome.done:
                settled = replace(report, outcomes=(result.outcome,))
                self._notify(settled, session, is_final=True)
            if isinstance(self.screen.view, JournalView):
                self.screen.view.reread()
            session.poller.poll_now()
        return result

    def _notify(self, report: Report, session: ClusterSession, *, is_final: bool = False) -> None:
        """Notify of success; open a dialog with the results of a failure, unless the user is busy.

        A submission with a lost answer is reported only if it `is_final`: its outcome is searched
        first.
        """
        outcomes = {outcome.done for outcome in report.outcomes}
        screen = self.screen
        verb = report.plan.request.verb
        if verb is Verb.SUBMIT and None in outcomes and not is_final:
            return
        cluster = visible(session.store.title)
        if outcomes <= {True}:
            text = f"{action_text.format_done(report)} on {cluster}"
            screen.notify(text, timeout=_DONE_SECONDS)
            if report.journal_problem:
                screen.notify(visible(report.journal_problem), severity="warning")
        elif screen.app.screen is screen and not screen.query_one(CommandBar).is_open:
            screen.app.push_screen(ResultsDialog(report, session.store.title))
        else:
            counts = action_text.outcome_counts(report.outcomes)
            text = f"{verb} on {cluster}: {counts}; J shows the output"
            screen.notify(text, severity="error", timeout=15)


def _numbers(job_ids: Iterable[str]) -> frozenset[str]:
    """Return the keys of jobs and arrays: 12 for both 12_3 and 12_[4-9]."""
    return frozenset(parse_job_key(job_id) or job_id for job_id in job_ids)
