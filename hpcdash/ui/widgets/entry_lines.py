"""Groups of entries as lines of text: labels in a column, values wrapped beside them, bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from hpcdash.domain.text import clip, visible
from hpcdash.services.jobs.page import Entry, Group
from hpcdash.ui.widgets import cells

StyleOf = Callable[[str], Style]
_LABEL_CELLS = 16
_MOST_LABEL_CELLS = 26
_INDENT = 2
_BAR_CELLS = 10


def label_cells(labels: Iterable[str]) -> int:
    """How wide the labels are with what stands around them."""
    longest = max((cell_len(label) for label in labels), default=0)
    return _INDENT + min(max(_LABEL_CELLS, longest), _MOST_LABEL_CELLS) + 2


def entry_lines(group: Group, width: int, style_of: StyleOf, console: Console) -> list[Text]:
    """A title, the entries, and an empty line."""
    beside = label_cells(visible(entry.label) for entry in group.entries)
    lines = [Text(clip(visible(group.title), width), style_of("title"))]
    room = width - beside - _BAR_CELLS - _INDENT
    with_bar = [cell_len(visible(entry.words)) for entry in group.entries if entry.fraction is not None]
    # Where the longest of them leaves no room none has a bar.
    bar_at = max(with_bar, default=0) if max(with_bar, default=0) <= room else None
    for entry in group.entries:
        if not entry.label:
            lines += _under(Text(" " * _INDENT), _value(entry, style_of), width, console)
            continue
        lines += _beside(entry.label, _value(entry, style_of, bar_at), beside, width, style_of, console)
    return [*lines, Text()]


def pair_lines(title: str, pairs: Mapping[str, str], width: int, style_of: StyleOf, console: Console) -> list[Text]:
    """As entry_lines, for plain pairs of words."""
    return entry_lines(Group(title, tuple(Entry(key, value) for key, value in pairs.items())), width, style_of, console)


def in_columns(left: Sequence[Text], right: Sequence[Text], column: int) -> list[Text]:
    """Two lists of lines beside each other, the right one from cell `column` + 3 on."""
    lines = []
    for at in range(max(len(left), len(right))):
        # A line's own style would be that of what is appended, too.
        line = Text.assemble(left[at]) if at < len(left) else Text()
        if at < len(right) and right[at].plain:
            line.append(" " * (column + 3 - line.cell_len))
            line.append_text(right[at])
        lines.append(line)
    return lines


def _value(entry: Entry, style_of: StyleOf, bar_at: int | None = None) -> Text:
    if entry.pieces:
        return Text.assemble(*((visible(words), style_of(state)) for words, state in entry.pieces))
    style = style_of("label") if entry.is_dim else style_of("advice") if entry.label == "→" else style_of(entry.state)
    text = Text(visible(entry.value), style)
    if entry.fraction is not None and bar_at is not None:
        text.append(" " * (max(0, bar_at - text.cell_len) + 2))
        for words, name in cells.usage_bar(min(max(entry.fraction, 0.0), 1.0), _BAR_CELLS):
            text.append(words, style_of("bar" if name == cells.ACCENT else "label"))
    return text


def _beside(label: str, value: Text, beside: int, width: int, style_of: StyleOf, console: Console) -> list[Text]:
    shown = clip(visible(label), beside - _INDENT - 2)
    head = Text(" " * _INDENT)
    head.append(shown, style_of("label"))
    head.append(" " * (beside - head.cell_len))
    return _under(head, value, width, console)


def _under(head: Text, value: Text, width: int, console: Console) -> list[Text]:
    """The value after the head, its further lines under its first."""
    indent = head.cell_len
    parts = value.wrap(console, max(10, width - indent), overflow="fold") or [Text()]
    lines = []
    for at, part in enumerate(parts):
        line = head if at == 0 else Text(" " * indent)
        part.rstrip()
        lines.append(Text.assemble(line, part))
    return lines
