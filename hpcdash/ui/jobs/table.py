"""Jobs: one's own or everyone's, arrays folded, and why each waits."""

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
from hpcdash.ui.jobs.outlook import MIN_ROWS, JobsOutlook, is_startable
from hpcdash.ui.jobs.overview import JobOverview
from hpcdash.ui.notes import COLUMNS, pinned_first, session_notes, with_notes
from hpcdash.ui.table_view import TableView
from hpcdash.ui.view import Targets, row_ranks
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.table import RowsTable
from hpcdash.ui.widgets.table_rows import Column, fitted
from hpcdash.ui.workers import start_worker

PLAIN, FOLDED, UNFOLDED, CHILD = range(4)
# No other column makes way for more of an id; the ranges of pending tasks are long.
_ID_CELLS = 12
# On a terminal this wide the overview is beside the table.
BESIDE_COLUMNS = 160
_OVERVIEW_SHARE, _MIN_SHARE, _MAX_SHARE, _SHARE_STEP = 45, 20, 80, 5
# Beside the table it has less, in percent.
_BESIDE_LESS = 8
# Height of a table with an outlook below: its rows, its heading and a blank line.
_MIN_TABLE_ROWS, _LINES_AROUND_ROWS = 5, 2
if TYPE_CHECKING:
    from hpcdash.services.state.notes import JobNotes
    from hpcdash.ui.jobs.losses import ShownLosses
    from hpcdash.ui.screen import DashboardScreen

# On a terminal this wide a bar stands for the used and the remaining time.
_WIDE_COLUMNS = 140
_USED_CELLS = 8
# … and a column shows the losses of one's own running jobs.
_LOSS_COLUMNS = 180
# … and no column has to make way for wide ones.
_ALL_COLUMNS = 200
_UNSORTED = frozenset({"_loss", "_letter"})


def where_cell(value: object, row: cells.RowContext) -> cells.Cell:
    """The nodes of a job that has some, why it waits, or how it ended."""
    state = row["state"]
    if row.get("_fold") in (FOLDED, UNFOLDED) and row.get("_states"):
        return cells.text_cell(row["_states"], row)
    if state in ACTIVE:
        if (
            row["node_list"] is None
            and row["array_id"] is not None
            and row["id"] == row["array_id"]
        ):
            # PBS's list of everyone's jobs has an array in one row: how many tasks run, not where.
            return f"{row['_tasks']} running"
        if row["reason"] and state == JobState.RUNNING:
            # One on a node that is down.
            return f"{row['node_list'] or ''} ({row['reason']})".strip(), cells.WARNING
        stands_still = state == JobState.SUSPENDED and row["reason"]
        return cells.text_cell(row["reason"] if stands_still else row["node_list"], row)
    if state in ENDED:
        return format_end(row), cells.MUTED
    return cells.text_cell(row["reason"], row) if row["reason"] else ""


def id_cell(
    value: str | None, row: cells.RowContext, ending: str = "", beginning: str = ""
) -> cells.Cell:
    """The id without `beginning` and `ending`, with what of an array it is: a folded one, an open
    one, a task of it.
    """
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
    """Time left until the limit ends a running job."""

    def left(value: datetime | None, row: cells.RowContext) -> cells.Cell:
        if value is None or row["state"] not in ACTIVE or row["state"] == JobState.COMPLETING:
            return "", cells.MUTED
        seconds = (value - now()).total_seconds()
        if seconds <= 0:
            return "over", cells.WARNING
        return format_duration(seconds), cells.WARNING if seconds < 600 else ""

    return left


