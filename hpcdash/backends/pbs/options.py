"""qsub's options: their grammar on a command line and in #PBS lines, and which a request leaves to
a person.

Sources: qsub.c, qsub_sup.c and Libcmds of OpenPBS 23.06, whose options are getopt's: one letter
each, a value attached or apart; qsub(1B) of Torque 6 for what Torque has besides. No letter takes a
value in one and none in the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hpcdash.backends.options import (
    Option,
    ParsedCommandLine,
    Takes,
    bad_option,
    quoted_word,
    raise_for,
    read_letters,
    whole_options,
)
from hpcdash.domain.array_tasks import ArrayTasks, joined_tasks
from hpcdash.errors import UsageError

MAGIC = "#PBS"
# Names with their values, and reasons with the next step.
Pairs: TypeAlias = list[tuple[str, str]]
# The values that options set, by their names: `N`, `l.walltime`, `W.depend`.
Settings: TypeAlias = Mapping[str, str]
_WITH_VALUE = "aAcCeJjklmMNopPqrRSuvW"
_ALONE = "fhIVXz"
_TORQUE_WITH_VALUE = "bdDFKLtTw"
_TORQUE_ALONE = "nx"
OPTIONS: dict[str, tuple[str, Takes]] = {
    **{letter: (letter, "value") for letter in _WITH_VALUE + _TORQUE_WITH_VALUE},
    **{letter: (letter, "nothing") for letter in _ALONE + _TORQUE_ALONE},
}
# What the C library's isspace takes for a blank.
_BLANKS = " \t\n\v\f\r"
# A word of a directive, and what of it is not as it stands.
_WORD = re.compile(rf"""(?:"[^"]*"|'[^']*'|\\.?|[^"'\\{_BLANKS}])+""", re.DOTALL)
_QUOTED = re.compile(r""""([^"]*)"|'([^']*)'|\\(.?)""", re.DOTALL)
_CLOSED = re.compile(r"""(?:\\(?:.|\Z)|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^"'\\])*""", re.DOTALL)
# A comma of a list, or what protects others; an open quote goes on to the end.
_COMMA = re.compile(
    r"""\\.?|"(?:\\.|[^"\\])*(?:"|\\?\Z)|'(?:\\.|[^'\\])*(?:'|\\?\Z)|,""", re.DOTALL
)
_NAMED = re.compile(r"\s*([A-Za-z_][\w.]*)\s*=")
_PLACE_WORDS = {
    **dict.fromkeys(("free", "pack", "scatter", "vscatter"), "arrangement"),
    **dict.fromkeys(("excl", "exclhost", "shared"), "sharing"),
}
_GROUPING = re.compile(r"group=[A-Za-z][A-Za-z0-9_-]*")


def read_command_line(parts: Sequence[str], line: int = 0) -> ParsedCommandLine:
    """qsub's options; `name` is an option's letter.

    Words that are no option are in `script`, wherever they stand; from `--` on all are, the dashes
    included.
    """
    given: list[Option] = []
    others: list[str] = []
    at = 0
    while at < len(parts):
        word = parts[at]
        at += 1
        if word == "--":
            return ParsedCommandLine(tuple(given), (*others, *parts[at - 1 :]))
        if not word.startswith("-") or word == "-":
            others.append(word)
            continue
        found = read_letters(word, parts[at] if at < len(parts) else None, line, OPTIONS)
        given += found
        at += len(found[-1].arguments) > 1
    return ParsedCommandLine(tuple(given), tuple(others))


def read_directives(script: str, prefix: str = MAGIC) -> ParsedCommandLine:
    """The options of a script's directive lines; a word that is no option, and an open quote, are
    problems.
    """
    given: list[Option] = []
    for number, text in directive_lines(script, prefix):
        given += read_directive(text, number).given
    return ParsedCommandLine(tuple(given))


def read_directive(text: str, line: int = 0) -> ParsedCommandLine:
    """Read the text behind the prefix of one directive line."""
    try:
        parts = split_arguments(text)
    except ValueError as error:
        return ParsedCommandLine((bad_option(text.strip(), str(error), line),))
    read = read_command_line(parts, line)
    strays = [bad_option(word, "not a qsub option", line) for word in read.script]
    return ParsedCommandLine((*read.given, *strays))


def directive_lines(script: str, prefix: str = MAGIC) -> Iterator[tuple[int, str]]:
    """(1-based line number, what stands behind the prefix) of each directive that qsub reads: those
    before the first line that is a command. Blanks may stand before it, and a backslash at its end
    joins the next line to it.

    An empty prefix stands for none at all, as `-C ''` does.
    """
    lines = script.split("\n")
    at = 0
    while at < len(lines) and prefix:
        line = lines[at]
        number = at + 1
        at += 1
        text = line.lstrip(_BLANKS)
        if text.startswith(prefix):
            parts = [text[len(prefix) :]]
            while parts[-1].endswith("\\") and at < len(lines):
                parts[-1] = parts[-1][:-1]
                parts.append(lines[at])
                at += 1
            yield number, "".join(parts)
        elif text and not text.startswith("#") and not line.startswith(":"):
            return


