"""`hpcdash sudoers`: sudo rules for an account that submits for other users, and root's program
for their launches.

It installs nothing and queries no cluster.
"""

from __future__ import annotations

import getpass
import grp
import pwd

from hpcdash.assembly import EMBEDDED, ChosenSite, chosen_site, scheduler_for
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_notes, print_text
from hpcdash.errors import UsageError
from hpcdash.private_files import find_weak_spot
from hpcdash.services.submit.sudoers import program_text, sudoers_text

# login.defs(5), UID_MIN: below are system accounts.
_MIN_UID = 1000


def run_sudoers(
    common: CommonOptions,
    *,
    account: str | None,
    group: str | None,
    scheduler: str | None,
    bin_folder: str | None,
    storage_root: str | None,
    env_file: str | None,
    program: bool,
) -> None:
    """Print the rules, or the program; assumed values are printed to stderr."""
    site = chosen_site(common)
    root = (storage_root or site.launch.site.storage_root).rstrip("/")
    if not root:
        # A home is closed to the accounts used for submission; run_as requires a folder too.
        raise UsageError(
            "no launch folder is set",
            "Use --storage-root DIR, or set storage_root in [launch].",
        )
    if program:
        print_text(program_text(root))
        return
    if site.cluster.backend == EMBEDDED and not scheduler:
        raise UsageError(
            "the embedded queue cannot submit for other users", "Use --for slurm or --for pbs."
        )
    if not group:
        raise UsageError(
            "no group given",
            "Use --group GROUP; the account can then run any program as the group's members.",
        )
    backend = scheduler_for(scheduler, site.cluster)
    login = account or _login(site)
    folder = bin_folder or site.cluster.path.partition(":")[0]
    if not account:
        print_notes(f"using the account {login} (--account changes it)")
    if not folder:
        folder = backend.probe.usual_folder
        print_notes(f"{backend.name}'s commands are assumed to be in {folder} (--bin changes it)")
    text = sudoers_text(
        login,
        group,
        bin_folder=folder.rstrip("/"),
        commands=backend.probe.delegated_commands,
        storage_root=root,
        launch_program=site.launch.launch_program,
        env_file=env_file or "",
    )
    if site.cluster.ssh is None:
        _refuse_swappable(root)
        _warn_system_accounts(group)
    print_text(text)


def _login(site: ChosenSite) -> str:
    """Return the user's account on the cluster, as far as the configuration has it."""
    ssh = site.cluster.ssh
    if ssh is not None and ssh.user:
        return ssh.user
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise UsageError(
            "no account given, and this process has no login name", "Use --account NAME."
        ) from error


def _refuse_swappable(root: str) -> None:
    """Raise UsageError where another user could redirect root's own `install -d` by a link."""
    spot = find_weak_spot(root, is_roots=True)
    if spot is not None:
        problem = (
            "is a symbolic link" if spot.is_link else "can be changed by users other than root"
        )
        raise UsageError(
            f"{root} cannot be the storage root: {spot.path} {problem}",
            "Use the real path of a folder that is owned by root, as is every folder above it.",
        )


def _warn_system_accounts(group: str) -> None:
    """Warn about this machine's accounts that the rules should not include."""
    try:
        found = grp.getgrnam(group)
    except KeyError:
        print_notes(f"this machine has no group {group}")
        return
    members = {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == found.gr_gid} | set(
        found.gr_mem
    )
    system_accounts = []
    for name in sorted(members):
        try:
            uid = pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
        if 0 < uid < _MIN_UID:
            system_accounts.append(f"{name} (uid {uid})")
    if system_accounts:
        print_notes(
            f"group {group} includes system accounts, which the rules would allow: "
            f"{', '.join(system_accounts)}. Remove them from the group, or use another group."
        )
