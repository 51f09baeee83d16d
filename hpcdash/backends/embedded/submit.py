"""The embedded queue's commands that submit and resubmit scripts."""

from __future__ import annotations

from functools import partial

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.embedded.answers import decoded
from hpcdash.backends.embedded.typed import typed_submit
from hpcdash.backends.job_detail import JobDetail
from hpcdash.backends.options import last_value
from hpcdash.backends.queries import Answer
from hpcdash.backends.slurm.options import read_command_line, read_directives
from hpcdash.backends.submissions import MARK_START, NewLimits, Submission, SubmitCommand
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.dependencies import format_after
from hpcdash.domain.job_ids import with_tasks
from hpcdash.domain.units import format_clock
from hpcdash.errors import UsageError, excerpt


def _read(answer: Answer, *, job_id: str) -> tuple[Outcome, ...]:
    found = decoded(answer.stdout)
    number = found.get("id")
    ignored = found.get("ignored")
    if number is None or not isinstance(ignored, list):
        # timeout(1), KILL and TERM may have cut off only the answer.
        may_be_done = answer.status in (0, 124, 137, 143)
        text = ". ".join(excerpt(answer.stderr).splitlines())
        text = text or f"the queue exited with status {answer.status}"
        return (Outcome(job_id, None if may_be_done else False, text),)
    text = f"job {number}"
    if ignored:
        text += f"; unsupported and ignored: {'; '.join(map(str, ignored))}"
    return (Outcome(job_id, True, text),)


def submission(program: tuple[str, ...], submission: Submission) -> SubmitCommand:
    """Return the queue's `submit`; a script that is not in a file is the command's stdin.

    Raises UsageError for a word that is not an option, and for another account.
    """
    if submission.run_as:
        raise UsageError(
            "run_as: the embedded queue runs all jobs as the owner of the queue",
            "Remove run_as from the configuration.",
        )
    line = read_command_line(submission.options)
    if line.script:
        raise UsageError(
            f"{line.script[0]!r} is not an sbatch option",
            "The script's own arguments follow another --.",
        )
    parts = list(submission.options)
    if submission.array:
        parts.append(f"--array={submission.array}")
    if submission.after:
        parts.append(f"--dependency={format_after(submission.after)}")
    if submission.held:
        parts.append("--hold")
    token = ("--token", submission.mark) if submission.mark else ()
    argv = (
        *program,
        "submit",
        *token,
        "--named",
        submission.name,
        *parts,
        submission.file or "-",
        *submission.arguments,
    )
    stdin = None if submission.file else submission.script
    read = partial(_read, job_id=submission.name)
    command = ActionCommand(argv, (submission.name,), read, stdin, shown=typed_submit(submission))
    script = submission.script.decode("utf-8", "surrogateescape")
    options = (*read_directives(script).options, *line.options)
    # A job keeps its own comment.
    mark = submission.mark if last_value(options, "comment") is None else ""
    return SubmitCommand(command, (), mark, last_value(options, "job-name") or submission.name)


def resubmission(
    program: tuple[str, ...],
    detail: JobDetail,
    tasks: ArrayTasks | None,
    mark: str,
    limits: NewLimits,
) -> SubmitCommand:
    """Return the queue's `again`, which has the script, options, environment and folder."""
    row = detail.job.to_pylist()[0]
    requested = row["array_id"] or row["id"]
    job_id = requested if tasks is None else with_tasks(requested, tasks)
    seconds = limits.time_seconds
    time = () if seconds is None else ("--time", format_clock(seconds))
    argv = (*program, "again", "--token", mark, *time, job_id)
    read = partial(_read, job_id=job_id)
    how = "unchanged" if seconds is None else f"with --time={format_clock(seconds)}"
    command = ActionCommand(argv, (job_id,), read, shown=(f"resubmit {job_id} {how}",))
    if row["comment"] and not row["comment"].startswith(MARK_START):
        note = (
            "the job keeps its comment; if the answer is lost, hpcdash searches for the job by "
            "name and time"
        )
        return SubmitCommand(command, (note,), job_name=row["name"] or "")
    return SubmitCommand(command, (), mark, row["name"] or "")
