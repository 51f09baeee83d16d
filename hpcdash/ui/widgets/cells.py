"""Cells of a table: the text of a value with a style name, and a sign beside each colour.

A cell function takes a value (None: unknown) and its row, and returns plain text, never markup: a
`str`, a `(str, style name)`, a list of such pairs, or a `rich.text.Text`. `CELL_STYLES` are the
style names.
"""

from __future__ import annotations

import locale
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec import Struct
from rich.text import Text

from hpcdash.domain.job_text import state_word
from hpcdash.domain.states import JobState, NodeState
from hpcdash.domain.tables import ColumnSpec, FieldType
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_age, format_count, format_duration, format_memory
from hpcdash.ui.themes import JOB_STYLES, STATE_STYLES, style_name

RowContext: TypeAlias = Mapping[str, Any]
Piece: TypeAlias = tuple[str, str]
Cell: TypeAlias = str | Piece | list[Piece] | Text
CellFunction: TypeAlias = Callable[[Any, RowContext], Cell]
Clock: TypeAlias = Callable[[], datetime]

MUTED = "muted"
STRONG = "strong"
GOOD = "good"
WARNING = "warning"
BAD = "bad"
ACCENT = "accent"
# Textual's style of each name.
CELL_STYLES: Mapping[str, str] = {
    MUTED: "$table-dim",
    STRONG: "bold",
    GOOD: "$success",
    WARNING: "$warning",
    BAD: "$error",
    ACCENT: "$primary",
    **{name: f"$state-{name}" for name in STATE_STYLES},
    **{name: f"bold ${name}" for name in JOB_STYLES},
}


class Signs(Struct, frozen=True):
    """Characters with a meaning, each one terminal cell wide."""

    states: Mapping[str, str]
    mark: str
    cursor: str
    ascending: str
    descending: str
    missing: str
    bar_used: str
    bar_free: str
    slot_used: str
    slot_partly: str
    slot_free: str
    slot_down: str
    rule: str
    ellipsis: str


# DejaVu Sans Mono, Menlo, Cascadia and JetBrains Mono have these. None has an emoji form, which
# terminals draw two cells wide.
UNICODE_SIGNS = Signs(
    states={
        JobState.PENDING: "◦",
        JobState.HELD: "‖",
        JobState.RUNNING: "▸",
        JobState.SUSPENDED: "≈",
        JobState.COMPLETING: "»",
        JobState.REQUEUED: "↻",
        JobState.COMPLETED: "✓",
        JobState.FAILED: "✗",
        JobState.TIMEOUT: "◔",
        JobState.OUT_OF_MEMORY: "◆",
        JobState.CANCELLED: "⊘",
        JobState.PREEMPTED: "↓",
        JobState.NODE_FAILED: "▼",
        JobState.GONE: "·",
        JobState.UNKNOWN: "?",
        NodeState.IDLE: "□",
        NodeState.MIXED: "◧",
        NodeState.ALLOCATED: "■",
        NodeState.DRAINING: "»",
        NodeState.DRAINED: "‖",
        NodeState.DOWN: "▼",
        NodeState.RESERVED: "◇",
        NodeState.PLANNED: "◦",
    },
    mark="●",
    cursor="▌",
    ascending="▲",
    descending="▼",
    missing="–",
    bar_used="━",
    bar_free="─",
    slot_used="■",
    slot_partly="◧",
    slot_free="□",
    slot_down="×",
    rule="─",
    ellipsis="…",
)
ASCII_SIGNS = Signs(
    states={
        JobState.PENDING: ".",
        JobState.HELD: "|",
        JobState.RUNNING: ">",
        JobState.SUSPENDED: "~",
        JobState.COMPLETING: ")",
        JobState.REQUEUED: "@",
        JobState.COMPLETED: "+",
        JobState.FAILED: "x",
        JobState.TIMEOUT: "T",
        JobState.OUT_OF_MEMORY: "M",
        JobState.CANCELLED: "-",
        JobState.PREEMPTED: "v",
        JobState.NODE_FAILED: "!",
        JobState.GONE: "_",
        JobState.UNKNOWN: "?",
        NodeState.IDLE: "o",
        NodeState.MIXED: "%",
        NodeState.ALLOCATED: "#",
        NodeState.DRAINING: ")",
        NodeState.DRAINED: "|",
        NodeState.DOWN: "!",
        NodeState.RESERVED: "r",
        NodeState.PLANNED: ".",
    },
    mark="*",
    cursor=">",
    ascending="^",
    descending="v",
    missing="-",
    bar_used="#",
    bar_free=".",
    slot_used="#",
    slot_partly="+",
    slot_free=".",
    slot_down="x",
    rule="-",
    ellipsis="~",
)


@lru_cache(maxsize=1)
def signs() -> Signs:
    """Return the signs that this terminal's locale can show."""
    codeset = locale.nl_langinfo(locale.CODESET)
    return UNICODE_SIGNS if codeset.upper().replace("-", "") == "UTF8" else ASCII_SIGNS


def state_cell(value: str | None, row: RowContext) -> Cell:
    """Return the sign, name and colour of a job's or node's state."""
    state = value or JobState.UNKNOWN
    sign = signs().states.get(state, "?")
    return f"{sign} {visible(state_word(state))}", style_name(state)


