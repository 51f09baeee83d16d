"""Job arrays as rows of a table: those of one array folded into one, and its tasks by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.domain.array_tasks import joined_tasks, read_tasks
from hpcdash.domain.columns import (
    STATE_ORDER,
    as_array,
    dictionary_text,
    digits,
    row_numbers,
    sort_order,
    state_place,
    state_ranks,
    where,
    with_columns,
)
from hpcdash.domain.schema import TEXT
from hpcdash.domain.states import ACTIVE, WAITING

FOLD_PLAIN = 0
FOLD_FOLDED = 1
FOLD_UNFOLDED = 2
FOLD_CHILD = 3
FOLD_COLUMNS = (("_fold", pa.int8()), ("_states", TEXT), ("_row_id", TEXT))

# How one row speaks for many. The rest of the columns keep a value that all rows share, else null.
_FIRST = frozenset({"array_id", "name", "user", "account", "work_dir", "_number"})
_SMALLEST = frozenset({"submitted_at", "eligible_at", "started_at", "_expected_start_at", "_task"})
_LARGEST = frozenset({"priority", "elapsed_seconds", "limit_seconds", "ends_at"})
_RESOURCES = frozenset({"nodes", "cpus", "gpus", "memory_bytes"})
_NULL = frozenset({"array_task", "node_list", "stdout_path", "stderr_path"})
Piece = tuple[str, str]
_ROOM_FOR_LIST = 60


def fold(
    table: pa.Table,
    unfolded: frozenset[str] | None = frozenset(),
    sort: tuple[str, bool] | None = None,
) -> pa.Table:
    """Fold two or more rows of an `array_id` of domain.schema.JOBS into one summary.

    A summary takes the place of the first of its rows or, with a `sort` (a column, and whether it
    is descending), the place of its own value. If its `array_id` is in `unfolded` (None: all are),
    its rows follow it, in the same order. Added columns: `_fold` (FOLD_PLAIN, FOLD_FOLDED,
    FOLD_UNFOLDED, FOLD_CHILD), `_states` of a summary (`2 running · 8 pending`, in tasks) and
    `_row_id`: the id, or `12[]` for the summary of array 12.

    A summary has the state of its most alive row, the resources of its active rows together (of its
    first row if none is active), its earliest submission and start, and the values that all of its
    rows share. While any row is active, the elapsed time and the end are those of the row that ends
    last.
    """
    table = table.unify_dictionaries().combine_chunks()
    array_ids = as_array(table["array_id"])
    if array_ids.null_count == len(array_ids):
        return _plain(_sorted(table, sort))
    encoded = array_ids.dictionary_encode()
    groups = encoded.indices
    counts = pc.value_counts(groups.drop_null())
    folded_groups = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(folded_groups) == 0:
        return _plain(_sorted(table, sort))
    is_grouped = pc.fill_null(pc.is_in(groups, value_set=folded_groups), False)
    is_plain = pc.invert(is_grouped)
    numbers = row_numbers(table.num_rows)
    # Where each row stands: the inverse of its order.
    places = (
        numbers
        if sort is None
        else pc.array_sort_indices(sort_order(table, *sort)).cast(numbers.type)
    )
    rows = table.filter(is_grouped)
    row_groups = groups.filter(is_grouped)
    summaries, summary_groups, summary_places = _summaries(
        rows, row_groups, places.filter(is_grouped)
    )
    summary_ids = encoded.dictionary.take(summary_groups)
    summary_numbers = row_numbers(len(summary_ids))
    if unfolded is None:
        is_open = pa.repeat(pa.scalar(True), len(summary_ids))
    else:
        is_open = pc.is_in(summary_ids, value_set=pa.array(sorted(unfolded), TEXT))

    # Rows are only taken once, from the table with the summaries after it: a copy of 100 000 of
    # them is 25 MB.
    everything = pa.concat_tables([table, summaries]).unify_dictionaries()
    plain = numbers.filter(is_plain)
    summary_rows = pc.add(summary_numbers, table.num_rows)
    anchors = pa.concat_arrays([places.filter(is_plain), summary_places])
    if sort is not None:
        tops = pa.concat_arrays([plain, summary_rows])
        anchors = _sorted_anchors(everything, tops, anchors, sort)
    summary_anchors = anchors.slice(len(plain))
    parents = pc.index_in(groups, value_set=summary_groups)
    own_anchors = pc.replace_with_mask(places, is_plain, anchors.slice(0, len(plain)))
    # A row stands at its own anchor, or below that of its summary.
    listed = pa.table(
        {
            "row": numbers,
            "anchor": pc.coalesce(summary_anchors.take(parents), own_anchors),
            "depth": pc.if_else(is_plain, pa.scalar(0, places.type), pc.add(places, 1)),
            "fold": pc.if_else(is_plain, _fold_scalar(FOLD_PLAIN), _fold_scalar(FOLD_CHILD)),
            "summary": pa.nulls(len(numbers), summary_numbers.type),
        }
    ).filter(pc.coalesce(is_open.take(parents), is_plain))
    top = pa.table(
        {
            "row": summary_rows,
            "anchor": summary_anchors,
            "depth": pa.repeat(pa.scalar(0, places.type), len(summary_rows)),
            "fold": pc.if_else(is_open, _fold_scalar(FOLD_UNFOLDED), _fold_scalar(FOLD_FOLDED)),
            "summary": summary_numbers,
        }
    )
    layout = pa.concat_tables([listed, top]).sort_by(
        [("anchor", "ascending"), ("depth", "ascending")]
    )
    taken = everything.take(layout["row"]).combine_chunks()
    summary = as_array(layout["summary"])
    states = _format_states(rows, row_groups, summary_groups)
    row_ids = pc.binary_join_element_wise(summary_ids, "[]", "").take(summary)
    return _with_fold(
        taken,
        as_array(layout["fold"]),
        states.take(summary),
        pc.coalesce(row_ids, as_array(taken["id"])),
    )


def _fold_scalar(fold_kind: int) -> pa.Scalar:
    return pa.scalar(fold_kind, pa.int8())


def _sorted(table: pa.Table, sort: tuple[str, bool] | None) -> pa.Table:
    return table if sort is None else table.take(sort_order(table, *sort))


def _sorted_anchors(
    everything: pa.Table, tops: pa.Array, anchors: pa.Array, sort: tuple[str, bool]
) -> pa.Array:
    """Return the positions of some rows in sorted order.

    Equal rows keep the order of their anchors.
    """
    in_turn = pc.array_sort_indices(anchors)
    sorted_by = [
        name
        for name in dict.fromkeys((sort[0], "_number", "_task"))
        if name in everything.column_names
    ]
    order = sort_order(everything.select(sorted_by).take(tops.take(in_turn)), *sort)
    return pc.array_sort_indices(in_turn.take(order)).cast(anchors.type)


def _plain(table: pa.Table) -> pa.Table:
    kinds = pa.repeat(_fold_scalar(FOLD_PLAIN), table.num_rows)
    return _with_fold(table, kinds, pa.nulls(table.num_rows, TEXT), table["id"])


def _with_fold(
    table: pa.Table, kinds: pa.Array, states: pa.Array, row_ids: pa.Array | pa.ChunkedArray
) -> pa.Table:
    for (name, _), column in zip(FOLD_COLUMNS, (kinds, states, row_ids), strict=True):
        table = table.append_column(name, column)
    return table


def _summaries(
    rows: pa.Table, groups: pa.Array, places: pa.Array
) -> tuple[pa.Table, pa.Array, pa.Array]:
    """One row a group, the groups, and the place of each one's first row."""
    state = as_array(rows["state"])
    ranks = pc.fill_null(state_ranks(state.dictionary).take(state.indices), len(STATE_ORDER))
    is_active = pc.less(ranks, len(ACTIVE))
    rows = _own_reasons(rows, groups, ranks)
    columns: dict[str, pa.Array] = {
        "_group": groups,
        "_place": places,
        "_rank": ranks,
        "_active": is_active.cast(pa.int8()),
    }
    requested: list[tuple[Any, ...]] = [
        ("_place", "min"),
        ("_rank", "min"),
        ("_active", "max"),
        ("_tasks", "sum"),
    ]
    columns["_tasks"] = pc.fill_null(as_array(rows["_tasks"]), 1)
    at_least_one = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
    for name in rows.column_names:
        column = as_array(rows[name])
        if name in {"id", "state", "_tasks"} or name in _NULL or name in _FIRST:
            continue
        if name in _RESOURCES:
            columns[name] = where(is_active, column)
            requested.append((name, "sum", at_least_one))
        elif name in _SMALLEST or name in _LARGEST:
            columns[name] = column
            requested.append((name, "min" if name in _SMALLEST else "max"))
        elif column.null_count < len(column):
            columns[name] = dictionary_text(column).indices
            requested += [(name, "min"), (name, "max")]
    grouped = (
        pa.table(columns)
        .group_by("_group", use_threads=False)
        .aggregate(requested)
        .combine_chunks()
    )
    result = {name: as_array(grouped[name]) for name in grouped.column_names}
    result |= _last_to_end(rows.filter(is_active), groups.filter(is_active), result)
    first_rows = rows.take(pc.index_in(result["_place_min"], value_set=places))
    return _assemble(rows, first_rows, result), result["_group"], result["_place_min"]


