"""The table of rows: what one points at stays put by id, and nothing a cluster says reaches the
terminal raw.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from rich.cells import cell_len
from rich.text import Text
from textual.app import App, ComposeResult
from textual.events import MouseScrollDown
from textual.message import Message
from textual.pilot import Pilot

from hpcdash.domain.job_text import state_word
from hpcdash.domain.states import JobState, NodeState
from hpcdash.domain.tables import STATE_WIDTH
from hpcdash.ui.themes import default_variables, load_themes
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.table import RowsTable
from hpcdash.ui.widgets.table_rows import GAP, GUTTER, Column, place_columns
from tests.support.records import for_each
from tests.ui.stage import until

COLUMNS = (
    Column("_row_id", "ID", 8, "left", 0, cells.text_cell),
    Column("state", "STATE", STATE_WIDTH, "left", 0, cells.state_cell),
    Column("name", "NAME", 12, "left", 1, cells.text_cell, flexible=True),
    Column("cpus", "CPUS", 5, "right", 2, cells.count_cell),
    Column("user", "USER", 8, "left", 3, cells.muted_cell),
)
MANY = 100_000


def jobs(ids: range | list[int], name: str = "train") -> pa.Table:
    numbers = list(ids)
    return pa.table(
        {
            "_row_id": [str(number) for number in numbers],
            "state": pa.array(
                ["running" if number % 2 else "pending" for number in numbers]
            ).dictionary_encode(),
            "name": [name] * len(numbers),
            "cpus": numbers,
            "user": pa.array(["ana"] * len(numbers)).dictionary_encode(),
        }
    )


class TableApp(App[None]):
    """One table on a screen; keeps the messages it sends."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        super().__init__()
        for theme in load_themes().values():
            self.register_theme(theme)
        self.theme = "hpcdash-dark"

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(default_variables())

    def compose(self) -> ComposeResult:
        yield RowsTable("no jobs of yours")

    @property
    def rows(self) -> RowsTable:
        return self.query_one(RowsTable)

    def on_rows_table_row_opened(self, message: RowsTable.RowOpened) -> None:
        self.said.append(message)

    def on_rows_table_row_highlighted(self, message: RowsTable.RowHighlighted) -> None:
        self.said.append(message)

    def on_rows_table_header_clicked(self, message: RowsTable.HeaderClicked) -> None:
        self.said.append(message)


def lines(table: RowsTable) -> list[str]:
    return [table.render_line(y).text for y in range(table.size.height)]


def line_of_cursor(table: RowsTable) -> int:
    return next(y for y, line in enumerate(lines(table)) if line.startswith("▌"))


async def shown(
    pilot: Pilot[None], table: pa.Table, columns: tuple[Column, ...] = COLUMNS
) -> RowsTable:
    rows = pilot.app.query_one(RowsTable)
    rows.show(table, columns)
    rows.focus()
    await pilot.pause()
    return rows


# --- identity ---


async def test_cursor_marks_and_line_stay_with_their_jobs_while_100_000_rows_change() -> None:
    shuffled = random.Random(7)
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(MANY)))
        rows.move_to("60000")
        rows.mark_all(["59990", "60001", "12"])
        await pilot.press("down", "down")
        assert rows.cursor_id == "60002"
        line = line_of_cursor(rows)
        for _ in range(4):
            kept = [
                number
                for number in range(MANY)
                if number in {60001, 60002, 12} or shuffled.random() > 0.2
            ]
            rows.show(jobs([*range(MANY, MANY + shuffled.randrange(500)), *kept]), COLUMNS)
            await pilot.pause()
            assert rows.cursor_id == "60002"
            assert (rows.cursor_row or {})["cpus"] == 60002
            assert line_of_cursor(rows) == line
            assert {"60001", "12"} <= rows.marked
            assert any(text.startswith(" ●") and " 60001 " in text for text in lines(rows))


async def test_the_cursor_follows_its_job_through_a_sort_the_other_way() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(1000)))
        rows.move_to("400")
        await pilot.pause()
        line = line_of_cursor(rows)
        rows.show(jobs(range(999, -1, -1)), COLUMNS)
        await pilot.pause()
        assert rows.cursor_id == "400"
        assert line_of_cursor(rows) == line


