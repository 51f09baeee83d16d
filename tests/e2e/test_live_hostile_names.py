"""Jobs whose names try to forge rows, colours and commands: each is there once, by its name, and
nothing else is.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import clear
from tests.support.program import Program, find_row, together
from tests.support.slurm import HOSTILE_NODE, HOSTILE_REASON, SlurmLab, hostile_jobs

pytestmark = pytest.mark.slurm_releases


@pytest.fixture(scope="module")
def hostile(slurm_lab: SlurmLab) -> Iterator[dict[str, str]]:
    """The ids of the hostile jobs, all held, and their names as text."""
    clear(slurm_lab)
    yield {
        job_id: name.decode("utf-8", "replace") for name, job_id in hostile_jobs(slurm_lab).items()
    }
    clear(slurm_lab, HOSTILE_NODE)


@pytest.fixture(params=["over_ssh", "locally"])
def program(request: pytest.FixtureRequest, hostile: dict[str, str]) -> Program:
    found: Program = request.getfixturevalue(request.param)
    return found


def test_each_hostile_job_is_there_once_under_its_exact_name(
    slurm_lab: SlurmLab, program: Program, hostile: dict[str, str]
) -> None:
    jobs = program.rows("jobs", "--all")
    assert {job["id"]: job["name"] for job in jobs} == hostile
    assert len(jobs) == len(hostile)
    assert {job["state"] for job in jobs} == {"held"}
    assert {job["user"] for job in jobs} == {slurm_lab.alice}
    # A comment that Slurm itself writes for "none" cannot be told from none.
    assert {job["id"]: job["comment"] for job in jobs} == {
        job_id: None if name == "(null)" else name for job_id, name in hostile.items()
    }


def test_csv_keeps_the_names_and_forges_no_row(program: Program, hostile: dict[str, str]) -> None:
    rows = list(
        csv.DictReader(io.StringIO(program("jobs", "--all", "--format", "csv").text, newline=""))
    )
    assert {row["id"]: row["name"] for row in rows} == hostile


@pytest.mark.parametrize("kind", ["jobs", "nodes"])
def test_a_table_has_a_line_a_row_and_no_control_characters(
    program: Program, hostile: dict[str, str], kind: str
) -> None:
    run = program(kind, "--all")
    _heading, *lines = run.text.split("\n")
    assert (run.status, run.stderr, lines.pop()) == (0, "", "")
    if kind == "jobs":
        assert sorted(line.split()[0] for line in lines) == sorted(hostile)
        assert {line.split()[1] for line in lines} == {"held"}
    else:
        assert len(lines) == 6
    assert [c for c in run.text if unsafe(c)] == []


def unsafe(character: str) -> bool:
    """A control character, or a format character that turns text around."""
    if character in "\n\u200d\u200b":
        return False
    return unicodedata.category(character) in ("Cc", "Cs") or unicodedata.bidirectional(
        character
    ) in (*("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI"),)


def test_show_tells_each_hostile_job_and_believes_none_of_them(
    over_ssh: Program, hostile: dict[str, str]
) -> None:
    forgers = [
        job_id
        for job_id, name in hostile.items()
        if "JobState" in name or "\n" in name or "\x1b" in name
    ]
    assert len(forgers) >= 4
    answers = together(over_ssh, *(("show", job_id, "--format", "json") for job_id in forgers))
    words = together(over_ssh, *(("show", job_id) for job_id in forgers))
    for job_id, answer, shown in zip(forgers, answers, words, strict=True):
        job = answer.json["job"]
        assert (job["id"], job["name"], job["state"]) == (job_id, hostile[job_id], "held")
        assert job["native"]["JobId"] == job_id
        assert job["native"]["JobState"] == "PENDING"
        assert job["stdout_path"].endswith(f"slurm-{job_id}.out")
        assert (shown.status, shown.stderr) == (0, "")
        assert [c for c in shown.text if unsafe(c)] == []


def test_a_drained_nodes_hostile_reason_is_told_whole(
    program: Program, hostile: dict[str, str]
) -> None:
    nodes = {node["name"]: node for node in program.rows("nodes")}
    assert len(nodes) == 6
    assert nodes[HOSTILE_NODE]["reason"] == HOSTILE_REASON.decode()
    assert (nodes[HOSTILE_NODE]["state"], nodes[HOSTILE_NODE]["reason_by"]) == ("drained", "root")


def test_a_filter_finds_a_hostile_name(over_ssh: Program, hostile: dict[str, str]) -> None:
    (job_id,) = [job_id for job_id, name in hostile.items() if name == "a|b|c"]
    assert find_row(over_ssh.rows("jobs", "--filter", "name:a|b|c"), job_id)["name"] == "a|b|c"


def test_names_that_are_commands_were_never_run(
    slurm_lab: SlurmLab, hostile: dict[str, str], over_ssh: Program
) -> None:
    for kind in ("jobs", "history"):
        assert over_ssh(kind, "--all").status == 0
    assert not slurm_lab.tripwire.exists()
