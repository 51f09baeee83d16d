from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.text import (
    MAX_MARKS_IN_A_ROW,
    cell_width,
    clip,
    clip_path,
    decode,
    visible,
    visible_text,
)
from tests.support.records import for_each

ANY_TEXT = st.text(st.characters(exclude_categories=()))
HOSTILE = st.text(
    st.sampled_from(
        "ab \x00\x07\x1b\n\r\t\x7f\x85\x9b\u202e\u2066\u2069\u200b\u200d\ufeff\u0301\u0488\ufe0f\ud800👩🏽日\u2028"
    )
)


@for_each(
    ("raw", "shown"),
    [
        ("train_7 --lr=0.1", "train_7 --lr=0.1"),
        ("\x1b[31mred", "␛[31mred"),
        ("two\nlines\tand\r", "two␊lines␉and␍"),
        ("bell\x07 del\x7f nul\x00", "bell␇ del␡ nul␀"),
        ("\x9b2J", "‹009B›2J"),
        ("abc\u202efdp.exe", "abc‹202E›fdp.exe"),
        ("a\u2066b\u2069\u200f", "a‹2066›b‹2069›‹200F›"),
        ("zero\u200bwidth\ufeff", "zero‹200B›width‹FEFF›"),
        ("a\u2028b\u2029", "a‹2028›b‹2029›"),
        ("\ud800x", "\ufffdx"),
        ("\ue000\U000e0041", "‹E000›‹E0041›"),
        ("\u3164", "‹3164›"),
        ("日本語 한국어 é 🚀 עברית", "日本語 한국어 é 🚀 עברית"),
        ("👩\u200d👩\u200d👧", "👩👩👧"),
        ("❤\ufe0f", "❤"),
        ("a\ufe0f\u200db", "a‹FE0F›‹200D›b"),
    ],
)
def test_what_hides_or_moves_is_shown_as_what_it_is(raw: str, shown: str) -> None:
    assert visible(raw) == shown


def test_a_letter_keeps_two_marks_however_many_are_piled_on_it() -> None:
    assert visible("Z" + "\u0301\u0316\u0488" * 20 + "o\u0301") == "Z\u0301\u0316o\u0301"


def test_a_mark_without_a_letter_does_not_reach_the_cell_before() -> None:
    assert visible("\u0301x") == "◌\u0301x"


@given(ANY_TEXT | HOSTILE)
def test_no_text_keeps_a_character_that_acts_on_the_terminal(text: str) -> None:
    shown = visible(text)
    marks = 0
    for character in shown:
        category = unicodedata.category(character)
        assert category not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
        marks = marks + 1 if category in {"Mn", "Me"} else 0
        assert marks <= MAX_MARKS_IN_A_ROW
    assert visible(shown) == shown
    shown.encode("utf-8")


@given(ANY_TEXT | HOSTILE, st.integers(min_value=-1, max_value=30))
def test_a_clipped_text_fits_and_says_that_it_was_cut(text: str, width: int) -> None:
    shown = visible(text)
    clipped = clip(shown, width)
    assert cell_width(clipped) <= max(width, 0)
    if cell_width(shown) <= width:
        assert clipped == shown
    elif width > 0:
        assert clipped.endswith("…")


def test_wide_characters_are_not_cut_in_half() -> None:
    assert clip("日本語", 4) == "日…"
    assert clip("日本語", 6) == "日本語"


@given(st.binary())
def test_any_bytes_become_text(raw: bytes) -> None:
    decode(raw).encode("utf-8")


def test_latin_1_bytes_leave_a_mark() -> None:
    assert decode(b"caf\xe9") == "caf\ufffd"


def test_text_of_many_lines_keeps_its_lines_and_tabs() -> None:
    assert visible_text("#!/bin/sh\r\n\techo \x1b[2J\rx\n\n") == "#!/bin/sh\r\n\techo ␛[2J␍x\n\n"


def test_a_long_path_keeps_its_beginning_and_its_file() -> None:
    path = "/home/anna/projects/vision/experiments/2024/run_17/train.log"
    assert clip_path(path, 40) == "/home/anna/…/2024/run_17/train.log"
    assert clip_path(path, 30) == "/home/…/2024/run_17/train.log"
    assert clip_path(path, 80) == path
    assert clip_path("/a-file-of-a-very-long-name-without-folders.log", 24).endswith("folders.log")


def test_what_is_no_path_is_cut_at_its_end() -> None:
    assert clip_path("and/or a long sentence", 14) == clip("and/or a long sentence", 14)


@given(ANY_TEXT | HOSTILE, st.integers(min_value=-1, max_value=40))
def test_a_clipped_path_fits_and_says_that_it_was_cut(text: str, width: int) -> None:
    path = visible(f"/home/{text}")
    clipped = clip_path(path, width)
    assert cell_width(clipped) <= max(width, 0)
    if cell_width(path) <= width:
        assert clipped == path
    elif width > 0:
        assert "…" in clipped


def test_wide_characters_of_a_path_are_not_cut_in_half() -> None:
    assert cell_width(clip_path("/資料/実験/学習/二〇二四/訓練の記録.log", 20)) <= 20
    assert clip_path("/資料/実験/学習/二〇二四/訓練の記録.log", 20).endswith("訓練の記録.log")
