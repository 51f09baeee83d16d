"""`hpcdash show`: why a job failed, and what a job calls that was launched from here."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdash.domain.schema import JOBS, public_names
from tests.support.program import Program, home_with
from tests.support.waiting import wait_until

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
    end = lines[lines.index("End of stderr") + 1 : lines.index("Raw scheduler output")]
    assert len(end) == 15
    assert end[-1] == "  ValueError: nan in the loss"
    longer = program("show", job, "--debug").text.splitlines()
    assert longer.index("Raw scheduler output") - longer.index("End of stderr") == 101


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


REQUEST = """\
name = "night"
slots = 0
requeue = true
work_dir = "{home}"
kill_switch = "KILL"
checkpoints = "saved/%a"
[call]
function = "nightpkg:main"
items = [{{ rate = 0.1 }}, {{ rate = 0.2 }}]
sys_path = ["{home}"]
"""


def test_an_array_of_calls_is_told_of_by_item_and_its_switch_before_it_runs_again(
    tmp_path: Path,
) -> None:
    home = home_with(tmp_path / "home")
    state = {"HPCDASH_QUEUE": str(tmp_path / "queue"), "HPCDASH_STATE": str(tmp_path / "state")}
    program = Program(home, ("--local", "--backend", "local"), state)
    (home / "nightpkg.py").write_text("def main(rate):\n    return 1 / (rate - 0.2)\n")
    (home / "a.toml").write_text(REQUEST.format(home=home))
    assert program("submit", str(home / "a.toml")).text == "1\n"
    (folder,) = (home / "hpcdash" / "launches").glob("[!.]*")
    wait_until(
        "the results",
        lambda: (folder / "result-1.pkl.error").exists() and (folder / "result-0.pkl").exists(),
    )
    wait_until("the end", lambda: not program.rows("jobs"))

    told = program("show", "1_1").text
    assert "  calls         nightpkg:main, item 1 of 2, from 0: {'rate': 0.2}\n" in told
    assert (
        f"  result        {folder}/result-1.pkl\n  or traceback  {folder}/result-1.pkl.error\n"
        in told
    )
    assert (
        f"  checkpoints   {home}/saved/1\n  kill switch   {home}/KILL\n  folder        {folder}\n"
        in told
    )
    assert program("show", "1_0", "--format", "json").json["launch"] == {
        "folder": str(folder),
        "function": "nightpkg:main",
        "items": 2,
        "item_index": 0,
        "item": {"rate": 0.1},
        "result_path": f"{folder}/result-0.pkl",
        "error_path": f"{folder}/result-0.pkl.error",
        "checkpoints": f"{home}/saved/0",
        "kill_switch": f"{home}/KILL",
        "save_switch": None,
        "code": None,
    }
    whole = program("show", "1").text
    assert "  calls         nightpkg:main, 2 items, one task each\n" in whole
    assert f"  result        {folder}/result-N.pkl\n" in whole

    (home / "KILL").touch()
    warned = f"hpcdash: the kill switch {home}/KILL is set: the job would stop at once. "
    said = program("requeue", "1_1", "--yes")
    assert (said.status, said.text) == (0, "1_1  requeued\n"), said
    assert f"{warned}Clear it first: hpcdash kill-switch 1 --clear\n" in said.stderr
    wait_until("the end", lambda: not program.rows("jobs"))
