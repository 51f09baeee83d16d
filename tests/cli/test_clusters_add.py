"""`hpcdash clusters add` tries a cluster before it writes it; the embedded queue's settings, and
what doctor says.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcdash.assembly import cluster_queue_pace
from hpcdash.cli.doctor import queue_checks
from hpcdash.config.settings import ClusterSettings, PollSettings
from hpcdash.domain.tables import Kind
from tests.support.program import Program, home_with
from tests.support.slurm import SlurmLab


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(home_with(tmp_path / "home"))


def test_what_answers_is_said_and_the_cluster_written(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    program = Program(home_with(tmp_path / "home", slurm_lab.ssh_config.read_text()))
    added = program("clusters", "add", "juno", "--ssh", "lab-alice")
    assert (added.status, added.stderr) == (0, "")
    first, second, *_ = added.text.splitlines()
    assert first.startswith("Slurm ")
    assert first.endswith(f" as {slurm_lab.alice}, 6 nodes")
    assert second == f"added juno to {program.config}"
    assert program.config.read_text() == '[clusters.juno]\nssh = "lab-alice"\nbackend = "slurm"\n'


def test_where_nobody_answers_nothing_is_written_but_by_force(program: Program) -> None:
    words = ("clusters", "add", "away", "--ssh", "me@127.0.0.1:1")
    said = program(*words).refused(3)
    assert "refused the connection" in said
    assert "--force" in said
    assert not program.config.exists()
    forced = program(*words, "--force")
    assert forced.status == 0
    assert "refused the connection" in forced.stderr
    assert program.config.read_text() == '[clusters.away]\nssh = "me@127.0.0.1:1"\n'


def test_a_name_that_is_taken_is_refused_before_anybody_is_asked(program: Program) -> None:
    program.config.parent.mkdir(parents=True)
    program.config.write_text('[clusters.away]\nssh = "me@127.0.0.1:1"\n')
    said = program("clusters", "add", "away", "--ssh", "me@127.0.0.1:1").refused(2)
    assert "already exists" in said
    assert "refused the connection" not in said


def test_this_machine_is_tried_as_well(program: Program) -> None:
    added = program("clusters", "add", "here", "--local", "--backend", "local")
    assert (added.status, added.stderr) == (0, "")
    assert added.text.startswith("Embedded queue ")
    assert added.text.splitlines()[0].endswith(", 1 node")
    assert program.config.read_text() == '[clusters.here]\nbackend = "local"\ntransport = "local"\n'


def test_a_scheduler_that_is_not_there_is_not_written(program: Program, tmp_path: Path) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    run = program(
        "clusters", "add", "here", "--local", "--backend", "slurm", PATH=f"{tmp_path}:/usr/bin:/bin"
    )
    assert run.status != 0
    assert "Nothing was written" in run.stderr
    assert not program.config.exists()


# The embedded queue's own settings, and what `doctor` says of it.


def test_the_configuration_sets_what_the_embedded_queue_gives(program: Program) -> None:
    program.config.parent.mkdir(parents=True)
    program.config.write_text("[embedded]\ncpus = 3\ngpus = 2\ngrace_seconds = 1.5\n")
    (node,) = program.rows("nodes", "--local", "--backend", "local")
    assert (node["cpus"], node["gpus"]) == (3, 2)
    told = checks(program)
    assert "3 CPUs, 2 GPUs; 1.5 s from SIGTERM to SIGKILL" in told["slots"]["detail"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cpus = 0", "embedded.cpus: expected 1 to 100000 CPUs, not 0"),
        ("cpus = 1.5", "embedded.cpus: expected a whole number"),
        ('gpus = "two"', "embedded.gpus: expected a number of GPUs"),
        ("grace_seconds = -1", "embedded.grace_seconds: expected 0 to 3600 seconds"),
        ("gpu = 1", 'embedded.gpu: unknown key; did you mean "gpus"?'),
    ],
)
def test_a_wrong_setting_of_the_queue_names_file_line_and_key(
    program: Program, line: str, words: str
) -> None:
    program.config.parent.mkdir(parents=True)
    program.config.write_text(f"[embedded]\n{line}\n")
    assert f"{program.config}:2: {words}" in program("config", "check").refused(2)


def checks(program: Program) -> dict[str, dict[str, str]]:
    run = program("doctor", "--local", "--backend", "local", "--format", "json")
    assert (run.status, run.stderr) == (0, "")
    return {check["name"]: check for check in json.loads(run.stdout)["checks"]}


def test_doctor_looks_at_the_queue_and_not_at_slurm(program: Program) -> None:
    told = checks(program)
    assert all(check["ok"] for check in told.values())
    assert {"queue's folder", "supervisor", "slots", "home", "jobs", "nodes"} <= told.keys()
    assert not {"commands", "controller", "accounting", "clock"} & told.keys()
    assert "private" in told["queue's folder"]["detail"]
    assert "not running" in told["supervisor"]["detail"]


def test_a_queue_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder, *_ = queue_checks(tmp_path)
    assert folder.ok
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_the_queue_is_asked_quicker_than_a_shared_controller_unless_the_configuration_says_otherwise() -> (
    None
):
    pace = cluster_queue_pace(ClusterSettings("local", "local"))
    assert set(pace.seconds.values()) == {2.0}
    assert pace.unfocused_factor == 4.0
    chosen = cluster_queue_pace(
        ClusterSettings("local", "local", poll=PollSettings(mine_seconds=30))
    )
    assert (chosen.seconds[Kind.MINE], chosen.seconds[Kind.NODES]) == (30.0, 2.0)
