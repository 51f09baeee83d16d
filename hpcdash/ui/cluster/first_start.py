"""First start without a cluster: choice of a host, and a trial of hpcdash there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Protocol

from msgspec import Struct
from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from hpcdash.config.destination import parse_ssh_destination
from hpcdash.domain.checks import Check
from hpcdash.domain.states import JobState
from hpcdash.domain.text import cell_width, clip, visible
from hpcdash.errors import HpcdashError
from hpcdash.transport.base import Health
from hpcdash.ui.dialogs import Dialog
from hpcdash.ui.prompter import UiPrompter
from hpcdash.ui.terminal_app import TerminalApp
from hpcdash.ui.widgets.cells import signs
from hpcdash.ui.widgets.lines import PlainStatic, TextInput
from hpcdash.ui.workers import start_worker

_HOST_CELLS = 36
_MAX_OUTPUT_LINES = 6


class JobsPlace(StrEnum):
    """Kind of place where a person's jobs run."""

    HOST = "host"
    THIS_MACHINE = "this machine"
    DEMO = "demo"


class PlaceChoice(Struct, frozen=True):
    """Chosen place of a person's jobs.

    `host` is [user@]host[:port] or a Host of ~/.ssh/config, '' for the other places.
    """

    place: JobsPlace
    host: str = ""


THIS_MACHINE = PlaceChoice(JobsPlace.THIS_MACHINE)
DEMO = PlaceChoice(JobsPlace.DEMO)
_DESCRIPTIONS = {
    THIS_MACHINE: "run jobs on this machine, without a scheduler",
    DEMO: "sample jobs on a temporary queue, removed at exit",
}


class HostTrial(Protocol):
    """Trial of a connection to a host and a check of its scheduler."""

    @property
    def health(self) -> Health:
        """Present health of the connection."""
        ...

    async def run(self) -> bool:
        """Return whether hpcdash works there. Raises HpcdashError for an invalid destination."""
        ...

    async def close(self) -> None: ...


class StartTrial(Protocol):
    def __call__(self, host: str, checks: list[Check], /) -> HostTrial:
        """Return a trial that appends its findings to `checks`."""
        ...


class FirstStartApp(TerminalApp):
    """App that offers places of jobs until a host works or another place is `chosen`; None if the
    user leaves.
    """

    TITLE = "hpcdash"
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        hosts: Mapping[str, str],
        why: Sequence[str],
        start_trial: StartTrial,
        *,
        prompter: UiPrompter | None = None,
        theme_folders: Iterable[Path] = (),
        themes: Sequence[str] = (),
    ) -> None:
        """`hosts` are the hosts of ~/.ssh/config with their addresses ('': none); `why` are lines
        on the reason of the choice.
        """
        super().__init__(theme_folders, *themes)
        self._hosts = hosts
        self._why = why
        self._start_trial = start_trial
        self._prompter = prompter
        self.chosen: PlaceChoice | None = None
        # The successful trial, whose connection is open.
        self.trial: HostTrial | None = None

    def on_mount(self) -> None:
        self.heed_signals()
        self.choose_palettes()
        if self._prompter is not None:
            self._prompter.attach(self)
        self.push_screen(PlaceDialog(self._hosts, self._why), self._choose)

    def on_unmount(self) -> None:
        self._own_loop = None

    def _choose(self, choice: PlaceChoice | None) -> None:
        if choice is not None and choice.place is JobsPlace.HOST:
            checks: list[Check] = []
            trial = self._start_trial(choice.host, checks)

            def take(is_accepted: bool | None) -> None:
                if is_accepted:
                    self.chosen = choice
                    self.trial = trial
                    self.exit()
                else:
                    start_worker(self, trial.close, exit_on_error=False)
                    self.push_screen(PlaceDialog(self._hosts, self._why, choice.host), self._choose)

            self.push_screen(TrialDialog(choice.host, trial, checks), take)
            return
        self.chosen = choice
        self.exit()


