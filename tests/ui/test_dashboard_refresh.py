"""A hundred thousand jobs change, and what a person points at stays; a view that is left paints
nothing any more.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from benchmarks.generate_jobs import jobs_text
from hpcdash.backends.queries import ParsedTable, Query
from hpcdash.domain.tables import Kind
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.jobs.table import JobsView
from hpcdash.ui.submit.view import SubmitView
from hpcdash.ui.table_view import TableView
from tests.support.scripted_transport import EVERYONE, ScriptedTransport
from tests.ui.jobs.acting_stage import EVERYDAY, acting_session
from tests.ui.jobs.acting_stage import NOW as ACTING_NOW
from tests.ui.metrics.chart_stage import RUNNING, chart_dashboard, training_log
from tests.ui.stage import (
    answering,
    answering_transport,
    ids_of,
    press,
    screen_text,
    settled,
    shown_rows,
    type_text,
    until,
)

MANY = 100_000
USUAL = (120, 34)
_END_OF_ROW = re.compile(rb"(?<=T{10})\n")


@pytest.fixture(scope="module")
def before() -> bytes:
    return jobs_text(MANY)


@pytest.fixture(scope="module")
def after(before: bytes) -> bytes:
    """Every third job ended, and others came: first, between and last."""
    rows = [row + b"\n" for row in _END_OF_ROW.split(before) if row]
    assert len(rows) == MANY
    left = [row for index, row in enumerate(rows) if index % 3]
    came = [
        re.sub(rb"^(\d+)", rb"9\1", row)
        for row in rows[::3]
        if b"_" not in row.split(b"\x1f", 1)[0]
    ]
    return b"".join([*came[:5000], *left[:30_000], *came[5000:9000], *left[30_000:], *came[9000:]])


@asynccontextmanager
async def everyone_of(
    rows: bytes,
) -> AsyncIterator[tuple[HpcdashApp, Pilot[Any], ScriptedTransport]]:
    """The dashboard on everyone's jobs of a large cluster."""
    transport = answering_transport(rows)
    app = HpcdashApp([answering(transport)])
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "m")
        assert app.main.session.store.snapshots[Kind.EVERYONE].table.num_rows == MANY
        yield app, pilot, transport


async def refresh(pilot: Pilot[Any]) -> None:
    await pilot.app.main.session.store.fetch(Kind.EVERYONE)
    await settled(pilot)


def kept_job(app: HpcdashApp, near: int) -> str:
    """A job next to a row that is there after the refresh as well."""
    ids = ids_of(app)
    return next(row_id for row_id in ids[near:] if row_id.isdigit() and (int(row_id) - 1000) % 3)


async def test_cursor_marks_scroll_filter_and_sort_stay_with_their_jobs(
    before: bytes, after: bytes
) -> None:
    async with everyone_of(before) as (app, pilot, transport):
        await press(pilot, "slash")
        await type_text(pilot, "queue:gpu")
        await press(pilot, "enter")
        rows = shown_rows(app)
        marked = {kept_job(app, near) for near in (10, 500, 3000)}
        for row_id in marked:
            rows.move_to(row_id)
            await pilot.press("space")
        pointed = kept_job(app, 4000)
        rows.move_to(pointed)
        await settled(pilot)
        line = rows.cursor_index - rows.scroll_offset.y
        transport.answers[EVERYONE] = after
        for _ in range(2):
            await refresh(pilot)
            assert rows.cursor_id == pointed
            assert rows.cursor_index - rows.scroll_offset.y == line
            assert rows.marked == marked
            assert app.main.view.filter_text == "queue:gpu"
            assert set(rows.table["queue"].unique().to_pylist()) == {"gpu"}
            assert app.main.view.sort_key == "state"
        assert "● 3 marked" in screen_text(app)
        await press(pilot, "ctrl+r")
        assert (rows.cursor_id, rows.marked) == (pointed, marked)


