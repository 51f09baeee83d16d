"""`hpcdash sudoers`: the rules, or root's program, on stdout; what they assume on stderr."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.program import Program, home_with
from tests.support.sudo_rules import sudo_site, why_no_sudo

CONFIG = """\
[launch]
launch_program = "/opt/site/hpcdash-launch"

[clusters.juno]
ssh = "launcher@juno.example.org"
backend = "slurm"
path = "/opt/slurm/bin:/opt/more"
launch.storage_root = "/work/launches/"
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(home_with(tmp_path / "home"))


@pytest.fixture
def configured(program: Program) -> Program:
    program.config.parent.mkdir(parents=True)
    program.config.write_text(CONFIG)
    return program


def test_a_configured_cluster_says_it_all_but_who_it_is_for_is_told(
    configured: Program, tmp_path: Path
) -> None:
    done = configured("sudoers", "--group", "hpcusers")
    assert (done.status, done.stderr) == (
        0,
        "hpcdash: using the account launcher (--account changes it)\n",
    )
    assert "\nlauncher ALL = (%hpcusers, !root, !#0) NOPASSWD: \\\n" in done.text
    assert "/opt/slurm/bin/sbatch" in done.text
    assert "/opt/site/hpcdash-launch\n" in done.text
    assert "SETENV" not in done.text
    assert "chown" not in done.text
    if shutil.which("visudo"):
        file = tmp_path / "rules"
        file.write_bytes(done.stdout)
        checked = subprocess.run(
            ["visudo", "-c", "-f", file], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_program_has_the_storage_root_in_it_and_names_no_account(
    configured: Program, tmp_path: Path
) -> None:
    done = configured("sudoers", "--program")
    assert (done.status, done.stderr) == (0, "")
    assert done.text.startswith("#!/bin/sh\n")
    assert "\nroot=/work/launches\n" in done.text
    elsewhere = configured("sudoers", "--program", "--storage-root", "/scratch/launches")
    assert "\nroot=/scratch/launches\n" in elsewhere.text


def test_what_is_taken_for_granted_is_said(program: Program) -> None:
    done = program(
        *("sudoers", "--local", "--for", "pbs", "--account", "nobody", "--group", "no-such-group"),
        *("--storage-root", "/work/jobs", "--env-file", "/etc/pbs.env"),
    )
    assert done.stderr == (
        "hpcdash: pbs's commands are assumed to be in /opt/pbs/bin (--bin changes it)\n"
        "hpcdash: this machine has no group no-such-group\n"
    )
    assert "/opt/pbs/bin/qsub" in done.text
    assert "\nDefaults:nobody env_file=/etc/pbs.env\n" in done.text
    assert "/usr/local/libexec/hpcdash-launch\n" in done.text
    assert "sbatch" not in done.text


def test_what_rules_cannot_be_made_of_is_refused_with_the_option_to_write(program: Program) -> None:
    words = ("sudoers", "--for", "slurm", "--bin", "/usr/bin", "--group", "hpcusers")
    assert "Use --storage-root DIR" in program(*words, "--ssh", "me@juno.example.org").refused(2)
    assert "Use --storage-root DIR" in program("sudoers", "--program").refused(2)
    assert "Use --group GROUP" in program(
        *words[:-2], "--account", "me", "--storage-root", "/jobs"
    ).refused(2)
    assert "--account launcher" in program(
        *words, "--account", "root", "--storage-root", "/jobs"
    ).refused(2)
    assert "--group hpcusers" in program(
        *words[:-1], "a,b", "--account", "me", "--storage-root", "/jobs"
    ).refused(2)
    assert (
        "--storage-root: use" in program(*words, "--account", "me", "--storage-root", "a b").stderr
    )


def test_a_root_that_the_account_could_swap_for_a_link_is_refused(
    program: Program, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    words = (
        "sudoers",
        "--local",
        "--for",
        "slurm",
        "--account",
        "launcher",
        "--group",
        "users",
        "--storage-root",
    )
    home = tmp_path / "launcher"
    home.mkdir()
    shutil.chown(home, 65534)
    assert f"{home} can be changed by users other than root" in program(
        *words, f"{home}/launches"
    ).refused(2)
    (tmp_path / "link").symlink_to("/srv")
    assert f"{tmp_path}/link is a symbolic link" in program(
        *words, f"{tmp_path}/link/launches"
    ).refused(2)


def test_system_accounts_among_the_members_are_named(program: Program) -> None:
    if reason := why_no_sudo():
        pytest.skip(reason)
    words = (
        "sudoers",
        "--local",
        "--for",
        "slurm",
        "--account",
        "launcher",
        "--storage-root",
        "/work/jobs",
    )
    with sudo_site() as site:
        uid = pwd.getpwnam(site.system).pw_uid
        done = program(*words, "--group", site.group)
        assert f"which the rules would allow: {site.system} (uid {uid})." in done.stderr
        assert site.alice not in done.stderr
        own_group = grp.getgrgid(pwd.getpwnam(site.system).pw_gid).gr_name
        assert f"{site.system} (uid {uid})" in program(*words, "--group", own_group).stderr
