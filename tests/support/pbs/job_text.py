"""Writes what qstat would print of jobs with given attributes, in DSV, as the script of the login
node passes it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.jobs import parse_jobs
from hpcdash.backends.pbs.listing import Listing, Want, listing
from hpcdash.backends.queries import ParsedTable
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.transport.base import CommandResult

TOKEN = "\x1eabcDEF0123"
# 2026-11-21T04:30:00Z
CLOCK = 1795235400

JOB = {
    "Job_Name": "train",
    "Job_Owner": "alice@login1",
    "resources_used.walltime": "00:10:00",
    "job_state": "R",
    "queue": "workq",
    "ctime": "Sat Nov 21 04:01:41 2026",
    "exec_host": "cn01/0*4",
    "mtime": "Sat Nov 21 04:29:00 2026",
    "Priority": "0",
    "qtime": "Sat Nov 21 04:05:00 2026",
    "Resource_List.ncpus": "4",
    "Resource_List.nodect": "1",
    "Resource_List.select": "1:ncpus=4",
    "Resource_List.walltime": "02:00:00",
    "stime": "Sat Nov 21 04:10:00 2026",
    "substate": "42",
    "etime": "Sat Nov 21 04:02:00 2026",
}
# What a job that has not begun has not got.
_BEGUN = ("resources_used.walltime", "exec_host", "stime")
WAITING_JOB = {key: value for key, value in JOB.items() if key not in _BEGUN} | {
    "job_state": "Q",
    "substate": "10",
}
ENDED_JOB = JOB | {
    "job_state": "F",
    "substate": "92",
    "obittime": "Sat Nov 21 04:20:00 2026",
    "Exit_status": "0",
    "history_timestamp": "1795234801",
}
ARRAY = WAITING_JOB | {
    "job_state": "B",
    "substate": "70",
    "stime": "Sat Nov 21 04:10:00 2026",
    "comment": "Job Array Began at Sat Nov 21 at 04:10",
    "array": "True",
    "array_state_count": "Queued:5 Running:3 Exiting:0 Expired:2 ",
    "array_indices_submitted": "1-10",
    "array_indices_remaining": "6-10",
}


def dsv(job_id: str, attributes: Mapping[str, str | None]) -> bytes:
    """A line of a list; an attribute that is None is left out."""
    fields = [f"{key}={value}" for key, value in attributes.items() if value is not None]
    return TOKEN.join((f"Job Id: {job_id}", *fields)).encode("utf-8", "surrogateescape") + b"\n"


def answered(*lines: bytes, status: int = 0, stderr: bytes = b"") -> CommandResult:
    """What the script leaves."""
    return CommandResult(
        ("env", "sh"), status, b"Clock: %d\n" % CLOCK + b"".join(lines), stderr, 0.1
    )


def question(want: Want = Want.NOW, dialect: Dialect = Dialect.OPENPBS, *job_ids: str) -> Listing:
    """A question with the token of `dsv`."""
    return replace(listing(dialect, want, job_ids=job_ids), token=TOKEN)


def parsed(*lines: bytes, want: Want = Want.NOW) -> ParsedTable:
    """The queue as it is read from these lines."""
    return parse_jobs(answered(*lines), question=question(want))


def fetch_rows(table: ParsedTable) -> list[dict[str, Any]]:
    """Every row with every column, the hidden ones too."""
    return table_to_json_rows(table.table, table.table.column_names)


def row(
    base: Mapping[str, str] = JOB, job_id: str = "12.pbs01", **changed: str | None
) -> dict[str, Any]:
    """The one row of a list of one job: `base` with some attributes changed; `__` stands for a
    resource's dot.
    """
    attributes = dict(base) | {key.replace("__", "."): value for key, value in changed.items()}
    (only,) = fetch_rows(parsed(dsv(job_id, attributes), want=Want.NAMED))
    return only
