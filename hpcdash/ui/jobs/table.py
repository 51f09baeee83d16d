"""Jobs of the user or of all users, with folded arrays and the reason that each job waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult

from hpcdash.domain import arrays
from hpcdash.domain.columns import shared_beginning, shared_ending
from hpcdash.domain.dependencies import parse_dependency
from hpcdash.domain.job_text import format_end, state_word
from hpcdash.domain.states import ACTIVE, ENDED, WAITING, JobState
from hpcdash.domain.tables import JOBS, Kind
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_age, format_duration
from hpcdash.services.cluster.store import Changed
from hpcdash.services.session import ClusterSession
from hpcdash.services.usage.limits import policy_hint
from hpcdash.ui.cluster.header import MIN_COLUMNS, MIN_LINES
from hpcdash.ui.cluster.wall import job_letters, letter_style
from hpcdash.ui.jobs.outlook import MIN_ROWS, STARTABLE, JobsOutlook
from hpcdash.ui.jobs.overview import JobOverview
from hpcdash.ui.notes import COLUMNS, pinned_first, session_notes, with_notes
from hpcdash.ui.table_view import TableView
from hpcdash.ui.view import Targets, row_ranks
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.table import RowsTable
from hpcdash.ui.widgets.table_rows import Column, fitted
from hpcdash.ui.workers import start_worker

PLAIN, FOLDED, UNFOLDED, CHILD = range(4)
# Width of IDs up to which no other column gets narrower: the ranges of pending tasks are long.
_ID_CELLS = 12
# On a terminal this wide the overview is beside the table.
BESIDE_COLUMNS = 160
# Share of the view for the overview, in percent.
_OVERVIEW_SHARE = 45
_MIN_SHARE = 20
_MAX_SHARE = 80
_SHARE_STEP = 5
# Reduction of its share beside the table.
_BESIDE_LESS = 8
# A table above an outlook has these rows at least, a heading and a blank line.
_MIN_TABLE_ROWS = 5
_LINES_AROUND_ROWS = 2
if TYPE_CHECKING:
    from hpcdash.services.state.notes import JobNotes
    from hpcdash.ui.jobs.row_logs import RowLogs
    from hpcdash.ui.screen import DashboardScreen

# Terminal width for a bar in place of the used and the remaining time,
_WIDE_COLUMNS = 140
_USED_CELLS = 8
# for the losses of the user's running jobs,
_LOSS_COLUMNS = 180
# and for all columns.
_ALL_COLUMNS = 200
_UNSORTED = frozenset({"_loss", "_letter"})


def where_cell(value: object, row: cells.RowContext) -> cells.Cell:
    """Format the nodes of a job, the reason that it waits, or its end."""
    state = row["state"]
    nodes = row["node_list"]
    reason = row["reason"]
    if row.get("_fold") in (FOLDED, UNFOLDED) and row.get("_states"):
        return cells.text_cell(row["_states"], row)
    if state in ENDED:
        return format_end(row), cells.MUTED
    if state not in ACTIVE:
        return cells.text_cell(reason, row) if reason else ""
    is_array = row["array_id"] is not None and row["id"] == row["array_id"]
    if is_array and nodes is None:
        # PBS's list of all users' jobs has a row per array, with the number of running tasks.
        return f"{row['_tasks']} running"
    if reason and state == JobState.RUNNING:
        # On a node that is down.
        return f"{nodes or ''} ({reason})".strip(), cells.WARNING
    is_suspended = state == JobState.SUSPENDED and reason
    return cells.text_cell(reason if is_suspended else nodes, row)


def id_cell(
    value: str | None, row: cells.RowContext, ending: str = "", beginning: str = ""
) -> cells.Cell:
    """Format the ID of an array, a task or a job, without `beginning` and `ending`."""
    fold = row.get("_fold") or PLAIN
    if fold in (FOLDED, UNFOLDED):
        sign = "+" if fold == FOLDED else "-"
        array_id = str(row["array_id"]).removesuffix(ending)
        # 12[5] is the fifth task of PBS's 12[].
        tasks = f" ({row['_tasks']})" if "[" in array_id else f"[{row['_tasks']}]"
        return f"{sign} {array_id}{tasks}", cells.STRONG
    shown = value.removeprefix(beginning).removesuffix(ending) if value else value
    return f"  {shown}" if fold == CHILD else cells.text_cell(shown, row)


def elapsed_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """Return how long a job has run; '' for a pending job that never did."""
    return "" if row["state"] in WAITING and not value else cells.duration_cell(value, row)


def running_elapsed_cell(age_seconds: Callable[[], float]) -> cells.CellFunction:
    """Return a cell function for the elapsed time, advanced by `age_seconds` for a running job.

    `age_seconds` is the age of the row's value.
    """

    def elapsed(value: int | None, row: cells.RowContext) -> cells.Cell:
        if value is not None and row["state"] == JobState.RUNNING:
            value += int(age_seconds())
        return elapsed_cell(value, row)

    return elapsed


def left_cell(now: Any) -> cells.CellFunction:
    """Return a cell function for the time left until a running job's limit."""

    def left(value: datetime | None, row: cells.RowContext) -> cells.Cell:
        if value is None or row["state"] not in ACTIVE or row["state"] == JobState.COMPLETING:
            return "", cells.MUTED
        seconds = (value - now()).total_seconds()
        if seconds <= 0:
            return "over", cells.WARNING
        return format_duration(seconds), cells.WARNING if seconds < 600 else ""

    return left


