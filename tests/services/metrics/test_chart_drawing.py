"""What is drawn of a chart, without a screen: axes, spans, curves, signs; and how the first metric
is chosen.
"""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from datetime import UTC
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from hpcdash.domain.columns import encode_csv, without_formulas
from hpcdash.services.metrics.batch import Floats, MetricBatch, Points
from hpcdash.services.metrics.charts.curves import (
    ChartRequest,
    ChartRun,
    parse_smoothing,
)
from hpcdash.services.metrics.charts.draw import Canvas, curve_dots, draw
from hpcdash.services.metrics.charts.scale import (
    clock_ticks,
    duration_ticks,
    height_ticks,
    linear_ticks,
    log_ticks,
    whole_ticks,
)
from hpcdash.services.metrics.charts.state import SMOOTHINGS, ChartState, Picture, main_metric
from hpcdash.services.metrics.charts.svg import draw_svg
from hpcdash.services.metrics.facts import RunReader
from hpcdash.services.metrics.findings import format_step
from hpcdash.services.metrics.joined import JoinedRun, joined
from hpcdash.services.metrics.pace import JobFacts
from hpcdash.services.metrics.reader import MetricReader
from hpcdash.services.metrics.series import MetricLog
from hpcdash.ui.metrics.export import write_chart
from tests.support.records import for_each


def make_run(
    values: Floats, *, name: str = "loss", begin: float = 1.0, seconds: float = 1.0
) -> JoinedRun:
    """A step a value, and a time each."""
    steps = begin + np.arange(values.size, dtype=float)
    unknown = np.full(values.size, np.nan)
    log = MetricLog()
    log.append(
        MetricBatch(
            np.arange(values.size) * 100,
            np.stack((steps, unknown, unknown, 1.7e9 + seconds * steps)),
            {name: Points(np.arange(values.size), values)},
        )
    )
    return joined([log])


def request(
    *runs: JoinedRun, state: ChartState | None = None, size: tuple[int, int] = (90, 20)
) -> ChartRequest:
    shown = tuple(
        ChartRun(letter, f"job {letter}", run) for letter, run in zip("ABCD", runs, strict=False)
    )
    return ChartRequest(shown, state or ChartState(), *size)


def plain_text(picture: Picture) -> str:
    return "\n".join("".join(words for words, _ in line) for line in picture.lines)


@for_each(
    ("begin", "end", "most", "words"),
    [
        (0.0, 10.0, 5, ["0", "2", "4", "6", "8", "10"]),
        (2.3, 10.4, 4, ["2.5", "5.0", "7.5", "10.0"]),
        (0.0, 3000.0, 6, ["0", "500", "1k", "1.5k", "2k", "2.5k", "3k"]),
        (1.912e6, 1.934e6, 3, ["1.92M", "1.93M"]),
        (1e-5, 4e-5, 3, ["1e-5", "2e-5", "3e-5", "4e-5"]),
        (5.0, 5.0, 4, []),
    ],
)
def test_ticks_are_round_and_told_apart(
    begin: float, end: float, most: int, words: list[str]
) -> None:
    assert [word for _, word in linear_ticks(begin, end, most)] == words


def test_ticks_of_a_log_scale_are_powers_of_ten_where_there_are_several() -> None:
    assert [word for _, word in log_ticks(-2.0, 2.0, 5)] == ["0.01", "0.1", "1", "10", "100"]
    assert [word for _, word in log_ticks(math.log10(2), math.log10(4), 4)] == [
        "2.0",
        "2.5",
        "3.0",
        "3.5",
        "4.0",
    ]


def test_ticks_of_time_are_round_on_the_clock_and_since_the_beginning() -> None:
    assert [word for _, word in clock_ticks(1_700_000_000, 1_700_007_200, 4, None)]
    assert [word for _, word in duration_ticks(0, 7200, 4)] == [
        "0 min",
        "30 min",
        "60 min",
        "90 min",
        "120 min",
    ]


def test_a_span_never_leaves_what_there_is() -> None:
    whole = (0.0, 100.0)
    state = ChartState().zoomed(0.25, whole)
    assert state.shown(whole) == (75.0, 100.0)
    assert state.shown((0.0, 120.0)) == (95.0, 120.0)
    assert state.panned(-10, whole).shown(whole) == (0.0, 25.0)
    assert not state.panned(-1, whole).follows
    assert state.panned(-1, whole).panned(1, whole).follows
    assert state.zoomed(8.0, whole).span is None
    assert ChartState().zoomed(0.5, whole, x=50.0).shown(whole) == (25.0, 75.0)


