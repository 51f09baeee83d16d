"""The words of the help: keys and what they do in a view, how one moves there, its signs and filters. Shows nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from hpcdash.domain.query_keys import keys_of
from hpcdash.ui.actions import Action, key_sign
from hpcdash.ui.views.base import View
from hpcdash.ui.views.table import TableView

_KEYS_CELLS = 12


def help_page(view: View, groups: Sequence[tuple[str, Sequence[Action]]]) -> Text:
    """Actions under their headings, and after the first of them what is the view's own."""
    words = Text()
    for number, (heading, group) in enumerate(groups):
        if heading:
            words.append(f"\n{heading}\n" if number else f"{heading}\n", "bold")
        for action in group:
            words.append_text(_line(key_sign(action.key), action.words))
        if number == 0:
            words.append("\n")
            for keys, meaning in view.help_moving():
                words.append_text(_line(keys, meaning))
            if isinstance(view, TableView):
                words.append("\n  +3 after the titles: three columns do not fit; , chooses others\n")
            if (signs := view.help_signs()).plain:
                words.append("\nsigns\n", "bold").append_text(signs)
    if isinstance(view, TableView):
        words.append("\nfilters\n", "bold")
        words.append("  train user:me state:running,pending limit>2h gpus>=8 name~^exp !debug\n")
        words.append("  keys: " + " ".join(keys_of(view.schema)) + "\n", "dim")
    return words


def _line(keys: str, words: str) -> Text:
    gap = " " * max(2, _KEYS_CELLS - cell_len(keys))
    return Text.assemble(("  ", ""), (keys, "bold"), f"{gap}{words}\n")
