"""A form of grouped fields, one column that scrolls; fields less used are folded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.suggester import Suggester
from textual.widget import AwaitMount, Widget
from textual.widgets import Input, TextArea

from hpcdash.domain.text import counted, visible
from hpcdash.services.submit.form_fields import GROUPS, YES, FieldKind, FormField, FormGroup, Way
from hpcdash.ui.widgets.lines import PlainStatic, TextInput

# Returns the completions of a field, those that begin with its text first.
Values = Callable[[str], Sequence[str]]
_MAX_LINES = 6
_LONGEST_LINE = 4000
_SUMMARY_CELLS = 60


class _Suggestions(Suggester):
    def __init__(self, name: str, values: Values, is_list: bool) -> None:
        super().__init__(use_cache=False, case_sensitive=False)
        self._name = name
        self._values = values
        self._is_list = is_list

    async def get_suggestion(self, value: str) -> str | None:
        word = value.rpartition(" ")[2] if self._is_list else value
        if not word:
            return None
        for choice in self._values(self._name):
            if choice.startswith(word) and choice != word:
                return f"{value.removesuffix(word)}{visible(choice)}"
        return None


def _example(field: FormField) -> str:
    """Return the placeholder of an empty field, distinct from a value even without colours."""
    return f"e.g. {field.example}" if field.example else ""


class FieldInput(TextInput):
    """One line of text. Enter shows the choices."""

    takes_typing = True

    def __init__(self, field: FormField, values: Values) -> None:
        super().__init__(
            placeholder=_example(field),
            compact=True,
            max_length=_LONGEST_LINE,
            select_on_focus=False,
            suggester=_Suggestions(field.name, values, field.kind is FieldKind.WORDS),
        )

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
            placeholder=_example(field),
            compact=True,
            tab_behavior="focus",
            soft_wrap=True,
            highlight_cursor_line=False,
        )
        self.cursor_blink = False

    def step(self, places: int) -> bool:
        """Move a line up or down; return False if there is none."""
        if places < 0 and not self.cursor_at_first_line:
            self.action_cursor_up()
        elif places >= 0 and not self.cursor_at_last_line:
            self.action_cursor_down()
        else:
            return False
        return True


class FieldToggle(PlainStatic, can_focus=True):
    """Yes or no."""

    takes_typing = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,left,right", "flip", show=False, priority=True)
    ]

    class Changed(Message):
        """Posted when the toggle has changed."""

        def __init__(self, toggle: FieldToggle) -> None:
            super().__init__()
            self.toggle = toggle

        @property
        def control(self) -> FieldToggle:
            return self.toggle

    def __init__(self) -> None:
        super().__init__("[ ] no")
        self._is_on = False

    @property
    def text(self) -> str:
        return YES if self._is_on else ""

    @text.setter
    def text(self, text: str) -> None:
        self._is_on = text == YES
        self.update("[x] yes" if self._is_on else "[ ] no")

    def action_flip(self) -> None:
        self.text = "" if self._is_on else YES
        self.post_message(self.Changed(self))

    def on_key(self, event: events.Key) -> None:
        if event.key == ("n" if self._is_on else "y"):
            self.action_flip()

    def on_click(self) -> None:
        self.action_flip()


FieldEditor = FieldInput | FieldLines | FieldToggle


class FieldRow(Vertical):
    """A field: its label and editor, and lines for the value used instead and for a problem."""

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
        """The text of the field `name` has changed."""

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
        self.label = field.label
        self._title = PlainStatic(field.label, classes="label")
        self._note = PlainStatic(classes="note")
        self._complaint = PlainStatic(classes="complaint")

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self._title
            yield self.editor
        yield self._note
        yield self._complaint

    @property
    def text(self) -> str:
        return self.editor.text

    def set_text(self, text: str) -> None:
        """Set the text as if it were typed; control characters are made visible."""
        if isinstance(self.editor, FieldLines):
            # Newlines and tabs are valid here.
            text = "".join(
                part if part in ("\n", "\t") else visible(part)
                for part in re.split(r"([\n\t])", text)
            )
        else:
            text = visible(text)
        self.editor.text = text
        self._grow()

    def rename(self, label: str) -> None:
        """Show another label; '' for the field's own."""
        self.label = label or self.field.label
        self._title.update(self.label)

    def note(self, text: str) -> None:
        """Show the value that is used instead below the field; '' for none."""
        self._note.update(visible(text))
        self._note.display = bool(text)

    def complain(self, text: str, *, is_error: bool = True) -> None:
        """Show a problem below the field; '' for none."""
        sign = "✗" if is_error else "!"
        self._complaint.update(f"{sign} {visible(text)}" if text else "")
        self._complaint.set_class(is_error, "-error")
        self._complaint.display = bool(text)

    @property
    def complaint(self) -> str:
        return str(self._complaint.render()) if self._complaint.display else ""

    def _grow(self) -> None:
        if isinstance(self.editor, FieldLines):
            self.editor.styles.height = max(1, min(_MAX_LINES, self.editor.text.count("\n") + 1))

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