def _last_to_end(
    active: pa.Table, groups: pa.Array, result: dict[str, pa.Array]
) -> dict[str, pa.Array]:
    """`elapsed_seconds_max` and `ends_at_max` of the groups with active rows: both of the row that
    ends last.

    Of those without an end, and of those that end together, it is the one that has run longest.
    """
    times = pa.table(
        {"group": groups, "ends_at": active["ends_at"], "elapsed": active["elapsed_seconds"]}
    )
    ends = (
        times.group_by("group", use_threads=False).aggregate([("ends_at", "max")]).combine_chunks()
    )
    last_end = as_array(ends["ends_at_max"]).take(
        pc.index_in(groups, value_set=as_array(ends["group"]))
    )
    is_last = pc.or_(
        pc.is_null(last_end), pc.fill_null(pc.equal(as_array(times["ends_at"]), last_end), False)
    )
    ran = (
        times.filter(is_last)
        .group_by("group", use_threads=False)
        .aggregate([("elapsed", "max")])
        .combine_chunks()
    )
    found = {}
    for name, active_column, column in (
        ("ends_at", ends, "ends_at_max"),
        ("elapsed_seconds", ran, "elapsed_max"),
    ):
        places = pc.index_in(result["_group"], value_set=as_array(active_column["group"]))
        chosen = as_array(active_column[column]).take(places)
        found[f"{name}_max"] = pc.if_else(pc.is_valid(places), chosen, result[f"{name}_max"])
    return found


