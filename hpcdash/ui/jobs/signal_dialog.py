"""The dialog that asks which signal to send, and to which part of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from hpcdash.domain.text import visible
from hpcdash.errors import UsageError
from hpcdash.services.jobs.action_text import ALL_OF_A_JOB, RECIPIENTS, SIGNALS, format_error
from hpcdash.ui.jobs.action_dialogs import FRAME
from hpcdash.ui.widgets.cells import signs

# Asks whether to send a signal to a recipient; raises UsageError for a signal that is none.
Proceed = Callable[[ModalScreen[None], str, str], None]


class _List(OptionList):
    """A list whose chosen line has a sign: without the keys it would differ in colour only."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
    ]

    def __init__(self, lines: Sequence[tuple[str, str]], *, id: str) -> None:
        self._choices = tuple(lines)
        super().__init__(*(Option(self._prompt(at, at == 0)) for at in range(len(self._choices))), id=id, compact=True)

    def _prompt(self, at: int, is_chosen: bool) -> Text:
        name, meaning = self._choices[at]
        sign = signs().states["running"] if is_chosen else " "
        return Text.assemble((f"{name:<13}{sign} ", "bold" if is_chosen else ""), meaning)

    def on_mount(self) -> None:
        self.highlighted = 0

    @on(OptionList.OptionHighlighted)
    def _moved(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        for at in range(len(self._choices)):
            self.replace_option_prompt_at_index(at, self._prompt(at, at == event.option_index))


class SignalDialog(ModalScreen[None]):
    """A signal of a list, or any that one types; and who gets it, where that can be a part of a job.

    `proceed` asks before it is sent.
    """

    DEFAULT_CSS = (
        FRAME.format(name="SignalDialog")
        + """
    SignalDialog > .frame { overflow-y: auto; }
    SignalDialog OptionList, SignalDialog OptionList:focus { height: auto; background: $surface; background-tint: 0%; }
    SignalDialog .field { height: 1; margin-bottom: 1; }
    SignalDialog .field Static { width: 15; }
    SignalDialog Input { width: 24; background: $panel; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave", show=False),
        Binding("enter", "go_on", "go on", show=False, priority=True),
    ]

    def __init__(self, title: str, asides: Sequence[str], proceed: Proceed, *, has_recipients: bool = True) -> None:
        super().__init__()
        self._recipients = RECIPIENTS if has_recipients else {"": ALL_OF_A_JOB}
        self.heading = title
        self.asides = tuple(asides)
        self.proceed = proceed

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame"):
            yield Static(visible(self.heading), classes="title", markup=False)
            yield _List(tuple(SIGNALS.items()), id="signals")
            with Horizontal(classes="field"):
                yield Static("another", markup=False)
                yield Input(placeholder="a name or a number", compact=True, max_length=20)
            if len(self._recipients) > 1:
                yield _List(tuple(self._recipients.values()), id="recipients")
            else:
                yield Static(f"to {': '.join(ALL_OF_A_JOB)}", classes="words", markup=False)
            yield Static("", classes="warned", id="complaint", markup=False)
            for words in self.asides:
                yield Static(visible(words), classes="words", markup=False)
            next_field = "to whom" if len(self._recipients) > 1 else "to another"
            yield Static(f"↑ ↓ choose, tab {next_field}, enter goes on, esc leaves", classes="aside", markup=False)

    def on_mount(self) -> None:
        self.query_one("#complaint").display = False
        self.query_one("#signals", _List).focus()

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        # A click chooses; enter, which goes on, does not come here.
        event.stop()

    def action_go_on(self) -> None:
        typed = self.query_one(Input).value.strip()
        signal = typed or tuple(SIGNALS)[self.query_one("#signals", _List).highlighted or 0]
        chosen = next((one.highlighted or 0 for one in self.query("#recipients").results(_List)), 0)
        recipient = tuple(self._recipients)[chosen]
        complaint = self.query_one("#complaint", Static)
        complaint.display = False
        try:
            self.proceed(self, signal, recipient)
        except UsageError as error:
            complaint.update(f"! {format_error(error)}")
            complaint.display = True

    def action_leave(self) -> None:
        self.dismiss()
