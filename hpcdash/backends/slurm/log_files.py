"""Where a Slurm job's output is: what scontrol says, or the patterns of its script and command line, filled in."""

from __future__ import annotations

from hpcdash.backends.base import JobDetail, LogFiles, Script


def needs_script(detail: JobDetail) -> bool:
    """True for a job only the accounting database knows."""
    return detail.job["stdout_path"][0].as_py() is None


def log_files(detail: JobDetail, script: Script | None) -> LogFiles:
    """The paths of a job."""
    row = detail.job.to_pylist()[0]
    stdout, stderr = row["stdout_path"], row["stderr_path"]
    return LogFiles(stdout, None if stderr == stdout else stderr)
