"""Input after ':' and '/': its completions, and the dispatch of its commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from rich.text import Text
from textual import events

from hpcdash.config.problems import did_you_mean
from hpcdash.domain.schema import SCHEMAS
from hpcdash.domain.tables import JOBS, TABLES
from hpcdash.domain.text import cell_width, visible
from hpcdash.errors import QueryError
from hpcdash.ui.actions import key_sign
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.table_view import TableView
from hpcdash.ui.views import SPECS, ViewSpec
from hpcdash.ui.widgets.command_bar import CommandBar
from hpcdash.ui.widgets.lines import PlainStatic

# In a filter: quoted text, or the name of a saved filter as a separate word.
_SAVED = re.compile(r'"[^"]*"|(?<!\S)@([a-z][a-z0-9_-]*)(?!\S)')
_LAST_SAVED = re.compile(r"(?<!\S)@([a-z0-9_-]*)$")
_MAX_LISTED = 8
_MAX_RECENT = 3
_KEY_CELLS = 8
# Shown for views whose tables have the fields.
_FILTER_EXAMPLES = (
    ("state:failed", "one state, or several: state:failed,timeout"),
    ("user:me", "by user; me for yourself"),
    ("gpus>=8", "8 GPUs or more"),
    ("limit>2h", "a time limit over 2 hours"),
    ("name~^exp", "name matches a regular expression"),
    ("!debug", "rows without debug"),
)
_COMMAND_EXAMPLES = (("jobs gpus>=8 state:pending", "a view with a filter"),)


class CandidateList(PlainStatic):
    """List of completions with their meanings; tab takes the first, a click any.

    A click calls `take` with the completion.
    """

    DEFAULT_CSS = """
    CandidateList { height: auto; padding: 0 1; display: none; background: $panel; }
    """

    def __init__(self, take: Callable[[str], None]) -> None:
        super().__init__()
        self._take = take
        self._texts: list[str] = []

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is not None and at.y < len(self._texts):
            self._take(self._texts[at.y])

    def show(
        self, candidates: Sequence[tuple[str, str]], keys: Mapping[str, str] | None = None
    ) -> None:
        """Show texts with their meanings, after the `keys` that do the same; hide an empty list."""
        listed = candidates[:_MAX_LISTED]
        self._texts = [text for text, _ in listed]
        widest = max((cell_width(visible(text)) for text in self._texts), default=0)
        shown = Text(no_wrap=True, overflow="ellipsis")
        for number, (text, meaning) in enumerate(listed):
            key = "" if keys is None else f"{keys.get(text, ''):<{_KEY_CELLS}}"
            shown.append("\n" if number else "").append(f"  {key}", "bold")
            shown.append(visible(text), "" if number else "bold")
            gap = " " * (widest - cell_width(visible(text)) + 2)
            shown.append(gap + visible(meaning), "dim")
        if len(candidates) > _MAX_LISTED:
            shown.append(f"\n  … {len(candidates) - _MAX_LISTED} more", "dim")
        self.update(shown)
        self.display = bool(listed)


class CommandLine:
    """Completions of the `bar`, and execution of its filters and commands on `screen`.

    `aliases` are names of commands; `@NAME` in a filter is one of the saved `filters`.
    """

    def __init__(
        self,
        screen: DashboardScreen,
        aliases: Mapping[str, str],
        filters: Mapping[str, str] | None = None,
    ) -> None:
        self._screen = screen
        self.configure(aliases, filters or {})
        self.bar = CommandBar(self._completions, self._entered, self._left)
        self.listed = CandidateList(self.bar.type_in)

    def open(self, mode: str, value: str = "", *, proposed: bool = False) -> None:
        """Prompt for a filter ('/') or a command (':'), with completions; typing replaces a
        `proposed` text.
        """
        self.bar.prompt(mode, value, proposed=proposed)
        self._list(mode, "" if proposed else value)

    def _list(self, mode: str, value: str) -> None:
        keys: dict[str, str] = {}
        for action in self._screen.actions():
            keys[action.name] = key_sign(action.key)
            if action.opens:
                keys[action.opens] = key_sign(action.key)
        self.listed.show(self._candidates(mode, value), keys if mode == ":" else None)

    def configure(self, aliases: Mapping[str, str], filters: Mapping[str, str]) -> None:
        """Replace aliases and saved filters."""
        self._aliases = dict(aliases)
        self._filters = dict(filters)

    def expanded(self, text: str) -> str:
        """Return a filter with the names of saved filters replaced by their texts."""
        return _SAVED.sub(lambda match: self._filters.get(match[1] or "", match[0]), text)

    def _saved_completions(self, value: str) -> list[str]:
        last = _LAST_SAVED.search(value)
        if last is None:
            return []
        named = [name for name in self._filters if name.startswith(last[1]) and name != last[1]]
        return [value[: last.start(1)] + name for name in named]

    def _completions(self, mode: str, value: str) -> list[str]:
        from hpcdash.domain.query import completions

        view = self._screen.view
        name, has_filter, text = value.partition(" ")
        if mode == ":" and not has_filter:
            return self._matching_commands(value)
        if mode in ("/", ":") and (saved := self._saved_completions(value)):
            return saved
        if mode == "/" and isinstance(view, TableView):
            return completions(value, view.schema, view.source())
        if mode == ":" and name in self._views():
            schema = SCHEMAS[TABLES.get(name, JOBS).kind()]
            return [f"{name} {found}" for found in completions(text, schema)]
        return []

    def _matching_commands(self, value: str) -> list[str]:
        """Return the commands that begin with a word, then those with it in name or meaning."""
        commands = self._commands()
        begins = [name for name in commands if name.startswith(value) and name != value]
        return begins + [
            name
            for name, meaning in commands.items()
            if value and name not in begins and value.lower() in f"{name} {meaning}".lower()
        ]

    def _views(self) -> dict[str, ViewSpec]:
        """Return the root views available on this cluster."""
        has = self._screen.session.store.backend.capabilities
        return {
            name: spec
            for name, spec in SPECS.items()
            if spec.root and spec.capability in (None, *has)
        }

    def _commands(self) -> dict[str, str]:
        """Return the meanings of all commands: views, aliases and actions."""
        commands = {name: f"{spec.title or name} view" for name, spec in self._views().items()}
        commands |= {name: f"alias: {line}" for name, line in self._aliases.items()}
        return commands | {action.name: action.text for action in self._screen.actions()}

    def _candidates(self, mode: str, value: str) -> list[tuple[str, str]]:
        """Return the completions with their meanings.

        For an empty line, recent entries, saved filters and examples precede them.
        """
        view = self._screen.view
        saved = {f"@{name}": text for name, text in self._filters.items()}
        meanings = self._commands() if mode == ":" else saved
        found = [(text, meanings.get(text, "")) for text in self._completions(mode, value)]
        if value or mode not in ("/", ":"):
            if mode == ":" and " " not in value and not found and value not in meanings:
                return [("", f"Nothing matches{did_you_mean(value, meanings)}")]
            return found
        recent = islice(dict.fromkeys(reversed(self.bar.mode_history(mode))), _MAX_RECENT)
        candidates = [(text, "recent") for text in recent]
        if mode == "/":
            candidates += saved.items()
        if mode == "/" and isinstance(view, TableView):
            candidates += [
                (text, meaning) for text, meaning in _FILTER_EXAMPLES if _is_valid(view, text)
            ]
        else:
            candidates += _COMMAND_EXAMPLES
        return candidates + found

    def typed(self, event: CommandBar.Typed) -> None:
        """List the completions of the typed text; a filter takes effect while it is typed."""
        if not self.bar.is_open:
            self.listed.show(())
            return
        self._list(event.mode, event.value)
        view = self._screen.view
        if event.mode == "/" and isinstance(view, TableView):
            text = event.value
            name = _LAST_SAVED.search(text)
            if name is not None and name[1] not in self._filters and self._saved_completions(text):
                # The name of a saved filter is incomplete.
                text = text[: name.start()]
            error = view.preview_filter(self.expanded(text))
            self.bar.show_error(error.short if error else "")

    async def _entered(self, mode: str, value: str) -> None:
        view = self._screen.view
        if mode == "/":
            if isinstance(view, TableView):
                if (error := view.try_filter(self.expanded(value))) is not None:
                    self.bar.show_error(error.short)
                    return
                view.end_typing()
        elif (command_error := await self.run(value.strip())) is not None:
            self.bar.show_error(command_error)
            return
        self._leave()

    async def _left(self, mode: str) -> None:
        view = self._screen.view
        if mode == "/" and isinstance(view, TableView):
            view.set_filter("")
            view.end_typing()
        self._leave()

    def _leave(self) -> None:
        self.bar.hide()
        self.listed.show(())
        self._screen.view.take_focus()

    async def run(self, line: str) -> str | None:
        """Open a view and filter it, act, or quit; return an error, None for none."""
        screen = self._screen
        name, _, rest = line.partition(" ")
        if name in self._aliases:
            name, _, rest = f"{self._aliases[name]} {rest}".strip().partition(" ")
        if not name:
            return None
        if name in self._views():
            await screen.go(name)
            view = screen.view
            if rest.strip() and isinstance(view, TableView):
                error = view.try_filter(self.expanded(rest))
                return error.short if error else None
            return None
        if any(action.name == name for action in screen.actions()):
            await screen.act(name)
            return None
        if name in ("q", "quit"):
            screen.app.exit()
            return None
        if name in SPECS and SPECS[name].root:
            return f"{screen.session.store.backend.title} has no {name}"
        known = screen.offered.named(name)
        if known is not None:
            return (
                screen.offered.why_not(screen.session, screen.view_name, known)
                or f"{name} does not work in this view"
            )
        hint = did_you_mean(name, (*self._commands(), "quit"))
        return f"no such view or action: {name!r}{hint}"


def _is_valid(view: TableView, text: str) -> bool:
    try:
        from hpcdash.domain.query import parse

        parse(text, view.schema, view.zone)
    except QueryError:
        return False
    return True