class PlaceDialog(Dialog[PlaceChoice | None]):
    """Dialog with a field for a host, and the matching hosts of ~/.ssh/config and other places."""

    DEFAULT_CSS = """
    PlaceDialog Input { margin-bottom: 1; }
    PlaceDialog OptionList, PlaceDialog OptionList:focus {
        border: none; padding: 0; background: $surface; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "step(1)", show=False, priority=True),
        Binding("up", "step(-1)", show=False, priority=True),
        Binding("pagedown", "step(10)", show=False, priority=True),
        Binding("pageup", "step(-10)", show=False, priority=True),
        # A terminal sends this for an enter typed before the app had started.
        Binding("ctrl+j", "take", show=False),
        Binding("ctrl+q,ctrl+c", "leave", show=False, priority=True),
    ]

    def __init__(self, hosts: Mapping[str, str], why: Sequence[str], typed: str = "") -> None:
        super().__init__("Where do your jobs run?")
        self._hosts = hosts
        self._why = [visible(line) for line in why]
        self._typed = "" if typed in hosts else typed
        self._last = typed
        # Listed places, and the text that they match.
        self._choices: list[PlaceChoice] = []
        self._listed_for = ""
        # The field with its border and a blank line.
        self.fixed_lines += 4 + len(self._why)

    def compose_body(self) -> ComposeResult:
        yield PlainStatic("\n".join(self._why), classes="words")
        yield TextInput(
            self._typed,
            placeholder="[user@]host[:port] of a login node, or part of a name below",
        )
        yield OptionList(classes="scrolls", markup=False, compact=True)

    def format_keys(self) -> str:
        return "↑ ↓ choose · enter connect · esc quit"

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self._list_choices(self._typed)
        last = PlaceChoice(JobsPlace.HOST, self._last)
        if last in self._choices:
            self.query_one(OptionList).highlighted = self._choices.index(last)
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        self._list_choices(event.value.strip())

    def _list_choices(self, typed: str) -> None:
        self._listed_for = typed
        needle = typed.casefold()
        self._choices = [
            PlaceChoice(JobsPlace.HOST, host)
            for host, address in self._hosts.items()
            if needle in f"{host} {address}".casefold()
        ]
        self._choices += [choice for choice in (THIS_MACHINE, DEMO) if needle in choice.place]
        problem = ""
        if typed and typed not in self._hosts:
            try:
                parse_ssh_destination(typed)
                self._choices.append(PlaceChoice(JobsPlace.HOST, typed))
            except ValueError as error:
                problem = str(error)
        names = [choice.host or str(choice.place) for choice in self._choices]
        widest = min(_HOST_CELLS, max(map(cell_width, names), default=0))
        listed = self.query_one(OptionList)
        listed.clear_options()
        for name, choice in zip(names, self._choices, strict=True):
            line = Text(
                clip(visible(name), _HOST_CELLS).ljust(widest),
                "bold",
                no_wrap=True,
                overflow="ellipsis",
            )
            about = _DESCRIPTIONS.get(choice) or self._hosts.get(choice.host, "connect there")
            line.append(f"  {visible(about)}", "not bold")
            listed.add_option(Option(line))
        listed.highlighted = 0 if self._choices else None
        keys = self.format_keys() if self._choices else f"{problem} · esc quit"
        self.query_one("#keys", PlainStatic).update(keys)

    def action_step(self, lines: int) -> None:
        listed = self.query_one(OptionList)
        if listed.highlighted is not None:
            listed.highlighted = min(max(0, listed.highlighted + lines), len(self._choices) - 1)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._choices[event.option_index])

    @on(Input.Submitted)
    def action_take(self) -> None:
        # The list may not match the last letters yet.
        if (typed := self.query_one(Input).value.strip()) != self._listed_for:
            self._list_choices(typed)
        at = self.query_one(OptionList).highlighted
        if at is not None:
            self.dismiss(self._choices[at])


class TrialDialog(Dialog[bool]):
    """Trial of a host with its findings; returns whether it works and the user opens it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go_on", show=False),
        Binding("ctrl+q,ctrl+c", "app.quit", show=False, priority=True),
    ]

    def __init__(self, host: str, trial: HostTrial, checks: list[Check]) -> None:
        super().__init__(host)
        self._trial = trial
        self._checks = checks
        # None: the trial still runs.
        self._works: bool | None = None
        self._began = time.monotonic()

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="scrolls"):
            yield PlainStatic(id="found", classes="words")

    def format_keys(self) -> str:
        if self._works is None:
            return "esc stop"
        action = "save and open the dashboard" if self._works else "try again"
        return f"enter {action} · esc another host"

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self._start()
        self.set_interval(0.25, self._show)

    def _start(self) -> None:
        self._works = None
        self._began = time.monotonic()
        self._checks.clear()
        start_worker(self, self._run, exclusive=True)
        self._show()

    async def _run(self) -> None:
        try:
            works = await self._trial.run()
        except HpcdashError as error:
            self._checks.append(Check("host", False, error.message, error.next_step))
            works = False
        self._works = works
        self._show()

    def _show(self) -> None:
        if not self.is_live:
            return
        found = Table.grid(padding=(0, 1, 0, 0))
        for check in self._checks:
            sign = signs().states[JobState.COMPLETED if check.ok else JobState.FAILED]
            found.add_row(Text(sign, "bold"), Text(check.name), Text(visible(check.detail)))
            if not check.ok:
                for line in check.next_step.splitlines():
                    found.add_row("", "", Text(f"→ {visible(line)}"))
        if self._works is None:
            health = self._trial.health
            doing = health.detail or (
                "looking around" if health.state == "connected" else "connecting"
            )
            seconds = time.monotonic() - self._began
            # `Autopushing login request to phone...`
            for line in health.text.splitlines()[-_MAX_OUTPUT_LINES:] if not self._checks else []:
                found.add_row("", "", Text(visible(line)))
            found.add_row(Text(signs().ellipsis), "", Text(f"{visible(doing)}, {seconds:.0f} s"))
        self.query_one("#found", PlainStatic).update(found)
        self.query_one("#keys", PlainStatic).update(self.format_keys())

    def action_go_on(self) -> None:
        if self._works:
            self.dismiss(True)
        elif self._works is False:
            self._start()
