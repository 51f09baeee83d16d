"""Asks which of some things a chart shows: metrics, or runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import SelectionList, Static
from textual.widgets.selection_list import Selection

from hpcdash.domain.text import clip, visible
from hpcdash.ui.screens.dialogs import _Choices


class ChoiceDialog(ModalScreen[tuple[str, ...] | None]):
    """Some of a list, by marks; answers the marked in the order of the list, None where it was left."""

    DEFAULT_CSS = """
    ChoiceDialog { align: center middle; background: $background 60%; }
    ChoiceDialog > .frame {
        width: 72; max-width: 95%; height: auto; max-height: 90%; padding: 1 2;
        background: $surface; border: round $primary;
    }
    ChoiceDialog .title { text-style: bold; height: auto; margin-bottom: 1; }
    ChoiceDialog .aside { color: $text-muted; height: auto; margin-top: 1; }
    ChoiceDialog SelectionList, ChoiceDialog SelectionList:focus {
        height: auto; border: none; padding: 0; background: $surface;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave as it was"),
        Binding("enter", "take", "take", priority=True),
    ]

    def __init__(self, title: str, choices: Sequence[tuple[str, str]], chosen: Sequence[str], most: int) -> None:
        """`choices` are values and their words; no more than `most` can be taken."""
        super().__init__()
        self._title = title
        self._choices = choices
        self._chosen = chosen
        self._most = most

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame"):
            yield Static(visible(self._title), classes="title", markup=False)
            yield _Choices(
                *(Selection(clip(visible(words), 60), value, value in self._chosen) for value, words in self._choices)
            )
            yield Static(self._usage(), classes="aside", markup=False)

    def _usage(self, more: str = "") -> str:
        return more or "space marks, enter takes, esc leaves as it was"

    def on_mount(self) -> None:
        self.on_resize()
        self.query_one(SelectionList).focus()

    def on_resize(self) -> None:
        self.query_one(SelectionList).styles.max_height = max(3, int(0.9 * self.size.height) - 8)

    def action_take(self) -> None:
        marked = set(self.query_one(SelectionList).selected)
        if len(marked) > self._most:
            self.query_one(".aside", Static).update(self._usage(f"no more than {self._most} at once; space unmarks"))
            return
        self.dismiss(tuple(value for value, _ in self._choices if value in marked))

    def action_leave(self) -> None:
        self.dismiss(None)
