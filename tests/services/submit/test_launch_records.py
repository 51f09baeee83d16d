"""Where a job saves, by the request that it was launched with from here."""

from __future__ import annotations

from pathlib import Path

from hpcdash.services.state.records import LaunchRecord
from hpcdash.services.submit.launch_records import LaunchedCheckpoints, LaunchRecords
from tests.support.job_rows import job_row


def test_the_folder_is_that_of_the_newest_launch_of_the_number_and_name_as_the_job_sees_it(tmp_path: Path) -> None:
    folders = LaunchedCheckpoints(tmp_path, "here")

    def launched(job_id: str, request: str, cluster: str = "here") -> None:
        LaunchRecords(tmp_path, cluster).launched(LaunchRecord("", "", job_id, "train", "", "", 1, 0.0, request))

    def folder(job_id: str, name: str = "train") -> str:
        return folders.folder({**job_row(job_id, "running", work_dir="/home/ada"), "name": name})

    assert folder("7") == ""
    launched("7", 'checkpoints = "/scratch/old"')
    launched("7.server", 'checkpoints = "/scratch/50%%"')
    launched("8", 'checkpoints = "saved"')
    launched("9", 'checkpoints = "task-%a"\nwork_dir = "/scratch/run"')
    launched("10", "checkpoints = ")
    launched("11", 'command = "true"')
    launched("12", 'checkpoints = "/elsewhere"', cluster="there")
    assert (folder("7"), folder("8")) == ("/scratch/50%", "/home/ada/saved")
    assert (folder("9_3"), folder("9[4].server"), folder("9_[5-7]")) == (
        "/scratch/run/task-3",
        "/scratch/run/task-4",
        "",
    )
    assert [folder(job_id) for job_id in ("10", "11", "12", "13")] == [""] * 4
    assert folder("7", "another") == ""
