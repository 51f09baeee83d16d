"""A tour of six hints in one line; each is done with when a person does what it says. Knows no cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from hpcdash.ui.widgets.lines import Line


@dataclass(frozen=True, slots=True)
class TourHint:
    """What to try; `words` may name actions as {action}, whose keys are put there; doing one of `done_by` goes on."""

    words: str
    done_by: frozenset[str]


HINTS = (
    TourHint(
        "{open} opens the job under the cursor, {detail} tells all of it, {escape} goes back",
        frozenset({"open", "detail"}),
    ),
    TourHint("{log} shows its log as it grows, {error_log} its stderr", frozenset({"log", "error_log"})),
    TourHint("{fold} unfolds arrays and folds them; {triage} sorts an array's failures", frozenset({"fold", "triage"})),
    TourHint(
        "{cancel} cancels, {hold} holds, {requeue} requeues: the exact command is shown first",
        frozenset({"cancel", "hold", "requeue"}),
    ),
    TourHint(
        "{filter} filters: state:failed limit>2h name~train; {command} goes anywhere by name",
        frozenset({"filter", "command"}),
    ),
    TourHint("{help} shows the keys of the view one is in, {theme} another theme, {back} leaves", frozenset({"help"})),
)


class Tour(Line):
    """Shows the hints one after the other; `ended` is called after the last, or when a person has enough."""

    DEFAULT_CSS = """
    Tour { background: $accent 20%; color: $foreground; display: none; }
    """

    def __init__(self, sign_of: Callable[[str], str], ended: Callable[[], None]) -> None:
        super().__init__()
        self._sign_of = sign_of
        self._ended = ended
        self._at: int | None = None

    @property
    def is_on(self) -> bool:
        return self._at is not None

    def begin(self) -> None:
        self._at = 0
        self._show()

    def go_on(self) -> None:
        """The next hint; after the last one the tour ends."""
        if self._at is None:
            return
        self._at += 1
        if self._at >= len(HINTS):
            self.end()
        else:
            self._show()

    def end(self) -> None:
        if self._at is not None:
            self._at = None
            self.display = False
            self._ended()

    def performed(self, action: str) -> None:
        """A person did something: the hint that told of it is done with."""
        if self._at is not None and action in HINTS[self._at].done_by:
            self.go_on()

    def _show(self) -> None:
        assert self._at is not None
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"tour {self._at + 1}/{len(HINTS)}  ", "bold")
        for part in HINTS[self._at].words.replace("}", "{").split("{"):
            sign = self._sign_of(part)
            text.append(sign or part, "bold" if sign else "")
        text.append(f"   {self._sign_of('tour_next')} next, {self._sign_of('tour_end')} ends the tour", "dim")
        self.say(text)
        self.display = True
