"""The dialogs: what a login node asks, an unknown host key, a choice of columns, words to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

from rich.segment import Segment
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import Button, Input, SelectionList, Static
from textual.widgets.selection_list import Selection

from hpcdash.domain.text import visible
from hpcdash.transport.base import HostKeyQuestion, Prompt

T = TypeVar("T")
_FRAME = """
    {name} {{ align: center middle; background: $background 60%; }}
    {name} > .frame {{
        width: 76; max-width: 95%; height: auto; max-height: 90%; padding: 1 2;
        background: $surface; border: round $primary;
    }}
    {name} .title {{ text-style: bold; height: auto; margin-bottom: 1; }}
    {name} .words {{ height: auto; }}
    {name} .aside {{ color: $text-muted; height: auto; margin-top: 1; }}
"""


class _Scrolling(ModalScreen[T]):
    """A dialog whose part of class `.scrolls` takes the height that is left, and no more."""

    # The frame's border and padding, the title and the line below, each with a blank one.
    _around_lines = 8

    def on_resize(self) -> None:
        for part in self.query(".scrolls"):
            part.styles.max_height = max(3, int(0.9 * self.size.height) - self._around_lines)


class _Choices(SelectionList[str]):
    """A list whose boxes are empty where nothing is chosen: by themselves they differ in colour only."""

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        index = self.scroll_offset.y + y
        if index >= self.option_count or self.get_option_at_index(index).value in self.selected:
            return strip
        segments = list(strip)
        return Strip([segments[0], Segment(" ", segments[1].style), *segments[2:]])


class PromptDialog(_Scrolling[list[str] | None]):
    """What a login node asks, hop named, its own words shown as plain text."""

    DEFAULT_CSS = (
        _FRAME.format(name="PromptDialog")
        + """
    PromptDialog VerticalScroll { height: auto; scrollbar-size-vertical: 1; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "give_up", "give up")]

    def __init__(self, prompt: Prompt) -> None:
        super().__init__()
        self.prompt = prompt
        # A label and a field take four lines.
        self._around_lines += 4 * len(prompt.fields)

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame"):
            yield Static(f"{visible(self.prompt.hop)} asks", classes="title", markup=False)
            said = "\n".join(visible(line) for line in self._own_message())
            if said:
                with VerticalScroll(classes="scrolls", can_focus=False):
                    yield Static(said, classes="words", markup=False)
            for field in self.prompt.fields:
                yield Static(visible(field.label.strip()), classes="words", markup=False)
                yield Input(password=field.secret)
            yield Static("enter sends it, esc gives up", classes="aside", markup=False)

    def _own_message(self) -> list[str]:
        lines = f"{self.prompt.said}\n{self.prompt.title}\n{self.prompt.instructions}".splitlines()
        return [line for line in lines if line.strip()]

    def on_mount(self) -> None:
        fields = self.query(Input)
        if fields:
            fields.first().focus()

    @on(Input.Submitted)
    def _next_or_send(self, event: Input.Submitted) -> None:
        event.stop()
        fields = list(self.query(Input))
        position = fields.index(event.input)
        if position + 1 < len(fields):
            fields[position + 1].focus()
        else:
            self.dismiss([field.value for field in fields])

    def action_give_up(self) -> None:
        self.dismiss(None)


class HostKeyDialog(ModalScreen[bool]):
    """An unknown host's fingerprint; nothing is trusted unless a person says yes."""

    DEFAULT_CSS = (
        _FRAME.format(name="HostKeyDialog")
        + """
    HostKeyDialog .buttons { layout: horizontal; height: auto; margin-top: 1; }
    HostKeyDialog Button { margin-right: 2; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,n", "refuse", "no"), Binding("y", "accept", "yes")]

    def __init__(self, question: HostKeyQuestion) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        asked = self.question
        with Vertical(classes="frame"):
            yield Static(f"{visible(asked.hop)} is not known yet", classes="title", markup=False)
            yield Static(
                f"Its {visible(asked.algorithm)} key has the fingerprint\n\n  {visible(asked.fingerprint)}\n\n"
                f"Compare it with what your site publishes. Trust it, and remember it in\n"
                f"{visible(asked.known_hosts_path)}?",
                classes="words",
                markup=False,
            )
            with Vertical(classes="buttons"):
                yield Button("No (n)", id="no")
                yield Button("Yes, it is the one (y)", id="yes", variant="warning")

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_accept(self) -> None:
        self.dismiss(True)

    def action_refuse(self) -> None:
        self.dismiss(False)


class ColumnsDialog(_Scrolling[list[str] | None]):
    """Which columns are shown; they keep the order of the list."""

    DEFAULT_CSS = (
        _FRAME.format(name="ColumnsDialog")
        + """
    ColumnsDialog > .frame { width: 44; }
    ColumnsDialog SelectionList, ColumnsDialog SelectionList:focus {
        height: auto; border: none; padding: 0; background: $surface;
    }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "leave as it was"),
        Binding("comma,enter", "take", "take", priority=True),
    ]

    def __init__(self, titles: Mapping[str, str], chosen: Sequence[str]) -> None:
        super().__init__()
        self.titles = titles
        self.chosen = chosen

    def compose(self) -> ComposeResult:
        # Those shown come first, in their order.
        names = [*self.chosen, *(name for name in self.titles if name not in self.chosen)]
        with Vertical(classes="frame"):
            yield Static("columns", classes="title", markup=False)
            yield _Choices(
                *(Selection(f"{name:<12} {self.titles[name]}", name, name in self.chosen) for name in names),
                classes="scrolls",
            )
            yield Static("space chooses, enter takes, esc leaves as it was", classes="aside", markup=False)

    def action_take(self) -> None:
        chosen = set(self.query_one(SelectionList).selected)
        names = [*self.chosen, *(name for name in self.titles if name not in self.chosen)]
        self.dismiss([name for name in names if name in chosen])

    def action_cancel(self) -> None:
        self.dismiss(None)


class WordsDialog(_Scrolling[None]):
    """Words to read: help, or a whole error. Any of the usual keys closes it."""

    DEFAULT_CSS = (
        _FRAME.format(name="WordsDialog")
        + """
    WordsDialog > .frame { width: 90; }
    WordsDialog VerticalScroll { height: auto; scrollbar-size-vertical: 1; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,exclamation_mark,enter", "close", "close"),
        Binding("down,j", "scroll(1)", "down"),
        Binding("up,k", "scroll(-1)", "up"),
    ]

    def __init__(self, title: str, words: Text) -> None:
        super().__init__()
        self.heading = title
        self.words = words

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame"):
            yield Static(visible(self.heading), classes="title", markup=False)
            with VerticalScroll(classes="scrolls"):
                yield Static(self.words, classes="words", markup=False)
            yield Static("↑ ↓ scroll, esc closes", classes="aside", markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False, immediate=True)

    def action_close(self) -> None:
        self.dismiss(None)
