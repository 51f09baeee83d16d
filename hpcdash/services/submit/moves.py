"""Moves of waiting jobs: the steps, each in the journal before it is run, and the settlement of
moves that were interrupted.

A move by a copy holds the job, submits the copy held, cancels the job, makes sure that it ended
without a start, and releases the copy. At no time can both start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum, auto
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.domain.states import ACTIVE, ENDED, WAITING, JobState
from hpcdash.errors import HpcdashError
from hpcdash.services.jobs.actions import Row
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.state.journal import (
    Journal,
    JournalEntry,
    JournalUnreadable,
    JournalUnwritable,
    MoveNote,
)
from hpcdash.services.submit.launch_records import LaunchRecord
from hpcdash.services.submit.move_plan import RECENT_SECONDS, Destination, MovePlan
from hpcdash.services.submit.recovery import reconcile, reconcile_noted

pause = asyncio.sleep
# How long a scheduler may take to carry out what it accepted. Slurm ends a job that ignores TERM
# after KillWait, 30 s by default.
_HOLD_SECONDS = 15.0
_END_SECONDS = 90.0
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0
_SETTLE = "`hpcdash journal --settle` looks again"
OnMessage = Callable[[str], None]


class MoveResult(Struct, frozen=True):
    """Outcome of a move: `done` is False if nothing was moved, None if it is unclear.

    `new_job` is the copy, '' in place.
    """

    job_id: str
    done: bool | None
    text: str
    new_job: str = ""


class Standing(StrEnum):
    """State of a job, as far as a move depends on it."""

    HELD = auto()
    # It may start at any time.
    WAITING = auto()
    ACTIVE = auto()
    # Ended without a start.
    UNSTARTED = auto()
    # Ended by a cancellation after its start.
    CUT_OFF = auto()
    # Ended by itself.
    OVER = auto()
    UNKNOWN = auto()


_ALIVE = frozenset({Standing.HELD, Standing.WAITING, Standing.ACTIVE})
_ENDED = frozenset({Standing.UNSTARTED, Standing.CUT_OFF, Standing.OVER})
_TEXTS = {
    Standing.HELD: "is held",
    Standing.WAITING: "is pending",
    Standing.ACTIVE: "is running",
    Standing.UNSTARTED: "was cancelled before a start",
    Standing.CUT_OFF: "was cancelled after its start",
    Standing.OVER: "has ended by itself",
    Standing.UNKNOWN: "is in an unknown state",
}


def read_standing(rows: Sequence[Row]) -> Standing:
    """Return the standing of the job or the array that has these rows."""
    states = {row["state"] for row in rows}
    if not rows or states - (WAITING | ACTIVE | ENDED) or JobState.GONE in states:
        return Standing.UNKNOWN
    if states & ACTIVE:
        return Standing.ACTIVE
    if states <= {JobState.HELD}:
        return Standing.HELD
    if states & WAITING:
        return Standing.WAITING
    started = {row["state"] for row in rows if _has_started(row)}
    if not started:
        return Standing.UNSTARTED if states == {JobState.CANCELLED} else Standing.OVER
    return Standing.CUT_OFF if started <= {JobState.CANCELLED} else Standing.OVER


def _has_started(row: Row) -> bool:
    # Slurm gives a job that was cancelled in the queue a start, but no nodes.
    return bool(row["node_list"]) or bool(row["elapsed_seconds"])


async def fetch_standing(session: ClusterSession, job_id: str) -> Standing:
    """Fetch the standing of a job from the queue, else from the history; raises nothing."""
    store = session.store
    try:
        await store.open()
        rows = await session.actions.fetch_rows((job_id,))
        if not rows:
            query = store.backend.history.jobs(None, 0, (job_id,))
            rows = tuple((await store.run_query(query)).table.to_pylist())
    except HpcdashError:
        return Standing.UNKNOWN
    return read_standing(rows)


async def run_move(planned: MovePlan, on_message: OnMessage = lambda text: None) -> MoveResult:
    """Run a planned move; `on_message` receives a line for each step.

    A refusal at any step cancels the copy and releases the job. If an answer is unclear, both stay
    as they are. Raises JournalUnwritable, before anything is changed.
    """
    if planned.change is not None:
        return await _move_in_place(planned)
    source = planned.source
    move = MoveNote(planned.target.name, planned.mark, planned.is_held)
    action_id = await asyncio.to_thread(
        partial(
            source.actions.journal.before,
            cluster=source.name,
            user=source.store.user,
            verb=Verb.MOVE,
            job_ids=(planned.job_id,),
            commands=[command.argv for command in planned.plan.commands],
            move=move,
        )
    )
    running = _Move(source, planned.target, planned.job_id, move, on_message)
    result = await running.run(planned)
    return await asyncio.to_thread(_write_result, source.actions.journal, action_id, result)


def _write_result(journal: Journal, action_id: str, result: MoveResult) -> MoveResult:
    try:
        journal.after(action_id, (Outcome(result.job_id, result.done, result.text),))
    except JournalUnwritable as error:
        text = f"{result.text}; the result was not written to the journal: {error.message}"
        return replace(result, text=text)
    return result


async def _move_in_place(planned: MovePlan) -> MoveResult:
    """Change a job's place, and read it back."""
    assert planned.change is not None
    source = planned.source
    job_id = planned.job_id
    changes = planned.destination.changes
    report = await source.actions.run(planned.change)
    [outcome] = report.outcomes
    problem = f"; {report.journal_problem}" if report.journal_problem else ""
    try:
        rows = await source.actions.fetch_rows((job_id,))
    except HpcdashError as error:
        rows = ()
        problem = f"; its place could not be read: {error.message}{problem}"
    present = {name: str(rows[0][name] or "") for name in changes} if rows else {}
    place = str(Destination(**present))
    if present == changes and outcome.done is not False:
        hint = source.store.backend.reasons.explain(rows[0])
        text = f"moved to {place}{f' ({hint})' if hint else ''}{problem}"
        return MoveResult(job_id, True, text)
    stands = f"; it has {place}" if place else ""
    if outcome.done:
        # A PBS queue may route its jobs to another one.
        return MoveResult(job_id, True, f"accepted{stands}{problem}")
    return MoveResult(job_id, outcome.done, f"{outcome.text}{stands}{problem}")


