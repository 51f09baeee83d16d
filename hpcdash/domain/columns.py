"""Reads, tests and sorts whole columns of text, however Arrow holds them. Knows nothing of filters or views."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.states import JobState, NodeState

Column: TypeAlias = pa.Array | pa.ChunkedArray

# From the most alive to the least, what ended badly before what ended well.
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
# Numbers inside names are compared as numbers up to this many distinct names; the padding costs 0.6 µs a name.
MAX_NATURAL_NAMES = 30_000
_PAD_DIGITS = 12
_NUMBER_ORDER = ("_number", "_task")


def as_array(column: Column) -> pa.Array:
    """A column as one array; the dictionaries of its chunks become one."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return pa.concat_arrays(column.chunks)


def row_numbers(count: int) -> pa.Array:
    """0, 1, … `count` - 1 as int64."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), 1)


def text_of(column: Column) -> pa.Array:
    """A column as plain strings: dictionaries decoded, lists joined by commas, numbers as digits, null kept."""
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


def evaluate_words(column: Column, predicate: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Booleans without nulls, one a row: what `predicate` says of the row's text.

    `predicate` takes strings and gives as many booleans. It sees the distinct values of a dictionary once, and every
    element of a list (one that holds is enough). Null is false.
    """
    array = as_array(column)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return pc.fill_null(predicate(array.dictionary).take(array.indices), False)
    if pa.types.is_list(kind):
        hits = pc.fill_null(evaluate_words(pc.list_flatten(array), predicate), False)
        rows_with_a_hit = pc.unique(pc.list_parent_indices(array).filter(hits))
        return pc.is_in(row_numbers(len(array)), value_set=rows_with_a_hit.cast(pa.int64()))
    return pc.fill_null(predicate(text_of(array)), False)


def sort_rows(table: pa.Table, key: str, descending: bool = False) -> pa.Table:
    """The rows in the order of a column; see sort_order."""
    return table.take(sort_order(table, key, descending))


def sort_order(table: pa.Table, key: str, descending: bool = False) -> pa.Array:
    """The row numbers in the order of a column, stable, nulls last either way.

    `id` goes by number and task, states from running to ended, text without regard to case and, while there are no
    more than MAX_NATURAL_NAMES distinct values, with its numbers as numbers (`n9` before `n10`).
    Raises KeyError when the table has no such column.
    """
    if key not in table.column_names:
        raise KeyError(key)
    order = "descending" if descending else "ascending"
    if key == "id" and all(name in table.column_names for name in _NUMBER_ORDER):
        numbers = table.select(_NUMBER_ORDER)
        return pc.sort_indices(numbers, sort_keys=[(name, order) for name in _NUMBER_ORDER])
    column = as_array(table[key])
    if pa.types.is_list(column.type):
        column = text_of(column)
    if pa.types.is_string(column.type):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        words = column.dictionary
        column = (state_ranks(words) if key == "state" else _text_ranks(words)).take(column.indices)
    return pc.array_sort_indices(column, order=order, null_placement="at_end")


def state_ranks(states: pa.Array) -> pa.Array:
    """The place of each state in STATE_ORDER as int32; a state that is not in it comes last."""
    ranks = pc.index_in(states, value_set=pa.array(STATE_ORDER, pa.string()))
    return pc.fill_null(ranks, len(STATE_ORDER))


def _text_ranks(words: pa.Array) -> pa.Array:
    keys = pc.utf8_lower(text_of(words))
    if len(keys) <= MAX_NATURAL_NAMES:
        keys = pc.replace_substring_regex(keys, "([0-9]+)", "0" * _PAD_DIGITS + r"\1")
        keys = pc.replace_substring_regex(keys, f"[0-9]*([0-9]{{{_PAD_DIGITS}}})", r"\1")
    return pc.rank(keys, sort_keys="ascending", tiebreaker="dense")
