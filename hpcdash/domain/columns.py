"""Reads, tests and sorts whole columns of text, however Arrow holds them."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.job_ids import parse_server
from hpcdash.domain.states import JobState, NodeState

Column: TypeAlias = pa.Array | pa.ChunkedArray

# From the most alive to the least, failures before successes.
STATE_ORDER: tuple[str, ...] = (
    JobState.RUNNING,
    JobState.COMPLETING,
    JobState.SUSPENDED,
    JobState.PENDING,
    JobState.REQUEUED,
    JobState.HELD,
    JobState.FAILED,
    JobState.OUT_OF_MEMORY,
    JobState.TIMEOUT,
    JobState.NODE_FAILED,
    JobState.PREEMPTED,
    JobState.CANCELLED,
    JobState.COMPLETED,
    JobState.GONE,
    NodeState.DOWN,
    NodeState.DRAINED,
    NodeState.DRAINING,
    NodeState.ALLOCATED,
    NodeState.MIXED,
    NodeState.RESERVED,
    NodeState.PLANNED,
    NodeState.IDLE,
    JobState.UNKNOWN,
)
_STATE_PLACES = {state: place for place, state in enumerate(STATE_ORDER)}
# Numbers inside names are compared as numbers up to this many distinct names; the padding costs 0.6
# µs a name.
MAX_NATURAL_NAMES = 30_000
_PAD_DIGITS = 12
_NUMBER_ORDER = ("_number", "_task")
# The most a column of whole numbers holds.
MOST = (1 << 63) - 1
# The last second of the year 9999: no date is written beyond it.
LAST_INSTANT = 253_402_300_799


def as_array(column: Column) -> pa.Array:
    """Return a column as one array; the dictionaries of its chunks become one."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return pa.concat_arrays(column.chunks)


def with_columns(table: pa.Table, changed: Mapping[str, Column]) -> pa.Table:
    """Return a table with other values in some of its columns; their types stay."""
    columns = [changed.get(name, table[name]) for name in table.column_names]
    return pa.table(columns, schema=table.schema)


def where(mask: Column, column: Column) -> Column:
    """Return a column with its values where a mask holds, and null elsewhere."""
    return pc.if_else(mask, column, pa.scalar(None, column.type))


def null_where(mask: Column, column: Column) -> Column:
    """Return a column with null where a mask holds."""
    return pc.if_else(mask, pa.scalar(None, column.type), column)


def row_numbers(count: int) -> pa.Array:
    """Return 0, 1, … `count` - 1 as int64."""
    # A plain 1 makes pyarrow import numpy at each call.
    step = pa.scalar(1, pa.int64())
    return pc.subtract(pc.cumulative_sum(pa.repeat(step, count)), step)


def column_text(column: Column) -> pa.Array:
    """Return a column as plain strings: lists joined by commas, numbers as digits, null kept."""
    array = as_array(column)
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if pa.types.is_string(kind):
        return array
    if pa.types.is_list(kind):
        return pc.binary_join(array, ",")
    return array.cast(pa.string())


