"""Help of a view: a searchable menu that runs its actions, and notes on keys, signs, filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from hpcdash.config.problems import did_you_mean
from hpcdash.ui.actions import Action, key_sign
from hpcdash.ui.dialogs import Dialog
from hpcdash.ui.widgets.lines import TextInput

_KEYS_CELLS = 12


class HelpDialog(Dialog[None]):
    """Actions under headings; typed text filters them by text or key, enter runs one."""

    DEFAULT_CSS = """
    HelpDialog > .frame { height: 96%; }
    HelpDialog Input, HelpDialog Input:focus { border: none; height: 1; padding: 0; margin-bottom: 1; }
    HelpDialog OptionList, HelpDialog OptionList:focus { height: 1fr; border: none; padding: 0; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move('cursor_down')", show=False, priority=True),
        Binding("up", "move('cursor_up')", show=False, priority=True),
        Binding("pagedown", "move('page_down')", show=False, priority=True),
        Binding("pageup", "move('page_up')", show=False, priority=True),
    ]

    def __init__(
        self,
        heading: str,
        groups: Sequence[tuple[str, Sequence[Action]]],
        notes: Sequence[tuple[str, Text]],
        run: Callable[[str], object],
    ) -> None:
        """`notes` are headings with text below the menu; `run` is called with an action's name."""
        super().__init__(heading)
        self.groups = groups
        self.notes = notes
        self.run_action_named = run

    def compose_body(self) -> ComposeResult:
        yield TextInput(placeholder="type to search")
        yield OptionList(markup=False, compact=True)

    def format_keys(self) -> str:
        return "↑ ↓ choose · enter run · esc close"

    def on_mount(self) -> None:
        self._list("")
        self.query_one(Input).focus()

    def action_move(self, way: str) -> None:
        getattr(self.query_one(OptionList), f"action_{way}")()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._list(event.value.strip().lower())

    def _list(self, requested: str) -> None:
        """List the actions and notes that contain each part of `requested`."""
        actions = [action for _, group in self.groups for action in group]
        parts = requested.split()
        sections: list[tuple[str, list[Option]]] = []
        for heading, group in self.groups:
            found = [action for action in group if all(part in _searched(action) for part in parts)]
            lines = [
                Option(key_line(key_sign(action.key), action.text), id=action.name)
                for action in found
            ]
            sections.append((heading, lines))
        for heading, text in self.notes:
            if all(part in f"{heading} {text.plain}".lower() for part in parts):
                lines = [Option(line, disabled=True) for line in text.split("\n")]
                sections.append((heading, lines))
        options: list[Option] = []
        for heading, lines in sections:
            if lines and heading:
                options += [Option("", disabled=True)] if options else []
                options.append(Option(Text(heading, "bold"), disabled=True))
            options += lines
        if not options:
            known_terms = " ".join(map(_searched, actions)).split()
            nothing = f"Nothing matches{did_you_mean(requested, set(known_terms))}"
            options.append(Option(nothing, disabled=True))
        listed = self.query_one(OptionList)
        with self.prevent(OptionList.OptionHighlighted):
            listed.clear_options()
            listed.add_options(options)
        enabled = [index for index, option in enumerate(options) if not option.disabled]
        prefixed = {action.name for action in actions if action.text.lower().startswith(requested)}
        matching = [index for index in enabled if options[index].id in prefixed]
        listed.highlighted = next(iter(matching or enabled), None)

    @on(Input.Submitted)
    def _chosen(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss()
        if event.option_id is not None:
            self.run_action_named(event.option_id)


def _searched(action: Action) -> str:
    return (
        f"{action.text} {action.short} {action.name.replace('_', ' ')} {key_sign(action.key)}"
    ).lower()


def key_line(keys: str, text: str) -> Text:
    """Return a line of the help: keys and their meaning."""
    gap = " " * max(2, _KEYS_CELLS - cell_len(keys))
    return Text.assemble("  ", (keys, "bold"), f"{gap}{text}")
