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
from hpcdash.services.logs.ends import LogEnd, ends_query
from hpcdash.services.logs.lines import shown_line
from hpcdash.services.logs.locate import fetch_log_files
from hpcdash.shell_files import shell_text

Row = Mapping[str, Any]
# For cancelled and preempted jobs it is known who ended them; their last lines do not explain it.
FAILED = frozenset(
    {JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.NODE_FAILED, JobState.GONE}
)
# 500 lines of 260 bytes.
_END_BYTES = 128 * 1024
# Runtimes report each layer that they fetch, before they start.
_HEAD_BYTES = 1 << 20
_MAX_HOSTS = 10_000
_HEAD_LIMIT_SECONDS = 20.0
_NOT_KNOWN = "its log path is unknown"

# As many lines are read; of a command that was started as many are shown.
MAX_LINES = 500
SHOWN_LINES, SHOWN_WITH_DEBUG = 15, 100


class JobFailure(Struct, frozen=True):
    """Failure in the end of a job's log; `stream` is stderr, stdout, or log if they are one file.

    `problem` is a short reason that nothing was read, else ''.
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
        return JobFailure(problem=_NOT_KNOWN)
    files = await fetch_log_files(store, job_id, detail)
    if files.stdout is None and files.stderr is None:
        return JobFailure(problem=_NOT_KNOWN)
    if files.host:
        return JobFailure(problem=f"its log is still on {files.host}")
    containers = await count_containers(store, detail, row)
    up = await fetch_up(store, files) if containers else None
    ends = await store.run_query(
        ends_query([(files.stderr, None), (files.stdout, None)], _END_BYTES)
    )
    return await asyncio.to_thread(_failure, files, ends, containers, up, debug)


def _failure(
    files: LogFiles, ends: tuple[LogEnd, ...], containers: int, up: int | None, debug: bool
) -> JobFailure:
    """Choose the file that explains the failure best; if neither does, stderr."""
    names = ("stderr", "stdout") if files.stderr is not None else ("", "log")
    reported = [
        (failure_excerpt(end.lines, containers=containers, up=up, debug=debug), name)
        for name, end in zip(names, ends, strict=True)
        if name and not end.problem
    ]
    if not reported:
        return JobFailure(problem=ends[0 if files.stderr is not None else 1].problem)
    written = [one for one in reported if one[0].lines]
    if not written:
        return JobFailure(problem="its log is empty")
    excerpt, stream = max(
        written, key=lambda one: one[0].cause.strength if one[0].explains and one[0].cause else 0
    )
    return JobFailure(excerpt, stream)


async def count_containers(store: ClusterStore, detail: JobDetail, row: Row) -> int:
    """Count the nodes with a container that a job's script, made here, starts; 0 for any other job.

    The script is fetched only if the job bears a mark of ours.
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
    """Count the hosts whose containers report that they are up, at the beginning of a job's stderr.

    None if the file is on a node's own disk, or unknown.
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
    """Lines that are safe to show, blank ones at the ends left out; () where nothing was written.

    `cause` says why where anything does; where its line is further up it comes before the others as
    `above`.
    """

    cause: RootCause | None
    lines: tuple[str, ...]
    above: str = ""

    @property
    def text(self) -> str:
        """The line that says why, and which rank wrote it; '' where nothing was written."""
        return "" if self.cause is None else self.cause.text

    @property
    def explains(self) -> bool:
        """Whether there is more than a launcher's remarks, or the last that happened to be
        written.
        """
        return self.cause is not None and self.cause.strength > Strength.WORDS


def hosts_up(stderr: Iterable[str]) -> frozenset[str]:
    """The hosts whose container said that it is up, among these lines."""
    found = set()
    for line in stderr:
        _, mark, host = line.partition(CONTAINER_UP)
        if mark and (host := host.strip()):
            found.add(host)
    return frozenset(found)


def failure_excerpt(
    stderr: Sequence[str], *, containers: int = 0, up: int | None = None, debug: bool = False
) -> Excerpt:
    """The end of a failed job's stderr, of lines as logs.lines shows them; of more than MAX_LINES
    the last.

    `containers` are to come up, 0 without any; `up` of them did, None: as many as these lines tell.
    Where all did the command was started, and its last SHOWN_LINES are enough; else all lines are
    shown.
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
