"""Saved filters of a view as tabs above its table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from hpcdash.domain.text import clip, visible
from hpcdash.ui.widgets.lines import ClickableLine

ALL = "all"
_TAB_CELLS = 30
_GAP = " │ "


class FilterTabs(ClickableLine):
    """Line of tabs, hidden while there are no filters; the value of a tab is its filter."""

    DEFAULT_CSS = """
    FilterTabs { display: none; color: $table-dim; }
    """

    def show(self, filters: Sequence[tuple[str, str]], present: str) -> None:
        """Show labels with their `filters`; `present` is the applied filter, '' for none."""
        self.display = bool(filters)
        tabs = [(ALL, ""), *filters]
        at = next((at for at, (_, text) in enumerate(tabs) if text == present), 0)
        room = self.size.width or self.app.size.width - 2
        # As many tabs before the present one are left out as it needs room.
        first = 0
        while first < at and sum(_cells(label) for label, _ in tabs[first : at + 1]) > room:
            first += 1
        line = Text(no_wrap=True, overflow="ellipsis")
        self.places = []
        for label, text in tabs[first:]:
            if line.cell_len:
                line.append(_GAP)
            start = line.cell_len
            style = "bold underline" if text == present else ""
            line.append(clip(visible(label), _TAB_CELLS), style)
            self.places.append((start, line.cell_len, text))
        self.set_text(line)


def _cells(label: str) -> int:
    return Text(clip(visible(label), _TAB_CELLS)).cell_len + len(_GAP)
