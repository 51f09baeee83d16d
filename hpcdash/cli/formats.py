"""Tables of jobs, nodes and queues as stdout gets them: JSON, CSV, aligned text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from datetime import datetime

import msgspec
import pyarrow as pa

from hpcdash.cli.kinds import Kind, contract_columns, rows_key
from hpcdash.cli.stdout import ByteStream
from hpcdash.cli.text_table import default_columns, write_table
from hpcdash.domain.rfc3339 import format_utc, json_values, table_to_json_rows

__all__ = ["Kind", "contract_columns", "default_columns", "write_csv", "write_json", "write_table"]

JSON_SCHEMA = 1
# Rows turned into text at a time: memory stays small however long the queue.
_ROWS_AT_A_TIME = 8192
_SURROGATE = re.compile("[\ud800-\udfff]")


def write_json(
    kind: Kind,
    table: pa.Table,
    out: ByteStream,
    *,
    cluster: str,
    backend: str,
    taken_at: float | datetime | None,
    rejected_rows: int = 0,
) -> None:
    """Write one JSON object and a newline in UTF-8, and flush.

    The rows stand under "jobs" (history too), "nodes" or "queues". `taken_at` is an epoch in seconds or a datetime.
    BrokenPipeError is the caller's.
    """
    envelope = {
        "schema": JSON_SCHEMA,
        "cluster": _encodable(cluster),
        "backend": _encodable(backend),
        "taken_at": None if taken_at is None else format_utc(taken_at),
        "rejected_rows": rejected_rows,
        rows_key(kind): [],
    }
    names = contract_columns(kind)
    # The empty list of rows and the brace are opened again.
    out.write(msgspec.json.encode(envelope)[: -len("]}")])
    separator = b""
    for part in _parts(table):
        out.write(separator + msgspec.json.encode(table_to_json_rows(part, names))[1:-1])
        separator = b","
    out.write(b"]}\n")
    out.flush()


def write_csv(kind: Kind, table: pa.Table, out: ByteStream) -> None:
    """Write RFC 4180 in UTF-8, a header of the contract's columns first, and flush.

    Unknown is empty, lists are joined with ',', and text is as it is: quoted where it must be, never altered.
    BrokenPipeError is the caller's.
    """
    names = contract_columns(kind)
    out.write(_csv_lines([names]))
    for part in _parts(table):
        out.write(_csv_lines(zip(*(_csv_values(part, name) for name in names), strict=True)))
    out.flush()


def _csv_lines(rows: object) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows(rows)  # type: ignore[arg-type]
    return text.getvalue().encode("utf-8")


def _csv_values(table: pa.Table, name: str) -> list[object]:
    if name not in table.column_names:
        return [None] * table.num_rows
    column = table[name]
    values: list[object] = json_values(column)
    if pa.types.is_boolean(column.type):
        return [None if value is None else "true" if value else "false" for value in values]
    if pa.types.is_list(column.type):
        return [None if value is None else ",".join(item or "" for item in value) for value in values]  # type: ignore[attr-defined]
    return values


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, _ROWS_AT_A_TIME):
        yield table.slice(start, _ROWS_AT_A_TIME)


def _encodable(text: str) -> str:
    # Arguments that are not UTF-8 reach Python as lone surrogates.
    return _SURROGATE.sub("\ufffd", text)
