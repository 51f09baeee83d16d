"""The usage view: whose usage, of which span, by what; how it looks, and what it does when nothing
answers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.jobs.history import HistoryView
from hpcdash.ui.usage.view import UsageView
from tests.support.accounting import RUNS_ASKED, Accounting
from tests.support.slurm_text import Fields
from tests.ui.stage import NOW, answering, answering_transport, press, screen_text, settled, until

HOUR, DAY = 3600, 86_400
# A report's first one loads pandas and plotext.
SECONDS = 90


def run(number: int, hours_ago: float, **fields: str) -> Fields:
    """Five hours on a GPU and four CPUs, asked for an hour before."""
    end = int(NOW - hours_ago * HOUR)
    times = {"start": str(end - 5 * HOUR), "end": str(end), "submit": str(end - 6 * HOUR)}
    tres = "billing=4,cpu=4,gres/gpu=1,mem=64G,node=1"
    asked = {
        "ncpus": "4",
        "alloctres": tres,
        "reqtres": tres,
        "elapsedraw": str(5 * HOUR),
        "timelimitraw": "1440",
    }
    used = {"totalcpu": "08:00:00", "eligible": times["submit"]}
    return {
        "jobid": str(number),
        "user": "user000",
        "jobname": "train",
        **times,
        **asked,
        **used,
        **fields,
    }


def runs() -> list[Fields]:
    own = [run(100 + at, 3 + 11 * at, partition="gpu" if at % 3 else "long") for at in range(50)]
    failed = [
        run(200 + at, 9 + 50 * at, state="FAILED", exitcode="1:0", jobname="sweep")
        for at in range(8)
    ]
    return [*own, *failed, run(300, 30, user="user001", partition="<b>\x1b[31m", jobname="[red]")]


@pytest.fixture
def app() -> HpcdashApp:
    transport = answering_transport()
    transport.answers[RUNS_ASKED] = Accounting(runs())
    return HpcdashApp([answering(transport)])


async def shown(pilot: Pilot[Any], words: str) -> str:
    await until(pilot, lambda: words in screen_text(pilot.app) and _is_idle(pilot.app), words)
    return screen_text(pilot.app)


def _is_idle(app: Any) -> bool:
    view = app.main.view
    return (
        isinstance(view, UsageView)
        and view.report is not None
        and all(one.is_finished for one in view.workers)
    )


def pages_in(folder: Path) -> list[str]:
    return [file.read_text() for file in folder.glob("usage-big-*.html")]


@pytest.mark.parametrize("size", [(100, 30), (200, 60)], ids=["100x30", "200x60"])
def test_the_view_looks_as_it_did(
    snap_compare: Any, app: HpcdashApp, size: tuple[int, int]
) -> None:
    async def go_there(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        await press(pilot, "7")
        await shown(pilot, "GPU hours per day")

    assert snap_compare(app, terminal_size=size, run_before=go_there)


async def test_keys_choose_whose_usage_of_which_span_and_by_what(app: HpcdashApp) -> None:
    async with app.run_test(size=(150, 60)) as pilot:
        await press(pilot, "7")
        text = await shown(pilot, "usage › mine › 30 days › by queue")
        assert "Your own jobs" in text
        assert re.search(r"^.*\b290\b.*\b1160\b.*\b58\b.*8 \(14%\)", text, re.M), text
        await press(pilot, "g")
        assert "user000" in await shown(pilot, "By user")
        await press(pilot, "m")
        text = await shown(pilot, "Jobs of 2 users")
        assert "user001" in text
        for key in ("g", "g", "g", "g", "g"):
            await press(pilot, key)
        # What others write is shown as it is, and obeyed by nothing.
        assert "<b>␛[31m" in await shown(pilot, "By queue")
        await press(pilot, "w", "up", "enter")
        await shown(pilot, "everyone's › 7 days")
        await pilot.resize_terminal(70, 40)
        text = await shown(pilot, "CPU hours")
        assert max(map(len, text.splitlines())) <= 70


async def test_a_report_is_saved_as_a_page_and_no_file_is_written_over(
    app: HpcdashApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "7")
        await shown(pilot, "GPU hours per day")
        await press(pilot, "s")
        await until(pilot, lambda: any("Usage on big" in page for page in pages_in(tmp_path)))


async def test_where_no_accounting_answers_the_view_says_so_and_asks_again_on_a_key(
    app: HpcdashApp,
) -> None:
    transport = answering_transport()
    transport.answers[RUNS_ASKED] = (
        1,
        b"",
        b"sacct: error: Slurm accounting storage is disabled\n",
    )
    app = HpcdashApp([answering(transport)])
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "7")
        await until(pilot, lambda: "No data for this interval" in screen_text(app))
        transport.answers[RUNS_ASKED] = Accounting(runs())
        await press(pilot, "ctrl+r")
        await shown(pilot, "GPU hours per day")


async def test_a_table_whose_query_failed_points_to_the_error_and_does_not_load_for_ever(
    app: HpcdashApp,
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "colon", *"storage", "enter")
        await until(pilot, lambda: "No data yet. ! error · ctrl+r retry" in screen_text(app))


async def test_history_has_columns_of_what_jobs_used_once_they_are_chosen(app: HpcdashApp) -> None:
    async with app.run_test(size=(160, 40)) as pilot:
        await press(pilot, "4")
        view = app.main.view
        assert isinstance(view, HistoryView)
        view.choose_columns(["id", "name", "state", "cpu_use", "time_use", "memory_use"])
        await until(pilot, lambda: re.search(r"\b100\s+train\s.*\b40\s+21\b", screen_text(app)))
        assert "history › mine › 7 days" in screen_text(app)
        # What nobody measured is not known.
        assert view.rows.cursor_row is not None
        assert view.rows.cursor_row["memory_use"] is None
