"""The embedded queue's jobs and commands as a person types them: `17_3`, `hpcdash cancel 17_3`.

Pure.
"""

from __future__ import annotations

import re
import shlex

from hpcdash.backends.submissions import Submission
from hpcdash.errors import UsageError

_JOB = re.compile(r"[0-9]{1,15}(?:_.+)?", re.DOTALL)


def job_id(text: str) -> str:
    """The id as it is; raises UsageError for what can be none, before anything is asked."""
    if _JOB.fullmatch(text) is None:
        raise UsageError(f"{text!r} is not a job", "Write 17, 17_3 or 17_[3-5].")
    return text


def typed(*arguments: str) -> tuple[str, ...]:
    """Return the text shown for a command of the queue, whose program nobody would type."""
    return (shlex.join(("hpcdash", *arguments)),)


def typed_submit(submission: Submission) -> tuple[str, ...]:
    """`hpcdash submit train.sh --array 1-3 -- --gres=gpu:1 -- --lr 3e-4`"""
    parts = ["submit", submission.file or submission.name]
    parts += ["--array", submission.array] if submission.array else []
    parts += ["--after", ",".join(submission.after)] if submission.after else []
    parts += ["--hold"] if submission.held else []
    if submission.options or submission.arguments:
        parts += ["--", *submission.options]
    if submission.arguments:
        parts += ["--", *submission.arguments]
    return typed(*parts)


class ProgramPart:
    """A part of the backend: its commands are those of a program, `argv` before them."""

    def __init__(self, program: tuple[str, ...]) -> None:
        self.argv = program
