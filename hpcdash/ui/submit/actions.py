"""Submission from the form: plan, confirmation, submission, and the new job's logs.

Imports modules when they are needed, as most runs submit nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpcdash.backends.actions import Outcome
from hpcdash.domain.states import ACTIVE, WAITING
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.jobs.action_text import format_error
from hpcdash.services.jobs.lookup import known_row
from hpcdash.ui.jobs.action_dialogs import Question
from hpcdash.ui.jobs.action_runner import ActionRunner
from hpcdash.ui.jobs.table import JobsView
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.workers import call_after, start_worker

if TYPE_CHECKING:
    from hpcdash.services.session import ClusterSession
    from hpcdash.services.submit.form import Draft
    from hpcdash.services.submit.submission import SubmissionPlan, SubmissionResult
    from hpcdash.ui.submit.preview import FormPreview
    from hpcdash.ui.submit.view import SubmitView


# Interval at which the list is checked for a new job, and how many times.
_LOOK_SECONDS = 0.5
_MAX_LOOKS = 20


class SubmitActions:
    """Handlers of `n` and of the form's keys."""

    def __init__(self, screen: DashboardScreen, runner: ActionRunner) -> None:
        self.screen = screen
        self.runner = runner

    def reconcile_earlier(self, session: ClusterSession) -> None:
        """Find the outcome of submissions without one once the cluster responds, and report it."""
        if not session.actions.journal.path.exists():
            return

        def on_progress(changed: Changed) -> None:
            mine = session.store.snapshots.get(Kind.MINE)
            if changed.kind is Kind.MINE and mine is not None and not mine.cached:
                stop()
                self.screen.call_later(begin)

        def begin() -> None:
            start_worker(self.screen, self._reconcile_earlier, session, group="settle")

        stop = session.store.listen(on_progress)

    async def _reconcile_earlier(self, session: ClusterSession) -> None:
        from hpcdash.services.submit.recovery import reconcile_recent

        for text in await reconcile_recent(session.store, session.actions.journal):
            self.screen.notify(visible(text), severity="warning", timeout=20, markup=False)

    async def do_new(self) -> None:
        """The form, as it was left; a job that is pointed at and has not ended is offered to be
        waited for.
        """
        from hpcdash.ui.submit.choices import format_job
        from hpcdash.ui.submit.view import SubmitView

        job_id = self.screen.view.pointed_job()
        row = None if job_id is None else known_row(self.screen.session.store, job_id)
        await self.screen.go("submit")
        view = self.screen.view
        if isinstance(view, SubmitView):
            is_living = row is not None and row["state"] in ACTIVE | WAITING
            view.offer_after(
                str(job_id) if is_living else "", format_job(row) if row is not None else ""
            )

    def do_submit_form(self) -> None:
        from hpcdash.ui.submit.view import SubmitView

        view = self.screen.view
        if isinstance(view, SubmitView) and not view.is_being_submitted:
            view.is_being_submitted = True
            start_worker(self.screen, self._submit_once, view, self.screen.session, group="acting")

    async def _submit_once(self, view: SubmitView, session: ClusterSession) -> None:
        """One submission of a form at a time, however often its key is pressed."""
        try:
            await self._submit(view, session)
        except HpcdashError as error:
            self.screen.notify(
                f"not submitted: {format_error(error)}", severity="error", timeout=15, markup=False
            )
        finally:
            view.is_being_submitted = False

    async def _submit(self, view: SubmitView, session: ClusterSession) -> None:
        """Preview again, plan, confirm and submit; after a lost answer, find the outcome."""
        draft = view.draft()
        looked = await view.preview_now()
        if not looked.is_whole:
            view.tried()
            return
        plan = _planner(view, session, looked)
        await view.answer.check_paths(looked)
        # Before other input, or another request.
        warnings = _dropped_switch(view, looked)
        notes = [text for text in view.format_notes(looked) if text not in warnings]
        view.show_progress("")
        first = await plan(None)
        if self.screen.view is not view:
            return
        asides = [*dict.fromkeys((*notes, *first.notes))]
        if first.folder:
            asides.append(f"creates {first.folder} with the script and the request")
        if looked.links > 1:
            rest = looked.links - 1
            what = "1 more like it waits" if rest == 1 else f"{rest} more like it wait, each"
            asides.insert(
                0,
                f"a chain of {looked.links}: {what} for the end of the one before, however that "
                "ends",
            )
        name = first.plan.request.job_ids[0]
        title = view.not_known.question(draft, name)
        if title:
            asides.insert(0, "check first: esc, then 1 for your jobs, J for what was sent")
        question = Question(first.plan, asides, warnings, title, is_doubtful=bool(title))
        begun_at = session.store.clock.now()
        if not await self.runner.is_confirmed(question):
            return
        if looked.links == 1:
            result = await self.runner.submit(first, view, session)
            settled: tuple[Outcome, ...] = (result.outcome,)
            message = result.message
        else:
            settled, message = await self._submit_chain(view, session, first, plan, looked.links)
        view.not_known.note(draft, name, settled, datetime.fromtimestamp(begun_at, session.zone))
        if settled[0].done:
            await self._was_submitted(view, draft, first, looked, settled[0].new_job, message)
        elif message:
            self.screen.notify(visible(message), severity="warning", timeout=12, markup=False)
        session.poller.poll_now()

    async def _submit_chain(
        self,
        view: SubmitView,
        session: ClusterSession,
        first: SubmissionPlan,
        plan: Callable[[tuple[str, ...] | None], Awaitable[SubmissionPlan]],
        links: int,
    ) -> tuple[tuple[Outcome, ...], str]:
        """Return the outcomes, and what else a person should know of the first launch."""
        from hpcdash.services.submit.launches import format_chain

        messages: list[str] = []

        async def plan_link(after: tuple[str, ...]) -> SubmissionPlan:
            return await plan(after) if after else first

        async def on_result(link: int, result: SubmissionResult) -> None:
            messages.append(result.message)
            view.show_progress(f"submitting a chain: {link + 1} of {links}, {result.outcome.text}")

        try:
            settled = await session.launches.submit_chain(
                plan_link, session.actions, links, on_result, view.show_progress
            )
        finally:
            view.show_progress("")
        is_well = len(settled) == links and all(outcome.done for outcome in settled)
        self.screen.notify(
            visible(f"{format_chain(settled, links)} on {session.store.title}"),
            severity="information" if is_well else "error",
            timeout=12,
            markup=False,
        )
        return settled, messages[0]

    async def _was_submitted(
        self,
        view: SubmitView,
        draft: Draft,
        planned: SubmissionPlan,
        looked: FormPreview,
        number: str,
        message: str,
    ) -> None:
        """Show the log paths, store the submission among the recent ones, go back to the list."""
        from hpcdash.ui.submit.view import remember

        await remember(view, looked)
        # Text typed during the submission belongs to another one.
        is_the_same = view.draft() == draft
        parts = [f"job {number} submitted" if number else "submitted"]
        if planned.folder:
            parts.append(f"its logs will be in {planned.folder}")
        if message:
            parts.append(message)
        if is_the_same:
            view.forget()
        else:
            parts.append("your later edits are kept")
        self.screen.notice("; ".join(parts))
        if self.screen.view is view and is_the_same:
            await self.screen.pop()
        if isinstance(self.screen.view, JobsView) and number:
            self._point_at(number, self.screen.view, self.screen.view.rows.cursor_moves)

    def _point_at(self, number: str, view: JobsView, moves: int, checks: int = _MAX_LOOKS) -> None:
        """The cursor on the new job once the list has it, unless a person moved it meanwhile."""
        if self.screen.view is not view or not view.is_live or view.rows.cursor_moves != moves:
            return
        # A folded array has a row of its own.
        if view.rows.move_to(f"{number}[]") or view.rows.move_to(number) or checks <= 0:
            return
        call_after(
            self.screen, _LOOK_SECONDS, lambda: self._point_at(number, view, moves, checks - 1)
        )


