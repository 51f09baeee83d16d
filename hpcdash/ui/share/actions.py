"""What keys do to the task of a shared pool that one points at: raise, lower, suspend, resume, stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError
from hpcdash.services.jobs.action_text import format_error
from hpcdash.ui.jobs.action_runner import ActionRunner
from hpcdash.ui.screen import DashboardScreen

if TYPE_CHECKING:
    from hpcdash.services.share.wishes import Wish

# The coordinator looks at the queue about as often.
_TAKEN_UP_SECONDS = 2.0


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
        task = view.pointed_task() if isinstance(view, ShareView) else None
        self._begin("resume" if task is not None and task.state == "paused" else "suspend")

    def do_stop_task(self) -> None:
        self._begin("stop")

    def _begin(self, name: str) -> None:
        from hpcdash.services.share.wishes import Wish

        self.screen.run_worker(self._carry_out(Wish(name)), group="acting")

    async def _carry_out(self, wish: Wish) -> None:
        from hpcdash.services.share.text import format_interrupted
        from hpcdash.services.share.wishes import Wish, plan_wish
        from hpcdash.ui.share.view import ShareView

        view = self.screen.view
        if not isinstance(view, ShareView):
            return
        pool, task = view.pool, view.pointed_task()
        if pool is None or task is None:
            self.screen.notify("no task is pointed at", severity="warning", timeout=3)
            return
        try:
            planned = await plan_wish(self.screen.session, pool, task.id, wish)
        except HpcdashError as error:
            self.screen.notify(format_error(error), severity="warning", markup=False)
            return
        if self.screen.view is not view:
            return
        lines = [visible(words) for words in format_interrupted(planned.interrupted)]
        asides = [*planned.outcome, *(lines if wish is not Wish.STOP and not planned.interrupted else ())]
        report = await self.runner.carry_out(
            planned.plan,
            asides=asides,
            question=planned.question,
            warnings=lines if planned.interrupted else (),
        )
        if report is not None:
            view.set_timer(_TAKEN_UP_SECONDS, view.read)
