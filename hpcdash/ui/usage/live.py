"""Resource use of a running job on each of its nodes, sampled while the view is shown."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from textual import events
from textual.app import ComposeResult

from hpcdash.backends.base import Capability
from hpcdash.domain.scripts import LineKind, ScriptLine
from hpcdash.domain.text import counted, visible
from hpcdash.errors import HpcdashError
from hpcdash.services.inside.run import fetch_inside_row
from hpcdash.services.jobs.lookup import known_row
from hpcdash.services.session import ClusterSession
from hpcdash.services.usage.live import LiveUse
from hpcdash.services.usage.live_lines import use_lines
from hpcdash.services.usage.sample import EVERY_SECONDS
from hpcdash.ui.view import Targets, View
from hpcdash.ui.widgets.cells import ASCII_SIGNS, signs
from hpcdash.ui.widgets.script_page import ScriptPage
from hpcdash.ui.workers import start_worker

_KINDS = {"title": LineKind.FILE, "warning": LineKind.REMOVED}
_GROUP = "use"


class LiveUseView(View):
    """Live use of one job, sampled by one job step while the view is on the screen."""

    def __init__(self, session: ClusterSession, *, job_id: str) -> None:
        super().__init__(session)
        self.job_id = job_id
        self._live: LiveUse | None = None
        self._is_sampling = False
        self._has_ended = False

    def compose(self) -> ComposeResult:
        yield ScriptPage()

    @property
    def page(self) -> ScriptPage:
        return self.query_one(ScriptPage)

    def on_mount(self) -> None:
        self.set_interval(1.0, self._pause_where_hidden)
        self.start()

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def take_focus(self) -> None:
        self.screen.set_focus(self.page)

    def shown(self) -> None:
        self.take_focus()
        if not self._is_sampling and not self._has_ended and self._error is None:
            self.start()

    def start(self) -> None:
        """Start sampling; earlier samples stay."""
        self._is_sampling = True
        self._has_ended = False
        self._error = None
        start_worker(self, self._follow, exclusive=True, group=_GROUP)

    def _pause_where_hidden(self) -> None:
        if self._is_sampling and not self.display:
            self._is_sampling = False
            self.workers.cancel_group(self, _GROUP)

    async def _follow(self) -> None:
        store = self.session.store
        try:
            if self._live is None:
                row = await fetch_inside_row(
                    store, self.job_id, known_row(store, self.job_id), needs=Capability.LIVE_USE
                )
                self._live = LiveUse(store, row, self.session.actions.journal.path.parent)
            async with aclosing(self._live.follow()) as uses:
                async for _ in uses:
                    self._draw()
            self._has_ended = True
        except HpcdashError as error:
            self._error = error.with_traceback(None)
        finally:
            if self._live is not None:
                self._live.remember()
        self._is_sampling = False
        self._draw()

    def _draw(self) -> None:
        if not self.is_live:
            return
        if self._live is not None and self._live.nodes:
            width = max(20, self.page.size.width - 1)
            lines = use_lines(self._live, width, is_ascii=signs() is ASCII_SIGNS)
            self.page.show(
                [ScriptLine(text, kind=_KINDS.get(kind, LineKind.PLAIN)) for text, kind in lines],
                stay=True,
            )
        self.post_message(self.CrumbsChanged())

    def do_refresh(self) -> None:
        if not self._is_sampling:
            self.start()

    def do_wrap(self) -> None:
        self.page.set_wrap(not self.page.wrap)

    # -- values for the screen

    def pointed_job(self) -> str:
        return self.job_id

    def targets(self) -> Targets:
        row = known_row(self.session.store, self.job_id)
        return Targets((self.job_id,), () if row is None else (row,))

    def taken_at(self) -> float | None:
        return None if self._live is None else self._live.taken_at

    def crumbs(self) -> Sequence[str]:
        return (f"{visible(self.job_id)} live usage",)

    def hint(self) -> str:
        if self._error is not None:
            return ""
        if self._has_ended:
            return "the sampling step ended; ctrl+r starts another"
        if self._live is None or not self._live.nodes:
            return "reading the job's nodes …"
        nodes = counted(len(self._live.nodes), "node")
        sampling = f"sampled every {EVERY_SECONDS} s while this view is open"
        return f"{nodes}, {sampling}; leaving this view stops it"
