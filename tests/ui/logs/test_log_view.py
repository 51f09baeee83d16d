"""The log view on real files that grow, rotate and vanish; the scheduler's answers are recorded."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hpcdash.domain.tables import Kind
from hpcdash.errors import ConnectionFailed
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.ui.app import HpcdashApp
from tests.support.real_files import append, make_folder, put, put_sparse, remove, size_of
from tests.ui.logs.log_stage import (
    PENDING,
    RUNNING,
    current_view,
    log_dashboard,
    of_files,
    open_log,
    pane_of,
    set_state,
    shows,
    shows_no_more,
)
from tests.ui.stage import NOW, screen_text, settled, shown_rows, type_text, until

SIZE = (120, 30)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at every 50 ms."""
    monkeypatch.setattr("hpcdash.ui.logs.stream._SHORTEST_SECONDS", 0.05)
    monkeypatch.setattr("hpcdash.ui.logs.stream._LONGEST_SECONDS", 0.05)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "job.err").write_bytes(b"")
    return tmp_path / "job.out"


def numbered(count: int, first: int = 0) -> bytes:
    return b"".join(b"line %07d of a log\n" % number for number in range(first, first + count))


def top_line(pilot: Pilot[Any]) -> str:
    """The first line of the log, within its frame where there is one."""
    lines = screen_text(pilot.app).split("\n")[1:3]
    return lines["─" in lines[0]].strip("│ ")


def number_at_top(pilot: Pilot[Any]) -> int:
    return int(top_line(pilot)[5:12])


async def test_a_log_opens_at_its_end_and_follows_it(log: Path) -> None:
    put(log, numbered(200_000))
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "line 0199999")
        append(log, b"something new\n")
        await shows(pilot, "something new")
        append(log, numbered(100_000) + b"and much more\n")
        await shows(pilot, "and much more")
        assert "following" in screen_text(pilot.app)


async def test_scrolling_up_stays_where_it_is_while_the_log_grows(log: Path) -> None:
    put(log, numbered(1_000))
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("pageup")
        before = top_line(pilot)
        append(log, numbered(5_000))
        size = size_of(log)
        await until(pilot, lambda: pane_of(pilot).window.stat.size == size)
        assert top_line(pilot) == before
        assert "paused" in screen_text(pilot.app)
        await pilot.press("end")
        await shows(pilot, "line 0004999")


async def test_down_at_the_very_end_follows_again(log: Path) -> None:
    put(log, numbered(100))
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("up", "up", "down", "down")
        assert not pane_of(pilot).viewport.following
        await pilot.press("down")
        assert pane_of(pilot).viewport.following


async def test_one_pages_back_to_the_first_line(log: Path) -> None:
    put(log, numbered(20_000))
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        pane = pane_of(pilot)
        assert not pane.window.begins_the_file
        before = 20_000
        for _ in range(100):
            pane.move(-500)
            await until(pilot, lambda before=before: number_at_top(pilot) < before, "earlier lines")
            await until(pilot, lambda: not pane.viewport.owed and not pane._paging)
            before = number_at_top(pilot)
            if before == 0:
                break
        await pilot.press("number_sign")
        await shows(pilot, "line 1 ")
        await pilot.press("pagedown")
        await shows(pilot, f"line {pane.viewport.height} ")


async def test_home_of_a_huge_log_is_there_at_once(log: Path) -> None:
    put_sparse(log, b"the first line\n", 10 << 30, b"\nthe last line\n")
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "the last line")
        await pilot.press("home")
        await shows(pilot, "the first line")
        await pilot.press("percent_sign", "5", "0", "enter")
        await shows(pilot, "50% of 10G")
        assert "␀×" in screen_text(pilot.app)


async def test_keys_in_a_log_that_is_not_there_say_why_nothing_happens(log: Path) -> None:
    app = log_dashboard(log.parent)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        why = "no lines: no such file"
        for key in ("number_sign", "n", "N", "f"):
            current_view(pilot).show_notice("")
            await pilot.press(key)
            await shows(pilot, why)
        current_view(pilot).show_notice("")
        # What one types on is the line's all the same: letters are keys as well.
        for typed in ("slash x y enter", "percent_sign 5 enter", "at 1 0 : 0 0 enter"):
            await pilot.press(*typed.split())
            await shows(pilot, why)
            await pilot.press("escape")
            await shows_no_more(pilot, why)
        assert pane_of(pilot).search_text == ""


async def test_next_match_before_any_search_says_how_to_search(log: Path) -> None:
    put(log, b"one\ntwo\n")
    app = log_dashboard(log.parent)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("n")
        await shows(pilot, "no search yet; / searches")


