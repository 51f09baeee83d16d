"""Where the embedded queue keeps scripts, and where a job's output goes. Pure."""

from __future__ import annotations

from pathlib import Path

from hpcdash.backends.output_patterns import PathFacts, default_pattern, output_path
from hpcdash.local.job import Job
from hpcdash.local.store import Submission


def script_path(folder: Path, number: int) -> Path:
    """The copy of a submission's script that its jobs run."""
    return folder / "scripts" / str(number)


def output_paths(job: Job, submission: Submission, node: str, user: str) -> tuple[str, str | None]:
    """(stdout, stderr) of a job, absolute; stderr None where it goes into stdout's file. Patterns are Slurm's."""
    is_array = job.task is not None
    facts = PathFacts(
        job_number=str(job.id),
        work_dir=submission.work_dir,
        user=user,
        name=submission.name,
        node=node,
        array_id=str(job.number) if is_array else "",
        task=str(job.task) if is_array else "",
        is_array=is_array,
    )
    stdout = output_path(submission.request.stdout or default_pattern(facts), facts)
    stderr = output_path(submission.request.stderr, facts) if submission.request.stderr else None
    return stdout, None if stderr == stdout else stderr
