"""The help: a searchable menu of a view's actions that runs what is chosen, and what else is to be
known there.
"""

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
    """Actions under their headings; typed text selects actions by text or key, enter runs one."""

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
        """`notes` are headings with text to read under the menu; `run` is called with the name of
        an action.
        """
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
        """List the actions with every word of `requested`.

        The notes if they match, or without words.
        """
        listed = self.query_one(OptionList)
        parts = requested.split()
        options: list[Option] = []

        def add(heading: str, lines: list[Option]) -> None:
            if lines and heading:
                options.extend(
                    ([Option("", disabled=True)] if options else [])
                    + [Option(Text(heading, "bold"), disabled=True)]
                )
            options.extend(lines)

        for heading, group in self.groups:
            shown = [one for one in group if all(word in _searched(one) for word in parts)]
            add(
                heading,
                [Option(key_line(key_sign(one.key), one.text), id=one.name) for one in shown],
            )
        for heading, text in self.notes:
            if all(word in f"{heading} {text.plain}".lower() for word in parts):
                add(heading, [Option(line, disabled=True) for line in text.split("\n")])
        with self.prevent(OptionList.OptionHighlighted):
            listed.clear_options()
            nothing = f"Nothing matches{did_you_mean(requested, self._known_terms())}"
            listed.add_options(options or [Option(nothing, disabled=True)])
        known = {one.name: one.text.lower() for _, group in self.groups for one in group}
        places = [at for at, option in enumerate(options) if not option.disabled]
        begins = [at for at in places if known[str(options[at].id)].startswith(requested)]
        listed.highlighted = next(iter(begins or places), None)

    def _known_terms(self) -> set[str]:
        """Words of the actions, for what was mistyped."""
        return {
            word for _, group in self.groups for one in group for word in _searched(one).split()
        }

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
    """Keys, then what they do."""
    gap = " " * max(2, _KEYS_CELLS - cell_len(keys))
    return Text.assemble("  ", (keys, "bold"), f"{gap}{text}")