def split_arguments(text: str) -> list[str]:
    """The words of one directive as qsub splits them: quotes join, a backslash takes a meaning away
    outside of them, and # is nothing special. Raises ValueError for a quote that is not closed.
    """
    if _WORD.sub("", text).strip(_BLANKS):
        raise ValueError("missing its closing quote")
    return [_QUOTED.sub(r"\1\2\3", word) for word in _WORD.findall(text)]


def split_list(text: str) -> list[str]:
    """The items of a list with commas, each as it was written: quotes and a backslash protect a
    comma.
    """
    commas = [found.start() for found in _COMMA.finditer(text) if found[0] == ","]
    starts = [0, *(comma + 1 for comma in commas)]
    return [text[start:end] for start, end in zip(starts, [*commas, len(text)], strict=True)]


def is_closed(text: str) -> bool:
    """Whether each quote of a list is closed; a quote behind a backslash is none."""
    return _CLOSED.fullmatch(text) is not None


def resources(value: str) -> Pairs:
    """(resource, amount) of a -l value: `select=2:ncpus=4,walltime=1:00:00`; '' for one without an
    amount.
    """
    pairs = [item.partition("=") for item in split_list(value) if item.strip()]
    return [(name.strip(), amount.strip()) for name, _, amount in pairs]


def attributes(value: str) -> Pairs:
    """(attribute, value) of a -W value: `depend=afterok:1,afterany:2,umask=022` holds two.

    A comma is a value's own where no `name=` follows it. What has no name is left out.
    """
    found: list[tuple[str, list[str]]] = []
    for item in split_list(value):
        if named := _NAMED.match(item):
            found.append((named[1], [item[named.end() :].strip()]))
        elif found:
            found[-1][1].append(item)
    return [(name, ",".join(items)) for name, items in found]


def chunks(select: str) -> list[tuple[str, Pairs]]:
    """(how many, [(resource, amount)]) of each chunk of a select or nodes value:
    `2:ncpus=4+1:ngpus=1`.

    How many is '' where that is not written, which stands for one. A word that is no amount, such
    as a node's name or feature, is a resource without one.
    """
    found = []
    for chunk in select.split("+"):
        first, *parts = chunk.split(":")
        if not first.isdecimal():
            parts.insert(0, first)
            first = ""
        pairs = [part.partition("=") for part in parts if part]
        found.append((first, [(name, amount) for name, _, amount in pairs]))
    return found


@dataclass(frozen=True, slots=True)
class Placement:
    """A place of -l: how chunks lie on hosts, whom they share these with, and what all are to have
    in common ('').
    """

    arrangement: str = ""
    sharing: str = ""
    group: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in (self.arrangement, self.sharing, self.group) if part)


def read_placement(text: str) -> Placement:
    """`scatter:excl:group=rack` in any order.

    Raises ValueError naming a word that is none, or one too many.
    """
    found: dict[str, str] = {}
    for word in text.split(":"):
        kind = "group" if _GROUPING.fullmatch(word) else _PLACE_WORDS.get(word, "")
        if not kind:
            raise ValueError(f"{word!r} is not one of {', '.join(_PLACE_WORDS)} and group=RESOURCE")
        if kind in found:
            raise ValueError(f"{found[kind]} and {word} cannot be combined")
        found[kind] = word
    return Placement(**found)


def settings(options: Iterable[Option], *, in_script: bool) -> dict[str, str]:
    """Return the values that options set, the one that counts of each: `N`, `l.walltime`,
    `W.depend`; '' for one without a value.

    Where a thing is said twice the last counts, of a script's resources the first: qsub adds one
    from a directive only where it has none. A command line's come before those of directives, each
    by itself.
    """
    found: dict[str, str] = {}
    for option in options:
        if option.problem:
            continue
        value = option.value or ""
        if option.name == "l":
            for name, amount in resources(value):
                if not in_script or f"l.{name}" not in found:
                    found[f"l.{name}"] = amount
        elif option.name == "W":
            found.update((f"W.{name}", text) for name, text in attributes(value))
        else:
            found[option.name] = value
    return found


def directive_word(field: str, value: str) -> str:
    """A value as qsub reads it back from a line; in its quotes nothing is escaped.

    Raises UsageError as above.
    """
    quote = "'" if '"' in value else '"'
    return quoted_word(field, value, f"{quote}{value}{quote}", split_arguments)


def format_task_range(tasks: ArrayTasks) -> str:
    """X-Y[:Z][%N]: a range of two numbers and a step is all that PBS knows.

    Raises UsageError for tasks that are no one range, naming the ranges they are.
    """
    whole = _one_range(tasks)
    if whole is None:
        parts = [str(ArrayTasks((part,))) for part in (joined_tasks(tasks) or tasks).ranges]
        shown = f"{', '.join(parts[:8])}{', …' if len(parts) > 8 else ''}"
        raise UsageError(
            f"PBS accepts one task range per submission, and {ArrayTasks(tasks.ranges)} is not a "
            "single range",
            f"Submit these separately: {shown}.",
        )
    # A range goes up. One of a single task has its end where the step does not reach it.
    first = whole[0]
    last = whole[-1]
    step = whole.step if last > first else 2
    spoken = f"{first}-{max(last, first + 1)}" + (f":{step}" if step > 1 else "")
    return spoken + (f"%{tasks.throttle}" if tasks.throttle else "")


