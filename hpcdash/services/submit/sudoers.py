"""Submission of jobs as other accounts: sudo rules, and root's program for their launches."""

from __future__ import annotations

import re

from hpcdash.config.settings import PLAIN_PATH
from hpcdash.domain.request import ACCOUNT_NAME
from hpcdash.errors import UsageError
from hpcdash.shell_files import shell_text

# File names for the launch program: no path, option, hidden file or shell character.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_@+][A-Za-z0-9._@+-]{0,199}")
# sudo reads these as aliases; ALL means everybody.
_ALIAS = re.compile(r"[A-Z][A-Z0-9_]*")
_GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}")

# Exit status of `remove` if there is no such launch.
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
    """Format a drop-in for /etc/sudoers.d that lets `account` submit as the members of `group`.

    It may run the scheduler's `commands` and the launch program without a password, but not as
    uid 0, in sudo's own environment with the variables of `env_file`. Raises UsageError for a name
    or path that sudo would misread.
    """
    if not ACCOUNT_NAME.fullmatch(account) or _ALIAS.fullmatch(account):
        raise UsageError(
            f"{account!r} is not a valid account name for sudo rules",
            "Use a login name: --account launcher",
        )
    if account == "root":
        raise UsageError(
            "root needs no rules", "Specify the account that runs hpcdash: --account launcher"
        )
    if not _GROUP.fullmatch(group):
        raise UsageError(
            f"{group!r} is not a valid group name for sudo rules",
            "Use a group name: --group hpcusers",
        )
    _check_path("--bin", "the commands' folder", bin_folder)
    _check_path("--storage-root", "the storage root", storage_root)
    _check_path("launch_program", "the launch program", launch_program)
    if env_file:
        _check_path("--env-file", "the variables file", env_file)
    setup = "".join(f"#   {command}\n" for command in root_commands(storage_root, launch_program))
    # Rules of a second account would define an alias again.
    paths = [f"{bin_folder}/{name}" for name in commands]
    programs = ", \\\n    ".join([*paths, launch_program])
    # Without a pty, a member's process could type into the terminal that started it.
    defaults = f"Defaults:{account} use_pty\n"
    if env_file:
        defaults += (
            "# sudo does not check the owner of this file: it must belong to root, like "
            "/etc/sudoers.\n"
            f"Defaults:{account} env_file={env_file}\n"
        )
    return (
        f"# {account} submits jobs as the members of {group}.\n"
        "#\n"
        f"# Root first sets up, on every machine that {account} submits from:\n"
        f"{setup}"
        "# Every folder above these two must belong to root and be writable only by root "
        "(namei -l PATH).\n"
        "# Then root checks and installs these rules, saved as RULES:\n"
        "#   visudo -c -f RULES && install -o root -m 0440 RULES "
        f"/etc/sudoers.d/{account.replace('.', '_')}\n"
        "#\n"
        f"# Risk: {account}, and anyone who breaks into it, can run any program as any member of\n"
        f"# {group}, because a job is a program; srun and salloc run it at once, salloc on this\n"
        f"# machine. So {group} must contain only ordinary users: no system accounts (munge\n"
        "# and slurm can run jobs as anyone), no users with sudo rules, no members of groups such "
        "as docker or disk.\n"
        f"# The rules themselves exclude only accounts with uid 0. Members of {group}:\n"
        f"#   getent group {group}    and users with this primary group: getent passwd\n"
        f"{defaults}"
        f"{account} ALL = (%{group}, !root, !#0) NOPASSWD: \\\n    {programs}\n"
    )


def program_text(storage_root: str) -> str:
    """Return the launch program, in POSIX sh, with a fixed storage root.

    Raises UsageError for an invalid path.
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
    """Build the command that runs the launch program as an account, as the sudo rules allow."""
    return ("sudo", "-n", "-u", account, launch_program, verb, *arguments)


def _check_path(option: str, purpose: str, path: str) -> None:
    if not PLAIN_PATH.fullmatch(path):
        raise UsageError(
            f"{path!r} cannot be {purpose} here",
            f"{option}: use an absolute path with only letters, digits and ._@+-.",
        )
