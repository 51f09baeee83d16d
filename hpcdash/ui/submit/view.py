"""Form of a new submission, its script beside it, and the cluster's answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.geometry import Size

from hpcdash.backends.actions import Outcome
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_age
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.state.drafts import Drafts, StoredDraft
from hpcdash.services.submit.form import Draft, parse_draft, read_form
from hpcdash.services.submit.form_fields import HERE, THERE
from hpcdash.ui.dialogs import Choice
from hpcdash.ui.submit.page import DIFFERENCE, FORM, SCRIPT, SubmitPage
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.widgets.script_page import ScriptPage
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.services.state.templates import Templates
    from hpcdash.services.submit.ready_templates import ReadyTemplate
    from hpcdash.ui.submit.form import FormPage
    from hpcdash.ui.submit.preview import FormPreview


# With fewer columns, the script replaces the form instead of sharing its space.
_WIDE_COLUMNS = 110
# With fewer lines, a panel has a title but no border.
_HIGH_LINES = 26
# Limit of terminals for OSC 52.
_MAX_COPIED_LETTERS = 70_000
_MAX_RECENT = 40
# Mark of a script on the cluster among the recent ones.
_THERE = f"{THERE}:"


# Fields of a job's size and place.
_PLACE_FIELDS = (
    *("slots", "slots_per_node", "slot_type", "gpu_type", "cpus_per_gpu", "memory", "time"),
    *("queue", "account", "qos"),
)


class SubmitView(SubmitPage):
    """One draft per cluster; it is kept while another view is open."""

    DEFAULT_CSS = """
    SubmitView > #body { height: 1fr; }
    SubmitView #beside { width: 1fr; height: 1fr; }
    SubmitView.-low .panel, SubmitView.-low .panel.-focused {
        border-left: none; border-right: none; border-bottom: none;
    }
    SubmitView > #verdict { height: auto; max-height: 6; width: 1fr; padding: 0 1; background: $boost; }
    SubmitView.-narrow FormPage, SubmitView.-narrow FormPage.-focused { border: none; }
    SubmitView.-narrow #beside { display: none; }
    SubmitView.-narrow.-reading #beside { display: block; }
    SubmitView.-narrow.-reading FormPage { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pagedown", "scroll_script(1)", show=False),
        Binding("pageup", "scroll_script(-1)", show=False),
        Binding("tab,shift+tab", "into_form", show=False),
        # The key that people try first; some terminals intercept it, so the registry has another.
        Binding("ctrl+s", "submit", show=False, priority=True),
    ]

    def __init__(self, session: ClusterSession) -> None:
        super().__init__(session)
        from hpcdash.services.state.templates import Templates

        folder = self.launches.state_folder
        self.templates: Templates | None = (
            None if folder is None else Templates(folder / "templates")
        )
        self.is_being_submitted = False
        self.unsettled = UnsettledDrafts()
        # The content before it was replaced, for the list of starting points.
        self.previous: Draft | None = None
        # Name of the template whose replacement needs a second enter.
        self.replaces = ""
        self._offered_after: tuple[str, str] | None = None

    def compose(self) -> ComposeResult:
        from hpcdash.services.submit.form_fields import Way, absent_fields
        from hpcdash.ui.submit.form import FormPage

        self._fit(self.app.size)
        with Horizontal(id="body"):
            yield FormPage(
                self._values,
                self._prompt_value,
                Way.REQUEST,
                absent_fields(self.session.store.backend),
            )
            with Vertical(id="beside", classes="panel"):
                yield ScriptPage()
        yield PlainStatic(id="verdict")

    def on_mount(self) -> None:
        start_worker(self, self._fetch_offers, exclusive=True, group="offers")
        self.preview_soon()
        self.call_after_refresh(self._restore_draft)

    def on_resize(self, event: events.Resize) -> None:
        self._fit(event.size)
        self._arrange()

    def _fit(self, size: Size) -> None:
        self.set_class(size.width < _WIDE_COLUMNS, "-narrow")
        self.set_class(size.height < _HIGH_LINES, "-low")

    def help_moving(self) -> Sequence[tuple[str, str]]:
        return (
            ("↑ ↓ tab", "move"),
            ("pgup pgdn", "the script"),
            ("enter", "list the choices, or go to the next field; new line in multi-line text"),
            ("→", "accept the suggestion"),
            ("space", "fold or unfold a group of fields"),
        )

    def take_focus(self) -> None:
        if self._is_narrow and self.page_shown != FORM:
            self.screen.set_focus(self.page)
        else:
            self.form.resume()

    def offer_after(self, job_id: str, text: str) -> None:
        """Offer a job first as a dependency; '' for none."""
        self._offered_after = (job_id, text) if job_id else None
        self.post_message(self.CrumbsChanged())

    def _choices(self, name: str) -> list[Choice]:
        from hpcdash.ui.submit.choices import build_choices

        choices = build_choices(
            name, self.form.texts(), self.offers, self.session.store, self.seen.queue
        )
        if name == "after" and self._offered_after is not None:
            job_id, text = self._offered_after
            choices = [
                Choice(job_id, f"{text}: the selected job"),
                *(c for c in choices if c.value != job_id),
            ]
        if name == "file":
            choices = [Choice(one) for one in self._scripts_here]
        elif name == "pool":
            choices = [Choice(one.name, counted(one.nodes, "node")) for one in self.session.pools]
        return choices

    def _values(self, name: str) -> Sequence[str]:
        return [choice.value for choice in self._choices(name)] if self.is_live else ()

    # -- values

    def put(self, draft: Draft, *, as_it_is: bool = False) -> None:
        """Replace the draft; the previous one can be restored."""
        from hpcdash.services.submit.form_fields import Way

        before = self.draft()
        if before.texts and before != draft:
            self.previous = before
        self._rest = dict(draft.rest)
        self._is_tried = False
        self.form.fill(draft.texts, Way.SCRIPT if as_it_is else Way.REQUEST)
        self.form.enter("file" if as_it_is else "command")

    def fill_place(self, text: str) -> None:
        """Take the size and the place of a request's TOML; the other fields stay."""
        placed = parse_draft(text)
        present = self.draft()
        texts = {name: value for name, value in placed.texts.items() if name in _PLACE_FIELDS}
        self.put(Draft({**present.texts, **texts}, present.rest))

    def keep_typed(self) -> None:
        """Store the draft for the next run, if there is a usable state folder."""
        folder = self.launches.state_folder
        if folder is None or not self.is_live:
            return
        draft = self.draft()
        if draft.texts:
            stored = StoredDraft(draft.texts, draft.rest, self._is_as_it_is)
            with contextlib.suppress(StateUnusable):
                Drafts(folder).keep(self.session.name, stored)

    def _restore_draft(self) -> None:
        """Restore the draft of an earlier run, unless the form has content by now."""
        folder = self.launches.state_folder
        if folder is None or not self.is_live or self.draft().texts:
            return
        stored = Drafts(folder).take(self.session.name)
        if stored is None:
            return
        self.put(Draft(stored.texts, stored.rest), as_it_is=stored.as_it_is)
        self.notify("restored your unsaved form; ctrl+l clears it", timeout=6)

    def on_form_page_entered(self, event: FormPage.Entered) -> None:
        event.stop()
        self.post_message(self.CrumbsChanged())

    # -- keys

    def action_into_form(self) -> None:
        self.page_shown = FORM if self._is_narrow else self.page_shown
        self._arrange()
        self.form.resume()

    async def action_submit(self) -> None:
        await self.run_action("screen.act('submit_form')")

    def action_scroll_script(self, pages: int) -> None:
        self.page.action_by_pages(pages)

    async def do_preview(self) -> None:
        """Show the next page: form, script, difference, or in a wide terminal only the last two.

        There the script's folds open first, as the form has the keys.
        """
        if not self._is_narrow and self.page.folds:
            is_open = self.page.is_open
            self.page.action_fold()
            if not is_open:
                return
        pages = (FORM, SCRIPT, DIFFERENCE) if self._is_narrow else (SCRIPT, DIFFERENCE)
        at = pages.index(self.page_shown) if self.page_shown in pages else 0
        self.page_shown = pages[(at + 1) % len(pages)]
        await self._show_script()
        self.take_focus()
        self.post_message(self.CrumbsChanged())

    def do_other_way(self) -> None:
        """Switch between a request and an unchanged batch script.

        Fields of both keep their values.
        """
        from hpcdash.services.submit.form_fields import Way
        from hpcdash.ui.submit.preview import FormPreview

        self.seen = FormPreview()
        self.page_shown = FORM
        self._coloured = ""
        self.page.show(())
        self.form.fill(self.form.texts(), Way.REQUEST if self._is_as_it_is else Way.SCRIPT)
        self._arrange()
        self.form.enter("file" if self._is_as_it_is else "command")
        self.post_message(self.CrumbsChanged())

    def _prompt_value(self, name: str) -> bool:
        """Show the choices for a field as a list; False where there are none."""
        choices = self._choices(name)
        if not choices:
            return False
        from hpcdash.ui.dialogs import ChoiceDialog

        present = self.form.texts().get(name, "").strip()

        def take(value: str) -> None:
            text = value
            if name == "after":
                text = " ".join(dict.fromkeys([*present.split(), value]))
            self.form.set_text(name, text)

        self.app.push_screen(ChoiceDialog(self.form.label(name), choices, take, present))
        return True

    async def do_start_from(self) -> None:
        """List starting points: an empty form, templates and recent submissions."""
        from hpcdash.ui.dialogs import ChoiceDialog

        # Hundreds of files, possibly on a slow file server.
        points = await asyncio.to_thread(starting_points, self)
        choices = []
        for place, (label, text, _) in enumerate(points):
            choices.append(Choice(str(place), text, label))
        self.app.push_screen(
            ChoiceDialog("Start from", choices, lambda value: points[int(value)][2]())
        )

    def do_keep(self) -> None:
        """Prompt for a name, and store the form as a template."""
        from hpcdash.ui.widgets.command_bar import CommandBar

        if self.templates is None:
            self.notify("templates cannot be saved here", severity="warning", timeout=3)
            return
        self.replaces = ""
        name = self.draft().texts.get("name", "").strip()
        self.screen.query_one(CommandBar).prompt(
            "template",
            name,
            sign="template name: ",
            take=partial(keep_as, self),
            proposed=True,
        )

    def do_copy(self) -> None:
        """Copy the script."""
        if len(self.seen.script) > _MAX_COPIED_LETTERS or not self.seen.script:
            self.notify("no script to copy", severity="warning", timeout=3)
            return
        self.app.copy_to_clipboard(self.seen.script)
        self.notify(f"copied the script: {len(self.seen.lines)} lines", timeout=2)

    def do_escape(self) -> bool:
        """Go back from the script to the form, or from the form to the view before.

        The draft is kept.
        """
        if self._is_narrow and self.page_shown != FORM:
            self.action_into_form()
            self.post_message(self.CrumbsChanged())
            return True
        if self.draft().texts:
            self.notify("your input is kept; press n to continue", timeout=3)
        return False

    def tried(self) -> None:
        """Show missing fields too after an attempt to submit; select the first problem."""
        from hpcdash.services.submit.form_fields import FIELDS

        self._is_tried = True
        self._notify()
        self.page_shown = FORM if self._is_narrow else self.page_shown
        self._arrange()
        invalid = next((name for name in self.seen.problems if name in FIELDS), "")
        if invalid:
            self.form.enter(invalid)

    def forget(self) -> None:
        """Reset the form after a submission."""
        self._rest = {}
        self._is_tried = False
        self._offered_after = None
        self.page_shown = FORM
        self.form.start_over()

    # -- values for the screen

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset({Kind.MINE})

    def store_changed(self, changed: Changed) -> None:
        """Do nothing, as no table is shown here."""

    def crumbs(self) -> Sequence[str]:
        if not self.is_live:
            return ("new submission",)
        crumbs = ["new submission"]
        if self._is_as_it_is:
            crumbs.append("an unchanged batch script")
        if self.page_shown == DIFFERENCE or (self._is_narrow and self.page_shown != FORM):
            crumbs.append(self.page_shown)
        return crumbs

    def hint(self) -> str:
        from hpcdash.ui.submit.choices import field_hint

        if not self.is_live:
            return ""
        name = self.form.field
        if not name:
            if self.form.is_on_heading:
                return "space folds or unfolds these fields"
            return "ctrl+o: next page" if self.page_shown != FORM else ""
        texts = self.form.texts()
        if name == "after" and self._offered_after is not None and not texts.get("after"):
            job_id, text = self._offered_after
            return f"jobs to wait for; enter inserts {job_id} ({text})"
        return field_hint(name, texts, self.offers, self._choices(name), self.seen.queue)


