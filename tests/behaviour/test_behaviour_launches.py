"""Requests that are launched, looked for and cleaned up, on the embedded queue and on Slurm
alike.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.queries import Answer
from hpcdash.config.settings import LaunchSettings
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.request import Request, Site, SlotType
from hpcdash.errors import CommandTimedOut, UsageError
from hpcdash.services.jobs.scripts import fetch_script
from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.recovery import reconcile
from hpcdash.services.submit.submission import SubmissionPlan
from tests.behaviour.clusters import Cluster


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a history that is waited for here."""
    monkeypatch.setattr("hpcdash.services.submit.recovery._RETRY_SECONDS", 0.2)


@pytest.fixture
def launches(cluster: Cluster, tmp_path: Path) -> Launches:
    """Launches below a folder of this test's own; of what completes nothing is kept."""
    site = Site(storage_root=str(cluster.work / f"launches-{secrets.token_hex(4)}"), keep="failed")
    return Launches(cluster.store, LaunchSettings(site), tmp_path / "state")


def wanted(launches: Launches, command: str = "true", **fields: Any) -> Request:
    return Request(
        **{"slot_type": SlotType.CPU, "site": launches.settings.site, "command": command, **fields}
    )


async def launched(cluster: Cluster, launches: Launches, planned: SubmissionPlan) -> Outcome:
    report = await cluster.actions.run(planned.plan)
    (outcome,) = await reconcile(cluster.store, planned, report)
    assert await launches.record_outcome(planned, outcome) == ""
    return outcome


async def submitted(
    cluster: Cluster, launches: Launches, one: Request, **staged: Any
) -> tuple[str, Path]:
    """(the new job, its folder)."""
    planned = await launches.plan(one, **staged)
    outcome = await launched(cluster, launches, planned)
    assert outcome.done, outcome
    return outcome.text.removeprefix("job ").partition(";")[0], Path(planned.folder)


def planted(path: str) -> Path:
    """A folder of somebody's in a launch's place."""
    folder = Path(path)
    folder.mkdir(parents=True)
    (folder / "batch.sh").write_text("#!/bin/sh\ntrue\n")
    return folder


def left(launches: Launches) -> list[str]:
    root = Path(launches.settings.site.storage_root)
    # The library of all of them is removed by hand alone.
    names = [folder.name for folder in root.iterdir()] if root.exists() else []
    return sorted(name for name in names if name != ".library")


async def test_where_others_could_replace_launches_the_sites_run_from_copies(
    cluster: Cluster, tmp_path: Path
) -> None:
    root = cluster.work / f"open-{secrets.token_hex(4)}"
    root.mkdir()
    root.chmod(0o777)
    site = Site(storage_root=str(root))
    own = Launches(cluster.store, LaunchSettings(site), tmp_path / "state")
    one = wanted(own, "", script="code/a run", name="copied")
    script = b'#!/bin/sh\necho ran "$0"; cat "$(dirname "$0")/-table"\n'
    files = {"a run": script, "-table": b"1 2 3\n"}
    with pytest.raises(UsageError, match=f"others may write to {root}, so others could replace"):
        await own.plan(one, files=files)
    launches = Launches(cluster.store, LaunchSettings(site, is_sites=True), tmp_path / "state")
    job, folder = await submitted(cluster, launches, one, files=files)
    assert (await cluster.ended(job))["state"] == "completed"
    first, rest = (await cluster.log(job)).split("\n", 1)
    where = Path(first.removeprefix("ran ").removesuffix("/files/a run"))
    assert (where.is_absolute(), rest) == (True, "1 2 3\n")
    assert where.name not in os.listdir(where.parent)
    assert root not in where.parents
    held, folder = await submitted(cluster, launches, replace(one, hold=True), files=files)
    (folder / "files" / "a run").write_text("#!/bin/sh\necho somebody else\n")
    await cluster.do("release", held)
    assert (await cluster.ended(held))["state"] == "failed"
    assert "somebody else" not in await cluster.log(held)


async def test_a_launch_runs_what_was_staged_and_leads_to_its_folder(
    cluster: Cluster, launches: Launches
) -> None:
    one = wanted(launches, "", script="code/run", name="staged")
    script = b'#!/bin/sh\necho ran "$0"; cat "$(dirname "$0")/-table"\n'
    files = {"run": script, "-table": b"1 2 3\n"}
    job, folder = await submitted(cluster, launches, one, text="# as it was written\n", files=files)
    assert (await cluster.ended(job))["state"] == "completed"
    assert folder.parent == Path(launches.settings.site.storage_root)
    assert await cluster.log(job) == f"ran {folder}/files/run\n1 2 3\n"
    assert (folder / "request.toml").read_text() == "# as it was written\n"
    assert (await fetch_script(cluster.store, job)).text.encode() == (
        folder / "batch.sh"
    ).read_bytes()
    assert (await cluster.row(job))["name"] == "staged"


