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
from hpcdash.domain.text import counted, visible
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


# Interval and number of checks for the new job in the list.
_CHECK_SECONDS = 0.5
_MAX_CHECKS = 20


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
                self.screen.call_later(
                    start_worker, self.screen, self._reconcile_earlier, session, group="settle"
                )

        stop = session.store.listen(on_progress)

    async def _reconcile_earlier(self, session: ClusterSession) -> None:
        from hpcdash.services.submit.moves import settle_moves
        from hpcdash.services.submit.recovery import reconcile_recent

        for text in await reconcile_recent(session.store, session.actions.journal):
            self.screen.notify(visible(text), severity="warning", timeout=20)
        sessions = {one.name: one for one in self.screen.sessions}
        settled = await settle_moves(session, sessions.get)
        for text in settled:
            self.screen.notify(visible(text), severity="warning", timeout=30)
        if settled:
            session.poller.poll_now()

    async def do_new(self) -> None:
        """Open the form as it was left, and offer the selected unfinished job as a dependency."""
        from hpcdash.ui.submit.choices import format_job
        from hpcdash.ui.submit.view import SubmitView

        job_id = self.screen.view.pointed_job()
        row = None if job_id is None else known_row(self.screen.session.store, job_id)
        await self.screen.go("submit")
        view = self.screen.view
        if not isinstance(view, SubmitView):
            return
        if row is not None and row["state"] in ACTIVE | WAITING:
            view.offer_after(str(job_id), format_job(row))
        else:
            view.offer_after("", "")

    async def do_where(self) -> None:
        """Search places for a job like the selected one; without one, for a size to enter."""
        await self.screen.push("where", job_id=self.screen.view.pointed_job() or "")

    def do_submit_form(self) -> None:
        from hpcdash.ui.submit.view import SubmitView

        view = self.screen.view
        if isinstance(view, SubmitView) and not view.is_being_submitted:
            view.is_being_submitted = True
            start_worker(self.screen, self._submit_once, view, self.screen.session, group="acting")

    async def _submit_once(self, view: SubmitView, session: ClusterSession) -> None:
        """Submit a form, one submission at a time, however often its key is pressed."""
        try:
            await self._submit(view, session)
        except HpcdashError as error:
            self.screen.notify(
                f"not submitted: {format_error(error)}", severity="error", timeout=15
            )
        finally:
            view.is_being_submitted = False

    async def _submit(self, view: SubmitView, session: ClusterSession) -> None:
        """Preview again, plan, confirm and submit; after a lost answer, find the outcome."""
        draft = view.draft()
        preview = await view.preview_now()
        if not preview.is_whole:
            view.tried()
            return
        plan = _planner(session, preview)
        await view.answer.check_paths(preview)
        # Collected now: the form may have other content later.
        warnings = _dropped_switch(view, preview)
        notes = [text for text in view.format_notes(preview) if text not in warnings]
        view.show_progress("")
        first = await plan(None)
        if self.screen.view is not view:
            return
        asides = [*dict.fromkeys((*notes, *first.notes))]
        if first.folder:
            asides.append(f"creates {first.folder} with the script and the request")
        if preview.links > 1:
            asides.insert(
                0,
                f"a chain of {counted(preview.links, 'job')}: each starts after the previous one "
                "ends (any exit status)",
            )
        [name] = first.plan.request.job_ids
        title = view.unsettled.question(draft, name)
        if title:
            asides.insert(0, "check first: esc, then 1 for your jobs, J for the journal")
        question = Question(first.plan, asides, warnings, title, is_doubtful=bool(title))
        started_at = session.store.clock.now()
        if not await self.runner.is_confirmed(question):
            return
        if preview.links == 1:
            result = await self.runner.submit(first, view, session)
            settled: tuple[Outcome, ...] = (result.outcome,)
            message = result.message
        else:
            settled, message = await self._submit_chain(view, session, first, plan, preview.links)
        view.unsettled.note(draft, name, settled, datetime.fromtimestamp(started_at, session.zone))
        if settled[0].done:
            job_id = settled[0].new_job
            await self._finish(view, draft, first, preview, job_id=job_id, message=message)
        elif message:
            self.screen.notify(visible(message), severity="warning", timeout=12)
        session.poller.poll_now()

    async def _submit_chain(
        self,
        view: SubmitView,
        session: ClusterSession,
        first: SubmissionPlan,
        plan: Callable[[tuple[str, ...] | None], Awaitable[SubmissionPlan]],
        links: int,
    ) -> tuple[tuple[Outcome, ...], str]:
        """Submit a chain; return the outcomes, and the note on the first launch."""
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
        )
        return settled, messages[0]

    async def _finish(
        self,
        view: SubmitView,
        draft: Draft,
        planned: SubmissionPlan,
        preview: FormPreview,
        *,
        job_id: str,
        message: str,
    ) -> None:
        """Show the log paths, store the submission among the recent ones, go back to the list."""
        from hpcdash.ui.submit.view import remember

        await remember(view, preview)
        # Text typed during the submission belongs to another one.
        is_unchanged = view.draft() == draft
        parts = [f"job {job_id} submitted" if job_id else "submitted"]
        if planned.folder:
            parts.append(f"logs will be in {planned.folder}")
        if message:
            parts.append(message)
        if is_unchanged:
            view.forget()
        else:
            parts.append("your later edits are kept")
        self.screen.notice("; ".join(parts))
        if self.screen.view is view and is_unchanged:
            await self.screen.pop()
        if isinstance(self.screen.view, JobsView) and job_id:
            self._select(job_id, self.screen.view, self.screen.view.rows.cursor_moves)

    def _select(self, job_id: str, view: JobsView, moves: int, checks: int = _MAX_CHECKS) -> None:
        """Select the new job once the list has it, unless a person moved the cursor meanwhile."""
        if self.screen.view is not view or not view.is_live or view.rows.cursor_moves != moves:
            return
        # A folded array has its own row.
        if view.rows.move_to(f"{job_id}[]") or view.rows.move_to(job_id) or checks <= 0:
            return
        call_after(
            self.screen, _CHECK_SECONDS, lambda: self._select(job_id, view, moves, checks - 1)
        )


