"""Key action on the selected nodes and queues: check the nodes with jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.domain.nodelist import compress
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.jobs.action_text import format_error
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.session import ClusterSession
from hpcdash.ui.jobs.action_dialogs import Question
from hpcdash.ui.jobs.action_runner import ActionRunner
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.table_view import TableView
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.services.submit.node_checks import CheckJob, Selection

_MAX_LEFT_OUT = 5


class ClusterActions:
    """Handlers of the registry's actions on nodes and queues."""

    def __init__(self, screen: DashboardScreen, runner: ActionRunner) -> None:
        self.screen = screen
        self.runner = runner
        self._is_preparing = False

    def do_check_nodes(self) -> None:
        view = self.screen.view
        if isinstance(view, TableView) and not self._is_preparing:
            self._is_preparing = True
            start_worker(self.screen, self._check_nodes, view, self.screen.session, group="acting")

    async def _check_nodes(self, view: TableView, session: ClusterSession) -> None:
        """Plan a job, or several for different nodes; confirm and submit.

        `Launches.follow` reports the findings.
        """
        from hpcdash.services.submit.node_checks import plan_checks
        from hpcdash.services.submit.node_findings import NodeCheckRecords, SubmittedCheck

        try:
            selections = await self._selections(view, session)
            jobs: list[CheckJob] = []
            for selection in selections:
                jobs += await plan_checks(selection, (), session.launches)
        except HpcdashError as error:
            self.screen.notify(f"not checked: {format_error(error)}", severity="error", timeout=15)
            return
        finally:
            self._is_preparing = False
        left_out = [text for selection in selections for text in selection.skipped]
        if self.screen.view is not view or not await self._is_confirmed(jobs, left_out):
            return
        records = NodeCheckRecords(session.launches.state_folder, session.name)
        messages = []
        for job in jobs:
            result = await self.runner.submit(job.plan, view, session)
            messages.append(result.message)
            if not result.outcome.done:
                continue
            job_id = result.outcome.new_job
            check = SubmittedCheck(job_id, job.nodes, job.names)
            try:
                await asyncio.to_thread(records.submitted, check)
            except HpcdashError as error:
                messages.append(f"the results are only in the job's log: {error.message}")
            messages.append(
                f"job {job_id} is checking {compress(job.nodes)}; results will appear here"
            )
        self.screen.notice("\n".join(filter(None, messages)))

    async def _selections(self, view: TableView, session: ClusterSession) -> list[Selection]:
        """Return the marked nodes, else the selected one; of queues, their idle nodes."""
        from hpcdash.services.submit.node_checks import Selection, select_nodes

        names = view.rows.marked
        if not names:
            if view.rows.cursor_id is None:
                raise UsageError("select a row first")
            names = frozenset({view.rows.cursor_id})
        table = session.store.table(Kind.NODES)
        if table is None:
            table = (await session.store.fetch(Kind.NODES)).table
        rows = table.to_pylist()
        if view.spec.name == "queues":
            return [select_nodes(name, rows, "", names) for name in sorted(names)]
        if missing := sorted(names - {row["name"] for row in rows}):
            raise UsageError(f"{missing[0]} is no longer listed", "u clears all marks.")
        return [Selection(tuple(row for row in rows if row["name"] in names), "")]

    async def _is_confirmed(self, jobs: Sequence[CheckJob], left_out: Sequence[str]) -> bool:
        commands = tuple(command for job in jobs for command in job.plan.plan.commands)
        plan = Plan(ActionRequest(Verb.SUBMIT, jobs[0].plan.plan.request.job_ids), (), commands)
        names = {name for job in jobs for name in job.nodes}
        nodes = counted(len(names), "node") if len(names) > 1 else f"node {min(names)}"
        job_count = counted(len(jobs), "job")
        notes = [f"{compress(job.nodes)}: {', '.join(job.names)}" for job in jobs]
        if left_out:
            listed = list(left_out[:_MAX_LEFT_OUT])
            if more := len(left_out) - len(listed):
                listed.append(f"and {more} more")
            notes.append(f"skipped: {'; '.join(listed)}")
        notes += dict.fromkeys(note for job in jobs for note in job.plan.notes)
        label = "Script" if len(jobs) == 1 else f"Script (first of {job_count})"
        return await self.runner.is_confirmed(
            Question(
                plan,
                notes,
                title=f"Check {nodes} with {job_count}?",
                script=(label, jobs[0].plan.shown),
            )
        )
