"""Frame of every dialog, and general dialogs: prompts, host keys, choices, texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, TypeVar

from msgspec import Struct
from rich.segment import Segment
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import Button, Input, OptionList, SelectionList
from textual.widgets.option_list import Option
from textual.widgets.selection_list import Selection

from hpcdash.domain.text import cell_width, clip_path, visible
from hpcdash.transport.base import HostKeyQuestion, Prompt
from hpcdash.ui.widgets.cells import signs
from hpcdash.ui.widgets.lines import PlainStatic, TextInput

T = TypeVar("T")
_VALUE_CELLS = 32
_LABEL_CELLS = 60


class AnswerButton(Button):
    """Button of one line; a sign shows that it has the focus, besides its colours."""

    def __init__(self, text: str, *, id: str) -> None:
        super().__init__(f"  {text}", id=id, compact=True)
        self._text = text

    def watch_has_focus(self, value: bool) -> None:
        super().watch_has_focus(value)
        self.label = f"{signs().states['running'] if value else ' '} {self._text}"

    def rename(self, text: str) -> None:
        """Show another text."""
        self._text = text
        self.watch_has_focus(self.has_focus)
        # The width changes with the text.
        self.refresh(layout=True)


class Dialog(ModalScreen[T]):
    """Frame of a dialog: the heading, the widgets of `compose_body`, a line of keys.

    A part of class `.scrolls` takes at most the remaining height; keys scroll a VerticalScroll.
    """

    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog > .frame {
        width: 90; max-width: 96%; height: auto; max-height: 96%; padding: 0 2;
        background: $surface; border: round $primary;
    }
    Dialog > .frame.dangerous { border: heavy $error; }
    Dialog .title { text-style: bold; height: auto; margin-bottom: 1; }
    Dialog .scrolls { height: auto; scrollbar-size-vertical: 1; }
    Dialog .words { height: auto; }
    Dialog .warned { height: auto; color: $warning; text-style: bold; }
    Dialog .label { height: auto; margin-top: 1; color: $table-dim; }
    Dialog .noted { height: auto; margin-top: 1; }
    Dialog .under { height: auto; padding-left: 2; }
    Dialog .aside { height: auto; margin-top: 1; color: $table-dim; }
    Dialog .buttons { height: 1; margin-top: 1; }
    Dialog AnswerButton { margin-right: 2; min-width: 0; background: $boost; }
    Dialog AnswerButton:focus { background: $boost; text-style: bold reverse; }
    Dialog SelectionList, Dialog SelectionList:focus { border: none; padding: 0; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave", show=False),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
    ]
    # Lines around the scrolling part: the border, and title and keys with a blank line each.
    fixed_lines = 6

    def __init__(self, heading: str) -> None:
        super().__init__()
        self.heading = heading

    @property
    def is_dangerous(self) -> bool:
        return False

    @property
    def is_live(self) -> bool:
        """Whether its widgets exist; a dialog that is being removed loses the innermost first."""
        return self.is_attached and not (self._pruning or self._closing)

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame dangerous" if self.is_dangerous else "frame"):
            yield PlainStatic(visible(self.heading), classes="title")
            yield from self.compose_body()
            yield PlainStatic(self.format_keys(), classes="aside", id="keys")

    def compose_body(self) -> ComposeResult:
        raise NotImplementedError

    def format_keys(self) -> str:
        """Return the line of keys."""
        return ""

    def on_resize(self) -> None:
        frame = self.query_one(".frame")
        width = int(frame.styles.width.value) if frame.styles.width is not None else 90
        # The frame's border and padding take six cells.
        columns = max(20, min(width, int(0.96 * self.size.width)) - 6)
        more_lines = (cell_width(visible(self.heading)) - 1) // columns
        for part in frame.query(".scrolls"):
            part.styles.max_height = max(
                3, int(0.96 * self.size.height) - self.fixed_lines - more_lines
            )

    def action_scroll(self, lines: int) -> None:
        for scroll in self.query(VerticalScroll):
            scroll.scroll_relative(y=lines, animate=False, immediate=True)

    def action_page(self, pages: int) -> None:
        for scroll in self.query(VerticalScroll):
            scroll.scroll_relative(
                y=pages * max(1, scroll.size.height - 1), animate=False, immediate=True
            )

    def action_leave(self) -> None:
        self.dismiss(None)


class PromptDialog(Dialog[list[str] | None]):
    """Prompt of a login node, with the name of the hop and its message."""

    DEFAULT_CSS = "PromptDialog > .frame { width: 76; }"

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(f"{visible(prompt.hop)} asks")
        self.prompt = prompt
        # A label and a field take four lines.
        self.fixed_lines += 4 * len(prompt.fields) + bool(prompt.requester)

    def compose_body(self) -> ComposeResult:
        if self.prompt.requester:
            yield PlainStatic(f"For {visible(self.prompt.requester)}", classes="words")
        if message := "\n".join(visible(line) for line in self._own_message()):
            with VerticalScroll(classes="scrolls", can_focus=False):
                yield PlainStatic(message, classes="words")
        for field in self.prompt.fields:
            yield PlainStatic(visible(field.label.strip()), classes="words")
            yield TextInput(password=field.secret)

    def format_keys(self) -> str:
        return "enter send · esc cancel"

    def _own_message(self) -> list[str]:
        lines = (
            f"{self.prompt.message}\n{self.prompt.title}\n{self.prompt.instructions}".splitlines()
        )
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


class HostKeyDialog(Dialog[bool]):
    """Fingerprint of an unknown host, which is trusted only if the user confirms."""

    DEFAULT_CSS = "HostKeyDialog > .frame { width: 76; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "answer(False)", "no", show=False),
        Binding("y", "answer(True)", "yes", show=False),
    ]

    def __init__(self, question: HostKeyQuestion) -> None:
        super().__init__(f"Unknown host {visible(question.hop)}")
        self.question = question

    def compose_body(self) -> ComposeResult:
        requested = self.question
        for_whom = f"For {visible(requested.requester)}.\n\n" if requested.requester else ""
        yield PlainStatic(
            f"{for_whom}Its {visible(requested.algorithm)} key fingerprint is\n\n  "
            f"{visible(requested.fingerprint)}\n\nCompare it with the one your site publishes. "
            f"Trust this key and add it to\n{visible(requested.known_hosts_path)}?",
            classes="words",
        )
        with Horizontal(classes="buttons"):
            yield AnswerButton("No (n)", id="no")
            yield AnswerButton("Yes, trust it (y)", id="yes")

    def format_keys(self) -> str:
        return "y trust · n/esc cancel · tab switch"

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, is_yes: bool) -> None:
        self.dismiss(is_yes)


class _Checkboxes(SelectionList[str]):
    """List with empty boxes for unchosen items; Textual's differ only in colour."""

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        index = self.scroll_offset.y + y
        if index >= self.option_count or self.get_option_at_index(index).value in self.selected:
            return strip
        segments = list(strip)
        return Strip([segments[0], Segment(" ", segments[1].style), *segments[2:]])


