"""Jobs of a second cluster of a real Slurm site, whose numbers the first cluster has, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.program import Program
from tests.support.slurm import SlurmLab

pytestmark = pytest.mark.slurm
SLEEPER = "#!/bin/sh\nsleep 600\n"


@pytest.fixture
def lab(clean_slurm: SlurmLab) -> Iterator[SlurmLab]:
    clean_slurm.start_other_cluster()
    yield clean_slurm
    clean_slurm.end_other_cluster_jobs()


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A script that sends itself to the other cluster."""
    file = tmp_path / "multi.sh"
    file.write_text("#!/bin/sh\n#SBATCH --clusters=lab2\n#SBATCH --job-name=there\nsleep 600\n")
    return str(file)


def state_there(lab: SlurmLab, number: str) -> str:
    return (
        lab.admin("squeue", "-h", "-M", "lab2", "-t", "all", "-o", "%T", "-j", number)
        .stdout.decode()
        .strip()
    )


def test_a_job_that_goes_to_another_cluster_is_named_with_it(
    lab: SlurmLab, over_ssh: Program, script: str
) -> None:
    plain = over_ssh("submit", script)
    assert plain.status == 0
    job_id = plain.text.strip()
    number, _, cluster = job_id.partition("@")
    assert cluster == "lab2"
    assert over_ssh("submit", "--format", "json", script).status == 0
    assert f"job {job_id}" in over_ssh("journal").text
    shown = over_ssh("show", job_id, "--format", "json").json["job"]
    assert (shown["id"], shown["name"]) == (job_id, "there")
    assert over_ssh("script", job_id).text.splitlines()[1] == "#SBATCH --clusters=lab2"
    cancelled = over_ssh("--yes", "cancel", job_id)
    assert f"scancel -M lab2 -v {number}" in cancelled.stderr
    assert cancelled.text.split() == [job_id, "cancelled"]
    assert state_there(lab, number) in ("CANCELLED", "COMPLETING")


def test_a_bare_number_never_ends_the_job_of_this_cluster(
    lab: SlurmLab, over_ssh: Program, script: str
) -> None:
    there = over_ssh("submit", script).text.strip()
    number = there.partition("@")[0]
    refused = over_ssh("--yes", "cancel", number)
    assert refused.status == 2
    assert f"job {number} is ambiguous: {there} was submitted from here" in refused.stderr
    assert f"{number}@lab2" in refused.stderr
    assert f"{number}@lab " in refused.stderr


def test_the_default_cluster_s_own_jobs_have_no_cluster(
    lab: SlurmLab, over_ssh: Program, tmp_path: Path
) -> None:
    file = tmp_path / "here.sh"
    file.write_text(SLEEPER)
    assert over_ssh("submit", str(file)).text.strip().isdigit()
    assert over_ssh("submit", str(file), "--", "--clusters=lab").text.strip().isdigit()


def both_with_one_number(lab: SlurmLab) -> str:
    """Submit jobs here and to lab2 until both have one of the same number; return it."""
    numbers: dict[str, set[str]] = {"lab": set(), "lab2": set()}
    while not (shared := numbers["lab"] & numbers["lab2"]):
        behind = min(numbers, key=lambda name: max(map(int, numbers[name]), default=0))
        wrap = f"echo I am on {behind}; sleep 600"
        options = ("-M", behind, "--mem=10", "-J", f"on-{behind}", "-o", "/dev/null")
        line = ("sbatch", "--parsable", *options, "--wrap", wrap)
        answer = lab.as_user(lab.alice, *line).stdout.decode().strip()
        numbers[behind].add(answer.partition(";")[0])
    return shared.pop()


def test_jobs_of_one_number_on_two_clusters_are_two_jobs(lab: SlurmLab, over_ssh: Program) -> None:
    number = both_with_one_number(lab)
    there = f"{number}@lab2"
    over_ssh.config.parent.mkdir(parents=True, exist_ok=True)
    over_ssh.config.write_text(
        '[clusters.first]\nssh = "lab-alice"\nbackend = "slurm"\n'
        '[clusters.second]\nssh = "lab-alice"\nslurm_cluster = "lab2"\n'
    )
    first, second, both = (
        Program(over_ssh.home, options, over_ssh.variables)
        for options in (("--cluster", "first"), ("--cluster", "second"), ())
    )
    lab.wait_state(number, "RUNNING")
    for program, job_id, cluster in (
        (first, number, "lab"),
        (first, f"{number}@lab", "lab"),
        (first, there, "lab2"),
        (second, there, "lab2"),
        (second, number, "lab2"),
    ):
        job = program("show", job_id, "--format", "json").json["job"]
        assert job["name"] == f"on-{cluster}", (program.before, job_id)
        assert f"on {cluster}" in program("script", job_id).text
        chain = program("chain", job_id, "--format", "json").json["jobs"]
        assert [row["name"] for row in chain] == [f"on-{cluster}"]
    listed = both("jobs", "--all-clusters", "--format", "json").json["jobs"]
    names = {(row["cluster"], row["id"]): row["name"] for row in listed}
    assert names["first", number] == "on-lab"
    assert names["second", there] == "on-lab2"
    like = both("where", "--like", there, "--format", "json")
    assert {place["cluster"] for place in like.json["places"]} == {"first", "second"}
    assert both("clusters", "--format", "json").json["proposed"] == []
    cancelled = first("--yes", "cancel", "--chain", there)
    assert cancelled.text.split() == [there, "cancelled"]
    assert state_there(lab, number) in ("CANCELLED", "COMPLETING")
    assert lab.job_states(number) == {"RUNNING"}
    assert f"cancel  {there}" in " ".join(first("journal").text.replace("\n", " ").split(" "))


