"""Functions and requests that run on clusters, from Python: submit, wait, fetch results.

    import hpcdash

    @hpcdash.task(gpus=1, time="2h")
    def train(seed, lr=1e-3):
        ...
        return loss

    cluster = hpcdash.connect("juno")
    job = train.submit(1, lr=3e-4)
    job.result()

What waits for the cluster has a twin for event loops, with an `a` before its name: `await
job.aresult()`. Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcdash.client.cluster import Cluster as Cluster
    from hpcdash.client.cluster import aconnect as aconnect
    from hpcdash.client.cluster import connect as connect
    from hpcdash.client.executor import Executor as Executor
    from hpcdash.client.job import Job as Job
    from hpcdash.client.job import JobArray as JobArray
    from hpcdash.client.results import JobFailed as JobFailed
    from hpcdash.domain.request import Request as Request

_MODULES = {
    "Cluster": "hpcdash.client.cluster",
    "Executor": "hpcdash.client.executor",
    "Job": "hpcdash.client.job",
    "JobArray": "hpcdash.client.job",
    "JobFailed": "hpcdash.client.results",
    "Request": "hpcdash.domain.request",
    "aconnect": "hpcdash.client.cluster",
    "connect": "hpcdash.client.cluster",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
