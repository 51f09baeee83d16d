"""Output of a person's own command, while it runs and after it has exited."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from textual.app import ComposeResult

from hpcdash.domain.text import counted, visible
from hpcdash.errors import HpcdashError
from hpcdash.services.plugins import OutputLines, PluginCommand, run_plugin
from hpcdash.services.session import ClusterSession
from hpcdash.ui.view import View
from hpcdash.ui.widgets.script_page import ScriptPage
from hpcdash.ui.workers import start_worker

_DRAWN_EVERY_SECONDS = 0.25
# Terminals take no more over OSC 52.
_MAX_COPIED_BYTES = 70_000


class OutputView(View):
    """Runs a command and shows its output; leaving the view ends the command."""

    def __init__(
        self,
        session: ClusterSession,
        *,
        command: PluginCommand,
        withheld: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(session)
        self.command = command
        self.status: int | None = None
        self._withheld = withheld
        self._output = OutputLines()
        self._has_more = False
        self._is_stopped = False
        self._began = time.monotonic()
        self._ended: float | None = None

    def compose(self) -> ComposeResult:
        yield ScriptPage()

    @property
    def page(self) -> ScriptPage:
        return self.query_one(ScriptPage)

    @property
    def is_running(self) -> bool:
        return self._ended is None

    def on_mount(self) -> None:
        self.set_interval(_DRAWN_EVERY_SECONDS, self._draw)
        self.start()

    def take_focus(self) -> None:
        self.screen.set_focus(self.page)

    def shown(self) -> None:
        self.take_focus()

    def start(self) -> None:
        """Run it, from an empty page."""
        self._output = OutputLines()
        self._error = None
        self.status = None
        self._is_stopped = False
        self._began = time.monotonic()
        self._ended = None
        self._has_more = False
        self.page.show(())
        start_worker(self, self._run, exclusive=True, group="watch")

    async def _run(self) -> None:
        output = self._output
        status: int | None = None
        error: HpcdashError | None = None

        def take(chunk: bytes) -> None:
            output.feed(chunk)
            self._has_more = True

        try:
            status = await run_plugin(
                self.command, self.session.store.transport, take, self._withheld
            )
        except HpcdashError as failure:
            error = failure.with_traceback(None)
        # Another run may have begun while this one was ended.
        if output is self._output:
            self.status, self._error, self._ended = status, error, time.monotonic()
            self._draw()

    def _draw(self) -> None:
        if not self.is_live:
            return
        if self._has_more:
            self._has_more = False
            page = self.page
            is_at_end = page.scroll_offset.y >= page.max_scroll_y
            page.show(self._output.lines(), stay=True)
            if is_at_end:
                page.call_after_refresh(page.action_to_line, -1)
        self.post_message(self.CrumbsChanged())

    # -- keys

    def do_stop(self) -> None:
        if self.is_running:
            self._is_stopped = True
            self._ended = time.monotonic()
            self.workers.cancel_group(self, "watch")
            self._draw()

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

    def key_ranks(self) -> Mapping[str, int | None]:
        return {} if self.is_running else {"stop": None}

    def crumbs(self) -> Sequence[str]:
        return (f"{self.command.plugin.name} {self.command.subject}",)

    def hint(self) -> str:
        seconds = (self._ended or time.monotonic()) - self._began
        if self.is_running:
            state = f"running for {seconds:.0f} s; leaving this view stops it"
        elif self._is_stopped:
            state = f"stopped by you after {seconds:.0f} s"
        elif self.status is None:
            state = "not finished"
        else:
            state = f"exit {self.status} after {seconds:.1f} s"
        left_out = (
            f"the last {counted(len(self.page.lines), 'line')}" if self._output.left_out else ""
        )
        return "  ·  ".join(part for part in (state, left_out, visible(self.command.text)) if part)
