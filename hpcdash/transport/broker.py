"""A login node through the broker, which owns the connection for all windows of a person."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from hpcdash.errors import (
    ConnectionFailed,
    HpcdashError,
    LoginRequired,
    NotSent,
    program_name,
)
from hpcdash.private_files import NotPrivate
from hpcdash.transport import broker_frames as frames
from hpcdash.transport.base import (
    DEFAULT_CAP_BYTES,
    DEFAULT_LIMIT_SECONDS,
    BrokerUse,
    CommandResult,
    Health,
    HostKeyQuestion,
    OnOutput,
    Pipe,
    Prompt,
    Prompter,
    Sharing,
    Stream,
    Transport,
)
from hpcdash.transport.broker_frames import (
    BrokerGone,
    Place,
    as_bytes,
    peer_uid,
    plain,
    read_frame,
    write_frame,
)
from hpcdash.transport.shell_environment import RemoteEnvironment

if TYPE_CHECKING:
    from hpcdash.transport.terminal import Terminal

_START_SECONDS = 10.0
_START_PAUSE_SECONDS = 0.01
_WELCOME_SECONDS = 5.0
_SOCKET_BUFFER_BYTES = 1 << 20
# Starts in a row: another client's broker may end while this one connects.
_STARTS = 3
_MODULE = "hpcdash.transport.broker_server"


class WorksAlone(Exception):
    """No broker can be used, for a reason; the client has a connection of its own."""


class _Line:
    """A client's socket to the broker: requests by number, and what the broker sends by itself."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        receive: Callable[[frames.ToClient | None], None],
    ) -> None:
        """`receive` gets the frames that no request waits for, and None at the end."""
        self.is_lost = False
        self._reader = reader
        self._writer = writer
        self._receive = receive
        self._numbers = itertools.count(1)
        self._requests: dict[int, asyncio.Queue[frames.ToClient | None]] = {}
        # How many more parts of a pipe's stdin may be sent, by its request.
        self.unread: dict[int, asyncio.Semaphore] = {}
        self._reading = asyncio.create_task(self._read(), name="frames of the broker")

    async def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(frames.ToClient)
        try:
            while True:
                frame = await read_frame(self._reader, decoder)
                match frame:
                    case frames.Line() | frames.Shown():
                        self._receive(frame)
                    case frames.Prompted() | frames.HostKeyPrompted() | frames.Withdrawn():
                        self._receive(frame)
                    case frames.Read():
                        if frame.number in self.unread:
                            self.unread[frame.number].release()
                    case _ if frame.number in self._requests:
                        self._requests[frame.number].put_nowait(frame)
        except BrokerGone:
            pass
        finally:
            self.is_lost = True
            self._receive(None)
            for request in self._requests.values():
                request.put_nowait(None)

    def send(self, frame: frames.Frame) -> None:
        if not self._writer.is_closing():
            write_frame(self._writer, frame)

    @asynccontextmanager
    async def request(
        self, build: Callable[[int], frames.Frame]
    ) -> AsyncIterator[tuple[int, Callable[[], Awaitable[frames.ToClient]]]]:
        """Send a request; give its number, and what awaits its next frame.

        That raises the error of a failed request, and BrokerGone. Leaving the context early cancels
        it.
        """
        number = next(self._numbers)
        received: asyncio.Queue[frames.ToClient | None] = asyncio.Queue()
        self._requests[number] = received
        is_over = False

        async def receive() -> frames.ToClient:
            nonlocal is_over
            frame = None if self.is_lost and received.empty() else await received.get()
            is_over = not isinstance(frame, frames.Piece | frames.Started)
            if frame is None:
                raise BrokerGone
            if isinstance(frame, frames.Failed):
                raise frames.restore_error(frame)
            return frame

        try:
            self.send(build(number))
            with suppress(ConnectionError):
                await self._writer.drain()
            yield number, receive
        finally:
            del self._requests[number]
            if not is_over:
                self.send(frames.Cancel(number))

    async def close(self) -> None:
        self._writer.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


