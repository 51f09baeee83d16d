"""Wall of slots: a cell for each GPU of a cluster, one's own jobs by letter and colour."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from operator import is_
from string import ascii_letters
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

import pyarrow as pa
from textual.content import Content

from hpcdash.domain.job_ids import parse_array_id
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, counted, visible
from hpcdash.domain.units import format_age, format_count
from hpcdash.services.cluster.occupancy import (
    NodeSlots,
    Occupancy,
    SlotGroup,
    cluster_occupancy,
)
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.ui.themes import JOB_STYLES
from hpcdash.ui.widgets.cells import MUTED, signs, usage_bar
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.ui.screen import DashboardScreen

_GAP = "  "
_MODEL_CELLS = 14
_BAR_CELLS = 20
# Nodes that are one cell each are drawn in blocks, which are easier to count.
_BLOCK_NODES = 10
_MAX_NAMED = 3
# Up to so many nodes and own jobs the occupancy takes less than a frame.
_AT_ONCE_ROWS = 1000
_OTHERS_STYLE = "$quiet"
_FREE_STYLE = "bold $foreground"
_LEADING_WORDS = re.compile(r".*[-_.]", re.DOTALL)


class JobLetters:
    """Letters of the user's running jobs; a job keeps its letter, an array has one letter."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def assign(self, job_ids: Iterable[str]) -> bool:
        """Assign letters to the running jobs, and return whether any changed.

        Jobs beyond the alphabet get none.
        """
        before = self._letters
        running = dict.fromkeys(map(parse_array_id, job_ids))
        self._letters = {key: self._letters[key] for key in running if key in self._letters}
        taken = set(self._letters.values())
        unused = (letter for letter in ascii_letters if letter not in taken)
        missing = (key for key in running if key not in self._letters)
        self._letters |= dict(zip(missing, unused, strict=False))
        return self._letters != before

    @property
    def is_used(self) -> bool:
        """Whether any job has a letter."""
        return bool(self._letters)

    def letter(self, job_id: str) -> str:
        """Letter of a job or of its array; '' for none."""
        return self._letters.get(parse_array_id(job_id), "")


_KNOWN_LETTERS: WeakKeyDictionary[ClusterStore, JobLetters] = WeakKeyDictionary()


def job_letters(store: ClusterStore) -> JobLetters:
    """Return the letters of a cluster's jobs, which all views share."""
    return _KNOWN_LETTERS.setdefault(store, JobLetters())


def letter_style(letter: str) -> str:
    """Return the name of a letter's style, one of themes.JOB_STYLES; '' for no letter."""
    return JOB_STYLES[ascii_letters.index(letter) % len(JOB_STYLES)] if letter else ""


class SlotWall(PlainStatic):
    """Title and cells of a cluster's slots, over the table of jobs or nodes."""

    DEFAULT_CSS = """
    SlotWall { height: auto; padding: 0 1; display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._store: ClusterStore | None = None
        self._tables: tuple[object, ...] = ()
        # The newest occupancy, and the drawn one.
        self._computed: Occupancy | None = None
        self._occupancy: Occupancy | None = None
        self._room = (0, 0)
        self._age = ""
        self._body: list[Content] = []
        self._has_cells = False

    async def on_click(self) -> None:
        await cast("DashboardScreen", self.screen).act("show_nodes")

    def show(self, store: ClusterStore, *, lines: int) -> bool:
        """Draw the known nodes in at most `lines` lines with a title; 0 hides the wall.

        Return whether letters of jobs have changed.
        """
        nodes = store.snapshots.get(Kind.NODES)
        mine = store.snapshots.get(Kind.MINE)
        if not lines or nodes is None:
            self.display = False
            return False
        tables = (nodes.table, mine.table if mine is not None else None)
        if not self._tables or not all(map(is_, tables, self._tables)):
            self._tables = tables
            if store is not self._store:
                self._store = store
                self._computed = None
            if sum(len(table) for table in tables if table is not None) > _AT_ONCE_ROWS:
                start_worker(self, self._compute_beside, *tables, group="wall", exclusive=True)
            else:
                self._computed = cluster_occupancy(*tables)
        is_new = self._computed is not self._occupancy
        self._occupancy = occupancy = self._computed
        has_new_letters = False
        if is_new and occupancy is not None:
            own_ids = (part.job_id for node in occupancy.nodes for part in node.own)
            has_new_letters = job_letters(store).assign(own_ids)
        if occupancy is None or not is_drawn(occupancy):
            self.display = False
            return has_new_letters
        room = self.size.width or self.app.size.width - 2
        self.display = True
        if self._room != (room, lines) or is_new:
            self._room = (room, lines)
            self._age = ""
            cells = cell_lines(occupancy, job_letters(store), room, lines)
            self._has_cells = bool(cells)
            self._body = cells or bar_lines(occupancy, lines)
        age = format_age(max(0.0, store.clock.now() - nodes.taken_at))
        if age != self._age:
            self._age = age
            title = wall_title(occupancy, room, age, has_cells=self._has_cells)
            self.update(Content("\n").join([title, *self._body]))
        return has_new_letters

    async def _compute_beside(self, nodes: pa.Table, mine: pa.Table | None) -> None:
        """Compute the occupancy beside the event loop; the next tick draws it."""
        self._computed = await asyncio.to_thread(cluster_occupancy, nodes, mine)


def is_drawn(occupancy: Occupancy) -> bool:
    """Whether a wall shows more than the queues' gauges; the CPUs of a single node do not."""
    return occupancy.unit == "GPU" or sum(len(group.nodes) for group in occupancy.groups) > 1


