"""Conditions of a filter, which turn a table into masks of its rows."""

from __future__ import annotations

import re
from datetime import UTC, tzinfo
from enum import Enum
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from hpcdash.domain import nodelist
from hpcdash.domain.columns import as_array, match_text
from hpcdash.domain.units import parse_count, parse_duration, parse_instant, parse_memory

_COMPARISONS = {">": pc.greater, ">=": pc.greater_equal, "<": pc.less, "<=": pc.less_equal}
_DIGIT = re.compile(r"[0-9]")
_TRUE = frozenset({"yes", "true", "1", "on"})
_FALSE = frozenset({"no", "false", "0", "off"})


class ColumnKind(Enum):
    """Notation of a column's values."""

    TEXT = "text"
    NAMES = "a list of nodes or queues"
    COUNT = "a number"
    DECIMAL = "a decimal number"
    DURATION = "a duration"
    MEMORY = "an amount of memory"
    INSTANT = "a time"
    SWITCH = "yes or no"


class FilterCondition(Protocol):
    """Something that is true or false of every row."""

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        """Return a boolean per row, without nulls."""
        ...


class Pattern(Struct, frozen=True):
    """Text to be equal to, without regard to case; None as `text` is null; in a glob each `*` is
    any text.
    """

    text: str | None
    is_glob: bool = False

    @property
    def like(self) -> str:
        """The glob in the language of SQL's LIKE."""
        escaped = (self.text or "").replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        return escaped.replace("*", "%")


def column_kind(name: str, column_type: pa.DataType) -> ColumnKind:
    """Return the kind of a column of domain.schema, by its type and the unit in its name."""
    if pa.types.is_timestamp(column_type):
        return ColumnKind.INSTANT
    if pa.types.is_boolean(column_type):
        return ColumnKind.SWITCH
    if pa.types.is_floating(column_type):
        return ColumnKind.DECIMAL
    if pa.types.is_integer(column_type):
        if name.endswith("_seconds"):
            return ColumnKind.DURATION
        return ColumnKind.MEMORY if name.endswith("_bytes") else ColumnKind.COUNT
    # A job may have requested several queues.
    return ColumnKind.NAMES if name in ("node_list", "queue") else ColumnKind.TEXT


def read_number(kind: ColumnKind, text: str) -> int | float | None:
    """A value of a numeric kind; None for an unlimited duration.

    Raises ValueError naming the text.
    """
    if kind is ColumnKind.DURATION:
        return parse_duration(text)
    if kind is ColumnKind.MEMORY:
        return parse_memory(text)
    if kind is ColumnKind.COUNT:
        return -parse_count(text[1:]) if text.startswith("-") else parse_count(text)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def read_switch(text: str) -> bool:
    """yes or no. Raises ValueError naming the text."""
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ValueError(f"{text!r} is neither yes nor no")


class Everything(Struct, frozen=True):
    """Every row."""

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        return pa.repeat(pa.scalar(True), table.num_rows)


class All(Struct, frozen=True):
    """Each of the parts holds."""

    parts: tuple[FilterCondition, ...]

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        result = self.parts[0].mask(table, now_epoch)
        for part in self.parts[1:]:
            result = pc.and_(result, part.mask(table, now_epoch))
        return result


class Either(Struct, frozen=True):
    """One of the parts holds."""

    parts: tuple[FilterCondition, ...]

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        result = self.parts[0].mask(table, now_epoch)
        for part in self.parts[1:]:
            result = pc.or_(result, part.mask(table, now_epoch))
        return result


class Not(Struct, frozen=True):
    """The part does not hold."""

    part: FilterCondition

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        return pc.invert(self.part.mask(table, now_epoch))


class HasWord(Struct, frozen=True):
    """`word` stands anywhere in one of the columns, without regard to case."""

    columns: tuple[str, ...]
    word: Pattern

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        result = pa.repeat(pa.scalar(False), table.num_rows)
        for name in self.columns:
            if name in table.column_names:
                result = pc.or_(result, match_text(table[name], self._holds))
        return result

    def _holds(self, values: pa.Array) -> pa.Array:
        text = self.word.text or ""
        if self.word.is_glob:
            return pc.match_like(values, f"%{self.word.like}%", ignore_case=True)
        # Without letters there is no case to ignore, which is three times as fast.
        return pc.match_substring(values, text, ignore_case=text.lower() != text.upper())


class TextIs(Struct, frozen=True):
    """The text is one of the patterns; of a list, one element is."""

    column: str
    patterns: tuple[Pattern, ...]

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        if self.column not in table.column_names:
            return _absent_column(table, any(pattern.text is None for pattern in self.patterns))
        column = as_array(table[self.column])
        result = match_text(column, self._is)
        if any(pattern.text is None for pattern in self.patterns):
            result = pc.or_(result, _is_none(column))
        return result

    def _is(self, values: pa.Array) -> pa.Array:
        exact = [
            pattern.text.lower()
            for pattern in self.patterns
            if pattern.text is not None and not pattern.is_glob
        ]
        result = pc.is_in(pc.utf8_lower(values), value_set=pa.array(exact, pa.string()))
        for pattern in self.patterns:
            if pattern.is_glob:
                result = pc.or_(result, pc.match_like(values, pattern.like, ignore_case=True))
        return result


