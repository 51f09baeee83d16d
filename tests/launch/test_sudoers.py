"""The sudo rules of an account that submits for others."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdash.errors import UsageError
from hpcdash.launch.sudoers import PBS_COMMANDS, SLURM_COMMANDS, sudoers_text
from tests.support.sudo_rules import install_rules


@dataclass(frozen=True, slots=True)
class Launcher:
    """An account that submits for others; `root` is where it keeps its jobs' files."""

    account: str
    root: Path

    def sudo(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What sudo does for the account, asking nobody."""
        asked = ["setpriv", f"--reuid={self.account}", "--init-groups", "--reset-env", "sudo", "-n", *words]
        return subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30)


def rules(account: str = "launcher", folder: str = "/usr/bin", root: str = "/home/launcher/jobs") -> str:
    return sudoers_text(account, bin_folder=folder, commands=SLURM_COMMANDS, storage_root=root)


def test_the_scheduler_s_commands_are_run_as_anyone_but_root() -> None:
    text = rules()
    assert "launcher ALL = (ALL, !root) NOPASSWD:SETENV: " in text
    for name in SLURM_COMMANDS:
        assert f"/usr/bin/{name}" in text
    pbs = sudoers_text("launcher", bin_folder="/opt/pbs/bin", commands=PBS_COMMANDS, storage_root="/jobs")
    assert "/opt/pbs/bin/qsub" in pbs
    assert "sbatch" not in pbs


@pytest.mark.parametrize(
    ("account", "folder", "root"),
    [
        ("root", "/usr/bin", "/jobs"),
        ("ALL", "/usr/bin", "/jobs"),
        ("a b", "/usr/bin", "/jobs"),
        ("launcher", "bin", "/jobs"),
        ("launcher", "/usr/bin", "/jobs\nroot ALL=(ALL) ALL"),
        ("launcher", "/usr/bin", "/jobs/../etc"),
        ("launcher", "/usr/bin", "/"),
    ],
)
def test_what_sudo_would_read_as_something_else_is_refused(account: str, folder: str, root: str) -> None:
    with pytest.raises(UsageError):
        rules(account, folder, root)


@pytest.mark.skipif(shutil.which("visudo") is None, reason="visudo is not installed")
def test_the_rules_of_two_accounts_stand_beside_each_other(tmp_path: Path) -> None:
    file = tmp_path / "rules"
    file.write_text(rules("launcher") + rules("other", root="/home/other/jobs"))
    checked = subprocess.run(["visudo", "-c", "-f", file], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("visudo") is None, reason="visudo is not installed")
def test_sudo_s_own_check_finds_nothing_wrong(tmp_path: Path) -> None:
    file = tmp_path / "launcher"
    file.write_text(rules())
    file.chmod(0o440)
    checked = subprocess.run(["visudo", "-c", "-f", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """An account with these rules on the real sudo, and a folder for what it hands over."""
    if os.geteuid() != 0:
        pytest.skip("only root installs sudo rules")
    if shutil.which("sudo") is None:
        pytest.skip("sudo is not installed")
    account = f"hpcdash-l{os.getpid()}"
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", account], check=True, capture_output=True)
    root = Path(tempfile.mkdtemp(prefix="hpcdash-launch-"))
    installed = Path("/etc/sudoers.d") / account
    try:
        root.chmod(0o755)
        (root / "job-1").mkdir()
        text = sudoers_text(account, bin_folder="/usr/bin", commands=("id",), storage_root=str(root))
        install_rules(installed, text)
        yield Launcher(account, root)
    finally:
        installed.unlink(missing_ok=True)
        shutil.rmtree(root)
        subprocess.run(["userdel", account], check=False, capture_output=True)


def test_the_account_runs_the_scheduler_s_commands_as_a_user_and_not_as_root(launcher: Launcher) -> None:
    assert launcher.sudo("-u", "nobody", "id", "-un").stdout == "nobody\n"
    assert launcher.sudo("-u", "root", "id", "-un").returncode != 0
    assert launcher.sudo("-u", "nobody", "env").returncode != 0


def test_it_hands_over_what_is_below_its_storage_and_nothing_else(launcher: Launcher) -> None:
    folder = launcher.root / "job-1"
    assert launcher.sudo("chown", "-R", "nobody", str(folder)).returncode == 0
    assert folder.owner() == "nobody"
    for elsewhere in ("/etc", f"{launcher.root}/../etc", str(launcher.root), f"{folder}/.."):
        assert launcher.sudo("chown", "-R", "nobody", elsewhere).returncode != 0, elsewhere
    assert launcher.sudo("chown", "-R", "nobody", str(folder), "/etc").returncode != 0


def test_no_link_on_the_way_leads_a_hand_over_out_of_the_storage(launcher: Launcher, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deeper").mkdir(parents=True)
    (elsewhere / "secret").touch()
    (launcher.root / "job-2").symlink_to(elsewhere)
    for below in ("secret", "deeper"):
        assert launcher.sudo("chown", "-R", "nobody", f"{launcher.root}/job-2/{below}").returncode != 0, below
    # The link itself changes hands, as chown -R follows none.
    launcher.sudo("chown", "-R", "nobody", f"{launcher.root}/job-2")
    assert [path.owner() for path in (elsewhere, *elsewhere.iterdir())] == ["root", "root", "root"]
