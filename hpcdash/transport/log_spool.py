"""Copies of logs that a server streams and no file system here holds: followed while they are read.

The server does not tell when a log was written: a copy's time is 0 until it grows while it is
followed.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from itertools import count
from pathlib import Path
from threading import Lock
from urllib.parse import unquote_to_bytes

from hpcdash.domain.units import format_memory
from hpcdash.errors import HpcdashError, UnreadableOutput

# A log that was not read for so long is followed no further.
_IDLE_SECONDS = 30.0
# A stream that sent nothing for so long has sent all there is for now.
_QUIET_SECONDS = 0.3
_FIRST_BYTES_SECONDS = 5.0
# No more of a larger log is copied: it would fill the disk of this machine.
_MAX_BYTES = 4 << 30
# Unread copies are removed: after so long, or sooner where all of them together are larger.
_UNREAD_SECONDS = 600.0
_MAX_BYTES_TOGETHER = 8 << 30
# Longer lines are read in pieces.
_LONGEST_LINE = 1 << 20
# The last bytes that were read identify the log of a copy.
_MARK_BYTES = 64
# The time of a copy, in epoch seconds, where the time of its log is unknown.
_UNKNOWN = 0
# Gives the HTTP status and the body of a request, piece by piece.
OpenStream = Callable[[str], AbstractAsyncContextManager[tuple[int, AsyncIterator[bytes]]]]


class LogSpool:
    """Files of this machine, in a folder of their own, with what requests stream."""

    def __init__(self, open_stream: OpenStream) -> None:
        self._open_stream = open_stream
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._copies: dict[str, _Copy] = {}
        self._parts: dict[str, _Part] = {}
        self._numbers = count()

    async def fetch_copy(self, request: str) -> Path:
        """The file with all that a log holds by now; none is there where the server knows no such
        log, or for ''.

        A fragment of the request, `…#REGEX` with its special characters quoted, is not sent: it
        makes the file one of those lines of the log that begin with a match, each without it.
        Raises what keeps the server from answering.
        """
        request, _, quoted = request.partition("#")
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="hpcdash-logs-")
        if not request:
            return Path(self._folder.name, "none")
        copy = self._copies.get(request)
        if copy is None:
            copy = _Copy(
                request, Path(self._folder.name, str(next(self._numbers))), self._open_stream
            )
            self._copies[request] = copy
            await self._remove_unread()
        await copy.catch_up()
        if not quoted:
            return copy.file
        part = self._parts.get(f"{request}#{quoted}")
        if part is None:
            file = Path(self._folder.name, f"part-{next(self._numbers)}")
            part = self._parts[f"{request}#{quoted}"] = _Part(
                copy.file, file, re.compile(unquote_to_bytes(quoted))
            )
        await asyncio.to_thread(part.catch_up)
        return part.file

    async def _remove_unread(self) -> None:
        now = time.monotonic()
        size = sum(copy.size_bytes for copy in self._copies.values())
        unread: list[_Copy] = []
        for request, copy in sorted(self._copies.items(), key=lambda one: one[1].read_at):
            unread_seconds = now - copy.read_at
            if unread_seconds < _IDLE_SECONDS or (
                unread_seconds < _UNREAD_SECONDS and size <= _MAX_BYTES_TOGETHER
            ):
                break
            size -= copy.size_bytes
            del self._copies[request]
            for key in [key for key in self._parts if key.startswith(f"{request}#")]:
                self._parts.pop(key).file.unlink(missing_ok=True)
            unread.append(copy)
        # Others may request a log while a stream ends.
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
    """Lines of a copy that begin with a match of a pattern, without the match."""

    def __init__(self, whole: Path, file: Path, pattern: re.Pattern[bytes]) -> None:
        self.file = file
        self._whole = whole
        self._pattern = pattern
        self._read_bytes = 0
        self._mark = b""
        # Whether what was read ends inside of a line, and that line is one of them.
        self._is_inside = self._belongs = False
        self._lock = Lock()

    def catch_up(self) -> None:
        """Add what whole lines came; from the start where the copy is of another log by now."""
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
                    self._is_inside = self._belongs = False
                    self.file.write_bytes(b"")
                with self.file.open("ab") as target:
                    while line := source.readline(_LONGEST_LINE):
                        is_whole = line.endswith(b"\n")
                        if not is_whole and len(line) < _LONGEST_LINE:
                            break
                        self._read_bytes += len(line)
                        self._mark = line[-_MARK_BYTES:]
                        if not self._is_inside and (found := self._pattern.match(line)):
                            line = line[found.end() :]
                            self._belongs = True
                        if self._belongs:
                            target.write(line)
                        self._is_inside, self._belongs = (
                            not is_whole,
                            self._belongs and not is_whole,
                        )
                if os.fstat(source.fileno()).st_mtime == _UNKNOWN:
                    os.utime(self.file, (_UNKNOWN, _UNKNOWN))


class _Copy:
    """One log: its file here, and the task that follows it."""

    def __init__(self, request: str, file: Path, open_stream: OpenStream) -> None:
        self.file = file
        self._request = request
        self._open_stream = open_stream
        self._task: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self.read_at = time.monotonic()
        # Whether any of it has come, and all that was written before it was followed.
        self._has_come = False
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
        self._is_caught_up |= self._task.done() or self._has_come
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, HpcdashError):
                await self._task

    async def _follow(self) -> None:
        """Write what the log holds, from its start; what is here already is compared and stays."""
        async with self._open_stream(self._request) as (status, body):
            if not 200 <= status < 300:
                self.file.unlink(missing_ok=True)
                return
            self.file.touch(mode=0o600)
            position = 0
            pieces = aiter(body)
            arriving: asyncio.Future[bytes | None] | None = None
            try:
                with self.file.open("r+b") as target:
                    if not self._is_caught_up:
                        os.utime(self.file, (_UNKNOWN, _UNKNOWN))
                    while True:
                        arriving = arriving or asyncio.ensure_future(anext(pieces, None))
                        await asyncio.wait({arriving}, timeout=_IDLE_SECONDS)
                        if not arriving.done():
                            if time.monotonic() - self.read_at >= _IDLE_SECONDS:
                                break
                            continue
                        piece = arriving.result()
                        arriving = None
                        if piece is not None and position + len(piece) > _MAX_BYTES:
                            raise UnreadableOutput(
                                f"this log is larger than {format_memory(_MAX_BYTES)}: no more of "
                                "it is copied",
                                "Read its end where it was written.",
                            )
                        if piece is None:
                            # A log that was emptied is shorter than its copy.
                            target.truncate(position)
                            break
                        target.seek(position)
                        if target.read(len(piece)) != piece:
                            target.truncate(position)
                            target.seek(position)
                            target.write(piece)
                            target.flush()
                            if not self._is_caught_up:
                                os.utime(self.file, (_UNKNOWN, _UNKNOWN))
                        position += len(piece)
                        self._has_come = True
                        self._arrived.set()
            finally:
                if arriving is not None:
                    arriving.cancel()
                    with suppress(asyncio.CancelledError):
                        await arriving
