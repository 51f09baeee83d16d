"""Reads metrics from the bytes of a log, as it grows or stretch by stretch.

Lines of a known shape are read many at once, all others carefully one by one, with the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from hpcdash.config.metric_patterns import compile_patterns
from hpcdash.services.metrics.batch import Integers, MetricBatch, SampleColumns
from hpcdash.services.metrics.formats import HINTS, PLACES, read_header
from hpcdash.services.metrics.lines import LineReader
from hpcdash.services.metrics.shapes import Shape, learn_shape, skeleton

_PIECE_BYTES = 256 << 10
_KERAS_HINT = re.compile(rb"\d/(?:\d|u)")
# A line that could not be learnt is tried again when it was seen so much more often.
_SEEN_BEFORE_LEARNING = 3
_SEEN_AGAIN = 8
_MAX_SHAPES = 16
_MAX_SKELETONS = 256
# How many lines are tried for a shape at first; later one more for each piece of _PIECE_BYTES.
_MAX_TRIALS = 48
# A longer line, up to its newline or carriage return, holds no metric.
LONGEST_LINE_BYTES = 8192
UP = b"\x1f"
# What a line that is too long becomes.
OVERLONG = b"\x1e"
_TABLE_WORDS = (b"epoch", b" epoch", b"step", b" step", b"iter", b" iter")
_LINE_END = re.compile(rb"[\r\n]")
_BLANK = frozenset((b"", b" ", UP, b" " + UP))
_TABLE = bytes.maketrans(b"\r\t\v\f", b"\n   ")
_DELETED = b"\0\b\x1c\x1d\x1e\x1f"
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_MAX_COLOURS = 32
_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])"
)


class MetricReader:
    """Reads a log forwards, in pieces of any size: how the bytes are cut makes no difference to the
    samples.

    `patterns` are a person's own regular expressions (see metric_patterns; raises ConfigError
    naming a bad one). Reading begins at the offset `at`; where that may be in the middle of
    something (`is_cut`, by default everywhere but at 0), samples are given only from `whole_from`
    on. `csv_header` names the columns of a CSV whose header stands before `at`. `names` are metrics
    that are known already: they count for the most that there may be.
    """

    def __init__(
        self,
        patterns: Sequence[str] = (),
        *,
        at: int = 0,
        is_cut: bool | None = None,
        csv_header: Sequence[str] | None = None,
        names: Iterable[str] = (),
    ) -> None:
        cut = at > 0 if is_cut is None else is_cut
        self._columns = SampleColumns(names)
        header = tuple(csv_header) if csv_header else None
        self._lines = LineReader(
            self._columns, compile_patterns(patterns), at, is_cut=cut, csv_header=header
        )
        self._position = at
        self._tail = b""
        # Bytes of a line that is too long, or whose beginning is unknown, are not stored.
        self._is_skipping = self._is_beginning_unknown = cut
        self._start = at
        self._shapes: list[Shape] = []
        self._has_patterns = bool(patterns)
        # Grows whenever lines that follow may be read in another way.
        self._lessons = 0
        self._skeletons: dict[str, int] = {}
        self._trials = _MAX_TRIALS
        self._bytes_to_trial = _PIECE_BYTES

    @property
    def whole_from(self) -> int | None:
        """The offset from which on the samples are whole; None while no line has shown it."""
        return self._lines.whole_from

    @property
    def csv_header(self) -> tuple[str, ...] | None:
        """The columns of the last header of a CSV."""
        return self._lines.csv_header

    @property
    def header_at(self) -> int | None:
        """Offset of the last line that changed `csv_header`; None for none."""
        return self._lines.header_at

    def feed(self, content: bytes, *, is_end: bool = False) -> MetricBatch:
        """The samples that are certain after these bytes; `is_end`: nothing follows, what is open
        is closed.

        The last line, a block, and a bar that may be painted once more, are held until what follows
        them is there.
        """
        for start in range(0, len(content), _PIECE_BYTES):
            self._take(content[start : start + _PIECE_BYTES])
            self._bytes_to_trial -= min(_PIECE_BYTES, len(content) - start)
            if self._bytes_to_trial <= 0:
                self._bytes_to_trial = _PIECE_BYTES
                self._trials = min(self._trials + 1, _MAX_TRIALS)
        if is_end:
            if self._tail and not self._is_skipping:
                self._read(self._tail + b"\n", self._position - len(self._tail))
            self._tail = b""
            self._lines.flush()
        return self._columns.take()

    def _take(self, piece: bytes) -> None:
        if self._is_skipping:
            ended = _LINE_END.search(piece)
            end = 0 if ended is None else ended.end()
            if self._start == self._position:
                self._start += len(piece) - len(piece.lstrip(b"\0"))
            self._position += end or len(piece)
            if self._is_beginning_unknown and self._position - self._start > LONGEST_LINE_BYTES + 1:
                # Too long, wherever it began.
                self._lines.read_prose(self._start + LONGEST_LINE_BYTES + 1)
                self._is_beginning_unknown = False
            if not end:
                return
            self._is_skipping = self._is_beginning_unknown = False
            piece = piece[end:]
        content = self._tail + piece
        begin = self._position - len(self._tail)
        self._position += len(piece)
        end = max(content.rfind(b"\n"), content.rfind(b"\r")) + 1
        # A hole in a sparse file is read as NULs, of any number: they are no part of the line.
        self._tail = content[end:].lstrip(b"\0")
        if end:
            self._read(content[:end], begin)
        if len(self._tail) > LONGEST_LINE_BYTES:
            self._lines.read_prose(begin + end)
            self._tail = b""
            self._is_skipping = True

    def _read(self, content: bytes, begin: int) -> None:
        """Take in complete lines, the first of which begins at `begin`."""
        lines, starts = plain_lines(content)
        offsets = starts + begin
        while lines:
            rest, blocks = self._fitting(lines, offsets)
            taken = self._read_some(lines, offsets, rest, blocks)
            lines = lines[taken:]
            offsets = offsets[taken:]

    def _read_some(
        self,
        lines: list[bytes],
        offsets: Integers,
        rest: Sequence[int],
        blocks: list[MetricBatch],
    ) -> int:
        """Take in lines up to the end, or to the one that taught something about those that follow:
        how many.
        """
        hinted = self._hinted([lines[index] for index in rest])
        if blocks and (header := self._first_header(lines, rest, hinted)) is not None:
            # What follows is read under another header.
            if header:
                rest, blocks = self._fitting(lines[:header], offsets[:header])
                return self._read_some(lines[:header], offsets[:header], rest, blocks)
            self._careful(lines[0], int(offsets[0]))
            return 1
        taught = self._lessons
        following = 0
        for index, is_hinted in zip(rest, hinted, strict=True):
            if index > following:
                self._lines.begin_samples(int(offsets[following]))
            following = index + 1
            if is_hinted or self._lines.is_attentive:
                self._careful(lines[index], int(offsets[index]))
                if self._lessons != taught and not blocks:
                    return following
            elif not self._lines.is_idle:
                self._lines.read_prose(int(offsets[index]))
        if following < len(lines):
            self._lines.begin_samples(int(offsets[following]))
        for block in blocks:
            self._columns.add_batch(block)
        return len(lines)

    def _fitting(
        self, lines: list[bytes], offsets: Integers
    ) -> tuple[Sequence[int], list[MetricBatch]]:
        """The samples of lines of known shapes, and which lines have none."""
        blocks: list[MetricBatch] = []
        rest: Sequence[int] = range(len(lines))
        for shape in self._shapes:
            some = lines if len(rest) == len(lines) else [lines[index] for index in rest]
            block, others = shape.read(some, offsets if some is lines else offsets[list(rest)])
            if block is not None:
                blocks.append(block)
                rest = [] if others is None else [rest[other] for other in others]
            if not rest:
                break
        return rest, blocks

    def _hinted(self, lines: list[bytes]) -> list[bool]:
        """Return for each line whether it may be more than prose."""
        if not lines:
            return []
        text = b"\n".join(lines).lower() + b"\n"
        positions: list[int] = []
        for hint in HINTS:
            position = text.find(hint)
            while position >= 0:
                positions.append(position)
                position = text.find(hint, position + 1)
        if self._lines.is_in_keras or b"epoch " in text:
            positions += [match.start() for match in _KERAS_HINT.finditer(text)]
        # A line begins behind a newline.
        begun = b"\n" + text
        for letters, place in PLACES:
            position = begun.find(letters)
            while position >= 0:
                if (match := place.match(begun, position)) is not None:
                    positions.append(match.end() - 2)
                position = begun.find(letters, position + 1)
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == 0x0A)
        hinted = np.zeros(len(lines), bool)
        hinted[np.searchsorted(ends, np.array(positions, np.int64))] = True
        return hinted.tolist()

    def _first_header(
        self, lines: list[bytes], rest: Sequence[int], hinted: list[bool]
    ) -> int | None:
        if self._lines.headers_left <= 0:
            return None
        for index, is_hinted in zip(rest, hinted, strict=True):
            if is_hinted and (
                b"," in lines[index] or lines[index].lower().startswith(_TABLE_WORDS)
            ):
                header = read_header(lines[index].decode("utf-8", "replace").rstrip(" "))
                if header is not None and header != self._lines.csv_header:
                    return index
        return None

    def _careful(self, line: bytes, offset: int) -> None:
        if line == OVERLONG:
            self._lines.read_prose(offset)
            return
        text = line.decode("utf-8", "replace").rstrip(" ")
        header = self._lines.csv_header
        reading = self._lines.read_line(text, offset)
        if self._lines.csv_header != header:
            self._shapes = []
            self._skeletons = {}
            self._lessons += 1
        elif reading is not None and not self._has_patterns:
            self._learn(line.decode("ascii", "replace"))

    def _learn(self, line: str) -> None:
        """Make a shape of a line whose like came a few times."""
        what = skeleton(line)
        if what not in self._skeletons and len(self._skeletons) >= _MAX_SKELETONS:
            self._skeletons.clear()
        seen = self._skeletons[what] = self._skeletons.get(what, 0) + 1
        while seen > _SEEN_BEFORE_LEARNING and seen % _SEEN_AGAIN == 0:
            seen //= _SEEN_AGAIN
        if seen != _SEEN_BEFORE_LEARNING or not self._trials:
            return
        self._trials -= 1
        shape = learn_shape(line, lambda text: self._lines.parse_sample_line(text.rstrip(" ")))
        if shape is not None:
            self._shapes = [shape, *self._shapes[: _MAX_SHAPES - 1]]
            self._lessons += 1


def plain_lines(content: bytes) -> tuple[list[bytes], Integers]:
    """The lines of complete lines that are not blank, and where in `content` each begins."""
    text = content.translate(_TABLE, _DELETED)
    ends = np.flatnonzero(np.frombuffer(content.replace(b"\r", b"\n"), np.uint8) == 0x0A)
    starts = np.append(0, ends[:-1] + 1)
    if b"\0" in content:
        is_letter = np.flatnonzero(np.frombuffer(content, np.uint8))
        starts = np.minimum(is_letter[np.searchsorted(is_letter, starts)], ends)
    if b"\x1b" in text:
        text = text.replace(b"\x1b[A", UP)
        # Of the few different ones each is removed in a third of the time of an expression.
        for _ in range(_MAX_COLOURS):
            if (colour := _COLOUR.search(text)) is None:
                break
            text = text.replace(colour[0], b"")
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
        remaining = [index for index, line in enumerate(lines) if line not in _BLANK]
        return [lines[index] for index in remaining], starts[remaining]
    return lines, starts
