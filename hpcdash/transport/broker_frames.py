"""Frames between a broker and its clients, and the socket that only its owner reaches."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import socket
import struct
import sys
from pathlib import Path
from typing import TypeAlias, TypeVar, Union

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpcdash import errors
from hpcdash.backends.tokens import TOKEN_PATTERN
from hpcdash.errors import HpcdashError
from hpcdash.private_files import make_private
from hpcdash.transport.base import CommandResult, HostKeyQuestion, Prompt

T = TypeVar("T")
_TOKEN = re.compile(TOKEN_PATTERN.encode())
# Another version is refused, and that client works without a broker.
VERSION = 1
# The longest answer is a list of LIST_BYTES; a frame is of one's own account.
_MAX_FRAME_BYTES = 1 << 30
_LENGTH = struct.Struct(">I")
# What a login depends on beside ssh's configuration: clients that differ in it have brokers of
# their own.
_VARIABLES = ("HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "KRB5CCNAME")
# sys/un.h of macOS: LOCAL_PEERCRED at level SOL_LOCAL gives a struct xucred.
_LOCAL_PEERCRED = 1
_SOL_LOCAL = 0
_XUCRED = struct.Struct("II")
_XUCRED_BYTES = 76
# Pieces of a stream, or parts of a stdin, on the way to an end that has not read them yet.
PIECES_AHEAD = 16


class Frame(Struct, frozen=True, tag=True, omit_defaults=True):
    """Message in either direction; `number` is its request's, from 1."""


class Hello(Frame, frozen=True):
    """First frame of a client: itself, for prompts and `status`, and how to reach its login node.

    `keep_seconds`: how long the broker lives after its last client. `logins` are the destinations
    to try in turn, () for a client that only inquires.
    """

    version: int
    pid: int
    command: str
    logins: tuple[str, ...] = ()
    can_prompt: bool = False
    is_read_only: bool = False
    keep_seconds: float = 0.0


class Place(Struct, frozen=True, omit_defaults=True):
    """Variables and directories of PATH for a command, byte for byte."""

    variables: dict[bytes, bytes] = {}
    path: bytes = b""


class Connect(Frame, frozen=True):
    number: int
    force: bool
    can_prompt: bool


class Run(Frame, frozen=True):
    """A command that is run for this client alone; `acts` if it may change something."""

    number: int
    argv: tuple[bytes, ...]
    place: Place
    limit_seconds: float
    cap_bytes: int
    stdin: bytes | None = None
    acts: bool = False
    has_output: bool = False
    has_stdout: bool = False


class SharedQuery(Frame, frozen=True):
    """A query whose answer may be another client's, as in transport.base.Sharing."""

    number: int
    argv: tuple[bytes, ...]
    place: Place
    limit_seconds: float
    cap_bytes: int
    max_age_seconds: float
    outlives_actions: bool
    commands_per_minute: int


class Follow(Frame, frozen=True):
    """A command whose stdout is streamed; `is_pipe`: the client writes its stdin."""

    number: int
    argv: tuple[bytes, ...]
    place: Place
    is_pipe: bool = False


class Written(Frame, frozen=True):
    """A part of a pipe's stdin; None: its end."""

    number: int
    content: bytes | None


class Interact(Frame, frozen=True):
    """A command on the client's terminal."""

    number: int
    argv: tuple[bytes, ...]
    place: Place
    kind: str
    columns: int
    lines: int


class Typed(Frame, frozen=True):
    number: int
    keys: bytes


class Resized(Frame, frozen=True):
    number: int
    columns: int
    lines: int


class Read(Frame, frozen=True):
    """A piece of a stream, or a part of a pipe's stdin, was read: another may be sent."""

    number: int


class Cancel(Frame, frozen=True):
    number: int


class Answered(Frame, frozen=True):
    """A person's answers to a prompt, None if they gave up; (“yes”,) accepts a host key."""

    number: int
    answers: list[str] | None


class Inquire(Frame, frozen=True):
    """Request of the broker's state, or of its end."""

    number: int
    stop: bool = False


class Welcome(Frame, frozen=True):
    version: int
    pid: int


class Refused(Frame, frozen=True):
    """Refusal of a client, which works without a broker."""

    reason: str


class Done(Frame, frozen=True):
    """End of a request; `status` is that of a stream or terminal."""

    number: int
    status: int | None = None
    stderr: bytes = b""


class Started(Frame, frozen=True):
    number: int


class Result(Frame, frozen=True):
    """Result of a command; `age_seconds` is None if it ran for this client."""

    number: int
    argv: tuple[bytes, ...]
    status: int
    stdout: bytes
    stderr: bytes
    seconds: float
    truncated: bool = False
    answer_seconds: float | None = None
    age_seconds: float | None = None


class Piece(Frame, frozen=True):
    """Piece of output; `is_error`: of stderr."""

    number: int
    content: bytes
    is_error: bool = False


class Failed(Frame, frozen=True):
    """Error of a request: the class of hpcdash.errors, its message and its other attributes."""

    number: int
    kind: str
    message: str
    fields: dict[str, str | int | float | tuple[str, ...] | None]


class Line(Frame, frozen=True):
    """Health of the connection; `is_attended`: logging in again would take a person."""

    state: str
    detail: str
    hops: tuple[str, ...]
    connected_at: float | None
    retry_at: float | None
    text: str
    waiting_since: float | None
    is_attended: bool
    name: str