def _one_range(tasks: ArrayTasks) -> range | None:
    """The range with a step that holds just these tasks: 3-7:4 for 3,7."""
    if len(tasks.ranges) == 1:
        return tasks.ranges[0]
    ordered = sorted(set(tasks))
    if len(ordered) < 2:
        return range(ordered[0], ordered[0] + 1) if ordered else None
    step = ordered[1] - ordered[0]
    whole = range(ordered[0], ordered[-1] + 1, step)
    return whole if len(whole) == len(ordered) and list(whole) == ordered else None


# What a request's fields say, or what would keep a batch job from being one. -G and --version are
# of other qsubs.
RESERVED = frozenset("cCeGhIjJkoPqrRSuvVXz")
_PLACES = {
    "J": "array",
    "h": "hold",
    "P": "project",
    "q": "queue",
    "r": "requeue",
    "v": "environment",
    "V": "environment",
    "k": "keep_files",
    "e": "work_dir: the log is in the launch's own folder",
    "o": "work_dir: the log is in the launch's own folder",
}

# Attributes of -W that the request says itself, most of which qsub sets anew after them, by the
# field in their place.
_OWN_ATTRIBUTES = {
    "account_name": "account",
    "array_indices_submitted": "array",
    "depend": "after",
    "error_path": _PLACES["e"],
    "hold_types": "hold",
    "job_name": "name",
    "keep_files": "keep_files",
    "max_run_subjobs": "array, such as 1-10%2",
    "output_path": _PLACES["o"],
    "project": "project",
    "rerunable": "requeue",
    "variable_list": "environment",
    **dict.fromkeys(
        (
            "block",
            "checkpoint",
            "interactive",
            "join_path",
            "remove_files",
            "shell_path_list",
            "user_list",
        ),
        "",
    ),
}


def attribute_options(requested: Iterable[str], extra_args: Iterable[str]) -> tuple[str, ...]:
    """The -W options of a request's attributes and of those among its extra_args, one each; the
    last of a name counts.

    The umask is 0022 where neither says it. Raises UsageError naming all that are the request's to
    say.
    """
    refused: Pairs = []
    texts = [("attributes", text) for text in requested]
    for text in whole_options(extra_args, read_directive, directive_word):
        texts += [
            ("extra_args", one.value or "") for one in read_directive(text).given if one.name == "W"
        ]
    found: dict[str, tuple[str, str]] = {"umask": ("", "0022")}
    for field, text in texts:
        named = attributes(text)
        if not named:
            refused.append((f"{field}: -W {text} is not NAME=VALUE", "For example umask=027."))
        for name, value in named:
            if name.lower() in _OWN_ATTRIBUTES:
                place = _OWN_ATTRIBUTES[name.lower()]
                step = f"Use {place} instead." if place else "hpcdash jobs cannot use it."
                refused.append((f"{field}: -W {name}= is set by the request itself", step))
            elif found.get(name, ("",))[0] not in ("", field):
                message = f"-W {name}= is not allowed in extra_args: attributes sets it"
                refused.append((message, "Remove one of them."))
            found[name] = (field, value)
    raise_for(refused)
    return tuple(
        f"-W {directive_word(field, f'{name}={value}')}" for name, (field, value) in found.items()
    )


def extra_options(extra_args: Iterable[str]) -> tuple[str, ...]:
    """A person's own options as they were written, each once, in order; without -l, which the
    select takes up, and -W.

    Raises UsageError naming all options that are the request's to say, wherever they stand: `-A
    acct   -I`.
    """
    stored: dict[str, None] = {}
    refused: Pairs = []
    for text in whole_options(extra_args, read_directive, directive_word):
        if not text.isprintable():
            message = f"{text!r} in extra_args contains characters that are not allowed in one line"
            refused.append((message, "Use one item per option."))
            continue
        for word in text.split():
            if word in ("--", "--version"):
                message = f"{word} is not allowed in extra_args: it would end qsub's options"
                refused.append((message, "Remove it."))
        for option in read_directive(text).given:
            letter = option.name or option.written.lstrip("-")[:1]
            if letter in RESERVED:
                place = _PLACES.get(letter)
                message = f"-{letter} is not allowed in extra_args: the request sets it"
                step = f"Use {place} instead." if place else "hpcdash jobs cannot use it."
                refused.append((message, step))
            elif option.problem:
                message = f"{option.written} is {option.problem}"
                refused.append((message, "See man qsub for its options."))
            elif option.name not in ("l", "W"):
                written = (directive_word("extra_args", word) for word in option.arguments)
                stored[" ".join(written)] = None
    raise_for(refused)
    return tuple(stored)
