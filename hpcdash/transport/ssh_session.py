"""A command in a channel of an ssh connection: its output and its exit status."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from io import BytesIO

import asyncssh

from hpcdash.transport.base import HEAD_BYTES, OnOutput
from hpcdash.transport.local import STATUS_TERMINATED
from hpcdash.transport.shell import STDIN_COMPLETE, RemoteOutput

# A busy sshd may send a command's exit status before its last output.
_LAST_OUTPUT_SECONDS = 15.0
# The output is complete, but a process left behind by the command may still hold its stdout.
_DRAIN_SECONDS = 1.0
_STREAM_QUEUE_CHUNKS = 64
_PIECE_BYTES = 1 << 18
_TAIL_BYTES = 4000
_SIGNALS = {name.removeprefix("SIG"): number for name, number in signal.Signals.__members__.items()}
_UNKNOWN_SIGNAL_STATUS = 255


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
        number = _SIGNALS.get(signal)
        self.status = _UNKNOWN_SIGNAL_STATUS if number is None else 128 + number

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc
        self.closed.set()

    def abort(self) -> None:
        """Close the channel; the watcher on the other side ends the command."""
        if self._channel is not None:
            self._channel.abort()


class _MarkedSession(_Session):
    """The command's own output on each stream, without the output of rc files around it."""

    def __init__(self, output: RemoteOutput) -> None:
        super().__init__()
        self.truncated = False
        self.output = output

    def _own_output(self, data: bytes, datatype: int | None) -> bytes:
        """Return the command's own part of the data; close the channel if the rest is too much."""
        marked = self.output.stdout if datatype is None else self.output.stderr
        own = marked.feed(data)
        if marked.is_too_noisy:
            self.abort()
            self.closed.set()
        return own


class RunSession(_MarkedSession):
    """Collects a command's output to its end, or until stdout and stderr exceed `cap_bytes`.

    `on_stdout` receives stdout instead of the session.
    """

    def __init__(
        self,
        output: RemoteOutput,
        cap_bytes: int,
        on_output: OnOutput | None = None,
        on_stdout: OnOutput | None = None,
    ) -> None:
        super().__init__(output)
        self._on_output = on_output
        self._on_stdout = on_stdout
        self._remaining_bytes = cap_bytes
        # BytesIO returns its whole content without copying it.
        self._written: dict[int | None, BytesIO] = {
            None: BytesIO(),
            asyncssh.EXTENDED_DATA_STDERR: BytesIO(),
        }
        # Arrival of the last bytes or of the exit status.
        self._last_news_at = time.monotonic()
        self._began = asyncio.Event()
        self._ended = asyncio.Event()
        self._unsent: Iterator[bytes] = iter(())
        self._is_held_back = False
        self._begun_at: float | None = None
        self._answered_at: float | None = None

    @property
    def answer_seconds(self) -> float | None:
        """Time until the command answered, as in CommandResult; None before it has."""
        if self._begun_at is None or self._answered_at is None:
            return None
        return self._answered_at - self._begun_at

    @property
    def stdout(self) -> bytes:
        return self._collected(None, self.output.stdout.rest)

    @property
    def stderr(self) -> bytes:
        return self._collected(asyncssh.EXTENDED_DATA_STDERR, self.output.stderr.rest)

    def _collected(self, datatype: int | None, rest: bytes) -> bytes:
        written = self._written[datatype].getvalue()
        return written + rest if rest else written

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._last_news_at = time.monotonic()
        own = self._own_output(data, datatype)
        if self.output.stdout.seen:
            self._began.set()
            self._begun_at = self._begun_at or self._last_news_at
        if self.closed.is_set():
            self._end()
        if datatype is None and self._on_stdout is not None:
            if own:
                self._on_stdout(own)
            own = b""
        if len(own) > self._remaining_bytes:
            own = own[: self._remaining_bytes]
            self.truncated = True
            self.status = STATUS_TERMINATED
            self.abort()
            self.closed.set()
        self._remaining_bytes -= len(own)
        if own:
            self._written[datatype].write(own)
            if datatype is not None and self._on_output is not None:
                self._on_output(own)
        if self.output.stdout.end is not None or self._written[None].tell() > HEAD_BYTES:
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
        """Wait until the login shell has started the command; False if that has ended already."""
        await self._began.wait()
        return self.output.stdout.seen and self.status is None

    def send(self, stdin: bytes) -> None:
        """Send the command's complete stdin; that of the channel stays open."""
        self._unsent = _stdin_pieces(stdin)
        self._send_more()

    def pause_writing(self) -> None:
        self._is_held_back = True

    def resume_writing(self) -> None:
        self._is_held_back = False
        # `wait` reports the end of a channel.
        with suppress(OSError):
            self._send_more()

    def _send_more(self) -> None:
        assert self._channel is not None
        while not self._is_held_back and (piece := next(self._unsent, b"")):
            self._channel.write(piece)

    async def wait(self) -> None:
        """Wait until the channel is closed, or the command has exited and its output has ended."""
        if not self.truncated:
            await self._ended.wait()
        while not self.closed.is_set():
            is_complete = self.output.stdout.end is not None and self.output.stderr.end is not None
            wait_seconds = _DRAIN_SECONDS if is_complete else _LAST_OUTPUT_SECONDS
            remaining = self._last_news_at + wait_seconds - time.monotonic()
            if remaining < 0:
                self.abort()
                return
            try:
                # Not wait_for: in Python 3.11 it loses a cancellation while the channel closes.
                async with asyncio.timeout(min(remaining, _DRAIN_SECONDS) + 0.01):
                    await self.closed.wait()
            except TimeoutError:
                continue


def _stdin_pieces(stdin: bytes) -> Iterator[bytes]:
    # A channel keeps a copy of unsent bytes.
    for at in range(0, len(stdin), _PIECE_BYTES):
        yield stdin[at : at + _PIECE_BYTES]
    yield STDIN_COMPLETE


class _ChunkQueue:
    """Received chunks of a channel, which is paused while they are not read."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None

    def put(self, chunk: bytes, channel: asyncssh.SSHClientChannel[bytes] | None) -> None:
        """Add a chunk; b"" is the end."""
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
    """Stream of a command's stdout, which slows the command down to its reader's pace."""

    def __init__(self, output: RemoteOutput) -> None:
        super().__init__(output)
        self.stderr = b""
        self._chunks = _ChunkQueue()
        self._may_write = asyncio.Event()
        self._may_write.set()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        own = self._own_output(data, datatype)
        if datatype is not None:
            self.stderr = (self.stderr + own)[-_TAIL_BYTES:]
        elif own:
            self._chunks.put(own, self._channel)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.output.stdout.rest:
            self._chunks.put(self.output.stdout.rest, None)
        self._chunks.put(b"", None)
        self._may_write.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    async def write(self, content: bytes) -> None:
        """Send a part of the command's stdin; see hpcdash.transport.base.Pipe."""
        await self._may_write.wait()
        if self._channel is None or self._channel.is_closing():
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        self._channel.write(content)

    def write_eof(self) -> None:
        """End the command's stdin."""
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write_eof()

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield stdout until the command or the connection ends."""
        return self._chunks.chunks()


class TerminalSession(_Session):
    """Implements hpcdash.transport.terminal.FarEnd: a command on a login node's pseudo-terminal."""

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
        # A closing channel accepts no more.
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write(keys)

    def resize(self, columns: int, lines: int) -> None:
        if self._channel is not None and not self._channel.is_closing():
            self._channel.change_terminal_size(columns, lines)