async def test_what_a_jump_came_to_is_told_before_all_else_where_there_is_no_room(
    log: Path,
) -> None:
    put(log, b"no times here\n" * 50)
    app = log_dashboard(log.parent)
    async with app.run_test(size=(80, 24)) as pilot:
        await open_log(pilot)
        await pilot.press("s", "w", "home", "at", "1", "0", ":", "0", "0", "enter")
        await shows(pilot, "stdout  the log has no timestamps")


async def test_what_one_types_at_the_percent_sign_must_be_a_percentage(log: Path) -> None:
    put(log, numbered(1_000))
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("percent_sign", *"200", "enter")
        await shows(pilot, "a percentage from 0 to 100")
        await pilot.press("escape")
        assert current_view(pilot).pane is not None


async def test_a_search_marks_and_goes_to_matches_far_away(log: Path) -> None:
    put(log, b"the only ERROR here\n" + numbered(100_000) + b"a late error\n" + numbered(20))
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("slash")
        await type_text(pilot, "error")
        await pilot.press("enter")
        await pilot.press("n")
        await shows(pilot, "search wrapped to the top")
        await shows(pilot, "the only ERROR here")
        await pilot.press("n")
        await shows(pilot, "a late error")
        await pilot.press("slash", *["backspace"] * 5, *"ERROR", "enter")
        await shows(pilot, "the only ERROR here")
        await pilot.press("escape")
        assert pane_of(pilot).search_text == ""
        await pilot.press("slash", *"nowhere", "enter")
        await shows(pilot, "not found")


async def test_a_search_goes_from_match_to_match_both_ways(log: Path) -> None:
    put(
        log,
        b"".join(b"match %d\n" % one if one % 100 == 0 else b"nothing\n" for one in range(1000)),
    )
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("slash", *"match", "enter")
        await shows(pilot, "match 900")
        for number in (800, 700):
            await pilot.press("N")
            await shows(pilot, f"match {number}")
        await pilot.press("n", "n", "n")
        await shows(pilot, "search wrapped to the top")
        await shows(pilot, "match 0")


async def test_a_time_is_gone_to(log: Path) -> None:
    stamps = (datetime.fromtimestamp(NOW - 20_000 + one, UTC) for one in range(20_000))
    put(log, b"".join(f"{stamp:%Y-%m-%d %H:%M:%S} step\n".encode() for stamp in stamps))
    async with log_dashboard(log.parent, clock=FrozenClock(NOW)).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("at", *"04", "colon", *"30", "enter")
        await shows(pilot, "from 2026-11-21 04:30:00")
        await shows(pilot, "04:30:00 step")


async def test_a_log_without_times_says_so_at_the_at_sign(log: Path) -> None:
    put(log, numbered(10))
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("at", *"04", "colon", *"30", "enter")
        await shows(pilot, "the log has no timestamps")


async def test_the_other_stream_is_a_key_away_and_keeps_its_place(log: Path) -> None:
    put(log, b"to stdout\n")
    put(log.with_suffix(".err"), numbered(1_000) + b"to stderr\n")
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "to stdout")
        await pilot.press("tab")
        await shows(pilot, "to stderr")
        await pilot.press("pageup")
        place = top_line(pilot)
        await pilot.press("l")
        await shows(pilot, "to stdout")
        await pilot.press("e")
        await shows(pilot, place)


async def test_both_streams_stand_side_by_side_and_are_followed(log: Path) -> None:
    put(log, b"to stdout\n")
    err = log.with_suffix(".err")
    put(err, b"to stderr\n")
    async with log_dashboard(log.parent).run_test(size=(150, 30)) as pilot:
        await open_log(pilot)
        await shows(pilot, "s shows both streams")
        await pilot.press("s")
        await shows(pilot, "to stderr")
        append(log, b"more out\n")
        append(err, b"more err\n")
        await shows(pilot, "more out")
        await shows(pilot, "more err")
        await pilot.press("s")
        await shows_no_more(pilot, "more err")


async def test_one_file_for_both_streams_is_said_to_be(log: Path) -> None:
    put(log, b"all of it\n")
    async with log_dashboard(log.parent, both_in_one=True).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "(stdout and stderr)")
        await pilot.press("tab")
        await shows(pilot, "stdout and stderr share one file")


async def test_what_becomes_of_the_file_is_said_and_what_comes_is_followed(log: Path) -> None:
    put(log, b"first words\n")
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "first words")
        remove(log)
        await shows(pilot, "was deleted at")
        assert "first words" in screen_text(pilot.app)
        put(log, b"other words\n")
        await shows(pilot, "other words")
        await shows(pilot, "was replaced by another file at")
        os.truncate(log, 0)
        await shows(pilot, "was truncated (to 0) at")
        append(log, b"last words\n")
        await shows(pilot, "last words")


async def test_a_job_that_waits_says_where_its_log_will_be_and_why_it_waits(log: Path) -> None:
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot, PENDING)
        await shows(pilot, "once the job starts")
        text = screen_text(pilot.app)
        assert "the job is pending: Dependency" in text
        put(log, b"it started\n")
        await shows(pilot, "it started")


