"""However a log's bytes are cut, and from whichever end they are read, the samples are the same."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hpcdash.errors import ConfigError
from hpcdash.services.metrics.batch import MAX_LOSSES, MAX_METRICS
from hpcdash.services.metrics.reader import LONGEST_LINE_BYTES, MetricReader
from tests.services.metrics.metric_cases import CONTENTS, MIXED, NAMES, samples
from tests.support.records import for_each

# No shrinking: it takes minutes, and the first example found says enough.
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
LOGS = CONTENTS | {"mixed": MIXED}
HEADERS = {"csvlogger": CONTENTS["csvlogger"].split(b"\n", 1)[0].decode().split(",")}
FORWARD = {
    name: samples([MetricReader().feed(content, is_end=True)]) for name, content in LOGS.items()
}


def backwards(content: bytes, length: int, header: list[str] | None) -> list[str]:
    """A log read stretch by stretch from its end; a stretch in which nothing can be placed is made
    longer.
    """
    rows: list[str] = []
    end, wanted = len(content), length
    while end:
        begin = max(0, end - wanted)
        reader = MetricReader(at=begin, csv_header=header)
        batch = reader.feed(content[begin:end], is_end=True)
        whole_from = end if reader.whole_from is None else reader.whole_from
        assert begin <= whole_from <= end
        if whole_from == end and begin:
            wanted *= 2
            continue
        rows = samples([batch]) + rows
        end, wanted = whole_from if begin else 0, length
    return rows


@settings(phases=QUICK)
@given(st.sampled_from([*NAMES, "mixed"]), st.lists(st.integers(1, 3000), min_size=1, max_size=60))
def test_any_split_of_the_bytes_gives_the_same_samples(name: str, lengths: list[int]) -> None:
    content = LOGS[name]
    reader = MetricReader()
    batches = []
    position = 0
    for length in lengths * (1 + len(content) // sum(lengths)):
        batches.append(reader.feed(content[position : position + length]))
        position += length
    batches.append(reader.feed(content[position:], is_end=True))
    assert samples(batches) == FORWARD[name]


@for_each("name", NAMES)
def test_byte_after_byte_gives_the_same_samples(name: str) -> None:
    content = LOGS[name][:2500]
    reader = MetricReader()
    batches = [reader.feed(content[i : i + 1]) for i in range(len(content))]
    batches.append(reader.feed(b"", is_end=True))
    assert samples(batches) == samples([MetricReader().feed(content, is_end=True)])


@settings(phases=QUICK)
@given(st.sampled_from([*NAMES, "mixed"]), st.integers(40, 9000))
def test_stretches_read_backwards_join_to_what_forward_reading_says(name: str, length: int) -> None:
    assert backwards(LOGS[name], length, HEADERS.get(name)) == FORWARD[name]


@settings(phases=QUICK)
@given(st.sampled_from([*NAMES, "mixed"]), st.floats(0, 1))
def test_a_reader_that_begins_at_the_end_goes_on_where_the_past_is_filled_in(
    name: str, part: float
) -> None:
    content = LOGS[name]
    at = int(part * len(content))
    reader = MetricReader(at=at, csv_header=HEADERS.get(name))
    recent = samples(
        [reader.feed(content[at : at + 500]), reader.feed(content[at + 500 :], is_end=True)]
    )
    whole_from = len(content) if reader.whole_from is None else reader.whole_from
    assert backwards(content[:whole_from], 2000, HEADERS.get(name)) + recent == FORWARD[name]


def test_the_last_line_counts_once_it_ended() -> None:
    reader = MetricReader()
    assert len(reader.feed(b"step 5 loss 2.2").offsets) == 0
    assert reader.feed(b"5\nstep 6").metrics["loss"].values.tolist() == [2.25]


def test_a_million_names_are_cut_to_the_first() -> None:
    reader = MetricReader()
    names: set[str] = set()
    for begin in range(0, 20_000, 1000):
        lines = "".join(f"step={i} loss=1 x{i}=2 loss_{i}=3\n" for i in range(begin, begin + 1000))
        names.update(reader.feed(lines.encode()).metrics)
    assert "loss" in names
    assert len(names) <= MAX_LOSSES
    assert sum("loss" not in name for name in names) <= MAX_METRICS


def test_a_line_without_an_end_is_not_kept() -> None:
    reader = MetricReader()
    for _ in range(200):
        reader.feed(b"step=1 loss=2 " * 5000)
        assert len(reader._tail) <= LONGEST_LINE_BYTES
    (only,) = samples([reader.feed(b"\nstep=7 loss=3\n", is_end=True)])
    assert only == repr((200 * 70_000 + 1, 7.0, *[float("nan")] * 3, [("loss", 3.0)]))


@for_each("length", [300, 5000, 9000, 40_000])
def test_a_line_too_long_is_none_from_either_side(length: int) -> None:
    content = b"step=1 loss=1\n" + b"step=2 loss=2 " * 3000 + b"\nstep=3 loss=3\n" * 3
    forward = samples([MetricReader().feed(content, is_end=True)])
    assert len(forward) == 4
    assert backwards(content, length, None) == forward


@for_each("length", [1, 5, 4096, LONGEST_LINE_BYTES - 5, LONGEST_LINE_BYTES + 1, 300_000])
def test_the_line_behind_a_hole_is_read_from_either_side(length: int) -> None:
    lines = [b"step %d loss 2.5\n" % step for step in range(1, 400)]
    content = b"".join(
        line + b"\0" * length * (number % 100 == 50) for number, line in enumerate(lines)
    )
    whole = MetricReader().feed(content, is_end=True)
    assert whole.steps.tolist() == [float(step) for step in range(1, 400)]
    assert all(content[offset : offset + 4] == b"step" for offset in whole.offsets.tolist())
    for size in (1000, 70_000):
        reader = MetricReader()
        parts = [reader.feed(content[at : at + size]) for at in range(0, len(content), size)]
        assert samples([*parts, reader.feed(b"", is_end=True)]) == samples([whole])
        assert backwards(content, size, None) == samples([whole])


def test_a_persons_own_patterns_come_first() -> None:
    reader = MetricReader(
        [r"after (?P<step>\d+): energy (?P<energy>[-.\d]+)(?: of (?P<tokens>\d+))?"]
    )
    batch = reader.feed(b"after 5: energy -3.5 of 70\nafter 6: energy -4.5\nstep 7 loss 1\n")
    assert batch.steps.tolist() == [5, 6, 7]
    assert batch.axes[2, 0] == 70
    assert batch.metrics["energy"].values.tolist() == [-3.5, -4.5]
    assert batch.metrics["loss"].samples.tolist() == [2]


@for_each("pattern", ["loss=(?P<loss>[0-9.]+", "loss=([0-9.]+)", r"(?P<step>\d+)"])
def test_a_bad_pattern_is_named(pattern: str) -> None:
    with pytest.raises(ConfigError) as raised:
        MetricReader([pattern])
    assert repr(pattern) in raised.value.message
    assert raised.value.next_step


def test_a_table_whose_header_changes_with_each_line_is_none_and_costs_little() -> None:
    content = b"step,loss,lr\n1,2.5,0.1\n" + b"".join(
        b"step,loss%d\n1,2.5\n" % (i % 2) for i in range(10_000)
    )
    batch = MetricReader().feed(content, is_end=True)
    assert batch.metrics["loss"].values.tolist() == [2.5]
    assert sum(points.values.size for points in batch.metrics.values()) < 40


def test_rows_are_under_the_header_that_came_last() -> None:
    rows = b"".join(b"%d,2.5,0.1\n" % step for step in range(50))
    swapped = b"".join(b"%d,0.1,2.5\n" % step for step in range(50, 100))
    batch = MetricReader().feed(
        (b"step,loss,lr\n" + rows) * 30 + b"step,lr,loss\n" + swapped, is_end=True
    )
    assert set(batch.metrics["loss"].values.tolist()) == {2.5}
    assert len(batch.offsets) == 1550
