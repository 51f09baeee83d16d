"""Reads the ends of many files of a login node with few commands: stderr where it says anything,
else stdout.
"""

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
    Obstacle.CLOSED: "no permission to read its log",
    Obstacle.SPECIAL: "its log is not a regular file",
    Obstacle.MISSING: "its log does not exist",
}


class LogEnd(Struct, frozen=True):
    """The last lines of a file, safe to show, blank ones too; `problem` says why there are none, ''
    else.
    """

    lines: tuple[str, ...]
    problem: str = ""


def ends_query(
    files: Sequence[tuple[str | None, str | None]], length: int = END_BYTES
) -> Query[tuple[LogEnd, ...]]:
    """The last `length` bytes of at most FILES_A_COMMAND (stdout, stderr) pairs of paths, in order,
    in one command.

    stderr counts where it holds more than blanks.
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
        return tuple(
            # stdout is not read if stderr counts.
            _end(output if output.stat.is_there or output.stat.problem else errors)
            for errors, output in zip(chunks[::2], chunks[1::2], strict=True)
        )

    return Query(query.argv, parse, query.limit_seconds)


def _end(chunk: Chunk) -> LogEnd:
    if chunk.stat.problem:
        return LogEnd((), _PROBLEMS.get(chunk.stat.obstacle, chunk.stat.problem))
    return LogEnd(last_lines(chunk))


def last_lines(chunk: Chunk, most: int | None = None) -> tuple[str, ...]:
    """The last `most` lines of a chunk (None: all), safe to show."""
    raw = chunk.content.split(b"\n")
    if chunk.offset and len(raw) > 1:
        # The first line has lost its beginning.
        del raw[0]
    return tuple(shown_line(_shortened(line)).text for line in raw[-most if most else 0 :])


def _shortened(line: bytes) -> bytes:
    """The beginning of a long line, and of what was written over others in its place that of the
    last.
    """
    if len(line) <= _LONGEST_LINE_BYTES:
        return line
    return line.rstrip(b"\r").rpartition(b"\r")[2][:_LONGEST_LINE_BYTES]
