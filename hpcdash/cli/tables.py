"""Tables on stdout: JSON, CSV, aligned text."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
from msgspec import Struct

from hpcdash.cli.terminal import JSON_SCHEMA, ByteStream, stdout, terminal_width
from hpcdash.config.problems import did_you_mean
from hpcdash.domain.columns import as_array, shortened
from hpcdash.domain.job_text import queue_note
from hpcdash.domain.rfc3339 import format_utc, json_values, table_to_json_rows
from hpcdash.domain.tables import ColumnSpec, TableSpec
from hpcdash.domain.text import cell_width, clip_path, visible, without_surrogates
from hpcdash.domain.units import format_age, format_duration, format_memory
from hpcdash.errors import UsageError

UNKNOWN = "-"
_GAP = "  "
_NARROWEST_TEXT = 8
# Without a terminal; a PBS name of 230 letters would widen every line.
_WIDEST_TEXT = 64
# Rows formatted at a time, to limit memory.
_ROWS_AT_A_TIME = 8192


class _Column(Struct):
    name: str
    heading: str
    cells: list[str]
    is_number: bool
    width: int = 0


def print_rows(
    spec: TableSpec, table: pa.Table, form: str, *, utc_now: float, columns: Sequence[str] = ()
) -> None:
    """Print rows on stdout: with `form` csv all public columns, else `columns` as aligned text."""
    if form == "csv":
        write_csv(spec.public_names, table, stdout())
        return
    write_table(
        spec,
        table,
        sys.stdout.buffer,
        utc_now=utc_now,
        columns=columns,
        width=terminal_width(),
        encoding=sys.stdout.encoding,
    )


def write_table(
    spec: TableSpec,
    table: pa.Table,
    out: BinaryIO,
    *,
    utc_now: float | datetime,
    columns: Sequence[str] = (),
    width: int | None = None,
    encoding: str = "utf-8",
) -> None:
    """Write a heading and a line per row, aligned, and flush.

    `columns` are those that the table prints by default, and for queues `note` if a queue has one;
    unknown names raise UsageError. `width` is a terminal's columns: text is cut with `…`, then
    columns are left out, but never the ID or the state; IDs lose the PBS server if all name the
    same. If it is None, for a pipe or a file, text is cut at 64 columns, except the ID, the state
    and the last column. Ages count from `utc_now` (epoch in seconds, or datetime). Text is made
    visible; characters that `encoding` lacks become '?'. The caller handles BrokenPipeError.
    """
    requested = tuple(columns) or spec.printed or spec.shown
    now_epoch = utc_now.timestamp() if isinstance(utc_now, datetime) else utc_now
    for name in requested:
        if name not in spec.names:
            raise UsageError(
                f"{visible(name)} is not a column of {spec.name}{did_you_mean(name, spec.names)}"
            )
    if "_server_note" in table.column_names:
        fields = table.select(["_note", "_opens_at", "_server_note"])
        notes = [queue_note(row, now_epoch) or None for row in fields.to_pylist()]
        if not columns and any(notes):
            requested = (*requested, "note")
            table = table.append_column("note", pa.array(notes, pa.string()))
    if width is not None and "_number" in table.column_names:
        table = table.set_column(table.column_names.index("id"), "id", shortened(table["id"]))
    whole = [_column(spec, table, name, now_epoch) for name in requested]
    fitted = _bounded(whole, spec) if width is None else _fitted(whole, width, spec)
    aligned = [_aligned(column, is_last=column is fitted[-1]) for column in fitted]
    lines = map(_GAP.join, zip(*aligned, strict=True))
    out.write("".join(f"{line}\n" for line in lines).encode(encoding, "replace"))
    out.flush()


def _column(spec: TableSpec, table: pa.Table, name: str, now_epoch: float) -> _Column:
    shown = spec.column(name) or ColumnSpec(name, 0, 0)
    if shown.key not in table.column_names:
        cells = [UNKNOWN] * table.num_rows
        is_number = False
    else:
        array = as_array(table[shown.key])
        format_value, is_number = _formatter(shown.key, array.type, now_epoch)
        if shown.text is not None:
            rows = table.select(shown.inputs or table.column_names).to_pylist()
            cells = [visible(shown.text(row)) or UNKNOWN for row in rows]
        elif shown.total:
            pairs = zip(array.to_pylist(), as_array(table[shown.total]).to_pylist(), strict=True)
            cells = [
                UNKNOWN
                if pair == (None, None)
                else "/".join(
                    UNKNOWN if amount is None else format_value(amount) for amount in pair
                )
                for pair in pairs
            ]
        else:
            if pa.types.is_timestamp(array.type):
                array = array.cast(pa.timestamp("s", tz=array.type.tz), safe=False).cast(pa.int64())
            elif pa.types.is_dictionary(array.type):
                array = array.dictionary_decode()
            cells = _cells(array.to_pylist(), format_value)
    heading = shown.heading or shown.name.upper()
    return _Column(shown.name, heading, cells, is_number, max(map(cell_width, {heading, *cells})))


def _cells(values: list[Any], format_value: Callable[[Any], str]) -> list[str]:
    # Most columns have few distinct values: each is formatted once.
    keys = [tuple(value) if isinstance(value, list) else value for value in values]
    texts = {key: UNKNOWN if key is None else format_value(key) or UNKNOWN for key in set(keys)}
    return [texts[key] for key in keys]


def _formatter(name: str, kind: pa.DataType, now_epoch: float) -> tuple[Callable[[Any], str], bool]:
    """Return a formatter for a column's values, and whether they are aligned right like numbers."""
    if pa.types.is_timestamp(kind):
        return lambda epoch: _from_now(epoch - now_epoch), True
    if pa.types.is_boolean(kind):
        return lambda value: "yes" if value else "no", False
    if pa.types.is_list(kind):
        return lambda items: visible(",".join(item or "" for item in items)), False
    if pa.types.is_floating(kind):
        return lambda value: f"{value:.2f}" if math.isfinite(value) else UNKNOWN, True
    if pa.types.is_integer(kind):
        if name.endswith("_seconds"):
            return format_duration, True
        return format_memory if name.endswith("_bytes") else str, True
    return visible, False


