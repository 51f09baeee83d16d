"""The dialog of a job's kill or save switch: which file, who sees it, whether to set it, and then what comes of it."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Button, Input, Static

from hpcdash.backends.actions import Outcome, Verb
from hpcdash.domain.impact import count_jobs, owners, state_counts
from hpcdash.domain.job_text import state_word
from hpcdash.domain.states import ACTIVE, ENDED
from hpcdash.domain.switch_text import (
    Deeds,
    SwitchLook,
    SwitchProgress,
    Thing,
    clear_doubt,
    clear_refusal,
    format_folder,
    format_group,
    format_shared,
    format_thing,
    format_unseen,
    refusal,
    story_lines,
    warnings,
)
from hpcdash.domain.switches import SwitchKind
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.switches.switches import Switch
from hpcdash.ui.dialogs import AnswerButton
from hpcdash.ui.switches.following import LOOK_SECONDS, SwitchFollowing

_MOST_LISTED = 8
Line = tuple[str, str, str]
_GONE_ALREADY = "nothing was done: no job that is known to name it runs or waits any more"


@dataclass(frozen=True, slots=True)
class SwitchPicture:
    """All that is known of a switch. `living` are rows of the jobs that name it and run or wait.

    `log` is whether the log grows, `does` what would be done in words, `command` how, '' where it is not wanted.
    """

    switch: Switch
    look: SwitchLook
    living: tuple[Mapping[str, Any], ...]
    is_known_who: bool
    note: str
    progress: SwitchProgress
    deeds: Deeds
    log: str
    does: str
    command: str

    @property
    def kind(self) -> SwitchKind:
        return self.switch.kind


def switch_lines(picture: SwitchPicture) -> Iterator[Line]:
    """(label, words, style) of each line below the path."""
    look, kind, deeds = picture.look, picture.kind, picture.deeds
    if also := picture.switch.format_other_path:
        yield "", f"! {visible(also)} (p takes another)", "bold"
    is_told = deeds.is_any or look.is_dropped
    if not look.problem:
        yield "folder", format_folder(look), ""
    if (look.is_dropped or picture.living) and (group := format_group(look)):
        yield "", group, ""
    if is_told:
        for label, words in story_lines(kind, look, deeds, picture.progress):
            yield label, words, "" if label == "log" else "bold"
    else:
        yield "now", format_thing(look), "bold"
    if look.is_dropped and kind is SwitchKind.KILL:
        yield "", "It stays until it is cleared: what starts later ends at once.", ""
    if not look.is_dropped and (why := refusal(look)) and why != format_thing(look):
        yield "", f"! {why}", "bold"
    if look.is_dropped or picture.living:
        for words in warnings(look, kind, picture.switch.owner):
            yield "", f"! {words}", "bold"
    if picture.log and picture.living and not (deeds.said or deeds.gone):
        yield "log", visible(picture.log), ""
    yield from _who_lines(picture)
    if picture.does:
        yield "does", visible(picture.does), ""
    if picture.command:
        yield "runs", "\n".join(map(visible, picture.command.split("\n"))), ""


def _who_lines(picture: SwitchPicture) -> Iterator[Line]:
    """Whom it stops, or has save; of one that is there those that are left; nobody where all have ended."""
    is_told = picture.look.is_dropped or (picture.deeds.is_any and not picture.does)
    label = "left" if is_told else "stops" if picture.kind is SwitchKind.KILL else "seen by"
    if not is_told and refusal(picture.look):
        label = "for"
    if not picture.living and not picture.is_known_who:
        yield label, "looking who names it …", ""
        return
    by_unit: dict[str, list[dict[str, object]]] = {}
    for row in picture.living:
        by_unit.setdefault(str(row["array_id"] or row["id"]), []).append(dict(row))
    total = count_jobs(picture.living)
    if not total:
        yield "left", "no job that is known to name it runs or waits", ""
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
    if shared := format_shared(picture.kind, count_jobs(row for row in picture.living if row["state"] in ACTIVE)):
        yield "", f"! {shared}", "bold"
    if picture.note and total:
        yield "", picture.note, ""
    if not picture.is_known_who:
        yield "", "looking who else names it …", ""


class SwitchDoing(SwitchFollowing):
    """The part of SwitchDialog that acts."""

    @property
    def can_drop(self) -> bool:
        raise NotImplementedError

    @property
    def can_clear(self) -> bool:
        raise NotImplementedError

    def _clear_plan(self) -> Plan | None:
        raise NotImplementedError

    @property
    def doubt(self) -> str:
        """Why it is asked before what is there is removed, '' where it is not."""
        is_dropped_here = bool(self.deeds.dropped) and not (self.deeds.gone or self.deeds.cleared)
        return "" if self.look is None else clear_doubt(self.look, is_dropped_here=is_dropped_here)

    def action_drop(self) -> None:
        if self.can_drop and self._plan is not None:
            self._act(self._plan)

    def action_clear(self) -> None:
        """Remove it; what may be no switch at the second time only."""
        if not self.can_clear or (plan := self._clear_plan()) is None:
            return
        if self.doubt and not self._asks_clear:
            self._asks_clear = True
            self._show()
            self.query_one("#no", Button).focus()
            return
        self._act(plan)

    def _ask_anew(self, before: SwitchLook | None) -> None:
        if not self.can_clear or not self.doubt or _identity(before) != _identity(self.look):
            self._asks_clear = False

    def _act(self, plan: Plan) -> None:
        self._is_acting = True
        self._asks_clear = False
        self._show()
        self.run_worker(self._carry_out(plan), group="switch")

    async def _carry_out(self, plan: Plan) -> None:
        """Run it, look again, say what went wrong; one is asked to look at the queue sooner."""
        switch = self.switch
        if switch is None:
            return
        is_drop = plan.request.verb in (Verb.KILL_SWITCH, Verb.SAVE_SWITCH)
        try:
            if is_drop and not await self._is_anyone_left():
                self.act_said, self._asks_again = _GONE_ALREADY, False
                return
            if is_drop and self._log is not None:
                await self._log.mark(self._living)
            begun = monotonic()
            report = await self.switches.carry_out(switch, plan)
        finally:
            self._is_acting = False
            self._show()
        outcome: Outcome = report.outcomes[0]
        self._asks_again = False
        said = [report.journal_problem]
        if outcome.done:
            self._has_acted = True
            self._note_deed(begun, is_drop=is_drop)
        if outcome.done and is_drop:
            said.append(self.switches.remember(switch))
            said.append("" if self._log is None else self.switches.mark(switch, self._log))
        await self._look(dropped_seconds_ago=monotonic() - begun if is_drop and outcome.done else None)
        if outcome.done is not True:
            said.append(f"{'not done' if outcome.done is False else 'not known whether it was done'}: {outcome.words}")
        elif "; " in outcome.words:
            said.append(outcome.words)
        self.act_said = visible("; ".join(filter(None, said)))
        self._show()
        if self.is_live:
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

    def _note_deed(self, begun: float, *, is_drop: bool) -> None:
        if not is_drop:
            was_there = self.look is not None and self.look.is_dropped
            unseen = format_unseen(self.kind, self.progress) if was_there else ""
            self.deeds = replace(self.deeds, cleared=self._time_of_day(), unseen=unseen)
            self._dropped_here = None
            return
        self.deeds = Deeds(dropped=self._time_of_day())
        self.progress, self._most_jobs, self._dropped_at = SwitchProgress(), 0, None
        self._dropped_here = begun
        self._lived_then = frozenset(str(row["id"]) for row in self._living)


def _identity(look: SwitchLook | None) -> tuple[object, ...]:
    """What tells what is there from something else of its name; a FIFO's time is when it was written to last."""
    if look is None:
        return ()
    file = look.file
    changed_at = None if look.thing is Thing.SPECIAL else file.changed_at
    return look.thing, file.mode[:1], file.uid, file.size, look.link_to, changed_at


