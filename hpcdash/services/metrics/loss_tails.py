"""The newest losses of several running jobs, from the ends of their logs: one command for all of
them at a time.

Arrays are not imported before a log is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from hpcdash.backends.job_detail import JobDetail, LogFiles
from hpcdash.backends.queries import Answer, Query
from hpcdash.errors import HpcdashError, RateLimited, UnreachableError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import Chunk, FileRange, FileStat, files_query
from hpcdash.services.jobs.lookup import known_table
from hpcdash.services.logs.ends import last_lines
from hpcdash.services.logs.locate import locate_logs

TAIL_BYTES = 64 << 10
# This many values of a tail are stored, and this many jobs are read at once.
MAX_VALUES = 400
MAX_LINES = 60
MAX_JOBS = 50
# The path of a log takes one to three commands per job: this many jobs at a time, below half of the
# ceiling.
_LOCATED_AT_ONCE = 3
_COMMANDS_EACH = 3
_LIMIT_SECONDS = 20.0
_MAX_REMEMBERED = 500


class LossTail(Struct, frozen=True):
    """The last values of the metric `name`, oldest first, nan and inf included; '' if the log has
    none.

    `lines` are the last ones of the log, safe to show. `seconds_to_end` is the time from its newest
    step to its final one, None if that is unknown.
    """

    name: str = ""
    values: tuple[float, ...] = ()
    lines: tuple[str, ...] = ()
    seconds_to_end: float | None = None


class _JobLogs(Struct):
    """The logs of a job: their paths, and the state and the tail of those that were read."""

    files: tuple[str, ...] = ()
    # Whether its output goes to /dev/null.
    is_discarded: bool = False
    stats: dict[str, FileStat] = {}
    tails: dict[str, LossTail] = {}

    @classmethod
    def from_files(cls, files: LogFiles) -> _JobLogs:
        """Select the logs to read: none on a node's own disk, where each check would be a login."""
        paths = dict.fromkeys((files.stdout, files.stderr)) if not files.host else ()
        read = tuple(path for path in paths if path and path != "/dev/null")
        return cls(read, is_discarded=files.stdout == "/dev/null")


