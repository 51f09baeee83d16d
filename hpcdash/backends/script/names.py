"""Names of jobs and of the projects they are accounted to, in the letters each scheduler takes. Knows no request."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpcdash.errors import ConfigError

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
# What qsub takes in no project's name.
_NOT_IN_PBS_PROJECTS = re.compile(r"[/\[\]\";:|<>+,?*]")
# Inside the quotes of a directive they would end the value, or the line.
_NOT_IN_DIRECTIVES = re.compile(r"[\"\\\x00-\x1f\x7f]")
# PBS_MAXJOBNAME of pbs_ifl.h since 19.1; before it was 236, and 15 in PBS before 13 and in Torque.
PBS_NAME_LETTERS = 230
SOURCES = ("project", "workspace", "label", "label:PREFIX")


def job_name(prefix: str, kind: str, uid: str, most_letters: int | None = None) -> str:
    """`hpcdash_exp-2-trial-2-1a2b`; what no scheduler takes is left out, and where it is too long the prefix is cut."""
    name = _NOT_IN_NAMES.sub("", f"{prefix}_{kind}-{uid}")
    return name if most_letters is None or len(name) <= most_letters else name[-most_letters:].lstrip("_-")


def accounted_to(source: str, *, project: str, workspace: str, labels: Iterable[str]) -> list[str]:
    """The words a job is accounted by, in order; none where nothing is said. Raises ConfigError for another source."""
    if source == "project":
        return [project] if project else []
    if source == "workspace":
        return [workspace] if workspace else []
    if source == "label" or source.startswith("label:"):
        prefix = source.partition(":")[2]
        return sorted({label.removeprefix(prefix) for label in labels if label.startswith(prefix)} - {""})
    raise ConfigError(
        f"{source!r} is no source of a job's project", f"Write {', '.join(SOURCES)}.", key="job_project_source"
    )


def slurm_project(words: Iterable[str]) -> tuple[str, ...]:
    """`--wckey="a,b"`, or nothing."""
    joined = _NOT_IN_DIRECTIVES.sub("_", ",".join(words))
    return (f'--wckey="{joined}"',) if joined else ()


def pbs_project(words: Iterable[str]) -> tuple[str, ...]:
    """`-P "a_b"`, or nothing; what PBS takes in no project's name is `_`."""
    joined = _NOT_IN_DIRECTIVES.sub("_", _NOT_IN_PBS_PROJECTS.sub("_", "_".join(words)))
    return (f'-P "{joined}"',) if joined else ()