def wall_title(occupancy: Occupancy, room: int, age: str, *, has_cells: bool) -> Content:
    """Return `GPUs  33 of 40 used · 3 free · g05 down ──── 40 s ago`.

    Above cells, the title has a legend of their signs if there is room.
    """
    total = sum(group.total for group in occupancy.groups)
    used = sum(group.used for group in occupancy.groups)
    free = sum(group.free for group in occupancy.groups)
    own = sum(node.own_count for node in occupancy.nodes)
    parts = [f"{format_count(used)} of {format_count(total)} used"]
    parts += [f"{format_count(own)} yours"] if own else []
    parts.append(f"{format_count(free)} free")
    left = Content.assemble((f"{occupancy.unit}s", "bold"), _GAP, (" · ".join(parts), "$table-dim"))
    if down := occupancy.unavailable:
        named = ", ".join(down) if len(down) <= _MAX_NAMED else counted(len(down), "node")
        left += Content.styled(f" · {visible(named)} down", "$text-error")
    right = Content.styled(f" {age} ago", "$table-dim")
    sign = signs()
    legend = f"   {sign.slot_used} others  {sign.slot_free} free  {sign.slot_down} down  a-z yours"
    if has_cells and room - left.cell_length - right.cell_length > len(legend) + 8:
        left += Content.styled(legend, "$table-dim")
    rule = max(0, room - left.cell_length - right.cell_length - 1)
    return left + Content.styled(f" {sign.rule * rule}", _OTHERS_STYLE) + right


def cell_lines(occupancy: Occupancy, letters: JobLetters, room: int, lines: int) -> list[Content]:
    """Draw the groups in at most `lines` of `room` cells: a cell for each slot, else for each node.

    Return [] if they do not fit.
    """
    width = max((len(_model(group)) for group in occupancy.groups), default=0)
    drawings = (_slot_lines, _node_lines) if occupancy.unit == "GPU" else (_node_lines,)
    for draw in drawings:
        drawn: list[Content] = []
        for group in occupancy.groups:
            label = Content.styled(f"{_model(group):<{width}}", "bold") + (_GAP if width else "")
            added = draw(group, letters, label, room, lines - len(drawn))
            if not added:
                break
            drawn += added
        else:
            return drawn
    return []


def _model(group: SlotGroup) -> str:
    """Return the model; of several, such as slices of a GPU, the first and the number of others."""
    first, *others = group.model.split(",")
    more = f" +{len(others)}" if others else ""
    return clip(visible(first), _MODEL_CELLS - len(more)) + more


