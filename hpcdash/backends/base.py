"""What a backend is: queries (a command, how to read its answer) and capabilities. Knows no scheduler, runs nothing."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

_ALPHABET = string.ascii_letters + string.digits
TOKEN_START = "\x1e"
TOKEN_RANDOM_LETTERS = 10
# What a recording writes where a poll's token stood.
TOKEN_PATTERN = TOKEN_START + f"[0-9A-Za-z]{{{TOKEN_RANDOM_LETTERS}}}"
RECORDED_TOKEN = TOKEN_START + "T" * TOKEN_RANDOM_LETTERS


def fresh_token() -> str:
    """A separator no job name can forge: a control byte and 10 random letters (62¹⁰ of them), new for each poll."""
    return TOKEN_START + "".join(secrets.choice(_ALPHABET) for _ in range(TOKEN_RANDOM_LETTERS))


class Capability(StrEnum):
    """What a scheduler can do; screens ask for these, never for its name."""

    JOBS = "jobs"
    NODES = "nodes"
    QUEUES = "queues"
    HISTORY = "history"
    DETAIL = "detail"
    EXPECTED_START = "expected_start"


class Answer(Protocol):
    """What a finished command left; transports give it."""

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


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Query(Generic[T_co]):
    """A command and how to read its answer; `parse` raises an HpcdashError when the answer is none."""

    argv: tuple[str, ...]
    parse: Callable[[Answer], T_co]
    limit_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class ParsedTable:
    """Rows in a schema of domain.schema; `rejected` lists, in words, the rows that could not be read."""

    table: pa.Table
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job: a one-row table of domain.schema.JOBS with the paths filled in, and all the scheduler said, in order."""

    job: pa.Table
    native: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found at the other end, once a connection: who we are, what the scheduler calls itself.

    `commands` maps each of the scheduler's commands to its path there, '' where it is missing.
    """

    user: str
    version: str
    cluster: str = ""
    clock_epoch_seconds: float | None = None
    has_accounting: bool | None = None
    controller_answers: bool | None = None
    commands: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobScope:
    """Which jobs: `user` None is everyone, '' is whoever runs the command; `ended` asks for
    those that ended a short while ago as well.

    `job_ids` narrows to these jobs or arrays, ended ones included.
    """

    user: str | None = None
    ended: bool = False
    job_ids: tuple[str, ...] = ()


class Backend(Protocol):
    """A scheduler. All methods build or read; nothing runs here."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def capabilities(self) -> frozenset[Capability]: ...

    def probe_query(self) -> Query[Probe]:
        """Whether this scheduler is there at all; parse raises CommandMissing where it is not."""
        ...

    def jobs_query(self, scope: JobScope) -> Query[ParsedTable]: ...
    def nodes_query(self) -> Query[ParsedTable]: ...
    def queues_query(self) -> Query[ParsedTable]: ...

    def history_query(self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()) -> Query[ParsedTable]:
        """Jobs that ended within the last `since_seconds`, of a user as in JobScope; or `job_ids`, ended or not."""
        ...

    def native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        """Everything the scheduler says of a job it still holds; parse raises NoSuchJob."""
        ...

    def history_native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        """Everything the accounting database says of a job; parse raises NoSuchJob."""
        ...

    def job_detail(self, row: pa.Table, native: Mapping[str, str]) -> JobDetail:
        """Join a job's row with its native answer: fills the paths."""
        ...

    def reason_hint(self, state: str, reason: str | None) -> str:
        """In plain words why a job waits or how it ended, or '' where there is nothing to add."""
        ...
