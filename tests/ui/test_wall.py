"""The wall of slots, the outlook below the jobs and the timeline: what a person reads there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from rich.style import Style
from textual.content import Content

from hpcdash.domain.diff import lost_nodes
from hpcdash.domain.schema import JOBS, NODES, RESERVATIONS
from hpcdash.services.cluster.occupancy import NodeSlots, Occupancy, OwnSlots, SlotGroup
from hpcdash.services.cluster.store import NodeEvent
from hpcdash.services.jobs.tracker import JobEvent
from hpcdash.ui.cluster.wall import JobLetters, bar_lines, cell_lines, wall_title
from hpcdash.ui.jobs.job import life_line
from hpcdash.ui.jobs.outlook import draw_hours, next_spans
from hpcdash.ui.jobs.timeline import busy_nodes
from tests.support.job_rows import job_row
from tests.ui.stage import dashboard, press, screen_text, settled, until

NOW = datetime(2026, 11, 20, 6, 59, tzinfo=UTC)


def letters(*job_ids: str) -> JobLetters:
    known = JobLetters()
    known.assign(job_ids)
    return known


def drawn(lines: Sequence[Content]) -> list[str]:
    return [line.plain.rstrip() for line in lines]


def group(model: str, *nodes: NodeSlots) -> SlotGroup:
    return SlotGroup(model, nodes)


A100 = group(
    "a100",
    NodeSlots("juno-g1", 4, 3, own=(OwnSlots("7", 2),)),
    NodeSlots("juno-g2", 4, 1, is_unavailable=True),
    NodeSlots("juno-g3", 4, 4, own=(OwnSlots("13_2", None),)),
    NodeSlots("juno-g4", 4, None),
)


def test_each_slot_is_whose_it_is() -> None:
    lines = cell_lines(Occupancy("GPU", (A100,)), letters("7", "13_2"), 80, 5)
    assert drawn(lines) == ["a100  g1 aa■□  g2 ■×××  g3 b■■■  g4 ––––"]
    [unknown] = [span for span in lines[0].spans if "underline" in str(span.style)]
    assert lines[0].plain[unknown.start : unknown.end] == "b"


def test_a_job_keeps_its_letter_while_it_runs_and_an_array_has_one() -> None:
    known = letters("7", "13_1", "13_2")
    assert [known.letter(job_id) for job_id in ("7", "13_1", "13_2", "13")] == ["a", "b", "b", "b"]
    assert known.assign(["13_2", "21"])
    assert [known.letter(job_id) for job_id in ("7", "13_2", "21")] == ["", "b", "a"]
    assert not known.assign(["13_2", "21"])


@pytest.mark.parametrize(("lines", "expected"), [(2, 2), (1, 1)])
def test_what_has_no_room_is_drawn_by_node_and_then_as_shares(lines: int, expected: int) -> None:
    nodes = [
        NodeSlots(f"n{number}", 8, 8 * (number % 2), number == 40, own=()) for number in range(100)
    ]
    many = Occupancy("GPU", (SlotGroup("h100", tuple(nodes)),))
    found = drawn(cell_lines(many, letters(), 80, lines) or bar_lines(many, lines))
    assert len(found) == expected
    if lines == 2:
        assert found[0].startswith("h100  □■□■□■□■□■ □■")
        assert "×" in found[0]
    else:
        assert found == ["h100  ━━━━━━━━━━──────────  400/792  49 nodes free  1 down"]


def test_more_models_than_lines_are_counted() -> None:
    groups = tuple(
        SlotGroup(f"m{at}", tuple(NodeSlots(f"{at}-{n}", 4, 2) for n in range(200)))
        for at in range(4)
    )
    *_, last = drawn(bar_lines(Occupancy("GPU", groups), 3))
    assert last == "+ 2 models  800/1600"


def test_the_title_adds_up() -> None:
    title = wall_title(Occupancy("GPU", (A100,)), 90, "40 s", has_cells=False).plain
    assert title.startswith("GPUs  8 of 16 used · 2 yours · 1 free · juno-g2 down ─")
    assert title.endswith("─ 40 s ago")
    assert len(title) == 90
    with_legend = wall_title(Occupancy("GPU", (A100,)), 140, "40 s", has_cells=True).plain
    assert "■ others  □ free  × down  a-z yours" in with_legend


def jobs() -> pa.Table:
    hours = {"limit_seconds": 7200, "started_at": NOW}
    return pa.Table.from_pylist(
        [
            job_row("1", "running", ends_at=NOW + timedelta(hours=5), node_list="g[1-2]", **hours),
            job_row("2", "pending", _expected_start_at=NOW + timedelta(hours=3), **hours),
            job_row("3", "running", ends_at=NOW + timedelta(hours=30), node_list="g2", **hours),
            job_row("4", "pending", **hours),
            job_row("6", "held", _expected_start_at=NOW + timedelta(hours=1), **hours),
            job_row("5", "running", ends_at=NOW - timedelta(hours=1), node_list="g3", **hours),
            job_row("7", "suspended", ends_at=NOW + timedelta(hours=2), node_list="g3", **hours),
        ],
        JOBS,
    )


def test_the_next_hours_have_what_ends_and_what_may_start_the_soonest_first() -> None:
    planned = next_spans(jobs(), None, NOW, 12)
    assert [one.id for one in planned] == ["2", "1"]
    scale, second, first = drawn(
        draw_hours(planned, NOW, UTC, room=72, hours=12, letter=letters("1").letter)
    )
    assert scale.split()[0] in ("08", "09")
    assert second.startswith("◦ 2 train  ──")
    assert second.endswith("━━ 09:59 start, estimated")
    assert first.startswith("a 1 train  ━━")
    assert first.endswith(" 11:59 limit")


async def test_the_outlook_is_as_long_as_it_takes_to_show_six_jobs() -> None:
    async with dashboard("training").run_test(size=(160, 45)) as pilot:
        await settled(pilot)
        outlook = screen_text(pilot.app).partition("Next 24 h")[2]
        assert "71 swin-v2-finetune" in outlook
        # In 1 d 13 h.
        assert "21 convnext-v2-in22k" not in outlook


def test_a_reservation_that_begins_is_among_the_next_hours() -> None:
    row = dict.fromkeys(RESERVATIONS.names) | {
        "name": "service",
        "node_list": "g[1-2]",
        "starts_at": NOW + timedelta(hours=4),
        "ends_at": NOW + timedelta(hours=6),
    }
    begun = {**row, "name": "begun", "starts_at": NOW - timedelta(hours=1)}
    reservations = pa.Table.from_pylist([row, begun], RESERVATIONS)
    planned = next_spans(jobs(), reservations, NOW, 12)
    assert [one.name for one in planned] == ["train", "service g[1-2]", "train"]
    line = drawn(draw_hours(planned, NOW, UTC, room=72, hours=12, letter=letters().letter))[2]
    assert line.startswith("◇ service g[1-2]  ──")
    assert line.endswith("━━ 10:59 reservation")


def test_slices_of_gpus_are_slots_and_their_models_are_counted() -> None:
    sliced = group("a100_3g.20gb,a100_1g.5gb", NodeSlots("m1", 6, 2), NodeSlots("m2", 6, 0))
    assert drawn(cell_lines(Occupancy("GPU", (sliced,)), letters(), 80, 5)) == [
        "a100_3g.20… +1  m1 ■■□□□□  m2 □□□□□□"
    ]


def nodes(**states: str) -> pa.Table:
    rows = [
        dict.fromkeys(NODES.names) | {"name": name, "state": state, "reason": "GPU 3 fell off"}
        for name, state in states.items()
    ]
    return pa.Table.from_pylist(rows, NODES)


def test_a_node_that_starts_no_job_any_more_is_news() -> None:
    before, after = (
        nodes(g1="mixed", g2="down", g3="idle"),
        nodes(g1="drained", g2="down", g4="down"),
    )
    assert [row["name"] for row in lost_nodes(before, after)] == ["g1"]


async def test_what_just_happened_is_told_with_its_reason() -> None:
    app = dashboard("training")
    async with app.run_test(size=(160, 45)) as pilot:
        await settled(pilot)
        store = app.main.session.store
        store.events.append(JobEvent(store.clock.now(), "13_3", "lr-sweep", "running", "failed"))
        store.node_events.extend(
            NodeEvent(store.clock.now() - 60, "g05", "drained", reason)
            for reason in ("GPU 3 fell off", "\x1b[31m")
        )
        store.node_events.extend(
            NodeEvent(store.clock.now() - 3600, f"c{at}", "down", "") for at in range(40)
        )
        await press(pilot, "ctrl+r")
        shown = screen_text(app)
        assert "✗ 13_3 lr-sweep failed, exit 1" in shown
        assert "‖ g05 drained: GPU 3 fell off" in shown
        assert "\x1b[31m" not in shown
        assert "▼ 40 nodes unavailable: c0, c1, c2 …" in shown


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("2", ("features      cpu,icelake,ib", "│ Jobs ")),
        ("3", ("144 of 1024 CPUs free", "Pending, by reason", "120  JobHeldUser")),
    ],
)
async def test_the_row_under_the_cursor_is_there_in_full(
    key: str, expected: tuple[str, ...]
) -> None:
    app = dashboard("everyday")
    async with app.run_test(size=(160, 45)) as pilot:
        await press(pilot, key)
        await until(pilot, lambda: all(text in screen_text(app) for text in expected), "the row")
        title = next(line for line in screen_text(app).splitlines() if "╭─" in line)
        await press(pilot, "down")
        assert title not in screen_text(app)


async def test_somebody_without_jobs_is_shown_what_to_do() -> None:
    app = dashboard("empty")
    async with app.run_test(size=(120, 35)) as pilot:
        await settled(pilot)
        assert "n  submit a job" in screen_text(app)


def test_a_job_s_life_is_drawn_from_its_submission_to_its_limit() -> None:
    row = job_row(
        "1",
        "running",
        submitted_at=NOW - timedelta(hours=4),
        started_at=NOW - timedelta(hours=2),
        ends_at=NOW + timedelta(hours=4),
    )
    bar, marks = life_line(row, NOW, UTC, 80, lambda name: Style.null())
    assert bar.plain == "─" * 20 + "━" * 20 + "─" * 40
    assert marks.plain.startswith("submitted 02:59     started 04:59 ")
    assert marks.plain.endswith("limit 10:59")
    assert life_line({**row, "started_at": None}, NOW, UTC, 80, lambda name: Style.null()) == []


async def test_a_command_is_found_by_what_it_does_and_nothing_is_said_with_what_was_meant() -> None:
    app = dashboard("training")
    async with app.run_test(size=(120, 35)) as pilot:
        await settled(pilot)
        await press(pilot, "colon", *"resub")
        assert "R       submit_again  resubmit" in screen_text(app)
        await press(pilot, "escape", "colon", *"canecl")
        assert 'Nothing matches; did you mean "cancel"?' in screen_text(app)


def test_a_node_is_busy_until_the_last_of_its_jobs_must_have_ended() -> None:
    found = [(one.id, one.name, one.ends_at) for one in busy_nodes(jobs())]
    assert found == [
        ("g3", "2 jobs", NOW + timedelta(hours=2)),
        ("g1", "1 job", NOW + timedelta(hours=5)),
        ("g2", "2 jobs", NOW + timedelta(hours=30)),
    ]


async def test_wall_rows_and_header_agree_and_a_letter_is_that_of_its_row() -> None:
    app = dashboard("training")
    async with app.run_test(size=(160, 45)) as pilot:
        await settled(pilot)
        await until(pilot, lambda: "g07 eeeeeeee" in screen_text(app), "the wall")
        await settled(pilot)
        lines = screen_text(app).splitlines()
        [row] = [line for line in lines if "mae-vit-l" in line and "running" in line]
        assert row.split()[:2] == ["e", "6"]
        assert "36 of 40 used · 21 yours · 0 free · g05 down" in lines[2]
        letter_count = sum(line.count(letter) for line in lines[3:5] for letter in "bcdef")
        assert letter_count + lines[3].count("aaaa") * 4 == 21 + "a100".count("b")
        assert "gpu ━━━━━━━━━━ 36/40 GPU" in lines[1]


async def test_no_wall_stands_over_jobs_where_the_table_needs_the_lines() -> None:
    app = dashboard("training")
    async with app.run_test(size=(110, 40)) as pilot:
        await settled(pilot)
        assert "GPUs  36" not in screen_text(app)
        await press(pilot, "2")
        await until(pilot, lambda: "GPUs  36 of 40 used" in screen_text(app), "over the nodes")


async def test_the_timeline_zooms_and_changes_to_nodes() -> None:
    app = dashboard("training")
    async with app.run_test(size=(140, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "L")
        await until(pilot, lambda: "12:09 limit" in screen_text(app), "a job's limit")
        assert "next 24 h" in screen_text(app).splitlines()[0]
        assert "Sun 00:33 limit" in screen_text(app)
        await press(pilot, "plus")
        assert "next 12 h" in screen_text(app).splitlines()[0]
        assert "Sun 00:33 limit" not in screen_text(app)
        await press(pilot, "v")
        await settled(pilot)
        await until(pilot, lambda: "g02 4 jobs" in screen_text(app), "nodes")
