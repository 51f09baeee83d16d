"""Reads what qsub says of a job that was handed in: its id, why there is none, or that it cannot be known."""

from __future__ import annotations

import re

from hpcdash.backends.actions import Outcome
from hpcdash.backends.pbs.failures import failure
from hpcdash.backends.queries import Answer
from hpcdash.errors import EXIT_UNREACHABLE, excerpt

_JOB_ID = re.compile(rb"[0-9]+(?:\[\])?\.[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?")
# Torque with display_job_server_suffix off, and Slurm's wrapper.
_BARE_ID = re.compile(rb"[0-9]+(?:\[\])?")
# The request may have arrived: the connection broke after it was made.
_MAY_BE_DONE = ("protocol error", "end of file", "connection reset", "broken pipe", "timed out", "premature end")
_PREFIX = re.compile(r"^[' ]*(?:qsub|sbatch): *(?:error: )?(?:Batch job submission failed: )?")
_NOT_DONE = "cannot connect to server"
# timeout(1), KILL, TERM.
_CUT_OFF = (124, 137, 143)


def read_answer(answer: Answer, job_id: str, *, has_bare_ids: bool) -> tuple[Outcome, ...]:
    """The id stands in a line of its own, perhaps after what a site's qsub prints.

    Without one it is unknown whether there is a job: it is looked for then.
    """
    if answer.status == 0:
        lines = [line.strip() for line in answer.stdout.splitlines()]
        found = [line for line in lines if _JOB_ID.fullmatch(line)]
        found = found or [line for line in lines if has_bare_ids and _BARE_ID.fullmatch(line)]
        if not found:
            return (Outcome(job_id, None, "qsub told no job's id"),)
        return (Outcome(job_id, True, f"job {found[-1].decode()}"),)
    words = _refusal(answer)
    spoken = words.lower()
    is_lost = answer.status in _CUT_OFF or any(phrase in spoken for phrase in _MAY_BE_DONE)
    words = words or f"qsub ended with status {answer.status}"
    if is_lost and _NOT_DONE not in spoken:
        return (Outcome(job_id, None, words),)
    return (Outcome(job_id, False, words, failure(answer).exit_status == EXIT_UNREACHABLE),)


def _refusal(answer: Answer) -> str:
    """What qsub, or a hook through it, says of why; without its usage, and of Slurm's wrapper what sbatch says."""
    said = re.split(rb"^usage: ", answer.stderr or answer.stdout, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [_PREFIX.sub("", line).strip() for line in excerpt(said).splitlines()]
    if "and the output was:" in lines:
        lines = lines[lines.index("and the output was:") + 1 :]
    return "; ".join(dict.fromkeys(line for line in lines if line not in ("", "'")))
