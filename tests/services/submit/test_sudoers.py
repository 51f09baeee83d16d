"""The sudo rules of an account that submits for others, and what they give it on the real sudo."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdash.backends.pbs.backend import BACKEND as PBS
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.errors import UsageError
from hpcdash.services.submit.sudoers import sudoers_text
from tests.support.records import for_each
from tests.support.sudo_rules import SudoSite, sudo_site, why_no_sudo

pytestmark = pytest.mark.system
PROGRAM = "/usr/local/libexec/hpcdash-launch"


def rules(
    account: str = "launcher",
    group: str = "hpcusers",
    folder: str = "/usr/bin",
    root: str = "/work/launches",
    program: str = PROGRAM,
    env_file: str = "",
) -> str:
    return sudoers_text(
        account,
        group,
        bin_folder=folder,
        commands=SLURM.probe.delegated_commands,
        storage_root=root,
        launch_program=program,
        env_file=env_file,
    )


def rule_of(text: str) -> str:
    """What sudo reads of it, on one line."""
    return " ".join(
        line.rstrip("\\").strip() for line in text.splitlines() if not line.startswith("#")
    )


def test_the_scheduler_s_commands_and_root_s_program_are_run_as_members_of_the_group() -> None:
    paths = ", ".join((*(f"/usr/bin/{name}" for name in SLURM.probe.delegated_commands), PROGRAM))
    assert (
        rule_of(rules())
        == f"Defaults:launcher use_pty launcher ALL = (%hpcusers, !root, !#0) NOPASSWD: {paths}"
    )
    pbs = sudoers_text(
        "launcher",
        "hpcusers",
        bin_folder="/opt/pbs/bin",
        commands=PBS.probe.delegated_commands,
        storage_root="/jobs",
        launch_program=PROGRAM,
    )
    assert "/opt/pbs/bin/qsub" in pbs
    assert "sbatch" not in pbs


def test_a_file_of_variables_is_root_s_to_write() -> None:
    found = rule_of(rules(env_file="/etc/hpcdash/slurm.env"))
    assert "Defaults:launcher env_file=/etc/hpcdash/slurm.env launcher ALL = " in found


def test_root_s_commands_and_what_the_rules_give_away_are_in_the_remarks() -> None:
    text = rules()
    remarks = [line for line in text.splitlines() if line.startswith("#")]
    program = (
        "hpcdash sudoers --program --storage-root /work/launches | install -o root -m 0755 "
        f"-D /dev/stdin {PROGRAM}"
    )
    assert f"#   {program}" in remarks
    assert "#   install -d -m 1777 /work/launches" in remarks
    assert "can run any program as any member" in text
    # sudo passes over files whose names have a dot.
    assert "/etc/sudoers.d/j_doe\n" in rules("j.doe")


@for_each(
    "wrong",
    [
        {"account": "root"},
        {"account": "ALL"},
        {"account": "SVC_1"},
        {"account": "-u"},
        {"account": "#0"},
        {"account": "a b"},
        {"group": ""},
        {"group": "hpcusers, root"},
        {"group": "%#0"},
        {"group": "-g"},
        {"folder": "bin"},
        {"root": "/jobs\nroot ALL=(ALL) ALL"},
        {"root": "/jobs/../etc"},
        {"root": "/jobs/./x"},
        {"root": "/jobs/*"},
        {"root": "/"},
        {"program": "/usr/bin/env *"},
        {"program": "hpcdash-launch"},
        {"env_file": "slurm.env"},
        {"env_file": "/etc/a,!env_reset"},
    ],
    ids=str,
)
def test_what_sudo_would_read_as_something_else_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        rules(**wrong)


@pytest.mark.skipif(shutil.which("visudo") is None, reason="visudo is not installed")
def test_sudo_s_own_check_finds_nothing_wrong_in_the_rules_of_two_accounts(tmp_path: Path) -> None:
    file = tmp_path / "rules"
    file.write_text(
        rules("launcher", env_file="/etc/hpcdash/slurm.env") + rules("j.Doe@site", group="Others.2")
    )
    file.chmod(0o440)
    checked = subprocess.run(
        ["visudo", "-c", "-f", file], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.fixture(scope="module")
def site() -> Iterator[SudoSite]:
    """Accounts with the rules on the real sudo, in which id and env stand for the scheduler's
    commands.
    """
    if reason := why_no_sudo():
        pytest.skip(reason)
    with sudo_site() as found:
        variables = found.top / "variables"
        variables.write_text("SLURM_CONF=/etc/roots.conf\n")
        found.install(commands=("id", "env"), env_file=str(variables))
        yield found


def test_a_command_is_run_as_every_member_of_the_group(site: SudoSite) -> None:
    for member in (site.alice, site.bob):
        assert site.sudo("-u", member, "id", "-un").stdout.decode() == f"{member}\n"


def test_nobody_else_is_run_as(site: SudoSite) -> None:
    others = [
        "root",
        "#0",
        site.second_root,
        site.outsider,
        "nobody",
        "daemon",
        "#-1",
        "#4294967295",
        "%root",
    ]
    for other in (*others, site.launcher):
        assert site.sudo("-u", other, "id").returncode != 0, other
    assert site.sudo("id").returncode != 0


def test_an_account_of_uid_0_is_left_out_although_it_is_in_the_group(site: SudoSite) -> None:
    listed = subprocess.run(
        ["id", "-G", "-n", site.second_root], capture_output=True, text=True, check=True
    )
    assert site.group in listed.stdout.split()
    done = site.sudo("-u", site.second_root, "id")
    assert done.returncode != 0
    assert done.stdout == b""


def test_no_group_is_taken_that_a_member_is_not_in(site: SudoSite) -> None:
    for group in ("root", "#0", "shadow", "disk"):
        assert site.sudo("-u", site.alice, "-g", group, "id").returncode != 0, group
        assert site.sudo("-g", group, "id").returncode != 0, group
    assert site.sudo("-g", site.group, "id").returncode != 0


def test_no_other_program_is_run(site: SudoSite) -> None:
    for words in (
        ("chown", "-R", site.launcher, str(site.root)),
        ("sh", "-c", "id"),
        ("/usr/bin/../bin/sh",),
    ):
        assert site.sudo("-u", site.alice, *words).returncode != 0, words
        assert site.sudo("-u", "root", *words).returncode != 0, words
    for option in (("-s",), ("-i",), ("-e", "/etc/passwd"), ("-D", "/", "id"), ("-R", "/", "id")):
        assert site.sudo("-u", site.alice, *option).returncode != 0, option


def test_no_variable_of_the_launcher_s_arrives(site: SudoSite) -> None:
    mine = {
        "LD_PRELOAD": "/tmp/mine.so",
        "SBATCH_ACCOUNT": "mine",
        "BASH_ENV": "/tmp/mine",
        "SLURM_CONF": "/tmp/mine.conf",
    }
    done = site.sudo("-u", site.alice, "env", variables=mine)
    assert done.returncode == 0
    assert [line for line in done.stdout.decode().splitlines() if "mine" in line] == []
    for option in (
        ("-E", "env"),
        ("--preserve-env=SLURM_CONF", "env"),
        ("LD_PRELOAD=/tmp/mine.so", "env"),
        ("SLURM_CONF=/tmp/mine.conf", "env"),
    ):
        assert site.sudo("-u", site.alice, *option, variables=mine).returncode != 0, option


def test_variables_of_root_s_file_arrive(site: SudoSite) -> None:
    lines = site.sudo("-u", site.alice, "env").stdout.decode().splitlines()
    assert "SLURM_CONF=/etc/roots.conf" in lines
    assert f"HOME={site.home(site.alice)}" in lines
