"""`hpcdash sudoers`: the rules on stdout, what they assume on stderr."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.program import Program, home_with

CONFIG = """\
[clusters.juno]
ssh = "launcher@juno.example.org"
backend = "slurm"
path = "/opt/slurm/bin:/opt/more"
launch.storage_root = "/work/launches/"
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(home_with(tmp_path / "home"))


def test_a_configured_cluster_says_it_all_but_who_it_is_for_is_told(program: Program, tmp_path: Path) -> None:
    program.config.parent.mkdir(parents=True)
    program.config.write_text(CONFIG)
    done = program("sudoers")
    assert (done.status, done.stderr) == (0, "hpcdash: for the account launcher (--account names another)\n")
    assert "launcher ALL = (ALL, !root) NOPASSWD:SETENV: \\\n" in done.text
    assert "/opt/slurm/bin/sbatch" in done.text
    assert r"\/work\/launches\/[A-Za-z0-9_@+-]" in done.text
    if shutil.which("visudo"):
        file = tmp_path / "rules"
        file.write_bytes(done.stdout)
        checked = subprocess.run(["visudo", "-c", "-f", file], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_what_is_taken_for_granted_is_said(program: Program) -> None:
    done = program("sudoers", "--local", "--for", "pbs", "--account", "nobody", "--storage-root", "/work/jobs")
    assert done.stderr == "hpcdash: pbs's commands are taken to be in /opt/pbs/bin (--bin names another)\n"
    assert "/opt/pbs/bin/qsub" in done.text
    assert "sbatch" not in done.text


def test_what_rules_cannot_be_made_of_is_refused_with_the_option_to_write(program: Program) -> None:
    words = ("sudoers", "--for", "slurm", "--bin", "/usr/bin")
    said = program(*words, "--ssh", "me@juno.example.org").refused(2)
    assert "Write --storage-root DIR" in said
    assert "--account launcher" in program(*words, "--account", "root", "--storage-root", "/jobs").refused(2)
    assert "--storage-root: write" in program(*words, "--account", "me", "--storage-root", "a b").stderr
