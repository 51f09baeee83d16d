"""What an action is for among some jobs, and what it costs, in words."""

from __future__ import annotations

from functools import partial

from hpcdash.domain.impact import (
    choose,
    count_jobs,
    describe_impact,
    format_spent,
    left_behind,
    owners,
    state_counts,
)
from tests.support.job_rows import job_row
from tests.support.records import for_each

row = partial(job_row, cpus=8, gpus=0)
ARRAY = (row("12_1", "running"), row("12_2", "completed"), row("12_[3-8%1]", "pending", _tasks=6))


def test_ended_jobs_are_not_cancelled_and_counted() -> None:
    rows = (row("1", "running"), row("2", "completed"), row("3", "failed"), row("4", "pending"))
    choice = choose("cancel", ("1", "2", "3", "4"), rows)
    assert choice.job_ids == ("1", "4")
    assert [kept["id"] for kept in choice.rows] == ["1", "4"]
    assert choice.left_out == ("2 already finished (skipped)",)


def test_an_array_with_ended_tasks_is_cancelled_by_its_number() -> None:
    choice = choose("cancel", ("12",), ARRAY)
    assert choice.job_ids == ("12",)
    assert count_jobs(choice.rows) == 7


@for_each(
    ("verb", "ids", "left_out"),
    [
        ("signal", ("12_1",), {"1 already finished (skipped)", "6 not started yet (skipped)"}),
        ("suspend", ("12_1",), {"1 already finished (skipped)", "6 not started yet (skipped)"}),
        (
            "hold",
            ("12_[3-8%1]",),
            {"1 already finished (skipped)", "1 running, which a hold does not stop (skipped)"},
        ),
        ("requeue", ("12_1", "12_2"), {"6 already pending (skipped)"}),
    ],
)
def test_of_an_array_only_the_tasks_a_verb_makes_sense_for_are_named(
    verb: str, ids: tuple[str, ...], left_out: set[str]
) -> None:
    choice = choose(verb, ("12",), ARRAY)
    assert (choice.verb, choice.job_ids, set(choice.left_out)) == (verb, ids, left_out)


def test_an_array_is_never_requeued_by_its_number_as_tasks_that_ended_well_may_be_in_no_list() -> (
    None
):
    rows = (row("12_7", "running"), row("12_8", "running"))
    assert choose("requeue", ("12",), rows).job_ids == ("12_7", "12_8")
    assert choose("suspend", ("12",), rows).job_ids == ("12",)


def test_a_task_that_is_named_beside_its_whole_array_is_not_named_twice() -> None:
    assert choose("cancel", ("12_1", "12"), ARRAY).job_ids == ("12",)


def test_a_hold_of_what_is_held_releases_it() -> None:
    choice = choose("hold", ("1", "2"), (row("1", "held"), row("2", "held")))
    assert (choice.verb, choice.job_ids) == ("release", ("1", "2"))


def test_among_held_and_waiting_jobs_the_waiting_are_held() -> None:
    choice = choose("hold", ("1", "2"), (row("1", "held"), row("2", "pending")))
    assert (choice.verb, choice.job_ids, choice.left_out) == (
        "hold",
        ("2",),
        ("1 already held (skipped)",),
    )


def test_ended_jobs_do_not_keep_held_ones_from_being_released() -> None:
    choice = choose("hold", ("1", "2"), (row("1", "held"), row("2", "completed")))
    assert (choice.verb, choice.job_ids) == ("release", ("1",))


def test_of_an_array_that_partly_runs_the_held_tasks_are_released() -> None:
    choice = choose("hold", ("12",), (row("12_1", "running"), row("12_[2-9]", "held", _tasks=8)))
    assert (choice.verb, choice.job_ids, choice.left_out) == (
        "release",
        ("12_[2-9]",),
        ("1 running (skipped)",),
    )


def test_jobs_that_all_run_can_be_held_and_it_says_that_they_go_on() -> None:
    choice = choose("hold", ("1",), (row("1", "running"),))
    assert (choice.verb, choice.job_ids) == ("hold", ("1",))
    assert describe_impact("hold", choice.rows) == (
        "1 running job continues; the hold takes effect on requeue",
    )


def test_a_suspend_of_what_is_suspended_resumes_it() -> None:
    choice = choose("suspend", ("1",), (row("1", "suspended"),))
    assert (choice.verb, choice.job_ids) == ("resume", ("1",))
    mixed = choose("suspend", ("1", "2"), (row("1", "suspended"), row("2", "running")))
    assert (mixed.verb, mixed.job_ids, mixed.left_out) == (
        "suspend",
        ("2",),
        ("1 already suspended (skipped)",),
    )