class GroupHeading(PlainStatic, can_focus=True):
    """The heading of a group of fields; space or enter folds or unfolds it."""

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

    def __init__(self, title: str, is_open: bool, folded: Callable[[], AwaitMount]) -> None:
        """`folded` is called after the group was folded or unfolded; it returns when its fields
        can have the focus.
        """
        super().__init__()
        self._folded = folded
        self.title = title
        self.is_open = is_open

    def on_mount(self) -> None:
        self.summarize("")

    def summarize(self, summary: str) -> None:
        """Show a summary of the fields while they are folded."""
        sign = "▾" if self.is_open else "▸"
        text = Text(f"{sign} {self.title}", no_wrap=True, overflow="ellipsis")
        if summary and not self.is_open:
            text.append(f"   {visible(summary)}", "not bold")
        self.update(text, layout=False)

    def open(self, is_open: bool) -> AwaitMount:
        self.is_open = is_open
        return self._folded()

    async def action_fold(self) -> None:
        await self.action_unfold(not self.is_open)

    async def action_unfold(self, is_open: bool) -> None:
        await self.open(is_open)

    async def on_click(self) -> None:
        await self.action_fold()


class _Group(Vertical):
    """A heading and its fields, which are mounted when first unfolded."""

    DEFAULT_CSS = """
    _Group { height: auto; width: 1fr; }
    """

    def __init__(self, group: FormGroup, values: Values, absent: frozenset[str]) -> None:
        super().__init__()
        self.group = group
        self._absent = absent
        self._way = Way.REQUEST
        self.heading = GroupHeading(group.title, group.is_open, self._folded)
        self.rows = [FieldRow(field, values) for field in group.fields]
        self._mounted = AwaitMount(self, ())

    def compose(self) -> ComposeResult:
        yield self.heading
        if self.heading.is_open:
            yield from self.rows

    def _folded(self) -> AwaitMount:
        self.show_way(self._way)
        return self._mounted

    def show_way(self, way: Way) -> None:
        """Show the fields of a way of submitting, unless they are folded."""
        self._way = way
        if self.heading.is_open and self.is_mounted and not self.rows[0].is_attached:
            self._mounted = self.mount_all(self.rows)
        parts = []
        problems = 0
        is_shown = False
        for row in self.rows:
            text = " ".join(row.text.split())
            # Values filled in from elsewhere are shown, so that they can be removed.
            is_used = way in row.field.ways and (row.field.name not in self._absent or bool(text))
            row.display = is_used and self.heading.is_open
            if is_used:
                is_shown = True
                problems += bool(row.complaint)
                if text:
                    parts.append(f"{row.label} {text}")
        self.display = is_shown
        if problems:
            parts.insert(0, f"! {counted(problems, 'problem')}")
        self.heading.summarize(", ".join(parts)[:_SUMMARY_CELLS])


