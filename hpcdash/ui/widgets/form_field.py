"""The rows of a form: a label, what is typed, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input, Static, TextArea

from hpcdash.domain.text import visible
from hpcdash.services.submit.form_fields import YES, FieldKind, FormField

# What completes a field: the values there are, those that begin with what stands there first.
Values = Callable[[str], Sequence[str]]
_MOST_LINES = 6
_LONGEST_LINE = 4000


class _Suggestions(Suggester):
    def __init__(self, name: str, values: Values, is_list: bool) -> None:
        super().__init__(use_cache=False, case_sensitive=False)
        self._name = name
        self._values = values
        self._is_list = is_list

    async def get_suggestion(self, value: str) -> str | None:
        start, blank, word = value.rpartition(" ") if self._is_list else ("", "", value)
        if not word:
            return None
        found = next((one for one in self._values(self._name) if one.startswith(word) and one != word), None)
        return None if found is None else f"{start}{blank}{visible(found)}"


def _example(field: FormField) -> str:
    """What an empty field shows; without colours too it is no value."""
    return f"e.g. {field.example}" if field.example else ""


class FieldInput(Input):
    """One line of text. Enter asks for what there is to choose from."""

    takes_typing = True

    def __init__(self, field: FormField, values: Values) -> None:
        super().__init__(
            placeholder=_example(field),
            compact=True,
            max_length=_LONGEST_LINE,
            select_on_focus=False,
            suggester=_Suggestions(field.name, values, field.kind is FieldKind.WORDS),
        )
        # Over a slow line each blink would be waited for.
        self.cursor_blink = False

    @property
    def text(self) -> str:
        return self.value

    @text.setter
    def text(self, text: str) -> None:
        self.value = text
        self.cursor_position = len(text)


class FieldLines(TextArea):
    """Several lines of text; it grows with them."""

    takes_typing = True

    def __init__(self, field: FormField) -> None:
        super().__init__(
            placeholder=_example(field), compact=True, tab_behavior="focus", soft_wrap=True, highlight_cursor_line=False
        )
        self.cursor_blink = False

    def step(self, places: int) -> bool:
        """A line up or down; False where there is none."""
        if self.cursor_at_first_line if places < 0 else self.cursor_at_last_line:
            return False
        if places < 0:
            self.action_cursor_up()
        else:
            self.action_cursor_down()
        return True


class FieldToggle(Static, can_focus=True):
    """Yes or no."""

    takes_typing = True
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space,left,right", "flip", show=False, priority=True)]

    class Changed(Message):
        """It is the other one now."""

        def __init__(self, toggle: FieldToggle) -> None:
            super().__init__()
            self.toggle = toggle

        @property
        def control(self) -> FieldToggle:
            return self.toggle

    def __init__(self) -> None:
        super().__init__("[ ] no", markup=False)
        self._is_on = False

    @property
    def text(self) -> str:
        return YES if self._is_on else ""

    @text.setter
    def text(self, text: str) -> None:
        self._is_on = text == YES
        self.update("[x] yes" if self._is_on else "[ ] no")

    def enter(self) -> None:
        self.action_flip()

    def action_flip(self) -> None:
        self.text = "" if self._is_on else YES
        self.post_message(self.Changed(self))

    def on_key(self, event: events.Key) -> None:
        if event.key in ("y", "n") and self.text != (wanted := YES if event.key == "y" else ""):
            self.text = wanted
            self.post_message(self.Changed(self))

    def on_click(self) -> None:
        self.action_flip()


FieldEditor = FieldInput | FieldLines | FieldToggle


class FieldRow(Vertical):
    """A field: its label, its editor, a line with what takes its place, and one with what is wrong with it."""

    DEFAULT_CSS = """
    FieldRow { height: auto; width: 1fr; }
    FieldRow > Horizontal { height: auto; width: 1fr; }
    FieldRow .label { width: 15; height: 1; padding-left: 2; color: $table-dim; }
    FieldRow.-focused .label { color: $foreground; text-style: bold; }
    FieldRow FieldInput, FieldRow FieldInput:focus { width: 1fr; height: 1; background: $panel; border: none; }
    FieldRow FieldLines, FieldRow FieldLines:focus {
        width: 1fr; height: 1; max-height: 6; background: $panel; border: none; padding: 0; scrollbar-size-vertical: 1;
    }
    FieldRow FieldToggle { width: 1fr; height: 1; background: $panel; }
    FieldRow FieldInput:focus, FieldRow FieldLines:focus, FieldRow FieldToggle:focus { background: $table-cursor; }
    FieldRow .note { height: auto; padding-left: 15; display: none; }
    FieldRow .complaint { height: auto; padding-left: 15; display: none; color: $warning; }
    FieldRow .complaint.-error { color: $error; text-style: bold; }
    """

    class Typed(Message):
        """Another text stands in a field: its `name`."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, field: FormField, values: Values) -> None:
        super().__init__()
        self.field = field
        self.editor: FieldEditor
        if field.kind in (FieldKind.LINES, FieldKind.PAIRS):
            self.editor = FieldLines(field)
        elif field.kind is FieldKind.FLAG:
            self.editor = FieldToggle()
        else:
            self.editor = FieldInput(field, values)
        self._note = Static("", classes="note", markup=False)
        self._complaint = Static("", classes="complaint", markup=False)

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static(self.field.label, classes="label", markup=False)
            yield self.editor
        yield self._note
        yield self._complaint

    @property
    def text(self) -> str:
        return self.editor.text

    def set_text(self, text: str) -> None:
        """Put a text there, as if it were typed; what a terminal would obey is made visible."""
        if isinstance(self.editor, FieldLines):
            text = "\n".join("\t".join(map(visible, line.split("\t"))) for line in text.split("\n"))
        else:
            text = visible(text)
        self.editor.text = text
        self._grow()

    def note(self, words: str) -> None:
        """Say below what takes its place, or nothing."""
        self._note.update(visible(words))
        self._note.display = bool(words)

    def complain(self, words: str, *, is_error: bool = True) -> None:
        """Say below what is wrong, or nothing."""
        self._complaint.update(Text(f"{'✗' if is_error else '!'} {visible(words)}") if words else "")
        self._complaint.set_class(is_error, "-error")
        self._complaint.display = bool(words)

    @property
    def complaint(self) -> str:
        return str(self._complaint.render()) if self._complaint.display else ""

    def _grow(self) -> None:
        if isinstance(self.editor, FieldLines):
            self.editor.styles.height = max(1, min(_MOST_LINES, self.editor.text.count("\n") + 1))

    @on(Input.Changed)
    @on(TextArea.Changed)
    @on(FieldToggle.Changed)
    def _changed(self, event: Message) -> None:
        event.stop()
        self._grow()
        self.post_message(self.Typed(self.field.name))

    def on_descendant_focus(self) -> None:
        self.add_class("-focused")

    def on_descendant_blur(self) -> None:
        self.remove_class("-focused")


