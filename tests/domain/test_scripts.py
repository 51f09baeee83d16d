"""A script's lines are safe to show, explained where directives are read, and compared line by
line.
"""

from __future__ import annotations

from hpcdash.domain.scripts import (
    MAX_DIFFED_LINES,
    MAX_LETTERS_A_LINE,
    NOT_READ,
    LineKind,
    difference_lines,
    line_ends,
    script_lines,
    shown,
    unified,
)
from tests.support.records import for_each

NAMES = ("job 1", "job 2")


def explain(line: str) -> str:
    return f"asks for {line[3:]}" if line.startswith("#X ") else ""


def test_a_directive_has_its_meaning_beside_it() -> None:
    lines = script_lines("#!/bin/sh\n#X a\n\necho\n", explain)
    assert [(line.number, line.text, line.kind, line.note) for line in lines] == [
        (1, "#!/bin/sh", LineKind.PLAIN, ""),
        (2, "#X a", LineKind.DIRECTIVE, "asks for a"),
        (3, "", LineKind.PLAIN, ""),
        (4, "echo", LineKind.PLAIN, ""),
    ]


def test_a_directive_after_a_command_is_said_not_to_be_read() -> None:
    lines = script_lines("#!/bin/sh\n# c\n  # d\n#X a\ntrue\n#X b\n", explain)
    assert [line.note for line in lines] == ["", "", "", "asks for a", "", NOT_READ]


def test_nothing_in_a_script_reaches_the_terminal() -> None:
    (line,) = script_lines("#X \x1b]0;x\x07\u202e\udce9\r", explain)
    assert line.text == "#X ␛]0;x␇‹202E›\ufffd"
    assert "\x1b" not in line.note


def test_tabs_are_blanks() -> None:
    assert shown("a\tb") == "a       b"


def test_a_very_long_line_is_cut_and_says_so() -> None:
    assert shown("x" * (MAX_LETTERS_A_LINE + 7)).endswith("x… (7 more)")


@for_each(
    ("text", "words"),
    [
        ("a\nb\n", ""),
        ("a\r\nb\r\n", "lines end in CRLF"),
        ("a\r\nb\n", "1 lines end in CRLF"),
        ("", ""),
    ],
)
def test_the_line_ends_of_dos_are_named(text: str, words: str) -> None:
    assert line_ends(text) == words


def test_two_scripts_differ_line_by_line() -> None:
    difference = unified("#!/bin/sh\na\nb\n", "#!/bin/sh\na\nc\n", NAMES)
    assert difference == [
        "--- job 1",
        "+++ job 2",
        "@@ -1,3 +1,3 @@",
        " #!/bin/sh",
        " a",
        "-b",
        "+c",
    ]
    kinds = [line.kind for line in difference_lines(difference)]
    assert kinds == ["file", "file", "place", "plain", "plain", "removed", "added"]


def test_a_removed_line_that_looks_like_a_heading_is_a_line() -> None:
    kinds = [line.kind for line in difference_lines(unified("a\n-- x\n", "a\n", NAMES))]
    assert kinds == ["file", "file", "place", "plain", "removed"]


def test_the_same_script_has_no_difference() -> None:
    assert unified("a\n", "a\n", NAMES) == []


def test_a_line_that_differs_by_its_end_alone_says_so() -> None:
    lines = difference_lines(unified("a\n", "a\r\n", NAMES))
    assert [(line.text, line.note) for line in lines[3:]] == [("-a", ""), ("+a", "line ends in CR")]


def test_huge_scripts_are_compared_from_both_ends() -> None:
    body = [f"line {number % 7}" for number in range(MAX_DIFFED_LINES)]
    before, after = (
        "\n".join(["a", *body, "z"]),
        "\n".join(["a", *body[:50], "new", *body[50:], "z"]),
    )
    assert unified(before, after, NAMES)[2:] == ["@@ -51,0 +52,1 @@", "+new"]
