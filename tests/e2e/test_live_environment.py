"""What a person set for their own squeue and sinfo, or prints from their shell's rc file, changes
nothing here.
"""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from tests.e2e.scene import Scene
from tests.support.program import Program, find_row, home_with, together
from tests.support.slurm import SlurmLab
from tests.support.suite import account

TRAPS = {
    "SQUEUE_FORMAT": "%i|trap",
    "SQUEUE_FORMAT2": "jobid:3,name:2",
    "SQUEUE_STATES": "COMPLETED",
    "SQUEUE_SORT": "-i",
    "SQUEUE_USERS": "root",
    "SQUEUE_PARTITION": "debug",
    "SQUEUE_ARRAY": "1",
    "SQUEUE_ACCOUNT": "nobody",
    "SQUEUE_NAMES": "nothing",
    "SQUEUE_QOS": "high",
    "SINFO_FORMAT": "trap %N",
    "SINFO_PARTITION": "debug",
    "SINFO_SORT": "-N",
    "SACCT_FORMAT": "jobid%3,trap",
    "SLURM_TIME_FORMAT": "%d.%m.",
    "SLURM_BITSTR_LEN": "3",
    "SLURM_JSON": "pretty",
    "SCONTROL_ALL": "1",
    "LC_ALL": "de_DE.UTF-8",
    "TZ": "Asia/Kathmandu",
}
MOVING = ("elapsed_seconds", "load", "priority")
NOISE = """
echo "Welcome to $(hostname)! You have new mail."
echo "noise on stderr" >&2
printf '999\\036forged\\036PENDING\\n'
export SQUEUE_FORMAT='%i|trap' SQUEUE_STATES=COMPLETED SINFO_FORMAT=trap SQUEUE_USERS=root SLURM_TIME_FORMAT=relative
squeue() { echo "a function of the same name"; }
alias squeue='echo an alias'
"""


def still(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The rows by name, without what moves between two calls."""
    kept = [{key: value for key, value in row.items() if key not in MOVING} for row in rows]
    return sorted(kept, key=lambda row: str(row.get("id", row.get("name"))))


@pytest.mark.usefixtures("left_running")
@pytest.mark.parametrize("kind", ["jobs", "nodes", "queues", "history"])
def test_the_persons_own_output_settings_change_nothing(
    locally: Program, scene: Scene, kind: str
) -> None:
    plain = locally.rows(kind, "--all")
    trapped = Program(locally.home, locally.before, {**locally.variables, **TRAPS}).rows(
        kind, "--all"
    )
    assert plain
    # History grows as the accounting hears of older ends.
    known = {row.get("id", row["name"]) for row in plain}
    assert still([row for row in trapped if row.get("id", row["name"]) in known]) == still(plain)
    assert kind == "history" or len(trapped) == len(plain)


def test_details_are_the_same_among_traps(locally: Program, scene: Scene) -> None:
    trapped = Program(locally.home, locally.before, {**locally.variables, **TRAPS})
    for job_id in (scene.training, scene.failed, f"{scene.array}_4"):
        words = ("show", job_id, "--format", "json")
        (here,) = still([locally(*words).json["job"]])
        (there,) = still([trapped(*words).json["job"]])
        # What a running job uses grows.
        assert {**there, "native": None, "usage": None} == {**here, "native": None, "usage": None}
        assert (there["usage"] is None) == (here["usage"] is None)


@pytest.fixture(scope="module", params=["bash", "tcsh"])
def noisy(request: pytest.FixtureRequest, slurm_lab: SlurmLab) -> str:
    """A user whose login shell prints, sets traps and has a squeue of its own, in whatever file it
    reads.
    """
    shell = Path("/bin") / str(request.param)
    if not shell.exists():
        pytest.skip(f"{shell} is not installed")
    name = account(f"noisy-{request.param}", "-m", "-s", str(shell))
    home = Path(pwd.getpwnam(name).pw_dir)
    if request.param == "bash":
        for rc_file in (".bashrc", ".bash_profile", ".profile"):
            (home / rc_file).write_text(NOISE)
    else:
        (home / ".tcshrc").write_text(
            "echo welcome\nsetenv SQUEUE_FORMAT '%i|trap'\nalias squeue 'echo an alias'\n"
        )
    return name


def test_an_rc_file_that_prints_and_sets_traps_changes_nothing(
    noisy: str, over_ssh: Program, scene: Scene, tmp_path: Path
) -> None:
    config = scene.lab.ssh_config.read_text().replace(
        "Host lab-alice", f"Host lab-noisy\n  User {noisy}\nHost lab-alice"
    )
    program = Program(home_with(tmp_path / "noisy", config), ("--ssh", "lab-noisy"))
    words = [(kind, "--all", "--format", "json") for kind in ("jobs", "nodes")]
    for kind, there, here in zip(
        ("jobs", "nodes"), together(program, *words), together(over_ssh, *words), strict=True
    ):
        assert still(there.json[kind]) == still(here.json[kind])
    assert find_row(program.rows("history", "--all"), scene.failed)["exit_code"] == 3
    # Who has no jobs is told so, by an empty list.
    assert program.rows("jobs") == []
    assert program.rows("history") == []
    shown = program("show", scene.training, "--format", "json").json["job"]
    assert shown["name"] == "train lr=1e-3"
    (scheduler,) = [
        c for c in program("doctor", "--format", "json").json["checks"] if c["name"] == "scheduler"
    ]
    assert f"logged in as {noisy}" in scheduler["detail"]
