"""A shared pool on the screen: quotas, tasks, why each waits, and what its owner asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from hpcdash.config.settings import PoolSettings
from hpcdash.services.jobs.actions import Actions
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.jobs.action_dialogs import ConfirmDialog
from tests.ui.stage import (
    dashboard,
    notices,
    press,
    replayed,
    screen_text,
    settled,
    shown_rows,
    type_text,
    until,
)

SIZES = [(80, 24), (100, 30), (160, 45), (250, 70)]


async def open_pool(pilot: Pilot[Any], row: str = "60") -> None:
    await settled(pilot)
    await pilot.press("colon")
    await type_text(pilot, "share")
    await press(pilot, "enter")
    await until(pilot, lambda: "8 of 8 nodes used" in screen_text(pilot.app), "the pool is shown")
    shown_rows(pilot.app).move_to(row)  # type: ignore[arg-type]
    await settled(pilot)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_pool_looks_as_it_did(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(dashboard("pool"), terminal_size=size, run_before=open_pool)


async def test_the_history_of_interruptions_says_how_each_ended() -> None:
    app = dashboard("pool")
    async with app.run_test(size=(120, 34)) as pilot:
        await open_pool(pilot)
        await press(pilot, "t")
        told = screen_text(app)
        assert "job 45 (hyperband) of luis at LOW after 11 h 1 min: did not respond" in told
        assert (
            "job 21 (convnext-v2-in22k) of maya at LOW after 1 h 27 min: too slow to save" in told
        )
        await press(pilot, "escape")
        shown_rows(app).move_to("45")
        await press(pilot, "t")
        told = " ".join(screen_text(app).split())
        assert "Runs of job 45 (hyperband) of luis" in told
        assert "LOW did not respond" in told
        assert "LOW failed" in told


async def test_a_wish_is_asked_for_with_its_command_and_says_whom_it_interrupts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The recording's jobs have no marks.
    async def rows(actions: Actions, job_ids: Sequence[str]) -> list[dict[str, Any]]:
        row = {
            "id": job_ids[0],
            "name": "mae",
            "user": "maya",
            "state": "held",
            "array_id": None,
            "_tasks": 1,
        }
        return [{**row, "comment": "hpcdash-share:NORMAL:/home/maya/x"}]

    monkeypatch.setattr(Actions, "fetch_rows", rows)
    app = dashboard("pool")
    async with app.run_test(size=(120, 40)) as pilot:
        await open_pool(pilot, "72")
        await pilot.press("greater_than_sign")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "it asks")
        told = screen_text(app)
        assert "Raise job 72 from NORMAL to ABOVE_NORMAL?" in told
        assert "! job 5 (sdxl-lora (rank 64)) of chen, NORMAL, 2 nodes" in told
        assert "comment: " not in told
        assert (
            "scontrol update jobid=72 comment=hpcdash-share:ABOVE_NORMAL:/home/maya/x"
            in " ".join(told.split())
        )
        # Somebody else is interrupted: enter alone does not do it.
        await press(pilot, "enter")
        assert app.screen is app.main
        shown_rows(app).move_to("6")
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "it asks")
        assert "The task has 30 s to save, and will not run until resumed." in screen_text(app)
        await press(pilot, "n")
        # The marked ones, wherever the cursor is; who is asked for something is not interrupted.
        for row_id in ("6", "72"):
            shown_rows(app).move_to(row_id)
            await press(pilot, "space")
        shown_rows(app).move_to("5")
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "it asks")
        told = " ".join(screen_text(app).split())
        assert "Suspend 2 tasks?" in told
        assert told.index("scontrol update jobid=6 comment=") < told.index(
            "scontrol update jobid=72 comment="
        )
        await press(pilot, "n")
        await press(pilot, "u")
        # What is another one's stays so.
        shown_rows(app).move_to("5")
        await press(pilot, "x")
        await until(
            pilot,
            lambda: any("job 5 belongs to chen" in words for words in notices(app)),
            "chen's job",
        )


async def test_in_read_only_mode_nothing_is_asked_for() -> None:
    app = dashboard("pool", read_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await open_pool(pilot)
        await press(pilot, "x")
        assert app.screen is app.main
        assert "stop" not in screen_text(app).splitlines()[-1]


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        ((), "[share.NAME] in the configuration defines one"),
        ((PoolSettings("lab", 4, state_file="/shared/lab/none.json"),), "has no published state"),
    ],
    ids=["none", "silent"],
)
async def test_without_a_pool_the_view_says_what_to_do(
    pools: tuple[PoolSettings, ...], words: str
) -> None:
    app = HpcdashApp([replace(replayed("pool"), pools=pools)])
    async with app.run_test(size=(120, 30)) as pilot:
        await settled(pilot)
        await app.main.go("share")
        await until(pilot, lambda: words in screen_text(app), words)


async def test_a_file_of_another_account_is_not_believed() -> None:
    pools = (PoolSettings("lab", 4, coordinator="hpcshare", state_file="/shared/lab/pool.json"),)
    app = HpcdashApp([replace(replayed("pool"), pools=pools)])
    async with app.run_test(size=(120, 30)) as pilot:
        await settled(pilot)
        await app.main.go("share")
        await until(
            pilot,
            lambda: "belongs to maya, its coordinator is hpcshare" in screen_text(app),
            "it is refused",
        )
        assert "mae-vit" not in screen_text(app)