def match_text(column: Column, predicate: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return a mask, without nulls, of the rows with a text for which `predicate` is true.

    `predicate` maps an array of strings to as many booleans. It is called with the distinct values
    of a dictionary, and with each element of a list, of which one is enough. Null is false.
    """
    array = as_array(column)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return pc.fill_null(predicate(array.dictionary).take(array.indices), False)
    if pa.types.is_list(kind):
        hits = pc.fill_null(match_text(pc.list_flatten(array), predicate), False)
        rows_with_a_hit = pc.unique(pc.list_parent_indices(array).filter(hits))
        return pc.is_in(row_numbers(len(array)), value_set=rows_with_a_hit.cast(pa.int64()))
    return pc.fill_null(predicate(column_text(array)), False)


def has_state(table: pa.Table, states: Iterable[str]) -> pa.Array:
    """Return a mask, without nulls, of the rows in one of some states."""
    requested = pa.array(sorted(states), pa.string())
    return match_text(table["state"], lambda text: pc.is_in(text, value_set=requested))


def sort_rows(table: pa.Table, key: str, descending: bool = False) -> pa.Table:
    """Return the rows in the order of a column; see sort_order."""
    return table.take(sort_order(table, key, descending))


def sort_order(table: pa.Table, key: str, descending: bool = False) -> pa.Array:
    """Return the row numbers in the order of a column, stable, nulls last either way.

    `id` goes by number and task, states from running to ended, text without regard to case and,
    while there are no more than MAX_NATURAL_NAMES distinct values, with its numbers as numbers
    (`n9` before `n10`). Raises KeyError when the table has no such column.
    """
    if key not in table.column_names:
        raise KeyError(key)
    order = "descending" if descending else "ascending"
    if key == "id" and all(name in table.column_names for name in _NUMBER_ORDER):
        numbers = table.select(_NUMBER_ORDER)
        return pc.sort_indices(numbers, sort_keys=[(name, order) for name in _NUMBER_ORDER])
    column = as_array(table[key])
    if pa.types.is_list(column.type):
        column = column_text(column)
    if pa.types.is_string(column.type):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        text = column.dictionary
        column = (state_ranks(text) if key == "state" else _text_ranks(text)).take(column.indices)
    return pc.array_sort_indices(column, order=order, null_placement="at_end")


def state_ranks(states: pa.Array) -> pa.Array:
    """Return the place of each state in STATE_ORDER as int32; any other state comes last."""
    ranks = pc.index_in(states, value_set=pa.array(STATE_ORDER, pa.string()))
    return pc.fill_null(ranks, len(STATE_ORDER))


def state_place(state: str) -> int:
    """Return the place of a state in STATE_ORDER; a state that is not in it comes last."""
    return _STATE_PLACES.get(state, len(STATE_ORDER))


def _text_ranks(text: pa.Array) -> pa.Array:
    keys = pc.utf8_lower(column_text(text))
    if len(keys) <= MAX_NATURAL_NAMES:
        keys = pc.replace_substring_regex(keys, "([0-9]+)", "0" * _PAD_DIGITS + r"\1")
        keys = pc.replace_substring_regex(keys, f"[0-9]*([0-9]{{{_PAD_DIGITS}}})", r"\1")
    return pc.rank(keys, sort_keys="ascending", tiebreaker="dense")


def per_distinct(column: Column, read: Callable[[str], Any], kind: pa.DataType) -> pa.Array:
    """Return `read` of each row's text, called once per distinct text; null for null and None."""
    encoded = dictionary_text(column)
    values = pa.array(
        [None if text is None else read(text) for text in encoded.dictionary.to_pylist()], kind
    )
    return values.take(encoded.indices)


def pairs_per_distinct(
    column: Column, read: Callable[[str], tuple[int | None, int | None]]
) -> tuple[pa.Array, pa.Array]:
    """Read two whole numbers from each text, once per distinct text, like per_distinct."""
    encoded = dictionary_text(column)
    pairs = [
        (None, None) if text is None else read(text) for text in encoded.dictionary.to_pylist()
    ]
    firsts = pa.array([first for first, _ in pairs], pa.int64())
    seconds = pa.array([second for _, second in pairs], pa.int64())
    return firsts.take(encoded.indices), seconds.take(encoded.indices)


def dictionary_text(column: Column) -> pa.DictionaryArray:
    """A text column of few distinct values, dictionary-encoded."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def digits(text: str | None) -> int | None:
    """Parse a number of plain digits that a column can hold; None for any other text."""
    if not text or not text.isascii() or not text.isdigit():
        return None
    number = int(text) if len(text) < 20 else MOST + 1
    return number if number <= MOST else None


def epoch_seconds(text: str | None) -> int | None:
    """Parse an instant in epoch seconds; None for 0, which is no time, and after the year 9999."""
    seconds = digits(text)
    return seconds if seconds and seconds <= LAST_INSTANT else None


def whole_numbers(column: Column, read: Callable[[str], int | None]) -> Column:
    """Return a text column as int64; if any text is not a plain number, `read` parses each
    distinct text.
    """
    try:
        return pc.cast(column, pa.int64())
    except pa.ArrowInvalid:
        return per_distinct(column, read, pa.int64())


def utc_instants(epochs: Column) -> Column:
    """Return epoch seconds as UTC timestamps; null for 0, negative numbers and after the year
    9999.
    """
    is_instant = pc.and_(pc.greater(epochs, 0), pc.less_equal(epochs, LAST_INSTANT))
    return where(is_instant, epochs).cast(pa.timestamp("s", tz="UTC"))


def text_column(pieces: Sequence[bytes | None] | pa.Array) -> pa.Array:
    """Return bytes as a string column, null kept; bytes that are not UTF-8 become U+FFFD."""
    raw = pieces if isinstance(pieces, pa.Array) else pa.array(pieces, pa.binary())
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [
            None if piece is None else piece.decode("utf-8", "replace") for piece in raw.to_pylist()
        ]
        return pa.array(texts, pa.string())


_FIRST_WORD = re.compile("[a-z]+_(?=.)")


def shared_ending(ids: Column) -> str:
    """Return the ending that all ids share from their first dot on: `.server`.

    '' if they differ or have none.
    """
    array = as_array(ids)
    if not len(array) or array.null_count:
        return ""
    server = parse_server(array[0].as_py())
    ending = f".{server}"
    if not server or not pc.all(pc.ends_with(array, ending)).as_py():
        return ""
    begins = pc.subtract(pc.binary_length(array), len(ending))
    return ending if pc.all(pc.equal(pc.find_substring(array, "."), begins)).as_py() else ""


def shared_beginning(ids: Column) -> str:
    """Return the word, with its underscore, that all ids begin with: `raysubmit_`; '' for none."""
    array = as_array(ids)
    if not len(array) or array.null_count:
        return ""
    found = _FIRST_WORD.match(array[0].as_py())
    return found[0] if found and pc.all(pc.starts_with(array, found[0])).as_py() else ""


def shortened(ids: Column) -> pa.Array:
    """Return the ids without the ending that all share."""
    array = as_array(ids)
    ending = shared_ending(array)
    return pc.utf8_slice_codeunits(array, 0, -len(ending)) if ending else array


_BEGINS_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_text(text: str) -> str:
    """Return the text, with a `'` before a text that a spreadsheet would compute."""
    return f"'{text}" if text.startswith(_BEGINS_FORMULA) else text


def encode_csv(table: pa.Table, *, has_titles: bool = True) -> bytes:
    """Encode the table as CSV, with quotes where needed; without titles for rows after others."""
    import pyarrow.csv

    out = io.BytesIO()
    pyarrow.csv.write_csv(
        table, out, pyarrow.csv.WriteOptions(include_header=has_titles, quoting_style="needed")
    )
    return out.getvalue()


def encode_parquet(table: pa.Table) -> bytes:
    """Encode the table as a Parquet file."""
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out)
    return out.getvalue()


def without_formulas(table: pa.Table) -> pa.Table:
    """Return the table with its titles and cells of text safe from spreadsheets' formulas."""
    columns = [
        per_distinct(column, as_text, column.type) if pa.types.is_string(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, names=[as_text(name) for name in table.column_names])
