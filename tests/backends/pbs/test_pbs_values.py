"""PBS's and Torque's ways to write times, sizes and places, each read to one number or none."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs import values
from hpcdash.domain import schema
from tests.support.records import for_each

GIB = 1 << 30


def column(*texts: str | None) -> pa.ChunkedArray:
    """The texts in two chunks, as a column of a table may be."""
    half = len(texts) // 2
    return pa.chunked_array(
        [pa.array(texts[:half], pa.string()), pa.array(texts[half:], pa.string())]
    )


@for_each(
    ("text", "seconds"),
    [
        ("02:00:00", 7200),
        ("168:00:00", 604_800),
        ("00:04", 4),
        ("30", 30),
        ("01:30", 90),
        ("1:00:00:00", 86_400),
        ("00:00:20:00", 1200),
        ("71582788:15:00", 257_698_037_700),
        ("00:00:04.25", 4),
        ("0", 0),
        ("Infinite", None),
        ("-1", None),
        ("", None),
        ("1::2", None),
        ("1:2:3:4:5", None),
        ("٣", None),
    ],
)
def test_durations(text: str, seconds: int | None) -> None:
    assert values.duration_seconds(text) == seconds
    assert values.durations(column(text, None, text)).to_pylist() == [seconds, None, seconds]


@for_each(
    ("text", "size"),
    [
        ("8gb", 8 * GIB),
        ("7128kb", 7128 * 1024),
        ("134217728kb", 128 * GIB),
        ("100b", 100),
        ("1tb", 1024 * GIB),
        ("2pb", 2 << 50),
        ("0b", 0),
        ("0 b", 0),
        ("100", 100),
        ("16000MB", 16000 << 20),
        ("1gw", 8 * GIB),
        ("10w", 80),
        ("1.5gb", 3 * GIB // 2),
        ("4g", 4 * GIB),
        ("9999999999999999999tb", None),
        ("-1kb", None),
        ("kb", None),
        ("", None),
        ("8 gigs", None),
    ],
)
def test_sizes(text: str, size: int | None) -> None:
    assert values.size_bytes(text) == size
    assert values.sizes(column(None, text)).to_pylist() == [None, size]


def test_instants_are_ctime_s_or_epoch_seconds_and_in_utc() -> None:
    texts = (
        "Sat Nov 21 04:01:41 2026",
        "Sun Nov  1 04:01:41 2026",
        "1795233958",
        None,
        "0",
        "-5",
        "soon",
        "",
    )
    read = values.instants(column(*texts))
    assert read.type == schema.TIME
    assert read.to_pylist() == [
        datetime(2026, 11, 21, 4, 1, 41, tzinfo=UTC),
        datetime(2026, 11, 1, 4, 1, 41, tzinfo=UTC),
        datetime(2026, 11, 21, 4, 5, 58, tzinfo=UTC),
        *[None] * 5,
    ]
    assert values.instants(column("99999999999999999")).to_pylist() == [None]


def test_whole_numbers_may_be_negative() -> None:
    assert values.integers(column("-29", "0", None, "1024")).to_pylist() == [-29, 0, None, 1024]
    odd = values.integers(column("-29", "+5", "a", "", "1.5", "99999999999999999999", "12 "))
    assert odd.to_pylist() == [-29, 5, None, None, None, None, None]


def test_words_are_of_the_schema_s_type() -> None:
    assert values.dictionary_text(column("gpu", None, "gpu")).cast(schema.WORD).to_pylist() == [
        "gpu",
        None,
        "gpu",
    ]


def test_hosts_are_named_once_and_written_short() -> None:
    hosts = column(
        "cn01/0*4",
        "cn01/0*4+cn02/1",
        "n1/0+n1/1+n2/0",
        "c0/0-43+c1/0-43",
        None,
        "a/0+b.site.org/1*2",
    )
    lists, counts = values.exec_hosts(hosts)
    assert lists.to_pylist() == ["cn01", "cn[01-02]", "n[1-2]", "c[0-1]", None, "a,b.site.org"]
    assert counts.to_pylist() == [1, 2, 2, 2, None, 2]


def test_the_vnodes_of_a_host_are_that_host() -> None:
    vnodes = "(gpu01[0]:ncpus=4:ngpus=1+gpu01[1]:ncpus=1)+(cn02:mem=2kb)"
    lists, counts = values.exec_hosts(column(vnodes, None, ""))
    assert lists.to_pylist() == ["cn02,gpu01", None, None]
    assert counts.to_pylist() == [2, None, None]


def test_what_dsv_escapes_is_undone_and_a_variable_s_own_backslash_stays() -> None:
    assert values.unescaped(rb"a\nb\\nc\fd\\\\e\,f") == b"a\nb\\nc\x0cd\\\\e\\,f"


def test_columns_of_nothing_stay_nothing() -> None:
    for read in (values.instants, values.durations, values.sizes, values.integers):
        assert read(pa.chunked_array([], pa.string())).to_pylist() == []
        assert read(column(None, None)).to_pylist() == [None, None]
    assert values.exec_hosts(column())[0].to_pylist() == []


@given(
    texts=st.lists(
        st.one_of(st.none(), st.text(max_size=20), st.from_regex(r"[0-9:.+/*()\[\]kgbw -]{0,25}"))
    )
)
def test_no_text_raises_anything(texts: list[str | None]) -> None:
    texts = [None if text is None else text.encode("utf-8", "replace").decode() for text in texts]
    for read in (values.instants, values.durations, values.sizes, values.integers):
        assert len(read(column(*texts))) == len(texts)
    lists, counts = values.exec_hosts(column(*texts))
    assert [bool(names) for names in lists.to_pylist()] == [
        bool(count) for count in counts.to_pylist()
    ]
