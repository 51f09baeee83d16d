"""Cuts a file's bytes into pieces, the unit that a view scrolls by.

A file has the same pieces whichever part of it one holds and whichever way one reads. A piece ends
after each newline. Where a block (BLOCK bytes from a multiple of BLOCK on) holds no newline, one
piece more ends in it: after the last carriage return of the block that something other than a
carriage return follows in it, else at the block's end, less the carriage returns there, or less up
to three bytes so that no UTF-8 sequence is torn. Thus no piece is longer than two blocks, however
long a line is, and whether a block has such a cut is told by the block alone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate, chain, repeat
from operator import add
from typing import NamedTuple

from msgspec import Struct

BLOCK = 32 * 1024
LONGEST_PIECE = 2 * BLOCK
_LONGEST_SEQUENCE = 4
_CARRIAGE_RETURN = 0x0D


class Piece(NamedTuple):
    """Bytes `start` to `end` of the file.

    `overwritten`: a terminal would have written what follows over it (a progress bar of many
    megabytes), so it takes no row; something always follows it.
    """

    start: int
    end: int
    overwritten: bool


class Pieces(Struct, frozen=True):
    """Pieces without a gap between them, in the file's order: piece i is from cuts[i] to cuts[i +
    1].

    `overwritten` holds the starts of those that take no row. `is_open` is true where the last piece
    ended only because the file does: when the file grows, that piece becomes longer or is cut.
    """

    cuts: array[int]
    overwritten: frozenset[int] = frozenset()
    is_open: bool = False

    @property
    def start(self) -> int:
        """Start of the first piece."""
        return self.cuts[0]

    @property
    def end(self) -> int:
        """End of the last piece; without pieces, `start`."""
        return self.cuts[-1]

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def __getitem__(self, index: int) -> Piece:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        start = self.cuts[index]
        return Piece(start, self.cuts[index + 1], start in self.overwritten)

    def __iter__(self) -> Iterator[Piece]:
        return (self[index] for index in range(len(self)))

    def index_at(self, offset: int) -> int:
        """The index of the piece that holds this byte; the nearest one for a byte of no piece, -1
        without pieces.
        """
        return min(max(bisect_right(self.cuts, offset) - 1, 0), len(self) - 1)

    def rows(self) -> list[tuple[int, int]]:
        """Start and end of each piece that takes a row."""
        pairs = zip(self.cuts, self.cuts[1:], strict=False)
        return (
            [pair for pair in pairs if pair[0] not in self.overwritten]
            if self.overwritten
            else list(pairs)
        )


def read_from(offset: int) -> int:
    """Return where to start reading to find the whole piece with the byte at `offset`."""
    return max(0, (offset // BLOCK - 2) * BLOCK)


def pieces(
    content: bytes,
    offset: int,
    *,
    at_start: bool = False,
    at_end: bool = False,
    at_cut: bool = False,
) -> Pieces:
    """The whole pieces in `content`, which begins at `offset` of its file.

    `at_start`: a piece is known to begin at `offset` (always so where it is 0); without it, what
    comes before the first cut that can be told belongs to no piece: begin at `read_from(wanted)`.
    `at_end`: the content ends where the file does; `at_cut`: it ends where a piece is known to
    begin. Without either, what follows the last cut belongs to no piece.
    """
    end = offset + len(content)
    cuts = _cuts_after_newlines(content, offset)
    if extra := _find_long_line_cuts(content, offset):
        # Two ascending runs: sorting them is a merge.
        cuts = array("q", sorted(chain(cuts, extra)))
    if at_start or offset == 0:
        cuts.insert(0, offset)
    is_open = False
    if (at_end or at_cut) and cuts and cuts[-1] < end:
        cuts.append(end)
        is_open = not at_cut
        extra += () if is_open else (end,)
    if not cuts:
        return Pieces(array("q", [end]))
    hidden = (
        bisect_left(cuts, cut) - 1 for cut in extra if content[cut - offset - 1] == _CARRIAGE_RETURN
    )
    return Pieces(cuts, frozenset(cuts[index] for index in hidden if index >= 0), is_open)


def _cuts_after_newlines(content: bytes, offset: int) -> array[int]:
    lengths = map(len, content.split(b"\n"))
    cuts = array("q", accumulate(map(add, lengths, repeat(1)), initial=offset))
    # The first is the beginning; the last stands for a newline after the content's end.
    return cuts[1:-1]


def _find_long_line_cuts(content: bytes, offset: int) -> list[int]:
    """Cuts in the whole blocks that hold no newline.

    In the part of a block before the first whole one no cut is missed: a piece that begins within a
    block begins after a newline or at the block's one other cut, and what comes before the first
    cut belongs to no piece.
    """
    found: list[int] = []
    for first in range(-offset % BLOCK, len(content) - BLOCK + 1, BLOCK):
        if content.find(b"\n", first, first + BLOCK) < 0:
            found.append(offset + first + _find_cut(content[first : first + BLOCK]))
    return found


def _find_cut(block: bytes) -> int:
    """Return where to cut a block without a newline.

    The cut is after a carriage return: the following text overwrites the text before it.
    """
    # What comes right after the block may be a newline, and "…\r\n" overwrites nothing.
    end = len(block.rstrip(b"\r"))
    last = block.rfind(b"\r", 0, end)
    if last >= 0:
        return last + 1
    if end < len(block):
        return end or len(block)
    for back in range(1, _LONGEST_SEQUENCE):
        byte = block[-back]
        if byte >= 0xC2:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(block) - back if length > back else len(block)
        if byte < 0x80:
            break
    return len(block)
