"""Queues, from `qstat -Qf` and the server's own settings, read into the columns of domain.schema.QUEUES."""

from __future__ import annotations

from hpcdash.backends.base import ParsedTable, Query
from hpcdash.backends.pbs.dialects import Dialect


def queues_query(dialect: Dialect) -> Query[ParsedTable]:
    raise NotImplementedError