def starting_points(view: SubmitView) -> list[tuple[str, str, Callable[[], None]]]:
    """Return (label, description, action) of each starting point, the empty form first."""
    found: list[tuple[str, str, Callable[[], None]]] = [
        ("an empty form", "", partial(view.put, Draft()))
    ]
    if view.previous is not None:
        texts = view.previous.texts
        text = texts.get("name") or texts.get("command") or texts.get("file") or ""
        put = partial(view.put, view.previous)
        found.append(("the previous content", " ".join(text.split()), put))
    templates = view.templates
    for name in templates.names() if templates is not None else ():
        found.append((name, "a template", partial(_take_template, view, name)))
    now = view.session.store.clock.now()
    for recent in view.recents.recent(view.session.store.name)[:_MAX_RECENT]:
        age = f"submitted {format_age(now - recent.at)} ago"
        if recent.kind == "script":
            is_there = recent.name.startswith(_THERE)
            texts = {
                "file": recent.name.removeprefix(_THERE),
                "file_where": THERE if is_there else HERE,
            }
            text = f"{age}, an unchanged batch script"
            found.append((recent.name, text, partial(view.put, Draft(texts), as_it_is=True)))
        else:
            text = ": ".join(filter(None, (age, _parse_command(recent.text))))
            name = recent.name or "unnamed"
            found.append((name, text, partial(_take, view, recent.text)))
    for template in ready_templates(view):
        text = f"{template.description} (a template)"
        found.append((template.name, text, partial(take_ready, view, template)))
    return found


