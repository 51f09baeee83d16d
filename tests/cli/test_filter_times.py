"""Times in `--filter` are those of this machine's clock on that date."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from hpcdash.cli.jobs import parse_filter
from hpcdash.domain import query
from hpcdash.domain.tables import Kind
from tests.support.job_rows import build_table, job_row


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as context:
        context.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("noon", "expression"),
    [
        (datetime(2026, 1, 15, 11, tzinfo=UTC), "2026-01-15T12:00"),
        (datetime(2026, 7, 15, 10, tzinfo=UTC), "2026-07-15T12:00"),
    ],
    ids=["winter", "summer"],
)
def test_a_time_of_a_filter_has_the_offset_of_its_own_date(noon: datetime, expression: str) -> None:
    table = build_table(job_row("1", submitted_at=noon))
    for operator, count in ((">=", 1), ("<=", 1), ("<", 0), (">", 0)):
        requested = parse_filter(f"submitted_at{operator}{expression}", Kind.MINE)
        assert query.apply(table, requested, noon.timestamp()).num_rows == count
