"""Conversion of the bytes of `qstat -f` and `pbsnodes` to text columns; no value can forge another."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from io import BytesIO
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.pbs.dialects import Dialect, pbs
from hpcdash.backends.pbs.text_records import (
    TRUSTED_HEADS,
    Record,
    join_attribute,
    text_records,
    xml_records,
)
from hpcdash.backends.pbs.values import restored, unescaped
from hpcdash.backends.queries import TEXT_BYTES, Native, Query, decoded, noise_lines, row_excerpt
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain.columns import row_numbers, text_column, where

T = TypeVar("T")
# In a thread, each call on so many bytes holds the interpreter for a few milliseconds.
_CHUNK_BYTES = 1 << 20
_HEADS = (b"Job Id: ", b"Queue: ", b"Server: ", b"Name=")
_HEAD = r"^(?:(?:Job Id|Queue|Server): *|Name=)"
_NODE_HEAD = b"Name="
# A plain 1 makes pyarrow look for numpy at each call.
_ONE = pa.scalar(1, pa.int32())


class Form(StrEnum):
    """Form of the records."""

    # A line a record, NAME=VALUE fields, a random token between them (`-F dsv -D TOKEN`).
    DSV = "dsv"
    # A head line, then `    NAME = VALUE` lines; long values go on after a newline and a tab.
    TEXT = "text"
    # Torque's <Data><Job>…</Job></Data>.
    XML = "xml"


def record_form(dialect: Dialect) -> tuple[Form, str, tuple[str, ...]]:
    """(form, token, options for it) of a command that prints records of queues, servers or
    nodes.
    """
    if dialect is not Dialect.OPENPBS:
        return Form.TEXT, "", ()
    token = fresh_token()
    return Form.DSV, token, ("-F", "dsv", "-D", token)


def record_query(
    dialect: Dialect, command: tuple[str, ...], parse: Callable[..., T], *names: str
) -> Query[T]:
    """Query records of queues, servers or jobs (`names`), which are read as text: `parse` gets
    their `form` and `token` by name.
    """
    form, token, options = record_form(dialect)
    return Query(
        pbs(*command, *options, *names),
        partial(parse, form=form, token=token),
        command=(*command, *names),
        cap_bytes=TEXT_BYTES,
    )


class Records(Struct, frozen=True):
    """Text columns: `id`, then the attributes asked for, null where a record has none; and what was
    rejected, in words.

    A resource is an attribute of its own: Resource_List.walltime.
    """

    table: pa.Table
    rejected: tuple[str, ...]


def read_records(
    raw: bytes, form: Form, requested: Sequence[str], *, token: str = "", start: int = 0
) -> Records | None:
    """All records of `raw` from byte `start` on; None where it holds text but no record at all (it
    is something else).

    Bytes that are no UTF-8 become U+FFFD. What DSV writes for control bytes (`^[`) stays as it is;
    what it writes for UTF-8, newlines and backslashes is these again. `token` is DSV's, of any
    characters. Of an attribute that comes twice DSV's last counts; in text and XML the one that a
    person's value cannot have forged. In text a whole record inside a value, with the attribute
    that is always first, cannot be told from a real one.
    """
    names = tuple(dict.fromkeys(requested))
    if form is not Form.DSV:
        read = _read(raw[start:], form, token)
        return None if read is None else Records(_table(read[0], names), read[1])
    lines = _DsvLines(token.encode())
    batches = lines.batches(raw, start)
    tables = [_dsv_table(batch, lines.token, names) for batch in batches if batch]
    if lines.rejected and not lines.found_any:
        return None
    table = pa.concat_tables(tables).combine_chunks() if tables else _table([], names)
    return Records(table, tuple(lines.rejected))


def read_all(
    raw: bytes, form: Form, *, token: str = ""
) -> tuple[list[tuple[str, Native]], tuple[str, ...]] | None:
    """((id, every attribute in the order it was printed) of each record, what was rejected); None
    as read_records.

    Costs a Python object an attribute: for nodes and for details, not for thousands of jobs.
    """
    read = _read(raw, form, token)
    if read is None:
        return None
    texts: list[tuple[str, Native]] = [
        (decoded(name), {decoded(key): decoded(value) for key, value in native.items()})
        for name, native in read[0]
    ]
    return texts, read[1]


def read_attributes(raw: bytes, form: Form, *, token: str = "") -> list[tuple[str, Native]]:
    """(id, every attribute in the order it was printed) of each record: for details of few of
    them.
    """
    read = read_all(raw, form, token=token)
    return read[0] if read else []


def _read(raw: bytes, form: Form, token: str) -> tuple[list[Record], tuple[str, ...]] | None:
    """(the records, what was rejected); None as read_records."""
    if form is Form.DSV:
        lines = _DsvLines(token.encode())
        rejected = lines.rejected
        records = [_dsv_record(line, lines.token) for batch in lines.batches(raw) for line in batch]
        if rejected and not lines.found_any:
            return None
    else:
        rejected = []
        parse = xml_records if form is Form.XML else text_records
        records = list(parse(raw, rejected))
        if rejected and not records and not (form is Form.XML and b"<Data" in raw):
            return None
    return records, tuple(rejected)


class _DsvLines:
    """Gathers the lines of each record.

    Nearly always that is one, but PBS writes the byte CA as ^ and a newline, and pbsnodes the
    newlines of a node's comment as they are.
    """

    def __init__(self, token: bytes) -> None:
        self.token = token
        self.found_any = False
        self.rejected: list[str] = []
        self._first_attribute = b""

    def batches(self, raw: bytes, start: int = 0) -> Iterator[list[bytes]]:
        """Whole records, about a megabyte of them at a time."""
        stream = BytesIO(raw)
        stream.seek(start)
        current: list[bytes] = []
        undecided = bytearray()
        previous = b""
        while lines := stream.readlines(_CHUNK_BYTES):
            batch: list[bytes] = []
            for line in lines:
                if line.startswith(_HEADS) and self._begins(line, previous):
                    if current:
                        batch.append(_joined(current))
                    if undecided:
                        self.rejected += noise_lines(undecided, self.token)
                        undecided.clear()
                    current = [line]
                elif current and (
                    self.token in line or (previous.endswith(b"^\n") and not undecided)
                ):
                    current += [bytes(undecided), line] if undecided else [line]
                    undecided.clear()
                else:
                    undecided += line
                previous = line
            yield batch
        if current and not current[-1].endswith(b"\n"):
            self.rejected.append(
                f"the output ended inside a record: {row_excerpt(_joined(current), self.token)}"
            )
        elif current:
            yield [_joined(current)]
        self.rejected += noise_lines(undecided, self.token)

    def _begins(self, line: bytes, previous: bytes) -> bool:
        """Whether a record begins here: where a value may have brought the line, its first
        attribute must be the one that is every record's first; nobody's value comes before that
        one.
        """
        if not self.found_any:
            self.found_any = True
            self._first_attribute = self._first(line)
            return True
        if previous.endswith(b"^\n") or line.startswith(_NODE_HEAD):
            return self._first(line) == self._first_attribute
        return True

    def _first(self, line: bytes) -> bytes:
        parts = line.split(self.token, 2)
        return parts[1].partition(b"=")[0] if len(parts) > 1 else b""


def _joined(lines: list[bytes]) -> bytes:
    record = lines[0] if len(lines) == 1 else b"".join(lines)
    return restored(record.removesuffix(b"\n"))


def _dsv_record(record: bytes, token: bytes) -> Record:
    head, *fields = record.split(token)
    pairs = (field.partition(b"=")[::2] for field in fields if b"=" in field)
    name = re.sub(_HEAD.encode(), b"", head).strip()
    if head.startswith(_NODE_HEAD):
        return name, dict(pairs)
    pairs = ((key, unescaped(value)) for key, value in pairs)
    if not head.startswith(TRUSTED_HEADS):
        return name, dict(pairs)
    joined: dict[bytes, bytes] = {}
    for key, value in pairs:
        join_attribute(joined, key, value)
    return name, joined


def _dsv_table(records: list[bytes], token: bytes, names: tuple[str, ...]) -> pa.Table:
    """The work is Arrow's, which lets other threads run: one pass to split, one to sort the fields
    by their names.
    """
    split = pc.split_pattern(pa.array(records, pa.binary()), pattern=token)
    parts = pc.split_pattern(split.flatten(), pattern=b"=", max_splits=1)
    keys = pc.list_element(parts, 0)
    has_value = pc.greater(pc.list_value_length(parts), _ONE)
    found = pc.index_in(keys, value_set=pa.array([name.encode() for name in names], pa.binary()))
    codes = where(has_value, found)
    by_name = pc.array_sort_indices(codes)
    rows = pc.list_parent_indices(split).take(by_name)
    at = pc.add(parts.offsets[:-1].take(by_name), _ONE)
    counts = {
        counted["values"]: counted["counts"] for counted in pc.value_counts(codes).to_pylist()
    }
    every_row = row_numbers(len(records))
    ids = pc.replace_substring_regex(text_column(pc.list_element(split, 0)), _HEAD, "")
    columns = {"id": pc.utf8_trim_whitespace(ids)}
    is_escaped = not records[0].startswith(_NODE_HEAD)
    start = 0
    for code, name in enumerate(names):
        count = counts.get(code, 0)
        values = parts.values.take(at.slice(start, count))
        if is_escaped and pc.any(pc.match_substring(values, "\\")).as_py():
            values = pa.array([unescaped(value) for value in values.to_pylist()], pa.binary())
        columns[name] = text_column(_spread(values, rows.slice(start, count), every_row))
        start += count
    return pa.table(columns)


def _spread(values: pa.Array, rows: pa.Array, every_row: pa.Array) -> pa.Array:
    """Values at their rows, null elsewhere; of several for one row the last."""
    if rows.equals(every_row):
        return values
    if pc.count_distinct(rows).as_py() < len(rows):
        # index_in gives the first place of each.
        backwards = pc.array_sort_indices(row_numbers(len(rows)), order="descending")
        values = values.take(backwards)
        rows = rows.take(backwards)
    return values.take(pc.index_in(every_row, value_set=rows))


def _table(records: list[Record], names: tuple[str, ...]) -> pa.Table:
    columns = {"id": text_column([name for name, _ in records])}
    for name in names:
        key = name.encode()
        columns[name] = text_column([fields.get(key) for _, fields in records])
    return pa.table(columns)
