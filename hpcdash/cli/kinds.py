"""The kinds of tables that one-shot commands print, and what each holds."""

from __future__ import annotations

from typing import Literal

from hpcdash.domain import schema

Kind = Literal["jobs", "nodes", "queues", "history"]
_SCHEMAS = {"jobs": schema.JOBS, "history": schema.JOBS, "nodes": schema.NODES, "queues": schema.QUEUES}


def contract_columns(kind: Kind) -> list[str]:
    """The columns of JSON and CSV, in their order; history has those of jobs."""
    return schema.public_names(_SCHEMAS[kind])


def rows_key(kind: Kind) -> str:
    """The key of a JSON object under which the rows stand; history gives jobs."""
    return "jobs" if kind == "history" else kind
