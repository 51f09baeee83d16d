"""Each format's log is read as its program meant it; a log without metrics has none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.services.metrics.batch import MetricBatch
from hpcdash.services.metrics.reader import MetricReader
from tests.services.metrics.metric_cases import (
    CONTENTS,
    NAMES,
    expected,
    expected_samples,
    samples,
    without_offsets,
)
from tests.support.records import for_each


def read(text: str) -> list[str]:
    return without_offsets(samples([MetricReader().feed(text.encode(), is_end=True)]))


@for_each("name", NAMES)
def test_a_log_says_what_its_program_meant(name: str) -> None:
    batch = MetricReader().feed(CONTENTS[name], is_end=True)
    assert without_offsets(samples([batch])) == expected_samples(name)
    assert (batch.format, batch.last_step) == (
        expected(name)["format"],
        expected(name)["last_step"],
    )


@for_each("name", NAMES)
def test_a_sample_is_where_its_first_line_begins(name: str) -> None:
    content = CONTENTS[name]
    for offset in MetricReader().feed(content, is_end=True).offsets.tolist():
        assert offset == 0 or content[offset - 1 : offset] in (b"\n", b"\r")


@for_each(
    "prefix", ["0: ", "[rank0]: ", "2026-03-04 09:30:00,123 - INFO - ", "\x1b[36mINFO\x1b[0m "]
)
@for_each("end", ["\n", "\r\n"])
def test_what_stands_before_a_line_changes_nothing(prefix: str, end: str) -> None:
    plain = MetricReader().feed(CONTENTS["nanogpt"], is_end=True)
    lines = CONTENTS["nanogpt"].decode().splitlines()
    batch = MetricReader().feed(
        "".join(prefix + line + end for line in lines).encode(), is_end=True
    )
    assert batch.steps.tolist() == plain.steps.tolist()
    assert {name: p.values.tolist() for name, p in batch.metrics.items()} == {
        name: p.values.tolist() for name, p in plain.metrics.items()
    }


@for_each("duration", ["1 day, 2:03:04", "12 days, 23:03:04"])
def test_a_duration_of_days_is_no_metric(duration: str) -> None:
    log = f"step 5 | loss: 2.5 | iter time: 4.5 ms (step) remaining time: {duration}\n"
    batch = MetricReader().feed(log.encode(), is_end=True)
    assert {*batch.metrics} == {"loss", "iter time"}


@for_each(
    ("line", "value"),
    [
        ("step 5: loss nan", "nan"),
        ("step 5: loss NaN", "nan"),
        ("step=5 loss=-inf", "-inf"),
        ("step: 5, loss: Infinity", "inf"),
        ("step 5/10 | loss 2.5e+01", "25.0"),
        ("global_step: 5 loss: 1,234.5", "1234.5"),
        ("it: 5 loss: 1.2k", "1200.0"),
        ("Train Epoch: 1 [5/60000 (0%)]\tLoss: 2.25", "2.25"),
        ("epoch 1/3 batch 5/100 - loss: .5", "0.5"),
        ("Epoch [1/5], Step [5/600], Loss: 2.2000", "2.2"),
        ('{"step": 5, "loss": 2.0, "note": "50%| of https://x/?q={\'a\'}"}', "2.0"),
    ],
)
def test_numbers_are_read_as_they_are_written(line: str, value: str) -> None:
    (sample,) = read(line + "\n")
    assert sample.startswith("(5.0, ")
    assert f"oss', {value})]" in sample


@for_each(
    "line",
    [
        "step 5: loss at 10.0.0.17",
        "step 5: loss: 10.0.0.17",
        "step 5 loss=10:20:30",
        "step 5.5: loss=1",
        "steps: many, loss: 3.4",
        "Trainer(step=5, loss=3)",
        "step=5",
        "5%|▌| 1/2 [00:00<00:01, 1it/s, loss=3]",
        '{"step": 5, "loss": "high"}',
        '{"step": 5, "loss": 1',
    ],
)
def test_what_only_looks_like_a_metric_is_none(line: str) -> None:
    assert read(line + "\n") == []


@pytest.mark.parametrize(
    ("before", "is_read"),
    [
        ("Validation:", False),
        ("[rank0]: Validation epoch 3:", False),
        ("0: test:", False),
        ("Epoch 3 (val):", False),
        ("Epoch 3 validating:", False),
        ("Epoch 3:", True),
        ("(test-job pid=7) Epoch 3:", True),
        ("my test of 3: Epoch 3:", True),
    ],
)
def test_the_bar_of_a_validation_is_none_of_the_training(before: str, is_read: bool) -> None:
    assert bool(read(f"{before}  45%|####| 45/100 [00:10<00:12, 4.3it/s, loss=0.2]\n")) == is_read


def test_of_a_bars_repaints_of_one_step_the_last_counts() -> None:
    bar = "\rEpoch 3:  45%|████▌     | 450/1000 [00:10<00:12, 43.2it/s, loss={}, v_num=7]"
    assert read(bar.format(0.5) + bar.format(0.4) + bar.format(0.3)) == [
        "(3450.0, 3.0, nan, nan, [('loss', 0.3)])"
    ]


def test_a_dict_without_a_bar_beside_it_has_no_step() -> None:
    assert read("{'loss': 2.5, 'epoch': 0.5}\n{'loss': 2.0, 'epoch': 1.0}\n") == [
        "(nan, 0.5, nan, nan, [('loss', 2.5)])",
        "(nan, 1.0, nan, nan, [('loss', 2.0)])",
    ]


def test_a_time_with_a_zone_is_that_moment() -> None:
    assert read("2026-03-04T10:30:00+01:00 step 5 loss 2.5\n") == read(
        "2026-03-04T09:30:00Z step 5 loss 2.5\n"
    )


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=80),
            st.sampled_from([b"step", b"loss", b" 5", b"=", b"{'", b"%|", b"\n"]),
        )
    )
)
def test_no_bytes_break_the_reader(parts: list[bytes]) -> None:
    samples([MetricReader().feed(b"".join(parts), is_end=True)])


@for_each(
    "line",
    [
        "step {}: loss {} lr 0.001",
        "step {} loss {} lr 1e-4",
        "step={} loss={} lr=0.001",
        "iteration {} | lm loss {} | lr: 3e-4",
        "Step {} - loss {} - lr 1e-4",
        "iter {}: loss {}, time 12.3ms, mfu 12.3%",
        "step {}: train loss {}, val loss {}",
        "Epoch: [0][{}/100] Time 0.1 (0.1) Loss {} ({}) Acc@1 3.0",
        "Epoch 0:  {}%|#  | {:.0f}/100 [00:01<00:10, 5.0it/s, loss={}, v_num=0]",
    ],
)
@for_each("word", ["nan", "NaN", "inf", "Infinity"])
def test_a_value_that_is_no_number_is_read_as_a_number_would_be(line: str, word: str) -> None:
    def read(word: str) -> MetricBatch:
        is_bar = "{:.0f}" in line
        said = [
            line.format(at, float(at), word) if is_bar else line.format(at, word, word)
            for at in range(1, 7)
        ]
        return MetricReader().feed("".join(f"{one}\n" for one in said).encode(), is_end=True)

    number, odd = read("2.5"), read(word)
    assert list(odd.metrics) == list(number.metrics)
    assert odd.steps.tolist() == number.steps.tolist() == [1, 2, 3, 4, 5, 6]
    changed = {name for name, points in odd.metrics.items() if not np.isfinite(points.values).any()}
    assert (
        changed
        == {name for name, points in number.metrics.items() if (points.values == 2.5).all()}
        != set()
    )


def test_a_word_for_no_number_may_be_part_of_a_name_and_lightnings_bars_pad_it() -> None:
    said = MetricReader().feed(
        b"iteration 7 | lm loss: nan | number of nan iterations: 3 |\n", is_end=True
    )
    assert said.metrics["number of nan iterations"].values.tolist() == [3.0]
    bar = b"Epoch 0:  7%|#  | 7/100 [00:01<00:10, 5.0it/s, loss=nan.0, v_num=0]\n"
    assert np.isnan(MetricReader().feed(bar, is_end=True).metrics["loss"].values).all()


@pytest.mark.parametrize(
    "line",
    [
        "step {}/{} loss 2.0",
        "step 1/{} loss {}",
        "iteration {}/{} | lm loss: 2.0",
        "epoch {}/{} batch {}/{} - loss: 2.0",
        "epoch=1, batch={}/{}, loss=2.0",
        "Epoch: [{}][ 1/{}] Loss 2.0",
        "Epoch [{}/{}], Step [{}/{}], Loss: 2.0",
        "100%|###| {0}/{0} [00:01<00:00, 1it/s, loss=2.0]",
        "Epoch {0}: 100%|###| {0}/{0} [00:01<00:00, 1it/s, loss=2.0]",
        "Epoch {0}/{0}\n{0}/{0} [=====] - loss: 2.0\nEpoch 2/3\n{0}/{0} [=====] - loss: 2.0",
        "[batch={}/{}]:\n\tloss: 2.0",
        "[step={}/{},epoch={}]\n    loss=2.0",
        "{{'loss': {}, 'epoch': {}}}",
        '{{"step": {}, "max_steps": {}, "loss": {}, "epoch": {}}}',
        "step,loss\n{},{}\n{},2.0",
        "step {} loss 1e{}",
    ],
)
@given(
    lengths=st.lists(
        st.one_of(st.integers(1, 30), st.sampled_from([308, 309, 400, 4300, 4301])),
        min_size=4,
        max_size=4,
    )
)
def test_numbers_of_any_length_break_no_line(line: str, lengths: tuple[int, ...]) -> None:
    said = line.format(*("9" * length for length in lengths)) + "\n"
    batch = MetricReader().feed(said.encode() * 4, is_end=True)
    assert not bool((batch.steps >= 2.0**53).any())
    assert batch.last_step is None or batch.last_step < 2**53


@for_each(
    "words",
    [
        "a-" * 4000,
        "a1-" * 2700,
        "a- " * 2700,
        "deadbeef" * 1000,
        "a/b" * 2700,
        "nan-" * 2000,
        "a=" * 4000,
        "step/" * 1600,
        ("a-" * 39 + "a ") * 100,
        "nan " + ("a-" * 39 + "a ") * 98,
        "Epoch [1/5" * 800,
        "[1/25][" * 1100,
        "Train: 0 [ 1/2 ( 3%) " * 380,
        "Progress on:1it/" * 500,
        "loss at step 1" * 570,
        "a's of 1 " * 890,
    ],
)
def test_a_long_line_costs_no_more_than_its_length(words: str) -> None:
    check_cost(f"step 0 {words} ://\n".encode())


@pytest.mark.parametrize(
    "before", ["1: " * 52 + "x", "[a] " * 39 + "x", "(a) " * 39 + "x", "test " * 31 + "x"]
)
def test_what_stands_before_a_bar_costs_no_more_than_its_length(before: str) -> None:
    check_cost(f"{before} 45%|####| 45/100 [00:10<00:12, 4.3it/s, loss=0.2]\n".encode())


def check_cost(content: bytes) -> None:
    """An expression that goes back over what it read would read it for ever."""
    assert MetricReader().feed(content, is_end=True) is not None
