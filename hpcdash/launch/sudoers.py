"""The sudo rules with which one account submits for its users. Writes nothing."""

from __future__ import annotations

import re

from hpcdash.errors import UsageError

SLURM_COMMANDS = ("sacct", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
PBS_COMMANDS = ("qsub", "qstat", "qdel", "pbsnodes")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PART = r"\/[A-Za-z0-9_@+-][A-Za-z0-9._@+-]*"
_FOLDER = re.compile(r"(/[A-Za-z0-9._@+-]+)+")


def sudoers_text(account: str, *, bin_folder: str, commands: tuple[str, ...], storage_root: str) -> str:
    """A drop-in for /etc/sudoers.d: what `account` may run without a password.

    The scheduler's commands as anyone but root, in the environment they are given; and as root chown -R of the folders
    in `storage_root`, of none that is deeper: the account might put a link on the way there. Raises UsageError for a
    name or folder that sudo would read as something else.
    """
    if not _ACCOUNT.fullmatch(account):
        raise UsageError(
            f"{account!r} is no account that sudo rules can name", "Write a login name: --account launcher"
        )
    if account == "root":
        raise UsageError("root needs no rules", "Name the account that hpcdash runs as: --account launcher")
    folders = (("--bin", "the commands' folder", bin_folder), ("--storage-root", "the storage root", storage_root))
    for option, what, folder in folders:
        if not _FOLDER.fullmatch(folder) or ".." in folder.split("/"):
            raise UsageError(f"{folder!r} cannot be {what} here", f"{option}: write an absolute path without blanks.")
    # No alias: its name would be the same in the rules of a second account.
    programs = ", \\\n    ".join(f"{bin_folder}/{name}" for name in commands)
    # A wildcard of sudo's stands for slashes and blanks too; a regular expression does not.
    below = re.escape(storage_root).replace("/", r"\/").replace(r"\-", "-")
    handed_over = f"^-R [a-z_][a-z0-9_-]* {below}{_PART}$"
    chown = ", ".join(f"{folder}/chown {handed_over}" for folder in ("/usr/bin", "/bin"))
    return (
        f"# {account} submits jobs for its users. Install it with: visudo -f /etc/sudoers.d/{account}\n"
        f"{account} ALL = (ALL, !root) NOPASSWD:SETENV: \\\n    {programs}\n"
        f"# Regular expressions: sudo 1.9.10 and later. A folder in the storage root is handed over, none\n"
        f"# below one, which a link might lead elsewhere; its name does not begin with a dot.\n"
        f"{account} ALL = (root) NOPASSWD: {chown}\n"
    )