async def open_line(
    hello: frames.Hello,
    receive: Callable[[frames.ToClient | None], None] = lambda frame: None,
    *,
    starts: bool = True,
) -> _Line:
    """Connect to the broker of this environment; `starts` one if there is none.

    Raises WorksAlone.
    """
    try:
        path = frames.socket_path(frames.runtime_folder())
    except NotPrivate as error:
        raise WorksAlone(error.message) from error
    for _ in range(_STARTS):
        try:
            return await _connect(path, hello, receive, starts=starts)
        except BrokerGone as error:
            reason = str(error)
    raise WorksAlone(f"the broker ended: {reason}")


async def _connect(
    path: Path,
    hello: frames.Hello,
    receive: Callable[[frames.ToClient | None], None],
    *,
    starts: bool,
) -> _Line:
    try:
        reader, writer = await _open_socket(path, starts=starts)
    except OSError as error:
        raise WorksAlone(f"no broker at {path}: {error.strerror or error}") from error
    if peer_uid(writer.get_extra_info("socket")) != os.geteuid():
        writer.close()
        raise WorksAlone(f"another account has {path}")
    write_frame(writer, hello)
    decoder = msgspec.msgpack.Decoder(frames.Welcome | frames.Refused)
    try:
        async with asyncio.timeout(_WELCOME_SECONDS):
            answer = await read_frame(reader, decoder)
    except TimeoutError:
        writer.close()
        raise WorksAlone("the broker did not answer") from None
    except BrokerGone:
        writer.close()
        raise
    if isinstance(answer, frames.Refused):
        writer.close()
        raise WorksAlone(answer.reason)
    return _Line(reader, writer, receive)


