"""Reads a log line by line, carefully: the format of each line, and samples of several lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import nan

from hpcdash.config.metric_patterns import PLACES, MetricPattern
from hpcdash.services.metrics.batch import SampleColumns
from hpcdash.services.metrics.formats import (
    Bar,
    parse_bar_row,
    read_bar,
    read_block_head,
    read_block_line,
    read_dict,
    read_header,
    read_json,
    read_keras,
    read_keras_epoch,
    read_pairs,
    read_record,
    read_row,
)
from hpcdash.services.metrics.vocabulary import (
    NUMBER,
    Reading,
    parse_line_seconds,
    parse_number,
    sort_pairs,
    tick_step,
)

# How far back a line's meaning may depend on another: Keras' `Epoch 3/10`, and the first line of a
# block.
LOOK_BACK_BYTES = 8 << 20
LONGEST_BLOCK_BYTES = 64 << 10
_MAX_BLOCK_LINES = 512
_LONGEST_RECORD = 4096
# A table whose columns change more often is none.
MAX_HEADERS = 16
# A bar or a dict, which other lines may belong to.
_OTHER_SIGNS = re.compile(r"%\||/\?|\{'| • ")
_EXACT_NUMBER = re.compile(NUMBER)
# What a driver writes around a worker's line, whose name may have parentheses:
# `(Trainer pid=7, ip=10.0.0.4) … [repeated 3x across cluster]`.
_WORKER = re.compile(r"\((?:[^()]|\([^()]*\)){0,200}?\bpid=\d{1,10}(?:, ip=[\w.:%-]{2,64})?\) ?")
_REPEATED = re.compile(r" \[repeated \d{1,9}x across cluster\](?: \(|$)")


class LineReader:
    """Reads lines; keeps what they leave open: a block, a bar painted again, a dict whose step
    follows, an epoch.
    """

    def __init__(
        self,
        columns: SampleColumns,
        patterns: Sequence[MetricPattern],
        start: int,
        *,
        is_cut: bool,
        csv_header: tuple[str, ...] | None = None,
    ) -> None:
        self.columns = columns
        self.csv_header = csv_header
        self.whole_from: int | None = None if is_cut else start
        self.header_at: int | None = None
        self.headers_left = MAX_HEADERS
        self._patterns = patterns
        self._start = start
        self._block: tuple[int, Reading] | None = None
        self._bar: tuple[int, Bar] | None = None
        self._dict: tuple[int, Reading] | None = None
        # A line that continues in lines that begin with the sign.
        self._record: tuple[int, str, str] | None = None
        self._epoch: tuple[int, int] | None = None
        self._is_block_unknown = self._is_epoch_unknown = is_cut
        # A bar that came before all was certain: its earlier repaints may stand before the start.
        self._first_bar: Bar | None = None

    @property
    def is_attentive(self) -> bool:
        """Whether a line of any words may matter, as one in a block does."""
        is_open = self._block is not None or self._record is not None or self._is_block_unknown
        return bool(self._patterns) or is_open or self.csv_header is not None

    @property
    def is_in_keras(self) -> bool:
        """Whether bars of Keras count."""
        return self._is_epoch_unknown or self._epoch is not None

    @property
    def is_idle(self) -> bool:
        """Whether a line without a metric changes nothing."""
        return self.whole_from is not None and not self._is_open

    @property
    def _is_open(self) -> bool:
        return bool(self._block or self._bar or self._dict or self._record)

    def parse_sample_line(self, text: str) -> Reading | None:
        """The reading of a line that is a sample whatever the lines around it, None of any
        other.
        """
        for pattern in self._patterns:
            if (reading := read_pattern(pattern, text)) is not None:
                return reading
        text = without_worker(text)
        record = text.find('{"')
        other = _OTHER_SIGNS.search(text)
        if record >= 0 and (other is None or record < other.start()):
            return read_json(text)
        if other is not None:
            return None
        if read_record(text) is not None:
            return None
        if (
            read_block_line(text)
            or read_block_head(text)
            or read_keras(text)
            or read_keras_epoch(text) is not None
        ):
            return None
        if self.csv_header is not None and (reading := read_row(text, self.csv_header)) is not None:
            return reading
        return read_pairs(text)

    def read_line(self, text: str, offset: int) -> Reading | None:
        """Take in a line; return its reading if `parse_sample_line` gives the same."""
        whole = text
        text = without_worker(text)
        if self._record is not None:
            begin, sign, begun = self._record
            if text.startswith(sign) and len(begun) < _LONGEST_RECORD and read_record(text) is None:
                self._record = (begin, sign, begun + text)
                return None
        if (reading := self.parse_sample_line(whole)) is not None:
            self.begin_samples(offset)
            self.columns.add(offset, reading)
            return reading
        # In a block that may have begun before the start nothing is certain yet.
        begin = self._start if self._block is None else self._block[0]
        is_in_block = self._is_block_unknown or self._block is not None
        is_in_block = is_in_block and offset - begin <= LONGEST_BLOCK_BYTES
        if (bar := read_bar(text)) is not None:
            self._take_bar(bar, offset)
        elif (dictionary := read_dict(text)) is not None:
            self._take_dict(dictionary[0], offset)
        elif (record := read_record(text)) is not None:
            self.begin_samples(offset)
            self._record = (offset, *record)
        elif is_in_block and (pair := read_block_line(text)) is not None:
            name, value = pair
            values = {} if self._block is None else self._block[1].values
            if name and len(values) < _MAX_BLOCK_LINES:
                values[name] = value
        elif (head := read_block_head(text)) is not None:
            self.begin_samples(offset)
            self._block = (offset, head)
        elif is_in_block and self._block is not None and text.startswith(" "):
            # No number, or more than one: the block continues.
            return None
        elif (epoch := read_keras_epoch(text)) is not None:
            self.read_prose(offset)
            self._epoch = (offset, epoch)
            self._is_epoch_unknown = False
        elif self.is_in_keras and (keras := read_keras(text)) is not None:
            self._take_keras(keras, offset)
        else:
            # Near the start it may be the rest of a record that began before it.
            is_near = self.whole_from is None and offset - self._start <= _LONGEST_RECORD
            if self._is_open or not is_near or not text.startswith((" ", "|")):
                self.read_prose(offset)
            header = read_header(text) if self.headers_left > 0 else None
            if header is not None and header != self.csv_header:
                self.headers_left -= 1
                # Rows under a forgotten header have no meaning.
                self.csv_header = header if self.headers_left else None
                self.header_at = offset
        return None

    def read_prose(self, offset: int) -> None:
        """Take in a line without a metric."""
        if not self.is_idle:
            self.flush()
            self._settle(offset)

    def begin_samples(self, offset: int) -> None:
        """Take in that samples follow which `parse_sample_line` reads."""
        self.read_prose(offset)
        self._epoch = None
        self._is_epoch_unknown = False

    def flush(self) -> None:
        """Complete open readings: nothing more follows."""
        if self._block is not None:
            begin, head = self._block
            block = sort_pairs("block", head.values.items())
            step = head.step if head.has_step else block.step
            self._add(begin, head._replace(values=block.values, tokens=block.tokens, step=step))
        if self._bar is not None and self._bar[1].reading is not None:
            self._add(self._bar[0], self._bar[1].reading)
        if self._dict is not None:
            self._add(*self._dict)
        if self._record is not None and (reading := read_pairs(self._record[2])) is not None:
            self._add(self._record[0], reading)
        self._block = self._bar = self._dict = self._record = None

    def _add(self, offset: int, reading: Reading) -> None:
        if self.whole_from is not None and offset >= self.whole_from:
            self.columns.add(offset, reading)

    def _settle(self, offset: int) -> None:
        self._is_block_unknown = False
        if self.whole_from is None:
            self.whole_from = offset

    def _take_bar(self, bar: Bar, offset: int) -> None:
        self._is_block_unknown = False
        if self._record is not None:
            self.flush()
        if self.csv_header is not None and bar.reading is None and bar.before:
            bar = parse_bar_row(bar, self.csv_header) or bar
        if self._block is not None:
            self.flush()
        if self._dict is not None and bar.is_training:
            self._dict = (self._dict[0], _with_step(self._dict[1], bar))
            self.flush()
        if self.whole_from is None and (bar.is_training or bar.reading is not None):
            if self._first_bar is not None and (self._first_bar.key != bar.key or not bar.reading):
                self._settle(offset)
            self._first_bar = self._first_bar or bar
        if bar.reading is not None:
            self._repaint(bar, offset)
            self._epoch = None
            self._is_epoch_unknown = False
        elif bar.is_training and self._bar is not None:
            self.flush()
        if (dictionary := read_dict(bar.after) if bar.after else None) is not None:
            # Right behind the bar: it is the bar's step.
            is_beside = not dictionary[1].strip()
            self._take_dict(_with_step(dictionary[0], bar) if is_beside else dictionary[0], offset)
            if is_beside:
                self.flush()
        elif bar.after and (reading := self.parse_sample_line(bar.after)) is not None:
            self.begin_samples(offset)
            self.columns.add(offset, reading)

    def _repaint(self, bar: Bar, offset: int) -> None:
        """Store a bar: its sample begins where it was first drawn at its step, and its last values
        count.
        """
        if self._bar is not None and self._bar[1].key == bar.key and self._dict is None:
            self._bar = (self._bar[0], bar)
            return
        self.flush()
        self._bar = (offset, bar)

    def _take_dict(self, reading: Reading, offset: int) -> None:
        self.begin_samples(offset)
        self._dict = (offset, reading)

    def _take_keras(self, bar: Bar, offset: int) -> None:
        if self._epoch is None:
            self.flush()
            if offset - self._start > LOOK_BACK_BYTES:
                self._is_epoch_unknown = False
                self._settle(offset)
            else:
                # Its epoch stands before the start.
                self.whole_from = None
            return
        began, epoch = self._epoch
        if offset - began > LOOK_BACK_BYTES:
            self.read_prose(offset)
            self._epoch = None
            return
        if self._block is not None or self._dict is not None:
            self.flush()
        _, n, of = bar.key
        step = tick_step((epoch - 1) * of + n) if of or epoch <= 1 else nan
        reading = bar.reading and bar.reading._replace(step=step, epoch=float(epoch))
        self._repaint(bar._replace(key=(float(epoch), n, of), reading=reading), offset)


def _with_step(reading: Reading, bar: Bar) -> Reading:
    """Give a dict without a step that of the bar beside it."""
    if reading.has_step:
        return reading
    return reading._replace(step=float(bar.key[1]), last_step=bar.key[2])


def without_worker(text: str) -> str:
    """A line as the worker that wrote it did, without what the driver adds."""
    if not text.startswith("(") or (worker := _WORKER.match(text)) is None:
        return text
    repeated = _REPEATED.search(text, worker.end())
    return text[worker.end() : repeated.start() if repeated else None]


def read_pattern(pattern: MetricPattern, text: str) -> Reading | None:
    """Read the values of a pattern in a line.

    None if it does not match, or no metric that it names is a number there.
    """
    match = pattern.search(text)
    if match is None:
        return None
    reported = {name: (raw or "").strip() for name, raw in match.items()}
    pairs = [
        (name, parse_number(raw)) for name, raw in reported.items() if _EXACT_NUMBER.fullmatch(raw)
    ]
    places = sort_pairs(
        "pattern", [pair for pair in pairs if pair[0] in PLACES], parse_line_seconds(text)
    )
    values = {name: value for name, value in pairs if name not in PLACES}
    return places._replace(values=values) if values else None
