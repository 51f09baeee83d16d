"""Tables of numbers and text in files of a job: CSV, TSV and lines of JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct

from hpcdash.domain.schema import arrow_schema
from hpcdash.domain.tables import ColumnSpec, FieldType, TableSpec
from hpcdash.domain.text import clip, visible
from hpcdash.errors import UnreadableOutput
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import FileRange, files_query
from hpcdash.services.job_files.listing import to_text

# The start of a larger file is read.
MAX_BYTES = 4 << 20
_MAX_COLUMNS = 200
_MAX_CELL_LETTERS = 2000
_HEADING_CELLS = 40
_NUMBER_CELLS = 10
# Larger ones are not exact, and nan is not below it.
_MAX_NUMBER = 2**53
_DELIMITERS = {b".csv": ",", b".tsv": "\t"}
_JSON_LINES = (b".jsonl", b".ndjson")
_ROW = "row"
_ROW_ID = "_row"


class DataTable(Struct, frozen=True):
    """The rows of a file, in a table declared from its columns; not all of them if it `is_cut`."""

    spec: TableSpec
    table: pa.Table
    is_cut: bool = False


def is_data_file(path: bytes) -> bool:
    """Whether the name is that of a file with rows."""
    return path.lower().endswith((*_DELIMITERS, *_JSON_LINES))


async def fetch_data_table(store: ClusterStore, path: bytes) -> DataTable:
    """Read the rows of a file; raises UnreadableOutput if there are none."""
    query = files_query([FileRange(to_text(path), 0, MAX_BYTES)])
    [chunk] = await store.run_query(query)
    if chunk.stat.problem:
        raise UnreadableOutput(chunk.stat.problem, argv=("cat",))
    content = chunk.content
    if not chunk.ends_the_file:
        content = content[: content.rfind(b"\n") + 1]
    return parse_data_table(path, content, is_cut=not chunk.ends_the_file)


def parse_data_table(path: bytes, content: bytes, *, is_cut: bool = False) -> DataTable:
    """Parse the rows of a file by the end of its name; raises UnreadableOutput if there are none.

    A line that is no JSON object, such as one that is being written, is left out.
    """
    text = content.decode("utf-8", "replace")
    suffix = path[path.rfind(b".") :].lower()
    rows = _parse_json(text) if suffix in _JSON_LINES else _parse_csv(text, _DELIMITERS[suffix])
    names = list(dict.fromkeys(name for row in rows for name in row))[:_MAX_COLUMNS]
    if not names or not rows:
        raise UnreadableOutput("no rows in this file", argv=("cat",))
    columns = {name: [row.get(name) for row in rows] for name in names}
    return _build_table(columns, is_cut=is_cut)


def _parse_csv(text: str, delimiter: str) -> list[dict[str, Any]]:
    try:
        lines = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    except csv.Error as error:
        raise UnreadableOutput(f"not CSV: {error}", argv=("cat",)) from None
    if not lines:
        return []
    heading, *rows = lines
    return [dict(zip(heading, row, strict=False)) for row in rows]


def _parse_json(text: str) -> list[dict[str, Any]]:
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _build_table(columns: Mapping[str, Sequence[Any]], *, is_cut: bool) -> DataTable:
    count = len(next(iter(columns.values())))
    row_numbers = range(1, count + 1)
    fields: dict[str, FieldType] = {_ROW: "count", _ROW_ID: "text"}
    arrays: dict[str, list[Any]] = {
        _ROW: list(row_numbers),
        _ROW_ID: [str(number) for number in row_numbers],
    }
    specs = [ColumnSpec(_ROW, 6, 0, muted=True)]
    for name, values in columns.items():
        # A field that begins with _ is hidden, and one named state is counted.
        shown = clip(visible(name), _HEADING_CELLS).lstrip("_") or "column"
        while shown in fields or shown == "state":
            shown += "'"
        numbers = _parse_numbers(values)
        if numbers is None:
            fields[shown] = "text"
            arrays[shown] = [None if value is None else _format(value) for value in values]
        else:
            is_whole = all(number is None or number.is_integer() for number in numbers)
            fields[shown] = "count" if is_whole else "real"
            arrays[shown] = numbers
        longest = 40 if numbers is None else _NUMBER_CELLS
        specs.append(ColumnSpec(shown, _NUMBER_CELLS, len(specs), title=shown, longest=longest))
    shown_names = tuple(spec.name for spec in specs)
    spec = TableSpec("data", fields, tuple(specs), shown_names, identity=_ROW_ID, whole=(_ROW,))
    return DataTable(spec, pa.table(arrays, schema=arrow_schema(spec)), is_cut)


def _parse_numbers(values: Sequence[Any]) -> list[float | None] | None:
    """Return the values as numbers; None if one is none."""
    numbers: list[float | None] = []
    for value in values:
        if value is None or value == "":
            numbers.append(None)
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            return None
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return None
        numbers.append(number if abs(number) < _MAX_NUMBER else None)
    return numbers if any(number is not None for number in numbers) else None


def _format(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:_MAX_CELL_LETTERS].encode("utf-8", "replace").decode()
