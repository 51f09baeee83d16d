"""A backend fills in what its scheduler has; a cluster with one that fills in as little as it can
is still of use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.base import Backend, Capability, DetailPart, Probe, ProbePart, QueuePart
from hpcdash.backends.job_detail import LogFiles
from hpcdash.backends.queries import JobScope, ParsedTable, Query
from hpcdash.backends.submissions import Submission
from hpcdash.domain.demand import Demand
from hpcdash.domain.offers import Offers
from hpcdash.domain.schema import JOBS
from hpcdash.domain.tables import Kind
from hpcdash.errors import AccountingUnavailable, UsageError
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.logs.locate import fetch_log_files
from hpcdash.transport.local import LocalTransport

pytestmark = pytest.mark.system

ROW: dict[str, Any] = {
    **dict.fromkeys(JOBS.names),
    "id": "7",
    "name": "train",
    "user": "alice",
    "state": "running",
    "stdout_path": "/home/alice/7.out",
    "stderr_path": "/home/alice/7.out",
    "_number": 7,
    "_tasks": 1,
}


class SmallProbe(ProbePart):
    def query(self) -> Query[Probe]:
        return Query(("true",), lambda answer: Probe("alice", "1"))


class SmallQueue(QueuePart):
    def jobs(self, scope: JobScope) -> Query[ParsedTable]:
        return Query(("true",), lambda answer: ParsedTable(pa.Table.from_pylist([ROW], JOBS)))


class SmallDetail(DetailPart):
    def native(self, job_id: str) -> Query[Mapping[str, str]]:
        return Query(("true",), lambda answer: {"Entrypoint": "python train.py"})


BACKEND = Backend(
    name="small",
    title="Small",
    capabilities=frozenset({Capability.JOBS, Capability.DETAIL}),
    probe=SmallProbe(),
    queue=SmallQueue(),
    detail=SmallDetail(),
)


def test_a_part_without_what_every_scheduler_has_is_refused() -> None:
    for part, method in ((ProbePart, "query"), (QueuePart, "jobs"), (DetailPart, "native")):
        with pytest.raises(TypeError, match=method):
            type("Lacking", (part,), {})()


@pytest.fixture
async def store() -> AsyncIterator[ClusterStore]:
    made = ClusterStore(
        "here", LocalTransport(), (BACKEND,), clock=SystemClock(), budget=CommandBudget(1000)
    )
    await made.open()
    yield made
    await made.close()


async def test_its_jobs_are_listed_and_it_has_no_nodes_and_no_queues(store: ClusterStore) -> None:
    assert (await store.fetch(Kind.EVERYONE)).table["id"].to_pylist() == ["7"]
    assert (await store.fetch(Kind.NODES)).table.num_rows == 0
    assert (await store.fetch(Kind.QUEUES)).table.num_rows == 0


async def test_it_is_said_that_it_keeps_no_history(store: ClusterStore) -> None:
    with pytest.raises(AccountingUnavailable, match="keeps no history"):
        await store.fetch(Kind.HISTORY)


async def test_a_job_s_logs_are_where_its_row_says(store: ClusterStore) -> None:
    detail = await store.fetch_detail("7")
    assert detail.native == {"Entrypoint": "python train.py"}
    assert await fetch_log_files(store, "7", detail) == LogFiles("/home/alice/7.out", None)


def test_what_it_cannot_do_is_refused_and_what_it_does_not_tell_is_not_asked_for() -> None:
    with pytest.raises(UsageError, match="does not support that"):
        BACKEND.actions.commands(ActionRequest(Verb.CANCEL, ("7",)))
    with pytest.raises(UsageError, match="does not support that"):
        BACKEND.submit.submission(Submission(b"#!/bin/sh\n", "a.sh"))
    assert BACKEND.scripts.writer() is None
    assert BACKEND.policy.qos("normal") is None
    assert BACKEND.submit.start_estimate(Submission(b"#!/bin/sh\n", "a.sh")) is None
    assert BACKEND.reasons.hint("pending", "Resources") == ""
    assert BACKEND.detail.variables(ROW) == {}


def test_its_scripts_hold_no_directives() -> None:
    reader = BACKEND.scripts.reader()
    assert reader.lint_script(b"#!/bin/sh\n#SBATCH --nodes=many\n", Offers()) == ()
    assert reader.script_demand(b"#!/bin/sh\n#SBATCH --nodes=2\n") == Demand()
    assert reader.place_options("gpu", 60) == ()