class LossTails:
    """The losses of a cluster's jobs; `chosen` selects one of the metrics in a log, None for none.

    `patterns` are regular expressions of the user, as compile_patterns takes them.
    """

    def __init__(
        self,
        store: ClusterStore,
        chosen: Callable[[tuple[str, ...]], str | None],
        patterns: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._chosen = chosen
        self._patterns = tuple(patterns)
        self._jobs: dict[str, _JobLogs] = {}
        # The scheduler's data of jobs that had to be located.
        self.details: dict[str, JobDetail] = {}
        # Problems with files at the last check, by job.
        self.failures: dict[str, Exception] = {}
        # Jobs whose logs the last refresh searched, whether they exist or not.
        self.looked_at: set[str] = set()

    def tail(self, job_id: str) -> LossTail | None:
        """Return the longest known loss tail of a job; None if its log was not read yet."""
        return max(self.by_file(job_id).values(), key=lambda tail: len(tail.values), default=None)

    def by_file(self, job_id: str) -> Mapping[str, LossTail]:
        """Return the loss tails of a job's files, by path; empty if its log was not read yet."""
        return self._jobs[job_id].tails if job_id in self._jobs else {}

    def files(self, job_id: str) -> tuple[str, ...]:
        """Return the paths of a job's logs, stdout first; () if unknown."""
        return self._jobs[job_id].files if job_id in self._jobs else ()

    def is_located(self, job_id: str) -> bool:
        """Whether the paths of a job's logs are known; others are queried before its log is
        read.
        """
        return job_id in self._jobs

    def is_discarded(self, job_id: str) -> bool:
        """Whether a job's output goes to /dev/null."""
        return job_id in self._jobs and self._jobs[job_id].is_discarded

    async def locate(self, row: Mapping[str, Any]) -> None:
        """Only find out where a job writes; raises nothing."""
        with suppress(HpcdashError):
            await self._locate([row])

    async def refresh(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Read the logs of running jobs (rows of domain.schema.JOBS); return whether any is new.

        Queries nothing if the ceiling on commands leaves no room. Raises nothing: the next round
        tries again.
        """
        self.failures.clear()
        self.looked_at.clear()
        rows = rows[:MAX_JOBS]
        job_ids = [str(row["id"]) for row in rows]
        try:
            await self._locate(rows)
            requested = [(job_id, path) for job_id in job_ids for path in self.files(job_id)]
            if requested and self._store.budget.wait_seconds() > 0:
                return False
            read = await self._store.poll(self._query(requested)) if requested else []
        except (RateLimited, UnreachableError):
            return False
        except HpcdashError:
            read = []
        self.looked_at.update(filter(self.is_located, job_ids))
        for (job_id, path), check, tail in read:
            if (job := self._jobs.get(job_id)) is not None:
                job.stats[path] = check
                job.tails[path] = tail
        self._forget(set(job_ids))
        return bool(read)

    async def _locate(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Find the logs of jobs: in their rows, else by querying a few of them."""
        budget = self._store.budget
        requested = 0
        for row in rows:
            job_id = str(row["id"])
            if job_id in self._jobs:
                continue
            if row["stdout_path"]:
                self._jobs[job_id] = _JobLogs.from_files(
                    LogFiles(row["stdout_path"], row["stderr_path"])
                )
                continue
            is_dear = budget.per_minute + _COMMANDS_EACH > budget.ceiling / 2
            if requested == _LOCATED_AT_ONCE or is_dear:
                continue
            requested += 1
            try:
                place = await locate_logs(self._store, job_id, known_table(self._store, job_id))
                self._jobs[job_id] = _JobLogs.from_files(place.files)
                self.details[job_id] = place.detail
            except (RateLimited, UnreachableError):
                raise
            except HpcdashError:
                # It is not queried again: the job is about to disappear, or its paths are
                # unavailable.
                self._jobs[job_id] = _JobLogs()

    def _query(
        self, requested: Sequence[tuple[str, str]]
    ) -> Query[list[tuple[tuple[str, str], FileStat, LossTail]]]:
        """Build the query of (job, path), state and tail of each file that changed.

        It is parsed in a thread.
        """
        known = [self._jobs[job_id].stats.get(path) for job_id, path in requested]
        ranges = [
            FileRange(path, None, TAIL_BYTES, check)
            for (_, path), check in zip(requested, known, strict=True)
        ]
        query = files_query(ranges, limit_seconds=_LIMIT_SECONDS)

        def parse(answer: Answer) -> list[tuple[tuple[str, str], FileStat, LossTail]]:
            return [
                (file, chunk.stat, self._parse_tail(file[0], chunk))
                for file, check, chunk in zip(requested, known, query.parse(answer), strict=True)
                if not chunk.stat.problem and chunk.stat != check
            ]

        return Query(query.argv, parse, query.limit_seconds)

    def pattern_problems(self) -> list[str]:
        """Describe the patterns that took too long."""
        if not self._patterns:
            return []
        from hpcdash.config.metric_patterns import pattern_problems

        return pattern_problems(self._patterns)

    def _parse_tail(self, job_id: str, chunk: Chunk) -> LossTail:
        """Parse the end of a log; empty if that fails, so that the others are read."""
        from hpcdash.services.metrics.joined import joined
        from hpcdash.services.metrics.pace import seconds_to_end
        from hpcdash.services.metrics.reader import MetricReader
        from hpcdash.services.metrics.series import MetricLog

        log = MetricLog()
        try:
            log.append(MetricReader(self._patterns, at=chunk.offset).feed(chunk.content))
            lines = last_lines(chunk, MAX_LINES)
            name = self._chosen(log.names)
            if name is None:
                return LossTail(lines=lines)
            run = joined([log])
            _, values = run.written(name)
            end = seconds_to_end(run, name)
        except Exception as error:
            self.failures[job_id] = error
            return LossTail()
        return LossTail(name, tuple(values[-MAX_VALUES:].tolist()), lines, end)

    def _forget(self, shown: set[str]) -> None:
        """Remove the oldest entries above the limit, except those of jobs that are shown."""
        excess = max(0, len(self._jobs) - _MAX_REMEMBERED)
        for job_id in [known for known in self._jobs if known not in shown][:excess]:
            del self._jobs[job_id]
            self.details.pop(job_id, None)
