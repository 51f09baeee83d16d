"""`hpcdash sudoers`: the sudo rules of an account that submits for its users. Installs nothing, asks no cluster."""

from __future__ import annotations

import getpass
import sys

from hpcdash.cli.build import EMBEDDED
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.site import ChosenSite, chosen_site, scheduler_for
from hpcdash.errors import UsageError
from hpcdash.launch.batch import Scheduler
from hpcdash.launch.sudoers import PBS_COMMANDS, SLURM_COMMANDS, sudoers_text

_COMMANDS = {Scheduler.SLURM: SLURM_COMMANDS, Scheduler.PBS: PBS_COMMANDS}
_USUAL_BIN = {Scheduler.SLURM: "/usr/bin", Scheduler.PBS: "/opt/pbs/bin"}


def run_sudoers(
    common: CommonOptions,
    *,
    account: str | None,
    scheduler: str | None,
    bin_folder: str | None,
    storage_root: str | None,
) -> None:
    """Print the rules; what was not said and not configured is named on stderr, so that it can be checked."""
    site = chosen_site(common)
    if site.cluster.backend == EMBEDDED and not scheduler:
        raise UsageError("the embedded queue submits for nobody else", "Write --for slurm or --for pbs.")
    made_for = scheduler_for(scheduler, site.cluster)
    login = account or _login(site)
    folder = bin_folder or site.cluster.path.partition(":")[0]
    root = storage_root or site.launch.site.storage_root
    if not account:
        print(f"hpcdash: for the account {login} (--account names another)", file=sys.stderr)
    if not folder:
        folder = _USUAL_BIN[made_for]
        print(f"hpcdash: {made_for}'s commands are taken to be in {folder} (--bin names another)", file=sys.stderr)
    if not root:
        # A home is closed to those who are submitted for; run_as asks for a folder too.
        raise UsageError("where are launches kept there?", "Write --storage-root DIR, or storage_root in [launch].")
    text = sudoers_text(
        login, bin_folder=folder.rstrip("/"), commands=_COMMANDS[made_for], storage_root=root.rstrip("/")
    )
    sys.stdout.write(text)


def _login(site: ChosenSite) -> str:
    """Who hpcdash is on the cluster, as far as the configuration tells."""
    ssh = site.cluster.ssh
    if ssh is not None and ssh.user:
        return ssh.user
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise UsageError("who submits there? this process has no login name", "Write --account NAME.") from error