def used_cell(now: Callable[[], datetime]) -> cells.CellFunction:
    """Return a cell function for the used and the remaining time; of a pending job, its start."""
    left = left_cell(now)

    def used(value: int | None, row: cells.RowContext) -> cells.Cell:
        if row["state"] in WAITING:
            expected = row["_expected_start_at"]
            if expected is None or row["state"] not in STARTABLE:
                return "", ""
            ahead = (expected - now()).total_seconds()
            return (f"≈ in {format_age(ahead)}", "muted") if ahead > 0 else ("", "")
        remaining = left(row["ends_at"], row)
        text, style = remaining if isinstance(remaining, tuple) else (str(remaining), "")
        if not row["limit_seconds"] or value is None or not text:
            return elapsed_cell(value, row)
        bar = cells.usage_bar(min(1.0, value / row["limit_seconds"]), _USED_CELLS)
        return [*bar, (f" {text:>8}", style)]

    return used


class JobsView(TableView):
    """The queue."""

    DEFAULT_CSS = """
    JobsView.-beside > JobOverview { dock: right; }
    """
    SPEC = JOBS
    IDENTITY = "_row_id"
    HAS_DETAIL = False
    # Running jobs come first; within a state the scheduler's own order stays.
    DEFAULT_SORT = "state"

    def __init__(
        self,
        session: ClusterSession,
        *,
        everyone: bool = False,
        fold: bool = True,
        folds: Sequence[str] = (),
        stored_filter: str = "",
        has_overview: bool = True,
        overview_share: int = _OVERVIEW_SHARE,
        patterns: Sequence[str] = (),
        **rest: Any,
    ) -> None:
        """`folds` are arrays that differ from `fold`, `stored_filter` is the last run's.

        `patterns` are those of metrics, for the column of losses.
        """
        self.everyone = everyone
        self._patterns = tuple(patterns)
        self._fold_all = fold
        self._shows_overview = has_overview
        self._overview_share = min(max(overview_share, _MIN_SHARE), _MAX_SHARE)
        # Open arrays while all are folded, folded arrays while all are open.
        self._exceptions: frozenset[str] = frozenset(folds)
        super().__init__(session, **{"sort": self.DEFAULT_SORT, **rest})
        # A stored filter that is invalid now is ignored.
        self._has_stored_filter = (
            bool(stored_filter) and not self.filter_text and self.try_filter(stored_filter) is None
        )

    def on_mount(self) -> None:
        if self._has_stored_filter:
            text = (
                f"Filter from the last session: {visible(self.filter_text)}. esc clears the filter"
            )
            cast("DashboardScreen", self.screen).notice(text)

    @cached_property
    def _notes(self) -> JobNotes:
        return session_notes(self.session)

    @property
    def schema(self) -> pa.Schema:
        """Schema with the columns of local notes on jobs."""
        return pa.schema([*super().schema, *COLUMNS])

    def source(self) -> pa.Table | None:
        table = super().source()
        return None if table is None else with_notes(table, self._notes.load())

    @cached_property
    def _logs(self) -> RowLogs:
        from hpcdash.ui.jobs.row_logs import RowLogs

        return RowLogs(self.session, self._patterns)

    @property
    def kind(self) -> Kind:
        return self.spec.kind(everyone=self.everyone)

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {
            "id": id_cell,
            "letter": self._letter_cell,
            "pinned": lambda value, row: "*" if value else "",
            "note": lambda value, row: value or "",
            "elapsed": running_elapsed_cell(self._age_seconds),
            "left": left_cell(self.now),
            "used": used_cell(self.now),
            "gpus": zero_is_blank,
            "where": self._where_cell,
            "loss": lambda value, row: self._logs.cell(value, row),
        }

    def _where_cell(self, value: object, row: cells.RowContext) -> cells.Cell:
        """Format the nodes of a job and the end of its training, the reason that it waits in more
        detail, or why it ended.
        """
        if row["state"] not in WAITING or row.get("_fold") in (FOLDED, UNFOLDED):
            cell = where_cell(value, row)
            outcome = self._logs.outcome(row, self.now()) if self._reads_logs else None
            if outcome is None or row["state"] in ENDED:
                return outcome or cell
            place = cell if isinstance(cell, tuple) else (str(cell), "")
            return [place, ("  ", ""), outcome]
        eligible = row["eligible_at"]
        if text := self.session.store.backend.reasons.short(row):
            return text
        if ids := parse_dependency(row["dependency"]).job_ids:
            return f"after {', '.join(ids)}"
        if eligible is not None and eligible > self.now():
            return f"not before {cells.short_instant(eligible, self.now(), self.session.zone)}"
        return where_cell(value, row)

    def _letter_cell(self, value: object, row: cells.RowContext) -> cells.Cell:
        """Return the letter of a running job on the wall of slots."""
        letter = job_letters(self.session.store).letter(str(row["id"]))
        return (letter, letter_style(letter)) if row["state"] in ACTIVE else ""

    def _age_seconds(self) -> float:
        """Return the age of the data."""
        taken_at = self.taken_at()
        return 0.0 if taken_at is None else max(0.0, self.now().timestamp() - taken_at)

    def compose(self) -> ComposeResult:
        yield from super().compose()
        yield JobsOutlook(self.session, self.now)
        yield JobOverview(self.session, self.now, self._patterns)

    @property
    def overview(self) -> JobOverview:
        return self.query_one(JobOverview)

    def on_resize(self) -> None:
        """Place the overview beside a wide table, else below it if the terminal is high enough."""
        columns, lines = self.app.size
        is_beside = columns >= BESIDE_COLUMNS
        self.set_class(is_beside, "-beside")
        share = self._overview_share
        overview = self.overview
        overview.styles.width = f"{share - _BESIDE_LESS}%" if is_beside else "100%"
        overview.styles.height = "100%" if is_beside else f"{share}%"
        has_room = columns >= MIN_COLUMNS and lines >= MIN_LINES
        overview.display = self._shows_overview and has_room
        if overview.has_focus_within and not overview.display:
            self.take_focus()
        self._point_overview()
        self._show_outlook()
        self.post_message(self.CrumbsChanged())

    def _show_outlook(self) -> None:
        """Show the outlook in the lines below the table.

        With a filter it stays as it is: the rows would move while the filter is typed.
        """
        if self.filter_text:
            return
        columns = self.size.width - 2
        lines = self.size.height
        if self.overview.display and self.has_class("-beside"):
            columns -= self.overview.outer_size.width
        elif self.overview.display:
            lines -= self.overview.outer_size.height
        rows = max(self.rows.row_count, _MIN_TABLE_ROWS) + _LINES_AROUND_ROWS
        lines -= max(rows, MIN_ROWS + _LINES_AROUND_ROWS)
        outlook = self.query_one(JobsOutlook)
        mine = self.session.store.table(Kind.MINE)
        outlook.show(mine, lines if self.spec is JOBS else 0, columns)
        # The outlook directly follows a short table.
        self.rows.styles.height = rows if outlook.display else "1fr"

    @property
    def has_hint(self) -> bool:
        return not (self.is_live and self.overview.display)

    @property
    def counts_own_jobs(self) -> bool:
        return self.spec is JOBS and not (self.everyone or self.filter_text)

    def chosen(self) -> dict[str, object]:
        return {
            **super().chosen(),
            "filter": self.filter_text,
            "fold_arrays": self._fold_all,
            "folds": self._known_exceptions(),
            "has_overview": self._shows_overview,
            "overview_share": self._overview_share,
        }

    def _known_exceptions(self) -> tuple[str, ...]:
        """Arrays folded unlike the rest that still exist; all of them if there is no list."""
        table = self.source() if self._exceptions else None
        known = (
            self._exceptions if table is None else frozenset(table["array_id"].unique().to_pylist())
        )
        return tuple(sorted(self._exceptions & known))

    def do_overview(self) -> None:
        """Hide or show the overview."""
        self._shows_overview = not self._shows_overview
        self.on_resize()
        if self._shows_overview and not self.overview.display:
            self.notify(
                f"the overview needs a terminal of {MIN_COLUMNS}×{MIN_LINES}",
                severity="warning",
            )

    def do_larger_overview(self) -> None:
        """Give the overview more of the view."""
        self._share_overview(_SHARE_STEP)

    def do_smaller_overview(self) -> None:
        """Give the overview less of the view."""
        self._share_overview(-_SHARE_STEP)

    def _share_overview(self, step: int) -> None:
        self._overview_share = min(max(self._overview_share + step, _MIN_SHARE), _MAX_SHARE)
        self.on_resize()

    def do_switch_focus(self) -> None:
        """Move the focus between the table and the overview's log."""
        if self.overview.has_focus_within or not self.overview.display:
            self.take_focus()
        else:
            self.overview.take_focus()

    @on(RowsTable.RowHighlighted)
    def _point_overview(self) -> None:
        if self.is_live and self.overview.display:
            self.overview.point_at(self.rows.cursor_row)

    def tick(self) -> None:
        if self.is_live:
            self.rows.repaint()
            if self.overview.display:
                self.overview.tick()

    def columns(self) -> list[Column]:
        """Return the chosen columns, by default those that the data and the width allow."""
        columns = super().columns()
        if self.column_names != self.spec.shown:
            return columns
        known = self.catalogue
        width = self.app.size.width
        stored = self._notes.load()
        has_bar = "used" in known and width >= _WIDE_COLUMNS
        hidden = set() if self.everyone else {"user"}
        if has_bar:
            hidden |= {"elapsed_seconds", "ends_at"}
            if width < _ALL_COLUMNS:
                # The overview has them; names and reasons need the room.
                hidden |= self._minor_columns
        shown = []
        if "letter" in known and job_letters(self.session.store).is_used:
            shown.append(known["letter"])
        for position, column in enumerate(columns):
            if position == 1 and stored.pinned:
                shown.append(known["pinned"])
            if column.key == "elapsed_seconds" and has_bar:
                shown.append(known["used"])
                if self._shows_losses:
                    shown.append(known["loss"])
            if column.key not in hidden:
                shown.append(column)
            if column.key == "name" and stored.notes:
                shown.append(known["note"])
        return shown

    @property
    def _minor_columns(self) -> frozenset[str]:
        """Keys of the least important columns: nodes, and CPUs if jobs have GPUs."""
        table = self.session.store.table(self.kind)
        has_gpus = table is not None and bool(pc.any(pc.greater(table["gpus"], 0)).as_py())
        return frozenset({"nodes", "cpus"} if has_gpus else {"nodes"})

    def sort_keys(self) -> list[str]:
        return [key for key in super().sort_keys() if key not in _UNSORTED]

    def _show(self, table: pa.Table, columns: Sequence[Column], counts: tuple[str, str]) -> None:
        super()._show(table, columns, counts)
        self._point_overview()
        self._show_outlook()
        if self._reads_logs and self._logs.is_due(self.kind, is_chosen=self._has_chosen_losses):
            # The layout determines which rows are visible.
            self.call_after_refresh(self._refresh_logs)

    @property
    def _has_chosen_losses(self) -> bool:
        return "loss" in self.column_names

    @property
    def _shows_losses(self) -> bool:
        """Whether the column of losses is chosen, or there is room for it."""
        return self._has_chosen_losses or self._has_default_columns(_LOSS_COLUMNS)

    @property
    def _reads_logs(self) -> bool:
        """Whether rows show what their logs contain: the losses, or beside a job's nodes."""
        return self._has_chosen_losses or self._has_default_columns(_WIDE_COLUMNS)

    def _has_default_columns(self, width: int) -> bool:
        is_default = self.column_names == self.spec.shown and self.spec is JOBS
        return is_default and self.app.size.width >= width

    def _refresh_logs(self) -> None:
        is_seen = self.is_live and self.display and self._reads_logs
        if is_seen and self._logs.is_due(self.kind, is_chosen=self._has_chosen_losses):
            start_worker(self, self._logs.refresh, self.rows, group="losses")

    def fitted(self, column: Column, table: pa.Table) -> Column:
        if column.key != "id":
            return super().fitted(column, table)
        ending = shared_ending(table["id"])
        if ending:
            column = replace(column, cell=partial(id_cell, ending=ending))
        if table["array_id"].null_count == table.num_rows:
            if beginning := shared_beginning(table["id"]):
                column = replace(column, cell=partial(id_cell, ending=ending, beginning=beginning))
            return fitted(column, table, extra=-len(ending) - len(beginning))
        # id_cell adds a sign, brackets and the number of tasks to an array's ID, an indent to a
        # task's.
        folded = fitted(replace(column, key="array_id"), table, extra=7 - len(ending))
        indent_cells = 2
        if self._fold_all and not self._exceptions:
            indent_cells = 0
            # An array of a single row is shown as that row, with the range of its tasks.
            counts = pc.value_counts(table["array_id"])
            single = counts.field("values").filter(pc.equal(counts.field("counts"), 1))
            is_single = pc.is_in(table["array_id"], single)
            table = table.filter(pc.or_(pc.is_null(table["array_id"]), is_single))
        single_row = fitted(column, table, extra=indent_cells - len(ending))
        longest = max(folded.longest, single_row.longest)
        return replace(column, width=min(longest, _ID_CELLS), longest=longest)

    def shaped(self, table: pa.Table, sort: tuple[str, bool] | None = None) -> pa.Table:
        return pinned_first(self._folded(table, sort), self._notes.load())

    def _folded(self, table: pa.Table, sort: tuple[str, bool] | None) -> pa.Table:
        if self._fold_all:
            return arrays.fold(table, self._exceptions, sort)
        if not self._exceptions:
            return arrays.fold(table, None, sort)
        known = frozenset(table["array_id"].unique().to_pylist()) - {None}
        return arrays.fold(table, known - self._exceptions, sort)

    def placeholder(self) -> str:
        if self.everyone or not self.whose(everyone=False):
            return "The queue is empty. n submits a job"
        return "You have no jobs. n submits one, m shows everyone's"

    def scope_crumbs(self) -> Sequence[str]:
        return ("jobs", *self.whose(everyone=self.everyone))

    def row_hint(self, row: Mapping[str, Any]) -> str:
        note = row.get("note")
        return job_hint(self.session, row, self.now()) + (f"  ·  note: {note}" if note else "")

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        if row.get("_fold") in (FOLDED, UNFOLDED):
            self._exceptions = self._exceptions ^ {str(row["array_id"])}
            self.reload()
        else:
            self.post_message(self.Requested("job", job_id=str(row["id"])))

    def do_fold(self) -> None:
        """Fold or unfold all arrays.

        The cursor moves from a folded task to its array.
        """
        row = self.rows.cursor_row
        self._fold_all = bool(self._exceptions) or not self._fold_all
        self._exceptions = frozenset()
        self.reload()
        if self._fold_all and row is not None and row.get("_fold") == CHILD:
            self.rows.move_to(f"{row['array_id']}[]")

    def do_mine(self) -> None:
        self.everyone = not self.everyone
        self.reload()
        self.post_message(self.CrumbsChanged())

    def do_copy(self) -> bool:
        """Leave the key to the handlers of jobs, which offer more to copy."""
        return False

    def do_detail(self) -> None:
        if (job_id := self.pointed_job()) is not None:
            self.post_message(self.Requested("job", job_id=job_id, shows_record=True))

    def pointed_job(self) -> str | None:
        row = self.rows.cursor_row
        if row is None:
            return None
        return str(row["array_id"] if row.get("_fold") in (FOLDED, UNFOLDED) else row["id"])

    def key_ranks(self) -> Mapping[str, int]:
        if not self.is_live:
            return {}
        return row_ranks(self.rows.cursor_row, is_training=self.overview.shows_training)

    def targets(self) -> Targets:
        """Return the marked rows, or the row under the cursor.

        A folded array selects all of its rows, or those that the filter shows.
        """
        table = self.source()
        requested = self.rows.marked
        if not requested and self.rows.cursor_id is not None:
            requested = frozenset({self.rows.cursor_id})
        if table is None or not requested:
            return Targets()
        folded = {row_id.removesuffix("[]") for row_id in requested if row_id.endswith("[]")}
        is_selected = pc.or_(
            _is_one_of(table["id"], requested), _is_one_of(table["array_id"], folded)
        )
        selected = table.filter(pc.fill_null(is_selected, False))
        all_rows = selected.to_pylist()
        shown = set(self.matched(selected)["id"].to_pylist())
        shown_arrays = {row["array_id"] for row in all_rows if row["id"] in shown}
        found: set[str] = set()
        rows: list[dict[str, Any]] = []
        # Arrays with all of their rows, and arrays with some rows that the filter hides.
        whole: set[str] = set()
        partial: set[str] = set()
        for row in all_rows:
            found.add(row["id"])
            array_id = row["array_id"]
            if row["id"] in requested or array_id not in folded:
                rows.append(row)
                continue
            found.add(f"{array_id}[]")
            if row["id"] not in shown and array_id in shown_arrays:
                partial.add(array_id)
            else:
                whole.add(array_id)
                rows.append(row)
        whole -= partial
        ids = [row["array_id"] if row["array_id"] in whole else row["id"] for row in rows]
        missing = sorted(row_id.removesuffix("[]") for row_id in requested - found)
        return Targets(tuple(dict.fromkeys(ids)), tuple(rows), tuple(missing))

    def reload(self) -> None:
        super().reload()
        # Marks of jobs that left the list would take the next key.
        if self.is_live and self.rows.marked and self.source() is not None:
            gone = self.targets().missing
            self.rows.unmark(mark for job_id in gone for mark in (job_id, f"{job_id}[]"))

    def store_changed(self, changed: Changed) -> None:
        if changed.kind in (None, self.kind, Kind.MINE):
            self.reload()