class _Move:
    """A move by a copy, as far as it has come."""

    def __init__(
        self,
        source: ClusterSession,
        target: ClusterSession,
        job_id: str,
        note: MoveNote,
        on_message: OnMessage,
    ) -> None:
        self._source = source
        self._target = target
        self._job_id = job_id
        self._note = note
        self._report = on_message
        # The copy; '' while there is none.
        self._copy_id = ""

    @property
    def _job(self) -> str:
        if self._source.name == self._target.name:
            return f"job {self._job_id}"
        return f"job {self._job_id} on {self._source.name}"

    @property
    def _copy(self) -> str:
        return f"copy {self._copy_place}"

    @property
    def _new_job(self) -> str:
        return f"job {self._copy_place}"

    @property
    def _copy_place(self) -> str:
        if self._source.name == self._target.name or "@" in self._copy_id:
            return self._copy_id
        return f"{self._copy_id} on {self._target.name}"

    # -- the steps

    async def run(self, planned: MovePlan) -> MoveResult:
        """Run the steps from the first one."""
        assert planned.copy is not None
        if not self._note.is_held and (result := await self._hold()) is not None:
            return result
        self._report(f"submitting the copy to {self._target.name}, held")
        report = await self._target.actions.run(planned.copy.plan)
        [outcome] = await reconcile(self._target.store, planned.copy, report, self._report)
        if outcome.done is None:
            return await self._unclear(f"the submission of the copy: {outcome.text}")
        if not outcome.done:
            return await self._undo(f"{self._target.name} refused the copy: {outcome.text}")
        self._copy_id = outcome.new_job
        if not self._copy_id:
            text = f"the ID of the copy is unknown; its mark is {self._note.mark}"
            return await self._unclear(text)
        copy = await self._await(
            self._target, self._copy_id, {*_ENDED, *_ALIVE} - _PENDING, _HOLD_SECONDS
        )
        if copy is Standing.UNKNOWN:
            return await self._unclear("the copy was not found")
        if copy is not Standing.HELD:
            return await self._undo(f"{self._copy} {_TEXTS[copy]}, though it was submitted held")
        if planned.record is not None:
            await asyncio.to_thread(self._record_launch, planned.record)
        return await self._cancel()

    async def _hold(self) -> MoveResult | None:
        """Hold the job; return the result if it was not held."""
        self._report(f"holding {self._job}")
        held = await self._act(self._source, Verb.HOLD, self._job_id)
        if held.done is False:
            return self._result(False, f"nothing was moved: the hold was refused: {held.text}")
        standing = await self._await(
            self._source, self._job_id, {*_ENDED, *_ALIVE} - _PENDING, _HOLD_SECONDS
        )
        if standing is Standing.HELD:
            return None
        if standing is Standing.UNKNOWN:
            return await self._unclear(f"the hold: {held.text or 'the job was not found'}")
        return await self._undo(f"{self._job} {_TEXTS[standing]}")

    async def _cancel(self) -> MoveResult:
        """Cancel the held job, and release the held copy once the job has ended."""
        standing = await fetch_standing(self._source, self._job_id)
        if standing is Standing.UNKNOWN:
            return await self._unclear(f"{self._job} was not found")
        if standing is not Standing.HELD:
            return await self._undo(f"{self._job} {_TEXTS[standing]}")
        self._report(f"cancelling {self._job}")
        cancelled = await self._act(self._source, Verb.CANCEL, self._job_id)
        if cancelled.done is False:
            standing = await fetch_standing(self._source, self._job_id)
            if standing in _ALIVE:
                return await self._undo(f"the cancellation was refused: {cancelled.text}")
        return await self._conclude(await self._await(self._source, self._job_id, _ENDED))

    async def _conclude(self, standing: Standing) -> MoveResult:
        """Decide on the held copy by the end of the cancelled job."""
        if standing is Standing.OVER:
            return await self._undo(f"{self._job} {_TEXTS[standing]}")
        if standing not in _ENDED:
            return await self._unclear(f"{self._job} was cancelled, and {_TEXTS[standing]}")
        text = f"moved: now {self._new_job}"
        if standing is Standing.CUT_OFF:
            text = (
                f"{self._job} had started, and was ended by the cancellation; {self._copy} takes "
                "its place"
            )
        if self._note.is_held:
            return self._result(True, f"{text}, held as the job was")
        self._report(f"releasing {self._copy}")
        released = await self._act(self._target, Verb.RELEASE, self._copy_id)
        if not released.done:
            copy = await fetch_standing(self._target, self._copy_id)
            if copy not in (Standing.WAITING, Standing.ACTIVE, *_ENDED):
                why = released.text or "no reason given"
                return self._result(
                    None, f"{text}, which {_TEXTS[copy]}: its release failed: {why}; {_SETTLE}"
                )
        return self._result(True, text)

    async def _undo(self, reason: str) -> MoveResult:
        """Cancel the copy, if there is one, and release the job."""
        parts = [f"nothing was moved: {reason}"]
        if self._copy_id:
            self._report(f"cancelling {self._copy}: {reason}")
            cancelled = await self._act(self._target, Verb.CANCEL, self._copy_id)
            copy = await self._await(self._target, self._copy_id, _ENDED)
            if copy not in (Standing.UNSTARTED, Standing.CUT_OFF):
                why = f" ({cancelled.text})" if cancelled.text and not cancelled.done else ""
                return await self._unclear(f"{reason}; the copy was to be cancelled{why}")
            parts.append(f"{self._copy} {_TEXTS[copy]}")
        parts.append(await self._release_job())
        return self._result(False, "; ".join(filter(None, parts)))

    async def _release_job(self) -> str:
        """Release the job unless it has ended or was held before; return how it stands."""
        standing = await fetch_standing(self._source, self._job_id)
        if standing in _ENDED or self._note.is_held:
            return "" if standing in _ENDED else f"{self._job} {_TEXTS[standing]} as before"
        # Slurm's hold has also set the priority of a running job to 0.
        released = await self._act(self._source, Verb.RELEASE, self._job_id)
        standing = await self._await(
            self._source, self._job_id, {Standing.WAITING, Standing.ACTIVE, *_ENDED}, _HOLD_SECONDS
        )
        if standing in (Standing.HELD, Standing.UNKNOWN) or not released.done:
            why = f" ({released.text})" if released.text else ""
            return (
                f"{self._job} {_TEXTS[standing]}: release it{why}: hpcdash release {self._job_id}"
            )
        return f"{self._job} {_TEXTS[standing]}, released"

    async def _unclear(self, reason: str) -> MoveResult:
        """Leave both as they are, and tell how they stand."""
        stands = [f"{self._job} {_TEXTS[await fetch_standing(self._source, self._job_id)]}"]
        if self._copy_id:
            copy = await fetch_standing(self._target, self._copy_id)
            stands.append(f"{self._copy} {_TEXTS[copy]}")
        return self._result(
            None, f"unclear: {reason}; left as they are: {', '.join(stands)}; {_SETTLE}"
        )

    def _result(self, done: bool | None, text: str) -> MoveResult:
        return MoveResult(self._job_id, done, text, self._copy_id if done else "")

    async def _act(self, session: ClusterSession, verb: Verb, job_id: str) -> Outcome:
        report = await session.actions.run(session.actions.plan(ActionRequest(verb, (job_id,))))
        [outcome] = report.outcomes
        return outcome

    async def _await(
        self,
        session: ClusterSession,
        job_id: str,
        requested: set[Standing] | frozenset[Standing],
        seconds: float = _END_SECONDS,
    ) -> Standing:
        """Fetch a standing until it is one of those requested, for some seconds."""
        interval = _FIRST_PAUSE_SECONDS
        standing = await fetch_standing(session, job_id)
        while standing not in requested and seconds > 0:
            await pause(interval)
            seconds -= interval
            interval = min(2 * interval, _LONGEST_PAUSE_SECONDS)
            standing = await fetch_standing(session, job_id)
        return standing

    def _record_launch(self, record: LaunchRecord) -> None:
        """Record the copy as the launch of its folder, which outlives the cancelled job."""
        try:
            self._source.launches.records.stays(record, f"job {self._copy_id} runs in it")
            self._target.launches.records.launched(replace(record, job_id=self._copy_id))
        except StateUnusable as error:
            self._report(f"the launch of {self._copy} could not be recorded: {error.message}")

    # -- after an interruption

    async def settle(
        self, submission: JournalEntry | None, later: Sequence[JournalEntry]
    ) -> MoveResult:
        """Finish or undo an interrupted move, by the journal's entries `later` than its own.

        `submission` is that of the copy, None if it was never sent. A move goes on where the job's
        cancellation was sent, and is undone before that.
        """
        if submission is not None:
            [sent] = await reconcile_noted(
                self._target.store, self._target.actions.journal, submission
            )
            if sent.done is None:
                return await self._unclear(f"the submission of the copy: {sent.text}")
            self._copy_id = sent.new_job
            if sent.done and not self._copy_id:
                return await self._unclear(f"the ID of the copy is unknown: {sent.text}")
        job = await fetch_standing(self._source, self._job_id)
        if job is Standing.UNKNOWN:
            return await self._unclear("it was interrupted")
        reason = "it was interrupted"
        if not self._copy_id:
            return await self._undo(reason)
        copy = await self._await(self._target, self._copy_id, {*_ALIVE, *_ENDED}, _HOLD_SECONDS)
        is_sent = _has_step(later, Verb.CANCEL, self._source, self._job_id)
        is_undone = _has_step(later, Verb.CANCEL, self._target, self._copy_id)
        if copy is Standing.UNSTARTED:
            return await self._undo(reason) if job in _ALIVE else await self._unclear(reason)
        if copy is not Standing.HELD:
            if job in (Standing.UNSTARTED, Standing.CUT_OFF):
                return self._result(True, f"moved: now {self._new_job}, which {_TEXTS[copy]}")
            return await self._unclear(reason)
        if is_undone or (not is_sent and job in _ALIVE):
            return await self._undo(reason)
        if not is_sent or job in (Standing.WAITING, Standing.ACTIVE):
            # Somebody else ended or released it.
            return await self._unclear(reason)
        return await (self._cancel() if job is Standing.HELD else self._conclude(job))

    async def describe(self) -> MoveResult:
        """Describe how both stand; change nothing."""
        return await self._unclear("it was interrupted")


