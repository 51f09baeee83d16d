"""What is said of a switch: who made it and when, who may write beside it, what came of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcdash.domain.switch_looks import (
    Entry,
    Progress,
    SwitchLook,
    Thing,
    clear_refusal,
    entry_of,
    folder_words,
    group_words,
    log_words,
    progress_words,
    refusal,
    warnings,
)
from hpcdash.domain.switches import SwitchKind

FOLDER = Entry("drwxrws---", 1001, 2000, "alice", "physics", 4096, 900.0)
FREE = SwitchLook("/project/KILL", "/project", "", FOLDER, may_write=True, user="alice", uid=1001, now=1000.0)
DROPPED = replace(FREE, thing=Thing.FILE, file=Entry("-rw-rw-r--", 1002, 2000, "bob", "physics", 0, 988.0))


def test_a_group_s_name_may_hold_blanks() -> None:
    entry = entry_of(
        "drwxrwx---+ 2 1001 2000 4096 Nov 21 16:40 .",
        "drwxrwx---+ 2 alice 4096 Nov 21 16:40 .",
        "drwxrwx---+ 2 domain users 4096 Nov 21 16:40 .",
        "1795279200",
    )
    assert (entry.owner, entry.group, entry.uid, entry.gid) == ("alice", "domain users", 1001, 2000)
    assert entry.group_may_write
    assert entry_of("", "", "", "") == Entry()


def test_a_switch_that_is_there_is_not_dropped_twice() -> None:
    assert refusal(FREE) == ""
    assert refusal(DROPPED) == "already dropped 12 s ago by bob"


def test_an_age_is_between_two_times_of_one_clock_and_never_negative() -> None:
    assert DROPPED.age_seconds == 12
    assert replace(DROPPED, now=900.0).age_seconds == 0
    assert replace(DROPPED, now=None).age_seconds is None


@pytest.mark.parametrize("thing", [Thing.LINK, Thing.FOLDER, Thing.SPECIAL])
def test_what_is_no_plain_file_is_neither_dropped_on_nor_cleared(thing: Thing) -> None:
    look = replace(FREE, thing=thing, link_to="/home/alice/.ssh/rc", file=Entry("lrwxrwxrwx", owner="mallory"))
    assert refusal(look)
    assert clear_refusal(look) == refusal(look)
    if thing is Thing.LINK:
        assert refusal(look).startswith("a link of mallory's to /home/alice/.ssh/rc")


def test_a_file_with_content_is_not_cleared_as_no_switch_has_any() -> None:
    assert clear_refusal(DROPPED) == ""
    assert "2000000 bytes" in clear_refusal(replace(DROPPED, file=replace(DROPPED.file, size=2_000_000)))


def test_a_stranger_s_folder_is_not_trusted_but_one_s_group_s_is() -> None:
    stranger = replace(FREE, folder=replace(FOLDER, uid=1666, owner="mallory"), gids=frozenset({3000}))
    assert "mallory's" in refusal(stranger)
    assert refusal(replace(stranger, owner_uid=1666)) == ""
    assert refusal(replace(stranger, gids=frozenset({2000}))) == ""
    assert refusal(replace(stranger, folder=replace(FOLDER, uid=0, owner="root"))) == ""


def test_a_folder_that_the_group_may_not_write_is_told_calmly_where_others_are_in_the_group() -> None:
    closed = replace(FREE, folder=replace(FOLDER, mode="drwxr-xr-x"))
    assert warnings(FREE, SwitchKind.KILL, "alice") == warnings(closed, SwitchKind.KILL, "alice") == ()
    assert group_words(closed, "alice") == "", "nobody is known to be in it: a home folder"
    assert group_words(replace(closed, group_members=("alice",)), "alice") == ""
    shared = replace(closed, group_members=("alice", "bob"))
    assert group_words(shared, "alice") == "others of the group physics cannot drop or clear it there"
    assert group_words(replace(FREE, group_members=("alice", "bob")), "alice") == ""
    assert folder_words(closed) == "/project of alice, group physics"
    assert folder_words(FREE) == "/project of alice, group physics, which may write there"


def test_where_the_file_really_is_is_told() -> None:
    assert "leads to /gpfs/p1" in warnings(replace(FREE, there="/gpfs/p1"), SwitchKind.KILL, "alice")[0]


def test_in_a_sticky_folder_another_s_job_could_not_remove_its_save_switch() -> None:
    tmp = replace(FREE, folder=Entry("drwxrwxrwt", 0, 0, "root", "root", 0))
    assert warnings(tmp, SwitchKind.KILL, "bob") == ()
    assert "bob's job could not" in warnings(tmp, SwitchKind.SAVE, "bob")[0]


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress(5, 0, 0), "dropped 12 s ago by bob; not seen yet"),
        (Progress(7, 3, 3), "dropped 12 s ago by bob; seen: 3 of 10 ended, cleanly"),
        (
            Progress(7, 3, 2, "1 failed"),
            "dropped 12 s ago by bob; seen: 3 of 10 ended, 2 of them cleanly: 1 failed",
        ),
        (Progress(0, 1, 1, "", "50"), "dropped 12 s ago by bob; seen: job 50 ended cleanly"),
        (
            Progress(0, 1, 0, "cancelled", "50"),
            "dropped 12 s ago by bob; job 50 ended, and not cleanly: cancelled",
        ),
        (Progress(), "dropped 12 s ago by bob; no job that names it is known to be left"),
    ],
)
def test_what_came_of_a_kill_switch(progress: Progress, words: str) -> None:
    assert progress_words(SwitchKind.KILL, DROPPED, progress) == words


def test_a_kill_switch_that_was_taken_away_is_told_with_how_its_job_ended() -> None:
    told = progress_words(SwitchKind.KILL, FREE, Progress(0, 1, 1, "", "50"), 70.4)
    assert told == "dropped from here 1 min ago, and removed since; seen: job 50 ended cleanly"


def test_what_came_of_a_save_switch() -> None:
    def said(look: SwitchLook, here: float | None = None) -> str:
        return progress_words(SwitchKind.SAVE, look, Progress(), here)

    assert said(DROPPED) == "dropped 12 s ago by bob; not seen yet"
    unseen = Progress(0, 1, 1, "", "50")
    assert progress_words(SwitchKind.SAVE, DROPPED, unseen).endswith("; not seen: job 50 ended cleanly")
    assert said(FREE, here=70) == "seen: dropped from here 1 min ago, and removed by the program since"
    assert said(FREE) == "not dropped"
    assert said(replace(FREE, there="", problem="its folder is not there")) == "its folder is not there"


def test_a_log_that_stands_still_tells_of_a_job_that_cannot_see_a_switch() -> None:
    assert log_words(12) == "its log grew 12 s ago"
    assert "a hung job cannot see" in log_words(42 * 60)
    assert log_words(None, "its log is not there yet") == "its log is not there yet"
