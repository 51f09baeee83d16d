"""Key actions on the selected jobs: open logs and scripts, act on the jobs, submit them again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.base import Capability
from hpcdash.backends.shell import in_folder
from hpcdash.backends.submissions import AS_IT_WAS, NewLimits
from hpcdash.domain.impact import ActionChoice, choose, count_jobs, with_whole_arrays
from hpcdash.domain.job_ids import is_task
from hpcdash.domain.job_text import state_word
from hpcdash.domain.schema import JOBS
from hpcdash.domain.states import ACTIVE, ENDED, ENDED_BADLY, WAITING
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_clock
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.action_text import (
    format_error,
    format_left_behind,
    present_value,
    subject,
)
from hpcdash.services.jobs.lookup import known_row, task_with_log
from hpcdash.services.jobs.rows import select_rows
from hpcdash.services.jobs.triage import fetch_tasks
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.resubmission import (
    Resubmission,
    ResubmissionPlan,
    format_parts,
    plan_again,
    propose,
    read_limits,
    resubmissions,
    submit_parts,
)
from hpcdash.ui.dialogs import Dialog
from hpcdash.ui.jobs.action_dialogs import AlterDialog, Field, Question, SignalDialog
from hpcdash.ui.jobs.action_runner import ActionRunner
from hpcdash.ui.jobs.journal import JournalView
from hpcdash.ui.jobs.triage import TriageView
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.view import Targets, View
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.domain.places import Place
    from hpcdash.ui.screen import DashboardApp

_GIB = 1 << 30
_PENDING_ONLY = ("queue", "qos", "nice")
Row = Mapping[str, Any]


class JobActions:
    """Handlers of the registry's actions on jobs."""

    def __init__(self, screen: DashboardScreen, runner: ActionRunner) -> None:
        self.screen = screen
        self.runner = runner
        self._is_preparing = False

    async def do_log(self) -> None:
        await self._open_log("stdout")

    async def do_error_log(self) -> None:
        await self._open_log("stderr")

    async def _open_log(self, stream: str) -> None:
        """Open the log of the selected job; of an array, that of one of its tasks."""
        view = self.screen.view
        job_id = view.pointed_job()
        task = None
        if job_id is not None:
            task = await asyncio.to_thread(task_with_log, self.screen.session.store, job_id)
        if self.screen.view is not view:
            return
        if task is None:
            await self.screen.push_for_job("log", stream=stream)
        else:
            await self.screen.push("log", job_id=task, stream=stream)

    async def do_chart(self) -> None:
        """Open the metrics of the selected job, or of the marked jobs in one chart."""
        view = self.screen.view
        job_ids = view.targets().job_ids if view.marks() else ()
        first = next(iter(job_ids), None) or view.pointed_job()
        if first is None:
            self.screen.notify("select a job first", severity="warning", timeout=3)
        else:
            view.clear_marks()
            await self.screen.push("chart", job_id=first, others=tuple(job_ids[1:]))

    async def do_script(self) -> None:
        await self.screen.push_for_job("script")

    async def do_files(self) -> None:
        await self.screen.push_for_job("files")

    def do_delete_files(self) -> None:
        start_worker(self.screen, self._delete_files, self.screen.view, group="acting")

    async def _delete_files(self, view: View) -> None:
        """Plan the deletion of the marked files, or of the one under the cursor, and confirm it."""
        from hpcdash.services.job_files.delete import plan_deletion
        from hpcdash.ui.jobs.files import FilesView

        if not isinstance(view, FilesView) or view.folders is None:
            return
        try:
            deletion = await plan_deletion(view.session, view.folders, view.selected_paths())
        except HpcdashError as error:
            self.screen.notify(format_error(error), severity="warning", timeout=8)
            return
        if self.screen.view is not view:
            return
        question = Question(deletion.plan, deletion.lines, title=f"{deletion.title}?")
        await self.runner.carry_out(question, view.session)
        if view.is_live:
            view.do_refresh()

    async def do_diff(self) -> None:
        await self.screen.push_for_job("script", diff=True)

    async def do_triage(self) -> None:
        job_id = self.screen.view.pointed_job()
        row = None if job_id is None else known_row(self.screen.session.store, job_id)
        has_parts = Capability.WORKERS in self.screen.session.store.backend.capabilities
        if row is not None and row["array_id"] is None and not has_parts:
            self.screen.notify(
                f"job {visible(str(job_id))} is not an array; l shows its log",
                severity="warning",
            )
        else:
            await self.screen.push_for_job("triage")

    async def do_journal(self) -> None:
        if not isinstance(self.screen.view, JournalView):
            await self.screen.push("journal")

    def do_submit_again(self) -> None:
        if not self._is_preparing:
            self._is_preparing = True
            start_worker(
                self.screen,
                self._submit_again,
                self.screen.view,
                self.screen.session,
                group="acting",
            )

    async def _submit_again(self, view: View, session: ClusterSession) -> None:
        """Prepare, confirm and submit; after a lost answer, find the outcome."""
        try:
            choice = await rows_to_submit(view, session.store)
            if isinstance(choice, str):
                self.screen.notify(choice, severity="warning")
                return
            self.screen.notify("reading the script and options …", timeout=2)
            limits = await self._prompt_limits(choice, view, session)
            if limits is None:
                return
            again = await plan_again(session.store, choice.jobs, limits, session.actions.journal)
        except HpcdashError as error:
            self._notify_unsubmitted(error)
            return
        finally:
            self._is_preparing = False
        if self.screen.view is not view:
            return
        question = Question(again.plan, (*choice.notes, *again.notes))
        if not await self.runner.is_confirmed(question):
            return
        if isinstance(again, ResubmissionPlan):
            await self._submit_parts(again, view, session)
        else:
            await self.runner.submit(again, view, session)
        session.poller.poll_now()

    async def _submit_parts(
        self, again: ResubmissionPlan, view: View, session: ClusterSession
    ) -> None:
        count = len(again.plan.commands)
        try:
            outcomes = await submit_parts(again, session.launches, session.actions)
        except HpcdashError as error:
            self._notify_unsubmitted(error)
            return
        is_whole = len(outcomes) == count and all(outcome.done for outcome in outcomes)
        if is_whole and isinstance(view, TriageView) and view.is_live:
            view.rows.clear_marks()
        severity: Literal["information", "error"] = "information" if is_whole else "error"
        text = visible(format_parts(outcomes, count))
        self.screen.notify(text, severity=severity, timeout=12)

    def _notify_unsubmitted(self, error: HpcdashError) -> None:
        text = f"not submitted: {format_error(error)}"
        self.screen.notify(text, severity="error", timeout=15)

    async def _prompt_limits(
        self, choice: AgainChoice, view: View, session: ClusterSession
    ) -> NewLimits | None:
        """Prompt for higher limits of a job that exceeded one; None if the dialog is cancelled."""
        proposal = None
        if len(choice.jobs) == 1:
            proposal = await propose(session.store, choice.jobs[0].rows)
        if proposal is None or self.screen.view is not view:
            return AS_IT_WAS
        before = proposal.before
        proposed = proposal.proposed
        changeable = session.store.backend.submit.new_limits
        fields = []
        if "time_seconds" in changeable:
            present = _format_time(before.time_seconds)
            fields.append(Field("time", present, proposed=_format_time(proposed.time_seconds)))
        if "memory_bytes" in changeable:
            present = _format_bytes(before.memory_bytes)
            fields.append(Field("memory", present, proposed=_format_bytes(proposed.memory_bytes)))
        answer: asyncio.Future[NewLimits | None] = asyncio.get_running_loop().create_future()

        def complaint(name: str, value: str) -> str:
            try:
                read_limits({name: value})
            except UsageError as error:
                return format_error(error)
            return ""

        def proceed(form: Dialog[None], changes: Mapping[str, str]) -> None:
            answer.set_result(read_limits(changes))
            form.dismiss()

        def left(_: None) -> None:
            if not answer.done():
                answer.set_result(None)

        [job] = choice.jobs
        title = f"Resubmit {subject([job.job_id], job.rows)} with more"
        dialog = AlterDialog(title, fields, proposal.notes, complaint, proceed, may_stay=True)
        self.screen.app.push_screen(dialog, left)
        return await answer

    def do_copy(self) -> None:
        from hpcdash.ui.jobs.copying import offer_copies

        offer_copies(self.screen)

    def do_pin(self) -> None:
        from hpcdash.ui.notes import toggle_pins

        toggle_pins(self.screen)

    def do_note(self) -> None:
        from hpcdash.ui.notes import write_note

        write_note(self.screen)

    def do_open_shell(self) -> None:
        self._lend(self._open_shell(self.screen.view, self.screen.session))

    def do_connect(self) -> None:
        self._lend(self._connect(self.screen.view, self.screen.session))

    def _lend(self, work: Coroutine[Any, Any, str]) -> None:
        """Leave the terminal to `work`, then show its message."""

        async def run() -> None:
            session = self.screen.session
            try:
                text = await work
            except HpcdashError as error:
                text = format_error(error)
            if text:
                self.screen.notify(text, severity="warning", timeout=12)
            session.poller.poll_now()

        start_worker(self.screen, run, group="shell", exclusive=True)

    async def _open_shell(self, view: View, session: ClusterSession) -> str:
        """Open a shell in the selected job's folder on the login node; return an error or ''."""
        job_id = view.pointed_job()
        if job_id is None:
            return "select a job first"
        row = known_row(session.store, job_id) or next(iter(view.targets().rows), None)
        folder = row["work_dir"] if row is not None else None
        if not folder:
            folder = (await session.store.fetch_detail(job_id)).job["work_dir"][0].as_py()
        if not folder:
            return f"no shell: the folder of job {visible(job_id)} is unknown"
        if self.screen.view is not view:
            return ""
        app = cast("DashboardApp", self.screen.app)
        await app.lend_terminal(
            session.store.transport, in_folder(folder), [f"{session.store.title}: {folder}"]
        )
        return ""

    async def _connect(self, view: View, session: ClusterSession) -> str:
        """Open a shell in the selected job, or in a task of an array; return an error or ''."""
        from hpcdash.services.jobs.connect import explain_end, plan_shell

        job_id = view.pointed_job()
        if job_id is None:
            return "select a job first"
        task = await asyncio.to_thread(task_with_log, session.store, job_id)
        plan = await plan_shell(
            session.store, task or job_id, state_folder=session.actions.journal.path.parent
        )
        if self.screen.view is not view:
            return ""
        app = cast("DashboardApp", self.screen.app)
        head = [f"{plan.title} of {session.store.title}", *plan.notes]
        status = await app.lend_terminal(plan.transport, plan.argv, head)
        return await explain_end(session.store, plan, status)

    # -- actions on the selected jobs

    def do_cancel(self) -> None:
        self._act_on_targets(Verb.CANCEL)

    def do_hold(self) -> None:
        self._act_on_targets(Verb.HOLD)

    def do_requeue(self) -> None:
        if self._is_preparing:
            return
        chosen = self._chosen(Verb.REQUEUE)
        if chosen:
            self._is_preparing = True
            start_worker(self.screen, self._requeue, chosen, self.screen.view, group="acting")

    async def _requeue(
        self, chosen: Sequence[tuple[ActionChoice, ClusterSession]], view: View
    ) -> None:
        """Requeue jobs after checks for a refusal and for kill switches, and a confirmation."""
        questions = []
        try:
            for choice, session in chosen:
                question = await self._requeue_question(choice, session)
                if question is not None:
                    questions.append((question, session))
        finally:
            self._is_preparing = False
        if self.screen.view is view:
            self._confirm(questions)

    async def _requeue_question(
        self, choice: ActionChoice, session: ClusterSession
    ) -> Question | None:
        """Return the question of a cluster's jobs; None, with a notification, if it refuses."""
        from hpcdash.services.jobs.requeue import (
            fetch_refusal,
            fetch_switch_warnings,
            requeue_facts,
        )

        try:
            plan = session.actions.plan(ActionRequest(Verb.REQUEUE, choice.job_ids), choice.rows)
            if refused := await fetch_refusal(session.store, choice.rows):
                self.screen.notify(f"{refused}; R resubmits it", severity="warning", timeout=15)
                return None
            facts = await requeue_facts(
                session.store, session.actions.journal.path.parent, choice.rows
            )
            if facts.switches:
                self.screen.notify("checking the kill switch …", timeout=2)
            warnings = await fetch_switch_warnings(session.store, facts)
        except UsageError as error:
            self.screen.notify(format_error(error), severity="error")
            return None
        return Question(plan, choice.left_out, warnings, checkpoints=facts.checkpoints)

    def do_delete(self) -> None:
        self._act_on_targets(Verb.DELETE)

    def do_suspend(self) -> None:
        self._act_on_targets(Verb.SUSPEND)

    def do_signal(self) -> None:
        chosen = self._chosen(Verb.SIGNAL)
        if not chosen:
            return

        def proceed(form: Dialog[None], signal: str, recipient: str) -> None:
            questions = []
            for choice, session in chosen:
                request = ActionRequest(
                    Verb.SIGNAL, choice.job_ids, signal=signal, recipient=recipient
                )
                plan = session.actions.plan(request, choice.rows)
                questions.append((Question(plan, choice.left_out), session))
            self._confirm(questions, form)

        job_ids = [job_id for choice, _ in chosen for job_id in choice.job_ids]
        rows = [row for choice, _ in chosen for row in choice.rows]
        title = f"Signal {subject(job_ids, rows)}{_clusters(chosen)}"
        left_out = [text for choice, _ in chosen for text in choice.left_out]
        has_recipients = all(session.actions.can_signal_parts for _, session in chosen)
        self.screen.app.push_screen(
            SignalDialog(title, left_out, proceed, has_recipients=has_recipients)
        )

    async def do_move(self) -> None:
        """Offer the places for the selected job; `enter` moves it to one."""
        targets = self.screen.view.targets()
        if len(targets.job_ids) != 1 or not targets.rows:
            text = "select one job or array to move"
            self.screen.notify(text, severity="warning", timeout=3)
            return
        [job_id] = targets.job_ids
        row = targets.rows[0]
        if not any(one["state"] in WAITING for one in targets.rows):
            text = f"nothing to move: job {visible(job_id)} is {state_word(str(row['state']))}"
            self.screen.notify(text, severity="warning")
            return
        await self.screen.push(
            "where",
            job_id=str(row["id"]),
            moving=job_id,
            on_choice=partial(self._move_to, job_id, self.screen.session),
        )

    def _move_to(self, job_id: str, session: ClusterSession, place: Place) -> None:
        if not self._is_preparing:
            self._is_preparing = True
            view = self.screen.view
            start_worker(self.screen, self._move, job_id, session, place, view, group="acting")

    async def _move(self, job_id: str, session: ClusterSession, place: Place, view: View) -> None:
        """Plan, confirm and run a move to a place."""
        from hpcdash.services.submit.move_plan import Destination, plan_move

        target = next(one for one in self.screen.sessions if one.name == place.cluster)
        destination = Destination(place.queue, place.account, place.qos)
        try:
            planned = await plan_move(session, target, job_id, destination)
        except HpcdashError as error:
            text = f"not moved: {format_error(error)}"
            self.screen.notify(text, severity="error", timeout=15)
            return
        finally:
            self._is_preparing = False
        if self.screen.view is not view:
            return
        where = f"{place.queue} on {target.store.title}" if target is not session else place.queue
        title = f"Move {subject([planned.job_id], planned.plan.rows)} to {visible(where)}?"
        if not await self.runner.is_confirmed(Question(planned.plan, planned.notes, title=title)):
            return
        try:
            result = await self.runner.move(planned)
        except HpcdashError as error:
            text = f"not moved: {format_error(error)}"
            self.screen.notify(text, severity="error", timeout=15)
            return
        if result.done and self.screen.view is view:
            await self.screen.pop()

    def do_alter(self) -> None:
        self._alter(self._chosen(Verb.ALTER))

    def _alter(self, chosen: Sequence[tuple[ActionChoice, ClusterSession]]) -> None:
        """Change jobs in a dialog for each cluster, one after the other."""
        if not chosen:
            return
        (choice, session), *others = chosen
        fields, asides = self._alterable(choice, session)

        def request(changes: Mapping[str, str]) -> ActionRequest:
            return ActionRequest(Verb.ALTER, choice.job_ids, changes=changes)

        def complaint(name: str, value: str) -> str:
            try:
                session.actions.plan(request({name: value}))
            except UsageError as error:
                return format_error(error)
            return ""

        def proceed(form: Dialog[None], changes: Mapping[str, str]) -> None:
            plan = session.actions.plan(request(changes), choice.rows)
            self.runner.begin(Question(plan, choice.left_out), form, session=session)

        is_shown = session is self.screen.session and not others
        on = "" if is_shown else f" on {visible(session.store.title)}"
        title = f"Change {subject(choice.job_ids, choice.rows)}{on}"
        self.screen.app.push_screen(
            AlterDialog(title, fields, [*choice.left_out, *asides], complaint, proceed),
            lambda _: self._alter(others),
        )

    def _alterable(
        self, choice: ActionChoice, session: ClusterSession
    ) -> tuple[list[Field], list[str]]:
        """Return the fields that can be changed for all of these jobs, and notes on the others."""
        rows = choice.rows
        alterable = session.store.backend.actions.alterable
        running = count_jobs(row for row in rows if row["state"] in ACTIVE)
        is_arrays = all(row["array_id"] for row in rows) and not any(map(is_task, choice.job_ids))
        pending_only = [name for name in _PENDING_ONLY if name in alterable]
        names = ["time"] if "time" in alterable else []
        if not running:
            names += pending_only
        if is_arrays and "throttle" in alterable:
            names.append("throttle")
        notes = []
        if running and pending_only:
            fixed = " and ".join(", ".join(pending_only).rsplit(", ", 1)).replace("qos", "QoS")
            if running < count_jobs(rows):
                subject = f"{running} of the jobs {'is' if running == 1 else 'are'} running"
            else:
                subject = "the job is running" if running == 1 else "the jobs are running"
            notes = [f"{subject}: {fixed} can be changed only for pending jobs"]
        # Each of several jobs keeps its own value unless a new one is typed.
        present = rows if len(choice.job_ids) == 1 else ()
        suggestions = {"queue": _queues(session), "qos": _qos(session)}
        has_amounts = session.actions.can_change_limits_by_amounts
        fields = []
        for name in names:
            field = Field(
                name,
                present_value(name, present),
                suggestions=suggestions.get(name, ()),
                more_ways="+1h, -30m" if name == "time" and has_amounts else "",
            )
            fields.append(field)
        return fields, notes

    def _act_on_targets(self, verb: Verb) -> None:
        """Act on the selected jobs; each cluster has its own question and commands."""
        questions = []
        for session, targets in self.screen.view.cluster_targets(self.screen.session):
            choice = self._choose(verb, session, targets)
            if choice is None:
                continue
            request = ActionRequest(Verb(choice.verb), choice.job_ids)
            notes = choice.left_out
            if verb is Verb.CANCEL:
                left_behind = format_left_behind(choice.rows, _known_dependents(session))
                notes = tuple(filter(None, (left_behind, *notes)))
            try:
                plan = session.actions.plan(request, choice.rows)
            except UsageError as error:
                self.screen.notify(format_error(error), severity="error")
            else:
                questions.append((Question(plan, notes), session))
        self._confirm(questions)

    def _confirm(
        self,
        questions: Sequence[tuple[Question, ClusterSession]],
        form: Dialog[None] | None = None,
    ) -> None:
        """Confirm and run plans, those of several clusters one after the other.

        `form` is closed once the only plan is confirmed, or before the first of several.
        """
        if len(questions) == 1:
            self.runner.begin(questions[0][0], form, session=questions[0][1])
        elif questions:
            if form is not None:
                form.dismiss(None)
            start_worker(self.screen, self._carry_out, questions, group="acting")

    async def _carry_out(self, questions: Sequence[tuple[Question, ClusterSession]]) -> None:
        for question, session in questions:
            await self.runner.carry_out(question, session)

    def _chosen(self, verb: Verb) -> list[tuple[ActionChoice, ClusterSession]]:
        """Return the selected targets of a verb by cluster; [], with a notification, if there are
        none.
        """
        chosen = []
        for session, targets in self.screen.view.cluster_targets(self.screen.session):
            choice = self._choose(verb, session, targets)
            if choice is not None:
                chosen.append((choice, session))
        return chosen

    def _choose(self, verb: Verb, session: ClusterSession, targets: Targets) -> ActionChoice | None:
        """Return the targets on a cluster that a verb affects; None, with a notification, if there
        are none.
        """
        if not targets.job_ids and not targets.missing:
            self.screen.notify("select a job first", severity="warning", timeout=3)
            return None
        rows = targets.rows
        if len(rows) == 1 and not {rows[0]["id"], rows[0]["array_id"]} & {*targets.job_ids}:
            # A pending task has no row of its own, but is in the record of its array.
            rows = select_rows(pa.Table.from_pylist([dict(rows[0])], JOBS), targets.job_ids)
        choice = choose(verb, targets.job_ids, rows, targets.missing)
        backend = session.store.backend
        if choice.verb in backend.actions.whole_array_verbs:
            tasks = _known_tasks(session, choice.rows)
            choice = with_whole_arrays(choice, tasks, backend.title)
        if choice.job_ids:
            return choice
        reasons = ", ".join(text.removesuffix(" (skipped)") for text in choice.left_out)
        text = f"nothing to {verb}: {reasons or 'unknown job'}"
        if marked := self.screen.view.marks():
            text = f"{marked} marked; {text}; {self.screen.key_label('unmark')} clears the marks"
        self.screen.notify(text, severity="warning")
        return None


