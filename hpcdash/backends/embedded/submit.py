"""Hands scripts to the embedded queue, for the first time or once more. Pure."""

from __future__ import annotations

from functools import partial

import msgspec

from hpcdash.backends.base import MARK_START, ActionCommand, Answer, JobDetail, Outcome, Resubmission, Submission
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.job_ids import JobId
from hpcdash.domain.sbatch import read_command_line
from hpcdash.errors import UsageError, excerpt


def submission(program: tuple[str, ...], wanted: Submission) -> ActionCommand:
    """The queue's `submit`; the script comes on stdin. Raises UsageError for a word that is no option."""
    if stray := read_command_line(wanted.options).script:
        raise UsageError(f"{stray[0]!r} is no option of sbatch", "The script's own arguments follow another --.")
    words = list(wanted.options)
    if wanted.array:
        words.append(f"--array={wanted.array}")
    if wanted.after:
        words.append(f"--dependency=afterany:{':'.join(wanted.after)}")
    if wanted.held:
        words.append("--hold")
    token = ("--token", wanted.mark) if wanted.mark else ()
    argv = (*program, "submit", *token, "--named", wanted.name, *words, "-", *wanted.arguments)
    return ActionCommand(argv, (wanted.name,), partial(_read, job_id=wanted.name), wanted.script)


def resubmission(program: tuple[str, ...], detail: JobDetail, tasks: ArrayTasks | None, mark: str) -> Resubmission:
    """The queue's `again`: it has kept the script, the options, the environment and the folder."""
    row = detail.job.to_pylist()[0]
    asked = row["array_id"] or row["id"]
    job_id = asked if tasks is None else str(JobId(asked, tasks))
    argv = (*program, "again", "--token", mark, job_id)
    command = ActionCommand(argv, (job_id,), partial(_read, job_id=job_id))
    if row["comment"] and not row["comment"].startswith(MARK_START):
        note = "it keeps its own comment; if the answer is lost, the job is looked for by its name and time"
        return Resubmission(command, (note,))
    return Resubmission(command, (), mark)


def _read(answer: Answer, *, job_id: str) -> tuple[Outcome, ...]:
    try:
        found = msgspec.json.decode(answer.stdout)
        number, ignored = str(found["id"]), list(found["ignored"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return (Outcome(job_id, False, excerpt(answer.stderr) or f"the queue ended with status {answer.status}"),)
    said = f"; not understood here, and left out: {'; '.join(map(str, ignored))}" if ignored else ""
    return (Outcome(job_id, True, f"job {number}{said}"),)
