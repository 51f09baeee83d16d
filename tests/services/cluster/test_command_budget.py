from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.services.cluster.queries import WINDOW_SECONDS, CommandBudget
from tests.support.scripted_cluster import HandClock

SPANS = st.lists(st.integers(0, 40), max_size=60)


@given(ceiling=st.integers(1, 12), pauses=SPANS, wanted=st.integers(1, 15))
def test_after_the_wait_it_told_as_many_commands_fit_and_not_a_second_sooner(
    ceiling: int, pauses: list[int], wanted: int
) -> None:
    clock = HandClock()
    budget = CommandBudget(ceiling, clock)
    for pause in pauses:
        clock.seconds += pause
        if budget.wait_seconds() == 0:
            budget.spend()
    wait = budget.wait_seconds(wanted)
    assert 0 <= wait <= WINDOW_SECONDS
    if wanted > ceiling:
        return
    if wait:
        clock.seconds += wait - 1
        assert budget.wait_seconds(wanted) == 1
        clock.seconds += 1
    assert budget.wait_seconds(wanted) == 0


@given(ceiling=st.integers(1, 8), pauses=st.lists(st.floats(0, 50), max_size=80))
def test_no_minute_holds_more_commands_than_the_ceiling(ceiling: int, pauses: list[float]) -> None:
    clock = HandClock()
    budget = CommandBudget(ceiling, clock)
    sent: list[float] = []
    for pause in pauses:
        clock.seconds += pause
        if budget.wait_seconds() == 0:
            budget.spend()
            sent.append(clock.seconds)
        assert (
            budget.per_minute
            == sum(moment > clock.seconds - WINDOW_SECONDS for moment in sent)
            <= ceiling
        )


def test_more_commands_than_the_ceiling_never_fit() -> None:
    assert CommandBudget(3, HandClock()).wait_seconds(4) == WINDOW_SECONDS


def test_the_last_answers_time_is_kept() -> None:
    budget = CommandBudget(3, HandClock())
    assert budget.last_seconds is None
    budget.answered(0.25)
    assert budget.last_seconds == pytest.approx(0.25)


@given(ceiling=st.integers(4, 60), questions=st.integers(0, 20), readers=st.integers(1, 4))
def test_files_that_are_followed_are_read_evenly_in_turns_with_what_questions_leave(
    ceiling: int, questions: int, readers: int
) -> None:
    clock = HandClock()
    budget = CommandBudget(ceiling, clock)
    for _ in range(min(questions, ceiling)):
        budget.spend()
    turns, end = [], clock.seconds + WINDOW_SECONDS
    while clock.seconds < end - 1:
        # Each asks for its turn at once and reads when it comes.
        waits = [budget.reserve_read_seconds() for _ in range(readers)]
        assert waits == sorted(waits)
        turns += [clock.seconds + wait for wait in waits]
        clock.seconds += waits[-1]
    in_a_minute = [turn for turn in turns if turn < end]
    left = max(ceiling - min(questions, ceiling) - 2, ceiling / 4)
    assert left - 1 <= len(in_a_minute) <= left + 1
    assert max(after - before for before, after in pairwise(turns)) <= 60 / left + 1e-6


def test_reads_do_not_count_as_questions() -> None:
    budget = CommandBudget(3, HandClock())
    for _ in range(9):
        budget.reserve_read_seconds()
    assert budget.wait_seconds() == 0
