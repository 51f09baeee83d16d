"""A person's own commands: their words and environment from a row, and how they are run."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import PurePath
from typing import TYPE_CHECKING

from msgspec import Struct

from hpcdash.child_process import ChildProcess
from hpcdash.config.plugins import CLUSTER, FIELD, NODE, Plugin, joins_arguments, keeps_arguments
from hpcdash.domain import nodelist
from hpcdash.domain.scripts import ScriptLine
from hpcdash.errors import CommandError, UsageError, readable_command
from hpcdash.services.logs.lines import shown_line

if TYPE_CHECKING:
    from hpcdash.transport.base import Transport

MAX_LINES = 5000
_MAX_BYTES = 4 * 1024 * 1024
_LONGEST_LINE_BYTES = 16 * 1024
_CHUNK_BYTES = 64 * 1024
# Linux takes 128 KiB for one word or variable.
_LONGEST_VALUE = 100_000
# What a program left behind may hold its output open for ever.
_REST_SECONDS = 0.5
# All that a shell reads as itself, wherever it stands.
_PLAIN = re.compile(r"[\w.,:@%+=/-]*")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


class PluginCommand(Struct, frozen=True):
    """Command of a plugin for one row: `argv`, its variables, and `subject`, as `job 12`."""

    plugin: Plugin
    argv: tuple[str, ...]
    variables: Mapping[str, str]
    subject: str

    @property
    def text(self) -> str:
        """The command as a person would type it, safe to show."""
        return readable_command(self.argv)


def variable_name(kind: str, field: str) -> str:
    """The variable that holds a field of a 'job', 'node' or 'queue'; none that hpcdash itself reads
    has such a name.
    """
    return (
        f"HPCDASH_{field}".upper()
        if field in (CLUSTER, NODE)
        else f"HPCDASH_{kind}_{field}".upper()
    )


def build_command(
    plugin: Plugin, fields: Mapping[str, object], kind: str, name: str
) -> PluginCommand:
    """The command for a row of a `kind`, 'job', 'node' or 'queue': `fields` are its columns, None
    where unknown.

    Raises UsageError for a value that cannot safely be a word of it: unknown or empty, with control
    characters, with an option's looks where it begins a word (unless `--` stands before it), with a
    `..` inside a path, or with anything that a shell may act on: which programs hand their words to
    one, here or elsewhere, no list can tell. A shell itself keeps the words behind its `-c TEXT`.
    """
    values = {field: text for field, value in fields.items() if (text := _text(value))}
    if NODE not in values and (nodes := values.get("node_list")):
        try:
            values[NODE] = nodelist.expand(nodes)[0]
        except (ValueError, IndexError):
            pass
    subject = f"{kind} {name}"
    argv: list[str] = []
    is_whole = keeps_arguments(plugin.command)
    for word in plugin.command:
        is_settled = "--" in argv and not joins_arguments(plugin.command)

        def replacement(
            match: re.Match[str], word: str = word, is_settled: bool = is_settled
        ) -> str:
            field = match["field"]
            if field is None:
                return "{" + match["literal"] + "}"
            _require_safe(
                field, values.get(field, ""), subject, variable_name(kind, field), is_whole=is_whole
            )
            if match.start() == 0 and values[field].startswith("-") and not is_settled:
                raise UsageError(
                    f"not run: the {field} of {subject} begins with '-' and would be read as an "
                    "option",
                    f'Put "--" before it, or a prefix in the same word, for example '
                    f'"--name={word}".',
                )
            if match[0] != word and ".." in PurePath(values[field]).parts:
                raise UsageError(
                    f"not run: the {field} of {subject} contains '..' and would leave the "
                    f"folder in {word!r}",
                    f"Read ${variable_name(kind, field)} in the command instead.",
                )
            return values[field]

        argv.append(FIELD.sub(replacement, word))
    if plugin.where == "here":
        argv[0] = os.path.expanduser(argv[0])
    variables = {
        variable_name(kind, field): text for field, text in values.items() if _is_passable(text)
    }
    variables["HPCDASH_PLUGIN"] = plugin.name
    return PluginCommand(plugin, tuple(argv), variables, subject)


def _require_safe(field: str, value: str, subject: str, variable: str, *, is_whole: bool) -> None:
    if not value:
        raise UsageError(f"not run: {subject} has no {field}", f"The command needs {{{field}}}.")
    if _CONTROL.search(value) or not _is_passable(value):
        raise UsageError(
            f"not run: the {field} of {subject} contains control characters",
            f"Read ${variable} in the command instead.",
        )
    if not is_whole and not _PLAIN.fullmatch(value):
        raise UsageError(
            f"not run: the {field} of {subject} contains blanks or shell syntax, which a shell "
            "could run",
            f"Remove the field from the command, and read ${variable} in your program.",
        )


def _text(value: object) -> str:
    """A field as text: lists with commas, times as ISO 8601, '' for what is unknown."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _is_passable(text: str) -> bool:
    """Whether a program can be given it: no NUL, no lone surrogate, not too long."""
    try:
        return "\0" not in text and len(text.encode()) <= _LONGEST_VALUE
    except UnicodeEncodeError:
        return False


