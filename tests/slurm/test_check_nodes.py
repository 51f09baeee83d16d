"""`hpcdash check-nodes`, a probe of ready checks and a startup hook on the real Slurm, over ssh."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.program import Program, program_over_ssh
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slurm


@pytest.fixture
def over_ssh(clean_slurm: SlurmLab, tmp_path: Path) -> Program:
    return program_over_ssh(clean_slurm, tmp_path / "home")


def test_nodes_are_checked_by_a_job_and_what_was_found_is_told_by_node(over_ssh: Program) -> None:
    refused = over_ssh("check-nodes", "n1")
    assert "Use --yes to skip the prompt" in refused.refused(2)
    done = over_ssh("check-nodes", "n[1-2]", "--checks", "disk,cuda", "--yes")
    rows = [line.split(maxsplit=3) for line in done.text.splitlines()[1:]]
    assert [tuple(row[:3]) for row in rows] == [
        ("n1", "disk", "ok"),
        ("n1", "cuda", "failed"),
        ("n2", "disk", "ok"),
        ("n2", "cuda", "failed"),
    ], done
    assert "libcuda.so.1" in rows[1][3]
    assert (done.status, "2 nodes, 2 failed" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        (
            'node_probe = ["disk", "cuda"]',
            ": hpcdash: the cuda check failed: the driver cannot be loaded: ",
        ),
        (
            'startup_hook = "test -d /missing || exit 7"',
            "hpcdash: the startup hook failed on node ",
        ),
        ('startup_hook = "touch made"\nnode_probe = "disk"', ""),
    ],
    ids=["check", "hook", "well"],
)
def test_what_fails_before_the_command_is_the_job_s_cause(
    over_ssh: Program, tmp_path: Path, more: str, cause: str
) -> None:
    request = tmp_path / "a.toml"
    request.write_text(
        f'name = "before"\ncommand = "echo started"\nslot_type = "cpu"\ntime = "2m"\n{more}\n'
    )
    done = over_ssh("submit", str(request))
    assert done.status == 0, done
    job = done.text.strip()

    def state() -> str:
        return str(over_ssh("show", job, "--format", "json").json["job"]["state"])

    wait_until("the job to end", lambda: state() in ("completed", "failed"))
    told = over_ssh("show", job, "--format", "json").json
    if not cause:
        assert told["job"]["state"] == "completed"
        assert over_ssh("log", job).text == "started\n"
        return
    assert told["job"]["state"] == "failed"
    assert cause in told["failure"]["line"]
    assert over_ssh("log", job).text == ""
