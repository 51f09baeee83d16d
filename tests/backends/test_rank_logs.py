"""Where the logs of a job's ranks are found: names and files are whoever's the folder is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from hpcdash.backends.job_detail import JobDetail, LogFiles, OtherLog
from hpcdash.backends.rank_logs import rank_logs_query
from hpcdash.domain import schema
from hpcdash.errors import CommandError
from hpcdash.transport.base import CommandResult
from tests.support.records import for_each


def detail(job_id: str) -> JobDetail:
    return JobDetail(pa.table({"id": [job_id]}, schema=pa.schema([schema.JOBS.field("id")])), {})


def found(job_id: str, files: LogFiles) -> tuple[OtherLog, ...]:
    query = rank_logs_query(detail(job_id), files)
    assert query is not None
    done = subprocess.run(query.argv, capture_output=True)
    return query.parse(CommandResult(query.argv, done.returncode, done.stdout, done.stderr, 0.0))


@pytest.mark.system
def test_files_of_its_ranks_are_listed_by_number_and_nothing_else_that_is_there(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "-a folder;$(touch owned)\nwith lines"
    folder.mkdir()
    for rank in (0, 2, 10):
        (folder / f"7_3.rank-{rank}.out").touch()
    planted = (
        "7_3.rank-01.out",
        "7_3.rank-1\n.out",
        "7_3.rank-.out",
        "7_3.rank-5.out.out",
        "8.rank-1.out",
        "7_3.out",
    )
    for name in planted:
        (folder / name).touch()
    (folder / "7_3.rank-3.out").symlink_to("/etc/passwd")
    (folder / "7_3.rank-4.out").mkdir()
    (folder / "7_3.rank-4.out" / "7_3.rank-6.out").touch()
    logs = found("7_3", LogFiles(f"{folder}/7_3.out", f"{folder}/7_3.err"))
    assert [log.name for log in logs] == ["rank-0", "rank-2", "rank-10"]
    assert logs[1].files == LogFiles(f"{folder}/7_3.rank-2.out", f"{folder}/7_3.rank-2.err")
    assert found("7_3", logs[1].files) == logs
    assert not Path("owned").exists()


@pytest.mark.system
def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot search for the logs"):
        found("7", LogFiles(f"{tmp_path}/gone/7.out", None))


@for_each(
    ("job_id", "path"),
    [
        ("7", None),
        ("7", "/a/slurm-7.out"),
        ("7", "7.out"),
        ("7", "/runs/1/out"),
        ("*", "/a/*.out"),
        ("7", "/a/7"),
    ],
)
def test_beside_a_log_that_no_launch_writes_none_are_looked_for(
    job_id: str, path: str | None
) -> None:
    assert rank_logs_query(detail(job_id), LogFiles(path, None)) is None
