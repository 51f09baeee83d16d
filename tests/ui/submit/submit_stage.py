"""The form of a new submission on an embedded queue whose jobs run, and on a recorded cluster.

Asserts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from textual.pilot import Pilot

from hpcdash.assembly import build_queue_session
from hpcdash.config.settings import LaunchSettings, PoolSettings
from hpcdash.domain.request import Site
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.launches import Launches
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.submit.view import SubmitView
from tests.embedded.queue_lab import QueueLab
from tests.ui.stage import CASES, press, replayed, until

KEPT_BELOW = "/home/maya/hpcdash/launches"


class PlacedLaunches(Launches):
    """Launches whose folder is known without anyone being asked."""

    async def _root(self, storage_root: str, switch: str = "") -> str:
        await self.queues.fetch()
        return KEPT_BELOW


def queue_app(lab: QueueLab, state: Path, **arguments: Any) -> HpcdashApp:
    """The dashboard on a real queue in a folder; what it keeps is in `state`."""
    return HpcdashApp(
        [build_queue_session(lab.folder, name="local", state_folder=state)], **arguments
    )


def recorded_app(
    state: Path | None = None,
    *,
    cases: Path = CASES,
    pools: Sequence[PoolSettings] = (),
    **arguments: Any,
) -> HpcdashApp:
    """The dashboard on a recorded cluster, whose launches have a folder without anyone being
    asked.
    """
    session: ClusterSession = replayed(cases=cases)
    launches = PlacedLaunches(
        session.store, LaunchSettings(Site(storage_root=KEPT_BELOW)), state, pools
    )
    return HpcdashApp([replace(session, launches=launches)], **arguments)


def form_of(pilot: Pilot[Any]) -> SubmitView:
    view = pilot.app.main.view
    assert isinstance(view, SubmitView)
    return view


async def open_form(pilot: Pilot[Any]) -> SubmitView:
    """The form, once it knows what the cluster has and was looked at."""
    await press(pilot, "n")
    view = form_of(pilot)
    await until(pilot, lambda: view.seen.script or view.seen.problems, "a first look")
    await looked(pilot)
    return view


async def looked(pilot: Pilot[Any]) -> None:
    """Wait until what stands there was looked at."""
    view = form_of(pilot)

    def quiet() -> bool:
        return not view.is_preview_due and all(
            worker.is_finished
            for worker in pilot.app.workers
            if worker.group in ("preview", "offers")
        )

    await until(pilot, quiet, "looked at")


async def fill(pilot: Pilot[Any], **texts: str) -> SubmitView:
    """Texts in fields (`container__image` for container.image), as if typed; then a look at
    them.
    """
    view = form_of(pilot)
    for name, text in texts.items():
        view.form.set_text(name.replace("__", "."), text)
    await pilot.pause()
    view.preview_soon()
    await looked(pilot)
    return view
