"""A person's own keys and commands in the dashboard: run, asked for, refused, and read again while
it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hpcdash.config.read import settings_from_text
from hpcdash.config.settings import Settings
from hpcdash.errors import ConfigError
from hpcdash.ui.actions import ACTION_NAMES, configured, key_problems
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.plugins.actions import RunDialog
from hpcdash.ui.widgets.lines import KeyLine
from tests.ui.stage import (
    dashboard,
    ids_of,
    notices,
    press,
    screen_text,
    settled,
    shown_rows,
    type_text,
    until,
)

SIZE = (160, 40)
GREET = (
    '[[plugins]]\nname = "greet"\nkey = "f7"\ncommand = ["printf", "%s on %s", "{id}", '
    '"{cluster}"]\n'
)


def read(text: str) -> Settings:
    return settings_from_text(
        text, Path("config.toml"), action_names=ACTION_NAMES, check=key_problems
    )


def configured_dashboard(text: str, **arguments: Any) -> HpcdashApp:
    settings = read(text)
    return dashboard(
        actions=configured(settings),
        aliases=settings.aliases,
        filters=settings.filters,
        settings=settings,
        **arguments,
    )


async def entered(pilot: Pilot[Any], line: str) -> None:
    await pilot.press("colon")
    await type_text(pilot, line)
    await press(pilot, "enter")


async def test_a_plugin_s_key_shows_what_its_command_writes_of_the_row_and_how_it_ended() -> None:
    app = configured_dashboard(GREET)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        job = app.main.view.pointed_job()
        await press(pilot, "f7")
        await until(pilot, lambda: "exit 0 after" in screen_text(app), "ended")
        assert f"{job} on {app.main.session.name}" in screen_text(app)
        assert app.main.view_name == "output"
        await press(pilot, "escape")
        assert app.main.view_name == "jobs"


async def test_a_plugin_is_in_the_key_line_the_help_the_palette_and_the_command_line() -> None:
    app = configured_dashboard(GREET + 'description = "say hello"\n')
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert "f7 greet" in str(app.main.query_one(KeyLine).render())
        await press(pilot, "question_mark")
        assert "say hello" in screen_text(app)
        await press(pilot, "escape")
        await entered(pilot, "greet")
        await until(pilot, lambda: app.main.view_name == "output", "run by its name")


async def test_a_plugin_is_offered_in_its_views_alone() -> None:
    app = configured_dashboard(GREET.replace("{id}", "{name}") + 'views = ["nodes"]\n')
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "f7")
        assert app.main.view_name == "jobs"
        await press(pilot, "2")
        node = shown_rows(app).cursor_id
        await press(pilot, "f7")
        await until(pilot, lambda: f"{node} on" in screen_text(app), "of the node")


async def test_in_read_only_mode_there_are_no_plugins() -> None:
    app = configured_dashboard(GREET, read_only=True)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "f7")
        assert app.main.view_name == "jobs"
        assert notices(app) == ["read-only: greet is disabled"]
        await entered(pilot, "greet")
        assert app.main.view_name == "jobs"
        assert "greet" not in str(app.main.query_one(KeyLine).render())


async def test_a_dangerous_plugin_runs_only_at_a_yes_and_shows_its_words_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = configured_dashboard(
        '[[plugins]]\nname = "burn"\nkey = "f7"\ncommand = ["touch", "burnt-{id}"]\n'
        'dangerous = true\noutput = "background"\n'
    )
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        file = f"burnt-{app.main.view.pointed_job()}"
        for answer in ("n", "enter", "escape"):
            await press(pilot, "f7")
            await until(pilot, lambda: isinstance(app.screen, RunDialog), "asked")
            assert f"touch {file}" in screen_text(app)
            await press(pilot, answer)
            assert os.listdir() == []
        await press(pilot, "f7", "y")
        await until(pilot, lambda: os.listdir() == [file], "run")
        await until(
            pilot,
            lambda: any("burn" in words and "done" in words for words in notices(app)),
            "told",
        )


async def test_a_command_is_ended_by_a_key_and_run_again_by_another() -> None:
    app = configured_dashboard(
        '[[plugins]]\nname = "wait"\nkey = "f7"\ncommand = ["sh", "-c", "echo begun; sleep 600"]\n'
    )
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "f7")
        await until(pilot, lambda: "begun" in screen_text(app), "begun")
        await press(pilot, "x")
        await until(pilot, lambda: "stopped by you" in screen_text(app), "ended")
        await press(pilot, "r")
        await until(pilot, lambda: "running for" in screen_text(app), "again")


async def test_a_command_on_the_terminal_has_it_and_its_bad_end_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def at_once(app: HpcdashApp, run: Callable[[], str]) -> None:
        app.notify(run(), markup=False)

    # A pilot's driver has no terminal to leave.
    monkeypatch.setattr(HpcdashApp, "leave_screen", at_once)
    app = configured_dashboard(
        '[[plugins]]\nname = "shell"\nkey = "f7"\noutput = "terminal"\n'
        f'command = ["sh", "-c", \'echo "$HPCDASH_JOB_ID" > {tmp_path}/id; exit 3\']\n'
    )
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "f7")
        assert (tmp_path / "id").read_text().strip() == app.main.view.pointed_job()
        assert notices(app) == ["shell: sh exited with status 3"]


async def test_a_refused_value_runs_nothing_and_says_why() -> None:
    app = configured_dashboard(
        '[[plugins]]\nname = "look"\nkey = "f7"\ncommand = ["ssh", "x", "grep", "{exit_code}"]\n'
    )
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "f7")
        assert app.main.view_name == "jobs"
        assert "has no exit_code" in notices(app)[0]


async def test_an_alias_s_key_enters_its_line_and_a_saved_filter_stands_for_its_expression() -> (
    None
):
    app = configured_dashboard(
        '[aliases]\nwaiting = "jobs @queued"\n[keys]\nwaiting = "f6"\n[filters]\nqueued = '
        '"state:pending"\n'
    )
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        every = ids_of(app)
        await press(pilot, "f6")
        waiting = ids_of(app)
        assert 0 < len(waiting) < len(every)
        assert "/state:pending" in screen_text(app)
        await press(pilot, "escape", "slash")
        await pilot.press("at")
        await type_text(pilot, "qu")
        # Half a name leaves the rows as they are.
        assert ids_of(app) == every
        await pilot.press("tab")
        await press(pilot, "enter")
        assert ids_of(app) == waiting


async def test_a_saved_configuration_counts_at_once_and_a_bad_one_changes_nothing() -> None:
    texts: list[str] = []

    def reread() -> Settings | None:
        return read(texts.pop()) if texts else None

    app = configured_dashboard(GREET, reread=reread)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        texts.append(GREET.replace("f7", "x"))
        await until(pilot, lambda: len(notices(app)) == 1, "told")
        assert notices(app)[0].startswith(
            "config.toml:3: plugins[0].key: 'x' is already bound to 'cancel (confirms)' there"
        )
        assert notices(app)[0].endswith("The previous settings still apply.")
        assert "f7 greet" in str(app.main.query_one(KeyLine).render())
        texts.append(
            GREET.replace("f7", "f8")
            + '[ui]\ncolumns.jobs = ["name", "id"]\n[poll]\nmine_seconds = 9\n'
        )
        await until(
            pilot, lambda: "f8 greet" in str(app.main.query_one(KeyLine).render()), "read again"
        )
        assert notices(app) == ["configuration reloaded; restart hpcdash to apply poll"]
        assert app.main.view.column_names == ("name", "id")
        await press(pilot, "f7")
        assert app.main.view_name == "jobs"
        await press(pilot, "f8")
        await until(pilot, lambda: "exit 0 after" in screen_text(app), "by its new key")


async def test_a_configuration_that_others_can_write_meanwhile_changes_nothing() -> None:
    errors = [
        ConfigError(
            "others can write config.toml", "Run: chmod go-w config.toml", file="config.toml"
        )
    ]

    def reread() -> Settings | None:
        if errors:
            raise errors.pop()
        return None

    app = configured_dashboard(GREET, reread=reread)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await until(pilot, lambda: any("chmod go-w" in words for words in notices(app)), "told")
        assert "f7 greet" in str(app.main.query_one(KeyLine).render())
