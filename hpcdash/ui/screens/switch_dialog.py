"""The dialog of a job's kill or save switch: which file, who sees it, whether to drop it, and then what comes of it.

Knows no scheduler; what it knows of the switch comes from SwitchFollowing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Input, Static

from hpcdash.backends.actions import Outcome, Verb
from hpcdash.domain.states import ENDED
from hpcdash.domain.switch_looks import Progress, clear_refusal, refusal
from hpcdash.domain.switch_story import Deeds
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError
from hpcdash.stores.actions import Plan
from hpcdash.ui.screens.act_dialogs import FRAME, AnswerButton
from hpcdash.ui.screens.switch_following import LOOK_SECONDS, SwitchFollowing
from hpcdash.ui.screens.switch_lines import SwitchPicture, switch_lines

_GONE_ALREADY = "nothing was done: no job that is known to name it runs or waits any more"


class SwitchDialog(SwitchFollowing):
    """One switch of one job or array; `switch` and `look` are None until they are known."""

    DEFAULT_CSS = (
        FRAME.format(name="SwitchDialog")
        + "    SwitchDialog Input { width: 1fr; background: $panel; margin-top: 1; }\n"
    )
    AROUND_LINES: ClassVar[int] = 9
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "drop", "drop", show=False),
        Binding("c", "clear", "clear", show=False),
        Binding("a", "again", "drop again", show=False),
        Binding("v", "command", "the command", show=False),
        Binding("n,q,escape", "leave", "leave", show=False),
        Binding("ctrl+r", "look_again", "look again", show=False),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
    ]

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
                yield AnswerButton("Drop it again … (a)", id="again")
            yield Static("", classes="aside", id="keys", markup=False)

    def on_mount(self) -> None:
        self._show()
        self._stop_listening = self.session.store.listen(self._heard)
        self.set_interval(LOOK_SECONDS, self._tick)
        self.run_worker(self._find(), group="switch", exclusive=True)

    def on_unmount(self) -> None:
        self._stop_listening()

    @property
    def _is_droppable(self) -> bool:
        """Whether nothing is in the way of dropping it, and somebody is there to see it."""
        return self.look is not None and not self._is_acting and bool(self._living) and not refusal(self.look)

    @property
    def can_drop(self) -> bool:
        return self._is_droppable and (self._asks_again or not self._has_acted)

    @property
    def can_ask_again(self) -> bool:
        return self._is_droppable and self._has_acted and not self._asks_again

    @property
    def can_clear(self) -> bool:
        return self.look is not None and not self._is_acting and not clear_refusal(self.look)

    def _show(self) -> None:
        """All that is known now, the buttons that make sense, and the keys."""
        if not self.is_mounted:
            return
        self.query_one("#path").display = self.switch is not None and not self.switch.path
        rows = Table.grid(padding=(0, 2))
        rows.add_column(width=7, no_wrap=True, style="dim")
        rows.add_column(overflow="fold", ratio=1)
        for label, words, style in self._lines():
            rows.add_row(Text(label), Text(words, style))
        self.query_one("#body", Static).update(rows)
        can_drop = self.can_drop
        self.query_one("#yes").display = can_drop
        self.query_one("#yes", AnswerButton).rename(f"Yes, drop it{' again' if self._asks_again else ''} (y)")
        self.query_one("#clear").display = self.can_clear
        self.query_one("#again").display = self.can_ask_again
        self.query_one("#no", AnswerButton).rename("No (n)" if can_drop else "Close (q)")
        self.query_one("#keys", Static).update(self._keys())
        if self.focused is None or not self.focused.display:
            self.query_one("#no", Button).focus()

    def _keys(self) -> str:
        if self.query_one("#path").display:
            return "enter takes the path, esc leaves"
        is_dropped = self.look is not None and self.look.is_dropped
        keys = ["y drops it; n and esc do not"] if self.can_drop else []
        keys += ["c removes the file"] if self.can_clear else []
        keys += ["a drops it again (asks)"] if self.can_ask_again else []
        keys += [] if self.can_drop else ["esc closes, it stays" if is_dropped else "esc closes"]
        if self._command():
            keys.append(f"v {'hides' if self._shows_command else 'shows'} the command")
        return "; ".join([*keys, "ctrl+r looks again"])

    def _command(self) -> str:
        """What y runs, else what c does, as a shell would take it; '' where neither does anything."""
        plan = self._plan if self.can_drop else self._clear_plan() if self.can_clear else None
        return shlex.join(plan.commands[0].argv) if plan is not None else ""

    def _clear_plan(self) -> Plan | None:
        if self.switch is None or self.look is None:
            return None
        return self.switches.plan_clear(self.switch, self.look)

    def _lines(self) -> Iterator[tuple[str, str, str]]:
        """(label, words, style) of each line."""
        switch, look = self.switch, self.look
        for words in filter(None, (self.act_said, self.problem)):
            yield "", f"! {words}", "bold"
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
        found = self.namesakes
        yield from switch_lines(
            SwitchPicture(
                switch,
                look,
                self._living,
                found is not None,
                "" if found is None else found.note,
                self.progress,
                self.deeds,
                self.log_said,
                self._plan.commands[0].words if self.can_drop and self._plan is not None else "",
                self._command() if self._shows_command else "",
            )
        )

    def _ask_for_path(self) -> None:
        self.query_one("#path").focus()

    def _focus_answer(self) -> None:
        is_safe = self.kind is SwitchKind.SAVE and self.can_drop
        self.query_one("#yes" if is_safe else "#no", Button).focus()

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value.strip():
            self.run_worker(self._find(event.value.strip()), group="switch", exclusive=True)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        acts = {"yes": self.action_drop, "clear": self.action_clear, "again": self.action_again}
        acts.get(str(event.button.id), self.action_leave)()

    def action_look_again(self) -> None:
        self.run_worker(self._look_at_all(), group="switch-look", exclusive=True)

    async def _look_at_all(self) -> None:
        await self._look(is_asked=True)
        await self._ask_who()
        self.session.poller.ask_now()

    def action_command(self) -> None:
        self._shows_command = not self._shows_command
        self._show()

    def action_again(self) -> None:
        """Ask whether to drop it once more: only where somebody is left to see it, as is asked for now."""
        if self.can_ask_again:
            self.run_worker(self._ask_again(), group="switch-look", exclusive=True)

    async def _ask_again(self) -> None:
        await self._look(is_asked=True)
        self._asks_again = self.can_ask_again and not self.problem
        self._show()
        self._focus_answer()

    def action_leave(self) -> None:
        if self._asks_again:
            self._asks_again = False
            self._show()
            self.query_one("#no", Button).focus()
        elif not self._is_acting:
            self.dismiss()

    # -- what is done

    def action_drop(self) -> None:
        if self.can_drop and self._plan is not None:
            self._act(self._plan)

    def action_clear(self) -> None:
        if self.can_clear and (plan := self._clear_plan()) is not None:
            self._act(plan)

    def _act(self, plan: Plan) -> None:
        self._is_acting = True
        self._show()
        self.run_worker(self._carry_out(plan), group="switch")

    async def _carry_out(self, plan: Plan) -> None:
        """Run it, look again, say what went wrong; one is asked to look at the queue sooner."""
        is_drop = plan.request.verb in (Verb.KILL_SWITCH, Verb.SAVE_SWITCH)
        try:
            if is_drop and not await self._is_anyone_left():
                self.act_said, self._asks_again = _GONE_ALREADY, False
                return
            if is_drop and self._log is not None:
                await self._log.mark(self._living)
            begun = monotonic()
            report = await self.session.actions.run(plan)
        finally:
            self._is_acting = False
            self._show()
        outcome: Outcome = report.outcomes[0]
        self._asks_again = False
        if outcome.done:
            self._has_acted = True
            self._note_deed(is_drop=is_drop)
        await self._look(dropped_seconds_ago=monotonic() - begun if is_drop and outcome.done else None)
        said = [report.journal_problem]
        if outcome.done is not True:
            said.append(f"{'not done' if outcome.done is False else 'not known whether it was done'}: {outcome.words}")
        elif "; " in outcome.words:
            said.append(outcome.words)
        if self.switch is not None and outcome.done:
            said.append(self.switches.remember(self.switch))
        self.act_said = visible("; ".join(filter(None, said)))
        self._show()
        self.query_one("#no", Button).focus()
        self.session.poller.ask_now()

    async def _is_anyone_left(self) -> bool:
        """Whether somebody is there to see it, as the queue has it now; True where it cannot be asked."""
        try:
            rows = await self.switches.jobs_now(self._job_ids, most=0)
        except HpcdashError:
            return True
        self._living = tuple(row for row in rows if row["state"] not in ENDED)
        return bool(self._living)

    def _note_deed(self, *, is_drop: bool) -> None:
        if not is_drop:
            self.deeds = replace(self.deeds, cleared=self._time_of_day())
            return
        self.deeds = Deeds(dropped=self._time_of_day())
        self.progress, self._most_jobs, self._dropped_at = Progress(), 0, None
        self._lived_then = frozenset(str(row["id"]) for row in self._living)