async def test_when_the_job_under_the_cursor_goes_the_cursor_stays_at_its_place() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(100)))
        rows.move_to("50")
        await pilot.pause()
        line = line_of_cursor(rows)
        rows.show(jobs([number for number in range(100) if number != 50]), COLUMNS)
        await pilot.pause()
        assert rows.cursor_id == "51"
        assert line_of_cursor(rows) == line
        rows.show(jobs(range(5)), COLUMNS)
        await pilot.pause()
        assert rows.cursor_id == "4"
        assert rows.scroll_offset.y == 0


async def test_a_job_that_took_the_place_of_another_is_told() -> None:
    app = TableApp()
    async with app.run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(3)))
        app.said.clear()
        rows.show(jobs(range(3)), COLUMNS)
        await pilot.pause()
        assert app.said == []
        rows.show(jobs(range(1, 3)), COLUMNS)
        await pilot.pause()
        assert [(type(said), said.id, said.row["cpus"]) for said in app.said] == [
            (RowsTable.RowHighlighted, "1", 1)
        ]


async def test_a_table_that_empties_has_no_cursor_and_one_that_fills_again_has_one() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(100)))
        rows.show(jobs([]), COLUMNS)
        await pilot.pause()
        assert (rows.cursor_id, rows.cursor_row, rows.visible_ids()) == (None, None, [])
        await pilot.press("down", "enter", "space", "end", "pageup")
        assert any("no jobs of yours" in line for line in lines(rows))
        rows.show(jobs(range(7, 9)), COLUMNS)
        await pilot.pause()
        assert rows.cursor_id == "7"
        assert rows.visible_ids() == ["7", "8"]


async def test_a_view_scrolled_away_from_the_cursor_keeps_its_top_row() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(1000)))
        rows.scroll_to(y=500, animate=False)
        await pilot.pause()
        assert rows.visible_ids()[0] == "500"
        rows.show(jobs([*range(2000, 2030), *range(1000)]), COLUMNS)
        await pilot.pause()
        assert rows.visible_ids()[0] == "500"
        assert rows.cursor_id == "0"
        rows.show(jobs([number for number in range(1000) if number not in {500, 501}]), COLUMNS)
        await pilot.pause()
        assert rows.visible_ids()[:4] == ["498", "499", "502", "503"]


async def test_the_mouse_wheel_scrolls_and_leaves_the_cursor_alone() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(1000)))
        await pilot._post_mouse_events([MouseScrollDown], RowsTable)
        await pilot.pause()
        assert rows.scroll_offset.y > 0
        assert rows.cursor_id == "0"


async def test_marks_of_jobs_that_left_are_kept_and_told_apart() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(100)))
        await pilot.press("space", "space")
        assert rows.marked == {"0", "1"}
        assert rows.cursor_id == "2"
        rows.show(jobs(range(1, 100)), COLUMNS)
        assert rows.marked == {"0", "1"}
        assert rows.marked_missing == {"0"}
        rows.clear_marks()
        await pilot.pause()
        assert rows.marked == frozenset()
        assert not any("●" in line for line in lines(rows))


async def test_what_is_painted_after_a_change_is_what_the_table_says() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(10)))
        rows.show(jobs(range(10), name="renamed"), COLUMNS)
        await pilot.pause()
        screen = pilot.app.screen._compositor.render_strips()
        assert sum("renamed" in strip.text for strip in screen) == 10


async def test_a_row_that_was_out_of_view_is_shown_with_its_neighbours() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(1000)))
        assert rows.move_to("500")
        assert {"495", "505"} <= set(rows.visible_ids())
        assert not rows.move_to("nobody")
        assert rows.cursor_id == "500"


# --- keys and mouse ---


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["down", "j", "k"], "1"),
        (["end"], "999"),
        (["end", "home"], "0"),
        (["up"], "0"),
        (["pagedown"], "22"),
        (["pagedown", "pagedown", "pageup"], "22"),
        (["end", "pageup", "down"], "978"),
    ],
)
async def test_keys_move_the_cursor_and_keep_it_in_view(keys: list[str], expected: str) -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(1000)))
        await pilot.press(*keys)
        assert rows.cursor_id == expected
        assert expected in rows.visible_ids()
        assert len(rows.visible_ids()) == 23


async def test_enter_and_a_double_click_open_the_row() -> None:
    app = TableApp()
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot, jobs(range(100)))
        await pilot.press("down", "enter")
        await pilot.click(RowsTable, offset=(5, 4), times=2)
        opened = [said for said in app.said if isinstance(said, RowsTable.RowOpened)]
        assert [(said.id, said.row["name"]) for said in opened] == [("1", "train"), ("3", "train")]


