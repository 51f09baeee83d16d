"""One command in one channel of an ssh connection: what it writes, how it ends."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from io import BytesIO

import asyncssh

from hpcdash.transport.base import HEAD_BYTES, OnOutput
from hpcdash.transport.local import STATUS_TERMINATED
from hpcdash.transport.shell import STDIN_COMPLETE, RemoteCommand

# A busy sshd may send a command's exit status before its last output.
_LAST_OUTPUT_SECONDS = 15.0
# The output is complete, but a process left behind by the command may still hold its stdout.
_DRAIN_SECONDS = 1.0
_STREAM_QUEUE_CHUNKS = 64
_PIECE_BYTES = 1 << 18
_STDERR_KEPT_BYTES = 4000


def _signal_status(name: str) -> int:
    """128 + the signal's number, as a shell has it; 255 for a signal unknown here."""
    try:
        return 128 + signal.Signals[f"SIG{name}"]
    except KeyError:
        return 255


class _Session(asyncssh.SSHClientSession[bytes]):
    """Base of all sessions: the channel and the status."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.lost: Exception | None = None
        self.closed = asyncio.Event()
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def exit_status_received(self, status: int) -> None:
        self.status = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self.status = _signal_status(signal)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc
        self.closed.set()

    def abort(self) -> None:
        """Close the channel; the watcher on the other side ends the command."""
        if self._channel is not None:
            self._channel.abort()


class _MarkedSession(_Session):
    """The command's own output on each stream, without what rc files print around it."""

    def __init__(self, command: RemoteCommand) -> None:
        super().__init__()
        self.truncated = False
        self.marked_stdout, self.marked_stderr = command.stdout(), command.stderr()
        self._marked = {None: self.marked_stdout, asyncssh.EXTENDED_DATA_STDERR: self.marked_stderr}

    def _own_output(self, data: bytes, datatype: int | None) -> bytes:
        """Return the command's own part of the data; the channel is closed once the rest is too
        much.
        """
        marked = self._marked[datatype]
        output = marked.feed(data)
        if marked.is_too_noisy:
            self.abort()
            self.closed.set()
        return output


class RunSession(_MarkedSession):
    """Collects a command's output to its end, or to `cap_bytes` of stdout and stderr together; of
    stdout nothing where `on_stdout` gets it.
    """

    def __init__(
        self,
        command: RemoteCommand,
        cap_bytes: int,
        on_output: OnOutput | None = None,
        on_stdout: OnOutput | None = None,
    ) -> None:
        super().__init__(command)
        self._on_output = on_output
        self._on_stdout = on_stdout
        self._left_bytes = cap_bytes
        # BytesIO returns its whole content without copying it.
        self._written: dict[int | None, BytesIO] = {
            None: BytesIO(),
            asyncssh.EXTENDED_DATA_STDERR: BytesIO(),
        }
        # When the last bytes or the exit status came.
        self._last_news_at = time.monotonic()
        self._began = asyncio.Event()
        self._ended = asyncio.Event()
        self._unsent: Iterator[bytes] = iter(())
        self._is_held_back = False
        self._begun_at: float | None = None
        self._answered_at: float | None = None

    @property
    def answer_seconds(self) -> float | None:
        """Duration of the command until it answered, as in CommandResult; None: no answer yet."""
        if self._begun_at is None or self._answered_at is None:
            return None
        return self._answered_at - self._begun_at

    @property
    def stdout(self) -> bytes:
        return self._whole(None, self.marked_stdout.rest)

    @property
    def stderr(self) -> bytes:
        return self._whole(asyncssh.EXTENDED_DATA_STDERR, self.marked_stderr.rest)

    def _whole(self, datatype: int | None, rest: bytes) -> bytes:
        written = self._written[datatype].getvalue()
        return written + rest if rest else written

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._last_news_at = time.monotonic()
        output = self._own_output(data, datatype)
        if self.marked_stdout.seen:
            self._began.set()
            self._begun_at = self._begun_at or self._last_news_at
        if self._marked[datatype].is_too_noisy:
            self._end()
        if datatype is None and self._on_stdout is not None:
            if output:
                self._on_stdout(output)
            output = b""
        if len(output) > self._left_bytes:
            output = output[: self._left_bytes]
            self.truncated = True
            self.status = STATUS_TERMINATED
            self.abort()
            self.closed.set()
        self._left_bytes -= len(output)
        if output:
            self._written[datatype].write(output)
            if datatype is not None and self._on_output is not None:
                self._on_output(output)
        if self.marked_stdout.end is not None or self._written[None].tell() > HEAD_BYTES:
            self._answered_at = self._answered_at or self._last_news_at

    def exit_status_received(self, status: int) -> None:
        super().exit_status_received(status)
        self._end()

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        super().exit_signal_received(signal, core_dumped, msg, lang)
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end()

    def _end(self) -> None:
        self._last_news_at = time.monotonic()
        self._began.set()
        self._ended.set()

    async def begin(self) -> bool:
        """Wait until the login shell has begun to run the command; False where it has ended
        already.
        """
        await self._began.wait()
        return self.marked_stdout.seen and self.status is None

    def send(self, stdin: bytes) -> None:
        """Give the command its stdin, whole; the channel's own stays open."""
        self._unsent = _pieces(stdin)
        self._send_more()

    def pause_writing(self) -> None:
        self._is_held_back = True

    def resume_writing(self) -> None:
        self._is_held_back = False
        # The end of a channel is passed to its waiter.
        with suppress(OSError):
            self._send_more()

    def _send_more(self) -> None:
        assert self._channel is not None
        while not self._is_held_back and (piece := next(self._unsent, b"")):
            self._channel.write(piece)

    async def wait(self) -> None:
        """Return once the channel is closed, or the command has ended and what is left of it is
        silent.
        """
        await self._ended.wait() if not self.truncated else None
        while not self.closed.is_set():
            is_whole = self.marked_stdout.end is not None and self.marked_stderr.end is not None
            left = (
                self._last_news_at
                + (_DRAIN_SECONDS if is_whole else _LAST_OUTPUT_SECONDS)
                - time.monotonic()
            )
            if left < 0:
                self.abort()
                return
            try:
                # Not wait_for: of Python 3.11 it loses a cancellation that comes as the channel
                # closes.
                async with asyncio.timeout(min(left, _DRAIN_SECONDS) + 0.01):
                    await self.closed.wait()
            except TimeoutError:
                continue


