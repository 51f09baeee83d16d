"""Job 15 and job 15@lab2 of one Slurm site are two jobs in everything that is stored or joined."""

from __future__ import annotations

from pathlib import Path

from hpcdash.client.tracking import TrackedJob, _update_jobs
from hpcdash.domain.dependencies import parse_dependency, waited_for_by, waits_for
from hpcdash.domain.switches import SwitchKind
from hpcdash.services.chains import ChainReader
from hpcdash.services.state.submitted_scripts import ScriptStore
from hpcdash.services.submit.launch_folders import LivingJobs
from hpcdash.services.submit.launch_records import LaunchedCheckpoints, LaunchRecord, LaunchRecords
from hpcdash.services.switches.names import SwitchMemory
from tests.support.job_rows import build_table, job_row
from tests.support.scripted_transport import ScriptedTransport
from tests.ui.jobs.acting_stage import acting_session

_HERE, _THERE = "15", "15@lab2"


def launch(job_id: str) -> LaunchRecord:
    request = f'command = ":"\ncheckpoints = "/ckpt/{job_id}"\n'
    return LaunchRecord(f"/l/{job_id}", "", job_id, "train", "14d", "", 1, 1.0, request)


def test_a_launch_is_found_by_its_own_cluster(tmp_path: Path) -> None:
    records = LaunchRecords(tmp_path, "lab")
    for job_id in (_HERE, _THERE):
        records.launched(launch(job_id))
    for job_id in (_HERE, _THERE):
        found = records.find_by_job(job_id, "train")
        assert found is not None
        assert found.job_id == job_id
    of_task = records.find_by_job("15_3@lab2", "train")
    assert of_task is not None
    assert of_task.job_id == _THERE
    checkpoints = LaunchedCheckpoints(tmp_path, "lab")
    assert [checkpoints.folder(job_row(one, work_dir="/w")) for one in (_HERE, _THERE)] == [
        "/ckpt/15",
        "/ckpt/15@lab2",
    ]


def test_the_folder_of_an_ended_job_does_not_stay_for_a_job_of_the_other_cluster() -> None:
    living = LivingJobs((job_row(_THERE, "running", name="other"),), frozenset({_THERE}), ())
    assert living.reason_to_stay(launch(_HERE)) == ""
    assert living.reason_to_stay(launch(_THERE)) == "job 15@lab2 has not ended"


def test_a_switch_is_remembered_for_its_own_cluster(tmp_path: Path) -> None:
    memory = SwitchMemory(tmp_path, "lab")
    memory.remember(SwitchKind.KILL, _HERE, "train", "alice", path="/here")
    memory.remember(SwitchKind.KILL, _THERE, "train", "alice", path="/there")
    for job_id, path in ((_HERE, "/here"), (_THERE, "/there"), ("15_2@lab2", "/there")):
        found = memory.find(SwitchKind.KILL, job_id, "train", "alice")
        assert found is not None
        assert found.path == path


def test_a_saved_script_is_of_its_own_cluster(tmp_path: Path) -> None:
    scripts = ScriptStore(tmp_path)
    scripts.keep("lab", _HERE, b"here", 1_795_000_000)
    scripts.keep("lab", _THERE, b"there", 1_795_000_100)
    found = [scripts.find("lab", job_id) for job_id in (_HERE, _THERE, "15_3@lab2")]
    assert [one and one.script for one in found] == [b"here", b"there", b"there"]
    assert scripts.find("lab", "15@lab3") is None


def test_a_client_s_job_has_the_state_of_its_own_cluster() -> None:
    table = build_table(
        job_row(_HERE, "running", _number=15), job_row(_THERE, "completed", _number=15)
    )
    here, there = (TrackedJob(job_id, None) for job_id in (_HERE, _THERE))
    _update_jobs(table, [here, there])
    assert (here.state(None), there.state(None)) == ("running", "completed")


def test_conditions_are_about_jobs_of_the_same_cluster() -> None:
    rows = [job_row("14@lab2", "running", name="first")]
    [branch] = waits_for(parse_dependency("afterok:14"), rows)
    assert (branch.name, dict(branch.states)) == ("first", {"running": 1})
    followers = waited_for_by("14@lab2", None, [job_row(_THERE, "pending", "afterok:14")])
    assert [one.job_id for one in followers] == [_THERE]


async def test_a_chain_has_jobs_of_one_cluster(tmp_path: Path) -> None:
    """The command of another cluster's chain names that cluster."""
    transport = ScriptedTransport()
    reader = ChainReader(acting_session(transport, tmp_path).store, "15@lab2")
    rows = [
        job_row(_HERE, "running", _number=15),
        job_row("16", "pending", "afterok:15", _number=16),
        job_row(_THERE, "running", _number=15),
        job_row("16@lab2", "pending", "afterok:15", _number=16),
    ]
    chain = reader._find([build_table(*rows)])
    assert [unit.job_id for unit in chain.units] == [_THERE, "16@lab2"]
    here = ChainReader(reader.store, _HERE)._find([build_table(*rows)])
    assert [unit.job_id for unit in here.units] == [_HERE, "16"]
