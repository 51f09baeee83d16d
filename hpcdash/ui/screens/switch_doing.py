"""What a switch's dialog does: drops the file and clears it, and notes what there is to say of that. Draws nothing."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

from textual.widgets import Button

from hpcdash.backends.actions import Outcome, Verb
from hpcdash.domain.states import ENDED
from hpcdash.domain.switch_looks import SwitchLook, Thing, clear_doubt
from hpcdash.domain.switch_progress import Progress, unseen_words
from hpcdash.domain.switch_story import Deeds
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError
from hpcdash.services.jobs.actions import Plan
from hpcdash.ui.screens.switch_following import SwitchFollowing

_GONE_ALREADY = "nothing was done: no job that is known to name it runs or waits any more"


class SwitchDoing(SwitchFollowing):
    """The part of SwitchDialog that acts."""

    @property
    def can_drop(self) -> bool:
        raise NotImplementedError

    @property
    def can_clear(self) -> bool:
        raise NotImplementedError

    def _clear_plan(self) -> Plan | None:
        raise NotImplementedError

    @property
    def doubt(self) -> str:
        """Why it is asked before what is there is removed, '' where it is not."""
        is_dropped_here = bool(self.deeds.dropped) and not (self.deeds.gone or self.deeds.cleared)
        return "" if self.look is None else clear_doubt(self.look, is_dropped_here=is_dropped_here)

    def action_drop(self) -> None:
        if self.can_drop and self._plan is not None:
            self._act(self._plan)

    def action_clear(self) -> None:
        """Remove it; what may be no switch at the second time only."""
        if not self.can_clear or (plan := self._clear_plan()) is None:
            return
        if self.doubt and not self._asks_clear:
            self._asks_clear = True
            self._show()
            self.query_one("#no", Button).focus()
            return
        self._act(plan)

    def _ask_anew(self, before: SwitchLook | None) -> None:
        if not self.can_clear or not self.doubt or _identity(before) != _identity(self.look):
            self._asks_clear = False

    def _act(self, plan: Plan) -> None:
        self._is_acting = True
        self._asks_clear = False
        self._show()
        self.run_worker(self._carry_out(plan), group="switch")

    async def _carry_out(self, plan: Plan) -> None:
        """Run it, look again, say what went wrong; one is asked to look at the queue sooner."""
        switch = self.switch
        if switch is None:
            return
        is_drop = plan.request.verb in (Verb.KILL_SWITCH, Verb.SAVE_SWITCH)
        try:
            if is_drop and not await self._is_anyone_left():
                self.act_said, self._asks_again = _GONE_ALREADY, False
                return
            if is_drop and self._log is not None:
                await self._log.mark(self._living)
            begun = monotonic()
            report = await self.switches.carry_out(switch, plan)
        finally:
            self._is_acting = False
            self._show()
        outcome: Outcome = report.outcomes[0]
        self._asks_again = False
        said = [report.journal_problem]
        if outcome.done:
            self._has_acted = True
            self._note_deed(begun, is_drop=is_drop)
        if outcome.done and is_drop:
            said.append(self.switches.remember(switch))
            said.append("" if self._log is None else self.switches.mark(switch, self._log))
        await self._look(dropped_seconds_ago=monotonic() - begun if is_drop and outcome.done else None)
        if outcome.done is not True:
            said.append(f"{'not done' if outcome.done is False else 'not known whether it was done'}: {outcome.words}")
        elif "; " in outcome.words:
            said.append(outcome.words)
        self.act_said = visible("; ".join(filter(None, said)))
        self._show()
        if self.is_live:
            self.query_one("#no", Button).focus()
        self.session.poller.ask_now()

    async def _is_anyone_left(self) -> bool:
        """Whether somebody is there to see it, as the queue has it now; True where it cannot be asked."""
        try:
            rows = await self.switches.jobs_now(self._job_ids, most=0)
        except HpcdashError:
            return True
        self._living = tuple(row for row in rows if row["state"] not in ENDED)
        return bool(self._living)

    def _note_deed(self, begun: float, *, is_drop: bool) -> None:
        if not is_drop:
            was_there = self.look is not None and self.look.is_dropped
            unseen = unseen_words(self.kind, self.progress) if was_there else ""
            self.deeds = replace(self.deeds, cleared=self._time_of_day(), unseen=unseen)
            self._dropped_here = None
            return
        self.deeds = Deeds(dropped=self._time_of_day())
        self.progress, self._most_jobs, self._dropped_at = Progress(), 0, None
        self._dropped_here = begun
        self._lived_then = frozenset(str(row["id"]) for row in self._living)


def _identity(look: SwitchLook | None) -> tuple[object, ...]:
    """What tells what is there from something else of its name; a FIFO's time is when it was written to last."""
    if look is None:
        return ()
    file = look.file
    changed_at = None if look.thing is Thing.SPECIAL else file.changed_at
    return look.thing, file.mode[:1], file.uid, file.size, look.link_to, changed_at