def test_a_verb_that_fits_no_job_chooses_none_and_says_why() -> None:
    choice = choose("cancel", ("1",), (row("1", "completed"),), missing=("9",))
    assert choice.job_ids == ()
    assert choice.left_out == ("1 already finished (skipped)", "1 no longer listed (skipped)")


def test_a_state_that_nobody_knows_is_left_to_the_scheduler() -> None:
    rows = (row("1", "unknown"),)
    for verb in ("cancel", "hold", "requeue", "suspend", "signal", "alter"):
        assert choose(verb, ("1",), rows).job_ids == ("1",)


def test_what_running_jobs_took_is_told_in_hours_of_what_is_scarce() -> None:
    gpu_jobs = (
        row("1", "running", elapsed_seconds=51_600, gpus=8),
        row("2", "running", elapsed_seconds=0, gpus=8),
    )
    assert format_spent(gpu_jobs) == "14 h 20 min of run time, 115 GPU-hours"
    assert (
        format_spent((row("1", "running", elapsed_seconds=3600),))
        == "1 h of run time, 8.0 CPU-hours"
    )
    assert format_spent((row("1", "running", elapsed_seconds=12),)) == "12 s of run time"
    assert format_spent((row("1", "running"),)) == ""


def test_cancelling_tells_what_is_lost() -> None:
    rows = (
        row("1", "running", elapsed_seconds=51_600, gpus=8),
        row("2", "running", elapsed_seconds=10),
        row("3_[1-10]", "pending", _tasks=10),
    )
    assert describe_impact("cancel", rows) == (
        "2 running: 14 h 20 min of run time, 115 GPU-hours will be lost unless they save "
        "checkpoints",
        "10 pending jobs lose their place in the queue",
    )


def test_requeueing_starts_over() -> None:
    words = describe_impact(
        "requeue", (row("1", "running", elapsed_seconds=7200), row("2", "failed"))
    )
    assert words == (
        "1 running: 2 h of run time, 16 CPU-hours will be lost unless it resumes from a checkpoint",
        "1 job restarts its script from the beginning",
        "1 ended job runs again under the same ID",
    )


def test_requeueing_goes_on_from_checkpoints_where_jobs_have_them() -> None:
    rows = (
        row("1", "running", elapsed_seconds=7200),
        row("2_1", "failed"),
        row("2_2", "failed"),
        row("3", "running"),
    )
    assert describe_impact("requeue", rows, {"1": "/c/a", "2_1": "/c/%a", "2_2": "/c/%a"}) == (
        "1 resumes from the newest complete checkpoint in /c/a; work since then is lost",
        "2 ended jobs run again under the same IDs, from the newest complete checkpoint in /c/%a",
        "1 running: all work so far will be lost unless it resumes from a checkpoint",
        "1 job restarts its script from the beginning",
    )


def test_owners_and_states_are_counted_in_jobs() -> None:
    rows = (
        row("1", "pending", user="bob"),
        row("3_[1-10]", "pending", _tasks=10),
        row("4", "running"),
    )
    assert owners(rows) == {"alice": 11, "bob": 1}
    assert list(state_counts(rows).items()) == [("running", 1), ("pending", 11)]


def test_who_waits_for_a_good_end_of_a_cancelled_job_is_left_behind() -> None:
    cancelled = (row("1", "running"), row("12_3", "pending"))
    others = (
        row("1", "running", dependency=None),
        row("2", "pending", dependency="afterok:1(unfulfilled)"),
        row("3", "pending", dependency="afterany:1(unfulfilled)"),
        row("4", "pending", dependency="afternotok:1(unfulfilled)"),
        row("5", "pending", dependency="afterok:12_*(unfulfilled)"),
        row("6", "pending", dependency="afterok:99(unfulfilled),afterok:1(unfulfilled)"),
        row("12_3", "pending", dependency="afterok:1(unfulfilled)"),
        row("7", "completed", dependency="afterok:1(unfulfilled)"),
    )
    assert left_behind(cancelled, others) == ("2", "5", "6")


@for_each("verb", ["cancel", "hold", "alter", "signal"])
def test_the_one_row_of_an_array_that_has_the_array_s_own_id_can_be_acted_on(verb: str) -> None:
    whole = row("12[].pbs01", "running", array_id="12[].pbs01", _tasks=3)
    assert choose(verb, ("12[].pbs01",), (whole,)).job_ids == ("12[].pbs01",)
