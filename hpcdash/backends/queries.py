"""Queries of a scheduler: a command, the parser of its answer, and parsed tables.

Runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa
from msgspec import Struct

from hpcdash.domain.text import visible
from hpcdash.domain.units import format_memory
from hpcdash.errors import (
    CommandError,
    CommandMissing,
    SchedulerRefused,
    UnreadableOutput,
    excerpt,
    program_name,
    without_program,
)

T_co = TypeVar("T_co", covariant=True)
# A row of a table of domain.schema, by its columns.
Row: TypeAlias = Mapping[str, Any]
# Attributes that a scheduler reports of a job, node or queue, in its order.
Native: TypeAlias = Mapping[str, str]
# Variables of a job's environment; None for a value that is unknown.
Variables: TypeAlias = Mapping[str, str | None]
# Texts for a person, by their labels.
Facts: TypeAlias = Mapping[str, str]


class Answer(Protocol):
    """Output and status of a finished command, from a transport."""

    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def status(self) -> int: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def truncated(self) -> bool: ...
    @property
    def answer_seconds(self) -> float | None: ...
    @property
    def age_seconds(self) -> float: ...


def decoded(raw: bytes) -> str:
    """Return what a command printed as text; bytes that are no UTF-8 become U+FFFD."""
    return raw.decode("utf-8", "replace")


# Lists: of a million jobs squeue prints so much.
LIST_BYTES = 256 << 20
# What is read as text takes a Python object a line, twenty times its size.
TEXT_BYTES = 16 << 20
# Of a probe: versions, paths, a few settings.
PROBE_BYTES = 64 << 10


def one_command(_answer: object) -> int:
    return 1


class AnswerPart(Struct, frozen=True):
    """Part of an answer, read as an answer of its own."""

    argv: tuple[str, ...]
    stdout: bytes
    stderr: bytes = b""
    truncated: bool = False
    status: int = 0
    answer_seconds: float | None = None
    age_seconds: float = 0.0


class Query(Struct, Generic[T_co], frozen=True):
    """A command and how to read its answer; `parse` raises an HpcdashError when the answer is none.

    `commands` is how many commands the scheduler was sent for what `parse` returned, where `argv`
    is a script of several.

    `command` is what a person would have called, where `argv` is a script around it. A command that
    prints more than `cap_bytes` is ended.

    Other programs of the same person may have had it answered `max_age_seconds` ago, if nothing was
    done since, or even then if it `outlives_actions`; 0 for an answer of one's own.
    """

    argv: tuple[str, ...]
    parse: Callable[[Answer], T_co]
    limit_seconds: float = 30.0
    command: tuple[str, ...] = ()
    cap_bytes: int = LIST_BYTES
    commands: Callable[[Any], int] = one_command
    max_age_seconds: float = 0.0
    outlives_actions: bool = False


# How much of a rejected row is shown, and how many lines that are not rows.
_SHOWN_BYTES = 400
_SHOWN_LINES = 100
LOGIN_SHELL_STEP = "`hpcdash doctor` shows what the login shell prints."


def refused(answer: Answer, message: str, next_step: str = "") -> SchedulerRefused:
    """The error of a script that did not do what it was sent for, with its own words."""
    text = excerpt(answer.stderr)
    return SchedulerRefused(message, next_step, argv=answer.argv, status=answer.status, output=text)


def require_whole(answer: Answer) -> None:
    """Raise UnreadableOutput where a command was ended because it printed more than its cap."""
    if answer.truncated:
        raise UnreadableOutput(
            f"the answer exceeded {format_memory(len(answer.stdout))} and was truncated",
            "Another program may be answering for the scheduler, such as a wrapper that never "
            "stops printing.",
            argv=answer.argv,
            status=answer.status,
            output=excerpt(answer.stdout[:_SHOWN_BYTES]),
        )


class Failure(Struct, frozen=True):
    """Kind of a scheduler's failure; `{name}` in its texts is the command's name."""

    error: type[CommandError]
    message: str
    next_step: str


FAILED = Failure(SchedulerRefused, "{name} failed", "`man {name}` explains its messages.")
_MISSING_STATUS = 127


def own_message(answer: Answer) -> str:
    """Return the message of a failed command."""
    return excerpt(answer.stderr) or excerpt(answer.stdout[:_SHOWN_BYTES])


def failed(kind: Failure, answer: Answer, command: tuple[str, ...]) -> CommandError:
    """Return the error of an answer; `command` is what failed, where argv is a script around it."""
    name = program_name(command)
    message = kind.message.replace("{name}", name)
    output = own_message(answer)
    if kind is FAILED and output:
        message = f"{message}: {visible(without_program(output.splitlines()[-1]))}"
    return kind.error(
        message,
        kind.next_step.replace("{name}", name),
        argv=command,
        status=answer.status,
        output=output,
    )


def missing(answer: Answer, command: tuple[str, ...], scheduler: str) -> CommandError | None:
    """Return the error of a command that does not exist; None where it ran."""
    if answer.status != _MISSING_STATUS:
        return None
    step = (
        f'If {scheduler} is installed elsewhere, set path = "/…/bin" in the configuration; '
        "`hpcdash doctor` searches for it."
    )
    return failed(Failure(CommandMissing, "{name} is not on the PATH here", step), answer, command)


def unreadable(answer: Answer, what: str, command: tuple[str, ...] = ()) -> UnreadableOutput:
    """Return the error of a successful answer that is no list of `what`; `command` as in
    `failed`.
    """
    argv = command or answer.argv
    name = program_name(argv)
    return UnreadableOutput(
        f"{name} printed something that is not a list of {what}",
        f"Is {name} a wrapper or an alias here? `hpcdash doctor` shows its path and version.",
        argv=argv,
        status=answer.status,
        output=excerpt(answer.stdout[:_SHOWN_BYTES]) or excerpt(answer.stderr),
    )


class ParsedTable(Struct, frozen=True):
    """Rows in a schema of domain.schema; `rejected` lists, in words, the rows that could not be
    read.

    `is_cut`: the command printed more than its cap, and these are not all.
    """

    table: pa.Table
    rejected: tuple[str, ...] = ()
    is_cut: bool = False


def row_excerpt(raw: bytes, token: bytes = b"") -> str:
    """A rejected row as a person may see it: blanks for the separators."""
    text = raw[:_SHOWN_BYTES].replace(token or b"\x1f", b" ").replace(b"\x1f", b" ")
    return decoded(text).strip()


def noise_lines(noise: bytes | bytearray, token: bytes = b"") -> list[str]:
    """Output that is no row at all, as a person may see it: its first lines, and how many more
    there are.
    """
    shown: list[str] = []
    more = 0
    for line in BytesIO(noise):
        if not line.strip():
            continue
        if len(shown) < _SHOWN_LINES:
            shown.append(row_excerpt(line, token))
        else:
            more += 1
    return [*shown, f"and {more} more lines"] if more else shown


class ParsedOffers(Struct, Generic[T_co], frozen=True):
    """Offers of a cluster, of one kind; `rejected` describes the unreadable rows."""

    offers: tuple[T_co, ...]
    rejected: tuple[str, ...] = ()


class JobScope(Struct, frozen=True):
    """Jobs to list: `user` None is everyone, '' is whoever runs the command; `ended` includes
    those that ended a short while ago.

    `job_ids` narrows to these jobs or arrays, ended ones included; with `user` and `ended` the
    answer may hold more of that user's jobs, where that costs the scheduler less. With `each_task`
    each task of an array that runs is a row, also where that costs the scheduler more. `queue`,
    `qos` and `reservation` narrow to those of one, where the scheduler has such a thing.
    """

    user: str | None = None
    ended: bool = False
    job_ids: tuple[str, ...] = ()
    each_task: bool = False
    queue: str = ""
    qos: str = ""
    reservation: str = ""