def _from_now(seconds: float) -> str:
    return f"in {format_age(seconds)}" if seconds >= 1 else f"{format_age(-seconds)} ago"


def _bounded(columns: list[_Column], spec: TableSpec) -> list[_Column]:
    """Return all columns, limited in width but for the last, which widens only its own lines."""
    for column in columns[:-1]:
        if not column.is_number and column.name not in spec.whole:
            column.width = min(column.width, _WIDEST_TEXT)
    return columns


def _fitted(columns: list[_Column], width: int, spec: TableSpec) -> list[_Column]:
    """Return the columns that fit into `width`, with their widths."""
    remaining = list(columns)
    while True:
        room = width - len(_GAP) * (len(remaining) - 1)
        narrowest = sum(_narrowest(column, spec.whole) for column in remaining)
        spare = [column for column in remaining if column.name not in spec.whole]
        if narrowest <= room or not spare:
            break
        by_name = {column.name: column for column in spare}
        remaining.remove(
            next((by_name[name] for name in spec.dropped if name in by_name), spare[-1])
        )
    elastic = [column for column in remaining if column.width > _narrowest(column, spec.whole)]
    room -= sum(column.width for column in remaining if column not in elastic)
    _share(elastic, max(room, len(elastic) * _NARROWEST_TEXT))
    return remaining


def _narrowest(column: _Column, always_whole: Sequence[str]) -> int:
    if column.is_number or column.name in always_whole:
        return column.width
    return min(column.width, _NARROWEST_TEXT)


def _share(elastic: list[_Column], room: int) -> None:
    """Cut the widest columns to a common width so that all fit into `room`."""
    remaining = len(elastic)
    for column in sorted(elastic, key=lambda column: column.width):
        column.width = min(column.width, room // remaining)
        room -= column.width
        remaining -= 1


def _aligned(column: _Column, *, is_last: bool) -> list[str]:
    """Return heading and cells, padded to the column's width unless it `is_last`."""
    cells = [column.heading, *column.cells]
    placed = {cell: _placed(clip_path(cell, column.width), column, is_last) for cell in set(cells)}
    return [placed[cell] for cell in cells]


def _placed(cell: str, column: _Column, is_last: bool) -> str:
    blanks = " " * (column.width - cell_width(cell))
    if column.is_number:
        return blanks + cell
    return cell if is_last else cell + blanks


def write_json(
    spec: TableSpec,
    table: pa.Table,
    out: ByteStream,
    *,
    cluster: str,
    backend: str,
    taken_at: float | datetime | None,
    rejected_rows: int = 0,
) -> None:
    """Write one JSON object and a newline in UTF-8, and flush.

    The rows stand under the table's name, "jobs" for history too. `taken_at` is an epoch in seconds
    or a datetime. The caller handles BrokenPipeError.
    """
    envelope = {
        "schema": JSON_SCHEMA,
        "cluster": without_surrogates(cluster),
        "backend": without_surrogates(backend),
        "taken_at": None if taken_at is None else format_utc(taken_at),
        "rejected_rows": rejected_rows,
        spec.json_key or spec.name: [],
    }
    names = spec.public_names
    # Reopen the empty list of rows and the object.
    out.write(msgspec.json.encode(envelope)[: -len("]}")])
    separator = b""
    for part in _parts(table):
        out.write(separator + msgspec.json.encode(table_to_json_rows(part, names))[1:-1])
        separator = b","
    out.write(b"]}\n")
    out.flush()


def write_csv(names: Sequence[str], table: pa.Table, out: ByteStream) -> None:
    """Write columns as RFC 4180 in UTF-8, after a header, and flush.

    Unknown values are empty, lists are joined with ',', and text is quoted where needed, but never
    altered. The caller handles BrokenPipeError.
    """
    out.write(_csv_lines([names]))
    for part in _parts(table):
        out.write(_csv_lines(zip(*(_csv_values(part, name) for name in names), strict=True)))
    out.flush()


def _csv_lines(rows: object) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows(rows)  # type: ignore[arg-type]
    return text.getvalue().encode("utf-8")


def _csv_values(table: pa.Table, name: str) -> list[Any]:
    if name not in table.column_names:
        return [None] * table.num_rows
    column = table[name]
    values = json_values(column)
    if pa.types.is_boolean(column.type):
        return [None if value is None else str(value).lower() for value in values]
    if pa.types.is_list(column.type):
        return [
            None if value is None else ",".join(item or "" for item in value) for value in values
        ]
    return values


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, _ROWS_AT_A_TIME):
        yield table.slice(start, _ROWS_AT_A_TIME)
