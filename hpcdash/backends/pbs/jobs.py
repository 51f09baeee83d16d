"""The queue: one qstat for everyone's jobs, narrowed on the login node, read into the columns of domain.schema.JOBS."""

from __future__ import annotations

from hpcdash.backends.base import JobScope, ParsedTable, Query
from hpcdash.backends.pbs.dialects import Dialect


def jobs_query(dialect: Dialect, scope: JobScope) -> Query[ParsedTable]:
    """qstat for a scope."""
    raise NotImplementedError