def used_cell(now: Callable[[], datetime]) -> cells.CellFunction:
    """Bar of the used part of a job's time limit, and what is left; of a waiting job the estimate
    of its start.
    """
    left = left_cell(now)

    def used(value: int | None, row: cells.RowContext) -> cells.Cell:
        if row["state"] in WAITING:
            expected = row["_expected_start_at"] if is_startable(row["state"]) else None
            ahead = None if expected is None else (expected - now()).total_seconds()
            return ("", "") if not ahead or ahead <= 0 else (f"≈ in {format_age(ahead)}", "muted")
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
        # Share of the view for the overview, in percent.
        self._overview_share = min(max(overview_share, _MIN_SHARE), _MAX_SHARE)
        # Arrays that differ from the others: open ones while all are folded, closed ones while all
        # are open.
        self._exceptions: frozenset[str] = frozenset(folds)
        super().__init__(session, **{"sort": self.DEFAULT_SORT, **rest})
        # One that cannot be read any more is left out.
        self._has_stored_filter = (
            bool(stored_filter) and not self.filter_text and self.try_filter(stored_filter) is None
        )

    def on_mount(self) -> None:
        if self._has_stored_filter:
            text = f"Filter of the last session: {visible(self.filter_text)}. esc clears the filter"
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
    def _losses(self) -> ShownLosses:
        from hpcdash.ui.jobs.losses import ShownLosses

        return ShownLosses(self.session, self._patterns)

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
            "loss": lambda value, row: self._losses.cell(value, row),
        }

    def _where_cell(self, value: object, row: cells.RowContext) -> cells.Cell:
        """Format the nodes of a job, the reason it waits, or its end."""
        if row["state"] not in WAITING or row.get("_fold") in (FOLDED, UNFOLDED):
            return where_cell(value, row)
        eligible = row["eligible_at"]
        if text := self.session.store.backend.reasons.short(row):
            return text
        if ids := parse_dependency(row["dependency"]).job_ids:
            return f"after {', '.join(ids)}"
        if eligible is not None and eligible > self.now():
            return f"not before {cells.short_instant(eligible, self.now(), self.session.zone)}"
        return where_cell(value, row)

    def _letter_cell(self, value: object, row: cells.RowContext) -> cells.Cell:
        """The letter of a running job on the wall of slots."""
        letter = job_letters(self.session.store).letter(str(row["id"]))
        return (letter, letter_style(letter)) if row["state"] in ACTIVE else ""

    def _age_seconds(self) -> float:
        """Return the age of the shown data in seconds."""
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
        """The overview stands beside the table where that is wide, under it where it is high, or
        nowhere.
        """
        columns, lines = self.app.size
        is_beside = columns >= BESIDE_COLUMNS
        self.set_class(is_beside, "-beside")
        share = self._overview_share
        self.overview.styles.width, self.overview.styles.height = (
            (f"{share - _BESIDE_LESS}%", "100%") if is_beside else ("100%", f"{share}%")
        )
        self.overview.display = (
            self._shows_overview and columns >= MIN_COLUMNS and lines >= MIN_LINES
        )
        if self.overview.has_focus_within and not self.overview.display:
            self.take_focus()
        self._point_overview()
        self._show_outlook()
        self.post_message(self.CrumbsChanged())

    def _show_outlook(self) -> None:
        """Fill the lines that the table leaves, beside the overview or without it.

        What a filter hides leaves no room: the rows would move while it is typed.
        """
        if self.filter_text:
            return
        is_beside = self.overview.display and self.has_class("-beside")
        taken = 0 if is_beside or not self.overview.display else self.overview.outer_size.height
        columns = self.size.width - (self.overview.outer_size.width if is_beside else 0)
        rows = max(self.rows.row_count, _MIN_TABLE_ROWS) + _LINES_AROUND_ROWS
        least = MIN_ROWS + _LINES_AROUND_ROWS
        lines = self.size.height - taken - max(rows, least) if self.spec is JOBS else 0
        outlook = self.query_one(JobsOutlook)
        outlook.show(self.session.store.table(Kind.MINE), lines, columns - 2)
        # Below a few rows follows what comes next, and not a gap.
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
        """The chosen ones; the user is left out by itself where all jobs are one's own."""
        columns = super().columns()
        if self.column_names == self.spec.shown:
            stored = self._notes.load()
            known = self.catalogue
            columns[1:1] = [known["pinned"]] if stored.pinned else []
            has_letters = "letter" in known and job_letters(self.session.store).is_used
            columns[:0] = [known["letter"]] if has_letters else []
            at = next(at for at, column in enumerate(columns) if column.key == "name") + 1
            columns[at:at] = [known["note"]] if stored.notes else []
            if not self.everyone:
                columns = [column for column in columns if column.key != "user"]
            if "used" in known and self.app.size.width >= _WIDE_COLUMNS:
                at = next(
                    at for at, column in enumerate(columns) if column.key == "elapsed_seconds"
                )
                columns = [one for one in columns if one.key not in ("elapsed_seconds", "ends_at")]
                columns[at:at] = [known["used"], *([known["loss"]] if self._shows_losses else [])]
                if self.app.size.width < _ALL_COLUMNS:
                    # The overview has them; names and reasons need the room.
                    columns = [one for one in columns if one.key not in self._minor_columns]
        return columns

    @property
    def _minor_columns(self) -> frozenset[str]:
        """Columns that say less than the others: nodes, and CPUs where a job has GPUs."""
        table = self.session.store.table(self.kind)
        has_gpus = table is not None and bool(pc.any(pc.greater(table["gpus"], 0)).as_py())
        return frozenset({"nodes", "cpus"} if has_gpus else {"nodes"})

    def sort_keys(self) -> list[str]:
        return [key for key in super().sort_keys() if key not in _UNSORTED]

    def _show(self, table: pa.Table, columns: Sequence[Column], counts: tuple[str, str]) -> None:
        super()._show(table, columns, counts)
        self._point_overview()
        self._show_outlook()
        if self._shows_losses and self._losses.is_due(self.kind, is_chosen=self._has_chosen_losses):
            # Once it is known how many rows there are room for.
            self.call_after_refresh(self._refresh_losses)

    @property
    def _has_chosen_losses(self) -> bool:
        return "loss" in self.column_names

    @property
    def _shows_losses(self) -> bool:
        """Whether the column of losses is chosen, or there is room for it."""
        has_room = self.app.size.width >= _LOSS_COLUMNS and self.column_names == self.spec.shown
        return self._has_chosen_losses or (has_room and self.spec is JOBS)

    def _refresh_losses(self) -> None:
        is_seen = self.is_live and self.display and self._shows_losses
        if is_seen and self._losses.is_due(self.kind, is_chosen=self._has_chosen_losses):
            start_worker(self, self._losses.refresh, self.rows, group="losses")

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
        # Cells that id_cell adds to an array's ID: a sign, brackets, the number of its tasks; to a
        # task's, its indent.
        folded = fitted(replace(column, key="array_id"), table, extra=7 - len(ending))
        indent_cells = 2
        if self._fold_all and not self._exceptions:
            indent_cells = 0
            # For an array in one row that row is shown, with the range of its tasks.
            counts = pc.value_counts(table["array_id"])
            alone = counts.field("values").filter(pc.equal(counts.field("counts"), 1))
            table = table.filter(
                pc.or_(pc.is_null(table["array_id"]), pc.is_in(table["array_id"], alone))
            )
        longest = max(
            folded.longest, fitted(column, table, extra=indent_cells - len(ending)).longest
        )
        return replace(column, width=min(longest, _ID_CELLS), longest=longest)

    def shaped(self, table: pa.Table, sort: tuple[str, bool] | None = None) -> pa.Table:
        return pinned_first(self._folded(table, sort), self._notes.load())

    def _folded(self, table: pa.Table, sort: tuple[str, bool] | None) -> pa.Table:
        if self._fold_all:
            return arrays.fold(table, self._exceptions, sort)
        if not self._exceptions:
            return arrays.fold(table, None, sort)
        known = frozenset(
            name for name in table["array_id"].unique().to_pylist() if name is not None
        )
        return arrays.fold(table, known - self._exceptions, sort)

    def placeholder(self) -> str:
        return (
            "The queue is empty. n submits a job"
            if self.everyone or not self.whose(everyone=False)
            else "You have no jobs. n submits one, m shows everyone's"
        )

    def scope_crumbs(self) -> Sequence[str]:
        return ("jobs", *self.whose(everyone=self.everyone))

    def row_hint(self, row: Mapping[str, Any]) -> str:
        note = row.get("note")
        return job_hint(self.session, row, self.now()) + (f"  ·  note: {note}" if note else "")

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        if row.get("_fold") in (FOLDED, UNFOLDED):
            self._toggle(str(row["array_id"]))
        else:
            self.post_message(self.Requested("job", job_id=str(row["id"])))

    def _toggle(self, array_id: str) -> None:
        self._exceptions = self._exceptions ^ {array_id}
        self.reload()

    def do_fold(self) -> None:
        """Fold or unfold all arrays; enter does it for one.

        The cursor of a task that folds goes to its array.
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
        """Left to the handlers of jobs, which offer what there is of one."""
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
        """Marked rows, shown or not; of a folded array all of it, or where a filter hides some,
        those that match.
        """
        table = self.source()
        requested = self.rows.marked or {
            row_id for row_id in (self.rows.cursor_id,) if row_id is not None
        }
        if table is None or not requested:
            return Targets()
        arrays_shown = {
            row_id.removesuffix("[]"): row_id for row_id in requested if row_id.endswith("[]")
        }
        is_selected = pc.or_(
            _is_one_of(table["id"], requested), _is_one_of(table["array_id"], arrays_shown)
        )
        selected = table.filter(pc.fill_null(is_selected, False))
        # Rows of arrays that a filter hides, where it shows some of the same array.
        shown = set(self.matched(selected)["id"].to_pylist())
        partly = {
            row["array_id"]
            for row in selected.select(["id", "array_id"]).to_pylist()
            if row["id"] in shown
        }
        whole: dict[str, bool] = {}
        rows: list[dict[str, Any]] = []
        found: set[str] = set()
        for row in selected.to_pylist():
            found.add(row["id"])
            array_id = row["array_id"]
            if row["id"] in requested or array_id not in arrays_shown:
                rows.append(row)
                continue
            found.add(arrays_shown[array_id])
            is_hidden = row["id"] not in shown and array_id in partly
            whole[array_id] = whole.get(array_id, True) and not is_hidden
            if not is_hidden:
                rows.append(row)
        ids = [row["array_id"] if whole.get(row["array_id"]) else row["id"] for row in rows]
        missing = sorted(row_id.removesuffix("[]") for row_id in requested - found)
        return Targets(tuple(dict.fromkeys(ids)), tuple(rows), tuple(missing))

    def reload(self) -> None:
        super().reload()
        # A job that left the list cannot be acted on: its mark would take the next key all the
        # same.
        if self.is_live and self.rows.marked and self.source() is not None:
            gone = self.targets().missing
            self.rows.unmark(mark for job_id in gone for mark in (job_id, f"{job_id}[]"))

    def store_changed(self, changed: Changed) -> None:
        if changed.kind in (None, self.kind, Kind.MINE):
            self.reload()


def _is_one_of(column: pa.ChunkedArray, names: Iterable[str]) -> pa.ChunkedArray:
    return pc.is_in(column, value_set=pa.array(list(names), column.type))


def zero_is_blank(value: int | None, row: cells.RowContext) -> cells.Cell:
    """A count where none is the usual case."""
    return ("", cells.MUTED) if value == 0 else cells.count_cell(value, row)


def job_hint(
    session: ClusterSession, row: Mapping[str, Any], now: datetime, *, names_policy: bool = True
) -> str:
    """One line on a job: why it waits and when it may start, or how it ended.

    `names_policy`: with the site's rule that it waits for.
    """
    backend = session.store.backend
    state = str(row["state"])
    reason = row["reason"]
    if row.get("_fold") in (FOLDED, UNFOLDED):
        opens = "shows" if row["_fold"] == FOLDED else "hides"
        return (
            f"array {row['array_id']} {row['name'] or ''}  ·  {row['_states']}  ·  enter "
            f"{opens} its tasks"
        )
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