async def test_a_click_selects_in_a_scrolled_table_and_a_title_is_told() -> None:
    app = TableApp()
    async with app.run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(100)))
        rows.scroll_to(y=30, animate=False)
        await pilot.pause()
        await pilot.click(RowsTable, offset=(5, 1))
        assert rows.cursor_id == "30"
        await pilot.click(RowsTable, offset=(rows.shown_columns[1].x, 0))
        assert isinstance(app.said[-1], RowsTable.HeaderClicked)
        assert app.said[-1].key == "state"


async def test_a_key_press_at_100_000_rows_paints_two_lines() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(MANY)))
        painted: list[int] = []
        render: Callable[[int], object] = rows.render_line

        def counted(y: int) -> object:
            painted.append(y)
            return render(y)

        rows.render_line = counted  # type: ignore[method-assign,assignment]
        await pilot.press("down")
        await pilot.pause()
        assert sorted(set(painted)) == [1, 2]


async def test_a_smaller_terminal_keeps_the_cursor_in_view() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(100)))
        rows.move_to("20")
        await pilot.resize_terminal(80, 10)
        await pilot.pause()
        assert "20" in rows.visible_ids()
        await pilot.resize_terminal(3, 1)
        await pilot.pause()
        assert all(cell_len(line) == rows.size.width for line in lines(rows))


# --- columns ---


@for_each(
    ("width", "expected"),
    [
        (80, ["_row_id", "state", "name", "cpus", "user"]),
        (55, ["_row_id", "state", "name", "cpus"]),
        (40, ["_row_id", "state", "name"]),
        (30, ["_row_id", "state"]),
        (10, ["_row_id", "state"]),
    ],
)
def test_a_narrow_terminal_drops_columns_by_priority_but_never_id_and_state(
    width: int, expected: list[str]
) -> None:
    assert [placed.column.key for placed in place_columns(COLUMNS, width)] == expected


def test_flexible_columns_share_what_is_left() -> None:
    placed = place_columns(
        (*COLUMNS, Column("why", "WHY", 4, "left", 1, cells.text_cell, flexible=True)), 101
    )
    widths = {one.column.key: one.width for one in placed}
    assert placed[-1].x + placed[-1].width == 101
    assert widths["name"] - 12 - (widths["why"] - 4) in {0, 1}
    assert placed[0].x == GUTTER


async def test_where_the_mandatory_columns_do_not_fit_the_arrows_scroll_sideways() -> None:
    async with TableApp().run_test(size=(19, 10)) as pilot:
        rows = await shown(pilot, jobs(range(5)))
        assert "STATE" in lines(rows)[0][:18]
        await pilot.press("right")
        await pilot.pause()
        assert "pending" in lines(rows)[1]
        scrolled = rows.scroll_offset.x
        rows.show(jobs(range(1, 5)), COLUMNS)
        await pilot.pause()
        assert rows.scroll_offset.x == scrolled > 0
        await pilot.press("left")
        assert rows.scroll_offset.x == 0


async def test_titles_stay_while_rows_scroll_and_show_the_order() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(pilot, jobs(range(1000)))
        rows.set_sort("cpus", descending=True)
        await pilot.press("end")
        assert "CPUS▼" in lines(rows)[0]
        rows.set_sort("cpus")
        assert "▲" in lines(rows)[0]
        rows.set_sort(None)
        assert "▲" not in lines(rows)[0]


def test_a_title_is_not_cut_for_its_arrow_where_there_is_room() -> None:
    columns = (*COLUMNS[:2], Column("queue", "QUEUE", 5, "left", 5, cells.text_cell))
    whole = GUTTER + sum(column.width for column in columns) + 2 * GAP
    assert place_columns(columns, whole + 1, "queue")[-1].width == 6
    assert place_columns(columns, whole + 1)[-1].width == 5
    narrow = place_columns(columns, whole, "queue")
    assert [placed.column.key for placed in narrow] == [column.key for column in columns], (
        "no column makes way for it"
    )


async def test_a_title_beside_wide_columns_is_whole_with_its_arrow() -> None:
    async with TableApp().run_test(size=(120, 24)) as pilot:
        rows = await shown(pilot, jobs(range(10)))
        rows.show(rows.table, (*COLUMNS, Column("user", "QUEUE", 5, "left", 5, cells.text_cell)))
        rows.set_sort("user")
        await pilot.pause()
        assert "QUEUE▲" in lines(rows)[0]


