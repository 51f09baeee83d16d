"""Where a job's output is: from Output_Path, Keep_Files, Join_Path and the node it runs on. Reads no file."""

from __future__ import annotations

from hpcdash.backends.base import JobDetail, LogFiles
from hpcdash.backends.pbs.dialects import Dialect


def log_files(dialect: Dialect, detail: JobDetail) -> LogFiles:
    """As Backend.log_files."""
    raise NotImplementedError


def submitted_file(detail: JobDetail) -> str | None:
    """As Backend.submitted_file."""
    raise NotImplementedError
