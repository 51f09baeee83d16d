"""Output of a command on a running job's nodes, equal output grouped, and its Python stacks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from textual.app import ComposeResult

from hpcdash.backends.inside import InsideCommand
from hpcdash.domain.scripts import LineKind, ScriptLine
from hpcdash.domain.text import counted, visible
from hpcdash.errors import HpcdashError
from hpcdash.services.inside.leftovers import (
    LIST_LEFTOVERS,
    Leftover,
    end_command,
    list_command,
    read_leftovers,
)
from hpcdash.services.inside.run import (
    InsideAnswer,
    fetch_inside_row,
    format_answer,
    run_inside,
    run_noted,
    summary,
)
from hpcdash.services.inside.stacks import STACKS, format_stack_places, read_stack_places
from hpcdash.services.jobs.lookup import known_row
from hpcdash.services.session import ClusterSession
from hpcdash.ui.inside.dialog import EndLeftoversDialog
from hpcdash.ui.view import Targets, View
from hpcdash.ui.widgets.script_page import ScriptPage
from hpcdash.ui.workers import start_worker

# Terminals accept no more over OSC 52.
_MAX_COPIED_BYTES = 70_000


class InsideView(View):
    """Runs a command, and shows the answers of the nodes; closing the view ends the command."""

    def __init__(
        self, session: ClusterSession, *, job_id: str, command: InsideCommand, name: str
    ) -> None:
        super().__init__(session)
        self.job_id = job_id
        self.command = command
        self.command_name = name
        self._answer: InsideAnswer | None = None
        self._began = time.monotonic()
        self._seconds: float | None = None

    def compose(self) -> ComposeResult:
        yield ScriptPage()

    @property
    def page(self) -> ScriptPage:
        return self.query_one(ScriptPage)

    def on_mount(self) -> None:
        self.start()

    def take_focus(self) -> None:
        self.screen.set_focus(self.page)

    def shown(self) -> None:
        self.take_focus()

    def start(self) -> None:
        """Run the command; previous answers stay until new ones arrive."""
        self._began = time.monotonic()
        self._seconds = None
        self._error = None
        start_worker(self, self._run, exclusive=True, group="inside")

    async def _run(self) -> None:
        store = self.session.store
        try:
            row = await fetch_inside_row(store, self.job_id, known_row(store, self.job_id))
            answer = await self._fetch(row)
        except HpcdashError as error:
            self._error = error.with_traceback(None)
        else:
            self._answer = answer
            self._taken_at = store.clock.now()
        self._seconds = time.monotonic() - self._began
        if self.is_live:
            if self._answer is not None:
                self.page.show(self._lines(self._answer), stay=True)
            self.post_message(self.CrumbsChanged())

    async def _fetch(self, row: Mapping[str, Any]) -> InsideAnswer:
        return await run_noted(self.session.actions.journal, self.session.store, row, self.command)

    def _lines(self, answer: InsideAnswer) -> list[ScriptLine]:
        lines: list[ScriptLine] = []
        for title, content in format_answer(answer):
            if lines:
                lines.append(ScriptLine(""))
            lines.append(ScriptLine(title, kind=LineKind.FILE))
            lines += [ScriptLine(f"  {line}") for line in content]
        return lines

    # -- keys

    def do_run_again(self) -> None:
        if self._seconds is not None:
            self.start()
            self.post_message(self.CrumbsChanged())

    def do_refresh(self) -> None:
        self.do_run_again()

    def do_wrap(self) -> None:
        self.page.set_wrap(not self.page.wrap)

    def do_copy(self) -> None:
        text = "".join(f"{line.text}\n" for line in self.page.lines)
        if len(text.encode()) > _MAX_COPIED_BYTES:
            self.notify("the output is too large for the terminal's clipboard", severity="warning")
            return
        self.app.copy_to_clipboard(text)
        self.notify(f"copied the output: {counted(len(self.page.lines), 'line')}", timeout=2)

    # -- values for the screen

    def tick(self) -> None:
        if self._seconds is None:
            self.post_message(self.CrumbsChanged())

    def pointed_job(self) -> str:
        return self.job_id

    def targets(self) -> Targets:
        row = known_row(self.session.store, self.job_id)
        return Targets((self.job_id,), () if row is None else (row,))

    def crumbs(self) -> Sequence[str]:
        return (f"{visible(self.job_id)} {visible(self.command_name)}",)

    def hint(self) -> str:
        if self._seconds is None:
            seconds = time.monotonic() - self._began
            return f"running on the job's nodes, {seconds:.0f} s; q stops it"
        if self._answer is None:
            return ""
        return f"{summary(self._answer)}, took {self._seconds:.1f} s"


class StacksView(InsideView):
    """Stacks of the job's Python processes, ranks with equal stacks grouped first."""

    def __init__(self, session: ClusterSession, *, job_id: str) -> None:
        super().__init__(session, job_id=job_id, command=STACKS, name="stacks")

    def do_stacks(self) -> None:
        self.do_run_again()

    async def _fetch(self, row: Mapping[str, Any]) -> InsideAnswer:
        return await run_inside(self.session.store, row, self.command)

    def _lines(self, answer: InsideAnswer) -> list[ScriptLine]:
        texts = format_stack_places(read_stack_places(answer.outputs))
        lines = [ScriptLine(text, kind=LineKind.PLACE) for text in texts]
        if lines:
            lines.append(ScriptLine(""))
        return lines + super()._lines(answer)


class LeftoversView(InsideView):
    """Leftovers of finished jobs on the job's nodes, with a prompt to end them."""

    def __init__(self, session: ClusterSession, *, job_id: str) -> None:
        super().__init__(session, job_id=job_id, command=LIST_LEFTOVERS, name="leftovers")

        self._chosen: Sequence[Leftover] = ()

    def start(self) -> None:
        self._chosen = ()
        super().start()

    async def _fetch(self, row: Mapping[str, Any]) -> InsideAnswer:
        store = self.session.store
        if self._chosen:
            command = await end_command(store, self._chosen)
            return await run_noted(self.session.actions.journal, store, row, command)
        shown = await run_inside(store, row, await list_command(store))
        found = read_leftovers(shown.outputs)

        def answered(is_agreed: bool | None) -> None:
            if is_agreed:
                self._chosen = found
                super(LeftoversView, self).start()
                self.post_message(self.CrumbsChanged())

        if found and self.is_live:
            self.app.push_screen(EndLeftoversDialog(found), answered)
        return shown
