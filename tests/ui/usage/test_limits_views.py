"""Shares, limits and reservations on the screen: what is listed, what leads there, and where they
are not offered.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.domain.tables import SHARES, Kind
from hpcdash.ui.views import SPECS
from tests.ui.jobs.acting_stage import point_at
from tests.ui.stage import PBS_CASES, dashboard, press, screen_text, settled, type_text, until

SIZE = (140, 34)


async def go_to(pilot: Pilot[Any], view: str) -> None:
    await press(pilot, "colon")
    await type_text(pilot, view)
    await press(pilot, "enter")


@pytest.mark.parametrize(
    ("cases", "view"),
    [("slurm", "shares"), ("slurm", "limits"), ("slurm", "reservations"), ("pbs", "limits")],
)
def test_a_view_looks_as_it_did(snap_compare: Any, cases: str, view: str) -> None:
    app = dashboard("limits") if cases == "slurm" else dashboard("limits", cases=PBS_CASES)

    async def go_there(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        await go_to(pilot, view)

    assert snap_compare(app, terminal_size=SIZE, run_before=go_there)


def test_a_job_that_waits_for_a_limit_names_it_and_the_view(snap_compare: Any) -> None:
    async def go_there(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        await pilot.app.main.push("job", job_id="49")
        await settled(pilot)

    assert snap_compare(dashboard("limits"), terminal_size=(140, 44), run_before=go_there)


async def test_keys_and_words_lead_to_the_views_and_m_shows_all_accounts() -> None:
    app = dashboard("limits")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "8")
        assert app.main.view_name == "shares"
        assert "staff" not in screen_text(app)
        await press(pilot, "m")
        assert "staff" in screen_text(app)
        await press(pilot, "9")
        assert app.main.view_name == "limits"
        await press(pilot, "0", "end")
        assert app.main.view_name == "reservations"
        assert "you may use it: --reservation=grp" in screen_text(app)
        await go_to(pilot, "limits scope:qos per:user")
        assert "MaxJobsPU" in screen_text(app)
        assert "physics/alice" not in screen_text(app)


async def test_a_table_without_a_view_of_its_own_is_listed_and_filtered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = replace(SPECS["reservations"], place="table_view:TableView")
    monkeypatch.setitem(SPECS, "reservations", plain)
    app = dashboard("limits")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await go_to(pilot, "reservations")
        assert app.main.view_name == "reservations"
        heading = next(line for line in screen_text(app).splitlines() if "RESERVATION" in line)
        assert heading.split()[:2] == ["RESERVATION", "STATE"]
        listed = app.main.view.source()["name"].to_pylist()
        assert len(listed) > 1
        assert all(name in screen_text(app) for name in listed)
        await go_to(pilot, f"reservations name:{listed[0]}")
        assert listed[1] not in screen_text(app)


async def test_a_plain_table_is_identified_by_the_field_that_it_declares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = replace(SPECS["limits"], place="table_view:TableView")
    monkeypatch.setitem(SPECS, "limits", plain)
    app = dashboard("limits")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await go_to(pilot, "limits")
        rows = app.main.view.source().num_rows
        await until(pilot, lambda: f"{rows} rows" in screen_text(app), "all limits")


def test_a_table_without_its_identity_among_its_fields_cannot_be_declared() -> None:
    with pytest.raises(ValueError, match="table shares: identity or whole: no field name"):
        replace(SHARES, identity="name")


async def test_enter_on_a_limit_shows_the_jobs_it_is_on() -> None:
    app = dashboard("limits")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await go_to(pilot, "limits scope:qos per:user name:limited")
        await press(pilot, "enter")
        assert app.main.view_name == "jobs"
        assert 'qos:"limited"' in screen_text(app)
        assert "lim3" in screen_text(app)


async def test_the_lines_over_the_jobs_have_one_s_fair_share_and_it_is_asked_for_each_ten_minutes() -> (
    None
):
    app = dashboard("limits")
    async with app.run_test(size=(160, 45)) as pilot:
        await settled(pilot)
        await until(pilot, lambda: "fair share 0.20-1.00" in screen_text(app), "the fair share")
        poller = app.sessions[0].poller
        assert Kind.SHARES in poller.shown
        assert poller.interval_seconds(Kind.SHARES) == 600
        # It is not asked for where it is not shown.
        await press(pilot, "2")
        assert Kind.SHARES not in poller.shown


async def test_without_accounting_no_share_is_asked_for() -> None:
    app = dashboard("no-accounting")
    async with app.run_test(size=(160, 45)) as pilot:
        await settled(pilot)
        assert Kind.SHARES not in app.sessions[0].poller.shown
        assert "fair share" not in screen_text(app)


async def test_the_job_under_the_cursor_names_the_view_of_what_it_waits_for() -> None:
    app = dashboard("limits")
    async with app.run_test(size=(160, 45)) as pilot:
        await settled(pilot)
        for job_id, view in (("49", ":limits"), ("52", ":reservations")):
            await point_at(pilot, job_id)
            await settled(pilot)
            await until(pilot, lambda view=view: view in screen_text(app), f"{view} of {job_id}")


async def test_a_scheduler_without_shares_says_so_and_does_not_offer_them() -> None:
    app = dashboard("limits", cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await go_to(pilot, "shares")
        assert app.main.view_name == "jobs"
        assert "PBS has no shares" in screen_text(app)
        await press(pilot, "escape", "8")
        assert app.main.view_name == "jobs"
        await go_to(pilot, "reservations")
        assert "R7.pbs01" in screen_text(app)


def test_slurm_has_all_three() -> None:
    assert {"shares", "limits", "reservations"} <= {str(one) for one in BACKEND.capabilities}
