"""What a job used of what it was given."""

from __future__ import annotations

from typing import Any

import pytest

from hpcdash.backends.job_detail import Usage
from hpcdash.backends.pbs.detail import (
    NOTHING_NOTE,
    RUNNING_NOTE,
    SPREAD_NOTE,
    PbsDetail,
    parse_usage,
)
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.listing import Want
from hpcdash.errors import NoSuchJob
from tests.support.pbs.job_text import (
    ARRAY,
    ENDED_JOB,
    JOB,
    WAITING_JOB,
    answered,
    dsv,
    parsed,
    question,
)

USED = {
    "resources_used.cpupercent": "380",
    "resources_used.cput": "01:10:30",
    "resources_used.mem": "2097152kb",
    "resources_used.ncpus": "4",
    "resources_used.vmem": "8gb",
    "resources_used.walltime": "00:19:00",
}


def first_row(attributes: dict[str, str], job_id: str = "12.pbs01") -> dict[str, Any]:
    row: dict[str, Any] = parsed(dsv(job_id, attributes), want=Want.NAMED).table.to_pylist()[0]
    return row


def used(attributes: dict[str, str]) -> Usage:
    asked = question(Want.WHOLE, Dialect.OPENPBS, "12")
    return parse_usage(
        answered(dsv("12.pbs01", attributes)), question=asked, row=first_row(attributes)
    )


def test_what_a_running_job_used_is_as_old_as_its_sample() -> None:
    found = used(JOB | USED | {"Resource_List.mem": "4gb", "Resource_List.ngpus": "1"})
    assert found == Usage(
        cpu_seconds=4230.0,
        cpus=4,
        elapsed_seconds=1140,
        memory_peak_bytes=2 << 30,
        requested_memory_bytes=4 << 30,
        gpus=1,
        note=RUNNING_NOTE,
    )


def test_what_an_ended_job_used_is_the_whole_of_it() -> None:
    found = used(ENDED_JOB | USED)
    assert (found.cpu_seconds, found.elapsed_seconds, found.note) == (4230.0, 1140, "")


def test_memory_is_that_of_a_node_where_a_job_has_several() -> None:
    found = used(ENDED_JOB | USED | {"exec_host": "cn01/0*2+cn02/0*2", "Resource_List.mem": "4gb"})
    assert (found.memory_peak_bytes, found.requested_memory_bytes, found.note) == (
        1 << 30,
        2 << 30,
        SPREAD_NOTE,
    )


def test_a_job_nothing_was_measured_of_has_used_nothing_known() -> None:
    without = {
        key: value for key, value in ENDED_JOB.items() if not key.startswith("resources_used")
    }
    found = used(without)
    assert (found.cpu_seconds, found.memory_peak_bytes, found.note) == (None, None, NOTHING_NOTE)


def test_a_job_that_has_not_begun_is_not_asked_for() -> None:
    assert PbsDetail(Dialect.OPENPBS).usage(first_row(WAITING_JOB)) is None


def test_several_tasks_are_not_asked_for() -> None:
    for row in parsed(dsv("14[].pbs01", ARRAY)).table.to_pylist():
        assert PbsDetail(Dialect.OPENPBS).usage(row) is None


def test_a_subjob_is_asked_for_by_its_id() -> None:
    query = PbsDetail(Dialect.OPENPBS).usage(first_row(JOB, "14[3].pbs01"))
    assert query is not None
    assert query.argv[-1] == "14[3].pbs01"


def test_a_job_that_is_gone_is_no_such_job() -> None:
    query = PbsDetail(Dialect.OPENPBS).usage(first_row(JOB))
    assert query is not None
    with pytest.raises(NoSuchJob):
        query.parse(answered(status=153, stderr=b"qstat: Unknown Job Id 12.pbs01\n"))