async def test_a_dimmed_row_has_no_state_colour() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(
            pilot, jobs(range(4)).append_column("_dim", pa.array([False, False, True, False]))
        )
        colors = [
            {segment.style.color for segment in rows.render_line(y)._segments[1:] if segment.style}
            for y in (2, 3)
        ]
        assert len(colors[0]) > 1
        assert len(colors[1]) == 1


# --- what a cluster says ---

HOSTILE = [
    "a\x1b[31mred",
    "bell\x07 null\x00 del\x7f",
    "line\nfeed\r\ttab",
    "\x9b31m c1",
    "[red]x[/]",
    "[@click=app.bell]y[/]",
    "right\u202eto left",
    "zero\u200bwidth\ufeff",
    "模型训练" * 10,
    "e" + "\u0301" * 50,
    "👨‍👩‍👧 family",
    "\udc80 surrogate",
    "",
    "x" * 5000,
]


@pytest.mark.parametrize(
    "make", [str, lambda text: (text, "running"), lambda text: [(text, "bad")], Text]
)
async def test_nothing_hostile_reaches_a_strip_raw(make: Callable[[str], cells.Cell]) -> None:
    columns = (
        Column("_row_id", "ID", 8, "left", 0, cells.text_cell),
        Column("which", "RAW", 30, "left", 0, lambda value, row: make(HOSTILE[value])),
        Column("which", "RIGHT\x1b", 9, "right", 0, lambda value, row: make(HOSTILE[value])),
    )
    count = len(HOSTILE)
    table = pa.table(
        {"_row_id": [str(index) for index in range(count)], "which": list(range(count))}
    )
    async with TableApp().run_test(size=(60, 24)) as pilot:
        rows = await shown(pilot, table, columns)
        rows.placeholder = "\x1b[2J"
        for y in range(rows.size.height):
            strip = rows.render_line(y)
            assert cell_len(strip.text) == rows.size.width == strip.cell_length
            assert not {unicodedata.category(letter) for letter in strip.text} & {
                "Cc",
                "Cf",
                "Cs",
                "Zl",
                "Zp",
                "Co",
            }
            assert not any(segment.style and segment.style.meta for segment in strip)
        text = "\n".join(lines(rows))
        assert "[red]x[/]" in text
        assert "[@click=app.bell]y[/]" in text
        assert "a␛[31mred" in text


async def test_the_scrollbar_covers_no_column() -> None:
    async with TableApp().run_test(size=(80, 24)) as pilot:
        rows = await shown(
            pilot,
            jobs(range(1000)),
            (*COLUMNS, Column("name", "LAST", 5, "right", 1, cells.text_cell)),
        )
        assert all(
            strip.text[:79].endswith("train")
            for strip in pilot.app.screen._compositor.render_strips()[1:]
        )
        rows.show(jobs(range(2)), rows.columns)
        await pilot.pause()
        assert lines(rows)[1][:79].endswith("train")


async def test_a_cell_longer_than_its_column_says_so() -> None:
    async with TableApp().run_test(size=(54, 5)) as pilot:
        rows = await shown(pilot, jobs([1], name="n" * 40))
        assert "nnn…" in lines(rows)[1]


# --- cells ---


def test_every_state_has_a_sign_of_one_cell_in_both_alphabets_and_a_short_word() -> None:
    for state in (*JobState, *NodeState):
        for alphabet in (cells.UNICODE_SIGNS, cells.ASCII_SIGNS):
            assert cell_len(alphabet.states[state]) == 1
        assert len(state_word(state)) + 2 <= STATE_WIDTH
    assert all(sign.isascii() for sign in cells.ASCII_SIGNS.states.values())


def test_job_states_differ_by_their_sign_alone() -> None:
    for alphabet in (cells.UNICODE_SIGNS, cells.ASCII_SIGNS):
        assert len({alphabet.states[state] for state in JobState}) == len(JobState)
        assert len({alphabet.states[state] for state in NodeState}) == len(NodeState)


def test_a_state_cell_has_sign_word_and_style() -> None:
    assert cells.state_cell("out_of_memory", {}) == ("◆ out of mem", "out-of-memory")
    assert cells.state_cell(None, {}) == ("? unknown", "unknown")


def test_what_is_not_known_is_a_dash_not_a_zero() -> None:
    for cell in (
        cells.count_cell,
        cells.memory_cell,
        cells.duration_cell,
        cells.text_cell,
        cells.usage_cell("cpus"),
    ):
        assert cell(None, {}) == ("–", "muted")
    assert cells.count_cell(0, {}) == "0"


