"""What a waiting job's priority is made of, and what its queue and server allow. Knows no table."""

from __future__ import annotations

from collections.abc import Mapping

from hpcdash.backends.base import Query
from hpcdash.backends.pbs.dialects import Dialect


def priority_query(dialect: Dialect, job_id: str) -> Query[Mapping[str, str]] | None:
    """As Backend.priority_query."""
    raise NotImplementedError


def queue_rules_query(dialect: Dialect, queue: str) -> Query[Mapping[str, str]] | None:
    """As Backend.queue_rules_query."""
    raise NotImplementedError
