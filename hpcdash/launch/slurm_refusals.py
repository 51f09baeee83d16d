"""What Slurm's refusal of a generated script means, where its own words mislead. Knows no cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpcdash.backends.slurm.options import read_directives

_NOT_AVAILABLE = "Requested node configuration is not available"
_NODE_RANGE = re.compile(r"--nodes=1-[0-9]+")
_VERSION = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)")
# Slurm's bug 15857, mended in 22.05.9.
_FIRST_BAD, _LAST_BAD = (22, 5, 5), (22, 5, 8)


def refusal_hint(words: str, version: str, options: Iterable[str]) -> str:
    """What to do about a refusal that is a bug of this version of Slurm; '' where none is known to be."""
    found = _VERSION.search(version)
    given = list(options)
    is_asked_so = any(option.startswith("--gpus=") for option in given) and any(map(_NODE_RANGE.fullmatch, given))
    if _NOT_AVAILABLE not in words or found is None or not is_asked_so:
        return ""
    if not _FIRST_BAD <= tuple(map(int, found.groups())) <= _LAST_BAD:
        return ""
    return (
        f"Slurm {found[0]} refuses some requests of GPUs over a range of nodes that it could fulfil (its bug 15857, "
        "mended in 22.05.9): say slots_per_node, with tres_supported = false under [site]"
    )


def script_refusal_hint(words: str, version: str, script: str, options: Iterable[str] = ()) -> str:
    """As refusal_hint, of a script with its own options and those beside it on the command line."""
    if _NOT_AVAILABLE not in words:
        return ""
    own = [word for option in read_directives(script).options for word in option.words]
    return refusal_hint(words, version, (*own, *options))
