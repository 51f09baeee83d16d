"""One switch of a job or an array: checked, set, cleared, and followed to its effect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from time import monotonic

from msgspec.structs import replace

from hpcdash.backends.actions import ActionRequest, Outcome
from hpcdash.domain.impact import count_jobs
from hpcdash.domain.states import ENDED
from hpcdash.domain.switch_text import (
    SwitchHistory,
    SwitchProgress,
    SwitchSnapshot,
    Thing,
    clear_doubt,
    clear_refusal,
    dropped_at,
    format_group,
    format_progress,
    format_unseen,
    in_time,
    refusal,
    warnings,
)
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import visible
from hpcdash.errors import CommandTimedOut, HpcdashError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.jobs.action_text import format_error
from hpcdash.services.jobs.actions import ANSWER_LOST, Plan
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.switches.log import SwitchLog
from hpcdash.services.switches.names import switch_progress
from hpcdash.services.switches.scripts import clear_command, drop_command, snapshot_query
from hpcdash.services.switches.switches import (
    CLEARS,
    DROPS,
    JobSwitches,
    Row,
    Switch,
    SwitchJobs,
    unit_id,
)

# Pause between two checks of a dropped file, which do not wait for polls: those give way to a
# person's requests.
CHECK_SECONDS = 10.0
_GONE_ALREADY = "nothing was done: no known running or pending job uses it any more"


class SwitchRefused(HpcdashError):
    """Refusal to drop or clear a switch because of the entry at its path."""


class SwitchTracker:
    """State of one switch whose path is known: it is checked, planned for, acted on, recorded.

    `job_ids` are the requested jobs, the first of them that of `switch`; times of day are shown in
    `zone`. `snapshot` and `switch_jobs` are None until they are known; `changed` is called whenever
    something new is known.
    """

    def __init__(
        self,
        switches: JobSwitches,
        switch: Switch,
        job_ids: Sequence[str] = (),
        *,
        zone: tzinfo | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.switches = switches
        self.switch = switch
        self.job_ids = tuple(job_ids) or (switch.job_id,)
        self.snapshot: SwitchSnapshot | None = None
        self.switch_jobs: SwitchJobs | None = None
        # Rows of the jobs that name it and run or wait.
        self.living = switch.living
        self.progress = SwitchProgress()
        self.history = SwitchHistory()
        # Whether the log grows.
        self.log_message = ""
        # Message of the last action.
        self.act_message = ""
        self.problem = ""
        self.has_acted = False
        self.is_acting = False
        self._zone = zone
        self._changed = changed
        self._checking = asyncio.Lock()
        self._checked_at = 0.0
        self._log: SwitchLog | None = None
        # When it was dropped, in epoch seconds of the login node, and the jobs that lived then.
        self._dropped_at: float | None = None
        self._lived_then: frozenset[str] = frozenset()
        # When it was dropped from here, by the clock of this process.
        self._dropped_here: float | None = None
        # The most jobs that were known to live or to have ended since; None: not queried yet.
        self._most_jobs: int | None = None

    # -- queries

    async def open(self) -> None:
        """Check the file for the first time; an error becomes `problem`."""
        await self.refresh(dropped_seconds_ago=await self._recall())

    async def check(self) -> None:
        """Check the file, all jobs that name it, and the log, once.

        Raises what keeps the file or the jobs from being read.
        """
        await self.fetch_switch_jobs()
        await self._check(await self._recall(), is_requested=False)

    async def _recall(self) -> float | None:
        """Read the earlier actions on it from here; return the age of its drop, None for none."""
        memory = self.switches.memory
        mark = await asyncio.to_thread(memory.stored_mark, self.switch.kind, self.switch.path)
        self._log = SwitchLog(self.switches.store, self.switch, mark)
        seconds_ago = await asyncio.to_thread(self.switches.dropped_here_seconds_ago, self.switch)
        if seconds_ago is not None:
            self.history = SwitchHistory(dropped=self._time_of_day(seconds_ago))
            self._dropped_here = monotonic() - seconds_ago
            await self._log.resume()
        return seconds_ago

    async def check_file(self) -> None:
        """Check the file alone; raises CommandTimedOut if its disk does not answer."""
        self.snapshot = await self._fetch_snapshot()

    async def _fetch_snapshot(self) -> SwitchSnapshot:
        switch = self.switch
        query = snapshot_query(switch.path, switch.owner)
        try:
            return await self.switches.store.run_query(query)
        except CommandTimedOut as error:
            error.message = f"the disk of {switch.path} does not respond"
            raise

    async def fetch_switch_jobs(self) -> bool:
        """Fetch the other jobs that name it; return whether there are any."""
        # The rows that the user sees may be newer than those of `switch`.
        rows = self.living or self.switch.rows
        self.switch_jobs = await self.switches.switch_jobs(replace(self.switch, rows=rows))
        known = {row["id"] for row in self.living}
        others = tuple(row for row in self.switch_jobs.rows if row["id"] not in known)
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
            try:
                await self._check(dropped_seconds_ago, is_requested=is_requested)
                self.problem = ""
            except HpcdashError as error:
                self.problem = format_error(error)
            self._changed()

    async def _check(self, dropped_seconds_ago: float | None, *, is_requested: bool) -> None:
        """Check the file, its jobs where the lists differ or the file is gone, and the log."""
        before = self.snapshot
        self._checked_at = monotonic()
        here = self.dropped_here_seconds_ago
        check = in_time(await self._fetch_snapshot(), here)
        since = dropped_at(check, here if check.is_dropped else dropped_seconds_ago)
        self._dropped_at = self._dropped_at if since is None else since
        history = self.history
        was_removed = history.dropped and not check.is_dropped and not history.cleared
        is_ending = was_removed or (check.is_dropped and self._is_list_old)
        is_kill = self.switch.kind is SwitchKind.KILL
        await self._fetch_jobs(
            is_requested=is_requested or bool(is_kill and is_ending and self.living)
        )
        is_gone = check.thing is Thing.NOTHING and bool(check.there) and not self.history.cleared
        was_present = before is not None and before.is_dropped
        # Programs that check often are quicker than the next check.
        if is_gone and (was_present or dropped_seconds_ago is not None):
            gone = self._time_of_day() if before is not None else "since then"
            self.history = replace(self.history, gone=gone)
        self.snapshot = check
        self._changed()
        if self._log is not None:
            message, self.log_message = await self._log.read(
                self._own, is_dropped=bool(self.history.dropped)
            )
            if message is not None:
                self.history = replace(self.history, log_line=message, is_log_read=True)

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

    async def _fetch_jobs(self, *, is_requested: bool) -> None:
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
        self.living = tuple(row for row in rows if row["state"] not in ENDED)
        if self._dropped_at is not None:
            self.progress = switch_progress(rows, self._dropped_at, self._lived_then)
            self._most_jobs = max(self._most_jobs or 0, self.progress.total)

    @property
    def _own(self) -> list[Row]:
        """The living rows of the switch's own job or array; of all jobs where it has ended."""
        own = {row["id"] for row in self.switch.rows}
        return [row for row in self.living if row["id"] in own] or list(self.living)

    def _time_of_day(self, seconds_ago: float = 0.0) -> str:
        epoch = self.switches.store.clock.now()
        today = datetime.fromtimestamp(epoch, UTC).astimezone(self._zone).date()
        then = datetime.fromtimestamp(epoch - seconds_ago, UTC).astimezone(self._zone)
        return f"{then:%H:%M:%S}" if then.date() == today else f"{then:%Y-%m-%d %H:%M}"

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
        return tuple(dict.fromkeys(map(unit_id, self.living)))

    @property
    def is_dropped(self) -> bool:
        """Whether it is set, as far as it is known."""
        return self.snapshot is not None and self.snapshot.is_dropped

    @property
    def is_droppable(self) -> bool:
        """Whether nothing prevents dropping it, and a job is there to see it."""
        if self.snapshot is None or self.is_acting:
            return False
        return bool(self.living) and not refusal(self.snapshot)

    @property
    def is_clearable(self) -> bool:
        """Whether the file may be removed."""
        if self.snapshot is None or self.is_acting:
            return False
        return not clear_refusal(self.snapshot)

    @property
    def matters(self) -> bool:
        """Whether it exists, or some job may see it yet: notes on its folder are then of use."""
        return bool(self.living) or self.is_dropped

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to read before relying on it, a sentence each."""
        if self.snapshot is None or not self.matters:
            return ()
        return warnings(self.snapshot, self.switch.kind, self.switch.owner)

    @property
    def group_note(self) -> str:
        """Note that members of the folder's group cannot set it; '' if they can."""
        return format_group(self.snapshot) if self.snapshot is not None and self.matters else ""

    @property
    def jobs_note(self) -> str:
        """Note on jobs that may name it and could not be checked; '' for none."""
        return "" if self.switch_jobs is None else self.switch_jobs.note

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
        return format_unseen(self.switch.kind, self.progress) if self.is_dropped else ""

    @property
    def summary(self) -> str:
        """Outcome of the switch in one line: `set 12 s ago by alice; not seen yet`."""
        if self.snapshot is None:
            return ""
        return format_progress(
            self.switch.kind,
            self.snapshot,
            self.progress,
            self.dropped_here_seconds_ago,
            visible(self.history.log_line) if self.history.is_log_read else None,
        )

    # -- actions

    def plan_drop(self) -> Plan:
        """Plan its creation; raises SwitchRefused if something is in the way."""
        assert self.snapshot is not None
        switch = self.switch
        if why := refusal(self.snapshot):
            step = ""
            if self.snapshot.is_dropped:
                step = (
                    f"The switch stays set until cleared: hpcdash {switch.kind}-switch "
                    f"{switch.job_id} --clear"
                )
            elif self.snapshot.problem:
                step = "If the job creates this folder, wait for it; --path names another file."
            raise SwitchRefused(f"{switch.path}: {why}", step)
        command = drop_command(self.snapshot, switch.owner, self.job_ids)
        return Plan(ActionRequest(DROPS[switch.kind], self.job_ids), switch.rows, (command,))

    def plan_clear(self) -> Plan:
        """Plan the removal of the file; raises SwitchRefused if it is missing, or no switch."""
        assert self.snapshot is not None
        switch = self.switch
        if why := clear_refusal(self.snapshot):
            raise SwitchRefused(f"{switch.path}: {why}")
        command = clear_command(self.snapshot, self.job_ids)
        return Plan(ActionRequest(CLEARS[switch.kind], self.job_ids), switch.rows, (command,))

    async def run(self, plan: Plan) -> tuple[tuple[Outcome, ...], list[str]]:
        """Run a plan; return the outcomes, and messages on what could not be stored.

        After a drop the path is remembered, if a person named it, and the sizes of its logs. An
        unknown outcome has how to check.
        """
        switch = self.switch
        started_at = monotonic()
        report = await self.switches.actions.run(plan)
        problems = [report.journal_problem] if report.journal_problem else []
        lost = f"the answer was lost; check with: hpcdash {switch.kind}-switch {switch.job_id} --status"
        outcomes = tuple(
            replace(outcome, text=outcome.text.replace(ANSWER_LOST, lost, 1))
            if outcome.done is None
            else outcome
            for outcome in report.outcomes
        )
        if not outcomes[0].done:
            return outcomes, problems
        self.has_acted = True
        if plan.request.verb != DROPS[switch.kind]:
            self.history = replace(self.history, cleared=self._time_of_day(), unseen=self.unseen)
            self._dropped_here = None
            return outcomes, problems
        self.history = SwitchHistory(dropped=self._time_of_day())
        self.progress = SwitchProgress()
        self._most_jobs = 0
        self._dropped_at = None
        self._dropped_here = started_at
        self._lived_then = frozenset(str(row["id"]) for row in self.living)
        return outcomes, [*problems, *self._remember()]

    def _remember(self) -> list[str]:
        """Store the path of a dropped switch, if a person named it, and the sizes of its logs;
        return messages on what could not be stored.
        """
        switch = self.switch
        memory = self.switches.memory
        problems = []
        try:
            if switch.is_typed:
                job = (switch.kind, switch.job_id, switch.name, switch.owner)
                memory.remember(*job, path=switch.path)
        except StateUnusable as error:
            problems.append(f"could not remember the path: {error.message}")
        try:
            if self._log is not None and self._log.now is not None:
                memory.mark(switch.kind, switch.path, self._log.now)
        except StateUnusable as error:
            problems.append(f"cannot follow the log:  {error.message}")
        return problems

    async def carry_out(self, plan: Plan) -> bool:
        """Run a plan and check again; errors become `act_message`.

        Returns False if nothing was run: no job is left to see the switch.
        """
        is_drop = plan.request.verb == DROPS[self.switch.kind]
        try:
            if is_drop:
                # A job in the queue must be left to see it, as far as that can be queried.
                with contextlib.suppress(HpcdashError):
                    rows = await self.switches.fetch_jobs(self._all_job_ids, most=0)
                    self.living = tuple(row for row in rows if row["state"] not in ENDED)
                    if not self.living:
                        self.act_message = _GONE_ALREADY
                        return False
            if is_drop and self._log is not None:
                await self._log.mark(self._own)
            started_at = monotonic()
            (outcome, *_), messages = await self.run(plan)
        finally:
            self.is_acting = False
            self._changed()
        is_dropped = is_drop and outcome.done
        await self.refresh(dropped_seconds_ago=monotonic() - started_at if is_dropped else None)
        if outcome.done is None:
            messages.append(f"outcome unknown: {outcome.text}")
        elif not outcome.done:
            messages.append(f"not done: {outcome.text}")
        elif "; " in outcome.text:
            messages.append(outcome.text)
        self.act_message = visible("; ".join(messages))
        self._changed()
        return True
