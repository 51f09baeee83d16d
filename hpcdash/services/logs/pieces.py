"""Cuts a file's bytes into pieces, the unit that a view scrolls by.

The pieces of a file do not depend on the part that was read. A piece ends after each newline. In a
block (BLOCK bytes from a multiple of BLOCK) without a newline another piece ends: after the block's
last carriage return that is followed by something else, or else at its end, without carriage
returns or an incomplete UTF-8 sequence there. So no piece is longer than two blocks, and a block's
own bytes determine its cuts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate, chain, pairwise, repeat
from operator import add
from typing import NamedTuple

from msgspec import Struct

BLOCK = 32 * 1024
LONGEST_PIECE = 2 * BLOCK
_LONGEST_SEQUENCE = 4
_CARRIAGE_RETURN = 0x0D


class Piece(NamedTuple):
    """Bytes `start` to `end` of the file.

    An `overwritten` piece, such as a part of a long progress bar, takes no row: on a terminal the
    next piece overwrites it.
    """

    start: int
    end: int
    overwritten: bool


class Pieces(Struct, frozen=True):
    """Contiguous pieces; piece i is from cuts[i] to cuts[i + 1].

    `overwritten` has the starts of the pieces that take no row. `is_open`: the last piece ends only
    with the file, and changes when the file grows.
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
        """Return the index of the piece with a byte, or of the nearest; -1 without pieces."""
        return min(max(bisect_right(self.cuts, offset) - 1, 0), len(self) - 1)

    def rows(self) -> list[tuple[int, int]]:
        """Return the start and end of each piece that takes a row."""
        pairs = list(pairwise(self.cuts))
        if not self.overwritten:
            return pairs
        return [pair for pair in pairs if pair[0] not in self.overwritten]


def read_from(offset: int) -> int:
    """Return where to start reading to find the whole piece with the byte at `offset`."""
    return max(0, (offset // BLOCK - 2) * BLOCK)


def pieces(
    content: bytes,
    offset: int,
    *,
    at_start: bool = False,
    at_end: bool = False,
) -> Pieces:
    """Return the whole pieces in `content`, which begins at `offset` of its file.

    `at_start`: a piece begins at `offset`, as at 0; otherwise the bytes before the first cut are
    skipped, so read from `read_from`. `at_end`: the content ends with the file; otherwise the bytes
    after the last cut are skipped.
    """
    end = offset + len(content)
    cuts = _cuts_after_newlines(content, offset)
    if extra := _find_long_line_cuts(content, offset):
        # Two ascending runs: sorting them is a merge.
        cuts = array("q", sorted(chain(cuts, extra)))
    if at_start or offset == 0:
        cuts.insert(0, offset)
    is_open = at_end and bool(cuts) and cuts[-1] < end
    if is_open:
        cuts.append(end)
    if not cuts:
        return Pieces(array("q", [end]))
    hidden = (
        bisect_left(cuts, cut) - 1 for cut in extra if content[cut - offset - 1] == _CARRIAGE_RETURN
    )
    return Pieces(cuts, frozenset(cuts[index] for index in hidden if index >= 0), is_open)


def _cuts_after_newlines(content: bytes, offset: int) -> array[int]:
    lengths = map(len, content.split(b"\n"))
    cuts = array("q", accumulate(map(add, lengths, repeat(1)), initial=offset))
    # The first is the beginning, the last is for a newline after the end.
    return cuts[1:-1]


def _find_long_line_cuts(content: bytes, offset: int) -> list[int]:
    """Return the cuts in the whole blocks without a newline.

    No cut is missed in the part of a block before the first whole one: a piece that begins within
    it begins after a newline or at the block's other cut.
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
    # The next block may begin with a newline, and "…\r\n" overwrites nothing.
    end = len(block.rstrip(b"\r"))
    last = block.rfind(b"\r", 0, end)
    if last >= 0:
        return last + 1
    if end < len(block):
        return end or len(block)
    for back in range(1, _LONGEST_SEQUENCE):
        byte = block[-back]
        if byte >= 0xC2:
            if byte < 0xE0:
                length = 2
            else:
                length = 3 if byte < 0xF0 else 4
            return len(block) - back if length > back else len(block)
        if byte < 0x80:
            break
    return len(block)
