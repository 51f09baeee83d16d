"""A form of grouped fields, one column that scrolls; fields less used are folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.widget import Widget

from hpcdash.services.submit.form_fields import GROUPS, FormGroup, Way
from hpcdash.ui.widgets.form_field import FieldInput, FieldLines, FieldRow, FieldToggle, GroupHeading, Values

_SAID_CELLS = 60


class _Group(Vertical):
    DEFAULT_CSS = """
    _Group { height: auto; width: 1fr; }
    """

    def __init__(self, group: FormGroup, values: Values) -> None:
        super().__init__()
        self.group = group
        self._way = Way.REQUEST
        self.heading = GroupHeading(group.title, group.is_open, self._folded)
        self.rows = [FieldRow(field, values) for field in group.fields]

    def compose(self) -> ComposeResult:
        yield self.heading
        yield from self.rows

    def _folded(self) -> None:
        self.show_way(self._way)

    def show_way(self, way: Way) -> None:
        """Show what belongs to a way of submitting, and is not folded."""
        self._way = way
        rows = [row for row in self.rows if way in row.field.ways]
        for row in self.rows:
            row.display = row in rows and self.heading.is_open
        self.display = bool(rows)
        said = [f"{row.field.label} {' '.join(row.text.split())}" for row in rows if row.text.strip()]
        wrong = sum(bool(row.complaint) for row in rows)
        words = ", ".join([*([f"! {wrong} to look at"] if wrong else []), *said])
        self.heading.tell(words[:_SAID_CELLS])


class FormPage(VerticalScroll, can_focus=False):
    """All fields; `Changed` is told after something was typed into one.

    `values` complete a field; `ask` is called at enter in one, and says whether there was anything to choose from.
    """

    DEFAULT_CSS = """
    FormPage { width: 1fr; height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        # Before the fields' own: what is typed ahead goes where it would have gone one key at a time.
        Binding("tab", "step(1)", show=False, priority=True),
        Binding("shift+tab", "step(-1)", show=False, priority=True),
        Binding("down", "line(1)", show=False, priority=True),
        Binding("up", "line(-1)", show=False, priority=True),
        Binding("enter", "enter", show=False, priority=True),
    ]

    class Changed(Message):
        """Another text stands in the field of this name; '' for several."""

        def __init__(self, name: str = "") -> None:
            super().__init__()
            self.name = name

    def __init__(self, values: Values, ask: Callable[[str], bool], way: Way) -> None:
        super().__init__()
        self._ask = ask
        self._last: Widget | None = None
        self.way = way
        self._groups = [_Group(group, values) for group in GROUPS]
        self._rows = {row.field.name: row for group in self._groups for row in group.rows}

    def compose(self) -> ComposeResult:
        yield from self._groups

    def on_mount(self) -> None:
        self._arrange()

    # -- what stands there

    def texts(self) -> dict[str, str]:
        """What is typed, by field; of empty ones nothing."""
        return {name: row.text for name, row in self._rows.items() if row.text.strip()}

    def fill(self, texts: Mapping[str, str], way: Way | None = None) -> None:
        """Other texts in all fields; folded groups that say something stay folded."""
        self.way = way or self.way
        for name, row in self._rows.items():
            if row.text != texts.get(name, ""):
                row.set_text(texts.get(name, ""))
        self._arrange()
        self.post_message(self.Changed())

    def start_over(self) -> None:
        """As it was at first: empty, folded, from the top."""
        for group in self._groups:
            group.heading.open(group.group.is_open)
        self._last = None
        self.scroll_home(animate=False)
        self.fill({}, Way.REQUEST)

    def set_text(self, name: str, text: str) -> None:
        self._rows[name].set_text(text)

    def complain(self, problems: Mapping[str, str], warnings: Mapping[str, str]) -> None:
        """What is wrong with each field, or odd."""
        for name, row in self._rows.items():
            words = problems.get(name, "")
            row.complain(words or warnings.get(name, ""), is_error=bool(words))
        self._arrange()

    def note(self, name: str, words: str) -> None:
        """What takes the place of a field that is empty, below it; '' for nothing."""
        self._rows[name].note(words)

    def complaint_of(self, name: str) -> str:
        return self._rows[name].complaint

    def _arrange(self) -> None:
        for group in self._groups:
            group.show_way(self.way)

    # -- moving

    @property
    def field(self) -> str:
        """The name of the field that the cursor is in, '' in none."""
        focused = self.screen.focused if self.is_attached else None
        row = next((row for row in self._rows.values() if row.editor is focused), None)
        return row.field.name if row else ""

    @property
    def is_on_heading(self) -> bool:
        """Whether the cursor is on the heading of some fields."""
        return self.is_attached and isinstance(self.screen.focused, GroupHeading)

    def stops(self) -> list[Widget]:
        """Where the cursor can go, in order."""
        stops: list[Widget] = []
        for group in self._groups:
            if group.display:
                stops += [group.heading, *(row.editor for row in group.rows if row.display)]
        return stops

    class Entered(Message):
        """The cursor is somewhere else in the form."""

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self._last = event.widget
        self.post_message(self.Entered())

    def resume(self) -> None:
        """The cursor to where it was last, at first to the first field."""
        stops = self.stops()
        first = next(stop for stop in stops if not isinstance(stop, GroupHeading))
        self.screen.set_focus(self._last if self._last in stops else first)

    def enter(self, name: str) -> None:
        """The cursor into a field, whose group is shown."""
        for group in self._groups:
            if any(row.field.name == name for row in group.rows):
                group.heading.open(True)
                group.show_way(self.way)
        self.screen.set_focus(self._rows[name].editor)

    def action_step(self, places: int) -> None:
        stops = self.stops()
        focused = self.screen.focused
        at = stops.index(focused) if focused in stops else -1
        self.screen.set_focus(stops[(at + places) % len(stops)])

    def action_line(self, places: int) -> None:
        """Up or down: in several lines from one to the other first."""
        focused = self.screen.focused
        if not (isinstance(focused, FieldLines) and focused.step(places)):
            self.action_step(places)

    def action_enter(self) -> None:
        focused = self.screen.focused
        if isinstance(focused, FieldInput):
            if not self._ask(self.field):
                self.action_step(1)
        elif isinstance(focused, FieldToggle | GroupHeading):
            focused.enter()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enter breaks the lines of a field that has several, after what was typed before it."""
        if action == "enter" and isinstance(self.screen.focused, FieldLines):
            return False
        return super().check_action(action, parameters)

    @on(FieldRow.Typed)
    def _typed(self, event: FieldRow.Typed) -> None:
        event.stop()
        self.post_message(self.Changed(event.name))
