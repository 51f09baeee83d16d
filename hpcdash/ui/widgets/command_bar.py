"""Input line: a filter after '/', a command after ':', a value that a view requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Key
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from hpcdash.domain.text import visible
from hpcdash.ui.widgets.lines import PlainStatic, TextInput

_HISTORY = 50
# Mode, then text.
Enter = Callable[[str, str], Awaitable[None]]
Leave = Callable[[str], Awaitable[None]]
# Takes the typed text; returns an error, '' if the text is accepted.
Take = Callable[[str], str]


class _Completions(Suggester):
    """Suggester of the first completion of the typed text."""

    def __init__(self, complete: Callable[[str, str], list[str]], mode: Callable[[], str]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete
        self._mode = mode

    async def get_suggestion(self, value: str) -> str | None:
        found = self._complete(self._mode(), value)
        return found[0] if found and found[0].startswith(value) else None


class _Field(TextInput):
    """Input that handles enter and escape in order with other keys.

    Keys that arrive after the bar was closed are posted again, for the view.
    """

    async def on_key(self, event: Key) -> None:
        bar = self.parent
        assert isinstance(bar, CommandBar)
        if not bar.is_open:
            # The key was queued while the bar was open.
            self.app.post_message(Key(event.key, event.character))
        elif event.key == "enter":
            await bar.enter()
        elif event.key == "escape":
            await bar.leave()
        else:
            return
        event.stop()
        event.prevent_default()


class CommandBar(Horizontal):
    """Bar hidden until something is typed; `mode` is '/' or ':', or the name of a view's prompt."""

    DEFAULT_CSS = """
    CommandBar { height: 1; display: none; padding: 0 1; background: $surface; }
    CommandBar > #sign { width: auto; min-width: 2; color: $accent; text-style: bold; }
    CommandBar > Input, CommandBar > Input:focus {
        width: 1fr; height: 1; border: none; padding: 0; background: $surface;
    }
    CommandBar > #error { width: auto; max-width: 60%; padding: 0 0 0 1; color: $error; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "recall(-1)", "earlier", show=False, priority=True),
        Binding("down", "recall(1)", "later", show=False, priority=True),
        Binding("tab", "complete", "complete", show=False, priority=True),
    ]

    class Typed(Message):
        """Posted with the content of the bar after a key."""

        def __init__(self, mode: str, value: str) -> None:
            super().__init__()
            self.mode = mode
            self.value = value

    def __init__(
        self,
        complete: Callable[[str, str], list[str]],
        enter: Enter,
        leave: Leave,
        *,
        id: str | None = None,
    ) -> None:
        """`complete` returns completions of a text in a mode; enter and escape await `enter` and
        `leave`.
        """
        super().__init__(id=id)
        self.mode = "/"
        self._complete = complete
        self._enter = enter
        self._leave = leave
        self._take: Take | None = None
        self._past: dict[str, list[str]] = {}
        self._recalled = 0

    def compose(self) -> ComposeResult:
        yield PlainStatic("/", id="sign")
        yield _Field(
            suggester=_Completions(self._complete, lambda: self.mode), select_on_focus=False
        )
        yield PlainStatic(id="error")

    @property
    def is_open(self) -> bool:
        return bool(self.display)

    def prompt(
        self,
        mode: str,
        value: str = "",
        *,
        sign: str = "",
        take: Take | None = None,
        proposed: bool = False,
    ) -> None:
        """Open the bar with a text after `sign` (by default the mode); typing replaces a `proposed`
        text.

        Enter calls `take`, if given, instead of the screen; the bar stays open while it returns an
        error. Earlier entries of this mode can be recalled.
        """
        self.mode = mode
        self._take = take
        self._recalled = len(self.mode_history(mode))
        self.query_one("#sign", PlainStatic).update(sign or mode)
        self.show_error("")
        self.display = True
        field = self.query_one(Input)
        with self.prevent(Input.Changed):
            self._set_text(value)
        if proposed:
            field.select_all()
        # At once: keys typed before the next refresh belong to the bar.
        self.screen.set_focus(field)

    def _set_text(self, text: str) -> None:
        field = self.query_one(Input)
        field.value = text
        field.cursor_position = len(text)

    def type_in(self, value: str) -> None:
        """Replace the text of the open bar, as if it had been typed."""
        self._set_text(value)
        self.screen.set_focus(self.query_one(Input))

    def hide(self) -> None:
        self.display = False

    def show_error(self, text: str) -> None:
        """Show an error beside the typed text; '' removes it."""
        error = Text(visible(text), overflow="ellipsis", no_wrap=True)
        self.query_one("#error", PlainStatic).update(error)

    def remember(self, mode: str, value: str) -> None:
        past = self.mode_history(mode)
        if value and (not past or past[-1] != value):
            past.append(value)
            del past[:-_HISTORY]

    def mode_history(self, mode: str) -> list[str]:
        """Return the entries of a mode, the newest last."""
        return self._past.setdefault(mode, [])

    @property
    def last_filter(self) -> str:
        return next(reversed(self.mode_history("/")), "")

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        if self.is_open:
            self.post_message(self.Typed(self.mode, event.value))

    async def enter(self) -> None:
        """Handle enter."""
        value = self.query_one(Input).value
        self.remember(self.mode, value)
        if self._take is None:
            await self._enter(self.mode, value)
        elif error := self._take(value):
            self.show_error(error)
        else:
            await self._leave(self.mode)

    async def leave(self) -> None:
        """Handle escape."""
        await self._leave(self.mode)

    def action_recall(self, step: int) -> None:
        past = self.mode_history(self.mode)
        self._recalled = max(0, min(len(past), self._recalled + step))
        self._set_text(past[self._recalled] if self._recalled < len(past) else "")

    def action_complete(self) -> None:
        if found := self._complete(self.mode, self.query_one(Input).value):
            self._set_text(found[0])
