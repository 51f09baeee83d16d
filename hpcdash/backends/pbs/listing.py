"""Asks qstat for jobs, whole lists or some by their ids, and reads what it printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from hpcdash.backends.pbs.dialects import Dialect, pbs
from hpcdash.backends.pbs.errors import require_success
from hpcdash.backends.pbs.records import Form, Records, read_attributes, read_records
from hpcdash.backends.queries import TEXT_BYTES, Answer, ParsedTable, Query, decoded, unreadable
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain.job_ids import BadJobId, JobId, covers, parse_job_number, pbs_job_id
from hpcdash.errors import UsageError
from hpcdash.shell_files import shell_text

T = TypeVar("T")
# What a job's Variable_List is searched for; the awk program writes them as fields of their own.
WORK_DIR_VARIABLE = "PBS_O_WORKDIR"
MARK_VARIABLE = "HPCDASH_MARK"
# The job that a copy replaces.
REPLACES_VARIABLE = "HPCDASH_REPLACES"
# What listing.sh lets through of each job in DSV.
KEPT = (
    "Job_Name",
    "Job_Owner",
    "job_state",
    "substate",
    "queue",
    "Account_Name",
    "Priority",
    "comment",
    "depend",
    "ctime",
    "qtime",
    "etime",
    "stime",
    "mtime",
    "obittime",
    "history_timestamp",
    "Execution_Time",
    "estimated.start_time",
    "exec_host",
    "Hold_Types",
    "Exit_status",
    "resources_used.walltime",
    "Resource_List.select",
    "Resource_List.nodes",
    "Resource_List.nodect",
    "Resource_List.ncpus",
    "Resource_List.ngpus",
    "Resource_List.mem",
    "Resource_List.walltime",
    "array_state_count",
    "array_indices_submitted",
    "array_indices_remaining",
    "max_run_subjobs",
)
# And of each run, where that is asked for: what it used.
USED = ("resources_used.cput", "resources_used.mem", "run_count")


# Of one's own arrays, each ended task is listed up to so many; of everyone's, for hours: how long
# each task ran, the one row of its array does not say.
_MAX_TASKS = 5000
_MAX_TASKS_FOR_HOURS = 100_000

_FORMS = {
    Dialect.OPENPBS: Form.DSV,
    Dialect.PBS_TEXT: Form.TEXT,
    Dialect.TORQUE: Form.XML,
}
_HEAD = re.compile(rb"^Clock: ([0-9]{1,12})\n(?:Owner: (.*)\n)?", re.MULTILINE)


_IDS_A_COMMAND = 1000
_ROWS_LIMIT_SECONDS = 60.0


class Want(StrEnum):
    """Selection of jobs, and how much is read of each."""

    # Those in the queue.
    NOW = "now"
    # And those that ended a short while ago.
    RECENT = "recent"
    # Those that ended, alone.
    ENDED = "ended"
    # Some jobs by their ids, ended or not.
    NAMED = "named"
    # One job by its id, with everything that is said of it.
    WHOLE = "whole"


class Listing(Struct, frozen=True):
    """A query of jobs.

    `command` is what a person would have called; `job_ids` are those requested.
    """

    argv: tuple[str, ...]
    command: tuple[str, ...]
    dialect: Dialect
    want: Want
    token: str
    is_everyones: bool = True
    job_ids: tuple[JobId, ...] = ()

    @property
    def form(self) -> Form:
        return _FORMS[self.dialect]

    def query(self, parse: Callable[[Answer], T]) -> Query[T]:
        """Return the query for the details of some jobs."""
        return Query(self.argv, parse, command=self.command, cap_bytes=TEXT_BYTES)

    def rows_query(self, parse: Callable[[Answer], ParsedTable]) -> Query[ParsedTable]:
        """Return the query for rows of domain.schema.JOBS."""
        return Query(
            self.argv,
            parse,
            limit_seconds=_ROWS_LIMIT_SECONDS,
            command=self.command,
            commands=self._count_commands,
        )

    def _count_commands(self, parsed: ParsedTable) -> int:
        """Count the commands of PBS that the script ran for the jobs of an answer: the selections,
        and a qstat for their IDs.
        """
        table = parsed.table
        if self.want is Want.NOW and self.is_everyones:
            return 1
        describing: int = -(-table.num_rows // _IDS_A_COMMAND)
        if self.want in (Want.NAMED, Want.WHOLE):
            return max(1, describing)
        if self.want is Want.ENDED:
            return 1 + describing
        # Of one's own jobs the subjobs are selected apart.
        has_arrays = not self.is_everyones and table["array_id"].null_count < table.num_rows
        is_recent = self.want is Want.RECENT
        return int(not self.is_everyones) + int(has_arrays) + int(is_recent) + describing


def listing(
    dialect: Dialect,
    want: Want,
    user: str | None = None,
    since_seconds: int = 0,
    job_ids: Sequence[str] = (),
    *,
    for_hours: bool = False,
) -> Listing:
    """Ask for jobs of `user` (None: everyone's, '': one's own), or for `job_ids`; `since_seconds`:
    ended no longer ago.

    `for_hours`: what of USED there is comes too, and each subjob that runs or ended of everyone's
    arrays, of which else there is the parent alone.

    Raises UsageError for what is no job id. Each subjob that runs or ended comes with `job_ids`,
    and with a user's 20 newest arrays. Form and dialect decide what is left to narrow.
    """
    requested = tuple(dict.fromkeys(map(_read_id, job_ids)))
    # qstat takes no list of tasks: their array has them.
    parts = tuple(
        dict.fromkeys(
            str(job if job.tasks is None or job.tasks.count == 1 else replace(job, tasks=None))
            for job in requested
        )
    )
    token = fresh_token()
    whose = "*" if user is None or parts else user
    argv = pbs(
        "sh",
        "-c",
        _script(for_hours=for_hours),
        "sh",
        token,
        str(_FORMS[dialect]),
        str(want),
        str(max(0, since_seconds)),
        whose,
        *parts,
    )
    flags = ("-x",) if want is not Want.NOW else ()
    command = ("qstat", *flags, "-f", *parts)
    return Listing(argv, command, dialect, want, token, user is None, requested)


def _script(*, for_hours: bool) -> str:
    names = " ".join((*KEPT, *USED) if for_hours else KEPT)
    most_tasks = _MAX_TASKS_FOR_HOURS if for_hours else _MAX_TASKS
    values = f"kept='{names}' most_tasks={most_tasks} each_task={int(for_hours) or ''}"
    return values + shell_text("backends/pbs/listing.sh")


def _read_id(text: str) -> JobId:
    try:
        job = pbs_job_id(text)
    except BadJobId as error:
        raise UsageError(str(error), "Use 123, or 123[4] for an array task.") from None
    if job.component is not None:
        raise UsageError(f"{text!r} is not a PBS job ID", "Use 123, or 123[4] for an array task.")
    return job if job.tasks is None else replace(job, has_brackets=True)


def read_listing(
    answer: Answer, requested: Listing, selected: Sequence[str]
) -> tuple[Records, int, str]:
    """(the records with these attributes, the login node's clock in epoch seconds, whose jobs were
    requested); raises what the answer's failure stands for.

    The owner is '' for everyone's; text and XML are not narrowed to them.
    """
    require_success(answer, requested.command)
    start, clock, owner = _read_head(answer, requested)
    records = read_records(
        answer.stdout, requested.form, selected, token=requested.token, start=start
    )
    if records is None:
        raise unreadable(answer, "jobs", requested.command)
    return records, clock, owner


def read_whole(answer: Answer, requested: Listing) -> dict[str, str]:
    """Everything said of the first job, in order; {} where there is none."""
    require_success(answer, requested.command)
    start, _, _ = _read_head(answer, requested)
    raw = answer.stdout[start:]
    found = read_attributes(raw, requested.form, token=requested.token)
    if not found and raw.strip() and b"<Data" not in raw:
        raise unreadable(answer, "a job's details", requested.command)
    numbers = {job.number for job in requested.job_ids}
    for job_id, attributes in found:
        # Of several tasks it is their array that was asked for.
        if is_requested(requested, job_id) or (
            "[]" in job_id and parse_job_number(job_id) in numbers
        ):
            return {"Job Id": job_id, **attributes}
    return {}


def is_requested(requested: Listing, row_id: str) -> bool:
    """Whether a row is one of those asked for by id, or holds tasks of it."""
    try:
        row = pbs_job_id(row_id)
    except BadJobId:
        return False
    return any(covers(job, row) for job in requested.job_ids)


def _read_head(answer: Answer, requested: Listing) -> tuple[int, int, str]:
    """(where the records begin, the clock in epoch seconds, the owner)"""
    found = _HEAD.search(answer.stdout)
    if found is None:
        raise unreadable(answer, "jobs", requested.command)
    return found.end(), int(found[1]), decoded(found[2] or b"")
