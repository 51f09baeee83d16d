"""A tour of six hints in one line, and one thing worth knowing at the start."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct
from rich.text import Text
from textual import events
from textual.widgets import Static

from hpcdash.domain.text import visible
from hpcdash.ui.actions import JOB_TABLES, LOG, OF_A_JOB
from hpcdash.ui.widgets.lines import Line
from hpcdash.ui.workers import call_after

_ACTION = re.compile(r"\{([a-z_]+)\}")
_SECONDS = 20.0


class TourHint(Struct, frozen=True):
    """Hint of the tour: phrases with {action}, replaced by its keys.

    A phrase whose action has no key is left out. One of the actions `done_by` moves on to the next
    hint. The phrases apply in `views`; None: wherever the keys are.
    """

    phrases: tuple[str, ...]
    done_by: frozenset[str]
    views: frozenset[str] | None = None


# With the usual keys each fits into a terminal of 80 columns, beside how to go on.
HINTS = (
    TourHint(
        ("{open} open job", "{detail} full details", "{escape} back"),
        frozenset({"open", "detail"}),
        JOB_TABLES,
    ),
    TourHint(
        ("{log} live log", "{chart} chart of the loss", "{error_log} stderr"),
        frozenset({"log", "chart", "error_log"}),
        OF_A_JOB - LOG,
    ),
    TourHint(
        ("{triage} group an array's failures", "{fold} unfold arrays"),
        frozenset({"fold", "triage"}),
        JOB_TABLES,
    ),
    TourHint(
        ("{save_switch} save checkpoint", "{kill_switch} save and stop", "{cancel} cancel"),
        frozenset({"save_switch", "kill_switch", "cancel"}),
    ),
    TourHint(
        ("{filter} filter: state:failed", "{command} any view or action"),
        frozenset({"filter", "command"}),
        JOB_TABLES,
    ),
    TourHint(
        ("{help} all keys", "{theme} theme", "{back} quit"),
        frozenset({"help", "palette"}),
    ),
)


class Tour(Line):
    """Shows the hints one after the other; `ended` is called after the last, or when a person has
    enough.

    `key_label` gives an action's keys as they are written, '' for one that no view of the cluster
    has; `place` the view one is in and the actions it has. Of the hints that are left the first
    that fits there is shown, or none.
    """

    DEFAULT_CSS = """
    Tour { background: $tint-accent; color: $foreground; display: none; }
    """

    def __init__(
        self,
        key_label: Callable[[str], str],
        ended: Callable[[], None],
        place: Callable[[], tuple[str, frozenset[str]]],
    ) -> None:
        super().__init__()
        self._key_label = key_label
        self._ended = ended
        self._place = place
        self._hints: tuple[TourHint, ...] = ()
        self._left: list[TourHint] = []
        self._shown_hint: TourHint | None = None

    @property
    def is_telling(self) -> bool:
        """Whether a hint is shown."""
        return self._shown_hint is not None

    def begin(self) -> None:
        """The first hint; nothing where none can be followed here."""
        self._hints = tuple(hint for hint in HINTS if any(map(self._key_label, hint.done_by)))
        self._left = list(self._hints)
        self.update_hint()

    def go_on(self) -> None:
        """The next hint; after the last one the tour ends."""
        if self._shown_hint is not None:
            self._left.remove(self._shown_hint)
            if self._left:
                self.update_hint()
            else:
                self.end()

    def end(self) -> None:
        """No more hints."""
        if self._hints:
            self._hints = ()
            self._left = []
            self._shown_hint = None
            self.display = False
            self._ended()

    def performed(self, action: str) -> None:
        """The user did something: a hint about it is no longer needed."""
        if self._shown_hint is not None and action in self._shown_hint.done_by:
            self.go_on()

    def on_resize(self, event: events.Resize) -> None:
        self.update_hint()

    def update_hint(self) -> None:
        """Show what fits the view one is in; nothing where that is nothing."""
        view, actions = self._place()
        here = (
            hint
            for hint in self._left
            if (hint.views is None or view in hint.views) and hint.done_by & actions
        )
        self._shown_hint = next(here, None)
        self.display = self._shown_hint is not None
        if self._shown_hint is not None:
            self._show(self._shown_hint, actions)

    def _show(self, hint: TourHint, actions: frozenset[str]) -> None:
        # The position of a hint is not its order in the list, but the number of hints done.
        number = len(self._hints) - len(self._left) + 1
        text = Text(f"{number}/{len(self._hints)} ", "bold", no_wrap=True, overflow="ellipsis")
        phrases = [
            phrase for one in hint.phrases if (phrase := self._phrase(one, actions)) is not None
        ]
        text.append_text(Text(" · ").join(phrases))
        how = Text.assemble(
            ("  ", ""),
            (self._key_label("tour_next"), "bold"),
            (" next · ", "dim"),
            (self._key_label("tour_end"), "bold"),
            (" end", "dim"),
        )
        room = (self.size.width or self.app.size.width - 2) - how.cell_len
        text.truncate(max(0, room), overflow="ellipsis", pad=True)
        self.set_text(text.append_text(how))

    def _phrase(self, phrase: str, actions: frozenset[str]) -> Text | None:
        text = Text()
        at = 0
        for match in _ACTION.finditer(phrase):
            sign = self._key_label(match[1])
            if not sign or match[1] not in actions:
                return None
            text.append(phrase[at : match.start()]).append(sign, "bold")
            at = match.end()
        return text.append(phrase[at:])


class Notice(Static):
    """Text in one line or two; gone after a while, or when a person closes it."""

    DEFAULT_CSS = """
    Notice { height: auto; max-height: 3; width: 1fr; padding: 0 1; display: none; background: $panel; }
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)

    def set_text(self, text: str) -> None:
        """Show a text until the time is up."""
        self.update("\n".join(map(visible, text.splitlines())))
        self.display = True
        call_after(self, _SECONDS, self.put_away)

    def put_away(self) -> bool:
        """Whether there was anything to put away."""
        was_shown = self.display
        self.display = False
        return was_shown
