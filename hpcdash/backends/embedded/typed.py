"""The embedded queue's jobs and commands as a person types them: `17_3`, `hpcdash cancel 17_3`."""

from __future__ import annotations

import re
import shlex

from hpcdash.backends.submissions import Submission
from hpcdash.errors import UsageError

_JOB = re.compile(r"[0-9]{1,15}(?:_.+)?", re.DOTALL)


def job_id(text: str) -> str:
    """Return the ID unchanged; raises UsageError for text that cannot be an ID."""
    if _JOB.fullmatch(text) is None:
        raise UsageError(f"{text!r} is not a job", "Use 17, 17_3 or 17_[3-5].")
    return text


def typed(*arguments: str) -> tuple[str, ...]:
    """Return the text shown for a command of the queue."""
    return (shlex.join(("hpcdash", *arguments)),)


def typed_submit(submission: Submission) -> tuple[str, ...]:
    """Return `hpcdash submit train.sh --array 1-3 -- --gres=gpu:1 -- --lr 3e-4` and the like."""
    parts = ["submit", submission.file or submission.name]
    if submission.array:
        parts += ["--array", submission.array]
    if submission.after:
        parts += ["--after", ",".join(submission.after)]
    if submission.held:
        parts.append("--hold")
    if submission.options or submission.arguments:
        parts += ["--", *submission.options]
    if submission.arguments:
        parts += ["--", *submission.arguments]
    return typed(*parts)


class ProgramPart:
    """A part of the backend whose commands follow `argv`, the queue's program."""

    def __init__(self, program: tuple[str, ...]) -> None:
        self.argv = program
