"""The dialog of a job's kill or save switch: which file, who sees it, whether to drop it, and then what comes of it.

Knows no scheduler. What was dropped is looked at once a poll for as long as the dialog is open.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Input, Static

from hpcdash.backends.base import Outcome, Verb
from hpcdash.domain.stakes import count_jobs, owners, state_counts
from hpcdash.domain.states import ACTIVE
from hpcdash.domain.switch_looks import (
    Progress,
    SwitchLook,
    Thing,
    clear_refusal,
    folder_words,
    progress_words,
    refusal,
    shared_words,
    thing_words,
    warnings,
)
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import visible
from hpcdash.domain.words import state_word
from hpcdash.errors import HpcdashError
from hpcdash.stores.actions import Plan
from hpcdash.stores.cluster import Changed
from hpcdash.stores.snapshots import Kind
from hpcdash.stores.switches import Namesakes, Switch, Switches, SwitchRefused
from hpcdash.ui.screens.act_dialogs import FRAME, AnswerButton, ScrollingDialog
from hpcdash.ui.screens.action_words import error_words
from hpcdash.ui.session import ClusterSession

_MOST_LISTED = 8


class SwitchDialog(ScrollingDialog):
    """One switch of one job or array; `switch` and `look` are None until they are known."""

    DEFAULT_CSS = (
        FRAME.format(name="SwitchDialog")
        + "    SwitchDialog Input { width: 1fr; background: $panel; margin-top: 1; }\n"
    )
    AROUND_LINES: ClassVar[int] = 9
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "drop", "drop", show=False),
        Binding("c", "clear", "clear", show=False),
        Binding("n,q,escape", "leave", "leave", show=False),
        Binding("ctrl+r", "look_again", "look again", show=False),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
    ]

    def __init__(self, session: ClusterSession, switches: Switches, job_id: str, kind: SwitchKind) -> None:
        super().__init__()
        self.session = session
        self.switches = switches
        self.job_id = job_id
        self.kind = kind
        self.switch: Switch | None = None
        self.look: SwitchLook | None = None
        self.namesakes: Namesakes | None = None
        self.log_said = ""
        self.progress = Progress()
        self.problem = ""
        self._plan: Plan | None = None
        self._job_ids: tuple[str, ...] = ()
        self._removed_at = ""
        self._dropped_here_seconds_ago: float | None = None
        self._cleared = False
        # As the lists told when the ends were asked for last, and the most jobs there were.
        self._living = -1
        self._total = 0
        self._is_acting = False
        self._stop_listening: Callable[[], None] = lambda: None

    # -- what is shown

    def compose(self) -> ComposeResult:
        is_kill = self.kind is SwitchKind.KILL
        with Vertical(classes="frame dangerous" if is_kill else "frame"):
            yield Static(f"{self.kind.words} of {visible(self.job_id)}", classes="title", markup=False)
            with VerticalScroll(classes="scrolls", can_focus=False):
                yield Static("", classes="words", id="body", markup=False)
            yield Input(placeholder="/path/of/the/file", id="path", compact=True)
            with Horizontal(classes="buttons"):
                yield AnswerButton("No (n)", id="no")
                yield AnswerButton("Yes, drop it (y)", id="yes")
                yield AnswerButton("Clear it (c)", id="clear")
            yield Static("", classes="aside", id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one("#path").display = False
        self._show()
        self._stop_listening = self.session.store.listen(self._heard)
        self.run_worker(self._find(), group="switch", exclusive=True)

    def on_unmount(self) -> None:
        self._stop_listening()

    @property
    def can_drop(self) -> bool:
        return self.look is not None and not self._is_acting and not refusal(self.look)

    @property
    def can_clear(self) -> bool:
        return self.look is not None and not self._is_acting and not clear_refusal(self.look)

    def _show(self) -> None:
        """All that is known now, the buttons that make sense, and the keys."""
        if not self.is_mounted:
            return
        rows = Table.grid(padding=(0, 2))
        rows.add_column(width=7, no_wrap=True, style="dim")
        rows.add_column(overflow="fold", ratio=1)
        for label, words, style in self._lines():
            rows.add_row(Text(label), Text(words, style))
        self.query_one("#body", Static).update(rows)
        can_drop, can_clear = self.can_drop, self.can_clear
        self.query_one("#yes").display = can_drop
        self.query_one("#clear").display = can_clear
        self.query_one("#no", AnswerButton).rename("No (n)" if can_drop else "Close (q)")
        self.query_one("#keys", Static).update(self._keys())

    def _keys(self) -> str:
        if self.query_one("#path").display:
            return "enter takes the path, esc leaves"
        if self.can_drop:
            return "y drops it; n and esc do not; j k scroll; ctrl+r looks again"
        clears = "c removes the file; " if self.can_clear else ""
        return f"{clears}esc closes, the switch stays; ctrl+r looks again"

    def _lines(self) -> Iterator[tuple[str, str, str]]:
        """(label, words, style) of each line."""
        switch, look = self.switch, self.look
        if self.problem:
            yield "", f"! {self.problem}", "bold"
        if switch is None:
            if not self.problem:
                yield "", "looking for its path …", ""
            return
        if not switch.path:
            yield "", f"{visible(switch.problem)}.", ""
            yield "", "Which file does it look for? It is remembered for jobs of this name.", ""
            return
        yield "file", visible(switch.path), "bold"
        yield "", visible(switch.whence), ""
        if look is None:
            if not self.problem:
                yield "now", "looking …", ""
            return
        yield "folder", folder_words(look), ""
        yield "now", self._now_words(look), "bold"
        if look.is_dropped and self.kind is SwitchKind.KILL:
            yield "", "It stays until it is cleared: what starts later ends at once.", ""
        if not look.is_dropped and (why := refusal(look)) and why != thing_words(look):
            yield "", f"! {why}", "bold"
        for words in warnings(look, self.kind, switch.owner):
            yield "", f"! {words}", "bold"
        # After the first ends a log says nothing of who still looks.
        if self.log_said and not self.progress.ended:
            yield "log", visible(self.log_said), ""
        yield from self._who_lines()
        if self.can_drop and self._plan is not None:
            yield "runs", "\n".join(map(visible, shlex.join(self._plan.commands[0].argv).split("\n"))), ""

    def _now_words(self, look: SwitchLook) -> str:
        if self._cleared and not look.is_dropped:
            return "cleared: not there any more"
        return progress_words(self.kind, look, self.progress, self._removed_at, self._dropped_here_seconds_ago)

    def _who_lines(self) -> Iterator[tuple[str, str, str]]:
        label = "stops" if self.kind is SwitchKind.KILL else "seen by"
        found = self.namesakes
        if found is None:
            yield label, "looking who else names it …", ""
            return
        if not self.can_drop:
            # Their states are past; what became of them is told above.
            yield "for", f"{count_jobs(found.rows)} jobs: {' '.join(map(visible, found.job_ids[:_MOST_LISTED]))}", ""
            return
        by_unit: dict[str, list[dict[str, object]]] = {}
        for row in found.rows:
            by_unit.setdefault(str(row["array_id"] or row["id"]), []).append(dict(row))
        if not by_unit:
            yield label, "no living job that is known to name it", ""
        total = count_jobs(found.rows)
        if total > 1:
            yield label, f"{total} jobs", "bold"
            label = ""
        for unit, rows in list(by_unit.items())[:_MOST_LISTED]:
            states = ", ".join(f"{count} {state_word(state)}" for state, count in state_counts(rows).items())
            whose = " and ".join(visible(name) for name in owners(rows) if name)
            yield label, f"{visible(unit)} {visible(str(rows[0]['name'] or ''))} of {whose or '?'}: {states}", ""
            label = ""
        if len(by_unit) > _MOST_LISTED:
            yield "", f"and {len(by_unit) - _MOST_LISTED} more", ""
        if shared := shared_words(self.kind, count_jobs(row for row in found.rows if row["state"] in ACTIVE)):
            yield "", f"! {shared}", "bold"
        if found.note:
            yield "", found.note, ""

    # -- what is asked

    async def _find(self, path: str = "") -> None:
        try:
            self.switch = await self.switches.find(self.job_id, self.kind, path)
            self.problem = ""
        except HpcdashError as error:
            self.problem = error_words(error)
            self._show()
            return
        field = self.query_one("#path", Input)
        field.display = not self.switch.path
        self._show()
        if not self.switch.path:
            field.focus()
            return
        self._dropped_here_seconds_ago = await asyncio.to_thread(self.switches.dropped_here_seconds_ago, self.switch)
        await self._look()
        self._focus_answer()
        switch = self.switch
        # The quick one first: what it stands on is there already.
        self.log_said = await self.switches.log_words(switch)
        self._show()
        self.namesakes = await self.switches.namesakes(switch)
        self._job_ids = tuple(dict.fromkeys((self.job_id, *self._job_ids, *self.namesakes.job_ids)))
        await self._look()

    async def _look(self) -> None:
        """One stat; and how its jobs fared, where it is dropped and they are fewer than before."""
        switch = self.switch
        if switch is None or not switch.path:
            return
        before = self.look
        try:
            look = await self.switches.look(switch)
            if look.is_dropped and self.kind is SwitchKind.KILL:
                await self._follow(look)
            self.problem = ""
        except HpcdashError as error:
            self.problem = error_words(error)
            self._show()
            return
        if before is not None and before.is_dropped and not look.is_dropped and not self._cleared:
            self._removed_at = self._time_of_day()
        if look.is_dropped:
            self._removed_at, self._cleared = "", False
        self.look = look
        try:
            self._plan = self.switches.plan_drop(switch, look)
        except SwitchRefused:
            self._plan = None
        self._show()

    async def _follow(self, look: SwitchLook) -> None:
        """How its jobs fared; asked only where fewer live than before, or an end is not told yet."""
        living = self.switches.living_jobs(self._job_ids or (self.job_id,))
        if living == self._living and self.progress.total >= self._total:
            return
        self._living = living
        self.progress = await self.switches.progress(look, self._job_ids or (self.job_id,))
        self._total = max(self._total, self.progress.total)

    def _time_of_day(self) -> str:
        moment = datetime.fromtimestamp(self.session.store.clock.now(), UTC)
        return f"{moment.astimezone(self.session.zone):%H:%M:%S}"

    def _focus_answer(self) -> None:
        is_safe = self.kind is SwitchKind.SAVE and self.can_drop
        self.query_one("#yes" if is_safe else "#no", Button).focus()

    def _heard(self, changed: Changed) -> None:
        """A poll was answered: what was dropped is looked at with it."""
        was_dropped = self.look is not None and self.look.is_dropped
        if changed.kind in (Kind.MINE, Kind.EVERYONE) and was_dropped and not self._is_acting:
            self.run_worker(self._look(), group="switch-look", exclusive=True)

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value.strip():
            self.run_worker(self._find(event.value.strip()), group="switch", exclusive=True)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        {"yes": self.action_drop, "clear": self.action_clear}.get(str(event.button.id), self.action_leave)()

    def action_look_again(self) -> None:
        self.run_worker(self._look(), group="switch-look", exclusive=True)

    def action_leave(self) -> None:
        if not self._is_acting:
            self.dismiss()

    # -- what is done

    def action_drop(self) -> None:
        if self.can_drop and self._plan is not None:
            self._act(self._plan)

    def action_clear(self) -> None:
        if self.can_clear and self.switch is not None and self.look is not None:
            self._cleared = True
            self._act(self.switches.plan_clear(self.switch, self.look))

    def _act(self, plan: Plan) -> None:
        self._is_acting = True
        self._show()
        self.run_worker(self._carry_out(plan), group="switch")

    async def _carry_out(self, plan: Plan) -> None:
        """Run it, look again, say what went wrong; one is asked to look at the queue sooner."""
        try:
            report = await self.session.actions.run(plan)
        finally:
            self._is_acting = False
        outcome: Outcome = report.outcomes[0]
        if outcome.done is not True:
            self._cleared = False
        await self._look()
        is_drop = plan.request.verb is Verb.SAVE_SWITCH
        if is_drop and outcome.done and self.look is not None and self.look.thing is Thing.NOTHING:
            # Programs that look often are quicker than the next look.
            self._removed_at = self._time_of_day()
        said = [report.journal_problem]
        if outcome.done is not True:
            said.append(f"{'not done' if outcome.done is False else 'not known whether it was done'}: {outcome.words}")
        elif "; " in outcome.words:
            said.append(outcome.words)
        if self.switch is not None and outcome.done:
            said.append(self.switches.remember(self.switch))
        self.problem = visible("; ".join(filter(None, said)))
        self._show()
        self.query_one("#no", Button).focus()
        self.session.poller.ask_now()
