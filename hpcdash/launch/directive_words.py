"""Values as a directive line takes them, quoted where they need it. Knows no option's meaning."""

from __future__ import annotations

import re
from collections.abc import Callable

from hpcdash.domain import qsub, sbatch
from hpcdash.errors import UsageError

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+^\[\]-]+")


def slurm_word(field: str, value: str) -> str:
    """A value as sbatch reads it back from a line. Raises UsageError, naming the field, for one it cannot."""
    return _written(field, value, '"' + value.replace('"', '\\"') + '"', sbatch.split_words)


def pbs_word(field: str, value: str) -> str:
    """A value as qsub reads it back from a line; in its quotes nothing is escaped. Raises UsageError as above."""
    quote = "'" if '"' in value else '"'
    return _written(field, value, f"{quote}{value}{quote}", qsub.split_words)


def _written(field: str, value: str, quoted: str, split: Callable[[str], list[str]]) -> str:
    text = value if _PLAIN.fullmatch(value) else quoted
    try:
        is_kept = value.isprintable() and split(text) == [value]
    except ValueError:
        is_kept = False
    if not is_kept:
        raise UsageError(f"{field}: {value!r} cannot stand in a batch script", "Leave out quotes, # and backslashes.")
    return text
