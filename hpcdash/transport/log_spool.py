"""Local copies of logs that a server streams, followed while they are read.

The server does not report when a log was written: a copy's time is 0 until it grows while it is
followed.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from itertools import count
from pathlib import Path
from threading import Lock
from typing import BinaryIO
from urllib.parse import unquote_to_bytes

from hpcdash.domain.units import format_memory
from hpcdash.errors import HpcdashError, UnreadableOutput

# A log is followed until it has not been read for this time.
_IDLE_SECONDS = 30.0
# A stream that is quiet for this time has sent everything for now.
_QUIET_SECONDS = 0.3
_FIRST_BYTES_SECONDS = 5.0
# A larger log would fill the disk of this machine.
_MAX_BYTES = 4 << 30
# Unread copies are removed after this time, or sooner if all copies together are larger.
_UNREAD_SECONDS = 600.0
_MAX_TOTAL_BYTES = 8 << 30
# Longer lines are read in pieces.
_MAX_LINE_BYTES = 1 << 20
# The last bytes that were read identify a copy's log.
_MARK_BYTES = 64
# Modification time of a copy, in epoch seconds, if that of its log is unknown.
_UNKNOWN_TIME = 0
# Gives the HTTP status of a request, and its body in pieces.
OpenStream = Callable[[str], AbstractAsyncContextManager[tuple[int, AsyncIterator[bytes]]]]


class LogSpool:
    """Local files, in a folder of their own, with the streamed bodies of requests."""

    def __init__(self, open_stream: OpenStream) -> None:
        self._open_stream = open_stream
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._copies: dict[str, _Copy] = {}
        self._parts: dict[str, _Part] = {}
        self._numbers = count()

    async def fetch_copy(self, request: str) -> Path:
        """Return the file with a log's current contents; it does not exist if the log does not.

        A fragment of the request, `…#REGEX` with its special characters quoted, is not sent: the
        file then has only the lines that start with a match, without the match. Raises the errors
        of the stream.
        """
        address, _, pattern = request.partition("#")
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="hpcdash-logs-")
        folder = Path(self._folder.name)
        if not address:
            return folder / "none"
        copy = self._copies.get(address)
        if copy is None:
            copy = _Copy(address, folder / str(next(self._numbers)), self._open_stream)
            self._copies[address] = copy
            await self._remove_unread()
        await copy.catch_up()
        if not pattern:
            return copy.file
        part = self._parts.get(request)
        if part is None:
            file = folder / f"part-{next(self._numbers)}"
            part = _Part(copy.file, file, re.compile(unquote_to_bytes(pattern)))
            self._parts[request] = part
        await asyncio.to_thread(part.catch_up)
        return part.file

    async def _remove_unread(self) -> None:
        now = time.monotonic()
        size = sum(copy.size_bytes for copy in self._copies.values())
        unread: list[_Copy] = []
        for address, copy in sorted(self._copies.items(), key=lambda item: item[1].read_at):
            unread_seconds = now - copy.read_at
            limit = _UNREAD_SECONDS if size <= _MAX_TOTAL_BYTES else _IDLE_SECONDS
            if unread_seconds < limit:
                break
            size -= copy.size_bytes
            del self._copies[address]
            for request in [*self._parts]:
                if request.startswith(f"{address}#"):
                    self._parts.pop(request).file.unlink(missing_ok=True)
            unread.append(copy)
        # Closing a stream takes time, in which other callers may request a log.
        for copy in unread:
            await copy.close()
            copy.file.unlink(missing_ok=True)

    async def close(self) -> None:
        """End all streams and remove the copies."""
        for copy in self._copies.values():
            await copy.close()
        self._copies.clear()
        self._parts.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class _Part:
    """The lines of a copy that start with a match of a pattern, without the match."""

    def __init__(self, whole: Path, file: Path, pattern: re.Pattern[bytes]) -> None:
        self.file = file
        self._whole = whole
        self._pattern = pattern
        self._read_bytes = 0
        self._mark = b""
        # Whether the last read ended within a line, and that line belongs to the part.
        self._is_inside = False
        self._belongs = False
        self._lock = Lock()

    def catch_up(self) -> None:
        """Add new complete lines; start again if the copy is of another log now."""
        with self._lock:
            try:
                source = self._whole.open("rb")
            except FileNotFoundError:
                self.file.unlink(missing_ok=True)
                self._read_bytes = 0
                self._mark = b""
                return
            with source:
                source.seek(self._read_bytes - len(self._mark))
                if source.read(len(self._mark)) != self._mark:
                    source.seek(0)
                    self._read_bytes = 0
                    self._mark = b""
                if self._read_bytes == 0:
                    self._is_inside = False
                    self._belongs = False
                    self.file.write_bytes(b"")
                with self.file.open("ab") as target:
                    self._add_lines(source, target)
                if os.fstat(source.fileno()).st_mtime == _UNKNOWN_TIME:
                    os.utime(self.file, (_UNKNOWN_TIME, _UNKNOWN_TIME))

    def _add_lines(self, source: BinaryIO, target: BinaryIO) -> None:
        while line := source.readline(_MAX_LINE_BYTES):
            is_complete = line.endswith(b"\n")
            if not is_complete and len(line) < _MAX_LINE_BYTES:
                break
            self._read_bytes += len(line)
            self._mark = line[-_MARK_BYTES:]
            if not self._is_inside and (found := self._pattern.match(line)):
                line = line[found.end() :]
                self._belongs = True
            if self._belongs:
                target.write(line)
            self._is_inside = not is_complete
            if is_complete:
                self._belongs = False


class _Copy:
    """The local file of a log, and the task that follows the log."""

    def __init__(self, request: str, file: Path, open_stream: OpenStream) -> None:
        self.file = file
        self._request = request
        self._open_stream = open_stream
        self._task: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self.read_at = time.monotonic()
        # Whether any bytes have arrived, and all that were written before the log was followed.
        self._has_arrived = False
        self._is_caught_up = False

    @property
    def size_bytes(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    async def catch_up(self) -> None:
        self.read_at = time.monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow(), name=f"follow {self._request}")
            wait = _FIRST_BYTES_SECONDS
        else:
            wait = _QUIET_SECONDS
        while not self._task.done():
            self._arrived.clear()
            arriving = asyncio.create_task(self._arrived.wait())
            try:
                await asyncio.wait(
                    {arriving, self._task}, timeout=wait, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                arriving.cancel()
            if not self._arrived.is_set():
                break
            wait = _QUIET_SECONDS
        self._is_caught_up |= self._task.done() or self._has_arrived
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, HpcdashError):
                await self._task

    async def _follow(self) -> None:
        """Write the log's contents from its start; only differences are written."""
        async with self._open_stream(self._request) as (status, body):
            if not 200 <= status < 300:
                self.file.unlink(missing_ok=True)
                return
            self.file.touch(mode=0o600)
            with self.file.open("r+b") as target:
                if not self._is_caught_up:
                    os.utime(self.file, (_UNKNOWN_TIME, _UNKNOWN_TIME))
                position = 0
                async with aclosing(self._pieces(body)) as pieces:
                    async for piece in pieces:
                        if piece is None:
                            # A log that was emptied is shorter than its copy.
                            target.truncate(position)
                            break
                        if position + len(piece) > _MAX_BYTES:
                            raise UnreadableOutput(
                                f"this log is larger than {format_memory(_MAX_BYTES)}, so the rest "
                                "is not copied",
                                "Read the end on the machine that wrote it.",
                            )
                        self._write(target, position, piece)
                        position += len(piece)
                        self._has_arrived = True
                        self._arrived.set()

    async def _pieces(self, body: AsyncIterator[bytes]) -> AsyncGenerator[bytes | None, None]:
        """Yield the pieces of a body, and None at its end, until the copy is no longer read."""
        arriving: asyncio.Future[bytes | None] | None = None
        try:
            while True:
                arriving = arriving or asyncio.ensure_future(anext(body, None))
                await asyncio.wait({arriving}, timeout=_IDLE_SECONDS)
                if arriving.done():
                    piece = arriving.result()
                    arriving = None
                    yield piece
                    if piece is None:
                        return
                elif time.monotonic() - self.read_at >= _IDLE_SECONDS:
                    return
        finally:
            if arriving is not None:
                arriving.cancel()
                with suppress(asyncio.CancelledError):
                    await arriving

    def _write(self, target: BinaryIO, position: int, piece: bytes) -> None:
        """Write a piece unless the file has it already."""
        target.seek(position)
        if target.read(len(piece)) == piece:
            return
        target.truncate(position)
        target.seek(position)
        target.write(piece)
        target.flush()
        if not self._is_caught_up:
            os.utime(self.file, (_UNKNOWN_TIME, _UNKNOWN_TIME))
