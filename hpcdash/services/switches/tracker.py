"""One switch of a job or an array: found, checked, set, cleared, and followed to its effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
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
    format_group,
    format_progress,
    format_unseen,
    in_time,
    warnings,
)
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.jobs.action_text import format_error
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.switches.names import switch_progress
from hpcdash.services.switches.switches import JobSwitches, Switch, SwitchJobs, SwitchLog

# Pause between two checks of a dropped file, which do not wait for polls: those give way to a
# person's requests.
CHECK_SECONDS = 10.0
_GONE_ALREADY = "nothing was done: no running or pending job is known to use it any more"
_DROPS = (Verb.KILL_SWITCH, Verb.SAVE_SWITCH)


class SwitchTracker:
    """State of one switch.

    `job_ids` are the requested jobs, the first of them that of `switch`; times of day are shown in
    `zone`. `switch`, `snapshot` and `switch_jobs` are None until they are known; `changed` is
    called whenever something new is known.
    """

    def __init__(
        self,
        switches: JobSwitches,
        kind: SwitchKind,
        job_ids: Sequence[str],
        *,
        zone: tzinfo | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.switches = switches
        self.kind = kind
        self.job_ids = tuple(job_ids)
        self.switch: Switch | None = None
        self.problem = ""
        self.has_acted = False
        self.is_acting = False
        self._zone = zone
        self._changed = changed
        self._checking = asyncio.Lock()
        self._checked_at = 0.0
        self._reset()

    def _reset(self) -> None:
        self.snapshot: SwitchSnapshot | None = None
        self.switch_jobs: SwitchJobs | None = None
        # Rows of the jobs that name it and run or wait.
        self.living: tuple[Mapping[str, Any], ...] = ()
        self.progress = SwitchProgress()
        self.history = SwitchActions()
        # Whether the log grows.
        self.log_message = ""
        # Message of the last action.
        self.act_message = ""
        self._log: SwitchLog | None = None
        # When it was dropped, in epoch seconds of the login node, and the jobs that lived then.
        self._dropped_at: float | None = None
        self._lived_then: frozenset[str] = frozenset()
        # When it was dropped from here, by the clock of this process.
        self._dropped_here: float | None = None
        # The most jobs that were known to live or to have ended since; None: not queried yet.
        self._most_jobs: int | None = None

    def take(self, switch: Switch) -> None:
        """Track another switch of the jobs."""
        self.switch = switch
        self.problem = ""
        self.has_acted = False
        self._reset()
        self.living = switch.living

    # -- queries

    async def open(self) -> None:
        """Check the file for the first time; an error becomes `problem`."""
        await self.refresh(dropped_seconds_ago=await self._recall())

    async def check(self) -> None:
        """Check the file, all jobs that name it, and the log, once.

        Raises what keeps the file or the jobs from being read.
        """
        assert self.switch is not None
        await self.fetch_switch_jobs()
        dropped_seconds_ago = await self._recall()
        await self._check(self.switch, dropped_seconds_ago, is_requested=False)

    async def _recall(self) -> float | None:
        """Read the earlier actions on it from here; return the age of its drop, None for none."""
        switch = self.switch
        if switch is None or not switch.path:
            return None
        log = await asyncio.to_thread(self.switches.switch_log, switch)
        seconds_ago = await asyncio.to_thread(self.switches.dropped_here_seconds_ago, switch)
        if self.switch is not switch:
            return None
        self._log = log
        if seconds_ago is not None:
            self.history = SwitchActions(dropped=self._time_of_day(seconds_ago))
            self._dropped_here = monotonic() - seconds_ago
            await log.resume()
        return seconds_ago

    async def fetch_switch_jobs(self) -> bool:
        """Fetch the other jobs that name it; return whether there are any."""
        switch = self.switch
        if switch is None or not switch.path:
            return False
        # The rows that the user sees may be newer than those of `switch`.
        switch_jobs = await self.switches.switch_jobs(
            replace(switch, rows=self.living or switch.rows)
        )
        if self.switch is not switch:
            return False
        self.switch_jobs = switch_jobs
        known = {row["id"] for row in self.living}
        others = tuple(row for row in switch_jobs.rows if row["id"] not in known)
        self.living += others
        self._changed()
        return bool(others)

    async def refresh(
        self, *, dropped_seconds_ago: float | None = None, is_requested: bool = False
    ) -> None:
        """Check again; an error becomes `problem`.

        `dropped_seconds_ago` is when it was dropped from here; `is_requested`: the jobs are queried
        in any case.
        """
        # A query before an action must not report its answer after it.
        async with self._checking:
            switch = self.switch
            if switch is None or not switch.path:
                return
            try:
                await self._check(switch, dropped_seconds_ago, is_requested=is_requested)
                problem = ""
            except HpcdashError as error:
                problem = format_error(error)
            if self.switch is switch:
                self.problem = problem
                self._changed()

    async def _check(
        self, switch: Switch, dropped_seconds_ago: float | None, *, is_requested: bool
    ) -> None:
        """Check the file, its jobs where the lists differ or the file is gone, and the log.

        An answer is dropped where another file was named meanwhile: `switch` is no longer
        `self.switch`.
        """
        before = self.snapshot
        self._checked_at = monotonic()
        here = self.dropped_here_seconds_ago
        check = in_time(await self.switches.fetch_snapshot(switch), here)
        if self.switch is not switch:
            return
        since = dropped_at(check, here if check.is_dropped else dropped_seconds_ago)
        self._dropped_at = self._dropped_at if since is None else since
        was_removed = (
            bool(self.history.dropped) and not check.is_dropped and not self.history.cleared
        )
        is_ending = self.kind is SwitchKind.KILL and (
            was_removed or (check.is_dropped and self._is_list_old)
        )
        await self._fetch_jobs(
            switch, is_requested=is_requested or (is_ending and bool(self.living))
        )
        if self.switch is not switch:
            return
        is_gone = check.thing is Thing.NOTHING and bool(check.there) and not self.history.cleared
        was_present = before is not None and before.is_dropped
        # Programs that check often are quicker than the next check.
        if is_gone and (was_present or dropped_seconds_ago is not None):
            gone = self._time_of_day() if before is not None else "since then"
            self.history = replace(self.history, gone=gone)
        self.snapshot = check
        self._changed()
        await self._read_log()

    @property
    def _is_list_old(self) -> bool:
        """Whether the list of jobs is old, as polls give way to a person's requests."""
        store = self.switches.store
        snapshot = store.snapshots.get(Kind.MINE)
        return snapshot is None or store.clock.now() - snapshot.taken_at > 2 * CHECK_SECONDS

    @property
    def _all_job_ids(self) -> tuple[str, ...]:
        others = () if self.switch_jobs is None else self.switch_jobs.job_ids
        return tuple(dict.fromkeys((*self.job_ids, *others)))

    async def _fetch_jobs(self, switch: Switch, *, is_requested: bool) -> None:
        """Find out which jobs live and how the others ended; queries only if the lists do not show
        it.
        """
        is_same = not self._lists_differ and self.progress.total >= (self._most_jobs or 0)
        is_known = self._dropped_at is None or self.progress.total > 0
        if is_same and is_known and not is_requested:
            return
        most: int | None = 0
        if self._dropped_at is not None:
            # Those that ended may have left the queue.
            known = max(self._most_jobs or 0, count_jobs(self.living) + self.progress.ended)
            most = None if self._most_jobs is None else known
        rows = await self.switches.fetch_jobs(self._all_job_ids, most=most)
        if self.switch is not switch:
            return
        self.living = tuple(row for row in rows if row["state"] not in ENDED)
        if self._dropped_at is not None:
            self.progress = switch_progress(rows, self._dropped_at, self._lived_then)
            self._most_jobs = max(self._most_jobs or 0, self.progress.total)

    async def _read_log(self) -> None:
        """Read whether the log grows, and after a drop what it reports of the switch."""
        if (log := self._log) is None:
            return
        message, text = await log.read(self._own, is_dropped=bool(self.history.dropped))
        if self._log is not log:
            return
        self.log_message = text
        if message is not None:
            self.history = replace(self.history, said=message, is_log_read=True)

    @property
    def _own(self) -> list[Mapping[str, Any]]:
        """The living rows of the switch's own job or array; of all jobs where it has ended."""
        assert self.switch is not None
        own = {row["id"] for row in self.switch.rows}
        return [row for row in self.living if row["id"] in own] or list(self.living)

    def _time_of_day(self, seconds_ago: float = 0.0) -> str:
        now = self.switches.store.clock.now()
        then, today = (
            datetime.fromtimestamp(at, UTC).astimezone(self._zone)
            for at in (now - seconds_ago, now)
        )
        return f"{then:%H:%M:%S}" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M}"

    def is_news(self, changed: Changed) -> bool:
        """Whether to refresh after a poll: after that of one's own jobs, after both where the lists
        differ.
        """
        if self.snapshot is None or self.is_acting:
            return False
        return changed.kind is Kind.MINE or (changed.kind is Kind.EVERYONE and self._lists_differ)

    @property
    def _lists_differ(self) -> bool:
        """Whether the lists have other living jobs than the known ones."""
        return self.switches.living_jobs(self._all_job_ids) != count_jobs(self.living)

    @property
    def is_due(self) -> bool:
        """Whether to refresh without a poll: a switch is followed until it is cleared, or taken by
        its last job.
        """
        if self.snapshot is None or self.is_acting or self.history.cleared:
            return False
        is_followed = self.snapshot.is_dropped or (bool(self.history.dropped) and self.living)
        is_time = monotonic() - self._checked_at >= CHECK_SECONDS - 2
        return bool(is_followed) and is_time and not self._checking.locked()

    # -- state

    @property
    def dropped_here_seconds_ago(self) -> float | None:
        """Age of its drop from here; None if not dropped, or cleared."""
        return None if self._dropped_here is None else monotonic() - self._dropped_here

    @property
    def living_ids(self) -> tuple[str, ...]:
        """The living jobs and arrays that name it."""
        return tuple(dict.fromkeys(str(row["array_id"] or row["id"]) for row in self.living))

    @property
    def matters(self) -> bool:
        """Whether it exists, or some job may see it yet: notes on its folder are then of use."""
        return bool(self.living) or (self.snapshot is not None and self.snapshot.is_dropped)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to read before relying on it, a sentence each."""
        if self.switch is None or self.snapshot is None or not self.matters:
            return ()
        return warnings(self.snapshot, self.kind, self.switch.owner)

    @property
    def group_note(self) -> str:
        """Note that members of the folder's group cannot set it; '' if they can."""
        return format_group(self.snapshot) if self.snapshot is not None and self.matters else ""

    @property
    def doubt(self) -> str:
        """Reason to confirm the removal of the present file; '' for none."""
        if self.snapshot is None:
            return ""
        history = self.history
        is_own = bool(history.dropped) and not (history.gone or history.cleared)
        return clear_doubt(self.snapshot, is_dropped_here=is_own)

    @property
    def unseen(self) -> str:
        """Note that a dropped switch may have had no effect yet; '' if it is not dropped."""
        is_dropped = self.snapshot is not None and self.snapshot.is_dropped
        return format_unseen(self.kind, self.progress) if is_dropped else ""

    @property
    def summary(self) -> str:
        """Outcome of the switch in one line: `set 12 s ago by alice; not seen yet`."""
        if self.snapshot is None:
            return ""
        message = visible(self.history.said) if self.history.is_log_read else None
        return format_progress(
            self.kind, self.snapshot, self.progress, self.dropped_here_seconds_ago, message
        )

    # -- actions

    def plan_drop(self) -> Plan:
        """Plan its creation; raises SwitchRefused if something is in the way."""
        assert self.switch is not None
        assert self.snapshot is not None
        return self.switches.plan_drop(self.switch, self.snapshot, self.job_ids)

    def plan_clear(self) -> Plan:
        """Plan the removal of the file; raises SwitchRefused if it is missing, or no switch."""
        assert self.switch is not None
        assert self.snapshot is not None
        return self.switches.plan_clear(self.switch, self.snapshot, self.job_ids)

    async def run(self, plan: Plan) -> tuple[tuple[Outcome, ...], list[str]]:
        """Run a plan; return the outcomes, and messages on what could not be stored."""
        assert self.switch is not None
        started_at = monotonic()
        outcomes, problems = await self.switches.carry_out(self.switch, plan, self._log)
        if outcomes[0].done:
            self.has_acted = True
            self._note_action(started_at, is_drop=plan.request.verb in _DROPS)
        return outcomes, problems

    async def carry_out(self, plan: Plan) -> bool:
        """Run a plan and check again; errors become `act_message`.

        Returns False if nothing was run: no job is left to see the switch.
        """
        switch = self.switch
        if switch is None:
            return False
        is_drop = plan.request.verb in _DROPS
        try:
            if is_drop and not await self._is_anyone_left():
                self.act_message = _GONE_ALREADY
                return False
            if is_drop and self._log is not None:
                await self._log.mark(self._own)
            started_at = monotonic()
            outcomes, messages = await self.run(plan)
        finally:
            self.is_acting = False
            self._changed()
        outcome = outcomes[0]
        await self.refresh(
            dropped_seconds_ago=monotonic() - started_at if is_drop and outcome.done else None
        )
        if outcome.done is not True:
            result = "not done" if outcome.done is False else "not known whether it was done"
            messages.append(f"{result}: {outcome.text}")
        elif "; " in outcome.text:
            messages.append(outcome.text)
        self.act_message = visible("; ".join(messages))
        self._changed()
        return True

    async def _is_anyone_left(self) -> bool:
        """Whether a job in the queue is left to see it; True where the query fails."""
        try:
            rows = await self.switches.fetch_jobs(self._all_job_ids, most=0)
        except HpcdashError:
            return True
        self.living = tuple(row for row in rows if row["state"] not in ENDED)
        return bool(self.living)

    def _note_action(self, started_at: float, *, is_drop: bool) -> None:
        if is_drop:
            self.history = SwitchActions(dropped=self._time_of_day())
            self.progress = SwitchProgress()
            self._most_jobs = 0
            self._dropped_at = None
            self._dropped_here = started_at
            self._lived_then = frozenset(str(row["id"]) for row in self.living)
        else:
            self.history = replace(self.history, cleared=self._time_of_day(), unseen=self.unseen)
            self._dropped_here = None