def _dropped_switch(view: SubmitView, looked: FormPreview) -> tuple[str, ...]:
    """Return the warning on a kill switch that would end the job as it starts, with the fix.

    () for none.
    """
    from hpcdash.services.submit.checks import dropped_finding, request_kill_switch

    if looked.request is None:
        return ()
    dropped = dropped_finding(request_kill_switch(looked.request))
    return (
        (f"{dropped.text}. {dropped.next_step}",)
        if dropped in view.answer.preview_findings(looked)
        else ()
    )


def _planner(
    view: SubmitView, session: ClusterSession, looked: FormPreview
) -> Callable[[tuple[str, ...] | None], Awaitable[SubmissionPlan]]:
    """Return the function that plans the job, or a link of its chain with other dependencies."""

    # The links of a chain have one name, by which it is found whole.
    name = looked.request.name if looked.request is not None else ""

    async def plan_launch(after: tuple[str, ...] | None) -> SubmissionPlan:
        nonlocal name
        request = looked.request
        if request is None:
            raise UsageError("nothing to submit yet")
        request = request if after is None else replace(request, after=after, name=name)
        planned = await session.launches.plan(request, looked.text)
        name = name or planned.name
        return planned

    async def plan_batch_script(after: tuple[str, ...] | None) -> SubmissionPlan:
        from hpcdash.services.submit.submission import plan_script
        from hpcdash.ui.submit.preview import script_submission

        if looked.as_it_is is None or not looked.script:
            raise UsageError("no script to submit yet")
        # The previewed script: the form may name another file by now.
        content = looked.script.encode("utf-8", "surrogateescape")
        await session.store.open(force=True)
        return await plan_script(session.store, script_submission(looked.as_it_is, content, after))

    return plan_launch if looked.as_it_is is None else plan_batch_script
