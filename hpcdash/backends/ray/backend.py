"""Ray as a backend: its dashboard's HTTP API."""

from __future__ import annotations

from hpcdash.backends.base import (
    Backend,
    Capability,
)
from hpcdash.backends.ray import (
    actions,
    jobs,
    logs,
    placement_groups,
    probe,
    submit,
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
        Capability.FORWARD,
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
    detail=jobs.RayDetail(),
    inside=use.RayInside(),
    logs=logs.RayLogs(),
    scripts=jobs.RayScripts(),
    policy=placement_groups.RayPolicy(),
    actions=actions.RayActions(),
    submit=submit.RaySubmit(),
)
