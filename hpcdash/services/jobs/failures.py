"""Cause of a job's failure in its log; of a running job, how many of its containers are up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpcdash.backends.base import Capability
from hpcdash.backends.job_detail import JobDetail, LogFiles
from hpcdash.backends.queries import Answer, Query
from hpcdash.backends.script.folder import CONTAINER_UP
from hpcdash.backends.submissions import MARK_START
from hpcdash.domain.root_cause import RootCause, Strength, root_cause
from hpcdash.domain.states import JobState
from hpcdash.errors import HpcdashError, UnreachableError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.scripts import fetch_script
from hpcdash.services.logs.ends import ends_query
from hpcdash.services.logs.lines import shown_line
from hpcdash.services.logs.locate import fetch_log_files
from hpcdash.shell_files import shell_text

Row = Mapping[str, Any]
# The last lines of cancelled and preempted jobs do not explain their end.
FAILED = frozenset(
    {JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.NODE_FAILED, JobState.GONE}
)
# 500 lines of 260 bytes.
_END_BYTES = 128 * 1024
# Container runtimes report each layer that they fetch.
_HEAD_BYTES = 1 << 20
_MAX_HOSTS = 10_000
_HEAD_LIMIT_SECONDS = 20.0
_UNKNOWN_PATH = "log path unknown"
MAX_LINES = 500
# Lines that are shown of a command that was started.
SHOWN_LINES = 15
SHOWN_WITH_DEBUG = 100


class JobFailure(Struct, frozen=True):
    """Failure in the last lines of a job's log.

    `stream` is stderr or stdout, or log if they are one file. `problem` is a short reason that
    nothing was read, else ''.
    """

    excerpt: Excerpt | None = None
    stream: str = "log"
    problem: str = ""

    @property
    def text(self) -> str:
        return "" if self.excerpt is None else self.excerpt.text


async def fetch_failure(
    store: ClusterStore, detail: JobDetail, row: Row, *, debug: bool = False
) -> JobFailure:
    """Fetch the cause of a failed job from the last lines of its files, with one query of both.

    `row` is of domain.schema.JOBS. Raises the errors of an unreachable cluster.
    """
    job_id = str(row["id"])
    if Capability.LOGS not in store.backend.capabilities:
        return JobFailure(problem=_UNKNOWN_PATH)
    files = await fetch_log_files(store, job_id, detail)
    if files.stdout is None and files.stderr is None:
        return JobFailure(problem=_UNKNOWN_PATH)
    if files.host:
        return JobFailure(problem=f"the log is still on {files.host}")
    containers = await count_containers(store, detail, row)
    up = await fetch_up(store, files) if containers else None
    query = ends_query([(files.stderr, None), (files.stdout, None)], _END_BYTES)
    stderr, stdout = await store.run_query(query)
    streams = {"log": stdout} if files.stderr is None else {"stderr": stderr, "stdout": stdout}

    def excerpts() -> list[tuple[str, Excerpt]]:
        return [
            (name, failure_excerpt(end.lines, containers=containers, up=up, debug=debug))
            for name, end in streams.items()
            if not end.problem
        ]

    readable = await asyncio.to_thread(excerpts)
    if not readable:
        return JobFailure(problem=next(iter(streams.values())).problem)
    written = [(name, excerpt) for name, excerpt in readable if excerpt.lines]
    if not written:
        return JobFailure(problem="the log is empty")
    # The file that explains the failure best; if neither does, stderr.
    stream, excerpt = max(written, key=lambda one: one[1].strength)
    return JobFailure(excerpt, stream)


async def count_containers(store: ClusterStore, detail: JobDetail, row: Row) -> int:
    """Count the nodes on which a script that hpcdash wrote starts containers; 0 for any other job.

    The script is fetched only if the job has a mark of hpcdash.
    """
    if not str(row["comment"] or "").startswith(MARK_START) or not row["nodes"]:
        return 0
    try:
        script = await fetch_script(store, str(row["id"]), detail=detail)
    except UnreachableError:
        raise
    except HpcdashError:
        return 0
    return int(row["nodes"]) if CONTAINER_UP in script.text else 0


async def fetch_up(store: ClusterStore, files: LogFiles) -> int | None:
    """Count the hosts with containers that are up, as reported at the beginning of a job's stderr.

    None if the file is unknown or on a node's own disk.
    """
    path = files.stderr or files.stdout
    if path is None or files.host or "\0" in path:
        return None
    script = shell_text("services/jobs/containers_up.sh")
    argv = ("sh", "-c", script, "sh", path, CONTAINER_UP, str(_HEAD_BYTES), str(_MAX_HOSTS))
    return len(await store.run_query(Query(argv, _parse_up, limit_seconds=_HEAD_LIMIT_SECONDS)))


def _parse_up(answer: Answer) -> frozenset[str]:
    return hosts_up(shown_line(line).text for line in answer.stdout.split(b"\n"))


class Excerpt(Struct, frozen=True):
    """Last lines of a log, safe to show, without blank lines at the ends.

    `above` is the line of the `cause` if it is before `lines`.
    """

    cause: RootCause | None
    lines: tuple[str, ...]
    above: str = ""

    @property
    def text(self) -> str:
        """The line with the cause, and the rank that wrote it; '' for an empty log."""
        return "" if self.cause is None else self.cause.text

    @property
    def explains(self) -> bool:
        """Whether the cause is more than a launcher's message or just the last line."""
        return self.strength > 0

    @property
    def strength(self) -> int:
        """Strength of a cause that explains the end; 0 without one."""
        if self.cause is None or self.cause.strength <= Strength.WORDS:
            return 0
        return self.cause.strength


def hosts_up(stderr: Iterable[str]) -> frozenset[str]:
    """Return the hosts whose container reported that it is up."""
    found = set()
    for line in stderr:
        _, mark, host = line.partition(CONTAINER_UP)
        if mark and (host := host.strip()):
            found.add(host)
    return frozenset(found)


def failure_excerpt(
    stderr: Sequence[str], *, containers: int = 0, up: int | None = None, debug: bool = False
) -> Excerpt:
    """Return the last lines of a failed job's stderr, from lines as services.logs.lines shows them.

    `up` of its `containers` are up; None: as many as these lines report. If all are up the command
    was started, and its last SHOWN_LINES are shown; otherwise up to MAX_LINES.
    """
    tail = list(stderr[-MAX_LINES:])
    while tail and not tail[-1].strip():
        tail.pop()
    cause = root_cause(tail)
    is_started = containers <= (len(hosts_up(stderr)) if up is None else up)
    shown = tail[-(SHOWN_WITH_DEBUG if debug else SHOWN_LINES) :] if is_started else tail
    begins = len(tail) - len(shown)
    above = tail[cause.at] if cause is not None and cause.at < begins else ""
    while shown and not shown[0].strip():
        del shown[0]
    return Excerpt(cause, tuple(shown), above)
