"""The script of a job: explained, coloured, searched, copied, opened, and compared with another
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hpcdash.backends.tokens import RECORDED_TOKEN
from hpcdash.domain.request import Request
from hpcdash.domain.scripts import ScriptLine
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.jobs.script import ScriptView
from hpcdash.ui.widgets.script_page import MAX_LETTERS, coloured_parts, lay_out, script_language
from tests.backends.script.golden_text import PLACE
from tests.support.records import for_each
from tests.support.scripted_transport import ONE, RECENT
from tests.support.scripts import Scheduler, batch_script
from tests.support.slurm_text import history_text, queue_text
from tests.ui.stage import (
    answering,
    answering_transport,
    notices,
    press,
    screen_text,
    settled,
    type_text,
    until,
)

TRAIN = b"""#!/bin/bash
#SBATCH -J train -t 2:00:00
#SBATCH --gpus-per-node=8    # all of them
#SBATCH --output=/scratch/projects/imagenet/experiments/lr-sweep/logs/%x-%j.out --error=/scratch/projects/err
module load cuda
\tsrun python train.py --lr 1e-3 --data "$DATA"
#SBATCH -N 4
"""
HOSTILE = b"#!/bin/sh\r\n# \x1b]0;owned\x07 caf\xe9 [bold red]x[/]\r\n#SBATCH -J \x1b[31mred\r\n"


def app_with(scripts: Mapping[str, bytes], **arguments: Any) -> HpcdashApp:
    """A cluster with jobs 88 and 87 of user000's, an ended 80, and these scripts."""
    rows = [
        {"jobarrayid": str(number), "username": "user000", "name": "train"} for number in (88, 87)
    ]
    past = [{"jobid": job_id, "user": "user000", "jobname": "train"} for job_id in ("80", "95")]
    queue = queue_text(*rows, token=RECORDED_TOKEN)
    transport = answering_transport(everyone=queue, mine=queue)
    transport.answers |= {
        RECENT: queue,
        ONE: queue,
        "sacct": history_text(*past, token=RECORDED_TOKEN),
        "scontrol write": lambda command: (
            scripts.get(command.words[3])
            or (0, b"", b"job script retrieval failed: Invalid user id\n")
        ),
    }
    return HpcdashApp([answering(transport)], **arguments)


async def opened(pilot: Pilot[Any], *keys: str) -> ScriptView:
    """The script of the first job of the list, 88 as the newest."""
    await settled(pilot)
    await press(pilot, "b", *keys)
    view = pilot.app.main.view
    assert isinstance(view, ScriptView)
    return view


async def typed(pilot: Pilot[Any], key: str, text: str) -> None:
    await press(pilot, key)
    await type_text(pilot, text)
    await press(pilot, "enter")


async def test_directives_have_their_meaning_beside_them_or_below() -> None:
    app = app_with({"88": TRAIN})
    async with app.run_test(size=(120, 24)) as pilot:
        await opened(pilot)
        lines = [line.rstrip() for line in screen_text(app).split("\n")]
        assert (
            "  2 #SBATCH -J train -t 2:00:00                  called train; time limit 2 h"[1:]
            in lines
        )
        assert any(line.endswith("8 GPUs per node") for line in lines)
        below = next(at for at, line in enumerate(lines) if "└ stdout to /scratch" in line)
        assert "#SBATCH --output" in lines[below - 1]
        assert any("#SBATCH -N 4" in line and "ignored" in line for line in lines)
        assert "as stored by Slurm · 7 lines" in screen_text(app)


async def test_no_byte_of_a_script_reaches_the_terminal() -> None:
    app = app_with({"88": HOSTILE})
    async with app.run_test(size=(100, 24)) as pilot:
        await opened(pilot)
        shown = screen_text(app)
        assert "\x1b" not in shown
        assert "# ␛]0;owned␇ caf\ufffd [bold red]x[/]" in shown
        assert "lines end in CRLF" in shown


OURS = batch_script(Scheduler.SLURM, Request(command="python train.py"), PLACE).text.encode()