def _pieces(stdin: bytes) -> Iterator[bytes]:
    # A channel keeps a copy of what it was given until that is sent.
    for at in range(0, len(stdin), _PIECE_BYTES):
        yield stdin[at : at + _PIECE_BYTES]
    yield STDIN_COMPLETE


class _ChunkQueue:
    """Received chunks of a channel, which is paused while nobody reads them."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None

    def put(self, chunk: bytes, channel: asyncssh.SSHClientChannel[bytes] | None) -> None:
        """b"" is the end."""
        self._channel = channel
        self._queue.put_nowait(chunk)
        if self._queue.qsize() > _STREAM_QUEUE_CHUNKS and channel is not None:
            channel.pause_reading()

    async def chunks(self) -> AsyncIterator[bytes]:
        while chunk := await self._queue.get():
            if self._queue.qsize() < _STREAM_QUEUE_CHUNKS // 2 and self._channel is not None:
                self._channel.resume_reading()
            yield chunk


class StreamSession(_MarkedSession):
    """Stream of a command's stdout; the other side is slowed down without a reader."""

    def __init__(self, command: RemoteCommand) -> None:
        super().__init__(command)
        self.stderr = b""
        self._chunks = _ChunkQueue()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        output = self._own_output(data, datatype)
        if datatype is not None:
            self.stderr = (self.stderr + output)[-_STDERR_KEPT_BYTES:]
        elif output:
            self._chunks.put(output, self._channel)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.marked_stdout.rest:
            self._chunks.put(self.marked_stdout.rest, None)
        self._chunks.put(b"", None)

    def chunks(self) -> AsyncIterator[bytes]:
        """stdout until the command or the line ends."""
        return self._chunks.chunks()


class TerminalSession(_Session):
    """Implements hpcdash.transport.terminal.FarEnd: a command on a pseudo-terminal of the login
    node.
    """

    def __init__(self) -> None:
        super().__init__()
        self._chunks = _ChunkQueue()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if data:
            self._chunks.put(data, self._channel)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._chunks.put(b"", None)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks.chunks()

    def write(self, keys: bytes) -> None:
        # One that is closing takes no more.
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write(keys)

    def resize(self, columns: int, lines: int) -> None:
        if self._channel is not None and not self._channel.is_closing():
            self._channel.change_terminal_size(columns, lines)