def preview_name(preview: FormPreview) -> str:
    """Return the name of a submission among the recent ones."""
    script = preview.as_it_is
    if script is not None:
        return script.file if script.is_here else f"{_THERE}{script.file}"
    return preview.request.name if preview.request is not None else ""


async def remember(view: SubmitView, preview: FormPreview) -> None:
    """Add a submission to the recent ones."""
    store = view.session.store
    kind: Literal["request", "script"] = "request" if preview.as_it_is is None else "script"
    name = preview_name(preview)
    view.last.forget()
    try:
        await asyncio.to_thread(
            view.recents.remember, store.name, name, preview.text, kind, store.clock.now()
        )
    except StateUnusable as error:
        view.notify(
            f"not added to the recent submissions: {error.message}",
            severity="warning",
        )


def keep_as(view: SubmitView, name: str) -> str:
    """Save the form as a template; return an error message, '' on success."""
    if view.templates is None:
        return "templates cannot be saved here"
    content = view.batch_file.content
    if view.seen.as_it_is is None:
        text = read_form(view.draft()).text
    elif isinstance(content, bytes):
        text = content.decode("utf-8", "surrogateescape")
    else:
        return "no script to save yet"
    name = name.strip()
    try:
        exists = name != view.replaces and name in view.templates.names()
        if exists and view.templates.read(name) != text:
            view.replaces = name
            return f"template {name} exists: press enter again to replace it"
        file = view.templates.save(name, text)
    except HpcdashError as error:
        return error.message
    except OSError as error:
        return f"could not be written: {error.strerror}"
    view.notify(f"saved as {file}", timeout=4)
    return ""


