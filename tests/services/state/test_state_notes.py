"""Pins, notes and bookmarks outlive the program, each cluster's apart, and never grow without
bound.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdash.services.state import notes as module
from hpcdash.services.state.database import StateDatabase, StateUnusable
from hpcdash.services.state.drafts import Drafts, StoredDraft
from hpcdash.services.state.notes import LONGEST_NOTE, MAX_BOOKMARKS, JobNotes, StoredNotes


def test_what_is_kept_of_a_job_is_read_by_the_next_run_and_not_by_another_cluster(
    tmp_path: Path,
) -> None:
    notes = JobNotes(tmp_path, "juno")
    assert notes.load() == StoredNotes()
    notes.pin(["7", "8"], True, 1.0)
    notes.write("7", "  the one for the paper ", 2.0)
    notes.pin(["8"], False, 3.0)
    for same in (notes, JobNotes(tmp_path, "juno")):
        assert same.load() == StoredNotes(frozenset({"7"}), {"7": "the one for the paper"})
    assert JobNotes(tmp_path, "vega").load() == StoredNotes()
    notes.write("7", "", 4.0)
    notes.pin(["7"], False, 5.0)
    assert StateDatabase(tmp_path).read("SELECT * FROM job_notes") == []


def test_a_note_holds_no_control_characters_and_is_of_bounded_length(tmp_path: Path) -> None:
    notes = JobNotes(tmp_path, "juno")
    notes.write("7", "a\x1b]52;c;x\a\nb\udcff" + "x" * 2000, 1.0)
    kept = notes.load().notes["7"]
    assert len(kept) == LONGEST_NOTE
    assert kept.isprintable()


def test_the_oldest_notes_go_and_pinned_jobs_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    notes = JobNotes(tmp_path, "juno")
    notes.pin(["1"], True, 1.0)
    for number in range(2, 7):
        notes.write(str(number), "noted", float(number))
    assert (notes.load().pinned, set(notes.load().notes)) == ({"1"}, {"5", "6"})


def test_a_pin_leaves_a_note_that_cannot_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    JobNotes(tmp_path, "juno").write("7", "for the paper", 1.0)

    def locked(*statement: object) -> None:
        raise StateUnusable("locked")

    with monkeypatch.context() as patch:
        patch.setattr(StateDatabase, "read", locked)
        JobNotes(tmp_path, "juno").pin(["7"], True, 2.0)
    stored = JobNotes(tmp_path, "juno").load()
    assert stored == StoredNotes(frozenset({"7"}), {"7": "for the paper"})


def test_a_database_of_before_is_read_and_written(tmp_path: Path) -> None:
    Drafts(tmp_path).keep("juno", StoredDraft({"name": "train"}))
    notes = JobNotes(tmp_path, "juno")
    assert notes.load() == StoredNotes()
    notes.pin(["7"], True, 1.0)
    assert notes.load().pinned == {"7"}
    assert Drafts(tmp_path).take("juno") is not None


def test_bookmarks_are_kept_in_their_order_by_view_and_once(tmp_path: Path) -> None:
    notes = JobNotes(tmp_path, "juno")
    for text in ("state:running", "user:bob", "state:running"):
        notes.bookmark("jobs", text)
    notes.bookmark("nodes", "gpus>0")
    assert notes.load().bookmarks == {"jobs": ("state:running", "user:bob"), "nodes": ("gpus>0",)}
    notes.forget_bookmark("jobs", "state:running")
    assert notes.load().bookmarks["jobs"] == ("user:bob",)
    for number in range(MAX_BOOKMARKS + 5):
        notes.bookmark("jobs", f"id:{number}")
    assert len(notes.load().bookmarks["jobs"]) == MAX_BOOKMARKS