NOW = datetime(2026, 11, 21, 14, 5, tzinfo=UTC)


@for_each(
    ("before", "expected"),
    [
        (timedelta(hours=3), "11:05"),
        (timedelta(days=2), "Thu 14:05"),
        (timedelta(days=-3), "Tue 14:05"),
        (timedelta(days=40), "12 Oct"),
        (timedelta(days=400), "2025-10-17"),
    ],
)
def test_an_instant_is_as_short_as_its_distance_allows(before: timedelta, expected: str) -> None:
    assert cells.short_instant(NOW - before, NOW, UTC) == expected


def test_a_deadline_is_never_before_its_instant() -> None:
    assert cells.short_deadline(NOW + timedelta(seconds=56), NOW, UTC) == "14:06"
    assert cells.short_deadline(NOW, NOW, UTC) == "14:05"
    assert cells.short_deadline(datetime.max.replace(tzinfo=UTC), NOW, UTC) == "9999-12-31"


def test_ages_are_counted_by_the_clock_that_is_given() -> None:
    assert cells.age_cell(lambda: NOW)(NOW - timedelta(minutes=4), {}) == "4 min"


def test_a_bar_is_empty_only_for_nothing_and_full_only_for_all() -> None:
    def drawn(used: int) -> str:
        return "".join(text for text, _ in cells.usage_cell("cpus", digits=7)(used, {"cpus": 100}))

    assert drawn(0) == "  0/100 ─────"
    assert drawn(1) == "  1/100 ━────"
    assert drawn(99) == " 99/100 ━━━━─"
    assert drawn(100) == "100/100 ━━━━━"


async def test_the_titles_count_the_columns_that_did_not_fit() -> None:
    why = Column("name", "WHY", 9, "left", 0, cells.text_cell, flexible=True)
    async with TableApp().run_test(size=(48, 10)) as pilot:
        rows = pilot.app.query_one(RowsTable)
        rows.show(jobs(range(5)), (*COLUMNS, why))
        await pilot.pause()
        hidden = len(COLUMNS) + 1 - len(rows.shown_columns)
        assert hidden > 0
        assert lines(rows)[0].rstrip().endswith(f" +{hidden}")
        await pilot.resize_terminal(220, 10)
        await until(pilot, lambda: "+" not in lines(rows)[0])


async def test_a_range_of_marks_grows_and_shrinks_with_the_cursor_and_leaves_earlier_marks() -> (
    None
):
    app = TableApp()
    async with app.run_test(size=(60, 12)) as pilot:
        rows = await shown(pilot, jobs(range(9)))
        rows.mark_all(["7"])
        await pilot.press("down", "shift+down", "shift+down", "shift+down")
        assert rows.marked == {"1", "2", "3", "4", "7"}
        await pilot.press("shift+up")
        assert rows.marked == {"1", "2", "3", "7"}
        rows.show(jobs([8, 5, 3, 2, 1, 0]), COLUMNS)
        assert rows.cursor_id == "3"
        await pilot.press("shift+up")
        assert rows.marked == {"1", "2", "3", "5", "7"}
        await pilot.press("home", "shift+down")
        assert rows.marked == {"1", "2", "3", "5", "7", "8"}
        await pilot.press("shift+up", "shift+up")
        assert (rows.cursor_id, rows.marked) == ("8", {"1", "2", "3", "5", "7", "8"})


async def test_a_range_whose_first_row_is_gone_begins_anew_at_the_cursor() -> None:
    app = TableApp()
    async with app.run_test(size=(60, 12)) as pilot:
        rows = await shown(pilot, jobs(range(5)))
        await pilot.press("shift+down", "shift+down")
        rows.show(jobs([2, 3, 4]), COLUMNS)
        await pilot.press("shift+down")
        assert rows.marked == {"2", "3"}


async def test_a_hundred_thousand_rows_are_marked_and_inverted() -> None:
    app = TableApp()
    async with app.run_test(size=(60, 12)) as pilot:
        rows = await shown(pilot, jobs(range(MANY)))
        rows.toggle_all_marks()
        assert len(rows.marked) == MANY
        rows.toggle_mark("17")
        rows.invert_marks()
        assert rows.marked == {"17"}
        rows.toggle_all_marks()
        rows.toggle_all_marks()
        assert rows.marked == frozenset()
