from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.rfc3339 import format_utc, parse_utc, table_to_json_rows
from hpcdash.domain.schema import JOBS, NODES, public_names

NOW = 1_795_239_255


def test_a_time_is_written_in_utc_to_the_second() -> None:
    assert format_utc(NOW) == "2026-11-21T05:34:15Z"
    assert format_utc(NOW + 0.9) == "2026-11-21T05:34:15Z"
    assert (
        format_utc(datetime(2026, 11, 21, 7, 34, 15, 999, timezone(timedelta(hours=2))))
        == "2026-11-21T05:34:15Z"
    )
    assert format_utc(datetime(2026, 11, 21, 5, 34, 15)) == "2026-11-21T05:34:15Z"


def test_a_time_with_any_offset_is_read() -> None:
    assert (
        parse_utc("2026-11-21T05:34:15Z")
        == parse_utc("2026-11-21T07:34:15+02:00")
        == parse_utc("2026-11-21 05:34:15")
        == NOW
    )
    with pytest.raises(ValueError, match="'soon' is not an RFC 3339 time"):
        parse_utc("soon")


@given(st.integers(0, 4_000_000_000))
def test_a_written_time_is_read_back_and_columns_are_written_alike(epoch: int) -> None:
    assert parse_utc(format_utc(epoch)) == epoch
    column = pa.array([epoch, None], pa.timestamp("s", tz="UTC"))
    assert table_to_json_rows(pa.table({"at": column}), ["at"]) == [
        {"at": format_utc(epoch)},
        {"at": None},
    ]


def test_rows_of_the_schema_become_what_json_holds() -> None:
    one = {
        "id": "7",
        "user": "ada",
        "cpus": 4,
        "submitted_at": datetime.fromtimestamp(NOW, UTC),
        "_number": 7,
    }
    jobs = pa.table(
        {name: pa.array([one.get(name)], JOBS.field(name).type) for name in JOBS.names}, schema=JOBS
    )
    (row,) = table_to_json_rows(pa.concat_tables([jobs.slice(0, 0), jobs]), public_names(JOBS))
    assert list(row) == public_names(JOBS)
    assert {name: value for name, value in row.items() if value is not None} == {
        "id": "7",
        "user": "ada",
        "cpus": 4,
        "submitted_at": "2026-11-21T05:34:15Z",
    }
    json.dumps(row, allow_nan=False)


def test_lists_stay_lists_and_what_is_no_number_is_null() -> None:
    columns = {"queues": [["a", "b"], [], None], "load": [1.5, float("nan"), float("inf")]}
    nodes = pa.table({name: pa.array(columns[name], NODES.field(name).type) for name in columns})
    assert table_to_json_rows(nodes, ["load", "queues", "jobs"]) == [
        {"load": 1.5, "queues": ["a", "b"], "jobs": None},
        {"load": None, "queues": [], "jobs": None},
        {"load": None, "queues": None, "jobs": None},
    ]
    assert table_to_json_rows(nodes, []) == [{}, {}, {}]
    assert table_to_json_rows(nodes.slice(0, 0), ["load"]) == []
