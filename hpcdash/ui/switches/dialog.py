"""The dialog of a job's kill or save switch: which file, who sees it, whether to set it, and then
what comes of it.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterator
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Button, Input

from hpcdash.domain.impact import count_jobs, owners, state_counts
from hpcdash.domain.job_text import state_word
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.switch_text import (
    SwitchSnapshot,
    Thing,
    format_folder,
    format_shared,
    format_thing,
    refusal,
    story_lines,
)
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.jobs.action_text import format_error
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.session import ClusterSession
from hpcdash.services.switches.switches import JobSwitches, Row, unit_id
from hpcdash.services.switches.tracker import CHECK_SECONDS, SwitchTracker
from hpcdash.ui.dialogs import AnswerButton, Dialog
from hpcdash.ui.widgets.lines import PlainStatic, TextInput
from hpcdash.ui.workers import start_worker

_MAX_LISTED = 8
Line = tuple[str, str, str]


def switch_lines(tracker: SwitchTracker, effect: str, command: str) -> Iterator[Line]:
    """Yield (label, text, style) of each line below the path.

    `effect` describes what would be done, `command` is the script for it; '' where either is not
    shown.
    """
    check = tracker.snapshot
    kind = tracker.switch.kind
    history = tracker.history
    if check is None:
        return
    why_not = refusal(check)
    if overridden := tracker.switch.overridden_note:
        yield "", f"! {visible(overridden)} (p: use another path)", "bold"
    if not check.problem:
        yield "folder", format_folder(check), ""
    if group := tracker.group_note:
        yield "", group, ""
    if history.is_any or check.is_dropped:
        for label, text in story_lines(kind, check, history, tracker.progress):
            yield label, text, "" if label == "log" else "bold"
    else:
        yield "now", format_thing(check), "bold"
    if check.is_dropped and kind is SwitchKind.KILL:
        yield "", "The switch stays set until you clear it: jobs that start later exit at once.", ""
    if not check.is_dropped and why_not and why_not != format_thing(check):
        yield "", f"! {why_not}", "bold"
    for text in tracker.warnings:
        yield "", f"! {text}", "bold"
    if tracker.log_message and tracker.living and not (history.log_line or history.gone):
        yield "log", visible(tracker.log_message), ""
    label = "stops" if kind is SwitchKind.KILL else "seen by"
    if check.is_dropped or (history.is_any and not effect):
        label = "left"
    elif why_not:
        label = "for"
    yield from _job_lines(tracker, label)
    if effect:
        yield "does", visible(effect), ""
    if command:
        yield "runs", "\n".join(map(visible, command.split("\n"))), ""


def _job_lines(tracker: SwitchTracker, label: str) -> Iterator[Line]:
    """Yield the living jobs that name a switch; one line where there is none."""
    living = tracker.living
    is_known = tracker.switch_jobs is not None
    if not living and not is_known:
        yield label, "searching for jobs that use it …", ""
        return
    units: dict[str, list[Row]] = {}
    for row in living:
        units.setdefault(unit_id(row), []).append(row)
    total = count_jobs(living)
    if not total:
        yield "left", "no known running or pending job uses it", ""
    if total > 1:
        yield label, f"{total} jobs", "bold"
        label = ""
    for unit, rows in list(units.items())[:_MAX_LISTED]:
        counts = state_counts(rows).items()
        states = ", ".join(f"{count} {state_word(state)}" for state, count in counts)
        name = visible(str(rows[0]["name"] or ""))
        if users := " and ".join(visible(user) for user in owners(rows) if user):
            name += f" of {users}"
        yield label, f"{visible(unit)} {name}: {states}", ""
        label = ""
    if len(units) > _MAX_LISTED:
        yield "", f"and {len(units) - _MAX_LISTED} more", ""
    running = count_jobs(row for row in living if row["state"] in ACTIVE)
    if shared := format_shared(tracker.switch.kind, running):
        yield "", f"! {shared}", "bold"
    if not is_known:
        yield "", "searching for other jobs that use it …", ""
    elif tracker.jobs_note and total:
        yield "", tracker.jobs_note, ""


def _identity(check: SwitchSnapshot) -> tuple[object, ...]:
    """Return the values that distinguish a file from another of the same path.

    A FIFO's time is left out, as it is that of the last write.
    """
    file = check.file
    changed_at = None if check.thing is Thing.SPECIAL else file.changed_at
    return check.thing, file.mode[:1], file.uid, file.size, check.link_to, changed_at


class SwitchDialog(Dialog[None]):
    """One switch of one job or array: what its tracker knows of it, and what a person may do about
    it.
    """

    DEFAULT_CSS = "SwitchDialog Input { width: 1fr; background: $panel; margin-top: 1; }"
    fixed_lines = 9
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "drop", "drop", show=False),
        Binding("c", "clear", "clear", show=False),
        Binding("a", "again", "drop again", show=False),
        Binding("v", "command", "the command", show=False),
        Binding("p", "path", "another path", show=False),
        Binding("n,q", "leave", "leave", show=False),
        Binding("ctrl+r", "refresh", "refresh", show=False),
    ]

    def __init__(
        self,
        session: ClusterSession,
        switches: JobSwitches,
        job_id: str,
        kind: SwitchKind,
        against: str = "",
    ) -> None:
        """`against` is why it should not be set, '' for none."""
        super().__init__(
            f"{kind.text.capitalize()} for job {visible(job_id)} on {visible(session.store.title)}"
        )
        self.session = session
        self.switches = switches
        self.job_id = job_id
        self.kind = kind
        self.against = against
        # Once its path is known.
        self.tracker: SwitchTracker | None = None
        # Reason that the path is unknown.
        self._unknown = ""
        # Messages on finding the path.
        self._notes: list[str] = []
        # After an act of this dialog's own, setting it takes a step more.
        self._is_retry_pending = False
        # A file that may be no switch is cleared at the second press: the file at the first one.
        self._clear_confirmed_for: tuple[object, ...] | None = None
        # Whether it prompts for another path in place of the known one.
        self._prompts_path = False
        self._shows_command = False
        self._stop_listening: Callable[[], None] = lambda: None

    # -- contents

    @property
    def is_dangerous(self) -> bool:
        return self.kind is SwitchKind.KILL

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="scrolls", can_focus=False):
            yield PlainStatic(classes="words", id="body")
        yield TextInput(placeholder="/path/of/the/file", id="path", compact=True)
        with Horizontal(classes="buttons"):
            yield AnswerButton("No (n)", id="no")
            yield AnswerButton("Yes, create it (y)", id="yes")
            yield AnswerButton("Clear it (c)", id="clear")
            yield AnswerButton("Create it again … (a)", id="again")

    def on_mount(self) -> None:
        self._show()
        self._stop_listening = self.session.store.listen(self.on_poll)
        self.set_interval(CHECK_SECONDS, self._refresh_if_due)
        start_worker(self, self._find, group="switch", exclusive=True)

    def on_unmount(self) -> None:
        self._stop_listening()

    async def _find(self, path: str = "") -> None:
        try:
            switch = await self.switches.find(self.job_id, self.kind, path)
        except HpcdashError as error:
            if self.tracker is not None:
                self.tracker.problem = format_error(error)
            else:
                self._notes = [format_error(error)]
            self._show()
            return
        # Queries of the previous path.
        self.workers.cancel_group(self, "switch-look")
        self._is_retry_pending = self._prompts_path = False
        self._clear_confirmed_for = None
        self._notes = []
        self._unknown = switch.problem
        self.tracker = None
        if not switch.path:
            self._show()
            if self.is_live:
                self.query_one("#path").focus()
            return
        tracker = SwitchTracker(self.switches, switch, zone=self.session.zone, changed=self._show)
        self.tracker = tracker
        self._show()
        await tracker.open()
        self._focus_answer()
        await self._fetch_switch_jobs(tracker)

    async def _fetch_switch_jobs(self, tracker: SwitchTracker) -> None:
        """Fetch the jobs that name it; check again where there are others, or it was dropped."""
        has_others = await tracker.fetch_switch_jobs()
        if has_others or tracker.history.is_any or tracker.is_dropped:
            await tracker.refresh(is_requested=True)

    def on_poll(self, changed: Changed) -> None:
        if self.tracker is not None and self.tracker.is_news(changed):
            start_worker(self, self.tracker.refresh, group="switch-look", exclusive=True)

    def _refresh_if_due(self) -> None:
        if self.tracker is not None and self.tracker.is_due:
            start_worker(self, self.tracker.refresh, group="switch-look", exclusive=True)

    # -- possible actions

    @property
    def can_drop(self) -> bool:
        tracker = self.tracker
        if tracker is None or not tracker.is_droppable:
            return False
        return self._is_retry_pending or not tracker.has_acted

    @property
    def can_retry(self) -> bool:
        tracker = self.tracker
        if tracker is None or not tracker.is_droppable:
            return False
        return tracker.has_acted and not self._is_retry_pending

    @property
    def can_clear(self) -> bool:
        return self.tracker is not None and self.tracker.is_clearable

    @property
    def can_name_another(self) -> bool:
        return self.tracker is not None and not self.tracker.is_acting

    @property
    def _confirms_clear(self) -> bool:
        """Whether it is the second request for the same file, which is still in doubt."""
        tracker = self.tracker
        if tracker is None or tracker.snapshot is None or not self.can_clear:
            return False
        return self._clear_confirmed_for == _identity(tracker.snapshot) and bool(tracker.doubt)

    def _show(self) -> None:
        if not (self.is_mounted and self.is_live):
            return
        if not self._confirms_clear:
            # The file of the confirmation is gone.
            self._clear_confirmed_for = None
        prompts_path = self._prompts_path or bool(self._unknown)
        self.query_one("#path").display = prompts_path
        self.query_one(".buttons").display = not self._prompts_path
        rows = Table.grid(padding=(0, 2))
        rows.add_column(width=7, no_wrap=True, style="dim")
        rows.add_column(overflow="fold", ratio=1)
        for label, text, style in self._lines():
            rows.add_row(Text(label), Text(text, style))
        self.query_one("#body", PlainStatic).update(rows)
        can_drop = self.can_drop
        again = " again" if self._is_retry_pending else ""
        clear = "Yes, remove it (c)" if self._confirms_clear else "Clear it (c)"
        # While a path is typed, q is one of its letters.
        leave = "Close (esc)" if prompts_path else "Close (q)"
        if can_drop or self._confirms_clear:
            leave = "No (n)"
        for name, is_shown, text in (
            ("yes", can_drop, f"Yes, create it{again} (y)"),
            ("clear", self.can_clear, clear),
            ("again", self.can_retry, "Create it again … (a)"),
            ("no", True, leave),
        ):
            button = self.query_one(f"#{name}", AnswerButton)
            button.display = is_shown
            button.rename(text)
        self.query_one("#keys", PlainStatic).update(self._keys())
        if self.focused is None or not self.focused.display:
            self.query_one("#no", Button).focus()

    def _keys(self) -> str:
        if self._prompts_path:
            return "enter use this path (empty: forget the saved path) · esc cancel"
        if self._unknown:
            return "enter use this path · esc close"
        is_dropped = self.tracker is not None and self.tracker.is_dropped
        keys = ["y create · n/esc cancel"] if self.can_drop else []
        keys += ["c remove the file"] if self.can_clear else []
        keys += ["a create again (confirms first)"] if self.can_retry else []
        keys += [] if self.can_drop else ["esc close (keep it)" if is_dropped else "esc close"]
        if self._planned() is not None:
            keys.append(f"v {'hide' if self._shows_command else 'show'} the command")
        keys += ["p another file"] if self.can_name_another else []
        return " · ".join([*keys, "ctrl+r refresh"])

    def _planned(self) -> Plan | None:
        """Return the plan of `y`, else of `c`; None where neither has one."""
        if self.tracker is None or not (self.can_drop or self.can_clear):
            return None
        return self.tracker.plan_drop() if self.can_drop else self.tracker.plan_clear()

    def _lines(self) -> Iterator[Line]:
        tracker = self.tracker
        notes = self._notes
        if tracker is not None:
            notes = [tracker.act_message, tracker.problem]
            if self._confirms_clear:
                notes.append(f"{tracker.doubt}. Press c again to remove it anyway, n to keep it.")
            if self.can_drop:
                notes.append(visible(self.against))
        for text in filter(None, notes):
            yield "", f"! {text}", "bold"
        if self._unknown:
            yield "", f"{visible(self._unknown)}.", ""
            yield "", "Which file does it watch? (Remembered for this job name.)", ""
        elif tracker is None and not notes:
            yield "", "searching for the path …", ""
        if tracker is None:
            return
        yield "file", visible(tracker.switch.path), "bold"
        yield "", visible(tracker.switch.source), ""
        if tracker.snapshot is None and not tracker.problem:
            yield "now", "looking …", ""
        plan = self._planned()
        effect = plan.commands[0].text if plan is not None and self.can_drop else ""
        command = ""
        if plan is not None and self._shows_command:
            command = shlex.join(plan.commands[0].argv)
        yield from switch_lines(tracker, effect, command)

    def _focus_answer(self) -> None:
        if not self.is_live:
            return
        is_safe = self.kind is SwitchKind.SAVE and self.can_drop and not self.against
        self.query_one("#yes" if is_safe else "#no", Button).focus()

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value.strip():
            start_worker(self, self._find, event.value.strip(), group="switch", exclusive=True)
        elif self._prompts_path:
            start_worker(self, self._forget_path, group="switch", exclusive=True)

    def action_path(self) -> None:
        """Prompt for another file in place of this one."""
        if self.tracker is None or not self.can_name_another:
            return
        self._prompts_path = True
        self._show()
        path = self.query_one("#path", Input)
        path.value = self.tracker.switch.path
        path.focus()

    async def _forget_path(self) -> None:
        tracker = self.tracker
        if tracker is None:
            return
        message = await asyncio.to_thread(self.switches.forget, tracker.switch)
        await self._find()
        if self.tracker is None:
            self._notes = [visible(message), *self._notes]
        else:
            self.tracker.act_message = visible(message)
        self._show()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        acts = {"yes": self.action_drop, "clear": self.action_clear, "again": self.action_again}
        acts.get(str(event.button.id), self.action_leave)()

    def action_drop(self) -> None:
        if self.tracker is not None and self.can_drop:
            self._act(self.tracker, self.tracker.plan_drop())

    def action_clear(self) -> None:
        """Remove it; what may be no switch at the second time only."""
        tracker = self.tracker
        if tracker is None or tracker.snapshot is None or not self.can_clear:
            return
        if tracker.doubt and not self._confirms_clear:
            self._clear_confirmed_for = _identity(tracker.snapshot)
            self._show()
            self.query_one("#no", Button).focus()
            return
        self._act(tracker, tracker.plan_clear())

    def _act(self, tracker: SwitchTracker, plan: Plan) -> None:
        tracker.is_acting = True
        self._is_retry_pending = False
        self._clear_confirmed_for = None
        self._show()
        start_worker(self, self._carry_out, tracker, plan, group="switch")

    async def _carry_out(self, tracker: SwitchTracker, plan: Plan) -> None:
        if not await tracker.carry_out(plan):
            return
        if self.is_live:
            self.query_one("#no", Button).focus()
        self.session.poller.poll_now()

    def action_refresh(self) -> None:
        if self.tracker is not None:
            start_worker(self, self._refresh_all, self.tracker, group="switch-look", exclusive=True)

    async def _refresh_all(self, tracker: SwitchTracker) -> None:
        await tracker.refresh(is_requested=True)
        await self._fetch_switch_jobs(tracker)
        self.session.poller.poll_now()

    def action_command(self) -> None:
        self._shows_command = not self._shows_command
        self._show()

    def action_again(self) -> None:
        """Confirm another drop: only where a job is left to see it, which is queried now."""
        if self.tracker is not None and self.can_retry:
            start_worker(self, self._retry, self.tracker, group="switch-look", exclusive=True)

    async def _retry(self, tracker: SwitchTracker) -> None:
        await tracker.refresh(is_requested=True)
        self._is_retry_pending = self.can_retry and not tracker.problem
        self._show()
        self._focus_answer()

    def action_leave(self) -> None:
        if self._is_retry_pending or self._confirms_clear or self._prompts_path:
            self._is_retry_pending = self._prompts_path = False
            self._clear_confirmed_for = None
            self._show()
            self.query_one("#no", Button).focus()
        elif self.tracker is None or not self.tracker.is_acting:
            self.dismiss()
