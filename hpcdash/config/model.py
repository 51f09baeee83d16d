"""Reader of TOML tables into records that declare their keys; collects all problems.

A key is a field of a frozen Struct: its type, its default and its reader, as in `Annotated[float,
seconds]`. A field of a Struct is a table, one of a tuple of them an array of tables, and one of a
mapping to values with a reader a table of the user's own keys. Other fields are not in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_origin

from msgspec import Struct
from msgspec.structs import fields

from hpcdash.config.problems import KeyPath, dotted, printable, shown

T = TypeVar("T", bound=Struct)
# Checks a value of a TOML document and returns what the record holds; raises ValueError with the
# reason and the expected value.
Reader = Callable[[object], Any]
# Returns the text after "unknown key": from a key, the path of its table, and the keys known there.
Hint = Callable[[str, KeyPath, Collection[str]], str]


class Key(Enum):
    """Mark in place of a reader: the caller reads APART; NONE is not in the file."""

    APART = "apart"
    NONE = "none"


class SameTable(Struct, frozen=True):
    """Mark in place of a reader: the record's keys, or those of `only`, are in the same table."""

    only: tuple[str, ...] = ()


class Table:
    """Table of a document: its `values` and its `path`.

    All tables of a document share its `problems`, as (key path, message), and `document`, the
    values of the whole.
    """

    def __init__(self, document: Mapping[str, Any], hint: Hint) -> None:
        self.document = self.values = document
        self.path: KeyPath = ()
        self.problems: list[tuple[KeyPath, str]] = []
        self._hint = hint

    def add_problem(self, message: str, *key: str | int) -> None:
        """Add a problem of a key below this table, or of the table itself."""
        self.problems.append(((*self.path, *key), message))

    def table(self, key: str) -> Table:
        """Return the table under a key; an empty one if it is missing or no table."""
        values = self.values.get(key, {})
        if not isinstance(values, dict):
            self.add_problem(f"expected a table, not {shown(values)}", key)
            values = {}
        return self._below(values, key)

    def tables(self, key: str) -> Iterator[Table]:
        """Yield each table under a key, which may be one or an array of them."""
        found = self.values.get(key, [])
        if isinstance(found, dict):
            yield self._below(found, key)
        elif isinstance(found, list) and all(isinstance(item, dict) for item in found):
            for index, item in enumerate(found):
                yield self._below(item, key, index)
        else:
            self.add_problem(f"expected tables: [[{dotted((*self.path, key))}]]", key)

    def fields(self, readers: Mapping[str, Reader], apart: Collection[str] = ()) -> dict[str, Any]:
        """Read the values that fit; keys in `apart` are known too, and read elsewhere."""
        fit: dict[str, Any] = {}
        for key, value in self.values.items():
            if key in readers:
                try:
                    fit[key] = readers[key](value)
                except ValueError as error:
                    self.add_problem(printable(str(error)), key)
            elif key not in apart:
                hint = self._hint(key, self.path, (*readers, *apart))
                self.add_problem(f"unknown key{hint}", key)
        return fit

    def mapping(
        self, reader: Reader, name_reader: Callable[[Any], object] | None = None
    ) -> dict[str, Any]:
        """Read a table whose keys are names of the user's own."""
        if name_reader is not None:
            self._below({name: name for name in self.values}).mapping(name_reader)
        return self.fields(dict.fromkeys(self.values, reader))

    def items(self, key: str, expected: str) -> Table:
        """Return the array under a key as a table by index; an empty one if it is no array."""
        found = self.values.get(key, [])
        if not isinstance(found, list):
            self.add_problem(f"expected an array of {expected}, not {shown(found)}", key)
            found = []
        return self._below(dict(enumerate(found)), key)

    def fit(
        self,
        record: type[Struct],
        readers: Mapping[str, Reader] | None = None,
        apart: Collection[str] = (),
    ) -> dict[str, Any]:
        """Read the values of a record's keys that fit, and its tables.

        `readers` and `apart` add keys. A record's own `check(table, fit)` adds problems, or values.
        """
        keys = record_keys(record)
        fit = self.fields({**keys.readers, **(readers or {})}, (*keys.tables, *keys.apart, *apart))
        for key, read in keys.tables.items():
            if key in self.values:
                fit[key] = read(self, key)
        for checked in (record, *keys.same.values()):
            if check := getattr(checked, "check", None):
                check(self, fit)
        return fit

    def record(self, record: type[T], **more: Any) -> T | None:
        """Read this table's record; None if a required key is missing or does not fit.

        `more` are fields that are not in the file.
        """
        fit = self.fit(record)
        if not self.require(fit, *record_keys(record).required):
            return None
        return build(record, fit, **more)

    def require(self, fit: Mapping[str, Any], *keys: str) -> bool:
        """Add a problem for each of the keys that is missing; return whether all were read."""
        for key in keys:
            if key not in self.values:
                self.add_problem(f"{key} = … is missing")
        return all(key in fit for key in keys)

    def _below(self, values: Mapping[Any, Any], *key: str | int) -> Table:
        table = copy(self)
        table.values = values
        table.path = (*self.path, *key)
        return table


class RecordKeys(Struct, frozen=True):
    """Keys of a record: `readers` of values, readers of `tables`, keys read `apart`, keys in the
    `same` table by the field of their record; `required` have no default.
    """

    readers: dict[str, Reader]
    tables: dict[str, Callable[[Table, str], Any]]
    apart: list[str]
    same: dict[str, type[Struct]]
    required: list[str]


@cache
def record_keys(record: type[Struct]) -> RecordKeys:
    """Return the keys that the fields of a record declare."""
    keys = RecordKeys({}, {}, [], {}, [])
    for field in fields(record):
        mark = _mark(field.type)
        if isinstance(mark, SameTable):
            inner = field.type.__origin__
            inner_keys = record_keys(inner)
            keys.same[field.name] = inner
            keys.readers.update(
                {key: inner_keys.readers[key] for key in mark.only or inner_keys.readers}
            )
            keys.tables.update(inner_keys.tables)
            keys.required.extend(inner_keys.required)
        elif mark is Key.APART:
            keys.apart.append(field.name)
        elif callable(mark):
            keys.readers[field.name] = mark
            if field.required:
                keys.required.append(field.name)
        elif mark is None and (read := _table_reader(field.type)):
            keys.tables[field.name] = read
    return keys


def _table_reader(kind: Any) -> Callable[[Table, str], Any] | None:
    """Return the reader of a field's table or tables, by its type; None for another type."""
    first, *others = get_args(kind) or (kind,)
    if get_origin(kind) is Mapping and callable(reader := _mark(others[0])):
        return lambda table, key: table.table(key).mapping(reader, _mark(first))
    if not (isinstance(first, type) and issubclass(first, Struct)):
        return None
    if others == [...]:
        return lambda table, key: tuple(
            filter(None, (item.record(first) for item in table.tables(key)))
        )
    return lambda table, key: table.table(key).record(first)


def _mark(kind: Any) -> Any:
    """Return the reader in an annotation, or the mark in its place; None for none."""
    return getattr(kind, "__metadata__", (None,))[0]


def build(record: type[T], fit: Mapping[str, Any], **more: Any) -> T:
    """Build a record of values by key.

    `more` are fields that are not in the file or were read apart.
    """
    given = {name: fit[name] for name in record.__struct_fields__ if name in fit}
    same = {field: build(inner, fit) for field, inner in record_keys(record).same.items()}
    return record(**given | same | more)
