"""What a switch's dialog knows: the switch, its file, who would see it, what its log says, and what became of a drop.

Draws nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from hpcdash.domain.impact import count_jobs
from hpcdash.domain.states import ENDED
from hpcdash.domain.switch_text import Deeds, SwitchLook, SwitchProgress, Thing, dropped_at, in_time
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.cluster.store import Changed
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.session import ClusterSession
from hpcdash.services.switches.names import progress_of
from hpcdash.services.switches.switches import Namesakes, Switch, Switches, SwitchLog, SwitchRefused
from hpcdash.ui.dialogs import Dialog
from hpcdash.ui.jobs.action_text import format_error

# Between two looks at what was dropped, which do not wait for polls: those give way to what a person asks for.
LOOK_SECONDS = 10.0


class SwitchFollowing(Dialog[None]):
    """Asks and looks, and says `_show` whenever something is known; `switch` and `look` are None until they are."""

    def __init__(
        self, session: ClusterSession, switches: Switches, job_id: str, kind: SwitchKind, against: str = ""
    ) -> None:
        """`against` says why it had better not be dropped, '' where nothing speaks against it."""
        super().__init__(f"{kind.words} of {visible(job_id)}")
        self.against = against
        self.session = session
        self.switches = switches
        self.job_id = job_id
        self.kind = kind
        self.switch: Switch | None = None
        self.look: SwitchLook | None = None
        self.namesakes: Namesakes | None = None
        self.log_said = ""
        self.progress = SwitchProgress()
        self.deeds = Deeds()
        self.problem = ""
        # What an act said, until the next.
        self.act_said = ""
        self._plan: Plan | None = None
        self._log: SwitchLog | None = None
        self._job_ids: tuple[str, ...] = (job_id,)
        self._living: tuple[Mapping[str, Any], ...] = ()
        # When it was dropped by the login node's clock, in epoch seconds, and whose rows lived then.
        self._dropped_at: float | None = None
        self._lived_then: frozenset[str] = frozenset()
        # When it was dropped from here, by this process's own clock.
        self._dropped_here: float | None = None
        self._most_jobs = 0
        # After an act of this dialog's own, dropping takes a step more.
        self._has_acted = False
        self._asks_again = False
        # What may be no switch is cleared at the second time.
        self._asks_clear = False
        # Whether another path is asked for in the place of the one that is known.
        self._asks_path = False
        self._shows_command = False
        self._is_acting = False
        self._looking = asyncio.Lock()
        self._looked_at = 0.0
        self._stop_listening: Callable[[], None] = lambda: None

    def _show(self) -> None:
        """Something is known."""
        raise NotImplementedError

    def _ask_for_path(self) -> None:
        """Nobody knows which file it is."""
        raise NotImplementedError

    def _focus_answer(self) -> None:
        """It can be answered."""
        raise NotImplementedError

    def _ask_anew(self, before: SwitchLook | None) -> None:
        """A look was taken: what was asked of what was there `before` may have lost its subject."""
        raise NotImplementedError

    # -- what is asked

    async def _find(self, path: str = "") -> None:
        try:
            self.switch = await self.switches.find(self.job_id, self.kind, path)
            self.problem = ""
        except HpcdashError as error:
            self.problem = format_error(error)
            self._show()
            return
        # Looks at the path of before.
        self.workers.cancel_group(self, "switch-look")
        switch = self.switch
        self._living = switch.living
        self._forget_deeds()
        self._show()
        if not switch.path:
            self._ask_for_path()
            return
        self._log = await asyncio.to_thread(self.switches.log_of, switch)
        seconds_ago = await asyncio.to_thread(self.switches.dropped_here_seconds_ago, switch)
        if seconds_ago is not None:
            self.deeds = Deeds(dropped=self._time_of_day(seconds_ago))
            self._dropped_here = monotonic() - seconds_ago
            await self._log.resume()
        await self._look(dropped_seconds_ago=seconds_ago)
        self._focus_answer()
        await self._ask_who()

    def _forget_deeds(self) -> None:
        """What was known of another file."""
        self.look, self.namesakes, self._plan, self._log = None, None, None, None
        self.deeds, self.progress, self.log_said, self.act_said = Deeds(), SwitchProgress(), "", ""
        self._dropped_at, self._dropped_here, self._most_jobs = None, None, 0
        self._job_ids, self._lived_then = (self.job_id,), frozenset()
        self._has_acted = self._asks_again = self._asks_clear = self._asks_path = False

    async def _ask_who(self) -> None:
        """Who else names it; then how they are."""
        switch = self.switch
        if switch is None or not switch.path:
            return
        # The rows that are asked for here are those that a person sees, however old those of `switch` are.
        namesakes = await self.switches.namesakes(replace(switch, rows=self._living or switch.rows))
        if self.switch is not switch:
            return
        self.namesakes = namesakes
        self._job_ids = tuple(dict.fromkeys((*self._job_ids, *self.namesakes.job_ids)))
        own = {row["id"] for row in self._living}
        others = tuple(row for row in self.namesakes.rows if row["id"] not in own)
        self._living += others
        if others or self._dropped_at is not None:
            await self._look(is_asked=True)
        self._show()

    async def _look(self, *, dropped_seconds_ago: float | None = None, is_asked: bool = False) -> None:
        """One look at the file, at its jobs where the lists tell of other ones or the file is gone, and at the log.

        `dropped_seconds_ago` is when it was dropped from here; `is_asked`: the jobs are asked for in any case.
        """
        # What was asked before an act must not be told after it.
        async with self._looking:
            if self.switch is not None and self.switch.path:
                await self._look_once(self.switch, dropped_seconds_ago, is_asked=is_asked)

    async def _look_once(self, switch: Switch, dropped_seconds_ago: float | None, *, is_asked: bool) -> None:
        """Thrown away where another file was named meanwhile: `switch` is no longer `self.switch`."""
        before = self.look
        self._looked_at = monotonic()
        try:
            here = None if self._dropped_here is None else monotonic() - self._dropped_here
            look = in_time(await self.switches.look(switch), here)
            if self.switch is not switch:
                return
            since = dropped_at(look, here if look.is_dropped else dropped_seconds_ago)
            self._dropped_at = self._dropped_at if since is None else since
            was_taken = bool(self.deeds.dropped) and not look.is_dropped and not self.deeds.cleared
            is_ending = self.kind is SwitchKind.KILL and (was_taken or (look.is_dropped and self._is_list_old))
            await self._follow(switch, is_asked=is_asked or (is_ending and bool(self._living)))
            if self.switch is not switch:
                return
            self.problem = ""
        except HpcdashError as error:
            if self.switch is switch:
                self.problem = format_error(error)
                self._show()
            return
        is_gone = look.thing is Thing.NOTHING and bool(look.there)
        was_there = before is not None and before.is_dropped
        if (was_there or dropped_seconds_ago is not None) and is_gone and not self.deeds.cleared:
            # Programs that look often are quicker than the next look.
            self.deeds = replace(self.deeds, gone=self._time_of_day() if before is not None else "since then")
        self.look = look
        try:
            self._plan = self.switches.plan_drop(switch, look)
        except SwitchRefused:
            self._plan = None
        self._ask_anew(before)
        self._show()
        await self._read_log()
        self._show()

    @property
    def _is_list_old(self) -> bool:
        """Whether polls wait, as they do for what a person asks: then the jobs are asked for here."""
        store = self.session.store
        snapshot = store.snapshots.get(Kind.MINE)
        return snapshot is None or store.clock.now() - snapshot.taken_at > 2 * LOOK_SECONDS

    async def _follow(self, switch: Switch, *, is_asked: bool) -> None:
        """Which of its jobs live and how the others fared; asked where the lists do not tell what is known of it."""
        known = count_jobs(self._living)
        is_same = not self._lists_differ and self.progress.total >= self._most_jobs
        is_told = self._dropped_at is None or self.progress.total > 0
        if is_same and is_told and not is_asked:
            return
        most = max(self._most_jobs, known) if self._dropped_at is not None else 0
        rows = await self.switches.jobs_now(self._job_ids, most=most)
        if self.switch is not switch:
            return
        self._living = tuple(row for row in rows if row["state"] not in ENDED)
        if self._dropped_at is not None:
            self.progress = progress_of(rows, self._dropped_at, self._lived_then)
            self._most_jobs = max(self._most_jobs, self.progress.total)

    async def _read_log(self) -> None:
        """Whether it grows, and from a drop on what it says of it."""
        if (log := self._log) is None:
            return
        if self.deeds.dropped and log.is_marked:
            said, words = await log.said()
            if self._log is log:
                self.log_said, self.deeds = words, replace(self.deeds, said=said, is_log_read=True)
        elif self._living:
            words = await log.words(self._living)
            if self._log is log:
                self.log_said = words

    def _time_of_day(self, seconds_ago: float = 0.0) -> str:
        now = self.session.store.clock.now()
        then, today = (datetime.fromtimestamp(at, UTC).astimezone(self.session.zone) for at in (now - seconds_ago, now))
        return f"{then:%H:%M:%S}" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M}"

    def _heard(self, changed: Changed) -> None:
        """A poll was answered: the switch is looked at with that of one's own jobs, the lists with both."""
        if self.look is None or self._is_acting:
            return
        if changed.kind is Kind.MINE or (changed.kind is Kind.EVERYONE and self._lists_differ):
            self.run_worker(self._look(), group="switch-look", exclusive=True)

    @property
    def _lists_differ(self) -> bool:
        """Whether the lists tell of other living jobs than those that are shown."""
        return self.switches.living_jobs(self._job_ids) != count_jobs(self._living)

    def _tick(self) -> None:
        """What was dropped is looked at until it is cleared, or taken by its last job."""
        is_followed = self.look is not None and (self.look.is_dropped or (bool(self.deeds.dropped) and self._living))
        is_due = monotonic() - self._looked_at >= LOOK_SECONDS - 2 and not self._looking.locked()
        if is_followed and is_due and not self._is_acting and not self.deeds.cleared:
            self.run_worker(self._look(), group="switch-look", exclusive=True)
