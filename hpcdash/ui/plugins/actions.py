"""Commands of a person on the row under the cursor; dangerous ones are confirmed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Button

from hpcdash.config.plugins import JOB_VIEWS, NODE, Plugin
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.jobs.rows import select_rows
from hpcdash.services.plugins import (
    OutputLines,
    PluginCommand,
    build_command,
    run_in_terminal,
    run_plugin,
    with_cluster,
)
from hpcdash.ui.dialogs import AnswerButton, Dialog
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.ui.screen import DashboardApp

_DONE_SECONDS = 8.0


class RunDialog(Dialog[None]):
    """Whether to run a command that its person calls dangerous; `run` is called at a yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes", show=False),
        Binding("n,q,escape", "answer(False)", "no", show=False),
    ]
    # The buttons too, with a blank line.
    fixed_lines = 8

    def __init__(self, command: PluginCommand, run: Callable[[], None]) -> None:
        super().__init__(f"Run {command.plugin.name} on {command.subject}?")
        self._command = command
        self._run = run

    @property
    def is_dangerous(self) -> bool:
        return True

    def compose_body(self) -> ComposeResult:
        plugin = self._command.plugin
        with VerticalScroll(classes="scrolls", can_focus=False):
            if plugin.description:
                yield PlainStatic(visible(plugin.description), classes="words")
            place = "the login node" if plugin.where == "cluster" else "this machine"
            yield PlainStatic(f"command to run on {place}", classes="label")
            yield PlainStatic(visible(self._command.text), classes="under")
        with Horizontal(classes="buttons"):
            yield AnswerButton("No (n)", id="no")
            yield AnswerButton("Yes, run it (y)", id="yes")

    def format_keys(self) -> str:
        return "y confirm · n/esc/enter go back · tab switch · j/k scroll"

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.action_answer(event.button.id == "yes")

    def action_answer(self, is_yes: bool) -> None:
        self.dismiss()
        if is_yes:
            self._run()


class PluginActions:
    """Key actions of [[plugins]] and of their output.

    `withheld` variables are passed to no command.
    """

    def __init__(self, screen: DashboardScreen, withheld: frozenset[str] = frozenset()) -> None:
        self.screen = screen
        self.withheld = withheld

    async def run(self, plugin: Plugin) -> None:
        """Run it on the selected row, or show why not."""
        screen = self.screen
        row, kind, name = self._pointed()
        if row is None:
            screen.notify(f"{plugin.name}: select a row first", severity="warning", timeout=3)
            return
        try:
            command = build_command(plugin, with_cluster(row, screen.session.name), kind, name)
        except UsageError as error:
            text = visible(f"{plugin.name} {error.message}. {error.next_step}")
            screen.notify(text, severity="warning", timeout=_DONE_SECONDS)
            return
        self._confirm_or_run(command, partial(self._start, command))

    def do_run_again(self) -> None:
        from hpcdash.ui.plugins.view import OutputView

        view = self.screen.view
        if isinstance(view, OutputView):
            self._confirm_or_run(view.command, view.start)

    def _confirm_or_run(self, command: PluginCommand, run: Callable[[], None]) -> None:
        if command.plugin.dangerous:
            self.screen.app.push_screen(RunDialog(command, run))
        else:
            run()

    def _start(self, command: PluginCommand) -> None:
        output = command.plugin.output
        if output == "terminal":
            cast("DashboardApp", self.screen.app).leave_screen(
                partial(run_in_terminal, command, self.withheld)
            )
        elif output == "background":
            start_worker(self.screen, self._run_beside, command, group="plugin")
        else:
            self.screen.call_later(
                partial(self.screen.push, "output", command=command, withheld=self.withheld)
            )

    async def _run_beside(self, command: PluginCommand) -> None:
        output = OutputLines()
        name = command.plugin.name
        try:
            status = await run_plugin(
                command, self.screen.session.store.transport, output.feed, self.withheld
            )
        except HpcdashError as error:
            text = error.message
            is_bad = True
        else:
            last = next(
                (line.text.strip() for line in reversed(output.lines()) if line.text.strip()), ""
            )
            text = f"exit {status}: {last}" if status else last or "done"
            is_bad = status != 0
        self.screen.notify(
            visible(f"{name} {command.subject}: {text}"),
            severity="warning" if is_bad else "information",
            timeout=_DONE_SECONDS,
        )

    def _pointed(self) -> tuple[Mapping[str, object] | None, str, str]:
        """The row that is pointed at, and what it is of: a job, node or queue, and its name."""
        view = self.screen.view
        name = self.screen.view_name
        row: Mapping[str, object] | None
        if name not in JOB_VIEWS:
            row = view.rows.cursor_row if isinstance(view, TableView) else None
            if row is None:
                return None, "", ""
            return (
                {**row, **({NODE: row["name"]} if name == "nodes" else {})},
                name.removesuffix("s"),
                str(row["name"]),
            )
        job_id = view.pointed_job()
        if job_id is None:
            return None, "", ""
        row = (
            view.rows.cursor_row
            if isinstance(view, TableView) and name in ("jobs", "history", "node")
            else None
        )
        return {**(row or self._known_row(job_id)), "id": job_id}, "job", job_id

    def _known_row(self, job_id: str) -> Mapping[str, object]:
        store = self.screen.session.store
        for kind in (Kind.MINE, Kind.EVERYONE, Kind.HISTORY, Kind.HISTORY_EVERYONE):
            table = store.table(kind) if kind in store.snapshots else None
            if table is not None and (found := select_rows(table, (job_id,))):
                return found[0]
        return {}
