"""What is said before jobs are acted on, and of the journal afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from hpcdash.backends.actions import Outcome
from hpcdash.cli.actions import format_end, format_jobs
from hpcdash.services.state.journal import JournalEntry


def row(user: str | None, state: str, tasks: int | None = 1) -> dict[str, Any]:
    return {"user": user, "state": state, "_tasks": tasks}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no job in the queue"),
        ([row("alice", "running")], "1 job of alice (1 running)"),
        (
            [row("alice", "running"), row("alice", "pending", 10), row("bob", "pending")],
            "11 jobs of alice, 1 of bob (11 pending, 1 running)",
        ),
        ([row(None, "out_of_memory", None)], "1 job of ? (1 out of mem)"),
        ([row("a\x1b[2J", "held")], "1 job of a␛[2J (1 held)"),
    ],
)
def test_it_says_how_many_jobs_of_whom_in_which_states(rows: list[dict[str, Any]], words: str) -> None:
    assert format_jobs(rows) == words


@pytest.mark.parametrize(
    ("state", "outcomes", "words"),
    [
        ("running", (), "running"),
        ("unknown", (), "outcome unknown"),
        ("done", (Outcome("1", True),), "done"),
        ("refused", (Outcome("1", False, "Access denied"),), "refused: Access denied"),
        ("partly", (Outcome("1", True), Outcome("2", False, "no")), "1 of 2 done; 2: no"),
        ("unknown", (Outcome("1", True), Outcome("2", None, "lost")), "outcome unknown: lost"),
    ],
)
def test_the_journal_says_how_it_ended(state: str, outcomes: tuple[Outcome, ...], words: str) -> None:
    entry = JournalEntry("x", 0.0, None, "juno", "alice", "hold", ("1", "2"), (), state, outcomes)
    assert format_end(entry) == words
