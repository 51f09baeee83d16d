"""The filters a person keeps for a view, as tabs above its table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import events
from textual.message import Message

from hpcdash.domain.text import clip, visible
from hpcdash.ui.widgets.lines import Line

ALL = "all"
_TAB_CELLS = 30
_GAP = " │ "


class FilterTabs(Line):
    """One line, which is there only while there is a filter to show; a click on one chooses it."""

    DEFAULT_CSS = """
    FilterTabs { display: none; color: $table-dim; }
    """

    class Chosen(Message):
        """A filter was clicked on: its `filter`, '' for all rows."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.filter = text

    def __init__(self) -> None:
        super().__init__()
        self._places: list[tuple[int, int, str]] = []

    def show(self, filters: Sequence[tuple[str, str]], present: str) -> None:
        """`filters` are labels and what they stand for, `present` the one that is applied."""
        self.display = bool(filters)
        tabs = [(ALL, ""), *filters]
        at = next((at for at, (_, text) in enumerate(tabs) if text == present), 0)
        room = self.size.width or self.app.size.width - 2
        # Tabs before the present one are left out until it fits on the line.
        first = 0
        while first < at and sum(_cells(label) for label, _ in tabs[first : at + 1]) > room:
            first += 1
        line = Text(no_wrap=True, overflow="ellipsis")
        self._places = []
        for label, text in tabs[first:]:
            if line.cell_len:
                line.append(_GAP)
            start = line.cell_len
            line.append(
                clip(visible(label), _TAB_CELLS), "bold underline" if text == present else ""
            )
            self._places.append((start, line.cell_len, text))
        self.set_text(line)

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        for start, end, text in self._places:
            if at is not None and start <= at.x < end:
                self.post_message(self.Chosen(text))


def _cells(label: str) -> int:
    return Text(clip(visible(label), _TAB_CELLS)).cell_len + len(_GAP)
