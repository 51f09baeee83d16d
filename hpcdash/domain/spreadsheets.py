"""Text of strangers for a CSV that a spreadsheet may open: none of it is taken for a formula."""

from __future__ import annotations

import pyarrow as pa

_BEGINS_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_text(words: str) -> str:
    """The words with a `'` before what a spreadsheet would compute."""
    return f"'{words}" if words.startswith(_BEGINS_FORMULA) else words


def without_formulas(table: pa.Table) -> pa.Table:
    """The table with its titles and its cells of text as text; numbers stay as they are."""
    columns = [_column(column) if pa.types.is_string(column.type) else column for column in table.columns]
    return pa.table(columns, names=[as_text(name) for name in table.column_names])


def _column(column: pa.ChunkedArray) -> pa.Array:
    # A column of a run's name or a metric's has the same text over and over.
    encoded = column.combine_chunks().dictionary_encode()
    words = [None if word is None else as_text(word) for word in encoded.dictionary.to_pylist()]
    return pa.array(words, pa.string()).take(encoded.indices)