@for_each(
    ("names", "first"),
    [
        (("grad norm", "learning rate", "lm loss"), "lm loss"),
        (("eval_loss", "loss", "lr"), "loss"),
        (("val/loss", "train/loss"), "train/loss"),
        (("aux loss", "train_loss"), "train_loss"),
        (("accuracy", "val ppl"), "val ppl"),
        (("accuracy", "lr"), "lr"),
    ],
)
def test_the_loss_of_the_training_comes_first(names: tuple[str, ...], first: str) -> None:
    assert main_metric(names) == first


def test_a_curve_is_joined_but_not_over_what_is_no_number() -> None:
    line = np.array([0.0, np.nan, 0.0, np.nan, 0.0])
    broken = np.array([False, True, False, False, False])
    dots = curve_dots((line, line, line), broken, (0.0, 1.0), 8)
    assert dots[-1].tolist() == [True, False, True, True, True]
    assert not dots[:-1].any()


def test_a_cell_shows_its_topmost_layer_alone() -> None:
    canvas = Canvas(1, 1)
    canvas.draw(np.ones((4, 2), dtype=bool), "raw-0")
    below = np.zeros((4, 2), dtype=bool)
    below[3, 0] = True
    canvas.draw(below, "run-0")
    assert canvas.lines() == [((chr(0x2840), "run-0"),)]


def test_a_picture_fills_its_cells_exactly() -> None:
    values = 2.0 + np.exp(-np.arange(500) / 50)
    for size in ((60, 10), (90, 20), (200, 50)):
        for names in (("loss",), ()):
            picture = draw(
                request(make_run(values), make_run(values + 1), state=ChartState(names), size=size)
            )
            assert len(picture.lines) == size[1]
            assert {sum(len(words) for words, _ in line) for line in picture.lines} == {size[0]}


@for_each(
    "values",
    [
        np.full(400, np.nan),
        np.full(400, np.inf),
        np.array([1e308, -1e308] * 200),
        np.zeros(400),
        np.array([3.0]),
        np.where(np.arange(400) % 2, np.nan, 1.0),
    ],
    ids=["nan", "inf", "huge", "zero", "one point", "every other"],
)
@for_each("log_y", [False, True])
@for_each("smoothing", ["auto", "ema 0.9", "mean of 50", "median of 50"])
def test_any_values_can_be_drawn(values: Floats, log_y: bool, smoothing: str) -> None:
    state = ChartState(log_y=log_y, smoothing=smoothing, leaves_out=log_y, cursor=10.0)
    assert len(draw(request(make_run(values), state=state)).lines) == 20


def test_what_differs_by_rounding_alone_is_drawn_as_a_level() -> None:
    picture = draw(request(make_run(520.0 + 1e-12 * np.arange(400))))
    low, high = picture.panels[0].y
    assert low < 500.0
    assert high > 540.0


def test_runs_are_told_apart_without_colours() -> None:
    picture = draw(request(make_run(np.full(300, 2.0)), make_run(np.full(300, 3.0))))
    curves = plain_text(picture).split("\n")[1:]
    assert any("A" in line for line in curves)
    assert any("B" in line for line in curves)


def test_the_metric_is_the_first_runs_and_who_has_it_not_is_said() -> None:
    picture = draw(
        request(
            make_run(np.full(300, 2.0), name="lm loss"),
            make_run(np.full(300, 3.0), name="loss"),
        )
    )
    assert [panel.name for panel in picture.panels] == ["lm loss"]
    assert "B: no lm loss" in picture.notes


def test_times_of_several_runs_are_counted_from_their_beginnings() -> None:
    early, late = make_run(np.ones(300)), make_run(np.ones(300), begin=5000.0)
    picture = draw(request(early, late, state=ChartState(axis="time")))
    assert picture.whole == (0.0, 299.0)
    assert "since begin" in plain_text(picture)


def test_times_of_one_run_are_those_of_the_clock() -> None:
    run = make_run(np.ones(300), seconds=60.0)
    picture = draw(replace(request(run, state=ChartState(axis="time")), zone=UTC))
    assert [word for word in plain_text(picture).split("\n")[-1].split() if ":" in word] == [
        "23:00",
        "00:00",
        "01:00",
        "02:00",
        "03:00",
    ]


def test_without_braille_letters_plain_ones_are_drawn() -> None:
    plain = replace(request(make_run(2.0 + np.exp(-np.arange(400) / 50))), is_ascii=True)
    assert plain_text(draw(plain)).isascii()


