"""The form of a new submission, the script it makes beside it, and what the cluster says of it.

Plans nothing and submits nothing itself: screens.submitting does, with what stands here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widgets import Static

from hpcdash.backends.base import Capability
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError
from hpcdash.launch.offers import Offers
from hpcdash.stores.cluster import Changed
from hpcdash.stores.launches import Launches
from hpcdash.stores.snapshots import Kind
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.views.base import View, ViewSpec
from hpcdash.ui.widgets.script_page import ScriptPage

if TYPE_CHECKING:
    from hpcdash.launch.form import Draft
    from hpcdash.stores.recents import Recents
    from hpcdash.stores.templates import Templates
    from hpcdash.ui.views.submit_look import Look
    from hpcdash.ui.widgets.form_choice import Choice
    from hpcdash.ui.widgets.form_page import FormPage

# Below this many columns the script takes the place of the form, and not a part of its room.
_WIDE_COLUMNS = 110
_TYPING_SECONDS = 0.15
# A path on the cluster is looked for there.
_PATH_SECONDS = 0.8
# The cluster is asked once typing rests so long.
_REST_SECONDS = 1.5
# What the cluster offers is asked for again no sooner, however often the form is left and opened.
_OFFERED_SECONDS = 60.0
# Terminals take no more over OSC 52.
_MOST_COPIED_LETTERS = 70_000
_PARTS = "FormPage, ScriptPage, #about, #verdict"
FORM, SCRIPT, DIFFERENCE = "form", "script", "difference"


class SubmitView(View):
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
        from hpcdash.stores.recents import Recents
        from hpcdash.stores.templates import Templates
        from hpcdash.ui.views.submit_answer import ClusterAnswer
        from hpcdash.ui.views.submit_look import BatchFile, LastSubmitted, Look

        self.launches = session.launches or Launches(session.store)
        folder = self.launches.state_folder
        self.recents: Recents = Recents(folder)
        self.templates: Templates | None = None if folder is None else Templates(folder / "templates")
        self.offers = Offers()
        self.last = LastSubmitted(self.recents, session.store.name)
        self.seen: Look = Look()
        self.page_shown = FORM
        self.is_being_submitted = False
        self.batch_file = BatchFile(session.store)
        self._rest: dict[str, object] = {}
        self.put_away: Draft | None = None
        # The template that a person was told would be replaced.
        self.replaces = ""
        self._is_tried = False
        self._root = ""
        self._offered_after: tuple[str, str] | None = None
        self._looking: Timer | None = None
        self._resting: Timer | None = None
        self.answer = ClusterAnswer(session.store)
        self._unreachable: HpcdashError | None = None
        self._learned_at = float("-inf")
        self._coloured = ""
        self._scripts_here: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        from hpcdash.launch.form_fields import Way
        from hpcdash.ui.widgets.form_page import FormPage

        self.set_class(self.app.size.width < _WIDE_COLUMNS, "-narrow")
        with Horizontal(id="body"):
            yield FormPage(self._values, self._ask_for, Way.REQUEST)
            with Vertical(id="beside"):
                yield Static("", id="about", markup=False)
                yield ScriptPage()
        yield Static("", id="verdict", markup=False)

    @property
    def is_live(self) -> bool:
        """Whether all of its parts are there: when the app ends they go one after the other."""
        return super().is_live and len(self.query(_PARTS)) == len(_PARTS.split(","))

    @property
    def form(self) -> FormPage:
        from hpcdash.ui.widgets.form_page import FormPage

        return self.query_one(FormPage)

    @property
    def page(self) -> ScriptPage:
        return self.query_one(ScriptPage)

    def on_mount(self) -> None:
        self.run_worker(self._learn(), exclusive=True, group="learn")
        self.look_soon()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < _WIDE_COLUMNS, "-narrow")
        self._arrange()

    def take_focus(self) -> None:
        if self._is_narrow and self.page_shown != FORM:
            self.screen.set_focus(self.page)
        else:
            self.form.resume()

    def shown(self) -> None:
        self.form.resume()
        if time.monotonic() - self._learned_at > _OFFERED_SECONDS:
            self.run_worker(self._learn(), exclusive=True, group="learn")

    # -- what the cluster has

    async def _learn(self) -> None:
        """What is offered there, and where launches will be."""
        from hpcdash.stores.offers import fetch_offers

        store = self.session.store
        self._scripts_here = await asyncio.to_thread(_scripts_here)
        try:
            await store.open()
            self.offers = await fetch_offers(store)
            self._root = await self.launches.root()
        except HpcdashError as error:
            self._unreachable = error
        else:
            self._unreachable = None
            self._learned_at = time.monotonic()
        self.look_soon()
        self.post_message(self.CrumbsChanged())

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

    @property
    def _is_as_it_is(self) -> bool:
        from hpcdash.launch.form_fields import Way

        return self.form.way is Way.SCRIPT

    @property
    def _is_narrow(self) -> bool:
        return self.has_class("-narrow")

    def draft(self) -> Draft:
        """What stands in the form."""
        from hpcdash.launch.form import Draft

        return Draft(self.form.texts(), self._rest)

    def put(self, draft: Draft, *, as_it_is: bool = False) -> None:
        """Another draft in its place; the one before can be had back."""
        from hpcdash.launch.form_fields import Way

        before = self.draft()
        if before.texts and before != draft:
            self.put_away = before
        self._rest = dict(draft.rest)
        self._is_tried = False
        self.form.fill(draft.texts, Way.SCRIPT if as_it_is else Way.REQUEST)
        self.form.enter("file" if as_it_is else "name")

    def on_form_page_changed(self, event: FormPage.Changed) -> None:
        event.stop()
        self.look_soon()

    def on_form_page_entered(self, event: FormPage.Entered) -> None:
        event.stop()
        self.post_message(self.CrumbsChanged())

    # -- looking at it

    def look_soon(self) -> None:
        """Look at what stands there once the next letters did not come at once."""
        if self._looking is not None:
            self._looking.stop()
        asks = self._is_as_it_is and self.batch_file.is_to_be_asked_for(self.form.texts())
        self._looking = self.set_timer(_PATH_SECONDS if asks else _TYPING_SECONDS, self._begin_to_look)

    @property
    def is_to_be_looked_at(self) -> bool:
        """Whether something was typed that nobody looked at yet."""
        return self._looking is not None

    def _begin_to_look(self) -> None:
        self._looking = None
        self.run_worker(self.look_now(), exclusive=True, group="look")

    async def look_now(self) -> Look:
        """What stands there now, looked at; it is on the screen too."""
        from hpcdash.ui.views.submit_look import look_at_request, look_at_script

        draft = self.draft()
        if self._is_as_it_is:
            content = await self.batch_file.read(draft.texts)
            looked = await asyncio.to_thread(look_at_script, draft, self.launches, self.offers, content, self.last)
        else:
            looked = await asyncio.to_thread(look_at_request, draft, self.launches, self.offers, self._root, self.last)
        is_other = looked.script != self.seen.script or looked.difference != self.seen.difference
        if looked.script or looked.is_whole or self._is_as_it_is:
            self.seen = looked
        else:
            # What was last whole stays to be read.
            from dataclasses import replace

            self.seen = replace(
                self.seen, problems=looked.problems, warnings={}, asides=(), words="", request=None, links=looked.links
            )
            is_other = False
        self._tell()
        if is_other:
            await self._show_script()
        else:
            self._arrange()
        self._rest_soon()
        self.post_message(self.CrumbsChanged())
        return self.seen

    async def _show_script(self) -> None:
        from hpcdash.ui.widgets.script_colours import coloured_parts

        looked = self.seen
        if not self.is_live:
            return
        self._arrange()
        if self.page_shown == DIFFERENCE:
            self.page.show(looked.difference, stay=True)
            return
        self.page.show(looked.lines, stay=self._coloured != "")
        self._coloured = looked.script
        texts = [line.text for line in looked.lines]
        parts = await asyncio.to_thread(coloured_parts, texts, "bash")
        if looked is self.seen and self.page_shown != DIFFERENCE and self.is_live:
            self.page.colour(parts)

    # -- what the cluster says of it

    def _rest_soon(self) -> None:
        if self._resting is not None:
            self._resting.stop()
            self._resting = None
        if self.seen.is_whole and self.seen.script and not self.answer.is_for(self.seen):
            self._resting = self.set_timer(self.answer.wait_seconds(_REST_SECONDS), self._begin_to_ask)

    def _begin_to_ask(self) -> None:
        # Nobody reads the answer while something else is on the screen.
        if self.display and self.app.screen is self.screen and self.session.poller.focused:
            self.run_worker(self._ask(), exclusive=True, group="ask")
        else:
            self._resting = self.set_timer(_REST_SECONDS, self._begin_to_ask)

    async def _ask(self) -> None:
        """When it would start, or why it would be refused; and which of its paths are missing."""
        asking = asyncio.ensure_future(self.answer.ask(self.seen))
        await asyncio.sleep(0)
        self._tell()
        await asking
        self._tell()
        self._rest_soon()

    def do_ask_now(self) -> None:
        """What is offered, and when it would start, asked again."""
        self.answer.forget()
        self.batch_file.forget()
        self.run_worker(self._learn(), exclusive=True, group="learn")
        self.session.poller.ask_now()

    # -- what is said of it

    def _tell(self) -> None:
        """Complaints beside the fields, and the verdict below."""
        if not self.is_live:
            return
        from hpcdash.launch.form import MISSING

        looked = self.seen
        problems = {
            name: words for name, words in looked.problems.items() if self._is_tried or not words.startswith(MISSING)
        }
        warnings = dict(looked.warnings)
        asides = [problems[""]] if problems.get("") else []
        for finding in self.answer.told_of(looked):
            words = finding.words.rstrip(".")
            if finding.field not in warnings and self._has_field(finding.field):
                warnings[finding.field] = words
            else:
                asides.append(words)
        asides += looked.asides
        self.form.complain(problems, warnings)
        from hpcdash.ui.views.submit_answer import verdict

        shown = {self._label(name): words for name, words in problems.items()}
        start = self.answer.start_words(looked, self.session.zone)
        self.query_one("#verdict", Static).update(verdict(looked, shown, asides, start))

    def _has_field(self, name: str) -> bool:
        from hpcdash.launch.form_fields import FIELDS

        return name in FIELDS

    def _label(self, name: str) -> str:
        from hpcdash.launch.form_fields import FIELDS

        return FIELDS[name].label if name in FIELDS else name

    def _arrange(self) -> None:
        """Which page is shown, and what is said above it."""
        if not self.is_live:
            return
        self.set_class(self._is_narrow and self.page_shown != FORM, "-reading")
        looked = self.seen
        if self.page_shown == DIFFERENCE:
            words = "what changed since it was submitted last" if looked.difference else self._no_difference()
        elif not looked.script:
            words = "the script comes here"
        else:
            file = looked.as_it_is.file if looked.as_it_is is not None else "the script that is made"
            is_of_before = looked.as_it_is is None and looked.request is None and set(looked.problems) != {"command"}
            words = "as it was before something was wrong" if is_of_before else f"{file}, {len(looked.lines)} lines"
            if looked.difference:
                words += "; it differs from the last of its name"
        self.query_one("#about", Static).update(visible(words))

    def _no_difference(self) -> str:
        if self.seen.before is not None:
            return "the same as it was submitted last"
        return "nothing of this name was submitted from here"

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
        from hpcdash.launch.form_fields import Way
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

    def told(self) -> tuple[str, ...]:
        """What it comes to and all that is odd about it, for who is asked whether to submit."""
        looked = self.seen
        start = self.answer.start_told(looked, self.session.zone)
        refusal = self.answer.refusal_of(looked)
        words = [
            "; ".join(part for part in (looked.words, start) if part),
            f"the scheduler said it would refuse it: {refusal}" if refusal else "",
            *(f"{self._label(name)}: {words}" for name, words in looked.warnings.items()),
            *looked.asides,
            *(finding.words for finding in self.answer.told_of(looked)),
        ]
        return tuple(filter(None, words))

    def say(self, words: str) -> None:
        """Say how a submission goes, in place of the verdict; '' brings that back."""
        if words and self.is_live:
            self.query_one("#verdict", Static).update(Text(visible(words), "bold"))
        else:
            self._tell()

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

    @property
    def own_error(self) -> HpcdashError | None:
        return self._unreachable

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


def _scripts_here() -> tuple[str, ...]:
    """Batch scripts by their name in the folder one is in."""
    endings = (".sbatch", ".slurm", ".pbs", ".sh", ".qsub")
    try:
        names = sorted(file.name for file in Path().iterdir() if file.name.endswith(endings))
    except OSError:
        return ()
    return tuple(names[:100])


VIEW = ViewSpec("submit", "new submission", SubmitView, capability=Capability.SUBMIT)
