"""What a task's owner wants of it, as the job's comment says it and its coordinator takes it up."""

from __future__ import annotations

from msgspec.structs import replace

from hpcdash.domain.share import EVERYONE, Priority, TaskMark, parse_mark
from hpcdash.services.share.database import StoredTask
from hpcdash.services.share.scheduling import PoolRules, Quotas
from hpcdash.services.share.wishes import apply_wishes
from tests.support.records import for_each

NORMAL, ABOVE, HIGH, AUTO = Priority.NORMAL, Priority.ABOVE_NORMAL, Priority.HIGH, Priority.AUTO
RULES = PoolRules(
    Quotas({(EVERYONE, NORMAL): 4, (EVERYONE, ABOVE): 4, (EVERYONE, HIGH): 1}), frozenset({"ada"})
)
TASK = StoredTask(
    "7", 7, "ada", "train", 2, NORMAL, 100.0, "", "running", "", NORMAL, 200.0, 0.0, 0, 0, None, 0.0
)


@for_each(
    "mark",
    [
        TaskMark(HIGH),
        TaskMark(AUTO, "/home/ada/x", is_paused=True),
        TaskMark(NORMAL, is_paused=True),
        TaskMark(NORMAL, "/home/ada/x", True, "lab-1", ("nlp", "7B, run #2", "größe%2C")),
    ],
    ids=str,
)
def test_a_mark_reads_back_from_the_comment(mark: TaskMark) -> None:
    assert parse_mark(str(mark)) == mark


@for_each(
    "comment", ["hpcdash-share:HIGH+", "hpcdash-share:HIGH+paused+paused", "x hpcdash-share:HIGH"]
)
def test_a_comment_that_is_nearly_a_mark_is_none(comment: str) -> None:
    assert parse_mark(comment) is None


def test_labels_that_anybody_wrote_are_few_and_short() -> None:
    mark = parse_mark(f"hpcdash-share:HIGH+labels={'x' * 900},%1B%5B31m,%FF,,,b,b" + ",c" * 99)
    assert mark is not None
    assert mark.labels == ("x" * 64, "\x1b[31m", "\ufffd", "b", "c")


def test_a_priority_that_has_quota_is_taken_up_and_the_time_above_normal_counts() -> None:
    changes, _ = apply_wishes(TASK, TaskMark(ABOVE), RULES, capacity=4, now=300.0)
    assert changes == {
        "priority": ABOVE,
        "level": ABOVE,
        "above_normal_seconds": 0.0,
        "since": 300.0,
    }
    raised = replace(TASK, **changes)
    changes, _ = apply_wishes(raised, TaskMark(NORMAL), RULES, capacity=4, now=900.0)
    assert changes == {
        "priority": NORMAL,
        "level": NORMAL,
        "above_normal_seconds": 600.0,
        "since": 900.0,
    }
    # What has become NORMAL after its half hour stays so.
    assert apply_wishes(replace(TASK, demoted=1), TaskMark(ABOVE), RULES, capacity=4, now=900.0)[
        0
    ] == {"priority": ABOVE}


def test_a_priority_without_quota_is_refused_and_one_who_may_not_choose_keeps_auto() -> None:
    changes, words = apply_wishes(TASK, TaskMark(HIGH), RULES, capacity=4, now=300.0)
    assert (changes, words) == (
        {},
        "HIGH is rejected: requests 2 nodes, but ada's quota at HIGH is 1",
    )
    other = replace(TASK, user="bob", priority=AUTO)
    assert apply_wishes(other, TaskMark(ABOVE), RULES, capacity=4, now=300.0) == ({}, "")


def test_what_its_owner_suspends_waits_until_it_is_resumed() -> None:
    waiting = replace(TASK, state="waiting", level=None, since=None)
    changes, _ = apply_wishes(
        waiting, TaskMark(NORMAL, is_paused=True), RULES, capacity=4, now=300.0
    )
    assert changes == {"state": "paused"}
    paused = replace(waiting, state="paused")
    assert (
        apply_wishes(paused, TaskMark(NORMAL, is_paused=True), RULES, capacity=4, now=300.0)[0]
        == {}
    )
    assert apply_wishes(paused, TaskMark(NORMAL), RULES, capacity=4, now=300.0)[0] == {
        "state": "waiting"
    }