def test_a_cluster_of_the_site_that_is_not_configured_is_proposed(
    lab: SlurmLab, over_ssh: Program
) -> None:
    over_ssh.config.parent.mkdir(parents=True, exist_ok=True)
    over_ssh.config.write_text('[clusters.first]\nssh = "lab-alice"\nbackend = "slurm"\n')
    first = Program(over_ssh.home, (), over_ssh.variables)
    lines = ["[clusters.lab2]", 'ssh = "lab-alice"', 'slurm_cluster = "lab2"']
    assert first("doctor").text.splitlines()[-3:] == lines
    assert first("clusters").text.splitlines()[-3:] == lines
    before = over_ssh.config.read_text()
    over_ssh.config.write_text(before + "\n".join(lines) + "\n")
    assert "lab2" not in first("doctor").text


def local(lab: SlurmLab, home: Path, clusters: str) -> Program:
    from tests.support.program import program_on_the_spot

    lab.admin(
        "sacctmgr",
        "-i",
        "-Q",
        "add",
        "user",
        "root",
        "cluster=lab2",
        "account=physics",
        check=False,
    )
    program = program_on_the_spot(lab, home)
    return Program(program.home, program.before, {**program.variables, "SLURM_CLUSTERS": clusters})


def test_one_cluster_of_the_environment_is_asked_by_name(
    lab: SlurmLab, tmp_path: Path, script: str
) -> None:
    program = local(lab, tmp_path / "root", "lab2")
    file = tmp_path / "any.sh"
    file.write_text(SLEEPER)
    submitted = program("submit", str(file))
    job_id = submitted.text.strip()
    assert "--clusters=lab2" in submitted.stderr
    assert job_id.endswith("@lab2")
    assert job_id in {row["id"] for row in program.rows("jobs")}
    assert {row["name"] for row in program.rows("nodes")} == {"m1"}
    number = job_id.partition("@")[0]
    cancelled = program("--yes", "cancel", number)
    assert f"scancel -M lab2 -v {number}" in cancelled.stderr
    assert state_there(lab, number) in ("CANCELLED", "COMPLETING")


@pytest.mark.parametrize("clusters", ["lab,lab2", "all"])
def test_of_several_clusters_reads_ask_each_and_an_action_names_one(
    lab: SlurmLab, tmp_path: Path, script: str, clusters: str
) -> None:
    here = (
        lab.admin("sbatch", "--parsable", "-o", "/dev/null", stdin=SLEEPER.encode())
        .stdout.decode()
        .strip()
    )
    there = local(lab, tmp_path / "one", "lab2")("submit", script).text.strip()
    program = local(lab, tmp_path / "root", clusters)
    assert {f"{here}@lab", there} <= {row["id"] for row in program.rows("jobs")}
    assert {"n1@lab", "m1@lab2"} <= {row["name"] for row in program.rows("nodes")}
    file = tmp_path / "any.sh"
    file.write_text(SLEEPER)
    refused = program("submit", str(file)).refused(2)
    assert "lab,lab2" in refused
    assert "lab,lab2" in program("--yes", "cancel", here).refused(2)
    assert program("--yes", "cancel", f"{here}@lab", there).status == 0
    lab.wait_state(here, "CANCELLED")
    assert state_there(lab, there.partition("@")[0]) in ("CANCELLED", "COMPLETING")


def test_a_cluster_of_the_configuration_may_be_the_site_s_second_one(
    lab: SlurmLab, over_ssh: Program, tmp_path: Path
) -> None:
    over_ssh.config.parent.mkdir(parents=True, exist_ok=True)
    over_ssh.config.write_text('[clusters.second]\nssh = "lab-alice"\nslurm_cluster = "lab2"\n')
    second = Program(over_ssh.home, ("--cluster", "second"), over_ssh.variables)
    assert [row["name"] for row in second("nodes", "--format", "json").json["nodes"]] == ["m1"]
    file = tmp_path / "there.sh"
    file.write_text(SLEEPER)
    job_id = second("submit", str(file)).text.strip()
    number = job_id.partition("@")[0]
    assert state_there(lab, number) in ("PENDING", "RUNNING")
    assert [row["id"] for row in second("jobs", "--format", "json").json["jobs"]] == [job_id]
    found = second("where", "--cpus", "1", "--format", "json").json["places"]
    assert [(place["cluster"], place["queue"], place["accepts"]) for place in found] == [
        ("second", "main", True)
    ]
    assert second("--yes", "cancel", job_id).status == 0
    assert state_there(lab, number) in ("CANCELLED", "COMPLETING")
