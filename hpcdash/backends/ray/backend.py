"""Ray as a backend: its dashboard's HTTP API."""

from __future__ import annotations

from hpcdash.backends.base import (
    Backend,
    Capability,
    DetailPart,
    PolicyPart,
    ScriptsPart,
    SubmitPart,
)
from hpcdash.backends.ray import (
    actions,
    jobs,
    logs,
    placement_groups,
    probe,
    requests,
    tasks,
    use,
)

_CAPABILITIES = frozenset(
    {
        Capability.JOBS,
        Capability.NODES,
        Capability.QUEUES,
        Capability.HISTORY,
        Capability.DETAIL,
        Capability.LOGS,
        Capability.LIVE_LOGS,
        Capability.OTHER_LOGS,
        Capability.WORKERS,
        Capability.SCRIPT,
        Capability.KEEPS_SCRIPTS,
        Capability.CANCEL,
        Capability.DELETE,
        Capability.SUBMIT,
        Capability.FORM,
        Capability.LIVE_USE,
        Capability.RESERVATIONS,
    }
)

BACKEND = Backend(
    name="ray",
    title="Ray",
    capabilities=_CAPABILITIES,
    probe=probe.RayProbe(),
    queue=jobs.RayQueue(),
    reasons=jobs.RayReasons(),
    history=jobs.RayHistory(),
    detail=DetailPart(
        native=jobs.native_query,
        join=jobs.job_detail,
        steps=jobs.workers_query,
        workers=jobs.ended_workers_query,
        facts=jobs.job_facts,
        activity=tasks.activity_query,
    ),
    inside=use.RayInside(),
    logs=logs.RayLogs(),
    scripts=ScriptsPart(
        request_fields=requests.REQUEST_FIELDS,
        query=jobs.script_query,
        history_query=jobs.script_query,
    ),
    policy=PolicyPart(reservations=placement_groups.reservations_query),
    actions=actions.RayActions(),
    submit=SubmitPart(
        submission=actions.submission,
        resubmission=actions.resubmission,
        request=requests.submitted_request,
        without_fields=requests.WITHOUT_FIELDS,
        request_findings=requests.request_findings,
    ),
)