def ready_templates(view: SubmitView) -> list[ReadyTemplate]:
    """Return the templates of the site and of hpcdash, except replaceable and invalid ones."""
    from hpcdash.services.submit.ready_templates import read_ready_template, template_names

    folder = view.launches.settings.templates
    saved = view.templates.names() if view.templates is not None else ()
    found = []
    for name in template_names(folder):
        with contextlib.suppress(HpcdashError):
            if name not in saved:
                found.append(read_ready_template(name, folder))
    return found


def take_ready(
    view: SubmitView, template: ReadyTemplate, values: Mapping[str, str] | None = None
) -> None:
    """Prompt for each field of a template with choices, then fill the form."""
    from hpcdash.ui.dialogs import ChoiceDialog

    chosen = dict(values or {})
    field = next((field for field in template.choices if field not in chosen), None)
    if field is None:
        try:
            _take(view, template.text_with(chosen))
        except HpcdashError as error:
            view.notify(error.message, severity="warning")
        return
    choices = [Choice(value) for value in template.choices[field]]

    def take(value: str) -> None:
        take_ready(view, template, {**chosen, field: value})

    heading = f"{template.name}: {field}"
    view.app.push_screen(ChoiceDialog(heading, choices, take, template.value(field)))


def _take_template(view: SubmitView, name: str) -> None:
    assert view.templates is not None
    script = view.templates.folder / f"{name}.sh"
    if script.exists():
        view.put(Draft({"file": str(script), "file_where": HERE}), as_it_is=True)
        return
    try:
        _take(view, view.templates.read(name))
    except HpcdashError as error:
        view.notify(error.message, severity="warning")


