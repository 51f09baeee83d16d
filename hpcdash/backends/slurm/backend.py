"""Slurm as hpcdash's backend interface: names the pieces, holds no state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from hpcdash.backends.base import Capability, JobDetail, JobScope, ParsedTable, Probe, Query
from hpcdash.backends.slurm import detail, history, jobs, nodes, probe, queues, reasons


class SlurmBackend:
    """Implements hpcdash.backends.base.Backend for Slurm 20.11 and later; measured on 22.05."""

    name = "slurm"
    title = "Slurm"
    capabilities = frozenset(Capability)

    def probe_query(self) -> Query[Probe]:
        return probe.probe_query()

    def jobs_query(self, scope: JobScope) -> Query[ParsedTable]:
        return jobs.jobs_query(scope)

    def nodes_query(self) -> Query[ParsedTable]:
        return nodes.nodes_query()

    def queues_query(self) -> Query[ParsedTable]:
        return queues.queues_query()

    def history_query(self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()) -> Query[ParsedTable]:
        return history.history_query(user, since_seconds, job_ids)

    def native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        return detail.native_query(job_id)

    def history_native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        return history.history_native_query(job_id)

    def job_detail(self, row: pa.Table, native: Mapping[str, str]) -> JobDetail:
        return detail.job_detail(row, native)

    def reason_hint(self, state: str, reason: str | None) -> str:
        return reasons.reason_hint(state, reason)
