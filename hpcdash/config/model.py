"""Reads tables of a TOML document into records that declare their keys, and collects every problem
on the way.

A key is a field of a frozen Struct: its type and its reader (`Annotated[float, seconds]`), and its
default. A field without a reader is none of the file's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast, get_args

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from hpcdash.config.problems import KeyPath, shown

T = TypeVar("T")
# One value of a TOML document in, a checked value out; raises ValidationError.
Reader = Callable[[object], Any]
# Returns the text after "unknown key": from a key, the path of its table, and the keys known there.
Hint = Callable[[str, KeyPath, Collection[str]], str]
# Checks a table's values as they were read for values that conflict.
Check = Callable[[Mapping[str, Any]], None]


class ValidationError(ValueError):
    """Raised for an unusable value; its text has the reason and the expected value."""


class Key(Enum):
    """In place of a reader: TABLE has a record of its own; the caller reads parts marked APART."""

    TABLE = "table"
    APART = "apart"


class SameTable(Struct, frozen=True):
    """In place of a reader: the record's keys stand in the same table, all of them or those of
    `only`.
    """

    only: tuple[str, ...] = ()


class TableReader:
    """Reader of the tables of one document. `problems` are (key path, message)."""

    def __init__(self, hint: Hint) -> None:
        self.problems: list[tuple[KeyPath, str]] = []
        self._hint = hint

    def problem(self, path: KeyPath, message: str) -> None:
        self.problems.append((path, message))

    def table(self, parent: Mapping[str, object], path: KeyPath, key: str) -> Mapping[str, Any]:
        """The table under a key of the table at `path`; an empty one where it is missing or no
        table.
        """
        table = parent.get(key, {})
        if isinstance(table, dict):
            return table
        self.problem((*path, key), f"expected a table, not {shown(table)}")
        return {}

    def tables(
        self, parent: Mapping[str, object], path: KeyPath, key: str
    ) -> Iterator[tuple[Mapping[str, Any], KeyPath]]:
        """Each table under a key, which may be one or an array of them, with its path."""
        given = parent.get(key, [])
        if isinstance(given, dict):
            yield given, (*path, key)
        elif isinstance(given, list) and all(isinstance(table, dict) for table in given):
            for at, table in enumerate(given):
                yield table, (*path, key, at)
        else:
            self.problem((*path, key), f"expected tables: [[{'.'.join(map(str, (*path, key)))}]]")

    def value(self, path: KeyPath, reader: Reader, value: object) -> Any:
        """Read a value; None, and a problem, where it does not fit."""
        try:
            return reader(value)
        except ValidationError as error:
            self.problem(path, str(error))
            return None

    def fields(
        self,
        table: Mapping[str, object],
        path: KeyPath,
        readers: Mapping[str, Reader],
        apart: Iterable[str] = (),
    ) -> dict[str, Any]:
        """The values that are there and fit; what is `apart` is known too, and read elsewhere."""
        known = (*readers, *apart)
        fit: dict[str, Any] = {}
        for key, value in table.items():
            if key in readers:
                try:
                    fit[key] = readers[key](value)
                except ValidationError as error:
                    self.problem((*path, key), str(error))
            elif key not in known:
                self.problem((*path, key), f"unknown key{self._hint(key, path, known)}")
        return fit

    def mapping(self, table: Mapping[str, object], path: KeyPath, reader: Reader) -> dict[str, Any]:
        """The values of a table whose keys are a person's own: each is read alike."""
        return self.fields(table, path, dict.fromkeys(table, reader))

    def fit(
        self,
        record: type,
        table: Mapping[str, object],
        path: KeyPath,
        more: Mapping[str, Reader] | None = None,
        apart: Iterable[str] = (),
    ) -> dict[str, Any]:
        """The values of a record's keys that are there and fit, and of `more`, with the records of
        tables in it.
        """
        keys = record_keys(record)
        fit = self.fields(
            table, path, {**keys.readers, **(more or {})}, (*keys.tables, *keys.apart, *apart)
        )
        for key, inner in keys.tables.items():
            if key in table:
                fit[key] = self.record(inner, self.table(table, path, key), (*path, key))
        return fit

    def record(
        self,
        record: type[T],
        table: Mapping[str, object],
        path: KeyPath,
        check: Check | None = None,
    ) -> T | None:
        """The record that a table makes; None, and a problem, where a key without a default is
        missing or unfit.
        """
        fit = self.fit(record, table, path)
        if check is not None:
            check(fit)
        return (
            build(record, fit)
            if self.has(table, path, fit, record_keys(cast("type", record)).required)
            else None
        )

    def has(
        self,
        table: Mapping[str, object],
        path: KeyPath,
        fit: Mapping[str, Any],
        keys: Iterable[str],
    ) -> bool:
        """Whether all of the keys were read; a problem for each that is missing."""
        for key in keys:
            if key not in table:
                self.problem(path, f"{key} = … is missing")
        return all(key in fit for key in keys)


class RecordKeys(Struct, frozen=True):
    """The keys of a record: with a reader, with a record of their own, and read apart; `required`
    have no default.
    """

    readers: Mapping[str, Reader]
    tables: Mapping[str, type]
    apart: tuple[str, ...]
    required: tuple[str, ...]


@cache
def record_keys(record: Any) -> RecordKeys:
    """The keys that the fields of a record declare."""
    readers: dict[str, Reader] = {}
    tables: dict[str, type] = {}
    apart: list[str] = []
    required: list[str] = []
    for field in fields(record):
        match declared(field):
            case None:
                continue
            case SameTable(only):
                inner = record_keys(_field_record(field))
                readers |= {
                    key: read for key, read in inner.readers.items() if not only or key in only
                }
                tables |= inner.tables
                required += inner.required
            case Key.TABLE:
                tables[field.name] = _field_record(field)
            case Key.APART:
                apart.append(field.name)
            case reader:
                readers[field.name] = reader
                if field.default is NODEFAULT and field.default_factory is NODEFAULT:
                    required.append(field.name)
    return RecordKeys(readers, tables, tuple(apart), tuple(required))


def build(record: type[T], fit: Mapping[str, Any], **more: Any) -> T:
    """A record of values by key; `more` are fields that are none of the file's, or were read
    apart.
    """
    values = dict(more)
    for field in fields(record):  # type: ignore[arg-type]
        if isinstance(declared(field), SameTable):
            values[field.name] = build(_field_record(field), fit)
        elif field.name in fit and declared(field) is not None:
            values[field.name] = fit[field.name]
    return record(**values)


def declared(field: FieldInfo) -> Any:
    """The reader of a field, or what stands in its place; None where it is none of the file's."""
    return getattr(field.type, "__metadata__", (None,))[0]


def _field_record(field: FieldInfo) -> Any:
    """The record that a field holds, or may hold."""
    kind = field.type.__origin__
    return next(iter(get_args(kind)), kind)
