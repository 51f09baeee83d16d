"""Anyone on a cluster may name a job: names are shown, never obeyed."""

from __future__ import annotations

import json
import unicodedata

import pytest

from hpcdash.ui.help import HelpDialog
from tests.ui.stage import CASES, dashboard, ids_of, press, screen_text, settled, shown_rows, until

LARGE = (200, 60)


def hidden_letters(text: str) -> list[str]:
    """What moves the cursor, hides or reorders."""
    return [
        repr(letter)
        for letter in text
        if letter != "\n" and unicodedata.category(letter) in ("Cc", "Cf", "Cs")
    ]


@pytest.mark.parametrize(
    "keys", [(), ("m",), ("m", "a"), ("2",), ("3",), ("4",), ("4", "m"), ("6",)]
)
async def test_no_view_writes_a_control_character(keys: tuple[str, ...]) -> None:
    app = dashboard("hostile")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await press(pilot, *keys)
        for _ in range(min(shown_rows(app).row_count, 4)):
            assert hidden_letters(screen_text(app)) == []
            await pilot.press("down", "pagedown")


async def test_every_job_has_its_row_and_markup_is_shown_as_it_is_written() -> None:
    expected = json.loads((CASES / "hostile" / "expected.json").read_text())["jobs"]
    app = dashboard("hostile", fold_arrays=False)
    async with app.run_test(size=(159, 110)) as pilot:
        await settled(pilot)
        await press(pilot, "m")
        assert sorted(ids_of(app)) == sorted(row["id"] for row in expected)
        shown = screen_text(app)
        markup = [row for row in expected if "[bold]" in row["name"]]
        assert markup
        for row in markup:
            assert row["name"][:40] in shown
            shown_rows(app).move_to(row["id"])
            await settled(pilot)
            title = f"{row['id']} {row['name'][:40]}"
            await until(
                pilot,
                lambda title=title: f"─ {title}" in screen_text(app),
                f"the overview of {title}",
            )


async def test_details_filter_error_and_help_show_hostile_words_as_words() -> None:
    app = dashboard("hostile")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        for row_id in [row_id for row_id in ids_of(app) if row_id.isdigit()][3:6]:
            shown_rows(app).move_to(row_id)
            await press(pilot, "d")
            await until(pilot, lambda: "loading …" not in screen_text(app))
            assert hidden_letters(screen_text(app)) == []
            await press(pilot, "escape")
        await press(pilot, "slash", "left_square_bracket", "b", "right_square_bracket", "enter")
        assert "› /[b]" in screen_text(app)
        await press(pilot, "question_mark")
        assert isinstance(app.screen, HelpDialog)
        assert hidden_letters(screen_text(app)) == []


async def test_what_a_name_copies_is_the_id_and_no_more() -> None:
    app = dashboard("hostile")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await press(pilot, "down", "y", "enter")
        assert app.clipboard == shown_rows(app).cursor_id
