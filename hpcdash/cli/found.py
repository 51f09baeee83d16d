"""Which schedulers this machine seems to have: their commands are on the PATH, and know whom to ask. Starts nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hpcdash.backends.pbs import BACKEND as PBS
from hpcdash.backends.slurm import BACKEND as SLURM

# Where Slurm's commands find their configuration, besides SLURM_CONF.
_SLURM_CONFIGURATIONS = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/var/spool/slurm/conf-cache/slurm.conf",
)
# Where PBS's commands and Torque's do, besides PBS_CONF_FILE, and the variables that name a server.
_PBS_CONFIGURATIONS = (
    "/etc/pbs.conf",
    "/var/spool/torque/server_name",
    "/etc/torque/server_name",
    "/var/spool/pbs/server_name",
    "/usr/spool/PBS/server_name",
)
_PBS_VARIABLES = ("PBS_CONF_FILE", "PBS_SERVER", "PBS_DEFAULT")
# Slurm's programs by Torque's names say whose they are at their beginning.
_BEGINNING_BYTES = 4096


def found_here() -> list[str]:
    """The names of this machine's schedulers, the first to be tried first.

    Commands without a configuration are packages that were installed and no cluster.
    """
    here = []
    if shutil.which("squeue") and _is_configured(("SLURM_CONF",), _SLURM_CONFIGURATIONS):
        here.append(SLURM.name)
    if _has_pbs_commands() and _is_configured(_PBS_VARIABLES, _PBS_CONFIGURATIONS):
        here.append(PBS.name)
    return here


def why_none_here() -> str:
    """Why `found_here` finds none, and how to ask all the same."""
    if shutil.which("squeue"):
        return "Slurm's commands are here, but no slurm.conf; --backend slurm asks them"
    if _has_pbs_commands():
        return "there is a qstat here, but no /etc/pbs.conf; --backend pbs asks it"
    return "neither Slurm nor PBS is here"


def _is_configured(variables: tuple[str, ...], files: tuple[str, ...]) -> bool:
    return any(map(os.environ.get, variables)) or any(map(os.path.exists, files))


def _has_pbs_commands() -> bool:
    """Whether there is a qstat that is not Slurm's: where that is, Slurm is what is meant."""
    found = shutil.which("qstat")
    if found is None:
        return False
    try:
        with Path(found).open("rb") as program:
            beginning = program.read(_BEGINNING_BYTES)
    except OSError:
        # Who may run it need not be allowed to read it.
        return True
    return not (beginning.startswith(b"#!") and b"slurm" in beginning.lower())