async def _open_socket(
    path: Path, *, starts: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open the socket, after the start of a broker if there is none. Raises OSError."""
    started: asyncio.Task[int] | None = None
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return await asyncio.open_unix_connection(path, limit=_SOCKET_BUFFER_BYTES)
        except (FileNotFoundError, ConnectionRefusedError):
            if not starts or time.monotonic() > deadline:
                raise
        if started is None:
            started = asyncio.create_task(asyncio.to_thread(_start_process, path))
        elif started.done() and started.result():
            raise ConnectionRefusedError(None, "it could not be started")
        await asyncio.sleep(_START_PAUSE_SECONDS)


def _start_process(path: Path) -> int:
    """Start a broker in the background; return the status of its start."""
    # -P: a folder that one happens to be in must not stand for the package.
    argv = (sys.executable, "-P", "-m", _MODULE, str(path))
    log = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        return subprocess.call(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(log)


class BrokerStream:
    """A running remote command's stdin and stdout, as transport.base.Pipe; `status` and `stderr`
    are set at its end.
    """

    def __init__(self, line: _Line, number: int, chunks: AsyncIterator[bytes]) -> None:
        self.status: int | None = None
        self.stderr = b""
        self.is_over = False
        self._line = line
        self._number = number
        self._chunks = chunks
        self._may_write = line.unread[number] = asyncio.Semaphore(frames.PIECES_AHEAD)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def write(self, content: bytes) -> None:
        await self._may_write.acquire()
        if self.is_over:
            # For the next writer.
            self._may_write.release()
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        self._line.send(frames.Written(self._number, content))

    def write_eof(self) -> None:
        self._line.send(frames.Written(self._number, None))

    def end(self) -> None:
        """Have writers fail: the command has exited, or the broker is gone."""
        self.is_over = True
        self._may_write.release()


class BrokerTransport:
    """A login node named as [user@]host[:port] or by its Host in ~/.ssh/config.

    Without a usable broker it is what `build_alone` builds.
    """

    def __init__(
        self,
        logins: Sequence[str],
        prompter: Prompter,
        use: BrokerUse,
        build_alone: Callable[[], Transport],
        *,
        path: str = "",
    ) -> None:
        self.name = logins[0]
        self.alone_because = ""
        self._health = Health()
        self._logins = tuple(logins)
        self._prompter = prompter
        self._use = use
        self._environment = RemoteEnvironment(None, path)
        self._build_alone = build_alone
        self._alone: Transport | None = None
        self._line: _Line | None = None
        self._opening = asyncio.Lock()
        self._prompts: dict[int, asyncio.Task[None]] = {}
        # Logging in again would take a person.
        self._is_attended = False

    @property
    def health(self) -> Health:
        return self._health if self._alone is None else self._alone.health

    async def _require_line(self, force: bool = False) -> _Line | None:
        """Return the open socket; None: this program works alone."""
        async with self._opening:
            if self._alone is not None:
                return None
            if self._line is not None and not self._line.is_lost:
                return self._line
            if self._line is not None and self._is_attended and not force:
                raise LoginRequired(
                    f"The connection to {self.name} was lost with its broker. It is not reopened "
                    "automatically, as you would have to log in.",
                    "Log in again: ctrl+r in the dashboard, or run the command again.",
                )
            hello = frames.Hello(
                frames.VERSION,
                pid=os.getpid(),
                command=plain(self._use.command),
                logins=tuple(map(plain, self._logins)),
                can_prompt=self._prompter.can_prompt(),
                is_read_only=self._use.is_read_only,
                keep_seconds=self._use.keep_seconds,
            )
            try:
                self._line = await open_line(hello, self._receive)
            except WorksAlone as alone:
                self.alone_because = str(alone)
                self._alone = self._build_alone()
                if self._environment.path:
                    self._alone.prepend_path(self._environment.path)
                return None
            return self._line

    def _receive(self, frame: frames.ToClient | None) -> None:
        match frame:
            case None:
                for prompt in self._prompts.values():
                    prompt.cancel()
                self._health.set_state("lost", "the broker ended")
            case frames.Line():
                self.name = frame.name
                self._is_attended = frame.is_attended
                for field in Health.__struct_fields__:
                    setattr(self._health, field, getattr(frame, field))
            case frames.Shown():
                if frame.text is None:
                    self._prompter.waiting(frame.hop)
                else:
                    self._prompter.show(frame.hop or "hpcdash", frame.text)
            case frames.Prompted():
                answer = partial(self._answer, frame.number, frame.prompt)
                self._prompts[frame.number] = asyncio.create_task(answer())
            case frames.HostKeyPrompted():
                answer = partial(self._answer, frame.number, frame.question)
                self._prompts[frame.number] = asyncio.create_task(answer())
            case frames.Withdrawn():
                if frame.number in self._prompts:
                    self._prompts[frame.number].cancel()

    async def _answer(self, number: int, prompt: Prompt | HostKeyQuestion) -> None:
        try:
            if isinstance(prompt, Prompt):
                answers = await self._prompter.answer(prompt)
            else:
                answers = ["yes"] if await self._prompter.accept_host_key(prompt) else []
            if self._line is not None:
                self._line.send(frames.Answered(number, answers))
        finally:
            self._prompts.pop(number, None)

    def _lost(self, doing: str, *, has_started: bool) -> ConnectionFailed:
        kind = ConnectionFailed if has_started else NotSent
        when = "while" if has_started else "before"
        return kind(
            f"The broker of the connection to {self.name} ended {when} {doing}.",
            "The next command starts it again, unless you have to log in.",
        )

    @property
    def _place(self) -> Place:
        variables = self._environment.variables.items()
        return Place(
            {as_bytes(name): as_bytes(value) for name, value in variables},
            as_bytes(self._environment.path),
        )

    async def connect(self, *, force: bool = False) -> None:
        line = await self._require_line(force)
        if line is None:
            assert self._alone is not None
            await self._alone.connect(force=force)
            return
        can_prompt = self._prompter.can_prompt()
        connect = partial(frames.Connect, force=force, can_prompt=can_prompt)
        try:
            async with line.request(connect) as (_number, receive):
                await receive()
        except BrokerGone as error:
            raise self._lost("connecting", has_started=False) from error

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
        return await self._run(
            argv,
            self._place,
            stdin=stdin,
            limit_seconds=limit_seconds,
            cap_bytes=cap_bytes,
            on_output=on_output,
            on_stdout=on_stdout,
        )

    async def act(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None,
        limit_seconds: float,
        cap_bytes: int,
        on_output: OnOutput | None,
    ) -> CommandResult:
        return await self._run(
            argv,
            self._place,
            stdin=stdin,
            limit_seconds=limit_seconds,
            cap_bytes=cap_bytes,
            on_output=on_output,
            on_stdout=None,
            acts=True,
        )

    async def _run(
        self,
        argv: tuple[str, ...],
        place: Place,
        *,
        stdin: bytes | None = None,
        limit_seconds: float,
        cap_bytes: int,
        on_output: OnOutput | None = None,
        on_stdout: OnOutput | None = None,
        acts: bool = False,
    ) -> CommandResult:
        line = await self._require_line()
        if line is None:
            assert self._alone is not None
            return await self._alone.run(
                argv,
                stdin=stdin,
                limit_seconds=limit_seconds,
                cap_bytes=cap_bytes,
                on_output=on_output,
                on_stdout=on_stdout,
            )

        def build(number: int) -> frames.Frame:
            return frames.Run(
                number,
                argv=tuple(map(as_bytes, argv)),
                place=place,
                limit_seconds=limit_seconds,
                cap_bytes=cap_bytes,
                stdin=stdin,
                acts=acts,
                has_output=on_output is not None,
                has_stdout=on_stdout is not None,
            )

        try:
            async with line.request(build) as (_number, receive):
                while not isinstance(frame := await receive(), frames.Result):
                    if isinstance(frame, frames.Piece):
                        show = on_output if frame.is_error else on_stdout
                        if show is not None:
                            show(frame.content)
                return frames.build_result(frame, argv)
        except BrokerGone as error:
            raise self._lost(f"running {program_name(argv)}", has_started=True) from error

    async def query(
        self,
        argv: tuple[str, ...],
        *,
        limit_seconds: float,
        cap_bytes: int,
        sharing: Sharing,
    ) -> CommandResult:
        """See SharedTransport; an answer has the random separators of this `argv`."""
        line = await self._require_line()
        if line is None:
            assert self._alone is not None
            return await self._alone.run(argv, limit_seconds=limit_seconds, cap_bytes=cap_bytes)
        place = self._place

        def build(number: int) -> frames.Frame:
            return frames.SharedQuery(
                number,
                argv=tuple(map(as_bytes, argv)),
                place=place,
                limit_seconds=limit_seconds,
                cap_bytes=cap_bytes,
                max_age_seconds=sharing.max_age_seconds,
                outlives_actions=sharing.outlives_actions,
                commands_per_minute=sharing.commands_per_minute,
            )

        try:
            async with line.request(build) as (_number, receive):
                frame = await receive()
        except BrokerGone as error:
            raise self._lost(f"running {program_name(argv)}", has_started=True) from error
        assert isinstance(frame, frames.Result)
        return frames.build_result(frames.with_separators(frame, argv), argv)

    def stream(self, argv: tuple[str, ...]) -> AbstractAsyncContextManager[Stream]:
        return self._stream(argv)

    def open_pipe(self, argv: tuple[str, ...]) -> AbstractAsyncContextManager[Pipe]:
        return self._stream(argv, is_pipe=True)

    @asynccontextmanager
    async def _stream(self, argv: tuple[str, ...], *, is_pipe: bool = False) -> AsyncIterator[Pipe]:
        line = await self._require_line()
        if line is None:
            assert self._alone is not None
            follow = self._alone.open_pipe if is_pipe else self._alone.stream
            async with follow(argv) as alone:
                yield cast("Pipe", alone)
            return
        place = self._place
        program = program_name(argv)

        def build(number: int) -> frames.Frame:
            return frames.Follow(number, tuple(map(as_bytes, argv)), place, is_pipe)

        try:
            async with line.request(build) as (number, receive):
                await receive()

                async def chunks() -> AsyncIterator[bytes]:
                    while True:
                        try:
                            frame = await receive()
                        except BrokerGone as error:
                            stream.end()
                            raise self._lost(f"reading {program}", has_started=True) from error
                        if isinstance(frame, frames.Done):
                            stream.status = frame.status
                            stream.stderr = frame.stderr
                            stream.end()
                            return
                        assert isinstance(frame, frames.Piece)
                        line.send(frames.Read(number))
                        yield frame.content

                stream = BrokerStream(line, number, chunks())
                try:
                    yield stream
                finally:
                    del line.unread[number]
        except BrokerGone as error:
            raise self._lost(f"starting {program}", has_started=False) from error

    async def adopt_login_environment(self) -> bool:
        unset = Place({}, as_bytes(self._environment.path))
        if await self._require_line() is None:
            assert self._alone is not None
            return await self._alone.adopt_login_environment()
        return await self._environment.adopt(partial(self._run, place=unset))

    def prepend_path(self, folder: str) -> None:
        self._environment.prepend_path(folder)
        if self._alone is not None:
            self._alone.prepend_path(folder)

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        await self.connect()
        line = await self._require_line()
        if line is None:
            assert self._alone is not None
            return await self._alone.interact(argv, terminal)
        place = self._place
        columns, lines = terminal.size

        def build(number: int) -> frames.Frame:
            return frames.Interact(
                number,
                tuple(map(as_bytes, argv)),
                place,
                kind=terminal.kind,
                columns=columns,
                lines=lines,
            )

        try:
            async with line.request(build) as (number, receive):
                far = _FarEnd(line, number, receive)
                return far.status if await terminal.lend(far) else None
        except BrokerGone as error:
            doing = f"{program_name(argv)} ran on your terminal"
            raise self._lost(doing, has_started=True) from error

    async def close(self) -> None:
        """Close the socket; the broker ends this program's commands, and keeps the connection."""
        if self._alone is not None:
            await self._alone.close()
        if self._line is not None:
            await self._line.close()
            self._line = None
        self._health.set_state("idle")


class _FarEnd:
    """Implements hpcdash.transport.terminal.FarEnd: a command on a terminal through the broker."""

    def __init__(
        self, line: _Line, number: int, receive: Callable[[], Awaitable[frames.ToClient]]
    ) -> None:
        self.status: int | None = None
        self._line = line
        self._number = number
        self._receive = receive

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(frame := await self._receive(), frames.Piece):
            self._line.send(frames.Read(self._number))
            yield frame.content
        if isinstance(frame, frames.Done):
            self.status = frame.status

    def write(self, keys: bytes) -> None:
        self._line.send(frames.Typed(self._number, keys))

    def resize(self, columns: int, lines: int) -> None:
        self._line.send(frames.Resized(self._number, columns, lines))


async def start_broker(keep_seconds: float) -> None:
    """Start the broker of this environment unless it runs; raises HpcdashError."""
    hello = frames.Hello(frames.VERSION, os.getpid(), "start", keep_seconds=keep_seconds)
    try:
        line = await open_line(hello)
    except WorksAlone as alone:
        raise HpcdashError(f"the broker cannot be used: {alone}") from alone
    await line.close()


async def inquire(*, stop: bool = False) -> frames.State | None:
    """Fetch the state of this environment's broker, and have it end; None where none runs.

    Raises HpcdashError for one that cannot be used.
    """
    hello = frames.Hello(frames.VERSION, os.getpid(), "status")
    try:
        line = await open_line(hello, starts=False)
    except WorksAlone as alone:
        if isinstance(alone.__cause__, FileNotFoundError | ConnectionRefusedError):
            return None
        raise HpcdashError(f"the broker cannot be used: {alone}") from alone
    try:
        async with line.request(partial(frames.Inquire, stop=stop)) as (_number, receive):
            state = await receive()
    except BrokerGone:
        return None
    finally:
        await line.close()
    assert isinstance(state, frames.State)
    return state
