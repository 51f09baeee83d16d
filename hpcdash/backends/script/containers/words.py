"""Words of a command that bash reads, and the start of a container's runtime."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from hpcdash.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Set for a container, these must not change the programs of the node that start it.
_OF_THE_NODE = re.compile(r"PATH|HOME|TMPDIR|SHELL|IFS|ENV|BASH_.*|SHELLOPTS|LD_.*")
_SECRET = re.compile(r"(APPTAINER|SINGULARITY)_DOCKER_PASSWORD")
# bash itself owns these: an assignment fails, and the script with it.
_READ_ONLY = frozenset({"UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"})


_LINE_LETTERS = 100
_OPTION = re.compile(r"(?:^| )--?[A-Za-z-]+$")


class Word(Struct, frozen=True):
    """One word: a literal, or, with `is_shell`, bash source such as `"$name:/tmp"` that is expanded
    on the node.
    """

    text: str
    is_shell: bool = False

    def quoted(self) -> str:
        """The word as bash source."""
        return self.text if self.is_shell else shlex.quote(self.text)


def to_arguments(texts: Iterable[str | Word]) -> tuple[Word, ...]:
    """Return literal texts as words; words are unchanged.

    Raises UsageError for a zero byte, which no argument can contain.
    """
    made = tuple(text if isinstance(text, Word) else Word(text) for text in texts)
    for word in made:
        if "\0" in word.text:
            raise UsageError(
                f"{word.text!r} contains a NUL byte",
                "Remove it: program arguments cannot contain one.",
            )
    return made


class ContainerCommand(Struct, frozen=True):
    """Command of one node in a container.

    All parts are for one shell, in the order of `lines()`.

    `environment` is exported; `prepare` are lines of bash to run before `argv`, `finish` lines to
    run after it whatever its result; `notes` are sentences for the person who submits.
    """

    argv: tuple[Word, ...]
    prepare: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    finish: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def command_line(self) -> str:
        """`argv` as one command of bash, which spans several lines where it is long."""
        # An option stays with what follows it, and -c with its shell.
        units: list[str] = []
        for word in self.argv:
            is_value = (
                bool(units) and bool(_OPTION.search(units[-1])) and not word.text.startswith("-")
            )
            if is_value or (units and word.text == "-c"):
                units[-1] += f" {word.quoted()}"
            else:
                units.append(word.quoted())
        lines = units[:1]
        for unit in units[1:]:
            if len(lines[-1]) + len(unit) < _LINE_LETTERS:
                lines[-1] += f" {unit}"
            else:
                lines.append(unit)
        return " \\\n  ".join(lines)

    def lines(self) -> tuple[str, ...]:
        """All of it for a bash of its own on the node, which ends with the command's exit
        status.
        """
        exports = tuple(
            f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()
        )
        trap = (f"trap {shlex.quote('; '.join(self.finish))} EXIT",) if self.finish else ()
        return (*exports, *trap, *self.prepare, self.command_line())


class SplitEnvironment(Struct, frozen=True):
    """Variables for a container: `exported` on the node, `explicit` for the container alone,
    `inherited` by name.
    """

    exported: Mapping[str, str]
    explicit: Mapping[str, str]
    inherited: tuple[str, ...]


def split_environment(environment: Mapping[str, str]) -> SplitEnvironment:
    """Split the environment by whether the node may export it; an empty value is the node's own.

    Raises UsageError for a name that no shell takes, a secret, and a zero byte in a value.
    """
    for name, value in environment.items():
        if not _NAME.fullmatch(name) or name in _READ_ONLY:
            raise UsageError(
                f"environment: {name!r} cannot be set",
                "Use letters, digits and _, such as DATA_DIR.",
            )
        if _SECRET.fullmatch(name):
            raise UsageError(
                f"environment: {name} would be in the script",
                "Pass the login in a file with mode 0600.",
            )
        if "\0" in value:
            raise UsageError(f"environment: {name} contains a NUL byte", "Remove it.")
    explicit = {
        name: value for name, value in environment.items() if value and _OF_THE_NODE.fullmatch(name)
    }
    exported = {
        name: value for name, value in environment.items() if value and name not in explicit
    }
    return SplitEnvironment(
        exported, explicit, tuple(name for name, value in environment.items() if not value)
    )
