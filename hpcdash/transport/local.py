"""Runs commands on this machine, each in its own session and process group."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import termios
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from io import BytesIO
from typing import TYPE_CHECKING

from hpcdash.child_process import ChildProcess
from hpcdash.errors import CommandTimedOut, HpcdashError, excerpt, program_name
from hpcdash.transport.base import (
    DEFAULT_CAP_BYTES,
    DEFAULT_LIMIT_SECONDS,
    HEAD_BYTES,
    CommandResult,
    Health,
    OnOutput,
    Pipe,
    Stream,
)
from hpcdash.transport.shell import MarkedOutput, check_runnable

if TYPE_CHECKING:
    from hpcdash.transport.terminal import Terminal

STATUS_MISSING = 127
STATUS_NOT_EXECUTABLE = 126
# A shell's status for a command ended by SIGTERM.
STATUS_TERMINATED = 128 + signal.SIGTERM
# The last output of a program on a terminal arrives within this time after its exit.
_LAST_OUTPUT_SECONDS = 0.3
# Time for other holders of stdout after the command has exited.
_DRAIN_SECONDS = 1.0
_STREAM_CHUNK_BYTES = 1 << 18
_TAIL_BYTES = 4000


def shell_status(returncode: int) -> int:
    """Return an exit status as in a shell: -15 becomes 143."""
    return returncode if returncode >= 0 else 128 - returncode


def timed_out(
    argv: tuple[str, ...],
    limit_seconds: float,
    where: str,
    stderr: bytes,
    answer_seconds: float | None = None,
) -> CommandTimedOut:
    """Build the error for a command that was ended at its time limit."""
    error = CommandTimedOut(
        f"{program_name(argv)} did not finish within {limit_seconds:g} s and was terminated on "
        f"{where}.",
        "The machine or its scheduler may be busy; try again later.",
        argv=argv,
        output=excerpt(stderr),
    )
    error.answer_seconds = answer_seconds
    return error


class _Gatherer:
    """Collects stdout and stderr until both end, or together exceed `cap_bytes`.

    With `marked`, it collects only the command's own output, and ends if the rest is too much.
    """

    def __init__(
        self,
        cap_bytes: int,
        on_output: OnOutput | None = None,
        marked: tuple[MarkedOutput, MarkedOutput] | None = None,
        on_stdout: OnOutput | None = None,
    ) -> None:
        self._on_output = on_output
        self._on_stdout = on_stdout
        self._marked = marked
        # BytesIO returns its whole content without copying it.
        self.written = {1: BytesIO(), 2: BytesIO()}
        self.truncated = False
        self._last_bytes_at = time.monotonic()
        self._finished = asyncio.Event()
        # Set once the command's own output has started.
        self._begun = asyncio.Event()
        self._begun_at: float | None = None if marked else self._last_bytes_at
        self.answer_seconds: float | None = None
        self._remaining_bytes = cap_bytes
        self._open = {1, 2}

    def add(self, fd: int, data: bytes) -> None:
        self._last_bytes_at = time.monotonic()
        if self._marked is not None:
            marked = self._marked[fd - 1]
            data = marked.feed(data)
            if self._begun_at is None and self._marked[0].seen:
                self._begun_at = self._last_bytes_at
                self._begun.set()
            if marked.is_too_noisy:
                self._cut()
        if fd == 1 and self._on_stdout is not None:
            self._on_stdout(data)
            return
        if len(data) > self._remaining_bytes:
            data = data[: self._remaining_bytes]
            self._cut()
        self._remaining_bytes -= len(data)
        self.written[fd].write(data)
        if fd == 2 and data and self._on_output is not None:
            self._on_output(data)
        is_past_head = fd == 1 and self.written[1].tell() > HEAD_BYTES
        if is_past_head and self._begun_at is not None and self.answer_seconds is None:
            self.answer_seconds = self._last_bytes_at - self._begun_at

    def _cut(self) -> None:
        self.truncated = True
        self._begun.set()
        self._finished.set()

    def end(self, fd: int) -> None:
        self._open.discard(fd)
        if not self._open:
            self._finished.set()

    async def begin(self, child: ChildProcess) -> None:
        """Wait until the command's own output has started, or the command has exited."""
        if self._marked is None:
            return
        either = {asyncio.ensure_future(self._begun.wait()), asyncio.ensure_future(child.wait())}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in either:
                future.cancel()

    async def wait(self, child: ChildProcess) -> None:
        """Wait until the cap is reached, or the command has exited and its output has ended.

        Other holders of its pipes are waited for only while they write.
        """
        exited = asyncio.ensure_future(child.wait())
        finished = asyncio.ensure_future(self._finished.wait())
        try:
            await asyncio.wait({exited, finished}, return_when=asyncio.FIRST_COMPLETED)
            if self.truncated:
                return
            await exited
            child.signal(signal.SIGKILL)
            ended_at = time.monotonic()
            while not finished.done():
                silent_since = max(self._last_bytes_at, ended_at)
                if time.monotonic() - silent_since > _DRAIN_SECONDS:
                    break
                await asyncio.wait({finished}, timeout=_DRAIN_SECONDS / 4)
        finally:
            exited.cancel()
            finished.cancel()


