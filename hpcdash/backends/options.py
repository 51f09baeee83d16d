"""Options as a scheduler's submit command takes them, from a command line or a script's directives:
what all share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from hpcdash.errors import UsageError

# The problem of an option that takes a value and stands last.
WITHOUT_VALUE = "missing its value"
Takes = Literal["nothing", "value", "maybe"]
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+^\[\]-]+")


@dataclass(frozen=True, slots=True)
class Option:
    """One option as it was given: `name` is its long name in full, `value` None where it has none.

    `arguments` are those it took, `written` how it was called; `line` is the 1-based line of the
    script, 0 on a command line. What sbatch would not take has a `problem`, and no name.
    """

    name: str
    value: str | None
    written: str
    arguments: tuple[str, ...]
    line: int = 0
    problem: str = ""


def bad_option(written: str, problem: str, line: int, word: str = "") -> Option:
    """Return an option that the command does not take, from `word` where that says more."""
    return Option("", None, written, (word or written,), line, problem)


@dataclass(frozen=True, slots=True)
class ParsedCommandLine:
    """Arguments of a submit command: options in order, then the script and its arguments."""

    given: tuple[Option, ...]
    script: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[Option, ...]:
        """Return the options that the command takes."""
        return tuple(option for option in self.given if not option.problem)

    @property
    def problems(self) -> tuple[Option, ...]:
        """Return the options that it does not take."""
        return tuple(option for option in self.given if option.problem)


def read_letters(
    word: str, following: str | None, line: int, kinds: Mapping[str, tuple[str, Takes]]
) -> list[Option]:
    """Return the options behind one dash, of which those without a value may stand together.

    `kinds` are the names of the letters, and what they take; `following` is the next word, and the
    last option's value where that has both of its `arguments`.
    """
    found: list[Option] = []
    for position, letter in enumerate(word[1:], start=1):
        name, takes = kinds.get(letter, ("", "nothing"))
        rest = word[position + 1 :]
        written = f"-{letter}"
        if not name:
            found.append(bad_option(written, "unknown", line))
        elif takes == "nothing" or (takes == "maybe" and not rest):
            found.append(Option(name, None, written, (written,), line))
        elif rest:
            return [*found, Option(name, rest, written, (f"{written}{rest}",), line)]
        elif following is not None:
            return [*found, Option(name, following, written, (written, following), line)]
        else:
            found.append(bad_option(written, WITHOUT_VALUE, line))
    return found


def last_value(options: Iterable[Option], name: str) -> str | None:
    """The value that counts: the last one given."""
    values = [option.value for option in options if option.name == name]
    return values[-1] if values else None


@dataclass(frozen=True, slots=True)
class Directives:
    """Options, one a directive line, without `#SBATCH` or `#PBS`: `--nodes=4`, `-l
    select=2:ngpus=4`.

    `warnings` are sentences for the person who asks, to be shown before anything is submitted.
    """

    options: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __add__(self, other: Directives) -> Directives:
        return Directives((*self.options, *other.options), (*self.warnings, *other.warnings))


def whole_options(
    extra_args: Iterable[str],
    read: Callable[[str], ParsedCommandLine],
    quoted: Callable[[str, str], str],
) -> tuple[str, ...]:
    """The items of extra_args with each value behind its option: `-l` and `place=excl` as two items
    are one option.

    `read` reads an item, `quoted` writes a value as quoted_word() does.
    """
    items: list[str] = []
    for text in extra_args:
        value = text.strip()
        before = read(items[-1]).given if items else ()
        lacks_value = bool(before) and before[-1].problem == WITHOUT_VALUE
        if lacks_value and value and text.isprintable() and not value.startswith("-"):
            items[-1] = f"{items[-1].rstrip()} {quoted('extra_args', value)}"
        else:
            items.append(text)
    return tuple(items)


def quoted_word(field: str, value: str, quoted: str, split: Callable[[str], list[str]]) -> str:
    """`value`, or `quoted` where it needs quotes.

    Raises UsageError for one that `split` does not read back.
    """
    text = value if _PLAIN.fullmatch(value) else quoted
    try:
        is_stored = value.isprintable() and split(text) == [value]
    except ValueError:
        is_stored = False
    if not is_stored:
        raise UsageError(
            f"{field}: {value!r} is not allowed in a batch script",
            "Remove quotes, # and backslashes.",
        )
    return text


def raise_for(reasons: Iterable[tuple[str, str]]) -> None:
    """Raises UsageError for (words, next step) of one reason, or of all of them, each once; nothing
    where none is.
    """
    found = dict.fromkeys(reasons)
    if found:
        steps = dict.fromkeys(step.rstrip(".") + "." for _, step in found if step)
        raise UsageError("; ".join(text for text, _ in found), " ".join(steps))


def refuse_repeated(generated: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raises UsageError for options that both a field and extra_args give: both map a name to who
    said it.
    """
    raise_for(
        (
            f"{written} is not allowed in extra_args: {generated[name]} sets it",
            "Remove one of them.",
        )
        for name, written in given.items()
        if name in generated
    )
