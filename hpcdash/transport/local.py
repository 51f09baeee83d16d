"""Runs commands on this machine, each in a session and process group of its own."""

from __future__ import annotations

import asyncio
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
from hpcdash.errors import CommandTimedOut, HpcdashError, UsageError, excerpt, program_name
from hpcdash.transport.base import (
    DEFAULT_CAP_BYTES,
    DEFAULT_LIMIT_SECONDS,
    HEAD_BYTES,
    CommandResult,
    Health,
    OnOutput,
    Stream,
)
from hpcdash.transport.shell import MarkedOutput

if TYPE_CHECKING:
    from hpcdash.transport.terminal import Terminal

STATUS_MISSING = 127
STATUS_NOT_EXECUTABLE = 126
# A shell's status for a command ended by SIGTERM.
STATUS_TERMINATED = 128 + signal.SIGTERM
# The last output of a program on a terminal comes within this after its end.
_LAST_WORDS_SECONDS = 0.3
# Time for other holders of stdout after the command has exited.
_DRAIN_SECONDS = 1.0
_STREAM_CHUNK_BYTES = 1 << 18
_STDERR_KEPT_BYTES = 4000


def shell_status(returncode: int) -> int:
    """A status as a shell gives it: -15 becomes 143."""
    return returncode if returncode >= 0 else 128 - returncode


def timed_out(
    argv: tuple[str, ...],
    limit_seconds: float,
    where: str,
    stderr: bytes,
    answer_seconds: float | None = None,
) -> CommandTimedOut:
    """The error for a command that was ended at its time limit; `answer_seconds` as in
    CommandTimedOut.
    """
    error = CommandTimedOut(
        f"{program_name(argv)} had not finished after {limit_seconds:g} s and was ended on "
        f"{where}.",
        "The machine or its scheduler may be busy; try again later.",
        argv=argv,
        output=excerpt(stderr),
    )
    error.answer_seconds = answer_seconds
    return error


class _Gatherer:
    """Collects stdout and stderr as they come, until both ended or `cap_bytes` came together.

    With `marked`, only what is the command's own on stdout and stderr; it ends where the rest is
    too much.
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
        # Set once the command's own output has begun.
        self._begun = asyncio.Event()
        self._begun_at: float | None = None if marked else self._last_bytes_at
        self.answer_seconds: float | None = None
        self._left_bytes = cap_bytes
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
        if len(data) > self._left_bytes:
            data = data[: self._left_bytes]
            self._cut()
        self._left_bytes -= len(data)
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
        """Return once the command's own output has begun, or the command has ended."""
        if self._marked is None:
            return
        either = {asyncio.ensure_future(self._begun.wait()), asyncio.ensure_future(child.wait())}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in either:
                future.cancel()

    async def wait(self, child: ChildProcess) -> None:
        """Return once the cap is reached, or the command has ended with all output here or the rest
        silent.
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
            while (
                not finished.done()
                and time.monotonic() - max(self._last_bytes_at, ended_at) <= _DRAIN_SECONDS
            ):
                await asyncio.wait({finished}, timeout=_DRAIN_SECONDS / 4)
        finally:
            exited.cancel()
            finished.cancel()


class _Pipe(asyncio.Protocol):
    """One of the two pipes that a gatherer collects from."""

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
    """Run one program here; the process group it leads is ended at the limit, the cap, cancellation
    and its own end.

    `shown_argv` stands for `argv` in the answer and in errors. `marked` cuts the command's own
    output out of stdout and stderr; `stdin` is sent once it has begun, which may take
    `begin_seconds`. `on_output` gets stderr as it comes, `on_stdout` stdout, which is then not
    kept. At a limit raises CommandTimedOut, or what `expired` makes of stdout and stderr. A missing
    program is status 127.
    """
    shown = argv if shown_argv is None else shown_argv
    _refuse_unrunnable(argv)
    started = time.monotonic()
    has_stdin = stdin is not None or keep_stdin_open
    try:
        child = ChildProcess(
            argv,
            stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
            environment=environment,
        )
    except FileNotFoundError:
        return _not_run(shown, STATUS_MISSING, f"{argv[0]}: command not found", started)
    except PermissionError:
        return _not_run(shown, STATUS_NOT_EXECUTABLE, f"{argv[0]}: permission denied", started)
    except OSError as error:
        return _not_run(shown, STATUS_NOT_EXECUTABLE, f"{argv[0]}: {error.strerror}", started)
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
            stdout, stderr = (gatherer.written[fd].getvalue() for fd in (1, 2))
            failure = (
                expired(stdout, stderr)
                if expired
                else timed_out(shown, limit_seconds, "this machine", stderr)
            )
            if isinstance(failure, CommandTimedOut):
                failure.answer_seconds = gatherer.answer_seconds
            raise failure from None
        finally:
            # The caller that gives up on a command may close the loop next: report the end before.
            await child.kill()
    returncode = child.returncode
    seconds = time.monotonic() - started
    return CommandResult(
        argv=shown,
        status=STATUS_TERMINATED
        if returncode is None or gatherer.truncated
        else shell_status(returncode),
        # Taken out: the pipes refer to the gatherer until the garbage is collected.
        stdout=gatherer.written.pop(1).getvalue(),
        stderr=gatherer.written.pop(2).getvalue(),
        seconds=seconds,
        truncated=gatherer.truncated,
        answer_seconds=seconds if gatherer.answer_seconds is None else gatherer.answer_seconds,
    )


class ProcessStream:
    """A running program's stdout; `stderr` is the end of what it complained of, `status` how it
    ended (None: runs).
    """

    def __init__(self, child: ChildProcess, stdout: asyncio.StreamReader) -> None:
        self._child = child
        self._stdout = stdout
        self.stderr = b""

    @property
    def status(self) -> int | None:
        code = self._child.returncode
        return None if code is None else shell_status(code)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._stdout.read(_STREAM_CHUNK_BYTES):
            yield chunk

    async def gather(self, stderr: asyncio.StreamReader) -> None:
        """Keep the end of stderr, so that a talkative program is never blocked by it."""
        while chunk := await stderr.read(_STREAM_CHUNK_BYTES):
            self.stderr = (self.stderr + chunk)[-_STDERR_KEPT_BYTES:]


class EmptyStream:
    """Empty output of a program that could not be started.

    `stderr` and `status` have the reason.
    """

    def __init__(self, status: int, stderr: bytes) -> None:
        self.status: int | None = status
        self.stderr = stderr

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
    """Run a program and give its stdout as it comes; its process group is ended when the context is
    left.

    A program that is not there gives an empty stream with status 127.
    """
    _refuse_unrunnable(argv)
    try:
        child = ChildProcess(
            argv,
            stdin=subprocess.PIPE if keep_stdin_open else subprocess.DEVNULL,
            environment=environment,
        )
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        text = f"{argv[0]}: {error.strerror}\n".encode()
        yield EmptyStream(STATUS_MISSING if missing else STATUS_NOT_EXECUTABLE, text)
        return
    with closing(child):
        gathering: asyncio.Task[None] | None = None
        try:
            stream = ProcessStream(child, await child.read(1, _STREAM_CHUNK_BYTES))
            gathering = asyncio.create_task(stream.gather(await child.read(2, _STREAM_CHUNK_BYTES)))
            yield stream
        finally:
            await child.terminate()
            if gathering is not None:
                await asyncio.wait({gathering}, timeout=_DRAIN_SECONDS)
                gathering.cancel()


class _PtyProtocol(asyncio.StreamReaderProtocol):
    """Reads a pseudo-terminal to its end, which is an error of it: none that hides what was read
    before.
    """

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(None)


class _PtyProcess:
    """Implements hpcdash.transport.terminal.FarEnd: a program on a pseudo-terminal of its own."""

    def __init__(self, child: ChildProcess, descriptor: int) -> None:
        """Takes the descriptor of the pseudo-terminal's other end, which `close` closes."""
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
        """Until the program has ended; what it left behind may hold the terminal for ever, and is
        not waited for.
        """
        ended = asyncio.ensure_future(self._child.wait())
        try:
            while True:
                reading = asyncio.ensure_future(self._reader.read(_STREAM_CHUNK_BYTES))
                await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({reading}, timeout=_LAST_WORDS_SECONDS)
                chunk = reading.result() if reading.done() else b""
                if not chunk:
                    reading.cancel()
                    await ended
                    return
                self.tail = (self.tail + chunk)[-_STDERR_KEPT_BYTES:]
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
    """Run one program here on a person's terminal; its status, None where they left it.

    All of its session hears of the terminal's end. Raises what `lost` makes of the status and the
    end of the output.
    """
    _refuse_unrunnable(argv)
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


