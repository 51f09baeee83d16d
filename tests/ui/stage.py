"""The dashboard on recorded cases, and on a cluster that answers what a test says.

Asserts nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from textual.app import App
from textual.pilot import Pilot

from hpcdash.assembly import build_replay, cluster_pace
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.config.settings import ClusterSettings
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.poller import Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.folders import journal
from hpcdash.services.submit.launches import Launches
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.jobs.overview import JobOverview
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets.table import RowsTable
from tests.support.scripted_transport import EVERYONE, MINE, PROBED, ScriptedTransport
from tests.support.waiting import deadline

CASES = Path(__file__).parents[2] / "fixtures" / "slurm" / "22.05"
PBS_CASES = CASES.parents[1] / "pbs" / "23.06"
PROBE = (CASES / "everyday" / "probe.out").read_bytes()
NOW = 1_795_244_354.0


def replayed(case: str = "everyday", cases: Path = CASES) -> ClusterSession:
    """A recorded case that is asked once: no time passes for its poller."""
    session = build_replay(cases / case)
    poller = Poller(session.store, session.poller.pace, monotonic=lambda: 0.0)
    return replace(session, poller=poller, origin=f"recorded {case}")


def dashboard(case: str = "everyday", *, cases: Path = CASES, **arguments: Any) -> HpcdashApp:
    return HpcdashApp([replayed(case, cases)], **arguments)


def answering_transport(everyone: bytes = b"", mine: bytes = b"") -> ScriptedTransport:
    """Slurm as recorded, whose squeue gives these rows (with the recorded token), and that knows
    nothing else.
    """
    transport = ScriptedTransport()
    transport.health.state = "idle"
    transport.answers = {lambda words: True: "", PROBED: PROBE, EVERYONE: everyone, MINE: mine}
    return transport


def answering(
    transport: ScriptedTransport, *, name: str = "big", ages: bool = False
) -> ClusterSession:
    """A cluster behind a transport; with `ages` its poller lives in real time."""
    store = ClusterStore(
        name,
        transport,
        (BACKEND,),
        clock=FrozenClock(NOW),
        budget=CommandBudget(600),
        user="user000",
    )
    pace = cluster_pace(ClusterSettings(name, name))
    poller = Poller(store, pace) if ages else Poller(store, pace, monotonic=lambda: 0.0)
    return ClusterSession(store, poller, Actions(store, journal()), Launches(store), "", UTC)


async def until(pilot: Pilot[Any], holds: Callable[[], object], what: str = "") -> None:
    """Wait until something holds on a screen whose widgets have done their work."""
    over = deadline()
    rest = 0.0
    while True:
        await asyncio.sleep(rest)
        pilot.app.screen._on_timer_update()
        # A pause has every widget on the screen answer: it is had once the thing seems to hold.
        if not has_messages(pilot.app) and holds():
            await pilot.pause()
            if holds():
                return
        if (crash := pilot.app._exception) is not None:
            raise crash
        assert time.monotonic() < over, f"still not: {what or holds}\n{screen_text(pilot.app)}"
        rest = min(1.5 * rest + 0.005, 0.08)


async def settled(pilot: Pilot[Any]) -> None:
    """Wait until all that the view wants was asked and is on the screen."""
    session = pilot.app.main.session
    store = session.store

    def quiet() -> bool:
        view = pilot.app.main.view
        kinds = session.poller.shown | view.kinds | {view.main_kind} - {None}
        known = all(kind in store.snapshots or kind in store.errors for kind in kinds)
        arranging = (
            isinstance(view, TableView)
            and view._arranging is not None
            and not view._arranging.done()
        )
        fetching = any(not task.done() for task in store._fetching.values())
        # A log is watched for as long as it is shown.
        working = any(
            not worker.is_finished for worker in pilot.app.workers if worker.group != "watch"
        )
        moving = not all(overview.is_settled for overview in view.query(JobOverview))
        idle = not (arranging or fetching or working or moving or has_messages(pilot.app))
        return idle and (known or store.connection_error is not None)

    await until(pilot, quiet, "settled")


def has_messages(app: App[Any]) -> bool:
    """Whether a widget has messages to process: what one tells another may take several turns to be
    drawn. Of the screens below a dialog too, which shine through.
    """
    pumps = (
        app,
        *(widget for screen in app.screen_stack for widget in screen.walk_children(with_self=True)),
    )
    # Its callbacks are called once the screen is drawn: a log scrolls to its end so.
    return any(screen._callbacks for screen in app.screen_stack) or any(
        pump._next_callbacks or not pump._message_queue.empty() for pump in pumps
    )


async def press(pilot: Pilot[Any], *keys: str) -> None:
    """Keys, and what they bring about."""
    for key in keys:
        await pilot.press(key)
    await settled(pilot)


async def type_text(pilot: Pilot[Any], text: str) -> None:
    """Letters and signs into whatever has the focus."""
    signs = {
        " ": "space",
        ":": "colon",
        ">": "greater_than_sign",
        "<": "less_than_sign",
        "=": "equals_sign",
    }
    signs |= {
        "/": "slash",
        ",": "comma",
        "?": "question_mark",
        "!": "exclamation_mark",
        "(": "left_parenthesis",
    }
    await pilot.press(*(signs.get(letter, letter) for letter in text))
    await pilot.pause()


def screen_text(app: Any) -> str:
    """Every cell of the screen that is on top, as text."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def notices(app: Any) -> list[str]:
    """The notices that stand, the oldest first.

    A pilot draws none of them, and Textual has no other way to ask.
    """
    return [str(note.message) for note in app._notifications]


def shown_rows(app: HpcdashApp) -> RowsTable:
    view = app.main.view
    assert isinstance(view, TableView)
    return view.rows


def ids_of(app: HpcdashApp) -> list[str]:
    """The ids of all rows of the table that is shown."""
    table = shown_rows(app)
    return [str(value) for value in table._rows.ids().to_pylist()]
