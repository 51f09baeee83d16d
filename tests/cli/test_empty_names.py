"""An empty name on the command line, as a variable that is not set leaves it, is an error and never
something else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.program import Program, home_with
from tests.support.records import for_each


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """hpcdash of a person whose folder has a script, on an embedded queue of its own."""
    folder = tmp_path_factory.mktemp("empty")
    variables = {"HPCDASH_QUEUE": str(folder / "queue"), "HPCDASH_STATE": str(folder / "state")}
    made = Program(home_with(folder / "home"), variables=variables)
    (made.home / "job.sh").write_text("#!/bin/sh\ntrue\n")
    return made


@for_each(
    ("words", "said"),
    [
        (("--ssh", "", "submit", "job.sh"), "--ssh is empty"),
        (("submit", "job.sh", "--ssh", " "), "--ssh is empty"),
        (("--cluster", "", "submit", "job.sh"), "--cluster is empty"),
        (("--config", "", "jobs"), "--config is empty"),
        (("submit", "job.sh", "--after", ""), "--after is empty"),
        (("submit", "job.sh", "--after", "1,"), "'1,' is not a job ID"),
        (("submit", "job.sh", "--array", ""), "--array is empty"),
        (("submit", ""), "SCRIPT is empty"),
        (("cancel", ""), "JOB... is empty"),
        (("cancel", "1", "", "--yes"), "JOB... is empty"),
        (("hold", "1,,2"), "'1,,2' is not a job ID"),
        (("kill-switch", "1,"), "'1,' is not a job ID"),
        (("kill-switch", "1", "--path", "", "--yes"), "--path is empty"),
        (("signal", "", "1"), "SIGNAL is empty"),
        (("show", ""), "JOB is empty"),
        (("metrics", "", "--file", "x.csv"), "JOB is empty"),
        (("clusters", "add", "", "--ssh", "juno"), "NAME is empty"),
        (("clusters", "add", "juno", "--ssh", "", "--force"), "--ssh is empty"),
        (("clusters", "add", "juno", "--ssh", "juno", "--user", "", "--force"), "--user is empty"),
        (("cron", "--folder", ""), "--folder is empty"),
        (("stub", "job.sh", "--at", ""), "--at is empty"),
    ],
)
def test_an_empty_name_is_refused(program: Program, words: tuple[str, ...], said: str) -> None:
    assert said in program(*words).refused(2)
    assert not (program.home.parent / "queue").exists()
    assert not program.config.exists()


@pytest.mark.parametrize(
    "name", ["HPCDASH_CONFIG", "HPCDASH_CACHE", "HPCDASH_STATE", "HPCDASH_QUEUE"]
)
def test_an_empty_variable_is_refused(program: Program, name: str) -> None:
    said = program("--local", "--backend", "local", "submit", "job.sh", **{name: ""}).refused(2)
    assert f"${name} is empty" in said
    assert f"unset {name}" in said


def test_an_empty_filter_leaves_nothing_out(program: Program, tmp_path: Path) -> None:
    queue = str(tmp_path / "queue")
    assert (
        program("--local", "--backend", "local", "jobs", "--filter", "", HPCDASH_QUEUE=queue).status
        == 0
    )
