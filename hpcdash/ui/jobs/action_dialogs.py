"""The dialogs around an action on jobs: whether to do it, and how it went for each job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from hpcdash.backends.actions import Outcome
from hpcdash.domain import impact
from hpcdash.domain.job_text import state_word
from hpcdash.domain.text import clip, visible, width_of
from hpcdash.services.jobs import action_text
from hpcdash.services.jobs.actions import Plan, Report
from hpcdash.ui.widgets.cells import signs

FRAME = """
    {name} {{ align: center middle; background: $background 60%; }}
    {name} > .frame {{
        width: 90; max-width: 96%; height: auto; max-height: 96%; padding: 0 2;
        background: $surface; border: round $primary;
    }}
    {name} > .frame.dangerous {{ border: heavy $error; }}
    {name} .title {{ text-style: bold; height: auto; margin-bottom: 1; }}
    {name} .scrolls {{ height: auto; scrollbar-size-vertical: 1; }}
    {name} .words {{ height: auto; }}
    {name} .warned {{ height: auto; color: $warning; text-style: bold; }}
    {name} .label {{ height: auto; margin-top: 1; color: $table-dim; }}
    {name} .noted {{ height: auto; margin-top: 1; }}
    {name} .under {{ height: auto; padding-left: 2; }}
    {name} .aside {{ height: auto; margin-top: 1; color: $table-dim; }}
    {name} .buttons {{ height: 1; margin-top: 1; }}
    {name} AnswerButton {{ margin-right: 2; min-width: 0; background: $boost; }}
    {name} AnswerButton:focus {{ background: $boost; text-style: bold reverse; }}
