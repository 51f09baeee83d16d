"""Lines around a view: location, error, hint, status of the cluster, keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.message import Message
from textual.visual import VisualType
from textual.widgets import Input, Static

from hpcdash.domain.text import cell_width, clip, clip_path, visible
from hpcdash.errors import CommandError, HpcdashError, program_name
from hpcdash.ui.actions import Action, key_sign

_GAP = " │ "
_KEY_GAP = "   "
_GROUP_GAP = "  │  "
# Actions that are always in the line of keys, and actions at its end.
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
    """Part of the status line, with a short form for narrow lines.

    A part that `is_aside` is muted, at the right of a wide line; narrow lines omit it.
    """

    text: str
    style: str = ""
    short: str = ""
    is_aside: bool = False


class PlainStatic(Static):
    """Text that is never read as markup, whose height follows each update.

    Textual 8 keeps the height of the first of two updates between which it lays out another widget.
    """

    def __init__(
        self, content: VisualType = "", *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(content, id=id, classes=classes, markup=False)

    def update(self, content: VisualType = "", *, layout: bool = True) -> None:
        """Show other content; nothing is drawn for the same text."""
        shown = self.content
        is_same = content == shown and isinstance(content, str | Text)
        if not is_same or getattr(content, "style", "") != getattr(shown, "style", ""):
            super().update(content, layout=layout)

    def clear_cached_dimensions(self) -> None:
        super().clear_cached_dimensions()
        self._box_model_cache.clear()


class Line(PlainStatic):
    """One line of plain content; repaints only when its text changed.

    Nothing in it is ever read as markup.
    """

    DEFAULT_CSS = """
    Line { height: 1; width: 1fr; padding: 0 1; }
    """

    def set_text(self, text: Text) -> None:
        # The line keeps its size, so no other widget moves.
        self.update(text, layout=False)


class ClickableLine(Line):
    """Line with texts that stand for values, such as the name of an action."""

    class Clicked(Message):
        """Posted after a click on a text, with its `value`."""

        def __init__(self, value: str) -> None:
            super().__init__()
            self.value = value

    def __init__(self) -> None:
        super().__init__()
        # Start and end of each text in cells, and its value.
        self.places: list[tuple[int, int, str]] = []

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        for start, end, value in self.places:
            if at is not None and start <= at.x < end:
                self.post_message(self.Clicked(value))


class Breadcrumb(ClickableLine):
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
        """Show the location; `elsewhere` are the actions that open views, `here` is the name of the
        present view's action.
        """
        text = Text(no_wrap=True, overflow="ellipsis")
        for number, crumb in enumerate(crumbs):
            text.append(" › " if number else "", "dim")
            text.append(visible(crumb), "" if number else "bold")
        if marked:
            text.append(f"   ● {marked} marked", "bold")
        room = (self.size.width or self.app.size.width - 2) - text.cell_len - 3
        labels = [
            Text.assemble(
                (key_sign(action.key), "bold"),
                (f" {action.short or action.text}", "" if action.name == here else "dim"),
            )
            for action in elsewhere
        ]
        gap = "  "
        ending = ""
        if Text(gap).join(labels).cell_len > room:
            labels = [Text(key_sign(action.key), "dim") for action in elsewhere]
            gap = " "
            ending = " views"
        views = Text(gap).join(labels).append(ending, "dim")
        self.places = []
        if elsewhere and views.cell_len <= room:
            text.append(" " * (room + 3 - views.cell_len))
            start = text.cell_len
            for action, label in zip(elsewhere, labels, strict=True):
                self.places.append((start, start + label.cell_len, action.name))
                start += label.cell_len + len(gap)
            text.append_text(views)
        self.set_text(text)


class Hint(Line):
    """Meaning of the row under the cursor, in plain text."""

    DEFAULT_CSS = """
    Hint { color: $text-muted; }
    """

    def show(self, text: str) -> None:
        """Show a hint; if it does not fit, its longest path is cut in the middle."""
        text = visible(text)
        excess = cell_width(text) - self.size.width
        if self.size.width and excess > 0 and (paths := _PATH.findall(text)):
            longest = max(paths, key=cell_width)
            room = max(_SHORTEST_PATH, cell_width(longest) - excess)
            text = text.replace(longest, clip_path(longest, room), 1)
        self.set_text(Text(text, no_wrap=True, overflow="ellipsis"))


class StatusLine(Line):
    """Cluster and user, freshness, counts by state; at the right the rate of commands."""

    DEFAULT_CSS = """
    StatusLine { background: $panel; color: $foreground; }
    """

    def show(self, parts: Sequence[StatusPart]) -> None:
        """Show all parts; if they do not fit, the last ones in their short forms.

        A line that is still too long is cut at its end.
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


