"""The first start without a cluster: what is offered, tried and found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from hpcdash.domain.checks import Check
from hpcdash.transport.base import Health
from hpcdash.ui.cluster.first_start import DEMO, THIS_MACHINE, FirstStartApp, JobsPlace, PlaceChoice
from tests.ui.stage import screen_text, type_text, until
from tests.ui.test_dashboard_hostile import hidden_letters

HOSTS = {"juno": "login.juno.example.org", "attic": "", "gate": "10.0.0.1\x1b[31m"}
WHY = ["No cluster is configured yet: neither Slurm nor PBS is installed here."]
CONNECTED = Check("connection", True, "me@login.juno.example.org, 140 ms")
FOUND = [
    CONNECTED,
    Check("scheduler", True, "slurm 24.05.4, cluster juno\x1b[31m, logged in as me"),
    Check(
        "home", False, "/home/me is not writable", "Jobs cannot write logs there: check the quota."
    ),
    Check("accounts", True, "physics (default), chem"),
]
REFUSED = Check("connection", False, "juno refused the connection", "Try it by hand: ssh juno")


class Trial:
    """A host that answers with what the test says, each time it is asked."""

    def __init__(self, checks: list[Check], *answers: list[Check]) -> None:
        self.health = Health(
            "asking", "waiting for an approval", text="juno: Autopushing to phone...\x07"
        )
        self.checks = checks
        self.answers = list(answers)
        self.is_closed = False

    async def run(self) -> bool:
        if not self.answers:
            await asyncio.Event().wait()
        self.checks += self.answers.pop(0)
        return self.checks[0].ok

    async def close(self) -> None:
        self.is_closed = True


def first_start(
    *answers: list[Check], hosts: dict[str, str] = HOSTS
) -> tuple[FirstStartApp, list[Trial]]:
    trials: list[Trial] = []

    def start(host: str, checks: list[Check]) -> Trial:
        trials.append(Trial(checks, *answers))
        return trials[-1]

    return FirstStartApp(hosts, WHY, start), trials


@asynccontextmanager
async def offered(app: FirstStartApp) -> AsyncIterator[Pilot[Any]]:
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(app.focused, Input))
        yield pilot


async def test_hosts_of_the_ssh_configuration_are_offered_with_this_machine_and_the_demo() -> None:
    app, _ = first_start()
    async with offered(app) as pilot:
        shown = screen_text(app)
        assert hidden_letters(shown) == []
        for words in (
            *WHY,
            "juno          login.juno.example.org",
            "attic",
            "10.0.0.1␛[31m",
            "this machine",
            "demo",
        ):
            assert words in shown
        await type_text(pilot, "example")
        await until(pilot, lambda: "attic" not in screen_text(app))
        assert "juno" in screen_text(app)


@pytest.mark.parametrize(
    ("keys", "choice"),
    [
        (("down",) * 3 + ("enter",), THIS_MACHINE),
        (("down",) * 9 + ("enter",), DEMO),
        ((*"demo", "enter"), DEMO),
        ((*"demo", "down", "enter", "enter"), PlaceChoice(JobsPlace.HOST, "demo")),
        (("escape",), None),
        (("enter", "enter"), PlaceChoice(JobsPlace.HOST, "juno")),
        ((*"att", "ctrl+j", "enter"), PlaceChoice(JobsPlace.HOST, "attic")),
        ((*"me@there:2222", "enter", "enter"), PlaceChoice(JobsPlace.HOST, "me@there:2222")),
    ],
)
async def test_what_is_chosen_is_what_was_pointed_at(
    keys: tuple[str, ...], choice: PlaceChoice | None
) -> None:
    app, _ = first_start(FOUND)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(app.focused, Input))
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
    assert app.chosen == choice


async def test_what_is_no_host_is_said_and_not_tried() -> None:
    app, trials = first_start(FOUND)
    async with offered(app) as pilot:
        await type_text(pilot, "-oProxyCommand=x")
        await until(pilot, lambda: "a destination cannot start with '-'" in screen_text(app))
        await pilot.press("enter")
        await pilot.pause()
        assert trials == []


async def test_findings_are_shown_as_text_with_their_next_steps() -> None:
    app, _ = first_start(FOUND)
    async with offered(app) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: "enter save and open the dashboard" in screen_text(app))
        shown = screen_text(app)
        assert hidden_letters(shown) == []
        for words in (
            "✓ scheduler",
            "cluster juno␛[31m",
            "✗ home",
            "→ Jobs cannot write logs there",
            "physics (default)",
        ):
            assert words in shown


async def test_while_a_host_waits_its_words_are_shown_and_it_can_be_left() -> None:
    app, trials = first_start()
    async with offered(app) as pilot:
        await pilot.press("down", "enter")
        await until(pilot, lambda: "waiting for an approval, " in screen_text(app))
        assert "juno: Autopushing to phone...␇" in screen_text(app)
        await pilot.press("escape")
        await until(
            pilot, lambda: "Where do your jobs run?" in screen_text(app) and trials[0].is_closed
        )
        await pilot.press("enter")
        await until(pilot, lambda: len(trials) == 2)
        # The cursor was where it had been.
        assert "attic" in screen_text(app)
    assert app.chosen is None


async def test_a_host_that_does_not_work_is_tried_again_and_not_kept_before_it_does() -> None:
    app, _ = first_start([REFUSED], FOUND)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(app.focused, Input))
        await pilot.press("enter")
        await until(pilot, lambda: "enter try again" in screen_text(app))
        assert "→ Try it by hand: ssh juno" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: "enter save" in screen_text(app))
        assert "refused" not in screen_text(app)
        assert app.chosen is None
        await pilot.press("enter")
        await pilot.pause()
    assert app.chosen == PlaceChoice(JobsPlace.HOST, "juno")


@pytest.mark.parametrize("scene", ["places", "findings"])
def test_a_first_start_looks_as_it_did(scene: str, snap_compare: Any) -> None:
    app, _ = first_start(FOUND)
    keys = ["enter"] if scene == "findings" else []

    async def ready(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: isinstance(app.focused, Input))
        await pilot.press(*keys)
        await until(pilot, lambda: ("enter save" if keys else "enter connect") in screen_text(app))

    assert snap_compare(app, terminal_size=(80, 24), run_before=ready)