class Prompted(Frame, frozen=True):
    """A prompt for this client's person."""

    number: int
    prompt: Prompt


class HostKeyPrompted(Frame, frozen=True):
    number: int
    question: HostKeyQuestion


class Withdrawn(Frame, frozen=True):
    """A prompt that needs no answer any more."""

    number: int


class Shown(Frame, frozen=True):
    """Text of a host, or of the broker if `hop` is ''; `text` None: the host has been silent."""

    hop: str
    text: str | None


class ClientState(Struct, frozen=True):
    pid: int
    command: str
    is_read_only: bool
    can_prompt: bool


class ConnectionState(Struct, frozen=True):
    """A connection: commands were `sent` and answers `shared` since it was made."""

    name: str
    state: str
    detail: str
    connected_at: float | None
    logins: int
    sent: int
    shared: int
    clients: tuple[ClientState, ...]


class State(Frame, frozen=True):
    """State of a broker; `keep_seconds` is how long it lives after its last client."""

    number: int
    pid: int
    started_at: float
    keep_seconds: float
    connections: tuple[ConnectionState, ...]


ToBroker: TypeAlias = Union[  # noqa: UP007
    Connect,
    Run,
    SharedQuery,
    Follow,
    Written,
    Interact,
    Typed,
    Resized,
    Read,
    Cancel,
    Answered,
    Inquire,
]
ToClient: TypeAlias = Union[  # noqa: UP007
    Done,
    Started,
    Result,
    Piece,
    Read,
    Failed,
    Line,
    Prompted,
    HostKeyPrompted,
    Withdrawn,
    Shown,
    State,
]
_encoder = msgspec.msgpack.Encoder()


class BrokerGone(Exception):
    """The other end closed its socket, or sent something that is no frame."""


def write_frame(writer: asyncio.StreamWriter, frame: Frame) -> None:
    content = _encoder.encode(frame)
    writer.write(_LENGTH.pack(len(content)))
    writer.write(content)


async def read_frame(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """Read a frame of the decoder's types; raises BrokerGone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > _MAX_FRAME_BYTES:
            raise BrokerGone(f"a frame of {length} bytes")
        return decoder.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError) as error:
        raise BrokerGone("the socket was closed") from error
    except msgspec.DecodeError as error:
        raise BrokerGone(f"a frame that cannot be read: {error}") from error


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def as_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def plain(text: str) -> str:
    """Text without lone surrogates, which no frame carries."""
    return text.encode("utf-8", "replace").decode("utf-8")


def build_failure(number: int, error: HpcdashError) -> Failed:
    known = type(error)
    while getattr(errors, known.__name__, None) is not known:
        known = known.__mro__[1]
    fields = {
        name: tuple(map(plain, value)) if isinstance(value, tuple) else value
        for name, value in vars(error).items()
        if not name.startswith("_") and isinstance(value, str | int | float | tuple | None)
    }
    fields = {
        name: plain(value) if isinstance(value, str) else value for name, value in fields.items()
    }
    return Failed(number, known.__name__, plain(error.message), fields)


def restore_error(frame: Failed) -> HpcdashError:
    """Return the error of a frame, of its class in hpcdash.errors."""
    kind = getattr(errors, frame.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, HpcdashError)):
        kind = HpcdashError
    error: HpcdashError = kind.__new__(kind)
    Exception.__init__(error, frame.message)
    vars(error).update(frame.fields)
    return error


def build_result(frame: Result, argv: tuple[str, ...]) -> CommandResult:
    return CommandResult(
        argv=argv,
        status=frame.status,
        stdout=frame.stdout,
        stderr=frame.stderr,
        seconds=frame.seconds,
        truncated=frame.truncated,
        is_copy=frame.age_seconds is not None,
        answer_seconds=frame.answer_seconds,
        age_seconds=frame.age_seconds or 0.0,
    )


def with_separators(frame: Result, argv: tuple[str, ...]) -> Result:
    """Return an answer with the random separators of `argv` in place of those that it was made
    with.
    """
    made = _TOKEN.findall(b"\0".join(frame.argv))
    requested = _TOKEN.findall(b"\0".join(map(as_bytes, argv)))
    stdout = frame.stdout
    stderr = frame.stderr
    for before, after in dict(zip(made, requested, strict=True)).items():
        if before != after:
            stdout = stdout.replace(before, after)
            stderr = stderr.replace(before, after)
    return replace(frame, stdout=stdout, stderr=stderr)


def runtime_folder() -> Path:
    """Return one's own closed folder for sockets on this machine, made if it is missing.

    Raises NotPrivate where another account could read, fill or replace it.
    """
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = (
        Path(given) / "hpcdash" if given.startswith("/") else Path(f"/tmp/hpcdash-{os.geteuid()}")
    )
    make_private(folder, "XDG_RUNTIME_DIR")
    return folder


def socket_path(folder: Path) -> Path:
    """Return the socket of the broker for logins from this environment."""
    values = "\0".join(os.environ.get(name, "") for name in _VARIABLES)
    return folder / f"broker-{hashlib.sha256(as_bytes(values)).hexdigest()[:16]}"


def peer_uid(connection: socket.socket) -> int:
    """Return the account at the other end of a Unix socket, from the kernel."""
    if sys.platform == "darwin":
        raw = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
        return int(_XUCRED.unpack_from(raw)[1])
    credentials = struct.Struct("3i")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(raw)[1])
