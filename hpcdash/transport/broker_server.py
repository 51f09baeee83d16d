"""The broker: a background process that owns a person's ssh connections, for all of their windows.

Started by `python -m hpcdash.transport.broker_server SOCKET`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec.structs import replace

from hpcdash.errors import HpcdashError, UsageError, program_name
from hpcdash.private_files import find_weak_spot
from hpcdash.transport import broker_frames as frames
from hpcdash.transport.base import CommandResult, HostKeyQuestion, Prompt, Sharing
from hpcdash.transport.broker_frames import (
    PIECES_AHEAD,
    BrokerGone,
    as_bytes,
    as_text,
    plain,
    read_frame,
    write_frame,
)
from hpcdash.transport.shell_environment import RemoteEnvironment

if TYPE_CHECKING:
    from hpcdash.transport.broker_connection import BrokerConnection
    from hpcdash.transport.ssh import SshStream
    from hpcdash.transport.ssh_config import Hop
    from hpcdash.transport.terminal import FarEnd, Terminal

# The first frame of a client is there at once.
_HELLO_SECONDS = 5.0
# A broker without a first client ends.
_FIRST_CLIENT_SECONDS = 15.0
_LOCK_SECONDS = 5.0
_LOCK_PAUSE_SECONDS = 0.05
# Health is compared so often while a client is there: during a login, and else.
_LOGIN_HEALTH_SECONDS = 0.2
_HEALTH_SECONDS = 1.0
_PR_SET_DUMPABLE = 4
_Way = tuple[tuple["Hop", ...], ...]


class Broker:
    """All clients and connections of one socket."""

    def __init__(self) -> None:
        self.started_at = time.time()
        self.clients: set[_Client] = set()
        self.keep_seconds = 0.0
        self.ended = asyncio.Event()
        self._connections: list[tuple[_Way, BrokerConnection]] = []
        self._ending: asyncio.TimerHandle | None = None
        self._resolving = asyncio.Lock()
        self._changed = asyncio.Event()
        self._end_after(_FIRST_CLIENT_SECONDS)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it leaves."""
        if frames.peer_uid(writer.get_extra_info("socket")) != os.geteuid():
            writer.close()
            return
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                hello = await read_frame(reader, msgspec.msgpack.Decoder(frames.Hello))
        except (BrokerGone, TimeoutError):
            writer.close()
            return
        if hello.version != frames.VERSION:
            reason = f"the broker (pid {os.getpid()}) is of another version of hpcdash"
            write_frame(writer, frames.Refused(reason))
            writer.close()
            return
        write_frame(writer, frames.Welcome(frames.VERSION, os.getpid()))
        client = _Client(self, hello, reader, writer)
        if hello.logins:
            self.clients.add(client)
        if hello.logins or hello.keep_seconds:
            self.keep_seconds = hello.keep_seconds
        try:
            await client.serve()
        finally:
            self.clients.discard(client)
            writer.close()
            if (hello.logins or hello.keep_seconds) and not self.clients:
                self._end_after(self.keep_seconds)

    def _end_after(self, seconds: float) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().call_later(seconds, self._end_if_unused)

    def _end_if_unused(self) -> None:
        if not self.clients:
            self.ended.set()

    async def connection(self, logins: tuple[str, ...]) -> BrokerConnection:
        """Return the connection of all whose ssh configuration leads there by the same way.

        Raises ConfigError.
        """
        # Its import takes 0.2 s, during which other clients are served.
        await asyncio.to_thread(__import__, "hpcdash.transport.broker_connection")
        from hpcdash.transport.broker_connection import BrokerConnection
        from hpcdash.transport.ssh_config import hops_to

        async with self._resolving:
            way = tuple([await asyncio.to_thread(hops_to, login) for login in logins])
            for known, connection in self._connections:
                if known == way:
                    return connection
            connection = BrokerConnection(logins, self.change)
            self._connections.append((way, connection))
            return connection

    async def change(self) -> None:
        """Return once a client has come."""
        self._changed.clear()
        await self._changed.wait()

    def note_change(self) -> None:
        self._changed.set()

    def state(self, number: int) -> frames.State:
        return frames.State(
            number,
            os.getpid(),
            self.started_at,
            self.keep_seconds,
            tuple(
                frames.ConnectionState(
                    plain(connection.transport.name),
                    state=connection.transport.health.state,
                    detail=plain(connection.transport.health.detail),
                    connected_at=connection.transport.health.connected_at,
                    logins=connection.transport.logins,
                    sent=connection.sent,
                    shared=connection.shared,
                    clients=tuple(
                        frames.ClientState(
                            one.hello.pid,
                            one.hello.command,
                            one.hello.is_read_only,
                            one.can_prompt,
                        )
                        for one in connection.clients
                        if isinstance(one, _Client)
                    ),
                )
                for _way, connection in self._connections
            ),
        )

    async def close(self) -> None:
        for client in [*self.clients]:
            client.leave()
        closing = [connection.transport.close() for _way, connection in self._connections]
        await asyncio.gather(*closing, return_exceptions=True)