class _Pipe(asyncio.Protocol):
    """One of a gatherer's two pipes."""

    def __init__(self, gatherer: _Gatherer, fd: int) -> None:
        self._gatherer = gatherer
        self._fd = fd

    def data_received(self, data: bytes) -> None:
        self._gatherer.add(self._fd, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gatherer.end(self._fd)


async def run_process(
    argv: tuple[str, ...],
    *,
    shown_argv: tuple[str, ...] | None = None,
    stdin: bytes | None = None,
    marked: tuple[MarkedOutput, MarkedOutput] | None = None,
    begin_seconds: float | None = None,
    keep_stdin_open: bool = False,
    limit_seconds: float = DEFAULT_LIMIT_SECONDS,
    cap_bytes: int = DEFAULT_CAP_BYTES,
    environment: Mapping[str, str] | None = None,
    on_output: OnOutput | None = None,
    on_stdout: OnOutput | None = None,
    expired: Callable[[bytes, bytes], HpcdashError] | None = None,
) -> CommandResult:
    """Run a program on this machine; its process group ends with it, at a limit, or if cancelled.

    `shown_argv` replaces `argv` in the result and in errors. `marked` extracts the command's own
    output from stdout and stderr; `stdin` is sent once that has started, within `begin_seconds`.
    `on_output` receives stderr as it arrives, `on_stdout` receives stdout, which is then not in the
    result. A missing program exits with status 127. At a limit, raises CommandTimedOut, or the
    error that `expired` makes of stdout and stderr.
    """
    shown = argv if shown_argv is None else shown_argv
    check_runnable(argv)
    started = time.monotonic()
    has_stdin = stdin is not None or keep_stdin_open
    try:
        child = ChildProcess(
            argv,
            stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
            environment=environment,
        )
    except OSError as error:
        status, reason = _start_failure(error)
        return CommandResult(
            argv=shown,
            status=status,
            stdout=b"",
            stderr=f"{argv[0]}: {reason}\n".encode(),
            seconds=time.monotonic() - started,
        )
    gatherer = _Gatherer(cap_bytes, on_output, marked, on_stdout)
    with closing(child):
        try:
            async with asyncio.timeout(limit_seconds):
                await child.connect(1, _Pipe(gatherer, 1))
                await child.connect(2, _Pipe(gatherer, 2))
                async with asyncio.timeout(begin_seconds):
                    await gatherer.begin(child)
                if has_stdin:
                    await child.write(stdin or b"", keep_open=keep_stdin_open)
                await gatherer.wait(child)
            if gatherer.truncated:
                await child.terminate()
        except TimeoutError:
            await child.terminate()
            stderr = gatherer.written[2].getvalue()
            if expired is None:
                failure: HpcdashError = timed_out(shown, limit_seconds, "this machine", stderr)
            else:
                failure = expired(gatherer.written[1].getvalue(), stderr)
            if isinstance(failure, CommandTimedOut):
                failure.answer_seconds = gatherer.answer_seconds
            raise failure from None
        finally:
            # A caller that gives up on a command may close the loop next.
            await child.kill()
    seconds = time.monotonic() - started
    if child.returncode is None or gatherer.truncated:
        status = STATUS_TERMINATED
    else:
        status = shell_status(child.returncode)
    return CommandResult(
        argv=shown,
        status=status,
        # Popped: the pipes refer to the gatherer until garbage is collected.
        stdout=gatherer.written.pop(1).getvalue(),
        stderr=gatherer.written.pop(2).getvalue(),
        seconds=seconds,
        truncated=gatherer.truncated,
        answer_seconds=seconds if gatherer.answer_seconds is None else gatherer.answer_seconds,
    )


def _start_failure(error: OSError) -> tuple[int, str]:
    """Return the status and the message of a shell for a program that could not be started."""
    if isinstance(error, FileNotFoundError):
        return STATUS_MISSING, "command not found"
    if isinstance(error, PermissionError):
        return STATUS_NOT_EXECUTABLE, "permission denied"
    return STATUS_NOT_EXECUTABLE, str(error.strerror)


class ProcessStream:
    """A running program's stdout.

    `stderr` is the end of its error output, complete once stdout has ended; `status` is its exit
    status, None while it runs.
    """

    def __init__(
        self,
        child: ChildProcess,
        stdout: asyncio.StreamReader,
        stdin: asyncio.StreamWriter | None = None,
    ) -> None:
        """`stdin` is None if the program has none."""
        self._child = child
        self._stdout = stdout
        self._stdin = stdin
        self.stderr = b""
        self.gathering: asyncio.Task[None] | None = None

    @property
    def status(self) -> int | None:
        code = self._child.returncode
        return None if code is None else shell_status(code)

    async def write(self, content: bytes) -> None:
        """Send a part of the program's stdin; see hpcdash.transport.base.Pipe."""
        if self._stdin is None or self._stdin.is_closing():
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        self._stdin.write(content)
        await self._stdin.drain()

    def write_eof(self) -> None:
        """End the program's stdin."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write_eof()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._stdout.read(_STREAM_CHUNK_BYTES):
            yield chunk
        if self.gathering is not None:
            await asyncio.wait({self.gathering}, timeout=_DRAIN_SECONDS)

    async def gather(self, stderr: asyncio.StreamReader) -> None:
        """Read all of stderr, so that the program is never blocked, and store its end."""
        while chunk := await stderr.read(_STREAM_CHUNK_BYTES):
            self.stderr = (self.stderr + chunk)[-_TAIL_BYTES:]


class EmptyStream:
    """Empty output of a program that could not be started; `stderr` and `status` say why."""

    def __init__(self, status: int, stderr: bytes) -> None:
        self.status: int | None = status
        self.stderr = stderr

    async def write(self, content: bytes) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def write_eof(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[bytes]:
        nothing: tuple[bytes, ...] = ()
        for chunk in nothing:
            yield chunk


@asynccontextmanager
async def stream_process(
    argv: tuple[str, ...],
    *,
    keep_stdin_open: bool = False,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[ProcessStream | EmptyStream]:
    """Run a program and stream its stdout; its process group is ended when the context is left.

    A missing program is an empty stream with status 127.
    """
    check_runnable(argv)
    try:
        child = ChildProcess(
            argv,
            stdin=subprocess.PIPE if keep_stdin_open else subprocess.DEVNULL,
            environment=environment,
        )
    except OSError as error:
        status, reason = _start_failure(error)
        yield EmptyStream(status, f"{argv[0]}: {reason}\n".encode())
        return
    with closing(child):
        stream: ProcessStream | None = None
        try:
            stdin = await child.stdin_writer() if keep_stdin_open else None
            stream = ProcessStream(child, await child.read(1, _STREAM_CHUNK_BYTES), stdin)
            stderr = await child.read(2, _STREAM_CHUNK_BYTES)
            stream.gathering = asyncio.create_task(stream.gather(stderr))
            yield stream
        finally:
            await child.terminate()
            if stream is not None and stream.gathering is not None:
                await asyncio.wait({stream.gathering}, timeout=_DRAIN_SECONDS)
                stream.gathering.cancel()


class _PtyProtocol(asyncio.StreamReaderProtocol):
    """Reads a pseudo-terminal to its end, which the system reports as an error."""

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(None)


class _PtyProcess:
    """Implements hpcdash.transport.terminal.FarEnd: a program on its own pseudo-terminal."""

    def __init__(self, child: ChildProcess, descriptor: int) -> None:
        """Own the descriptor of the pseudo-terminal's other end: `close` closes it."""
        self._child = child
        self._output = os.fdopen(descriptor, "rb", buffering=0)
        self._input = os.fdopen(os.dup(descriptor), "wb", buffering=0)
        self._reader = asyncio.StreamReader(_STREAM_CHUNK_BYTES)
        self._transports: list[asyncio.BaseTransport] = []
        self._keys: asyncio.WriteTransport | None = None
        self.tail = b""

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        protocol = _PtyProtocol(self._reader)
        self._transports.append((await loop.connect_read_pipe(lambda: protocol, self._output))[0])
        self._keys, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._input)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the output until the program exits: its children may hold the terminal forever."""
        ended = asyncio.ensure_future(self._child.wait())
        try:
            while True:
                reading = asyncio.ensure_future(self._reader.read(_STREAM_CHUNK_BYTES))
                await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({reading}, timeout=_LAST_OUTPUT_SECONDS)
                chunk = reading.result() if reading.done() else b""
                if not chunk:
                    reading.cancel()
                    await ended
                    return
                self.tail = (self.tail + chunk)[-_TAIL_BYTES:]
                yield chunk
        finally:
            ended.cancel()

    def write(self, keys: bytes) -> None:
        if self._keys is not None:
            self._keys.write(keys)

    def resize(self, columns: int, lines: int) -> None:
        termios.tcsetwinsize(self._output.fileno(), (lines, columns))

    def close(self) -> None:
        """Hang up: other holders of the terminal still get SIGHUP."""
        for transport in self._transports:
            transport.close()
        if self._keys is not None:
            self._keys.abort()
        self._output.close()
        self._input.close()


async def interact_with_process(
    argv: tuple[str, ...],
    terminal: Terminal,
    *,
    environment: Mapping[str, str] | None = None,
    lost: Callable[[int, bytes], HpcdashError | None] | None = None,
) -> int | None:
    """Run a program on a person's terminal; return its status, or None if they left it.

    Its whole session receives the terminal's hangup. Raises the error that `lost` makes of the
    status and the last output.
    """
    check_runnable(argv)
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    columns, lines = terminal.size
    termios.tcsetwinsize(theirs, (lines, columns))
    try:
        # The shell reports which command cannot be run, and with which status.
        parts = ("/bin/sh", "-c", 'exec "$@"', "sh", *argv)
        child = ChildProcess(
            parts,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            environment=environment,
            controls_terminal=True,
        )
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    with closing(child):
        far = _PtyProcess(child, ours)
        try:
            await far.open()
            has_ended = await terminal.lend(far)
        finally:
            far.close()
            await child.terminate()
    if not has_ended or child.returncode is None:
        return None
    status = shell_status(child.returncode)
    if lost is not None and (error := lost(status, far.tail)):
        raise error
    return status


class LocalTransport:
    """This machine as a transport: always connected, never prompts."""

    def __init__(self, name: str = "local", *, path: str = "") -> None:
        """Prepend `path`, directories joined with ':', to the PATH of this process."""
        self.name = name
        self.health = Health()
        self._environment: dict[str, str] | None = None
        if path:
            self.prepend_path(path)

    async def connect(self, *, force: bool = False) -> None:
        """Set the state to connected."""
        if self.health.state != "connected":
            self.health.set_state("connected")

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
        """Run one command to its end; see Transport.run."""
        await self.connect()
        return await run_process(
            argv,
            stdin=stdin,
            limit_seconds=limit_seconds,
            cap_bytes=cap_bytes,
            environment=self._environment,
            on_output=on_output,
            on_stdout=on_stdout,
        )

    @asynccontextmanager
    async def stream(self, argv: tuple[str, ...]) -> AsyncIterator[Stream]:
        """Run a command and stream its output; leaving the context ends the command."""
        await self.connect()
        async with stream_process(argv, environment=self._environment) as stream:
            yield stream

    @asynccontextmanager
    async def open_pipe(self, argv: tuple[str, ...]) -> AsyncIterator[Pipe]:
        """Run a command with an open stdin; see Transport.open_pipe."""
        await self.connect()
        async with stream_process(
            argv, keep_stdin_open=True, environment=self._environment
        ) as stream:
            yield stream

    async def adopt_login_environment(self) -> bool:
        """Return False: this environment is the person's own already."""
        return False

    def prepend_path(self, folder: str) -> None:
        """Search `folder` before the PATH."""
        environment = os.environ if self._environment is None else self._environment
        self._environment = {
            **environment,
            "PATH": f"{folder}:{environment.get('PATH', os.defpath)}",
        }

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        """Run a command on a person's terminal; see Transport.interact."""
        await self.connect()
        return await interact_with_process(argv, terminal, environment=self._environment)

    async def close(self) -> None:
        """Set the state to idle; no connection is open between commands."""
        self.health.state = "idle"
