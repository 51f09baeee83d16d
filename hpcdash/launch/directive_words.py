"""Values as a directive line takes them, quoted where they need it. Knows no option's meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hpcdash.domain import qsub, sbatch
from hpcdash.domain.sbatch import WITHOUT_VALUE, CommandLine
from hpcdash.errors import UsageError

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+^\[\]-]+")


def slurm_word(field: str, value: str) -> str:
    """A value as sbatch reads it back from a line. Raises UsageError, naming the field, for one it cannot."""
    return _written(field, value, '"' + value.replace('"', '\\"') + '"', sbatch.split_words)


def pbs_word(field: str, value: str) -> str:
    """A value as qsub reads it back from a line; in its quotes nothing is escaped. Raises UsageError as above."""
    quote = "'" if '"' in value else '"'
    return _written(field, value, f"{quote}{value}{quote}", qsub.split_words)


def whole_options(
    extra_args: Iterable[str], read: Callable[[str], CommandLine], quoted: Callable[[str, str], str]
) -> tuple[str, ...]:
    """The items of extra_args with each value behind its option: `-l` and `place=excl` as two items are one option.

    `read` reads an item, `quoted` writes a value as slurm_word and pbs_word do.
    """
    items: list[str] = []
    for text in extra_args:
        before = read(items[-1]).given if items else ()
        lacks_value = bool(before) and before[-1].problem == WITHOUT_VALUE
        if lacks_value and text.isprintable() and text.strip() and not text.lstrip().startswith("-"):
            items[-1] = f"{items[-1].rstrip()} {quoted('extra_args', text.strip())}"
        else:
            items.append(text)
    return tuple(items)


def _written(field: str, value: str, quoted: str, split: Callable[[str], list[str]]) -> str:
    text = value if _PLAIN.fullmatch(value) else quoted
    try:
        is_kept = value.isprintable() and split(text) == [value]
    except ValueError:
        is_kept = False
    if not is_kept:
        raise UsageError(f"{field}: {value!r} cannot stand in a batch script", "Leave out quotes, # and backslashes.")
    return text
