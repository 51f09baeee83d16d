"""The single lines around a view: where one is, what is wrong, a hint, how the cluster is, which
keys there are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import Input, Static

from hpcdash.domain.text import cell_width, clip, clip_path, visible
from hpcdash.errors import CommandError, HpcdashError, program_name
from hpcdash.ui.actions import Action, key_sign

_GAP = " │ "
_KEY_GAP, _GROUP_GAP = "   ", "  │  "
# Actions always on the line of keys, and those at its end.
_FIRST = frozenset({"help"})
_LESS_OFTEN = frozenset({"detail", "alter"})
_USEFUL_RANK = 2
_EVERYWHERE = frozenset({"help", "command", "palette", "back", "escape", "refresh"})
_ASIDE_COLUMNS = 118
# Alone, or after the name of a host.
_PATH = re.compile(r"(?<![^\s:])(?:~|\.{1,2})?/\S+")
_SHORTEST_PATH = 24


class TextInput(Input):
    """A line of text whose cursor does not blink: each blink would cross a slow line."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_blink = False


class StatusPart(Struct, frozen=True):
    """One part of the status line, with its short form for little room.

    One that `is_aside` stands muted at the right of a wide line, and is left out of any other.
    """

    text: str
    style: str = ""
    short: str = ""
    is_aside: bool = False


class Line(Static):
    """One line of plain content; repaints only when its text changed.

    Nothing in it is ever read as markup.
    """

    DEFAULT_CSS = """
    Line { height: 1; width: 1fr; padding: 0 1; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", id=id, classes=classes, markup=False)
        self._shown: Text | None = None

    def set_text(self, text: Text) -> None:
        if self._shown is None or text.markup != self._shown.markup:
            self._shown = text
            # It stays one line of the whole width: nothing else moves.
            self.update(text, layout=False)


class ActionLine(Line):
    """Line with texts that name actions; a click on one is its key."""

    class Clicked(Message):
        """Posted after a click on an action's text: its `name`."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self) -> None:
        super().__init__()
        # The first cell of an action's text, the one after the last, and its name.
        self.places: list[tuple[int, int, str]] = []

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        for start, end, name in self.places:
            if at is not None and start <= at.x < end:
                self.post_message(self.Clicked(name))


class Breadcrumb(ActionLine):
    """Line of the location: cluster, view, scope, filter; on the right the other views."""

    DEFAULT_CSS = """
    Breadcrumb { background: $panel; color: $foreground; }
    """

    def show(
        self,
        crumbs: Sequence[str],
        marked: int = 0,
        elsewhere: Sequence[Action] = (),
        here: str = "",
    ) -> None:
        """`elsewhere` are the actions that show a view, `here` the name of the one that is
        shown.
        """
        text = Text(no_wrap=True, overflow="ellipsis")
        for index, crumb in enumerate(crumbs):
            if index:
                text.append(" › ", "dim")
            text.append(visible(crumb), "bold" if index == 0 else "")
        if marked:
            text.append(f"   ● {marked} marked", "bold")
        room = (self.size.width or self.app.size.width - 2) - text.cell_len - 3
        pieces = [
            Text.assemble(
                (key_sign(action.key), "bold"),
                (f" {action.short or action.text}", "" if action.name == here else "dim"),
            )
            for action in elsewhere
        ]
        gap = "  "
        after = ""
        if Text(gap).join(pieces).cell_len > room:
            pieces = [Text(key_sign(action.key), "dim") for action in elsewhere]
            gap = " "
            after = " views"
        views = Text(gap).join(pieces).append(after, "dim")
        self.places = []
        if elsewhere and views.cell_len <= room:
            text.append(" " * (room + 3 - views.cell_len))
            start = text.cell_len
            for action, piece in zip(elsewhere, pieces, strict=True):
                self.places.append((start, start + piece.cell_len, action.name))
                start += piece.cell_len + len(gap)
            text.append_text(views)
        self.set_text(text)


class Hint(Line):
    """Meaning of the row under the cursor, in plain text."""

    DEFAULT_CSS = """
    Hint { color: $text-muted; }
    """

    def show(self, text: str) -> None:
        """Show a hint; the longest path in it is cut in its middle where it does not fit."""
        text = visible(text)
        excess = cell_width(text) - self.size.width
        path = (
            max(_PATH.findall(text), key=cell_width, default="")
            if self.size.width and excess > 0
            else ""
        )
        if path:
            text = text.replace(
                path, clip_path(path, max(_SHORTEST_PATH, cell_width(path) - excess)), 1
            )
        self.set_text(Text(text, no_wrap=True, overflow="ellipsis"))


