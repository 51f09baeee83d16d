"""What is shown of a log's line: its text, safe on any terminal, and its colours."""

from __future__ import annotations

import gc
import sys
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.style import Style

from hpcdash.domain.text import visible
from hpcdash.services.logs import lines
from hpcdash.services.logs.lines import StyledSpan, shown_line
from tests.support.records import for_each

_BITS = (
    *(
        b"\x1b[31m",
        b"\x1b[",
        b"\x1b]0;title\x07",
        b"\x1b]8;;",
        b"\x1b\\",
        b"\x1bP",
        b"\x1b",
        b"\x9b",
        "\x9b1m".encode(),
    ),
    *(
        b"\r",
        b"\b",
        b"\t",
        b"\n",
        b"\0" * 7,
        b"\xff",
        "é".encode(),
        "漢🙂".encode(),
        b"words ",
        b"38;5;1m",
        b";",
        b":",
    ),
    *(
        "\u202e".encode(),
        "\u200d".encode(),
        "\u0301".encode() * 3,
        "\u2028".encode(),
        "\x9d".encode(),
        b"\x1b(B",
        b"7",
    ),
)
hostile = st.lists(st.sampled_from(_BITS) | st.binary(max_size=4), max_size=30).map(b"".join)


def text(raw: bytes) -> str:
    return shown_line(raw).text


def styles(raw: bytes) -> list[tuple[str, str]]:
    line = shown_line(raw)
    return [(line.text[start:end], style) for start, end, style in line.spans]


@given(hostile)
@example(b"\x1b\x1b[31m[2J")
@example(b"\x1b[3\x1b[0m1mred")
@example(b"\xc2\x1b[0m\x9b2J")
def test_no_line_can_do_anything_to_a_terminal(raw: bytes) -> None:
    line = shown_line(raw)
    assert visible(line.text) == line.text
    assert line.text.isprintable()
    position = 0
    for start, end, style in line.spans:
        assert position <= start < end <= len(line.text)
        Style.parse(style)
        position = end


@given(st.text(max_size=40))
def test_text_without_controls_is_what_visible_makes_of_it(words: str) -> None:
    letters = "".join(
        letter for letter in words if ord(letter) >= 0x20 and not 0x7F <= ord(letter) < 0xA0
    )
    assert text(letters.encode("utf-8", "surrogatepass")) == visible(
        letters.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    )


def test_letters_taken_as_they_are_need_no_look() -> None:
    for letter in map(chr, range(sys.maxunicode + 1)):
        if letter.isprintable() and lines._ORDINARY.fullmatch(letter):
            assert visible(letter) == letter, hex(ord(letter))


@for_each(
    ("raw", "shown"),
    [
        (b"step 1\n", "step 1"),
        (b"step 1\r\n", "step 1"),
        (b"step 1\r\r\n", "step 1"),
        (b"", ""),
        (b" 10%|#\r 20%|##\r", " 20%|##"),
        (b" 10%|#\r 20%|##\r        \r\n", " 20%|##"),
        (b" 10%|#\r 20%|##\r\x1b[K\n", " 20%|##"),
        (b"\r\r", ""),
        (b"\xff\xfe\n", "\ufffd\ufffd"),
        (b"a\tb", "a       b"),
        (b"1234567\tb\t\tc", "1234567 b               c"),
        ("漢\tb".encode(), "漢      b"),
        (b"\x1b[1ma\x1b[0m\tb", "a       b"),
        (b"|\b/\b-\b\\", "\\"),
        (b"12%\b\b\b13%", "13%"),
        (b"abc\b\b", "abc"),
        (b"\b\bx", "x"),
        (b"bell \a, nul \0, del \x7f", "bell ␇, nul ␀, del ␡"),
        (b"\0" * 32768, "␀×32768"),
        (b"a\0\0b", "a␀␀b"),
        (b"\x1b[2J\x1b[10;10Hclear\x1b[1A\x1b[?25l", "clear"),
        (b"\x1b]0;a title\x07words", "words"),
        (b"\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1b]0;no end", "0;no end"),
        (b"\x1bPq#0;2;0;0\x1b\\sixel", "sixel"),
        (b"\x1b(B\x1b7\x1b=\x1bcwords", "words"),
        ("\x9b31mred\x9d0;t\x9c".encode(), "red"),
        ("\x85next line".encode(), "‹0085›next line"),
        ("user\u202egnp.exe".encode(), "user‹202E›gnp.exe"),
        (b"\x1b", "␛"),
        (b"\x1b\x1b[31m[2J", "␛[2J"),
    ],
)
def test_a_line_reads_as_on_a_terminal(raw: bytes, shown: str) -> None:
    assert text(raw) == shown


