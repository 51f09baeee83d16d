"""One thing worth knowing at the start, said under the table for a while and not on top of it."""

from __future__ import annotations

from textual.widgets import Static

from hpcdash.domain.text import visible

_SECONDS = 20.0


class Notice(Static):
    """Words in one line or two; gone after a while, or when a person puts them away."""

    DEFAULT_CSS = """
    Notice { height: auto; max-height: 3; width: 1fr; padding: 0 1; display: none; background: $panel; }
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)

    def say(self, words: str) -> None:
        """Show some words, until the time is up."""
        self.update("\n".join(map(visible, words.splitlines())))
        self.display = True
        self.set_timer(_SECONDS, self.put_away)

    def put_away(self) -> bool:
        """Whether there was anything to put away."""
        was_shown = self.display
        self.display = False
        return was_shown
