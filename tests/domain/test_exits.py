"""How a job ended, in plain words."""

from __future__ import annotations

from hpcdash.domain.job_text import format_exit
from tests.support.records import for_each


@for_each(
    ("state", "code", "signal", "words"),
    [
        (
            "failed",
            137,
            0,
            "exit 137: a command was killed by signal 9 (KILL): killed outright, often for using",
        ),
        ("failed", 143, 0, "signal 15 (TERM): terminated on request"),
        ("failed", 139, 0, "segmentation fault"),
        ("failed", 126, 0, "could not be executed"),
        ("failed", 127, 0, "was not found"),
        ("failed", 0, 11, "signal 11 (SEGV): segmentation fault"),
        ("failed", 0, 53, "the output could not be written"),
        ("failed", 0, 125, "used more memory than it requested"),
        ("out_of_memory", 0, 125, "used more memory than it requested"),
        ("timeout", 0, 15, "hit its time limit"),
        ("node_failed", 0, 0, "one of its nodes failed"),
        ("preempted", 0, 15, "higher priority"),
        ("cancelled", 0, 15, "cancelled"),
        ("cancelled", 143, 0, "terminated on request"),
        ("gone", None, None, "not found in the queue or in accounting"),
    ],
)
def test_an_end_is_said_in_words(
    state: str, code: int | None, signal: int | None, words: str
) -> None:
    assert words in format_exit(state, code, signal)


def test_a_number_with_no_meaning_of_its_own_is_only_said() -> None:
    assert format_exit("failed", 3, 0) == "exit 3"
    assert format_exit("failed", 200, 0) == "exit 200"
    assert format_exit("failed", 0, 120) == "signal 120"


@for_each("state", ["completed", "running", "pending"])
def test_of_what_ended_well_or_not_at_all_nothing_is_said(state: str) -> None:
    assert format_exit(state, 0, 0) == ""
    assert format_exit(state, None, None) == ""
