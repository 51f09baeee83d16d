"""Reading, drawing and anomaly search of a chart's runs, while the chart is shown."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.errors import HpcdashError
from hpcdash.services.metrics.charts.state import LETTERS, MAX_RUNS, ChartState, Mark, Picture
from hpcdash.services.session import ClusterSession
from hpcdash.ui.metrics.plot import ChartPlot
from hpcdash.ui.screen import unexpected
from hpcdash.ui.view import View
from hpcdash.ui.widgets.cells import ASCII_SIGNS, signs
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.services.metrics.charts.curves import ChartRequest
    from hpcdash.services.metrics.facts import RunFacts, RunReader
    from hpcdash.services.metrics.run import WatchedRun


# Interval of the search for anomalies, which takes no more than a sixth of the time.
READ_SECONDS = 1.0
_READ_SHARE = 5.0
_TRIED_AGAIN_SECONDS = 20.0
# With arrays; 75 ms.
_ARRAYS = (
    "hpcdash.services.metrics.run",
    "hpcdash.services.metrics.charts.draw",
    "hpcdash.services.metrics.facts",
)


class ShownRun(Struct):
    """A run of the chart: its logs as they are read, and its facts."""

    job_id: str
    watched: WatchedRun | None = None
    is_open: bool = False
    error: HpcdashError | None = None
    # Why there could be no facts.
    judging_error: HpcdashError | None = None
    reader: RunReader | None = None
    facts: RunFacts | None = None
    changes: int = 0
    # Of which state the facts are.
    read_changes: tuple[object, ...] = ()

    @property
    def marks(self) -> tuple[Mark, ...]:
        """All findings known, the severest and newest first."""
        return () if self.facts is None else self.facts.found


class ChartFollowing(View):
    """Runs that are read, and the newest picture of them.

    Series, pictures and findings are made in threads.
    """

    def __init__(
        self,
        session: ClusterSession,
        *,
        job_id: str,
        others: Sequence[str] = (),
        patterns: Sequence[str] = (),
        file: str = "",
    ) -> None:
        """`others` are shown over the job.

        `patterns` and `file` are as WatchedRun takes them.
        """
        super().__init__(session)
        self.job_id = job_id
        self.state = ChartState()
        self.picture = Picture()
        self.is_drawing = False
        self.drawing_error: HpcdashError | None = None
        self.runs = [ShownRun(shown_id) for shown_id in dict.fromkeys((job_id, *others))][:MAX_RUNS]
        self._patterns = tuple(patterns)
        self._file = file
        self._dirty = asyncio.Event()
        self._changed_at: float | None = None

    def show_texts(self, request: ChartRequest) -> None:
        """Show what stands around a new picture, which is of this request."""

    def show_problem(self, text: str) -> None:
        """Do nothing: no problem is shown here."""

    @property
    def is_drawn(self) -> bool:
        """Whether the picture shows all that is known."""
        return not (self.is_drawing or self._dirty.is_set())

    def on_mount(self) -> None:
        spare_what_is_loaded()
        # The frame is painted first: threads that import take the interpreter from it.
        self.call_after_refresh(self.start)

    def shown(self) -> None:
        self.take_focus()
        self.start()

    def on_resize(self) -> None:
        # The plot itself receives no size while it is hidden, as it is without room for a picture.
        self._dirty.set()

    def on_hide(self) -> None:
        self.workers.cancel_group(self, "watch")

    def start(self) -> None:
        if self.is_live and self.display:
            self.workers.cancel_group(self, "watch")
            start_worker(self, self._begin, group="watch")

    async def _begin(self) -> None:
        # One thread for all: each that runs beside the event loop keeps it waiting for the
        # interpreter.
        await asyncio.to_thread(_load)
        if not self.is_live:
            return
        for run in self.runs:
            start_worker(self, self._watch, run, group="watch")
        start_worker(self, self._keep_drawn, group="watch")
        start_worker(self, self._keep_read, group="watch")
        self._dirty.set()

    async def _watch(self, run: ShownRun) -> None:
        """Read a run's logs; what keeps one from it is shown, and tried again."""
        from hpcdash.services.metrics import run as metrics

        while True:
            try:
                if run.watched is None:
                    run.watched = metrics.WatchedRun(
                        self.session.store, run.job_id, patterns=self._patterns, file=self._file
                    )
                if not run.is_open:
                    await run.watched.open()
                    run.is_open = True
                run.error = None
                self._changed(run)
                await run.watched.follow(partial(self._changed, run))
                return
            except HpcdashError as error:
                run.error = error
            except Exception as error:  # a log may hold anything; it ends nothing
                run.error = unexpected(self.app, "read this", error, run.error)
            self._changed(run)
            await asyncio.sleep(_TRIED_AGAIN_SECONDS)

    def _changed(self, run: ShownRun) -> None:
        run.changes += 1
        self._changed_at = self.session.store.clock.now()
        self._dirty.set()

    async def _keep_drawn(self) -> None:
        """Draw whenever something changed; what changed meanwhile is in the next picture."""
        from hpcdash.services.metrics.charts.draw import draw

        while True:
            await self._dirty.wait()
            self._dirty.clear()
            if not self.is_live:
                # The view is being left.
                return
            self.is_drawing = True
            request = self.request()
            try:
                self.picture = await asyncio.to_thread(draw, request)
                self.drawing_error = None
            except Exception as error:
                self.drawing_error = unexpected(self.app, "draw this", error, self.drawing_error)
            finally:
                self.is_drawing = False
            if not self.children:
                return
            self.query_one(ChartPlot).show(self.picture)
            try:
                self.show_texts(request)
            except Exception as error:
                self.drawing_error = unexpected(self.app, "explain this", error)
                self.show_problem(self.drawing_error.message)

    async def _keep_read(self) -> None:
        """Search anomalies in each run that changed."""
        while True:
            began = asyncio.get_running_loop().time()
            for run in list(self.runs):
                await self._read(run)
            took = asyncio.get_running_loop().time() - began
            await asyncio.sleep(max(READ_SECONDS, _READ_SHARE * took))

    async def _read(self, run: ShownRun) -> None:
        from hpcdash.services.metrics.facts import RunReader

        watched = run.watched
        picture = self.picture
        if watched is None or not picture.panels or not self.is_live:
            return
        names = tuple(panel.name for panel in picture.panels)
        state = (run.changes, names, picture.axis)
        # A run that stands still may have stalled.
        job = watched.job_facts()
        if state == run.read_changes and not job.is_running:
            return
        before = (run.facts, run.judging_error)
        try:
            run.reader = run.reader or RunReader()
            run.facts = await asyncio.to_thread(
                run.reader.read, watched.run, names, picture.axis, job
            )
            run.judging_error = None
        except Exception as error:
            run.judging_error = unexpected(self.app, "read this", error, run.judging_error)
        run.read_changes = state
        if (run.facts, run.judging_error) != before:
            self._dirty.set()

    def request(self) -> ChartRequest:
        from hpcdash.services.metrics.charts.curves import ChartRequest, ChartRun

        runs = []
        for letter, run in zip(LETTERS, self.runs, strict=False):
            if run.watched is None:
                continue
            chart_run = ChartRun(letter, run.watched.title, run.watched.run)
            if run.facts is not None:
                chart_run = replace(chart_run, marks=run.facts.marks, marks_axis=run.facts.axis)
            runs.append(chart_run)
        plot = self.query_one(ChartPlot)
        # While there is nothing to show the plot is hidden, and has the size that it had.
        size = plot.size if plot.display and plot.size.height else self.size
        return ChartRequest(
            tuple(runs),
            self.state,
            size.width,
            size.height,
            zone=self.session.zone,
            is_ascii=is_ascii(),
        )


def _load() -> None:
    for name in _ARRAYS:
        import_module(name)


@cache
def spare_what_is_loaded() -> None:
    """Exempt the program's present modules and widgets from garbage collection, once.

    A full collection, which loading a chart causes, stops every thread for 70 to 220 ms.
    """
    gc.freeze()


def is_ascii() -> bool:
    """Whether this terminal's locale has no braille letters."""
    return signs() is ASCII_SIGNS