class SwitchDialog(SwitchDoing):
    """One switch of one job or array; `switch` and `look` are None until they are known."""

    DEFAULT_CSS = "SwitchDialog Input { width: 1fr; background: $panel; margin-top: 1; }"
    fixed_lines = 9
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "drop", "drop", show=False),
        Binding("c", "clear", "clear", show=False),
        Binding("a", "again", "drop again", show=False),
        Binding("v", "command", "the command", show=False),
        Binding("p", "path", "another path", show=False),
        Binding("n,q", "leave", "leave", show=False),
        Binding("ctrl+r", "look_again", "look again", show=False),
    ]

    # -- what is shown

    @property
    def is_dangerous(self) -> bool:
        return self.kind is SwitchKind.KILL

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="scrolls", can_focus=False):
            yield Static("", classes="words", id="body", markup=False)
        yield Input(placeholder="/path/of/the/file", id="path", compact=True)
        with Horizontal(classes="buttons"):
            yield AnswerButton("No (n)", id="no")
            yield AnswerButton("Yes, drop it (y)", id="yes")
            yield AnswerButton("Clear it (c)", id="clear")
            yield AnswerButton("Drop it again … (a)", id="again")

    def on_mount(self) -> None:
        self._show()
        self._stop_listening = self.session.store.listen(self._heard)
        self.set_interval(LOOK_SECONDS, self._tick)
        self.run_worker(self._find(), group="switch", exclusive=True)

    def on_unmount(self) -> None:
        self._stop_listening()

    @property
    def _may_act(self) -> bool:
        """Whether nothing is being done, and what is known is of the file that is named."""
        is_looked_at = self.switch is not None and self.look is not None and self.look.path == self.switch.path
        return is_looked_at and not self._is_acting

    @property
    def _is_droppable(self) -> bool:
        """Whether nothing is in the way of dropping it, and somebody is there to see it."""
        return self._may_act and bool(self._living) and self.look is not None and not refusal(self.look)

    @property
    def can_drop(self) -> bool:
        return self._is_droppable and (self._asks_again or not self._has_acted)

    @property
    def can_ask_again(self) -> bool:
        return self._is_droppable and self._has_acted and not self._asks_again

    @property
    def can_clear(self) -> bool:
        return self._may_act and self.look is not None and not clear_refusal(self.look)

    def _show(self) -> None:
        """All that is known now, the buttons that make sense, and the keys."""
        if not (self.is_mounted and self.is_live):
            return
        self.query_one("#path").display = self._asks_path or (self.switch is not None and not self.switch.path)
        self.query_one(".buttons").display = not self._asks_path
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
        self.query_one("#clear", AnswerButton).rename("Yes, remove it (c)" if self._asks_clear else "Clear it (c)")
        self.query_one("#again").display = self.can_ask_again
        # Where a path is typed q is one of its letters.
        close = "Close (esc)" if self.query_one("#path").display else "Close (q)"
        self.query_one("#no", AnswerButton).rename("No (n)" if can_drop or self._asks_clear else close)
        self.query_one("#keys", Static).update(self._keys())
        if self.focused is None or not self.focused.display:
            self.query_one("#no", Button).focus()

    def _keys(self) -> str:
        if self._asks_path:
            return "enter takes the path; an empty line forgets what was named before; esc keeps this one"
        if self.query_one("#path").display:
            return "enter takes the path, esc leaves"
        is_dropped = self.look is not None and self.look.is_dropped
        keys = ["y drops it; n and esc do not"] if self.can_drop else []
        keys += ["c removes the file"] if self.can_clear else []
        keys += ["a drops it again (asks)"] if self.can_ask_again else []
        keys += [] if self.can_drop else ["esc closes, it stays" if is_dropped else "esc closes"]
        if self._command():
            keys.append(f"v {'hides' if self._shows_command else 'shows'} the command")
        keys += ["p names another file"] if self.can_name_another else []
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
        doubt = f"{self.doubt}. c once more removes it all the same, n keeps it." if self._asks_clear else ""
        against = visible(self.against) if self.can_drop else ""
        for words in filter(None, (self.act_said, self.problem, doubt, against)):
            yield "", f"! {words}", "bold"
        if switch is None:
            if not self.problem:
                yield "", "looking for its path …", ""
            return
        if not switch.path:
            yield "", f"{visible(switch.naming.problem)}.", ""
            yield "", "Which file does it look for? It is remembered for jobs of this name.", ""
            return
        yield "file", visible(switch.path), "bold"
        yield "", visible(switch.naming.whence), ""
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
        if self.is_live:
            self.query_one("#path").focus()

    def _focus_answer(self) -> None:
        if not self.is_live:
            return
        is_safe = self.kind is SwitchKind.SAVE and self.can_drop and not self.against
        self.query_one("#yes" if is_safe else "#no", Button).focus()

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value.strip():
            self.run_worker(self._find(event.value.strip()), group="switch", exclusive=True)
        elif self._asks_path:
            self.run_worker(self._forget_path(), group="switch", exclusive=True)

    @property
    def can_name_another(self) -> bool:
        return self.switch is not None and bool(self.switch.path) and not self._is_acting

    def action_path(self) -> None:
        """Ask for another file in the place of this one."""
        if self.switch is None or not self.can_name_another:
            return
        self._asks_path = True
        self._show()
        path = self.query_one("#path", Input)
        path.value = self.switch.path
        path.focus()

    async def _forget_path(self) -> None:
        if self.switch is not None:
            said = await asyncio.to_thread(self.switches.forget, self.switch)
            await self._find()
            self.act_said = visible(said)
            self._show()

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
        if self._asks_again or self._asks_clear or self._asks_path:
            self._asks_again = self._asks_clear = self._asks_path = False
            self._show()
            self.query_one("#no", Button).focus()
        elif not self._is_acting:
            self.dismiss()
