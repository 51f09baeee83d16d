"""[[plugins]]: a person's own commands, run with the fields of the row under the cursor."""

import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any

from msgspec import Struct

from hpcdash.config import values
from hpcdash.config.model import TableReader, ValidationError
from hpcdash.config.problems import KeyPath, did_you_mean, quoted, shown
from hpcdash.config.values import Flag, Text
from hpcdash.domain.tables import JOBS, TABLES
from hpcdash.domain.units import DAY

# A field in a word of a command; in doubled braces it is no field.
FIELD = re.compile(r"\{\{(?P<literal>[a-z_]+)\}\}|\{(?P<field>[a-z_]+)\}")
JOB_VIEWS = ("jobs", "history", "node", "job", "log", "script", "chart", "triage", "chain")
VIEWS = (*JOB_VIEWS, "nodes", "queues")
# Besides the columns: the cluster's name, and the node, for a job the first of its own.
CLUSTER, NODE = "cluster", "node"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_MOST_WORDS = 200
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "busybox"})
_PLAIN_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh"})
_INTERPRETER = re.compile(r"(?:python|pypy|perl|ruby|node|lua|php)[0-9.]*")
# An option whose value is a program's text: -c, -lc, -e.
_TEXT_OPTION = re.compile(r"-[A-Za-z]*[ceE]")
_TEXT_OPTIONS = ("-c", "-e", "-E")
# Options of any program whose next argument, or rest of the argument, is a text that is split or
# run.
_ANY_TEXT_OPTION = re.compile(
    r"-e|-E|-S|--(?:eval|execute|exec|expression|command|split-string|script)(?:=.*)?"
)
_TEXT_FIRST = frozenset({"awk", "gawk", "mawk", "sed"})
# They pass their arguments to a shell, here or on another machine.
_JOINERS = frozenset(
    {"ssh", "rsh", "mosh", "watch", "tmux", "screen", "su", "runuser", "script", "parallel", "eval"}
)


def command_word(value: object) -> str:
    """A word of a command, empty or with blanks; several lines too, for a shell's text."""
    if not isinstance(value, str):
        raise ValidationError(f"expected text in quotes, not {shown(value)}")
    if "\0" in value:
        raise ValidationError("no word of a command holds a NUL")
    return value


def split_command(value: object) -> tuple[str, ...]:
    """A program and its arguments.

    No field is the program, or stands in text that an interpreter runs.
    """
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST_WORDS:
        raise ValidationError(
            f"expected the program and its arguments, as in {quoted('ssh')}, {quoted('{node}')} in "
            f"brackets, "
            f"not {shown(value)}; no shell splits it"
        )
    parts = tuple(map(command_word, value))
    program = parts[0]
    if FIELD.search(program):
        raise ValidationError("a field does not name the program")
    if not program.strip() or program.startswith("-") or "=" in program:
        raise ValidationError(f"{shown(program)} is not a program")
    if "/" in program and not program.startswith(("/", "~/")):
        raise ValidationError(
            f"{shown(program)}: a program is a name on the PATH, or a path from the root or from ~/"
        )
    for at in range(1, len(parts)):
        if fields_in(parts[at : at + 1]) and _is_program_text(parts, at):
            raise ValidationError(
                f"a field in the text that {shown(PurePath(program).name)} runs: anyone can name a "
                f"job. "
                'Take its variable, as in "$HPCDASH_JOB_NAME"'
            )
    return parts


def _is_program_text(parts: tuple[str, ...], at: int) -> bool:
    """Whether an interpreter reads a word as a program: after its -c or -e, or in the same word."""
    if at == 1 and PurePath(parts[0]).name in _TEXT_FIRST:
        return True
    if _ANY_TEXT_OPTION.fullmatch(parts[at - 1]) or _ANY_TEXT_OPTION.fullmatch(parts[at]):
        return True
    names = [PurePath(word).name for word in parts[:at]]
    start = next(
        (n for n, name in enumerate(names) if name in _SHELLS or _INTERPRETER.fullmatch(name)), None
    )
    if start is None:
        return False
    if parts[at].startswith(_TEXT_OPTIONS):
        return True
    options = [n for n in range(start + 1, at) if _TEXT_OPTION.fullmatch(parts[n])]
    return bool(options) and all(word.startswith("-") for word in parts[options[0] + 1 : at])