def _refuse_unrunnable(argv: tuple[str, ...]) -> None:
    if not argv or not argv[0]:
        raise UsageError("There is no command to run.")
    if any("\0" in word for word in argv):
        raise UsageError("A command line cannot hold a NUL byte.", "Remove it from the argument.")


def _not_run(argv: tuple[str, ...], status: int, text: str, started: float) -> CommandResult:
    return CommandResult(argv, status, b"", text.encode() + b"\n", time.monotonic() - started)


class LocalTransport:
    """This machine as a transport: always connected, nothing to ask a person."""

    def __init__(self, name: str = "local", *, path: str = "") -> None:
        """`path`, directories joined with ':', goes before this process's own PATH."""
        self.name = name
        self.health = Health()
        self._environment: dict[str, str] | None = None
        if path:
            self.prepend_path(path)

    async def connect(self, *, force: bool = False) -> None:
        """Note that this machine is here."""
        if self.health.state != "connected":
            self.health.state, self.health.connected_at = "connected", time.time()

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
        """Run one command to its end; raises CommandTimedOut.

        A command that is not there ends with status 127.
        """
        await self.connect()
        completed = await run_process(
            argv,
            stdin=stdin,
            limit_seconds=limit_seconds,
            cap_bytes=cap_bytes,
            environment=self._environment,
            on_output=on_output,
            on_stdout=on_stdout,
        )
        self.health.last_seconds = completed.seconds
        return completed

    @asynccontextmanager
    async def stream(self, argv: tuple[str, ...]) -> AsyncIterator[Stream]:
        """Run a command whose output is read as it comes; leaving the context ends it."""
        await self.connect()
        async with stream_process(argv, environment=self._environment) as stream:
            yield stream

    async def adopt_login_environment(self) -> bool:
        """False: the environment here is the person's own already."""
        return False

    def prepend_path(self, folder: str) -> None:
        """Have a folder go before the PATH."""
        environment = os.environ if self._environment is None else self._environment
        self._environment = {
            **environment,
            "PATH": f"{folder}:{environment.get('PATH', os.defpath)}",
        }

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        """Run a command of this machine on a person's terminal; see Transport.interact."""
        await self.connect()
        return await interact_with_process(argv, terminal, environment=self._environment)

    async def close(self) -> None:
        """Set the state to idle; no connection is open between commands."""
        self.health.state = "idle"