def _own_reasons(rows: pa.Table, groups: pa.Array, ranks: pa.Array) -> pa.Table:
    """`rows`, where one that ended has no reason unless its group ended in the same state."""
    least = (
        pa.table({"group": groups, "rank": ranks})
        .group_by("group")
        .aggregate([("rank", "min")])
        .combine_chunks()
    )
    group_states = as_array(least["rank_min"]).take(
        pc.index_in(groups, value_set=as_array(least["group"]))
    )
    counts = pc.or_(pc.equal(ranks, group_states), pc.less(ranks, len(ACTIVE | WAITING)))
    # if_else makes dictionaries that unify_dictionaries may crash on (pyarrow 26).
    reasons = dictionary_text(rows["reason"])
    own_reasons = pa.DictionaryArray.from_arrays(
        where(counts, reasons.indices), reasons.dictionary
    ).cast(rows.schema.field("reason").type)
    return with_columns(rows, {"reason": own_reasons})


def _assemble(rows: pa.Table, first_rows: pa.Table, result: dict[str, pa.Array]) -> pa.Table:
    count = first_rows.num_rows
    is_active = pc.equal(result["_active_max"], 1)
    columns: dict[str, pa.Array] = {}
    for name, kind in zip(rows.column_names, rows.schema.types, strict=True):
        first = as_array(first_rows[name])
        if name == "id":
            array_ids = as_array(first_rows["array_id"])
            # PBS writes 12[].server for the array itself.
            in_brackets = pc.match_substring(array_ids, "[")
            columns[name] = pc.if_else(
                in_brackets, array_ids, pc.binary_join_element_wise(array_ids, "_[]", "")
            )
        elif name == "state":
            text = as_array(rows[name]).dictionary
            rank_codes = pc.index_in(
                pa.array(range(len(STATE_ORDER) + 1), pa.int32()), value_set=state_ranks(text)
            )
            columns[name] = pa.DictionaryArray.from_arrays(
                rank_codes.take(result["_rank_min"]), text
            )
        elif name == "_tasks":
            columns[name] = result["_tasks_sum"]
        elif name in _NULL:
            columns[name] = pa.nulls(count, kind)
        elif name in _RESOURCES:
            columns[name] = pc.if_else(is_active, result[f"{name}_sum"], first)
        elif name in _SMALLEST:
            columns[name] = result[f"{name}_min"]
        elif name in _LARGEST:
            columns[name] = result[f"{name}_max"]
        elif f"{name}_min" in result:
            codes = result[f"{name}_min"]
            is_shared = pc.equal(codes, result[f"{name}_max"])
            text = dictionary_text(rows[name]).dictionary
            shared = pa.DictionaryArray.from_arrays(where(is_shared, codes), text)
            columns[name] = shared if pa.types.is_dictionary(kind) else shared.dictionary_decode()
        else:
            columns[name] = first
    return pa.table(columns, schema=rows.schema)