async def test_an_open_array_stays_open_and_the_others_closed(before: bytes, after: bytes) -> None:
    async with everyone_of(before) as (app, pilot, transport):
        rows = shown_rows(app)
        opened = next(row_id for row_id in ids_of(app) if row_id.endswith("[]"))
        rows.move_to(opened)
        await press(pilot, "enter", "down")
        task = rows.cursor_id
        array_id = opened.removesuffix("[]")
        transport.answers[EVERYONE] = after
        await refresh(pilot)
        ids = ids_of(app)
        assert sum(row_id.startswith(f"{array_id}_") for row_id in ids) > 1
        assert rows.cursor_id == task or task not in ids
        others = [row_id for row_id in ids if row_id.endswith("[]") and row_id != opened]
        assert others
        assert not any(row_id.startswith(f"{others[0].removesuffix('[]')}_") for row_id in ids)


async def test_a_view_scrolled_away_from_the_cursor_keeps_its_top_row(
    before: bytes, after: bytes
) -> None:
    async with everyone_of(before) as (app, pilot, transport):
        rows = shown_rows(app)
        rows.scroll_to(y=20_000, animate=False, force=True)
        await settled(pilot)
        there = rows.visible_ids()
        transport.answers[EVERYONE] = after
        await refresh(pilot)
        now = set(rows.visible_ids())
        stayed = [row_id for row_id in there if row_id in set(ids_of(app))]
        assert stayed
        assert stayed[0] in now
        assert rows.cursor_index is not None


@pytest.mark.slow
async def test_the_cursor_returns_to_its_job_among_a_hundred_thousand(before: bytes) -> None:
    async with everyone_of(before) as (app, pilot, _):
        rows = shown_rows(app)
        pointed = kept_job(app, 40_000)
        rows.move_to(pointed)
        await press(pilot, "slash")
        await type_text(pilot, "name:none")
        await settled(pilot)
        assert rows.cursor_id is None
        await press(pilot, "escape")
        assert rows.cursor_id == pointed


class MovingClock:
    """A clock that a test moves on."""

    def __init__(self, at: float) -> None:
        self.at = at

    def now(self) -> float:
        return self.at


async def test_elapsed_and_left_go_on_between_two_answers_of_the_scheduler(tmp_path: Path) -> None:
    session = acting_session(ScriptedTransport(*EVERYDAY), tmp_path)
    clock = session.store.clock = MovingClock(ACTING_NOW)
    app = HpcdashApp([session])
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        (line,) = [
            line
            for line in screen_text(app).splitlines()
            if "train-101" in line and "▸ running" in line
        ]
        assert "7:10:00   9:48:30" in line
        clock.at += 95
        await until(
            pilot, lambda: "7:11:35   9:46:55" in screen_text(app), "both a minute and a half later"
        )
        waiting = [line for line in screen_text(app).splitlines() if "◦ pending" in line]
        assert waiting
        assert not any(":35" in line for line in waiting)


