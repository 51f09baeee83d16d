"""How a file is cut into pieces, wherever one begins to read it."""

from __future__ import annotations

from array import array
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.services.logs.pieces import BLOCK, LONGEST_PIECE, Piece, Pieces, pieces, read_from

FILLINGS = (
    b"x",
    b"\n",
    b"\r",
    b"ab\r",
    b"line of text\n",
    "é".encode(),
    "漢".encode(),
    "🙂".encode(),
    b"\0",
    b"\xff",
    b"\r\n",
)


class File(bytes):
    """Does not fill the screen when a test fails."""

    def __repr__(self) -> str:
        runs = groupby(self.splitlines(keepends=True))
        return f"File({[(bytes(run), len(list(same))) for run, same in runs]!r:.1000})"


@st.composite
def files(draw: st.DrawFn) -> File:
    """A few blocks of text, of long lines, of progress bars, of what is no text."""
    lengths = st.sampled_from((1, 2, 3, 100, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 2)) | st.integers(
        1, 3 * BLOCK
    )
    parts = draw(st.lists(st.tuples(st.sampled_from(FILLINGS), lengths), max_size=6))
    return File(b"".join((filling * length)[:length] for filling, length in parts))


def whole(content: bytes) -> Pieces:
    return pieces(content, 0, at_end=True)


def agree(part: Pieces, of: Pieces) -> None:
    """The same pieces, from the part's start to its end."""
    assert [piece for piece in of if part.start <= piece.start and piece.end <= part.end] == list(
        part
    )


@given(files())
def test_nothing_is_lost_and_no_piece_is_longer_than_two_blocks(content: bytes) -> None:
    found = list(whole(content))
    assert b"".join(content[piece.start : piece.end] for piece in found) == content
    for piece in found:
        assert 0 < piece.end - piece.start <= LONGEST_PIECE
        assert b"\n" not in content[piece.start : piece.end - 1]


@given(files())
def test_what_is_overwritten_ends_at_a_carriage_return_and_something_is_written_over_it(
    content: bytes,
) -> None:
    for piece in whole(content):
        if piece.overwritten:
            assert content[piece.end - 1 : piece.end] == b"\r"
            # A block of nothing but carriage returns shows nothing whatever follows.
            blank = not content[piece.end - BLOCK : piece.end].strip(b"\r")
            assert blank or content[piece.end : piece.end + 1] not in (b"", b"\n", b"\r")


@given(files(), st.data())
def test_pieces_are_the_same_wherever_one_begins_and_ends_to_read(
    content: bytes, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(begin, len(content)))
    part = pieces(content[begin:end], begin, at_end=end == len(content))
    agree(part, whole(content))


@given(files(), st.data())
def test_one_reads_on_from_any_piece_without_what_came_before(
    content: bytes, data: st.DataObject
) -> None:
    cuts = whole(content).cuts
    begin = data.draw(st.sampled_from(list(cuts) or [0]))
    part = pieces(content[begin:], begin, at_start=True, at_end=True)
    assert part.start == begin
    agree(part, whole(content))
    assert part.end == len(content)


@given(files(), st.data())
def test_one_reads_back_from_any_piece_to_the_start(content: bytes, data: st.DataObject) -> None:
    found = whole(content)
    end = data.draw(st.sampled_from(list(found.cuts) or [0]))
    while end > 0:
        begin = read_from(end)
        stop = end - end % BLOCK + BLOCK
        part = pieces(content[begin:stop], begin, at_end=stop >= len(content))
        before = [piece for piece in part if piece.start < end]
        assert before
        assert before[-1].end == end
        agree(part, found)
        end = part.start


@given(files(), st.data())
def test_what_is_read_from_two_blocks_before_a_byte_holds_its_piece(
    content: bytes, data: st.DataObject
) -> None:
    if not content:
        return
    wanted = data.draw(st.integers(0, len(content) - 1))
    begin = read_from(wanted)
    part = pieces(
        content[begin : wanted + LONGEST_PIECE + BLOCK],
        begin,
        at_end=wanted + 3 * BLOCK >= len(content),
    )
    piece = part[part.index_at(wanted)]
    assert piece.start <= wanted < piece.end
    assert piece in list(whole(content))


@given(files(), st.data())
def test_pieces_that_were_closed_stay_when_the_file_grows(
    content: bytes, data: st.DataObject
) -> None:
    half = data.draw(st.integers(0, len(content)))
    early = pieces(content[:half], 0, at_end=True)
    closed = list(early)[: len(early) - early.is_open]
    assert list(whole(content))[: len(closed)] == closed


def test_a_last_line_without_newline_is_open() -> None:
    assert list(whole(b"a\nb")) == [Piece(0, 2, False), Piece(2, 3, False)]
    assert whole(b"a\nb").is_open
    assert not whole(b"a\n").is_open
    assert list(pieces(b"a\nb", 0)) == [Piece(0, 2, False)]


def test_a_progress_bar_of_ten_megabytes_is_one_row() -> None:
    content = b"".join(
        b"\r%3d%%|#####     | %d/100000" % (step // 1000, step) for step in range(400_000)
    )
    found = whole(content)
    rows = found.rows()
    assert len(content) > 10_000_000
    assert len(rows) == 1
    assert content[rows[0][0] : rows[0][1]].endswith(b"399999/100000")


def test_a_long_line_that_ends_in_carriage_return_and_newline_is_shown() -> None:
    for length in range(BLOCK - 3, BLOCK + 1):
        content = b"x" * length + b"\r\n"
        assert b"".join(content[start:end] for start, end in whole(content).rows()) == content


def test_no_letter_is_torn_at_the_end_of_a_block() -> None:
    for lead in range(6):
        content = b"x" * lead + "🙂漢é".encode() * BLOCK
        for piece in list(whole(content))[:-1]:
            content[piece.start : piece.end].decode("utf-8", "strict")


def test_without_a_cut_there_are_no_pieces() -> None:
    found = pieces(b"x" * 1000, 5000)
    assert (len(found), found.rows(), found.index_at(5100)) == (0, [], -1)
    assert list(pieces(b"", 0, at_end=True)) == []


def test_the_piece_of_a_byte_is_the_nearest_one_held() -> None:
    found = Pieces(array("q", [10, 20, 30]))
    assert [found.index_at(offset) for offset in (0, 10, 19, 20, 29, 30, 99)] == [
        0,
        0,
        0,
        1,
        1,
        1,
        1,
    ]
    assert found[-1] == Piece(20, 30, False)
    with pytest.raises(IndexError):
        found[2]
