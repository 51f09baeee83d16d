"""Words for Slurm's qsub, a Perl program that has a shell run what it was given. Knows no job and runs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hpcdash.errors import UsageError

# As shlex has it: no shell makes anything else of these.
_UNSAFE = re.compile(r"[^A-Za-z0-9@%+=:,./_-]")
# Of these the value goes into the shell's line as it is, and a backslash before a character keeps it that character.
_ESCAPED = frozenset({"N", "o", "e", "A", "q", "wd", "M", "P", "v", "a"})
_OTHERS_WITH_VALUE = frozenset({"b", "j", "J", "l", "m", "p", "pe", "r", "S", "t", "W"})
_FLAGS = frozenset({"h", "V", "cwd"})
# qsub makes double quotes of single ones here, and takes quotes for itself.
_NO_QUOTES = frozenset({"v"})
_NEXT_STEP = "Leave it out, or write it into the script as a #SBATCH line."


def shell_safe(words: Sequence[str]) -> list[str]:
    """The options so that qsub's shell takes each value for what it is; raises UsageError where that cannot be said."""
    return list(_safe(words))


def _safe(words: Sequence[str]) -> Iterator[str]:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        dashes = word[: len(word) - len(word.lstrip("-"))]
        name, equals, value = word[len(dashes) :].partition("=") if dashes in ("-", "--") else ("", "", "")
        takes_value = name in _ESCAPED | _OTHERS_WITH_VALUE
        if takes_value and equals:
            yield f"{dashes}{name}={_value(name, value)}"
        elif takes_value:
            yield word
            for _ in range(_values_after(name, rest)):
                yield _value(name, rest.pop(0))
        elif name in _FLAGS and not equals:
            yield word
        else:
            raise UsageError(f"{word!r} is no option of Slurm's qsub", "Its options: qsub --help, or man qsub.")


def _values_after(name: str, rest: Sequence[str]) -> int:
    """How many of the words that come next are an option's own."""
    # -j may stand alone.
    is_alone = name == "j" and bool(rest) and rest[0].startswith("-")
    return 0 if is_alone else min(len(rest), 2 if name == "pe" else 1)


def _value(name: str, value: str) -> str:
    if name == "b" and "y" in value:
        raise UsageError("-b y takes a command, and this is a script", "Leave it out.")
    if not _UNSAFE.search(value):
        return value
    if name not in _ESCAPED or "\n" in value or "\0" in value or (name in _NO_QUOTES and re.search("[\"']", value)):
        raise UsageError(f"-{name} {value!r}: Slurm's qsub would have a shell read it", _NEXT_STEP)
    return _UNSAFE.sub(lambda found: f"\\{found[0]}", value)