def _dropped_switch(view: SubmitView, preview: FormPreview) -> tuple[str, ...]:
    """Return the warning on a kill switch that would end the job as it starts; () for none."""
    from hpcdash.services.submit.checks import dropped_finding, request_kill_switch

    if preview.request is None:
        return ()
    dropped = dropped_finding(request_kill_switch(preview.request))
    is_dropped = dropped in view.answer.preview_findings(preview)
    return (f"{dropped.text}. {dropped.next_step}",) if is_dropped else ()


def _planner(
    session: ClusterSession, preview: FormPreview
) -> Callable[[tuple[str, ...] | None], Awaitable[SubmissionPlan]]:
    """Return the function that plans the job, or a link of its chain with other dependencies."""

    # The links of a chain have one name, by which it is found whole.
    name = preview.request.name if preview.request is not None else ""

    async def plan_launch(after: tuple[str, ...] | None) -> SubmissionPlan:
        nonlocal name
        request = preview.request
        if request is None:
            raise UsageError("nothing to submit yet")
        request = request if after is None else replace(request, after=after, name=name)
        planned = await session.launches.plan(request, preview.text)
        name = name or planned.name
        return planned

    async def plan_batch_script(after: tuple[str, ...] | None) -> SubmissionPlan:
        from hpcdash.services.submit.submission import plan_script
        from hpcdash.ui.submit.preview import script_submission

        if preview.as_it_is is None or not preview.script:
            raise UsageError("no script to submit yet")
        # The previewed script: the form may name another file by now.
        content = preview.script.encode("utf-8", "surrogateescape")
        await session.store.open(force=True)
        return await plan_script(session.store, script_submission(preview.as_it_is, content, after))

    return plan_launch if preview.as_it_is is None else plan_batch_script