class KeyLine(ClickableLine):
    """Most useful keys in groups: of the selected row, of the view, of all views."""

    DEFAULT_CSS = """
    KeyLine { color: $text-muted; }
    """

    def show(self, actions: Sequence[Action]) -> None:
        """Show as many keys as fit, by their rank (Action.shown)."""
        row_actions: list[Action] = []
        view_actions: list[Action] = []
        general_actions: list[Action] = []
        room = self.size.width or self.app.size.width - 2
        ranked = [action for action in actions if action.shown is not None]
        for action in sorted(ranked, key=_importance):
            if (action.shown or 0) < 0:
                group = row_actions
            else:
                group = general_actions if action.name in _EVERYWHERE else view_actions
            label = f"{key_sign(action.key)} {action.short or action.text}"
            cells = cell_len(label) + len(_KEY_GAP if group else _GROUP_GAP)
            if cells <= room:
                group.append(action)
                room -= cells
        text = Text(no_wrap=True, overflow="ellipsis")
        self.places = []
        for group in filter(None, (row_actions, view_actions, general_actions)):
            for number, action in enumerate(sorted(group, key=lambda action: action.shown or 0)):
                gap = _KEY_GAP if number else _GROUP_GAP
                text.append(gap if text.plain else "", "dim")
                start = text.cell_len
                text.append(key_sign(action.key), "bold").append(f" {action.short or action.text}")
                self.places.append((start, text.cell_len, action.name))
        self.set_text(text)


def _importance(action: Action) -> tuple[int, int]:
    """Return the sort key of an action: help, row, useful keys of the view, the rest."""
    rank = action.shown or 0
    if action.name in _FIRST:
        return 0, rank
    if rank < 0:
        return (1 if action.name not in _LESS_OFTEN else 3), rank
    return (2 if rank <= _USEFUL_RANK else 4), rank


class Banner(PlainStatic):
    """Error in up to four lines: message, output, age of the shown data, next step."""

    DEFAULT_CSS = """
    Banner {
        height: auto; max-height: 6; padding: 0 1; display: none;
        background: $tint-error; color: $foreground; border-left: thick $error;
    }
    Banner.-notice { background: $tint-warning; border-left: thick $warning; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown = ""

    def show(self, error: HpcdashError | None, meanwhile: str = "") -> None:
        lines: list[str] = []
        if error is not None:
            lines.append(f"✗ {error.message}")
            if isinstance(error, CommandError) and (output := error.output_beside_message):
                source = program_name(error.argv) if error.argv else "output"
                lines.append(f"  {source}: {' '.join(output.split())}")
            if meanwhile:
                lines.append(f"  {meanwhile}")
            if error.next_step:
                lines.append(f"  → {error.next_step}")
        self._draw(lines)

    def notice(self, text: str) -> None:
        """Show a notice in one line or more, which is no error; '' hides the banner."""
        self._draw(f"! {text}".splitlines() if text else [], notice=True)

    def _draw(self, lines: list[str], notice: bool = False) -> None:
        width = max(20, (self.size.width or self.app.size.width) - 4)
        text = "\n".join(clip(visible(line), width * 2) for line in lines)
        if text != self._shown:
            self._shown = text
            self.update(Text(text))
        self.set_class(notice, "-notice")
        self.display = bool(lines)
