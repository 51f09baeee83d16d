"""The metrics of a job from its logs: the newest part at once, what is new as it comes, the rest
backwards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.config.metric_patterns import compile_patterns, pattern_problems
from hpcdash.domain.states import ACTIVE
from hpcdash.errors import CommandTimedOut, HpcdashError, NoSuchJob, UnreachableError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.lookup import known_row
from hpcdash.services.logs.file import LONGEST_PAUSE_SECONDS, next_check_seconds
from hpcdash.services.metrics.joined import JoinedRun, MetricStream
from hpcdash.services.metrics.pace import JobFacts
from hpcdash.services.metrics.places import MetricPlaces, NamedMetricsFiles, Row, locate_metrics
from hpcdash.services.metrics.series import CELLS, EXACT_POINTS, MetricLog
from hpcdash.services.metrics.source import MetricSource

READS_AT_ONCE = 2
# Between two reported changes; longer while the past is read.
NOTIFY_SECONDS = 0.25
NOTIFY_FILLING_SECONDS = 0.5
# Of many places the newest are read before anything is shown, until one exists.
_MAX_OPENED = 4
# If a quiet log may mean that its job has ended, the scheduler is queried at these intervals: at
# first and at the slowest.
_FIRST_STATE_SECONDS = 3.0
_LONGEST_STATE_SECONDS = 30.0
# Interval of the checks whether that is due.
_STATE_TICK_SECONDS = 0.5
# Of many logs each may keep no less than this.
_MIN_POINTS = 20_000
_MIN_CELLS = 8_192
# How seldom a log is checked while its cluster is unreachable, or after its job has ended; the
# latter the more seldom the longer it is missing.
SELDOM_SECONDS = 30.0
MAX_SELDOM_SECONDS = 600.0
QUIET_SECONDS = 2.0
# Its end and its beginning.
COMMANDS_TO_OPEN = 2


class Progress(Struct, frozen=True):
    """Bytes read of all the logs of a run."""

    bytes_read: int
    total_bytes: int
    # Once their beginnings are read.
    is_whole: bool


class WatchedRun:
    """The metrics of one job, or of an array's tasks joined by step, as far as they are read: of
    its stdout and stderr, and of the file that it names in HPCDASH_METRICS.

    `patterns` are regular expressions of the user, as compile_patterns takes them. `file` is a
    metrics file that is read in place of all these (JSON lines, CSV), '' for none; with it `job_id`
    may be ''. `exact_points` are kept as they were written, older ones folded. Raises ConfigError
    naming a bad pattern.
    """

    def __init__(
        self,
        store: ClusterStore,
        job_id: str,
        *,
        patterns: Sequence[str] = (),
        file: str = "",
        exact_points: int = EXACT_POINTS,
    ) -> None:
        compile_patterns(patterns)
        self.store = store
        self.job_id = job_id
        self._patterns = tuple(patterns)
        self._file = file
        self._exact_points = exact_points
        self._named = NamedMetricsFiles(store)
        self._located = MetricPlaces(job_id)
        self._places: dict[str, _JobSources] = {}
        self._run = JoinedRun(())
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self._line_problem = ""
        self._dirty = asyncio.Event()
        self._is_filling = False
        self._following: set[asyncio.Task[None]] = set()

    # -- state

    @property
    def title(self) -> str:
        """`4711 llama-7b`, for a legend."""
        name = "" if self.row is None else self.row["name"] or ""
        return f"{self._located.job_id} {name}".strip()

    @property
    def run(self) -> JoinedRun:
        """Data known now; new after each reported change, and safe to read in any thread."""
        return self._run

    @property
    def row(self) -> Row | None:
        """The job's row of domain.schema.JOBS, of an array that of its newest task; None before
        `open`.
        """
        return self._located.row

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, and all its tasks."""
        return self._located.is_over

    @property
    def is_array(self) -> bool:
        """Whether it is an array's tasks, joined."""
        return self._located.is_array

    def job_facts(self) -> JobFacts:
        """Return the scheduler's facts about the job, by the newest row that is known of it."""
        now = self.store.clock.now()
        row = self.row
        if row is not None:
            row = known_row(self.store, str(row["id"])) or row
        if row is None or str(row["state"]) not in ACTIVE or self.is_over:
            return JobFacts(now)
        ends_at = row["ends_at"]
        limit = row["limit_seconds"]
        started_at = row["started_at"] if self.progress.is_whole else None
        return JobFacts(
            now,
            is_running=True,
            limit_seconds_left=None if ends_at is None else ends_at.timestamp() - now,
            limit_seconds=None if limit is None else float(limit),
            is_array=self.is_array or row["array_id"] is not None,
            age_seconds=None if started_at is None else now - started_at.timestamp(),
        )

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths that it is read from, for a person."""
        return tuple(source.file.place for source in self._sources())

    def named_source(self, name: str) -> str:
        """The files that have a metric, for a person; several are joined with ', '."""
        return ", ".join(source.file.place for source in self._sources() if name in source.names)

    @property
    def progress(self) -> Progress:
        sources = self._sources()
        readable = [source for source in sources if source.is_open or not source.problem]
        read = sum(source.bytes_read for source in readable)
        total = sum(source.total_bytes for source in readable)
        return Progress(read, total, all(source.is_whole for source in readable))

    @property
    def has_files(self) -> bool:
        """Whether any file of it could be opened."""
        return any(source.is_open for source in self._sources())

    @property
    def problem(self) -> str:
        """In words why there is nothing, or not all; '' where all is well."""
        return "; ".join(filter(None, (self._reading_problem, *pattern_problems(self._patterns))))

    @property
    def _reading_problem(self) -> str:
        if self._line_problem:
            return self._line_problem
        located = self._located.problem
        sources = self._sources()
        unread = [source for source in sources if source.problem]
        if self._run.names:
            # Of those that never were there nothing is missed.
            unread = [source for source in unread if source.is_open]
        elif len(unread) < len(sources):
            unread = []
            if not located and self.progress.is_whole:
                return f"no metrics found in {' and '.join(dict.fromkeys(self.paths))}"
        return f"{unread[0].file.place}: {unread[0].problem}" if unread else located

    def _sources(self) -> list[MetricSource]:
        return [source for place in self._places.values() for source in place.sources]

    # -- reading

    async def open(self) -> None:
        """Find the logs and read their newest part; raises NoSuchJob and what keeps the cluster
        from answering.
        """
        await self._locate()
        for place in list(reversed(self._places.values()))[:_MAX_OPENED]:
            await asyncio.gather(*(source.open() for source in place.sources))
            if any(source.is_open for source in place.sources):
                break
        await self._publish()

    async def follow(self, changed: Callable[[], None]) -> None:
        """Read what is new, at the log's pace, and the rest backwards meanwhile, until cancelled.

        `changed` is called on the event loop, at most a few times a second.
        """
        works = (self._notify(changed), self._keep_filled(), self._read_on(), self._keep_polling())
        tasks = {asyncio.create_task(work) for work in works}
        self._following |= tasks
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()
        finally:
            await _end(tasks)
            self._following -= tasks

    async def read_whole(
        self, progressed: Callable[[], None] = lambda: None, limit_seconds: float | None = None
    ) -> bool:
        """Read all there is now, without rest, where nothing is followed; whether it was read
        within the limit.

        Raises what keeps the cluster from answering.
        """
        over = None if limit_seconds is None else time.monotonic() + limit_seconds
        for source in self._sources():
            while await source.read_new() and source.has_more and not _is_past(over):
                progressed()
        await self._fill(is_patient=False, progressed=progressed, over=over)
        for place in self._places.values():
            for source in place.sources:
                # A file of no job is taken as it is.
                await source.finish(is_over=place.is_over or not self.job_id)
        await self._publish()
        return self.progress.is_whole

    async def close(self) -> None:
        """Stop reading."""
        await _end(self._following)

    # -- files

    async def _locate(self) -> None:
        """Find what there is to read; what is read already is kept, in a file that was moved
        too.
        """
        located = await locate_metrics(self.store, self.job_id, file=self._file, named=self._named)
        count = sum(
            1 + (place.files.stderr is not None) + bool(place.own) for place in located.places
        )
        points = max(self._exact_points // max(count, 1), _MIN_POINTS)
        cells = max(CELLS // max(count, 1), _MIN_CELLS)

        def new_source(path: str, host: str = "") -> MetricSource:
            file = self.store.log_file(path, host)
            return MetricSource(file, self._turns, self._patterns, exact_points=points, cells=cells)

        # Tasks that are gone stay before those that were found.
        job_ids = {place.job_id for place in located.places}
        places = {job_id: place for job_id, place in self._places.items() if job_id not in job_ids}
        for place in located.places:
            sources = self._places.get(place.job_id) or _JobSources()
            places[place.job_id] = sources
            sources.is_over = place.is_over
            if sources.own is None and place.own:
                sources.own = new_source(place.own)
            host = place.files.host
            paths = dict.fromkeys((place.files.stdout, place.files.stderr))
            for number, path in enumerate(path for path in paths if path is not None):
                if number == len(sources.streams):
                    sources.streams.append(new_source(path, host))
                source = sources.streams[number]
                # If a job is known from the history its paths may be guesses: the existing files
                # are used.
                if (source.file.path, source.file.host) != (path, host) and source.problem:
                    source.file = self.store.log_file(path, host)
                    source.missed = 0
        self._places = places
        self._located = located

    # -- following

    async def _publish(self) -> None:
        places = list(self._places.values())
        self._run = await asyncio.to_thread(_joined, places)

    async def _notify(self, changed: Callable[[], None]) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._publish()
            changed()
            await asyncio.sleep(NOTIFY_FILLING_SECONDS if self._is_filling else NOTIFY_SECONDS)

    async def _fill(
        self,
        *,
        is_patient: bool,
        progressed: Callable[[], None] = lambda: None,
        over: float | None = None,
    ) -> None:
        """Read backwards, the newest place first; patiently: as much rest as reading, and on when
        the line is back.
        """
        for place in reversed(list(self._places.values())):
            for source in place.sources:
                while not (source.is_whole or _is_past(over)):
                    if is_patient and place.is_awaited(source):
                        break
                    if not await self._read_before(source, is_patient):
                        break
                    progressed()

    async def _read_before(self, source: MetricSource, is_patient: bool) -> bool:
        """Read what stands before what was read; False where nothing is to be had now."""
        if is_patient:
            await self._turn(1 if source.is_open else COMMANDS_TO_OPEN)
        began = time.monotonic()
        try:
            await source.open()
            source.missed = source.missed + 1 if source.problem else 0
            source.tried_at = time.monotonic()
            if source.is_whole or not await source.read_before():
                return False
        except (UnreachableError, CommandTimedOut) as error:
            if not is_patient:
                raise
            self._report(error.message)
            await asyncio.sleep(SELDOM_SECONDS)
            return True
        self._dirty.set()
        if is_patient:
            await asyncio.sleep(min(time.monotonic() - began, LONGEST_PAUSE_SECONDS))
        return True

    async def _turn(self, commands: int = 1) -> None:
        """Wait until so many reads have their turn under the ceiling on commands."""
        waits = [self.store.budget.reserve_read_seconds() for _ in range(commands)]
        await asyncio.sleep(waits[0])

    async def _keep_filled(self) -> None:
        """A task that began, and a file that was replaced, have a past of their own."""
        while True:
            self._is_filling = not self.progress.is_whole
            try:
                await self._fill(is_patient=True)
            finally:
                self._is_filling = False
            await asyncio.sleep(LONGEST_PAUSE_SECONDS)

    async def _read_on(self) -> None:
        """Check what may grow, the sooner the sooner it grew."""
        while True:
            seconds, _ = self._next_check()
            if seconds > 0:
                await asyncio.sleep(seconds)
                continue
            # Where reads are few they go to what grows; meanwhile another may have become the
            # first.
            await self._turn()
            _, due = self._next_check()
            if due is not None:
                await self._read_new(*due)

    def _next_check(self) -> tuple[float, tuple[_JobSources, MetricSource] | None]:
        """Return in how many seconds the next source is to be checked, and that.

        It is the one that has waited longest in proportion to its pause.
        """
        now = time.monotonic()
        living = [place for place in self._places.values() if place.may_grow]
        # Many logs share the checks that one would have.
        share = max(1.0, len(living) / 4)
        longest = float("-inf")
        seconds = LONGEST_PAUSE_SECONDS
        due = None
        for place in reversed(living):
            for source in place.sources:
                if source.is_finished:
                    continue
                commands = COMMANDS_TO_OPEN if source.problem and not source.is_open else 1
                pause = commands * next_check_seconds(now - source.moved_at)
                pause = share * max(pause, source.file.pause_seconds)
                waited = now - source.checked_at
                if waited / pause > longest:
                    longest = waited / pause
                    seconds = pause - waited
                    due = (place, source)
        return seconds, due

    async def _read_new(self, place: _JobSources, source: MetricSource) -> None:
        """Read what is new; a source that could not be read is not checked for a while."""
        # Before the check: for a job that was known to have ended, it reads the last lines.
        was_over = place.is_over
        problem = source.problem
        has_moved = False
        try:
            if not source.is_open:
                for _ in range(COMMANDS_TO_OPEN - 1):
                    self.store.budget.reserve_read_seconds()
            while await source.read_new():
                has_moved = True
                self._dirty.set()
                if not source.has_more:
                    break
                # It is read on at once, and what is followed besides later.
                self.store.budget.reserve_read_seconds()
            if source.problem != problem:
                self._dirty.set()
            source.checked_at = time.monotonic()
            quiet_seconds = source.checked_at - source.moved_at
            if has_moved:
                source.moved_at = source.checked_at
            elif quiet_seconds >= QUIET_SECONDS:
                if await source.finish(is_over=was_over):
                    self._dirty.set()
                # A file that is copied from its node may come a little later.
                source.is_finished = was_over and quiet_seconds >= SELDOM_SECONDS / 2
        except (UnreachableError, CommandTimedOut) as error:
            source.checked_at = time.monotonic() + LONGEST_PAUSE_SECONDS
            self._report(error.message)
        else:
            self._report("")

    async def _keep_polling(self) -> None:
        """Ask for the job's state where it is quiet.

        No read is waited for: where these are few a turn is long.
        """
        queried_at = time.monotonic()
        state_pause = _FIRST_STATE_SECONDS
        while True:
            await asyncio.sleep(_STATE_TICK_SECONDS)
            now = time.monotonic()
            living = [place for place in self._places.values() if place.may_grow]
            sources = [source for place in living for source in place.sources]
            # At the last checks: where these are seldom, what grows is not quiet in between.
            quiet = min((source.checked_at - source.moved_at for source in sources), default=now)
            is_elsewhere = any(source.problem for place in living for source in place.streams)
            is_due = now - queried_at >= state_pause and (quiet >= QUIET_SECONDS or self.is_array)
            if is_due and (not self.is_over or is_elsewhere):
                queried_at = time.monotonic()
                state_pause = min(2 * state_pause, _LONGEST_STATE_SECONDS)
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            await self._locate()
        except NoSuchJob:
            for place in self._places.values():
                place.is_over = True
            self._located = replace(self._located, is_over=True)
        except (UnreachableError, CommandTimedOut) as error:
            self._report(error.message)
            return
        except HpcdashError:
            # The logs are still read, and the scheduler is queried again.
            self._report("")
            return
        self._dirty.set()

    def _report(self, problem: str) -> None:
        if problem != self._line_problem:
            self._line_problem = problem
            self._dirty.set()


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel until they have ended: a wait that ends at the same moment may swallow it
    (asyncio.wait_for of Python 3.11).
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.2)


def _is_past(moment: float | None) -> bool:
    return moment is not None and time.monotonic() >= moment


class _JobSources(Struct):
    """A job's or task's sources: its stdout, its stderr where that is apart, and the metrics file
    that it names.
    """

    is_over: bool = False
    streams: list[MetricSource] = field(default_factory=list)
    own: MetricSource | None = None

    @property
    def sources(self) -> list[MetricSource]:
        return self.streams if self.own is None else [*self.streams, self.own]

    @property
    def may_grow(self) -> bool:
        """Whether to check it again: not what ended long ago, which is read backwards in turn."""
        if all(source.is_finished for source in self.sources):
            return False
        return not self.is_over or any(source.is_open for source in self.sources)

    def is_awaited(self, source: MetricSource) -> bool:
        """Whether a source cannot be read, and is tried again later: while its job lives at the
        pace of what grows.
        """
        if not source.problem or self.may_grow:
            return bool(source.problem)
        pause = min(SELDOM_SECONDS * 2**source.missed / 2, MAX_SELDOM_SECONDS)
        pause = max(pause, source.file.pause_seconds)
        return source.missed > 0 and time.monotonic() < source.tried_at + pause


def _joined(places: Sequence[_JobSources]) -> JoinedRun:
    """Join the known data of all places now.

    The times of each stream are shifted as its newest file reports how far they are behind.
    """
    # The metrics files, stdout and stderr.
    logs: list[list[MetricLog]] = [[], [], []]
    behind = [0.0, 0.0, 0.0]
    for place in places:
        for number, source in enumerate((place.own, *place.streams[:2])):
            if source is not None:
                logs[number] += source.snapshot()
                if source.is_open:
                    behind[number] = source.behind_seconds
    streams = zip(logs, behind, strict=True)
    return JoinedRun([MetricStream(some, seconds) for some, seconds in streams if some])
