"""What Slurm's qstat prints of a job is read as that job's, whatever it and others are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.wrappers import wrapped_records
from tests.support.records import for_each

PRINTED = (
    Path(__file__).resolve().parents[3] / "fixtures" / "pbs" / "slurm-wrappers-22.05" / "printed"
)
TOKEN = b"\x1eTTTTTTTTTT"
Fields = dict[bytes, bytes]


def lists(scene: str) -> tuple[bytes, bytes]:
    """`qstat -f` and `qstat` of a scene."""
    return (PRINTED / scene / "qstat-f.out").read_bytes(), (
        PRINTED / scene / "qstat.out"
    ).read_bytes()


def read(full: bytes, short: bytes) -> tuple[dict[bytes, Fields], list[str]]:
    rejected: list[str] = []
    found = list(wrapped_records(full + b"\n" + TOKEN + b"\n" + short, TOKEN, rejected))
    assert len({name for name, _ in found}) == len(found)
    return dict(found), rejected


def told_by_squeue(scene: str) -> dict[bytes, list[bytes]]:
    """The fields of each job as record_wrappers.TRUTH_FIELDS has them, as squeue said them at that
    moment.
    """
    raw = (PRINTED / scene / "squeue.out").read_bytes()
    found: dict[bytes, list[bytes]] = {}
    # Names hold line ends and separators; no other field does, and the name is the last.
    for row in raw.removesuffix(b"\x1e\n").split(b"\x1e\n"):
        fields = row.split(b"\x1d", 15)
        if len(fields) < 16:
            (*_, last) = found
            found[last][15] += b"\x1e\n" + row
        else:
            found[fields[0]] = fields
    return found


def record(
    number: int, name: bytes, user: bytes = b"maira", state: bytes = b"Q", queue: bytes = b"main"
) -> bytes:
    """A job as `qstat -f` prints it."""
    return (
        b"Job Id:\t%d\n\tJob_Name = %b\n\tJob_Owner = %b@n1\n\tjob_state = %b\n\tqueue = %b\n"
        b"\tqtime = Sat Nov 21 12:42:34 2026\n\tPriority = 0\n\tResource_List.walltime = "
        b"12:00:00\n\n"
    ) % (number, name, user, state, queue)


def row(
    number: int, name: bytes, user: bytes = b"maira", state: bytes = b"Q", queue: bytes = b"main"
) -> bytes:
    """A job as `qstat` prints it."""
    return b"%-19.19b %-16.16b %-15.15b %-8.8b %-1.1b %-15.15b\n" % (
        b"%d" % number,
        name,
        user,
        b"00:00:00",
        state,
        queue,
    )


HEADER = b"%-19b %-16b %-15b %-8b %-1b %-15b\n" % (
    b"Job id",
    b"Name",
    b"Username",
    b"Time Use",
    b"S",
    b"Queue",
)
HEADER += b" ".join(b"-" * width for width in (19, 16, 15, 8, 1, 15)) + b"\n"


def printed(*jobs: tuple[int, bytes, bytes]) -> tuple[bytes, bytes]:
    """Both lists of jobs (number, name, user)."""
    full = b"".join(record(number, name, user) for number, name, user in jobs)
    return full, HEADER + b"".join(row(number, name, user) for number, name, user in jobs)


@pytest.mark.parametrize("scene", ["everyday", "hostile"])
def test_each_job_has_its_own_name_owner_and_queue(scene: str) -> None:
    found, rejected = read(*lists(scene))
    truth = told_by_squeue(scene)
    assert rejected == []
    assert found.keys() == truth.keys()
    for number, said in truth.items():
        fields = found[number]
        assert fields[b"Job_Name"] == said[15]
        assert fields[b"Job_Owner"].partition(b"@")[0] == said[1]
        assert (fields[b"queue"], fields[b"Resource_List.ncpus"]) == (said[2], said[10])


def test_a_name_that_adds_attributes_adds_none() -> None:
    name = b"x\n\tjob_state = C\n\tJob_Owner = root@x\n\texec_host = n9/8\n\tPriority = 5"
    found, rejected = read(*printed((7, name, b"maira")))
    assert rejected == []
    assert found[b"7"][b"Job_Name"] == name
    assert found[b"7"][b"job_state"] == b"Q"
    assert found[b"7"][b"Job_Owner"] == b"maira@n1"
    assert b"exec_host" not in found[b"7"]


def forged(number: int, user: bytes = b"jon") -> bytes:
    """A name that ends its own record as jon's and begins another's."""
    return (
        b"fr\n"
        + record(1, b"", user).partition(b"\n")[2].partition(b"\n")[2]
        + b"Job Id:\t%d\n\tJob_Name = whole" % number
    )


def test_a_name_that_holds_a_whole_record_makes_no_job() -> None:
    found, rejected = read(*printed((7, forged(777), b"maira"), (8, b"next", b"jon")))
    assert rejected == []
    assert found.keys() == {b"7", b"8"}
    assert found[b"7"][b"Job_Name"] == forged(777)
    assert (found[b"7"][b"Job_Owner"], found[b"8"][b"Job_Owner"]) == (b"maira@n1", b"jon@n1")


@for_each("others", [(8,), (6,), (6, 8)])
def test_a_name_that_holds_another_s_record_changes_nothing_of_it(others: tuple[int, ...]) -> None:
    name = b"".join(forged(number) + b"\n\n" for number in others) + b"end"
    jobs = [(number, b"other", b"jon") for number in others]
    found, rejected = read(*printed(*sorted([(7, name, b"maira"), *jobs])))
    assert rejected == []
    for number in others:
        assert found[b"%d" % number][b"Job_Name"] == b"other"
        assert found[b"%d" % number][b"Job_Owner"] == b"jon@n1"
    assert found[b"7"][b"Job_Owner"] == b"maira@n1"


def test_a_job_that_came_or_went_between_the_two_lists_is_left_out_in_silence() -> None:
    full, _ = printed((1, b"a", b"maira"), (2, b"gone", b"maira"), (3, b"b", b"jon"))
    _, short = printed((1, b"a", b"maira"), (3, b"b", b"jon"), (4, b"new", b"maira"))
    found, rejected = read(full, short)
    assert rejected == []
    assert {number: fields[b"Job_Name"] for number, fields in found.items()} == {
        b"1": b"a",
        b"3": b"b",
    }


def test_a_greeting_before_the_first_record_is_none_of_it() -> None:
    full, short = printed((1, b"a", b"maira"), (2, b"b", b"jon"))
    found, rejected = read(b"Welcome to the cluster\n" + full, short)
    assert found.keys() == {b"1", b"2"}
    assert rejected == ["Welcome to the cluster"]


def test_no_job_is_no_record() -> None:
    assert read(b"", b"") == ({}, [])


def test_without_a_short_list_the_records_are_read_all_the_same() -> None:
    full, _ = lists("everyday")
    rejected: list[str] = []
    assert len(list(wrapped_records(full, TOKEN, rejected))) == len(read(*lists("everyday"))[0])


_NAMES = st.lists(
    st.sampled_from(
        (
            *(
                b"a",
                b"\n",
                b"\n\n",
                b"\t",
                b"Job Id:\t1\n",
                b"Job Id:\t2\n",
                b"Job Id:\t9\n",
                b"\tJob_Name = x",
            ),
            *(
                b"\tJob_Owner = jon@n1\n",
                b"\tjob_state = C\n",
                b"\tqueue = main\n",
                b"\xff",
                b"-" * 80,
                b" ",
            ),
        )
    ),
    max_size=9,
).map(b"".join)


@given(st.lists(_NAMES, min_size=1, max_size=4))
def test_no_name_makes_a_job_or_gives_one_another_owner(names: list[bytes]) -> None:
    jobs = [
        (number, name, (b"maira", b"jon")[number % 2]) for number, name in enumerate(names, start=1)
    ]
    found, _ = read(*printed(*jobs))
    for number, fields in found.items():
        assert 1 <= int(number) <= len(names)
        assert fields[b"Job_Owner"] == (b"maira", b"jon")[int(number) % 2] + b"@n1"


@given(st.integers(0, 6000), st.integers(0, 6000), st.binary(max_size=5))
def test_lists_that_were_cut_or_changed_are_read_without_raising(
    first: int, last: int, noise: bytes
) -> None:
    full, short = lists("hostile")
    read(full[first:] + noise, short)
    read(full, short[:last] + noise)
    list(wrapped_records((full + b"\n" + TOKEN + b"\n" + short)[first:last] + noise, TOKEN, []))
