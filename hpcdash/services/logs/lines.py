"""Converts the bytes of a log line to text that is safe on a terminal, with its colours.

The text is what a terminal shows after the line was written: carriage returns overwrite, backspaces
are applied, tabs are blanks. Colour sequences become spans, other escape sequences are removed, and
other control characters are made visible as in domain.text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from hpcdash.domain.text import cell_width, visible

TAB_COLUMNS = 8
# Sparse files are read as NULs by the thousand.
_MANY_NULS = re.compile("\0{5,}")
_NUL_PICTURE = "\u2400"

# Each alternative stops at the next control character: a line of unterminated sequences is read in
# linear time.
_ESCAPE = re.compile(
    "(?:\x1b\\[|\x9b)(?P<parameters>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]*[0-~]"
)
_SGR_PARAMETERS = re.compile("[0-9;:]*")
_LONGEST_SGR = 64
_RESETS = ("\x1b[0m", "\x1b[m")
_BACKSPACES = re.compile("\b+")
_TABS = re.compile("\t+")
_CONTROL_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
# Characters that need no check one by one: Latin, Greek, Cyrillic, punctuation, arrows, control
# pictures, boxes and bars, kana, ideographs, Hangul, U+FFFD. Unassigned ones are not printable.
_ORDINARY = re.compile(
    "[ -~\u00a1-\u024f\u0370-\u03ff\u0400-\u0482\u048a-\u052f\u2010-\u2027\u2030-\u205e\u20a0-\u20bf\u2190-\u23ff"
    "\u2400-\u2426\u2500-\u27bf\u2800-\u28ff\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\ufffd]*"
)

_ATTRIBUTES = {
    1: "bold",
    2: "dim",
    3: "italic",
    4: "underline",
    7: "reverse",
    9: "strike",
    21: "underline2",
}
_ATTRIBUTE_ENDS = {
    22: ("bold", "dim"),
    23: ("italic",),
    24: ("underline", "underline2"),
    27: ("reverse",),
    29: ("strike",),
}
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


class StyledSpan(NamedTuple):
    """Style of characters `start` to `end` of a line, as rich writes it: `bold red on #102030`."""

    start: int
    end: int
    style: str


class ShownLine(Struct, frozen=True):
    """Printable text of a line, with ordered spans that do not overlap."""

    text: str
    spans: tuple[StyledSpan, ...] = ()


class _Pen(NamedTuple):
    """State set by the colour sequences so far."""

    attributes: frozenset[str] = frozenset()
    colour: str = ""
    background: str = ""


_PLAIN = _Pen()


def shown_line(raw: bytes) -> ShownLine:
    """Convert the bytes of a piece, without the newline at its end.

    Bytes that are not UTF-8 become U+FFFD. The last part between carriage returns that is not blank
    is shown.
    """
    text = raw.decode("utf-8", "replace")
    if text.endswith("\n"):
        text = text[:-1]
    text = text.rstrip("\r")
    if text.isascii() and text.isprintable():
        return ShownLine(text)
    pen = _PLAIN
    if "\r" in text:
        before, text = _last_written(text)
        # The colours that are set before the last part.
        if "\x1b[" in before or "\x9b" in before:
            reset = max(map(before.rfind, _RESETS)) if "\x1b" in before else 0
            for found in _ESCAPE.finditer(before, reset):
                pen = _pen_with(pen, found)
    if "\b" in text:
        runs = _written_over(_runs(text, pen))
    elif pen is _PLAIN and "\x1b" not in text and "\x9b" not in text:
        runs = [(text, pen)]
    else:
        runs = _runs(text, pen)
    return _build_line(runs)


def _last_written(text: str) -> tuple[str, str]:
    """Return the text before the last visible part, and that part; if all is blank, the last."""
    end = len(text)
    while end >= 0:
        start = text.rfind("\r", 0, end) + 1
        part = text[start:end]
        if part.strip(" ") and _ESCAPE.sub("", part).strip(" \t\0"):
            return text[:start], part
        end = start - 1
    last = text.rfind("\r") + 1
    return text[:last], text[last:]


def _pen_with(pen: _Pen, found: re.Match[str]) -> _Pen:
    parameters = found["parameters"]
    if found["final"] != "m" or found["between"] or not _SGR_PARAMETERS.fullmatch(parameters):
        return pen
    return _changed(pen, parameters) if len(parameters) <= _LONGEST_SGR else pen


def _runs(text: str, pen: _Pen) -> list[tuple[str, _Pen]]:
    """Remove escape sequences, and split the text where the colours change."""
    runs: list[tuple[str, _Pen]] = []
    position = 0
    for found in _ESCAPE.finditer(text):
        if found.start() > position:
            runs.append((text[position : found.start()], pen))
        position = found.end()
        pen = _pen_with(pen, found)
    if position < len(text):
        runs.append((text[position:], pen))
    return runs


def _written_over(runs: list[tuple[str, _Pen]]) -> list[tuple[str, _Pen]]:
    """Apply backspaces: each moves back by a character, and the following text overwrites."""
    letters: list[str] = []
    pens: list[_Pen] = []
    here = 0
    for text, pen in runs:
        position = 0
        for found in _BACKSPACES.finditer(text):
            here = _write(letters, pens, here, text[position : found.start()], pen)
            here = max(0, here - len(found[0]))
            position = found.end()
        here = _write(letters, pens, here, text[position:], pen)
    result: list[tuple[str, _Pen]] = []
    start = 0
    for index in range(1, len(letters) + 1):
        if index == len(letters) or pens[index] != pens[start]:
            result.append(("".join(letters[start:index]), pens[start]))
            start = index
    return result


def _write(letters: list[str], pens: list[_Pen], here: int, text: str, pen: _Pen) -> int:
    end = here + len(text)
    letters[here:end] = text
    pens[here:end] = [pen] * len(text)
    return end


def _build_line(runs: list[tuple[str, _Pen]]) -> ShownLine:
    """Join runs, with visible control characters and expanded tabs."""
    texts: list[str] = []
    spans: list[StyledSpan] = []
    length = 0
    column = 0
    for raw, pen in runs:
        text = _visible_with_tabs(raw, column) if "\t" in raw else _visible(raw)
        texts.append(text)
        end = length + len(text)
        style = _style(pen)
        if style:
            if spans and spans[-1].end == length and spans[-1].style == style:
                spans[-1] = StyledSpan(spans[-1].start, end, style)
            else:
                spans.append(StyledSpan(length, end, style))
        length = end
        column += cell_width(text)
    return ShownLine("".join(texts), tuple(spans))


def _visible_with_tabs(text: str, column: int) -> str:
    """Make text at a column visible, and expand its tabs."""
    begin = column % TAB_COLUMNS
    if text.isascii() and text.replace("\t", "").isprintable():
        return (" " * begin + text).expandtabs(TAB_COLUMNS)[begin:]
    parts: list[str] = []
    position = 0
    for found in _TABS.finditer(text):
        part = _visible(text[position : found.start()])
        column += cell_width(part)
        blanks = TAB_COLUMNS * len(found[0]) - column % TAB_COLUMNS
        column += blanks
        parts += (part, " " * blanks)
        position = found.end()
    parts.append(_visible(text[position:]))
    return "".join(parts)


def _visible(text: str) -> str:
    """Make text visible like domain.text.visible, but faster, and with counts of many NULs."""
    if "\0" in text:
        text = _MANY_NULS.sub(lambda found: f"{_NUL_PICTURE}×{len(found[0])}", text)
    if not text.isprintable():
        text = text.translate(_CONTROL_PICTURES)
    if text.isprintable() and _ORDINARY.fullmatch(text):
        return text
    return visible(text)


@lru_cache(maxsize=4096)
def _changed(pen: _Pen, parameters: str) -> _Pen:
    """Return the pen after `ESC [ parameters m`, as in ECMA-48 and ITU T.416.

    Unknown numbers change nothing.
    """
    attributes = set(pen.attributes)
    colour = pen.colour
    background = pen.background
    groups = [[int(word or 0) for word in group.split(":")] for group in parameters.split(";")]
    position = 0
    while position < len(groups):
        group = groups[position]
        code = group[0]
        position += 1
        if code == 0:
            attributes = set()
            colour = ""
            background = ""
        elif code == 4 and group[1:2] == [0]:
            attributes -= {"underline", "underline2"}
        elif code in _ATTRIBUTES:
            attributes.add(_ATTRIBUTES[code])
        elif code in _ATTRIBUTE_ENDS:
            attributes -= set(_ATTRIBUTE_ENDS[code])
        elif code in (38, 48):
            if len(group) > 1:
                named = _extended_colour(group[1:])
            else:
                # 38;5;N and 38;2;R;G;B
                kind = groups[position][0] if position < len(groups) else 0
                taken = {5: 2, 2: 4}.get(kind, 1)
                named = _extended_colour([one[0] for one in groups[position : position + taken]])
                position += taken
            if named and code == 38:
                colour = named
            elif named:
                background = named
        elif code == 39:
            colour = ""
        elif code == 49:
            background = ""
        elif 30 <= code <= 37:
            colour = _COLOURS[code - 30]
        elif 90 <= code <= 97:
            colour = f"bright_{_COLOURS[code - 90]}"
        elif 40 <= code <= 47:
            background = _COLOURS[code - 40]
        elif 100 <= code <= 107:
            background = f"bright_{_COLOURS[code - 100]}"
    return _Pen(frozenset(attributes), colour, background)


def _extended_colour(numbers: list[int]) -> str:
    """Return the name of a colour 5, N or 2, R, G, B or 2, space, R, G, B; '' for none."""
    if numbers[:1] == [5] and len(numbers) == 2 and numbers[1] < 256:
        return f"color({numbers[1]})"
    if numbers[:1] == [2] and len(numbers) >= 4:
        rgb = numbers[2:5] if len(numbers) >= 5 else numbers[1:4]
        if len(rgb) == 3 and all(part < 256 for part in rgb):
            return "#{:02x}{:02x}{:02x}".format(*rgb)
    return ""


@lru_cache(maxsize=4096)
def _style(pen: _Pen) -> str:
    parts = sorted(pen.attributes)
    if pen.colour:
        parts.append(pen.colour)
    if pen.background:
        parts += ("on", pen.background)
    return " ".join(parts)