async def test_a_log_that_is_a_folder_or_missing_says_so(log: Path) -> None:
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "no such file; retrying")
        make_folder(log)
        await shows(pilot, "this is a folder")


async def test_hostile_bytes_move_nothing_and_colours_stay(log: Path) -> None:
    put(
        log,
        b"\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07[bold]plain[/bold]\x1b[H\xff\n 10%|#\r 20%|##",
    )
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "red [bold]plain[/bold]�")
        await shows(pilot, "20%|##")
        assert "10%" not in screen_text(pilot.app)
        strip = pane_of(pilot).lines.render_line(0)
        assert next(iter(strip)).style.color.name == "red"  # type: ignore[union-attr]


async def test_long_lines_go_sideways_or_are_wrapped(log: Path) -> None:
    put(log, b"begin " + b"x" * 300 + b" finish\nshort\n")
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        assert "finish" not in screen_text(pilot.app)
        await pilot.press(*["right"] * 14)
        await shows(pilot, "finish")
        assert "begin" not in screen_text(pilot.app)
        await pilot.press("w")
        await shows(pilot, "begin")
        assert "finish" in screen_text(pilot.app)


async def test_a_view_that_is_not_shown_asks_nothing(log: Path) -> None:
    put(log, b"words\n")
    app = log_dashboard(log.parent)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        transport = app.main.session.store.transport
        pane = pane_of(pilot)
        await pilot.press("2")
        await until(pilot, lambda: not pane._is_shown)
        await until(pilot, lambda: pane.is_resting)
        asked = transport.count(of_files)
        for _ in range(20):
            await pilot.pause(0.01)
        assert transport.count(of_files) == asked


async def test_the_pager_opens_the_file_itself_where_it_is_here(log: Path) -> None:
    put(log, b"words\n")
    opened: list[tuple[str, Path]] = []
    app = log_dashboard(log.parent)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        app.open_outside = lambda program, file: opened.append((program, file))  # type: ignore[method-assign]
        await pilot.press("E")
        await until(pilot, lambda: opened)
        assert opened == [("pager", log)]
        assert size_of(log) == 6


async def test_the_pager_gets_a_copy_of_the_end_where_the_file_is_elsewhere(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.services.logs.copy._same_file", lambda path, chunk: None)
    put(log, numbered(1_000))
    seen: list[tuple[bytes, int, Path]] = []
    app = log_dashboard(log.parent)

    def look(program: str, file: Path) -> None:
        seen.append((file.read_bytes(), file.stat().st_mode & 0o777, file))

    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        app.open_outside = look  # type: ignore[method-assign]
        await pilot.press("E")
        await until(pilot, lambda: seen)
        content, mode, copy = seen[0]
        assert (content, mode) == (numbered(1_000), 0o600)
        assert not copy.exists()


async def test_keys_on_the_job_are_for_the_job_of_the_log(log: Path) -> None:
    put(log, b"words\n")
    app: HpcdashApp = log_dashboard(log.parent)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        view = current_view(pilot)
        assert view.pointed_job() == RUNNING
        targets = view.targets()
        assert targets.job_ids == (RUNNING,)
        assert targets.rows[0]["id"] == RUNNING
        await pilot.press("escape")
        assert app.main.view_name == "jobs"


async def test_brackets_go_through_the_tasks_of_an_array(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.ui.view.NOTICE_SECONDS", 3600)
    put(log, b"words\n")
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot, "13_6")
        await pilot.press("left_square_bracket")
        await shows(pilot, "this is the first known task")
        for task in ("13_7", "13_8", "13_9"):
            await pilot.press("right_square_bracket")
            await until(
                pilot,
                lambda task=task: (
                    current_view(pilot).place and current_view(pilot).place.job_id == task
                ),
            )
            assert current_view(pilot).pointed_job() == task
        await pilot.press("right_square_bracket")
        await shows(pilot, "this is the last known task of the array")
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: current_view(pilot).job_id == "13_8")


async def test_the_log_of_a_folded_array_is_that_of_its_first_running_task(log: Path) -> None:
    put(log, b"words\n")
    app = log_dashboard(log.parent)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert shown_rows(app).move_to("13[]")
        table = app.sessions[0].store.table(Kind.MINE)
        assert table is not None
        tasks = table.select(["id", "array_id", "state", "_task"]).to_pylist()
        running = [row for row in tasks if row["array_id"] == "13" and row["state"] == "running"]
        await pilot.press("l")
        await until(pilot, lambda: app.main.view_name == "log", "the log view")
        assert current_view(pilot).job_id == min(running, key=lambda row: row["_task"])["id"]


