"""Preview beside the form: its timing, the script or changes, complaints, the cluster's answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rich.text import Text
from textual.content import Content
from textual.widgets import Static

from hpcdash.backends.submissions import StartEstimate
from hpcdash.domain.demand import LintFinding
from hpcdash.domain.offers import Offers
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_span
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.session import ClusterSession
from hpcdash.ui.view import View
from hpcdash.ui.widgets.script_page import ScriptPage
from hpcdash.ui.workers import call_after, start_worker

if TYPE_CHECKING:
    from hpcdash.services.state.recents import Recents
    from hpcdash.services.submit.form import Draft
    from hpcdash.ui.submit.form import FormPage
    from hpcdash.ui.submit.preview import FormPreview


FORM, SCRIPT, DIFFERENCE = "form", "script", "difference"
# Shortest interval between queries.
_EVERY_SECONDS = 8.0
_NOW_SECONDS = 30
_MAX_ASIDES = 3
_TYPING_SECONDS = 0.15
# A path on the cluster is searched there.
_PATH_SECONDS = 0.8
# The cluster is queried once typing rests so long.
_REST_SECONDS = 1.5
# The cluster's offers are fetched again no sooner, however often the form is left and opened.
_OFFERED_SECONDS = 60.0


class SubmitPage(View):
    """Preview of the form: `seen` is the last one, `answer` the cluster's, `offers` resources."""

    def __init__(self, session: ClusterSession) -> None:
        super().__init__(session)
        from hpcdash.services.state.recents import Recents
        from hpcdash.ui.submit.preview import BatchFile, FormPreview, LastSubmitted

        self.seen: FormPreview = FormPreview()
        self.answer = ClusterAnswer(session.store)
        self.page_shown = FORM
        self._coloured = ""
        self._is_tried = False
        self._is_made = False
        self.launches = session.launches
        self.recents: Recents = Recents(self.launches.state_folder)
        self.last = LastSubmitted(self.recents, session.store.name)
        self.offers = Offers()
        self.batch_file = BatchFile(session.store)
        self._rest: dict[str, object] = {}
        self._root = ""
        self._looking: asyncio.TimerHandle | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._unreachable: HpcdashError | None = None
        self._learned_at = float("-inf")
        self._scripts_here: tuple[str, ...] = ()

    def on_mount(self) -> None:
        self._is_made = True

    @property
    def is_live(self) -> bool:
        """Whether all of its parts are there, those within others as well."""
        return self._is_made and super().is_live

    @property
    def form(self) -> FormPage:
        from hpcdash.ui.submit.form import FormPage

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

    # -- pages

    async def _show_script(self) -> None:
        from hpcdash.ui.widgets.script_page import coloured_parts

        looked = self.seen
        if not self.is_live:
            return
        self._arrange()
        if self.page_shown == DIFFERENCE:
            self.page.show(looked.difference, stay=True)
            return
        self.page.show(looked.lines, looked.folds, stay=self._coloured != "")
        self._coloured = looked.script
        texts = [line.text for line in looked.lines]
        parts = await asyncio.to_thread(coloured_parts, texts, "bash")
        if looked is self.seen and self.page_shown != DIFFERENCE and self.is_live:
            self.page.colour(parts)

    # -- titles and notes

    def _notify(self) -> None:
        """Complaints beside the fields, and the verdict below."""
        if not self.is_live:
            return
        from hpcdash.services.submit.form import MISSING
        from hpcdash.ui.submit.choices import slots_label

        looked = self.seen
        problems = {
            name: text
            for name, text in looked.problems.items()
            if self._is_tried or not text.startswith(MISSING)
        }
        warnings = dict(looked.warnings)
        asides = [problems[""]] if problems.get("") else []
        for finding in self.answer.preview_findings(looked):
            text = finding.text.rstrip(".")
            if finding.field not in warnings and self._has_field(finding.field):
                warnings[finding.field] = text
            else:
                asides.append(text)
        asides += looked.asides
        queue = looked.queue
        site = self.launches.settings.site
        self.form.rename("slots", slots_label(self.form.texts(), self.offers, queue, site))
        self.form.complain(problems, warnings)
        self.form.note("command", looked.called)

        shown = {self._label(name): text for name, text in problems.items()}
        start = self.answer.format_start(looked, self.session.zone)
        self.query_one("#verdict", Static).update(verdict(looked, shown, asides, start))

    def _has_field(self, name: str) -> bool:
        from hpcdash.services.submit.form_fields import FIELDS

        return name in FIELDS

    def _label(self, name: str) -> str:
        return self.form.label(name)

    def _arrange(self) -> None:
        """Show the current page and its title."""
        if not self.is_live:
            return
        self.set_class(self._is_narrow and self.page_shown != FORM, "-reading")
        looked = self.seen
        if self.page_shown == DIFFERENCE:
            text = (
                "Changes since the last submission" if looked.difference else self._no_difference()
            )
        elif not looked.script:
            text = "Generated script"
        else:
            file = looked.as_it_is.file if looked.as_it_is is not None else "Generated script"
            is_previous = (
                looked.as_it_is is None
                and looked.request is None
                and set(looked.problems) != {"command"}
            )
            text = "Last valid script" if is_previous else f"{file} ({len(looked.lines)} lines)"
            if looked.difference:
                text += "; differs from the last one submitted"
        self.query_one("#beside").border_title = Content(visible(text))

    def _no_difference(self) -> str:
        if self.seen.before is not None:
            return "No changes since the last submission"
        return "Nothing was submitted under this name from here"

    def format_notes(self, looked: FormPreview | None = None) -> tuple[str, ...]:
        """Return the summary and warnings to confirm a submission; None: those of `seen`."""
        looked = self.seen if looked is None else looked
        start = self.answer.format_known_start(looked, self.session.zone)
        refusal = self.answer.preview_refusal(looked)
        parts = [
            looked.called,
            "; ".join(part for part in (looked.summary, start) if part),
            looked.saving,
            f"the scheduler would refuse it: {refusal}" if refusal else "",
            *(f"{self._label(name)}: {text}" for name, text in looked.warnings.items()),
            *looked.asides,
            *(
                ". ".join(filter(None, (one.text, one.next_step)))
                for one in self.answer.preview_findings(looked)
            ),
        ]
        return tuple(filter(None, parts))

    def show_progress(self, text: str) -> None:
        """Show the progress of a submission in place of the verdict; '' brings that back."""
        if text and self.is_live:
            self.query_one("#verdict", Static).update(Text(visible(text), "bold"))
        else:
            self._notify()

    def draft(self) -> Draft:
        """Return the present content of the form."""
        from hpcdash.services.submit.form import Draft

        return Draft(self.form.texts(), self._rest)

    def shown(self) -> None:
        self.form.resume()
        if time.monotonic() - self._learned_at > _OFFERED_SECONDS:
            start_worker(self, self._learn, exclusive=True, group="learn")
        if self.answer.may_have_changed(self.seen):
            start_worker(self, self._check_paths, exclusive=True, group="ask for paths")

    def on_form_page_changed(self, event: FormPage.Changed) -> None:
        event.stop()
        self.preview_soon()

    # -- offers of the cluster

    async def _learn(self) -> None:
        """Fetch the cluster's offers and the root folder of launches."""
        from hpcdash.services.submit.queues import fetch_offers

        store = self.session.store
        self._scripts_here = await asyncio.to_thread(_scripts_here)
        try:
            await store.open()
            self.offers = await fetch_offers(store)
            if not store.backend.submit.takes_requests:
                self._root = await self.launches.root()
        except HpcdashError as error:
            self._unreachable = error
        else:
            self._unreachable = None
            self._learned_at = time.monotonic()
        self.preview_soon()
        self.post_message(self.CrumbsChanged())

    # -- preview

    def preview_soon(self) -> None:
        """Preview the form after a short pause in typing."""
        if self._looking is not None:
            self._looking.cancel()
        prompts = self._is_as_it_is and self.batch_file.needs_reading(self.form.texts())
        self._looking = call_after(
            self, _PATH_SECONDS if prompts else _TYPING_SECONDS, self._start_preview
        )

    @property
    def is_preview_due(self) -> bool:
        """Whether typed text was not previewed yet."""
        return self._looking is not None

    def _start_preview(self) -> None:
        self._looking = None
        start_worker(self, self.preview_now, exclusive=True, group="look")

    async def preview_now(self) -> FormPreview:
        """Preview the present content of the form; it is shown too."""
        from hpcdash.ui.submit.preview import preview_request, preview_script, with_saving

        draft = self.draft()
        if self._is_as_it_is:
            content = await self.batch_file.read(draft.texts)
            looked = await asyncio.to_thread(
                preview_script, draft, self.launches, self.offers, content, self.last
            )
        else:
            looked = await asyncio.to_thread(
                preview_request, draft, self.launches, self.offers, self._root, self.last
            )
            board = self.session.watching
            rules = board.settings.saves if board is not None else ()
            looked = with_saving(
                looked,
                draft.texts,
                [rule for rule in rules if rule.selector.is_on(self.session.name)],
            )
        is_other = (looked.lines, looked.difference) != (self.seen.lines, self.seen.difference)
        if looked.script or looked.is_whole or self._is_as_it_is:
            self.seen = looked
        else:
            # The last valid preview stays readable.
            self.seen = replace(
                self.seen,
                problems=looked.problems,
                warnings={},
                asides=(),
                text="",
                saving="",
                request=None,
                links=looked.links,
            )
            is_other = False
        self._notify()
        if is_other:
            await self._show_script()
        else:
            self._arrange()
        self._rest_soon()
        self.post_message(self.CrumbsChanged())
        return self.seen

    # -- answers of the cluster

    def _rest_soon(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self.seen.is_whole and self.seen.script and not self.answer.is_for(self.seen):
            self._resting = call_after(
                self, self.answer.wait_seconds(_REST_SECONDS), self._start_query
            )

    def _start_query(self) -> None:
        # The answer is hidden while another view is on the screen.
        if self.display and self.app.screen is self.screen and self.session.poller.focused:
            start_worker(self, self._query_start, exclusive=True, group="ask")
        else:
            self._resting = call_after(self, _REST_SECONDS, self._start_query)

    async def _query_start(self) -> None:
        """Query its start or the reason of a refusal, and the paths that are missing."""
        query = asyncio.ensure_future(self.answer.refresh(self.seen, self.offers.gpu_types))
        await asyncio.sleep(0)
        self._notify()
        await query
        self._notify()
        self._rest_soon()

    async def _check_paths(self) -> None:
        await self.answer.check_paths(self.seen)
        self._notify()

    def do_refresh(self) -> None:
        """Query the offers and the estimated start again."""
        self.answer.forget()
        self.batch_file.forget()
        start_worker(self, self._learn, exclusive=True, group="learn")
        self.session.poller.poll_now()

    @property
    def own_error(self) -> HpcdashError | None:
        return self._unreachable


class ClusterAnswer:
    """Last answer, and the content it is for: it does not apply to text typed since."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._for = ""
        # Key of the missing paths: at a submission only they are queried.
        self._missing_key = ""
        self._queried_at = float("-inf")
        self.is_asking = False
        self.failed = ""
        self.estimate = StartEstimate(is_known=False)
        self.missing: tuple[LintFinding, ...] = ()

    def is_for(self, looked: FormPreview) -> bool:
        return self._for == _key(looked)

    def wait_seconds(self, rest_seconds: float) -> float:
        """Return how many seconds to wait before a query: typing rests, and queries are spaced."""
        return max(rest_seconds, self._queried_at + _EVERY_SECONDS - time.monotonic())

    def forget(self) -> None:
        """Allow a query at once, even with the same content."""
        self._for = ""
        self._queried_at = float("-inf")

    async def refresh(self, looked: FormPreview, gpu_types: Sequence[str] = ()) -> None:
        """Query when it would start, and which of its paths are missing."""
        from hpcdash.services.submit.checks import estimate_start, missing_paths

        over = looked.as_it_is
        self.is_asking, self._queried_at = True, time.monotonic()
        try:
            await self._store.open()
            script = looked.script.encode("utf-8", "surrogateescape")
            self.estimate = await estimate_start(
                self._store, script, over.options if over is not None else (), gpu_types=gpu_types
            )
            missing = (
                () if looked.request is None else await missing_paths(self._store, looked.request)
            )
            self.failed, self.missing, self._missing_key = "", missing, _key(looked)
        except HpcdashError as error:
            # Earlier findings on its paths remain.
            self.estimate = StartEstimate(is_known=False)
            self.failed = error.message
        finally:
            self.is_asking = False
        self._for = _key(looked)

    async def check_paths(self, looked: FormPreview) -> None:
        """Check only the paths of this submission, in one command, unless all are known to exist.

        A kill switch may be dropped at any time: with one named the paths are always checked.
        """
        from hpcdash.services.submit.checks import missing_paths

        key = _key(looked)
        switch = _preview_switch(looked)
        if looked.request is None or (self._missing_key == key and not self.missing and not switch):
            return
        try:
            missing = await missing_paths(self._store, looked.request)
        except HpcdashError as error:
            # The user still has to confirm the submission.
            if not switch:
                return
            text = f"cannot check the kill switch {switch}: {error.message}"
            missing = (
                *(one for one in self.preview_findings(looked) if one.field),
                LintFinding("warning", "", text),
            )
        self.missing = missing
        self._missing_key = key

    def may_have_changed(self, looked: FormPreview) -> bool:
        """Whether the findings on the paths may be outdated, though nothing else was typed."""
        return self._missing_key == _key(looked) and bool(_preview_switch(looked))

    def format_start(self, looked: FormPreview, zone: tzinfo | None) -> Text:
        """Return `start: in 2 h (Sat 14:20) on n[01-04]`, or why the start is unknown."""
        if self.is_asking:
            return Text("start: estimating …", "dim")
        if not self.is_for(looked):
            return Text("start estimate: waiting for you to stop typing", "dim")
        if self.failed:
            return Text(f"start: unknown: {visible(self.failed)}", "dim")
        estimate = self.estimate
        if not estimate.is_known:
            return Text(f"start: {visible(estimate.hint) or 'not told here'}", "dim")
        if estimate.refusal:
            text = f"✗ would be refused: {visible(estimate.refusal)}"
            return Text(f"{text}. {visible(estimate.hint)}" if estimate.hint else text, "bold")
        return self._start(estimate, zone)

    @property
    def _whose(self) -> str:
        return f"{self._store.backend.title}'s estimate"

    def _start(self, estimate: StartEstimate, zone: tzinfo | None) -> Text:
        text = Text("start: ")
        if estimate.starts_at_epoch is None:
            text.append("not told")
        else:
            ahead = estimate.starts_at_epoch - self._store.clock.now()
            at = datetime.fromtimestamp(estimate.starts_at_epoch, zone)
            when = (
                "now"
                if ahead < _NOW_SECONDS
                else f"in {format_span(max(60.0, ahead))} ({at:%a %H:%M})"
            )
            text.append(when, "bold")
        if estimate.node_list:
            text.append(f" on {visible(estimate.node_list)}")
        text.append(f"; {self._whose}, which may change", "dim")
        return text

    def format_known_start(self, looked: FormPreview, zone: tzinfo | None) -> str:
        """`start: now on g1 (Slurm's estimate)`; '' if nothing is known for the form as it is
        now.
        """
        is_known = (
            self.is_for(looked)
            and self.estimate.is_known
            and not self.failed
            and not self.estimate.refusal
        )
        return (
            f"{self.format_start(looked, zone).plain.partition(';')[0]} ({self._whose})"
            if is_known
            else ""
        )

    def preview_findings(self, looked: FormPreview) -> tuple[LintFinding, ...]:
        """Return the missing paths of the present content."""
        return self.missing if self._missing_key == _key(looked) else ()

    def preview_refusal(self, looked: FormPreview) -> str:
        """Return why the scheduler would refuse the content.

        '' where it would not or that is unknown.
        """
        return self.estimate.refusal if self.is_for(looked) else ""


def verdict(
    looked: FormPreview, problems: Mapping[str, str], asides: Sequence[str], start: Text
) -> Text:
    """Return a few lines: size or fields with errors, start, and warnings.

    `problems` are messages by the shown names of fields.
    """
    first = Text()
    if problems:
        fields = ", ".join(name for name in problems if name)
        first.append(f"✗ fix: {fields or 'see below'}", "bold")
    else:
        first.append(visible(looked.summary) or "nothing to submit yet", "bold")
        if looked.links > 1:
            first.append(f"   × {looked.links} in a chain", "bold")
    lines = [first]
    if looked.saving:
        lines.append(Text(visible(looked.saving)))
    if looked.is_whole and looked.script:
        lines.append(start)
    lines += [Text(f"! {visible(message)}") for message in asides[:_MAX_ASIDES]]
    if len(asides) > _MAX_ASIDES:
        lines[-1].append(f"   and {len(asides) - _MAX_ASIDES} more", "dim")
    text = Text("\n").join(lines)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _preview_switch(looked: FormPreview) -> str:
    """The kill switch that a request names, '' for none."""
    from hpcdash.services.submit.checks import request_kill_switch

    return "" if looked.request is None else request_kill_switch(looked.request)


def _key(looked: FormPreview) -> str:
    return f"{looked.script}\0{looked.as_it_is}"


def _scripts_here() -> tuple[str, ...]:
    """Batch scripts by their name in the folder one is in."""
    endings = (".sbatch", ".slurm", ".pbs", ".sh", ".qsub")
    try:
        names = sorted(file.name for file in Path().iterdir() if file.name.endswith(endings))
    except OSError:
        return ()
    return tuple(names[:100])
