"""Makes text that anyone may have written safe to show in a terminal cell."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from rich.cells import cell_len, set_cell_size

ELLIPSIS = "…"
REPLACEMENT = "\ufffd"
# Burmese and Vietnamese need two marks on a letter; "zalgo" text has dozens.
MAX_MARKS_IN_A_ROW = 2

_PATH_STARTS = ("/", "~/", "./", "../")
_NARROWEST_PATH = 12

_SURROGATE = re.compile("[\ud800-\udfff]")
_DOTTED_CIRCLE = "\u25cc"
_DELETE_PICTURE = "\u2421"
_ZERO_WIDTH_JOINER = "\u200d"
_PRESENTATION_SELECTORS = "\ufe0e\ufe0f"
# Letters that print nothing: Hangul fillers, Khmer inherent vowels, Mongolian and other selectors,
# the grapheme joiner.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
# Blocks that newer Unicode versions fill with emoji and ideographs; their widths are settled before
# their letters.
_RESERVED_BUT_PRINTABLE = re.compile(
    "[\U0001f300-\U0001faff\U00020000-\U0002fffd\U00030000-\U0003fffd]"
)
_LINE_ENDS_AND_TABS = re.compile("((?:\r?\n|\t)+)")
_PLAIN, _MARK, _JOINER = range(3)


def decode(raw: bytes) -> str:
    """Bytes as text; what is not UTF-8 becomes U+FFFD."""
    return raw.decode("utf-8", "replace")


def counted(count: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def visible(text: str) -> str:
    """The same text with nothing in it that moves the cursor, hides, reorders or piles up.

    Control characters become their pictures (`␛`, `␊`, `␉`); C1 controls, bidirectional controls,
    zero-width and other format characters, line separators, private and unassigned code points
    become `‹200B›`; lone surrogates become U+FFFD. No more than MAX_MARKS_IN_A_ROW combining marks
    stay on a letter. Emoji, ideographs and right-to-left letters stay; the joiners between emoji
    go, as terminals disagree on the width of what they join. The result is one line, and
    `visible(visible(x)) == visible(x)`.
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    base = ""
    for position, character in enumerate(text):
        kind, stand_in = _classify(character)
        if kind == _PLAIN:
            marks = 0
        elif kind == _MARK:
            if not shown:
                shown.append(_DOTTED_CIRCLE)
            marks += 1
            if marks > MAX_MARKS_IN_A_ROW:
                continue
        elif kind == _JOINER:
            if _is_symbol(base) and (
                character in _PRESENTATION_SELECTORS
                or _is_symbol(text[position + 1 : position + 2])
            ):
                continue
            marks = 0
        shown.append(stand_in)
        base = character
    return "".join(shown)


def visible_text(text: str) -> str:
    """As `visible`, of many lines: tabs and line ends, CRLF too, stay."""
    return "".join(
        part if at % 2 else visible(part) for at, part in enumerate(_LINE_ENDS_AND_TABS.split(text))
    )


def align_cells(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, its cells visible and as wide as the widest of their column."""
    shown = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(cell_width, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(
            cell + " " * (width - cell_width(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in shown
    ]


def clip(text: str, width: int) -> str:
    """Text of at most `width` terminal cells; what was cut off leaves an `…`.

    Wants text that is `visible` already.
    """
    if width <= 0:
        return ""
    if len(text) <= width and text.isascii():
        return text
    if cell_len(text) <= width:
        return text
    if width == 1:
        return ELLIPSIS
    return set_cell_size(text, width - 1).rstrip(" ") + ELLIPSIS


def clip_path(path: str, width: int) -> str:
    """As `clip`, but a path is cut in its middle: it begins as it did and keeps as much of its end
    as fits.

    Text that does not begin as a path, or a width below 12 cells, is clipped at its end.
    """
    if not path.startswith(_PATH_STARTS) or width < _NARROWEST_PATH or cell_width(path) <= width:
        return clip(path, width)
    # The end tells runs apart, the beginning the file system: a third for it, whole folders where
    # one fits.
    beside_name = width - 1 - cell_width(path[path.rstrip("/").rfind("/") :])
    head = set_cell_size(
        path, min(width // 3, beside_name) if beside_name > 0 else width // 3
    ).rstrip(" ")
    folder = head.rfind("/") + 1
    head = head[:folder] if folder > 1 else head
    room = width - 1 - cell_width(head)
    tail = _last_cells(path[len(head) :], room)
    name = tail.find("/")
    # Cut at a folder where that loses little.
    if 0 < name <= room // 3:
        tail = tail[name:]
    return f"{head}{ELLIPSIS}{tail}"


def _last_cells(text: str, width: int) -> str:
    """The end of a text, of at most `width` cells."""
    start = max(0, len(text) - width)
    while cell_width(text[start:]) > width:
        start += 1
    return text[start:]


def cell_width(text: str) -> int:
    """How many terminal cells a text takes."""
    return len(text) if text.isascii() else cell_len(text)


@lru_cache(maxsize=8192)
def _classify(character: str) -> tuple[int, str]:
    """What a character is, and what is shown in its place."""
    code = ord(character)
    if code < 0x20:
        return _PLAIN, chr(0x2400 + code)
    if code == 0x7F:
        return _PLAIN, _DELETE_PICTURE
    escape = f"‹{code:04X}›"
    if character == _ZERO_WIDTH_JOINER or character in _PRESENTATION_SELECTORS:
        return _JOINER, escape
    category = unicodedata.category(character)
    if category == "Cs":
        return _PLAIN, REPLACEMENT
    if category == "Cn" and _RESERVED_BUT_PRINTABLE.match(character):
        return _PLAIN, character
    if category in {"Cc", "Cf", "Co", "Cn", "Zl", "Zp"} or _BLANK.match(character):
        return _PLAIN, escape
    if category in {"Mn", "Me"} or cell_len(character) == 0:
        return _MARK, character
    return _PLAIN, character


def _is_symbol(character: str) -> bool:
    return bool(character) and (
        unicodedata.category(character) in {"So", "Sk", "Sm"}
        or _RESERVED_BUT_PRINTABLE.match(character) is not None
    )


def without_surrogates(text: str) -> str:
    """With U+FFFD for lone surrogates, bytes that are no UTF-8: neither JSON, TOML nor SQLite can
    hold them.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
