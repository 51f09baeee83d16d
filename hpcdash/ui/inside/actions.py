"""Key actions inside a running job: a command on its nodes, its stacks, its live use, its ports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hpcdash.domain.job_ids import holds_many
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.text import visible
from hpcdash.services.jobs.lookup import known_row
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.widgets.command_bar import CommandBar

if TYPE_CHECKING:
    from hpcdash.backends.inside import InsideCommand
    from hpcdash.config.plugins import SiteCommand
    from hpcdash.ui.inside.forwarding import Forwarding

# Entered commands are stored with the text typed after '/' and ':'.
MODE = "X"
_MAX_RECENT = 8
# Names of predefined commands with a view of their own.
_OWN_VIEWS = ("stacks", "leftovers")


class InsideActions:
    """Handlers of `exec`, `stacks`, `use` and `forward`."""

    def __init__(
        self, screen: DashboardScreen, site_commands: Callable[[], Sequence[SiteCommand]]
    ) -> None:
        self.screen = screen
        self._site_commands = site_commands
        self._forwarding: Forwarding | None = None

    def do_exec(self) -> None:
        from hpcdash.services.inside.ready import ready_commands
        from hpcdash.ui.inside.dialog import ExecDialog

        job_id = self._running_job()
        if job_id is None:
            return
        bar = self.screen.query_one(CommandBar)
        recent = list(dict.fromkeys(reversed(bar.mode_history(MODE))))[:_MAX_RECENT]
        ready = ready_commands(self._site_commands())
        names = {one.name for one in ready}

        def run(command: InsideCommand, name: str) -> None:
            if name not in names:
                bar.remember(MODE, name)
            if name in _OWN_VIEWS and name in names:
                push = partial(self.screen.push, name, job_id=job_id)
            else:
                push = partial(
                    self.screen.push, "inside", job_id=job_id, command=command, name=name
                )
            self.screen.call_later(push)

        heading = f"Run on the nodes of job {visible(job_id)}"
        self.screen.app.push_screen(ExecDialog(heading, ready, recent, run))

    def do_forward(self) -> None:
        from hpcdash.ui.inside.forwarding import Forwarding

        if (job_id := self._running_job()) is not None:
            if self._forwarding is None:
                self._forwarding = Forwarding(self.screen)
            self._forwarding.open(job_id)

    async def do_stacks(self) -> None:
        if (job_id := self._running_job()) is not None:
            await self.screen.push("stacks", job_id=job_id)

    async def do_use(self) -> None:
        if (job_id := self._running_job()) is not None:
            await self.screen.push("use", job_id=job_id)

    def _running_job(self) -> str | None:
        """Return the selected running job; None, with a notification, if there is none."""
        job_id = self.screen.view.pointed_job()
        text = ""
        if job_id is None:
            text = "select a job first"
        else:
            row = known_row(self.screen.session.store, job_id)
            if holds_many(job_id) or (row is not None and (row["_tasks"] or 1) > 1):
                text = f"{job_id} is an array: select one of its tasks"
            elif row is not None and row["state"] not in ACTIVE:
                text = f"job {job_id} is not running ({row['state']})"
        if text:
            self.screen.notify(visible(text), severity="warning", timeout=4)
            return None
        return job_id
