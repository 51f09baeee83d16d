"""Which scheduler is taken on this machine, and what `clusters add` and `doctor` say of a PBS."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdash.assembly import cluster_backends, default_cluster_note
from hpcdash.cli.clusters import cluster_rows
from hpcdash.cli.options import CommonOptions
from hpcdash.config.destination import parse_ssh_destination
from hpcdash.config.local_schedulers import local_schedulers
from hpcdash.config.settings import ClusterSettings, Settings
from hpcdash.errors import UsageError
from tests.support.pbs import StandIns
from tests.support.program import Program, home_with
from tests.support.registered import files_in

_HERE = ClusterSettings("local", "local")
_THERE = ClusterSettings("juno", "Juno", "ssh", parse_ssh_destination("juno"))
Put = Callable[..., None]


_PBS_CONF = "PBS_SERVER=pbs01\nPBS_EXEC=/opt/pbs\n"
_SLURM_CONF = "ClusterName=juno\nSlurmctldHost = ctl1(10.0.0.1)\n"


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Put:
    """`put(squeue="…")` lays programs of this text on a PATH that has no others; no scheduler is
    configured.
    """
    files_in(tmp_path, "slurm", ("slurm.conf", "slurmd"), monkeypatch)
    files_in(tmp_path, "pbs", ("pbs.conf", "server_name"), monkeypatch)
    for name in ("SLURM_CONF", "SLURM_CONF_SERVER", "PBS_CONF_FILE", "PBS_SERVER", "PBS_DEFAULT"):
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
    return [backend.name for backend in cluster_backends(cluster)]


@pytest.mark.parametrize(
    ("file", "text", "scheduler", "server"),
    [
        ("pbs.conf", _PBS_CONF, "pbs", "pbs01"),
        ("pbs.conf", "PBS_EXEC=/opt/pbs\nPBS_SERVER='pbs01'\n", "pbs", "pbs01"),
        ("server_name", "torque1\n", "pbs", "torque1"),
        ("slurm.conf", _SLURM_CONF, "slurm", "ctl1(10.0.0.1)"),
        ("slurm.conf", "controlmachine=ctl2\n", "slurm", "ctl2"),
        ("slurmd", 'SLURMD_OPTIONS="--conf-server ctl3:6817"\n', "slurm", "ctl3:6817"),
    ],
)
def test_a_configuration_that_names_a_server_is_this_machines_scheduler(
    put: Put, tmp_path: Path, file: str, text: str, scheduler: str, server: str
) -> None:
    put(qstat="\x7fELF", squeue="")
    assert local_schedulers() == {}
    assert f"--backend {'slurm' if scheduler else ''} uses them anyway" in default_cluster_note(
        CommonOptions(), Settings()
    )
    (tmp_path / file).write_text(text)
    assert local_schedulers() == {scheduler: server}
    assert tried(_HERE) == [scheduler]
    title = {"pbs": "PBS", "slurm": "Slurm"}[scheduler]
    assert f"using this machine's {title}." in default_cluster_note(CommonOptions(), Settings())
    assert [row["backend"] for row in cluster_rows(Settings())] == [scheduler, "local"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pbs.conf", ""),
        ("pbs.conf", "PBS_EXEC=/opt/pbs\nPBS_SERVER=\n# PBS_SERVER=pbs01\n"),
        ("server_name", "\n"),
        ("slurm.conf", "ClusterName=juno\n#SlurmctldHost=ctl1\n"),
        ("slurmd", "# SLURMD_OPTIONS=--conf-server ctl3\n"),
    ],
)
def test_a_configuration_that_names_no_server_does_not_count(
    put: Put, tmp_path: Path, file: str, text: str
) -> None:
    put(qstat="\x7fELF", squeue="")
    (tmp_path / file).write_text(text)
    assert local_schedulers() == {}
    assert tried(_HERE) == ["local"]


def test_a_slurm_conf_may_name_its_controller_in_a_file_that_it_includes(
    put: Put, tmp_path: Path
) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=juno\nInclude site.conf\n")
    (tmp_path / "site.conf").write_text("SlurmctldHost=ctl1\n")
    assert local_schedulers() == {"slurm": "ctl1"}


def test_a_slurm_whose_configuration_only_its_commands_find_is_this_machines_scheduler(
    put: Put,
) -> None:
    put(squeue="", scontrol="#!/bin/sh\necho 'Slurmctld(primary) at ctl4 is UP'\n")
    assert local_schedulers() == {"slurm": "ctl4"}


def test_a_slurm_that_finds_no_configuration_is_none(put: Put) -> None:
    put(squeue="", scontrol="#!/bin/sh\necho 'scontrol: fatal: no source' >&2\nexit 1\n")
    assert local_schedulers() == {}


@pytest.mark.parametrize("variable", ["PBS_SERVER", "PBS_DEFAULT"])
def test_the_environment_may_name_the_server(
    put: Put, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "pbs01")
    assert local_schedulers() == {"pbs": "pbs01"}


def test_the_environment_may_name_the_file_in_place_of_the_usual_one(
    put: Put, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pbs.conf").write_text(_PBS_CONF)
    (tmp_path / "slurm.conf").write_text(_SLURM_CONF)
    monkeypatch.setenv("PBS_CONF_FILE", "/dev/null")
    monkeypatch.setenv("SLURM_CONF", "/dev/null")
    assert local_schedulers() == {}
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    assert tried(_HERE) == ["slurm"]


def test_a_scheduler_that_is_configured_is_tried_though_its_commands_are_not_on_the_path(
    put: Put, tmp_path: Path
) -> None:
    (tmp_path / "pbs.conf").write_text(_PBS_CONF)
    assert tried(_HERE) == ["pbs"]
    (tmp_path / "slurm.conf").write_text(_SLURM_CONF)
    assert tried(_HERE) == ["slurm", "pbs"]
    assert tried(ClusterSettings("local", "local", backend="local")) == ["local"]


def test_behind_ssh_slurm_is_tried_before_pbs_and_what_is_named_alone(put: Put) -> None:
    assert tried(_THERE) == ["slurm", "pbs"]
    assert tried(ClusterSettings("juno", "Juno", "ssh", _THERE.ssh, backend="pbs")) == ["pbs"]
    assert tried(ClusterSettings("local", "local", backend="pbs")) == ["pbs"]
    with pytest.raises(UsageError, match="no backend 'lsf'"):
        tried(ClusterSettings("juno", "Juno", "ssh", _THERE.ssh, backend="lsf"))


def test_finding_it_starts_no_process(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(qstat="#!/bin/sh\n: > called\n")
    (tmp_path / "pbs.conf").write_text(_PBS_CONF)
    monkeypatch.chdir(tmp_path)
    assert list(local_schedulers()) == ["pbs"]
    assert not (tmp_path / "called").exists()


@pytest.fixture
def pbs(tmp_path: Path) -> tuple[Program, StandIns]:
    """hpcdash of somebody on a login node of a PBS that answers as recorded."""
    stand_ins = StandIns.install(tmp_path / "pbs", "everyday")
    conf = tmp_path / "pbs.conf"
    conf.write_text(f"PBS_SERVER=pbs01\nPBS_EXEC={stand_ins.folder}\n")
    variables = {
        "PATH": f"{stand_ins.path}:/usr/bin:/bin",
        "PBS_CONF_FILE": str(conf),
        "SLURM_CONF": "/dev/null",
    }
    return Program(home_with(tmp_path / "home"), variables=variables), stand_ins


_TOOLS = (
    "awk",
    "cat",
    "date",
    "dd",
    "env",
    "grep",
    "head",
    "id",
    "python3",
    "sed",
    "sh",
    "tail",
    "timeout",
    "tr",
)


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A PATH as cron, sudo and commands over ssh have it: what POSIX has, and no scheduler's
    commands.
    """
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in _TOOLS:
        found_at = sys.executable if name == "python3" else shutil.which(name)
        assert found_at is not None
        (folder / name).symlink_to(found_at)
    return str(folder)


