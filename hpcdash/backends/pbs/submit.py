"""qsub for a script that is handed in, for the first time or once more. Builds commands, runs nothing."""

from __future__ import annotations

from collections.abc import Mapping

from hpcdash.backends.base import Handover, JobDetail, Script, Submission
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.domain.array_tasks import ArrayTasks

# The variable of a job's Variable_List whose value is our mark.
MARK_VARIABLE = "HPCDASH_MARK"


def submission(dialect: Dialect, wanted: Submission) -> Handover:
    """As Backend.submission."""
    raise NotImplementedError


def resubmission(
    dialect: Dialect,
    detail: JobDetail,
    past: Mapping[str, str],
    script: Script,
    tasks: ArrayTasks | None,
    mark: str,
) -> Handover:
    """As Backend.resubmission."""
    raise NotImplementedError
