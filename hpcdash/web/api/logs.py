"""The log of a launch: a part of it, or all that comes, as server-sent events."""

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
# Proxies and readers close what is silent for longer.
_SILENT_SECONDS = 15.0
# The rest of a letter at the end of a file may still come.
_QUIET_SECONDS = 2.0


class LogReader(FollowedFile):
    """Pages of one file; `stream` is stdout or stderr."""

    def __init__(self, file: LogFile, stream: str) -> None:
        super().__init__(file)
        self.stream = stream

    async def read(self, offset: int) -> LogPage:
        """Read a page from an offset on, at most MAX_BYTES. Raises NoLog."""
        return self.page(await self.file.read(offset, MAX_BYTES))

    async def read_last(self, lines: int) -> LogPage:
        """The last lines, as far as MAX_BYTES go. Raises NoLog."""
        size = _FIRST_BYTES
        while True:
            chunk = await self.file.read_end(min(size, MAX_BYTES))
            # A newline at the very end ends the last line, and begins none.
            begun = chunk.content.removesuffix(b"\n").count(b"\n")
            if begun >= lines or chunk.offset == 0 or size >= MAX_BYTES:
                break
            size *= 4
        start = _start_of_lines(chunk.content, lines)
        return self.page(Chunk(chunk.stat, chunk.offset + start, chunk.content[start:]))

    def page(self, chunk: Chunk, *, is_whole: bool = False) -> LogPage:
        """A chunk up to its last whole letter, all of it where it `is_whole`. Raises NoLog."""
        self.note(chunk.stat)
        if not chunk.stat.is_there:
            raise NoLog(
                f"{self.file.place}: {chunk.stat.problem}", "It is written once the job runs."
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
    """Return the offset at which the last lines begin."""
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
    """Events: `log` with a LogPage and its end as the id, `restart` where the file begins anew,
    `problem` where the cluster does not answer for now, and `end` once the launch has ended and all
    of it was sent.

    `first` is what was read already; None: the file is not there yet.
    """
    sent_at = time.monotonic()
    if first is not None:
        reader.read_to(first.next_offset)
        yield _event("log", first)
    has_ended = is_lost = False
    while True:
        quiet_seconds = reader.quiet_seconds
        wait = max(reader.pause_seconds, budget.reserve_read_seconds())
        await asyncio.sleep(0.0 if has_ended else wait)
        try:
            # Before the check: the last output comes before the end.
            seen = await state()
            chunk = await reader.file.read(reader.offset, MAX_BYTES)
        except HpcdashError as error:
            if not is_lost:
                yield _event("problem", build_error(error))
            is_lost = True
            if error.exit_status != EXIT_UNREACHABLE:
                return
            continue
        is_lost = False
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
            yield _event("end", {"status": seen.status})
            return
        has_ended = seen.has_ended
        if time.monotonic() - sent_at > _SILENT_SECONDS:
            sent_at = time.monotonic()
            yield b": waiting\n\n"


def _event(name: str, content: LogPage | object) -> bytes:
    """One line of JSON: nothing in a log is taken for an event."""
    number = f"id: {content.next_offset}\n" if isinstance(content, LogPage) else ""
    return f"event: {name}\n{number}data: ".encode() + msgspec.json.encode(content) + b"\n\n"
