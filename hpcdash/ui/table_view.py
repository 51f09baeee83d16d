"""Views that are one table: filter, sort, columns, marks; new snapshots keep the cursor's row."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from hpcdash.domain.columns import sort_rows, state_place
from hpcdash.domain.job_text import state_word
from hpcdash.domain.schema import arrow_schema
from hpcdash.domain.spans import LOCAL_ZONE
from hpcdash.domain.tables import MAIN_TABLES, Kind, TableSpec
from hpcdash.domain.text import counted
from hpcdash.errors import HpcdashError, QueryError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.session import ClusterSession
from hpcdash.ui.status import shown_error
from hpcdash.ui.view import View
from hpcdash.ui.widgets.cells import CellFunction, instant_cell, signs
from hpcdash.ui.widgets.filter_tabs import FilterTabs
from hpcdash.ui.widgets.lines import ClickableLine
from hpcdash.ui.widgets.row_detail import DETAIL_COLUMNS, RowDetail, column_lines
from hpcdash.ui.widgets.table import RowsTable
from hpcdash.ui.widgets.table_rows import Column, build_column, fitted
from hpcdash.ui.workers import call_after, start_worker

if TYPE_CHECKING:
    from hpcdash.domain import query
    from hpcdash.ui.screen import DashboardScreen

# Filtering and sorting so many rows takes less than a frame; larger tables take a thread.
_AT_ONCE_ROWS = 4000
# Delay after a key before other tables are searched for the selected row's detail.
_REST_SECONDS = 0.15
# A last word without an operator, which may become the key of a condition.
_HALF_KEY = re.compile(r"(?:^|(?<=\s))[A-Za-z_]+$")


class ViewRows(RowsTable, inherit_bindings=False):
    """Table whose navigation keys have priority, as the registry's keys do.

    Keys that act are in the registry, where they can be remapped.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        replace(binding, priority=True)
        for binding in RowsTable.BINDINGS
        if isinstance(binding, Binding) and binding.action not in ("open_row", "toggle_mark")
    ]


