"""The batch script as Slurm has it."""

from __future__ import annotations

from hpcdash.backends.base import Query, Script


def script_query(job_id: str) -> Query[Script]:
    raise NotImplementedError


def history_script_query(job_id: str) -> Query[Script]:
    raise NotImplementedError
