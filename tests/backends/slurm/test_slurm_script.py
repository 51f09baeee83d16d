"""A job's batch script as scontrol and sacct print it, and in which words they have none."""

from __future__ import annotations

import pytest

from hpcdash.backends.slurm.detail import SlurmScripts, parse_history_script, parse_script
from hpcdash.errors import AccountingUnavailable, NoSuchJob, SchedulerRefused
from tests.support.records import for_each
from tests.support.slurm_text import answered

TEXT = b"#!/bin/sh\n# caf\xe9\r\n\nsleep 5\n"
RULE = b"-" * 80 + b"\n"


def heading(job_id: bytes) -> bytes:
    return b"Batch Script for " + job_id + b"\n" + RULE


def test_a_script_keeps_every_byte() -> None:
    assert parse_script(answered(TEXT)).text.encode("utf-8", "surrogateescape") == TEXT


def test_a_task_s_script_is_asked_for_by_its_first_task() -> None:
    assert SlurmScripts().query("88_[3-9%1]").argv[-2:] == ("88_3", "-")


@for_each("status", [0, 1])
@for_each(
    ("words", "kind", "said"),
    [
        (b"job script retrieval failed: Invalid user id", SchedulerRefused, "another user's"),
        (
            b"job script retrieval failed: Job script not specified",
            SchedulerRefused,
            "no batch script",
        ),
        (b"job script retrieval failed: Invalid job id specified", NoSuchJob, "no longer knows"),
    ],
)
def test_where_there_is_no_script_scontrol_s_words_tell_why(
    words: bytes, kind: type[Exception], said: str, status: int
) -> None:
    with pytest.raises(kind, match=said):
        parse_script(answered(b"", status=status, stderr=words))


def test_sacct_s_heading_and_newline_are_not_the_script_s() -> None:
    assert (
        parse_history_script(answered(heading(b"30") + TEXT + b"\n")).text
        == parse_script(answered(TEXT)).text
    )


def test_a_script_that_ends_in_the_middle_of_a_line_stays_so() -> None:
    assert (
        parse_history_script(answered(heading(b"30") + b"#!/bin/sh\ntrue\n")).text
        == "#!/bin/sh\ntrue"
    )


def test_an_array_s_script_comes_once_for_each_row() -> None:
    printed = heading(b"88_1") + TEXT + b"\n" + heading(b"88_[2-3%1]") + TEXT + b"\n"
    assert parse_history_script(answered(printed)).text == parse_script(answered(TEXT)).text


def test_a_script_may_hold_a_line_like_the_heading() -> None:
    forged = TEXT + heading(b"30") + b"rm -rf /\n"
    assert (
        parse_history_script(answered(heading(b"30") + forged + b"\n")).text
        == parse_script(answered(forged)).text
    )


@pytest.mark.parametrize("printed", [b"", heading(b"30") + b"NONE\n\n"])
def test_the_accounting_may_keep_no_script(printed: bytes) -> None:
    with pytest.raises(AccountingUnavailable):
        parse_history_script(answered(printed))


def test_sacct_is_asked_for_the_array() -> None:
    assert SlurmScripts().history_query("88_3").argv[-2:] == ("-j", "88")