def _format_states(rows: pa.Table, groups: pa.Array, summary_groups: pa.Array) -> pa.Array:
    """`2 running · 8 pending` for each of `summary_groups`, the most alive first."""
    state = as_array(rows["state"])
    pairs = pa.table(
        {
            "group": groups,
            "code": state.indices,
            "rank": state_ranks(state.dictionary).take(state.indices),
            "tasks": pc.fill_null(as_array(rows["_tasks"]), 1),
        }
    )
    sums = pairs.group_by(["group", "code", "rank"], use_threads=False).aggregate(
        [("tasks", "sum")]
    )
    sums = sums.sort_by([("group", "ascending"), ("rank", "ascending")])
    text = pc.replace_substring(state.dictionary, "_", " ").take(as_array(sums["code"]))
    phrases = pc.binary_join_element_wise(
        as_array(sums["tasks_sum"]).cast(TEXT),
        pc.fill_null(text, "unknown"),
        " ",
        null_handling="skip",
    )
    listed = pa.table({"group": sums["group"], "phrase": phrases}).group_by(
        "group", use_threads=False
    )
    lists = listed.aggregate([("phrase", "list")]).combine_chunks()
    joined = pc.binary_join(as_array(lists["phrase_list"]), " · ")
    return joined.take(pc.index_in(summary_groups, value_set=as_array(lists["group"])))


class TaskStates(Struct, frozen=True):
    """State of each task, in task order.

    `throttle` is how many may run at once (None: no limit, or unknown).
    """

    by_task: Mapping[int, str]
    throttle: int | None = None

    def counts(self) -> dict[str, int]:
        """Return the number of tasks in each state, the most alive first."""
        counts = Counter(self.by_task.values())
        return dict(sorted(counts.items(), key=lambda pair: state_place(pair[0])))

    def as_signs(self, signs: Mapping[str, str]) -> list[Piece]:
        """`✓✓✓✗▸▸◦◦` in task order, a piece for each run of one state: (signs, state)."""
        runs = groupby(self.by_task.values())
        return [(signs.get(state, "?") * sum(1 for _ in run), state) for state, run in runs]

    def as_runs(self, most: int) -> list[Piece] | None:
        """`1-40`, `41-44`, … with their states, in task order; None where there are more than
        `most` runs.
        """
        runs: list[Piece] = []
        for state, run in groupby(self.by_task.items(), key=lambda pair: pair[1]):
            if len(runs) == most:
                return None
            tasks = [task for task, _ in run]
            runs.append((str(tasks[0]) if len(tasks) == 1 else f"{tasks[0]}-{tasks[-1]}", state))
        return runs

    def state_tasks(self, state: str, room: int = _ROOM_FOR_LIST) -> str:
        """`1-6,8-12,…`: the tasks of one state, cut at `room` letters."""
        tasks = joined_tasks(task for task, found in self.by_task.items() if found == state)
        text = "" if tasks is None else str(tasks)
        if len(text) < room:
            return text
        whole_items = text[:room].rpartition(",")[0]
        return f"{whole_items},…" if whole_items else "…"


def task_states(tables: Iterable[pa.Table]) -> TaskStates:
    """Build the states of one array from tables of domain.schema.JOBS.

    The first report of a task counts.
    """
    by_task: dict[int, str] = {}
    throttle = None
    for table in tables:
        for text, state in zip(
            table["array_task"].to_pylist(), table["state"].to_pylist(), strict=True
        ):
            if (number := digits(text)) is not None:
                by_task.setdefault(number, state)
            elif (tasks := read_tasks(text)) is not None:
                throttle = throttle or tasks.throttle
                for task in tasks:
                    by_task.setdefault(task, state)
    return TaskStates(dict(sorted(by_task.items())), throttle)
