"""Which part of a log will be wanted next by who reads on from where they are. Reads nothing."""

from __future__ import annotations

from hpcdash.services.logs.window import HELD_ROWS, PAGE_BYTES, LogWindow
from hpcdash.ui.widgets.log_viewport import Viewport

# Rows that are held ahead of the screen; fewer than half of those held on either side, so that reading comes to an end.
_AHEAD_ROWS = HELD_ROWS // 8


def wanted_side(window: LogWindow, viewport: Viewport) -> int:
    """Before what is held (-1), after it (1), or nowhere (0)."""
    if viewport.following or not window.rows or viewport.height <= 0:
        return 0
    placed = viewport.placed()
    first, last = placed[0].row, placed[-1].row
    # Short lines are held by their number, long ones by their bytes.
    before_bytes = window.rows[first].offset - window.start
    is_near_first = first < _AHEAD_ROWS and before_bytes < PAGE_BYTES // 2
    if (viewport.owed < 0 or (viewport.owed == 0 and is_near_first)) and not window.begins_the_file:
        return -1
    after_bytes = window.end - window.rows[last].end
    if len(window.rows) - last <= _AHEAD_ROWS and after_bytes < PAGE_BYTES // 2 and not window.ends_the_file:
        return 1
    return 0
