"""How the program ends and what it says when it cannot do what was asked: wrong usage, wrong
configuration, no job.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.program import Program, home_with, together
from tests.support.slurm import SlurmLab
from tests.support.sshd import free_port

pytestmark = pytest.mark.slurm_releases


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("jobs", "--filter", "gpus>many"), "^"),
        (("jobs", "--filter", "colour:red"), "colour"),
        (("jobs", "--format", "xml"), "xml"),
        (("jobs", "--no-such-option"), "--no-such-option"),
        (("jbos",), "jbos"),
        (("jobs", "--cluster", "juno", "--local"), "--cluster"),
        (("--cluster", "juno", "jobs"), "juno"),
        (("--ssh", "", "jobs"), "--ssh"),
        (("jobs", "--config", "/nowhere/config.toml"), "/nowhere/config.toml"),
        ((), "terminal"),
    ],
)
def test_wrong_usage_is_status_2_with_words(
    slurm_lab: SlurmLab, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    program = Program(home_with(tmp_path / "home"), (), slurm_lab.env)
    assert said in program(*words).refused(2)


def test_a_job_nobody_knows_is_status_1_and_named(over_ssh: Program, locally: Program) -> None:
    for program in (over_ssh, locally):
        said = program("show", "99999999", "--format", "json").refused(1)
        assert "job 99999999 was not found in the queue or in the job history" in said


def test_what_is_no_job_id_at_all_is_refused_without_a_traceback(over_ssh: Program) -> None:
    words = ("abc", "$(id)", "-5", "--", "1;id", "1,2", "1.batch", "\udcff")
    for run in together(over_ssh, *(("show", "--", word) for word in words)):
        assert "is not a Slurm job ID" in run.refused(2)
    assert "JOB is empty" in over_ssh("show", "--", " ").refused(2)


@pytest.mark.parametrize("destination", ["nobody@127.0.0.1:{port}", "no-such-host.invalid"])
def test_a_host_that_does_not_answer_is_status_3_with_the_next_step(
    tmp_path: Path, destination: str
) -> None:
    place = destination.format(port=free_port())
    said = Program(home_with(tmp_path / "home"))("--ssh", place, "jobs").refused(3)
    assert place.split("@")[-1].split(":")[0] in said
    assert len(said.splitlines()) >= 2, "no next step"


def test_a_changed_host_key_is_refused_with_both_fingerprints(
    slurm_lab: SlurmLab, tmp_path: Path
) -> None:
    home = home_with(
        tmp_path / "home",
        slurm_lab.ssh_config.read_text().replace(str(slurm_lab.ssh_known_hosts), "~/known"),
    )
    other = (slurm_lab.run_dir / "ssh" / "id_ed25519.pub").read_text().split()[:2]
    (home / "known").write_text(f"[127.0.0.1]:{slurm_lab.ssh_port} {' '.join(other)}\n")
    before = (home / "known").read_bytes()
    said = Program(home, ("--ssh", "lab-alice"))("jobs").refused(3)
    assert "has changed" in said
    assert said.count("SHA256:") == 2
    assert "ssh-keygen -R" in said
    assert (home / "known").read_bytes() == before


def test_an_unknown_host_key_is_not_taken_where_nobody_can_be_asked(
    slurm_lab: SlurmLab, tmp_path: Path
) -> None:
    config = slurm_lab.ssh_config.read_text().replace(str(slurm_lab.ssh_known_hosts), "~/known")
    home = home_with(
        tmp_path / "home", config.replace("StrictHostKeyChecking yes", "StrictHostKeyChecking ask")
    )
    said = Program(home, ("--ssh", "lab-alice"))("jobs").refused(3)
    assert "SHA256:" in said
    assert not (home / "known").exists()


def test_a_machine_without_slurm_says_so_when_it_is_asked_for_slurm(
    slurm_lab: SlurmLab, tmp_path: Path
) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    program = Program(home_with(tmp_path / "home"), (), {"PATH": str(empty)})
    said = program("jobs", "--backend", "slurm").refused(3)
    assert "no Slurm here: squeue is not on the PATH" in said


def test_the_doctor_finds_all_well(over_ssh: Program, locally: Program) -> None:
    for program in (over_ssh, locally):
        answer = program("doctor", "--format", "json").json
        checks = answer["checks"]
        assert all(list(check) == ["name", "ok", "detail", "next_step"] for check in checks)
        assert [check for check in checks if not check["ok"]] == []
        assert {
            "connection",
            "scheduler",
            "commands",
            "controller",
            "clock",
            "jobs",
            "nodes",
            "queues",
            "history",
        } <= {check["name"] for check in checks}
        assert "22.05" in next(check["detail"] for check in checks if check["name"] == "scheduler")


def test_the_doctor_gives_each_failing_check_a_next_step(
    over_ssh: Program, slurm_lab: SlurmLab, tmp_path: Path
) -> None:
    unreachable = Program(home_with(tmp_path / "elsewhere"))(
        "--ssh", f"x@127.0.0.1:{free_port()}", "doctor", "--format", "json"
    )
    assert (unreachable.status, unreachable.stderr) == (3, "")
    (tmp_path / "file").touch()
    no_cache = over_ssh(
        "doctor", "--format", "json", HPCDASH_CACHE=str(tmp_path / "file" / "cache")
    )
    assert (no_cache.status, no_cache.stderr) == (1, "")
    for run, name in ((unreachable, "connection"), (no_cache, "cache")):
        failing = [check for check in json.loads(run.stdout)["checks"] if not check["ok"]]
        assert [check["name"] for check in failing] == [name]
        assert failing[0]["detail"]
        assert failing[0]["next_step"]
    words = over_ssh("doctor", HPCDASH_CACHE=str(tmp_path / "file" / "cache"))
    assert "FAIL  cache" in words.text
    assert "→" in words.text


def test_a_cluster_that_was_added_is_found_by_its_name(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    program = Program(home_with(tmp_path / "home", slurm_lab.ssh_config.read_text()))
    added = program("clusters", "add", "juno", "--ssh", "lab-alice", "--title", "Juno")
    assert (added.status, added.stderr) == (0, "")
    assert str(program.config) in added.text
    assert program.config.exists()
    listed = program("clusters", "--format", "json").json["clusters"]
    (juno,) = [cluster for cluster in listed if cluster["name"] == "juno"]
    assert (juno["transport"], juno["ssh"], juno["default"], juno["title"]) == (
        "ssh",
        "lab-alice",
        True,
        "Juno",
    )
    assert program("config", "check").status == 0
    for words in (("--cluster", "juno", "nodes"), ("nodes", "--cluster", "juno"), ("nodes",)):
        answer = program(*words, "--format", "json").json
        assert answer["cluster"] == "juno"
        assert len(answer["nodes"]) == 6
    assert "juno" in program("nodes", "--cluster", "jono").refused(2)
    again = program("clusters", "add", "juno", "--ssh", "lab-bob")
    assert again.status == 2, again
    assert len(program("clusters", "--format", "json").json["clusters"]) == len(listed)


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ('[clusters.juno]\nssh = "juno"\ntransprot = "ssh"\n', 3, "transprot"),
        ("[poll]\nmine_seconds = -1\n", 2, "mine_seconds"),
        ('theme = "x"\n[clusters.juno\n', 2, ""),
        ('[keys]\nfilter = "m"\n', None, "keys.filter"),
    ],
)
def test_a_wrong_configuration_names_file_line_and_key(
    tmp_path: Path, text: str, line: int | None, key: str
) -> None:
    program = Program(home_with(tmp_path / "home"))
    program.config.parent.mkdir(parents=True)
    program.config.write_text(text)
    for words in (
        (("config", "check"),) if line is None else (("config", "check"), ("--local", "jobs"))
    ):
        said = program(*words).refused(2)
        assert (f"{program.config}:{line}" if line else str(program.config)) in said
        assert key in said