def _slot_lines(
    group: SlotGroup, letters: JobLetters, label: Content, room: int, lines: int
) -> list[Content]:
    """Return `a100  g01 aaaa  g02 ■■■□`, with a cell for each slot; [] if they do not fit."""
    names = _short_names([visible(node.name) for node in group.nodes])
    widest = max(map(len, names))
    most_slots = max(node.total for node in group.nodes)
    width = widest + 1 + most_slots + len(_GAP)
    if len(names) > lines * ((room - label.cell_length) // width):
        return []
    nodes = [
        Content.styled(f"{name:<{widest}} ", "$table-dim")
        + _slots(node, letters)
        + " " * (most_slots - node.total)
        for name, node in zip(names, group.nodes, strict=True)
    ]
    return _flow(nodes, _GAP, label, room)


def _short_names(names: Sequence[str]) -> list[str]:
    """Return the names without their common leading words: `juno-g01` is `g01`."""
    lowest = min(names)
    # All names share what the first and the last in order share.
    pairs = enumerate(zip(lowest, max(names), strict=False))
    differing = next((position for position, (left, right) in pairs if left != right), 0)
    shared = _LEADING_WORDS.match(lowest[:differing])
    return [name[shared.end() :] for name in names] if shared else list(names)


def _node_lines(
    group: SlotGroup, letters: JobLetters, label: Content, room: int, lines: int
) -> list[Content]:
    """Return `a100  ■■■◧□□□×aa ■■■■■`, with a cell for each node; [] if they do not fit."""
    starts = range(0, len(group.nodes), _BLOCK_NODES)
    if len(starts) > lines * ((room - label.cell_length) // (_BLOCK_NODES + 1)):
        return []
    cells = [_node_cell(node, letters) for node in group.nodes]
    blocks = [Content("").join(cells[start : start + _BLOCK_NODES]) for start in starts]
    return _flow(blocks, " ", label, room)


def _flow(parts: Sequence[Content], gap: str, label: Content, room: int) -> list[Content]:
    """Return lines of parts, which are as wide as the first one, behind a label or indented."""
    width = parts[0].cell_length + len(gap)
    line_parts = max(1, (room - label.cell_length + len(gap)) // width)
    indent = Content(" " * label.cell_length)
    return [
        (indent if start else label) + Content(gap).join(parts[start : start + line_parts])
        for start in range(0, len(parts), line_parts)
    ]


def _slots(node: NodeSlots, letters: JobLetters) -> Content:
    """Return the slots of a node: the user's, other users', free slots."""
    parts: list[tuple[str, str]] = []
    uncounted: dict[str, str] = {}
    drawn = 0
    for own in node.own:
        letter = letters.letter(own.job_id)
        style = f"bold ${letter_style(letter)}" if letter else "bold"
        sign = letter or signs().slot_used
        if own.count is None:
            uncounted[sign] = f"{style} underline"
        else:
            count = min(own.count, node.total - drawn)
            parts.append((sign * count, style))
            drawn += count
    # The job has at least one slot; the number is not reported.
    for sign, style in uncounted.items():
        if drawn < node.total:
            parts.append((sign, style))
            drawn += 1
    if node.used is None:
        parts.append((signs().missing * (node.total - drawn), _OTHERS_STYLE))
        return Content.assemble(*parts)
    others = max(0, min(node.used, node.total) - drawn)
    parts.append((signs().slot_used * others, _OTHERS_STYLE))
    left = node.total - drawn - others
    if node.is_unavailable:
        parts.append((signs().slot_down * left, "$text-error"))
    else:
        parts.append((signs().slot_free * left, _FREE_STYLE))
    return Content.assemble(*parts)


def _node_cell(node: NodeSlots, letters: JobLetters) -> Content:
    """Return the cell of a node: the letter of the user's largest job there, else its use."""
    own_letters = [(own.count or 0, letters.letter(own.job_id)) for own in node.own]
    if letter := max(own_letters, default=(0, ""))[1]:
        return Content.styled(letter, f"bold ${letter_style(letter)}")
    if node.is_unavailable:
        return Content.styled(signs().slot_down, "$text-error")
    if node.used is None:
        return Content.styled(signs().missing, _OTHERS_STYLE)
    if not node.used:
        return Content.styled(signs().slot_free, _FREE_STYLE)
    is_full = node.used >= node.total
    return Content.styled(signs().slot_used if is_full else signs().slot_partly, _OTHERS_STYLE)


def bar_lines(occupancy: Occupancy, lines: int) -> list[Content]:
    """Return a line for each group: `a100  ━━━━━━━━━━━━──  812/1024   41 nodes free   3 down`."""
    shown = occupancy.groups[:lines]
    if len(occupancy.groups) > lines:
        shown = occupancy.groups[: lines - 1]
    width = max((len(_model(group)) for group in shown), default=0)
    drawn = [_bar_line(group, width) for group in shown]
    if others := occupancy.groups[len(shown) :]:
        used = sum(group.used for group in others)
        total = sum(group.total for group in others)
        more = f"+ {counted(len(others), 'model')}  {format_count(used)}/{format_count(total)}"
        drawn.append(Content.styled(more, "$table-dim"))
    return drawn


def _bar_line(group: SlotGroup, width: int) -> Content:
    available = sum(node.total for node in group.nodes if not node.is_unavailable)
    share = min(1.0, group.used / available) if available else 0.0
    free = sum(1 for node in group.nodes if node.free == node.total)
    down = sum(1 for node in group.nodes if node.is_unavailable)
    own = sum(node.own_count for node in group.nodes)
    label = f"{_model(group):<{width}}{_GAP if width else ''}"
    parts: list[tuple[str, str]] = [(label, "bold")]
    parts += [
        (piece, _OTHERS_STYLE if style == MUTED else "$table-dim")
        for piece, style in usage_bar(share, _BAR_CELLS)
    ]
    parts.append((f"{_GAP}{format_count(group.used)}/{format_count(available)}", ""))
    parts.append((f"{_GAP}{counted(free, 'node')} free", "$table-dim"))
    parts += [(f"{_GAP}{format_count(own)} yours", "bold $accent")] if own else []
    parts += [(f"{_GAP}{format_count(down)} down", "$text-error")] if down else []
    return Content.assemble(*parts)
