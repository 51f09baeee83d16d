"""What the machine must have for the Slurm lab, by program and Debian package. Starts nothing."""

from __future__ import annotations

import os
import shutil
from glob import glob

PACKAGE_OF_PROGRAM = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "squeue": "slurm-client",
    "sacctmgr": "slurm-client",
    "slurmdbd": "slurmdbd",
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "mariadb": "mariadb-server",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "runuser": "util-linux",
}
ACCOUNTING_PLUGIN_PACKAGE = "slurm-wlm-mysql-plugin"
# Perl programs that ask slurmctld and print as Torque does.
TORQUE_PROGRAMS = ("qstat", "qsub", "qdel", "qhold", "qrls", "qrerun", "qalter", "pbsnodes")
WRAPPERS_PACKAGE = "slurm-wlm-torque"
_PLUGIN_FOLDERS = (
    "/usr/lib/*/slurm-wlm",
    "/usr/lib/slurm-wlm",
    "/usr/lib/*/slurm",
    "/usr/lib/slurm",
    "/usr/lib64/slurm",
)
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The root of an installed Debian whose Slurm labs use; this machine's own where it is not set.
ROOT_VARIABLE = "HPCDASH_SLURM_ROOT"


def chosen_root() -> str:
    """The folder that HPCDASH_SLURM_ROOT names, or ''."""
    return os.path.realpath(found) if (found := os.environ.get(ROOT_VARIABLE)) else ""


def search_path(root: str = "") -> str:
    """The folders of a Debian's programs, as seen from outside of it."""
    return ":".join(f"{root}{folder}" for folder in SEARCH_PATH.split(":"))


def missing_packages(root: str = "") -> tuple[str, ...]:
    """Debian packages whose programs are not there, in the order they would be named to apt-get."""
    path = search_path(root)
    wanted = [
        package
        for program, package in PACKAGE_OF_PROGRAM.items()
        if not shutil.which(program, path=path)
    ]
    if not _accounting_plugin_installed(root):
        wanted.append(ACCOUNTING_PLUGIN_PACKAGE)
    return tuple(dict.fromkeys(wanted))


def why_no_lab(root: str | None = None) -> str | None:
    """The reason that a lab cannot start with the Slurm of `root`, with what to do about it; None:
    it can.
    """
    root = chosen_root() if root is None else root
    packages = missing_packages(root)
    if packages and root:
        return (
            f"{root} has no Slurm (missing: {' '.join(packages)}); "
            f"to make it: python -m tests.support.slurm install SUITE {root}"
        )
    if packages:
        command = "apt-get install -y --no-install-recommends " + " ".join(packages)
        return f"the real-Slurm tests need packages that are missing here: {command}"
    if not root and shutil.which("squeue") is None:
        return "the real-Slurm tests need Slurm's commands on the PATH: squeue is not there"
    if os.geteuid() != 0:
        return "the real-Slurm tests need root: they start daemons and run jobs as other users"
    return None


def why_no_bulk() -> str | None:
    """The reason that bulk_jobs() cannot be compiled on this machine; None: it can."""
    packages = [] if shutil.which("gcc", path=SEARCH_PATH) else ["gcc"]
    if not os.path.exists("/usr/include/slurm/slurm.h"):
        packages.append("libslurm-dev")
    return (
        f"bulk submission is compiled here and needs: apt-get install {' '.join(packages)}"
        if packages
        else None
    )


def why_no_wrappers() -> str | None:
    """The reason that Slurm cannot be asked here by Torque's commands; None: it can."""
    if all(shutil.which(program, path=SEARCH_PATH) for program in TORQUE_PROGRAMS):
        return None
    return (
        "Slurm's commands by Torque's names are missing here: "
        f"apt-get install -y --no-install-recommends {WRAPPERS_PACKAGE}"
    )


def _accounting_plugin_installed(root: str) -> bool:
    return any(glob(f"{root}{folder}/accounting_storage_mysql.so") for folder in _PLUGIN_FOLDERS)