# A standing that a hold has yet to change.
_PENDING = frozenset({Standing.WAITING})


def _has_step(
    entries: Sequence[JournalEntry], verb: Verb, session: ClusterSession, job_id: str
) -> bool:
    return any(
        entry.verb == verb and entry.cluster == session.name and job_id in entry.job_ids
        for entry in entries
    )


def interrupted_moves(
    journal: Journal, cluster: str
) -> list[tuple[JournalEntry, list[JournalEntry]]]:
    """Return the moves of a cluster's jobs with an unknown outcome, each with the later entries.

    [] if the journal is unreadable.
    """
    try:
        entries, _ = journal.read()
    except JournalUnreadable:
        return []
    return [
        (entry, entries[:place])
        for place, entry in enumerate(entries)
        if entry.move is not None
        and entry.cluster == cluster
        and entry.state == "unknown"
        and journal.age_seconds(entry) <= RECENT_SECONDS
    ]


async def settle_moves(
    source: ClusterSession,
    find_session: Callable[[str], ClusterSession | None],
    on_message: OnMessage = lambda text: None,
    *,
    may_act: bool = True,
) -> list[str]:
    """Finish or undo the moves of a cluster's jobs that were interrupted; return a sentence each.

    `find_session` returns the session of a cluster, None if it is not configured. Without `may_act`
    nothing is changed. Sends no query if there are none, and never raises HpcdashError.
    """
    journal = source.actions.journal
    messages = []
    for entry, later in await asyncio.to_thread(interrupted_moves, journal, source.name):
        assert entry.move is not None
        at = datetime.fromtimestamp(entry.at).astimezone()
        title = f"the move of job {entry.job_ids[0]} to {entry.move.cluster} at {at:%H:%M}"
        target = find_session(entry.move.cluster)
        if target is None:
            messages.append(
                f"{title} was interrupted, and {entry.move.cluster} is not configured here"
            )
            continue
        move = _Move(source, target, entry.job_ids[0], entry.move, on_message)
        try:
            if not may_act:
                messages.append(f"{title}: {(await move.describe()).text}")
                continue
            await target.store.open()
            submission = _find_submission(later, entry.move)
            result = await move.settle(submission, later)
        except HpcdashError as error:
            messages.append(f"{title} was interrupted: {error.message}")
            continue
        result = await asyncio.to_thread(_write_result, journal, entry.action_id, result)
        messages.append(f"{title}: {result.text}")
    return messages


def _find_submission(entries: Sequence[JournalEntry], move: MoveNote) -> JournalEntry | None:
    """Return the entry of a copy's submission; None if it was never sent."""
    for entry in entries:
        is_there = entry.verb == Verb.SUBMIT and entry.cluster == move.cluster
        if is_there and any(move.mark in word for command in entry.commands for word in command):
            return entry
    return None
