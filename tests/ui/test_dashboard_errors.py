"""What goes wrong has its own words and a next step, hides nothing that was known, and goes away by
itself.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.generate_jobs import jobs_text
from hpcdash.domain.tables import Kind
from hpcdash.errors import (
    AuthenticationFailed,
    CommandTimedOut,
    ConnectionFailed,
    ControllerDown,
    HpcdashError,
    LoginRequired,
)
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.snapshots import SnapshotCache
from hpcdash.transport.base import CommandResult
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.dialogs import TextDialog
from hpcdash.ui.widgets.lines import Banner
from tests.support.scripted_transport import MINE, ScriptedTransport
from tests.ui.stage import (
    answering,
    answering_transport,
    dashboard,
    ids_of,
    press,
    replayed,
    screen_text,
    settled,
    shown_rows,
    until,
)

USUAL = (120, 34)


def banner_of(app: HpcdashApp) -> str:
    banner = app.main.query_one(Banner)
    return str(banner.render()) if banner.display else ""


async def test_a_controller_that_is_down_is_told_in_its_own_words_with_the_next_step() -> None:
    app = dashboard("controller-down")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        words = banner_of(app)
        assert "slurmctld) does not respond" in words
        assert "squeue: slurm_load_jobs error: Unable to contact slurm controller" in words
        assert "→ Running jobs continue;" in words
        assert "(ctrl+r: now)" in words
        assert "No data yet. ! error" in screen_text(app)
        await press(pilot, "exclamation_mark")
        assert isinstance(app.screen, TextDialog)
        assert "exit status: 1" in screen_text(app)


async def test_what_the_last_run_knew_is_shown_with_its_age_while_the_controller_is_down(
    tmp_path: Path,
) -> None:
    session = replayed("everyday")
    store = session.store
    store._cache = SnapshotCache(tmp_path, "kept")
    await store.fetch(Kind.MINE)
    known = store.snapshots[Kind.MINE].table.num_rows

    down = replayed("controller-down")
    down.store._cache = SnapshotCache(tmp_path, "kept")
    down.store.clock = FrozenClock(store.clock.now() + 7200)
    down.store.load_cached()
    app = HpcdashApp([down], fold_arrays=False)
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, lambda: banner_of(app))
        await settled(pilot)
        assert "slurmctld) does not respond" in banner_of(app)
        assert "showing data from 2 h ago" in banner_of(app)
        assert sum(not row_id.endswith("[]") for row_id in ids_of(app)) == known
        assert "from the last run, 2 h ago" in screen_text(app)


@pytest.mark.parametrize(
    "error",
    [
        ControllerDown(
            "the controller does not answer",
            "Wait for it.",
            argv=("squeue",),
            status=1,
            output="refused",
        ),
        ConnectionFailed("the line broke", "Is the VPN up?"),
    ],
    ids=["controller", "line"],
)
async def test_an_error_goes_away_by_itself_once_there_is_an_answer(
    error: HpcdashError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.services.cluster.poller._FIRST_BACK_OFF_SECONDS", 0.05)
    transport = answering_transport()
    transport.answers[MINE] = jobs_text(20)
    session = answering(transport, ages=True)
    pace = session.poller.pace
    session.poller.pace = replace(
        pace, seconds=dict.fromkeys(pace.seconds, 0.05), controller_share=0
    )
    app = HpcdashApp([session])
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, lambda: shown_rows(app).row_count)
        shown = ids_of(app)
        # An answer of either says that the line is good.
        transport.fails |= {"squeue": error, "sinfo": error}
        await until(pilot, lambda: banner_of(app))
        assert error.message in banner_of(app)
        assert f"→ {error.next_step}" in banner_of(app)
        assert "showing data from 0 s ago" in banner_of(app)
        assert ids_of(app) == shown
        transport.fails.clear()
        await until(pilot, lambda: not banner_of(app))
        assert ids_of(app) == shown


async def test_a_question_that_is_asked_again_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = answering_transport()
    transport.answers[MINE] = jobs_text(20)
    transport.fails["squeue"] = CommandTimedOut(
        "squeue did not finish within 60 s", "It may be busy."
    )
    session = answering(transport, ages=True)
    app = HpcdashApp([session])
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, lambda: "retrying in " in banner_of(app), "when it is tried again")
        assert "It may just be slow: the next attempt waits up to 120 s." in banner_of(app)
        answers, run = asyncio.Event(), transport.run

        async def slowly(argv: tuple[str, ...], **limits: Any) -> CommandResult:
            await answers.wait()
            return await run(argv, **limits)

        monkeypatch.setattr(transport, "run", slowly)
        transport.fails.clear()
        session.poller.poll_now()
        await until(
            pilot,
            lambda: "retrying for" in banner_of(app),
            "that it is being asked",
        )
        answers.set()
        await until(pilot, lambda: not banner_of(app), "the answer")


async def test_no_line_at_first_then_a_line() -> None:
    transport = answering_transport()
    transport.answers[MINE] = jobs_text(20)
    transport.connect_error = AuthenticationFailed(
        "login.example did not accept who we are", "Is the key loaded?"
    )
    app = HpcdashApp([answering(transport)])
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, lambda: banner_of(app))
        assert "did not accept who we are" in banner_of(app)
        assert "ctrl+r retries" in banner_of(app)
        assert "no connection" in screen_text(app)
        await press(pilot, "2")
        assert "did not accept who we are" in banner_of(app)
        await press(pilot, "1")
        transport.connect_error = None
        await pilot.press("ctrl+r")
        await until(pilot, lambda: shown_rows(app).row_count and not banner_of(app))
        assert "no connection" not in screen_text(app)


def waiting_transport() -> tuple[ScriptedTransport, asyncio.Event, list[float]]:
    """A cluster with 20 jobs whose login waits for an event, and when somebody logged in."""
    transport, approved, logins = (
        answering_transport(mine=jobs_text(20)),
        asyncio.Event(),
        list[float](),
    )

    async def log_in(force: bool) -> None:
        if transport.health.state == "connected":
            return
        if transport.connect_error is not None and not force:
            raise transport.connect_error
        transport.connect_error = None
        logins.append(time.monotonic())
        transport.health.state, transport.health.waiting_since = "asking", time.monotonic() - 61
        transport.health.text = "maya@gate: Pushed a login \x1b[31mrequest"
        await approved.wait()

    transport.on_connect = log_in
    return transport, approved, logins


async def test_a_login_that_waits_for_its_person_says_so_with_the_hosts_words() -> None:
    transport, approved, _ = waiting_transport()
    app = HpcdashApp([answering(transport)])
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, lambda: "waiting for you" in banner_of(app))
        assert "maya@gate: Pushed a login ␛[31mrequest" in banner_of(app)
        assert "approval on another device" in banner_of(app)
        assert "1 min" in banner_of(app)
        assert "│ waiting for you" in screen_text(app)
        approved.set()
        await until(pilot, lambda: shown_rows(app).row_count and not banner_of(app))
        await until(pilot, lambda: "Pushed a login ␛[31mrequest" in screen_text(app))
        await press(pilot, "exclamation_mark")
        assert "login messages" in screen_text(app)


async def test_a_line_that_took_a_person_stays_lost_until_they_ask_for_it() -> None:
    transport, approved, logins = waiting_transport()
    approved.set()
    session = answering(transport, ages=True)
    pace = session.poller.pace
    session.poller.pace = replace(
        pace, seconds=dict.fromkeys(pace.seconds, 0.05), controller_share=0
    )
    app = HpcdashApp([session])
    # Where there is no room for the queues one question is asked at a time.
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: shown_rows(app).row_count)
        shown = ids_of(app)
        transport.health.state = "lost"
        transport.connect_error = LoginRequired(
            "The line to gate was lost.", "Log in again: ctrl+r."
        )
        await until(pilot, lambda: "was lost" in banner_of(app))
        assert "ctrl+r retries" in banner_of(app)
        assert "line lost" in screen_text(app)
        assert ids_of(app) == shown
        asked = len(transport.argvs)
        assert (session.poller.waiting_for_person, len(logins)) == (transport.connect_error, 1)
        approved.clear()
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "waiting for you" in banner_of(app))
        assert (len(transport.argvs), len(logins)) == (asked, 2)
        approved.set()
        await until(pilot, lambda: not banner_of(app))


async def test_a_line_that_is_reopened_by_itself_is_told_as_lost() -> None:
    transport, approved, _ = waiting_transport()
    approved.set()
    app = HpcdashApp([answering(transport)])
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, lambda: shown_rows(app).row_count)
        shown = ids_of(app)
        transport.health.state = "connecting"
        await until(pilot, lambda: "line lost, retrying" in screen_text(app))
        assert ids_of(app) == shown
        transport.health.state = "connected"
        await until(pilot, lambda: "line lost" not in screen_text(app))


async def test_rows_that_could_not_be_read_are_counted_and_shown_on_request() -> None:
    app = dashboard("garbage")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        assert "1 unreadable row skipped" in banner_of(app)
        assert shown_rows(app).row_count > 5
        await press(pilot, "exclamation_mark")
        assert "Maintenance on Monday" in screen_text(app)


async def test_no_accounting_is_an_error_of_the_history_alone() -> None:
    app = dashboard("no-accounting")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        assert banner_of(app) == ""
        await press(pilot, "4")
        assert "does not keep history" in banner_of(app)
        await press(pilot, "escape")
        assert banner_of(app) == ""


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ((), "You have no jobs. n submits one, m shows everyone's"),
        (("m",), "The queue is empty. n submits a job"),
        (
            ("4",),
            "None of your jobs ended in the last 7 days. w shows older jobs, m shows everyone's",
        ),
        (("2", "slash", "z", "z", "enter"), "Nothing matches zz. esc clears the filter"),
    ],
)
async def test_an_empty_table_says_what_it_is_empty_of(keys: tuple[str, ...], words: str) -> None:
    app = dashboard("empty")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, *keys)
        assert words in screen_text(app)
        assert banner_of(app) == ""
        await press(pilot, "enter", "space", "a", "d", "y", "o", "O", "down")
        assert app.is_running


async def test_a_job_no_list_knows_is_an_error_of_its_own_view() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await app.main.push("job", job_id="999999")
        await settled(pilot)
        assert "has no answer for: squeue -a -h -t all -j 999999" in banner_of(app)
        assert "no data for this job" in screen_text(app)
        await press(pilot, "escape")
        assert banner_of(app) == ""
