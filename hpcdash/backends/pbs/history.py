"""What ended: `qstat -x` where the server keeps a history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcdash.backends.base import ParsedTable, Query
from hpcdash.backends.pbs.dialects import Dialect


def history_query(
    dialect: Dialect, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()
) -> Query[ParsedTable]:
    """As Backend.history_query; parse raises AccountingUnavailable where the server keeps none."""
    raise NotImplementedError


def history_native_query(dialect: Dialect, job_id: str) -> Query[Mapping[str, str]]:
    """As Backend.history_native_query."""
    raise NotImplementedError
