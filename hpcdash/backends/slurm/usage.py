"""What a Slurm job uses, what its priority is made of, and what its QoS allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdash.backends.base import Query, Usage


def usage_query(row: Mapping[str, Any]) -> Query[Usage] | None:
    raise NotImplementedError


def priority_query(job_id: str) -> Query[Mapping[str, str]]:
    raise NotImplementedError


def qos_query(qos: str) -> Query[Mapping[str, str]]:
    raise NotImplementedError
