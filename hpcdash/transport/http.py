"""Transport to an HTTP server: a command is a method with its paths."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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
    Pipe,
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
# Limit of concurrent requests: the server is one process.
_REQUESTS = 4
_CONNECT_SECONDS = 10.0
_DENIED = (401, 403)
_EXCERPT_CHARACTERS = 200
_NO_RESPONSE = "it closed the connection without an HTTP response"
# The dashboard of Ray 2.9 fails on a request without a user agent.
_PROGRAM = "hpcdash"


class _Reader(Protocol):
    async def read(self, count: int, /) -> bytes: ...


class _Writer(Protocol):
    def write(self, content: bytes, /) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


# Returns the positions of a script's arguments that are paths.
PathPositions = Callable[[Sequence[str]], Sequence[int]]


class Head(Struct, frozen=True):
    """Head of a response; `epoch_seconds` is the server's clock, None if it sent no date."""

    status: int
    reason: str
    epoch_seconds: float | None

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class HttpTransport:
    """Implements hpcdash.transport.base.Transport over one HTTP server.

    A command is `GET PATH…`, `DELETE PATH`, `POST PATH [JSON]` or `PUT PATH`; the body of the last
    two may be its stdin. Its stdout has a line `STATUS LENGTH EPOCH` (EPOCH '-' if unknown) and the
    body for each path; its exit status is 0, or the first HTTP status other than 2xx.

    `headers` are sent with every request. `log_request` returns the path of the request that
    streams a log, '' for other files. The scripts of `file_readers` must only read files: they run
    on this machine, on copies of such logs; each comes with the positions of its paths. Connections
    go through `login`, or directly if that is None. Other commands run on `shell`, a host beside
    the server, and are refused if that is None.
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
                "Use http: ssh encrypts the connection.",
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
        """Health of the login until it is connected, as it may wait for a person."""
        if self._login is not None and self._login.health.state != "connected":
            return self._login.health
        return self._health

    async def connect(self, *, force: bool = False) -> None:
        """Log in if needed, and check that the server accepts connections."""
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
        """Send one request per path, in order; the class describes the result."""
        parts = without_env(argv)
        await self._log_in()
        started = time.monotonic()
        try:
            async with asyncio.timeout(limit_seconds):
                if parts and parts[0] in METHODS:
                    result = await self._requests(argv, parts, stdin, cap_bytes)
                elif self._reads_logs(parts):
                    result = await self._run_on_logs(argv, parts, limit_seconds, cap_bytes)
                else:
                    return await self._require_shell(argv).run(
                        argv,
                        stdin=stdin,
                        limit_seconds=limit_seconds,
                        cap_bytes=cap_bytes,
                        on_output=on_output,
                        on_stdout=on_stdout,
                    )
        except TimeoutError:
            raise CommandTimedOut(
                f"{self.name} did not respond within {limit_seconds:g} s",
                "Its dashboard may be busy.",
                argv=argv,
            ) from None
        return replace(result, seconds=time.monotonic() - started)

    @asynccontextmanager
    async def stream(self, argv: tuple[str, ...]) -> AsyncIterator[Stream]:
        """Stream the body of a GET."""
        method, *paths = without_env(argv)
        if method in METHODS:
            async with self._exchange("GET", paths[0], b"") as (_, body):
                yield body
        else:
            async with self._require_shell(argv).stream(argv) as output:
                yield output

    def open_pipe(self, argv: tuple[str, ...]) -> AbstractAsyncContextManager[Pipe]:
        """Run a command on the host beside the server."""
        return self._require_shell(argv).open_pipe(argv)

    async def adopt_login_environment(self) -> bool:
        """Return False: an HTTP server has no login shell."""
        return False

    def prepend_path(self, folder: str) -> None:
        """Do nothing, as requests do not depend on a PATH."""

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        return await self._require_shell(argv).interact(argv, terminal)

    def _require_shell(self, argv: tuple[str, ...]) -> Transport:
        """Return the transport for commands; raises CommandMissing if there is none."""
        if self._shell is None:
            raise CommandMissing(
                f"{self.name} is an HTTP server and cannot run commands",
                'Specify a host with access to its files: ssh = "HOST" in this cluster\'s '
                "table, or --ssh HOST.",
                argv=argv,
            )
        return self._shell

    def _reads_logs(self, parts: tuple[str, ...]) -> bool:
        """Whether a script reads logs that the server streams."""
        if parts[:2] != ("sh", "-c") or parts[2] not in self._file_readers:
            return False
        arguments = parts[4:]
        paths = [arguments[position] for position in self._file_readers[parts[2]](arguments)]
        # Without a host beside the server there are no other files.
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
            if len(paths) > 1:
                body = paths[1].encode()
            paths = paths[:1]
        status = 0
        stdout = bytearray()
        stderr = b""
        is_truncated = False
        for path in paths:
            head, content = await self._request(method, path, body, cap_bytes)
            is_truncated |= len(content) > cap_bytes
            content = content[:cap_bytes]
            clock = "-" if head.epoch_seconds is None else f"{head.epoch_seconds:.0f}"
            stdout += f"{head.status} {len(content)} {clock}\n".encode() + content
            if status == 0 and not 200 <= head.status < 300:
                status = head.status
                stderr = f"{status} {head.reason}\n{excerpt(content)}".encode()
        return CommandResult(
            argv=argv,
            status=status,
            stdout=bytes(stdout),
            stderr=stderr,
            seconds=0.0,
            truncated=is_truncated,
        )

    async def _request(
        self, method: str, path: str, body: bytes, cap_bytes: int
    ) -> tuple[Head, bytes]:
        """Send one request; return the head and the body of its response.

        The body is longer than `cap_bytes` if it was cut there.
        """
        received = bytearray()
        async with self._slots, self._exchange(method, path, body) as (head, pieces):
            async for piece in pieces:
                received += piece
                if len(received) > cap_bytes:
                    break
        content = bytes(received)
        if head.status in _DENIED:
            next_step = (
                "Set `token_file` in this cluster's table to the file that contains the token."
            )
            if any(name.lower() == "authorization" for name in self._headers):
                next_step = "Is the token in this cluster's `token_file` still valid?"
            raise AuthenticationFailed(
                f"{self.name} refused the request: {head.status} {head.reason}{_excerpt(content)}",
                next_step,
            )
        return head, content

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: bytes
    ) -> AsyncIterator[tuple[Head, AsyncIterator[bytes]]]:
        """Send a request; give the head of its response, and the body in pieces.

        Redirects are not followed.
        """
        reader, writer = await self._open()
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_READ_BYTES)
        target = quote(f"{self._prefix}{path}", safe="/?&=%:@,+~!$'()*;-._")
        headers = self._request_headers(method, len(body))
        is_answering = False
        try:
            events: list[h11.Event] = [h11.Request(method=method, target=target, headers=headers)]
            for start in range(0, len(body), _READ_BYTES):
                events.append(h11.Data(data=body[start : start + _READ_BYTES]))
            for event in (*events, h11.EndOfMessage()):
                writer.write(connection.send(event) or b"")
                await writer.drain()
            response = await _next_event(connection, reader)
            while isinstance(response, h11.InformationalResponse):
                response = await _next_event(connection, reader)
            if not isinstance(response, h11.Response):
                raise self._lost(_NO_RESPONSE)
            if 300 <= response.status_code < 400:
                raise self._redirected(response)
            is_answering = True
            head = Head(response.status_code, excerpt(response.reason), _clock(response))
            yield head, _body(connection, reader)
        except h11.RemoteProtocolError as error:
            raise self._lost(
                "the response was cut short" if is_answering else _NO_RESPONSE
            ) from error
        except (OSError, h11.ProtocolError) as error:
            raise self._lost(str(error) or type(error).__name__) from error
        finally:
            writer.close()

    def _request_headers(self, method: str, body_bytes: int) -> list[tuple[str, str]]:
        headers = [
            ("Host", self._authority),
            ("User-Agent", _PROGRAM),
            ("Accept", "*/*"),
            ("Connection", "close"),
            *self._headers.items(),
        ]
        if body_bytes or method in ("POST", "PUT"):
            kind = "application/json" if method == "POST" else "application/octet-stream"
            headers += [("Content-Length", str(body_bytes)), ("Content-Type", kind)]
        return headers

    async def _log_in(self, force: bool = False) -> None:
        """Open the connection to the login node, which has its own time limits."""
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
            self._health.set_state("failed", error.message)
            raise
        except TimeoutError:
            raise self._lost(f"no connection within {_CONNECT_SECONDS:g} s") from None
        except OSError as error:
            reason = error.strerror or str(error)
            # asyncio's own text of an errno repeats the address.
            if error.errno and not isinstance(error, ssl.SSLError | gaierror):
                reason = os.strerror(error.errno)
            raise self._lost(reason) from error
        if self._health.state != "connected":
            self._health.set_state("connected")
        return reader, writer

    async def open_port(self, port: int) -> tuple[_Reader, _Writer]:
        """Open a connection to another port of the server's host.

        Raises ConnectionFailed.
        """
        await self._log_in()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                if self._login is not None:
                    return await self._login.open_connection(self._host, port)
                return await asyncio.open_connection(self._host, port)
        except (TimeoutError, OSError) as error:
            reason = getattr(error, "strerror", None) or "no connection in time"
            raise ConnectionFailed(
                f"{self._host}:{port} cannot be reached: {reason}",
                "Does the program in the job listen on this port, on an address of the head?",
            ) from error

    async def _connected(self) -> tuple[_Reader, _Writer]:
        if self._login is not None:
            return await self._login.open_connection(self._host, self._port)
        context = ssl.create_default_context() if self._is_tls else None
        return await asyncio.open_connection(self._host, self._port, ssl=context)

    def _redirected(self, response: h11.Response) -> ConnectionFailed:
        """Refuse a redirect: the request and its token would go to another server."""
        target = next((value for name, value in response.headers if name == b"location"), b"")
        where = f" to {excerpt(target)}" if target else ""
        self._health.set_state("failed", f"it redirects{where}")
        return ConnectionFailed(
            f"{self.name} redirects{where}",
            "If that is the server's own URL, use it. If it is a login page, connect through ssh.",
        )

    def _lost(self, reason: str) -> ConnectionFailed:
        self._health.set_state("lost", reason)
        return ConnectionFailed(
            f"{self.name} cannot be reached: {reason}",
            "Is the server running, and is this the right URL?",
        )

    @asynccontextmanager
    async def _stream_log(self, request: str) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        async with self._exchange("GET", request, b"") as (head, body):
            yield head.status, body

    async def _run_on_logs(
        self, argv: tuple[str, ...], parts: tuple[str, ...], limit_seconds: float, cap_bytes: int
    ) -> CommandResult:
        """Run a script that reads files on local copies of the logs in its arguments."""
        arguments = list(parts[4:])
        for position in self._file_readers[parts[2]](arguments):
            request = self._log_request(arguments[position])
            arguments[position] = str(await self._logs.fetch_copy(request))
        result = await LocalTransport().run(
            (*parts[:4], *arguments), limit_seconds=limit_seconds, cap_bytes=cap_bytes
        )
        return replace(result, argv=argv, is_copy=True)


def _excerpt(body: bytes) -> str:
    """Return the first line of a text after a colon, '' for HTML and JSON."""
    first = excerpt(body).partition("\n")[0].strip()
    if not first or first.startswith(("<", "{")):
        return ""
    return f": {clip(first, _EXCERPT_CHARACTERS)}"


def _clock(response: h11.Response) -> float | None:
    date = next((value for name, value in response.headers if name == b"date"), b"")
    try:
        return max(parsedate_to_datetime(date.decode("ascii", "replace")).timestamp(), 0.0)
    except (ValueError, OverflowError):
        return None


async def _next_event(connection: h11.Connection, reader: _Reader) -> object:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(_READ_BYTES))
    return event


async def _body(connection: h11.Connection, reader: _Reader) -> AsyncIterator[bytes]:
    while isinstance(event := await _next_event(connection, reader), h11.Data):
        yield bytes(event.data)
