"""Has the command that submits a job once more wait for another job, in its scheduler's own words.

Pure.

Knows the names that sbatch and qsub give to a dependency and to an array's tasks, nothing else of
them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hpcdash.backends.submissions import SubmitCommand

_PROGRAMS = ("sbatch", "qsub")
# OpenPBS's qsub has to have it first.
_FIRST = ("-f",)
_SCRIPT = "/dev/stdin"
_DEPENDENCY = "dependency"
_ARRAY = "array"


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
    reported = {kind: parts for kind, parts in _spoken(phrased.command.argv) if kind}
    # What follows the script are its own arguments.
    end = argv.index(_SCRIPT, at) if _SCRIPT in argv[at:] else len(argv)
    remaining = [
        word for kind, parts in _spoken(argv[at:end]) if kind not in reported for word in parts
    ]
    spoken = [word for parts in reported.values() for word in parts]
    command = replace(again.command, argv=(*argv[:at], *spoken, *remaining, *argv[end:]))
    return replace(again, command=command)


def _spoken(argv: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The words, those of an option with its value together: (dependency, array or '', its
    words).
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    place = 0
    while place < len(argv):
        word = argv[place]
        value = argv[place + 1] if place + 1 < len(argv) else ""
        kind = ""
        length = 1
        if word.startswith("--dependency="):
            kind = _DEPENDENCY
        elif word.startswith("--array="):
            kind = _ARRAY
        elif word == "-W":
            kind = _DEPENDENCY if value.startswith("depend=") else ""
            length = 2
        elif word in ("-J", "-t"):
            kind = _ARRAY
            length = 2
        found.append((kind, tuple(argv[place : place + length])))
        place += length
    return found
