"""One job as PBS tells it, and how that joins its row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.detail import PbsDetail, parse_native
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.listing import Want
from hpcdash.domain import schema
from hpcdash.errors import ControllerDown, HpcdashError, NoSuchJob, UnreadableOutput
from hpcdash.transport.base import CommandResult
from tests.support.pbs.job_text import ARRAY, JOB, answered, dsv, parsed, question
from tests.support.records import for_each

PATHS = {
    "Output_Path": "login1:/home/alice/work/train.o12",
    "Error_Path": "login1:/home/alice/work/train.e12",
}


def files(
    job_id: str = "12.pbs01", base: Mapping[str, str] = JOB, **changed: str
) -> tuple[str | None, str | None, str | None]:
    """(stdout_path, stderr_path, work_dir) of a job whose attributes are these."""
    native = {"Job Id": job_id, **base, **PATHS, **changed}
    row = parsed(dsv(job_id, base), want=Want.NAMED).table.slice(0, 1)
    detail = PbsDetail(Dialect.OPENPBS).join(row, native)
    assert detail.native == native
    assert detail.job.schema == schema.JOBS
    (only,) = detail.job.to_pylist()
    return only["stdout_path"], only["stderr_path"], only["work_dir"]


def test_the_files_are_paths_without_the_host() -> None:
    assert files()[:2] == ("/home/alice/work/train.o12", "/home/alice/work/train.e12")


def test_a_file_s_own_colon_stays() -> None:
    assert files(Output_Path="login1:/home/alice/12:30.log")[0] == "/home/alice/12:30.log"
    assert files(Output_Path="/home/alice/12:30.log")[0] == "/home/alice/12:30.log"


@for_each(
    ("joined", "expected"),
    [
        ("oe", ("/home/alice/work/train.o12",) * 2),
        ("eo", ("/home/alice/work/train.e12",) * 2),
        ("n", ("/home/alice/work/train.o12", "/home/alice/work/train.e12")),
    ],
)
def test_joined_streams_are_one_file(joined: str, expected: tuple[str, str]) -> None:
    assert files(Join_Path=joined)[:2] == expected


def test_a_folder_holds_files_named_by_the_job() -> None:
    found = files(Output_Path="login1:/home/alice/logs/", Error_Path="login1:/home/alice/logs/")
    assert found[:2] == ("/home/alice/logs/12.pbs01.OU", "/home/alice/logs/12.pbs01.ER")


def test_a_subjob_s_number_is_filled_in() -> None:
    found = files("14[3].pbs01", Output_Path="login1:/home/alice/log.^array_index^.txt")
    assert found[0] == "/home/alice/log.3.txt"


def test_what_waits_of_an_array_keeps_the_place_of_its_number() -> None:
    found = files("14[].pbs01", ARRAY, Output_Path="login1:/home/alice/log.^array_index^.txt")
    assert found[0] == "/home/alice/log.^array_index^.txt"


def test_a_job_that_is_no_array_has_the_words_in_its_file_s_name() -> None:
    assert (
        files(Output_Path="login1:/home/alice/^array_index^.log")[0]
        == "/home/alice/^array_index^.log"
    )


def test_output_that_is_kept_is_in_the_home_folder_whatever_path_was_asked_for() -> None:
    found = files(
        Keep_Files="oe", Output_Path="login1:/data/x.out", Variable_List="PBS_O_HOME=/home/alice"
    )
    assert found[:2] == ("/home/alice/train.o12", "/home/alice/train.e12")


def test_an_interactive_job_has_no_files() -> None:
    assert files(interactive="True", Output_Path="/dev/pts/1")[:2] == (None, None)


def test_a_job_that_tells_no_path_has_none() -> None:
    assert files(Output_Path="", Error_Path="")[:2] == (None, None)


def test_the_folder_is_the_one_it_was_submitted_from() -> None:
    listed = r"PBS_O_HOME=/home/alice,PBS_O_WORKDIR=/home/alice/a\,b,PBS_O_QUEUE=workq"
    assert files(Variable_List=listed)[2] == "/home/alice/a,b"
    assert files()[2] is None


# -- everything of a job


def native(*lines: bytes, job_id: str = "12", **answer: Any) -> Mapping[str, str]:
    return parse_native(
        answered(*lines, **answer), question=question(Want.WHOLE, Dialect.OPENPBS, job_id)
    )


def test_everything_is_there_in_its_order() -> None:
    found = native(dsv("12.pbs01", JOB | {"Variable_List": "A=1,B=2", "project": "p"}))
    assert list(found)[:3] == ["Job Id", "Job_Name", "Job_Owner"]
    assert (found["Variable_List"], found["Resource_List.ncpus"], found["project"]) == (
        "A=1,B=2",
        "4",
        "p",
    )


@for_each("job_id", ["14[6-10].pbs01", "14[]", "14"])
def test_of_several_tasks_it_is_what_is_said_of_their_array(job_id: str) -> None:
    assert native(dsv("14[].pbs01", ARRAY), job_id=job_id)["array"] == "True"


def test_a_job_that_was_not_asked_for_is_not_shown() -> None:
    with pytest.raises(NoSuchJob):
        native(dsv("13.pbs01", JOB))


def test_an_unknown_job_is_no_such_job() -> None:
    with pytest.raises(NoSuchJob) as caught:
        native(status=153, stderr=b"qstat: Unknown Job Id 12.pbs01\n")
    assert caught.value.argv == ("qstat", "-x", "-f", "12")
    with pytest.raises(NoSuchJob):
        native()


def test_a_server_that_is_down_is_no_missing_job() -> None:
    with pytest.raises(ControllerDown):
        native(
            status=255,
            stderr=b"Connection refused\nqstat: cannot connect to server pbs01 (errno=15010)\n",
        )


def test_what_is_no_list_is_unreadable() -> None:
    with pytest.raises(UnreadableOutput):
        native(b"usage: qstat\n")


def test_a_whole_job_is_asked_for_without_its_subjobs() -> None:
    argv = PbsDetail(Dialect.OPENPBS).native("14[6-10].pbs01").argv
    assert argv[-1] == "14[].pbs01"
    assert "whole" in argv


@given(st.binary(max_size=60), st.integers(0, 400))
def test_no_answer_breaks_the_reader(noise: bytes, end: int) -> None:
    raw = dsv("12.pbs01", JOB)[:end] + noise
    try:
        found = native(raw)
    except HpcdashError:
        return
    row = parsed(dsv("12.pbs01", JOB), want=Want.NAMED).table
    assert isinstance(PbsDetail(Dialect.OPENPBS).join(row, found).job, pa.Table)


def test_torque_s_details_are_read_from_xml() -> None:
    job = b"<Job><Job_Id>12.s</Job_Id><Resource_List><mem>1gb</mem></Resource_List></Job>"
    raw = b"<?xml version='1.0'?>\n<Data>" + job + b"</Data>\n"
    answer = CommandResult((), 0, b"Clock: 1\n" + raw, b"", 0.1)
    found = parse_native(answer, question=question(Want.WHOLE, Dialect.TORQUE, "12"))
    assert found == {"Job Id": "12.s", "Resource_List.mem": "1gb"}
