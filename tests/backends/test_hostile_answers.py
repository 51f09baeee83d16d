"""Whatever a command prints is read, or refused with words, in time that its length allows; see
tests.support.fuzz.
"""

from __future__ import annotations

import random
from itertools import islice

import pytest

from tests.support.fuzz import PATTERNS, Reader, mutants, readers, try_reader, with_runs
from tests.support.records import for_each

SEED = 20260304
_MUTANTS_A_READER = 10
_RUN_BYTES = 40_000
_PATTERNS_A_READER = 1
_NUMBER = b"9" * 5000
BY_NAME = {reader.name: reader for reader in readers()}

each_reader = for_each("reader", BY_NAME.values(), ids=BY_NAME)
by_reader = pytest.mark.parametrize("reader", BY_NAME.values(), ids=BY_NAME)


@each_reader
def test_an_answer_that_was_changed_is_read_or_refused(reader: Reader) -> None:
    for _, raw, status in islice(mutants(SEED, [reader]), _MUTANTS_A_READER):
        try_reader(reader, raw, status)


@pytest.mark.long
@by_reader
def test_thousands_of_changed_answers_are_read_or_refused(reader: Reader) -> None:
    for _, raw, status in islice(mutants(SEED + 1, [reader]), 3000):
        try_reader(reader, raw, status)


@pytest.mark.long
@by_reader
def test_a_longer_run_of_any_pattern_costs_no_more_than_its_bytes(reader: Reader) -> None:
    for _, raw in with_runs(
        random.Random(f"{SEED} {reader.name}"), reader, 5 * _RUN_BYTES, PATTERNS
    ):
        try_reader(reader, raw)


@each_reader
def test_a_long_run_of_one_pattern_costs_no_more_than_its_bytes(reader: Reader) -> None:
    choose = random.Random(f"{SEED} {reader.name}")
    for _, raw in with_runs(
        choose, reader, _RUN_BYTES, choose.sample(PATTERNS, _PATTERNS_A_READER)
    ):
        try_reader(reader, raw)


@for_each(
    ("name", "raw"),
    [
        ("slurm probe", "command=squeue=/bin/squeue\nversion=slurm 22.05\nclock=٣²\n".encode()),
        ("slurm qos offers", b"normal|1-00:00:00|%b|cpu=%b|||||\n" % (_NUMBER, _NUMBER)),
        (
            "slurm preemption",
            b"PartitionName=q\n PriorityTier=%b\nPartitionName=r\n PriorityTier=9\n" % _NUMBER,
        ),
        ("openpbs probe", b"user=a\ncommand=qstat=/bin/qstat\npbs_version = %b\n" % _NUMBER),
        (
            "comment of the past",
            b"Not Running: Insufficient amount of resource: ncpus (R: %b A: 2 T: 8)" % _NUMBER,
        ),
        ("dependency", b"afterok:%b_%b+%b" % (_NUMBER, _NUMBER, _NUMBER)),
        ("embedded probe", b'{"user": "a"}'),
        ("embedded jobs", b'{"columns": {"id": ["x"]}}'),
        ("embedded usage", b"[" * 100_000),
        ("embedded cancel", b'{"job_id": "\x80"}'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_scheduler_prints_breaks_no_reader(name: str, raw: bytes) -> None:
    for status in (0, 1):
        try_reader(BY_NAME[name], raw, status)


@for_each(
    ("name", "before", "pattern", "after"),
    [
        (
            "slurm native",
            b"JobId=2 JobName=a\n   UserId=a(1)\n   NumNodes=1\n   Comment=",
            b"\n",
            b"a\n   WorkDir=/a\n",
        ),
        (
            "slurm native",
            b"JobId=2 JobName=a\n   UserId=a(1)\n   NumNodes=1\n",
            b"\n\nJobId=3 a",
            b"\n",
        ),
        (
            "pbs-text jobs",
            b"Clock: 1\nJob Id: 2.s\n    Job_Name = a\n    exec_host = ",
            b"[",
            b"\n",
        ),
        ("torque native", b"Clock: 1\n<Data><Job><Job_Id>2.s</Job_Id>", b"<a>", b"</Job></Data>\n"),
    ],
)
def test_an_answer_of_half_a_megabyte_costs_no_more_than_its_length(
    name: str, before: bytes, pattern: bytes, after: bytes
) -> None:
    raw = before + pattern * (500_000 // len(pattern)) + after
    try_reader(BY_NAME[name], raw)
