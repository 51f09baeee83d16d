"""The dialog that asks what to change of some jobs, with what they have now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static

from hpcdash.domain.text import visible
from hpcdash.errors import UsageError
from hpcdash.services.jobs.action_text import CHANGED, format_error
from hpcdash.ui.jobs.action_dialogs import FRAME

_HINTS = {
    "time": "2h, 1-12:00:00",
    "nice": "higher waits longer",
    "throttle": "how many tasks may run at a time",
}
# Asks whether to make some changes; raises UsageError for what cannot be asked.
Proceed = Callable[[ModalScreen[None], Mapping[str, str]], None]
# The complaint about one change, '' where there is none.
Complaint = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Field:
    """One thing to change: `present` as one would type it, '' where unknown or not the same for all.

    `more_ways` go on with what may be typed: `+1h, -30m`.
    """

    name: str
    present: str = ""
    suggestions: tuple[str, ...] = ()
    more_ways: str = ""


class AlterDialog(ModalScreen[None]):
    """Fields to fill in; what is left as it was is not touched. `proceed` asks before anything is changed."""

    DEFAULT_CSS = (
        FRAME.format(name="AlterDialog")
        + """
    AlterDialog > .frame { overflow-y: auto; }
    AlterDialog .field { height: 1; }
    AlterDialog .field .name { width: 15; }
    AlterDialog .field .hint { width: 1fr; padding-left: 2; color: $table-dim; }
    AlterDialog Input { width: 24; background: $panel; }
    AlterDialog Input:focus { background: $table-cursor; }
    AlterDialog .complaint { padding-left: 15; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave", show=False),
        Binding("enter", "go_on", "go on", show=False, priority=True),
        Binding("down", "app.focus_next", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False, priority=True),
    ]

    def __init__(
        self, title: str, fields: Sequence[Field], asides: Sequence[str], complaint: Complaint, proceed: Proceed
    ) -> None:
        super().__init__()
        self.heading = title
        self.fields = tuple(fields)
        self.asides = tuple(asides)
        self.complaint = complaint
        self.proceed = proceed

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame"):
            yield Static(visible(self.heading), classes="title", markup=False)
            for field in self.fields:
                with Horizontal(classes="field"):
                    yield Static(CHANGED[field.name], classes="name", markup=False)
                    yield Input(
                        visible(field.present),
                        placeholder="unchanged",
                        id=field.name,
                        compact=True,
                        max_length=100,
                        suggester=SuggestFromList(field.suggestions) if field.suggestions else None,
                        select_on_focus=False,
                    )
                    hint = ", ".join(filter(None, (_HINTS.get(field.name, ""), field.more_ways)))
                    yield Static(hint, classes="hint", markup=False)
                yield Static("", classes="warned complaint", id=f"{field.name}-complaint", markup=False)
            yield Static("", classes="warned", id="complaint", markup=False)
            for at, words in enumerate(self.asides):
                yield Static(visible(words), classes="words" if at else "label", markup=False)
            keys = "tab goes to the next field, enter goes on, esc leaves"
            yield Static(keys, classes="aside", markup=False)

    def on_mount(self) -> None:
        for words in self.query(".warned"):
            words.display = False
        self.query(Input).first().focus()

    def changes(self) -> dict[str, str]:
        """What is not as it was, by name."""
        typed = {field.name: self.query_one(f"#{field.name}", Input).value.strip() for field in self.fields}
        return {field.name: typed[field.name] for field in self.fields if typed[field.name] != visible(field.present)}

    def action_go_on(self) -> None:
        changes = self.changes()
        problems = {
            name: self.complaint(name, value) if value else "it cannot be empty" for name, value in changes.items()
        }
        for field in self.fields:
            self._complain(f"{field.name}-complaint", problems.get(field.name, ""))
        self._complain("complaint", "" if changes else "nothing is changed yet")
        if wrong := next((name for name, problem in problems.items() if problem), None):
            self.query_one(f"#{wrong}", Input).focus()
        elif changes:
            try:
                self.proceed(self, changes)
            except UsageError as error:
                self._complain("complaint", format_error(error))

    def _complain(self, name: str, words: str) -> None:
        line = self.query_one(f"#{name}", Static)
        line.update(f"! {words}" if words else "")
        line.display = bool(words)

    def action_leave(self) -> None:
        self.dismiss()
