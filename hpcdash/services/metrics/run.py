"""The metrics of a job from its logs: the newest part at once, what is new as it comes, the rest
backwards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.config.metric_patterns import compile_patterns, pattern_problems
from hpcdash.errors import CommandTimedOut, HpcdashError, NoSuchJob, UnreachableError
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.logs.file import LONGEST_PAUSE_SECONDS, next_check_seconds
from hpcdash.services.metrics.joined import JoinedRun, MetricStream, join_streams
from hpcdash.services.metrics.places import MetricPlaces, NamedMetricsFiles, Row, locate_metrics
from hpcdash.services.metrics.series import CELLS, EXACT_POINTS, MetricLog
from hpcdash.services.metrics.source import MetricSource, StampedFile

READS_AT_ONCE = 2
# Between two reported changes; longer while the past is read.
TOLD_SECONDS = 0.25
TOLD_FILLING_SECONDS = 0.5
# Of many places the newest are read before anything is shown, until one exists.
_MOST_OPENED = 4
# If a quiet log may mean that its job has ended, the scheduler is queried at these intervals: at
# first and at the slowest.
_FIRST_STATE_SECONDS, _LONGEST_STATE_SECONDS = 3.0, 30.0
# Interval of the checks whether that is due.
_STATE_TICK_SECONDS = 0.5
# Of many logs each may keep no less than this.
_LEAST_POINTS, _LEAST_CELLS = 20_000, 8_192
# A log that waits for the line to come back, or is of a job that ended, is looked at so seldom; the
# latter the more seldom the longer it is missing.
SELDOM_SECONDS, MOST_SELDOM_SECONDS = 30.0, 600.0
QUIET_SECONDS = 2.0
# Its end and its beginning.
COMMANDS_TO_OPEN = 2


class Progress(Struct, frozen=True):
    """Bytes read of all the logs of a run; `is_whole` once their beginnings are read."""

    read_bytes: int = 0
    total_bytes: int = 0
    is_whole: bool = False


class WatchedRun:
    """The metrics of one job, or of an array's tasks joined by step, as far as they are read: of
    its stdout and stderr, and of the file that it names in HPCDASH_METRICS.

    `patterns` are regular expressions of the user, as compile_patterns takes them. `file` is a
    metrics file that is read in place of all these (JSON lines, CSV), '' for none; with it `job_id`
    may be ''. `task` is the number of one task of the array. `exact_points` are kept as they were
    written, older ones folded. Raises ConfigError naming a bad pattern.
    """

    def __init__(
        self,
        store: ClusterStore,
        job_id: str,
        *,
        patterns: Sequence[str] = (),
        file: str = "",
        task: str = "",
        exact_points: int = EXACT_POINTS,
    ) -> None:
        compile_patterns(patterns)
        self.store = store
        self.job_id = job_id
        self._patterns = tuple(patterns)
        self._file = file
        self._task = task
        self._exact_points = exact_points
        self._named = NamedMetricsFiles(store)
        self._located: MetricPlaces | None = None
        self._places: dict[str, MetricFile] = {}
        self._run = join_streams()
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self._line_problem = ""
        self._dirty = asyncio.Event()
        self._is_filling = False
        self._following: set[asyncio.Task[None]] = set()

    # -- what is known

    @property
    def title(self) -> str:
        """`4711 llama-7b`, for a legend."""
        if self._located is None:
            return self.job_id
        return f"{self._located.job_id} {self._located.row['name'] or ''}".strip()

    @property
    def run(self) -> JoinedRun:
        """Data known now; new after each reported change, and safe to read in any thread."""
        return self._run

    @property
    def row(self) -> Row | None:
        """The job's row of domain.schema.JOBS, of an array that of its newest task; None before
        `open`.
        """
        return None if self._located is None else self._located.row

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, and all its tasks."""
        return self._located is not None and self._located.is_over

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
        there = [source for source in sources if source.is_open or not source.problem]
        read = sum(source.read_bytes for source in there)
        total = sum(source.total_bytes for source in there)
        return Progress(read, total, all(source.is_whole for source in there))

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
        located = "" if self._located is None else self._located.problem
        sources = self._sources()
        unread = [source for source in sources if source.problem]
        if self._run.names:
            lost = next((source for source in unread if source.is_open), None)
            return f"{lost.file.place}: {lost.problem}" if lost is not None else located
        if unread and len(unread) == len(sources):
            return f"{unread[0].file.place}: {unread[0].problem}"
        if sources and self.progress.is_whole:
            return located or f"no metric was found in {' and '.join(dict.fromkeys(self.paths))}"
        return located

    def _sources(self) -> list[MetricSource]:
        return [source for place in self._places.values() for source in place.sources]

    # -- reading

    async def open(self) -> None:
        """Find the logs and read their newest part; raises NoSuchJob and what keeps the cluster
        from answering.
        """
        await self._locate()
        for place in list(reversed(self._places.values()))[:_MOST_OPENED]:
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

    # -- where it is

    async def _locate(self) -> None:
        """Find what there is to read; what is read already is kept, in a file that was moved
        too.
        """
        located = await locate_metrics(
            self.store, self.job_id, file=self._file, task=self._task, named=self._named
        )
        count = max(
            1,
            sum(1 + (place.files.stderr is not None) + bool(place.own) for place in located.places),
        )
        found: dict[str, MetricFile] = {}
        for place in located.places:
            files = place.files
            paths = [
                path for path in dict.fromkeys((files.stdout, files.stderr)) if path is not None
            ]
            before = self._places.get(place.job_id)
            own = before.own if before is not None else None
            if own is None and place.own:
                own = self._source(self._file_at(place.own), count)
            if before is None:
                sources = tuple(
                    self._source(self._file_at(path, files.host), count) for path in paths
                )
                found[place.job_id] = MetricFile(place.job_id, place.is_over, sources, own)
                continue
            before.own = own
            for source, path in zip(before.streams, paths, strict=False):
                # If a job is known from the history its paths may be guesses: the existing files
                # are used.
                if (source.file.path, source.file.host) != (path, files.host) and source.problem:
                    source.file = self._file_at(path, files.host)
                    before.read_state(source).missed = 0
            if len(before.streams) < len(paths):
                missing = paths[len(before.streams) :]
                more = [self._source(self._file_at(path, files.host), count) for path in missing]
                before.streams = (*before.streams, *more)
            before.is_over = place.is_over
            found[place.job_id] = before
        gone = {job_id: place for job_id, place in self._places.items() if job_id not in found}
        self._places = {**gone, **found}
        self._located = located

    def _file_at(self, path: str, host: str = "") -> StampedFile:
        return StampedFile(
            self.store.transport, path, host, () if host else self.store.reader_command(path)
        )

    def _source(self, file: StampedFile, count: int) -> MetricSource:
        points, cells = (
            max(self._exact_points // count, _LEAST_POINTS),
            max(CELLS // count, _LEAST_CELLS),
        )
        return MetricSource(file, self._turns, self._patterns, exact_points=points, cells=cells)

    # -- following

    async def _publish(self) -> None:
        places = list(self._places.values())
        self._run = await asyncio.to_thread(join_places, places)

    async def _notify(self, changed: Callable[[], None]) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._publish()
            changed()
            await asyncio.sleep(TOLD_FILLING_SECONDS if self._is_filling else TOLD_SECONDS)

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
        self._is_filling = not self.progress.is_whole
        try:
            for place in reversed(list(self._places.values())):
                for source in place.sources:
                    looked = place.read_state(source)
                    while not (
                        source.is_whole
                        or _is_past(over)
                        or (is_patient and looked.is_awaited(place, source))
                    ):
                        if is_patient:
                            await self._turn(1 if source.is_open else COMMANDS_TO_OPEN)
                        began = time.monotonic()
                        try:
                            await source.open()
                            looked.tried(source)
                            if source.is_whole or not await source.read_before():
                                break
                        except (UnreachableError, CommandTimedOut) as error:
                            if not is_patient:
                                raise
                            self._report(error.message)
                            await asyncio.sleep(SELDOM_SECONDS)
                            continue
                        self._dirty.set()
                        progressed()
                        if is_patient:
                            await asyncio.sleep(
                                min(time.monotonic() - began, LONGEST_PAUSE_SECONDS)
                            )
        finally:
            self._is_filling = False

    async def _turn(self, commands: int = 1) -> None:
        """Wait until so many reads have their turn under the ceiling on commands."""
        waits = [self.store.budget.reserve_read_seconds() for _ in range(commands)]
        await asyncio.sleep(waits[0])

    async def _keep_filled(self) -> None:
        """A task that began, and a file that was replaced, have a past of their own."""
        while True:
            await self._fill(is_patient=True)
            await asyncio.sleep(LONGEST_PAUSE_SECONDS)

    async def _read_on(self) -> None:
        """Look at what may grow, the sooner the sooner it grew."""
        while True:
            seconds, _, _ = next_look(self._places.values())
            if seconds <= 0:
                # Where reads are few they go to what grows; meanwhile another may have become the
                # first.
                await self._turn()
                seconds, place, source = next_look(self._places.values())
                if place is not None and source is not None:
                    await self._read_place(place, source)
                    seconds, _, _ = next_look(self._places.values())
            await asyncio.sleep(max(seconds, 0.0))

    async def _keep_polling(self) -> None:
        """Ask for the job's state where it is quiet.

        No read is waited for: where these are few a turn is long.
        """
        queried_at, state_pause = time.monotonic(), _FIRST_STATE_SECONDS
        while True:
            await asyncio.sleep(_STATE_TICK_SECONDS)
            now = time.monotonic()
            living = [place for place in self._places.values() if may_grow(place)]
            checks = [place.read_state(source) for place in living for source in place.sources]
            # At the last looks: where these are seldom, what grows is not quiet in between.
            quiet = min((looked.looked_at - looked.moved_at for looked in checks), default=now)
            is_elsewhere = any(source.problem for place in living for source in place.streams)
            if (
                (not self.is_over or is_elsewhere)
                and now - queried_at >= state_pause
                and (quiet >= QUIET_SECONDS or self.is_array)
            ):
                queried_at, state_pause = (
                    time.monotonic(),
                    min(2 * state_pause, _LONGEST_STATE_SECONDS),
                )
                await self._refresh()

    @property
    def is_array(self) -> bool:
        """Whether it is an array's tasks, joined."""
        return self._located is not None and self._located.is_array

    async def _read_place(self, place: MetricFile, source: MetricSource) -> None:
        try:
            is_new = await look_at(place, source, self._dirty.set, self.store.budget)
        except (UnreachableError, CommandTimedOut) as error:
            self._report(error.message)
            return
        if is_new:
            self._dirty.set()
        self._report("")

    async def _refresh(self) -> None:
        try:
            await self._locate()
        except NoSuchJob:
            for place in self._places.values():
                place.is_over = True
            if self._located is not None:
                self._located = replace(self._located, is_over=True)
        except HpcdashError as error:
            # The logs are still read, and the scheduler is queried again.
            self._report(
                error.message if isinstance(error, UnreachableError | CommandTimedOut) else ""
            )
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


class Looked(Struct):
    """Times of a source's last check and last news; `is_finished` once nothing more is expected.

    `missed` counts how often it was unavailable after its job's end.
    """

    moved_at: float = field(default_factory=time.monotonic)
    looked_at: float = 0.0
    is_finished: bool = False
    missed: int = 0
    tried_at: float = 0.0

    def pause_seconds(self, source: MetricSource, now: float) -> float:
        commands = COMMANDS_TO_OPEN if source.problem and not source.is_open else 1
        return max(commands * next_check_seconds(now - self.moved_at), source.file.pause_seconds)

    def tried(self, source: MetricSource) -> None:
        """Record that the source was requested, and whether it was available."""
        self.missed = self.missed + 1 if source.problem else 0
        self.tried_at = time.monotonic()

    def is_awaited(self, place: MetricFile, source: MetricSource) -> bool:
        """Whether it is not to be had, and its next look comes later: while its job lives at the
        pace of what grows.
        """
        if not source.problem:
            return False
        pause = max(
            min(SELDOM_SECONDS * 2**self.missed / 2, MOST_SELDOM_SECONDS), source.file.pause_seconds
        )
        return may_grow(place) or (self.missed > 0 and time.monotonic() < self.tried_at + pause)


class MetricFile(Struct):
    """A job's or task's sources: its stdout, its stderr where that is apart, and the metrics file
    that it names.
    """

    job_id: str
    is_over: bool
    streams: tuple[MetricSource, ...]
    own: MetricSource | None = None
    looked: dict[MetricSource, Looked] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[MetricSource, ...]:
        return self.streams if self.own is None else (*self.streams, self.own)

    def read_state(self, source: MetricSource) -> Looked:
        return self.looked.setdefault(source, Looked())


def may_grow(place: MetricFile) -> bool:
    """Whether to look at it again: not what ended long ago, which is read backwards in its turn."""
    is_finished = all(place.read_state(source).is_finished for source in place.sources)
    return not is_finished and (
        not place.is_over or any(source.is_open for source in place.sources)
    )


def next_look(places: Iterable[MetricFile]) -> tuple[float, MetricFile | None, MetricSource | None]:
    """Return the source that is to be checked next, and in how many seconds.

    It is the one that has waited longest in proportion to its pause.
    """
    now = time.monotonic()
    living = [place for place in places if may_grow(place)]
    # Many logs share the checks that one would have.
    share = max(1.0, len(living) / 4)
    longest = float("-inf")
    found: tuple[float, MetricFile | None, MetricSource | None] = (
        LONGEST_PAUSE_SECONDS,
        None,
        None,
    )
    for place in reversed(living):
        for source in place.sources:
            looked = place.read_state(source)
            if looked.is_finished:
                continue
            pause = share * looked.pause_seconds(source, now)
            if (now - looked.looked_at) / pause > longest:
                longest = (now - looked.looked_at) / pause
                found = (looked.looked_at + pause - now, place, source)
    return found


async def look_at(
    place: MetricFile, source: MetricSource, moved: Callable[[], None], budget: CommandBudget
) -> bool:
    """Read what is new, telling of each piece by `moved`; whether anything else of it is another
    now.

    Raises UnreachableError and CommandTimedOut, and is then not looked at for a while.
    """
    # Before the check: for a job that was known to have ended, it reads the last lines.
    was_over, looked = place.is_over, place.read_state(source)
    has_moved = False
    problem = source.problem
    try:
        if not source.is_open:
            for _ in range(COMMANDS_TO_OPEN - 1):
                budget.reserve_read_seconds()
        while await source.read_new():
            has_moved = True
            moved()
            if not source.has_more:
                break
            # It is read on at once, and what is followed besides later.
            budget.reserve_read_seconds()
    except (UnreachableError, CommandTimedOut):
        looked.looked_at = time.monotonic() + LONGEST_PAUSE_SECONDS
        raise
    is_another = source.problem != problem
    looked.looked_at = time.monotonic()
    if has_moved:
        looked.moved_at = looked.looked_at
    elif looked.looked_at - looked.moved_at >= QUIET_SECONDS:
        is_another = await source.finish(is_over=was_over) or is_another
        # A file that is copied from its node may come a little later.
        looked.is_finished = was_over and looked.looked_at - looked.moved_at >= SELDOM_SECONDS / 2
    return is_another


def join_places(places: Sequence[MetricFile]) -> JoinedRun:
    """Join the known data of all places now.

    The times of each stream are shifted as its newest file reports how far they are behind.
    """
    own: list[MetricLog] = []
    logs: tuple[list[MetricLog], list[MetricLog]] = ([], [])
    behind = [0.0, 0.0, 0.0]
    for place in places:
        for number, source in enumerate(place.streams[:2]):
            logs[number].extend(source.snapshot())
            behind[number + 1] = _behind(source, behind[number + 1])
        if place.own is not None:
            own += place.own.snapshot()
            behind[0] = _behind(place.own, behind[0])
    return join_streams(
        *(MetricStream(one, by) for one, by in zip((own, *logs), behind, strict=True))
    )


def _behind(source: MetricSource, before: float) -> float:
    return (
        source.file.behind_seconds
        if source.is_open and isinstance(source.file, StampedFile)
        else before
    )
