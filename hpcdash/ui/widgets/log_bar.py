"""The line below a stream of a log: which one it is, how far one is in it, and what is going on."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from hpcdash.domain.text import visible
from hpcdash.domain.units import format_memory
from hpcdash.services.logs.window import LogWindow
from hpcdash.ui.widgets.log_viewport import Viewport

# Words, and their style.
Part = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Standing:
    """What is to be said besides what window and viewport know; '' and None for what is not.

    `growth` is how the file grows, `line_number` that of the first line on the screen, from 1, `searched` a text,
    `said` what a search or a jump is doing or came to; a file that `has_ended` grows no more.
    """

    growth: str = ""
    line_number: int | None = None
    searched: str = ""
    said: str = ""
    has_ended: bool = False


def place_parts(window: LogWindow, viewport: Viewport, standing: Standing) -> list[Part]:
    """Where one is, part by part, the first from the left."""
    look = window.look
    size = look.size if look.is_there else window.end
    placed = viewport.placed()
    end = window.rows[placed[-1].row].end if placed else 0
    number = standing.line_number
    return [
        (f"{100 * end // size} % of {format_memory(size)}" if size else "", ""),
        (standing.growth, ""),
        (f"line {number:,}".replace(",", " ") if number is not None else "", ""),
        (_following_words(viewport, standing.has_ended) if placed else "", "" if viewport.following else "bold"),
        ("wrapped" if viewport.wrap else "", ""),
        (f"from column {viewport.left + 1}" if viewport.left else "", ""),
        (f"/{standing.searched}" if standing.searched else "", ""),
        (standing.said or ("reading …" if viewport.owed else ""), "bold"),
    ]


def _following_words(viewport: Viewport, has_ended: bool) -> str:
    if viewport.following:
        return "at the end" if has_ended else "following"
    return "end: to the end" if has_ended else "stopped (end follows)"


def bar_text(name: Part, host: str, parts: list[Part], said: str, width: int) -> Text:
    """All of it in one line of `width` cells; where not everything can be told, what is `said` comes first."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(*name)
    if host:
        text.append(f" on {visible(host)}")
    shown = [(visible(words), style) for words, style in parts if words]
    said = visible(said)
    if said and cell_len(text.plain) + sum(2 + cell_len(words) for words, _ in shown) > width:
        shown.sort(key=lambda part: part[0] != said)
    for words, style in shown:
        text.append("  ").append(words, style)
    return text
