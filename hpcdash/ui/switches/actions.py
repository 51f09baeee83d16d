"""Key actions on the switches of trainings: the kill and save switches of the selected job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdash.domain.job_ids import holds_many, parse_array_id
from hpcdash.ui.screen import DashboardScreen

if TYPE_CHECKING:
    from hpcdash.domain.switches import SwitchKind


class SwitchActions:
    """Handlers of the registry's actions on switches."""

    def __init__(self, screen: DashboardScreen) -> None:
        self.screen = screen

    def do_kill_switch(self) -> None:
        from hpcdash.domain.switches import SwitchKind

        self._open_switch(SwitchKind.KILL)

    def do_save_switch(self) -> None:
        from hpcdash.domain.switches import SwitchKind

        self._open_switch(SwitchKind.SAVE)

    def _open_switch(self, kind: SwitchKind) -> None:
        # Few request it, and the first screen does not wait for it.
        from hpcdash.domain.switches import SwitchKind
        from hpcdash.services.switches.switches import JobSwitches
        from hpcdash.ui.switches.dialog import SwitchDialog

        job_ids = self.screen.view.switch_jobs()
        if not job_ids:
            self.screen.notify("select a job first", severity="warning", timeout=3)
            return
        # A switch is that of a whole array.
        units = {parse_array_id(job_id) for job_id in job_ids}
        if len(units) > 1:
            text = f"a {kind.text} works on one job or array at a time"
            if marked := self.screen.view.marks():
                text = (
                    f"{marked} are marked; {text}: {self.screen.key_label('unmark')} "
                    "clears the marks"
                )
            self.screen.notify(text, severity="warning", timeout=6)
            return
        job_id = units.pop() if len(job_ids) > 1 or holds_many(job_ids[0]) else job_ids[0]
        self.screen.view.clear_marks()
        session = self.screen.session
        switches = JobSwitches(session.actions, session.actions.journal.path.parent)
        against = self.screen.view.against_save() if kind is SwitchKind.SAVE else ""
        self.screen.app.push_screen(SwitchDialog(session, switches, job_id, kind, against))
