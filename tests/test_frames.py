"""hpcdash.frames on an embedded queue: columns, dtypes, in a script and in a running loop; and what
imports pandas.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from hpcdash import frames
from hpcdash.domain.schema import JOBS, NODES, RUNS, public_names
from hpcdash.errors import HpcdashError, UsageError
from tests.support.job_rows import build_table
from tests.support.program import Program, home_with

pytestmark = pytest.mark.system
CONFIG = '[clusters.here]\ntransport = "local"\nbackend = "local"\n'
# It lasts longer than a second: what began in the present one is not in a span yet.
SCRIPT = """#!/bin/bash
#SBATCH --job-name=train
for step in 1 2 3; do echo "step $step loss 0.$step"; done
sleep 1.2
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """On an embedded queue of its own, which this process asks as well."""
    variables = {name: str(tmp_path / name.lower()) for name in ("HPCDASH_QUEUE", "HPCDASH_STATE")}
    program = Program(home_with(tmp_path / "home"), (), variables)
    program.config.parent.mkdir(parents=True)
    program.config.write_text(CONFIG)
    for name, value in program.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(program.home)
    return program


def ended(program: Program) -> str:
    """A job that has ended."""
    file = program.home / "job.sh"
    file.write_text(SCRIPT)
    job = program("submit", str(file)).text.strip()
    for _ in range(200):
        if program("show", job, "--format", "json").json["job"]["state"] in ("failed", "completed"):
            return job
    raise AssertionError(job)


def test_history_nodes_jobs_and_metrics_of_a_queue(program: Program) -> None:
    job = ended(program)
    runs = frames.history(since="1d")
    assert list(runs.columns) == public_names(RUNS)
    (run,) = runs.to_dict("records")
    assert (run["id"], run["name"], run["state"], run["run"]) == (job, "train", "completed", 1)
    assert run["ends_at"] - run["started_at"] < pd.Timedelta(minutes=5)
    assert run["usage_source"] == "accounting"
    assert list(frames.nodes().columns) == public_names(NODES)
    assert frames.jobs("here").empty
    losses = frames.metrics(job)
    assert losses["loss"].tolist() == [0.1, 0.2, 0.3]
    assert losses.index.tolist() == [1, 2, 3]
    with pytest.raises(UsageError):
        frames.history(since="soon")
    with pytest.raises(HpcdashError):
        frames.jobs("elsewhere")


async def test_it_works_where_a_loop_runs_already(program: Program) -> None:
    assert len(frames.nodes()) == 1


def test_dtypes_hold_what_is_unknown() -> None:
    frame = frames.to_frame(
        build_table({"id": "1", "state": "running"}, {"id": "2", "limit_seconds": 3600, "cpus": 4})
    )
    told = {
        name: str(frame[name].dtype)
        for name in ("id", "state", "cpus", "limit_seconds", "started_at")
    }
    assert told == {
        "id": "string",
        "state": "category",
        "cpus": "Int64",
        "limit_seconds": "timedelta64[s]",
        "started_at": "datetime64[s, UTC]",
    }
    assert frame["cpus"].isna().tolist() == [True, False]
    assert frame["limit_seconds"].isna().tolist() == [True, False]
    assert frame["limit_seconds"][1] == pd.Timedelta(hours=1)
    empty = frames.to_frame(pa.table({"a_seconds": pa.array([], pa.int64())}))
    assert str(empty["a_seconds"].dtype) == "timedelta64[s]"
    assert list(frames.to_frame(JOBS.empty_table()).columns) == JOBS.names


FIRST_SCREEN = """
import asyncio, sys
import hpcdash.cli.main, hpcdash.cli.dashboard
from hpcdash.assembly import build_replay
from hpcdash.recorded import find_case
from hpcdash.ui.app import HpcdashApp
from pathlib import Path

async def main():
    app = HpcdashApp([build_replay(find_case(Path("slurm/everyday")))])
    async with app.run_test(size=(120, 40)) as pilot:
        while not app.main.view.rows.row_count:
            await pilot.pause()
        await pilot.press("4")
        await pilot.pause()

asyncio.run(main())
print(sorted({"pandas", "plotext"} & set(sys.modules)))
"""


def test_the_way_to_the_first_screen_imports_neither_pandas_nor_plotext(program: Program) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FIRST_SCREEN],
        capture_output=True,
        text=True,
        env=program.environment,
    )
    assert (ran.stdout.strip(), ran.returncode) == ("[]", 0), ran.stderr