class FormPage(VerticalScroll, can_focus=False):
    """All fields; `Changed` is posted after text was typed into one.

    Fields that are `absent` are shown only if they have a value. `values` complete a field;
    `prompt` is called at enter in a field, and returns whether it has choices.
    """

    DEFAULT_CSS = """
    FormPage { width: 1fr; height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        # These precede the fields' own bindings, so that typing ahead works.
        Binding("tab", "step(1)", show=False, priority=True),
        Binding("shift+tab", "step(-1)", show=False, priority=True),
        Binding("down", "line(1)", show=False, priority=True),
        Binding("up", "line(-1)", show=False, priority=True),
        Binding("enter", "enter", show=False, priority=True),
    ]

    class Changed(Message):
        """The text of the field `name` has changed; '' for several."""

        def __init__(self, name: str = "") -> None:
            super().__init__()
            self.name = name

    def __init__(
        self,
        values: Values,
        prompt: Callable[[str], bool],
        way: Way,
        absent: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(classes="panel")
        self.border_title = "Request"
        self._prompt = prompt
        self._last: Widget | None = None
        self.way = way
        self._groups = [_Group(group, values, absent) for group in GROUPS]
        self._rows = {row.field.name: row for group in self._groups for row in group.rows}

    def compose(self) -> ComposeResult:
        yield from self._groups

    def on_mount(self) -> None:
        self._arrange()

    # -- values

    def texts(self) -> dict[str, str]:
        """Return the typed texts by field, without empty fields."""
        return {name: row.text for name, row in self._rows.items() if row.text.strip()}

    def fill(self, texts: Mapping[str, str], way: Way | None = None) -> None:
        """Set other texts in all fields; folded groups with values stay folded."""
        self.way = way or self.way
        for name, row in self._rows.items():
            if row.text != texts.get(name, ""):
                row.set_text(texts.get(name, ""))
        self._arrange()
        self.post_message(self.Changed())

    def start_over(self) -> None:
        """Reset the form: empty, folded, scrolled to the top."""
        for group in self._groups:
            group.heading.open(group.group.is_open)
        self._last = None
        self.scroll_home(animate=False)
        self.fill({}, Way.REQUEST)

    def set_text(self, name: str, text: str) -> None:
        self._rows[name].set_text(text)

    def complain(self, problems: Mapping[str, str], warnings: Mapping[str, str]) -> None:
        """Show errors and warnings below the fields."""
        for name, row in self._rows.items():
            text = problems.get(name, "")
            row.complain(text or warnings.get(name, ""), is_error=bool(text))
        self._arrange()

    def label(self, name: str) -> str:
        """Return the label of a field; the name where there is no such field."""
        return self._rows[name].label if name in self._rows else name

    def rename(self, name: str, label: str) -> None:
        """Show another label of a field; '' for its own."""
        self._rows[name].rename(label)

    def note(self, name: str, text: str) -> None:
        """Show the value used for an empty field below it; '' for none."""
        self._rows[name].note(text)

    def field_error(self, name: str) -> str:
        return self._rows[name].complaint

    def _arrange(self) -> None:
        for group in self._groups:
            group.show_way(self.way)

    # -- moving

    @property
    def field(self) -> str:
        """The name of the focused field; '' for none."""
        focused = self.screen.focused if self.is_attached else None
        row = next((row for row in self._rows.values() if row.editor is focused), None)
        return row.field.name if row else ""

    @property
    def is_on_heading(self) -> bool:
        """Whether a group's heading is focused."""
        return self.is_attached and isinstance(self.screen.focused, GroupHeading)

    def stops(self) -> list[Widget]:
        """Return the widgets that the cursor can reach, in order."""
        stops: list[Widget] = []
        for group in self._groups:
            if group.display:
                stops += [group.heading, *(row.editor for row in group.rows if row.display)]
        return stops

    class Entered(Message):
        """Another widget of the form is focused."""

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self._last = event.widget
        self.post_message(self.Entered())

    def resume(self) -> None:
        """Focus the last widget, or the first field."""
        stops = self.stops()
        first = next((stop for stop in stops if not isinstance(stop, GroupHeading)), None)
        self.screen.set_focus(self._last if self._last in stops else first)

    def enter(self, name: str) -> None:
        """Focus a field, and unfold its group."""
        for group in self._groups:
            if any(row.field.name == name for row in group.rows):
                group.heading.open(True)
        row = self._rows[name]
        if row.is_mounted:
            self.screen.set_focus(row.editor)
        else:
            row.call_later(self.screen.set_focus, row.editor)

    def action_step(self, places: int) -> None:
        stops = self.stops()
        focused = self.screen.focused
        at = stops.index(focused) if focused in stops else -1
        self.screen.set_focus(stops[(at + places) % len(stops)])

    def action_line(self, places: int) -> None:
        """Move up or down, within a field of several lines first."""
        focused = self.screen.focused
        if not (isinstance(focused, FieldLines) and focused.step(places)):
            self.action_step(places)

    async def action_enter(self) -> None:
        focused = self.screen.focused
        if isinstance(focused, FieldInput):
            if not self._prompt(self.field):
                self.action_step(1)
        elif isinstance(focused, FieldToggle):
            focused.action_flip()
        elif isinstance(focused, GroupHeading):
            await focused.action_fold()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave enter to a field of several lines, where it starts a new one."""
        if action == "enter" and isinstance(self.screen.focused, FieldLines):
            return False
        return super().check_action(action, parameters)

    @on(FieldRow.Typed)
    def _typed(self, event: FieldRow.Typed) -> None:
        event.stop()
        self.post_message(self.Changed(event.name))
