"""Tables of jobs, nodes and queues as stdout gets them: JSON, CSV, aligned text."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, BinaryIO, Literal

import msgspec
import pyarrow as pa
from msgspec import Struct

from hpcdash.cli.terminal import ByteStream
from hpcdash.config.problems import did_you_mean
from hpcdash.domain import schema
from hpcdash.domain.columns import as_array, shortened
from hpcdash.domain.job_text import queue_note
from hpcdash.domain.limits import (
    format_limited,
    format_per,
    format_resource,
    format_who,
    format_whose,
)
from hpcdash.domain.rfc3339 import format_utc, json_values, table_to_json_rows
from hpcdash.domain.states import JobState
from hpcdash.domain.text import cell_width, clip_path, visible, without_surrogates
from hpcdash.domain.units import format_age, format_duration, format_memory
from hpcdash.errors import UsageError

Kind = Literal["jobs", "nodes", "queues", "history", "shares", "limits", "reservations"]
_SCHEMAS = {
    "jobs": schema.JOBS,
    "history": schema.JOBS,
    "nodes": schema.NODES,
    "queues": schema.QUEUES,
    "shares": schema.SHARES,
    "limits": schema.LIMITS,
    "reservations": schema.RESERVATIONS,
}
UNKNOWN = "-"
_Joined = Callable[[pa.Table], list[str]]
_GAP = "  "
_NARROWEST_TEXT = 8
# Without a terminal; a name of PBS may have 230 letters, and its column would be as wide in every
# line.
_WIDEST_TEXT = 64
_JOB_COLUMNS = ("id", "state", "name", "user", "queue", "gpus", "cpus", "nodes")
_NODE_COLUMNS = (
    "name",
    "state",
    "flags",
    "queues",
    "cpu_use",
    "gpu_use",
    "gpu_type",
    "memory_use",
    "load",
    "jobs",
)
_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "jobs": (*_JOB_COLUMNS, "elapsed_seconds", "limit_seconds", "where"),
    "history": (*_JOB_COLUMNS, "exit", "elapsed_seconds", "limit_seconds", "ends_at"),
    "nodes": (*_NODE_COLUMNS, "reason"),
    "queues": (
        *("name", "available", "default", "limit_seconds", "nodes", "nodes_idle", "nodes_down"),
        *("cpu_use", "gpu_use", "jobs_running", "jobs_pending"),
    ),
    "shares": (
        *(
            "tree",
            "own",
            "raw_shares",
            "normalized_shares",
            "raw_usage",
            "effective_usage",
            "fair_share",
        ),
        "level_fair_share",
    ),
    "limits": ("whose", "for", "what", "used_amount", "maximum_amount", "free_amount", "native"),
    "reservations": (
        "name",
        "state",
        "allowed",
        "starts_at",
        "ends_at",
        "nodes",
        "node_list",
        "who",
        "flags",
    ),
}
# What a row is called and how it fares; never cut, never left out.
_ALWAYS_WHOLE: dict[Kind, tuple[str, ...]] = {
    "jobs": ("id", "state"),
    "history": ("id", "state"),
    "nodes": ("name", "state"),
    "queues": ("name",),
    "shares": ("tree",),
    "limits": ("what",),
    "reservations": ("name", "state"),
}
# Left out first where there is no room; after these, from the right.
_LEAST_WANTED = {
    "jobs": ("cpus", "nodes", "limit_seconds", "user", "gpus", "queue"),
    "history": ("cpus", "nodes", "limit_seconds", "user", "gpus", "queue"),
    "nodes": ("flags", "load", "queues", "gpu_type", "jobs", "memory_use"),
    "queues": (
        "default",
        "nodes_down",
        "available",
        "nodes",
        "limit_seconds",
        "cpu_use",
        "gpu_use",
    ),
    "shares": ("raw_usage", "normalized_shares", "level_fair_share"),
    "limits": ("native", "free_amount"),
    "reservations": ("flags", "nodes", "who"),
}
JSON_SCHEMA = 1
# Rows turned into text at a time: memory stays small however long the queue.
_ROWS_AT_A_TIME = 8192


def contract_columns(kind: Kind) -> list[str]:
    """The columns of JSON and CSV, in their order; history has those of jobs."""
    return schema.public_names(_SCHEMAS[kind])


def rows_key(kind: Kind) -> str:
    """The key of a JSON object under which the rows stand; history gives jobs."""
    return "jobs" if kind == "history" else kind


_HEADINGS = {
    "array_id": "ARRAY",
    "array_task": "TASK",
    "native_state": "NATIVE",
    "memory_bytes": "MEMORY",
    "memory_used_bytes": "MEM_USED",
    "elapsed_seconds": "ELAPSED",
    "limit_seconds": "LIMIT",
    "submitted_at": "SUBMITTED",
    "eligible_at": "ELIGIBLE",
    "started_at": "STARTED",
    "ends_at": "ENDS",
    "exit_code": "EXIT",
    "exit_signal": "SIGNAL",
    "where": "NODES/(REASON)",
    "cpu_use": "CPUS",
    "gpu_use": "GPUS",
    "memory_use": "MEMORY",
    "jobs_running": "RUNNING",
    "jobs_pending": "PENDING",
    "nodes_idle": "IDLE",
    "nodes_down": "DOWN",
    "tree": "ACCOUNT/USER",
    "raw_shares": "SHARES",
    "normalized_shares": "OF_PARENT",
    "raw_usage": "RAW_USAGE",
    "effective_usage": "USAGE",
    "level_fair_share": "LEVEL_FS",
    "whose": "LIMIT_OF",
    "what": "RESOURCE",
    "used_amount": "USED",
    "maximum_amount": "LIMIT",
    "free_amount": "FREE",
    "allowed": "FOR_YOU",
    "starts_at": "BEGINS",
    "duration_seconds": "LASTS",
    "node_list": "NODE_LIST",
}


class _Column(Struct):
    name: str
    heading: str
    cells: list[str]
    is_number: bool
    width: int = 0


def default_columns(kind: Kind) -> tuple[str, ...]:
    """The columns of a table for people; made to fit 120 columns with names of ordinary length."""
    return _COLUMNS[kind]


def write_table(
    kind: Kind,
    table: pa.Table,
    out: BinaryIO,
    *,
    utc_now: float | datetime,
    columns: Sequence[str] | None = None,
    width: int | None = None,
    encoding: str = "utf-8",
) -> None:
    """Write a heading and a line a row, aligned, and flush.

    `columns` are the contract's and those made of several: `where` (nodes, or the reason in
    parentheses) and `exit` of jobs, `cpu_use`, `gpu_use` and `memory_use` (`12/64`) of nodes and
    queues, `note` of queues (by default only where there is one); others raise UsageError. `width`
    is a terminal's columns: text is cut with `…`, then columns left out, but never the id or the
    state, and of ids the PBS server where all name one. None is a pipe or a file: text is cut at 64
    columns, but in the id, the state and the last column. `utc_now` (epoch in seconds, or datetime)
    is what ages count from. Text is made visible; what `encoding` lacks becomes '?'.
    BrokenPipeError is the caller's.
    """
    wanted = default_columns(kind) if columns is None else tuple(columns)
    now_epoch = utc_now.timestamp() if isinstance(utc_now, datetime) else utc_now
    joined = dict(_JOINED[kind])
    if kind == "queues":
        notes = _notes(table, now_epoch)
        joined["note"] = lambda table: notes
        if columns is None and any(note != UNKNOWN for note in notes):
            wanted = (*wanted, "note")
    known = (*contract_columns(kind), *joined)
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"{visible(name)} is not a column of {kind}{did_you_mean(name, known)}"
            )
    if width is not None and kind in ("jobs", "history") and "id" in table.column_names:
        table = table.set_column(table.column_names.index("id"), "id", shortened(table["id"]))
    whole = [_column(table, name, now_epoch, joined.get(name)) for name in wanted]
    fitted = _bounded(whole, kind) if width is None else _fitted(whole, width, kind)
    lines = map(
        _GAP.join, zip(*map(_aligned, fitted, [*[False] * (len(fitted) - 1), True]), strict=True)
    )
    out.write("".join(f"{line}\n" for line in lines).encode(encoding, "replace"))
    out.flush()


def _column(table: pa.Table, name: str, now_epoch: float, joined: _Joined | None) -> _Column:
    if joined is not None:
        cells, is_number = joined(table), name not in _TEXTS
    elif name not in table.column_names:
        cells, is_number = [UNKNOWN] * table.num_rows, False
    else:
        array = as_array(table[name])
        show, is_number = _shower(name, array.type, now_epoch)
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.timestamp("s", tz=array.type.tz), safe=False).cast(pa.int64())
        elif pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        cells = _cells(array.to_pylist(), show)
    heading = _HEADINGS.get(name, name.upper())
    return _Column(name, heading, cells, is_number, max(map(cell_width, {heading, *cells})))


def _cells(values: list[Any], show: Callable[[Any], str]) -> list[str]:
    # Most columns hold few distinct values: each is put into words once.
    keys = [tuple(value) if isinstance(value, list) else value for value in values]
    words = {key: UNKNOWN if key is None else show(key) or UNKNOWN for key in set(keys)}
    return [words[key] for key in keys]


def _shower(name: str, kind: pa.DataType, now_epoch: float) -> tuple[Callable[[Any], str], bool]:
    """How a value of a column is put into words, and whether it stands at the right like a
    number.
    """
    if pa.types.is_timestamp(kind):
        return lambda epoch: _from_now(epoch - now_epoch), True
    if pa.types.is_boolean(kind):
        return lambda value: "yes" if value else "no", False
    if pa.types.is_list(kind):
        return lambda items: visible(",".join(item or "" for item in items)), False
    if pa.types.is_floating(kind):
        return lambda value: f"{value:.2f}" if math.isfinite(value) else UNKNOWN, True
    if pa.types.is_integer(kind):
        return (
            format_duration
            if name.endswith("_seconds")
            else format_memory
            if name.endswith("_bytes")
            else str
        ), True
    return visible, False


def _from_now(seconds: float) -> str:
    return f"in {format_age(seconds)}" if seconds >= 1 else f"{format_age(-seconds)} ago"


def _texts(table: pa.Table, name: str) -> list[Any]:
    if name not in table.column_names:
        return [None] * table.num_rows
    array = as_array(table[name])
    values: list[Any] = (
        array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    ).to_pylist()
    return values


def _where(table: pa.Table) -> list[str]:
    """Where a job runs, or in parentheses why it does not; both where its node is down."""
    rows = zip(*(_texts(table, name) for name in ("node_list", "reason", "state")), strict=True)
    return _cells(
        [
            nodes
            if nodes and state != JobState.RUNNING
            else " ".join(filter(None, (nodes, reason and f"({reason})")))
            for nodes, reason, state in rows
        ],
        visible,
    )


def _notes(table: pa.Table, now_epoch: float) -> list[str]:
    """What else becomes of a job in each queue."""
    if "_note" not in table.column_names:
        return [UNKNOWN] * table.num_rows
    return [
        visible(queue_note(row, now_epoch)) or UNKNOWN
        for row in table.select(["_note", "_opens_at", "_server_note"]).to_pylist()
    ]


def _exit(table: pa.Table) -> list[str]:
    """How a job ended: its exit code, or the signal that ended it."""
    pairs = zip(_texts(table, "exit_code"), _texts(table, "exit_signal"), strict=True)
    return [
        f"signal {signal}" if signal else UNKNOWN if code is None else str(code)
        for code, signal in pairs
    ]


def _use(used: str, of: str, show: Callable[[int], str]) -> _Joined:
    """How much is taken of how much there is: `12/64`."""

    def words(table: pa.Table) -> list[str]:
        pairs = zip(_texts(table, used), _texts(table, of), strict=True)
        return _cells([None if pair == (None, None) else pair for pair in pairs], format_pair)

    def format_pair(pair: tuple[int | None, int | None]) -> str:
        return "/".join(UNKNOWN if amount is None else show(amount) for amount in pair)

    return words


def _joined_rows(words: Callable[[dict[str, Any]], str]) -> _Joined:
    """Each row in words."""
    return lambda table: [visible(words(row)) or UNKNOWN for row in table.to_pylist()]


def _limited(column: str) -> _Joined:
    """An amount of a limit."""
    return _joined_rows(lambda row: format_limited(str(row["resource"]), row[column]))


def _shares_tree(table: pa.Table) -> list[str]:
    """Users under their accounts, accounts under their parents."""
    names = zip(
        *(_texts(table, name) for name in ("_depth", "account", "user", "partition")), strict=True
    )
    return [
        "  " * (depth or 0) + visible(f"{user or account}{f' ({partition})' if partition else ''}")
        for depth, account, user, partition in names
    ]


_CPUS_AND_GPUS = {
    "cpu_use": _use("cpus_used", "cpus", str),
    "gpu_use": _use("gpus_used", "gpus", str),
}
_JOINED: dict[Kind, dict[str, _Joined]] = {
    "jobs": {"where": _where, "exit": _exit},
    "history": {"where": _where, "exit": _exit},
    "nodes": {
        **_CPUS_AND_GPUS,
        "memory_use": _use("memory_used_bytes", "memory_bytes", format_memory),
    },
    "queues": _CPUS_AND_GPUS,
    "shares": {"tree": _shares_tree},
    "limits": {
        "whose": _joined_rows(format_whose),
        "for": _joined_rows(format_per),
        "what": _joined_rows(lambda row: format_resource(str(row["resource"]))),
        "used_amount": _limited("used"),
        "maximum_amount": _limited("maximum"),
        "free_amount": _limited("free"),
    },
    "reservations": {"who": _joined_rows(format_who)},
}
_TEXTS = frozenset({"where", "note", "tree", "whose", "for", "what", "who"})


def _bounded(columns: list[_Column], kind: Kind) -> list[_Column]:
    """All of the columns; what the last is widens no line but its own."""
    for column in columns[:-1]:
        if not column.is_number and column.name not in _ALWAYS_WHOLE[kind]:
            column.width = min(column.width, _WIDEST_TEXT)
    return columns


def _fitted(columns: list[_Column], width: int, kind: Kind) -> list[_Column]:
    """The columns that find room, with the widths they get."""
    always_whole = _ALWAYS_WHOLE[kind]
    kept = list(columns)
    while True:
        room = width - len(_GAP) * (len(kept) - 1)
        narrowest = sum(_narrowest(column, always_whole) for column in kept)
        spare = [column for column in kept if column.name not in always_whole]
        if narrowest <= room or not spare:
            break
        unwanted = {column.name: column for column in spare}
        kept.remove(
            next((unwanted[name] for name in _LEAST_WANTED[kind] if name in unwanted), spare[-1])
        )
    elastic = [column for column in kept if column.width > _narrowest(column, always_whole)]
    room -= sum(column.width for column in kept if column not in elastic)
    _share(elastic, max(room, len(elastic) * _NARROWEST_TEXT))
    return kept


def _narrowest(column: _Column, always_whole: Sequence[str]) -> int:
    if column.is_number or column.name in always_whole:
        return column.width
    return min(column.width, _NARROWEST_TEXT)


def _share(elastic: list[_Column], room: int) -> None:
    """Cut the widest columns to one common width so that all fit into `room`; the narrower ones
    keep theirs.
    """
    remaining = len(elastic)
    for column in sorted(elastic, key=lambda column: column.width):
        column.width = min(column.width, room // remaining)
        room -= column.width
        remaining -= 1


def _aligned(column: _Column, is_last: bool) -> list[str]:
    """Heading and cells, all of the column's width (but for the blanks after the last)."""
    cells = [column.heading, *column.cells]
    placed = {cell: _placed(clip_path(cell, column.width), column, is_last) for cell in set(cells)}
    return [placed[cell] for cell in cells]


def _placed(cell: str, column: _Column, is_last: bool) -> str:
    blanks = " " * (column.width - cell_width(cell))
    if column.is_number:
        return blanks + cell
    return cell if is_last else cell + blanks


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

    The rows stand under the kind's name, "jobs" for history too. `taken_at` is an epoch in seconds
    or a datetime. BrokenPipeError is the caller's.
    """
    envelope = {
        "schema": JSON_SCHEMA,
        "cluster": without_surrogates(cluster),
        "backend": without_surrogates(backend),
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


def write_csv(names: Sequence[str], table: pa.Table, out: ByteStream) -> None:
    """Write these columns as RFC 4180 in UTF-8, a header first, and flush.

    Unknown is empty, lists are joined with ',', and text is as it is: quoted where it must be,
    never altered. BrokenPipeError is the caller's.
    """
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
        return [
            None if value is None else ",".join(item or "" for item in value)  # type: ignore[attr-defined]
            for value in values
        ]
    return values


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, _ROWS_AT_A_TIME):
        yield table.slice(start, _ROWS_AT_A_TIME)