"""
_IDS_CELLS = 130
_COMMAND_LETTERS = 8_000
# Past these, a list of results tells how many more there are.
_MOST_RESULTS = 2000


class AnswerButton(Button):
    """A button of one line; a sign beside its colours says that `enter` presses it."""

    def __init__(self, words: str, *, id: str) -> None:
        super().__init__(f"  {words}", id=id, compact=True)
        self._words = words

    def watch_has_focus(self, value: bool) -> None:
        super().watch_has_focus(value)
        self.label = f"{signs().states['running'] if value else ' '} {self._words}"

    def rename(self, words: str) -> None:
        """Other words on it."""
        self._words = words
        self.watch_has_focus(self.has_focus)
        # Its width was that of the words before.
        self.refresh(layout=True)


class ScrollingDialog(ModalScreen[None]):
    """A dialog whose part of class `.scrolls` takes the height that is left between the title and the last lines."""

    # The frame's border, the title with a blank line, the line of keys with one.
    AROUND_LINES: ClassVar[int] = 6

    @property
    def is_live(self) -> bool:
        """Whether its widgets are there: a dialog that is being taken away loses them innermost first."""
        return self.is_attached and not (self._pruning or self._closing)

    def on_resize(self) -> None:
        frame = self.query_one(".frame")
        titles = [str(title.render()) for title in self.query(".title").results(Static)]
        # The frame's border and padding take six cells.
        columns = max(20, min(90, int(0.96 * self.size.width)) - 6)
        more_lines = sum((width_of(title) - 1) // columns for title in titles)
        for part in frame.query(".scrolls"):
            part.styles.max_height = max(3, int(0.96 * self.size.height) - self.AROUND_LINES - more_lines)

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False, immediate=True)

    def action_page(self, pages: int) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.scroll_relative(y=pages * max(1, scroll.size.height - 1), animate=False, immediate=True)


class ConfirmDialog(ScrollingDialog):
    """What would be done, to whose jobs, and what is lost by it. The plan is the one that runs: nothing refreshes it.

    `answer` is set once; `form`, a dialog below that led here, ends with a yes. `question` takes the place of the one
    that the plan makes; where it `is_doubtful` whether it is wanted, or something is warned of, `enter` says no.
    `checkpoints` are as stakes() has them.
    """

    DEFAULT_CSS = FRAME.format(name="ConfirmDialog")
    AROUND_LINES: ClassVar[int] = 8
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes", show=False),
        Binding("n,q,escape", "answer(False)", "no", show=False),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
    ]

    def __init__(
        self,
        plan: Plan,
        *,
        user: str = "",
        asides: Sequence[str] = (),
        form: ModalScreen[None] | None = None,
        has_recipients: bool = True,
        question: str = "",
        is_doubtful: bool = False,
        warnings: Sequence[str] = (),
        checkpoints: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.plan = plan
        self.warnings = tuple(warnings)
        self._checkpoints = checkpoints or {}
        self._question = visible(question) or action_text.title(plan)
        self._is_doubtful = is_doubtful
        self.user = user
        self.asides = tuple(asides)
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._form = form
        self._has_recipients = has_recipients
        self._is_others = bool(action_text.format_others(plan.rows, user))

    @property
    def is_dangerous(self) -> bool:
        is_odd = self._is_others or self._is_doubtful or bool(self.warnings)
        return is_odd or action_text.is_dangerous(self.plan.request)

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame dangerous" if self.is_dangerous else "frame"):
            yield Static(self._question, classes="title", markup=False)
            with VerticalScroll(classes="scrolls", can_focus=False):
                yield from self._parts()
            with Horizontal(classes="buttons"):
                yield AnswerButton("No (n)", id="no")
                yield AnswerButton(f"Yes, {self._deed()} (y)", id="yes")
            yield Static("", classes="aside", id="keys", markup=False)

    def _deed(self) -> str:
        verb = self.plan.request.verb
        return {"signal": "send it", "alter": "change it"}.get(verb, str(verb))

    def _keys(self) -> str:
        """What `enter` would do, wherever the focus is now."""
        yes = self.query_one("#yes").has_focus
        does, does_not = ("enter or y does", "n and esc do") if yes else ("y does", "enter, n and esc do")
        return f"{does} it; {does_not} not; tab goes to the other; j k scroll"

    def on_descendant_focus(self) -> None:
        self.query_one("#keys", Static).update(self._keys())

    def _parts(self) -> list[Static]:
        plan = self.plan
        counts = impact.state_counts(plan.rows)
        in_states = "   ".join(
            f"{signs().states.get(state, '?')} {count} {visible(state_word(state))}" for state, count in counts.items()
        )
        parts = [_line(in_states)] if in_states else []
        if self._is_others:
            parts.append(_line(f"! {action_text.format_others(plan.rows, self.user)}", "warned"))
        parts += [_line(f"! {visible(words)}", "warned") for words in self.warnings]
        stakes_told = action_text.format_impact(
            plan, has_recipients=self._has_recipients, checkpoints=self._checkpoints
        )
        parts += [_line(words) for words in stakes_told]
        parts += [_line(visible(words), "noted" if at == 0 else "words") for at, words in enumerate(self.asides)]
        ids = plan.request.job_ids
        if len(ids) > 1:
            parts += [_line(f"{len(ids)} ids", "label"), _line(_clipped_ids(ids), "under")]
        commands = plan.commands
        parts.append(_line("what runs" if len(commands) == 1 else f"what runs, {len(commands)} commands", "label"))
        parts += [_line(words, "under") for words in _commands(plan)]
        if pauses := action_text.format_pause(plan):
            parts.append(_line(pauses, "label"))
        parts.append(_line("It is noted in the journal (J), before and after.", "label"))
        return parts

    def on_mount(self) -> None:
        self.query_one("#no" if self.is_dangerous else "#yes", Button).focus()

    def on_unmount(self) -> None:
        if not self.answer.done():
            self.answer.set_result(False)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.action_answer(event.button.id == "yes")

    def action_answer(self, is_yes: bool) -> None:
        if self.answer.done():
            return
        self.answer.set_result(is_yes)
        self.dismiss()
        if is_yes and self._form is not None:
            self._form.dismiss()


class ResultsDialog(ScrollingDialog):
    """How an action went that was not done for every job: what failed first, in the scheduler's own words."""

    DEFAULT_CSS = FRAME.format(name="ResultsDialog")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,n,y", "close", "close", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
    ]

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report

    def compose(self) -> ComposeResult:
        report = self.report
        with Vertical(classes="frame"):
            words = f"{report.plan.request.verb}: {action_text.outcome_counts(report.outcomes)}"
            yield Static(words, classes="title", markup=False)
            with VerticalScroll(classes="scrolls"):
                if report.journal_problem:
                    yield _line(f"! {visible(report.journal_problem)}", "warned")
                yield Static(result_lines(report.outcomes), classes="words", markup=False)
            yield Static("esc closes; J shows it again", classes="aside", markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_close(self) -> None:
        self.dismiss()


def result_lines(outcomes: Sequence[Outcome]) -> Text:
    """A line for each job, those that failed first; what to do where nobody knows."""
    rank = {False: 0, None: 1, True: 2}
    signs_of = {False: (signs().states["failed"], "refused"), None: ("?", "unknown"), True: ("", "done")}
    signs_of[True] = (signs().states["completed"], "done")
    ordered = sorted(outcomes, key=lambda outcome: rank[outcome.done])
    ids = min(24, max((len(visible(outcome.job_id)) for outcome in ordered), default=0))
    text = Text()
    if any(outcome.done is None for outcome in ordered):
        text.append("Where it is unknown, look with ctrl+r: it was not repeated.\n\n", "bold")
    for outcome in ordered[:_MOST_RESULTS]:
        sign, word = signs_of[outcome.done]
        style = "" if outcome.done else "bold"
        text.append(f"{sign} {word:<8}{clip(visible(outcome.job_id), 24):<{ids}}", style)
        words = visible(" ".join(outcome.words.split()))
        text.append(f"  {words}\n" if words else "\n")
    if len(ordered) > _MOST_RESULTS:
        text.append(f"and {len(ordered) - _MOST_RESULTS} more\n")
    text.rstrip()
    return text


def _line(words: str, classes: str = "words") -> Static:
    return Static(words, classes=classes, markup=False)


def _commands(plan: Plan) -> list[str]:
    """Every command whole, one after the other, up to what one would ever read."""
    lines: list[str] = []
    letters = 0
    for at, command in enumerate(plan.commands):
        words = action_text.shown_command(command)
        letters += len(words)
        if letters > _COMMAND_LETTERS:
            cut = clip(words, max(0, len(words) - (letters - _COMMAND_LETTERS)))
            rest = len(plan.commands) - at - 1
            return [*lines, *([cut] if cut else []), f"… and {rest} more commands for the other ids" if rest else "…"]
        lines.append(words)
    return lines


def _clipped_ids(ids: Sequence[str]) -> str:
    shown: list[str] = []
    room = _IDS_CELLS
    for job_id in ids:
        room -= len(job_id) + 1
        if room < 0:
            return f"{' '.join(shown)} … and {len(ids) - len(shown)} more"
        shown.append(visible(job_id))
    return " ".join(shown)
