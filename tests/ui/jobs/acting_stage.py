"""A cluster whose jobs can be acted on, in this process: notes what it is told to do, and says no where told to."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.cli.build import pace_of
from hpcdash.config.settings import ClusterSettings
from hpcdash.errors import HpcdashError, without_env
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.poller import Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.journal import Journal
from hpcdash.transport.base import CommandResult
from hpcdash.ui.app import HpcdashApp
from tests.support.scripted_transport import ScriptedTransport
from tests.support.slurm_text import Fields
from tests.ui.stage import settled

NOW = 1_795_250_000.0
_IDS = re.compile(r"(?:jobid=)?([0-9].*)")
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


class ActingTransport(ScriptedTransport):
    """Answers scancel and scontrol as Slurm does. `refused` maps an id to Slurm's words; `gate` is awaited first."""

    def __init__(self, *rows: Fields) -> None:
        super().__init__()
        self.mine = list(rows)
        self.everyone = list(rows)
        self.acted: list[tuple[str, ...]] = []
        self.refused: dict[str, str] = {}
        self.lost: HpcdashError | None = None
        self.gate: asyncio.Event | None = None

    async def run(self, argv: tuple[str, ...], **limits: Any) -> CommandResult:
        words = without_env(argv)
        if not (words[0] in ("scancel", "timeout") or (words[0] == "scontrol" and "show" not in words)):
            return await super().run(argv, **limits)
        self.acted.append(words)
        if self.gate is not None:
            await self.gate.wait()
        if self.lost is not None:
            raise self.lost
        ids = [found[1] for word in words[1:] if (found := _IDS.fullmatch(word))]
        ids = [job_id for word in ids for job_id in re.split(r",(?![^\[]*\])", word)]
        bad = {job_id: said for job_id, said in self.refused.items() if job_id in ids}
        if words[0] == "scontrol":
            said = [f"{why} for job {job_id}" for job_id, why in bad.items()]
        elif words[0] == "timeout":
            said = [f"scancel: Signal 10 to job {job_id}" for job_id in ids if job_id not in bad]
        else:
            said = [f"scancel: Terminating job {job_id}" for job_id in ids]
            said += [f"scancel: error: Kill job error on job id {job_id}: {why}" for job_id, why in bad.items()]
        return CommandResult(argv, 1 if bad else 0, b"", "\n".join(said).encode(), 0.01)


def acting_session(transport: ActingTransport, folder: Path) -> ClusterSession:
    """A cluster that is asked once, or when told to; its journal is in `folder`."""
    store = ClusterStore("lab", transport, (BACKEND,), clock=FrozenClock(NOW), budget=CommandBudget(600), user="alice")
    poller = Poller(store, pace_of(ClusterSettings("lab", "lab")), monotonic=lambda: 0.0)
    journal = Journal(folder / "journal.jsonl", now=lambda: NOW)
    return ClusterSession(store, poller, Actions(store, journal), "", UTC)


def acting_app(transport: ActingTransport, folder: Path, **arguments: Any) -> HpcdashApp:
    return HpcdashApp([acting_session(transport, folder)], **{"fold_arrays": True, **arguments})


async def mark(pilot: Pilot[Any], *row_ids: str) -> None:
    """Mark some rows of the table that is shown."""
    pilot.app.main.view.rows.mark_all(row_ids)
    await settled(pilot)


async def point_at(pilot: Pilot[Any], row_id: str) -> None:
    """The cursor on a row."""
    assert pilot.app.main.view.rows.move_to(row_id)
    await settled(pilot)
