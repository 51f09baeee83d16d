"""Command lines of PBS, and its dialects, which are detected by the version that each reports."""

from __future__ import annotations

import re
from enum import StrEnum

from hpcdash.shell_files import shell_text

_SET = ("LC_ALL=C", "TZ=UTC")


def pbs(*argv: str) -> tuple[str, ...]:
    """A PBS command with a clean environment around it."""
    return ("env", *_SET, *argv)


def pbs_script(file: str, *arguments: str) -> tuple[str, ...]:
    """A .sh file of ours, with arguments, in the environment of `pbs`."""
    return pbs("sh", "-c", shell_text(file), "sh", *arguments)


# What a person or a program here may call.
COMMANDS = (
    "qstat",
    "qsub",
    "qdel",
    "qhold",
    "qrls",
    "qrerun",
    "qalter",
    "qsig",
    "qmove",
    "qselect",
    "pbsnodes",
)
_PBS_VERSION = r"(?i)pbs_version\s*=\s*(?:PBSPro_|PBS_?Pro\s+)?(?P<version>\S+)"
_TORQUE_VERSION = r"(?i)(?<![\w=])version:\s*(?P<version>[0-9][\w.-]*)"
_NUMBERS = r"[0-9]{1,9}(?:\.[0-9]+){0,2}"
# OpenPBS began at 20; the commercial product counts in years from 2020 on.
_FIRST_WITH_DSV = 18
_FIRST_OPENPBS = 20
_FIRST_YEAR = 2000
# Torque's servers tell their version as PBS Pro's do, and none of them went so far.
_LAST_TORQUE = 7


class Dialect(StrEnum):
    """Commands and formats of a cluster; a probe detects them once."""

    # OpenPBS and PBS Professional from 18 on: `qstat -f -F dsv -D DELIMITER`, a line a job.
    OPENPBS = "openpbs"
    # PBS Professional before 18 has no -F: wrapped text.
    PBS_TEXT = "pbs-text"
    # `qstat -x` is XML, nodes=2:ppn=4, state C, PBS_ARRAYID.
    TORQUE = "torque"


class DialectPart:
    """A part of the backend: its commands and formats are those of a dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect


def detect_dialect(message: str) -> tuple[Dialect, str] | None:
    """The kind and its version in words (`OpenPBS 23.06.06`, `Torque 6.1.2`) from what `qstat
    --version` said.

    None where that is neither PBS nor Torque. `pbs_version = PBSPro_13.1.2.160576` and years are
    PBS Pro's.
    """
    if found := re.search(_PBS_VERSION, message):
        numbers = re.match(_NUMBERS, found["version"])
        major = int(numbers[0].partition(".")[0]) if numbers else 0
        if numbers is None:
            # A build of one's own may have any word for it: it is newer than 18 then.
            return Dialect.OPENPBS, f"PBS {found['version']}"
        if _FIRST_OPENPBS <= major < _FIRST_YEAR:
            return Dialect.OPENPBS, f"OpenPBS {numbers[0]}"
        if major < _LAST_TORQUE and not found[0].lower().count("pro"):
            return Dialect.TORQUE, f"Torque {found['version']}"
        return (
            Dialect.OPENPBS if major >= _FIRST_WITH_DSV else Dialect.PBS_TEXT
        ), f"PBS Pro {numbers[0]}"
    if found := re.search(_TORQUE_VERSION, message):
        return Dialect.TORQUE, f"Torque {found['version']}"
    return None
