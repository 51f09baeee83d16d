"""Dialogs of an action on jobs: its changes or its signal, its confirmation, its results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from msgspec import Struct
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.suggester import SuggestFromList
from textual.widgets import Button, Input, OptionList
from textual.widgets.option_list import Option

from hpcdash.backends.actions import Outcome
from hpcdash.domain import impact
from hpcdash.domain.job_text import state_word
from hpcdash.domain.text import clip, visible
from hpcdash.errors import UsageError
from hpcdash.services.jobs import action_text
from hpcdash.services.jobs.actions import Plan, Report
from hpcdash.services.state.notes import LONGEST_NOTE
from hpcdash.ui.dialogs import AnswerButton, Dialog
from hpcdash.ui.widgets.cells import signs
from hpcdash.ui.widgets.lines import PlainStatic, TextInput

_HINTS = {
    "time": "2h, 1-12:00:00",
    "memory": "per node: 16G",
    "nice": "a higher value lowers priority",
    "throttle": "maximum number of tasks at a time",
}
_IDS_CELLS = 130
_MAX_ID_CELLS = 24
_COMMAND_LETTERS = 8_000
_MAX_RESULTS = 2000


class Question(Struct, frozen=True):
    """Question whether to run a plan.

    `title` defaults to that of the plan; `notes` are shown below the effect. If the plan
    `is_doubtful` or has `warnings`, `enter` answers no. `checkpoints` are those of describe_impact;
    `script` is a label and the submitted text.
    """

    plan: Plan
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    title: str = ""
    is_doubtful: bool = False
    checkpoints: Mapping[str, str] = {}
    script: tuple[str, str] | None = None


class ConfirmDialog(Dialog[None]):
    """Confirmation of a plan: its effect, the owners of the jobs, and the losses.

    The plan is the one that runs: nothing refreshes it. `answer` is set once; `form`, the dialog
    below that led here, is closed with a yes.
    """

    # The buttons too, with a blank line.
    fixed_lines = 8
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes", show=False),
        Binding("n,q,escape", "answer(False)", "no", show=False),
    ]

    def __init__(
        self,
        question: Question,
        *,
        cluster: str = "",
        user: str = "",
        form: Dialog[None] | None = None,
        has_recipients: bool = True,
    ) -> None:
        super().__init__(question.title or action_text.title(question.plan))
        self.question = question
        self.plan = question.plan
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._cluster = cluster
        self._form = form
        self._has_recipients = has_recipients
        self._others = action_text.format_others(question.plan.rows, user)

    @property
    def is_dangerous(self) -> bool:
        question = self.question
        is_odd = self._others or question.is_doubtful or question.warnings
        return bool(is_odd) or action_text.is_dangerous(self.plan.request)

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="scrolls", can_focus=False):
            yield from self._parts()
        with Horizontal(classes="buttons"):
            verb = str(self.plan.request.verb)
            texts = {"signal": "send it", "alter": "change it", "delete-files": "delete"}
            text = texts.get(verb, verb)
            yield AnswerButton("No (n)", id="no")
            yield AnswerButton(f"Yes, {text} (y)", id="yes")

    def on_descendant_focus(self) -> None:
        """Show which answer `enter` gives."""
        if self.query_one("#yes").has_focus:
            keys = "y/enter confirm · n/esc go back"
        else:
            keys = "y confirm · n/esc/enter go back"
        self.query_one("#keys", PlainStatic).update(f"{keys} · tab switch · j/k scroll")

    def _parts(self) -> list[PlainStatic]:
        question = self.question
        plan = self.plan
        counts = []
        for state, count in impact.state_counts(plan.rows).items():
            sign = signs().states.get(state, "?")
            counts.append(f"{sign} {count} {visible(state_word(state))}")
        if self._cluster:
            counts.append(f"on {visible(self._cluster)}")
        parts = [_line("   ".join(counts))] if counts else []
        if self._others:
            parts.append(_line(f"! {self._others}", "warned"))
        parts += [_line(f"! {visible(warning)}", "warned") for warning in question.warnings]
        effects = action_text.format_impact(
            plan, has_recipients=self._has_recipients, checkpoints=question.checkpoints
        )
        parts += map(_line, effects)
        for number, note in enumerate(question.notes):
            parts.append(_line(visible(note), "words" if number else "noted"))
        ids = plan.request.job_ids
        if len(ids) > 1:
            parts += [_line(f"{len(ids)} job IDs", "label"), _line(_clipped_ids(ids), "under")]
        count = len(plan.commands)
        heading = "Command to run" if count == 1 else f"Commands to run ({count})"
        parts.append(_line(heading, "label"))
        parts += [_line(command, "under") for command in _commands(plan)]
        if pauses := action_text.format_pause(plan):
            parts.append(_line(pauses, "label"))
        parts.append(_line("Logged in the journal (J).", "label"))
        if question.script is not None:
            label, text = question.script
            lines = "\n".join(map(visible, text.splitlines()))
            parts += [_line(label, "label"), _line(lines, "under")]
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


class ResultsDialog(Dialog[None]):
    """Results of an action that failed for some jobs, failures first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,enter,n,y", "leave", "close", show=False),
    ]

    def __init__(self, report: Report, cluster: str = "") -> None:
        where = f" on {visible(cluster)}" if cluster else ""
        super().__init__(
            f"{report.plan.request.verb.capitalize()}{where}: "
            f"{action_text.outcome_counts(report.outcomes)}"
        )
        self.report = report

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="scrolls"):
            if self.report.journal_problem:
                yield _line(f"! {visible(self.report.journal_problem)}", "warned")
            yield PlainStatic(result_lines(self.report.outcomes), classes="words")

    def format_keys(self) -> str:
        return "esc close · J journal"

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def result_lines(outcomes: Sequence[Outcome]) -> Text:
    """Return a line per job, failures first, and the next step if an outcome is unknown."""
    labels = {
        False: (signs().states["failed"], "refused"),
        None: ("?", "unknown"),
        True: (signs().states["completed"], "done"),
    }
    ranks = list(labels)
    ordered = sorted(outcomes, key=lambda outcome: ranks.index(outcome.done))
    id_cells = max((len(visible(outcome.job_id)) for outcome in ordered), default=0)
    id_cells = min(id_cells, _MAX_ID_CELLS)
    text = Text()
    if any(outcome.done is None for outcome in ordered):
        advice = (
            "If the result is unknown, refresh with ctrl+r to check: the action was not retried."
        )
        text.append(f"{advice}\n\n", "bold")
    for outcome in ordered[:_MAX_RESULTS]:
        sign, label = labels[outcome.done]
        job_id = clip(visible(outcome.job_id), _MAX_ID_CELLS)
        text.append(f"{sign} {label:<8}{job_id:<{id_cells}}", "" if outcome.done else "bold")
        message = visible(" ".join(outcome.text.split()))
        text.append(f"  {message}\n" if message else "\n")
    if len(ordered) > _MAX_RESULTS:
        text.append(f"and {len(ordered) - _MAX_RESULTS} more\n")
    text.rstrip()
    return text


