"""Which scheduler is taken on this machine, and what `clusters add` and `doctor` say of a PBS."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdash.cli import found
from hpcdash.cli.build import backends_of, why_this
from hpcdash.cli.clusters import cluster_rows
from hpcdash.cli.found import found_here
from hpcdash.cli.options import CommonOptions
from hpcdash.config import ClusterSettings, Settings, parse_ssh_destination
from hpcdash.errors import UsageError
from tests.e2e.program import Program, home_with
from tests.support.pbs import StandIns

_HERE = ClusterSettings("local", "local")
_THERE = ClusterSettings("juno", "Juno", "ssh", parse_ssh_destination("juno"))
Put = Callable[..., None]


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Put:
    """`put(squeue="…")` lays programs of this text on a PATH that has no others; no scheduler is configured."""
    monkeypatch.setattr(found, "_SLURM_CONFIGURATIONS", (str(tmp_path / "slurm.conf"),))
    monkeypatch.setattr(found, "_PBS_CONFIGURATIONS", (str(tmp_path / "pbs.conf"), str(tmp_path / "server_name")))
    for name in ("SLURM_CONF", "PBS_CONF_FILE", "PBS_SERVER", "PBS_DEFAULT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def lay(**programs: str) -> None:
        for name, text in programs.items():
            program = tmp_path / "bin" / name
            program.write_text(text)
            program.chmod(0o755)

    return lay


def tried(cluster: ClusterSettings) -> list[str]:
    return [backend.name for backend in backends_of(cluster)]


@pytest.mark.parametrize("configuration", ["pbs.conf", "server_name"])
def test_a_qstat_that_knows_its_server_is_this_machines_pbs(put: Put, tmp_path: Path, configuration: str) -> None:
    put(qstat="\x7fELF")
    assert found_here() == []
    assert "--backend pbs asks it" in why_this(CommonOptions(), Settings())
    (tmp_path / configuration).touch()
    assert found_here() == ["pbs"]
    assert tried(_HERE) == ["pbs"]
    assert "this is this machine's PBS." in why_this(CommonOptions(), Settings())
    assert [row["backend"] for row in cluster_rows(Settings())] == ["pbs", "local"]


@pytest.mark.parametrize("variable", ["PBS_CONF_FILE", "PBS_SERVER", "PBS_DEFAULT"])
def test_the_environment_may_name_the_server(put: Put, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    put(qstat="#!/bin/bash\nexec /opt/pbs/bin/qstat\n")
    monkeypatch.setenv(variable, "pbs01")
    assert found_here() == ["pbs"]


def test_a_configuration_without_a_qstat_is_no_pbs(put: Put, tmp_path: Path) -> None:
    (tmp_path / "pbs.conf").touch()
    assert found_here() == []
    assert tried(_HERE) == ["local"]
    assert "neither Slurm nor PBS is here" in why_this(CommonOptions(), Settings())


def test_slurms_programs_by_torques_names_mean_slurm(put: Put, tmp_path: Path) -> None:
    (tmp_path / "pbs.conf").touch()
    put(qstat="#! /usr/bin/perl -w\n# qstat - queries slurm jobs in familar pbs format.\n")
    assert found_here() == []
    put(squeue="")
    (tmp_path / "slurm.conf").touch()
    assert found_here() == ["slurm"]


def test_where_both_are_here_both_are_tried(put: Put, tmp_path: Path) -> None:
    put(squeue="", qstat="\x7fELF")
    (tmp_path / "pbs.conf").touch()
    assert tried(_HERE) == ["pbs"]
    (tmp_path / "slurm.conf").touch()
    assert tried(_HERE) == ["slurm", "pbs"]


def test_behind_ssh_slurm_is_tried_before_pbs_and_what_is_named_alone(put: Put) -> None:
    assert tried(_THERE) == ["slurm", "pbs"]
    assert tried(ClusterSettings("juno", "Juno", "ssh", _THERE.ssh, backend="pbs")) == ["pbs"]
    assert tried(ClusterSettings("local", "local", backend="pbs")) == ["pbs"]
    with pytest.raises(UsageError, match="no backend 'lsf'"):
        tried(ClusterSettings("juno", "Juno", "ssh", _THERE.ssh, backend="lsf"))


def test_finding_it_starts_no_process(put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(qstat="#!/bin/sh\n: > called\n")
    (tmp_path / "pbs.conf").touch()
    monkeypatch.chdir(tmp_path)
    assert found_here() == ["pbs"]
    assert not (tmp_path / "called").exists()


@pytest.fixture
def pbs(tmp_path: Path) -> tuple[Program, StandIns]:
    """hpcdash of somebody on a login node of a PBS that answers as recorded."""
    stand_ins = StandIns.install(tmp_path / "pbs", "everyday")
    variables = {"PATH": f"{stand_ins.path}:/usr/bin:/bin", "PBS_CONF_FILE": "/dev/null"}
    return Program(home_with(tmp_path / "home"), variables=variables), stand_ins


def test_this_machines_pbs_is_taken_without_a_word(pbs: tuple[Program, StandIns]) -> None:
    program, _ = pbs
    answer = program("jobs", "--all", "--format", "json").json
    assert answer["backend"] == "pbs"
    assert answer["jobs"]


def test_what_was_found_is_written_so_that_nobody_looks_for_it_again(pbs: tuple[Program, StandIns]) -> None:
    program, stand_ins = pbs
    added = program("clusters", "add", "here", "--local")
    assert (added.status, added.stderr) == (0, "")
    assert added.text.startswith("PBS 23.06.06 as alice, ")
    assert program.config.read_text() == '[clusters.here]\ntransport = "local"\nbackend = "pbs"\n'
    stand_ins.called.write_text("")
    assert program("jobs").status == 0
    assert [words for words in stand_ins.calls("qstat") if "--version" in words] == [["qstat", "--version"]]


def doctors(program: Program) -> dict[str, dict[str, Any]]:
    run = program("doctor", "--local", "--format", "json")
    return {check["name"]: check for check in json.loads(run.stdout)["checks"]}


def test_doctor_tells_kind_version_server_and_clock(pbs: tuple[Program, StandIns]) -> None:
    program, _ = pbs
    told = doctors(program)
    assert told["scheduler"]["detail"] == "OpenPBS 23.06.06 (dialect openpbs), cluster pbs01, you are alice"
    assert told["commands"]["ok"]
    assert told["controller"]["detail"] == "answers"
    assert "differs by" in told["clock"]["detail"]
    assert told["accounting"]["detail"] == "kept: ended jobs are known"


def test_doctor_names_the_commands_that_are_missing(pbs: tuple[Program, StandIns]) -> None:
    program, stand_ins = pbs
    for name in ("qmove", "qsig"):
        (stand_ins.path / name).unlink()
    told = doctors(program)
    assert not told["commands"]["ok"]
    assert told["commands"]["detail"] == "missing: qsig, qmove"


def test_doctor_says_what_it_means_that_no_history_is_kept(pbs: tuple[Program, StandIns]) -> None:
    program, stand_ins = pbs
    stand_ins.play("history-off")
    told = doctors(program)
    assert "job_history_enable is off" in told["accounting"]["detail"]
    assert "is known only where it was seen" in told["accounting"]["detail"]