def text_cell(value: object, row: RowContext) -> Cell:
    """Return a value as visible text; lists are joined with commas."""
    if value is None:
        return _missing()
    if isinstance(value, list):
        return visible(",".join(str(part) for part in value))
    return visible(str(value))


def muted_cell(value: object, row: RowContext) -> Cell:
    """Return a value as muted text."""
    cell = text_cell(value, row)
    return (cell, MUTED) if isinstance(cell, str) else cell


def count_cell(value: int | None, row: RowContext) -> Cell:
    """Return a count: exact below 10 000, then `83.4K`."""
    return _missing() if value is None else format_count(value)


def memory_cell(value: float | None, row: RowContext) -> Cell:
    """Return bytes in binary units."""
    return _missing() if value is None else format_memory(value)


def duration_cell(value: float | None, row: RowContext) -> Cell:
    """Return seconds as `12:34`, `3:04:05` or `2d04h`."""
    return _missing() if value is None else format_duration(value)


def default_cell(column: ColumnSpec, kind: FieldType) -> CellFunction:
    """Return the cell function of a column that a view does not override."""
    if (text := column.text) is not None:
        return lambda value, row: visible(text(row)) or _missing()
    if column.total:
        if column.key.endswith("_bytes"):
            return memory_usage_cell(column.total)
        return usage_cell(column.total)
    if column.muted:
        return muted_cell
    if column.name == "state":
        return state_cell
    if kind != "count":
        return text_cell
    if column.key.endswith("_seconds"):
        return duration_cell
    return memory_cell if column.key.endswith("_bytes") else count_cell


def age_cell(clock: Clock) -> CellFunction:
    """Return a cell function for an instant's age by `clock`, which has a time zone: `4 min`."""

    def age(value: datetime | None, row: RowContext) -> Cell:
        return _missing() if value is None else format_age((clock() - value).total_seconds())

    return age


def instant_cell(clock: Clock, zone: tzinfo | None = None) -> CellFunction:
    """Return a cell function for `short_instant` in `zone` (None: this machine's)."""

    def instant(value: datetime | None, row: RowContext) -> Cell:
        return _missing() if value is None else short_instant(value, clock(), zone)

    return instant


def short_instant(value: datetime, now: datetime, zone: tzinfo | None = None) -> str:
    """Format an instant in at most ten characters.

    `14:05` on the day of `now`, `Tue 14:05` within six days, `12 Mar` within half a year, else
    `2024-03-12`. Both times have a time zone.
    """
    try:
        local = value.astimezone(zone)
        today = now.astimezone(zone)
    except (OverflowError, ValueError, OSError):
        # The platform's zone database does not have the year.
        return f"{value:%Y-%m-%d}"
    days = abs((local.date() - today.date()).days)
    if days == 0:
        return f"{local:%H:%M}"
    if days <= 6:
        return f"{local:%a %H:%M}"
    # Within half a year a day and a month are unambiguous.
    if days <= 182:
        return f"{local.day} {local:%b}"
    return f"{local:%Y-%m-%d}"


def short_deadline(value: datetime, now: datetime, zone: tzinfo | None = None) -> str:
    """Format an instant with `short_instant`, rounded up to the next minute."""
    past_minute = timedelta(seconds=value.second, microseconds=value.microsecond)
    if past_minute:
        try:
            value += timedelta(minutes=1) - past_minute
        except OverflowError:
            pass
    return short_instant(value, now, zone)


def usage_cell(total: str, *, digits: int = 7, bar: int = 5) -> CellFunction:
    """Return a cell function for use of the row's column `total`: `5/8 ━━━──`.

    The numbers take `digits` cells, the bar `bar`. Blank if the total is 0.
    """

    def usage(value: float | None, row: RowContext) -> Cell:
        whole = row.get(total)
        if whole == 0:
            return ""
        if value is None or not whole:
            return _missing()
        numbers = f"{format_count(int(value))}/{format_count(int(whole))}"
        return [(f"{numbers:>{digits}} ", ""), *usage_bar(value / whole, bar)]

    return usage


def memory_usage_cell(total: str) -> CellFunction:
    """Return a cell function for use of the row's column `total` in bytes: `12G/64G ━────`."""

    def usage(value: float | None, row: RowContext) -> Cell:
        whole = row.get(total)
        if value is None or not whole:
            return _missing()
        numbers = f"{format_memory(value)}/{format_memory(whole)}"
        return [(f"{numbers:>10} ", ""), *usage_bar(value / whole, 5)]

    return usage


def usage_bar(fraction: float, cells: int) -> list[Piece]:
    """Return a bar of `cells` cells, which is empty only at 0 and full only at 1."""
    least = 1 if fraction > 0 else 0
    most = cells if fraction >= 1 else cells - 1
    used = min(max(round(fraction * cells), least), most)
    return [(signs().bar_used * used, ACCENT), (signs().bar_free * (cells - used), MUTED)]


def utc_now() -> datetime:
    """Return the time of this machine."""
    return datetime.now(UTC)


def _missing() -> Piece:
    return signs().missing, MUTED