@for_each(
    ("raw", "style"),
    [
        (b"\x1b[31mx", "red"),
        (b"\x1b[1;91mx", "bold bright_red"),
        (b"\x1b[97;44mx", "bright_white on blue"),
        (b"\x1b[100mx", "on bright_black"),
        (b"\x1b[38;5;208mx", "color(208)"),
        (b"\x1b[48;5;1;1mx", "bold on color(1)"),
        (b"\x1b[38;2;255;128;0mx", "#ff8000"),
        (b"\x1b[38:2::255:128:0mx", "#ff8000"),
        (b"\x1b[38:2:255:128:0mx", "#ff8000"),
        (b"\x1b[48:5:3mx", "on color(3)"),
        (b"\x1b[2;3;4;7;9mx", "dim italic reverse strike underline"),
        (b"\x1b[4:3mx", "underline"),
        ("\x9b32mx".encode(), "green"),
    ],
)
def test_colours_are_kept(raw: bytes, style: str) -> None:
    assert styles(raw) == [("x", style)]


@for_each(
    "end",
    [b"0", b"", b"39", b"0;0", b"32;0", b"38;5;999;0", b"1;22;39"],
    ids=lambda end: end.decode() or "none",
)
def test_colours_end(end: bytes) -> None:
    assert styles(b"\x1b[31mred\x1b[" + end + b"mplain") == [("red", "red")]


@for_each(
    "sequence",
    [b"38;5;256", b"38;2;1;2;300", b"38;5", b"38", b"8", b"5", b"99", b"?31", b">4;2", b"9" * 70],
)
def test_what_is_no_colour_changes_nothing(sequence: bytes) -> None:
    assert styles(b"\x1b[" + sequence + b"mx") == []


def test_a_colour_set_before_a_carriage_return_lasts() -> None:
    assert styles(b"\x1b[32m 10%\r 20%\x1b[0m\n") == [(" 20%", "green")]
    assert styles(b"\x1b[32m 10%\x1b[0m\r 20%\n") == []


def test_neighbours_of_one_style_are_one_span() -> None:
    assert shown_line(b"\x1b[31ma\x1b[31mb\x1b[0mc").spans == (StyledSpan(0, 2, "red"),)


def test_backspaces_take_their_colours_with_them() -> None:
    assert styles(b"\x1b[31mab\x1b[32m\bc") == [("a", "red"), ("c", "green")]


@pytest.mark.slow
@for_each(
    "unit",
    [
        b"\x1b",
        b"\x1b[",
        b"\x1b]",
        b"\x1b[31m",
        b"\x1b[0",
        b"\x1bP1",
        "\x9d".encode(),
        b"a\b",
        b" \r",
        b"a\t",
        b"\0\0\0\0\0a",
        b"\x1b[K\r",
    ],
    ids=repr,
)
def test_a_megabyte_of_anything_takes_time_in_proportion(unit: bytes) -> None:
    def seconds(size: int) -> float:
        raw = (unit * size)[:size]
        began = time.thread_time()
        shown_line(raw)
        return time.thread_time() - began

    # Collecting what all the tests before this one hold takes longer than any line here.
    gc.disable()
    try:
        seconds(1 << 12)
        small = max(seconds(1 << 16) for _ in range(3))
        # 16 times as much; what grows with the square would take 256 times as long.
        assert any(seconds(1 << 20) < 0.05 + 60 * small for _ in range(2))
    finally:
        gc.enable()
