"""Launches that programs ask for: what a crash leaves is found out, and only an account's own files
are read for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from hpcdash.assembly import build_queue_session, cluster_pace
from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.backends.base import Probe
from hpcdash.backends.job_detail import JobDetail, LogFiles
from hpcdash.backends.queries import JobScope
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.config.settings import ClusterSettings
from hpcdash.domain.request import Request, SlotType
from hpcdash.domain.schema import JOBS
from hpcdash.errors import NoSuchJob, UnreachableError, UsageError
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.poller import Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions, Plan, Report
from hpcdash.services.jobs.launch_status import LaunchStatus
from hpcdash.services.logs.locate import LogPlace
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit import launch_service, recovery
from hpcdash.services.submit.launch_folders import fetch_ended
from hpcdash.services.submit.launch_records import LaunchRecord, LaunchRecords
from hpcdash.services.submit.launch_service import (
    KeyReused,
    LaunchService,
    NoLog,
    NoSuchLaunch,
    NotAllowed,
)
from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.served_launches import ServedLaunch, ServedLaunches, Stage
from tests.embedded.queue_lab import QueueLab
from tests.support.job_rows import job_row
from tests.support.scripted_transport import ScriptedTransport

HELD = Request(command="echo hello", name="kept", slot_type=SlotType.CPU, hold=True)


class CrashingActions(Actions):
    """The process ends before a plan runs, or once its commands were sent."""

    runs = True

    async def run(self, plan: Plan, *told: Any, **heard: Any) -> Report:
        if self.runs:
            report = await super().run(plan)
            # Nobody has noted how it ended.
            lines = self.journal.path.read_bytes().splitlines(keepends=True)
            self.journal.path.write_bytes(
                b"".join(line for line in lines if b'"event":"after"' not in line)
            )
            assert report.outcomes[0].done
        raise asyncio.CancelledError


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[QueueLab]:
    queue = QueueLab(tmp_path / "queue", tmp_path / "work")
    yield queue
    queue.end()


@pytest.fixture
def session(lab: QueueLab, tmp_path: Path) -> Callable[[], ClusterSession]:
    """A session as another process has it."""
    return lambda: build_queue_session(lab.folder, name="local", state_folder=tmp_path / "state")


@pytest.mark.system
@pytest.mark.parametrize("was_sent", [True, False])
async def test_what_a_crash_leaves_is_launched_once(
    session: Callable[[], ClusterSession], monkeypatch: pytest.MonkeyPatch, was_sent: bool
) -> None:
    monkeypatch.setattr(recovery, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr("hpcdash.services.state.journal.is_alive", lambda pid, started: False)
    before = session()
    actions = CrashingActions(before.store, before.actions.journal)
    actions.runs = was_sent
    crashing = LaunchService(replace(before, actions=actions))
    await before.store.open()
    accounts = (crashing.own_account,)
    with pytest.raises(asyncio.CancelledError):
        await crashing.submit("ci", accounts, HELD, {}, "key")
    # Where the journal has no word of it, another process may be about to write one.
    monkeypatch.setattr(launch_service, "_UNNOTED_SECONDS", 0.0)
    after = session()
    service = LaunchService(after)
    await after.store.open()
    [left] = await service.account_launches(accounts)
    assert (left.stage, (await service.state(left)).status) == (
        Stage.SUBMITTING,
        LaunchStatus.UNKNOWN,
    )
    await service.reconcile()
    found = await service.submit("ci", accounts, HELD, {}, "key")
    assert (found.stage, found.launch_id == left.launch_id) == (Stage.SUBMITTED, was_sent)
    assert (await service.state(found)).status == LaunchStatus.PENDING
    rows = (
        await after.store.run_query(after.store.backend.queue.jobs(JobScope()))
    ).table.to_pylist()
    assert [row["id"] for row in rows] == [found.job_id]
    with pytest.raises(KeyReused):
        await service.submit("ci", accounts, replace(HELD, command="other"), {}, "key")
    # Another client's key is another key.
    assert (await service.submit("night", accounts, HELD, {}, "key")).job_id != found.job_id
    assert (await service.terminate(found)).done
    await before.store.close()
    await after.store.close()


@pytest.mark.system
async def test_what_surely_did_not_arrive_may_be_sent_again_with_its_key(
    session: Callable[[], ClusterSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = session()
    service = LaunchService(there)
    await there.store.open()
    accounts = (service.own_account,)
    run = there.actions.run

    async def cut(plan: Plan, **heard: Any) -> Report:
        return Report(
            plan, (Outcome(plan.request.job_ids[0], False, "never received: the line was cut"),)
        )

    monkeypatch.setattr(there.actions, "run", cut)
    with pytest.raises(UnreachableError, match="the line was cut"):
        await service.submit("ci", accounts, HELD, {}, "key")
    assert await service.account_launches(accounts) == []
    monkeypatch.setattr(there.actions, "run", run)
    found = await service.submit("ci", accounts, HELD, {}, "key")
    with pytest.raises(NoSuchLaunch):
        await service.find(found.launch_id, ("somebody-else",))
    as_another = replace(
        HELD, site=replace(HELD.site, run_as="another"), said=frozenset({"site.run_as"})
    )
    with pytest.raises(NotAllowed):
        await service.submit("ci", accounts, as_another, {})
    assert (await service.terminate(found)).done
    await there.store.close()


# -- launches of other accounts


async def test_a_job_that_the_scheduler_hides_is_known_to_nobody_and_no_error() -> None:
    async def poll(query: object) -> None:
        # qstat of PBS, where query_other_jobs is off.
        raise NoSuchJob("this job has ended")

    store = SimpleNamespace(probe=None, backend=SLURM, poll=poll)
    assert (await fetch_ended(cast("Any", store), ["7"])).num_rows == 0


def slurm_session(folder: Path) -> ClusterSession:
    store = ClusterStore(
        "lab", ScriptedTransport(), (SLURM,), clock=SystemClock(), budget=CommandBudget(600)
    )
    store.probe = Probe("launcher", "22.05.8", commands={"scancel": "/opt/slurm/bin/scancel"})
    poller = Poller(store, cluster_pace(ClusterSettings("lab", "lab")))
    actions = Actions(store, Journal(folder / "journal.jsonl"))
    return ClusterSession(store, poller, actions, Launches(store, None, folder))


def launch_of_bob(service_folder: Path) -> ServedLaunch:
    record = LaunchRecord(
        "/launches/x-1", "sums", "7", "x", "always", "bob", 1, 1.0, 'command = "id"\n'
    )
    launch = ServedLaunch(
        launch_id="0" * 32,
        client="ci",
        key=None,
        account="bob",
        at=1.0,
        stage=Stage.SUBMITTED,
        digest="",
        mark="hpcdash:1",
        record=record,
    )
    LaunchRecords(service_folder, "lab").launched(record)
    ServedLaunches(service_folder, "lab").add(launch)
    return launch


@pytest.mark.parametrize(
    ("path", "user", "refusal"),
    [
        ("/launches/x-1/7.out", "bob", None),
        # Its owner may have named any file as the output of the job.
        ("/home/launcher/.config/hpcdash/api-tokens.toml", "bob", NotAllowed),
        ("/launches/x-1/../../home/launcher/key", "bob", NotAllowed),
        ("/launches/x-1/sub/7.out", "bob", NotAllowed),
        ("/launches/x-1/7.out\n", "bob", NotAllowed),
        ("/launches/x-1/7.out", "carol", NoLog),
    ],
)
async def test_of_another_account_s_job_only_its_own_folder_is_read_and_as_that_account(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    user: str,
    refusal: type[Exception] | None,
) -> None:
    session = slurm_session(tmp_path)
    launch = launch_of_bob(tmp_path)

    async def located(store: ClusterStore, job_id: str) -> LogPlace:
        row = job_row(job_id, "running", user=user)
        return LogPlace(job_id, JobDetail(JOBS.empty_table(), {}), row, LogFiles(path, None))

    monkeypatch.setattr(launch_service, "locate_logs", located)
    service = LaunchService(session)
    if refusal is not None:
        with pytest.raises(refusal):
            await service.log_file(launch, is_stderr=False)
        return
    file = await service.log_file(launch, is_stderr=False)
    transport = session.store.transport
    assert isinstance(transport, ScriptedTransport)
    transport.answers["sudo"] = (3, b"", b"hpcdash-launch: no file 7.out")
    assert (await file.read(0, 10)).stat.is_missing
    [command] = transport.ran("sudo")
    assert command[:4] == ("sudo", "-n", "-u", "bob")


async def test_a_job_of_another_account_is_cancelled_as_that_account(tmp_path: Path) -> None:
    actions = slurm_session(tmp_path).actions
    [command] = actions.plan(ActionRequest(Verb.CANCEL, ("7",)), run_as="bob").commands
    assert command.argv == ("sudo", "-n", "-u", "bob", "/opt/slurm/bin/scancel", "-v", "7")
    with pytest.raises(UsageError, match="cannot run this as bob"):
        actions.plan(ActionRequest(Verb.HOLD, ("7",)), run_as="bob")
