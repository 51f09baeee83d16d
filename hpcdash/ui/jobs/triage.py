"""Ended tasks of an array, or workers of a job, by state, exit and last lines; failures first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.impact import count_jobs, state_counts
from hpcdash.domain.job_ids import parse_array_id, with_tasks
from hpcdash.domain.job_text import format_exit, signal_name, state_word
from hpcdash.domain.states import JobState
from hpcdash.domain.tables import STATE_WIDTH, ColumnSpec, Kind, TableSpec
from hpcdash.domain.text import clip, counted, visible
from hpcdash.domain.triage import EndedTask, TaskGroup
from hpcdash.services.jobs.triage import Row, Triage, TriageReader
from hpcdash.services.session import ClusterSession
from hpcdash.ui.table_view import ReadTableView
from hpcdash.ui.view import Targets
from hpcdash.ui.widgets import cells

# A row is a group, or under an open group one task; `name` is the last line of its log.
TRIAGE = TableSpec(
    "triage",
    fields={
        "_id": "text",
        "id": "text",
        "tasks": "text",
        "state": "word",
        "exit_code": "count",
        "exit_signal": "count",
        "node": "text",
        "name": "text",
        "_tasks": "count",
        "_fold": "count",
        "_problem": "text",
    },
    columns=(
        ColumnSpec("state", STATE_WIDTH, 0),
        ColumnSpec("n", 4, 1, "_tasks"),
        ColumnSpec("tasks", 10, 0, flexible=True, longest=20),
        ColumnSpec("exit", 11, 2, "exit_code", align="left"),
        ColumnSpec("line", 30, 0, "name", "ERROR", flexible=True),
        ColumnSpec("nodes", 8, 3, "node", flexible=True, longest=18),
    ),
    shown=("state", "n", "tasks", "exit", "line", "nodes"),
)
FOLDED, OPEN, TASK = 1, 2, 3
_SHELL_SIGNAL = 128
_MAX_NODES = 3
_NAME_CELLS = 30


def tasks_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """`+ 3,7-9`, `- 3,7-9` of an open group, `    7` of a task in it."""
    if row["_fold"] == TASK:
        return f"    {value}"
    return f"{'+' if row['_fold'] == FOLDED else '-'} {value}", cells.STRONG


def exit_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """Return `exit 1`, `137 KILL`, `signal SEGV`; '' where the state suffices."""
    if row["state"] != JobState.FAILED:
        return ""
    number = row["exit_signal"]
    if number and signal_name(number):
        return f"signal {signal_name(number)}"
    if number:
        return f"signal {number}"
    if not value:
        return ""
    name = signal_name(value - _SHELL_SIGNAL) if value > _SHELL_SIGNAL else ""
    return f"{value} {name}" if name else f"exit {value}"


def line_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """Return the last line with text, or why there is none."""
    if value:
        return visible(value)
    if value == "":
        return "its log is empty", cells.MUTED
    return visible(row["_problem"] or ""), cells.MUTED


class TriageView(ReadTableView):
    """One array. It is read again when the lists show that one of its tasks is in another state."""

    SPEC = TRIAGE
    LISTS: ClassVar[frozenset[Kind | None]] = frozenset({None, Kind.MINE, Kind.EVERYONE})
    IDENTITY = "_id"

    reader: TriageReader

    def __init__(self, session: ClusterSession, *, job_id: str, **rest: Any) -> None:
        self.job_id = job_id
        self.reader = TriageReader(session.store, job_id, self._read_more)
        self._open: frozenset[str] = frozenset()
        self._members: dict[str, frozenset[str]] = {}
        super().__init__(session, **rest)

    # -- rows

    @property
    def triage(self) -> Triage | None:
        return self.reader.triage

    @property
    def array_id(self) -> str:
        return (
            self.triage.tasks.array_id if self.triage is not None else parse_array_id(self.job_id)
        )

    @property
    def are_workers(self) -> bool:
        """Whether the rows are workers of one job, and no jobs."""
        return self.triage is not None and self.triage.tasks.are_workers

    def source(self) -> pa.Table | None:
        if self.triage is None:
            return None
        return pa.Table.from_pylist(
            [self._group_row(group) for group in self.triage.groups], self.schema
        )

    def shaped(self, table: pa.Table, sort: tuple[str, bool] | None = None) -> pa.Table:
        """The groups with the tasks of those that are open below each."""
        table = super().shaped(table, sort)
        if self.triage is None or not self._open:
            return table
        by_id = {_group_id(group): group for group in self.triage.groups}
        rows: list[dict[str, Any]] = []
        for row in table.to_pylist():
            rows.append(row)
            if row["_fold"] == OPEN:
                rows += [_task_row(member) for member in by_id[row["_id"]].members]
        return pa.Table.from_pylist(rows, self.schema)

    def _group_row(self, group: TaskGroup) -> dict[str, Any]:
        row_id = _group_id(group)
        counted = [
            f"{name} {count}" if len(group.nodes) > 1 else name
            for name, count in group.nodes[:_MAX_NODES]
        ]
        more = f" +{len(group.nodes) - _MAX_NODES}" if len(group.nodes) > _MAX_NODES else ""
        return {
            "_id": row_id,
            "id": self.array_id,
            "tasks": str(group.tasks),
            "state": group.state,
            "exit_code": group.exit_code,
            "exit_signal": group.exit_signal,
            "node": " ".join(counted) + more,
            # Successful tasks need no text.
            "name": group.line if group.failed else None,
            "_tasks": group.count,
            "_fold": OPEN if row_id in self._open else FOLDED,
            "_problem": self._why_no_line(group),
        }

    def _why_no_line(self, group: TaskGroup) -> str:
        if not group.failed or group.line is not None:
            return ""
        if group.line_problem:
            return group.line_problem
        if self.reader.is_reading_logs:
            return "reading its log …"
        began = any(member.nodes for member in group.members)
        return "its log was not read" if began else "it never started"

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {"tasks": tasks_cell, "exit": exit_cell, "line": line_cell}

    # -- reading

    def on_mount(self) -> None:
        self.reload()
        self._states = self.states_in_lists()
        self.read()

    def states_in_lists(self) -> object:
        store = self.session.store
        seen: dict[str, str] = {}
        for kind in (Kind.MINE, Kind.EVERYONE):
            if kind in store.snapshots and (table := store.table(kind)) is not None:
                rows = table.filter(pc.fill_null(pc.equal(table["array_id"], self.array_id), False))
                for job_id, state in zip(
                    rows["id"].to_pylist(), rows["state"].to_pylist(), strict=True
                ):
                    seen.setdefault(job_id, state)
        return seen

    def _read_more(self) -> None:
        self._read_at = self.session.store.clock.now()
        self._open, marked = (
            self._as_grouped_now(self._open),
            self._as_grouped_now(self.rows.marked),
        )
        if marked != self.rows.marked:
            self.rows.clear_marks()
            self.rows.mark_all(marked)
        self._members = self._member_ids()
        self.reload()

    def _member_ids(self) -> dict[str, frozenset[str]]:
        groups = self.triage.groups if self.triage is not None else ()
        return {
            _group_id(group): frozenset(member.job_id for member in group.members)
            for group in groups
        }

    def _as_grouped_now(self, row_ids: frozenset[str]) -> frozenset[str]:
        """Rows that were groups before their logs were read: the groups that their tasks are in
        now.
        """
        now = self._member_ids()
        remaining = {row_id for row_id in row_ids if row_id in now or row_id not in self._members}
        moved = frozenset().union(*(self._members[row_id] for row_id in row_ids - remaining))
        return frozenset(remaining | {row_id for row_id, members in now.items() if members & moved})

    # -- text

    def placeholder(self) -> str:
        what = "worker of job" if self.are_workers else "task of array"
        return f"No {what} {visible(self.array_id)} has ended yet. ctrl+r refreshes"

    def _format_waiting(self) -> str:
        if self._error is None:
            return "loading …"
        return " ".join(part for part in (self._error.message, self._error.next_step) if part)

    def scope_crumbs(self) -> Sequence[str]:
        if self.triage is None:
            return ("triage", self.job_id)
        living = state_counts(self.triage.tasks.living)
        still = ", ".join(f"{count} {state_word(state)}" for state, count in living.items())
        name = f"{self.array_id} {clip(visible(self.triage.tasks.name), _NAME_CELLS)}".strip()
        return ("triage", name, *((f"still {still}",) if still else ()))

    def way_crumb(self) -> str:
        return f"triage {self.array_id}"

    def hint(self) -> str:
        parts = [*(self.triage.notes if self.triage is not None else ()), super().hint()]
        if self.is_live and (rows := self.rows_to_submit()):
            tasks = counted(count_jobs(rows), "task")
            which = f"{tasks} of this cause" if self._pointed_cause() else f"{tasks} that failed"
            parts.insert(0, f"R resubmits {f'the marked {tasks}' if self.rows.marked else which}")
        return "  ·  ".join(part for part in parts if part)

    def row_hint(self, row: Mapping[str, Any]) -> str:
        text = format_exit(row["state"], row["exit_code"], row["exit_signal"]) or state_word(
            row["state"]
        )
        if row["_fold"] == TASK:
            return "  ·  ".join(
                part for part in (f"{row['id']}: {text}", row["name"] or "") if part
            )
        group = self._group(row["_id"])
        kind = "worker" if self.are_workers else "task"
        parts = [f"{counted(group.count, kind)}: {text}"] if group is not None else []
        if group is not None and group.node:
            parts.insert(0, f"{group.on_node} of {group.count} on {group.node}: a bad node?")
        # The column may have cut it.
        if group is not None and group.failed and group.line:
            parts.append(group.line)
        return "  ·  ".join(parts)

    # -- selection

    def _group(self, row_id: str) -> TaskGroup | None:
        groups = self.triage.groups if self.triage is not None else ()
        return next((group for group in groups if _group_id(group) == row_id), None)

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        """A group's tasks are shown or hidden; a task is opened."""
        if row["_fold"] == TASK:
            self.post_message(
                self.Requested("job", job_id=self.array_id if self.are_workers else row["id"])
            )
            return
        self._open = self._open ^ {row_id}
        self.reload()

    def pointed_job(self) -> str | None:
        """Return the ID of the selected job; for a group, that of its first task."""
        row = self.rows.cursor_row if self.is_live else None
        if row is None:
            return self.job_id
        if self.are_workers:
            return self.array_id
        if row["_fold"] == TASK:
            return str(row["id"])
        group = self._group(row["_id"])
        return group.members[0].job_id if group is not None else self.job_id

    def targets(self) -> Targets:
        """The tasks of the marked rows, else of the row under the cursor; of workers their job."""
        if self.are_workers:
            return Targets((self.array_id,))
        row_id = self.rows.cursor_id
        rows = self._group_rows(self.rows.marked or ({row_id} if row_id is not None else set()))
        return Targets(tuple(str(row["id"]) for row in rows), rows)

    def rows_to_submit(self) -> tuple[Row, ...]:
        """The tasks of the marked rows; with none marked those of the cause, or the task, that is
        pointed at, else all that failed. Workers cannot be resubmitted.
        """
        if self.are_workers:
            return ()
        if requested := self.rows.marked or self._pointed_cause():
            return self._group_rows(requested)
        return self.triage.failed_rows if self.triage is not None else ()

    def _pointed_cause(self) -> frozenset[str]:
        """The row that the cursor was put on, where it stands for tasks that failed."""
        row_id = self.rows.cursor_id if self.rows.cursor_moves else None
        failed = {row["id"] for row in (self.triage.failed_rows if self.triage is not None else ())}
        is_failed = row_id is not None and any(
            row["id"] in failed for row in self._group_rows({row_id})
        )
        return frozenset({row_id}) if row_id is not None and is_failed else frozenset()

    def _group_rows(self, row_ids: frozenset[str] | set[str]) -> tuple[Row, ...]:
        if self.triage is None:
            return ()
        requested = {
            member.job_id
            for group in self.triage.groups
            for member in group.members
            if _group_id(group) in row_ids or member.job_id in row_ids
        }
        return tuple(row for row in self.triage.tasks.ended if row["id"] in requested)

    def do_mark_failed(self) -> None:
        """Mark the groups that failed; once more, none."""
        groups = self.triage.groups if self.triage is not None else ()
        failed = {_group_id(group) for group in groups if group.failed}
        if not failed:
            self.notify("no task failed", timeout=3)
        elif failed <= self.rows.marked:
            self.rows.clear_marks()
        else:
            self.rows.mark_all(failed)

    def do_copy(self) -> None:
        """Copy the tasks and their last line."""
        row = self.rows.cursor_row
        if row is not None:
            text = (
                f"{with_tasks(self.array_id, parse_tasks(row['tasks']))} {row['name'] or ''}"
            ).strip()
            self.app.copy_to_clipboard(text)
            self.notify(f"copied {visible(text[:60])}", markup=False)


def _group_id(group: TaskGroup) -> str:
    return f"group {group.key}"


def _task_row(member: EndedTask) -> dict[str, Any]:
    return {
        "_id": member.job_id,
        "id": member.job_id,
        "tasks": str(member.tasks),
        "state": member.state,
        "exit_code": member.exit_code,
        "exit_signal": member.exit_signal,
        "node": " ".join(member.nodes),
        "name": member.line,
        "_tasks": member.tasks.count,
        "_fold": TASK,
        "_problem": member.line_problem,
    }
