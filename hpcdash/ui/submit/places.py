"""Places where a job could run, on this cluster and the other connected ones, earliest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from msgspec.structs import replace
from textual.app import ComposeResult

from hpcdash.config.request import request_text
from hpcdash.domain.places import Place, fold, place_id, places_table
from hpcdash.domain.tables import PLACES, Kind
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_span
from hpcdash.errors import HpcdashError
from hpcdash.services.jobs.lookup import known_row
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.places import PlaceAnswer, search_places
from hpcdash.services.submit.shapes import JobShape, format_shape, job_request, parse_shape
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.command_bar import CommandBar
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.ui.screen import DashboardScreen

# More than all defaults of a place.
_OWN_PREFERENCE = 10
# The prompt for a job's size.
SHAPE = "shape"
_PROPOSED = "gpus=1 time=4h"
_PROPOSED_CPUS = "cpus=1 time=4h"


def start_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    styles = {"now": cells.GOOD, "never": cells.MUTED, "?": cells.WARNING}
    return str(value), styles.get(str(value), "")


def nodes_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """Return the nodes with room now, of those that could run the job."""
    if not row["nodes_able"]:
        return ""
    return f"{value}/{row['nodes_able']}", cells.GOOD if value else cells.MUTED


def reason_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    text = visible("; ".join(filter(None, (value, row["sooner"]))))
    return text, cells.MUTED if row["accepts"] is False else ""


class PlacesView(TableView):
    """Places for a job like `job_id`, or of a size that is typed.

    With `on_choice`, the places are those for `moving`, a job or an array, and `enter` passes the
    chosen one on.
    """

    SPEC = PLACES
    NEWEST_FIRST = True
    DEFAULT_CSS = """
    PlacesView > #shape { height: 1; padding: 0 1; }
    """

    def __init__(
        self,
        session: ClusterSession,
        *,
        job_id: str = "",
        moving: str = "",
        on_choice: Callable[[Place], None] | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(session, **rest)
        self._moving = moving
        self._on_choice = on_choice
        self.shape: JobShape | None = None
        self._job_id = job_id
        self._typed = ""
        self._places: Sequence[Place] = ()
        self._answer: PlaceAnswer | None = None

    def compose(self) -> ComposeResult:
        yield PlainStatic(id="shape")
        yield from super().compose()

    def on_mount(self) -> None:
        if len(cast("DashboardScreen", self.screen).sessions) == 1:
            self.column_names = tuple(name for name in self.column_names if name != "cluster")
        row = known_row(self.session.store, self._job_id) if self._job_id else None
        if row is not None:
            try:
                self.search(JobShape(job_request(row)))
            except HpcdashError as error:
                self._error = error
        else:
            self.call_after_refresh(self.do_shape)

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {"start": start_cell, "free": nodes_cell, "reason": reason_cell}

    def source(self) -> pa.Table | None:
        if not self._places:
            return None
        return places_table(fold(self._places), self.session.store.clock.now())

    def _format_waiting(self) -> str:
        if self.shape is None:
            return "e enters a job size"
        return "searching …" if self._error is None else "No response. ctrl+r searches again"

    def scope_crumbs(self) -> Sequence[str]:
        return ("where", f"move {self._moving}") if self._on_choice else ("where",)

    def counts(self) -> tuple[str, str]:
        accepting = sum(place.accepts is not False for place in self._places)
        return counted(accepting, "place"), str(accepting)

    def row_hint(self, row: Mapping[str, Any]) -> str:
        parts = [f"queue {row['queue']}", *filter(None, (row["reason"], row["sooner"]))]
        if row["starts_at"] is not None:
            parts.append(f"estimate: {row['estimated_by']}")
        elif row["wait_seconds"] is not None:
            most = format_span(row["most_wait_seconds"])
            parts.append(f"80% of similar jobs started within {most}")
            parts.append(row["estimated_by"])
        if row["accepts"] is not False:
            parts.append("enter moves the job here" if self._on_choice else "enter opens the form")
        return "  ·  ".join(visible(part) for part in parts)

    # -- search

    def search(self, shape: JobShape) -> None:
        """Search the places of a job; an earlier search is dropped."""
        self.shape = shape
        self._places = ()
        self._error = None
        self._show_shape("")
        self.reload()
        start_worker(self, self._search, shape, group="search", exclusive=True)

    async def _search(self, shape: JobShape) -> None:
        screen = cast("DashboardScreen", self.screen)
        others = [
            one
            for one in screen.sessions
            if one is not self.session and one.store.probe is not None
        ]
        answer = await search_places(shape, [self.session, *others], self._show_places)
        self._answer = answer
        self._error = answer.errors.get(self.session.name)
        self._taken_at = self.session.store.clock.now()
        runs = counted(answer.dry_runs, "dry run")
        self._show_shape(f"{counted(answer.commands, 'scheduler command')}, {runs}")
        self._show_places(answer.places)

    def _show_places(self, places: Sequence[Place]) -> None:
        self._places = [self._with_preference(place) for place in places]
        self.reload()

    def _with_preference(self, place: Place) -> Place:
        """Let the account and the QoS of a job that moves stand for others with the same answer."""
        row = known_row(self.session.store, self._job_id) if self._on_choice else None
        if row is None:
            return place
        same = (place.account == row["account"]) + (place.qos == row["qos"])
        return replace(place, defaults=place.defaults + same * _OWN_PREFERENCE)

    def _show_shape(self, cost: str) -> None:
        if self.shape is not None and self.is_live:
            text = format_shape(self.shape)
            if self._moving:
                text = f"job {visible(self._moving)} moves: {text}"
            self.query_one("#shape", PlainStatic).update("  ·  ".join(filter(None, (text, cost))))

    def do_refresh(self) -> bool:
        if self.shape is not None:
            self.search(self.shape)
        return True

    def do_shape(self) -> None:
        """Prompt for the size of a job."""

        def take(typed: str) -> str:
            try:
                shape = parse_shape(typed)
            except HpcdashError as error:
                return " ".join(filter(None, (error.message, error.next_step)))
            self._typed = typed
            self.search(shape)
            return ""

        if not self.is_live:
            return
        self.screen.query_one(CommandBar).prompt(
            SHAPE, self._typed or self._proposal(), sign="a job with: ", take=take, proposed=True
        )

    def _proposal(self) -> str:
        queues = self.session.store.table(Kind.QUEUES)
        has_gpus = queues is None or any(queues["gpus"].to_pylist())
        return _PROPOSED if has_gpus else _PROPOSED_CPUS

    # -- the form

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        place = next((one for one in self._places if place_id(one) == row_id), None)
        if place is None or place.accepts is False or self.shape is None:
            return
        if self._on_choice is not None:
            self._on_choice(place)
            return
        start_worker(self.screen, self._open_form, place, group="acting")

    async def _open_form(self, place: Place) -> None:
        """Open the form of the place's cluster with the job's size; what it held else stays."""
        from hpcdash.ui.submit.view import SubmitView

        shape = self.shape
        if shape is None or shape.request is None:
            return
        offers = (
            next(one.offers for one in self._answer.clusters if one.session.name == place.cluster)
            if self._answer
            else None
        )
        queue = None if offers is None else offers.queue(place.queue)
        request = shape.request_at(place, queue)
        screen = cast("DashboardScreen", self.screen)
        if place.cluster != screen.session.name:
            await screen.switch([one.name for one in screen.sessions].index(place.cluster))
        await screen.go("submit")
        if isinstance(screen.view, SubmitView):
            screen.view.fill_place(request_text(request))
