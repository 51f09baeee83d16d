"""What a login node asks reaches a person whole, secrets stay unseen, and nothing is trusted
without a yes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from hpcdash.transport.base import HostKeyQuestion, Prompt, PromptField
from hpcdash.ui.dialogs import HostKeyDialog, PromptDialog
from hpcdash.ui.prompter import UiPrompter
from tests.ui.stage import dashboard, screen_text, settled, type_text, until
from tests.ui.test_dashboard_hostile import hidden_letters

TWO_FIELDS = Prompt(
    "maya@login.example",
    "Two-factor login",
    "Your code comes by \x1b[31mmessage\x1b[0m\nto +49 ***",
    (PromptField("Verification code: ", secret=False), PromptField("Pass[b]word\x07: ")),
)
HOST_KEY = HostKeyQuestion(
    "login.example\x1b]0;owned\x07", "ssh-ed25519", "SHA256:abc", "/home/maya/.ssh/known_hosts"
)


@asynccontextmanager
async def asked(
    question: Prompt | HostKeyQuestion,
) -> AsyncIterator[tuple[Pilot[Any], asyncio.Task[Any]]]:
    """The dashboard with a login node's question on the screen."""
    prompter = UiPrompter()
    app = dashboard(prompter=prompter)
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot)
        ask = (
            prompter.answer(question)
            if isinstance(question, Prompt)
            else prompter.accept_host_key(question)
        )
        task: asyncio.Task[Any] = asyncio.create_task(ask)
        await until(pilot, lambda: isinstance(app.screen, (PromptDialog, HostKeyDialog)))
        await pilot.pause()
        yield pilot, task
        if not task.done():
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_both_fields_are_answered_and_the_secret_one_is_never_on_the_screen() -> None:
    async with asked(TWO_FIELDS) as (pilot, task):
        await type_text(pilot, "123456")
        assert "123456" in screen_text(pilot.app)
        await pilot.press("enter")
        await type_text(pilot, "qTm2secret")
        shown = screen_text(pilot.app)
        assert "secret" not in shown
        assert "qTm2" not in shown
        await pilot.press("enter")
        assert await task == ["123456", "qTm2secret"]
        await until(pilot, lambda: pilot.app.screen is pilot.app.main)
        assert "secret" not in screen_text(pilot.app)
        assert pilot.app.main.view_name == "jobs"


@pytest.mark.parametrize("question", [TWO_FIELDS, HOST_KEY])
async def test_the_program_that_a_login_is_for_is_named(
    question: Prompt | HostKeyQuestion,
) -> None:
    async with asked(replace(question, requester="hpcdash jobs (pid 4711)")) as (pilot, _):
        assert "For hpcdash jobs (pid 4711)" in screen_text(pilot.app)


async def test_hostile_words_of_a_login_node_are_made_visible() -> None:
    async with asked(TWO_FIELDS) as (pilot, _):
        shown = screen_text(pilot.app)
        assert hidden_letters(shown) == []
        for words in (
            "maya@login.example asks",
            "Two-factor login",
            "␛[31mmessage␛[0m",
            "to +49 ***",
            "Pass[b]word␇:",
        ):
            assert words in shown
    async with asked(HOST_KEY) as (pilot, _):
        shown = screen_text(pilot.app)
        assert hidden_letters(shown) == []
        for words in (
            "Unknown host login.example␛]0;owned␇",
            "ssh-ed25519",
            "SHA256:abc",
            "/home/maya/.ssh/known_hosts",
        ):
            assert words in shown


async def test_what_a_host_said_before_it_asked_stands_in_the_dialog_which_keeps_room_to_answer() -> (
    None
):
    said = "Maintenance on \x1b[31mMonday\n" + "A line of the site's terms\n" * 60
    async with asked(replace(TWO_FIELDS, message=said)) as (pilot, _):
        shown = screen_text(pilot.app)
        assert "Maintenance on ␛[31mMonday" in shown
        assert "Verification code:" in shown
        assert "enter send" in shown


async def test_escape_gives_up_on_a_question() -> None:
    async with asked(TWO_FIELDS) as (pilot, task):
        await type_text(pilot, "12")
        await pilot.press("escape")
        assert await task is None


@pytest.mark.parametrize(
    ("keys", "trusted"),
    [
        (("y",), True),
        (("n",), False),
        (("escape",), False),
        (("enter",), False),
        (("tab", "enter"), True),
    ],
)
async def test_a_host_key_is_trusted_by_a_yes_alone(keys: tuple[str, ...], trusted: bool) -> None:
    async with asked(HOST_KEY) as (pilot, task):
        await pilot.press(*keys)
        assert await task is trusted


async def test_questions_come_one_at_a_time() -> None:
    prompter = UiPrompter()
    app = dashboard(prompter=prompter)
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot)
        one = Prompt("one", "", "", (PromptField("first: ", secret=False),))
        two = Prompt("two", "", "", (PromptField("second: ", secret=False),))
        answers = [
            asyncio.create_task(prompter.answer(one)),
            asyncio.create_task(prompter.answer(two)),
        ]
        await until(pilot, lambda: "one asks" in screen_text(app))
        assert "two asks" not in screen_text(app)
        await pilot.press("a", "enter")
        await until(pilot, lambda: "two asks" in screen_text(app))
        await pilot.press("b", "enter")
        assert await asyncio.gather(*answers) == [["a"], ["b"]]


async def test_a_question_that_is_no_longer_asked_goes_away() -> None:
    async with asked(TWO_FIELDS) as (pilot, task):
        task.cancel()
        await until(pilot, lambda: pilot.app.screen is pilot.app.main)


async def test_a_prompt_without_fields_needs_no_answer() -> None:
    assert await UiPrompter().answer(Prompt("hop", "", "welcome", ())) == []
