"""What keys do: every action is at hand, and no key does what it does not say."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace
from textual.events import Key
from textual.widgets import Input

from hpcdash.backends.base import Capability
from hpcdash.domain.tables import Kind
from hpcdash.errors import ConfigError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.jobs.tracker import JobEvent
from hpcdash.ui.actions import ACTIONS, available, help_groups, key_sign, remapped, textual_keys
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.help import HelpDialog
from hpcdash.ui.main_screen import MainScreen
from hpcdash.ui.views import SPECS
from hpcdash.ui.widgets.command_bar import CommandBar
from hpcdash.ui.widgets.lines import Hint, KeyLine
from tests.support.records import for_each
from tests.ui.stage import (
    dashboard,
    ids_of,
    notices,
    press,
    replayed,
    screen_text,
    settled,
    shown_rows,
    type_text,
    until,
)

USUAL = (120, 34)
TALL = (120, 90)
ALL = frozenset(Capability)
# The keys from the first view to each of the others.
WAYS: dict[str, tuple[str, ...]] = {
    "jobs": (),
    "nodes": ("2",),
    "queues": ("3",),
    "history": ("4",),
    "alerts": ("colon", *"alerts", "enter"),
    "clusters": ("6",),
    "job": ("d",),
    "node": ("2", "enter"),
    "journal": ("J",),
    "log": ("l",),
    "chart": ("g",),
    "script": ("b",),
    "triage": ("t",),
    "chain": ("c",),
    "submit": ("n",),
}


def test_every_action_has_someone_who_does_it() -> None:
    handlers = dashboard().main.handlers
    for action in ACTIONS:
        views = action.views if action.views is not None else frozenset(SPECS)
        for view in views:
            doers = (SPECS[view].view_class, *handlers)
            has = (
                action.name == "escape"
                or action.opens in SPECS
                or any(hasattr(doer, f"do_{action.name}") for doer in doers)
            )
            assert has, f"{action.name} in {view}"


def test_no_two_actions_of_a_view_share_a_key() -> None:
    for view in SPECS:
        keys = [
            key for action in available(ACTIONS, view, ALL, False) for key in action.key.split(",")
        ]
        assert len(keys) == len(set(keys)), view


@pytest.mark.parametrize("view", ["jobs", "nodes", "clusters", "job", "node"])
async def test_every_key_of_a_view_reaches_its_action(
    view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    async def note(screen: MainScreen, name: str) -> None:
        done.append(name)

    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, *WAYS[view])
        assert app.main.view_name == view
        monkeypatch.setattr(MainScreen, "act", note)
        wanted = [action.name for action in app.main.actions()]
        for action in app.main.actions():
            for key in action.key.split(","):
                await pilot.press(key)
        assert done == wanted


@pytest.mark.parametrize("view", sorted(WAYS))
async def test_help_and_palette_have_every_action_and_the_key_line_no_other(view: str) -> None:
    app = dashboard()
    async with app.run_test(size=TALL) as pilot:
        await settled(pilot)
        await press(pilot, *WAYS[view])
        if view == "submit":
            # In a field a question mark is one.
            app.main.set_focus(None)
        actions = app.main.actions()
        line = str(app.main.query_one(KeyLine).render())
        known = {f"{key_sign(action.key)} {action.short or action.text}" for action in actions}
        assert {part.strip() for part in re.split("   |│", line)} <= known
        await press(pilot, "question_mark")
        shown = screen_text(app)
        for action in actions:
            assert f"{key_sign(action.key):<12}{action.text}" in shown


@for_each(
    ("view", "own", "others"),
    [
        (
            "chart",
            ("v           choose metrics", "+           zoom in", "c           cursor with values"),
            "x           cancel",
        ),
        (
            "log",
            ("/           search", "w           wrap long lines", "f           follow"),
            "x           cancel",
        ),
        (
            "jobs",
            ("enter       open", "m           mine", "space       mark"),
            "l           log: stdout",
        ),
        ("alerts", ("z           snooze an alert",), "enter       open"),
    ],
)
def test_help_begins_with_what_the_view_has_alone(
    view: str, own: tuple[str, ...], others: str
) -> None:
    actions = available(ACTIONS, view, ALL, False)
    groups = help_groups(actions, view)
    lines = [f"{key_sign(one.key):<12}{one.text}" for _, group in groups for one in group]
    assert len(lines) == len(actions)
    places = [
        next(at for at, line in enumerate(lines) if line.startswith(words))
        for words in (*own, others)
    ]
    assert max(places[:-1]) < places[-1]
    assert [one.name for one in groups[-1][1]] == [one.name for one in actions if one.views is None]


async def test_the_palette_runs_what_it_lists() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "ctrl+p")
        await type_text(pilot, "queuse")
        assert 'Nothing matches; did you mean "queues"?' in screen_text(app)
        await press(pilot, "escape")
        assert app.screen is app.main
        await press(pilot, "ctrl+p")
        await type_text(pilot, "queues")
        await pilot.press("enter")
        await until(pilot, lambda: app.main.view_name == "queues")


async def test_read_only_takes_away_what_acts() -> None:
    acting = {action.name for action in ACTIONS if action.acts}
    assert {
        "cancel",
        "hold",
        "requeue",
        "suspend",
        "signal",
        "alter",
        "submit_again",
        "new",
        "submit_form",
    } <= acting
    app = dashboard(read_only=True)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        assert not acting & {action.name for action in app.main.actions()}
        assert "read-only" in screen_text(app)
        assert "x cancel" not in screen_text(app)
        await app.main.act("cancel")
        assert app.screen is app.main


async def test_read_only_is_said_where_one_would_act() -> None:
    app = dashboard(read_only=True)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await pilot.press("x")
        await until(
            pilot, lambda: "read-only: cancel is disabled" in notices(app), "told of the key"
        )
        await press(pilot, "colon")
        await type_text(pilot, "hold")
        await press(pilot, "enter")
        await until(
            pilot,
            lambda: "read-only: hold is disabled" in screen_text(app),
            "told of the command",
        )


def test_what_a_scheduler_cannot_do_is_not_offered() -> None:
    names = {
        action.name for action in available(ACTIONS, "jobs", frozenset({Capability.JOBS}), False)
    }
    assert "show_jobs" in names
    assert not names & {"show_nodes", "show_queues", "show_history", "detail"}


async def test_a_remapped_key_works_and_the_old_one_no_more() -> None:
    app = dashboard(actions=remapped({"show_nodes": "Y", "fold": "H"}))
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "2")
        assert app.main.view_name == "jobs"
        assert "H fold" in screen_text(app)
        await press(pilot, "Y")
        assert app.main.view_name == "nodes"


def test_two_actions_of_one_view_on_a_key_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"keys\.fold.*already bound"):
        remapped({"fold": "m"})
    with pytest.raises(ConfigError, match="no such action"):
        remapped({"explode": "k"})
    with pytest.raises(ConfigError, match="is reserved"):
        remapped({"fold": "f,j"})


def test_a_comma_is_configured_as_it_is_typed() -> None:
    assert textual_keys(",") == "comma"


async def test_escape_first_clears_what_is_typed_then_the_filter_then_goes_back() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        everything = ids_of(app)
        await press(pilot, "2", "1", "slash")
        await press(pilot, *"gpu")
        assert app.main.query_one(CommandBar).is_open
        await press(pilot, "escape")
        assert not app.main.query_one(CommandBar).is_open
        assert (app.main.view.filter_text, app.main.view_name) == ("", "jobs")
        await press(pilot, "2", "slash")
        await press(pilot, *"g0", "enter")
        assert app.main.view.filter_text == "g0"
        await press(pilot, "escape")
        assert (app.main.view.filter_text, app.main.view_name) == ("", "nodes")
        await press(pilot, "escape")
        assert app.main.view_name == "jobs"
        assert ids_of(app) == everything
        await press(pilot, "escape", "escape")
        assert app.is_running


async def test_escape_on_a_drill_down_with_a_filter_of_its_own_goes_back_at_once_it_is_cleared() -> (
    None
):
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "3", "enter")
        assert app.main.view_name == "jobs"
        assert app.main.view.filter_text
        await press(pilot, "escape", "escape")
        assert app.main.view_name == "queues"


async def test_q_goes_back_and_quits_from_the_first_view() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "2", "q")
        assert app.main.view_name == "jobs"
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)


async def test_what_is_typed_stays_in_the_filter() -> None:
    typed = "123456qmT,?"
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        theme, everyone = app.theme, app.main.view.everyone
        await press(pilot, "slash")
        await type_text(pilot, typed)
        field = app.main.query_one(CommandBar).query_one(Input)
        assert field.value == typed
        assert typed in screen_text(app)
        assert (app.main.view_name, app.theme, app.main.view.everyone) == ("jobs", theme, everyone)
        assert len(app.screen_stack) == 1
        await press(pilot, "tab")
        assert app.focused is field


@pytest.mark.parametrize("height", [24, 12])
async def test_the_cursor_returns_to_its_job_when_the_filter_that_is_typed_is_left(
    height: int,
) -> None:
    app = dashboard()
    async with app.run_test(size=(100, height)) as pilot:
        await settled(pilot)
        await press(pilot, "m")
        await press(pilot, *["down"] * 20, *["up"] * 4)
        rows = shown_rows(app)
        pointed, line = rows.cursor_id, (rows.cursor_index or 0) - rows.scroll_offset.y
        await press(pilot, "slash")
        await type_text(pilot, "wrf")
        assert pointed not in ids_of(app)
        await press(pilot, "escape")
        assert (rows.cursor_id, (rows.cursor_index or 0) - rows.scroll_offset.y) == (pointed, line)


async def test_the_cursor_returns_to_its_job_as_soon_as_what_is_typed_matches_it() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "m")
        await press(pilot, *["down"] * 14)
        assert shown_rows(app).cursor_id == "5"
        await press(pilot, "slash")
        await type_text(pilot, "user:chenx")
        assert ids_of(app) == []
        await press(pilot, "backspace")
        assert ids_of(app)[:2] == ["53", "5"]
        assert shown_rows(app).cursor_id == "5"


async def test_a_row_that_one_went_to_in_a_filter_keeps_the_cursor_when_it_is_cleared() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "m", "slash")
        await type_text(pilot, "state:pend")
        await press(pilot, "enter", "down", "down")
        pointed = shown_rows(app).cursor_id
        await press(pilot, "escape")
        assert shown_rows(app).cursor_id == pointed


async def test_half_a_filter_is_complained_of_and_keeps_the_rows_there_were() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "m", "slash")
        await type_text(pilot, "cpus>4")
        before = ids_of(app)
        await type_text(pilot, "x")
        assert ids_of(app) == before
        error = str(app.main.query_one("#error").render())
        assert error
        assert error in screen_text(app)
        await press(pilot, "enter")
        assert app.main.query_one(CommandBar).is_open
        await press(pilot, "backspace", "enter")
        assert app.main.view.filter_text == "cpus>4"
        await press(pilot, "escape", "slash")
        assert app.main.query_one(CommandBar).query_one(Input).value == "cpus>4"


async def test_a_command_goes_to_a_view_with_a_filter_completes_and_complains() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "colon")
        await type_text(pilot, "nod")
        await press(pilot, "tab")
        field = app.main.query_one(CommandBar).query_one(Input)
        assert field.value == "nodes"
        await type_text(pilot, " state:idle")
        await press(pilot, "enter")
        assert (app.main.view_name, app.main.view.filter_text) == ("nodes", "state:idle")
        await press(pilot, "colon")
        await type_text(pilot, "jbos")
        await press(pilot, "enter")
        words = "no such view or action: 'jbos'; did you mean \"jobs\"?"
        assert words in screen_text(app)
        await press(pilot, "escape", "colon")
        await type_text(pilot, "[b]x")
        await press(pilot, "enter")
        assert "no such view or action: '[b]x'" in screen_text(app)
        await press(pilot, "escape", "colon", "up")
        assert field.value.endswith("]x")
        await press(pilot, "escape", "colon")
        await type_text(pilot, "mine")
        await press(pilot, "escape")
        assert app.main.view_name == "nodes"


async def test_an_alias_is_a_command() -> None:
    app = dashboard(aliases={"gpus": "jobs queue:gpu"})
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "2", "colon")
        await type_text(pilot, "gpus")
        await press(pilot, "enter")
        assert (app.main.view_name, app.main.view.filter_text) == ("jobs", "queue:gpu")


async def test_the_hint_says_in_plain_words_why_a_job_waits() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        shown_rows(app).move_to("57")
        await settled(pilot)
        assert "waits for a job" in str(app.main.query_one(Hint).render())
        shown_rows(app).move_to("13[]")
        await settled(pilot)
        words = "4 running · 15 pending · 1 failed · 4 completed  ·  enter shows its tasks"
        assert words in str(app.main.query_one(Hint).render())


async def test_the_cursor_stays_with_its_job_while_arrays_open_and_close() -> None:
    app = dashboard("arrays")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "m")
        folded = ids_of(app)
        summary = next(row_id for row_id in folded if row_id.endswith("[]"))
        shown_rows(app).move_to(summary)
        await press(pilot, "enter")
        assert shown_rows(app).cursor_id == summary
        assert len(ids_of(app)) > len(folded)
        await press(pilot, "down")
        assert shown_rows(app).cursor_row["array_id"] == summary.removesuffix("[]")
        await press(pilot, "a")
        assert shown_rows(app).cursor_id == summary
        assert ids_of(app) == folded


async def test_columns_are_chosen_and_left_as_they_were() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        before = app.main.view.column_names
        await press(pilot, "comma", "down", "space", "escape")
        assert app.main.view.column_names == before
        await press(pilot, "comma", "down", "space", "enter")
        assert app.main.view.column_names == tuple(name for name in before if name != "name")
        assert "NAME" not in screen_text(app)


async def test_columns_change_places_in_the_chooser() -> None:
    app = dashboard("everyday")
    async with app.run_test(size=(160, 40)) as pilot:
        await settled(pilot)
        before = app.main.view.column_names
        await press(pilot, "comma", "down", "J", "J", "K", "enter")
        first, second, third, *rest = before
        assert app.main.view.column_names == (first, third, second, *rest)
        await press(pilot, "comma", "K", "escape")
        assert app.main.view.column_names == (first, third, second, *rest)


async def test_sort_goes_through_the_columns_and_turns_round() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        view = app.main.view
        assert view.sort_key == "state"
        await press(pilot, "o")
        assert view.sort_key == "elapsed_seconds"
        before = ids_of(app)
        await press(pilot, "O")
        assert view.sort_descending
        assert ids_of(app) != before


async def test_a_dialog_keeps_every_key_to_itself() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "question_mark")
        assert isinstance(app.screen, HelpDialog)
        await press(pilot, "2", "m", "T")
        assert isinstance(app.screen, HelpDialog)
        await press(pilot, "escape")
        assert app.main.view_name == "jobs"
        assert not app.main.view.everyone


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (250, 70)])
async def test_who_age_line_rate_and_counts_are_always_on_the_screen(size: tuple[int, int]) -> None:
    app = dashboard()
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        status = screen_text(app).splitlines()[-2]
        for part in ("maya@everyday", "● live", "10", "20"):
            assert part in status
        assert ("live · 0 s ago" in status) == (size[0] > 60)
        assert ("commands/min" in status) == (size[0] >= 120)
        assert not status.rstrip().endswith("…")


async def test_tab_goes_to_the_next_cluster_where_one_left_it() -> None:

    sessions: list[Any] = [replayed("everyday"), replayed("arrays")]
    app = HpcdashApp([replace(session) for session in sessions])
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "2")
        await settled(pilot)
        await press(pilot, "down", "tab")
        assert app.main.session.name == "arrays"
        assert app.main.view_name == "jobs"
        assert app.focused is shown_rows(app)
        await press(pilot, "tab")
        assert app.main.view_name == "nodes"
        assert shown_rows(app).cursor_index == 1
        assert app.focused is shown_rows(app)


async def test_what_one_reads_has_the_keys_again_after_a_command_and_on_the_way_back() -> None:
    app = dashboard()
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await press(pilot, "d")
        await press(pilot, "colon", "escape", "down", "j")
        await until(pilot, lambda: app.focused is not None and app.focused.scroll_offset.y == 2)
        await press(pilot, "escape", "down")
        assert shown_rows(app).cursor_index == 1


async def test_half_a_key_leaves_the_rows_until_its_operator_comes() -> None:
    app = dashboard("everyday")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "m", "slash")
        everyone = ids_of(app)
        await type_text(pilot, "cpus")
        assert ids_of(app) == everyone
        await type_text(pilot, ">=64")
        assert 0 < len(ids_of(app)) < len(everyone)
        # At enter a bare word is a word.
        await press(pilot, "escape", "slash")
        await type_text(pilot, "cpus")
        await press(pilot, "enter")
        assert ids_of(app) == []


async def test_a_folds_all_arrays_and_a_task_s_cursor_goes_to_its_array() -> None:
    app = dashboard("arrays")
    async with app.run_test(size=TALL) as pilot:
        await settled(pilot)
        await press(pilot, "m")
        folded = ids_of(app)
        await press(pilot, "a")
        opened = ids_of(app)
        assert len(opened) > len(folded)
        rows = shown_rows(app)
        task = next(
            row_id for row_id in opened if "_" in row_id and f"{row_id.split('_')[0]}[]" in opened
        )
        rows.move_to(task)
        await press(pilot, "a")
        assert ids_of(app) == folded
        assert rows.cursor_id == f"{task.split('_')[0]}[]"


async def test_an_array_in_one_row_has_all_of_its_id_shown() -> None:
    app = dashboard("arrays")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "m")
        assert "3_[0-1000:10]" in screen_text(app)


async def test_a_click_on_a_view_s_name_or_a_key_s_words_is_that_key() -> None:
    app = dashboard("everyday")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        lines = screen_text(app).splitlines()
        await pilot.click(offset=(lines[0].index("2 nodes") + 3, 0))
        await until(pilot, lambda: app.main.view_name == "nodes", "the view clicked on")
        lines = screen_text(app).splitlines()
        await pilot.click(offset=(lines[-1].index("? help") + 2, len(lines) - 1))
        await until(pilot, lambda: isinstance(app.screen, HelpDialog), "the key clicked on")
        await press(pilot, "escape", "1")
        at_the_name = screen_text(app).splitlines()[0].index("jobs")
        await pilot.click(offset=(at_the_name, 0))
        assert app.main.view_name == "jobs"


async def test_a_key_for_a_job_where_there_is_none_says_so() -> None:
    app = dashboard("everyday")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "slash")
        await type_text(pilot, "nobody-has-this-name")
        await press(pilot, "enter", "l")
        await until(pilot, lambda: "select a job first" in notices(app), "told")
        assert app.main.view_name == "jobs"


async def test_a_job_begins_with_why_it_waits_and_d_goes_to_the_scheduler_s_words() -> None:
    app = dashboard("everyday")
    async with app.run_test(size=(120, 20)) as pilot:
        await settled(pilot)
        assert shown_rows(app).move_to("57")
        await press(pilot, "enter")
        await settled(pilot)
        first = screen_text(app).splitlines()[1]
        assert "57 dinov2-export" in first
        assert "waits for a job it depends on" in first
        assert "JobState" not in screen_text(app)
        await press(pilot, "d")
        assert "JobState" in screen_text(app)
        await press(pilot, "d")
        assert "57 dinov2-export" in screen_text(app).splitlines()[1]


async def test_many_events_at_once_are_one_message() -> None:
    app = dashboard("everyday")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        ended = [
            JobEvent(0.0, str(number), "sweep", "running", "completed") for number in range(40)
        ]
        app.main._store_changed(app.sessions[0], Changed(Kind.MINE, tuple(ended)))
        await pilot.pause()
        assert notices(app) == ["40 of your jobs: 40 completed on everyday (recorded)"]


async def test_keys_typed_ahead_in_one_burst_do_what_they_would_one_by_one() -> None:
    app = dashboard("everyday")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        # Queued before the app has turned to the first of them.
        for key, character in (
            ("m", "m"),
            ("slash", "/"),
            *((letter, letter) for letter in "gpu"),
            ("enter", "\r"),
        ):
            app.post_message(Key(key, character))
        app.post_message(Key("2", "2"))
        await settled(pilot)
        jobs_view, nodes_view = app.main.stack
        assert (app.main.view_name, app.main.view) == ("nodes", nodes_view)
        assert jobs_view.crumbs()[-1] == "/gpu"
        assert not app.main.query_one(CommandBar).is_open
        assert shown_rows(app).marked == frozenset()


async def test_ctrl_a_marks_the_rows_the_filter_shows_and_an_asterisk_inverts_them() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        everything = set(ids_of(app))
        await press(pilot, "slash")
        await type_text(pilot, "state:running")
        await press(pilot, "enter", "ctrl+a")
        running = set(ids_of(app))
        assert running
        assert running < everything
        assert shown_rows(app).marked == running
        assert f"{len(running)} marked" in screen_text(app)
        await press(pilot, "escape", "asterisk")
        assert shown_rows(app).marked == everything - running
        await press(pilot, "ctrl+a")
        assert shown_rows(app).marked == everything
        await press(pilot, "ctrl+a")
        assert shown_rows(app).marked == frozenset()