class StatusLine(Line):
    """Cluster and user, freshness, counts by state; at the right the rate of commands."""

    DEFAULT_CSS = """
    StatusLine { background: $panel; color: $foreground; }
    """

    def show(self, parts: Sequence[StatusPart]) -> None:
        """All parts, whole where they fit; else the short forms, from the end; what is still too
        long is cut there.
        """
        shown = [part for part in parts if part.text and not part.is_aside]
        forms = [visible(part.text) for part in shown]
        room = self.size.width
        for index in reversed(range(len(shown))):
            if not room or cell_len(_GAP.join(forms)) <= room:
                break
            forms[index] = visible(shown[index].short or shown[index].text)
        text = Text(no_wrap=True, overflow="ellipsis")
        for form, part in zip(forms, shown, strict=True):
            text.append(_GAP if text.plain else "", "dim")
            text.append(form, part.style)
        aside = _GAP.join(visible(part.text) for part in parts if part.is_aside)
        gap = room - text.cell_len - cell_len(aside)
        if aside and room >= _ASIDE_COLUMNS and gap >= len(_GAP):
            text.append(" " * gap + aside, "dim")
        self.set_text(text)


class KeyLine(ActionLine):
    """The most useful keys in groups: for what is pointed at, of the view, and those that are
    everywhere.
    """

    DEFAULT_CSS = """
    KeyLine { color: $text-muted; }
    """

    def show(self, actions: Sequence[Action]) -> None:
        """By rank as many as there is room for; see ui.actions."""
        room = self.size.width or self.app.size.width - 2
        chosen: tuple[list[Action], ...] = ([], [], [])
        left = room
        for action in sorted((one for one in actions if one.shown is not None), key=_importance):
            rank = action.shown or 0
            group = chosen[0 if rank < 0 else 2 if action.name in _EVERYWHERE else 1]
            cells = cell_len(_key_text(action)) + len(_KEY_GAP if group else _GROUP_GAP)
            if cells <= left + (len(_GROUP_GAP) if left == room else 0):
                group.append(action)
                left -= cells
        text = Text(no_wrap=True, overflow="ellipsis")
        self.places = []
        for group in filter(None, chosen):
            for at, action in enumerate(sorted(group, key=lambda one: one.shown or 0)):
                text.append((_KEY_GAP if at else _GROUP_GAP) if text.plain else "", "dim")
                start = text.cell_len
                text.append(key_sign(action.key), "bold").append(f" {action.short or action.text}")
                self.places.append((start, text.cell_len, action.name))
        self.set_text(text)


def _importance(action: Action) -> tuple[int, int]:
    """Return an action's order: help, keys of the selection, the view's useful keys, the rest."""
    rank = action.shown or 0
    if action.name in _FIRST:
        return 0, rank
    if rank < 0:
        return (1 if action.name not in _LESS_OFTEN else 3), rank
    return (2 if rank <= _USEFUL_RANK else 4), rank


def _key_text(action: Action) -> str:
    return f"{key_sign(action.key)} {action.short or action.text}"


class Banner(Static):
    """Error in up to four lines: event, its own text, the data shown meanwhile, the next step."""

    DEFAULT_CSS = """
    Banner {
        height: auto; max-height: 6; padding: 0 1; display: none;
        background: $tint-error; color: $foreground; border-left: thick $error;
    }
    Banner.-notice { background: $tint-warning; border-left: thick $warning; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._shown = ""

    def show(self, error: HpcdashError | None, meanwhile: str = "") -> None:
        lines: list[str] = []
        if error is not None:
            lines.append(f"✗ {error.message}")
            if (
                isinstance(error, CommandError)
                and error.output
                and error.output not in error.message
            ):
                speaker = program_name(error.argv) if error.argv else "output"
                lines.append(f"  {speaker}: {' '.join(error.output.split())}")
            if meanwhile:
                lines.append(f"  {meanwhile}")
            if error.next_step:
                lines.append(f"  → {error.next_step}")
        self._draw(lines)

    def notice(self, text: str) -> None:
        """Something worth knowing that is no error, in one line or more."""
        self._draw(f"! {text}".splitlines() if text else [], notice=True)

    def _draw(self, lines: list[str], notice: bool = False) -> None:
        width = max(20, (self.size.width or self.app.size.width) - 4)
        text = "\n".join(clip(visible(line), width * 2) for line in lines)
        if text != self._shown:
            self._shown = text
            self.update(Text(text))
        self.set_class(notice, "-notice")
        self.display = bool(lines)
