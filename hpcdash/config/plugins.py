"""[[plugins]], [[exec.commands]] and [filters]: a user's own commands and expressions."""

import re
from collections.abc import Mapping
from functools import cache
from itertools import dropwhile
from pathlib import PurePath
from typing import Annotated, Any

from msgspec import Struct

from hpcdash.config import values
from hpcdash.config.model import Table
from hpcdash.config.problems import did_you_mean, quoted, shown
from hpcdash.config.values import Flag, Text
from hpcdash.domain.tables import JOBS, TABLES
from hpcdash.domain.units import DAY, HOUR

# A field in a word of a command; in doubled braces it is no field.
FIELD = re.compile(r"\{\{(?P<literal>[a-z_]+)\}\}|\{(?P<field>[a-z_]+)\}")
JOB_VIEWS = ("jobs", "history", "node", "job", "log", "script", "chart", "triage", "chain")
VIEWS = (*JOB_VIEWS, "nodes", "queues")
# Fields besides the columns: the cluster's name, and the node, which is a job's first one.
CLUSTER = "cluster"
NODE = "node"
_PLAIN_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh"})
_SHELLS = _PLAIN_SHELLS | {"fish", "csh", "tcsh", "busybox"}
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
# Programs that pass their arguments to a shell, here or on another machine.
_JOINERS = frozenset(
    {"ssh", "rsh", "mosh", "watch", "tmux", "screen", "su", "runuser", "script", "parallel", "eval"}
)


def _split_command(value: object) -> tuple[str, ...]:
    """Read a program and its arguments.

    Neither the program nor text that an interpreter runs may contain a field.
    """
    parts = values.argv(value, ', as in "ssh", "{node}"')
    program = parts[0]
    if FIELD.search(program):
        raise ValueError("the program cannot be a field")
    if "=" in program:
        raise ValueError(f"{shown(program)} is not a program")
    if "/" in program and not program.startswith(("/", "~/")):
        raise ValueError(
            f"{shown(program)}: use a program on the PATH, or a path that starts with / or ~/"
        )
    for index, word in enumerate(parts):
        if _fields_in(word) and _is_program_text(parts, index):
            raise ValueError(
                f"a field in the text that {shown(PurePath(program).name)} runs is unsafe: anyone "
                'can name a job. Use its variable, such as "$HPCDASH_JOB_NAME"'
            )
    return parts


def _is_program_text(parts: tuple[str, ...], index: int) -> bool:
    """Return whether an interpreter runs a word as its program, after -c or -e or in that word."""
    if index == 1 and PurePath(parts[0]).name in _TEXT_FIRST:
        return True
    if _ANY_TEXT_OPTION.fullmatch(parts[index - 1]) or _ANY_TEXT_OPTION.fullmatch(parts[index]):
        return True

    def is_interpreter(word: str) -> bool:
        name = PurePath(word).name
        return name in _SHELLS or _INTERPRETER.fullmatch(name) is not None

    command = list(dropwhile(lambda word: not is_interpreter(word), parts[:index]))
    if not command:
        return False
    if parts[index].startswith(_TEXT_OPTIONS):
        return True
    options = list(dropwhile(lambda word: not _TEXT_OPTION.fullmatch(word), command[1:]))
    return bool(options) and all(option.startswith("-") for option in options)


def joins_arguments(command: tuple[str, ...]) -> str:
    """Return the program in a command that passes its arguments to a shell; '' for none."""
    return next((name for word in command if (name := PurePath(word).name) in _JOINERS), "")


def keeps_arguments(command: tuple[str, ...]) -> bool:
    """Return whether a command is a shell's `-c TEXT`: no other program reads its arguments."""
    return len(command) > 2 and PurePath(command[0]).name in _PLAIN_SHELLS and command[1] == "-c"


def _fields_in(word: str) -> list[str]:
    """Return the fields that a word of a command names, each once."""
    found = (match["field"] for match in FIELD.finditer(word))
    return list(dict.fromkeys(filter(None, found)))


def _filter(text: str) -> str:
    from hpcdash.domain import query, schema
    from hpcdash.errors import QueryError

    errors: list[QueryError] = []
    for table in (schema.JOBS, schema.NODES, schema.QUEUES):
        try:
            query.parse(text, table)
        except QueryError as error:
            errors.append(error)
        else:
            return text
    raise ValueError(f"{shown(text)} is not a filter: {errors[0].short}")


_name = re.compile(r"[a-z][a-z0-9_-]{0,39}").fullmatch
_NAME_RULE = "lowercase letters, digits, '_' and '-', starting with a letter"
FilterName = Annotated[str, values.line_like(_name, f"a filter name may contain {_NAME_RULE}")]
Filter = Annotated[str, values.line(_filter)]


class Plugin(Struct, frozen=True):
    """One of [[plugins]].

    command: argv; `{field}` in a word is the row's value, left in that one word, never split, never
    read by a shell. key: '' for none, then it is run by `:NAME` and from the palette.
    """

    name: Annotated[str, values.line_like(_name, f"{{}} is not a valid name: {_NAME_RULE}")]
    command: Annotated[tuple[str, ...], _split_command]
    key: Annotated[str, values.key_presses] = ""
    views: Annotated[tuple[str, ...], values.choice_list(*VIEWS)] = ("jobs",)
    description: Text = ""
    dangerous: Flag = False
    output: Annotated[str, values.one_of("pane", "terminal", "background")] = "pane"
    where: Annotated[str, values.one_of("here", "cluster")] = "here"
    limit_seconds: Annotated[float, values.seconds_in_range(1, DAY)] = 600.0
    secrets: Annotated[tuple[str, ...], values.nonempty_array(values.variable_name, "texts")] = ()

    @staticmethod
    def check(table: Table, fit: Mapping[str, Any]) -> None:
        for index, word in enumerate(fit.get("command", ())):
            for name in _fields_in(word):
                for view in fit.get("views", ("jobs",)):
                    known = placeholder_names(view)
                    if name not in known:
                        text = f"rows of {quoted(view)} have no field {quoted(name)}"
                        table.add_problem(f"{text}{did_you_mean(name, known)}", "command", index)
                        break
        if fit.get("where") == "cluster" and fit.get("output") == "terminal":
            text = 'the login node has no terminal: use where = "here", with "ssh" in the command'
            table.add_problem(text, "output")


class SiteCommand(Struct, frozen=True):
    """One of [[exec.commands]].

    command: argv, run once a node or once for each GPU of a running job.
    """

    name: Text
    command: Annotated[tuple[str, ...], values.argv]
    each: Annotated[str, values.one_of("node", "gpu")] = "node"
    limit_seconds: Annotated[float, values.seconds_in_range(1, HOUR)] = 60.0
    description: Text = ""


class ExecSettings(Struct, frozen=True):
    """[exec]: commands for the nodes of a running job."""

    commands: tuple[SiteCommand, ...] = ()


@cache
def placeholder_names(view: str) -> tuple[str, ...]:
    """Return the fields of a view's rows."""
    return (*TABLES.get(view, JOBS).public_names, CLUSTER, *(() if view == "queues" else (NODE,)))