def _is_one_of(column: pa.ChunkedArray, names: Iterable[str]) -> pa.ChunkedArray:
    return pc.is_in(column, value_set=pa.array(list(names), column.type))


def zero_is_blank(value: int | None, row: cells.RowContext) -> cells.Cell:
    """Format a count that is usually zero."""
    return ("", cells.MUTED) if value == 0 else cells.count_cell(value, row)


def job_hint(
    session: ClusterSession, row: Mapping[str, Any], now: datetime, *, names_policy: bool = True
) -> str:
    """Format a job in one line: its reason to wait and expected start, its nodes, or its end.

    `names_policy`: with the site policy that it waits for.
    """
    backend = session.store.backend
    state = str(row["state"])
    reason = row["reason"]
    if row.get("_fold") in (FOLDED, UNFOLDED):
        array = f"array {row['array_id']} {row['name'] or ''}"
        opens = "shows" if row["_fold"] == FOLDED else "hides"
        return f"{array}  ·  {row['_states']}  ·  enter {opens} its tasks"
    parts = [f"{row['id']} {row['name'] or ''}".strip()]
    text = backend.reasons.explain(row)
    if state in WAITING:
        parts.append(text or reason or "waiting")
        if row["_expected_start_at"] is not None:
            expected = cells.short_instant(row["_expected_start_at"], now, session.zone)
            ahead = (row["_expected_start_at"] - now).total_seconds()
            soon = f" (in {format_duration(ahead)})" if ahead > 0 else ""
            parts.append(f"may start {expected}{soon}, {backend.title}'s estimate")
        if row["dependency"]:
            parts.append(f"after {row['dependency']}")
        if names_policy and (policy := policy_hint(session.store, row)):
            parts.append(policy)
    elif state in ENDED:
        parts.append(state_word(state))
        parts += [part for part in (format_end(row), text) if part]
    else:
        if row["ends_at"] is not None and row["node_list"]:
            parts.append(f"on {row['node_list']}")
        parts += [part for part in (reason, text) if part]
        if row["ends_at"] is not None:
            parts.append(f"ends by {cells.short_deadline(row['ends_at'], now, session.zone)}")
    return "  ·  ".join(dict.fromkeys(parts))
