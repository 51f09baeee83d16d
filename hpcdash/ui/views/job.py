"""One job: everything the scheduler says of it, grouped for reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from hpcdash.backends.base import Capability, JobDetail
from hpcdash.domain.text import visible
from hpcdash.domain.words import Pair, grouped
from hpcdash.errors import HpcdashError
from hpcdash.stores.cluster import Changed
from hpcdash.stores.snapshots import Kind
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.views.base import View, ViewSpec
from hpcdash.ui.views.jobs import job_hint
from hpcdash.ui.widgets import cells

_LABEL_CELLS = 16


class JobView(View):
    """The details of one job; asked again with each change of the queue."""

    DEFAULT_CSS = """
    JobView VerticalScroll { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    JobView Static { width: 1fr; height: auto; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "scroll(1)", "down", show=False, priority=True),
        Binding("up,k", "scroll(-1)", "up", show=False, priority=True),
    ]

    def __init__(self, session: ClusterSession, *, job_id: str) -> None:
        super().__init__(session)
        self.job_id = job_id
        self.detail: JobDetail | None = None
        self._error: HpcdashError | None = None
        self._taken_at: float | None = None
        self._own_words_line = 0

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static("asking …", markup=False)

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def on_mount(self) -> None:
        self.shown()

    def take_focus(self) -> None:
        self.screen.set_focus(self.query_one(VerticalScroll))

    def shown(self) -> None:
        self.take_focus()
        self.run_worker(self._fetch(), exclusive=True, group="detail")

    def store_changed(self, changed: Changed) -> None:
        """Ask again only when the job's own row changed: a detail is a question of its own."""
        if changed.kind is Kind.MINE and any(event.job_id == self.job_id for event in changed.events):
            self.run_worker(self._fetch(), exclusive=True, group="detail")

    def do_detail(self) -> None:
        """To the scheduler's own words, and back to the top."""
        page = self.query_one(VerticalScroll)
        page.scroll_to(y=0 if page.scroll_offset.y else self._own_words_line, animate=False)

    def do_ask_now(self) -> None:
        self.run_worker(self._fetch(), exclusive=True, group="detail")

    async def _fetch(self) -> None:
        store = self.session.store
        try:
            self.detail = await store.fetch_detail(self.job_id)
            self._error = None
            self._taken_at = store.clock.now()
        except HpcdashError as error:
            self._error = error
        if self.detail is not None:
            self.query_one(Static).update(self._words(self.detail))
        elif self._error is not None:
            self.query_one(Static).update(Text("nothing known of this job"))
        self.post_message(self.CrumbsChanged())

    @property
    def own_error(self) -> HpcdashError | None:
        return self._error

    @property
    def main_kind(self) -> Kind | None:
        return None

    def taken_at(self) -> float | None:
        return self._taken_at

    def crumbs(self) -> Sequence[str]:
        return ("job", self.job_id)

    def hint(self) -> str:
        return "" if self.detail is None else "d goes to the scheduler's own words, and back"

    def do_copy(self) -> None:
        """The log's path where it is known, else the id."""
        path = self.detail.job["stdout_path"][0].as_py() if self.detail else None
        self.app.copy_to_clipboard(path or self.job_id)
        self.notify(f"copied {visible(path or self.job_id)}", markup=False)

    def _words(self, detail: JobDetail) -> Text:
        row: dict[str, Any] = detail.job.to_pylist()[0]
        hint = self.session.store.backend.reason_hint(str(row["state"]), row["reason"])
        text = Text()
        text.append(f"{visible(job_hint(self.session, row, self.now()))}\n\n", "bold")
        sign = cells.signs().states.get(str(row["state"]), "")
        for title, pairs in grouped(row, self.now(), hint, sign=sign, zone=self.session.zone):
            text.append(f"{title}\n", "bold")
            _append(text, pairs)
        self._own_words_line = text.plain.count("\n") + 1
        text.append("\nin the scheduler's words\n", "bold")
        _append(text, list(detail.native.items()))
        return text


def _append(text: Text, pairs: Sequence[Pair]) -> None:
    label_cells = max(_LABEL_CELLS, *(len(label) for label, _ in pairs)) + 2
    for label, value in pairs:
        text.append(f"  {visible(label):<{label_cells}}", "dim")
        text.append(f"{visible(value)}\n")


VIEW = ViewSpec("job", "job", JobView, Capability.DETAIL, root=False)
