"""Every view there is, by its name."""

from __future__ import annotations

from hpcdash.ui.views import (
    alerts,
    chart,
    clusters,
    history,
    job,
    jobs,
    journal,
    log,
    node,
    nodes,
    queues,
    script,
    submit,
    train,
    triage,
)
from hpcdash.ui.views.base import ViewSpec

SPECS: dict[str, ViewSpec] = {
    spec.name: spec
    for spec in (
        jobs.VIEW,
        nodes.VIEW,
        queues.VIEW,
        history.VIEW,
        alerts.VIEW,
        clusters.VIEW,
        job.VIEW,
        node.VIEW,
        log.VIEW,
        chart.VIEW,
        script.VIEW,
        triage.VIEW,
        train.VIEW,
        journal.VIEW,
        submit.VIEW,
    )
}
