"""Ended tasks fall into groups by how they ended, and a log's end gives the line that says why."""

from __future__ import annotations

import pytest

from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.states import JobState
from hpcdash.domain.triage import EndedTask, group_tasks, last_meaningful, node_names, normalised
from tests.support.records import for_each

TRACEBACK = """step 3
Traceback (most recent call last):
  File "train.py", line 12, in <module>
    main()
torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
  (GPU 0; 23.70 GiB total)"""


def task(
    number: int | str, line: str | None = "boom", *, node: str = "g1", code: int = 1, **rest: object
) -> EndedTask:
    fields = {
        "state": JobState.FAILED,
        "exit_code": code,
        "exit_signal": 0,
        "nodes": (node,),
        **rest,
    }
    return EndedTask(f"88_{number}", parse_tasks(str(number)), line=line, **fields)  # type: ignore[arg-type]


def completed(number: int, node: str = "g2") -> EndedTask:
    return task(number, None, node=node, code=0, state=JobState.COMPLETED)


def test_tasks_with_the_same_last_words_are_one_group_whatever_the_numbers_in_them() -> None:
    groups = group_tasks(
        [
            task(9, "FileNotFoundError: /data/shard-0009.tar at 12:30:01"),
            task(3, "FileNotFoundError: /data/shard-0003.tar at 12:31:59"),
            task(7, "ValueError: nan"),
        ]
    )
    assert [str(group.tasks) for group in groups] == ["3,9", "7"]
    assert groups[0].line == "FileNotFoundError: /data/shard-0003.tar at 12:31:59"


@for_each(
    ("one", "other"),
    [
        ("at 0x7f2218f1fb50", "at 0xdeadbeef"),
        ("2026-11-21T10:07:23.123Z lost g1", "2025-01-01 00:00:00 lost g2"),
        (
            "run 1f0e5d3c-aaaa-4bbb-8ccc-0123456789ab died",
            "run 00000000-1111-2222-3333-444444444444 died",
        ),
        ("lr=1e-4 diverged", "lr=0.003 diverged"),
        ("commit 3fe5a01c9 is gone", "commit aa00bb11c is gone"),
    ],
)
def test_numbers_addresses_and_times_do_not_count(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


def test_words_do_count() -> None:
    assert normalised("KeyError: 'deface'") != normalised("KeyError: 'facade'")


def test_failures_come_before_what_ended_well_and_the_largest_first() -> None:
    groups = group_tasks(
        [completed(1), completed(2), completed(4), task(3, "a"), task(5, "b"), task(6, "b")]
    )
    assert [(str(group.tasks), group.failed) for group in groups] == [
        ("5-6", True),
        ("3", True),
        ("1-2,4", False),
    ]


def test_an_exit_code_that_accounting_cut_is_the_same_end_and_the_whole_one_is_told() -> None:
    [group] = group_tasks([task(1, code=9), task(2, code=137)])
    assert group.exit_code == 137


def test_where_the_scheduler_ended_a_task_its_exit_code_does_not_count() -> None:
    timeouts = [
        task(1, exit_signal=15, code=0, state=JobState.TIMEOUT),
        task(2, code=0, state=JobState.TIMEOUT),
    ]
    assert len(group_tasks(timeouts)) == 1


def test_a_task_whose_log_was_not_read_is_not_taken_for_one_with_an_empty_log() -> None:
    assert len(group_tasks([task(1, None), task(2, "")])) == 2


def test_tasks_whose_last_words_are_known_come_before_those_of_which_nothing_was_read() -> None:
    groups = group_tasks([task(1, None), task(2, None), task(3, "a"), completed(4)])
    assert [str(group.tasks) for group in groups] == ["3", "1-2", "4"]


def test_tasks_that_ended_as_one_record_count_each() -> None:
    [group] = group_tasks([task("5-9", None, state=JobState.CANCELLED, code=0, node="")])
    assert (group.count, str(group.tasks)) == (5, "5-9")


def test_a_node_with_most_of_the_failures_is_named() -> None:
    failures = [task(number, node="g3") for number in range(6)] + [task(6, node="g1")]
    [group, _] = group_tasks([*failures, completed(8), completed(9)])
    assert (group.node, group.on_node, group.count) == ("g3", 6, 7)


@pytest.mark.parametrize(
    "others",
    [
        [],
        [completed(number, "g3") for number in range(10, 20)],
    ],
    ids=["all ran there", "others succeeded there"],
)
def test_a_node_is_not_named_where_nothing_speaks_against_it(others: list[EndedTask]) -> None:
    groups = group_tasks([*(task(number, node="g3") for number in range(4)), *others])
    assert groups[0].node == ""


def test_nodes_that_cannot_be_read_are_none() -> None:
    assert node_names("g[1-2]") == ("g1", "g2")
    assert node_names("g[1-") == node_names(None) == ()


OUT_OF_MEMORY = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
CANCELLED = "slurmstepd: error: *** JOB 8 ON g1 CANCELLED AT 2026 DUE TO TIME LIMIT ***"
OF_A_RANK = """[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py"
[rank0]: ValueError: nan"""
CAUGHT = (
    "Traceback (most recent call last):\n  x\nValueError: caught\n" + "go on\n" * 30 + "Killed\n"
)


@for_each(
    ("text", "line"),
    [
        (TRACEBACK, OUT_OF_MEMORY),
        (f"{TRACEBACK}\nsrun: error: g1: task 0: Exited with exit code 1\n", OUT_OF_MEMORY),
        (OF_A_RANK, "ValueError: nan"),
        ("    x = f(y)\nKeyError: 'lr'\n", "KeyError: 'lr'"),
        (CAUGHT, "Killed"),
        ("Segmentation fault (core dumped)\n", "Segmentation fault (core dumped)"),
        (
            "no space left\nsrun: error: g1: task 3: Exited with exit code 1\n-----\n",
            "no space left",
        ),
        (CANCELLED, CANCELLED),
        (
            "/var/spool/slurmd/job00012/slurm_script: line 4: foo:   command not found",
            "line 4: foo: command not found",
        ),
        ("\n  \n", ""),
        ("", ""),
    ],
)
def test_the_line_that_says_why_is_found(text: str, line: str) -> None:
    assert last_meaningful(text.split("\n")) == line
