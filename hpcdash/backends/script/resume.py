"""Bash that passes a command the checkpoint to resume from, at each start of its job.

The folder is created and tried before the command starts: an unwritable one is found before the
first save.
"""

from __future__ import annotations

import re
import shlex

from hpcdash.job.checkpoint import CHECKPOINTS
from hpcdash.shell_files import shell_text

RESUME_FROM = "HPCDASH_RESUME_FROM"
RESUME_NAMES = (CHECKPOINTS, RESUME_FROM)
_FILLED_IN = re.compile(r"(%[a%])")
HINT = f"""\
# Each start begins from scratch unless the command itself finds its checkpoint. With checkpoints = "FOLDER" in
# the request, hpcdash sets the checkpoint to resume from: ${{{RESUME_FROM}:+--resume "${RESUME_FROM}"}}
"""
_RESUME = """\
# Where this start resumes: the newest complete checkpoint in this folder, '' if there is none.
# A command can use it as ${HPCDASH_RESUME_FROM:+--resume "$HPCDASH_RESUME_FROM"}
export HPCDASH_CHECKPOINTS=@FOLDER@ HPCDASH_RESUME_FROM
"""


def resume_lines(checkpoints: str, task: str) -> str:
    """Bash for the batch script, in the folder the job works in: HPCDASH_CHECKPOINTS, whole, and
    HPCDASH_RESUME_FROM.

    `checkpoints` is a folder's path, in which %a is the array's task (`task`, a variable's name)
    and %% a per cent sign. The job ends with 1 where the folder cannot be written.
    """
    path = "".join(_part(part, task) for part in _FILLED_IN.split(checkpoints) if part)
    folder = path if checkpoints.startswith("/") else f'"$PWD"/{path}'
    return _RESUME.replace("@FOLDER@", folder) + shell_text("backends/script/resume.sh")


def task_folder(checkpoints: str, task: str) -> str:
    """The folder of one task of an array, or of a job without tasks; '' where it is not known which
    task that is.
    """
    if is_a_folder_a_task(checkpoints) and not task.isdigit():
        return ""
    return "".join(
        {"%a": task, "%%": "%"}.get(part, part) for part in _FILLED_IN.split(checkpoints)
    )


def fixed_part(checkpoints: str) -> str:
    """The folder that all tasks' checkpoints are below; '' where the path names none."""
    before, task, _ = checkpoints.replace("%%", "\0").partition("%a")
    return (before.rpartition("/")[0] if task else before).replace("\0", "%")


def is_a_folder_a_task(checkpoints: str) -> bool:
    """Whether each task of an array has a folder of its own."""
    return "%a" in _FILLED_IN.split(checkpoints)


def _part(part: str, task: str) -> str:
    if part == "%a":
        return f'"${task}"'
    return shlex.quote("%" if part == "%%" else part)
