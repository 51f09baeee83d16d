"""Search for submissions whose answer was lost, in this run or earlier ones."""

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
# Between two searches: a request may be still on its way from the login node, and a history lags.
_RETRY_SECONDS = 5.0
# A command on the login node ends this long after its limit at the latest.
_END_SECONDS = 6.0
_MIN_HISTORY_SECONDS = 600
_NEEDS_A_PERSON = (AuthenticationFailed, HostKeyChanged, HostKeyRefused, ConfigError)

_NO_NAME = (
    "not in the queue; the history may not keep marks, and the job name or cluster is uncertain"
)
_MAY_HAVE_ENDED = (
    "not in the queue; without a history, a job that ended immediately leaves no trace"
)
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

    The connection is reopened. Found: done, `job 93`. Certainly absent: not done, `it never
    arrived`; that takes two searches, the second after the submitting command has ended on the
    login node. If nothing answers for half a minute, or there is no history of jobs that end at
    once, the outcome stays unknown. The result is stored in the journal. `on_message` receives
    lines for a person who waits. Raises nothing.
    """
    outcomes = {outcome.job_id: outcome for outcome in report.outcomes}
    lost = {
        job_id: planned.searches[job_id]
        for job_id, outcome in outcomes.items()
        if outcome.done is None and job_id in planned.searches
    }
    if not lost:
        return report.outcomes
    marks = [search.mark for search in lost.values() if search.mark]
    criterion = "by mark" if marks else "by name"
    if len(marks) == 1:
        criterion = f"by mark {marks[0]}"
    on_message(f"the answer was lost; searching for the job {criterion}")
    commands = {job_id: command for command in planned.plan.commands for job_id in command.job_ids}
    limits = [commands[job_id].limit_seconds for job_id in lost if job_id in commands]
    longest_seconds = max(limits, default=0.0) + _END_SECONDS
    found = await _OutcomeSearch(store, lost, longest_seconds, on_message).outcomes()
    for job_id, outcome in found.items():
        if outcome.done and job_id in commands:
            [outcome] = await save_scripts(store, commands[job_id], (outcome,))
        outcomes[job_id] = outcome
        if outcome.done:
            text = f"found: {outcome.text}"
            on_message(text if len(lost) == 1 else f"{job_id}: {text}")
    if report.note_again is not None:
        problem = await asyncio.to_thread(report.note_again, tuple(outcomes.values()))
        if problem:
            for job_id in lost:
                outcome = outcomes[job_id]
                outcomes[job_id] = replace(outcome, text=f"{outcome.text}; {problem}")
    return tuple(outcomes.values())


class _OutcomeSearch:
    """Searches for jobs until each is found or certainly absent, or nothing answers."""

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
        """Return the outcome of each job."""
        try:
            await self._search_queue()
            if self._left and await self._is_submitting():
                self._report("the submission is still running on the login node; waiting for it")
                await self._wait_for_its_end()
            if self._left:
                await asyncio.sleep(_RETRY_SECONDS)
                await self._search_queue()
                await self._search_history()
        except HpcdashError as error:
            self._give_up(f"cannot query the queue: {error.message.rstrip('.')}")
        return self._found

    async def _wait_for_its_end(self) -> None:
        pause = _RETRY_SECONDS / 5
        while self._left:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRY_SECONDS)
            await self._search_queue()
            if self._left and not await self._is_submitting():
                return
            if _now() > self._ends_at:
                self._give_up("the submission is still running on the login node")

    def _give_up(self, reason: str) -> None:
        for job_id, search in self._left.items():
            text = (
                f"the job may or may not have been submitted: {reason}. Before you submit again, "
                f"search for {search.mark or 'the job name'} in the queue"
            )
            if search.mark:
                text += ", or run: hpcdash journal --settle"
            self._found[job_id] = Outcome(job_id, None, text)
        self._left.clear()

    async def _search_queue(self) -> None:
        """Search the queue, which includes jobs that ended a moment ago."""
        for user, searches in self._by_user():
            scope = JobScope(user=user, ended=True)
            parsed = await self._run_with_retries(self._store.backend.queue.jobs(scope))
            self._queued |= await asyncio.to_thread(_array_numbers, parsed.table)
            for job_id, search in searches.items():
                self._add_matches(job_id, search, *_find_numbers(parsed.table, search))

    async def _search_history(self) -> None:
        """Search the history once; a job that is in neither never arrived."""
        for user, searches in self._by_user():
            if self._store.probe is not None and self._store.probe.has_accounting is False:
                self._settle(searches, None, _MAY_HAVE_ENDED)
                continue
            oldest = min(search.not_before for search in searches.values())
            age = self._store.clock.now() - oldest.astimezone(UTC).timestamp()
            since = max(_MIN_HISTORY_SECONDS, int(age) + 1)
            query = self._store.backend.history.jobs(user, since)
            try:
                parsed = await self._run_with_retries(query)
            except UnreachableError:
                raise
            except HpcdashError as error:
                text = f"not in the queue; it may have ended immediately: {error.message}"
                self._settle(searches, None, text)
                continue
            for job_id, search in searches.items():
                matches = _find_numbers(parsed.table, search, queued=self._queued)
                self._add_matches(job_id, search, *matches)
                if job_id not in self._left:
                    continue
                if search.name is None:
                    self._settle([job_id], None, _NO_NAME)
                else:
                    text = f"{NEVER_ARRIVED}: no such job in the queue or the history"
                    self._settle([job_id], False, text)

    def _add_matches(
        self, job_id: str, search: Search, numbers: Sequence[str], has_mark: bool
    ) -> None:
        """Settle a job if jobs of these numbers match; a name is no proof for a marked job."""
        if len(numbers) == 1 and has_mark == bool(search.mark):
            note = "" if search.mark else " (the only job with that name submitted since)"
            self._settle([job_id], True, f"job {numbers[0]}{note}")
        elif numbers:
            shared = "the mark" if has_mark else "the job name"
            text = f"may be any of {', '.join(numbers)}, which share {shared}"
            self._settle([job_id], None, text)

    def _settle(self, job_ids: Iterable[str], done: bool | None, text: str) -> None:
        for job_id in tuple(job_ids):
            self._found[job_id] = Outcome(job_id, done, text)
            self._left.pop(job_id, None)

    def _by_user(self) -> list[tuple[str | None, dict[str, Search]]]:
        """Return the remaining searches of each user."""
        found: dict[str | None, dict[str, Search]] = {}
        for job_id, search in self._left.items():
            found.setdefault(search.user or self._store.user, {})[job_id] = search
        return list(found.items())

    async def _is_submitting(self) -> bool:
        """Whether a command that submits one of the jobs still runs on the login node."""
        script = shell_text("services/submit/still_running.sh")
        for search in tuple(self._left.values()):
            if not search.mark:
                continue
            # The script must not find its own arguments.
            half = len(search.mark) // 2
            argv = ("sh", "-c", script, "sh", search.mark[:half], search.mark[half:])
            try:
                is_running = await self._run_with_retries(Query(argv, _parse_is_running))
            except CommandMissing:
                # A server over HTTP runs no commands.
                return False
            if is_running:
                return True
        return False

    async def _run_with_retries(self, query: Query[T]) -> T:
        """Return the answer of a query, on a connection that is reopened; raise the last error."""
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


def _parse_is_running(answer: Answer) -> bool:
    return b"still there" in answer.stdout


def _array_numbers(table: pa.Table) -> set[str]:
    return set(map(parse_array_id, table["id"].to_pylist()))


def _find_numbers(
    table: pa.Table, search: Search, *, queued: Set[str] | None = None
) -> tuple[list[str], bool]:
    """Return the numbers of the jobs that match, and whether they have the mark.

    A history may not keep comments: its jobs without one are matched by name and time. `queued` are
    the numbers in the queue, None for a search in the queue itself.
    """
    if search.mark:
        # An ID that we choose ends with the mark.
        ends = pc.ends_with(table["id"], f"_{search.mark.removeprefix(MARK_START)}")
        # A kill switch may follow the mark in the comment.
        parts = pc.split_pattern(pc.fill_null(table["comment"], ""), " ", max_splits=1)
        is_marked = pc.or_(pc.equal(pc.list_element(parts, 0), search.mark), ends)
        marked = table.filter(is_marked)["id"].to_pylist()
        if marked or queued is None:
            return list(dict.fromkeys(map(parse_array_id, marked))), True
    not_before = pa.scalar(search.not_before, table["submitted_at"].type)
    is_named = pc.and_(
        pc.greater_equal(table["submitted_at"], not_before), pc.equal(table["name"], search.name)
    )
    others = set(search.others)
    if search.mark:
        is_named = pc.and_(is_named, pc.is_null(table["comment"]))
        others |= queued or set()
    named = table.filter(pc.fill_null(is_named, False))["id"].to_pylist()
    numbers = dict.fromkeys(map(parse_array_id, named))
    return [number for number in numbers if number not in others], False


async def reconcile_noted(
    store: ClusterStore,
    journal: Journal,
    entry: JournalEntry,
    on_message: Callable[[str], None] = lambda text: None,
) -> tuple[Outcome, ...]:
    """Settle an earlier run's submission from the journal, and store the result there.

    Returns its outcomes unchanged if all are known, or if the entry has no mark.
    """
    outcomes = entry.outcomes or tuple(Outcome(job_id, None) for job_id in entry.job_ids)
    # The journal has this machine's time, the queue the cluster's.
    at = datetime.fromtimestamp(store.clock.now() - journal.age_seconds(entry), UTC)
    searches = {}
    for name, search in build_searches(entry).items():
        searches[name] = replace(search, not_before=at - CLOCKS_APART)
    plan = Plan(ActionRequest(Verb.SUBMIT, entry.job_ids), (), ())
    report = Report(plan, outcomes, "", partial(_note, journal, entry.action_id))
    return await reconcile(store, SubmissionPlan(plan, (), searches), report, on_message)


def build_searches(entry: JournalEntry) -> Mapping[str, Search]:
    """Build the searches for the jobs of a submission in the journal; {} if criteria are missing.

    Jobs are recognised by mark, else a single job by name.
    """
    if entry.verb != Verb.SUBMIT:
        return {}
    not_before = datetime.fromtimestamp(entry.at, UTC) - CLOCKS_APART
    marked = []
    for parts in entry.commands:
        if marks := _MARK.findall("\n".join(parts)):
            marked.append((marks[-1], parts))
    if not marked and len(entry.job_ids) == 1 and entry.names and entry.commands:
        marked = [("", entry.commands[-1])]
    if len(marked) != len(entry.job_ids):
        return {}
    found = {}
    for job_id, (mark, parts) in zip(entry.job_ids, marked, strict=True):
        name_options = (part for part in parts if part.startswith(_NAME))
        name = next((option.removeprefix(_NAME) for option in name_options), None)
        name = entry.names.get(job_id) or name
        found[job_id] = Search(mark, name, not_before, _account(parts) or entry.user)
    return found


def unsettled(journal: Journal, cluster: str, *, newest: int = 200) -> list[JournalEntry]:
    """Return the submissions to a cluster with an unknown outcome that can be searched, newest
    first.

    Raises JournalUnreadable.
    """
    entries = (one for one in journal.read(newest)[0] if one.cluster == cluster)
    return [one for one in entries if one.state == "unknown" and build_searches(one)]


def unsettled_today(store: ClusterStore, journal: Journal) -> list[JournalEntry]:
    """Return the unsettled entries of the last day, for example of a killed run.

    [] if the journal is unreadable.
    """
    try:
        entries = unsettled(journal, store.name)
    except JournalUnreadable:
        return []
    return [one for one in entries if journal.age_seconds(one) < _RECENT_SECONDS]


async def reconcile_recent(store: ClusterStore, journal: Journal) -> list[str]:
    """Settle the last day's submissions with an unknown outcome; return a sentence for each.

    Sends no query if there are none, and never raises HpcdashError.
    """
    messages = []
    for entry in await asyncio.to_thread(unsettled_today, store, journal):
        at = datetime.fromtimestamp(entry.at).astimezone()
        for outcome in await reconcile_noted(store, journal, entry):
            result = f"found: {outcome.text}" if outcome.done else outcome.text
            messages.append(
                f"the submission of {outcome.job_id} at {at:%H:%M} has no recorded result: {result}"
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
