"""Cuts the bytes of a log into plain lines: no colours, one blank for many, no carriage returns."""

from __future__ import annotations

import re

import numpy as np

from hpcdash.logs.metrics import Integers

# A longer line, up to its newline or carriage return, holds no metric.
LONGEST_LINE_BYTES = 8192
UP = b"\x1f"
# What a line that is too long becomes.
OVERLONG = b"\x1e"
_BLANK = frozenset((b"", b" ", UP, b" " + UP))

_TABLE = bytes(0x0A if code == 0x0D else 0x20 if code in (0x09, 0x0B, 0x0C) else code for code in range(256))
_DELETED = b"\0\b\x1c\x1d\x1e\x1f"
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
# Of the usual ones, of up to so many letters between `[` and `m`.
_COLOUR_LETTERS = 6
_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])")


def last_line_end(content: bytes) -> int:
    """Where the last line that is complete ends, its newline or carriage return included; 0 where none does."""
    return max(content.rfind(b"\n"), content.rfind(b"\r")) + 1


def first_line_end(content: bytes) -> int:
    """Where the first line ends, its end included; 0 where none does."""
    newline, carriage_return = content.find(b"\n"), content.find(b"\r")
    if newline < 0 or carriage_return < 0:
        return max(newline, carriage_return) + 1
    return min(newline, carriage_return) + 1


def plain_lines(content: bytes) -> tuple[list[bytes], Integers]:
    """The lines of complete lines that are not blank, and where in `content` each begins."""
    text = content.translate(_TABLE, _DELETED)
    ends = np.flatnonzero(np.frombuffer(content.replace(b"\r", b"\n"), np.uint8) == 0x0A)
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    if b"\x1b" in text:
        text = _without_colours(text.replace(b"\x1b[A", UP))
        if b"\x1b" in text:
            text = _ESCAPE.sub(b"", text)
    if b"  " in text:
        letters = np.frombuffer(text, np.uint8)
        is_blank = letters == 0x20
        is_blank[1:] &= is_blank[:-1].copy()
        is_blank[:1] = False
        text = letters[~is_blank].tobytes()
    lines = text.split(b"\n")
    lines.pop()
    lengths = ends - starts
    if len(lengths) and int(lengths.max()) > LONGEST_LINE_BYTES:
        for index in np.flatnonzero(lengths > LONGEST_LINE_BYTES).tolist():
            lines[index] = OVERLONG
    if not _BLANK.isdisjoint(lines):
        kept = [index for index, line in enumerate(lines) if line not in _BLANK]
        return [lines[index] for index in kept], starts[kept]
    return lines, starts


def _without_colours(text: bytes) -> bytes:
    """As _COLOUR.sub, in a third of the time where short colours are all there is."""
    letters = np.frombuffer(text + b" " * (_COLOUR_LETTERS + 3), np.uint8)
    begins = np.flatnonzero(letters == 0x1B)
    behind = letters[begins[:, None] + np.arange(1, _COLOUR_LETTERS + 3)]
    is_inside = ((behind >= 0x30) & (behind <= 0x39)) | (behind == 0x3B)
    lengths = np.logical_and.accumulate(is_inside[:, 1:-1], axis=1).sum(axis=1)
    ends = behind[np.arange(begins.size), 1 + lengths]
    if not bool(((behind[:, 0] == 0x5B) & (ends == 0x6D)).all()):
        return _COLOUR.sub(b"", text)
    kept = np.ones(letters.size, bool)
    for position in range(_COLOUR_LETTERS + 3):
        kept[begins[lengths + 3 > position] + position] = False
    kept[len(text) :] = False
    return letters[kept].tobytes()