class GroupHeading(Static, can_focus=True):
    """The heading of some fields; space or enter folds them, or shows them."""

    takes_typing = True
    DEFAULT_CSS = """
    GroupHeading { height: 1; width: 1fr; color: $primary; text-wrap: nowrap; text-overflow: ellipsis; }
    GroupHeading:focus { background: $table-cursor; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "fold", show=False, priority=True),
        Binding("right", "unfold(True)", show=False, priority=True),
        Binding("left", "unfold(False)", show=False, priority=True),
    ]

    def __init__(self, title: str, is_open: bool, folded: Callable[[], None]) -> None:
        """`folded` is called when its fields are to be shown, or not."""
        super().__init__("", markup=False)
        self._folded = folded
        self.title = title
        self.is_open = is_open
        self._said = ""

    def on_mount(self) -> None:
        self.tell("")

    def tell(self, said: str) -> None:
        """What its fields say, for while they are folded."""
        self._said = said
        text = Text(f"{'▾' if self.is_open else '▸'} {self.title}", no_wrap=True, overflow="ellipsis")
        if said and not self.is_open:
            text.append(f"   {visible(said)}", "not bold")
        self.update(text)

    def open(self, is_open: bool) -> None:
        if is_open != self.is_open:
            self.is_open = is_open
            self.tell(self._said)
            self._folded()

    def enter(self) -> None:
        self.action_fold()

    def action_fold(self) -> None:
        self.open(not self.is_open)

    def action_unfold(self, is_open: bool) -> None:
        self.open(is_open)

    def on_click(self) -> None:
        self.action_fold()
