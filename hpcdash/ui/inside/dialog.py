"""Dialogs for a command on the nodes of a job, and for ending leftovers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from hpcdash.backends.inside import InsideCommand
from hpcdash.domain.text import cell_width, clip, counted, visible
from hpcdash.errors import UsageError
from hpcdash.services.inside.leftovers import Leftover
from hpcdash.services.inside.ready import ReadyCommand, read_command
from hpcdash.ui.dialogs import AnswerButton, Dialog
from hpcdash.ui.widgets.lines import PlainStatic, TextInput

_NAME_CELLS = 40


class ExecDialog(Dialog[None]):
    """Prompt for a typed, recent or predefined command; `run` receives it and its name."""

    DEFAULT_CSS = """
    ExecDialog Input, ExecDialog Input:focus { height: 1; border: none; padding: 0; background: $boost; }
    ExecDialog OptionList, ExecDialog OptionList:focus {
        border: none; padding: 0; margin-top: 1; background: $surface; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "into_list", show=False),
        Binding("tab", "take", "edit", show=False, priority=True),
    ]
    # The field, its error, and blank lines.
    fixed_lines = 10

    def __init__(
        self,
        heading: str,
        ready: Sequence[ReadyCommand],
        recent: Sequence[str],
        run: Callable[[InsideCommand, str], None],
    ) -> None:
        super().__init__(heading)
        self._ready = tuple(ready)
        self._recent = tuple(recent)
        self._run = run

    def compose_body(self) -> ComposeResult:
        yield TextInput(placeholder="command and arguments (no shell)", select_on_focus=False)
        yield PlainStatic(classes="warned", id="complaint")
        rows = [(line, "recent") for line in self._recent]
        rows += [(one.name, one.text) for one in self._ready]
        names = [clip(visible(name), _NAME_CELLS) for name, _ in rows]
        widest = max(map(cell_width, names), default=0)
        options = []
        for name, (_, about) in zip(names, rows, strict=True):
            text = Text(name, "bold", no_wrap=True, overflow="ellipsis")
            text.append(" " * (widest - cell_width(name) + 2) + visible(about), "not bold")
            options.append(Option(text))
        yield OptionList(*options, classes="scrolls", markup=False, compact=True)

    def format_keys(self) -> str:
        return (
            "enter run · ↓ choose · tab edit a recent command · --each-gpu, --timeout 5m before "
            "the command · esc cancel"
        )

    def on_mount(self) -> None:
        self.set_focus(self.query_one(Input))

    def action_into_list(self) -> None:
        listed = self.query_one(OptionList)
        if not listed.has_focus:
            listed.highlighted = 0
            # Immediately, for keys that are typed ahead.
            self.set_focus(listed)

    def action_take(self) -> None:
        """Copy the recent command under the cursor to the field, and switch the focus."""
        listed = self.query_one(OptionList)
        field = self.query_one(Input)
        at = listed.highlighted
        if listed.has_focus and at is not None and at < len(self._recent):
            field.value = self._recent[at]
            field.cursor_position = len(field.value)
        if listed.has_focus:
            self.set_focus(field)
        else:
            self.action_into_list()

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self._start(event.value)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_index < len(self._recent):
            self._start(self._recent[event.option_index])
            return
        ready = self._ready[event.option_index - len(self._recent)]
        self.dismiss()
        self._run(ready.command, ready.name)

    def _start(self, line: str) -> None:
        try:
            command = read_command(line)
        except UsageError as error:
            self.query_one("#complaint", PlainStatic).update(Text(visible(error.message)))
            return
        self.dismiss()
        self._run(command, line.strip())


class EndLeftoversDialog(Dialog[bool]):
    """Confirmation to end leftovers; enter answers no."""

    fixed_lines = 8
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes", show=False),
        Binding("n,q", "answer(False)", "no", show=False),
    ]

    def __init__(self, found: Sequence[Leftover]) -> None:
        super().__init__(f"Kill {counted(len(found), 'leftover')} of your finished jobs?")
        self._found = tuple(found)

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="scrolls", can_focus=False):
            for one in self._found:
                pid = one.process.partition("/")[0]
                text = visible(f"{one.node} {pid}, job {one.job}: {one.command}")
                yield PlainStatic(Text(text, no_wrap=True, overflow="ellipsis"))
        with Horizontal(classes="buttons"):
            yield AnswerButton("No (n)", id="no")
            yield AnswerButton("Yes, kill them (y)", id="yes")

    def format_keys(self) -> str:
        return "y kill (TERM, then KILL) · n/esc/enter cancel"

    def on_mount(self) -> None:
        self.query_one("#no", AnswerButton).focus()

    @on(AnswerButton.Pressed)
    def _pressed(self, event: AnswerButton.Pressed) -> None:
        event.stop()
        self.dismiss(event.button.id == "yes")

    def action_answer(self, is_yes: bool) -> None:
        self.dismiss(is_yes)