def environment_here(
    command: PluginCommand, withheld: frozenset[str] = frozenset()
) -> dict[str, str]:
    """One's own environment without secrets, but for those that the plugin names, and the row's
    fields.

    Secrets are what a name or a value tells (…_TOKEN, …_PASSWORD, a URL with a password) and
    `withheld`.
    """
    from hpcdash.domain.request import is_secret

    allowed = {
        name: value
        for name, value in os.environ.items()
        if name in command.plugin.secrets or not (is_secret(name, value) or name in withheld)
    }
    return {**allowed, **command.variables}


async def run_plugin(
    command: PluginCommand,
    transport: Transport,
    take: Callable[[bytes], None],
    withheld: frozenset[str] = frozenset(),
) -> int:
    """Run it to its end and give its exit status; `take` gets what it writes.

    What is run here is ended with all it started when this is cancelled, and at the limit. Raises
    CommandError where it cannot be run or reaches the limit, and what the transport raises.
    """
    if command.plugin.where == "cluster":
        settings = tuple(f"{name}={value}" for name, value in command.variables.items())
        limit = command.plugin.limit_seconds
        result = await transport.run(
            ("env", *settings, *command.argv), limit_seconds=limit, cap_bytes=_MAX_BYTES
        )
        take(result.stdout)
        take(result.stderr)
        return result.status
    environment = {**environment_here(command, withheld), "TERM": "dumb"}
    try:
        child = ChildProcess(command.argv, stderr=subprocess.STDOUT, environment=environment)
    except OSError as error:
        raise CommandError(
            f"{_program(command)} cannot be run: {error.strerror}", argv=command.argv
        ) from None
    with closing(child):
        try:
            async with asyncio.timeout(command.plugin.limit_seconds):
                reading = asyncio.ensure_future(_read(child, take))
                try:
                    status = await child.wait()
                    await asyncio.wait([reading], timeout=_REST_SECONDS)
                finally:
                    reading.cancel()
        except TimeoutError:
            text = (
                f"{_program(command)} did not finish within {command.plugin.limit_seconds:g} s, "
                "and was terminated"
            )
            raise CommandError(
                text, "Raise the plugin's limit_seconds to allow more time.", argv=command.argv
            ) from None
        finally:
            await child.terminate()
    return status if status >= 0 else 128 - status


async def _read(child: ChildProcess, take: Callable[[bytes], None]) -> None:
    reader = await child.read(1, _CHUNK_BYTES)
    while chunk := await reader.read(_CHUNK_BYTES):
        take(chunk)


def run_in_terminal(command: PluginCommand, withheld: frozenset[str] = frozenset()) -> str:
    """Run it on the terminal, which is free for it, and wait for its end; the complaint where that
    fails, else ''.
    """
    # A handler, not SIG_IGN, which the command would inherit: ctrl+c is for the command alone.
    keys = (signal.SIGINT, signal.SIGQUIT)
    before = {number: signal.signal(number, lambda *_: None) for number in keys}
    try:
        status = subprocess.call(command.argv, env=environment_here(command, withheld))
    except OSError as error:
        return f"{_program(command)}: {error.strerror}"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (
        f"{command.plugin.name}: {_program(command)} exited with status {status}" if status else ""
    )


def _program(command: PluginCommand) -> str:
    return PurePath(command.argv[0]).name


class OutputLines:
    """The last MAX_LINES of what a command writes, safe to show; `left_out` counts those
    before.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._lines: deque[ScriptLine] = deque()
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        for line in whole:
            self._add(line)
        while len(self._rest) > _LONGEST_LINE_BYTES:
            self._add(self._rest[:_LONGEST_LINE_BYTES])
            self._rest = self._rest[_LONGEST_LINE_BYTES:]

    def lines(self) -> list[ScriptLine]:
        """All of them, the unfinished last one too."""
        return [*self._lines, *([_shown(self._rest)] if self._rest else [])]

    def _add(self, raw: bytes) -> None:
        self._lines.append(_shown(raw))
        if len(self._lines) > MAX_LINES:
            self._lines.popleft()
            self.left_out += 1


def _shown(raw: bytes) -> ScriptLine:
    return ScriptLine(shown_line(raw[:_LONGEST_LINE_BYTES]).text)


def with_cluster(row: Mapping[str, object], cluster: str) -> dict[str, object]:
    """The fields of a row: its public columns and the cluster's name."""
    return {
        **{name: value for name, value in row.items() if not name.startswith("_")},
        CLUSTER: cluster,
    }
