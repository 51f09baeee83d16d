"""Submission of jobs as other accounts: sudo rules, and root's program for their launches."""

from __future__ import annotations

import re

from hpcdash.config.settings import PLAIN_PATH
from hpcdash.domain.request import ACCOUNT_NAME
from hpcdash.errors import UsageError
from hpcdash.shell_files import shell_text

# Files that the launch program takes: no path, no option, nothing hidden, no letter that a shell
# acts on.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_@+][A-Za-z0-9._@+-]{0,199}")
# sudo takes these for its aliases, of which ALL is everybody.
_ALIAS = re.compile(r"[A-Z][A-Z0-9_]*")
_GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}")

# How `remove` ends if there is no such launch.
NOTHING_THERE = 3


def sudoers_text(
    account: str,
    group: str,
    *,
    bin_folder: str,
    commands: tuple[str, ...],
    storage_root: str,
    launch_program: str,
    env_file: str = "",
) -> str:
    """A drop-in for /etc/sudoers.d: what `account` may run, without a password, as the members of
    `group`.

    The scheduler's `commands`, and the launch program; as nobody of uid 0, whatever the name, and
    in an environment of sudo's, with what `env_file` sets. Raises UsageError for a name or path
    that sudo would read as something else.
    """
    if not ACCOUNT_NAME.fullmatch(account) or _ALIAS.fullmatch(account):
        raise UsageError(
            f"{account!r} is not a valid account name for sudo rules",
            "Write a login name: --account launcher",
        )
    if account == "root":
        raise UsageError(
            "root needs no rules", "Give the account that hpcdash runs as: --account launcher"
        )
    if not _GROUP.fullmatch(group):
        raise UsageError(
            f"{group!r} is not a valid group name for sudo rules",
            "Write a group name: --group hpcusers",
        )
    _check_path("--bin", "the commands' folder", bin_folder)
    _check_path("--storage-root", "the storage root", storage_root)
    _check_path("launch_program", "the launch program", launch_program)
    if env_file:
        _check_path("--env-file", "a file of variables", env_file)
    setup = "".join(f"#   {command}\n" for command in root_commands(storage_root, launch_program))
    # No alias: its name would be the same in the rules of a second account.
    programs = ", \\\n    ".join((*(f"{bin_folder}/{name}" for name in commands), launch_program))
    # A process of a member's could type into the terminal that it was started from.
    defaults = f"Defaults:{account} use_pty\n"
    if env_file:
        defaults += (
            "# sudo does not check whose this file is: it has to be root's, as /etc/sudoers is.\n"
            f"Defaults:{account} env_file={env_file}\n"
        )
    return (
        f"# {account} submits jobs as the members of {group}.\n"
        "#\n"
        f"# Root first sets up, on every machine that {account} submits from:\n"
        f"{setup}"
        "# Every folder above these two has to be root's, with nobody else who may write there "
        "(namei -l PATH).\n"
        "# Then root checks and installs these rules, saved as RULES:\n"
        "#   visudo -c -f RULES && install -o root -m 0440 RULES "
        f"/etc/sudoers.d/{account.replace('.', '_')}\n"
        "#\n"
        f"# What the rules give away: {account}, and whoever breaks into it, can run any program "
        "as any member of\n"
        f"# {group}. Submitting a job means that, and srun and salloc run a program at once, "
        "salloc on this very\n"
        f"# machine. So nobody may be in {group} who can do more than an ordinary user: no system "
        "account (munge\n"
        "# and slurm can run jobs as anyone), nobody with sudo rules, nobody in a group such as "
        "docker or disk.\n"
        f"# The rules themselves exclude accounts of uid 0 alone. Who is in {group}:\n"
        f"#   getent group {group}    and those whose primary group it is: getent passwd\n"
        f"{defaults}"
        f"{account} ALL = (%{group}, !root, !#0) NOPASSWD: \\\n    {programs}\n"
    )


def program_text(storage_root: str) -> str:
    """The launch program, in POSIX sh, with the storage root fixed in it.

    Raises UsageError for a path that is none.
    """
    _check_path("--storage-root", "the storage root", storage_root)
    return (
        f"#!/bin/sh\n# hpcdash-launch: keeps launches in {storage_root}, as the account that sudo "
        f"runs it as.\nroot={storage_root}\n"
    ) + shell_text(
        "weak_spot.sh", "services/submit/unstaged_file.sh", "services/submit/launch_program.sh"
    )


def root_commands(storage_root: str, launch_program: str) -> tuple[str, ...]:
    """Return root's commands for run_as: install the launch program, make the storage root."""
    program = f"hpcdash sudoers --program --storage-root {storage_root}"
    return (
        f"{program} | install -o root -m 0755 -D /dev/stdin {launch_program}",
        f"install -d -m 1777 {storage_root}",
    )


def program_argv(account: str, launch_program: str, verb: str, *arguments: str) -> tuple[str, ...]:
    """The launch program, run as an account, as the sudo rules have it."""
    return ("sudo", "-n", "-u", account, launch_program, verb, *arguments)


def _check_path(option: str, what: str, path: str) -> None:
    if not PLAIN_PATH.fullmatch(path):
        raise UsageError(
            f"{path!r} cannot be {what} here",
            f"{option}: write an absolute path of letters, digits and ._@+- only.",
        )