async def test_a_job_that_is_no_task_has_no_neighbours(log: Path) -> None:
    put(log, b"words\n")
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("right_square_bracket")
        await shows(pilot, "this job is not an array task")


async def test_very_long_lines_of_many_colours_are_read_beside_the_keys(log: Path) -> None:
    colours = b"".join(b"\x1b[3%dmx\x1b[0m" % (one % 8) for one in range(150_000))
    put(log, colours + b" end of it\nlast\n")
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "last")
        await until(pilot, lambda: not pane_of(pilot)._drawing)
        assert "xxxxx" in screen_text(pilot.app)
        await pilot.press("home")
        await until(pilot, lambda: not pane_of(pilot)._drawing and not pane_of(pilot).is_working)
        assert top_line(pilot).startswith("xxxxx")


async def test_a_log_that_ended_says_how_and_when_it_was_last_written(log: Path) -> None:
    put(log, b"words\n")
    app = log_dashboard(log.parent, clock=FrozenClock(NOW))
    set_state(app.main.session.store.transport, b"FAILED")
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "the job ended: failed")
        assert "words" in screen_text(pilot.app)
        await until(pilot, lambda: "last written" in screen_text(pilot.app))


async def test_a_broken_line_is_said_and_what_was_read_stays(log: Path) -> None:
    put(log, b"words\n")
    app = log_dashboard(log.parent)
    transport = app.main.session.store.transport
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "words")
        transport.fails[of_files] = ConnectionFailed("the line to lab broke", "It is tried again.")
        await shows(pilot, "the line to lab broke")
        assert "words" in screen_text(pilot.app)
        await pilot.press("slash", *"else", "enter")
        await shows(pilot, "connection failed")
        transport.fails.clear()
        append(log, b"it is back\n")
        await pilot.press("end")
        await shows(pilot, "it is back")
        await shows_no_more(pilot, "the line to lab broke")


async def test_a_line_one_types_is_not_taken_away_by_the_log_that_arrives(log: Path) -> None:
    put(log, b"words\n")
    app = log_dashboard(log.parent)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await app.main.push("log", job_id=RUNNING)
        await pilot.press("colon", *"jo")
        await until(pilot, lambda: current_view(pilot).pane is not None)
        await pilot.press(*"bs", "enter")
        await until(pilot, lambda: app.main.view_name == "jobs")


async def test_keys_while_a_jump_is_read_are_alive(log: Path) -> None:
    put(log, numbered(200_000))
    app = log_dashboard(log.parent)
    transport = app.main.session.store.transport
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        transport.hangs[of_files] = asyncio.Event()
        await pilot.press("home")
        await shows(pilot, "reading …")
        await pilot.press("pageup")
        await until(pilot, lambda: int(top_line(pilot)[5:12]) < 199_960)
        transport.hangs[of_files].set()
        await shows(pilot, "line 0000000")


async def test_lines_of_no_letters_are_paged_through_as_any_others(log: Path) -> None:
    put(log, b"first\n" + b"\n" * 500_000 + b"last\n")
    async with log_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "last")
        pane = pane_of(pilot)
        for pages in (-1, -1, -100, 1, -100, -100, -100, 100):
            before = pane.viewport.offset
            pane.page(pages)
            await until(
                pilot, lambda before=before: not pane._paging and pane.viewport.offset != before
            )
            lines = abs(pages) * (pane.viewport.height - 1)
            assert abs(pane.viewport.offset - before) in (lines, lines - 4)
            placed = [pane.window.rows[one.row].offset for one in pane.viewport.placed()]
            assert placed[0] == pane.viewport.offset
            assert len(placed) == pane.viewport.height


async def test_a_long_path_below_a_log_keeps_its_file_name(tmp_path: Path) -> None:
    (tmp_path / "job.out").write_bytes(b"a line\n")
    (tmp_path / "job.err").touch()
    app = log_dashboard(
        tmp_path,
        both_in_one=True,
        shown_folder=Path("/home/anna/projects/vision/2024/long/long/longer/run_17"),
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await open_log(pilot)
        await shows(pilot, "run_17/job.out   (stdout and stderr)")
        assert "/home/anna/…/" in screen_text(app)


@pytest.mark.parametrize(("height", "is_framed"), [(40, True), (24, False)])
async def test_streams_side_by_side_have_frames_where_there_is_room(
    log: Path, height: int, is_framed: bool
) -> None:
    put(log.parent / "job.err", b"a warning\n")
    app = log_dashboard(log.parent)
    async with app.run_test(size=(140, height)) as pilot:
        await open_log(pilot)
        await pilot.press("s")
        await shows(pilot, "a warning")
        await until(pilot, lambda: ("╭─ stdout ─" in screen_text(app)) is is_framed, "framed")
        await until(pilot, lambda: ("╭─ stderr ─" in screen_text(app)) is is_framed, "framed")