async def test_the_lines_that_hpcdash_wrote_are_one_until_enter_opens_them() -> None:
    app = app_with({"88": OURS})
    async with app.run_test(size=(120, 50)) as pilot:
        view = await opened(pilot)
        text = screen_text(app)
        assert "▸ 6 lines by hpcdash: start on the nodes" in text
        assert "17 python train.py" in text
        assert "▸ 25 lines by hpcdash: job library, end time, start" in text
        assert "set_end_time" not in text
        assert "enter opens hpcdash's lines" in view.hint()
        await press(pilot, "enter")
        text = screen_text(app)
        assert "▾ 25 lines by hpcdash: job library, end time, start" in text
        assert "  job library: lets the command import hpcdash.job" in text
        assert "  end time: passes the end of the time limit to hpcdash.job" in text
        assert '21 export PYTHONPATH=/home/ann/launches/hpcdash_exp-1a2b/hpcdash-job.zip"' in text
        assert "enter folds hpcdash's lines" in view.hint()
        await press(pilot, "enter")
        assert "set_end_time" not in screen_text(app)
        # All lines are found, and copied.
        await typed(pilot, "slash", "srun_cpus")
        assert "SRUN_CPUS_PER_TASK" in screen_text(app)
        await press(pilot, "escape", "y")
        assert "copied the script: 42 lines" in notices(app)


async def test_a_fold_is_opened_by_a_click_and_stays_open_on_a_refresh() -> None:
    app = app_with({"88": OURS})
    async with app.run_test(size=(100, 40)) as pilot:
        view = await opened(pilot)
        rows = screen_text(app).split("\n")
        row = next(at for at, line in enumerate(rows) if "▸ 6 lines by hpcdash" in line)
        await pilot.click(offset=(8, row))
        await settled(pilot)
        assert "▾ 6 lines by hpcdash" in screen_text(app)
        await press(pilot, "ctrl+r", "w")
        assert view.page.is_open
        assert view.page.virtual_size.width <= 100


async def test_another_s_script_cannot_hide_a_line_behind_ours() -> None:
    lines = OURS.replace(b"set_end_time()", b"set_end_time() # rm -rf ~;")
    app = app_with({"88": lines})
    async with app.run_test(size=(120, 50)) as pilot:
        await opened(pilot)
        assert "set_end_time() # rm -rf ~; {" in screen_text(app)
        assert "▸ 4 lines by hpcdash: job library" in screen_text(app)


async def test_long_lines_are_cut_and_wrapped_on_request() -> None:
    app = app_with({"88": b"#!/bin/sh\necho " + b"x" * 200 + b"END\n"})
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(pilot)
        assert "END" not in screen_text(app)
        await press(pilot, "w")
        assert "END" in screen_text(app)
        assert view.page.virtual_size.width <= 80
        await press(pilot, "w", *["right"] * 20)
        assert "END" in screen_text(app)


async def test_a_search_goes_from_match_to_match_and_escape_ends_it() -> None:
    app = app_with({"88": b"#!/bin/sh\n" + b"\n" * 50 + b"Needle\n" + b"\n" * 50 + b"a needle\n"})
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(pilot)
        await typed(pilot, "slash", "needle")
        assert "Needle" in screen_text(app)
        assert "needle: 1 of 2" in view.hint()
        await press(pilot, "n")
        assert "a needle" in screen_text(app)
        await press(pilot, "n")
        assert "needle: 1 of 2" in view.hint()
        await press(pilot, "N")
        assert "needle: 2 of 2" in view.hint()
        await press(pilot, "escape")
        assert app.main.view is view
        assert "needle" not in view.hint()
        await typed(pilot, "slash", "Needle")
        assert "Needle: 1 of 1" in view.hint()
        await press(pilot, "escape")
        await typed(pilot, "slash", "no such word")
        assert "no match" in screen_text(app)
        await press(pilot, "escape", "escape")
        assert app.main.view_name == "jobs"


async def test_the_last_earlier_job_of_the_name_is_proposed_and_the_difference_shown() -> None:
    app = app_with({"88": TRAIN, "87": TRAIN.replace(b"1e-3", b"3e-4")})
    async with app.run_test(size=(100, 30)) as pilot:
        view = await opened(pilot, "D")
        assert "compare with job: 87" in screen_text(app)
        await press(pilot, "enter")
        await until(pilot, lambda: view.other_id)
        shown = screen_text(app)
        assert '-        srun python train.py --lr 3e-4 --data "$DATA"' in shown
        assert '+        srun python train.py --lr 1e-3 --data "$DATA"' in shown
        assert "differs from 87" in shown
        await press(pilot, "escape")
        assert app.main.view is view
        assert "called train" in screen_text(app)


async def test_a_difference_may_be_asked_for_at_once_and_with_any_job() -> None:
    app = app_with({"88": TRAIN, "12": TRAIN})
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot)
        await app.main.push("script", job_id="88", diff=True)
        await until(pilot, lambda: "compare with job: 87" in screen_text(app))
        await press(pilot, "backspace", "backspace")
        await type_text(pilot, "rm -rf")
        await press(pilot, "enter")
        assert "enter a job ID" in screen_text(app)
        await press(pilot, *["backspace"] * 6)
        await type_text(pilot, "12")
        await press(pilot, "enter")
        assert notices(app) == ["the scripts of 12 and 88 are the same"]