def _clusters(chosen: Sequence[tuple[ActionChoice, ClusterSession]]) -> str:
    """Return ` on lab, juno` if there are several clusters."""
    names = [visible(session.store.title) for _, session in chosen]
    return f" on {', '.join(names)}" if len(names) > 1 else ""


def _queues(session: ClusterSession) -> tuple[str, ...]:
    table = session.store.table(Kind.QUEUES)
    names = [] if table is None else table["name"].to_pylist()
    hidden = session.store.site.hidden_queues
    return tuple(visible(name) for name in names if name not in hidden)


def _qos(session: ClusterSession) -> tuple[str, ...]:
    """Return the QoS names of known jobs, as no list of all QoS exists."""
    names: set[str] = set()
    for kind in (Kind.EVERYONE, Kind.MINE):
        if (table := session.store.table(kind)) is not None:
            names.update(visible(name) for name in pc.unique(table["qos"]).to_pylist() if name)
    return tuple(sorted(names))


def _known_tasks(session: ClusterSession, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the arrays that `rows` belong to."""
    array_ids = pa.array([row["array_id"] for row in rows if row["array_id"]], pa.string())
    for kind in (Kind.MINE, Kind.EVERYONE):
        if (table := session.store.table(kind)) is not None:
            tasks = table.filter(pc.is_in(table["array_id"], array_ids))
            if tasks.num_rows:
                known: list[Row] = tasks.to_pylist()
                return known
    return []


def _known_dependents(session: ClusterSession) -> list[Row]:
    """Return the jobs that depend on another job."""
    rows: list[Row] = []
    for kind in (Kind.EVERYONE, Kind.MINE):
        if (table := session.store.table(kind)) is not None:
            columns = table.select(["id", "state", "dependency"])
            rows += columns.filter(pc.is_valid(columns["dependency"])).to_pylist()
    return rows


def _format_time(seconds: int | None) -> str:
    return "" if seconds is None else format_clock(seconds)


def _format_bytes(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count >> 30}G" if count % _GIB == 0 else f"{-(-count >> 20)}M"


class AgainChoice(Struct, frozen=True):
    """Jobs to submit again, and notes on the choice."""

    jobs: tuple[Resubmission, ...]
    notes: tuple[str, ...] = ()


async def rows_to_submit(view: View, store: ClusterStore) -> AgainChoice | str:
    """Return the jobs that `R` submits again in a view; a message if there are none.

    Raises the error that prevented the lookup of an array.
    """
    if isinstance(view, TriageView):
        rows = view.rows_to_submit()
        if not rows:
            return "no task failed: mark the tasks to resubmit"
        return AgainChoice(resubmissions(rows), _format_living(rows))
    targets = view.targets()
    if not targets.job_ids:
        return "select a job first"
    jobs: list[Resubmission] = []
    notes: list[str] = []
    singles: list[Row] = []
    for job_id in targets.job_ids:
        if any(row["array_id"] == job_id for row in targets.rows):
            array, array_notes = await _array_resubmission(job_id, store)
            jobs.append(array)
            notes += array_notes
        elif members := [row for row in targets.rows if row["id"] == job_id]:
            singles += members
        elif len(targets.rows) == 1:
            # A pending task in the record of its array.
            singles += targets.rows
        else:
            raise UsageError(f"job {job_id} is unknown", "Try again once it is listed.")
    jobs += resubmissions(singles)
    return AgainChoice(tuple(jobs), (*notes, *_format_living(singles)))


async def _array_resubmission(array_id: str, store: ClusterStore) -> tuple[Resubmission, list[str]]:
    tasks = await fetch_tasks(store, array_id)
    every = (*tasks.ended, *tasks.living)
    failed = [row for row in tasks.ended if row["state"] in ENDED_BADLY]
    if failed:
        [requested] = resubmissions(failed)
        count = f"{count_jobs(failed)} of the {count_jobs(every)} tasks"
        return requested, [f"{count} of array {array_id} failed"]
    note = f"no task of array {array_id} failed: this resubmits the whole array"
    return Resubmission(array_id, None, every), [note, *_format_living(every)]


def _format_living(rows: Sequence[Row]) -> tuple[str, ...]:
    living = count_jobs(row for row in rows if row["state"] not in ENDED)
    if not living:
        return ()
    subject = "the job has" if count_jobs(rows) == 1 else f"{living} jobs have"
    return (f"{subject} not finished: both copies would run",)
