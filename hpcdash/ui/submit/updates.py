"""When the form of a new submission looks at what stands there, and what it then asks the cluster. Draws nothing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from textual.timer import Timer

from hpcdash.domain.offers import Offers
from hpcdash.errors import HpcdashError
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.launches import Launches
from hpcdash.ui.submit.page import SubmitPage

if TYPE_CHECKING:
    from hpcdash.services.state.recents import Recents
    from hpcdash.services.submit.form import Draft
    from hpcdash.ui.submit.form import FormPage
    from hpcdash.ui.submit.preview import FormPreview


_TYPING_SECONDS = 0.15
# A path on the cluster is looked for there.
_PATH_SECONDS = 0.8
# The cluster is asked once typing rests so long.
_REST_SECONDS = 1.5
# What the cluster offers is asked for again no sooner, however often the form is left and opened.
_OFFERED_SECONDS = 60.0


class SubmitTiming(SubmitPage):
    """The part of SubmitView that looks and asks; `offers` is what the cluster has, as far as it was told."""

    def __init__(self, session: ClusterSession) -> None:
        super().__init__(session)
        from hpcdash.services.state.recents import Recents
        from hpcdash.ui.submit.preview import BatchFile, LastSubmitted

        self.launches = session.launches or Launches(session.store)
        self.recents: Recents = Recents(self.launches.state_folder)
        self.last = LastSubmitted(self.recents, session.store.name)
        self.offers = Offers()
        self.batch_file = BatchFile(session.store)
        self._rest: dict[str, object] = {}
        self._root = ""
        self._looking: Timer | None = None
        self._resting: Timer | None = None
        self._unreachable: HpcdashError | None = None
        self._learned_at = float("-inf")
        self._scripts_here: tuple[str, ...] = ()

    def draft(self) -> Draft:
        """What stands in the form."""
        from hpcdash.services.submit.form import Draft

        return Draft(self.form.texts(), self._rest)

    def shown(self) -> None:
        self.form.resume()
        if time.monotonic() - self._learned_at > _OFFERED_SECONDS:
            self.run_worker(self._learn(), exclusive=True, group="learn")
        if self.answer.may_have_changed(self.seen):
            self.run_worker(self._ask_for_paths(), exclusive=True, group="ask for paths")

    def on_form_page_changed(self, event: FormPage.Changed) -> None:
        event.stop()
        self.preview_soon()

    # -- what the cluster has

    async def _learn(self) -> None:
        """What is offered there, and where launches will be."""
        from hpcdash.services.submit.queues import fetch_offers

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
        self.preview_soon()
        self.post_message(self.CrumbsChanged())

    # -- looking at it

    def preview_soon(self) -> None:
        """Look at what stands there once the next letters did not come at once."""
        if self._looking is not None:
            self._looking.stop()
        asks = self._is_as_it_is and self.batch_file.needs_reading(self.form.texts())
        self._looking = self.set_timer(_PATH_SECONDS if asks else _TYPING_SECONDS, self._start_preview)

    @property
    def is_preview_due(self) -> bool:
        """Whether something was typed that nobody looked at yet."""
        return self._looking is not None

    def _start_preview(self) -> None:
        self._looking = None
        self.run_worker(self.preview_now(), exclusive=True, group="look")

    async def preview_now(self) -> FormPreview:
        """What stands there now, looked at; it is on the screen too."""
        from hpcdash.ui.submit.preview import preview_request, preview_script, with_saving

        draft = self.draft()
        if self._is_as_it_is:
            content = await self.batch_file.read(draft.texts)
            looked = await asyncio.to_thread(preview_script, draft, self.launches, self.offers, content, self.last)
        else:
            looked = await asyncio.to_thread(preview_request, draft, self.launches, self.offers, self._root, self.last)
            board = self.session.watching
            rules = board.settings.saves if board is not None else ()
            looked = with_saving(looked, draft.texts, [rule for rule in rules if rule.meant.is_on(self.session.name)])
        is_other = (looked.lines, looked.difference) != (self.seen.lines, self.seen.difference)
        if looked.script or looked.is_whole or self._is_as_it_is:
            self.seen = looked
        else:
            # What was last whole stays to be read.
            self.seen = replace(
                self.seen,
                problems=looked.problems,
                warnings={},
                asides=(),
                words="",
                saving="",
                request=None,
                links=looked.links,
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

    async def _ask_for_paths(self) -> None:
        await self.answer.ask_for_paths(self.seen)
        self._tell()

    def do_ask_now(self) -> None:
        """What is offered, and when it would start, asked again."""
        self.answer.forget()
        self.batch_file.forget()
        self.run_worker(self._learn(), exclusive=True, group="learn")
        self.session.poller.ask_now()

    @property
    def own_error(self) -> HpcdashError | None:
        return self._unreachable


def _scripts_here() -> tuple[str, ...]:
    """Batch scripts by their name in the folder one is in."""
    endings = (".sbatch", ".slurm", ".pbs", ".sh", ".qsub")
    try:
        names = sorted(file.name for file in Path().iterdir() if file.name.endswith(endings))
    except OSError:
        return ()
    return tuple(names[:100])
