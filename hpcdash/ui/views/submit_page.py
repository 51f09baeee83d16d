"""What the form of a new submission shows of what stands there: the script or what changed, complaints, the verdict.

Asks no cluster.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rich.text import Text
from textual.widgets import Static

from hpcdash.domain.text import visible
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.views.base import View
from hpcdash.ui.widgets.script_page import ScriptPage

if TYPE_CHECKING:
    from hpcdash.ui.views.submit_look import Look
    from hpcdash.ui.widgets.form_page import FormPage

FORM, SCRIPT, DIFFERENCE = "form", "script", "difference"


class SubmitPage(View):
    """The part of SubmitView that shows; `seen` is what was looked at last, `answer` what the cluster said of it."""

    def __init__(self, session: ClusterSession) -> None:
        super().__init__(session)
        from hpcdash.ui.views.submit_answer import ClusterAnswer
        from hpcdash.ui.views.submit_look import Look

        self.seen: Look = Look()
        self.answer = ClusterAnswer(session.store)
        self.page_shown = FORM
        self._coloured = ""
        self._is_tried = False
        self._is_made = False

    def on_mount(self) -> None:
        self._is_made = True

    @property
    def is_live(self) -> bool:
        """Whether all of its parts are there, those within others as well."""
        return self._is_made and super().is_live

    @property
    def form(self) -> FormPage:
        from hpcdash.ui.widgets.form_page import FormPage

        return self.query_one(FormPage)

    @property
    def page(self) -> ScriptPage:
        return self.query_one(ScriptPage)

    @property
    def _is_as_it_is(self) -> bool:
        from hpcdash.services.submit.form_fields import Way

        return self.form.way is Way.SCRIPT

    @property
    def _is_narrow(self) -> bool:
        return self.has_class("-narrow")

    # -- the pages

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

    # -- what is said of it

    def _tell(self) -> None:
        """Complaints beside the fields, and the verdict below."""
        if not self.is_live:
            return
        from hpcdash.services.submit.form import MISSING

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
        self.form.note("command", looked.called)
        from hpcdash.ui.views.submit_answer import verdict

        shown = {self._label(name): words for name, words in problems.items()}
        start = self.answer.start_words(looked, self.session.zone)
        self.query_one("#verdict", Static).update(verdict(looked, shown, asides, start))

    def _has_field(self, name: str) -> bool:
        from hpcdash.services.submit.form_fields import FIELDS

        return name in FIELDS

    def _label(self, name: str) -> str:
        from hpcdash.services.submit.form_fields import FIELDS

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

    def told(self, looked: Look | None = None) -> tuple[str, ...]:
        """What it comes to and all that is odd about it, for who is asked whether to submit; None: of `seen`."""
        looked = self.seen if looked is None else looked
        start = self.answer.start_told(looked, self.session.zone)
        refusal = self.answer.refusal_of(looked)
        words = [
            looked.called,
            "; ".join(part for part in (looked.words, start) if part),
            looked.saving,
            f"the scheduler said it would refuse it: {refusal}" if refusal else "",
            *(f"{self._label(name)}: {words}" for name, words in looked.warnings.items()),
            *looked.asides,
            *(". ".join(filter(None, (one.words, one.next_step))) for one in self.answer.told_of(looked)),
        ]
        return tuple(filter(None, words))

    def say(self, words: str) -> None:
        """Say how a submission goes, in place of the verdict; '' brings that back."""
        if words and self.is_live:
            self.query_one("#verdict", Static).update(Text(visible(words), "bold"))
        else:
            self._tell()
