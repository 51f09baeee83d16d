"""Reads the last lines of many logs with few commands: stderr if it has text, else stdout."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hpcdash.backends.queries import Answer, Query
from hpcdash.services.files import Chunk, FileRange, Obstacle, files_query
from hpcdash.services.logs.lines import shown_line

END_BYTES = 4096
FILES_A_COMMAND = 50
_LONGEST_LINE_BYTES = 2000
_PROBLEMS: dict[Obstacle | None, str] = {
    Obstacle.CLOSED: "no permission to read the log",
    Obstacle.SPECIAL: "the log is not a regular file",
    Obstacle.MISSING: "the log does not exist",
}


class LogEnd(Struct, frozen=True):
    """Last lines of a file, safe to show, with blank lines; `problem` is the reason for none."""

    lines: tuple[str, ...]
    problem: str = ""


def ends_query(
    files: Sequence[tuple[str | None, str | None]], length: int = END_BYTES
) -> Query[tuple[LogEnd, ...]]:
    """Read the last `length` bytes of at most FILES_A_COMMAND (stdout, stderr) pairs of paths.

    Of a pair, stdout is read only if stderr is blank.
    """
    ranges = []
    for stdout, stderr in files:
        ranges += [
            FileRange(stderr or "", None, length),
            FileRange(stdout or "", None, length, if_blank=True),
        ]
    query = files_query(ranges)

    def parse(answer: Answer) -> tuple[LogEnd, ...]:
        chunks = query.parse(answer)
        ends = []
        for stderr, stdout in zip(chunks[::2], chunks[1::2], strict=True):
            is_read = stdout.stat.is_there or stdout.stat.problem
            chunk = stdout if is_read else stderr
            if chunk.stat.problem:
                problem = _PROBLEMS.get(chunk.stat.obstacle, chunk.stat.problem)
                ends.append(LogEnd((), problem))
            else:
                ends.append(LogEnd(last_lines(chunk)))
        return tuple(ends)

    return Query(query.argv, parse, query.limit_seconds)


def last_lines(chunk: Chunk, count: int | None = None) -> tuple[str, ...]:
    """Return the last `count` lines of a chunk (None: all), safe to show."""
    raw = chunk.content.split(b"\n")
    if chunk.offset and len(raw) > 1:
        # The first line has lost its beginning.
        del raw[0]
    return tuple(shown_line(_shortened(line)).text for line in raw[-count if count else 0 :])


def _shortened(line: bytes) -> bytes:
    """Return the beginning of a long line, after the carriage return that overwrote it."""
    if len(line) <= _LONGEST_LINE_BYTES:
        return line
    return line.rstrip(b"\r").rpartition(b"\r")[2][:_LONGEST_LINE_BYTES]
