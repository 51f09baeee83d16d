"""Lines read many at once say what they say one by one."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hpcdash.services.metrics.reader import MetricReader, plain_lines
from hpcdash.services.metrics.shapes import _are_thousands
from tests.services.metrics.metric_cases import samples
from tests.support.records import for_each

SHAPES = {
    "nanogpt": "iter {step}: loss {a}, time {b}ms, mfu {c}%\n",
    "megatron": " [2026-03-04 09:30:{second:02d}] iteration {step:8d}/   95367 | consumed samples: "
    "{big} |"
    " lm loss: {a} | grad norm: {b} | number of nan iterations:   0 |\n",
    "titan": "[titan] 2026-03-04 09:30:{second:02d},338 - root - INFO - step: {step:2d}  loss: {a} "
    " tps: {big:,}"
    "  mfu: {c}%\n",
    "json": '{{"step": {step}, "loss": {a}, "eval": {{"acc": {b}}}, "tokens": {big}}}\n',
    "plain": "3: step={step}/500 loss={a} lr={b} speed={c}k\n",
    "csv": "{step},{a},,{b}\n",
}
FLOATS = st.one_of(
    st.floats(-1e6, 1e6).map(repr), st.sampled_from(["nan", "inf", "-inf", "0", "2.5E-05", "1e-8"])
)
LINES = st.lists(
    st.tuples(
        st.integers(0, 10**7), FLOATS, FLOATS, FLOATS, st.integers(0, 10**9), st.integers(0, 59)
    ),
    min_size=8,
)
# No shrinking: it takes minutes, and the first example found says enough.
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
# What comes between: other shapes, prose, what nearly fits.
OTHERS = [
    "",
    "hello\n",
    "iter 5: loss 1-2, time 3ms, mfu 4%\n",
    "step=1,5 loss=2\n",
    "iter 1.0: loss 2, time 3ms, mfu 4%\n",
]


@pytest.mark.parametrize("shape", SHAPES)
@settings(phases=QUICK)
@given(LINES, st.lists(st.sampled_from(OTHERS), max_size=20))
def test_many_lines_at_once_say_what_they_say_one_by_one(
    shape: str, numbers: list[tuple], others: list[str]
) -> None:
    lines = [
        SHAPES[shape].format(step=s, a=a, b=b, c=c, big=big, second=second)
        + (others[i] if i < len(others) else "")
        for i, (s, a, b, c, big, second) in enumerate(numbers)
    ]
    header = "step,loss,acc,val_loss\n" if shape == "csv" else ""
    hurried, careful = MetricReader(), MetricReader()
    careful._learn = lambda line: None  # type: ignore[method-assign]
    text = (header + "".join(lines)).encode()
    assert samples([hurried.feed(text, is_end=True)]) == samples([careful.feed(text, is_end=True)])


def test_times_of_a_clock_that_was_not_set_are_none_in_many_lines_as_in_one() -> None:
    form = "[{year}-01-01 00:00:{step:02d},500] step: {step} loss: 2.5\n"
    text = "".join(
        form.format(year=year, step=step) for year in (2026, 1999) for step in range(50)
    ).encode()
    times = MetricReader().feed(text, is_end=True).axes[3]
    assert (times[0], times[49]) == (1767225600.5, 1767225649.5)
    assert np.isnan(times[50:]).all()


@for_each("shape", SHAPES)
def test_a_shape_is_learnt_from_the_first_lines(shape: str) -> None:
    form = SHAPES[shape]
    lines = [
        form.format(step=i, a=i / 7, b=i + 0.5, c=3.5, big=i * 1234 + 1000, second=i % 60)
        for i in range(500)
    ]
    reader = MetricReader()
    careful: list[bytes] = []
    reader._careful = lambda line, offset, read=reader._careful: (
        careful.append(line),
        read(line, offset),
    )  # type: ignore
    header = "step,loss,acc,val_loss\n" if shape == "csv" else ""
    batch = reader.feed((header + "".join(lines)).encode())
    assert batch.steps.tolist() == [float(i) for i in range(500)]
    assert len(careful) < 30


@given(
    st.lists(
        st.sampled_from(
            ["1,234", "12,345,678", "1234,567", "1,23", ".5,123", "1.2", ",", "7", "-"]
        ),
        max_size=5,
    )
)
def test_commas_part_thousands_or_the_line_is_read_carefully(parts: list[str]) -> None:
    text = "\x80".join(parts).encode("latin-1")
    is_bad = re.search(rb"(?<!\d),|,(?!\d\d\d(?!\d))|\d{4},|\.\d*,", text)
    assert _are_thousands(text) == (is_bad is None)


@given(
    st.lists(
        st.sampled_from(
            ["\x1b[31m", "\x1b[m", "\x1b[38;5;196m", "\x1b[1;2;3;4m", "\x1b[A", "\x1b", "a", "7m"]
        )
    )
)
def test_colours_are_taken_out_however_long(parts: list[str]) -> None:
    text = "".join(parts).encode() + b"\n"
    lines, _ = plain_lines(text)
    plain, _ = plain_lines(re.sub(rb"\x1b\[[0-9;]*+m", b"", text))
    assert lines == plain
