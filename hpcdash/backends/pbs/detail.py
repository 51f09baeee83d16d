"""One job: all that `qstat -f` says of it, and its row with the paths filled in."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from hpcdash.backends.base import JobDetail, Query
from hpcdash.backends.pbs.dialects import Dialect


def native_query(dialect: Dialect, job_id: str) -> Query[Mapping[str, str]]:
    """As Backend.native_query."""
    raise NotImplementedError


def job_detail(row: pa.Table, native: Mapping[str, str]) -> JobDetail:
    """As Backend.job_detail."""
    raise NotImplementedError
