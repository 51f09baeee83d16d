"""The streams of a job's output on the screen, one or both side by side, and which of them keys are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Static

from hpcdash.backends.job_detail import LogFiles
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.widgets.log_pane import LogPane

STREAMS = ("stdout", "stderr")


class LogStreams(Horizontal):
    """Panes for stdout and stderr; where one file is for both, it is stdout's.

    `row` gives the job's row as it is now, None where it is not known.
    """

    DEFAULT_CSS = """
    LogStreams { height: 1fr; width: 1fr; }
    LogStreams > #asking { padding: 0 1; color: $table-dim; }
    """

    def __init__(self, session: ClusterSession, stream: str, row: Callable[[], Mapping[str, Any] | None]) -> None:
        super().__init__()
        self.stream = stream
        self.is_beside = False
        self._session = session
        self._row = row
        self._files: LogFiles | None = None
        self._panes: dict[str, LogPane] = {}
        # Where in a stream's file its next pane is to begin, None for the end.
        self._begin_at: dict[str, int | None] = {}
        self._wraps = False

    def compose(self) -> ComposeResult:
        yield Static("asking where its output is …", id="asking", markup=False)

    @property
    def pane(self) -> LogPane | None:
        """The stream that keys are for."""
        return self._panes.get(self.stream)

    @property
    def panes(self) -> tuple[LogPane, ...]:
        return tuple(self._panes.values())

    def stream_of(self, focused: Widget) -> str | None:
        """The stream whose lines have the focus."""
        return next((stream for stream, pane in self._panes.items() if pane.lines is focused), None)

    def say_unknown(self) -> None:
        """Where the output is could not be found out."""
        for words in self.query("#asking").results(Static):
            words.update("where its output is could not be found out")

    async def show_files(self, files: LogFiles, *, keeps_places: bool) -> None:
        """Panes of these files in place of those there are; `keeps_places`: the files are copies of the same."""
        self._files = files
        self._begin_at = {name: pane.place_in_file() if keeps_places else None for name, pane in self._panes.items()}
        for pane in self.panes:
            await pane.remove()
        self._panes.clear()
        await self.query("#asking").remove()
        await self.show_wanted()

    async def show_wanted(self) -> None:
        """Show the stream one is at, and the other where both are wanted."""
        assert self._files is not None
        if self._files.stderr is None:
            self.stream = "stdout"
            self.is_beside = False
        for stream in STREAMS:
            wanted = self.is_beside or stream == self.stream
            pane = self._panes.get(stream)
            if pane is None and wanted:
                pane = self._panes[stream] = self._made(stream, self._files)
                first = next(iter(self.query(LogPane)), None)
                await self.mount(pane, before=first if stream == "stdout" else None)
            if pane is not None:
                pane.display = wanted
                pane.is_active = stream == self.stream
                pane.is_beside = self.is_beside
                pane.set_class(self.is_beside and stream == "stderr", "-beside")
                pane.look_now()
                pane.say()

    def _made(self, stream: str, files: LogFiles) -> LogPane:
        path = files.stdout if stream == "stdout" else files.stderr
        note = f"path: {files.note}" if files.note else ""
        if path is None:
            note = f"where its {stream} goes is not known{f': {files.note}' if files.note else ''}"
        begin_at = self._begin_at.pop(stream, None)
        pane = LogPane(self._session, stream, path, note=note, host=files.host, begin_at=begin_at)
        pane.row = self._row()
        pane.viewport.wrap = self._wraps
        return pane

    def toggle_wrap(self) -> None:
        self._wraps = not self._wraps
        for pane in self.panes:
            pane.set_wrap(self._wraps)
