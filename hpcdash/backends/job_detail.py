"""A scheduler's report on one job: details, script, log files and usage."""

from __future__ import annotations

import pyarrow as pa
from msgspec import Struct

from hpcdash.backends.queries import Native, Row
from hpcdash.domain.states import WAITING


class JobDetail(Struct, frozen=True):
    """One job: a one-row table of domain.schema.JOBS with the paths filled in, and all the
    scheduler said, in order.
    """

    job: pa.Table
    native: Native

    @property
    def row(self) -> Row:
        """The job's row, by its columns."""
        row: Row = self.job.to_pylist()[0]
        return row


class Script(Struct, frozen=True):
    """A batch script as it was submitted; `source` says in words where this text comes from.

    Bytes that are no UTF-8 are lone surrogates: `text.encode("utf-8", "surrogateescape")` gives
    back what was there.
    """

    text: str
    source: str


class LogFiles(Struct, frozen=True):
    """Paths of a job's output.

    `stderr` is None where it goes into stdout's file; `stdout` None: not known, see `note`.

    `note` says in words what is not certain about the paths, '' where the scheduler itself gave
    them. `host` is the node on whose own disk they are for now, '' where the login node has them.
    """

    stdout: str | None
    stderr: str | None
    note: str = ""
    host: str = ""


class OtherLog(Struct, frozen=True):
    """A log of a job besides its own output: `name` tells it from the others, `title` says whose it
    is.

    It is found by each of `aliases` too, where no other log of the job has that one.
    """

    name: str
    title: str
    files: LogFiles
    aliases: tuple[str, ...] = ()


def is_one_run(row: Row) -> bool:
    """Whether a row of domain.schema.JOBS is of one job or task, which has started."""
    has_started = row["state"] not in WAITING and row["started_at"] is not None
    return has_started and (row["_tasks"] or 1) == 1


def node_memory(memory_bytes: int | None, nodes: int | None) -> int | None:
    """Return the even share of a node in a job's memory."""
    return None if memory_bytes is None else memory_bytes // max(1, nodes or 1)


class Usage(Struct, frozen=True, rename={"requested_memory_bytes": "memory_asked_bytes"}):
    """Usage of a job's allocation; None is unknown.

    CPU times are sums over all its processes, in seconds.
    """

    cpu_seconds: float | None = None
    cpus: int | None = None
    elapsed_seconds: int | None = None
    # The largest sum over a node's tasks that was sampled.
    memory_peak_bytes: int | None = None
    requested_memory_bytes: int | None = None
    gpus: int | None = None
    gpu_percent: float | None = None
    gpu_memory_peak_bytes: int | None = None
    disk_read_bytes: int | None = None
    disk_written_bytes: int | None = None
    # What is not certain about these, in words.
    note: str = ""


class ActivityCount(Struct, frozen=True):
    """Number of tasks or actors (`kind`) of one name that a job's program runs.

    `states` has of each state the scheduler's word, the state of domain.states it amounts to, and
    how many are in it. `restarts` is how often those of this name were started again.
    """

    kind: str
    name: str
    states: tuple[tuple[str, str, int], ...]
    restarts: int = 0


class Activity(Struct, frozen=True):
    """Tasks and actors that a job's program has the scheduler run.

    `failures` are (name, why) of a few that failed; `notes` say in words what could not be had.
    """

    counts: tuple[ActivityCount, ...]
    failures: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
