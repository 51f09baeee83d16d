"""Alerts: problems of a cluster found by the watchdogs, with severity, start and next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.text import Text
from textual.worker import Worker

from hpcdash.domain.schema import arrow_schema
from hpcdash.domain.tables import ColumnSpec, Kind, TableSpec
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_age
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.watch.alerts import is_job_rule, rule_title
from hpcdash.ui.dialogs import TextDialog
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.table_view import TableView
from hpcdash.ui.view import CHART_RANK
from hpcdash.ui.watch.announcer import UNWATCHED
from hpcdash.ui.widgets import cells
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.services.watch.board import WatchBoard

_NO_ALERTS = "No alerts. ctrl+r checks again"
_NO_WATCHDOGS = (
    "No watchdogs: only jobs that never start are checked. `hpcdash config example` shows more"
)


# Words without a key are searched in `name`, `id` and `user`.
ALERTS = TableSpec(
    "alerts",
    fields={
        "_key": "text",
        "severity": "word",
        "since": "time",
        "rule": "word",
        "title": "word",
        "id": "text",
        "words": "text",
        "next_step": "text",
        "snoozed_until": "time",
        "name": "text",
        "user": "word",
    },
    columns=(
        ColumnSpec("severity", 11, 0),
        ColumnSpec("since", 10, 1),
        ColumnSpec("rule", 12, 4, longest=20),
        ColumnSpec("subject", 10, 4, "id", "WHAT", flexible=True, longest=40),
        ColumnSpec("words", 30, 0, title="ALERT", flexible=True),
        ColumnSpec("next", 20, 3, "next_step", "WHAT TO DO", flexible=True, muted=True),
        ColumnSpec("snoozed", 10, 2, "snoozed_until", "SNOOZED TO"),
    ),
    shown=("severity", "since", "words", "snoozed"),
    optional=frozenset({"snoozed_until"}),
)
# One check costs a login node a command or two.
_CHECK_SECONDS = 60.0
_SEVERITIES = {
    "critical": ("!!", cells.BAD),
    "warning": ("!", cells.WARNING),
    "info": ("i", cells.MUTED),
}


def severity_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """Return a sign, a word and a colour."""
    word = value or "info"
    sign, style = _SEVERITIES.get(word, ("?", cells.MUTED))
    return f"{sign:<2} {word}", style


class AlertsView(TableView):
    """Alerts of a cluster, the severest first.

    While it is shown the watchdogs check everything that is watched.
    """

    SPEC = ALERTS
    IDENTITY = "_key"

    def __init__(self, *arguments: Any, **rest: Any) -> None:
        self._has_looked = False
        self._checking: Worker[None] | None = None
        self._check_started = 0.0
        super().__init__(*arguments, **rest)

    @property
    def board(self) -> WatchBoard | None:
        return self.session.watching

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {"severity": severity_cell}

    @property
    def kind(self) -> Kind:
        return Kind.MINE

    @property
    def kinds(self) -> frozenset[Kind]:
        return self.board.kinds if self.board is not None else frozenset()

    def store_changed(self, changed: Changed) -> None:
        """Wait for the screen to have the change judged, and reload then."""

    def alerts_changed(self) -> None:
        """Reload after a check of the rules, or a change of them."""
        self.reload()
        self._check_if_due()

    def taken_at(self) -> float | None:
        """Return None after a check, whose time is shown beside the counts."""
        has_checked = self.board is not None and self.board.looked_at is not None
        return None if has_checked else super().taken_at()

    def counts(self) -> tuple[str, str]:
        long, short = super().counts()
        if self.board is None or self.board.looked_at is None:
            return long, short
        age = max(0.0, self.now().timestamp() - self.board.looked_at)
        checked = f"checked {format_age(age)} ago"
        return ", ".join(filter(None, (long, checked))), " ".join(filter(None, (short, checked)))

    def placeholder(self) -> str:
        if not self._has_looked or (self.board is not None and self.board.is_check_due):
            return "looking …"
        is_configured = self.board is None or self.board.settings.is_configured
        return _NO_ALERTS if is_configured else _NO_WATCHDOGS

    def _format_waiting(self) -> str:
        return UNWATCHED

    def source(self) -> pa.Table | None:
        return None if self.board is None else build_table(self.board)

    def on_mount(self) -> None:
        self.reload()
        self.check()
        self.set_interval(1.0, self._check_if_due)

    def shown(self) -> None:
        super().shown()
        start_worker(self, self._judge, exclusive=True, group="judged alerts")

    def do_refresh(self) -> bool:
        self.check()
        return False

    @property
    def _is_due(self) -> bool:
        """Whether something was never checked, or the last check began long ago."""
        if self.board is None:
            return False
        age = self.now().timestamp() - self._check_started
        return self.board.is_check_due or not 0 <= age < _CHECK_SECONDS

    def _check_if_due(self) -> None:
        """Check again, unless a check is running; behind another view nothing is queried."""
        is_running = self._checking is not None and not self._checking.is_finished
        is_shown = self.is_live and self.display and self.screen.is_current
        if is_shown and self._is_due and not is_running:
            self.check()

    def check(self) -> None:
        """Check everything that is watched, beside the event loop."""
        self._check_started = self.now().timestamp()
        self._checking = start_worker(self, self._check, exclusive=True, group="alerts")

    async def _check(self) -> None:
        if self.board is None:
            return
        await self.board.reload()
        events = await self.board.check()
        self._has_looked = True
        self._notify(events)

    async def _judge(self) -> None:
        if self.board is None:
            return
        await self.board.reload()
        if self._is_due:
            self._check_if_due()
        else:
            self._notify(await self.board.judge())

    def _notify(self, events: Sequence[Any]) -> None:
        if isinstance(self.screen, DashboardScreen):
            self.screen.announce_alerts(self.session, events)
        self.reload()

    def do_snooze(self) -> None:
        """Snooze the selected alert, or end its snooze."""
        row = self.rows.cursor_row
        if row is None or self.board is None:
            return
        try:
            until = self.board.toggle_snooze(str(row["_key"]))
        except HpcdashError as error:
            self.notify(str(error), severity="warning")
            return
        if until is None:
            self.notify("alert unsnoozed", timeout=3)
        else:
            end = datetime.fromtimestamp(until, UTC).astimezone(self.session.zone)
            self.notify(f"snoozed until {end:%a %H:%M}, also for hpcdash watch", timeout=3)
        self.reload()

    def hint(self) -> str:
        board = self.board
        if board is not None and board.unread:
            return visible(board.unread)
        hint = super().hint()
        if hint or board is None:
            return hint
        if board.problems:
            return visible(board.problems[0])
        if board.settings.is_configured:
            return ""
        place = visible(board.config_file or "the configuration")
        return f"add [watch] to {place}; see hpcdash config example"

    def row_hint(self, row: Mapping[str, Any]) -> str:
        age = format_age(max(0.0, self.now().timestamp() - row["since"].timestamp()))
        step = visible(row["next_step"] or "")
        return f"{step}  ·  for {age}" if step else f"for {age}"

    # -- job of an alert

    def pointed_job(self) -> str | None:
        row = self.rows.cursor_row if self.is_live else None
        return str(row["id"]) if row is not None and is_job_rule(str(row["rule"])) else None

    def key_ranks(self) -> Mapping[str, int | None]:
        """Rank the chart of a job beside its log; hide keys of jobs if the alert is about none."""
        if self.pointed_job() is not None:
            return {"chart": CHART_RANK}
        return dict.fromkeys(("log", "detail", "script"))

    def do_detail(self) -> None:
        """Open the alert's job."""
        job_id = self.pointed_job()
        if job_id is None:
            self.notify("this alert is not about a job", timeout=3)
        else:
            self.post_message(self.Requested("job", job_id=job_id, shows_record=True))

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        """Open the alert's job; else show all its details."""
        if self.pointed_job() is None:
            self.do_whole_alert()
        else:
            self.do_detail()

    def do_whole_alert(self) -> None:
        """Show all details of the selected alert."""
        row = self.rows.cursor_row
        if row is None or self.board is None:
            return
        text = Text()
        since = row["since"].astimezone(self.session.zone)
        for label, value in (
            ("what", row["words"]),
            ("to do", row["next_step"] or ""),
            ("grave", row["severity"]),
            ("since", f"{since:%Y-%m-%d %H:%M:%S %Z}"),
            ("key", str(row["_key"])),
        ):
            text.append(f"{label:<8}", "dim")
            text.append(f"{visible(value)}\n")
        for problem in self.board.problems:
            text.append(f"\n{visible(problem)}", "dim")
        text.rstrip()
        self.app.push_screen(TextDialog(visible(row["title"]), text))


def build_table(board: WatchBoard) -> pa.Table:
    """Build a table (ALERTS) of the present alerts, in their order."""
    rows = []
    for state in board.states:
        finding = state.finding
        title = rule_title(finding.rule, finding.aspect)
        until = board.snoozed_until(state)
        rows.append(
            {
                "_key": finding.key,
                "severity": finding.severity.word,
                "since": datetime.fromtimestamp(int(state.since), UTC),
                "rule": finding.rule,
                "title": title,
                "id": finding.subject,
                "words": finding.text,
                "next_step": finding.next_step,
                "snoozed_until": None if until is None else datetime.fromtimestamp(int(until), UTC),
                "name": f"{finding.rule} {title} {finding.text}",
            }
        )
    return pa.Table.from_pylist(rows, arrow_schema(ALERTS))
