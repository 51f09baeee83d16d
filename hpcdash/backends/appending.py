"""Has the command that submits a job once more wait for another job, in its scheduler's own words.

Pure.

Knows the names that sbatch and qsub give to a dependency and to an array's tasks, nothing else of
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from hpcdash.backends.submissions import SubmitCommand

_PROGRAMS = ("sbatch", "qsub")
# OpenPBS's qsub has to have it first.
_FIRST = ("-f",)
_SCRIPT = "/dev/stdin"
# Options of a dependency and of an array; those of qsub have their value in the next word.
_KINDS = {
    "dependency": re.compile(r"--dependency=.*|-W depend=.*", re.DOTALL),
    "array": re.compile(r"--array=.*|-[Jt] .*", re.DOTALL),
}
_WITH_VALUE = ("-W", "-J", "-t")


def appended(again: SubmitCommand, phrased: SubmitCommand) -> SubmitCommand | None:
    """`again`, to wait for what `phrased` waits for and with its array's tasks, if it has any.

    `phrased` is how the same backend submits some script after that job. None where no sbatch or
    qsub is called.
    """
    argv = again.command.argv
    at = next((place + 1 for place, word in enumerate(argv) if word in _PROGRAMS), None)
    if at is None:
        return None
    if argv[at : at + 1] == _FIRST:
        at += 1
    phrased_options = [parts for parts in _options(phrased.command.argv) if _kind(parts)]
    kinds = {_kind(parts) for parts in phrased_options}
    # What follows the script are its own arguments.
    end = argv.index(_SCRIPT, at) if _SCRIPT in argv[at:] else len(argv)
    remaining = [parts for parts in _options(argv[at:end]) if _kind(parts) not in kinds]
    options = [word for parts in (*phrased_options, *remaining) for word in parts]
    command = replace(again.command, argv=(*argv[:at], *options, *argv[end:]))
    return replace(again, command=command)


def _options(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the words, those of an option with its value together."""
    at = 0
    while at < len(argv):
        end = at + (2 if argv[at] in _WITH_VALUE else 1)
        yield tuple(argv[at:end])
        at = end


def _kind(parts: Sequence[str]) -> str:
    """Return dependency or array for an option of these; '' for other words."""
    text = " ".join(parts)
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(text)), "")
