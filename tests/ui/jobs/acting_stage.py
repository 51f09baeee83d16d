"""A dashboard on a cluster in this process whose jobs can be acted on. Asserts nothing."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from hpcdash.assembly import cluster_pace
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.config.settings import ClusterSettings
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.poller import Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit.launches import Launches
from hpcdash.ui.app import HpcdashApp
from tests.support.scripted_transport import ScriptedTransport
from tests.support.slurm_text import Fields
from tests.ui.stage import settled

NOW = 1_795_250_000.0
PENDING: Fields = {
    "state": "PENDING",
    "reason": "Priority",
    "nodelist": "(null)",
    "timeused": "0:00",
    "starttime": "N/A",
    "endtime": "N/A",
    "tres-alloc": "N/A",
}
HELD: Fields = {**PENDING, "reason": "JobHeldUser", "prioritylong": "0"}
ENDED: Fields = {"state": "COMPLETED", "timeused": "10:00"}


def job(job_id: str, **fields: str) -> Fields:
    """What squeue says of a running job of alice's, or of a task of an array, with these fields."""
    number, _, task = job_id.partition("_")
    return {
        "jobarrayid": job_id,
        "arrayjobid": number,
        "arraytaskid": task.strip("[]") or "N/A",
        "name": f"train-{number}",
        **fields,
    }


# Two that run, an array of which one task runs and four wait, one held, one waiting.
EVERYDAY = (
    job("101", timeused="7:10:00", **{"tres-alloc": "cpu=8,mem=48G,node=1,billing=8,gres/gpu=8"}),
    job("102", timeused="7:10:00", **{"tres-alloc": "cpu=8,mem=48G,node=1,billing=8,gres/gpu=8"}),
    job("200_1", timeused="1:00:00"),
    job("200_[2-5%2]", **PENDING),
    job("301", **HELD),
    job("302", **PENDING),
)


def acting_session(transport: ScriptedTransport, folder: Path) -> ClusterSession:
    """A cluster that is asked once, or when told to; its journal is in `folder`."""
    store = ClusterStore(
        "lab",
        transport,
        (BACKEND,),
        clock=FrozenClock(NOW),
        budget=CommandBudget(600),
        user="alice",
    )
    poller = Poller(store, cluster_pace(ClusterSettings("lab", "lab")), monotonic=lambda: 0.0)
    journal = Journal(folder / "journal.jsonl", now=lambda: NOW)
    return ClusterSession(store, poller, Actions(store, journal), Launches(store), "", UTC)


def acting_app(transport: ScriptedTransport, folder: Path, **arguments: Any) -> HpcdashApp:
    return HpcdashApp([acting_session(transport, folder)], **{"fold_arrays": True, **arguments})


async def mark(pilot: Pilot[Any], *row_ids: str) -> None:
    """Mark some rows of the table that is shown."""
    pilot.app.main.view.rows.mark_all(row_ids)
    await settled(pilot)


async def point_at(pilot: Pilot[Any], row_id: str) -> None:
    """The cursor on a row."""
    assert pilot.app.main.view.rows.move_to(row_id)
    await settled(pilot)
