"""The form of a new submission, the script it makes beside it, and what the cluster says of it.

Plans nothing and submits nothing itself: screens.submitting does, with what stands here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from hpcdash.backends.base import Capability
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.cluster.store import Changed
from hpcdash.services.state.drafts import Drafts, KeptDraft
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.views.base import ViewSpec
from hpcdash.ui.views.submit_page import DIFFERENCE, FORM, SCRIPT
from hpcdash.ui.views.submit_timing import SubmitTiming
from hpcdash.ui.widgets.script_page import ScriptPage

if TYPE_CHECKING:
    from hpcdash.services.state.templates import Templates
    from hpcdash.services.submit.form import Draft
    from hpcdash.ui.widgets.form_choice import Choice
    from hpcdash.ui.widgets.form_page import FormPage

# Below this many columns the script takes the place of the form, and not a part of its room.
_WIDE_COLUMNS = 110
# Terminals take no more over OSC 52.
_MOST_COPIED_LETTERS = 70_000


class SubmitView(SubmitTiming):
    """One draft a cluster; it stays as it is while one is elsewhere."""

    DEFAULT_CSS = """
    SubmitView > #body { height: 1fr; }
    SubmitView #beside { width: 1fr; height: 1fr; border-left: solid $panel; }
    SubmitView #beside > Static { height: 1; width: 1fr; padding: 0 1; color: $table-dim; }
    SubmitView > #verdict { height: auto; max-height: 6; width: 1fr; padding: 0 1; background: $boost; }
    SubmitView.-narrow #beside { display: none; border-left: none; }
    SubmitView.-narrow.-reading #beside { display: block; }
    SubmitView.-narrow.-reading FormPage { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pagedown", "scroll_script(1)", show=False),
        Binding("pageup", "scroll_script(-1)", show=False),
        Binding("tab,shift+tab", "into_form", show=False),
        # What people try first; where a terminal keeps it for itself there is the registry's key.
        Binding("ctrl+s", "hand_in", show=False, priority=True),
    ]

    def __init__(self, session: ClusterSession) -> None:
        super().__init__(session)
        from hpcdash.services.state.templates import Templates
        from hpcdash.ui.views.submit_unknown import NotKnown

        folder = self.launches.state_folder
        self.templates: Templates | None = None if folder is None else Templates(folder / "templates")
        self.is_being_submitted = False
        self.not_known = NotKnown()
        self.put_away: Draft | None = None
        # The template that a person was told would be replaced.
        self.replaces = ""
        self._offered_after: tuple[str, str] | None = None

    def compose(self) -> ComposeResult:
        from hpcdash.services.submit.form_fields import Way
        from hpcdash.ui.widgets.form_page import FormPage

        self.set_class(self.app.size.width < _WIDE_COLUMNS, "-narrow")
        with Horizontal(id="body"):
            yield FormPage(self._values, self._ask_for, Way.REQUEST)
            with Vertical(id="beside"):
                yield Static("", id="about", markup=False)
                yield ScriptPage()
        yield Static("", id="verdict", markup=False)

    def on_mount(self) -> None:
        self.run_worker(self._learn(), exclusive=True, group="learn")
        self.look_soon()
        self.call_after_refresh(self._take_kept)

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < _WIDE_COLUMNS, "-narrow")
        self._arrange()

    def help_moving(self) -> Sequence[tuple[str, str]]:
        return (
            ("↑ ↓ tab", "move"),
            ("pgup pgdn", "the script"),
            ("enter", "lists what a field may hold, or moves on; in several lines a new one"),
            ("→", "takes what is suggested"),
            ("space", "folds or shows a heading's fields"),
        )

    def take_focus(self) -> None:
        if self._is_narrow and self.page_shown != FORM:
            self.screen.set_focus(self.page)
        else:
            self.form.resume()

    def offer_after(self, job_id: str, words: str) -> None:
        """A job that was pointed at ('': none): the first that is offered to be waited for."""
        self._offered_after = (job_id, words) if job_id else None
        self.post_message(self.CrumbsChanged())

    def _choices(self, name: str) -> list[Choice]:
        from hpcdash.ui.views.submit_choices import choices_of
        from hpcdash.ui.widgets.form_choice import Choice

        choices = choices_of(name, self.form.texts(), self.offers, self.session.store, self.seen.queue)
        if name == "after" and self._offered_after is not None:
            job_id, words = self._offered_after
            choices = [Choice(job_id, f"{words}: you pointed at it"), *(c for c in choices if c.value != job_id)]
        if name == "file":
            choices = [Choice(one) for one in self._scripts_here]
        return choices

    def _values(self, name: str) -> Sequence[str]:
        return [choice.value for choice in self._choices(name)] if self.is_live else ()

    # -- what stands there

    def put(self, draft: Draft, *, as_it_is: bool = False) -> None:
        """Another draft in its place; the one before can be had back."""
        from hpcdash.services.submit.form_fields import Way

        before = self.draft()
        if before.texts and before != draft:
            self.put_away = before
        self._rest = dict(draft.rest)
        self._is_tried = False
        self.form.fill(draft.texts, Way.SCRIPT if as_it_is else Way.REQUEST)
        self.form.enter("file" if as_it_is else "name")

    def keep_typed(self) -> None:
        """For the next program that opens this form; without a state folder, or room there, it is lost."""
        draft, folder = self.draft() if self.is_live else None, self.launches.state_folder
        if draft is not None and draft.texts and folder is not None:
            with contextlib.suppress(OSError):
                Drafts(folder).keep(self.session.name, KeptDraft(draft.texts, draft.rest, self._is_as_it_is))

    def _take_kept(self) -> None:
        """What stood here when the last program was ended, unless something stands here by now."""
        from hpcdash.services.submit.form import Draft

        folder = self.launches.state_folder
        if (
            folder is None
            or not self.is_live
            or self.draft().texts
            or (kept := Drafts(folder).take(self.session.name)) is None
        ):
            return
        self.put(Draft(kept.texts, kept.rest), as_it_is=kept.as_it_is)
        self.notify("what you had typed when hpcdash was ended is here again; ctrl+l has an empty form", timeout=6)

    def on_form_page_entered(self, event: FormPage.Entered) -> None:
        event.stop()
        self.post_message(self.CrumbsChanged())

    # -- keys

    def action_into_form(self) -> None:
        self.page_shown = FORM if self._is_narrow else self.page_shown
        self._arrange()
        self.form.resume()

    async def action_hand_in(self) -> None:
        await self.run_action("screen.act('submit_form')")

    def action_scroll_script(self, pages: int) -> None:
        self.page.action_by_pages(pages)

    async def do_preview(self) -> None:
        """Form, script, difference; where there is room for the form beside them, the two."""
        pages = (FORM, SCRIPT, DIFFERENCE) if self._is_narrow else (SCRIPT, DIFFERENCE)
        at = pages.index(self.page_shown) if self.page_shown in pages else 0
        self.page_shown = pages[(at + 1) % len(pages)]
        await self._show_script()
        self.take_focus()
        self.post_message(self.CrumbsChanged())

    def do_other_way(self) -> None:
        """From a request to a batch script as it is, and back; what both have stays."""
        from hpcdash.services.submit.form_fields import Way
        from hpcdash.ui.views.submit_look import Look

        self.seen, self.page_shown, self._coloured = Look(), FORM, ""
        self.page.show(())
        self.form.fill(self.form.texts(), Way.REQUEST if self._is_as_it_is else Way.SCRIPT)
        self._arrange()
        self.form.enter("file" if self._is_as_it_is else "name")
        self.post_message(self.CrumbsChanged())

    def _ask_for(self, name: str) -> bool:
        """What there is to choose from for a field, as a list; False where there is nothing."""
        choices = self._choices(name)
        if not choices:
            return False
        from hpcdash.ui.widgets.form_choice import ChoiceDialog

        def take(value: str) -> None:
            text = value
            if name == "after":
                stand = self.form.texts().get(name, "").split()
                text = " ".join([*stand, *([value] if value not in stand else [])])
            self.form.set_text(name, text)

        present = self.form.texts().get(name, "").strip()
        self.app.push_screen(ChoiceDialog(self._label(name), choices, take, present))
        return True

    async def do_start_from(self) -> None:
        """A list of what to start from: an empty form, templates, what was submitted lately."""
        from hpcdash.ui.views.submit_start import starting_points
        from hpcdash.ui.widgets.form_choice import ChoiceDialog

        # Hundreds of files, in a home that may be far away.
        points = await asyncio.to_thread(starting_points, self)
        self.app.push_screen(
            ChoiceDialog("start from", [point.choice for point in points], lambda value: points[int(value)].take())
        )

    def do_keep(self) -> None:
        """Ask for a name, and keep what stands there as a template."""
        from hpcdash.ui.views.submit_start import keep_as
        from hpcdash.ui.widgets.command_bar import CommandBar

        if self.templates is None:
            self.notify("templates are not kept here", severity="warning", timeout=3)
            return
        self.replaces = ""
        name = self.draft().texts.get("name", "").strip()
        self.screen.query_one(CommandBar).ask(
            "template", name, sign="keep as a template called: ", take=partial(keep_as, self), proposed=True
        )

    def do_copy(self) -> None:
        """The script."""
        if len(self.seen.script) > _MOST_COPIED_LETTERS or not self.seen.script:
            self.notify("there is no script that a clipboard takes", severity="warning", timeout=3)
            return
        self.app.copy_to_clipboard(self.seen.script)
        self.notify(f"copied the script: {len(self.seen.lines)} lines", timeout=2)

    def do_escape(self) -> bool:
        """From the script back to the form; from the form back to where one was: the draft stays."""
        if self._is_narrow and self.page_shown != FORM:
            self.action_into_form()
            self.post_message(self.CrumbsChanged())
            return True
        if self.draft().texts:
            self.notify("what you typed is kept: n goes on with it", timeout=3)
        return False

    def tried(self) -> None:
        """Someone wants to submit: what is missing is said too, and the first complaint gets the cursor."""
        self._is_tried = True
        self._tell()
        self.page_shown = FORM if self._is_narrow else self.page_shown
        self._arrange()
        if wrong := [name for name in self.seen.problems if self._has_field(name)]:
            self.form.enter(wrong[0])

    def forget(self) -> None:
        """It was submitted: the next one begins with an empty form."""
        self._rest = {}
        self._is_tried = False
        self._offered_after = None
        self.page_shown = FORM
        self.form.start_over()

    # -- what it tells the screen

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset({Kind.MINE})

    def store_changed(self, changed: Changed) -> None:
        """Nothing here is of a table."""

    def crumbs(self) -> Sequence[str]:
        if not self.is_live:
            return ("new submission",)
        way = ("a batch script as it is",) if self._is_as_it_is else ()
        page = (
            (self.page_shown,) if self.page_shown == DIFFERENCE or (self._is_narrow and self.page_shown != FORM) else ()
        )
        return ("new submission", *way, *page)

    def hint(self) -> str:
        from hpcdash.ui.views.submit_choices import field_hint

        if not self.is_live:
            return ""
        name = self.form.field
        if not name:
            if self.form.is_on_heading:
                return "space folds or shows these fields"
            return "ctrl+o: the next page" if self.page_shown != FORM else ""
        if name == "after" and self._offered_after is not None and not self.form.texts().get("after"):
            job_id, words = self._offered_after
            return f"jobs whose end it waits for; enter offers {job_id} ({words})"
        return field_hint(name, self.form.texts(), self.offers, self._choices(name), self.seen.queue)


VIEW = ViewSpec("submit", "new submission", SubmitView, capability=Capability.SUBMIT)
