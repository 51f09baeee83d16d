"""Tasks of an array as few ranges with steps, which is all that some schedulers take."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.array_tasks import ArrayTasks, stepped_ranges
from tests.support.records import for_each


def shown(tasks: list[int]) -> str:
    return str(ArrayTasks(stepped_ranges(tasks)))


@for_each(
    ("tasks", "ranges"),
    [
        ([3, 4, 6, 9, 12], "3-12:3,4"),
        ([7], "7"),
        ([2, 9], "2-9:7"),
        ([1, 2, 3, 10, 20, 30], "1-3,10-30:10"),
        # The longest first would leave three more: 1-3, 4-8:4 and 11.
        ([0, 1, 2, 4, 5, 7, 8, 10], "0-2,4-10:3,5-8:3"),
        ([], ""),
    ],
)
def test_few_tasks_are_the_fewest_ranges(tasks: list[int], ranges: str) -> None:
    assert len(stepped_ranges(tasks)) == (ranges.count(",") + 1 if ranges else 0)
    assert sorted(ArrayTasks(stepped_ranges(tasks))) == tasks
    if len(tasks) < 8:
        assert shown(tasks) == ranges


def fewest(tasks: tuple[int, ...]) -> int:
    if not tasks:
        return 0
    first, rest = tasks[0], tasks[1:]
    found = 1 + fewest(rest)
    for count in range(1, len(rest) + 1):
        for others in combinations(rest, count):
            whole = (first, *others)
            if {after - before for before, after in zip(whole, others, strict=False)} == {
                others[0] - first
            }:
                found = min(found, 1 + fewest(tuple(task for task in rest if task not in others)))
    return found


@given(st.sets(st.integers(0, 15), max_size=6))
def test_no_fewer_ranges_would_do(tasks: set[int]) -> None:
    assert len(stepped_ranges(tasks)) == fewest(tuple(sorted(tasks)))


@given(st.sets(st.integers(0, 300), max_size=120))
def test_each_task_is_in_one_range_and_two_share_one_at_least(tasks: set[int]) -> None:
    found = stepped_ranges(tasks)
    assert sorted(task for one in found for task in one) == sorted(tasks)
    assert len(found) <= (len(tasks) + 1) // 2


def test_very_many_tasks_are_divided_at_their_runs() -> None:
    tasks = [*range(4000), *range(5000, 9000, 2)]
    found = stepped_ranges(tasks)
    assert range(4000) in found
    assert sorted(task for one in found for task in one) == tasks
