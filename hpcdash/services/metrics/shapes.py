"""Reads many lines of one shape at once: the text between the numbers stays, the numbers change.

The meaning of a number is learnt from the careful reader: each is changed in turn, and the result
is compared. A shape is used only if it agrees with the careful reader on lines with other numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from math import isfinite, isnan
from typing import NamedTuple

import numpy as np

from hpcdash.services.metrics.batch import AXES, Floats, Integers, MetricBatch, Points
from hpcdash.services.metrics.vocabulary import (
    NUMBER,
    STAMP,
    STAMP_LETTERS,
    YEAR_2000,
    YEAR_2100,
    Reading,
    is_step,
    parse_number,
)

Careful = Callable[[str], Reading | None]

_TOKEN = re.compile(rf"(?<![\w.@,]){NUMBER}(?![\d,]*\d)")
# Of a row of CSV: a comma is no part of a number.
_FIELD_TOKEN = re.compile(r"(?<![\w.@])[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])")
_DIGITS = re.compile(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?|nan|NaN|inf")
_STRICT = rb"[-+]?(?:%s(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?%s)"
_NUMERIC = b"0123456789.+-eEnaNif"
_OTHER_LETTERS = bytes(
    code for code in b" abcdefghijklmnopqrstuvwxyz" + bytes(range(65, 91)) if code not in _NUMERIC
)
_MAX_FIELDS = 64
_MAX_SPANS = 2 * _MAX_FIELDS
_MAX_LITERALS = 120
_FIRST_CODE = 0x80
# What a number in a line may be multiplied by: 1.2k is 1200.
_SCALES = (1.0, 1e3, 1e6, 1e9)
_TO_COMMAS = bytes(0x2C if code >= _FIRST_CODE else code for code in range(256))
# `2026-11-21 16:00:00`, with any separators.
_MOMENT_LETTERS = 19


class _Field(NamedTuple):
    """Meaning of a number in the line."""

    # `step`, `epoch`, `tokens`, `last_step`, `=NAME` of a metric, '' for a number that does not
    # count.
    role: str
    scale: float
    # So many count for the step an epoch, from `first_epoch` on.
    epoch_steps: float = 0.0
    first_epoch: int = 0


# The numbers of lines that fit, lines × fields, and their times.
_Columns = tuple[Floats, Floats | None]


def _parsed(text: bytes) -> Floats | None:
    """The numbers of a text, each with a comma behind it; None where it is none."""
    try:
        return np.fromstring(text[:-1].decode("ascii"), np.float64, sep=",")
    except ValueError:
        return None


def _are_thousands(text: bytes) -> bool:
    """Whether each comma parts thousands: one to three digits before it, no point before these, and
    three behind.
    """
    letters = np.frombuffer(b"    " + text + b"    ", np.uint8)
    commas = np.flatnonzero(letters == 0x2C)
    around = letters[commas[:, None] + np.arange(-4, 5)]
    is_digit = (around >= 0x30) & (around <= 0x39)
    fourth, third, second, first = is_digit[:, :4].T
    # What stands before the digits before it.
    edge = np.where(third & second, around[:, 0], np.where(second, around[:, 1], around[:, 2]))
    is_apart = first & ~(fourth & third & second) & (edge != 0x2E)
    return bool((is_apart & is_digit[:, 5:8].all(axis=1) & ~is_digit[:, 8]).all())


def skeleton(line: str) -> str:
    """Return the common text of lines of one shape."""
    return _DIGITS.sub("#", line)


class Shape:
    """A shape: literal text, with a number between each two literals, and perhaps a time near the
    beginning.
    """

    def __init__(
        self,
        literals: Sequence[str],
        fields: tuple[_Field, ...],
        stamp: tuple[int, str] | None,
        base: Reading,
        commas: bool,
    ) -> None:
        self._fields = fields
        self._stamp = stamp
        self._base = base
        self._has_commas = commas
        raw = [literal.encode("ascii") for literal in literals]
        self._first = raw[0]
        self._last = raw[-1]
        joints = [*raw[1:-1], raw[-1] + b"\n" + raw[0]]
        distinct = sorted(set(joints), key=len, reverse=True)
        codes = {literal: bytes([_FIRST_CODE + number]) for number, literal in enumerate(distinct)}
        self._codes = list(codes.items())
        self._residue = b"".join(codes[joint] for joint in joints)
        self._allowed = _NUMERIC + b"," if commas else _NUMERIC
        short = sorted(
            {joint.translate(None, _OTHER_LETTERS) for joint in joints}, key=len, reverse=True
        )
        is_parted = all(literal.translate(None, _NUMERIC) for literal in short)
        self._short = short if is_parted and not commas else None
        cut = stamp[0] if stamp else len(raw[0])
        self._begin = raw[0][:cut]
        self._middle = max(raw[1:-1], key=len, default=b"")
        whole = rb"(?:\d{1,3}(?:,\d{3})+|\d+)" if commas else rb"\d+"
        # 5ms, 1.2k: a word right behind a number makes none of `nan`.
        self._finite = [place for place, literal in enumerate(raw[1:]) if literal[:1].isalpha()]
        numbers = [
            _STRICT % (whole, b"" if i in self._finite else b"|nan|NaN|inf")
            for i in range(len(fields))
        ]
        first = re.escape(raw[0])
        if stamp:
            shown = re.sub(rb"\d", rb"\\d", re.escape(stamp[1].encode()))
            first = re.escape(raw[0][:cut]) + shown + re.escape(raw[0][cut:])
        rest = (
            number + re.escape(literal) for number, literal in zip(numbers, raw[1:], strict=True)
        )
        self._pattern = re.compile(first + b"".join(rest))

    def read(
        self, lines: Sequence[bytes], offsets: Integers
    ) -> tuple[MetricBatch | None, list[int] | None]:
        """The samples of those lines that fit, and which do not (None: all fit); lines are ASCII or
        do not fit.
        """
        columns = self._columns(lines)
        if columns is not None:
            return self._batch(columns, offsets), None
        begin = self._begin
        middle = self._middle
        last = self._last
        near = [
            i
            for i, line in enumerate(lines)
            if line.startswith(begin) and line.endswith(last) and middle in line
        ]
        columns = (
            self._columns([lines[i] for i in near]) if near and len(near) < len(lines) else None
        )
        if columns is None and near:
            fullmatch = self._pattern.fullmatch
            near = [i for i in near if fullmatch(lines[i])]
            columns = self._columns([lines[i] for i in near]) if near else None
        if columns is None:
            return None, list(range(len(lines)))
        fit = set(near)
        return self._batch(columns, offsets[near]), [i for i in range(len(lines)) if i not in fit]

    def _columns(self, lines: Sequence[bytes]) -> _Columns | None:
        """The numbers of lines that all fit, None where one does not."""
        text = b"\n".join(lines) + b"\n"
        if not text.isascii():
            return None
        times = None
        if self._stamp is not None:
            cut = _without_stamps(text, len(lines), *self._stamp)
            if cut is None:
                return None
            text, times = cut
        if not text.startswith(self._first):
            return None
        numbers = self._parse_alike(text, lines)
        if numbers is None:
            numbers = self._numbers(text, len(lines))
        if numbers is None or len(numbers) != len(lines) * len(self._fields):
            return None
        table = numbers.reshape(len(lines), len(self._fields))
        return (table, times) if self._is_possible(table) else None

    def _parse_alike(self, text: bytes, lines: Sequence[bytes]) -> Floats | None:
        """All numbers in turn, where no line differs from the first in more than digits, points and
        signs.
        """
        rest = text.translate(None, b"0123456789.+-")
        if self._short is None or rest != rest[: rest.index(b"\n") + 1] * len(lines):
            return None
        if not self._pattern.fullmatch(lines[0]):
            return None
        text = (text[len(self._first) :] + self._first).translate(None, _OTHER_LETTERS)
        for literal in self._short:
            text = text.replace(literal, b",")
        return _parsed(text)

    def _numbers(self, text: bytes, count: int) -> Floats | None:
        """All numbers in turn, None where a line does not fit."""
        text = text[len(self._first) :] + self._first
        for literal, code in self._codes:
            text = text.replace(literal, code)
        if text.translate(None, self._allowed) != self._residue * count:
            return None
        if self._has_commas:
            if not _are_thousands(text):
                return None
            text = text.replace(b",", b"")
        return _parsed(text.translate(_TO_COMMAS))

    def _is_possible(self, table: Floats) -> bool:
        """Whether numbers (lines × fields) can be what their fields mean."""
        if self._finite and not np.isfinite(table[:, self._finite]).all():
            return False
        for numbers, field in zip(table.T, self._fields, strict=True):
            if field.epoch_steps and not (numbers >= field.first_epoch).all():
                return False
            if field.role in ("step", "last_step"):
                column = numbers * field.scale
                if not ((column >= 0) & (column == np.floor(column)) & (column < 2.0**53)).all():
                    return False
        return True

    def _batch(self, columns: _Columns, offsets: Integers) -> MetricBatch:
        table, times = columns
        base = self._base
        count = offsets.size
        axes = np.empty((len(AXES), count))
        axes[:] = np.array([[base.step], [base.epoch], [base.tokens], [base.time]])
        metrics = {name: np.full(count, value) for name, value in base.values.items()}
        last_step = base.last_step
        earlier: Floats | float = 0.0
        for numbers, field in zip(table.T, self._fields, strict=True):
            if field.epoch_steps:
                earlier = (numbers - field.first_epoch) * field.epoch_steps
            if field.role == "last_step":
                last_step = int(numbers[-1] * field.scale)
            elif field.role in AXES:
                axes[AXES.index(field.role)] = numbers * field.scale
            elif field.role:
                metrics[field.role[1:]] = numbers * field.scale
        if any(field.role == "step" for field in self._fields):
            axes[0] += earlier
        if times is not None:
            axes[3] = times
        samples = np.arange(count)
        points = {name: Points(samples, values) for name, values in metrics.items()}
        return MetricBatch(
            offsets, axes, points, last_step, format=base.format, position=base.position
        )


def learn_shape(line: str, careful: Careful) -> Shape | None:
    """The shape of a line that `careful` reads, None where its numbers do not each mean one
    thing.
    """
    base = careful(line)
    if base is None or not line.isascii() or not is_step(base.step):
        return None
    stamp = STAMP.search(line, 0, STAMP_LETTERS)
    if stamp is not None and (stamp[11] or isnan(base.time)):
        return None
    for pattern in (_TOKEN, _FIELD_TOKEN):
        # What stands before the time, a rank or so, is taken for fixed.
        begin = 0 if stamp is None else stamp.end()
        spans = [token.span() for token in pattern.finditer(line) if token.start() >= begin]
        shape = _learn(line, base, stamp, careful, spans) if len(spans) <= _MAX_SPANS else None
        if shape is not None:
            return shape
    return None


def _learn(
    line: str,
    base: Reading,
    stamp: re.Match[str] | None,
    careful: Careful,
    spans: list[tuple[int, int]],
) -> Shape | None:
    roles = {span: _field_role(line, span, base, careful) for span in spans}
    fields = {span: field for span, field in roles.items() if field is not None}
    has_step = any(field.role == "step" for field in fields.values())
    if not has_step or len(fields) > _MAX_FIELDS:
        return None
    edges = [0, *chain.from_iterable(fields), len(line)]
    literals = [line[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)]
    if stamp is not None:
        literals[0] = line[: stamp.start()] + line[stamp.end() : edges[1]]
    numeric = set(_NUMERIC.decode())
    is_parted = not any(set(literal) <= numeric for literal in literals[1:-1])
    if len(set(literals)) > _MAX_LITERALS or not is_parted:
        return None
    commas = any("," in line[begin:end] for begin, end in fields)
    where = (stamp.start(), stamp[0]) if stamp else None
    shape = Shape(literals, tuple(fields.values()), where, base, commas)
    others = [_changed_line(line, list(fields), variant) for variant in (1, 2, 3)]
    return shape if all(_agrees(shape, each, careful) for each in (line, *others)) else None


def _field_role(line: str, span: tuple[int, int], base: Reading, careful: Careful) -> _Field | None:
    """Return the meaning of the number; None if it is not a number of its own."""
    fields: set[_Field] = set()
    base_numbers = _reading_numbers(base)
    for variant in (1, 2):
        changed = _changed_line(line, [span], variant)
        reading = careful(changed)
        numbers = {} if reading is None else _reading_numbers(reading)
        if reading is None or list(numbers) != list(base_numbers):
            return None
        moved = [role for role, number in numbers.items() if number != base_numbers[role]]
        if "time" in moved or reading.position != base.position:
            return None
        written = parse_number(changed[span[0] : span[1] + len(changed) - len(line)])
        if moved == ["step", "epoch"] and base.position is not None and written == reading.epoch:
            fields.add(_Field("epoch", 1.0, float(base.position.steps), base.position.base))
            continue
        if len(moved) > 1:
            return None
        if not moved:
            fields.add(_Field("", 1.0))
            continue
        [role] = moved
        number = numbers[role]
        if number is None:
            return None
        if role == "step" and base.position is not None:
            # Beside the steps of the epochs before.
            number -= base.step - parse_number(line[slice(*span)])
        scale = number / written if written else 0.0
        if not isfinite(scale):
            return None
        scale = float(round(scale))
        if scale not in _SCALES or number != written * scale:
            return None
        fields.add(_Field(role, scale))
    return fields.pop() if len(fields) == 1 else None


def _reading_numbers(reading: Reading) -> dict[str, float | None]:
    """The numbers of a reading by their roles, None for nan, so that readings can be compared."""
    numbers = {place: getattr(reading, place) for place in (*AXES, "last_step")}
    numbers |= {f"={name}": value for name, value in reading.values.items()}
    return {role: number if number == number else None for role, number in numbers.items()}


def _changed_line(line: str, spans: list[tuple[int, int]], variant: int) -> str:
    """The line with other numbers in these places: as long, so that an integer stays one."""
    parts: list[str] = []
    edge = 0
    for number, (start, end) in enumerate(spans):
        parts += (line[edge:start], _changed(line[start:end], variant + number))
        edge = end
    return "".join((*parts, line[edge:]))


def _changed(token: str, variant: int) -> str:
    if not any(letter.isdigit() for letter in token):
        return f"{7 + variant}.25"
    mantissa, mark, exponent = token.partition("e" if "e" in token else "E")
    moved = "".join(str((int(c) + variant % 7) % 9 + 1) if c.isdigit() else c for c in mantissa)
    return moved + mark + exponent


def _agrees(shape: Shape, line: str, careful: Careful) -> bool:
    batch, rest = shape.read([line.encode()], np.zeros(1, np.int64))
    reading = careful(line)
    if batch is None or rest or reading is None:
        return False
    values = {name: float(points.values[0]) for name, points in batch.metrics.items()}
    step, epoch, tokens, time = batch.axes[:, 0].tolist()
    quick = Reading("", values, step, epoch, tokens, time=time, last_step=batch.last_step)
    return _reading_numbers(quick) == _reading_numbers(reading)


def _without_stamps(
    text: bytes, count: int, column: int, stamp: str
) -> tuple[bytes, Floats] | None:
    """The text without the time that stands at `column` of each of its lines, and those times in
    epoch seconds.
    """
    letters = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(letters == 0x0A)
    if len(ends) != count:
        return None
    starts = np.append(0, ends[:-1] + 1)
    if int((ends - starts).min()) < column + len(stamp):
        return None
    where = (starts + column)[:, None] + np.arange(len(stamp))
    shown = letters[where]
    is_digit = np.array([letter.isdigit() for letter in stamp])
    signs = np.frombuffer(stamp.encode(), np.uint8)[~is_digit]
    digits = shown[:, is_digit] - 48
    if not bool((shown[:, ~is_digit] == signs).all()) or int(digits.max()) > 9:
        return None
    # A digit, a sign or a zone right behind makes another time of it.
    behind = letters[starts + column + len(stamp)]
    if bool(
        (
            ((behind >= 48) & (behind <= 58)) | np.isin(behind, np.frombuffer(b"Z+-,.", np.uint8))
        ).any()
    ):
        return None
    if column and bool((letters[starts + column - 1] == 0x2E).any()):
        return None
    moments = shown[:, :_MOMENT_LETTERS].copy()
    moments[:, (4, 7)] = 0x2D
    try:
        times = moments.view(f"S{_MOMENT_LETTERS}")[:, 0].astype("datetime64[s]").astype(np.float64)
    except ValueError:
        # No such day or hour.
        return None
    if times.min() < YEAR_2000 or times.max() >= YEAR_2100:
        return None
    if fraction := digits[:, 14:].shape[1]:
        powers = 10 ** np.arange(fraction - 1, -1, -1)
        times += digits[:, 14:].astype(np.int64) @ powers / 10.0**fraction
    is_rest = np.ones(len(letters), bool)
    is_rest[where.ravel()] = False
    return letters[is_rest].tobytes(), times
