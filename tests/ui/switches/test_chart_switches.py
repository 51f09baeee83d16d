"""From what stands out in a chart to the switches of its job, and the chart's key among the
others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdash.ui.switches.dialog import SwitchDialog
from tests.support.real_files import put
from tests.ui.logs.log_stage import PENDING, RUNNING
from tests.ui.metrics.chart_stage import chart_dashboard, chart_of, open_chart, training_log
from tests.ui.stage import screen_text, settled, until

SIZE = (120, 34)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdash.services.metrics.run.next_check_seconds", lambda quiet: 0.05)
    monkeypatch.setattr("hpcdash.ui.metrics.following.READ_SECONDS", 0.05)


def spiked(step: int) -> float:
    return 2.0 + 0.01 * (step % 7) + (4.0 if 700 <= step < 703 else 0.0)


def keys_shown(text: str) -> str:
    return text.rstrip().splitlines()[-1]


async def test_a_spike_brings_the_save_switch_into_the_key_line_and_s_opens_that_of_the_job(
    tmp_path: Path,
) -> None:
    put(tmp_path / "job.out", training_log(range(1, 1201), spiked))
    async with chart_dashboard(tmp_path).run_test(size=SIZE) as pilot:
        await open_chart(pilot)
        await until(pilot, lambda: "S save switch" in keys_shown(screen_text(pilot.app)), "the key")
        for key, words in (("S", "save switch"), ("K", "kill switch")):
            await pilot.press(key)
            await until(pilot, lambda: isinstance(pilot.app.screen, SwitchDialog), "the dialog")
            dialog = pilot.app.screen
            assert isinstance(dialog, SwitchDialog)
            assert (dialog.job_id, dialog.kind.text) == (RUNNING, words)
            await until(
                pilot,
                lambda words=words: (
                    f"{words.capitalize()} for job {RUNNING}" in screen_text(pilot.app)
                ),
            )
            await pilot.press("escape")
            await until(
                pilot, lambda: not isinstance(pilot.app.screen, SwitchDialog), "the chart again"
            )


async def test_of_several_runs_the_switch_is_of_the_one_whose_finding_is_under_the_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "job.out", training_log(range(1, 1201), spiked))
    async with chart_dashboard(tmp_path).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot, RUNNING, ("13_7",))
        assert view.switch_jobs() == (RUNNING,)
        first = view.runs[0].facts
        assert first is not None
        await until(pilot, lambda: view.runs[1].facts is not None, "the facts of the second")
        # Both runs are of one file; what stands out in the first is disabled. A read that has begun
        # ends before the next.
        reads = []

        async def read(_: object, run: object) -> None:
            reads.append(run)

        monkeypatch.setattr("hpcdash.ui.metrics.following.ChartFollowing._read", read)
        await until(pilot, lambda: reads, "the end of the search")
        view.runs[0].facts = None
        await press_still(pilot, "n")
        assert view.switch_jobs() == ("13_7",)
        await press_still(pilot, "left", "left", "left", "left")
        assert view.switch_jobs() == (RUNNING,)


async def press_still(pilot, *keys: str) -> None:  # type: ignore[no-untyped-def]
    await pilot.press(*keys)
    await until(pilot, lambda: chart_of(pilot).is_drawn, "drawn")


@pytest.mark.parametrize("end", [2.0, float("nan")])
async def test_without_a_finding_or_with_nan_the_save_switch_is_no_key_of_the_line(
    tmp_path: Path, end: float
) -> None:
    put(
        tmp_path / "job.out",
        training_log(range(1, 301), lambda step: 5.0 - step / 100 if step < 280 else end),
    )
    async with chart_dashboard(tmp_path).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        if end != end:
            await until(
                pilot,
                lambda: "nan" in {mark.kind for _, mark in view.marks_found()},
                "the nan to be found",
            )
            await until(pilot, lambda: "nan" in screen_text(pilot.app), "the nan to be told")
        assert "save switch" not in keys_shown(screen_text(pilot.app))
        await pilot.press("S")
        await until(pilot, lambda: isinstance(pilot.app.screen, SwitchDialog), "the dialog")
        dialog = pilot.app.screen
        assert isinstance(dialog, SwitchDialog)
        assert dialog.against.startswith("nan first at 280") if end != end else not dialog.against


async def test_the_chart_is_among_the_keys_of_what_runs_and_not_of_what_waits(
    tmp_path: Path,
) -> None:
    put(tmp_path / "job.out", b"up\n")
    async with chart_dashboard(tmp_path).run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        rows = pilot.app.main.view.rows
        for job_id, is_shown in ((RUNNING, True), (PENDING, False)):
            assert rows.move_to(job_id)
            await until(
                pilot,
                lambda is_shown=is_shown: (
                    ("g chart" in keys_shown(screen_text(pilot.app))) == is_shown
                ),
                f"the keys of {job_id}",
            )
            assert "x cancel" in keys_shown(screen_text(pilot.app))
