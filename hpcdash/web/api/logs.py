"""The log of a launch: pages of it, or server-sent events as it grows."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from hpcdash.errors import EXIT_UNREACHABLE, HpcdashError
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.files import Chunk
from hpcdash.services.logs.file import FileChange, FollowedFile, LogFile
from hpcdash.services.submit.launch_service import LaunchState, NoLog
from hpcdash.web.api.answers import LogPage, build_error

MAX_BYTES = 1 << 20
DEFAULT_LINES = 100
MAX_LINES = 100_000
_FIRST_BYTES = 64 << 10
# Proxies and clients close a connection that is silent for longer.
_SILENT_SECONDS = 15.0
# Until then the rest of a character at the end of a file may follow.
_QUIET_SECONDS = 2.0


class LogReader(FollowedFile):
    """Pages of one file; `stream` is stdout or stderr."""

    def __init__(self, file: LogFile, stream: str) -> None:
        super().__init__(file)
        self.stream = stream

    async def read(self, offset: int) -> LogPage:
        """Read a page from an offset, at most MAX_BYTES. Raises NoLog."""
        return self.page(await self.file.read(offset, MAX_BYTES))

    async def read_last(self, lines: int) -> LogPage:
        """Read the last lines, at most MAX_BYTES. Raises NoLog."""
        size = _FIRST_BYTES
        while True:
            chunk = await self.file.read_end(min(size, MAX_BYTES))
            # A newline at the very end does not start another line.
            starts = chunk.content.removesuffix(b"\n").count(b"\n")
            if starts >= lines or chunk.offset == 0 or size >= MAX_BYTES:
                break
            size *= 4
        start = _start_of_lines(chunk.content, lines)
        return self.page(Chunk(chunk.stat, chunk.offset + start, chunk.content[start:]))

    def page(self, chunk: Chunk, *, is_whole: bool = False) -> LogPage:
        """Return a chunk up to its last complete character; all of it if it `is_whole`.

        Raises NoLog.
        """
        self.note(chunk.stat)
        if not chunk.stat.is_there:
            raise NoLog(
                f"{self.file.place}: {chunk.stat.problem}", "The job writes it once it runs."
            )
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(chunk.content, final=is_whole)
        pending, _ = decoder.getstate()
        return LogPage(
            stream=self.stream,
            path=self.file.place,
            offset=chunk.offset,
            next_offset=chunk.end - len(pending),
            size=chunk.stat.size,
            text=text,
        )


def _start_of_lines(content: bytes, lines: int) -> int:
    """Return the offset at which the last lines start."""
    position = len(content) - 1 if content.endswith(b"\n") else len(content)
    for _ in range(lines):
        position = content.rfind(b"\n", 0, max(position, 0))
        if position < 0:
            return 0
    return min(position + 1, len(content))


async def follow(
    reader: LogReader,
    first: LogPage | None,
    budget: CommandBudget,
    state: Callable[[], Awaitable[LaunchState]],
) -> AsyncIterator[bytes]:
    """Yield events: `log` with a LogPage and its end as the id, `restart` if the file starts again,
    `problem` while the cluster does not answer, and `end` once the launch has ended and all of its
    log was sent.

    `first` is the page that was read already; None if there is no file yet.
    """
    sent_at = time.monotonic()
    if first is not None:
        reader.read_to(first.next_offset)
        yield _event("log", first)
    has_ended = False
    is_unreachable = False
    while True:
        quiet_seconds = reader.quiet_seconds
        wait = max(reader.pause_seconds, budget.reserve_read_seconds())
        await asyncio.sleep(0.0 if has_ended else wait)
        try:
            # Before the log: the last output precedes the end.
            launch = await state()
            chunk = await reader.file.read(reader.offset, MAX_BYTES)
        except HpcdashError as error:
            if not is_unreachable:
                yield _event("problem", build_error(error))
            is_unreachable = True
            if error.exit_status != EXIT_UNREACHABLE:
                return
            continue
        is_unreachable = False
        if reader.note(chunk.stat) in (FileChange.TRUNCATED, FileChange.REPLACED):
            reader.read_to(0)
            yield _event("restart", {"size": chunk.stat.size})
            continue
        if chunk.stat.is_there and chunk.content:
            page = reader.page(chunk, is_whole=has_ended or quiet_seconds > _QUIET_SECONDS)
            if page.next_offset > reader.offset:
                reader.read_to(page.next_offset)
                sent_at = time.monotonic()
                yield _event("log", page)
                continue
        if has_ended:
            yield _event("end", {"status": launch.status})
            return
        has_ended = launch.has_ended
        if time.monotonic() - sent_at > _SILENT_SECONDS:
            sent_at = time.monotonic()
            yield b": waiting\n\n"


def _event(name: str, content: LogPage | object) -> bytes:
    """Build an event with one line of JSON, so that no text of a log can be an event."""
    number = f"id: {content.next_offset}\n" if isinstance(content, LogPage) else ""
    return f"event: {name}\n{number}data: ".encode() + msgspec.json.encode(content) + b"\n\n"