def joins_arguments(command: tuple[str, ...]) -> str:
    """Return the program in a command that passes its arguments to a shell; '' for none."""
    return next((name for word in command if (name := PurePath(word).name) in _JOINERS), "")


def keeps_arguments(command: tuple[str, ...]) -> bool:
    """Whether a command is a shell's `-c TEXT`, whose further arguments no other program reads."""
    return len(command) > 2 and PurePath(command[0]).name in _PLAIN_SHELLS and command[1] == "-c"


def fields_in(parts: Collection[str]) -> list[str]:
    """Return the fields that arguments name, each once."""
    found = (match["field"] for word in parts for match in FIELD.finditer(word))
    return list(dict.fromkeys(name for name in found if name))


def _name(value: object) -> str:
    text = values.parse_line_text(value)
    if not _NAME.fullmatch(text):
        raise ValidationError(
            f"{shown(text)} is not a name: small letters, digits, '_' and '-', a letter first"
        )
    return text


def _secret_names(value: object) -> tuple[str, ...]:
    return tuple(map(values.variable_name, values.texts(value)))


def _limit(value: object) -> float:
    return values.number(values.seconds(value), 1, DAY, "seconds")


class Plugin(Struct, frozen=True):
    """One of [[plugins]].

    command: argv; `{field}` in a word is the row's value, left in that one word, never split, never
    read by a shell. key: '' for none, then it is run by `:NAME` and from the palette. views: where
    it is offered. dangerous: confirm before running. output: "pane", "terminal" (it gets the
    screen) or "background". where: "here", this machine, or "cluster", the login node.
    limit_seconds: it is ended then, except in the terminal. secrets: environment variables with a
    secret's name that it gets anyway.
    """

    name: Annotated[str, _name]
    command: Annotated[tuple[str, ...], split_command]
    key: Annotated[str, values.key_presses] = ""
    views: Annotated[tuple[str, ...], values.choice_list(*VIEWS)] = ("jobs",)
    description: Text = ""
    dangerous: Flag = False
    output: Annotated[str, values.one_of("pane", "terminal", "background")] = "pane"
    where: Annotated[str, values.one_of("here", "cluster")] = "here"
    limit_seconds: Annotated[float, _limit] = 600.0
    secrets: Annotated[tuple[str, ...], _secret_names] = ()


def read_plugins(reader: TableReader, document: Mapping[str, object]) -> tuple[Plugin, ...]:
    """Read [[plugins]] of a document."""
    plugins: list[Plugin] = []
    for table, path in reader.tables(document, (), "plugins"):
        plugin = reader.record(Plugin, table, path)
        if plugin is None:
            continue
        _check_fields(reader, plugin, path)
        if plugin.where == "cluster" and plugin.output == "terminal":
            text = 'the login node has no terminal here: where = "here", with "ssh" in the command'
            reader.problem((*path, "output"), text)
        plugins.append(plugin)
    return tuple(plugins)


def _check_fields(reader: TableReader, plugin: Plugin, path: KeyPath) -> None:
    for at, word in enumerate(plugin.command):
        for name in fields_in((word,)):
            for view in plugin.views:
                known = placeholder_names(view)
                if name not in known:
                    text = (
                        f"rows of {quoted(view)} have no field "
                        f"{quoted(name)}{did_you_mean(name, known)}"
                    )
                    reader.problem((*path, "command", at), text)
                    break


@cache
def placeholder_names(view: str) -> tuple[str, ...]:
    """The fields of a view's rows."""
    return (*TABLES.get(view, JOBS).public_names, CLUSTER, *(() if view == "queues" else (NODE,)))


def read_filters(reader: TableReader, document: Mapping[str, object]) -> dict[str, str]:
    """[filters]: expressions by name."""
    table: Mapping[str, Any] = reader.table(document, (), "filters")
    for name in table:
        if not _NAME.fullmatch(name):
            reader.problem(
                ("filters", name),
                "a filter's name is small letters, digits, '_' and '-', a letter first",
            )
    return reader.mapping(table, ("filters",), _filter)


def _filter(value: object) -> str:
    from hpcdash.domain import query, schema
    from hpcdash.errors import QueryError

    text, error = values.parse_line_text(value), None
    for table in (schema.JOBS, schema.NODES, schema.QUEUES):
        try:
            query.parse(text, table)
        except QueryError as refused:
            error = error or refused
        else:
            return text
    raise ValidationError(f"{shown(text)} is not a filter: {error.short if error else ''}")