class Field(Struct, frozen=True):
    """Field to change, with its `present` value as typed; '' if it is unknown or the jobs differ.

    A `proposed` value replaces the present one at first; `more_ways` are other forms of a value:
    `+1h, -30m`.
    """

    name: str
    present: str = ""
    suggestions: tuple[str, ...] = ()
    more_ways: str = ""
    proposed: str = ""


class AlterDialog(Dialog[None]):
    """Dialog for the new values of fields.

    `complaint` returns the error of a field's new value, '' for none. `proceed` confirms the
    changes; it raises UsageError for impossible ones. With `may_stay` no change is required.
    """

    DEFAULT_CSS = """
    AlterDialog > .frame { overflow-y: auto; }
    AlterDialog .field { height: 1; }
    AlterDialog .field .name { width: 15; }
    AlterDialog .field .hint { width: 1fr; padding-left: 2; color: $table-dim; }
    AlterDialog Input { width: 24; background: $panel; }
    AlterDialog Input:focus { background: $table-cursor; }
    AlterDialog .complaint { padding-left: 15; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go_on", "go on", show=False, priority=True),
        Binding("down", "app.focus_next", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False, priority=True),
    ]

    def __init__(
        self,
        heading: str,
        fields: Sequence[Field],
        asides: Sequence[str],
        complaint: Callable[[str, str], str],
        proceed: Callable[[Dialog[None], Mapping[str, str]], None],
        *,
        may_stay: bool = False,
    ) -> None:
        super().__init__(heading)
        self.may_stay = may_stay
        self.fields = tuple(fields)
        self.asides = tuple(asides)
        self.complaint = complaint
        self.proceed = proceed

    def compose_body(self) -> ComposeResult:
        for field in self.fields:
            with Horizontal(classes="field"):
                yield PlainStatic(action_text.CHANGED[field.name], classes="name")
                yield TextInput(
                    visible(field.proposed or field.present),
                    placeholder="unchanged",
                    id=field.name,
                    compact=True,
                    max_length=100,
                    suggester=SuggestFromList(field.suggestions) if field.suggestions else None,
                    select_on_focus=False,
                )
                hint = ", ".join(filter(None, (_HINTS.get(field.name, ""), field.more_ways)))
                yield PlainStatic(hint, classes="hint")
            yield PlainStatic(classes="warned complaint", id=f"{field.name}-complaint")
        yield PlainStatic(classes="warned", id="complaint")
        for at, text in enumerate(self.asides):
            yield PlainStatic(visible(text), classes="words" if at else "label")

    def format_keys(self) -> str:
        return "tab next field · enter continue · esc cancel"

    def on_mount(self) -> None:
        for text in self.query(".warned"):
            text.display = False
        self.query(Input).first().focus()

    def changes(self) -> dict[str, str]:
        """Return the changed values by field name."""
        typed = {
            field.name: self.query_one(f"#{field.name}", Input).value.strip()
            for field in self.fields
        }
        return {
            field.name: typed[field.name]
            for field in self.fields
            if typed[field.name] != visible(field.present)
        }

    def action_go_on(self) -> None:
        changes = self.changes()
        problems = {
            name: self.complaint(name, value) if value else "it cannot be empty"
            for name, value in changes.items()
        }
        for field in self.fields:
            self._complain(f"{field.name}-complaint", problems.get(field.name, ""))
        is_enough = bool(changes) or self.may_stay
        self._complain("complaint", "" if is_enough else "no changes yet")
        if wrong := next((name for name, problem in problems.items() if problem), None):
            self.query_one(f"#{wrong}", Input).focus()
        elif is_enough:
            try:
                self.proceed(self, changes)
            except UsageError as error:
                self._complain("complaint", action_text.format_error(error))

    def _complain(self, name: str, text: str) -> None:
        line = self.query_one(f"#{name}", PlainStatic)
        line.update(f"! {text}" if text else "")
        line.display = bool(text)


class _SignalList(OptionList):
    """List with a sign at the selected line, which also shows without colours."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
    ]

    def __init__(self, lines: Sequence[tuple[str, str]], *, id: str) -> None:
        self._choices = tuple(lines)
        super().__init__(
            *(Option(self._prompt(at, at == 0)) for at in range(len(self._choices))),
            id=id,
            compact=True,
        )

    def _prompt(self, at: int, is_chosen: bool) -> Text:
        name, meaning = self._choices[at]
        sign = signs().states["running"] if is_chosen else " "
        return Text.assemble((f"{name:<13}{sign} ", "bold" if is_chosen else ""), meaning)

    def on_mount(self) -> None:
        self.highlighted = 0

    @on(OptionList.OptionHighlighted)
    def _moved(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        for at in range(len(self._choices)):
            self.replace_option_prompt_at_index(at, self._prompt(at, at == event.option_index))


class SignalDialog(Dialog[None]):
    """Signal from a list, or typed; and its recipient, where that can be a part of a job.

    `proceed` confirms before it is sent; it raises UsageError for an invalid signal.
    """

    DEFAULT_CSS = """
    SignalDialog > .frame { overflow-y: auto; }
    SignalDialog OptionList, SignalDialog OptionList:focus { height: auto; background: $surface; background-tint: 0%; }
    SignalDialog .field { height: 1; margin-bottom: 1; }
    SignalDialog .field PlainStatic { width: 15; }
    SignalDialog Input { width: 24; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go_on", "go on", show=False, priority=True),
    ]

    def __init__(
        self,
        heading: str,
        asides: Sequence[str],
        proceed: Callable[[Dialog[None], str, str], None],
        *,
        has_recipients: bool = True,
    ) -> None:
        super().__init__(heading)
        self._recipients = (
            action_text.RECIPIENTS if has_recipients else {"": action_text.ALL_OF_A_JOB}
        )
        self.asides = tuple(asides)
        self.proceed = proceed

    def compose_body(self) -> ComposeResult:
        yield _SignalList(tuple(action_text.SIGNALS.items()), id="signals")
        with Horizontal(classes="field"):
            yield PlainStatic("other signal")
            yield TextInput(placeholder="name or number", compact=True, max_length=20)
        if len(self._recipients) > 1:
            yield _SignalList(tuple(self._recipients.values()), id="recipients")
        else:
            yield PlainStatic(f"to {': '.join(action_text.ALL_OF_A_JOB)}", classes="words")
        yield PlainStatic(classes="warned", id="complaint")
        for text in self.asides:
            yield PlainStatic(visible(text), classes="words")

    def format_keys(self) -> str:
        next_field = "recipient" if len(self._recipients) > 1 else "other signal"
        return f"↑ ↓ choose · tab {next_field} · enter continue · esc cancel"

    def on_mount(self) -> None:
        self.query_one("#complaint").display = False
        self.query_one("#signals", _SignalList).focus()

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        # A click chooses; enter, which goes on, does not come here.
        event.stop()

    def action_go_on(self) -> None:
        signal = self.query_one(Input).value.strip()
        if not signal:
            selected = self.query_one("#signals", _SignalList).highlighted or 0
            signal = list(action_text.SIGNALS)[selected]
        recipient = next(iter(self._recipients))
        for recipients in self.query("#recipients").results(_SignalList):
            recipient = list(self._recipients)[recipients.highlighted or 0]
        complaint = self.query_one("#complaint", PlainStatic)
        complaint.display = False
        try:
            self.proceed(self, signal, recipient)
        except UsageError as error:
            complaint.update(f"! {action_text.format_error(error)}")
            complaint.display = True


def _line(text: str, classes: str = "words") -> PlainStatic:
    return PlainStatic(text, classes=classes)


def _commands(plan: Plan) -> list[str]:
    """Format the commands, up to _COMMAND_LETTERS."""
    lines: list[str] = []
    room = _COMMAND_LETTERS
    for left, command in zip(reversed(range(len(plan.commands))), plan.commands, strict=True):
        text = visible(command.text)
        if len(text) > room:
            if cut := clip(text, room):
                lines.append(cut)
            lines.append(f"… and {left} more commands for the other IDs" if left else "…")
            break
        room -= len(text)
        lines.append(text)
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


class NoteDialog(Dialog[str | None]):
    """Note of one line on a job; an empty line removes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+u", "clear", show=False, priority=True)]

    def __init__(self, heading: str, note: str) -> None:
        super().__init__(heading)
        self.note = note

    def compose_body(self) -> ComposeResult:
        yield TextInput(self.note, max_length=LONGEST_NOTE, compact=True, select_on_focus=False)

    def format_keys(self) -> str:
        return "enter save · ctrl+u clear · esc cancel"

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def action_clear(self) -> None:
        self.query_one(Input).value = ""

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)
