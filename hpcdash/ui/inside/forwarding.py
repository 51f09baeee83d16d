"""Ports of running jobs that this dashboard forwards: their dialog, and what runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from msgspec.structs import replace
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.forward.address import fetch_log_address, open_page, parse_ports
from hpcdash.services.forward.forward import Forward, build_request
from hpcdash.services.forward.records import ForwardRecords
from hpcdash.services.jobs.action_text import format_error
from hpcdash.services.session import ClusterSession
from hpcdash.ui.dialogs import Dialog, TextDialog
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.widgets.lines import PlainStatic, TextInput
from hpcdash.ui.workers import start_worker

_TCP = "--tcp"


class ForwardDialog(Dialog[None]):
    """Prompt for a port; lists what can be done with the forwards of the job.

    `start` receives the ports and whether they must be TCP. A choice is a text with its function.
    """

    DEFAULT_CSS = """
    ForwardDialog Input, ForwardDialog Input:focus {
        height: 1; border: none; padding: 0; background: $boost;
    }
    ForwardDialog OptionList, ForwardDialog OptionList:focus {
        border: none; padding: 0; margin-top: 1; background: $surface;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("down", "into_list", show=False)]
    fixed_lines = 12

    def __init__(
        self,
        heading: str,
        proposed: str,
        why_socket: str,
        choices: Sequence[tuple[str, Callable[[], None]]],
        start: Callable[[tuple[int, int | None], bool], None],
    ) -> None:
        super().__init__(heading)
        self._proposed = proposed
        self._why_socket = why_socket
        self._choices = tuple(choices)
        self._start = start

    def compose_body(self) -> ComposeResult:
        yield TextInput(self._proposed, placeholder="PORT or PORT:LOCAL", select_on_focus=True)
        yield PlainStatic(classes="warned", id="complaint")
        if self._why_socket:
            text = f"A unix socket that only you can open, as {self._why_socket}. With {_TCP} "
            text += "after the port it is a port, to which other users of this machine can connect."
            yield PlainStatic(visible(text), classes="words")
        if self._choices:
            options = [Option(Text(visible(text))) for text, _ in self._choices]
            yield OptionList(*options, classes="scrolls", markup=False, compact=True)

    def format_keys(self) -> str:
        more = " · ↓ choose" if self._choices else ""
        return f"enter forward, and open the browser{more} · esc cancel"

    def on_mount(self) -> None:
        self.set_focus(self.query_one(Input))

    def action_into_list(self) -> None:
        for listed in self.query(OptionList):
            if not listed.has_focus:
                listed.highlighted = 0
                self.set_focus(listed)

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        parts = event.value.split()
        is_tcp = _TCP in parts
        try:
            ports = parse_ports(" ".join(part for part in parts if part != _TCP))
        except UsageError as error:
            self.query_one("#complaint", PlainStatic).update(visible(format_error(error)))
            return
        self.dismiss()
        self._start(ports, is_tcp)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss()
        self._choices[event.option_index][1]()


def _cancel(task: asyncio.Task[object]) -> None:
    task.cancel()


class Forwarding:
    """The forwards of this dashboard, which end with it."""

    def __init__(self, screen: DashboardScreen) -> None:
        self.screen = screen
        self._running: dict[tuple[str, str, int], tuple[Forward, asyncio.Task[object]]] = {}

    def open(self, job_id: str) -> None:
        """Prompt for a port of a job; that of the newest address in its log is proposed."""
        start_worker(self.screen, self._prompt, job_id, self.screen.session, group="forwarding")

    async def _prompt(self, job_id: str, session: ClusterSession) -> None:
        view = self.screen.view
        found = await fetch_log_address(session.store, job_id)
        # The defaults do not depend on the port.
        _, why_socket = await build_request(session, job_id, (1, None))
        if self.screen.view is not view:
            return
        choices: list[tuple[str, Callable[[], None]]] = []
        for key, (forward, task) in self._running.items():
            if key[:2] == (session.name, job_id):
                text = f"port {key[2]} → {forward.local} ({forward.status})"
                show = partial(self._show_soon, forward)
                choices.append((f"open {text}", show))
                choices.append((f"stop {text}", partial(_cancel, task)))
        proposed = "" if found is None else str(found.port)
        heading = f"Forward a port of job {visible(job_id)}"
        start = partial(self._start, session, job_id)
        self.screen.app.push_screen(ForwardDialog(heading, proposed, why_socket, choices, start))

    def _start(
        self, session: ClusterSession, job_id: str, ports: tuple[int, int | None], is_tcp: bool
    ) -> None:
        key = (session.name, job_id, ports[0])
        if key in self._running:
            self._show_soon(self._running[key][0])
            return
        start_worker(self.screen, self._run, session, key, ports, is_tcp, group="forwards")

    async def _run(
        self,
        session: ClusterSession,
        key: tuple[str, str, int],
        ports: tuple[int, int | None],
        is_tcp: bool,
    ) -> None:
        """Run a forward to its end; show its address once its port is open."""
        request, _ = await build_request(session, key[1], ports, shares_connection=True)
        request = replace(request, is_tcp=request.is_tcp or is_tcp)
        shown: list[str] = []

        def changed() -> None:
            self.screen.view.notes_changed()
            if forward.status not in shown:
                shown.append(forward.status)
                if forward.is_open:
                    self._show_soon(forward)
                else:
                    self.screen.notify(visible(forward.status), timeout=6)

        records = ForwardRecords(session.actions.journal.path.parent)
        forward = Forward(session.store, records, request, changed)
        if key in self._running:
            return
        task = asyncio.current_task()
        assert task is not None
        self._running[key] = (forward, task)
        try:
            text = await forward.run()
            self.screen.notify(visible(f"{forward.title}: {text}"), timeout=8)
        except HpcdashError as error:
            self.screen.notify(format_error(error), severity="warning", timeout=12)
        finally:
            self._running.pop(key, None)
            self.screen.view.notes_changed()

    def _show_soon(self, forward: Forward) -> None:
        start_worker(self.screen, self._show, forward, group="forwarding")

    async def _show(self, forward: Forward) -> None:
        """Open the browser; without one, show the address."""
        url = await forward.fetch_url()
        if forward.local_port:
            page = await asyncio.to_thread(forward.write_page, url)
            if await asyncio.to_thread(open_page, page):
                self.screen.notice(visible(f"{forward.title} is in your browser"))
                return
            lines = [url]
        else:
            lines = [
                forward.local,
                "",
                f"On your own machine: {forward.ssh_command}",
                f"Then: {url}",
            ]
        text = Text("\n".join(map(visible, lines)))
        self.screen.app.push_screen(TextDialog(forward.title, text))
