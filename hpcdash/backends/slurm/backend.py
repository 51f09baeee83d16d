"""Slurm as a backend, 20.11 and later; measured on 22.05."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpcdash.backends.base import (
    BATCH_CAPABILITIES,
    Backend,
    Capability,
    InsidePart,
    Probe,
)
from hpcdash.backends.queries import ParsedTable, Query, Row
from hpcdash.backends.slurm import (
    actions,
    detail,
    history,
    jobs,
    log_files,
    policy,
    probe,
    reasons,
    submit,
)
from hpcdash.backends.slurm.clusters import (
    ClusterPart,
    Clusters,
    named_rows,
    on_cluster,
    query_on,
)

if TYPE_CHECKING:
    from hpcdash.backends.inside import InsideCommand, InsideStep


class _Probe(probe.SlurmProbe):
    """Detects Slurm of any site."""

    needs_answer = True

    def __init__(self, cluster: str = "") -> None:
        """`cluster` is the only one to use, '' for the one that SLURM_CLUSTERS names there."""
        self._cluster = cluster

    def query(self) -> Query[Probe]:
        query = super().query()
        if not self._cluster:
            return query
        return replace(query, argv=("env", f"SLURM_CLUSTERS={self._cluster}", *query.argv))

    def backend(self, found: Probe) -> Backend:
        return slurm_backend(found)


class _History(history.SlurmHistory):
    """Ended jobs, and all runs of each."""

    def runs(self, user: str | None, since: int, until: int, now: int) -> Query[ParsedTable]:
        from hpcdash.backends.slurm.runs import runs_query

        counts_gpus = self.clusters.counts_gpus
        return self._on_clusters(runs_query(user, since, until, counts_gpus=counts_gpus))

    def runs_at(self, user: str | None, at: int) -> Query[ParsedTable]:
        from hpcdash.backends.slurm.runs import runs_at_query

        return self._on_clusters(runs_at_query(user, at, counts_gpus=self.clusters.counts_gpus))

    def _on_clusters(self, query: Query[ParsedTable]) -> Query[ParsedTable]:
        if several := self.clusters.several:
            return query_on(query, several)
        return named_rows(query, self.clusters.default)


class _Inside(ClusterPart, InsidePart):
    def step(self, row: Row, command: InsideCommand) -> InsideStep:
        from hpcdash.backends.slurm.inside import inside_step

        plain, cluster = self.clusters.plain_row(row)
        step = inside_step(plain, command)
        return replace(step, argv=on_cluster(step.argv, cluster))


_CAPABILITIES = BATCH_CAPABILITIES | {
    Capability.EXPECTED_START,
    Capability.KEEPS_SCRIPTS,
    Capability.LIVE_LOGS,
    Capability.OTHER_LOGS,
    Capability.SHARES,
    Capability.RESERVATIONS,
}


def slurm_backend(found: Probe | None = None, *, cluster: str = "") -> Backend:
    """Return the backend of a site; None: before its probe, its TRES are taken to count GPUs.

    The probe of a `cluster` finds that one of the site's clusters.
    """
    clusters = (
        Clusters((cluster,) if cluster else ())
        if found is None
        else Clusters(
            found.clusters,
            found.cluster,
            counts_gpus=found.counts_gpus is not False,
            has_exclusive=probe.release(found) >= (26, 5),
        )
    )
    return Backend(
        name="slurm",
        title="Slurm",
        capabilities=_CAPABILITIES,
        probe=probe.SlurmProbe() if found else _Probe(cluster),
        queue=jobs.SlurmQueue(clusters),
        reasons=reasons.SlurmReasons(),
        history=_History(clusters),
        detail=detail.SlurmDetail(clusters),
        inside=_Inside(clusters),
        logs=log_files.SlurmLogs(clusters),
        scripts=detail.SlurmScripts(clusters),
        policy=policy.SlurmPolicy(clusters),
        actions=actions.SlurmActions(clusters),
        submit=submit.SlurmSubmit(clusters),
        on_cluster=lambda name: slurm_backend(cluster=name),
    )


BACKEND = slurm_backend()
