"""Line above the jobs: use of each queue, the user's jobs by state, and the fair share."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, cast

from textual.content import Content

from hpcdash.domain.job_text import state_word
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, counted, visible
from hpcdash.domain.units import format_count
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.cluster.summary import QueueUse, own_fair_shares, own_jobs, queue_uses
from hpcdash.ui.themes import style_name
from hpcdash.ui.widgets.cells import MUTED, signs, usage_bar
from hpcdash.ui.widgets.lines import PlainStatic

if TYPE_CHECKING:
    from hpcdash.ui.screen import DashboardScreen

# A smaller terminal has no room for the header.
MIN_COLUMNS = 90
MIN_LINES = 28
_GAP = "   "
_BAR_CELLS = 10
_NAME_CELLS = 16
# Queues that are named after their resource.
_RESOURCES = frozenset({"CPU", "GPU", "TPU", "NPU", "HPU"})


class ClusterHeader(PlainStatic):
    """Gauges of the queues, first those with the user's jobs; on the right the user's jobs."""

    DEFAULT_CSS = """
    ClusterHeader { height: auto; max-height: 1; padding: 0 1; display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._shown = ""
        # Each key calls `show`: equal tables are not drawn again.
        self._tables: tuple[object, ...] = ()
        self._room = 0

    async def on_click(self) -> None:
        await cast("DashboardScreen", self.screen).act("show_queues")

    def show(self, store: ClusterStore, *, is_requested: bool, has_counts: bool) -> None:
        """Draw the queues and, with `has_counts`, the user's jobs by state.

        The header is hidden if it is not requested or no queues are known.
        """
        queues = store.snapshots.get(Kind.QUEUES)
        mine = store.snapshots.get(Kind.MINE)
        if not is_requested or queues is None:
            self.display = False
            self._tables = ()
            return
        room = self.size.width or self.app.size.width - 2
        shares = store.snapshots.get(Kind.SHARES)
        refusals = store.queue_refusals
        tables = (queues.table, mine and mine.table, shares and shares.table, refusals, has_counts)
        if self._tables and all(map(is_, tables, self._tables)) and self._room == room:
            return
        self._tables = tables
        self._room = room
        notes = queues.table["_server_note"].unique().to_pylist()
        content = header_content(
            queue_uses(queues.table, mine.table if mine else None, refusals),
            own_jobs(mine.table) if mine and has_counts else (),
            room,
            next(filter(None, notes), ""),
            own_fair_shares(shares.table) if shares else (),
        )
        self.display = bool(content.plain)
        if content.markup != self._shown:
            self._shown = content.markup
            self.update(content)


def header_content(
    queues: Sequence[QueueUse],
    own: Sequence[tuple[str, int]],
    room: int,
    note: str = "",
    shares: Sequence[tuple[str, float]] = (),
) -> Content:
    """Return as many gauges as fit in `room` cells, and the number of the others.

    `own` are counts of the user's jobs by state; `note` is on the scheduler itself, '' for none;
    `shares` are the user's fair shares by account, the highest first.
    """
    jobs = _own_content(own)
    if shares:
        highest = f"{shares[0][1]:.2f}"
        lowest = f"{shares[-1][1]:.2f}"
        text = highest if highest == lowest else f"{lowest}-{highest}"
        share = Content.assemble(("fair share ", "$text-muted"), text)
        if share.cell_length + jobs.cell_length <= room * 2 // 3:
            jobs = share + _GAP + jobs if jobs else share
    taken = jobs.cell_length + len(_GAP) if jobs else 0
    line = Content.styled(clip(visible(note), room // 2), "$text-warning")
    for number, queue in enumerate(queues):
        gauge = _gauge(queue)
        left = len(queues) - number
        more = f"{_GAP}+{counted(left, 'queue')}"
        end = taken + (len(more) if left > 1 else 0)
        if line and line.cell_length + len(_GAP) + gauge.cell_length + end > room:
            line += Content.styled(more, "$text-muted")
            break
        line = line + _GAP + gauge if line else gauge
    if not jobs:
        return line
    gap = max(len(_GAP) if line else 0, room - line.cell_length - jobs.cell_length)
    return line + " " * gap + jobs


def _gauge(queue: QueueUse) -> Content:
    """Return `gpu ━━━━━━━━── 88/96 GPU`."""
    parts: list[tuple[str, str]] = [
        (clip(visible(queue.name), _NAME_CELLS), "bold" if queue.own else "")
    ]
    if queue.closed:
        parts.append((f" ({queue.closed})", "$text-warning"))
    unit = "" if queue.name in _RESOURCES else f" {queue.kind}"
    if queue.used is None:
        parts.append((f" {format_count(queue.total)}{unit}", ""))
    else:
        parts.append((" ", ""))
        used_style = "$text-warning" if queue.share >= 1 else "$primary"
        parts += [
            (piece, "$quiet" if style == MUTED else used_style)
            for piece, style in usage_bar(queue.share, _BAR_CELLS)
        ]
        parts.append((f" {format_count(queue.used)}/{format_count(queue.total)}{unit}", ""))
    if queue.nodes_down:
        parts.append((f" {signs().states['down']}{queue.nodes_down}", "$text-error"))
    return Content.assemble(*parts)


def _own_content(own: Sequence[tuple[str, int]]) -> Content:
    """Return `▸ 3 running  ◦ 12 pending`."""
    parts = [
        Content.styled(
            f"{signs().states.get(state, '?')} {format_count(count)} {state_word(state)}",
            f"$state-{style_name(state)}",
        )
        for state, count in own
    ]
    return Content("  ").join(parts)