class TableView(View):
    """Shows one table, as its TableSpec declares it."""

    SPEC: ClassVar[TableSpec]
    # Field that identifies a row; '': that of the spec.
    IDENTITY: ClassVar[str] = ""
    # The cursor stays at the top until the user moves it.
    NEWEST_FIRST: ClassVar[bool] = False
    DEFAULT_SORT: ClassVar[str] = ""
    HAS_DETAIL: ClassVar[bool] = True
    everyone: bool = False

    def __init__(
        self,
        session: ClusterSession,
        *,
        spec: TableSpec | None = None,
        filter_text: str = "",
        columns: Sequence[str] = (),
        sort: str = "",
    ) -> None:
        super().__init__(session)
        self.spec = spec or self.SPEC
        self.identity = self.IDENTITY or self.spec.identity
        self.filter_text = ""
        self._filter: query.Filter | None = None
        self.column_names = self._known_names(columns) or self.spec.shown
        self.sort_key: str | None = self.spec.sort_field(sort.lstrip("-")) or None
        self.sort_descending = sort.startswith("-")
        self._counts = ("", "")
        self._arranging: asyncio.Task[None] | None = None
        self._is_reload_due = False
        self._is_typing = False
        self._resting: asyncio.TimerHandle | None = None
        if filter_text:
            self.set_filter(filter_text)

    def _known_names(self, requested: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of these names or fields: 'elapsed' for 'elapsed_seconds'."""
        columns = filter(None, map(self.spec.column, requested))
        return tuple(dict.fromkeys(column.name for column in columns))

    # -- to override

    def cell_functions(self) -> Mapping[str, CellFunction]:
        """Return cell functions by column name, for columns not drawn as their field's type is."""
        return {}

    @cached_property
    def catalogue(self) -> Mapping[str, Column]:
        """All columns by name, in the order of the column chooser."""
        drawn = self.cell_functions()
        instant = instant_cell(self.now, self.session.zone)
        return {
            column.name: build_column(self.spec, column, drawn.get(column.name), instant)
            for column in self.spec.columns
        }

    @property
    def kind(self) -> Kind | None:
        """Kind of the snapshots it shows; None if the view fetches its rows itself."""
        return self.spec.kind(everyone=self.everyone) if self.spec.paces else None

    def placeholder(self) -> str:
        """Return the text of an empty table: the reason, and the next key."""
        return "Nothing here. Press q to go back"

    def shaped(self, table: pa.Table, sort: tuple[str, bool] | None = None) -> pa.Table:
        """Return the rows shown of a filtered table, with an identity column.

        They are sorted by a column (True: largest first). Runs in a thread for large tables.
        """
        return table if sort is None else sort_rows(table, *sort)

    # -- parts of every table view

    @property
    def main_kind(self) -> Kind | None:
        return self.kind

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset() if self.kind is None else frozenset({self.kind})

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.spec)

    def compose(self) -> ComposeResult:
        if self.spec in MAIN_TABLES:
            yield FilterTabs()
        rows = ViewRows()
        rows.follows_top = self.NEWEST_FIRST
        yield rows
        if self.HAS_DETAIL:
            yield RowDetail()

    @property
    def rows(self) -> RowsTable:
        return self.query_one(RowsTable)

    def columns(self) -> list[Column]:
        return [self.catalogue[name] for name in self.column_names]

    def on_mount(self) -> None:
        self.reload()

    def on_resize(self) -> None:
        self._show_detail()

    def _show_detail(self, *, has_rested: bool = True) -> None:
        """Show the row under the cursor in full, if there is room beside the table.

        Lines from other tables are added once the cursor `has_rested`.
        """
        for detail in self.query(RowDetail):
            row = self.rows.cursor_row
            detail.display = row is not None and self.app.size.width >= DETAIL_COLUMNS
            if detail.display and row is not None:
                title = str(self.rows.cursor_id)
                hints = [part for part in self.row_hint(row).split("  ·  ") if part != title]
                paragraphs = (
                    [Content(part) for part in hints if part],
                    column_lines(self.catalogue.items(), row, detail.room),
                    self.detail_lines(row, detail.room) if has_rested else (),
                )
                blocks = [Content("\n").join(lines) for lines in paragraphs if lines]
                detail.show(title, Content("\n\n").join(blocks))

    @property
    def has_hint(self) -> bool:
        return not any(detail.display for detail in self.query(RowDetail))

    def _rested(self) -> None:
        if self.is_live:
            self._show_detail()

    def take_focus(self) -> None:
        if self.is_live:
            self.screen.set_focus(self.rows)

    def shown(self) -> None:
        self.take_focus()
        self.reload()

    def store_changed(self, changed: Changed) -> None:
        if changed.kind in (None, self.kind):
            self.reload()

    def source(self) -> pa.Table | None:
        """Return all rows before the filter; None without data."""
        return None if self.kind is None else self.session.store.table(self.kind)

    def reload(self) -> None:
        """Show the present data; large tables are filtered and sorted beside the event loop."""
        if not self.is_live:
            return
        for tabs in self.query(FilterTabs):
            tabs.show(self._filters(), self.filter_text)
        table = self.source()
        if table is None:
            self.rows.placeholder = self._format_waiting()
            self.rows.show(self.shaped(self.schema.empty_table()), self.columns(), self.identity)
            self._counts = ("", "")
            self.post_message(self.CrumbsChanged())
        elif table.num_rows <= _AT_ONCE_ROWS:
            self._show(*self._prepared(table))
        elif self._arranging is not None and not self._arranging.done():
            self._is_reload_due = True
        else:
            self._arranging = asyncio.create_task(self._arrange_beside())

    def _format_waiting(self) -> str:
        if shown_error(self.session, self) is not None:
            return "No data yet. ! error · ctrl+r retry"
        return "loading …"

    async def _arrange_beside(self) -> None:
        while True:
            self._is_reload_due = False
            table = self.source()
            if table is None:
                return
            prepared = await asyncio.to_thread(self._prepared, table)
            if not self.is_live:
                return
            self._show(*prepared)
            if not self._is_reload_due:
                break
        if not self._is_typing:
            self.rows.let_cursor_go()

    def _prepared(self, table: pa.Table) -> tuple[pa.Table, list[Column], tuple[str, str]]:
        matched = self.matched(table)
        unknown_gpus = 0
        if self._filter is not None:
            from hpcdash.domain import query

            now = self.session.store.clock.now()
            unknown_gpus = query.count_unknown_gpus(table, self._filter, now)
        sort = None
        if self.sort_key is not None and self.sort_key in matched.column_names:
            sort = (self.sort_key, self.sort_descending)
        columns = self.columns()
        if table.num_rows and self.column_names == self.spec.shown:
            # Some schedulers report no values for an optional column.
            columns = [
                column
                for column in columns
                if column.key not in self.spec.optional
                or table[column.key].null_count < table.num_rows
            ]
        return (
            self.shaped(matched, sort),
            # All rows determine the widths, which stay the same while a filter is typed.
            [self.fitted(column, table) for column in columns],
            format_counts(matched, table.num_rows, unknown_gpus),
        )

    def matched(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table that match the filter."""
        if self._filter is None:
            return table
        from hpcdash.domain import query

        return query.apply(table, self._filter, self.session.store.clock.now())

    def fitted(self, column: Column, table: pa.Table) -> Column:
        """Return the column with the width that the values of a table need."""
        return fitted(column, table)

    def _show(self, table: pa.Table, columns: Sequence[Column], counts: tuple[str, str]) -> None:
        rows = self.rows
        self._counts = counts
        rows.placeholder = (
            f"Nothing matches {self.filter_text}. esc clears the filter"
            if self.filter_text
            else self.placeholder()
        )
        rows.set_sort(self.sort_key, self.sort_descending)
        rows.show(table, columns, self.identity)
        self._show_detail()
        self.post_message(self.CrumbsChanged())

    def counts(self) -> tuple[str, str]:
        return self._counts

    def marks(self) -> int:
        return len(self.rows.marked) if self.is_live else 0

    def clear_marks(self) -> None:
        if self.is_live:
            self.rows.clear_marks()

    def crumbs(self) -> Sequence[str]:
        return (*self.scope_crumbs(), *((f"/{self.filter_text}",) if self.filter_text else ()))

    def scope_crumbs(self) -> Sequence[str]:
        return (self.spec.name,)

    def row_hint(self, row: Mapping[str, Any]) -> str:
        return ""

    def detail_lines(self, row: Mapping[str, Any], room: int) -> Sequence[Content]:
        """Return more facts on a row than its columns have, in lines of `room` cells."""
        return ()

    def hint(self) -> str:
        row = self.rows.cursor_row if self.is_live else None
        return self.row_hint(row) if row is not None else ""

    @on(RowsTable.RowHighlighted)
    @on(RowsTable.MarksChanged)
    def _selection_changed(self) -> None:
        if self.HAS_DETAIL:
            self._show_detail(has_rested=False)
            if self._resting is not None:
                self._resting.cancel()
            self._resting = call_after(self, _REST_SECONDS, self._rested)
        self.post_message(self.CrumbsChanged())

    @on(RowsTable.RowOpened)
    def _row_opened(self, event: RowsTable.RowOpened) -> None:
        event.stop()
        self.open_row(event.id, event.row)

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        """Open the row on which enter was pressed."""

    @on(RowsTable.HeaderClicked)
    def _header_clicked(self, event: RowsTable.HeaderClicked) -> None:
        event.stop()
        if event.key in self.sort_keys():
            self.sort_by_or_reverse(event.key)

    # -- actions

    def set_filter(self, text: str) -> None:
        """Apply a filter, '' for none. Raises QueryError and keeps the present filter."""
        text = text.strip()
        self._filter = self._parsed(text) if text else None
        self.filter_text = text
        self.reload()

    def _parsed(self, text: str) -> query.Filter:
        from hpcdash.domain import query

        return query.parse(text, self.schema, self.zone)

    def try_filter(self, text: str) -> QueryError | None:
        """Apply a filter; return its error instead of raising it."""
        try:
            self.set_filter(text)
        except QueryError as error:
            return error
        return None

    def begin_typing(self) -> None:
        """Hold the cursor while a filter is typed, so that it returns to its row."""
        self._is_typing = True
        self.rows.hold_cursor()

    def end_typing(self) -> None:
        """Release the cursor after a filter was entered or cancelled."""
        self._is_typing = False
        if self._arranging is None or self._arranging.done():
            self.rows.let_cursor_go()

    def preview_filter(self, text: str) -> QueryError | None:
        """Apply a filter while it is typed, without a last word that may become a key."""
        if (half := _HALF_KEY.search(text)) is not None and self._matches_none(text):
            return self.try_filter(text[: half.start()])
        return self.try_filter(text)

    def _matches_none(self, text: str) -> bool:
        from hpcdash.domain import query

        word = text.split()[-1].lower()
        if not any(key.startswith(word) for key in query.filter_keys(self.schema)):
            return False
        table = self.source()
        try:
            requested = self._parsed(text)
        except QueryError:
            return False
        return (
            table is not None
            and query.apply(table, requested, self.session.store.clock.now()).num_rows == 0
        )

    @property
    def zone(self) -> tzinfo:
        """Time zone of shown and typed times."""
        return self.session.zone or LOCAL_ZONE

    def sort_by(self, key: str | None, descending: bool) -> None:
        self.sort_key = key and self.spec.sort_field(key)
        self.sort_descending = descending
        self.reload()

    def sort_by_or_reverse(self, key: str) -> None:
        """Sort by a column, smallest first; reverse the order if it is sorted by it already."""
        self.sort_by(key, descending=key == self.sort_key and not self.sort_descending)

    def sort_keys(self) -> list[str]:
        """Return the keys of the shown columns by which rows can be sorted."""
        return [column.key for column in self.columns()]

    def do_sort(self) -> None:
        keys: list[str | None] = [None, *self.sort_keys()]
        position = keys.index(self.sort_key) if self.sort_key in keys else 0
        self.sort_by(keys[(position + 1) % len(keys)], self.sort_descending)

    def do_reverse(self) -> None:
        self.sort_by(self.sort_key or self.columns()[0].key, not self.sort_descending)

    # -- bookmarks

    def _filters(self) -> tuple[tuple[str, str], ...]:
        from hpcdash.ui.notes import listed_filters

        return listed_filters(self.session, self.spec.name)

    def notes_changed(self) -> None:
        self.reload()

    def do_bookmark(self) -> None:
        """Bookmark the applied filter, or remove its bookmark."""
        from hpcdash.ui.notes import toggle_bookmark

        if self.filter_text:
            toggle_bookmark(cast("DashboardScreen", self.screen), self.spec.name, self.filter_text)
        else:
            self.notify("no filter to bookmark; / filters", severity="warning", timeout=3)

    def do_next_bookmark(self) -> None:
        self._go_to_bookmark(1)

    def do_previous_bookmark(self) -> None:
        self._go_to_bookmark(-1)

    def _go_to_bookmark(self, step: int) -> None:
        """Apply the filter `step` tabs further, cyclically; without a tab, count from none."""
        filters = ["", *(text for _, text in self._filters())]
        if len(filters) == 1:
            text = "no bookmarks; B bookmarks the current filter"
            self.notify(text, severity="warning", timeout=3)
            return
        position = filters.index(self.filter_text) if self.filter_text in filters else 0
        self._apply(filters[(position + step) % len(filters)])

    @on(ClickableLine.Clicked)
    def _tab_clicked(self, event: ClickableLine.Clicked) -> None:
        event.stop()
        self._apply(event.value)

    def _apply(self, text: str) -> None:
        if error := self.try_filter(text):
            self.notify(f"{text}: {error.message}", severity="warning")

    def do_open(self) -> None:
        self.rows.action_open_row()

    def do_mark(self) -> None:
        self.rows.action_toggle_mark()

    def do_mark_all(self) -> None:
        self.rows.toggle_all_marks()

    def do_invert_marks(self) -> None:
        self.rows.invert_marks()

    def do_unmark(self) -> None:
        self.clear_marks()

    def do_copy(self) -> bool | None:
        if (row_id := self.rows.cursor_id) is not None:
            self.app.copy_to_clipboard(row_id)
            self.notify(f"copied {row_id}")
        return None

    def help_moving(self) -> Sequence[tuple[str, str]]:
        return (*super().help_moving(), ("shift+↑ shift+↓", "mark a range"))

    def chosen(self) -> dict[str, object]:
        chosen: dict[str, object] = {}
        if self.column_names != self.spec.shown:
            chosen["columns"] = self.column_names
        if (sort := f"{'-' * self.sort_descending}{self.sort_key or ''}") != self.DEFAULT_SORT:
            chosen["sort"] = sort
        return chosen

    def choose_columns(self, names: Sequence[str]) -> None:
        """Show these columns, in this order."""
        self.column_names = self._known_names(names) or self.spec.shown
        self.reload()

    def do_escape(self) -> bool:
        if self.filter_text:
            self.set_filter("")
            return True
        return False


def format_counts(matched: pa.Table, all_rows: int, unknown_gpus: int = 0) -> tuple[str, str]:
    """Return the counts by state and the share of rows that match, as a long and a short text.

    ('▸12 running ◦3 pending, 15 of 1024 rows', '▸12 ◦3 15/1024'). A record of several tasks counts
    as many. `unknown_gpus` is the number of rows that the filter could not judge.
    """
    rows = matched.num_rows
    scope = ""
    short_scope = ""
    if rows != all_rows:
        scope = f"{rows} of {all_rows} rows"
        short_scope = f"{rows}/{all_rows}"
    if unknown_gpus:
        scope = f"{rows} of {all_rows} rows, GPU count unknown for {unknown_gpus}"
        short_scope += f" GPU?{unknown_gpus}"
    if "state" not in matched.column_names:
        return (scope, short_scope) if scope else (counted(rows, "row"), str(rows))
    if "_tasks" in matched.column_names:
        nothing = "no jobs"
        tasks = matched.select(["state", "_tasks"]).group_by("state").aggregate([("_tasks", "sum")])
        counts = {row["state"]: row["_tasks_sum"] for row in tasks.to_pylist()}
    else:
        nothing = "no rows"
        states = pc.value_counts(matched["state"]).to_pylist()
        counts = {row["values"]: row["counts"] for row in states}
    ranked = sorted(counts.items(), key=lambda pair: state_place(pair[0]))
    short_texts = [f"{signs().states.get(state, '?')}{count}" for state, count in ranked]
    texts = [
        f"{text} {state_word(state)}" for text, (state, _) in zip(short_texts, ranked, strict=True)
    ]
    return (
        ", ".join(filter(None, (" ".join(texts) or nothing, scope))),
        " ".join(filter(None, (" ".join(short_texts) or nothing, short_scope))),
    )


class Reader(Protocol):
    """Reader of the present state, which keeps what it read."""

    async def read(self) -> object: ...


class ReadTableView(TableView):
    """Table from a `reader`, read again when the lists of jobs show other states.

    Subclasses define `reader` and `states_in_lists`.
    """

    reader: Reader
    # Changes of the store to compare; None is a change of the whole store.
    LISTS: ClassVar[frozenset[Kind | None]] = frozenset({Kind.MINE, Kind.EVERYONE, Kind.HISTORY})

    def __init__(self, session: ClusterSession, **rest: Any) -> None:
        self._is_reading = False
        self._is_read_due = False
        self._states: object = None
        super().__init__(session, **rest)

    def states_in_lists(self) -> object:
        """Return the states in the lists that this view depends on."""
        raise NotImplementedError

    def show_read(self) -> None:
        """Show the present content of the reader."""
        self.reload()

    def do_refresh(self) -> bool:
        self.read()
        # The screen's own handler fetches the lists.
        return False

    def store_changed(self, changed: Changed) -> None:
        """Read again if a list shows other states: each reading runs several commands."""
        if changed.kind in self.LISTS and (states := self.states_in_lists()) != self._states:
            self._states = states
            self.read()

    def read(self) -> None:
        """Read now, or once more after the present reading."""
        if self._is_reading:
            self._is_read_due = True
            return
        self._is_reading = True
        start_worker(self, self._read, group="read")

    async def _read(self) -> None:
        try:
            while True:
                self._is_read_due = False
                try:
                    await self.reader.read()
                except HpcdashError as error:
                    self._error = error.with_traceback(None)
                else:
                    self._error = None
                    self._taken_at = self.session.store.clock.now()
                if not self._is_read_due:
                    return
        finally:
            self._is_reading = False
            self.show_read()
