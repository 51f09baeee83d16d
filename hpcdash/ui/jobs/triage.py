"""Finished tasks of an array, or workers of a job, by state, exit and last line; failures first."""

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

# A row is a group, or a task below an open group; `name` is the last line of its log.
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
FOLDED, OPEN, TASK = range(1, 4)
_SHELL_SIGNAL = 128
_MAX_NODES = 3
_NAME_CELLS = 30


def tasks_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """Format `+ 3,7-9` for a folded group, `- 3,7-9` for an open one, `    7` for a task."""
    if row["_fold"] == TASK:
        return f"    {value}"
    return f"{'+' if row['_fold'] == FOLDED else '-'} {value}", cells.STRONG


def exit_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """Format `exit 1`, `137 KILL`, `signal SEGV`; '' if the state suffices."""
    if row["state"] != JobState.FAILED:
        return ""
    if number := row["exit_signal"]:
        return f"signal {signal_name(number) or number}"
    if not value:
        return ""
    name = signal_name(value - _SHELL_SIGNAL) if value > _SHELL_SIGNAL else ""
    return f"{value} {name}" if name else f"exit {value}"


def line_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """Format the last line with text, or the reason that there is none."""
    if value:
        return visible(value)
    if value == "":
        return "log is empty", cells.MUTED
    return visible(row["_problem"] or ""), cells.MUTED


class TriageView(ReadTableView):
    """Triage of an array, read again when the state of a task changes in the lists."""

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
        """Whether the rows are workers of a job instead of tasks."""
        return self.triage is not None and self.triage.tasks.are_workers

    def source(self) -> pa.Table | None:
        if self.triage is None:
            return None
        return pa.Table.from_pylist(
            [self._group_row(group) for group in self.triage.groups], self.schema
        )

    def shaped(self, table: pa.Table, sort: tuple[str, bool] | None = None) -> pa.Table:
        """Sort the groups, and add the tasks below each open group."""
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
        if len(group.nodes) == 1:
            [(nodes, _)] = group.nodes
        else:
            nodes = " ".join(f"{name} {count}" for name, count in group.nodes[:_MAX_NODES])
        if (more := len(group.nodes) - _MAX_NODES) > 0:
            nodes += f" +{more}"
        return {
            "_id": row_id,
            "id": self.array_id,
            "tasks": str(group.tasks),
            "state": group.state,
            "exit_code": group.exit_code,
            "exit_signal": group.exit_signal,
            "node": nodes,
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
            return "reading log …"
        began = any(member.nodes for member in group.members)
        return "log not read" if began else "never started"

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
        self._open = self._regrouped(self._open)
        marked = self._regrouped(self.rows.marked)
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

    def _regrouped(self, row_ids: frozenset[str]) -> frozenset[str]:
        """Replace groups that no longer exist by the present groups of their tasks."""
        groups = self._member_ids()
        remaining = {
            row_id for row_id in row_ids if row_id in groups or row_id not in self._members
        }
        moved: set[str] = set()
        for row_id in row_ids - remaining:
            moved |= self._members[row_id]
        remaining |= {row_id for row_id, members in groups.items() if members & moved}
        return frozenset(remaining)

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
        parts = []
        if self.is_live and (rows := self.rows_to_submit()):
            tasks = counted(count_jobs(rows), "task")
            if self.rows.marked:
                tasks = f"the marked {tasks}"
            elif self._pointed_cause():
                tasks = f"{tasks} with this cause"
            else:
                tasks = f"{tasks} that failed"
            parts.append(f"R resubmits {tasks}")
        if self.triage is not None:
            parts += self.triage.notes
        parts.append(super().hint())
        return "  ·  ".join(part for part in parts if part)

    def row_hint(self, row: Mapping[str, Any]) -> str:
        ending = format_exit(row["state"], row["exit_code"], row["exit_signal"])
        text = ending or state_word(row["state"])
        if row["_fold"] == TASK:
            text = f"{row['id']}: {text}"
            return f"{text}  ·  {row['name']}" if row["name"] else text
        group = self._group(row["_id"])
        if group is None:
            return ""
        parts = []
        if group.node:
            parts.append(f"{group.on_node} of {group.count} on {group.node}: a bad node?")
        parts.append(f"{counted(group.count, 'worker' if self.are_workers else 'task')}: {text}")
        # The column may have cut the line.
        if group.failed and group.line:
            parts.append(group.line)
        return "  ·  ".join(parts)

    # -- selection

    def _group(self, row_id: str) -> TaskGroup | None:
        groups = self.triage.groups if self.triage is not None else ()
        return next((group for group in groups if _group_id(group) == row_id), None)

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        """Show or hide the tasks of a group; open a task."""
        if row["_fold"] == TASK:
            job_id = self.array_id if self.are_workers else row["id"]
            self.post_message(self.Requested("job", job_id=job_id))
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
        """Return the tasks of the marked rows, else of the selected row; for workers, their job."""
        if self.are_workers:
            return Targets((self.array_id,))
        row_id = self.rows.cursor_id
        rows = self._group_rows(self.rows.marked or ({row_id} if row_id is not None else set()))
        return Targets(tuple(str(row["id"]) for row in rows), rows)

    def rows_to_submit(self) -> tuple[Row, ...]:
        """Return the tasks of the marked rows, else of the failed row under the cursor, else all
        failed tasks. Workers cannot be resubmitted.
        """
        if self.are_workers:
            return ()
        if requested := self.rows.marked or self._pointed_cause():
            return self._group_rows(requested)
        return self.triage.failed_rows if self.triage is not None else ()

    def _pointed_cause(self) -> frozenset[str]:
        """Return the ID of the failed row that the user moved the cursor to, if any."""
        row_id = self.rows.cursor_id if self.rows.cursor_moves else None
        if self.triage is None or row_id is None:
            return frozenset()
        failed = {row["id"] for row in self.triage.failed_rows}
        is_failed = any(row["id"] in failed for row in self._group_rows({row_id}))
        return frozenset({row_id}) if is_failed else frozenset()

    def _group_rows(self, row_ids: frozenset[str] | set[str]) -> tuple[Row, ...]:
        if self.triage is None:
            return ()
        requested = set(row_ids)
        for group in self.triage.groups:
            if _group_id(group) in row_ids:
                requested.update(member.job_id for member in group.members)
        return tuple(row for row in self.triage.tasks.ended if row["id"] in requested)

    def do_mark_failed(self) -> None:
        """Mark the failed groups; unmark them if they are marked."""
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
            tasks = with_tasks(self.array_id, parse_tasks(row["tasks"]))
            text = f"{tasks} {row['name'] or ''}".strip()
            self.app.copy_to_clipboard(text)
            self.notify(f"copied {visible(text[:60])}")


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