async def test_a_refused_launch_leaves_nothing(cluster: Cluster, launches: Launches) -> None:
    planned = await launches.plan(wanted(launches, extra_args=("--dependency=afterwards:1",)))
    outcome = await launched(cluster, launches, planned)
    assert (outcome.done, left(launches)) == (False, [])
    assert launches.records.all() == ()


async def test_a_launch_whose_folder_cannot_be_made_is_not_submitted(
    cluster: Cluster, launches: Launches
) -> None:
    planned = await launches.plan(wanted(launches))
    folder = planted(planned.folder)
    report = await cluster.actions.run(planned.plan)
    (outcome,) = await reconcile(cluster.store, planned, report)
    assert outcome.done is False
    assert "File exists" in outcome.text
    assert "remain in" in await launches.record_outcome(planned, outcome)
    assert (folder / "batch.sh").exists()


@pytest.mark.parametrize(
    ("lost", "is_sent"), [("sh", True), ("sh", False), ("submit", True), ("submit", False)]
)
async def test_of_a_lost_answer_it_is_found_out_whether_it_was_submitted(
    cluster: Cluster, launches: Launches, monkeypatch: pytest.MonkeyPatch, lost: str, is_sent: bool
) -> None:
    send = cluster.store.act

    async def lose(command: ActionCommand) -> Answer:
        is_meant = (command.argv[0] == "sh") == (lost == "sh")
        answer = await send(command) if is_sent or not is_meant else None
        if is_meant:
            raise CommandTimedOut("no answer", argv=command.argv)
        assert answer is not None
        return answer

    planned = await launches.plan(wanted(launches, name="lost-one", hold=True))
    with monkeypatch.context() as patch:
        patch.setattr(cluster.store, "act", lose)
        report = await cluster.actions.run(planned.plan)
    (outcome,) = await reconcile(cluster.store, planned, report)
    said = await launches.record_outcome(planned, outcome)
    is_there = lost == "submit" and is_sent
    assert (outcome.done, said) == (is_there, ""), outcome
    assert left(launches) == ([Path(planned.folder).name] if is_there else [])
    if is_there:
        await cluster.do("cancel", outcome.text.removeprefix("job "))


async def test_of_what_completes_the_folder_goes_and_of_what_fails_it_stays(
    cluster: Cluster, launches: Launches
) -> None:
    well, _ = await submitted(cluster, launches, wanted(launches))
    bad, kept = await submitted(cluster, launches, wanted(launches, "exit 3"))
    tasks = parse_tasks("1-2")
    whole, _ = await submitted(cluster, launches, wanted(launches, array=tasks))
    part, half = await submitted(
        cluster, launches, wanted(launches, "test $SLURM_ARRAY_TASK_ID = 1", array=tasks)
    )
    waits, waiting = await submitted(cluster, launches, wanted(launches, hold=True))
    await cluster.all_ended(
        well, bad, *(f"{job}_{task}" for job in (whole, part) for task in (1, 2))
    )

    async def tidied() -> list[str] | None:
        await launches.remove_finished_folders()
        names = left(launches)
        return names if len(names) == 3 and len(launches.records.unsettled()) == 1 else None

    names = await cluster.until(tidied, lambda: f"three to be left of {left(launches)}")
    assert names == sorted(folder.name for folder in (kept, half, waiting))
    assert [record.job_id for record in launches.records.unsettled()] == [waits]
    await cluster.do("cancel", waits)


async def test_what_is_kept_always_is_not_asked_for(cluster: Cluster, launches: Launches) -> None:
    site = Site(storage_root=launches.settings.site.storage_root, keep="always")
    job, folder = await submitted(cluster, launches, wanted(launches, site=site))
    await cluster.ended(job)
    assert await launches.remove_finished_folders() == ()
    assert folder.is_dir()
    assert launches.records.all()[-1].job_id == job


async def test_a_folder_that_holds_something_else_by_now_is_left_and_that_is_said(
    cluster: Cluster, launches: Launches
) -> None:
    job, folder = await submitted(cluster, launches, wanted(launches))
    await cluster.ended(job)
    (folder / "SHA256SUMS").write_text("")

    async def said() -> tuple[str, ...] | None:
        return await launches.remove_finished_folders() or None

    (words,) = await cluster.until(said, lambda: f"{job} to be looked at")
    assert words == (
        f"job {job} completed, but the files remain in {folder}: the contents differ from the "
        "staged files"
    )
    assert folder.is_dir()
    assert await launches.remove_finished_folders() == ()
