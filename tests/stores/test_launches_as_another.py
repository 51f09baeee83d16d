"""Launches that one account submits as another, through the real sudo; sbatch is a stand-in that tells who called."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdash.backends.actions import Outcome
from hpcdash.backends.slurm import BACKEND as SLURM
from hpcdash.config.settings import LaunchSettings
from hpcdash.errors import UsageError
from hpcdash.launch.request import Request, Site, SlotType
from hpcdash.launch.sudoers import sudoers_text
from hpcdash.stores.actions import Actions
from hpcdash.stores.budget import CommandBudget
from hpcdash.stores.clock import SystemClock
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.journal import Journal
from hpcdash.stores.launch_cleanup import _removed
from hpcdash.stores.launches import Launches, PlannedLaunch, WantedLaunch
from hpcdash.transport.base import DEFAULT_CAP_BYTES, DEFAULT_LIMIT_SECONDS, Completed
from hpcdash.transport.local import LocalTransport
from tests.support.sudo_rules import install_rules

SQUEUE = '#!/bin/sh\n[ "$1" = --version ] && echo "slurm-wlm 22.05.8"\n'
SCONTROL = '#!/bin/sh\necho "Slurmctld(primary) at here is UP"\n'
SBATCH = """#!/bin/sh
[ -e "$(dirname "$0")/refuses" ] && { echo "sbatch: error: Batch job submission failed: Invalid qos" >&2; exit 1; }
for file; do :; done
{ id -un; pwd; printf '%s\\n' "$@"; env; cat -- "$file"; } > "$(dirname "$0")/said/called"
echo "Submitted batch job 7"
"""


@dataclass(frozen=True, slots=True)
class Accounts:
    """Two accounts, sudo's rules for the first, Slurm's commands in `bin`, and where launches are."""

    launcher: str
    user: str
    top: Path

    @property
    def bin(self) -> Path:
        return self.top / "bin"

    @property
    def root(self) -> Path:
        return self.top / "jobs"

    @property
    def called(self) -> list[str]:
        return (self.bin / "said" / "called").read_text().splitlines()


class AsAccount(LocalTransport):
    """Runs commands as an account whose home is `home`."""

    def __init__(self, account: str, path: str, home: Path) -> None:
        super().__init__()
        self._before = ("setpriv", f"--reuid={account}", f"--regid={account}", "--init-groups", "env")
        self._before += (f"PATH={path}:/usr/bin:/bin", f"HOME={home}", f"USER={account}")

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None = None,
        limit_seconds: float = DEFAULT_LIMIT_SECONDS,
        cap_bytes: int = DEFAULT_CAP_BYTES,
    ) -> Completed:
        return await super().run((*self._before, *argv), stdin=stdin, limit_seconds=limit_seconds, cap_bytes=cap_bytes)


@pytest.fixture
def site() -> Iterator[Accounts]:
    if os.geteuid() != 0:
        pytest.skip("only root installs sudo rules")
    if shutil.which("sudo") is None:
        pytest.skip("sudo is not installed")
    found = Accounts(
        f"hpcdash-a{os.getpid()}", f"hpcdash-b{os.getpid()}", Path(tempfile.mkdtemp(prefix="hpcdash-launch-"))
    )
    rules = Path("/etc/sudoers.d") / found.launcher
    try:
        for account in (found.launcher, found.user):
            subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", account], check=True)
        found.top.chmod(0o755)
        found.bin.mkdir()
        for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL), ("sbatch", SBATCH)):
            (found.bin / name).write_text(text)
            (found.bin / name).chmod(0o755)
        (found.bin / "said").mkdir()
        (found.bin / "said").chmod(0o777)
        found.root.mkdir()
        shutil.chown(found.root, found.launcher)
        text = sudoers_text(
            found.launcher, bin_folder=str(found.bin), commands=("sbatch",), storage_root=str(found.root)
        )
        install_rules(rules, text)
        yield found
    finally:
        rules.unlink(missing_ok=True)
        shutil.rmtree(found.top)
        for account in (found.launcher, found.user):
            subprocess.run(["userdel", account], check=False, capture_output=True)


@pytest.fixture
def launches(site: Accounts, tmp_path: Path) -> Launches:
    transport = AsAccount(site.launcher, str(site.bin), site.top)
    store = ClusterStore("site", transport, (SLURM,), clock=SystemClock(), budget=CommandBudget(600))
    return Launches(store, LaunchSettings(Site(storage_root=str(site.root), run_as=site.user)), tmp_path / "state")


async def planned(launches: Launches) -> PlannedLaunch:
    request = Request(command="true", name="as-another", slot_type=SlotType.CPU, site=launches.settings.site)
    return await launches.plan(WantedLaunch(request, "# text\n", {"run.sh": b"#!/bin/sh\n"}))


async def submitted(launches: Launches, one: PlannedLaunch, tmp_path: Path) -> tuple[Outcome, str]:
    actions = Actions(launches.store, Journal(tmp_path / "journal.jsonl"))
    (outcome,) = (await actions.run(one.again.plan)).outcomes
    return outcome, await launches.conclude(one, outcome)


def owners(folder: Path) -> set[str]:
    return {path.owner() for path in (folder, *folder.rglob("*"))}


def mode(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


async def test_it_is_submitted_as_the_user_whose_the_folder_is_by_then(
    launches: Launches, site: Accounts, tmp_path: Path
) -> None:
    one = await planned(launches)
    assert await submitted(launches, one, tmp_path) == (Outcome("as-another", True, "job 7"), "")
    folder = Path(one.place.folder)
    assert owners(folder) == {site.user}
    assert mode(folder) == 0o700
    called = site.called
    assert called[0] == site.user
    assert f"{folder}/batch.sh" in called
    assert f"#SBATCH --chdir={folder}" in called
    assert not [line for line in called if line.startswith(("HOME=", "USER=")) and site.user not in line]


async def test_the_commands_are_those_that_the_rules_allow(launches: Launches, site: Accounts) -> None:
    one = await planned(launches)
    _, handed_over, submit = (command.argv for command in one.again.plan.commands)
    assert handed_over == ("sudo", "-n", "chown", "-R", site.user, one.place.folder)
    assert submit[:6] == ("sudo", "-n", "--preserve-env=SLURM_CONF", "-u", site.user, f"{site.bin}/sbatch")
    assert one.again.searches["as-another"].user == site.user


async def test_a_refused_one_is_handed_back_and_removed(launches: Launches, site: Accounts, tmp_path: Path) -> None:
    (site.bin / "refuses").touch()
    outcome, said = await submitted(launches, await planned(launches), tmp_path)
    assert (outcome.done, outcome.words, said) == (False, "Invalid qos", "")
    assert list(site.root.iterdir()) == []


async def test_without_the_rules_nothing_is_submitted(launches: Launches, site: Accounts, tmp_path: Path) -> None:
    one = await planned(launches)
    install_rules(Path("/etc/sudoers.d") / site.launcher, "")
    outcome, said = await submitted(launches, one, tmp_path)
    assert outcome.done is False
    assert f"nothing was submitted: {one.place.folder} is not {site.user}'s: sudo: a password is required" in (
        outcome.words
    )
    assert said == ""
    assert not (site.bin / "said" / "called").exists()
    assert list(site.root.iterdir()) == []


async def test_a_completed_one_is_handed_back_and_removed(launches: Launches, site: Accounts, tmp_path: Path) -> None:
    one = await planned(launches)
    await submitted(launches, one, tmp_path)
    assert await _removed(launches.store, one.staged.folder, one.staged.sums_digest, site.user) == ""
    assert list(site.root.iterdir()) == []


async def test_it_needs_a_storage_root(launches: Launches, site: Accounts) -> None:
    launches.settings = LaunchSettings(Site(run_as=site.user))
    with pytest.raises(UsageError, match="storage_root"):
        await planned(launches)


async def test_without_another_account_nothing_uses_sudo(launches: Launches, site: Accounts, tmp_path: Path) -> None:
    launches.settings = LaunchSettings(Site(storage_root=str(site.root)))
    one = await planned(launches)
    assert not [command for command in one.again.plan.commands if "sudo" in command.argv]
    outcome, _ = await submitted(launches, one, tmp_path)
    assert outcome.done
    assert site.called[0] == site.launcher