async def test_answers_are_read_and_arranged_beside_the_event_loop(
    before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key is never behind a large answer: nothing that takes its time runs in the thread that
    reads keys.
    """
    threads: dict[str, set[threading.Thread]] = {"parse": set(), "prepare": set(), "shape": set()}
    prepared, shaped = TableView._prepared, JobsView.shaped

    def spied_prepared(view: TableView, table: Any) -> Any:
        if table.num_rows > 1000:
            threads["prepare"].add(threading.current_thread())
        return prepared(view, table)

    def spied_shaped(view: JobsView, table: Any, sort: Any = None) -> Any:
        if table.num_rows > 1000:
            threads["shape"].add(threading.current_thread())
        return shaped(view, table, sort)

    monkeypatch.setattr(TableView, "_prepared", spied_prepared)
    monkeypatch.setattr(JobsView, "shaped", spied_shaped)
    transport = answering_transport(before)
    session = answering(transport)
    asked = session.store.query

    def spied_query(kind: Kind) -> Query[ParsedTable]:
        question = asked(kind)

        def parse(answer: Any) -> ParsedTable:
            threads["parse"].add(threading.current_thread())
            return question.parse(answer)

        return replace(question, parse=parse)

    monkeypatch.setattr(session.store, "query", spied_query)
    app = HpcdashApp([session])
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "m")
        await refresh(pilot)
        await press(pilot, "slash")
        await type_text(pilot, "train")
        await settled(pilot)
    for what, seen in threads.items():
        assert seen, what
        assert threading.main_thread() not in seen, what


async def test_keys_are_answered_while_a_large_answer_is_read(
    before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with everyone_of(before) as (app, pilot, _):
        reading, go_on = threading.Event(), threading.Event()
        prepared = TableView._prepared

        def held_up(view: TableView, table: Any) -> Any:
            reading.set()
            assert go_on.wait()
            return prepared(view, table)

        monkeypatch.setattr(TableView, "_prepared", held_up)
        rows = shown_rows(app)
        await app.main.session.store.fetch(Kind.EVERYONE)
        await until(pilot, reading.is_set, "that the answer is read")
        at = rows.cursor_index
        await pilot.press("down", "down", "space")
        assert rows.cursor_index == at + 3
        assert len(rows.marked) == 1
        go_on.set()
        await settled(pilot)
        assert rows.cursor_index == at + 3


# Turns of the event loop between opening and leaving.
_TURNS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)
_OF_A_JOB = ("job", "log", "chart", "script", "chain", "triage")


@pytest.mark.slow
@pytest.mark.parametrize("view", [*_OF_A_JOB, "journal", "submit"])
async def test_a_view_is_left_at_any_moment_of_its_opening(tmp_path: Path, view: str) -> None:
    (tmp_path / "job.out").write_bytes(training_log(range(1, 60)))
    app = chart_dashboard(tmp_path)
    arguments = {"job_id": RUNNING} if view in _OF_A_JOB else {}
    async with app.run_test(size=(120, 30)) as pilot:
        await settled(pilot)
        for turns in _TURNS:
            await app.main.push(view, **arguments)
            for _ in range(turns):
                await asyncio.sleep(0)
            await app.main.pop()
            assert app.crash is None
        await pilot.pause()
        assert app.crash is None
        assert len(app.main.stack) == 1


async def test_a_view_that_is_being_removed_is_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its widgets have ended by then.
    async def on_unmount(view: SubmitView) -> None:
        view.app.screen.refresh()
        await asyncio.sleep(0.2)

    monkeypatch.setattr(SubmitView, "on_unmount", on_unmount, raising=False)
    app = chart_dashboard(tmp_path)
    async with app.run_test(size=(120, 30)) as pilot:
        await settled(pilot)
        await app.main.push("submit")
        await settled(pilot)
        await app.main.pop()
        await settled(pilot)
        assert app.crash is None
        assert len(app.main.stack) == 1


async def test_a_view_is_opened_as_the_app_is_left(tmp_path: Path) -> None:
    app = chart_dashboard(tmp_path)
    async with app.run_test(size=(120, 30)) as pilot:
        await settled(pilot)
        app.exit()
        await app.main.push("journal")
    assert app.crash is None


@pytest.mark.slow
@pytest.mark.parametrize("view", _OF_A_JOB)
async def test_the_app_is_left_at_any_moment_of_a_view_s_opening(tmp_path: Path, view: str) -> None:
    (tmp_path / "job.out").write_bytes(training_log(range(1, 60)))
    for turns in (0, 5, 34):
        app = chart_dashboard(tmp_path)
        async with app.run_test(size=(120, 30)) as pilot:
            await settled(pilot)
            await app.main.push(view, job_id=RUNNING)
            for _ in range(turns):
                await asyncio.sleep(0)
            app.exit()
        assert app.crash is None