class ChecklistDialog(Dialog[list[str] | None]):
    """Choice of several items; returns the marked values in order, None if it was cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("comma,enter", "take", "take", show=False, priority=True),
        Binding("J,shift+down", "move(1)", "move down", show=False, priority=True),
        Binding("K,shift+up", "move(-1)", "move up", show=False, priority=True),
    ]

    def __init__(
        self,
        heading: str,
        choices: Sequence[tuple[str, str]],
        chosen: Sequence[str],
        most: int = 1000,
        *,
        is_ordered: bool = False,
    ) -> None:
        """`choices` are values and labels, of which at most `most` can be chosen.

        The user can change their order if `is_ordered`.
        """
        super().__init__(heading)
        self._choices = list(choices)
        self._chosen = chosen
        self._most = most
        self._is_ordered = is_ordered

    def compose_body(self) -> ComposeResult:
        yield _Checkboxes(*self._selections(self._chosen), classes="scrolls")

    def _selections(self, chosen: Collection[str]) -> list[Selection[str]]:
        return [
            Selection(clip_path(visible(label), _LABEL_CELLS), value, value in chosen)
            for value, label in self._choices
        ]

    def format_keys(self) -> str:
        move = " · J/K move" if self._is_ordered else ""
        return f"space toggle{move} · enter apply · esc cancel"

    def action_move(self, step: int) -> None:
        """Move the choice at the cursor by a step."""
        shown = self.query_one(SelectionList)
        at = shown.highlighted
        if not self._is_ordered or at is None or not 0 <= at + step < len(self._choices):
            return
        chosen = set(shown.selected)
        self._choices.insert(at + step, self._choices.pop(at))
        shown.clear_options()
        shown.add_options(self._selections(chosen))
        shown.highlighted = at + step

    def on_mount(self) -> None:
        widest = max((cell_width(visible(label)) for _, label in self._choices), default=0)
        # Frame and boxes take twelve cells; the line of keys needs 52 with the frame.
        self.query_one(".frame").styles.width = max(52, min(widest, _LABEL_CELLS) + 12)
        self.query_one(SelectionList).focus()

    def action_take(self) -> None:
        marked = set(self.query_one(SelectionList).selected)
        if len(marked) > self._most:
            self.query_one("#keys", PlainStatic).update(
                f"at most {self._most} at once; space clears one"
            )
            return
        self.dismiss([value for value, _ in self._choices if value in marked])


class Choice(Struct, frozen=True):
    """Choice with a `value`, a `label` ('': the value) and a description, `text`."""

    value: str
    text: str = ""
    label: str = ""


class ChoiceDialog(Dialog[None]):
    """Choice of one item; `take` is called with its value."""

    DEFAULT_CSS = """
    ChoiceDialog OptionList, ChoiceDialog OptionList:focus {
        border: none; padding: 0; background: $surface; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "leave", "leave", show=False)]

    def __init__(
        self,
        heading: str,
        choices: Sequence[Choice],
        take: Callable[[str], None],
        present: str = "",
        preview: Callable[[str], None] = lambda value: None,
    ) -> None:
        """`preview` is called with the value under the cursor, and with `present` on leaving."""
        super().__init__(heading)
        self.choices = tuple(choices)
        self.take = take
        self.present = present
        self.preview = preview

    def compose_body(self) -> ComposeResult:
        names = [
            clip_path(visible(choice.label or choice.value), _VALUE_CELLS)
            for choice in self.choices
        ]
        widest = max(map(cell_width, names), default=0)
        options = []
        for name, choice in zip(names, self.choices, strict=True):
            text = Text(name, "bold", no_wrap=True, overflow="ellipsis")
            text.append(" " * (widest - cell_width(name) + 2) + visible(choice.text), "not bold")
            options.append(Option(text))
        yield OptionList(*options, classes="scrolls", markup=False, compact=True)

    def format_keys(self) -> str:
        return "↑ ↓ choose · enter apply · esc cancel"

    def on_mount(self) -> None:
        listed = self.query_one(OptionList)
        values = [choice.value for choice in self.choices]
        listed.highlighted = values.index(self.present) if self.present in values else 0
        listed.focus()

    def action_leave(self) -> None:
        self.preview(self.present)
        super().action_leave()

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self.preview(self.choices[event.option_index].value)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss()
        self.take(self.choices[event.option_index].value)


class TextDialog(Dialog[None]):
    """Text, such as a whole error."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,question_mark,exclamation_mark,enter", "leave", "close", show=False),
    ]

    def __init__(self, heading: str, text: Text) -> None:
        super().__init__(heading)
        self.text = text

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="scrolls"):
            yield PlainStatic(self.text, classes="words")

    def format_keys(self) -> str:
        return "↑ ↓ scroll · esc close"

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
