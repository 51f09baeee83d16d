"""A shared pool: its use, quotas, running and waiting tasks, and interruptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import pyarrow as pa
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from hpcdash.domain.share import EVERYONE
from hpcdash.domain.states import JobState
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, visible
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.session import ClusterSession
from hpcdash.services.share import text
from hpcdash.services.share.state import Pool, PoolReader, Task
from hpcdash.services.share.table import POOL_TASKS, task_table
from hpcdash.ui.dialogs import TextDialog
from hpcdash.ui.table_view import ReadTableView
from hpcdash.ui.themes import style_name
from hpcdash.ui.view import FRAMED_LINES
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.cells import signs
from hpcdash.ui.widgets.lines import PlainStatic

_NO_POOLS = "No shared pool. [share.NAME] in the configuration defines one: hpcdash config example"
_NO_TASKS = "No tasks. n submits a request; set its priority under share"
# Job states whose signs and colours a task's state has.
_JOB_STATES = {
    "waiting": JobState.PENDING,
    "starting": JobState.PENDING,
    "running": JobState.RUNNING,
    "suspending": JobState.COMPLETING,
    "paused": JobState.HELD,
    "succeeded": JobState.COMPLETED,
    "failed": JobState.FAILED,
    "refused": JobState.FAILED,
    "stopped": JobState.CANCELLED,
}
_BAR_CELLS = 20
_QUOTA_BAR_CELLS = 6
_WIDE_CELLS = 90
_MAX_INTERRUPTIONS = 500


def state_sign(state: str) -> str:
    return signs().states.get(_JOB_STATES.get(state, JobState.UNKNOWN), "?")


def state_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    state = value or "unknown"
    style = style_name(_JOB_STATES.get(state, JobState.UNKNOWN))
    return f"{state_sign(state)} {visible(state)}", style


def count_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """Return a count, and no text for 0."""
    return str(value) if value else ""


def labels_cell(value: list[str] | None, row: cells.RowContext) -> cells.Cell:
    return visible(", ".join(value or ()))


class ShareView(ReadTableView):
    """One pool of the cluster.

    While shown, its published state is read at the interval of the user's own jobs.
    """

    SPEC = POOL_TASKS
    HAS_DETAIL = False
    IDENTITY = "id"
    DEFAULT_CSS = """
    ShareView > .about { height: auto; }
    ShareView > .about > PlainStatic { width: 1fr; height: auto; padding: 0 1; }
    ShareView > .about > .silent { color: $text-warning; }
    """

    def __init__(self, session: ClusterSession, **rest: Any) -> None:
        self._readers = [PoolReader(session.store, pool) for pool in session.pools]
        self._index = 0
        self._queried_at = 0.0
        super().__init__(session, **rest)

    def compose(self) -> ComposeResult:
        with Vertical(id="pool", classes="about"):
            yield PlainStatic(classes="use")
            yield PlainStatic(classes="quotas")
            yield PlainStatic(classes="silent")
        yield from super().compose()
        with Vertical(id="interrupted", classes="about") as interrupted:
            interrupted.border_title = Content("Interrupted")
            yield PlainStatic(classes="past")

    # -- published state

    @property
    def reader(self) -> PoolReader:  # type: ignore[override]
        return self._readers[self._index]

    @property
    def pool(self) -> Pool | None:
        return self.reader.state if self._readers else None

    def pointed_task(self) -> Task | None:
        """Return the task under the cursor."""
        job_id = self.pointed_job()
        return None if self.pool is None or job_id is None else self.pool.task(job_id)

    def chosen_tasks(self) -> list[Task]:
        """Return the marked tasks in their order of submission, or the task under the cursor."""
        pool = self.pool
        pointed = self.pointed_task()
        if pool is None or not self.marks():
            return [] if pointed is None else [pointed]
        return [task for task in pool.tasks if task.id in self.rows.marked]

    def states_in_lists(self) -> object:
        return None

    def store_changed(self, changed: Changed) -> None:
        """Do nothing: the pool's state comes from its coordinator, not from jobs."""

    def taken_at(self) -> float | None:
        return None if self.pool is None else self.pool.taken_at.timestamp()

    def on_mount(self) -> None:
        self.reload()
        self.read()

    def shown(self) -> None:
        super().shown()
        self.read()

    def tick(self) -> None:
        poller = self.session.poller
        wait = poller.pace.seconds[Kind.MINE] * (
            1.0 if poller.focused else poller.pace.unfocused_factor
        )
        now = self.session.store.clock.now()
        if self.is_live and self.screen.is_current and not 0 <= now - self._queried_at < wait:
            self.read()

    def read(self) -> None:
        if self._readers:
            self._queried_at = self.session.store.clock.now()
            super().read()

    def show_read(self) -> None:
        self.reload()
        self._show_about()

    def do_next_pool(self) -> None:
        """Show the next pool of the configuration."""
        if len(self._readers) < 2:
            self.notify("no other pool", timeout=3)
            return
        self._index = (self._index + 1) % len(self._readers)
        self._error = None
        self.show_read()
        self.read()

    # -- table

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {
            "state": state_cell,
            "demotion": self._demotion_cell,
            "labels": labels_cell,
            "suspended": count_cell,
        }

    def _demotion_cell(self, value: object, row: cells.RowContext) -> cells.Cell:
        pool = self.pool
        task = None if pool is None else pool.task(str(row["id"]))
        return "" if task is None else text.format_demotion(task, self.now())

    def source(self) -> pa.Table | None:
        pool = self.pool
        if pool is None:
            return None if self._readers else self.schema.empty_table()
        return task_table(pool.tasks)

    def counts(self) -> tuple[str, str]:
        pool = self.pool
        if pool is None:
            return "", ""
        counter = Counter(task.state for task in pool.tasks)
        shown = [state for state in _JOB_STATES if counter[state]]
        return (
            " ".join(f"{state_sign(state)}{counter[state]} {state}" for state in shown),
            " ".join(f"{state_sign(state)}{counter[state]}" for state in shown),
        )

    def placeholder(self) -> str:
        return _NO_TASKS if self._readers else _NO_POOLS

    def _format_waiting(self) -> str:
        if self._error is None:
            return "loading …"
        return " ".join(
            visible(part) for part in (self._error.message, self._error.next_step) if part
        )

    @property
    def own_error(self) -> HpcdashError | None:
        # If nothing is known, the table shows so.
        return self._error if self.pool is not None else None

    # -- lines above and below the table

    def on_resize(self) -> None:
        self.query(".about").set_class(self._is_framed, "panel")
        self._show_about()

    @property
    def _is_framed(self) -> bool:
        return self.app.size.height >= FRAMED_LINES

    def _show_about(self) -> None:
        if not self.is_live:
            return
        pool = self.pool
        self.query_one("#pool").display = pool is not None
        below = self.query_one("#interrupted")
        if pool is None:
            below.display = False
            return
        width = max(30, self.size.width - 4)
        title = f"Pool {visible(pool.pool)}"
        if len(self._readers) > 1:
            title += f" ({self._index + 1} of {len(self._readers)})"
        self.query_one("#pool", Vertical).border_title = Content(title)
        self.query_one(".use", PlainStatic).update(self._format_use(pool, width))
        self.query_one(".quotas", PlainStatic).update(
            Content("\n").join(self._format_quotas(pool, width))
        )
        warnings = (text.format_silence(pool, self.now()), text.format_foreign_jobs(pool))
        message = "\n".join(filter(None, warnings))
        silence = self.query_one(".silent", PlainStatic)
        silence.display = bool(message)
        silence.update(message)
        # A third of the lines below the first ones.
        max_lines = (self.app.size.height - FRAMED_LINES) // 3 + 2 if self._is_framed else 0
        interruptions = islice(self._format_interruptions(pool), max_lines)
        lines = [clip(line, width) for line in interruptions]
        below.display = bool(lines)
        self.query_one(".past", PlainStatic).update("\n".join(lines))

    def _format_use(self, pool: Pool, width: int) -> Content:
        """Format the use of the pool with a bar, and the next task."""
        name = "" if self._is_framed else f"{visible(pool.pool)} "
        size = _BAR_CELLS if width >= _WIDE_CELLS else _BAR_CELLS // 2
        bar = _bar(pool.nodes_used / pool.nodes if pool.nodes else 1.0, size)
        message = text.format_use(pool)
        for task in pool.tasks:
            if task.place == 1:
                message += f"   next: {text.format_task(task)}"
        message = clip(message, max(10, width - size - len(name) - 1))
        return Content.assemble((name, "bold"), bar, " ", message)

    def _format_quotas(self, pool: Pool, width: int) -> Iterator[Content]:
        """Yield a line with the user's own quotas, then lines of others, as many as fit."""
        levels = text.quota_levels(pool)
        if not levels:
            yield Content.styled("no quotas: this pool runs no tasks", "$text-warning")
            return
        max_users = 1
        if self._is_framed:
            max_users = (self.app.size.height - FRAMED_LINES) // 4 + 2
        users = text.quota_users(pool, self.session.store.user or "")[:max_users]
        names = {user: "everyone" if user == EVERYONE else visible(user) for user in users}
        name_width = min(16, max(map(len, names.values())))
        has_bars = name_width + sum(_QUOTA_BAR_CELLS + 10 + len(level) for level in levels) <= width
        for user, name in names.items():
            parts = [Content.styled(f"{clip(name, name_width):<{name_width}}", "$table-dim")]
            left = width - name_width
            for level in levels:
                quota = text.format_quota(pool, user, level)
                used, _, total = quota.partition("/")
                quota = quota or signs().missing
                bar = Content("")
                if has_bars:
                    # The columns of all users are aligned.
                    quota = f"{quota:<5}"
                    bar = Content(" " * (_QUOTA_BAR_CELLS + 1))
                    if total and int(total) > 0:
                        bar = Content.assemble(_bar(int(used) / int(total), _QUOTA_BAR_CELLS), " ")
                left -= 4 + len(level) + bar.cell_length + len(quota)
                if left < 0:
                    parts.append(Content(" …"))
                    break
                parts.append(Content.assemble("   ", (f"{level} ", "$table-dim"), bar, quota))
            yield Content("").join(parts)

    def _format_time(self, time: datetime | None) -> str:
        if time is None:
            return signs().missing
        return cells.short_instant(time, self.now(), self.session.zone)

    def _format_interruptions(self, pool: Pool) -> Iterator[str]:
        for task, run, ended_at in pool.interruptions()[:_MAX_INTERRUPTIONS]:
            yield f"{self._format_time(ended_at):>10}  {text.format_interruption(task, run)}"

    def do_interruptions(self) -> None:
        """Show the runs of the selected task, and all interruptions."""
        pool = self.pool
        task = self.pointed_task()
        lines = [] if pool is None else list(self._format_interruptions(pool))
        lines = lines or ["No task was interrupted."]
        title = "Interrupted"
        if task is not None and task.runs:
            lines = [*self._format_runs(task), "", title, *lines]
            title = f"Runs of {text.format_task(task)}"
        self.app.push_screen(TextDialog(title, Text("\n".join(lines))))

    def _format_runs(self, task: Task) -> Iterator[str]:
        """Format the runs of a task, the newest first: `1  17:46 to 17:47  NORMAL  saved`."""
        for run in reversed(task.runs):
            time = self._format_time(run.started_at)
            if run.ended_at is not None or run.how:
                time += f" to {self._format_time(run.ended_at)}"
            how = f"  {text.HOW.get(run.how, visible(run.how))}" if run.how else ""
            yield f"{run.run:>4}  {time}  {run.level}{how}"

    # -- text

    def scope_crumbs(self) -> Sequence[str]:
        return ("share", *((visible(self.reader.pool.name),) if self._readers else ()))

    def row_hint(self, row: Mapping[str, Any]) -> str:
        task = self.pointed_task()
        if task is None:
            return ""
        parts = [visible(task.why)]
        if started := [run for run in task.runs if run.started_at is not None]:
            last = started[-1]
            parts.append(f"run {last.run} started {self._format_time(last.started_at)}")
        if task.suspended:
            times = f"{task.suspended} times" if task.suspended > 1 else "once"
            parts.append(f"suspended {times}")
        return "  ·  ".join(filter(None, parts))

    # -- job of a task

    def do_detail(self) -> None:
        if (job_id := self.pointed_job()) is not None:
            self.post_message(self.Requested("job", job_id=job_id, shows_record=True))

    def pointed_job(self) -> str | None:
        return self.rows.cursor_id if self.is_live else None

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        self.post_message(self.Requested("job", job_id=row_id))


def _bar(fraction: float, size: int) -> Content:
    styles = {
        cells.ACCENT: "$text-accent" if fraction < 1 else "$text-warning",
        cells.MUTED: "$text-muted",
    }
    pieces = cells.usage_bar(min(max(fraction, 0.0), 1.0), size)
    return Content.assemble(*((text, styles[style]) for text, style in pieces))