async def test_the_history_knows_earlier_jobs_too() -> None:
    app = app_with({"87": TRAIN, "80": TRAIN + b"true\n"})
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot)
        await press(pilot, "down", "b", "D")
        assert "compare with job: 80" in screen_text(app)


async def test_a_script_that_is_another_s_is_refused_in_words() -> None:
    app = app_with({})
    async with app.run_test(size=(100, 24)) as pilot:
        await opened(pilot)
        assert "this is another user's job" in screen_text(app)
        assert "no script to show" in screen_text(app)


async def test_the_whole_script_is_copied() -> None:
    app = app_with({"88": TRAIN + b"caf\xe9"})
    async with app.run_test() as pilot:
        await opened(pilot, "y")
        assert app.clipboard == TRAIN.decode() + "caf\ufffd"


async def test_an_editor_gets_a_copy_of_one_s_own_that_is_deleted_afterwards() -> None:
    seen: list[tuple[str, bytes, int]] = []
    files: list[Path] = []

    def outside(program: str, file: Path) -> str:
        seen.append((program, file.read_bytes(), file.stat().st_mode & 0o777))
        files.append(file)
        file.write_bytes(b"changed")
        return ""

    app = app_with({"88": HOSTILE})
    app.open_outside = outside  # type: ignore[method-assign, assignment]
    async with app.run_test() as pilot:
        await opened(pilot, "E")
        assert seen == [("editor", HOSTILE, 0o600)]
        assert not files[0].exists()
        assert "the job's script is unchanged" in notices(app)[0]


async def test_the_job_s_keys_work_from_its_script() -> None:
    app = app_with({"88": TRAIN})
    async with app.run_test() as pilot:
        view = await opened(pilot)
        assert view.pointed_job() == "88"
        assert [row["id"] for row in view.targets().rows] == ["88"]


async def test_asking_again_keeps_the_place() -> None:
    app = app_with({"88": b"#!/bin/sh\n" + b"echo\n" * 100})
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(pilot)
        await until(pilot, lambda: view.page.max_scroll_y > 50, "the whole script")
        await press(pilot, "end")
        await until(pilot, lambda: view.page.scroll_offset.y > 50, "the end")
        place = view.page.scroll_offset
        await press(pilot, "ctrl+r")
        assert view.page.scroll_offset == place


@for_each(
    ("first_line", "language"),
    [
        ("#!/bin/bash -l", "bash"),
        ("#!/usr/bin/env python3.11", "python"),
        ("#!/usr/bin/env -S python3 -u", "python"),
        ("#! /bin/tcsh", "tcsh"),
        ("#!/opt/odd", "bash"),
        ("", "bash"),
    ],
)
def test_the_first_line_tells_the_language(first_line: str, language: str) -> None:
    assert script_language(first_line) == language


def test_words_of_the_language_are_coloured_in_their_places() -> None:
    parts = coloured_parts(["", "for x; do", "# note"], "bash")
    assert parts == [[], [(0, 3, "keyword"), (7, 9, "keyword")], [(0, 6, "comment")]]


def test_of_a_huge_script_only_the_beginning_is_coloured() -> None:
    lines = ["# a comment"] * (MAX_LETTERS // 6)
    parts = coloured_parts(lines, "bash")
    assert parts[0]
    assert not parts[-1]
    assert len(parts) == len(lines)


def test_wrapped_lines_keep_every_letter_and_no_row_is_too_wide() -> None:
    text = "ab漢字" * 40
    layout = lay_out([ScriptLine(text, 1), ScriptLine("", 2)], 40, wrap=True)
    assert "".join(text[row.first : row.last] for row in layout.rows if row.line == 0) == text
    assert layout.rows[-1].line == 1
    assert layout.gutter + layout.cells <= 40


@pytest.mark.parametrize("what", ["wrapped", "difference"])
def test_a_script_looks_as_it_did(snap_compare: Any, what: str) -> None:
    other = TRAIN.replace(b"2:00:00", b"8:00:00").replace(b"--lr 1e-3", b"--lr 3e-4")

    async def show(pilot: Pilot[Any]) -> None:
        await opened(pilot)
        if what == "wrapped":
            await press(pilot, "w")
        elif what == "difference":
            await typed(pilot, "D", "87")

    assert snap_compare(
        app_with({"88": TRAIN, "87": other}), terminal_size=(120, 34), run_before=show
    )
