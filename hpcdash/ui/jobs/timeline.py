"""Timeline: when jobs end and may start, and when nodes become free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content

from hpcdash.domain.nodelist import expand
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted
from hpcdash.services.cluster.store import Changed
from hpcdash.services.session import ClusterSession
from hpcdash.ui.cluster.wall import job_letters
from hpcdash.ui.jobs.outlook import Span, draw_hours, next_spans
from hpcdash.ui.view import View
from hpcdash.ui.widgets.lines import PlainStatic

_HOURS = (3, 6, 12, 24, 72, 168, 672)
_MAX_ROWS = 500


class TimelineView(View):
    """Bars of jobs, or of their nodes, over the next hours."""

    DEFAULT_CSS = """
    TimelineView VerticalScroll { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    TimelineView PlainStatic { height: auto; }
    """

    def __init__(self, session: ClusterSession, *, by_node: bool = False, **rest: Any) -> None:
        super().__init__(session, **rest)
        self.everyone = by_node
        self._by_node = by_node
        self._hours = 24
        self._body = PlainStatic()

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self._body

    @property
    def main_kind(self) -> Kind:
        return Kind.EVERYONE if self.everyone else Kind.MINE

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset({self.main_kind})

    def crumbs(self) -> Sequence[str]:
        rows = "nodes" if self._by_node else "jobs"
        return ("timeline", *self.whose(everyone=self.everyone), rows, f"next {self._hours} h")

    def hint(self) -> str:
        return "Ends are time limits; starts are the scheduler's estimates"

    def take_focus(self) -> None:
        self.screen.set_focus(self.query_one(VerticalScroll))

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def shown(self) -> None:
        self.take_focus()
        self._draw()

    def store_changed(self, changed: Changed) -> None:
        if changed.kind in (None, self.main_kind):
            self._draw()

    def do_zoom_in(self) -> None:
        self._zoom(-1)

    def do_zoom_out(self) -> None:
        self._zoom(1)

    def _zoom(self, step: int) -> None:
        at = _HOURS.index(self._hours) + step
        self._hours = _HOURS[min(max(at, 0), len(_HOURS) - 1)]
        self._changed()

    def do_mine(self) -> None:
        self.everyone = not self.everyone
        self._changed()

    def do_timeline_rows(self) -> None:
        """Switch between jobs and nodes; nodes are those of all users' jobs."""
        self._by_node = not self._by_node
        self.everyone = self._by_node or self.everyone
        self._changed()

    def _changed(self) -> None:
        self._draw()
        self.post_message(self.CrumbsChanged())

    def _draw(self) -> None:
        room = self.size.width - 4
        if not self.is_live or room <= 0:
            return
        table = self.session.store.table(self.main_kind)
        if table is None:
            self._body.update("Loading the queue …")
            return
        now = self.now()
        if self._by_node:
            planned = busy_nodes(table)
        else:
            reservations = self.session.store.table(Kind.RESERVATIONS)
            planned = next_spans(table, reservations, now, self._hours)
        planned = planned[:_MAX_ROWS]
        if not planned:
            self._body.update(f"No job ends or may start in the next {self._hours} h. - zooms out")
            return
        letters = job_letters(self.session.store)
        lines = draw_hours(
            planned,
            now,
            self.session.zone,
            room=room,
            hours=self._hours,
            letter=letters.letter,
        )
        self._body.update(Content("\n").join(lines))


def busy_nodes(jobs: pa.Table) -> list[Span]:
    """Return the nodes of running jobs, each until the last of its jobs reaches its limit.

    The node that is free first comes first.
    """
    latest: dict[str, Any] = {}
    count: dict[str, int] = {}
    running = jobs.filter(pc.is_valid(jobs["node_list"]))
    for row in running.select(["state", "node_list", "ends_at"]).to_pylist():
        if row["state"] not in ACTIVE or row["ends_at"] is None:
            continue
        try:
            names = expand(row["node_list"])
        except ValueError:
            continue
        for name in names:
            latest[name] = max(latest.get(name, row["ends_at"]), row["ends_at"])
            count[name] = count.get(name, 0) + 1
    ordered = sorted(latest, key=lambda name: (latest[name], name))
    return [
        Span(name, counted(count[name], "job"), None, latest[name], "free at the latest")
        for name in ordered
    ]
