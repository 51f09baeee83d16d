"""The batch script as Slurm has it: from slurmctld while it holds the job, and from accounting where that keeps it."""

from __future__ import annotations

import re

from hpcdash.backends.job_detail import Script
from hpcdash.backends.queries import Answer, Query
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.detail import scontrol_id
from hpcdash.backends.slurm.failures import failure, require_success
from hpcdash.backends.slurm.history import sacct_id
from hpcdash.errors import AccountingUnavailable, NoSuchJob, SchedulerRefused, excerpt

_ANOTHERS_WORDS = ("Invalid user id", "Access/permission denied")
_NO_SCRIPT_WORDS = ("Job script not specified",)
_HEADING = re.compile(rb"^Batch Script for (\d+)[^\n]*\n-{80}\n", re.MULTILINE)
_HISTORY_LIMIT_SECONDS = 60.0


def script_query(job_id: str) -> Query[Script]:
    """scontrol write batch_script, to stdout; of a task it is its array's."""
    return Query(slurm("scontrol", "write", "batch_script", scontrol_id(job_id), "-"), parse_script)


def parse_script(answer: Answer) -> Script:
    """The script; scontrol of 22.05 ends with status 0 where it has none, and says why on stderr."""
    if answer.status == 0 and answer.stdout:
        return Script(_text(answer.stdout), "Slurm's own copy")
    words = excerpt(answer.stderr)
    for phrases, message, next_step in (
        (_ANOTHERS_WORDS, "this job is another's", "Slurm shows a script to its owner and to operators alone."),
        (_NO_SCRIPT_WORDS, "this job has no batch script", "It is one of srun or salloc."),
    ):
        if any(phrase in words for phrase in phrases):
            raise SchedulerRefused(message, next_step, argv=answer.argv, status=answer.status, words=words)
    require_success(answer)
    if words:
        raise failure(answer)
    raise NoSuchJob("Slurm has no script of this job", argv=answer.argv, status=answer.status)


def history_script_query(job_id: str) -> Query[Script]:
    """sacct's copy, by the array's number: sacct finds none by a task's."""
    argv = slurm("sacct", "-B", "-j", sacct_id(job_id).partition("_")[0])
    return Query(argv, parse_history_script, limit_seconds=_HISTORY_LIMIT_SECONDS)


def parse_history_script(answer: Answer) -> Script:
    """What follows sacct's heading, without the newline it adds; an array's script comes once for each of its rows.

    sacct prints nothing of another's job, and NONE where the script was not kept or there was none.
    """
    require_success(answer)
    pieces = _HEADING.split(answer.stdout)
    # What stands before the first heading, then a number and a script in turn.
    texts = pieces[2::2]
    whole = _without_repetition(texts)
    if whole is None and texts:
        # Lines like a heading that are a script's own.
        first = _HEADING.search(answer.stdout)
        assert first is not None
        whole = answer.stdout[first.end() :]
    if whole is None or whole.strip() in (b"", b"NONE"):
        raise AccountingUnavailable(
            "the accounting shows no script of this job",
            "It shows one to its owner alone, and where AccountingStoreFlags of slurm.conf has job_script.",
            argv=answer.argv,
            status=answer.status,
        )
    return Script(_text(whole.removesuffix(b"\n")), "the accounting's copy")


def _without_repetition(texts: list[bytes]) -> bytes | None:
    """The one text that all are; None where they differ, or are none."""
    return texts[0] if texts and all(text == texts[0] for text in texts) else None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
