"""Nodes and their vnodes, from pbsnodes, read into the columns of domain.schema.NODES."""

from __future__ import annotations

from hpcdash.backends.base import ParsedTable, Query
from hpcdash.backends.pbs.dialects import Dialect


def nodes_query(dialect: Dialect) -> Query[ParsedTable]:
    raise NotImplementedError
