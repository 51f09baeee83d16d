"""Transport to an HTTP server: a command is a method and its paths."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from socket import gaierror
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, urlsplit

import h11
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.domain.text import clip
from hpcdash.errors import (
    AuthenticationFailed,
    CommandMissing,
    CommandTimedOut,
    ConnectionFailed,
    HpcdashError,
    UsageError,
    excerpt,
    without_env,
)
from hpcdash.transport.base import (
    DEFAULT_CAP_BYTES,
    DEFAULT_LIMIT_SECONDS,
    CommandResult,
    Health,
    OnOutput,
    Stream,
    Transport,
)
from hpcdash.transport.local import LocalTransport
from hpcdash.transport.log_spool import LogSpool

if TYPE_CHECKING:
    from hpcdash.transport.ssh import SshTransport
    from hpcdash.transport.terminal import Terminal

METHODS = frozenset({"GET", "POST", "PUT", "DELETE"})
_READ_BYTES = 1 << 16
# Most requests at once; a dashboard is one process.
_REQUESTS = 4
_CONNECT_SECONDS = 10.0
_DENIED = (401, 403)
_SAID_LETTERS = 200
_NO_ANSWER = "it closed the connection without an HTTP answer"
# The dashboard of Ray 2.9 fails on a request without a user agent.
_PROGRAM = "hpcdash"


class _Reader(Protocol):
    async def read(self, count: int, /) -> bytes: ...


class _Writer(Protocol):
    def write(self, content: bytes, /) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


# Positions of a script's arguments that are paths.
PathPositions = Callable[[Sequence[str]], Sequence[int]]


class Response(Struct, frozen=True):
    """Response with its body; `epoch_seconds` is the server's clock, None where it sent no time."""

    status: int
    reason: str
    epoch_seconds: float | None
    body: bytes
    truncated: bool = False

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class HttpTransport:
    """Implements hpcdash.transport.base.Transport over one HTTP server.

    A command is `GET PATH…`, `DELETE PATH`, `POST PATH [JSON]` or `PUT PATH`; the body of the last
    two may come as stdin. Its stdout has for each path a line `STATUS LENGTH EPOCH` (EPOCH '-'
    where unknown) and the body; its exit status is 0, or the first HTTP status that is no success.
    `headers` go with every request. `log_request` gives the path of the request that streams a log,
    '' for a path that is none. The scripts of `file_readers`, with what gives which of their
    arguments are paths (none: it is not run here), must only read files: they run here on copies of
    such logs. Connections go through `login`; None: directly. Anything else runs on `shell`, a host
    beside the server; with None it is refused.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        login: SshTransport | None = None,
        log_request: Callable[[str], str] = lambda path: "",
        file_readers: Mapping[str, PathPositions] = MappingProxyType({}),
        shell: Transport | None = None,
    ) -> None:
        parts = urlsplit(url)
        if login is not None and parts.scheme == "https":
            raise UsageError(
                f"{url}: https does not work through ssh",
                "Write http: ssh encrypts the connection.",
            )
        self.name = url
        self._health = Health()
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._is_tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc
        self._headers = dict(headers or {})
        self._login = login
        self._slots = asyncio.Semaphore(_REQUESTS)
        self._log_request = log_request
        self._file_readers = file_readers
        self._shell = shell
        self._logs = LogSpool(self._stream_log)

    @property
    def health(self) -> Health:
        """The login's until it is open: it may wait for a person."""
        if self._login is not None and self._login.health.state != "connected":
            return self._login.health
        return self._health

    async def connect(self, *, force: bool = False) -> None:
        """Log in where that is needed, and see that the server takes connections."""
        await self._log_in(force)
        if force or self.health.state != "connected":
            _, writer = await self._open()
            writer.close()

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None = None,
        limit_seconds: float = DEFAULT_LIMIT_SECONDS,
        cap_bytes: int = DEFAULT_CAP_BYTES,
        on_output: OnOutput | None = None,
        on_stdout: OnOutput | None = None,
    ) -> CommandResult:
        """Send one request a path, in order; see the class for what comes back."""
        parts = without_env(argv)
        await self._log_in()
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit_seconds):
                if parts[:1] and parts[0] in METHODS:
                    result = await self._requests(argv, parts, stdin, cap_bytes)
                elif self._reads_logs(parts):
                    result = await self._run_on_logs(argv, parts, limit_seconds, cap_bytes)
                else:
                    return await self._beside(argv).run(
                        argv,
                        stdin=stdin,
                        limit_seconds=limit_seconds,
                        cap_bytes=cap_bytes,
                        on_output=on_output,
                        on_stdout=on_stdout,
                    )
        except TimeoutError:
            raise CommandTimedOut(
                f"{self.name} did not answer within {limit_seconds:g} s",
                "Its dashboard may be busy.",
                argv=argv,
            ) from None
        seconds = time.monotonic() - began
        self._health.last_seconds = seconds
        return replace(result, seconds=seconds)

    @asynccontextmanager
    async def stream(self, argv: tuple[str, ...]) -> AsyncIterator[Stream]:
        """The body of a GET, as it comes."""
        if without_env(argv)[0] not in METHODS:
            async with self._beside(argv).stream(argv) as output:
                yield output
            return
        async with self._exchange("GET", without_env(argv)[1], b"") as (_, body):
            yield body

    async def adopt_login_environment(self) -> bool:
        """False: there is none."""
        return False

    def prepend_path(self, folder: str) -> None:
        """Do nothing, as no commands are searched here."""

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        return await self._beside(argv).interact(argv, terminal)

    def _beside(self, argv: tuple[str, ...]) -> Transport:
        """Return the transport of commands; raises CommandMissing where there is none."""
        if self._shell is None:
            raise CommandMissing(
                f"{self.name} is an HTTP server: no command can be run there",
                'Name a host that has its files: ssh = "HOST" in this cluster\'s table, or --ssh '
                "HOST.",
                argv=argv,
            )
        return self._shell

    def _reads_logs(self, parts: tuple[str, ...]) -> bool:
        """Whether a script reads logs that the server streams; without a host beside it there are
        no other files.
        """
        if parts[:2] != ("sh", "-c") or parts[2] not in self._file_readers:
            return False
        arguments = parts[4:]
        paths = [arguments[position] for position in self._file_readers[parts[2]](arguments)]
        return bool(paths) and (self._shell is None or any(map(self._log_request, paths)))

    async def close(self) -> None:
        await self._logs.close()
        if self._login is not None:
            await self._login.close()
        self._health.state = "idle"

    async def _requests(
        self, argv: tuple[str, ...], parts: tuple[str, ...], stdin: bytes | None, cap_bytes: int
    ) -> CommandResult:
        method, *paths = parts
        body = stdin or b""
        if method in ("POST", "PUT"):
            body = paths[1].encode() if len(paths) > 1 else body
            paths = paths[:1]
        responses = [await self._request(method, path, body, cap_bytes) for path in paths]
        bad = next((one for one in responses if not one.is_success), None)
        return CommandResult(
            argv,
            bad.status if bad else 0,
            b"".join(map(_framed, responses)),
            f"{bad.status} {bad.reason}\n{excerpt(bad.body)}".encode() if bad else b"",
            0.0,
            any(one.truncated for one in responses),
        )

    async def _request(self, method: str, path: str, body: bytes, cap_bytes: int) -> Response:
        async with self._slots, self._exchange(method, path, body) as (head, content):
            received = bytearray()
            async for piece in content:
                received += piece
                if len(received) > cap_bytes:
                    break
        status, reason, reported = head
        if status in _DENIED:
            has_token = any(name.lower() == "authorization" for name in self._headers)
            raise AuthenticationFailed(
                f"{self.name} refused the request: {status} {reason}{_excerpt(bytes(received))}",
                "Is the token in this cluster's `token_file` still valid?"
                if has_token
                else (
                    "Set the token: `token_file` in this cluster's table names the file that "
                    "holds it."
                ),
            )
        return Response(
            status, reason, reported, bytes(received[:cap_bytes]), len(received) > cap_bytes
        )

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: bytes
    ) -> AsyncIterator[tuple[tuple[int, str, float | None], AsyncIterator[bytes]]]:
        """Status, reason and clock of a response, and its body piece by piece.

        No redirect is followed.
        """
        reader, writer = await self._open()
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_READ_BYTES)
        headers = [
            ("Host", self._authority),
            ("User-Agent", _PROGRAM),
            ("Accept", "*/*"),
            ("Connection", "close"),
        ]
        headers += self._headers.items()
        if body or method in ("POST", "PUT"):
            headers.append(("Content-Length", str(len(body))))
            headers.append(
                (
                    "Content-Type",
                    "application/json" if method == "POST" else "application/octet-stream",
                )
            )
        is_answering = False
        target = quote(f"{self._prefix}{path}", safe="/?&=%:@,+~!$'()*;-._")
        try:
            writer.write(
                connection.send(h11.Request(method=method, target=target, headers=headers)) or b""
            )
            for start in range(0, len(body), _READ_BYTES):
                writer.write(
                    connection.send(h11.Data(data=body[start : start + _READ_BYTES])) or b""
                )
                await writer.drain()
            writer.write(connection.send(h11.EndOfMessage()) or b"")
            await writer.drain()
            event = await _next_event(connection, reader)
            while isinstance(event, h11.InformationalResponse):
                event = await _next_event(connection, reader)
            if not isinstance(event, h11.Response):
                raise self._lost(_NO_ANSWER)
            if 300 <= event.status_code < 400:
                raise self._redirected(event)
            is_answering = True
            yield (
                (event.status_code, excerpt(event.reason), _clock(event)),
                _body(connection, reader),
            )
        except h11.RemoteProtocolError as error:
            raise self._lost("the answer was cut short" if is_answering else _NO_ANSWER) from error
        except (OSError, h11.ProtocolError) as error:
            raise self._lost(str(error) or type(error).__name__) from error
        finally:
            writer.close()

    async def _log_in(self, force: bool = False) -> None:
        """Open the connection to the login node.

        It limits its own time, as it may prompt a person.
        """
        if self._login is not None:
            await self._login.connect(force=force)
            self._health.text = self._login.health.text

    async def _open(self) -> tuple[_Reader, _Writer]:
        await self._log_in()
        if self._health.state != "connected":
            self._health.state = "connecting"
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await self._connected()
        except HpcdashError as error:
            self._health.state, self._health.detail = "failed", error.message
            raise
        except TimeoutError:
            raise self._lost(f"no connection within {_CONNECT_SECONDS:g} s") from None
        except OSError as error:
            # asyncio formats the errno again, with the address once more.
            errno = None if isinstance(error, ssl.SSLError | gaierror) else error.errno
            raise self._lost(
                os.strerror(errno) if errno else error.strerror or str(error)
            ) from error
        if self._health.state != "connected":
            self._health.state, self._health.detail, self._health.connected_at = (
                "connected",
                "",
                time.monotonic(),
            )
        return reader, writer

    async def _connected(self) -> tuple[_Reader, _Writer]:
        if self._login is not None:
            return await self._login.open_connection(self._host, self._port)
        context = ssl.create_default_context() if self._is_tls else None
        return await asyncio.open_connection(self._host, self._port, ssl=context)

    def _redirected(self, response: h11.Response) -> ConnectionFailed:
        """No redirect is followed: the request, and its token, would go to another server."""
        target = next((value for name, value in response.headers if name == b"location"), b"")
        where = f" to {excerpt(target)}" if target else ""
        self._health.state, self._health.detail = "failed", f"it redirects{where}"
        return ConnectionFailed(
            f"{self.name} redirects{where}",
            "Where that is the server's own URL, write that one. Where it is a login page, connect "
            "through ssh.",
        )

    def _lost(self, why: str) -> ConnectionFailed:
        self._health.state, self._health.detail = "lost", why
        return ConnectionFailed(
            f"{self.name} cannot be reached: {why}", "Is the server up, and is this its URL?"
        )

    @asynccontextmanager
    async def _stream_log(self, request: str) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        async with self._exchange("GET", request, b"") as ((status, _, _), body):
            yield status, body

    async def _run_on_logs(
        self, argv: tuple[str, ...], parts: tuple[str, ...], limit_seconds: float, cap_bytes: int
    ) -> CommandResult:
        """Run a script that reads files on local copies of the logs that it names."""
        arguments = list(parts[4:])
        for position in self._file_readers[parts[2]](arguments):
            arguments[position] = str(
                await self._logs.fetch_copy(self._log_request(arguments[position]))
            )
        local = (*parts[:4], *arguments)
        ended = await LocalTransport().run(local, limit_seconds=limit_seconds, cap_bytes=cap_bytes)
        return replace(ended, argv=argv, is_copy=True)


def _excerpt(body: bytes) -> str:
    """The first line of a text, after a colon; '' of a page, which says nothing more."""
    first = excerpt(body).partition("\n")[0].strip()
    return f": {clip(first, _SAID_LETTERS)}" if first and not first.startswith(("<", "{")) else ""


def _framed(response: Response) -> bytes:
    reported = "-" if response.epoch_seconds is None else f"{response.epoch_seconds:.0f}"
    return b"%d %d %s\n" % (response.status, len(response.body), reported.encode()) + response.body


def _clock(response: h11.Response) -> float | None:
    reported = next((value for name, value in response.headers if name == b"date"), b"")
    try:
        return max(parsedate_to_datetime(reported.decode("ascii", "replace")).timestamp(), 0.0)
    except (ValueError, OverflowError):
        return None


async def _next_event(connection: h11.Connection, reader: _Reader) -> object:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(_READ_BYTES))
    return event


async def _body(connection: h11.Connection, reader: _Reader) -> AsyncIterator[bytes]:
    while isinstance(event := await _next_event(connection, reader), h11.Data):
        yield bytes(event.data)
