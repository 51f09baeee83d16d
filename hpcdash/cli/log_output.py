"""Writes a log's bytes to stdout: as they are, or line by line made safe where a person looks."""

from __future__ import annotations

import os
import select
import shutil
import sys
from collections.abc import Mapping
from typing import BinaryIO, Protocol

from rich.color import ColorSystem
from rich.style import Style

from hpcdash.domain.text import clip
from hpcdash.services.logs.lines import ShownLine, shown_line
from hpcdash.services.logs.pieces import pieces

# Back to the line's start, and what stood there erased (ECMA-48: CR, EL).
_REWRITE = "\r\x1b[K"


class LogOutput(Protocol):
    """Where a log's bytes go; raises BrokenPipeError once nobody reads."""

    def write(self, content: bytes, offset: int) -> None:
        """Write what comes next; `offset` is its place in the file, which goes on where it ended or is a new start."""
        ...

    def pause(self) -> None:
        """Nothing more comes for now: show what has no newline yet."""
        ...

    def end_line(self) -> None:
        """End a line that is open, so that something else can be said."""
        ...


def log_output() -> LogOutput:
    """The way to write to this stdout."""
    stdout = sys.stdout
    if not stdout.isatty():
        return RawOutput(stdout.buffer)
    return TerminalOutput(stdout.buffer, colours_of(os.environ), stdout.encoding or "utf-8")


def colours_of(variables: Mapping[str, str]) -> ColorSystem | None:
    """How many colours to write; None where NO_COLOR or the terminal wants none."""
    terminal = variables.get("TERM", "")
    if variables.get("NO_COLOR") or terminal in ("", "dumb", "unknown"):
        return None
    if variables.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return ColorSystem.TRUECOLOR
    return ColorSystem.EIGHT_BIT if terminal.endswith("256color") else ColorSystem.STANDARD


class RawOutput:
    """The file's bytes, unchanged."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, content: bytes, offset: int) -> None:
        self._stream.write(content)
        self._stream.flush()

    def pause(self) -> None:
        """Find out whether anybody still reads: a log that does not grow would never tell."""
        poll = select.poll()
        poll.register(self._stream.fileno(), 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            raise BrokenPipeError

    def end_line(self) -> None:
        """Bytes of the file are never added to."""


class TerminalOutput:
    """Lines made safe, with their colours; a line without newline yet is rewritten in place as it grows."""

    def __init__(self, stream: BinaryIO, colours: ColorSystem | None, encoding: str) -> None:
        self._stream = stream
        self._colours = colours
        self._encoding = encoding
        self._rest = b""
        self._end = 0
        # What is shown of the line without newline; None: no line is open.
        self._open: str | None = None

    def write(self, content: bytes, offset: int) -> None:
        if offset != self._end:
            self.end_line()
            self._rest = b""
        begin = offset - len(self._rest)
        content = self._rest + content
        self._end = begin + len(content)
        cut = pieces(content, begin, at_start=True)
        lines = [self._coloured(shown_line(content[first - begin : last - begin])) for first, last in cut.rows()]
        self._rest = content[cut.end - begin :]
        if lines:
            self._put("".join(f"{line}\n" for line in lines))
            self._open = None

    def pause(self) -> None:
        if self._rest:
            text = clip(shown_line(self._rest).text, shutil.get_terminal_size().columns - 1)
            if text != self._open:
                self._put(text)
                self._open = text

    def end_line(self) -> None:
        if self._rest:
            self._put(self._coloured(shown_line(self._rest)) + "\n")
        self._rest, self._open = b"", None

    def _coloured(self, line: ShownLine) -> str:
        if self._colours is None or not line.spans:
            return line.text
        parts: list[str] = []
        here = 0
        for start, end, style in line.spans:
            parts.append(line.text[here:start])
            parts.append(Style.parse(style).render(line.text[start:end], color_system=self._colours))
            here = end
        return "".join(parts) + line.text[here:]

    def _put(self, text: str) -> None:
        text = text if self._open is None else _REWRITE + text
        self._stream.write(text.encode(self._encoding, "replace"))
        self._stream.flush()
