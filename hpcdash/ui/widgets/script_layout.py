"""Which lines of the screen a script's lines take, wrapped or not, and where their notes stand. Draws nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpcdash.domain.scripts import ScriptLine
from hpcdash.domain.text import width_of

NOTE_SIGN = "└ "
_GAP_CELLS = 3
# Notes stand in one column beside the directives; one wider than this part of the page does not move it.
_DIRECTIVES_SHARE = 0.6
_ONE_LETTER_WIDE = re.compile(r"[\x20-\x7e]*")


class Placed(NamedTuple):
    """A line of the screen: letters `first` to `last` of a line's text, or of its note where `is_note`.

    `note` stands beside it, from the cell `note_column` on.
    """

    line: int
    first: int
    last: int
    note: str = ""
    note_column: int = 0
    is_note: bool = False


@dataclass(frozen=True, slots=True)
class PageLayout:
    """All lines of the screen; the first `gutter` cells hold the line's number."""

    rows: Sequence[Placed]
    gutter: int
    # Of the widest row, without the gutter.
    cells: int


def lay_out(lines: Sequence[ScriptLine], width: int, *, wrap: bool) -> PageLayout:
    """Places lines on a page of `width` cells; wrapped, none is wider than the page."""
    highest = (lines[-1].number or 0) if lines else 0
    gutter = len(str(highest)) + 2 if highest else 1
    room = max(8, width - gutter)
    column = _note_column(lines, room)
    rows: list[Placed] = []
    cells = 0
    for at, line in enumerate(lines):
        text_cells = width_of(line.text)
        if not line.note and (not wrap or text_cells <= room):
            rows.append(Placed(at, 0, len(line.text)))
            cells = max(cells, text_cells)
            continue
        note_cells = width_of(line.note)
        at_column = max(text_cells + _GAP_CELLS, min(column, room - note_cells))
        beside = bool(note_cells) and at_column + note_cells <= room
        pieces = _pieces(line.text, room) if wrap and text_cells > room else ((0, len(line.text)),)
        rows.extend(Placed(at, first, last, line.note if beside else "", at_column) for first, last in pieces)
        cells = max(cells, at_column + note_cells if beside else text_cells)
        if note_cells and not beside:
            sign_cells = width_of(NOTE_SIGN)
            rows.extend(Placed(at, first, last, is_note=True) for first, last in _pieces(line.note, room - sign_cells))
    return PageLayout(rows, gutter, min(cells, room) if wrap else cells)


def _note_column(lines: Sequence[ScriptLine], room: int) -> int:
    most = int(room * _DIRECTIVES_SHARE)
    widest = max((cells for line in lines if line.note and (cells := width_of(line.text)) <= most), default=0)
    return widest + _GAP_CELLS


def _pieces(text: str, room: int) -> list[tuple[int, int]]:
    """Where to cut a text, so that no piece is wider than `room` cells."""
    if _ONE_LETTER_WIDE.fullmatch(text):
        return [(first, min(first + room, len(text))) for first in range(0, max(1, len(text)), room)]
    pieces: list[tuple[int, int]] = []
    first = cells = 0
    for at, letter in enumerate(text):
        letter_cells = width_of(letter)
        if cells + letter_cells > room and at > first:
            pieces.append((first, at))
            first, cells = at, 0
        cells += letter_cells
    return [*pieces, (first, len(text))]