class TextMatches(Struct, frozen=True):
    """A regular expression (RE2) is found in the text, without regard to case; of a list, in one
    element.
    """

    column: str
    expression: str

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        if self.column not in table.column_names:
            return _absent_column(table, False)
        return match_text(table[self.column], self._matches)

    def check(self) -> None:
        """Raises pyarrow.ArrowInvalid when the expression is none."""
        self._matches(pa.array([""]))

    def _matches(self, values: pa.Array) -> pa.Array:
        return pc.match_substring_regex(values, self.expression, ignore_case=True)


class NamesHold(Struct, frozen=True):
    """A list of names, as Slurm compresses those of nodes, holds one; a glob is matched against the
    list as written.
    """

    column: str
    patterns: tuple[Pattern, ...]

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        result = TextIs(self.column, self.patterns).mask(table, now_epoch)
        names = [
            pattern.text.lower()
            for pattern in self.patterns
            if pattern.text and not pattern.is_glob
        ]
        if self.column not in table.column_names or not names:
            return result
        column = as_array(table[self.column])
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        return pc.or_(result, match_text(column, lambda lists: _lists_holding(lists, names)))


class NumberIs(Struct, frozen=True):
    """The number is one of the values; None among them is null."""

    column: str
    values: tuple[int | float | None, ...]

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        if self.column not in table.column_names:
            return _absent_column(table, None in self.values)
        column = as_array(table[self.column])
        known = pa.array([value for value in self.values if value is not None], column.type)
        result = pc.is_in(column, value_set=known)
        return pc.or_(result, pc.is_null(column)) if None in self.values else result


class NumberCompares(Struct, frozen=True):
    """The number is on the right side of `value`."""

    column: str
    operator: str
    value: int | float

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        if self.column not in table.column_names:
            return _absent_column(table, False)
        return _compare(table[self.column], self.operator, pa.scalar(self.value))


class InstantIs(Struct, frozen=True):
    """The time lies in one of the days, minutes or seconds written; None among them is null."""

    column: str
    texts: tuple[str | None, ...]
    zone: tzinfo = field(default=UTC)

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        if self.column not in table.column_names:
            return _absent_column(table, None in self.texts)
        column = as_array(table[self.column])
        result = (
            pc.is_null(column)
            if None in self.texts
            else pa.repeat(pa.scalar(False), table.num_rows)
        )
        for text in self.texts:
            if text is not None:
                instant = parse_instant(text, now_epoch, self.zone)
                after = _compare(column, ">=", _moment(instant.epoch, column.type))
                before = _compare(
                    column, "<", _moment(instant.epoch + instant.span_seconds, column.type)
                )
                result = pc.or_(result, pc.and_(after, before))
        return result


class InstantCompares(Struct, frozen=True):
    """The time is before or after an instant; a day or a minute counts from its beginning."""

    column: str
    operator: str
    text: str
    zone: tzinfo = field(default=UTC)

    def mask(self, table: pa.Table, now_epoch: float) -> pa.Array:
        if self.column not in table.column_names:
            return _absent_column(table, False)
        column = as_array(table[self.column])
        instant = parse_instant(self.text, now_epoch, self.zone)
        return _compare(column, self.operator, _moment(instant.epoch, column.type))


def _compare(column: Any, operator: str, value: pa.Scalar) -> pa.Array:
    return pc.fill_null(_COMPARISONS[operator](as_array(column), value), False)


def _moment(epoch: int, column_type: pa.DataType) -> pa.Scalar:
    return pa.scalar(epoch, pa.timestamp("s", tz=column_type.tz))


def _is_none(column: pa.Array) -> pa.Array:
    if pa.types.is_list(column.type):
        return pc.fill_null(pc.equal(pc.list_value_length(column), 0), True)
    return pc.is_null(column)


def _absent_column(table: pa.Table, value: bool) -> pa.Array:
    return pa.repeat(pa.scalar(value), table.num_rows)


def _lists_holding(lists: pa.Array, names: list[str]) -> pa.Array:
    """Return a mask of the lists, with brackets or commas, that contain one of the names."""
    candidates = pc.match_substring_regex(lists, r"[\[,]")
    # Brackets stand for digits only: what comes before the first digit of a name is in the list as
    # it is.
    stems = {_DIGIT.split(name, maxsplit=1)[0] for name in names}
    if all(stems):
        near = pa.repeat(pa.scalar(False), len(lists))
        for stem in stems:
            near = pc.or_(near, pc.match_substring(lists, stem, ignore_case=True))
        candidates = pc.and_(candidates, near)
    worth_reading = pc.unique(lists.filter(candidates)).to_pylist()
    holding = [
        text for text in worth_reading if any(nodelist.contains(text, name) for name in names)
    ]
    return pc.is_in(lists, value_set=pa.array(holding, pa.string()))
