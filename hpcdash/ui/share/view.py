"""A shared pool: how full it is, quotas, who runs, who waits and why, whose turn is next, who was
interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

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

_NO_POOLS = "No shared pool. [share.NAME] in the configuration defines one: hpcdash config example"
_NO_TASKS = "No tasks. n submits a request with a priority under share"
# The signs and colours of the job states that come nearest.
_LIKE = {
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
_ORDER = tuple(_LIKE)
_BAR_CELLS, _QUOTA_CELLS, _WIDE = 20, 6, 90
_MAX_TOLD = 500


def state_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    state = _LIKE.get(value or "", JobState.UNKNOWN)
    return f"{signs().states.get(state, '?')} {visible(value or 'unknown')}", style_name(state)


def count_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """A count that is of interest where it is not 0."""
    return str(value) if value else ""


def labels_cell(value: list[str] | None, row: cells.RowContext) -> cells.Cell:
    return visible(", ".join(value or ()))


class ShareView(ReadTableView):
    """One pool of the cluster.

    While shown, its coordinator's file is read at the interval of one's own jobs.
    """

    SPEC = POOL_TASKS
    HAS_DETAIL = False
    IDENTITY = "id"
    DEFAULT_CSS = """
    ShareView > .about { height: auto; }
    ShareView > .about > Static { width: 1fr; height: auto; padding: 0 1; }
    ShareView > .about > .silent { color: $text-warning; }
    """

    def __init__(self, session: ClusterSession, **rest: Any) -> None:
        self._readers = [PoolReader(session.store, pool) for pool in session.pools]
        self._at = 0
        self._queried_at = 0.0
        super().__init__(session, **rest)

    def compose(self) -> ComposeResult:
        with Vertical(id="pool", classes="about"):
            yield Static("", classes="use", markup=False)
            yield Static("", classes="quotas", markup=False)
            yield Static("", classes="silent", markup=False)
        yield from super().compose()
        with Vertical(id="interrupted", classes="about") as interrupted:
            interrupted.border_title = Content("Interrupted")
            yield Static("", classes="past", markup=False)

    # -- published state

    @property
    def reader(self) -> PoolReader:  # type: ignore[override]
        return self._readers[self._at]

    @property
    def pool(self) -> Pool | None:
        return self.reader.state if self._readers else None

    def pointed_task(self) -> Task | None:
        """The task that is pointed at."""
        row_id = self.rows.cursor_id if self.is_live else None
        return None if self.pool is None or row_id is None else self.pool.task(row_id)

    def chosen_tasks(self) -> list[Task]:
        """The marked tasks in the order in which they came, else the one that is pointed at."""
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
        """The next pool of the configuration."""
        if len(self._readers) < 2:
            self.notify("no other pool", timeout=3)
            return
        self._at = (self._at + 1) % len(self._readers)
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
        numbers = [(state, sum(task.state == state for task in pool.tasks)) for state in _ORDER]
        reported = [
            (signs().states.get(_LIKE[state], "?"), count, state)
            for state, count in numbers
            if count
        ]
        return " ".join(f"{sign}{count} {state}" for sign, count, state in reported), " ".join(
            f"{sign}{count}" for sign, count, _ in reported
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
        for part in self.query(".about"):
            part.set_class(self.app.size.height >= FRAMED_LINES, "panel")
        self._show_about()

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
        title = f"Pool {visible(pool.pool)}" + (
            f" ({self._at + 1} of {len(self._readers)})" if self._more else ""
        )
        self.query_one("#pool", Vertical).border_title = Content(title)
        self.query_one(".use", Static).update(self._use(pool, width))
        self.query_one(".quotas", Static).update(Content("\n").join(self._quotas(pool, width)))
        silence = self.query_one(".silent", Static)
        message = "\n".join(
            filter(None, (text.format_silence(pool, self.now()), text.format_outsiders(pool)))
        )
        silence.display = bool(message)
        silence.update(message)
        # A third of what is free below the first lines.
        lines = (
            max(0, (self.app.size.height - FRAMED_LINES) // 3 + 2)
            if self.app.size.height >= FRAMED_LINES
            else 0
        )
        past = list(self._past(pool))[:lines]
        below.display = bool(past)
        self.query_one(".past", Static).update("\n".join(clip(one, width) for one in past))

    @property
    def _more(self) -> bool:
        return len(self._readers) > 1

    def _use(self, pool: Pool, width: int) -> Content:
        """The pool's gauge, and whose turn is next."""
        name = "" if self.app.size.height >= FRAMED_LINES else f"{visible(pool.pool)} "
        size = _BAR_CELLS if width >= _WIDE else _BAR_CELLS // 2
        bar = _bar(pool.nodes_used / pool.nodes if pool.nodes else 1.0, size)
        message = text.format_use(pool)
        following = next((task for task in pool.tasks if task.place == 1), None)
        after = f"   next: {text.format_task(following)}" if following is not None else ""
        reported = clip(f"{message}{after}", max(10, width - size - len(name) - 1))
        return Content.assemble((name, "bold"), bar, " ", reported)

    def _quotas(self, pool: Pool, width: int) -> Iterator[Content]:
        """One's own quotas on a line with gauges, then those of others, as many as there is room
        for.
        """
        users = text.quota_users(pool, self.session.store.user or "")
        levels = text.quota_levels(pool)
        if not levels:
            yield Content.styled("no quota: this pool does not run tasks", "$text-warning")
            return
        tall = self.app.size.height
        most = 1 if tall < FRAMED_LINES else max(2, (tall - FRAMED_LINES) // 4 + 2)
        names = {user: "everyone" if user == EVERYONE else visible(user) for user in users}
        shown = users[:most] if users else []
        label = min(16, max(len(names[user]) for user in shown))
        has_bars = label + sum(_QUOTA_CELLS + 10 + len(level) for level in levels) <= width
        for user in shown:
            parts = [Content.styled(f"{clip(names[user], label):<{label}}", "$table-dim")]
            left = width - label
            for level in levels:
                quota = text.format_quota(pool, user, level)
                taken, _, total = quota.partition("/")
                quota = quota or signs().missing
                bar = Content("")
                if has_bars:
                    # Tasks of one priority are listed together.
                    quota = f"{quota:<5}"
                    has_quota = bool(total) and int(total) > 0
                    bar = (
                        _bar(int(taken) / int(total), _QUOTA_CELLS)
                        if has_quota
                        else Content(" " * _QUOTA_CELLS)
                    )
                    bar = Content.assemble(bar, " ")
                left -= 4 + len(level) + len(quota) + (_QUOTA_CELLS + 1 if has_bars else 0)
                if left < 0:
                    parts.append(Content(" …"))
                    break
                parts.append(Content.assemble("   ", (f"{level} ", "$table-dim"), bar, quota))
            yield Content("").join(parts)

    def _past(self, pool: Pool) -> Iterator[str]:
        for task, run in pool.interruptions()[:_MAX_TOLD]:
            at = cells.short_instant(
                run.ended_at or task.submitted_at, self.now(), self.session.zone
            )
            yield f"{at:>10}  {text.format_interruption(task, run)}"

    def do_interruptions(self) -> None:
        """Show the runs of the selected task, and all interruptions with their time and saving."""
        pool = self.pool
        task = self.pointed_task()
        lines = [] if pool is None else list(self._past(pool))
        lines = lines or ["No task was interrupted."]
        title = "Interrupted"
        if task is not None and task.runs:
            lines = [*self._runs(task), "", title, *lines]
            title = f"Runs of {text.format_task(task)}"
        self.app.push_screen(TextDialog(title, Text("\n".join(lines))))

    def _runs(self, task: Task) -> Iterator[str]:
        """`1  17:46 to 17:47  NORMAL  saved`, the newest first."""

        def moment(at: datetime | None) -> str:
            return (
                signs().missing
                if at is None
                else cells.short_instant(at, self.now(), self.session.zone)
            )

        for run in reversed(task.runs):
            ended = "" if run.ended_at is None and not run.how else f" to {moment(run.ended_at)}"
            how = f"  {text.HOW.get(run.how, visible(run.how))}" if run.how else ""
            yield f"{run.run:>4}  {moment(run.started_at)}{ended}  {run.level}{how}"

    # -- text

    def scope_crumbs(self) -> Sequence[str]:
        return ("share", *((visible(self.reader.pool.name),) if self._readers else ()))

    def row_hint(self, row: Mapping[str, Any]) -> str:
        task = self.pointed_task()
        if task is None:
            return ""
        runs = [run for run in task.runs if run.started_at is not None]
        parts = [visible(task.why)]
        if runs:
            began = cells.short_instant(
                runs[-1].started_at or task.submitted_at, self.now(), self.session.zone
            )
            parts.append(f"run {runs[-1].run} began {began}")
        if task.suspended:
            parts.append(
                f"suspended {task.suspended} times" if task.suspended > 1 else "suspended once"
            )
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
