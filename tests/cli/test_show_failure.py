"""`hpcdash show` of a job that failed tells why, in words and for machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdash.domain.schema import JOBS, public_names
from tests.e2e.program import Program, home_with

FAILING = """#!/bin/bash
#SBATCH --error=failed.err
echo started
for number in $(seq 200); do echo "step $number" >&2; done
exec python3 -c 'raise ValueError("nan in the loss")'
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """On an embedded queue of its own."""
    return Program(
        home_with(tmp_path / "home"),
        ("--local", "--backend", "local"),
        {"HPCDASH_QUEUE": str(tmp_path / "queue"), "HPCDASH_STATE": str(tmp_path / "state")},
    )


def submitted(program: Program, script: str) -> str:
    """A job that has ended."""
    file = program.home / "job.sh"
    file.write_text(script)
    job = program("submit", str(file)).text.strip()
    for _ in range(200):
        if program("show", job, "--format", "json").json["job"]["state"] in ("failed", "completed"):
            return job
    raise AssertionError(job)


def test_the_line_that_says_why_and_the_end_of_the_log_are_printed(program: Program) -> None:
    job = submitted(program, FAILING)
    lines = program("show", job).text.splitlines()
    assert "  stderr says   ValueError: nan in the loss" in lines
    end = lines[lines.index("the end of its stderr") + 1 : lines.index("in the scheduler's words")]
    assert len(end) == 15
    assert end[-1] == "  ValueError: nan in the loss"
    longer = program("show", job, "--debug").text.splitlines()
    assert longer.index("in the scheduler's words") - longer.index("the end of its stderr") == 101


def test_json_has_it_beside_the_job(program: Program) -> None:
    answer = program("show", submitted(program, FAILING), "--format", "json").json
    assert answer["failure"]["line"] == "ValueError: nan in the loss"
    assert (answer["failure"]["rank"], answer["failure"]["stream"]) == (None, "stderr")
    assert len(answer["failure"]["lines"]) == 15
    assert set(answer["job"]) == {*public_names(JOBS), "native", "usage"}


def test_of_a_job_that_ended_well_there_is_none(program: Program) -> None:
    job = submitted(program, "#!/bin/bash\necho ValueError: not really >&2\n")
    assert program("show", job, "--format", "json").json["failure"] is None
    assert "says" not in program("show", job).text
