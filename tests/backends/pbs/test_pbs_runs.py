"""Runs with what they used, of what a PBS server's history says."""

from __future__ import annotations

import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.history import parse_runs
from hpcdash.backends.pbs.listing import Want
from hpcdash.domain.schema import RUNS
from hpcdash.domain.spans import Span
from hpcdash.errors import AccountingUnavailable
from hpcdash.services.usage.report import build_report
from hpcdash.transport.base import CommandResult
from tests.support.pbs import StandIns
from tests.support.pbs.job_text import ENDED_JOB, answered, dsv, question

pytestmark = pytest.mark.system


def task_runs(stand_ins: StandIns, user: str | None) -> pa.Table:
    history = pbs_backend(Dialect.OPENPBS).history
    now = int(time.time())
    query = history.runs(user, 0, now, now)
    ended = subprocess.run(query.argv, capture_output=True, env=stand_ins.environment)
    return query.parse(
        CommandResult(query.argv, ended.returncode, ended.stdout, ended.stderr, 0.1)
    ).table


def test_one_s_own_runs_have_the_cpu_time_and_the_memory_of_resources_used(tmp_path: Path) -> None:
    runs = task_runs(StandIns.install(tmp_path / "pbs", "finished"), "alice")
    assert runs.schema == RUNS
    assert runs["ends_at"].null_count == 0
    (first,) = (row for row in runs.to_pylist() if row["id"] == "1.pbs01")
    # As qstat -x -f says: cput 00:00:00, mem 8604kb, walltime 29 s on 4 CPUs.
    assert (first["cpu_seconds_used"], first["memory_peak_bytes"], first["usage_source"]) == (
        0.0,
        8604 << 10,
        "accounting",
    )
    assert (first["cpus"], first["elapsed_seconds"], first["run"], first["priority"]) == (
        4,
        29,
        1,
        0,
    )


def test_time_that_walltime_lacks_was_suspended() -> None:
    ran = {"Exit_status": "0", "resources_used.walltime": "00:00:02", "Resource_List.ncpus": "2"}
    ran |= {"stime": "Sat Nov 21 04:10:00 2026", "obittime": "Sat Nov 21 04:11:01 2026"}
    lost = ran | {"substate": "93", "Exit_status": "-20"}
    lines = (
        dsv(job_id, ENDED_JOB | native)
        for job_id, native in (("1.s", ran), ("2.s", lost), ("3.s", {}))
    )
    runs = parse_runs(answered(*lines), question=question(Want.ENDED))
    rows = {row["id"]: row["suspended_seconds"] for row in runs.table.to_pylist()}
    assert rows == {"1.s": 59, "2.s": None, "3.s": 0}
    since = int(datetime(2026, 11, 21, 4, tzinfo=UTC).timestamp())
    first = runs.table.filter(pc.equal(runs.table["id"], "1.s"))
    assert build_report(first, Span(since, since + 3600)).total["cpu_seconds"] == 4


def test_a_server_without_history_says_so(tmp_path: Path) -> None:
    with pytest.raises(AccountingUnavailable):
        task_runs(StandIns.install(tmp_path / "pbs", "history-off"), None)
