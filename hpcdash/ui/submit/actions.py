"""Submission from the form: plan, confirmation, submission, and the new job's logs.

Imports modules when they are needed, as most runs submit nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
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
from hpcdash.ui.jobs.action_runner import ActionRunner
from hpcdash.ui.jobs.table import JobsView
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.workers import call_after, start_worker

if TYPE_CHECKING:
    from hpcdash.services.session import ClusterSession
    from hpcdash.services.submit.form import Draft
    from hpcdash.services.submit.plan import SubmissionPlan
    from hpcdash.ui.submit.preview import FormPreview
    from hpcdash.ui.submit.view import SubmitView


# Interval at which the list is checked for a new job, and how many times.
_LOOK_SECONDS = 0.5
_MOST_LOOKS = 20


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
        view.say("")
        first = await plan(None)
        if self.screen.view is not view:
            return
        asides = [*dict.fromkeys((*notes, *first.notes))]
        if folder := _launch_folder(first):
            asides.append(f"its script and its request are put into {folder}, a new folder there")
        if looked.links > 1:
            rest = looked.links - 1
            what = "1 more like it waits" if rest == 1 else f"{rest} more like it wait, each"
            asides.insert(
                0,
                f"a chain of {looked.links}: {what} for the end of the one before, however that "
                f"ends",
            )
        question = view.not_known.question(draft, first.plan.request.job_ids[0])
        if question:
            asides.insert(0, "look for it first: esc, and 1 shows your jobs; J shows what was sent")
        begun_at = session.store.clock.now()
        if looked.links == 1:
            outcomes = await self._submit_one(session, first, asides, question, warnings)
        else:
            outcomes = await self._submit_chain(
                view, session, first, plan, asides, looked.links, question, warnings
            )
        if not outcomes:
            return
        name = first.plan.request.job_ids[0]
        view.not_known.note(draft, name, outcomes, datetime.fromtimestamp(begun_at, session.zone))
        messages = [await self._concluded(view, first, outcomes[0])]
        if outcomes[0].done:
            await self._was_submitted(view, draft, first, looked, outcomes, messages)
        elif messages[0]:
            self.screen.notify(visible(messages[0]), severity="warning", timeout=12, markup=False)
        session.poller.poll_now()

    async def _submit_one(
        self,
        session: ClusterSession,
        planned: SubmissionPlan,
        asides: Sequence[str],
        question: str,
        warnings: Sequence[str],
    ) -> tuple[Outcome, ...]:
        report = await self.runner.carry_out(
            planned.plan,
            asides=asides,
            question=question,
            is_doubtful=bool(question),
            warnings=warnings,
        )
        if report is None:
            return ()
        return (await self.runner.recover_outcomes(planned, report, session))[-1:]

    async def _submit_chain(
        self,
        view: SubmitView,
        session: ClusterSession,
        first: SubmissionPlan,
        plan: Callable[[tuple[str, ...] | None], Awaitable[SubmissionPlan]],
        asides: Sequence[str],
        links: int,
        question: str,
        warnings: Sequence[str],
    ) -> tuple[Outcome, ...]:
        from hpcdash.services.chains import format_chain, submit_chain

        dialog = self.runner.confirm_first(
            first.plan, asides, question=question, is_doubtful=bool(question), warnings=warnings
        )
        if dialog is None or not await dialog.answer:
            return ()
        made = [first]
        outcomes: list[Outcome] = []

        async def plan_link(after: tuple[str, ...]) -> SubmissionPlan:
            if after:
                made.append(await plan(after))
            return made[-1]

        def on_outcome(link: int, outcome: Outcome) -> None:
            outcomes.append(outcome)
            view.say(f"submitting a chain: {link + 1} of {links}, {outcome.words}")

        try:
            settled = await submit_chain(
                plan_link, session.actions, session.store, links, on_outcome, view.say
            )
        finally:
            view.say("")
        for planned, outcome in list(zip(made, settled, strict=False))[1:]:
            await self._concluded(view, planned, outcome)
        is_well = len(settled) == links and all(outcome.done for outcome in settled)
        self.screen.notify(
            visible(f"{format_chain(settled, links)} on {session.store.title}"),
            severity="information" if is_well else "error",
            timeout=12,
            markup=False,
        )
        return settled

    async def _concluded(self, view: SubmitView, planned: SubmissionPlan, outcome: Outcome) -> str:
        """Conclude a launch with its outcome, and return a message; '' for a plain script."""
        from hpcdash.services.submit.launches import LaunchPlan

        return (
            await view.launches.conclude(planned, outcome)
            if isinstance(planned, LaunchPlan)
            else ""
        )

    async def _was_submitted(
        self,
        view: SubmitView,
        draft: Draft,
        planned: SubmissionPlan,
        looked: FormPreview,
        outcomes: Sequence[Outcome],
        messages: Sequence[str],
    ) -> None:
        """Show the log paths, store the submission among the recent ones, go back to the list."""
        from hpcdash.ui.submit.view import remember

        number = outcomes[0].new_job
        await remember(view, looked)
        # Text typed during the submission belongs to another one.
        is_the_same = view.draft() == draft
        if is_the_same:
            view.forget()
        else:
            messages = [*messages, "what you typed since is kept"]
        parts = [f"job {number} submitted" if number else "submitted"]
        if folder := _launch_folder(planned):
            parts.append(f"its logs will be in {folder}")
        parts += [more for more in messages if more]
        self.screen.notice("; ".join(parts))
        if self.screen.view is view and is_the_same:
            await self.screen.pop()
        if isinstance(self.screen.view, JobsView) and number:
            self._point_at(number, self.screen.view, self.screen.view.rows.cursor_moves)

    def _point_at(self, number: str, view: JobsView, moves: int, checks: int = _MOST_LOOKS) -> None:
        """The cursor on the new job once the list has it, unless a person moved it meanwhile."""
        if self.screen.view is not view or not view.is_live or view.rows.cursor_moves != moves:
            return
        # A folded array has a row of its own.
        if view.rows.move_to(f"{number}[]") or view.rows.move_to(number) or checks <= 0:
            return
        call_after(
            self.screen, _LOOK_SECONDS, lambda: self._point_at(number, view, moves, checks - 1)
        )


def _launch_folder(planned: SubmissionPlan) -> str:
    """Return the folder in which a launch is staged; '' for a script submitted unchanged."""
    from hpcdash.services.submit.launches import LaunchPlan

    return planned.place.folder if isinstance(planned, LaunchPlan) else ""


def _dropped_switch(view: SubmitView, looked: FormPreview) -> tuple[str, ...]:
    """Return the warning on a kill switch that would end the job as it starts, with the fix.

    () for none.
    """
    from hpcdash.services.submit.checks import dropped_finding, request_kill_switch

    if looked.request is None:
        return ()
    dropped = dropped_finding(request_kill_switch(looked.request))
    return (
        (f"{dropped.words}. {dropped.next_step}",)
        if dropped in view.answer.preview_findings(looked)
        else ()
    )


def _planner(
    view: SubmitView, session: ClusterSession, looked: FormPreview
) -> Callable[[tuple[str, ...] | None], Awaitable[SubmissionPlan]]:
    """Return the function that plans the job, or a link of its chain with other dependencies."""

    # The links of a chain have one name, by which it is found whole.
    name = looked.request.name if looked.request is not None else ""

    async def launch(after: tuple[str, ...] | None) -> SubmissionPlan:
        nonlocal name
        request = looked.request
        if request is None:
            raise UsageError("there is nothing to submit yet")
        request = request if after is None else replace(request, after=after, name=name)
        if session.store.backend.submit.takes_requests:
            from hpcdash.services.submit.plan import plan_request

            await session.store.open(force=True)
            return await plan_request(
                session.store, request, most_bytes=view.launches.settings.files_limit
            )
        planned = await view.launches.plan(request, looked.text)
        name = name or planned.script.job_name
        return planned

    async def hand_in(after: tuple[str, ...] | None) -> SubmissionPlan:
        from hpcdash.domain.demand import format_finding
        from hpcdash.services.submit.checks import missing_log_folders
        from hpcdash.services.submit.plan import after_in_full, plan_submission, refuse_large_array
        from hpcdash.ui.submit.preview import script_submission

        if looked.as_it_is is None or not looked.script:
            raise UsageError("there is no script yet to submit")
        # The previewed script: the form may name another file by now.
        content = looked.script.encode("utf-8", "surrogateescape")
        await session.store.open(force=True)
        requested = script_submission(looked.as_it_is, content, after)
        requested = replace(requested, after=await after_in_full(session.store, requested.after))
        await refuse_large_array(session.store, requested)
        planned = plan_submission(session.store, requested)
        missing = await missing_log_folders(session.store, requested)
        return replace(planned, notes=(*map(format_finding, missing), *planned.notes))

    return launch if looked.as_it_is is None else hand_in