@for_each(("points", "weight"), [(100, None), (400, 0.8), (3000, 0.98), (2e6, 0.9999)])
def test_what_fits_lags_by_a_small_part_of_what_is_seen(
    points: float, weight: float | None
) -> None:
    smoothing = parse_smoothing("auto", points)
    assert (smoothing.weight if smoothing is not None else None) == weight


def test_signs_stand_where_their_steps_do_along_any_axis() -> None:
    values = np.full(1000, 2.0) + 0.01 * np.sin(np.arange(1000))
    values[600:603] = 9.0
    run = make_run(values, seconds=10.0)
    along_steps = RunReader().read(run, ("loss",), "step", JobFacts(1.7e9))
    along_time = RunReader().read(run, ("loss",), "time", JobFacts(1.7e9))
    assert [mark.x for mark in along_steps.marks["loss"]] == [601.0]
    assert [mark.x for mark in along_time.marks["loss"]] == [1.7e9 + 6010.0]


def test_a_log_that_went_silent_is_said_to_have_while_its_job_runs() -> None:
    run = make_run(np.linspace(3, 2, 100))
    silent = RunReader().read(run, ("loss",), "step", JobFacts(1.7e9 + 4000, is_running=True))
    ended = RunReader().read(run, ("loss",), "step", JobFacts(1.7e9 + 4000))
    assert [mark.text for mark in silent.found if "no sample for" in mark.text]
    assert not [mark.text for mark in ended.found if "no sample for" in mark.text]


