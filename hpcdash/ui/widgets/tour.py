"""A tour of six hints in one line; each is done with when a person does what it says. Knows no cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text
from textual import events

from hpcdash.ui.widgets.lines import Line

_ACTION = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class TourHint:
    """What to try: phrases, each with its {action}, whose keys are put there; one without its action is left out.

    Doing one of `done_by` goes on to the next hint.
    """

    phrases: tuple[str, ...]
    done_by: frozenset[str]


# With the usual keys each fits into a terminal of 80 columns, beside how to go on.
HINTS = (
    TourHint(
        ("{open} opens the job", "{detail} tells all", "{escape} goes back"),
        frozenset({"open", "detail"}),
    ),
    TourHint(("{log} shows its log as it grows", "{error_log} its stderr"), frozenset({"log", "error_log"})),
    TourHint(("{fold} unfolds arrays", "{triage} sorts an array's failures"), frozenset({"fold", "triage"})),
    TourHint(
        ("{cancel} cancels", "{hold} holds", "{requeue} requeues, each shown first"),
        frozenset({"cancel", "hold", "requeue"}),
    ),
    TourHint(
        ("{filter} filters: state:failed", "{command} goes to any view"),
        frozenset({"filter", "command"}),
    ),
    TourHint(("{help} lists the keys here", "{theme} other colours", "{back} leaves"), frozenset({"help"})),
)


class Tour(Line):
    """Shows the hints one after the other; `ended` is called after the last, or when a person has enough.

    `sign_of` gives an action's keys as they are written, '' for one that cannot be done here.
    """

    DEFAULT_CSS = """
    Tour { background: $accent 20%; color: $foreground; display: none; }
    """

    def __init__(self, sign_of: Callable[[str], str], ended: Callable[[], None]) -> None:
        super().__init__()
        self._sign_of = sign_of
        self._ended = ended
        self._left: list[TourHint] = []
        self._count = 0

    @property
    def is_on(self) -> bool:
        return bool(self._left)

    def begin(self) -> None:
        """The first hint; nothing where none can be followed here."""
        self._left = [hint for hint in HINTS if any(map(self._sign_of, hint.done_by))]
        self._count = len(self._left)
        self._show()

    def go_on(self) -> None:
        """The next hint; after the last one the tour ends."""
        if len(self._left) == 1:
            self.end()
        elif self._left:
            del self._left[0]
            self._show()

    def end(self) -> None:
        """No more hints."""
        if self._left:
            self._left = []
            self.display = False
            self._ended()

    def performed(self, action: str) -> None:
        """A person did something: the hint that told of it is done with."""
        if self._left and action in self._left[0].done_by:
            self.go_on()

    def on_resize(self, event: events.Resize) -> None:
        self._show()

    def _show(self) -> None:
        if not self._left:
            return
        text = Text(f"{self._count - len(self._left) + 1}/{self._count} ", "bold", no_wrap=True, overflow="ellipsis")
        phrases = [phrase for phrase in map(self._phrase, self._left[0].phrases) if phrase is not None]
        text.append_text(Text(", ").join(phrases))
        how = Text.assemble(
            ("  ", ""),
            (self._sign_of("tour_next"), "bold"),
            (" next · ", "dim"),
            (self._sign_of("tour_end"), "bold"),
            (" end", "dim"),
        )
        room = (self.size.width or self.app.size.width - 2) - how.cell_len
        text.truncate(max(0, room), overflow="ellipsis", pad=True)
        self.say(text.append_text(how))
        self.display = True

    def _phrase(self, phrase: str) -> Text | None:
        text, at = Text(), 0
        for match in _ACTION.finditer(phrase):
            sign = self._sign_of(match[1])
            if not sign:
                return None
            text.append(phrase[at : match.start()]).append(sign, "bold")
            at = match.end()
        return text.append(phrase[at:])
