"""Asks qstat for jobs, whole lists or some by their ids, and reads what it printed. Knows no column's meaning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from hpcdash.backends.pbs.commands import pbs
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.failures import require_success, unreadable
from hpcdash.backends.pbs.listing_script import SCRIPT
from hpcdash.backends.pbs.records import Form, Records, read_attributes, read_records
from hpcdash.backends.queries import Answer
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain.job_ids import BadJobId, JobId, covers, number_of, parse_job_id
from hpcdash.errors import UsageError

_FORMS = {
    Dialect.OPENPBS: Form.DSV,
    Dialect.PBS_TEXT: Form.TEXT,
    Dialect.TORQUE: Form.XML,
    Dialect.SLURM_WRAPPERS: Form.WRAPPED,
}
_HEAD = re.compile(rb"^Clock: ([0-9]{1,12})\n(?:Owner: (.*)\n)?", re.MULTILINE)


class Want(StrEnum):
    """Which jobs, and how much of each."""

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


@dataclass(frozen=True, slots=True)
class Listing:
    """A question for jobs. `command` is what a person would have called; `job_ids` are those asked for."""

    argv: tuple[str, ...]
    command: tuple[str, ...]
    form: Form
    token: str
    job_ids: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True)
class Listed:
    """The answer: records as read_records gives them, and what the login node's clock said, in epoch seconds.

    `owner` is whose jobs were asked for, '' for everyone's; text and XML are not narrowed to them.
    """

    records: Records
    clock_epoch_seconds: int
    owner: str = ""


def listing(
    dialect: Dialect, want: Want, user: str | None = None, since_seconds: int = 0, job_ids: Sequence[str] = ()
) -> Listing:
    """Ask for jobs of `user` (None: everyone's, '': one's own), or for `job_ids`; `since_seconds`: ended no longer ago.

    Raises UsageError for what is no job id. Each subjob that runs or ended comes with `job_ids`, and with a user's 20
    newest arrays; of everyone's arrays there is the parent alone. Form and dialect decide what is left to narrow.
    """
    asked = tuple(dict.fromkeys(_read_id(job_id, dialect) for job_id in job_ids))
    words = tuple(dict.fromkeys(_asked_id(job) for job in asked))
    form = _FORMS[dialect]
    token = fresh_token()
    whose = "*" if user is None or words else user
    argv = pbs("sh", "-c", SCRIPT, "sh", token, str(form), str(want), str(max(0, since_seconds)), whose, *words)
    flags = ("-x",) if want is not Want.NOW and form is not Form.WRAPPED else ()
    return Listing(argv, ("qstat", *flags, "-f", *words), form, token, asked)


def _read_id(text: str, dialect: Dialect) -> JobId:
    try:
        job = parse_job_id(text)
    except BadJobId as error:
        raise UsageError(str(error), "Write 123, or 123[4] for a task of an array.") from None
    if job.component is not None:
        raise UsageError(f"{text!r} is no job id of PBS", "Write 123, or 123[4] for a task of an array.")
    if job.tasks is None or job.has_brackets:
        return job
    return JobId(job.number, job.tasks, has_brackets=True, server=job.server)


def _asked_id(job: JobId) -> str:
    """What qstat is given: for several tasks their array."""
    if job.tasks is not None and job.tasks.count > 1:
        return str(JobId(job.number, has_brackets=True, server=job.server))
    return str(job)


def read_listing(answer: Answer, asked: Listing, wanted: Sequence[str]) -> Listed:
    """The records with these attributes; raises what the answer's failure stands for."""
    require_success(answer, asked.command)
    start, clock, owner = _read_head(answer, asked)
    records = read_records(answer.stdout, asked.form, wanted, token=asked.token, start=start)
    if records is None:
        raise unreadable(answer, "jobs", asked.command)
    return Listed(records, clock, owner)


def read_whole(answer: Answer, asked: Listing) -> dict[str, str]:
    """Everything said of the first job, in order; {} where there is none."""
    require_success(answer, asked.command)
    start, _, _ = _read_head(answer, asked)
    raw = answer.stdout[start:]
    found = read_attributes(raw, asked.form, token=asked.token)
    if not found and raw.strip() and b"<Data" not in raw:
        raise unreadable(answer, "a job's details", asked.command)
    numbers = {job.number for job in asked.job_ids}
    for job_id, attributes in found:
        # Of several tasks it is their array that was asked for.
        if is_asked(asked, job_id) or ("[]" in job_id and number_of(job_id) in numbers):
            return {"Job Id": job_id, **attributes}
    return {}


def is_asked(asked: Listing, row_id: str) -> bool:
    """Whether a row is one of those asked for by id, or holds tasks of it."""
    try:
        row = parse_job_id(row_id)
    except BadJobId:
        return False
    return any(covers(job, row) for job in asked.job_ids)


def _read_head(answer: Answer, asked: Listing) -> tuple[int, int, str]:
    """(where the records begin, the clock in epoch seconds, the owner)"""
    found = _HEAD.search(answer.stdout)
    if found is None:
        raise unreadable(answer, "jobs", asked.command)
    return found.end(), int(found[1]), (found[2] or b"").decode("utf-8", "replace")