def _take(view: SubmitView, text: str) -> None:
    try:
        view.put(parse_draft(text))
    except HpcdashError as error:
        view.notify(f"invalid request: {error.message}", severity="warning")


def _parse_command(text: str) -> str:
    """Return the command of a request on one line; '' if it is invalid."""
    try:
        draft = parse_draft(text)
    except HpcdashError:
        return ""
    command = draft.texts.get("command") or draft.texts.get("script")
    call = draft.rest.get("call")
    if not command and isinstance(call, dict):
        command = str(call.get("function") or "")
    return " ".join((command or "").split())


class UnsettledDrafts:
    """Submissions of one form with an unknown outcome, until a similar one was submitted."""

    def __init__(self) -> None:
        self._sent: list[tuple[Draft, str, datetime]] = []

    def note(self, draft: Draft, name: str, outcomes: Sequence[Outcome], at: datetime) -> None:
        """Record the outcomes of a submission sent at `at`; `name` is the job's."""
        is_unknown = any(outcome.done is None for outcome in outcomes)
        if is_unknown or (outcomes and all(outcome.done for outcome in outcomes)):
            self._sent = [one for one in self._sent if one[0] != draft and one[1] != name]
        if is_unknown:
            self._sent.append((draft, name, at))

    def question(self, draft: Draft, name: str) -> str:
        """Return the question before the same draft or job name is sent again; '' for none."""
        for sent_draft, sent_name, at in reversed(self._sent):
            if sent_draft == draft or sent_name == name:
                return f"job {sent_name} may have been submitted at {at:%H:%M}. Submit again?"
        return ""
