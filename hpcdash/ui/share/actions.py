"""Key actions on marked or selected tasks of a pool: raise, lower, suspend, resume, stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError
from hpcdash.services.jobs.action_text import format_error
from hpcdash.ui.jobs.action_dialogs import Question
from hpcdash.ui.jobs.action_runner import ActionRunner
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.workers import call_after, start_worker

if TYPE_CHECKING:
    from hpcdash.services.share.wishes import Wish

# A coordinator checks Slurm's queue every 5 s, and publishes its changes.
_PUBLISHED_SECONDS = 7.0


class ShareActions:
    """Handlers of the registry's actions on tasks of a pool."""

    def __init__(self, screen: DashboardScreen, runner: ActionRunner) -> None:
        self.screen = screen
        self.runner = runner

    def do_raise_task(self) -> None:
        self._begin("raise")

    def do_lower_task(self) -> None:
        self._begin("lower")

    def do_suspend_task(self) -> None:
        from hpcdash.ui.share.view import ShareView

        view = self.screen.view
        tasks = view.chosen_tasks() if isinstance(view, ShareView) else []
        self._begin(
            "resume" if tasks and all(task.state == "paused" for task in tasks) else "suspend"
        )

    def do_stop_task(self) -> None:
        self._begin("stop")

    def _begin(self, name: str) -> None:
        from hpcdash.services.share.wishes import Wish

        start_worker(self.screen, self._carry_out, Wish(name), group="acting")

    async def _carry_out(self, wish: Wish) -> None:
        from hpcdash.services.share.text import format_interrupted
        from hpcdash.services.share.wishes import Wish, plan_wish
        from hpcdash.ui.share.view import ShareView

        view = self.screen.view
        if not isinstance(view, ShareView):
            return
        pool = view.pool
        tasks = view.chosen_tasks()
        if pool is None or not tasks:
            self.screen.notify("select a task first", severity="warning", timeout=3)
            return
        try:
            planned = [await plan_wish(self.screen.session, pool, task.id, wish) for task in tasks]
        except HpcdashError as error:
            self.screen.notify(format_error(error), severity="warning", markup=False)
            return
        if self.screen.view is not view:
            return
        # A task with a request of its own is not interrupted for another.
        chosen = {task.id for task in tasks}
        interrupted = {
            task.id: task for one in planned for task in one.interrupted if task.id not in chosen
        }
        lines = [visible(text) for text in format_interrupted(list(interrupted.values()))]
        first = planned[0]
        outcome = dict.fromkeys(text for one in planned for text in one.outcome)
        notes = [*outcome, *(lines if wish is not Wish.STOP and not interrupted else ())]
        plan = replace(
            first.plan,
            request=replace(first.plan.request, job_ids=tuple(task.id for task in tasks)),
            rows=tuple(row for one in planned for row in one.plan.rows),
            commands=tuple(command for one in planned for command in one.plan.commands),
        )
        count = len(tasks)
        title = first.question if count == 1 else f"{wish.capitalize()} {count} tasks?"
        report = await self.runner.carry_out(
            Question(plan, notes, lines if interrupted else (), title)
        )
        if report is not None:
            call_after(view, _PUBLISHED_SECONDS, view.read)