def test_without_qstat_on_the_path_it_is_found_by_the_configuration(
    pbs: tuple[Program, StandIns], bare_path: str
) -> None:
    program, stand_ins = pbs
    assert program("jobs", "--all", "--format", "json", PATH=bare_path).json["backend"] == "pbs"
    done = program("cancel", "14[6]", "--yes", PATH=bare_path)
    assert (done.status, done.text) == (0, "14[6].pbs01  cancelled\n")
    assert stand_ins.calls("qdel") == [["qdel", "14[6].pbs01"]]


def test_slurms_qstat_is_not_taken_for_the_one_of_a_pbs_that_is_configured(
    pbs: tuple[Program, StandIns], bare_path: str
) -> None:
    program, _ = pbs
    wrapper = Path(bare_path) / "qstat"
    wrapper.write_text("#! /usr/bin/perl -w\n# qstat - queries slurm jobs in familar pbs format.\n")
    wrapper.chmod(0o755)
    answer = program("jobs", "--all", "--format", "json", PATH=bare_path).json
    assert answer["backend"] == "pbs"
    assert answer["jobs"]


@pytest.mark.parametrize(
    "words",
    [
        ("jobs",),
        ("queues",),
        ("submit", "job.sh", "--yes"),
        ("watch", "--once"),
        ("cancel", "12", "--yes"),
    ],
)
def test_without_its_commands_a_pbs_that_is_configured_is_refused_and_no_other_queue_taken(
    pbs: tuple[Program, StandIns], bare_path: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    program, _ = pbs
    (program.home / "job.sh").write_text("#!/bin/sh\n: > ran\n")
    conf = tmp_path / "elsewhere.conf"
    conf.write_text("PBS_SERVER=pbs01\nPBS_EXEC=/nowhere\n")
    run = program(*words, PATH=bare_path, PBS_CONF_FILE=str(conf))
    assert run.status == 3
    assert (
        f"PBS is configured here, but qstat is not on the PATH: {conf} names the server pbs01"
        in run.stderr
    )
    # The watchdogs say it in one line.
    assert words[0] == "watch" or "--backend local runs jobs on this machine" in run.stderr
    assert not (program.home / "state" / "hpcdash" / "queue").exists()
    assert not list(program.home.rglob("*.arrow"))


def test_without_its_commands_a_slurm_that_is_configured_is_refused(
    pbs: tuple[Program, StandIns], bare_path: str, tmp_path: Path
) -> None:
    program, _ = pbs
    conf = tmp_path / "slurm.conf"
    conf.write_text(_SLURM_CONF)
    said = program(
        "queues", PATH=bare_path, SLURM_CONF=str(conf), PBS_CONF_FILE="/dev/null"
    ).refused(3)
    assert (
        f"Slurm is configured here, but squeue is not on the PATH: {conf} names the controller"
        in said
    )
    assert "--backend local runs jobs on this machine" in said


def test_who_names_the_embedded_queue_gets_it_and_it_shares_no_kept_table_with_pbs(
    pbs: tuple[Program, StandIns], bare_path: str
) -> None:
    program, _ = pbs
    assert len(program("queues", "--format", "json").json["queues"]) > 1
    kept = {file: file.read_bytes() for file in (program.home / "cache").rglob("*.arrow")}
    assert kept
    answer = program("queues", "--backend", "local", "--format", "json", PATH=bare_path).json
    assert [queue["name"] for queue in answer["queues"]] == ["local"]
    assert {file: file.read_bytes() for file in kept} == kept


def test_this_machines_pbs_is_taken_without_a_word(pbs: tuple[Program, StandIns]) -> None:
    program, _ = pbs
    answer = program("jobs", "--all", "--format", "json").json
    assert answer["backend"] == "pbs"
    assert answer["jobs"]


def test_what_was_found_is_written_so_that_nobody_looks_for_it_again(
    pbs: tuple[Program, StandIns],
) -> None:
    program, stand_ins = pbs
    added = program("clusters", "add", "here", "--local")
    assert (added.status, added.stderr) == (0, "")
    assert added.text.startswith("PBS 23.06.06 as alice, ")
    assert program.config.read_text() == '[clusters.here]\ntransport = "local"\nbackend = "pbs"\n'
    stand_ins.called.write_text("")
    assert program("jobs").status == 0
    assert [words for words in stand_ins.calls("qstat") if "--version" in words] == [
        ["qstat", "--version"]
    ]


def doctors(program: Program) -> dict[str, dict[str, Any]]:
    run = program("doctor", "--local", "--format", "json")
    return {check["name"]: check for check in json.loads(run.stdout)["checks"]}


def test_doctor_tells_kind_version_server_and_clock(pbs: tuple[Program, StandIns]) -> None:
    program, _ = pbs
    told = doctors(program)
    assert (
        told["scheduler"]["detail"]
        == "OpenPBS 23.06.06 (dialect openpbs), cluster pbs01, logged in as alice"
    )
    assert told["commands"]["ok"]
    assert told["controller"]["detail"] == "answers"
    assert "differs by" in told["clock"]["detail"]
    assert told["accounting"]["detail"] == "available"


def test_nodes_that_cannot_be_had_are_told_at_once_though_the_jobs_beside_them_hang(
    pbs: tuple[Program, StandIns],
) -> None:
    program, stand_ins = pbs
    qstat, pbsnodes = stand_ins.path / "qstat", stand_ins.path / "pbsnodes"
    qstat.rename(stand_ins.path / "answers")
    qstat.write_text(
        f'#!/bin/sh\ncase "$*" in --version|-Bf*) exec {stand_ins.path}/answers "$@" ;; esac\nexec '
        "sleep 300\n"
    )
    pbsnodes.write_text(
        "#!/bin/sh\necho 'pbsnodes: cannot connect to server pbs01, error=15010' >&2\nexit 1\n"
    )
    qstat.chmod(0o755)
    # Before the 60 s that a list of jobs is given.
    assert "the PBS server does not respond" in program("nodes").refused(3)


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
    assert "history is off here (job_history_enable)" in told["accounting"]["detail"]
    assert "only finished jobs that hpcdash saw are listed" in told["accounting"]["detail"]
