"""State of a switch for its dialog: file, jobs that name it, log, and effect of a drop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from msgspec.structs import replace

from hpcdash.backends.actions import Outcome, Verb
from hpcdash.domain.impact import count_jobs
from hpcdash.domain.states import ENDED
from hpcdash.domain.switch_text import (
    SwitchActions,
    SwitchProgress,
    SwitchSnapshot,
    Thing,
    clear_doubt,
    dropped_at,
    format_unseen,
    in_time,
)
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.jobs.action_text import format_error
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.session import ClusterSession
from hpcdash.services.switches.names import switch_progress
from hpcdash.services.switches.switches import (
    JobSwitches,
    Switch,
    SwitchJobs,
    SwitchLog,
    SwitchRefused,
)

# Pause between two checks of a dropped file, which do not wait for polls: those give way to a
# person's requests.
LOOK_SECONDS = 10.0
_GONE_ALREADY = "nothing was done: no running or pending job is known to use it any more"


class SwitchTracker:
    """One switch of one job or array, found, set, cleared and followed.

    `switch` and `look` are None until they are known; `changed` is called whenever something new is
    known.
    """

    def __init__(
        self,
        session: ClusterSession,
        switches: JobSwitches,
        job_id: str,
        kind: SwitchKind,
        changed: Callable[[], None],
    ) -> None:
        self._changed = changed
        self.session = session
        self.switches = switches
        self.job_id = job_id
        self.kind = kind
        self.switch: Switch | None = None
        self.look: SwitchSnapshot | None = None
        self.switch_jobs: SwitchJobs | None = None
        self.log_message = ""
        self.progress = SwitchProgress()
        self.history = SwitchActions()
        self.problem = ""
        # Message of an action, until the next.
        self.act_message = ""
        self.plan: Plan | None = None
        self._log: SwitchLog | None = None
        self._job_ids: tuple[str, ...] = (job_id,)
        self.living: tuple[Mapping[str, Any], ...] = ()
        # When it was dropped by the login node's clock, in epoch seconds, and whose rows lived
        # then.
        self._dropped_at: float | None = None
        self._lived_then: frozenset[str] = frozenset()
        # When it was dropped from here, by this process's own clock.
        self._dropped_here: float | None = None
        self._most_jobs = 0
        # After an act of this dialog's own, dropping takes a step more.
        self.has_acted = False
        self.is_acting = False
        self._looking = asyncio.Lock()
        self._looked_at = 0.0

    # -- queries

    async def find(self, path: str = "") -> bool:
        """Find which file it is, `path` where a person names it; whether that was answered."""
        try:
            self.switch = await self.switches.find(self.job_id, self.kind, path)
            self.problem = ""
        except HpcdashError as error:
            self.problem = format_error(error)
            return False
        self.living = self.switch.living
        self._forget_actions()
        return True

    async def open(self, switch: Switch) -> None:
        """Check the file for the first time, and the earlier actions on it from here."""
        self._log = await asyncio.to_thread(self.switches.switch_log, switch)
        seconds_ago = await asyncio.to_thread(self.switches.dropped_here_seconds_ago, switch)
        if seconds_ago is not None:
            self.history = SwitchActions(dropped=self._time_of_day(seconds_ago))
            self._dropped_here = monotonic() - seconds_ago
            await self._log.resume()
        await self.refresh(dropped_seconds_ago=seconds_ago)

    def _forget_actions(self) -> None:
        """Reset the state known of another file."""
        self.look, self.switch_jobs, self.plan, self._log = None, None, None, None
        self.history, self.progress, self.log_message, self.act_message = (
            SwitchActions(),
            SwitchProgress(),
            "",
            "",
        )
        self._dropped_at, self._dropped_here, self._most_jobs = None, None, 0
        self._job_ids, self._lived_then = (self.job_id,), frozenset()
        self.has_acted = False

    async def fetch_switch_jobs(self) -> None:
        """Who else names it; then how they are."""
        switch = self.switch
        if switch is None or not switch.path:
            return
        # Ask for the rows the user sees, even if those of `switch` are older.
        switch_jobs = await self.switches.switch_jobs(
            replace(switch, rows=self.living or switch.rows)
        )
        if self.switch is not switch:
            return
        self.switch_jobs = switch_jobs
        self._job_ids = tuple(dict.fromkeys((*self._job_ids, *self.switch_jobs.job_ids)))
        own = {row["id"] for row in self.living}
        others = tuple(row for row in self.switch_jobs.rows if row["id"] not in own)
        self.living += others
        if others or self._dropped_at is not None:
            await self.refresh(is_requested=True)
        self._changed()

    async def refresh(
        self, *, dropped_seconds_ago: float | None = None, is_requested: bool = False
    ) -> None:
        """Check the file, its jobs where the lists differ or the file is gone, and the log.

        `dropped_seconds_ago` is when it was dropped from here; `is_requested`: the jobs are queried
        in any case.
        """
        # A query before an action must not report its answer after it.
        async with self._looking:
            if self.switch is not None and self.switch.path:
                await self._refresh_once(
                    self.switch, dropped_seconds_ago, is_requested=is_requested
                )

    async def _refresh_once(
        self, switch: Switch, dropped_seconds_ago: float | None, *, is_requested: bool
    ) -> None:
        """Thrown away where another file was named meanwhile: `switch` is no longer
        `self.switch`.
        """
        before = self.look
        self._looked_at = monotonic()
        try:
            here = None if self._dropped_here is None else monotonic() - self._dropped_here
            check = in_time(await self.switches.look(switch), here)
            if self.switch is not switch:
                return
            since = dropped_at(check, here if check.is_dropped else dropped_seconds_ago)
            self._dropped_at = self._dropped_at if since is None else since
            was_taken = (
                bool(self.history.dropped) and not check.is_dropped and not self.history.cleared
            )
            is_ending = self.kind is SwitchKind.KILL and (
                was_taken or (check.is_dropped and self._is_list_old)
            )
            await self._fetch_jobs(
                switch, is_requested=is_requested or (is_ending and bool(self.living))
            )
            if self.switch is not switch:
                return
            self.problem = ""
        except HpcdashError as error:
            if self.switch is switch:
                self.problem = format_error(error)
                self._changed()
            return
        is_gone = check.thing is Thing.NOTHING and bool(check.there)
        was_there = before is not None and before.is_dropped
        if (was_there or dropped_seconds_ago is not None) and is_gone and not self.history.cleared:
            # Programs that look often are quicker than the next look.
            self.history = replace(
                self.history, gone=self._time_of_day() if before is not None else "since then"
            )
        self.look = check
        try:
            self.plan = self.switches.plan_drop(switch, check)
        except SwitchRefused:
            self.plan = None
        self._changed()
        await self._read_log()
        self._changed()

    @property
    def _is_list_old(self) -> bool:
        """Whether the list is old, as polls give way to a person's requests.

        The jobs are then queried here.
        """
        store = self.session.store
        snapshot = store.snapshots.get(Kind.MINE)
        return snapshot is None or store.clock.now() - snapshot.taken_at > 2 * LOOK_SECONDS

    async def _fetch_jobs(self, switch: Switch, *, is_requested: bool) -> None:
        """Find out which jobs are alive and how the others ended; queries only if the lists do not
        show it.
        """
        known = count_jobs(self.living)
        is_same = not self._lists_differ and self.progress.total >= self._most_jobs
        is_known = self._dropped_at is None or self.progress.total > 0
        if is_same and is_known and not is_requested:
            return
        most = max(self._most_jobs, known) if self._dropped_at is not None else 0
        rows = await self.switches.jobs_now(self._job_ids, most=most)
        if self.switch is not switch:
            return
        self.living = tuple(row for row in rows if row["state"] not in ENDED)
        if self._dropped_at is not None:
            self.progress = switch_progress(rows, self._dropped_at, self._lived_then)
            self._most_jobs = max(self._most_jobs, self.progress.total)

    async def _read_log(self) -> None:
        """Read whether the log grows, and after a drop what it reports of the switch."""
        if (log := self._log) is None:
            return
        if self.history.dropped and log.is_marked:
            message, text = await log.said()
            if self._log is log:
                self.log_message, self.history = (
                    text,
                    replace(self.history, said=message, is_log_read=True),
                )
        elif self.living:
            text = await log.words(self.living)
            if self._log is log:
                self.log_message = text

    def _time_of_day(self, seconds_ago: float = 0.0) -> str:
        now = self.session.store.clock.now()
        then, today = (
            datetime.fromtimestamp(at, UTC).astimezone(self.session.zone)
            for at in (now - seconds_ago, now)
        )
        return f"{then:%H:%M:%S}" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M}"

    def is_news(self, changed: Changed) -> bool:
        """Whether to refresh after a poll: after that of one's own jobs, after both where the lists
        differ.
        """
        if self.look is None or self.is_acting:
            return False
        return changed.kind is Kind.MINE or (changed.kind is Kind.EVERYONE and self._lists_differ)

    @property
    def _lists_differ(self) -> bool:
        """Whether the lists have other living jobs than the shown ones."""
        return self.switches.living_jobs(self._job_ids) != count_jobs(self.living)

    @property
    def is_due(self) -> bool:
        """Whether to refresh without a poll: what was set is followed until it is cleared, or taken
        by its last job.
        """
        is_followed = self.look is not None and (
            self.look.is_dropped or (bool(self.history.dropped) and self.living)
        )
        is_time = monotonic() - self._looked_at >= LOOK_SECONDS - 2 and not self._looking.locked()
        return bool(is_followed) and is_time and not self.is_acting and not self.history.cleared

    # -- what is done

    @property
    def doubt(self) -> str:
        """Reason to confirm the removal of the present file, '' for none."""
        is_dropped_here = bool(self.history.dropped) and not (
            self.history.gone or self.history.cleared
        )
        return "" if self.look is None else clear_doubt(self.look, is_dropped_here=is_dropped_here)

    async def carry_out(self, plan: Plan) -> bool:
        """Run it, check again, set errors in `act_message`; return whether it was run at all."""
        switch = self.switch
        if switch is None:
            return False
        is_drop = plan.request.verb in (Verb.KILL_SWITCH, Verb.SAVE_SWITCH)
        try:
            if is_drop and not await self._is_anyone_left():
                self.act_message = _GONE_ALREADY
                return False
            if is_drop and self._log is not None:
                await self._log.mark(self.living)
            begun = monotonic()
            report = await self.switches.carry_out(switch, plan)
        finally:
            self.is_acting = False
            self._changed()
        outcome: Outcome = report.outcomes[0]
        messages = [report.journal_problem]
        if outcome.done:
            self.has_acted = True
            self._note_action(begun, is_drop=is_drop)
        if outcome.done and is_drop:
            messages.append(self.switches.remember(switch))
            messages.append("" if self._log is None else self.switches.mark(switch, self._log))
        await self.refresh(
            dropped_seconds_ago=monotonic() - begun if is_drop and outcome.done else None
        )
        if outcome.done is not True:
            messages.append(
                f"{'not done' if outcome.done is False else 'not known whether it was done'}: "
                f"{outcome.words}"
            )
        elif "; " in outcome.words:
            messages.append(outcome.words)
        self.act_message = visible("; ".join(filter(None, messages)))
        self._changed()
        return True

    async def _is_anyone_left(self) -> bool:
        """Whether a job in the queue is left to see it; True where the query fails."""
        try:
            rows = await self.switches.jobs_now(self._job_ids, most=0)
        except HpcdashError:
            return True
        self.living = tuple(row for row in rows if row["state"] not in ENDED)
        return bool(self.living)

    def _note_action(self, begun: float, *, is_drop: bool) -> None:
        if not is_drop:
            was_there = self.look is not None and self.look.is_dropped
            unseen = format_unseen(self.kind, self.progress) if was_there else ""
            self.history = replace(self.history, cleared=self._time_of_day(), unseen=unseen)
            self._dropped_here = None
            return
        self.history = SwitchActions(dropped=self._time_of_day())
        self.progress, self._most_jobs, self._dropped_at = SwitchProgress(), 0, None
        self._dropped_here = begun
        self._lived_then = frozenset(str(row["id"]) for row in self.living)
