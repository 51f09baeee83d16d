"""Finds out what became of submissions whose answer was lost, now or in earlier runs; submits
nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.backends.queries import Answer, JobScope, Query
from hpcdash.backends.submissions import MARK_START
from hpcdash.domain.job_ids import parse_array_id
from hpcdash.errors import (
    AuthenticationFailed,
    CommandMissing,
    ConfigError,
    HostKeyChanged,
    HostKeyRefused,
    HpcdashError,
    UnreachableError,
)
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import NEVER_ARRIVED, Plan, Report
from hpcdash.services.jobs.scripts import save_scripts
from hpcdash.services.state.journal import (
    Journal,
    JournalEntry,
    JournalUnreadable,
    JournalUnwritable,
)
from hpcdash.services.submit.submission import CLOCKS_APART, Search, SubmissionPlan
from hpcdash.shell_files import shell_text

T = TypeVar("T")

# How long a broken line is reopened, and an unresponsive scheduler queried again.
_PATIENCE_SECONDS = 30.0
_LONGEST_PAUSE_SECONDS = 5.0
# Between two checks: a request that left the login node may still be on its way, and a history
# lags.
_LOOK_AGAIN_SECONDS = 5.0
# A command on the login node ends this long after its limit at the latest.
_END_SECONDS = 6.0
_MIN_HISTORY_SECONDS = 600
_NEEDS_A_PERSON = (AuthenticationFailed, HostKeyChanged, HostKeyRefused, ConfigError)

_NO_NAME = "not in the queue; the history may not keep marks, and its name or cluster is uncertain"
_MAY_HAVE_ENDED = "not in the queue; without a history, a job that ended at once leaves no trace"
_MARK = re.compile(rf"{re.escape(MARK_START)}[0-9a-f]{{10}}\b")
_NAME = "--job-name="
_RECENT_SECONDS = 86_400.0


async def reconcile(
    store: ClusterStore,
    planned: SubmissionPlan,
    report: Report,
    on_message: Callable[[str], None] = lambda text: None,
) -> tuple[Outcome, ...]:
    """Return the outcomes, after a search for the unknown ones in the queue and in the history.

    The line is opened again. Found: done, `job 93`. Certainly absent: not done, `it never arrived`;
    that takes two checks, the second after the command that hands it over has ended on the login
    node. If nothing answers for half a minute, or no history would have a job that ended at once,
    it stays unknown. The result is noted in the journal. `on_message` receives a line for a person
    who waits. Raises nothing.
    """
    outcomes = {outcome.job_id: outcome for outcome in report.outcomes}
    lost = {
        job_id: planned.searches[job_id]
        for job_id, outcome in outcomes.items()
        if outcome.done is None and job_id in planned.searches
    }
    if not lost:
        return report.outcomes
    on_message(_format_searches(lost.values()))
    commands = {job_id: command for command in planned.plan.commands for job_id in command.job_ids}
    longest = max(
        (commands[job_id].limit_seconds for job_id in lost if job_id in commands), default=0.0
    )
    for job_id, found in (
        await _Looking(store, lost, longest + _END_SECONDS, on_message).outcomes()
    ).items():
        if found.done and job_id in commands:
            [found] = await save_scripts(store, commands[job_id], (found,))
        outcomes[job_id] = found
        if found.done:
            on_message(f"it is {found.text}" if len(lost) == 1 else f"{job_id}: it is {found.text}")
    known = tuple(outcomes.values())
    if report.note_again is not None and (
        problem := await asyncio.to_thread(report.note_again, known)
    ):
        known = tuple(
            replace(outcome, text=f"{outcome.text}; {problem}")
            if outcome.job_id in lost
            else outcome
            for outcome in known
        )
    return known


def _format_searches(searches: Iterable[Search]) -> str:
    marks = [search.mark for search in searches if search.mark]
    how = "by their marks" if marks else "by its name"
    if len(marks) == 1:
        how = f"by its mark {marks[0]}"
    return f"the answer was lost; searching for the job {how}"


class _Looking:
    """Looks for jobs until each is found, or surely not there, or nothing answers."""

    def __init__(
        self,
        store: ClusterStore,
        lost: Mapping[str, Search],
        longest_seconds: float,
        on_message: Callable[[str], None],
    ) -> None:
        self._store = store
        self._left = dict(lost)
        self._found: dict[str, Outcome] = {}
        self._queued: set[str] = set()
        self._report = on_message
        self._ends_at = _now() + longest_seconds

    async def outcomes(self) -> Mapping[str, Outcome]:
        """One a job."""
        try:
            await self._search_queue()
            if self._left and await self._is_on_its_way():
                self._report("the submission is still running on the login node; waiting for it")
                await self._wait_for_its_end()
            if self._left:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                await self._search_queue()
                await self._search_history()
        except HpcdashError as error:
            self._give_up(f"cannot query the queue: {error.message.rstrip('.')}")
        return self._found

    async def _wait_for_its_end(self) -> None:
        pause = _LOOK_AGAIN_SECONDS / 5
        while self._left:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LOOK_AGAIN_SECONDS)
            await self._search_queue()
            if self._left and not await self._is_on_its_way():
                return
            if _now() > self._ends_at:
                self._give_up("the submission is still running on the login node")

    def _give_up(self, why: str) -> None:
        for job_id, search in self._left.items():
            check = f"search for {search.mark}" if search.mark else "search for its name"
            text = (
                f"it may or may not have been submitted: {why}. Before you submit again, "
                f"{check} in the queue"
            )
            if search.mark:
                text += ", or run: hpcdash journal --settle"
            self._found[job_id] = Outcome(job_id, None, text)
        self._left.clear()

    async def _search_queue(self) -> None:
        """In the queue, which has the jobs that ended a moment ago too."""
        for user, searches in self._by_user():
            scope = JobScope(user=user, ended=True)
            table = (await self._patiently(self._store.backend.queue.jobs(scope))).table
            self._queued |= await asyncio.to_thread(_array_numbers, table)
            for job_id, search in searches:
                self._take(job_id, search, _find_numbers(table, search))

    async def _search_history(self) -> None:
        """In the history, once; what is not there either never arrived."""
        for user, searches in self._by_user():
            if self._store.probe is not None and self._store.probe.has_accounting is False:
                self._end(searches, None, _MAY_HAVE_ENDED)
                continue
            oldest = min(search.not_before for _, search in searches)
            age = self._store.clock.now() - oldest.astimezone(UTC).timestamp()
            since = max(_MIN_HISTORY_SECONDS, int(age) + 1)
            try:
                table = (await self._patiently(self._store.backend.history.jobs(user, since))).table
            except UnreachableError:
                raise
            except HpcdashError as error:
                text = f"not in the queue; it may have ended at once: {error.message}"
                self._end(searches, None, text)
                continue
            for job_id, search in searches:
                self._take(job_id, search, _find_numbers(table, search, seen=self._queued))
            left = [(job_id, search) for job_id, search in searches if job_id in self._left]
            self._end([one for one in left if one[1].name is None], None, _NO_NAME)
            text = f"{NEVER_ARRIVED}: no such job in the queue or the history"
            self._end([one for one in left if one[1].name is not None], False, text)

    def _take(self, job_id: str, search: Search, numbers: list[tuple[str, bool]]) -> None:
        marked = [number for number, is_marked in numbers if is_marked]
        if len(marked or numbers) == 1 and (marked or not search.mark):
            how = "" if search.mark else " (the only one of that name submitted since)"
            self._end(
                [(job_id, search)], True, f"job {numbers[0][0] if not marked else marked[0]}{how}"
            )
        elif numbers:
            listed = ", ".join(marked or [number for number, _ in numbers])
            why = "its mark" if marked else "its name"
            self._end([(job_id, search)], None, f"it may be one of {listed}, which have {why}")

    def _end(self, searches: Iterable[tuple[str, Search]], done: bool | None, text: str) -> None:
        for job_id, _ in searches:
            self._found[job_id] = Outcome(job_id, done, text)
            self._left.pop(job_id, None)

    def _by_user(self) -> list[tuple[str | None, list[tuple[str, Search]]]]:
        users = dict.fromkeys(search.user or self._store.user for search in self._left.values())
        return [
            (user, [one for one in self._left.items() if (one[1].user or self._store.user) == user])
            for user in users
        ]

    async def _is_on_its_way(self) -> bool:
        """Whether a command that hands one over still runs on the login node."""
        for search in tuple(self._left.values()):
            half = len(search.mark) // 2
            argv = (
                "sh",
                "-c",
                shell_text("services/submit/still_running.sh"),
                "sh",
                search.mark[:half],
                search.mark[half:],
            )
            if search.mark:
                try:
                    still_there: bool = await self._patiently(Query(argv, _is_still_there))
                except CommandMissing:
                    # A server over HTTP runs no commands.
                    return False
                if still_there:
                    return True
        return False

    async def _patiently(self, query: Query[T]) -> T:
        """The answer of a query, on a line that is opened again where it broke; raises what went
        wrong last.
        """
        gives_up_at: float | None = None
        pause = 0.25
        while True:
            try:
                # Not forced: a login that prompts a person is left to them.
                await self._store.open()
                return await self._store.run_query(query)
            except (*_NEEDS_A_PERSON, CommandMissing):
                raise
            except HpcdashError as error:
                if gives_up_at is None:
                    gives_up_at = _now() + _PATIENCE_SECONDS
                    self._report(f"{error.message} Retrying for {_PATIENCE_SECONDS:.0f} s.")
                if _now() >= gives_up_at:
                    raise
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS, max(0.0, gives_up_at - _now()))
            await asyncio.sleep(pause)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_still_there(answer: Answer) -> bool:
    return b"still there" in answer.stdout


def _array_numbers(table: pa.Table) -> set[str]:
    return set(map(parse_array_id, table["id"].to_pylist()))


def _find_numbers(
    table: pa.Table, search: Search, *, seen: Set[str] | None = None
) -> list[tuple[str, bool]]:
    """The jobs that may be the one, by number, and whether each has its mark.

    A history (`seen` is what the queue had) need not keep comments: of one without, name and time
    have to do.
    """
    marked: list[str] = []
    if search.mark:
        # An ID that we choose ends with the mark.
        ends = pc.ends_with(table["id"], f"_{search.mark.removeprefix(MARK_START)}")
        # A kill switch may follow it.
        comments = pc.list_element(
            pc.split_pattern(pc.fill_null(table["comment"], ""), " ", max_splits=1), 0
        )
        found = table.filter(pc.or_(pc.equal(comments, search.mark), ends))
        marked = list(dict.fromkeys(map(parse_array_id, found["id"].to_pylist())))
    if marked or (search.mark and seen is None):
        return [(number, True) for number in marked]
    since = pc.greater_equal(
        table["submitted_at"], pa.scalar(search.not_before, table["submitted_at"].type)
    )
    named = pc.and_(since, pc.equal(table["name"], search.name))
    if search.mark:
        named = pc.and_(named, pc.is_null(table["comment"]))
    found = table.filter(pc.fill_null(named, False))
    numbers = dict.fromkeys(map(parse_array_id, found["id"].to_pylist()))
    others = {*search.others, *((seen or ()) if search.mark else ())}
    return [(number, False) for number in numbers if number not in others]


async def reconcile_noted(
    store: ClusterStore,
    journal: Journal,
    entry: JournalEntry,
    on_message: Callable[[str], None] = lambda text: None,
) -> tuple[Outcome, ...]:
    """Settle an earlier run's submission from the journal, and note the result there.

    Returns its outcomes unchanged if none is unknown, or no mark was noted.
    """
    outcomes = entry.outcomes or tuple(Outcome(job_id, None) for job_id in entry.job_ids)
    # The journal has this machine's time, the queue the cluster's.
    at = datetime.fromtimestamp(store.clock.now() - journal.age_seconds(entry), UTC)
    searches = {
        name: replace(one, not_before=at - CLOCKS_APART)
        for name, one in build_searches(entry).items()
    }
    plan = Plan(ActionRequest(Verb.SUBMIT, entry.job_ids), (), ())
    report = Report(plan, outcomes, "", partial(_note, journal, entry.action_id))
    return await reconcile(store, SubmissionPlan(plan, (), searches), report, on_message)


def build_searches(entry: JournalEntry) -> Mapping[str, Search]:
    """Build the searches for the jobs of a noted submission; {} if it lacks the criteria.

    Jobs are recognised by their marks, else a single job by its name.
    """
    if entry.verb != Verb.SUBMIT:
        return {}
    not_before = datetime.fromtimestamp(entry.at, UTC) - CLOCKS_APART
    marked = [
        (marks[-1], parts) for parts in entry.commands if (marks := _MARK.findall("\n".join(parts)))
    ]
    if not marked and len(entry.job_ids) == 1 and entry.names and entry.commands:
        marked = [("", entry.commands[-1])]
    if len(marked) != len(entry.job_ids):
        return {}
    found = {}
    for job_id, (mark, parts) in zip(entry.job_ids, marked, strict=True):
        name = entry.names.get(job_id) or next(
            (word[len(_NAME) :] for word in parts if word.startswith(_NAME)), None
        )
        found[job_id] = Search(mark, name, not_before, _account(parts) or entry.user)
    return found


def unsettled(journal: Journal, cluster: str, *, newest: int = 200) -> list[JournalEntry]:
    """The submissions to a cluster whose outcome nobody saw and that can be looked for, newest
    first.

    Raises JournalUnreadable.
    """
    noted = (one for one in journal.read(newest)[0] if one.cluster == cluster)
    return [one for one in noted if one.state == "unknown" and build_searches(one)]


def unsettled_today(store: ClusterStore, journal: Journal) -> list[JournalEntry]:
    """Return the unsettled entries of the last day, as of a killed run.

    None are returned if the journal is unreadable.
    """
    try:
        return [
            one
            for one in unsettled(journal, store.name)
            if journal.age_seconds(one) < _RECENT_SECONDS
        ]
    except JournalUnreadable:
        return []


async def reconcile_recent(store: ClusterStore, journal: Journal) -> list[str]:
    """Resolve the last day's submissions whose outcome nobody saw; returns one sentence for each.

    Queries nothing if there are none, and never raises HpcdashError.
    """
    messages = []
    for entry in await asyncio.to_thread(unsettled_today, store, journal):
        at = datetime.fromtimestamp(entry.at).astimezone()
        for outcome in await reconcile_noted(store, journal, entry):
            what = f"it is {outcome.text}" if outcome.done else outcome.text
            messages.append(
                f"the submission of {outcome.job_id} at {at:%H:%M} has no recorded result: {what}"
            )
    return messages


def _account(parts: Sequence[str]) -> str:
    """Return the owner of a job that was submitted through sudo; '' for one's own."""
    return parts[parts.index("-u") + 1] if parts[0] == "sudo" and "-u" in parts[:-1] else ""


def _note(journal: Journal, action_id: str, outcomes: Sequence[Outcome]) -> str:
    try:
        journal.after(action_id, outcomes)
    except JournalUnwritable as error:
        return f"not saved in the journal: {error.message}"
    return ""
