"""Key actions on marked or selected tasks of a pool: raise, lower, suspend, resume, stop."""

from __future__ import annotations

from itertools import chain
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
    """Handlers of the actions on tasks of a pool."""

    def __init__(self, screen: DashboardScreen, runner: ActionRunner) -> None:
        self.screen = screen
        self.runner = runner

    def do_raise_task(self) -> None:
        self._start("raise")

    def do_lower_task(self) -> None:
        self._start("lower")

    def do_suspend_task(self) -> None:
        from hpcdash.ui.share.view import ShareView

        view = self.screen.view
        tasks = view.chosen_tasks() if isinstance(view, ShareView) else []
        are_paused = bool(tasks) and all(task.state == "paused" for task in tasks)
        self._start("resume" if are_paused else "suspend")

    def do_stop_task(self) -> None:
        self._start("stop")

    def _start(self, name: str) -> None:
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
            self.screen.notify(format_error(error), severity="warning")
            return
        if self.screen.view is not view:
            return
        # A task with a request of its own is not interrupted for another.
        job_ids = tuple(task.id for task in tasks)
        interrupted = {task.id: task for wish_plan in planned for task in wish_plan.interrupted}
        others = [task for job_id, task in interrupted.items() if job_id not in job_ids]
        lines = [visible(text) for text in format_interrupted(others)]
        notes = list(dict.fromkeys(chain.from_iterable(plan.outcome for plan in planned)))
        if wish is not Wish.STOP and not others:
            notes += lines
        first = planned[0]
        plan = replace(
            first.plan,
            request=replace(first.plan.request, job_ids=job_ids),
            rows=tuple(chain.from_iterable(wish_plan.plan.rows for wish_plan in planned)),
            commands=tuple(chain.from_iterable(wish_plan.plan.commands for wish_plan in planned)),
        )
        title = first.question if len(tasks) == 1 else f"{wish.capitalize()} {len(tasks)} tasks?"
        report = await self.runner.carry_out(Question(plan, notes, lines if others else (), title))
        if report is not None:
            call_after(view, _PUBLISHED_SECONDS, view.read)
