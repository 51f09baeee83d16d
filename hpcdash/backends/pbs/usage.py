"""What a job used of what it was given: resources_used of `qstat -f`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdash.backends.base import Query, Usage
from hpcdash.backends.pbs.dialects import Dialect


def usage_query(dialect: Dialect, row: Mapping[str, Any]) -> Query[Usage] | None:
    """As Backend.usage_query."""
    raise NotImplementedError
