"""Preview beside the form: its timing, the script or changes, complaints, the cluster's answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rich.text import Text
from textual.content import Content

from hpcdash.backends.submissions import StartEstimate
from hpcdash.domain.demand import LintFinding
from hpcdash.domain.offers import Offers
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_span
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.session import ClusterSession
from hpcdash.ui.view import View
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.widgets.script_page import ScriptPage
from hpcdash.ui.workers import call_after, start_worker

if TYPE_CHECKING:
    from hpcdash.services.state.recents import Recents
    from hpcdash.services.submit.form import Draft
    from hpcdash.ui.submit.form import FormPage
    from hpcdash.ui.submit.preview import FormPreview


FORM = "form"
SCRIPT = "script"
DIFFERENCE = "difference"
# Shortest interval between queries.
_EVERY_SECONDS = 8.0
_NOW_SECONDS = 30
_MAX_ASIDES = 3
_TYPING_SECONDS = 0.15
# A path on the cluster needs a query.
_PATH_SECONDS = 0.8
# Pause in typing before the cluster is queried.
_REST_SECONDS = 1.5
# Shortest age of the cluster's offers before they are refreshed.
_OFFERS_SECONDS = 60.0


class SubmitPage(View):
    """Preview of the form: `seen` is the last one, `answer` and `offers` are the cluster's."""

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
        self._preview_timer: asyncio.TimerHandle | None = None
        self._query_timer: asyncio.TimerHandle | None = None
        self._unreachable: HpcdashError | None = None
        self._offers_fetched_at = float("-inf")
        self._scripts_here: tuple[str, ...] = ()

    def on_mount(self) -> None:
        self._is_made = True

    @property
    def is_live(self) -> bool:
        """Whether all of its nested widgets exist."""
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

        preview = self.seen
        if not self.is_live:
            return
        self._arrange()
        if self.page_shown == DIFFERENCE:
            self.page.show(preview.difference, stay=True)
            return
        self.page.show(preview.lines, preview.folds, stay=self._coloured != "")
        self._coloured = preview.script
        texts = [line.text for line in preview.lines]
        parts = await asyncio.to_thread(coloured_parts, texts, "bash")
        if preview is self.seen and self.page_shown != DIFFERENCE and self.is_live:
            self.page.colour(parts)

    # -- titles and notes

    def _notify(self) -> None:
        """Show problems beside the fields, and the verdict below."""
        if not self.is_live:
            return
        from hpcdash.services.submit.form import MISSING
        from hpcdash.services.submit.form_fields import FIELDS
        from hpcdash.ui.submit.choices import slots_label

        preview = self.seen
        problems = {}
        for name, text in preview.problems.items():
            if self._is_tried or not text.startswith(MISSING):
                problems[name] = text
        warnings = dict(preview.warnings)
        asides = [problems[""]] if problems.get("") else []
        for finding in self.answer.preview_findings(preview):
            text = finding.text.rstrip(".")
            if finding.field not in warnings and finding.field in FIELDS:
                warnings[finding.field] = text
            else:
                asides.append(text)
        asides += preview.asides
        site = self.launches.settings.site
        label = slots_label(self.form.texts(), self.offers, preview.queue, site)
        self.form.rename("slots", label)
        self.form.complain(problems, warnings)
        self.form.note("command", preview.called)
        labels = [self.form.label(name) for name in problems if name]
        start = self.answer.format_start(preview, self.session.zone)
        lines = verdict(preview, asides, start, labels=labels, has_problems=bool(problems))
        self.query_one("#verdict", PlainStatic).update(lines)

    def _arrange(self) -> None:
        """Show the current page and its title."""
        if not self.is_live:
            return
        self.set_class(self._is_narrow and self.page_shown != FORM, "-reading")
        preview = self.seen
        if self.page_shown == DIFFERENCE and preview.difference:
            text = "Changes since the last submission"
        elif self.page_shown == DIFFERENCE and preview.before is not None:
            text = "No changes since the last submission"
        elif self.page_shown == DIFFERENCE:
            text = "No submission with this name from this machine"
        elif not preview.script:
            text = "Generated script"
        else:
            lines = f"({len(preview.lines)} lines)"
            if preview.as_it_is is not None:
                text = f"{preview.as_it_is.file} {lines}"
            elif preview.request is not None or set(preview.problems) == {"command"}:
                text = f"Generated script {lines}"
            else:
                text = "Last valid script"
            if preview.difference:
                text += "; differs from the last submission"
        self.query_one("#beside").border_title = Content(visible(text))

    def format_notes(self, preview: FormPreview | None = None) -> tuple[str, ...]:
        """Return the summary and warnings to confirm a submission; None: those of `seen`."""
        preview = self.seen if preview is None else preview
        start = self.answer.format_known_start(preview, self.session.zone)
        notes = [preview.called, "; ".join(filter(None, (preview.summary, start))), preview.saving]
        if refusal := self.answer.preview_refusal(preview):
            notes.append(f"the scheduler would reject it: {refusal}")
        for name, text in preview.warnings.items():
            notes.append(f"{self.form.label(name)}: {text}")
        notes += preview.asides
        for finding in self.answer.preview_findings(preview):
            notes.append(". ".join(filter(None, (finding.text, finding.next_step))))
        return tuple(filter(None, notes))

    def show_progress(self, text: str) -> None:
        """Show the progress of a submission in place of the verdict; '' brings that back."""
        if text and self.is_live:
            self.query_one("#verdict", PlainStatic).update(Text(visible(text), "bold"))
        else:
            self._notify()

    def draft(self) -> Draft:
        """Return the present content of the form."""
        from hpcdash.services.submit.form import Draft

        return Draft(self.form.texts(), self._rest)

    def shown(self) -> None:
        self.form.resume()
        if time.monotonic() - self._offers_fetched_at > _OFFERS_SECONDS:
            start_worker(self, self._fetch_offers, exclusive=True, group="offers")
        if self.answer.may_have_changed(self.seen):
            start_worker(self, self._check_paths, exclusive=True, group="paths")

    def on_form_page_changed(self, event: FormPage.Changed) -> None:
        event.stop()
        self.preview_soon()

    # -- offers of the cluster

    async def _fetch_offers(self) -> None:
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
            self._offers_fetched_at = time.monotonic()
        self.preview_soon()
        self.post_message(self.CrumbsChanged())

    # -- preview

    def preview_soon(self) -> None:
        """Preview the form after a short pause in typing."""
        if self._preview_timer is not None:
            self._preview_timer.cancel()
        reads_cluster = self._is_as_it_is and self.batch_file.needs_reading(self.form.texts())
        seconds = _PATH_SECONDS if reads_cluster else _TYPING_SECONDS
        self._preview_timer = call_after(self, seconds, self._start_preview)

    @property
    def is_preview_due(self) -> bool:
        """Whether typed text was not previewed yet."""
        return self._preview_timer is not None

    def _start_preview(self) -> None:
        self._preview_timer = None
        start_worker(self, self.preview_now, exclusive=True, group="preview")

    async def preview_now(self) -> FormPreview:
        """Preview the present content of the form; it is shown too."""
        from hpcdash.ui.submit.preview import preview_request, preview_script, with_saving

        draft = self.draft()
        if self._is_as_it_is:
            content = await self.batch_file.read(draft.texts)
            preview = await asyncio.to_thread(
                preview_script, draft, self.launches, self.offers, content, self.last
            )
        else:
            preview = await asyncio.to_thread(
                preview_request, draft, self.launches, self.offers, self._root, self.last
            )
            board = self.session.watching
            rules = board.settings.saves if board is not None else ()
            preview = with_saving(
                preview,
                draft.texts,
                [rule for rule in rules if rule.selector.is_on(self.session.name)],
            )
        is_other = (preview.lines, preview.difference) != (self.seen.lines, self.seen.difference)
        if preview.script or preview.is_whole or self._is_as_it_is:
            self.seen = preview
        else:
            # The last valid preview stays readable.
            self.seen = replace(
                self.seen,
                problems=preview.problems,
                warnings={},
                asides=(),
                text="",
                saving="",
                request=None,
                links=preview.links,
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
        if self._query_timer is not None:
            self._query_timer.cancel()
            self._query_timer = None
        if self.seen.is_whole and self.seen.script and not self.answer.is_for(self.seen):
            seconds = self.answer.wait_seconds(_REST_SECONDS)
            self._query_timer = call_after(self, seconds, self._start_query)

    def _start_query(self) -> None:
        # The answer is hidden while another view is on the screen.
        if self.display and self.app.screen is self.screen and self.session.poller.focused:
            start_worker(self, self._query_start, exclusive=True, group="query")
        else:
            self._query_timer = call_after(self, _REST_SECONDS, self._start_query)

    async def _query_start(self) -> None:
        """Query the estimated start or a refusal's reason, and the missing paths."""
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
        start_worker(self, self._fetch_offers, exclusive=True, group="offers")
        self.session.poller.poll_now()

    @property
    def own_error(self) -> HpcdashError | None:
        return self._unreachable


class ClusterAnswer:
    """Last answer, and the content it is for: it does not apply to text typed since."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._for = ""
        # Key of the missing paths: a submission checks only the paths again.
        self._missing_key = ""
        self._queried_at = float("-inf")
        self.is_querying = False
        self.failed = ""
        self.estimate = StartEstimate(is_known=False)
        self.missing: tuple[LintFinding, ...] = ()

    def is_for(self, preview: FormPreview) -> bool:
        return self._for == _key(preview)

    def wait_seconds(self, rest_seconds: float) -> float:
        """Return how many seconds to wait before a query: typing rests, and queries are spaced."""
        return max(rest_seconds, self._queried_at + _EVERY_SECONDS - time.monotonic())

    def forget(self) -> None:
        """Allow a query at once, even with the same content."""
        self._for = ""
        self._queried_at = float("-inf")

    async def refresh(self, preview: FormPreview, gpu_types: Sequence[str] = ()) -> None:
        """Query when it would start, and which of its paths are missing."""
        from hpcdash.services.submit.checks import estimate_start, missing_paths

        options = () if preview.as_it_is is None else preview.as_it_is.options
        self.is_querying = True
        self._queried_at = time.monotonic()
        try:
            await self._store.open()
            script = preview.script.encode("utf-8", "surrogateescape")
            self.estimate = await estimate_start(self._store, script, options, gpu_types=gpu_types)
            missing: tuple[LintFinding, ...] = ()
            if preview.request is not None:
                missing = await missing_paths(self._store, preview.request)
        except HpcdashError as error:
            # Earlier findings on its paths remain.
            self.estimate = StartEstimate(is_known=False)
            self.failed = error.message
        else:
            self.failed = ""
            self.missing = missing
            self._missing_key = _key(preview)
        finally:
            self.is_querying = False
        self._for = _key(preview)

    async def check_paths(self, preview: FormPreview) -> None:
        """Check only the paths of this submission, in one command, unless all are known to exist.

        A kill switch may be set at any time: if the request has one, the paths are always checked.
        """
        from hpcdash.services.submit.checks import missing_paths

        key = _key(preview)
        switch = _preview_switch(preview)
        is_known = self._missing_key == key and not self.missing
        if preview.request is None or (is_known and not switch):
            return
        try:
            missing = await missing_paths(self._store, preview.request)
        except HpcdashError as error:
            # The user still has to confirm the submission.
            if not switch:
                return
            text = f"cannot check the kill switch {switch}: {error.message}"
            known = [one for one in self.preview_findings(preview) if one.field]
            missing = (*known, LintFinding("warning", "", text))
        self.missing = missing
        self._missing_key = key

    def may_have_changed(self, preview: FormPreview) -> bool:
        """Whether the findings on the paths may be outdated, though nothing else was typed."""
        return self._missing_key == _key(preview) and bool(_preview_switch(preview))

    def format_start(self, preview: FormPreview, zone: tzinfo | None) -> Text:
        """Return `start: in 2 h (Sat 14:20) on n[01-04]`, or why the start is unknown."""
        if self.is_querying:
            return Text("start: estimating …", "dim")
        if not self.is_for(preview):
            return Text("start estimate: waiting for you to stop typing", "dim")
        if self.failed:
            return Text(f"start unknown: {visible(self.failed)}", "dim")
        estimate = self.estimate
        if not estimate.is_known:
            return Text(f"start: {visible(estimate.hint) or 'no estimate available'}", "dim")
        if estimate.refusal:
            text = f"✗ would be rejected: {visible(estimate.refusal)}"
            return Text(f"{text}. {visible(estimate.hint)}" if estimate.hint else text, "bold")
        start = Text("start: ")
        if estimate.starts_at_epoch is None:
            start.append("unknown")
        else:
            ahead = estimate.starts_at_epoch - self._store.clock.now()
            at = datetime.fromtimestamp(estimate.starts_at_epoch, zone)
            when = f"in {format_span(max(60.0, ahead))} ({at:%a %H:%M})"
            start.append("now" if ahead < _NOW_SECONDS else when, "bold")
        if estimate.node_list:
            start.append(f" on {visible(estimate.node_list)}")
        start.append(f"; {self._estimator}, which may change", "dim")
        return start

    @property
    def _estimator(self) -> str:
        return f"{self._store.backend.title}'s estimate"

    def format_known_start(self, preview: FormPreview, zone: tzinfo | None) -> str:
        """`start: now on g1 (Slurm's estimate)`; '' if unknown for the present form."""
        if not self.is_for(preview) or self.failed:
            return ""
        if not self.estimate.is_known or self.estimate.refusal:
            return ""
        start = self.format_start(preview, zone).plain.partition(";")[0]
        return f"{start} ({self._estimator})"

    def preview_findings(self, preview: FormPreview) -> tuple[LintFinding, ...]:
        """Return the missing paths of the present content."""
        return self.missing if self._missing_key == _key(preview) else ()

    def preview_refusal(self, preview: FormPreview) -> str:
        """Return why the scheduler would refuse the content.

        '' where it would not or that is unknown.
        """
        return self.estimate.refusal if self.is_for(preview) else ""


def verdict(
    preview: FormPreview,
    asides: Sequence[str],
    start: Text,
    *,
    labels: Sequence[str],
    has_problems: bool,
) -> Text:
    """Return a few lines: size or fields with errors, start, and warnings.

    `labels` are those of the fields with problems.
    """
    first = Text()
    if has_problems:
        first.append(f"✗ fix: {', '.join(labels) or 'see below'}", "bold")
    else:
        first.append(visible(preview.summary) or "nothing to submit yet", "bold")
        if preview.links > 1:
            first.append(f"   × {preview.links} in a chain", "bold")
    lines = [first]
    if preview.saving:
        lines.append(Text(visible(preview.saving)))
    if preview.is_whole and preview.script:
        lines.append(start)
    lines += [Text(f"! {visible(message)}") for message in asides[:_MAX_ASIDES]]
    if len(asides) > _MAX_ASIDES:
        lines[-1].append(f"   and {len(asides) - _MAX_ASIDES} more", "dim")
    text = Text("\n").join(lines)
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text


def _preview_switch(preview: FormPreview) -> str:
    """Return the kill switch of a request; '' for none."""
    from hpcdash.services.submit.checks import request_kill_switch

    return "" if preview.request is None else request_kill_switch(preview.request)


def _key(preview: FormPreview) -> str:
    return f"{preview.script}\0{preview.as_it_is}"


def _scripts_here() -> tuple[str, ...]:
    """List the files in the current folder that look like batch scripts."""
    endings = (".sbatch", ".slurm", ".pbs", ".sh", ".qsub")
    try:
        names = sorted(file.name for file in Path().iterdir() if file.name.endswith(endings))
    except OSError:
        return ()
    return tuple(names[:100])
