"""What is coloured in lines of logs that have no colours of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.style import Style
from textual.color import Color

from hpcdash.ui.logs.highlight import highlights
from tests.support.records import for_each
from tests.ui.logs.log_stage import log_dashboard, open_log, shows
from tests.ui.stage import until


def found(line: str) -> list[tuple[str, str]]:
    return [(line[start:end], kind) for start, end, kind in highlights(line)]


@for_each(
    ("line", "level"),
    [
        ("2025-03-04 09:12:01,123 - trainer - ERROR - no such file", ("ERROR", "error")),
        ("[WARNING] slow disk, 2 ERROR retries", ("WARNING", "warning")),
        ("n1: NCCL WARN Cuda failure 2", ("NCCL WARN Cuda failure", "error")),
        ("INFO:root:started", ("INFO", "note")),
        ("DEBUG read a shard", ("DEBUG", "debug")),
        ("slurmstepd: error: exceeded memory limit", ("error", "error")),
        ("/opt/torch/x.py: UserWarning: deprecated", ("UserWarning", "warning")),
    ],
)
def test_the_level_of_a_line_is_coloured_once(line: str, level: tuple[str, str]) -> None:
    kinds = {"error", "warning", "note", "debug"}
    assert [one for one in found(line) if one[1] in kinds] == [level]


def test_a_word_that_only_contains_a_level_is_none() -> None:
    assert found("no errors, INFORMATION about error-rate and debugging") == []


def test_a_traceback_shows_its_first_line_its_frames_and_its_exception() -> None:
    assert found("[rank0]: Traceback (most recent call last):")[0][1] == "error"
    assert found('  File "/home/maya/vision/train.py", line 214, in <module>') == [
        ("/home/maya/vision/train.py", "path"),
        ("214", "number"),
    ]
    line = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB"
    assert found(line) == [("torch.cuda.OutOfMemoryError", "error"), ("2.50 GiB", "number")]
    assert found("KeyboardInterrupt") == [("KeyboardInterrupt", "error")]


def test_numbers_come_with_their_units_and_those_that_are_none_stand_out() -> None:
    line = (
        "iteration 396/4000 | lm loss: 2.89E+00 | grad norm: nan | lr -inf | 520.0 ms | 45% | "
        "v1.2 3.1.4 resnet50"
    )
    numbers = [
        ("396", "number"),
        ("4000", "number"),
        ("2.89E+00", "number"),
        ("nan", "bad"),
        ("-inf", "bad"),
    ]
    assert found(line) == [*numbers, ("520.0 ms", "number"), ("45%", "number")]


def test_paths_and_urls_are_coloured_and_fractions_are_no_paths() -> None:
    line = "saved ~/run_17/ckpt.pt and ../a/b, see https://example.org/x, 3.2 GB/s, and/or 1/2"
    paths = [one for one, kind in found(line) if kind == "path"]
    assert paths == ["~/run_17/ckpt.pt", "../a/b", "https://example.org/x,"]


@pytest.mark.slow
@for_each(
    "unit",
    ["a", "1", "/", "/a", "1.", "1e", " ", "A.", "http://", "[", "w: ", "12:", "~/", '"', "_"],
)
def test_a_line_of_a_million_letters_takes_time_by_its_length_alone(unit: str) -> None:
    line = '  File "' + unit * (1_000_000 // len(unit))
    assert all(end <= len(line) for _, end, _ in highlights(line))


def style_at(app: Any, text: str) -> Style:
    """The style of the first letter of a text on the screen."""
    for strip in app.screen._compositor.render_strips():
        at = strip.text.find(text)
        if at >= 0:
            for segment in strip:
                if at < len(segment.text):
                    return segment.style or Style.null()
                at -= len(segment.text)
    raise AssertionError(f"{text!r} is not on the screen")


def color_at(app: Any, text: str) -> Color:
    color = style_at(app, text).color
    assert color is not None
    return Color.from_rich_color(color)


async def test_a_line_keeps_its_own_colours_and_others_get_those_of_the_theme(
    tmp_path: Path,
) -> None:
    (tmp_path / "job.err").touch()
    (tmp_path / "job.out").write_bytes(
        b"ERROR first\n\x1b[38;2;1;2;3mERROR own\x1b[0m 42\nplain words\n"
    )
    app = log_dashboard(tmp_path)
    async with app.run_test() as pilot:
        await open_log(pilot)
        await shows(pilot, "plain words")
        error = Color.parse(app.theme_variables["error"])
        await until(pilot, lambda: color_at(app, "ERROR") == error, "drawn with the style sheet")
        assert color_at(app, "ERROR own") == Color(1, 2, 3)
        assert (
            color_at(app, "42")
            == color_at(app, "plain words")
            == Color.parse(app.theme_variables["foreground"])
        )


async def test_no_color_leaves_the_lines_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "job.err").touch()
    (tmp_path / "job.out").write_bytes(b"ERROR first\nplain words\n")
    app = log_dashboard(tmp_path)
    async with app.run_test() as pilot:
        await open_log(pilot)
        await shows(pilot, "plain words")
        assert style_at(app, "ERROR") == style_at(app, "plain words")
