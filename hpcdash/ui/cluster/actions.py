"""Key actions on the selected nodes and queues: check their nodes with a job."""

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
        """Plan a job, or a few where nodes differ; confirm, and submit.

        `Launches.follow` reports their findings.
        """
        from hpcdash.services.submit.node_checks import plan_checks
        from hpcdash.services.submit.node_findings import NodeCheckRecords, SubmittedCheck

        try:
            selections = await self._selections(view, session)
            planned = [
                one
                for selection in selections
                for one in await plan_checks(selection, (), session.launches)
            ]
        except HpcdashError as error:
            self.screen.notify(
                f"not checked: {format_error(error)}", severity="error", timeout=15, markup=False
            )
            return
        finally:
            self._is_preparing = False
        left_out = [text for selection in selections for text in selection.skipped]
        if self.screen.view is not view or not await self._is_agreed(planned, left_out):
            return
        records = NodeCheckRecords(session.launches.state_folder, session.name)
        messages = []
        for one in planned:
            result = await self.runner.submit(one.plan, view, session)
            outcome = result.outcome
            messages.append(result.message)
            if outcome.done:
                try:
                    await asyncio.to_thread(
                        records.submitted, SubmittedCheck(outcome.new_job, one.nodes, one.names)
                    )
                except HpcdashError as error:
                    messages.append(f"its results are only in its log: {error.message}")
                messages.append(
                    f"job {outcome.new_job} checks {compress(one.nodes)}; results will appear here"
                )
        self.screen.notice("\n".join(filter(None, messages)))

    async def _selections(self, view: TableView, session: ClusterSession) -> list[Selection]:
        """The nodes that are marked or pointed at; of queues the idle ones."""
        from hpcdash.services.submit.node_checks import Selection, select_nodes

        names = view.rows.marked or {name for name in (view.rows.cursor_id,) if name is not None}
        if not names:
            raise UsageError("select a row first")
        table = session.store.table(Kind.NODES)
        rows = (
            table if table is not None else (await session.store.fetch(Kind.NODES)).table
        ).to_pylist()
        if view.spec.name == "queues":
            return [select_nodes(name, rows, "", names) for name in sorted(names)]
        if missing := sorted(names - {row["name"] for row in rows}):
            raise UsageError(f"{missing[0]} is no longer listed", "u clears all marks.")
        return [Selection(tuple(row for row in rows if row["name"] in names), "")]

    async def _is_agreed(self, planned: Sequence[CheckJob], left_out: Sequence[str]) -> bool:
        commands = tuple(command for one in planned for command in one.plan.plan.commands)
        plan = Plan(ActionRequest(Verb.SUBMIT, planned[0].plan.plan.request.job_ids), (), commands)
        nodes = {name for one in planned for name in one.nodes}
        what = counted(len(nodes), "node") if len(nodes) > 1 else f"node {min(nodes)}"
        jobs = counted(len(planned), "job")
        notes = [f"{compress(one.nodes)}: {', '.join(one.names)}" for one in planned]
        if left_out:
            more = (
                f"; and {len(left_out) - _MAX_LEFT_OUT} more"
                if len(left_out) > _MAX_LEFT_OUT
                else ""
            )
            notes.append(f"left out: {'; '.join(left_out[:_MAX_LEFT_OUT])}{more}")
        notes += dict.fromkeys(note for one in planned for note in one.plan.notes)
        label = "Script" if len(planned) == 1 else f"Script of the first of {jobs}"
        return await self.runner.is_confirmed(
            Question(
                plan,
                notes,
                title=f"Check {what} with {jobs}?",
                script=(label, planned[0].plan.shown),
            )
        )
