"""The dialog that lists what a field may say, or what to start from, each with what is to be known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from hpcdash.domain.text import clip, visible, width_of
from hpcdash.ui.screens.act_dialogs import FRAME, ScrollingDialog

_VALUE_CELLS = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """Something to choose: `value` is what it means, `label` how it is called ('': as its value), `words` about it."""

    value: str
    words: str = ""
    label: str = ""


class ChoiceDialog(ScrollingDialog):
    """One of some choices; `take` is called with its value."""

    DEFAULT_CSS = (
        FRAME.format(name="ChoiceDialog")
        + """
    ChoiceDialog OptionList, ChoiceDialog OptionList:focus {
        height: auto; border: none; padding: 0; background: $surface; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "leave", "leave", show=False)]

    def __init__(self, title: str, choices: Sequence[Choice], take: Callable[[str], None], present: str = "") -> None:
        super().__init__()
        self.heading = title
        self.choices = tuple(choices)
        self.take = take
        self.present = present

    def compose(self) -> ComposeResult:
        names = [clip(visible(choice.label or choice.value), _VALUE_CELLS) for choice in self.choices]
        widest = max(map(width_of, names), default=0)
        options = []
        for name, choice in zip(names, self.choices, strict=True):
            words = Text(name, "bold", no_wrap=True, overflow="ellipsis")
            words.append(" " * (widest - width_of(name) + 2) + visible(choice.words), "not bold")
            options.append(Option(words))
        with Vertical(classes="frame"):
            yield Static(visible(self.heading), classes="title", markup=False)
            yield OptionList(*options, classes="scrolls", markup=False, compact=True)
            yield Static("↑ ↓ enter takes it, esc leaves it as it was", classes="aside", markup=False)

    def on_mount(self) -> None:
        listed = self.query_one(OptionList)
        values = [choice.value for choice in self.choices]
        listed.highlighted = values.index(self.present) if self.present in values else 0
        listed.focus()

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss()
        self.take(self.choices[event.option_index].value)

    def action_leave(self) -> None:
        self.dismiss()
