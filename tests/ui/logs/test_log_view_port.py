"""Which lines are on the screen and where one goes from there, on rows that are already held."""

from __future__ import annotations

from hpcdash.services.files import FileStat
from hpcdash.services.logs.file import LogFile
from hpcdash.services.logs.window import LogRow, LogWindow
from hpcdash.transport.local import LocalTransport
from hpcdash.ui.logs.viewport import Viewport, letter_at, wrapped
from tests.support.records import for_each


def port(lines: list[bytes], *, width: int = 10, height: int = 3, offset: int = 0) -> Viewport:
    """A viewport on these lines, which are all of the file from `offset` on."""
    window = LogWindow(LogFile(LocalTransport(), "log"), lambda: 0.0)
    rows = []
    window.start = end = offset
    for line in lines:
        rows.append(LogRow(end, line))
        end += len(line)
    window.rows, window.end = rows, end
    window.followed.note(FileStat("1:1", end))
    viewport = Viewport(window)
    viewport.set_size(width, height)
    return viewport


def texts(viewport: Viewport) -> list[str]:
    return [viewport.line(one.row).text[one.first : one.last] for one in viewport.placed()]


LINES = [b"%d\n" % number for number in range(10)]


def test_the_end_is_shown_while_one_follows() -> None:
    viewport = port(LINES)
    assert texts(viewport) == ["7", "8", "9"]
    viewport.window.rows = [*viewport.window.rows, LogRow(20, b"new\n")]
    assert texts(viewport) == ["8", "9", "new"]


def test_going_up_stops_following_and_stays_as_rows_come() -> None:
    viewport = port(LINES)
    viewport.move(-2)
    assert texts(viewport) == ["5", "6", "7"]
    viewport.window.rows = [*viewport.window.rows, LogRow(20, b"new\n")]
    assert texts(viewport) == ["5", "6", "7"]


def test_one_goes_no_further_than_the_first_and_the_last_line() -> None:
    viewport = port(LINES)
    viewport.move(-100)
    assert (texts(viewport), viewport.owed) == (["0", "1", "2"], 0)
    viewport.move(100)
    assert (texts(viewport), viewport.owed) == (["7", "8", "9"], 0)
    assert viewport.is_at_last


def test_lines_that_are_not_held_yet_are_owed_up_to_a_screen() -> None:
    viewport = port(LINES, offset=1000)
    viewport.move(-9)
    assert (texts(viewport), viewport.owed) == (["0", "1", "2"], -2)
    window = viewport.window
    window.rows = [LogRow(996, b"x\n"), LogRow(998, b"y\n"), *window.rows]
    window.start = 996
    viewport.pay()
    assert texts(viewport) == ["x", "y", "0"]


def test_a_wrapped_line_takes_as_many_lines_as_it_needs_and_is_scrolled_line_by_line() -> None:
    viewport = port([b"first\n", b"abcdefghijklmnopqrstuvwxyz\n", b"last\n"])
    viewport.set_wrap(True)
    assert texts(viewport) == ["klmnopqrst", "uvwxyz", "last"]
    viewport.move(-1)
    assert texts(viewport) == ["abcdefghij", "klmnopqrst", "uvwxyz"]
    viewport.move(-1)
    assert texts(viewport)[0] == "first"


def test_a_place_is_kept_when_lines_are_wrapped() -> None:
    viewport = port([b"x" * 95 + b"\n", *LINES])
    viewport.to_offset(100)
    assert texts(viewport)[0] == "2"
    viewport.set_wrap(True)
    assert texts(viewport)[0] == "2"


def test_a_jump_leaves_lines_above_where_there_are_some() -> None:
    viewport = port(LINES)
    viewport.to_offset(8, above=1)
    assert texts(viewport) == ["3", "4", "5"]
    viewport.to_offset(0, above=1)
    assert texts(viewport) == ["0", "1", "2"]


def test_sideways_goes_as_far_as_the_longest_line() -> None:
    viewport = port([b"short\n", b"x" * 30 + b"\n"])
    viewport.sideways(100)
    assert viewport.left == 25
    viewport.sideways(-100)
    assert viewport.left == 0


def test_an_empty_log_has_no_lines() -> None:
    viewport = port([])
    viewport.move(-1)
    viewport.move(1)
    assert texts(viewport) == []


@for_each(
    ("text", "begins"),
    [
        ("", (0,)),
        ("abc", (0,)),
        ("abcdef", (0, 4)),
        ("abcdefgh", (0, 4)),
        ("日本語", (0, 2)),
        ("a日本", (0, 2)),
    ],
)
def test_lines_are_wrapped_by_cells(text: str, begins: tuple[int, ...]) -> None:
    assert wrapped(text, 4) == begins


def test_a_cell_is_the_letter_that_is_drawn_there() -> None:
    assert [letter_at("a日b", cell) for cell in range(5)] == [0, 1, 1, 2, 3]
