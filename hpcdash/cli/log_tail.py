"""The end of a log on stdout: its last lines, and what comes after them, whatever becomes of the file."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from hpcdash.cli.log_output import LogOutput
from hpcdash.domain.text import visible
from hpcdash.errors import AuthenticationFailed, CommandTimedOut, HostKeyChanged, HostKeyRefused, UnreachableError
from hpcdash.services.logs.file import (
    LONGEST_PAUSE_SECONDS,
    Chunk,
    FileChange,
    LogFile,
    Look,
    change,
    next_look_seconds,
)
from hpcdash.services.logs.pieces import LONGEST_PIECE

# The first read of a file and each that may find little; one that finds as much is followed by large ones at once.
SMALL_BYTES = 64 * 1024
LARGE_BYTES = 4 << 20
# Lines may be as long as the file: so far back at least their beginnings are looked for.
_LOOK_BACK_BYTES = 64 << 20
_QUIET_SECONDS = 2.0
_NEEDS_A_PERSON = (AuthenticationFailed, HostKeyChanged, HostKeyRefused)


def say(words: str) -> None:
    """Tell the person something, on stderr."""
    print(f"hpcdash: {visible(words)}", file=sys.stderr, flush=True)


class LogTail:
    """One file on its way to stdout; `known` is what it was last."""

    def __init__(self, file: LogFile, output: LogOutput) -> None:
        self.file = file
        self.output = output
        self.known = Look()
        # The file that was read last, though it may be gone.
        self.identity = ""
        # Whether `file` is another now, of which nothing was seen yet; and whether it begins with what was read.
        self.has_moved = False
        self._goes_on = False

    def aside(self, words: str) -> None:
        """Tell the person something between two lines of the log."""
        self.output.end_line()
        say(words)

    def move_to(self, file: LogFile, *, goes_on: bool) -> None:
        """Go on in another file: where it left off in one that is a copy (`goes_on`), else from its start."""
        self.file, self.known, self.has_moved, self._goes_on = file, Look(), True, goes_on

    # -- the last lines

    async def show_last(self, end: Chunk, lines: int) -> int:
        """Write the last lines of a file that ends with this chunk; the offset where they end."""
        self.begin(end.look)
        if lines > 0 and end.content:
            start = await self._start_of_lines(end.content, end.offset, lines)
            if start >= end.offset:
                await self._write(end.content[start - end.offset :], start)
            else:
                await self._copy(start, end.end)
        return end.end

    def begin(self, look: Look) -> None:
        """Take a file that has just appeared, of which nothing was written yet."""
        self.known, self.identity, self.has_moved = look, look.identity, False

    async def _start_of_lines(self, content: bytes, offset: int, lines: int) -> int:
        """Where the last `lines` lines begin, of a file that ends with `content` at `offset`; looked for backwards."""
        reach = max(0, offset + len(content) - _LOOK_BACK_BYTES - lines * LONGEST_PIECE)
        # A newline at the very end ends the last line, and begins none.
        left = lines
        position = len(content) - 1 if content.endswith(b"\n") else len(content)
        size = SMALL_BYTES
        while True:
            while left and (position := content.rfind(b"\n", 0, position)) >= 0:
                left -= 1
            if not left:
                return offset + position + 1
            if offset == 0:
                return 0
            if offset <= reach:
                say(f"{lines} lines are more than {_LOOK_BACK_BYTES >> 20} MiB here: the beginning is left out")
                return offset
            size = min(2 * size, LARGE_BYTES)
            begin = max(0, offset - size)
            chunk = await self.file.read(begin, offset - begin)
            content, offset, position = chunk.content, begin, len(chunk.content)

    async def _copy(self, start: int, end: int) -> None:
        while start < end:
            chunk = await self.file.read(start, min(LARGE_BYTES, end - start))
            if not chunk.content:
                return
            await self._write(chunk.content, start)
            start = chunk.end

    async def _write(self, content: bytes, offset: int) -> None:
        # Whoever reads stdout may be slow, and the connection has to be kept meanwhile.
        await asyncio.to_thread(self.output.write, content, offset)

    # -- what comes after them

    async def follow(self, end: int, is_over: Callable[[], Awaitable[bool]]) -> None:
        """Write what is added from `end` on, until a quiet file is said to be over; what becomes of it is said."""
        size = SMALL_BYTES
        changed_at = time.monotonic()
        is_lost = False
        while True:
            try:
                chunk = await self.file.read(end, size)
            except _NEEDS_A_PERSON:
                raise
            except (UnreachableError, CommandTimedOut) as error:
                if not is_lost:
                    self.aside(f"{error.message} Trying again.")
                is_lost = True
                await asyncio.sleep(LONGEST_PAUSE_SECONDS)
                continue
            if is_lost:
                self.aside("the cluster answers again")
                is_lost = False
            new_end = self._after(chunk.look, end)
            if new_end is not None:
                end, changed_at = new_end, time.monotonic()
                continue
            if chunk.content:
                await self._write(chunk.content, end)
                end, changed_at = chunk.end, time.monotonic()
                if len(chunk.content) == size:
                    size = LARGE_BYTES
                    continue
            size = SMALL_BYTES
            self.output.pause()
            quiet_seconds = time.monotonic() - changed_at
            if quiet_seconds >= _QUIET_SECONDS and await is_over():
                return
            await asyncio.sleep(max(self.file.pause_seconds, next_look_seconds(quiet_seconds)))

    def _after(self, look: Look, end: int) -> int | None:
        """Say what became of the file; where to read on from where it is no longer what was read, else None."""
        before, self.known = self.known, look
        happened = change(before, look)
        # A node lets go of its file when the job ends, and the last place may show it a little later.
        is_on_its_way = look.is_missing and (bool(self.file.host) or self.has_moved)
        if happened is FileChange.GONE and not is_on_its_way:
            self.aside(f"{self.file.place} is gone: {look.problem}")
        elif look.problem and look.problem != before.problem and not is_on_its_way:
            self.aside(f"{self.file.place}: {look.problem}")
        if not look.is_there:
            return None
        if self.has_moved:
            self.begin(look)
            if end == 0 or (self._goes_on and look.size >= end):
                return None
            self.aside(f"{self.file.place}, from its start:")
            return 0
        was_deleted = happened is FileChange.APPEARED and before.is_missing
        is_other = was_deleted or look.identity != self.identity
        self.identity = look.identity
        if is_other:
            self.aside(f"{self.file.place} is another file now; from its start:")
            return 0
        if look.size < end:
            self.aside(f"{self.file.place} was cut from {end} to {look.size} bytes; from its start:")
            return 0
        if happened is FileChange.APPEARED:
            self.aside(f"{self.file.place} is there again")
        return None