class _Client:
    """One program that uses the broker, for one login node."""

    def __init__(
        self,
        broker: Broker,
        hello: frames.Hello,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.hello = hello
        self.can_prompt = hello.can_prompt
        self.used_at = time.monotonic()
        self.name = f"{hello.command} (pid {hello.pid})"
        self._broker = broker
        self._reader = reader
        self._writer = writer
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._pieces: dict[int, asyncio.Semaphore] = {}
        self._terminals: dict[int, _ClientTerminal] = {}
        self._written: dict[int, asyncio.Queue[bytes | None]] = {}
        self._prompts: dict[int, asyncio.Future[list[str] | None]] = {}
        self._last_prompt = 0
        self._connection: BrokerConnection | None = None
        self._line: frames.Line | None = None
        self._finding = asyncio.Lock()

    async def serve(self) -> None:
        decoder = msgspec.msgpack.Decoder(frames.ToBroker)
        watching = asyncio.create_task(self._watch_health())
        try:
            while True:
                self._receive(await read_frame(self._reader, decoder))
        except (BrokerGone, ConnectionError):
            pass
        finally:
            if self._connection is not None:
                self._connection.clients.remove(self)
            for answered in self._prompts.values():
                if not answered.done():
                    answered.set_exception(ConnectionError())
            tasks = [*self._requests.values(), watching]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def leave(self) -> None:
        """Close the client's socket."""
        self._writer.close()

    def send(self, frame: frames.Frame) -> None:
        if not self._writer.is_closing():
            write_frame(self._writer, frame)

    def _receive(self, frame: frames.ToBroker) -> None:
        match frame:
            case frames.Cancel():
                if frame.number in self._requests:
                    self._requests[frame.number].cancel()
            case frames.Read():
                if frame.number in self._pieces:
                    self._pieces[frame.number].release()
            case frames.Written():
                if frame.number in self._written:
                    self._written[frame.number].put_nowait(frame.content)
            case frames.Answered():
                self.used_at = time.monotonic()
                answered = self._prompts.get(frame.number)
                if answered is not None and not answered.done():
                    answered.set_result(frame.answers)
            case frames.Typed() | frames.Resized():
                self.used_at = time.monotonic()
                if frame.number in self._terminals:
                    self._terminals[frame.number].receive(frame)
            case frames.Connect():
                self.can_prompt = frame.can_prompt
                self._broker.note_change()
                self._start(frame.number, self._connect(frame))
            case frames.Run():
                self._start(frame.number, self._run(frame))
            case frames.SharedQuery():
                self._start(frame.number, self._query(frame))
            case frames.Follow():
                self._start(frame.number, self._follow(frame))
            case frames.Interact():
                self._start(frame.number, self._interact(frame))
            case frames.Inquire():
                self.send(self._broker.state(frame.number))
                if frame.stop:
                    self._broker.ended.set()

    def _start(self, number: int, work: Awaitable[frames.Frame]) -> None:
        async def answer() -> None:
            try:
                self.send(await work)
            except HpcdashError as error:
                self._send_health()
                self.send(frames.build_failure(number, error))
            except asyncio.CancelledError:
                raise
            except Exception as error:
                traceback.print_exc()
                failure = HpcdashError(f"internal error of the broker: {type(error).__name__}")
                self.send(frames.build_failure(number, failure))
            finally:
                self._requests.pop(number, None)
                self._pieces.pop(number, None)
                self._terminals.pop(number, None)
                self._written.pop(number, None)
            with suppress(ConnectionError):
                await self._writer.drain()

        self._requests[number] = asyncio.create_task(answer())

    # -- requests

    async def _found_connection(self) -> BrokerConnection:
        async with self._finding:
            if self._connection is None:
                connection = await self._broker.connection(self.hello.logins)
                connection.clients.append(self)
                self._connection = connection
                self._broker.note_change()
        return self._connection

    async def _connect(self, frame: frames.Connect) -> frames.Frame:
        is_first = self._connection is None
        connection = await self._found_connection()
        if frame.force:
            self.used_at = time.monotonic()
        await connection.connect(self, force=frame.force or is_first)
        self._send_health()
        return frames.Done(frame.number)

    async def _run(self, frame: frames.Run) -> frames.Frame:
        connection = await self._found_connection()
        run = partial(self._run_command, connection, frame)
        if not (frame.acts or frame.stdin is not None):
            return _result_frame(frame.number, await run())
        if self.hello.is_read_only:
            program = program_name(tuple(map(as_text, frame.argv)))
            raise UsageError(f"{program} was not run: this program is read-only")
        self.used_at = time.monotonic()
        with connection.acting():
            return _result_frame(frame.number, await run())

    async def _run_command(
        self, connection: BrokerConnection, frame: frames.Run | frames.SharedQuery
    ) -> CommandResult:
        on_output = on_stdout = stdin = None
        if isinstance(frame, frames.Run):
            stdin = frame.stdin
            if frame.has_output:
                on_output = partial(self._send_piece, frame.number, is_error=True)
            if frame.has_stdout:
                on_stdout = partial(self._send_piece, frame.number, is_error=False)
        with connection.logging_in(self):
            return await connection.transport.run(
                tuple(map(as_text, frame.argv)),
                stdin=stdin,
                limit_seconds=frame.limit_seconds,
                cap_bytes=frame.cap_bytes,
                on_output=on_output,
                on_stdout=on_stdout,
                environment=_environment(frame.place),
            )

    def _send_piece(self, number: int, content: bytes, *, is_error: bool) -> None:
        self.send(frames.Piece(number, content, is_error))

    async def _query(self, frame: frames.SharedQuery) -> frames.Frame:
        connection = await self._found_connection()
        sharing = Sharing(frame.max_age_seconds, frame.outlives_actions, frame.commands_per_minute)
        run = partial(self._run_command, connection, frame)
        result, age = await connection.query(frame.argv, frame.place, frame.cap_bytes, sharing, run)
        return replace(_result_frame(frame.number, result), age_seconds=age)

    async def _follow(self, frame: frames.Follow) -> frames.Frame:
        connection = await self._found_connection()
        ahead = self._pieces[frame.number] = asyncio.Semaphore(PIECES_AHEAD)
        written = self._written[frame.number] = asyncio.Queue()
        argv = tuple(map(as_text, frame.argv))
        transport = connection.transport
        follow = transport.open_pipe if frame.is_pipe else transport.stream
        async with follow(argv, _environment(frame.place)) as stream:
            self.send(frames.Started(frame.number))
            writing = asyncio.create_task(self._write(frame.number, written, stream))
            try:
                async for chunk in stream:
                    await ahead.acquire()
                    self.send(frames.Piece(frame.number, chunk))
            finally:
                writing.cancel()
            return frames.Done(frame.number, stream.status, stream.stderr)

    async def _write(
        self, number: int, written: asyncio.Queue[bytes | None], stream: SshStream
    ) -> None:
        """Pass the parts of a pipe's stdin on, at the pace of the command."""
        while (content := await written.get()) is not None:
            # A command that has exited reads no more, and its output tells.
            with suppress(OSError):
                await stream.write(content)
            self.send(frames.Read(number))
        stream.write_eof()

    async def _interact(self, frame: frames.Interact) -> frames.Frame:
        connection = await self._found_connection()
        self.used_at = time.monotonic()
        ahead = self._pieces[frame.number] = asyncio.Semaphore(PIECES_AHEAD)

        async def show(chunk: bytes) -> None:
            await ahead.acquire()
            self.send(frames.Piece(frame.number, chunk))

        terminal = _ClientTerminal(frame, show)
        self._terminals[frame.number] = terminal
        status = await connection.transport.interact(
            tuple(map(as_text, frame.argv)),
            cast("Terminal", terminal),
            _environment(frame.place),
        )
        return frames.Done(frame.number, status)

    # -- prompts and health

    def show(self, hop: str, text: str | None) -> None:
        self.send(frames.Shown(plain(hop), None if text is None else plain(text)))

    async def prompt(self, prompt: Prompt | HostKeyQuestion) -> list[str] | None:
        assert self._connection is not None
        requester = plain(self._connection.requester)
        self._last_prompt += 1
        number = self._last_prompt
        answered: asyncio.Future[list[str] | None] = asyncio.get_running_loop().create_future()
        self._prompts[number] = answered
        if isinstance(prompt, Prompt):
            fields = tuple(replace(field, label=plain(field.label)) for field in prompt.fields)
            shown = replace(
                prompt,
                title=plain(prompt.title),
                instructions=plain(prompt.instructions),
                message=plain(prompt.message),
                fields=fields,
                requester=requester,
            )
            self.send(frames.Prompted(number, shown))
        else:
            self.send(frames.HostKeyPrompted(number, replace(prompt, requester=requester)))
        try:
            return await answered
        except asyncio.CancelledError:
            self.send(frames.Withdrawn(number))
            raise
        finally:
            self._prompts.pop(number, None)

    def _send_health(self) -> None:
        if self._connection is None:
            return
        transport = self._connection.transport
        health = transport.health
        line = frames.Line(
            health.state,
            plain(health.detail),
            hops=health.hops,
            connected_at=health.connected_at,
            retry_at=health.retry_at,
            text=plain(health.text),
            waiting_since=health.waiting_since,
            is_attended=transport.is_attended,
            name=transport.name,
        )
        if line != self._line:
            self._line = line
            self.send(line)

    async def _watch_health(self) -> None:
        while True:
            is_steady = self._line is not None and self._line.state in ("connected", "failed")
            await asyncio.sleep(_HEALTH_SECONDS if is_steady else _LOGIN_HEALTH_SECONDS)
            self._send_health()


class _ClientTerminal:
    """A client's terminal, as hpcdash.transport.terminal.Terminal for the transport."""

    def __init__(self, frame: frames.Interact, show: Callable[[bytes], Awaitable[None]]) -> None:
        self.kind = frame.kind
        self.size = (frame.columns, frame.lines)
        self._show = show
        self._far: FarEnd | None = None
        self._typed: list[bytes] = []

    def receive(self, frame: frames.Typed | frames.Resized) -> None:
        if isinstance(frame, frames.Resized):
            self.size = (frame.columns, frame.lines)
            if self._far is not None:
                self._far.resize(*self.size)
        elif self._far is None:
            self._typed.append(frame.keys)
        else:
            self._far.write(frame.keys)

    async def lend(self, far: FarEnd) -> bool:
        """Connect the client's terminal to `far` until that ends; a client that leaves cancels."""
        self._far = far
        far.resize(*self.size)
        for keys in self._typed:
            far.write(keys)
        async for chunk in far:
            await self._show(chunk)
        return True


def _environment(place: frames.Place) -> RemoteEnvironment:
    variables = {as_text(name): as_text(value) for name, value in place.variables.items()}
    return RemoteEnvironment(variables, as_text(place.path))


def _result_frame(number: int, result: CommandResult) -> frames.Result:
    return frames.Result(
        number,
        argv=tuple(map(as_bytes, result.argv)),
        status=result.status,
        stdout=result.stdout,
        stderr=result.stderr,
        seconds=result.seconds,
        truncated=result.truncated,
        answer_seconds=result.answer_seconds,
    )


def _protect_memory() -> None:
    """Forbid core dumps, and other processes of the account to read this one's memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


async def _serve(path: Path) -> None:
    broker = Broker()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, broker.ended.set)
    server = await asyncio.start_unix_server(broker.accept, path)
    try:
        await broker.ended.wait()
    finally:
        server.close()
        os.unlink(path)
        await broker.close()


def _is_locked(file: int) -> bool:
    """Lock the file that a broker holds as long as it lives; False if another one does."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(_LOCK_PAUSE_SECONDS)


def main(path: Path) -> int:
    """Run a broker on a socket until its last client has left; 1 if another one has it."""
    os.umask(0o077)
    _protect_memory()
    if find_weak_spot(path.parent) is not None:
        return 1
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if not _is_locked(lock):
        return 1
    path.unlink(missing_ok=True)
    asyncio.run(_serve(path))
    return 0


if __name__ == "__main__":
    # A process of nobody: no window's end, job control or wait concerns it.
    if os.fork():
        os._exit(0)
    sys.exit(main(Path(sys.argv[1])))
