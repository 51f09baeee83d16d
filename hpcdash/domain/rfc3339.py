"""Times as RFC 3339 in UTC, and tables as rows that JSON can hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.columns import as_array


def format_utc(moment: float | datetime) -> str:
    """`2026-11-21T05:34:15Z` of an epoch in seconds or a datetime (UTC when it has no zone), to the
    second.
    """
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, UTC)
    elif moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return f"{moment.astimezone(UTC).replace(microsecond=0, tzinfo=None).isoformat()}Z"


def parse_utc(text: str) -> int:
    """The epoch in seconds of an RFC 3339 time; without an offset it is UTC.

    Raises ValueError naming the text.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an RFC 3339 time") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def table_to_json_rows(table: pa.Table, names: Sequence[str]) -> list[dict[str, Any]]:
    """A dict a row with `names` in their order: times as RFC 3339, lists as lists, null as None.

    A name the table does not have is None in every row; a float that is no number is None too, as
    JSON has no NaN.
    """
    columns = [
        json_values(table[name]) if name in table.column_names else [None] * table.num_rows
        for name in names
    ]
    if not columns:
        return [{} for _ in range(table.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of one column as JSON holds them."""
    array = as_array(column)
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
    elif pa.types.is_timestamp(kind):
        # Casting is thirty times as fast as strftime; without a zone no time zone database is
        # needed.
        seconds = array.cast(pa.timestamp("s", tz=kind.tz), safe=False).cast(pa.timestamp("s"))
        spaced = seconds.cast(pa.string())
        array = pc.binary_join_element_wise(
            pc.replace_substring(spaced, " ", "T"), pa.scalar("Z"), ""
        )
    elif pa.types.is_floating(kind):
        array = pc.if_else(pc.is_finite(array), array, pa.scalar(None, kind))
    values: list[Any] = array.to_pylist()
    return values
