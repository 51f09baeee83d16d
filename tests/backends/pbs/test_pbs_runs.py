"""Runs with what they used, of what a PBS server's history says."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest

from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.domain.schema import RUNS
from hpcdash.errors import AccountingUnavailable
from hpcdash.transport.base import CommandResult
from tests.support.pbs import StandIns

pytestmark = pytest.mark.system


def runs_of(stand_ins: StandIns, user: str | None) -> pa.Table:
    history = pbs_backend(Dialect.OPENPBS).history
    assert history.runs is not None
    now = int(time.time())
    query = history.runs(user, 0, now, now)
    ended = subprocess.run(query.argv, capture_output=True, env=stand_ins.environment)
    return query.parse(CommandResult(query.argv, ended.returncode, ended.stdout, ended.stderr, 0.1)).table


def test_one_s_own_runs_have_the_cpu_time_and_the_memory_of_resources_used(tmp_path: Path) -> None:
    runs = runs_of(StandIns.install(tmp_path / "pbs", "finished"), "alice")
    assert runs.schema == RUNS
    assert runs["ends_at"].null_count == 0
    (first,) = (row for row in runs.to_pylist() if row["id"] == "1.pbs01")
    # As qstat -x -f says: cput 00:00:00, mem 8604kb, walltime 29 s on 4 CPUs.
    assert (first["cpu_seconds_used"], first["memory_peak_bytes"], first["usage_source"]) == (
        0.0,
        8604 << 10,
        "accounting",
    )
    assert (first["cpus"], first["elapsed_seconds"], first["run"]) == (4, 29, 1)


def test_a_server_without_history_says_so(tmp_path: Path) -> None:
    with pytest.raises(AccountingUnavailable):
        runs_of(StandIns.install(tmp_path / "pbs", "history-off"), None)
