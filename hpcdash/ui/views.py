"""Every view there is, by its name."""

from __future__ import annotations

from hpcdash.ui.chains import view as chain
from hpcdash.ui.cluster import clusters, node, nodes, queues
from hpcdash.ui.jobs import history, job, journal, script, triage
from hpcdash.ui.jobs import table as jobs
from hpcdash.ui.logs import view as log
from hpcdash.ui.metrics import view as chart
from hpcdash.ui.plugins import view as output
from hpcdash.ui.submit import view as submit
from hpcdash.ui.view import ViewSpec
from hpcdash.ui.watch import view as alerts

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
        chain.VIEW,
        journal.VIEW,
        submit.VIEW,
        output.VIEW,
    )
}
