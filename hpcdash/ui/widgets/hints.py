"""Hints in a line: the tour of the first start, and a notice for a while."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct
from rich.text import Text
from textual import events

from hpcdash.domain.text import visible
from hpcdash.ui.actions import JOB_TABLES, JOB_VIEWS, LOG
from hpcdash.ui.widgets.lines import Line, PlainStatic
from hpcdash.ui.workers import call_after

_ACTION = re.compile(r"\{([a-z_]+)\}")
_SECONDS = 20.0


class TourHint(Struct, frozen=True):
    """Hint of the tour: phrases in which an action's keys replace {action}.

    A phrase whose action has no key is omitted. Any action of `done_by` leads to the next hint. The
    phrases apply in `views`; None: in all views with the actions.
    """

    phrases: tuple[str, ...]
    done_by: frozenset[str]
    views: frozenset[str] | None = None


# With the default keys each fits into 80 columns, beside the keys of the tour.
HINTS = (
    TourHint(
        ("{open} open job", "{detail} full details", "{escape} back"),
        frozenset({"open", "detail"}),
        JOB_TABLES,
    ),
    TourHint(
        ("{log} live log", "{chart} chart of the loss", "{error_log} stderr"),
        frozenset({"log", "chart", "error_log"}),
        JOB_VIEWS - LOG,
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
    """Line with the hints, one after the other; `ended` is called after the last or at `end`.

    `key_label` returns the keys of an action, '' if no view of the cluster has it; `place` returns
    the present view and its actions. The first remaining hint that applies there is shown.
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
    def has_hint(self) -> bool:
        """Whether a hint is shown."""
        return self._shown_hint is not None

    def begin(self) -> None:
        """Start with the hints whose actions exist on this cluster."""
        self._hints = tuple(hint for hint in HINTS if any(map(self._key_label, hint.done_by)))
        self._left = list(self._hints)
        self.update_hint()

    def go_on(self) -> None:
        """Show the next hint; after the last one the tour ends."""
        if self._shown_hint is not None:
            self._left.remove(self._shown_hint)
            if self._left:
                self.update_hint()
            else:
                self.end()

    def end(self) -> None:
        """End the tour."""
        if self._hints:
            self._hints = ()
            self._left = []
            self._shown_hint = None
            self.display = False
            self._ended()

    def performed(self, action: str) -> None:
        """Go on to the next hint if the user followed the present one."""
        if self._shown_hint is not None and action in self._shown_hint.done_by:
            self.go_on()

    def on_resize(self, event: events.Resize) -> None:
        self.update_hint()

    def update_hint(self) -> None:
        """Show the first remaining hint that applies in the present view, if any."""
        view, actions = self._place()
        applicable = (
            hint
            for hint in self._left
            if (hint.views is None or view in hint.views) and hint.done_by & actions
        )
        self._shown_hint = next(applicable, None)
        self.display = self._shown_hint is not None
        if self._shown_hint is not None:
            self._show(self._shown_hint, actions)

    def _show(self, hint: TourHint, actions: frozenset[str]) -> None:
        # Hints are numbered in the order in which they are followed.
        number = len(self._hints) - len(self._left) + 1
        text = Text(f"{number}/{len(self._hints)} ", "bold", no_wrap=True, overflow="ellipsis")
        phrases = [self._phrase(phrase, actions) for phrase in hint.phrases]
        text.append_text(Text(" · ").join(phrase for phrase in phrases if phrase is not None))
        keys = Text.assemble(
            ("  ", ""),
            (self._key_label("tour_next"), "bold"),
            (" next · ", "dim"),
            (self._key_label("tour_end"), "bold"),
            (" end", "dim"),
        )
        room = (self.size.width or self.app.size.width - 2) - keys.cell_len
        text.truncate(max(0, room), overflow="ellipsis", pad=True)
        self.set_text(text.append_text(keys))

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


class Notice(PlainStatic):
    """Text of a few lines, hidden after a while or by escape."""

    DEFAULT_CSS = """
    Notice { height: auto; max-height: 3; width: 1fr; padding: 0 1; display: none; background: $panel; }
    """

    def __init__(self) -> None:
        super().__init__()

    def set_text(self, text: str) -> None:
        """Show a text for a while."""
        self.update("\n".join(map(visible, text.splitlines())))
        self.display = True
        call_after(self, _SECONDS, self.hide)

    def hide(self) -> None:
        self.display = False