@for_each("is_log", [False, True])
@for_each(
    ("low", "high"),
    [
        (1e-6, 3e-4),
        (1.9e-4, 2.6e-4),
        (2.0e-4, 2.02e-4),
        (0.9, 1.1),
        (0.99999, 1.00001),
        (3.0, 11.0),
        (40.0, 41.0),
        (1, 9e9),
    ],
)
def test_a_height_has_two_whole_ticks_that_differ_however_small_the_panel(
    low: float, high: float, is_log: bool
) -> None:
    begin, end = (math.log10(low), math.log10(high)) if is_log else (low, high)
    for rows in (5, 8, 30):
        ticks = height_ticks(begin, end, max(2, rows // 3), 7, is_log=is_log)
        assert len({word for _, word in ticks}) == len(ticks) > 1
        assert all(len(word) <= 7 and "…" not in word for _, word in ticks)
        near = 1e-8 * (end - begin)
        assert all(begin - near <= value <= end + near for value, _ in ticks)
        assert len({round((value - begin) / (end - begin) * (rows - 1)) for value, _ in ticks}) > 1


def test_steps_are_written_on_the_axis_as_in_the_words() -> None:
    assert [word for _, word in whole_ticks(0, 2600, 5, format_step)] == ["0", "1 000", "2 000"]
    assert [word for _, word in whole_ticks(0, 9, 4, format_step)] == ["0", "5"]
    assert [word for _, word in whole_ticks(1, 3, 8, format_step)] == ["1", "2", "3"]
    text = plain_text(draw(request(make_run(np.linspace(4, 2, 2587)))))
    assert "at step 2 587" in text
    assert "1 000" in text
    assert "1k" not in text


@pytest.mark.parametrize(("width", "name"), [(90, "step if epoch 1 is the first"), (50, "step?")])
def test_the_axis_names_what_the_log_leaves_open_about_its_steps(width: int, name: str) -> None:
    log = MetricLog()
    lines = "".join(
        f"[7/25][{step}/3183] Loss_D: {9 - step / 400} Loss_G: 1.5\n" for step in range(0, 3000, 50)
    )
    log.append(MetricReader().feed(lines.encode(), is_end=True))
    assert plain_text(draw(request(joined([log]), size=(width, 20)))).rstrip().endswith(f" {name}")
    assert "first" not in plain_text(
        draw(request(joined([log]), state=ChartState(axis="epoch"), size=(width, 20)))
    )


def megatron(*attempts: range) -> JoinedRun:
    """1024 samples a step."""
    lines = [
        f" iteration {step:8}/ 4000 | consumed samples: {1024 * step:12} | lm loss: "
        f"{9 - step / 500:.4E} |\n"
        for steps in attempts
        for step in steps
    ]
    log = MetricLog()
    log.append(MetricReader().feed("".join(lines).encode(), is_end=True))
    return joined([log])


def test_the_axis_of_samples_is_that_of_consumed_ones_and_points_are_counted_apart() -> None:
    run = megatron(range(1, 2588))
    assert request(run).axes == ("step", "samples", "point")
    assert "lowest 3.826 at 2 649 088 samples" in plain_text(
        draw(request(run, state=ChartState(axis="samples")))
    )
    assert "at point 2 586" in plain_text(draw(request(run, state=ChartState(axis="point"))))
    assert request(make_run(np.ones(9))).axes == ("step", "time", "point")


def test_steps_are_known_along_every_axis_over_restarts_too() -> None:
    run = megatron(range(1, 600), range(501, 1000))
    assert run.steps_along("lm loss", "step").tolist() == list(range(1, 1000))
    assert run.steps_along("lm loss", "samples").tolist() == list(range(1, 1000))
    assert run.series("lm loss", "samples").x.tolist() == [1024.0 * step for step in range(1, 1000)]
    assert run.steps_along("lm loss", "point").tolist() == [*range(1, 600), *range(501, 1000)]
    assert [one.x[0] for one in run.overlap("lm loss", "samples")] == [501 * 1024.0]
    assert "R" in plain_text(draw(request(run, state=ChartState(axis="samples"))))


def test_smoothing_is_named_without_a_number_that_moves_and_only_where_there_is_one() -> None:
    assert SMOOTHINGS[:3] == ("auto", "none", "ema 0.9")
    said = {
        count: plain_text(draw(request(make_run(np.linspace(4, 2, count)))))
        for count in (50, 400, 4000)
    }
    assert ["smoothed (auto)" in text for text in said.values()] == [False, True, True]
    assert not any("ema" in text or "not smoothed" in text for text in said.values())
    chosen = request(make_run(np.linspace(4, 2, 400)), state=ChartState(smoothing="ema 0.97"))
    assert plain_text(draw(chosen)).splitlines()[0].rstrip().endswith("ema 0.97")


@for_each(("rise", "peak"), [(1, 601), (20, 620), (60, 660)])
def test_the_sign_of_a_spike_stands_above_its_peak(rise: int, peak: int) -> None:
    values = 2.0 + np.random.default_rng(1).normal(0, 0.02, 1500)
    values[600 : 600 + rise] = np.linspace(5, 9, rise) if rise > 1 else 9.0
    values[600 + rise : 640 + rise] += np.linspace(4, 0, 40)
    run = make_run(values)
    reading = RunReader().read(run, ("loss",), "step", JobFacts(1.7e9))
    shown = ChartRun("A", "job", run, reading.marks, "step")
    picture = draw(ChartRequest((shown,), ChartState(smoothing="none"), 90, 20))
    lines = plain_text(picture).splitlines()
    (columns,) = [
        [at for at, sign in enumerate(line) if sign == "▲"] for line in lines if "▲" in line
    ]
    (panel,) = picture.panels
    assert columns == [panel.column_at(float(peak))]
    # And there the curve is at its highest: no row above has any of its dots.
    (row,) = [number for number, line in enumerate(lines) if "▲" in line]
    assert lines[row + 1][columns[0]] not in " ─"


def svg_shapes(text: str, kind: str) -> list[list[tuple[float, float]]]:
    """The points of each line of a class."""
    lines = [
        one for one in ET.fromstring(text).iter() if one.get("class") == kind and one.get("points")
    ]
    return [
        [tuple(map(float, point.split(","))) for point in (one.get("points") or "").split()]
        for one in lines
    ]


def test_an_svg_has_the_lines_the_axes_and_every_spike() -> None:
    values = 2 + 8 * np.exp(-np.arange(200_000) / 20_000)
    values[150_000] = 20.0
    values[60_000:70_000] = np.nan
    text = draw_svg(request(make_run(values)), 'job 1 <b>&"\x07')
    lines = svg_shapes(text, "raw")
    assert len(lines) == 2
    assert len(text) < 300_000
    top = min(y for line in lines for _, y in line)
    (peak,) = [x for line in lines for x, y in line if y == top]
    left, right = lines[0][0][0], lines[-1][-1][0]
    assert (peak - left) / (right - left) == pytest.approx(0.75, abs=0.002)
    assert svg_shapes(text, "smoothed")
    words = [one.text or "" for one in ET.fromstring(text).iter() if one.tag.endswith("text")]
    assert {"as written", "smoothed (auto)", "loss", "step", "50 000", "20"} <= set(words)
    assert words[0].startswith('job 1 <b>&"')


@for_each(
    "values", [np.full(9, np.nan), np.array([3.0]), np.zeros(40), np.array([1e308, -1e308] * 200)]
)
@for_each("log_y", [False, True])
def test_any_values_make_an_svg_that_can_be_read(values: Floats, log_y: bool) -> None:
    text = draw_svg(
        request(make_run(values), make_run(values), state=ChartState(log_y=log_y)), "two"
    )
    assert ET.fromstring(text).tag.endswith("svg")
    assert not re.search("nan|inf", text)


def test_few_points_are_too_few_to_tell() -> None:
    def read(count: int) -> bool:
        run = make_run(np.linspace(4, 2, count))
        return RunReader().read(run, ["loss"], "step", JobFacts(0.0)).too_few

    assert [read(count) for count in (1, 19, 20, 400)] == [True, True, False, False]


def test_the_end_is_told_from_how_the_log_is_seen_to_grow() -> None:
    def write_log(last: int) -> JoinedRun:
        text = "".join(
            f"iteration {step}/4000 | loss {4 - step / 4000} | iteration time (s): 1.02\n"
            for step in range(last)
        )
        log = MetricLog()
        log.append(MetricReader().feed(text.encode(), is_end=True))
        return joined([log])

    reader = RunReader()
    said = []
    for second in range(12):
        facts = JobFacts(1e9 + second, True, 1740.0, 3600.0)
        said.append(reader.read(write_log(600 + 10 * second), ["loss"], "step", facts).course)
    assert said[0] == (
        "ends in 57 min, limit in 29 min: needs 1 more job of this length",
        "1.02 s/step, steady",
    )
    assert said[-1] == (
        "ends in 5 min, limit in 29 min",
        "0.1 s/step (the log reports 1.02 s/step)",
    )


def read_log(content: bytes) -> JoinedRun:
    log = MetricLog()
    log.append(MetricReader().feed(content, is_end=True))
    return joined([log])


@for_each("unit", ["", "000", "000000", "000000000", ".25"])
def test_times_in_seconds_to_nanoseconds_are_one_axis(unit: str) -> None:
    content = "".join(
        f'{{"step":{step},"ts":17321904{step:02}{unit},"loss":2}}\n' for step in range(1, 9)
    )
    run = read_log(content.encode())
    assert run.axes() == ("step", "time", "point")
    assert run.series("loss", "time").x == pytest.approx(1732190400 + np.arange(1, 9), abs=0.3)
    asked = replace(request(run, state=ChartState(axis="time")), zone=UTC)
    assert "12:00:0" in plain_text(draw(asked))
    assert "12:00:0" in draw_svg(asked, "a run")


@for_each(
    "log",
    [
        '{{"step":{n},"ts":1e300,"loss":2}}\n',
        '{{"step":{n},"ts":173219040000000000000000,"loss":2}}\n',
        '{{"step":{n},"time":Infinity,"loss":2}}\n',
        "0001-01-01 00:00:0{n} step {n} loss 2.0\n",
        "9999-12-31 23:59:5{n} step {n} loss 2.0\n",
        '{{"step":{n},"epoch":-Infinity,"tokens":Infinity,"loss":2}}\n',
        '{{"step":{n},"epoch":-1.7e308,"tokens":1.7e308,"loss":2}}\n',
    ],
)
def test_times_of_other_centuries_and_what_is_no_finite_place_are_no_axis(log: str) -> None:
    run = read_log("".join(log.format(n=n) for n in range(1, 9)).encode())
    assert run.axes() == ("step", "point")
    for axis in ("time", "epoch", "tokens"):
        assert draw(request(run, state=ChartState(axis=axis))).axis == "step"


def test_no_text_of_a_log_is_a_formula_in_a_csv(tmp_path: Path) -> None:
    hostile = "=HYPERLINK(1) loss"
    run = read_log(
        b"".join(b'{"step":%d,"=HYPERLINK(1) loss":-2,"@acc":1}\n' % step for step in (1, 2))
    )
    assert run.names == (hostile, "@acc")
    assert encode_csv(without_formulas(run.table(run.names))).splitlines() == [
        b'"step","\'=HYPERLINK(1) loss","\'@acc"',
        b"1,-2,1",
        b"2,-2,1",
    ]
    assert run.table(run.names).column_names == ["step", hostile, "@acc"]
    exact = encode_csv(run.table(run.names)).splitlines()
    assert exact == [b'"step","=HYPERLINK(1) loss","@acc"', b"1,-2,1", b"2,-2,1"]
    (tmp_path / "aliases").write_text("precious")
    for name in ("chart.csv", "chart.svg"):
        (tmp_path / name).symlink_to("aliases")
    csv_file, _ = write_chart(
        tmp_path, "chart", request(run, state=ChartState((hostile,))), "a run"
    )
    lines = csv_file.read_text().splitlines()
    assert lines[1].startswith('"job A","\'=HYPERLINK(1) loss",1,-2,')
    assert len(lines) == 3
    assert (tmp_path / "aliases").read_text() == "precious"
